"""Instructions written to files: raw bytes, C arrays, JSON; and JSON read back.

`raw` is 8 bytes a slot in the byte order asked for; everything must be resolved. `c_array` and `json_text`
keep what is symbolic, by name.
"""

import sys

from .assembly import error_at
from .errors import AsmError
from .instruction import HALF, FuncRef, Instruction, KsymRef, Label, MapRef, encode

_KINDS = {MapRef: "map", Label: "label", FuncRef: "function", KsymRef: "ksym"}


def raw(instructions, byteorder=sys.byteorder, lines=None):
    """Bytes, as BPF_PROG_LOAD takes them. lines: where each instruction was written, for errors."""
    for index, instruction in enumerate(instructions):
        if instruction.ref is not None and instruction.ref is not HALF:
            reason = "the %s %s, which raw bytes cannot say; write an ELF object or JSON" % (
                _KINDS[type(instruction.ref)], instruction.ref.name)
            raise error_at(lines[index], "this refers to " + reason) if lines else AsmError(
                "instruction %d refers to %s" % (index, reason))
    return encode(instructions, byteorder)


def c_array(instructions, name="insns"):
    """`struct bpf_insn NAME[] = {...};`; a reference is a comment and a zero."""
    from .disassembler import text
    lines = ["static struct bpf_insn %s[] = {" % name]
    for i in instructions:
        fields = "\t{ .code = 0x%02x, .dst_reg = %d, .src_reg = %d, .off = %d, .imm = %s },"
        imm = i.imm if i.slots == 1 else (i.imm & 0xFFFFFFFF) - ((i.imm >> 31 & 1) << 32)
        # -2147483648 is no int constant in C.
        shown = str(imm) if imm > -1 << 31 else "-2147483647 - 1"
        lines.append(fields % (i.code, i.dst, i.src, i.off, shown) + " /* %s */" % text(i).replace("*/", "* /"))
        if i.slots == 2:
            high = (i.imm >> 32 & 0xFFFFFFFF) - ((i.imm >> 63 & 1) << 32)
            lines.append(fields % (0, 0, 0, 0, str(high) if high > -1 << 31 else "-2147483647 - 1"))
    lines.append("};\n")
    return "\n".join(lines)


def as_dict(instruction):
    """One instruction for JSON: its fields, its text, and `ref` {kind, name, offset} if it has one."""
    from .disassembler import text
    code, dst, src, off, imm, ref = instruction
    fields = {"code": code, "dst": dst, "src": src, "off": off, "imm": imm, "text": text(instruction)}
    if ref is HALF:
        fields["half"] = True
    elif ref is not None:
        fields["ref"] = {"kind": _KINDS[type(ref)], "name": ref.name}
        if isinstance(ref, MapRef) and ref.offset is not None:
            fields["ref"]["offset"] = ref.offset
    return fields


def from_dict(fields):
    """The instruction of `as_dict`; AsmError if it is none."""
    try:
        values = [fields[name] for name in ("code", "dst", "src", "off", "imm")]
        ref = fields.get("ref")
        if ref is not None:
            kind = {name: kind for kind, name in _KINDS.items()}[ref["kind"]]
            ref = MapRef(ref["name"], ref.get("offset")) if kind is MapRef else kind(ref["name"])
    except (KeyError, TypeError, AttributeError):
        raise AsmError("no instruction: %r" % (fields,)) from None
    if not all(isinstance(value, int) for value in values):
        raise AsmError("no instruction: %r" % (fields,))
    return Instruction(*values, HALF if fields.get("half") else ref)


def json_text(assembly):
    """All that an Assembly says, as JSON: sections with their instructions and functions, maps, data, license, and the
    kernel's functions and variables with their declaration in C where there is one."""
    import json
    from .prototypes import text as declaration
    sections = []
    for section in assembly.sections.values():
        sections.append({"name": section.name, "functions": section.functions(), "instructions": [
            {**as_dict(i), "file": line[0], "line": line[1]} for i, line in zip(section.instructions, section.lines)]})
    maps = [{**m._asdict(), "options": dict(m.options)} for m in assembly.maps.values()]
    data = [{"name": d.name, "content": d.content.hex(), "symbols": d.symbols} for d in assembly.data.values()]
    kernel = {what: {name: kind and declaration(name, kind) for name, kind in getattr(assembly, what).items()}
              for what in ("kfuncs", "ksyms")}
    return json.dumps({"license": assembly.license, "sections": sections, "maps": maps, "data": data, **kernel}, indent=1)
