"""An assembly as an ELF object (EM_BPF, relocatable), the way clang writes one and libbpf loads it.

Programs are functions in sections that name what they attach to, functions that they call are in .text,
maps are variables of the section .maps described by BTF, .BTF.ext says where functions and lines start. Kernel
functions and variables are undefined symbols; BTF's section .ksyms says of which type they are.
Relocations: R_BPF_64_64 (lddw of a map, of data, of a kernel variable) and R_BPF_64_32 (call).
"""

import struct

from . import elfwriter, prototypes
from .assembly import Section, error_at
from .btfwriter import GLOBAL, BtfWriter, identifier
from .elfwriter import ALLOC, EXEC, FUNC, LOCAL, NOBITS, NOTYPE, OBJECT, PROGBITS, SECTION, WEAK, WRITE
from .errors import AsmError
from .instruction import FuncRef, KsymRef, MapRef, encode, slot_numbers
from .opcodes import BPF_PSEUDO_CALL, BPF_PSEUDO_FUNC, CALL, LDDW

_R_BPF_64_64, _R_BPF_64_32 = 1, 10
_EXTERN = 2                 # linkage in BTF
_MAPS_OF_MAPS = ("array_of_maps", "hash_of_maps")


def write_object(assembly, map_types, symbols=None):
    """The bytes of the object. `map_types`: dict name -> number (enum bpf_map_type). `symbols`: function
    (name, "func" or "var") -> the type of a kernel symbol that the assembly does not declare (prototypes.py says how
    types are written), or None.
    """
    return _Object(assembly, map_types, symbols or (lambda name, kind: None)).bytes()


