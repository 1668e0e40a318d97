"""`rawbpf disasm`: instructions as text, from files, objects, loaded programs and verifier logs.

The text is the assembler's: what it says again are the same instructions.
"""

import re
import sys

from .failure import Failure, command, read_bytes
from .options import Option, UsageError

OPTIONS = (
    Option("raw", "r", "raw", "FILE", "a file of raw instructions, 8 bytes each", True),
    Option("hex", "x", "hex", "DIGITS", "instructions as hexadecimal digits", True),
    Option("log", "l", "log", "FILE", "the program that a verifier log shows", True),
    Option("id", "i", "id", "ID", "the loaded program with this id", True),
    Option("tag", "t", "tag", "TAG", "loaded programs with this tag", True),
    Option("name", "n", "name", "NAME", "loaded programs of this name", True),
    Option("pin", "p", "pin", "PATH", "the program that is pinned there", True),
    Option("order", "", "byte-order", "ORDER", "little or big, of raw and hexadecimal instructions\n"
                                               "(default: this machine's)"),
    Option("help", "h", "help", "", "this text"),
)
USAGE = """usage: rawbpf disasm [OPTION...] [FILE...]      (- is the standard input)

Prints instructions as text. A FILE is an ELF object, a verifier log, hexadecimal digits or raw
instructions; which one is seen from its content.

options:
"""
_LOG = re.compile(rb"^[ \t]*[0-9]{1,9}: (?:[0-9.]{10} )?\([0-9a-f]{2}\) ", re.M)
_HEX = re.compile(rb"\s*(?:(?:0x)?[0-9a-fA-F]{2}[\s,:]*)+$")


def run(argv):
    return command(OPTIONS, USAGE, work, argv)


def work(parsed):
    order = parsed.get("order")
    if order not in ("little", "big", None):
        raise UsageError("--byte-order takes little or big, not '%s'" % order)
    texts = []
    if parsed.get("order") and not (parsed.get("raw") or parsed.get("hex") or parsed.operands):
        raise UsageError("--byte-order is of raw and hexadecimal instructions")
    for path in parsed.operands:
        texts.append(of_file(read_bytes(path), path, order))
    for path in parsed.get("raw", ()):
        texts.append(of_raw(read_bytes(path), path, order))
    for digits in parsed.get("hex", ()):
        texts.append(of_hex(digits.encode(errors="replace"), "--hex", order))
    for path in parsed.get("log", ()):
        texts.append(of_log(read_bytes(path), path))
    texts += [of_program(program) for program in loaded(parsed)]
    if not texts:
        raise UsageError("what to disassemble? A file, --raw, --hex, --log, --id, --tag, --name or --pin")
    sys.stdout.write("\n".join(texts))
    return 0


def of_file(data, path, order):
    """The text of a file whose kind its content tells."""
    if data.startswith(b"\x7fELF"):
        if order is not None and data[5:6] != (b"\1" if order == "little" else b"\2"):
            raise Failure("%s: an object says itself what its byte order is, and it is not %s" % (path, order))
        from .objects import read_object
        return of_assembly(read_object(data, path, show=True))
    if _LOG.search(data):
        return of_log(data, path)
    if _HEX.match(data):
        return of_hex(data, path, order)
    return of_raw(data, path, order)


def of_raw(data, path, order):
    from rawbpf.asm import AsmError, decode, disassemble
    if not data:
        raise Failure("%s: it is empty" % path)
    try:
        return disassemble(decode(data, order or sys.byteorder)) + "\n"
    except AsmError as error:
        raise Failure("%s: %s" % (path, error)) from None


def of_hex(data, path, order):
    digits = re.sub(rb"0x|[\s,:]", b"", data)
    try:
        return of_raw(bytes.fromhex(digits.decode("ascii")), path, order)
    except (ValueError, UnicodeDecodeError):
        raise Failure("%s: an even number of hexadecimal digits is wanted" % path) from None


def of_log(data, path):
    from rawbpf.asm import AsmError, AsmSyntaxError
    from rawbpf.asm.disassembler import text
    from rawbpf.asm.verifierlog import instructions_of_log
    lines, expected = [], 0
    try:
        for slot, instruction in instructions_of_log(data.decode("utf-8", "replace"), path):
            if slot != expected:
                lines.append("; the log does not show slots %d to %d" % (expected, slot - 1))
            lines.append("%4d: (%02x) %s" % (slot, instruction.code, text(instruction)))
            expected = slot + instruction.slots
    except AsmSyntaxError:
        raise
    except AsmError as error:
        raise Failure("%s: %s" % (path, error)) from None
    return "\n".join(lines) + "\n"


