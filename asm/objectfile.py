"""An assembly as an ELF object (EM_BPF, relocatable), the way clang writes one and libbpf loads it.

Programs are functions in sections that name what they attach to, functions that they call are in .text,
maps are variables of the section .maps described by BTF, .BTF.ext says where functions and lines start.
Relocations: R_BPF_64_64 (lddw of a map or of data) and R_BPF_64_32 (call).
"""

import struct
import sys

from .btfwriter import GLOBAL, BtfWriter
from .errors import AsmError
from .instruction import FuncRef, KsymRef, MapRef, encode, slot_numbers
from .opcodes import BPF_PSEUDO_CALL, BPF_PSEUDO_FUNC, CALL, LDDW
from .text import Section

_ET_REL, _EM_BPF = 1, 247
_PROGBITS, _SYMTAB, _STRTAB, _NOBITS, _REL = 1, 2, 3, 8, 9
_WRITE, _ALLOC, _EXEC = 1, 2, 4
_LOCAL, _GLOBAL = 0, 1
_NOTYPE, _OBJECT, _FUNC, _SECTION = range(4)
_R_BPF_64_64, _R_BPF_64_32 = 1, 10


def write_object(assembly, map_types):
    """The bytes of the object. `map_types`: dict name -> number (enum bpf_map_type)."""
    return _Object(assembly, map_types).bytes()


