"""A BPF object file: what clang (or our assembler) makes and libbpf loads.

An ELF file of machine EM_BPF and type REL. Programs are functions in sections that name what they attach
to; what they call is in `.text`; `.maps` (with BTF) or `maps` define maps; `.data`, `.rodata`, `.bss` and
`.data.*` ... are global data; undefined symbols are kernel symbols and configuration, told apart by the BTF
sections `.ksyms` and `.kconfig`. Relocation types: Documentation/bpf/llvm_reloc.rst. This file reads; what
it needs from a kernel is filled in by rawbpf.loader.
"""

import os
import struct
import sys
from typing import NamedTuple

from . import btf_raw
from .btf import Btf
from .btf_ext import BtfExt
from .image import SHF_EXECINSTR, SHN_ABS, SHN_LORESERVE, SHN_UNDEF, SHT_NOBITS, SHT_SYMTAB, TABLE_LIMIT, ElfError, Image, read_input

SHT_PROGBITS, SHT_REL, SHT_RELA = 1, 9, 4
STB_GLOBAL, STB_WEAK = 1, 2
STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_SECTION = range(4)
R_BPF_64_64, R_BPF_64_ABS64, R_BPF_64_ABS32, R_BPF_64_NODYLD32, R_BPF_64_32 = 1, 2, 3, 4, 10
STRUCT_OPS = (".struct_ops", ".struct_ops.link", "?.struct_ops", "?.struct_ops.link")
ARENA = ".addr_space.1"       # globals in the memory that programs share with user space
JUMP_TABLES = ".jumptables"   # arrays of 64-bit places in a function's section, to which it goes by `gotox`
DATA_LIMIT = 1 << 30        # bytes of one data section
FILE_LIMIT = 1 << 29        # of the file, which is read whole
CODE_LIMIT = 1 << 23        # of one function: the kernel takes a million instructions


class ObjectSymbol(NamedTuple):
    name: str
    type: int
    bind: int
    hidden: bool
    section: int
    value: int
    size: int


class Function(NamedTuple):
    """A function of a code section: `offset` and `size` in bytes. `program`: one that is loaded by itself,
    rather than called."""

    name: str
    section: str
    section_index: int
    offset: int
    size: int
    hidden: bool
    program: bool


class Relocation(NamedTuple):
    type: int
    symbol: ObjectSymbol


class DataSection(NamedTuple):
    """Global data; `content` is None for what is all zero. `btf_id`: its DATASEC, 0 without one."""

    name: str
    index: int
    size: int
    content: object
    btf_id: int

    @property
    def kind(self):
        """".data", ".rodata" or ".bss"."""
        return "." + self.name[1:].split(".")[0]


class Extern(NamedTuple):
    """What the object expects from outside: `kind` is "kconfig", "ksym" (a variable) or "kfunc"; `type` the
    BTF id of its variable's type or function."""

    name: str
    kind: str
    weak: bool
    type: int


def is_data(name):
    return any(name == kind or name.startswith(kind + ".") for kind in (".data", ".rodata", ".bss"))