def of_assembly(assembly):
    """A whole Assembly as text that the assembler takes."""
    from rawbpf.asm.disassembler import text
    lines = []
    if assembly.license is not None:
        lines.append('.license "%s"' % assembly.license.replace("\\", "\\\\").replace('"', '\\"'))
    for m in assembly.maps.values():
        options = {"key": m.key_size, "value": m.value_size, "max_entries": m.max_entries, "flags": m.flags, **m.options}
        lines.append(".map %s %s %s" % (m.name, m.type, " ".join("%s=%s" % pair for pair in options.items() if pair[1])))
    for data in assembly.data.values():
        lines += ["", ".section %s" % _quoted(data.name), *_data(data)]
    for section in assembly.sections.values():
        lines += ["", ".section %s" % _quoted(section.name)]
        lines += [".globl %s" % name for name in section.labels if name in assembly.globals]
        slot = 0
        names = {}
        for name, index in section.labels.items():
            names.setdefault(index, []).append(name)
        for index, instruction in enumerate(section.instructions):
            lines += ["%s:" % name for name in names.get(index, ())]
            lines.append("%4d: (%02x) %s" % (slot, instruction.code, text(instruction)))
            slot += instruction.slots
    lines = [*_externals(assembly), *lines]
    # names of a damaged file
    shown = [line if line.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in line) for line in lines]
    return "\n".join(shown).lstrip("\n") + "\n"


def _quoted(name):
    """A section's name, in quotes where it could be taken for something else."""
    return name if re.match(r"[\w.:?*@+-]+(/[\w.:?*@+-]+)*$", name) else '"%s"' % name


def _externals(assembly):
    """.kfunc and .ksym lines, with the types where they are known and can be written."""
    lines = []
    for directive, known in ((".kfunc", assembly.kfuncs), (".ksym", assembly.ksyms)):
        for name, kind in sorted(known.items()):
            lines.append("%s %s" % (directive, _declared(name, kind)))
            if name in assembly.weak:
                lines.append(".weak %s" % name)
    return lines


def _declared(name, kind):
    """The declaration of a kernel symbol, or its name where the assembler takes no more."""
    from rawbpf.asm.prototypes import declaration, text
    from rawbpf.asm.tokens import Tokens, Unexpected
    if kind is None:
        return name
    said = text(name, kind)
    try:
        declaration(Tokens(said))
    except Unexpected:
        return name         # pointers to pointers to functions, and other things that no kfunc has
    return said


def _data(data):
    """Data as .byte lines with its symbols."""
    starts = sorted(data.symbols.items(), key=lambda item: item[1])
    cuts = sorted({0, *(at for _, at in starts), len(data.content)})
    lines = []
    for start, end in zip(cuts, cuts[1:]):
        lines += ["%s:" % name for name, at in starts if at == start]
        part = data.content[start:end]
        if not any(part):
            lines.append("    .zero %d" % len(part))
            continue
        for at in range(0, len(part), 16):
            lines.append("    .byte " + ", ".join("%#04x" % byte for byte in part[at:at + 16]))
    return lines


def loaded(parsed):
    """Yields the loaded programs that the options name."""
    from rawbpf.loader import ids
    from rawbpf.loader.program import Program
    for number in parsed.get("id", ()):
        if not re.match(r"[0-9]{1,10}$", number) or int(number) >> 32:
            raise UsageError("--id takes a number of 32 bits, not '%s'" % number)
        yield Program.from_id(int(number))
    for path in parsed.get("pin", ()):
        yield Program.pinned(path)
    for option, field in (("tag", "tag"), ("name", "name")):
        for wanted in parsed.get(option, ()):
            found = False
            for number in ids.walk("prog"):
                fd = ids.open_fd("prog", number)
                if fd is None:
                    continue      # it has ended meanwhile
                program = Program.from_fd(fd)
                # The kernel keeps 15 characters of a name.
                if getattr(program.info(), field) == (wanted[:15] if field == "name" else wanted.lower()):
                    found = True
                    yield program
                else:
                    program.close()
            if not found:
                raise Failure("no loaded program has the %s %s" % (option, wanted))


def of_program(program):
    """A loaded program's translated instructions."""
    from rawbpf.asm import decode, disassemble
    with program:
        info = program.info()
        heading = "; %d: %s %s  tag %s" % (info.id, info.type, info.name, info.tag)
        return "%s\n%s\n" % (heading, disassemble(decode(program.xlated())))