class _Object:
    def __init__(self, assembly, map_types):
        self.assembly, self.map_types = assembly, map_types
        self.names, self.name_table = {"": 0}, bytearray(b"\0")
        self.sections = []      # [name, type, flags, content, link, info, align, entry size]
        self.symbols = []       # (name, bind, type, section index, value, size)
        self.index = {}         # section name -> index, from 1
        self.btf = BtfWriter()
        self.relocations = {}   # section name -> [(offset, symbol name, type)]

    def bytes(self):
        code = _separate(self.assembly)
        functions = {}
        for section in code.values():
            self._code(section, functions)
        for data in self.assembly.data.values():
            self._data(data)
        if self.assembly.license is not None:
            self._section("license", _PROGBITS, _WRITE | _ALLOC, self.assembly.license.encode() + b"\0", 1)
            self._symbol("_license", _GLOBAL, _OBJECT, "license", 0, len(self.assembly.license) + 1)
        self._maps()
        self._debug(code, functions)
        self._section(".BTF", _PROGBITS, 0, self.btf.bytes(), 4)
        self._section(".BTF.ext", _PROGBITS, 0, self.ext, 4)
        self._relocate()
        return self._layout()

    def _name(self, name):
        if name not in self.names:
            self.names[name] = len(self.name_table)
            self.name_table += name.encode() + b"\0"
        return self.names[name]

    def _section(self, name, kind, flags, content, align, link=0, info=0, entry=0):
        self.sections.append([name, kind, flags, content, link, info, align, entry])
        self.index[name] = len(self.sections)

    def _symbol(self, name, bind, kind, section, value, size):
        self.symbols.append((name, bind, kind, self.index.get(section, 0), value, size))

    def _code(self, section, functions):
        slots = slot_numbers(section.instructions)
        ready, relocations = [], []
        for index, i in enumerate(section.instructions):
            ref = i.ref
            if isinstance(ref, MapRef):
                if ref.name in self.assembly.data:
                    symbol, imm = "section " + ref.name, ref.offset or 0
                elif ref.name not in self.assembly.maps:
                    raise AsmError("%s: no .map %s" % (_place(section, index), ref.name))
                elif ref.offset is not None:
                    raise AsmError("%s: an object cannot refer to the value of the map %s; use a data section" % (
                        _place(section, index), ref.name))
                else:
                    symbol, imm = ref.name, 0
                relocations.append((slots[index] * 8, symbol, _R_BPF_64_64))
                i = i._replace(src=0, imm=imm, ref=None)
            elif isinstance(ref, FuncRef) and i.code == LDDW:
                relocations.append((slots[index] * 8, ref.name, _R_BPF_64_64))
                i = i._replace(src=BPF_PSEUDO_FUNC, imm=0, ref=None)
            elif isinstance(ref, FuncRef):
                relocations.append((slots[index] * 8, ref.name, _R_BPF_64_32))
                i = i._replace(src=BPF_PSEUDO_CALL, imm=-1, ref=None)
            elif isinstance(ref, KsymRef):
                raise AsmError("%s: %s: an object would need the C type of the kernel symbol, which assembly "
                               "does not have; load the assembly itself" % (_place(section, index), ref.name))
            ready.append(i)
        self._section(section.name, _PROGBITS, _ALLOC | _EXEC, encode(ready), 8)
        if relocations:
            self.relocations[section.name] = relocations
        starts = sorted(section.functions().items(), key=lambda item: item[1])
        if not starts or starts[0][1]:
            starts.insert(0, (_program_name(section.name), 0))
        for (name, first), (_, following) in zip(starts, [*starts[1:], (None, len(section.instructions))]):
            self._symbol(name, _LOCAL if section.name == ".text" else _GLOBAL, _FUNC, section.name, slots[first] * 8,
                         (slots[following] - slots[first]) * 8)
            functions.setdefault(section.name, []).append((name, slots[first]))

    def _data(self, data):
        bss = data.name.startswith(".bss")
        flags = _ALLOC if data.name.startswith(".rodata") else _ALLOC | _WRITE
        self._section(data.name, _NOBITS if bss else _PROGBITS, flags, bytes(data.content), max(data.align, 8))
        symbols = sorted(data.symbols.items(), key=lambda item: item[1]) or [("data", 0)]
        variables = []
        for (name, at), (_, end) in zip(symbols, [*symbols[1:], (None, len(data.content))]):
            self._symbol(name, _LOCAL, _OBJECT, data.name, at, end - at)
            if end > at:
                char = self.btf.integer("char", 1)
                variables.append((self.btf.variable(name, self.btf.array(char, end - at), 0), at, end - at))
        self._symbol("section " + data.name, _LOCAL, _SECTION, data.name, 0, 0)
        self.btf.section(data.name, len(data.content), variables)

    def _maps(self):
        if not self.assembly.maps:
            return
        size, variables = 0, []
        places = []
        for definition in self.assembly.maps.values():
            number = self.map_types.get(definition.type)
            if number is None:
                raise AsmError("map %s: no map type %s" % (definition.name, definition.type))
            values = {"type": number, "key_size": definition.key_size, "value_size": definition.value_size,
                      "max_entries": definition.max_entries, "map_flags": definition.flags, **definition.options}
            if "inner" in values:
                raise AsmError("map %s: an object cannot say inner=; load the assembly itself" % definition.name)
            fields = []
            for name, value in values.items():
                if value or name == "type":
                    if value >> 32:
                        raise AsmError("map %s: %s %d does not fit 32 bits" % (definition.name, name, value))
                    fields.append((name, self.btf.pointer(self.btf.array(self.btf.integer(), value)), 8 * len(fields)))
            length = 8 * len(fields)
            kind = self.btf.struct("", length, fields)
            variables.append((self.btf.variable(definition.name, kind), size, length))
            places.append((definition.name, size, length))
            size += length
        self._section(".maps", _PROGBITS, _WRITE | _ALLOC, bytes(size), 8)
        for name, at, length in places:
            self._symbol(name, _GLOBAL, _OBJECT, ".maps", at, length)
        self.btf.section(".maps", size, variables)

    def _debug(self, code, functions):
        """.BTF.ext: per section, where its functions and lines start."""
        funcs, lines = bytearray(struct.pack("=I", 8)), bytearray(struct.pack("=I", 16))
        for name, section in code.items():
            records = [struct.pack("=II", 8 * slot, self.btf.function(function, 1, 0 if name == ".text" else GLOBAL))
                       for function, slot in functions[name]]
            funcs += struct.pack("=II", self.btf.string(name), len(records)) + b"".join(records)
            slots = slot_numbers(section.instructions)
            places = [(8 * slots[i], line[0], line[1], 0, line[2].strip()) for i, line in enumerate(section.lines)]
            records = self.btf.line_records(places, [8 * slot for _, slot in functions[name]])
            lines += struct.pack("=II", self.btf.string(name), len(records)) + b"".join(records)
        header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(funcs), len(funcs), len(lines))
        self.ext = header + bytes(funcs) + bytes(lines)

    def _relocate(self):
        # Local symbols come first in a symbol table.
        self.symbols.sort(key=lambda symbol: symbol[1])
        numbers = {symbol[0]: i for i, symbol in enumerate(self.symbols, 1)}
        for name, relocations in self.relocations.items():
            content = b"".join(struct.pack("=QQ", at, numbers[symbol] << 32 | kind) for at, symbol, kind in relocations)
            self._section(".rel" + name, _REL, 0, content, 8, link=".symtab", info=self.index[name], entry=16)

    def _layout(self):
        table = bytes(24)
        for name, bind, kind, section, value, size in self.symbols:
            shown = self._name("" if kind == _SECTION else name)
            table += struct.pack("=IBBHQQ", shown, bind << 4 | kind, 0, section, value, size)
        local = 1 + sum(symbol[1] == _LOCAL for symbol in self.symbols)
        self._section(".symtab", _SYMTAB, 0, table, 8, link=".strtab", info=local, entry=24)
        self._section(".strtab", _STRTAB, 0, b"", 1)
        for section in self.sections:
            self._name(section[0])
        self.sections[-1][3] = bytes(self.name_table)
        out = bytearray(64)
        headers = [bytes(64)]
        for name, kind, flags, content, link, info, align, entry in self.sections:
            out += bytes(-len(out) % align)
            headers.append(struct.pack("=IIQQQQIIQQ", self.names[name], kind, flags, 0, len(out), len(content),
                                       self.index.get(link, 0), info, align, entry))
            if kind != _NOBITS:
                out += content
        out += bytes(-len(out) % 8)
        ident = b"\x7fELF\x02" + (b"\x01" if sys.byteorder == "little" else b"\x02") + b"\x01" + bytes(9)
        out[:64] = ident + struct.pack("=HHIQQQIHHHHHH", _ET_REL, _EM_BPF, 1, 0, 0, len(out), 0, 64, 0, 0, 64,
                                       len(headers), self.index[".strtab"])
        return bytes(out) + b"".join(headers)