class _Object:
    def __init__(self, assembly, map_types, kernel_symbols):
        self.assembly, self.map_types, self.kernel_symbols = assembly, map_types, kernel_symbols
        self.file = elfwriter.ElfWriter()
        self.symbols = {}       # name -> the file's number of it
        self.index = {}         # section name -> index
        self.btf = BtfWriter()
        self.relocations = {}   # section name -> [(offset, symbol name, type)]
        self.externs = {}       # kernel symbol -> BTF id of its function or variable
        self.structs = {}       # of externs

    def bytes(self):
        code = _separate(self.assembly)
        functions = {}
        for section in code.values():
            self._code(section, functions)
        for data in self.assembly.data.values():
            self._data(data)
        if self.assembly.license is not None:
            self._section("license", PROGBITS, WRITE | ALLOC, self.assembly.license.encode() + b"\0", 1)
            self._symbol("_license", GLOBAL, OBJECT, "license", 0, len(self.assembly.license) + 1)
        self._maps()
        self._externs()
        self._debug(code, functions)
        self._section(".BTF", PROGBITS, 0, self.btf.bytes(), 4)
        self._section(".BTF.ext", PROGBITS, 0, self.ext, 4)
        for name, relocations in self.relocations.items():
            self.file.relocate(self.index[name], [(at, self.symbols[symbol], kind) for at, symbol, kind in relocations])
        return self.file.bytes()

    def _section(self, name, kind, flags, content, align):
        self.index[name] = self.file.section(name, kind, flags, content, align)

    def _symbol(self, name, bind, kind, section, value, size):
        self.symbols[name] = self.file.symbol(name, bind, kind, self.index[section], value, size)

    def _code(self, section, functions):
        slots = slot_numbers(section.instructions)
        ready, relocations = [], []
        for index, i in enumerate(section.instructions):
            ref = i.ref
            if isinstance(ref, MapRef):
                if ref.name in self.assembly.data:
                    symbol, imm = "section " + ref.name, ref.offset or 0
                elif ref.name not in self.assembly.maps:
                    raise error_at(section.lines[index], "no .map %s" % ref.name)
                elif ref.offset is not None:
                    raise error_at(section.lines[index], "an object cannot refer to the value of the map %s; use a data "
                                   "section" % ref.name)
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
                call = i.code == CALL
                self._extern(ref.name, call, section.lines[index])
                relocations.append((slots[index] * 8, ref.name, _R_BPF_64_32 if call else _R_BPF_64_64))
                i = i._replace(src=BPF_PSEUDO_CALL if call else 0, imm=-1 if call else 0, ref=None)
            ready.append(i)
        self._section(section.name, PROGBITS, ALLOC | EXEC, encode(ready), 8)
        if relocations:
            self.relocations[section.name] = relocations
        starts = sorted(section.functions().items(), key=lambda item: item[1])
        if not starts or starts[0][1]:
            starts.insert(0, (_program_name(section.name), 0))
        for (name, first), (_, following) in zip(starts, [*starts[1:], (None, len(section.instructions))]):
            self._symbol(name, LOCAL if section.name == ".text" else GLOBAL, FUNC, section.name, slots[first] * 8,
                         (slots[following] - slots[first]) * 8)
            functions.setdefault(section.name, []).append((name, slots[first]))

    def _extern(self, name, function, line):
        """Declares a kernel symbol: undefined in the file, with the type that is expected of it in BTF."""
        assembly = self.assembly
        function = function or name in assembly.kfuncs      # whether a weak one is there is asked by its address
        kind = (assembly.kfuncs if function else assembly.ksyms).get(name)
        if kind is None:
            kind = self.kernel_symbols(name, "func" if function else "var")
        if kind is None:
            raise error_at(line, "an object says which type it expects of the kernel's %s, and neither the assembly nor "
                           "this kernel does: declare it, as in %s" % (
                               name, ".kfunc int %s(void)" % name if function else ".ksym int %s" % name))
        if name in self.externs:
            return
        if name in assembly.maps or any(name in section.labels for section in assembly.sections.values()):
            raise error_at(line, "%s is of the kernel, and defined here" % name)
        written = prototypes.write(self.btf, kind, self.structs)
        self.externs[name] = self.btf.function(name, linkage=_EXTERN, prototype=written) if function else \
            self.btf.variable(name, written, _EXTERN)
        self.symbols[name] = self.file.symbol(name, WEAK if name in assembly.weak else GLOBAL, NOTYPE, 0, 0, 0)

    def _externs(self):
        if self.externs:
            self.btf.integer()      # libbpf takes it for the type of functions in .ksyms
            self.btf.section(".ksyms", 0, [(number, 0, 0) for number in self.externs.values()])

    def _data(self, data):
        bss = data.name.startswith(".bss")
        flags = ALLOC if data.name.startswith(".rodata") else ALLOC | WRITE
        self._section(data.name, NOBITS if bss else PROGBITS, flags, bytes(data.content), max(data.align, 8))
        symbols = sorted(data.symbols.items(), key=lambda item: item[1]) or [("data", 0)]
        variables = []
        for (name, at), (_, end) in zip(symbols, [*symbols[1:], (None, len(data.content))]):
            self._symbol(name, LOCAL, OBJECT, data.name, at, end - at)
            if end > at:
                char = self.btf.integer("char", 1)
                variables.append((self.btf.variable(name, self.btf.array(char, end - at), 0), at, end - at))
        self._symbol("section " + data.name, LOCAL, SECTION, data.name, 0, 0)
        self.btf.section(data.name, len(data.content), variables)

    def _maps(self):
        size, places, structs = 0, [], {}
        if not self.assembly.maps:
            return
        for name in self.assembly.maps:
            kind, length = self._map(name, structs)
            places.append((name, kind, size, length))
            size += length
        self._section(".maps", PROGBITS, WRITE | ALLOC, bytes(size), 8)
        variables = []
        for name, kind, at, length in places:
            self._symbol(name, GLOBAL, OBJECT, ".maps", at, length)
            variables.append((self.btf.variable(name, kind), at, length))
        self.btf.section(".maps", size, variables)

    def _map(self, name, structs, of=None):
        """(BTF id, bytes) of the struct that describes a map: __uint(field, number) is a pointer to int[number];
        __array(values, struct) an array of pointers to what describes the inner maps."""
        if name in structs:
            return structs[name]
        definition = self.assembly.maps.get(name)
        if definition is None:
            raise AsmError("map %s: its inner map %s is not defined" % (of, name))
        number = self.map_types.get(definition.type)
        if number is None:
            from difflib import get_close_matches
            near = get_close_matches(definition.type, list(self.map_types), 3)
            raise AsmError("map %s: no map type %s%s" % (name, definition.type,
                                                         near and "; did you mean %s?" % " or ".join(near) or ""))
        options = dict(definition.options)
        inner = options.pop("inner", None)
        values = {"type": number, "key_size": definition.key_size, "value_size": definition.value_size,
                  "max_entries": definition.max_entries, "map_flags": definition.flags, **options}
        fields = []
        for field, value in values.items():
            if value or field == "type":
                if value >> 32:
                    raise AsmError("map %s: %s %d does not fit 32 bits" % (name, field, value))
                fields.append((field, self.btf.pointer(self.btf.array(self.btf.integer(), value)), 8 * len(fields)))
        length = 8 * len(fields)
        if inner is not None:
            if of is not None:
                raise AsmError("map %s: %s is the inner map of %s and cannot have one" % (name, name, of))
            if definition.type not in _MAPS_OF_MAPS:
                raise AsmError("map %s: only %s have inner maps" % (name, " and ".join(_MAPS_OF_MAPS)))
            inside, _ = self._map(inner, structs, name)
            fields.append(("values", self.btf.array(self.btf.pointer(inside), 0), length))
        elif definition.type in _MAPS_OF_MAPS:
            raise AsmError("map %s: inner=NAME says which map its values are like" % name)
        made = self.btf.struct("", length, fields), length
        if inner is None:
            structs[name] = made
        return made

    def _debug(self, code, functions):
        """.BTF.ext: per section, where its functions and lines start."""
        funcs, lines = bytearray(struct.pack("=I", 8)), bytearray(struct.pack("=I", 16))
        for name, section in code.items():
            linkage = 0 if name == ".text" else GLOBAL
            records = [struct.pack("=II", 8 * slot, self.btf.function(identifier(function), 1, linkage))
                       for function, slot in functions[name]]
            funcs += struct.pack("=II", self.btf.string(name), len(records)) + b"".join(records)
            slots = slot_numbers(section.instructions)
            places = [(8 * slots[i], line[0], line[1], 0, line[2].strip()) for i, line in enumerate(section.lines)]
            records = self.btf.line_records(places, [8 * slot for _, slot in functions[name]])
            lines += struct.pack("=II", self.btf.string(name), len(records)) + b"".join(records)
        header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(funcs), len(funcs), len(lines))
        self.ext = header + bytes(funcs) + bytes(lines)


def _program_name(section):
    """A symbol for a program whose section has no label at its start."""
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in section.split("/")[-1]).strip("_") or "prog"
    return "_" + name if name[0].isdigit() else name


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
        if i.code & 7 in (5, 6) and i.code & 0xF0 not in (0x80, 0x90) and i.code != 0x0d:     # gotox: wherever
            target = slots[start + index] + 1 + (i.imm if i.code == 0x06 else i.off)
            if not first <= target < last:
                raise error_at(section.lines[start + index], "a jump out of the function")