class BpfObjectFile:
    """`functions` (list of Function), `data` (section name -> DataSection), `externs` (name -> Extern),
    `arena` (DataSection or None), `maps` (name -> bpf_maps.MapDefinition), `license`, `btf` and `btf_ext` (None without), `symbols`.
    ElfError for whatever does not fit together. relaxed_maps: members of map definitions that are not known are passed over."""

    def __init__(self, image, relaxed_maps=False):
        self.image, self.path, self.relaxed_maps = image, image.path, relaxed_maps
        if image.machine not in ("bpf", "machine 0") or image.type != "REL" or image.bits != 64:
            raise ElfError(self.path, 16, "not a BPF object: machine %s, type %s, %d bits" % (
                image.machine, image.type, image.bits))
        if image.order != ("<" if sys.byteorder == "little" else ">"):
            raise ElfError(self.path, 5, "made for the other byte order: compile it with -target bpf")
        self.sections = image.sections
        self.symbols = self._symbols()
        self.btf = self._btf()
        self.btf_ext = self._btf_ext()
        self.relocations = self._relocations()
        self.license = self._license()
        self.functions = self._functions()
        self.data = self._data(is_data)
        self.arena = self._data(lambda name: name == ARENA).get(ARENA)
        self.externs = self._externs()
        from .bpf_maps import read_maps
        self.maps = read_maps(self)

    @classmethod
    def open(cls, path, relaxed_maps=False):
        if not os.path.isfile(path):
            return cls.parse(read_input(path), os.fspath(path), relaxed_maps)
        image = Image.open(path)
        if image.type != "REL":
            return cls(image)           # says what is wrong with it
        if image.size > FILE_LIMIT:
            raise ElfError(image.path, None, "it has %d bytes, more than any object of BPF programs" % image.size)
        # read, not mapped: the file may be written anew or cut while the object is in use
        with open(path, "rb") as file:
            return cls.parse(file.read(), image.path, relaxed_maps)

    @classmethod
    def parse(cls, data, path="<memory>", relaxed_maps=False):
        return cls(Image(bytes(data), path), relaxed_maps)

    def error(self, reason, offset=None):
        return ElfError(self.path, offset, reason)

    # -- tables ----------------------------------------------------------------------------------------

    def _symbols(self):
        tables = [section for section in self.sections if section.type == SHT_SYMTAB]
        if not tables:
            raise self.error("has no symbol table")
        table = tables[0]
        if table.link >= len(self.sections):
            raise self.error("the symbols' names are in section %d of %d" % (table.link, len(self.sections)),
                             table.offset)
        names = bytes(self.image.data(self.sections[table.link], TABLE_LIMIT))
        data = self.image.data(table, TABLE_LIMIT)
        if len(data) % 24:
            raise self.error("the symbol table is no whole number of 24-byte entries", table.offset)
        result = []
        for name, info, other, section, value, size in struct.iter_unpack("=IBBHQQ", data):
            end = names.find(b"\0", name)
            if end < 0:
                raise self.error("symbol %d has its name outside the string table" % len(result), table.offset)
            if section < SHN_LORESERVE and section >= len(self.sections):
                raise self.error("symbol %d lies in section %d of %d" % (len(result), section, len(self.sections)),
                                 table.offset)
            text = names[name:end].decode("utf-8", "surrogateescape")
            if info & 15 == STT_SECTION and section < SHN_LORESERVE:
                text = text or self.sections[section].name
            result.append(ObjectSymbol(text, info & 15, info >> 4, other & 3 in (1, 2), section, value, size))
        return result

    def _btf(self):
        section = self.image.section(".BTF")
        return None if section is None else Btf(bytes(self.image.data(section, TABLE_LIMIT)), None, self.path + " (.BTF)")

    def _btf_ext(self):
        section = self.image.section(".BTF.ext")
        if section is None or self.btf is None:
            return None
        return BtfExt(self.image.data(section, TABLE_LIMIT), self.btf, self.path + " (.BTF.ext)")

    def _relocations(self):
        """section index -> {offset: Relocation}"""
        result = {}
        for section in self.sections:
            if section.type == SHT_RELA and section.info < len(self.sections) and \
                    self.sections[section.info].flags & SHF_EXECINSTR:
                raise self.error("section %s: relocations with addends are not BPF's" % section.name, section.offset)
            if section.type != SHT_REL:
                continue
            if section.info >= len(self.sections):
                raise self.error("%s relocates section %d of %d" % (section.name, section.info, len(self.sections)),
                                 section.offset)
            target = self.sections[section.info]
            data = self.image.data(section, TABLE_LIMIT)
            if len(data) % 16:
                raise self.error("%s is no whole number of 16-byte entries" % section.name, section.offset)
            table = result.setdefault(section.info, {})
            for offset, info in struct.iter_unpack("=QQ", data):
                if info >> 32 >= len(self.symbols):
                    raise self.error("%s refers to symbol %d of %d" % (section.name, info >> 32, len(self.symbols)),
                                     section.offset)
                if offset >= target.size:
                    raise self.error("%s: offset %d lies outside %s" % (section.name, offset, target.name),
                                     section.offset)
                table[offset] = Relocation(info & 0xffffffff, self.symbols[info >> 32])
        return result

    def _license(self):
        section = self.image.section("license")
        if section is None:
            return ""
        text = bytes(self.image.data(section)[:128]).split(b"\0")[0]
        return text.decode("utf-8", "replace")

    # -- what is in it ---------------------------------------------------------------------------------

    def _functions(self):
        by_section = {}
        for symbol in self.symbols:
            if symbol.type == STT_FUNC and symbol.section not in (SHN_UNDEF, SHN_ABS) and \
                    symbol.section < SHN_LORESERVE:
                by_section.setdefault(symbol.section, []).append(symbol)
        result = []
        for index, symbols in sorted(by_section.items()):
            section = self.sections[index]
            if not section.flags & SHF_EXECINSTR or section.type != SHT_PROGBITS:
                continue
            self.image.view(section.offset, section.size, "section %s" % section.name)
            last = None
            for symbol in sorted(symbols, key=lambda symbol: (symbol.value, -symbol.bind)):
                if symbol.size == 0 or symbol.size % 8 or symbol.value % 8 or symbol.value + symbol.size > section.size:
                    raise self.error("function %s: bytes %d to %d of section %s are no instructions of it" % (
                        symbol.name, symbol.value, symbol.value + symbol.size, section.name))
                if symbol.size > CODE_LIMIT:
                    raise self.error("function %s has %d instructions, more than the kernel takes" % (
                        symbol.name, symbol.size // 8))
                if last is not None and symbol.value < last.value + last.size:
                    if symbol[5:] == last[5:]:
                        continue        # an alias
                    raise self.error("functions %s and %s overlap" % (last.name, symbol.name))
                last = symbol
                # a static function of a program section can only be called
                program = section.name != ".text" and symbol.bind != 0
                result.append(Function(symbol.name, section.name, index, symbol.value, symbol.size, symbol.hidden,
                                       program))
        return result

    def code(self, function):
        """The bytes of a function."""
        section = self.sections[function.section_index]
        return bytes(self.image.view(section.offset + function.offset, function.size, "function " + function.name))

    def function_at(self, section_index, offset):
        """The Function that starts there, or None."""
        table = self.__dict__.get("_starts")
        if table is None:
            table = self._starts = {(each.section_index, each.offset): each for each in self.functions}
        return table.get((section_index, offset))

    def _data(self, wanted):
        result = {}
        for section in self.sections[1:]:
            if not wanted(section.name) or not section.size or section.type not in (SHT_PROGBITS, SHT_NOBITS):
                continue
            if section.size > DATA_LIMIT:
                raise self.error("section %s has %d bytes, more than a map can hold" % (section.name, section.size),
                                 section.offset)
            content = None if section.type == SHT_NOBITS else bytes(self.image.data(section))
            if section.name in result:
                raise self.error("has two sections %s" % section.name, section.offset)
            result[section.name] = DataSection(section.name, section.index, section.size, content,
                                               self.btf.find_id(section.name, "datasec") if self.btf else 0)
        return result

    def variables(self, section_name):
        """[(name, offset, size, type id, static)] of a data section's variables by its BTF; offsets of global
        ones are those of their symbols, because compilers leave them to the linker."""
        type_id = self.btf.find_id(section_name, "datasec") if self.btf else 0
        if not type_id:
            return []
        words = btf_raw.record(self.btf, type_id).words
        result = []
        for i in range(0, len(words), 3):
            var = btf_raw.record(self.btf, words[i])
            if var.kind != "var":
                continue
            result.append((var.name, self.variable_place(section_name, var, words[i + 1]), words[i + 2], var.rest,
                           var.words[0] == 0))
        return result

    def variable_place(self, section_name, var, offset):
        """Where a VAR (a Record) is in its section, whose DATASEC says `offset`, which is right for static ones."""
        section = self.image.section(section_name)
        if var.kind != "var" or var.words[0] == 0 or section is None:
            return offset
        return self._globals().get((section.index, var.name), offset)

    def _globals(self):
        """(section index, name) -> value of the global symbols."""
        table = self.__dict__.get("_global_places")
        if table is None:
            table = self._global_places = {(symbol.section, symbol.name): symbol.value for symbol in self.symbols
                                           if symbol.bind in (STB_GLOBAL, STB_WEAK)}
        return table

    def _externs(self):
        result, known = {}, {}
        for name in (".kconfig", ".ksyms"):
            type_id = self.btf.find_id(name, "datasec") if self.btf else 0
            if type_id:
                words = btf_raw.record(self.btf, type_id).words
                for i in range(0, len(words), 3):
                    entry = btf_raw.record(self.btf, words[i])
                    known[entry.name] = (name, entry)
        for symbol in self.symbols[1:]:
            if symbol.section != SHN_UNDEF or symbol.bind not in (STB_GLOBAL, STB_WEAK) or not symbol.name:
                continue
            section, entry = known.get(symbol.name, (None, None))
            if entry is None:
                # undefined and not described: only an error where it is used
                continue
            kind = "kconfig" if section == ".kconfig" else "kfunc" if entry.kind == "func" else "ksym"
            if entry.kind not in ("var", "func") or kind == "kconfig" and entry.kind != "var":
                raise self.error("extern %s is a %s" % (symbol.name, entry.kind))
            result[symbol.name] = Extern(symbol.name, kind, symbol.bind == STB_WEAK,
                                         entry.id if kind == "kfunc" else entry.rest)
        return result