def _place(section, index):
    line = section.lines[index]
    return "%s:%d" % (line[0], line[1])


def _program_name(section):
    """A symbol for a program whose section has no label at its start."""
    return "".join(c if c.isalnum() else "_" for c in section.split("/")[-1]).strip("_") or "prog"


def _separate(assembly):
    """dict name -> Section, with every function that is called in .text, as libbpf demands."""
    out, moved = {}, []
    for section in assembly.sections.values():
        if not section.instructions:
            continue
        if section.name == ".text":
            moved.insert(0, section)
            continue
        parts = _split(section, assembly.globals)
        out[section.name] = parts[0]
        moved += parts[1:]
    if moved:
        text = Section(".text")
        text.entries = set()
        for part in moved:
            for name, index in part.labels.items():
                text.labels[name] = index + len(text.instructions)
            text.entries |= part.entries if part.entries else set()
            text.instructions += part.instructions
            text.lines += part.lines
        out = {".text": text, **out}
    return out


def _split(section, programs):
    """A Section for the programs, and one for each function that something in the section calls."""
    called = {}
    slots = slot_numbers(section.instructions)
    at = {slot: i for i, slot in enumerate(slots)}
    code = list(section.instructions)
    names = {index: name for name, index in section.functions().items()}
    for index, i in enumerate(code):
        if i.ref is None and (i.code == CALL and i.src == BPF_PSEUDO_CALL or i.code == LDDW and i.src == BPF_PSEUDO_FUNC):
            off = i.imm - (i.imm >> 31 & 1) * (1 << 32) if i.code == LDDW else i.imm
            target = at[slots[index] + 1 + off]
            name = names.get(target) or "f%d" % target
            called[target] = name
            code[index] = i._replace(imm=0, ref=FuncRef(name))
    starts = sorted({0, *called, *(i for n, i in section.labels.items() if n in programs)})
    pieces = []
    for start, end in zip(starts, [*starts[1:], len(code)]):
        piece = Section(section.name)
        piece.instructions, piece.lines = code[start:end], section.lines[start:end]
        piece.labels = {n: i - start for n, i in section.labels.items() if start <= i < end}
        piece.labels.update({called[start]: 0} if start in called else {})
        piece.entries = {n for n, i in piece.labels.items() if i == 0}
        piece.program = start not in called
        _stays_inside(section, piece, slots, start, end)
        pieces.append(piece)
    main = Section(section.name)
    main.entries = set()
    for piece in pieces:
        if piece.program:
            main.labels.update({n: i + len(main.instructions) for n, i in piece.labels.items()})
            main.entries |= piece.entries
            main.instructions += piece.instructions
            main.lines += piece.lines
    return [main, *(piece for piece in pieces if not piece.program)]


def _stays_inside(section, piece, slots, start, end):
    """Jumps between functions have no meaning once the functions are apart."""
    first, last = slots[start], slots[end]
    for index, i in enumerate(piece.instructions):
        if i.code & 7 in (5, 6) and i.code & 0xF0 not in (0x80, 0x90):
            target = slots[start + index] + 1 + (i.imm if i.code == 0x06 else i.off)
            if not first <= target < last:
                raise AsmError("%s: a jump out of the function" % _place(section, start + index))
