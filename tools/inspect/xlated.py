"""`prog dump xlated`: instructions as the verifier left them, in the text of bpftool (the kernel's own).

That text differs from rawbpf.asm's, which can be assembled again, in loads of 64-bit constants, in calls
(translated ones name a kernel function) and in the registers of 32-bit atomics.
"""

import re
import struct

from rawbpf.asm.helpers import NAME
from rawbpf.asm.disassembler import text as plain_text
from rawbpf.asm.instruction import decode
from rawbpf.elf.image import ElfError
from rawbpf.loader.errors import KernelError

from ..failure import Failure
from .objects import by_id, symbols
from .output import hex_list, legible
from .prog import dumped_to_file, of_several
from .words import fail

_LDDW, _CALL, _ATOMIC32 = 0x18, 0x85, 0xc3
_W = re.compile(r"\bw(\d+)")


class Names:
    """What calls and addresses in a program mean: kernel symbols, its functions' own, its BTF."""

    def __init__(self, program):
        self.ksyms = program.jited_ksyms()
        self.functions, self.lines, self.btf = {}, {}, None
        self._read_btf(program)

    def _read_btf(self, program):
        number = getattr(program.info(), "btf_id", 0)
        if not number:
            return
        try:
            with by_id("btf", number) as blob:
                self.btf = blob.parse()
            self.functions = dict(program.func_info())
            for line in program.line_info():
                self.lines.setdefault(line[0], line[1:])
        except (KernelError, ElfError, Failure):
            self.functions, self.lines, self.btf = {}, {}, None

    @property
    def symbols(self):
        return symbols()

    def call(self, instruction):
        """The text after `call`."""
        imm, off = instruction.imm, instruction.off
        own = instruction.src == 1
        if not instruction.src and 0 <= imm < len(NAME):
            return "%s#%d" % (NAME[imm], imm)       # one that the verifier leaves alone (bpf_tail_call)
        if own and not self.ksyms:
            return "pc%+d" % off
        if own and 0 <= imm < len(self.ksyms):
            where = self.ksyms[imm]
        else:
            base = self.symbols.find("__bpf_call_base")
            where = (base[0].address if base else 0) + imm & (1 << 64) - 1
        found = self.symbols.resolve(where)
        name = found.name if found and not found.offset else "0x%x" % where
        return "pc%+d#%s" % (off, name) if own else "%s#%d" % (name, imm)

    def proto(self, slot):
        """The declaration of the function that starts at a slot, or ""."""
        if slot not in self.functions:
            return ""
        from .signature import function
        try:
            return function(self.btf, self.functions[slot])
        except ElfError:
            return ""

    def line(self, slot):
        """(file, text, line, column) of the source line that starts at a slot, or None."""
        found = self.lines.get(slot)
        if found is None:
            return None
        try:
            return (self.btf.string(found[0]), self.btf.string(found[1]).lstrip()) + found[2:]
        except ElfError:
            return None


def instruction_text(instruction, names):
    """As bpftool prints it: `(bf) r6 = r1`."""
    code, dst, src, off, imm = instruction[:5]
    if code == _LDDW:
        body = "r%d = %s" % (dst, _constant(src, imm))
    elif code == _CALL:
        body = "call " + names.call(instruction)
    elif code == 0xc2:
        body = "nospec"
    elif code == 0xbf and off == -1 and not imm:
        body = "r%d = &(void __percpu *)(r%d)" % (dst, src)     # what the verifier makes of lookups (6.10+)
    else:
        body = plain_text(instruction)
        if code == _ATOMIC32:
            body = _W.sub(r"r\1", body)
    return "(%02x) %s" % (code, body)


def _constant(src, imm):
    low, high = imm & 0xffffffff, imm >> 32 & 0xffffffff
    signed = low - (low >> 31 << 32)
    return {1: "map[id:%d]" % signed, 2: "map[id:%d][0]+%d" % (signed, high), 4: "subprog[%+d]" % signed,
            6: "map[idx:%d]+%d" % (signed, high)}.get(src, "0x%x" % (imm & (1 << 64) - 1))


def listing(program, names):
    """(slot, its bytes, Instruction) of each instruction."""
    code = program.xlated()
    at = 0
    for instruction in decode(code):
        size = 8 * instruction.slots
        yield at // 8, code[at:at + size], instruction
        at += size


def dump_programs(session, words, programs):
    if dumped_to_file(session, words, programs, lambda program: program.xlated()):
        return None
    flags = set()
    while words:
        flags.add(words.need("opcodes", "linum", "visual"))
    if "visual" in flags:
        if len(programs) > 1:
            fail("several programs match this handle")
        if session.json is not None:
            fail("'visual' is not compatible with JSON output")
        from .cfg import dot
        session.write(dot(programs[0], flags))
        return None
    several = len(programs) > 1
    if session.json is not None:
        if several:
            session.json.value(of_several(programs, lambda program: _records(program, flags)))
        else:
            session.json.value(_records(programs[0], flags))
        return None
    from .prog import record, text
    for number, program in enumerate(programs):
        if several:
            session.write(text(record(program)).split("\n")[0] + "\n")
        _plain(session.write, program, flags)
        if several and number + 1 < len(programs):
            session.write("\n")
    return None


def _plain(write, program, flags):
    names = Names(program)
    last = None
    for slot, raw, instruction in listing(program, names):
        proto = names.proto(slot)
        if proto:
            write(proto + ":\n")
        line = names.line(slot)
        if line and line != last and line[1]:
            write("; %s%s\n" % (legible(line[1]), " [file:%s line_num:%d line_col:%d]" % (legible(line[0]), line[2], line[3])
                                if "linum" in flags else ""))
        last = line or last
        write("%4d: %s\n" % (slot, instruction_text(instruction, names)))
        if "opcodes" in flags:
            write("       %s\n" % raw.hex(" "))


def _records(program, flags):
    names = Names(program)
    for slot, raw, instruction in listing(program, names):
        fields = {}
        proto = names.proto(slot)
        if proto:
            fields["proto"] = proto
        line = names.line(slot)
        if line:
            fields["src"] = line[1]
            if "linum" in flags:
                fields["file"], fields["line_num"], fields["line_col"] = line[0], line[2], line[3]
        fields["disasm"] = instruction_text(instruction, names)
        if "opcodes" in flags:
            fields["opcodes"] = _opcodes(raw)
        yield fields


def _opcodes(raw):
    code, registers, _, _ = struct.unpack_from("=BBhi", raw)
    return {"code": "0x%02x" % code, "src_reg": "0x%x" % (registers >> 4), "dst_reg": "0x%x" % (registers & 15),
            "off": hex_list(raw[2:4]), "imm": hex_list(raw[4:])}
