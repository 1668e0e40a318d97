"""BPF ELF objects (EM_BPF, relocatable) read into what an assembly file says: an `asm.text.Assembly`.

What is understood is what rawbpf's assembler and clang write: code sections, R_BPF_64_64 and R_BPF_64_32, maps that
BTF describes (section .maps), .data/.rodata/.bss, kernel symbols, the license, and the lines of .BTF.ext. What
loads as something else than it says (CO-RE relocations, maps of before BTF, other sections of data) is refused by
name, unless it is only to be shown.
"""

import re
import struct

from rawbpf.asm import AsmError, FuncRef, KsymRef, MapRef, decode, slot_numbers
from rawbpf.asm.text import Assembly, Data, MapDefinition, Section
from rawbpf.elf.image import ElfError, Image

_EM_BPF, _PROGBITS, _NOBITS, _REL = 247, 1, 8, 9
_ALLOC, _EXEC = 2, 4
_FUNC, _SECTION = 2, 3
_CALL, _LDDW, _PSEUDO_CALL, _PSEUDO_KFUNC, _PSEUDO_VALUE, _PSEUDO_FUNC = 0x85, 0x18, 1, 2, 2, 4
_LARGEST = 1 << 30
_WRITABLE = re.compile(r"(?![rRwW][0-9]{1,4}$)[A-Za-z_.$][\w.$]*$").match      # what the assembler reads as a name
_FIELDS = {"map_flags": "flags", "type": "type", "key_size": "key_size", "value_size": "value_size",
           "max_entries": "max_entries", "pinning": "pinning", "numa_node": "numa_node", "map_extra": "map_extra"}


def read_object(data, path, show=False):
    """The Assembly of an object's bytes. AsmError when it is no such object, or has what cannot be done. show: its
    instructions as they stand, whatever a loader would make of them."""
    try:
        return _Reader(data, path, show).assembly
    except ElfError as error:
        raise AsmError(str(error)) from None
    except (struct.error, UnicodeDecodeError, IndexError, RecursionError) as error:
        raise AsmError("%s: the object is damaged: %s" % (path, error)) from None


class _Reader:
    def __init__(self, data, path, show):
        self.path, self.image, self.show = path, Image(data, path), show
        order = "<" if data[5] == 1 else ">"
        self.order, self.byteorder = order, "little" if order == "<" else "big"
        if self.image.bits != 64 or struct.unpack_from(order + "H", data, 18)[0] != _EM_BPF:
            raise AsmError("%s: an ELF file, but not of BPF code" % path)
        self.assembly = Assembly()
        self.symbols = self._symbols()
        self.inner, self.starts = {}, {}
        self.btf = self._btf()
        for section in self.image.sections:
            if section.type == _PROGBITS and section.flags & _EXEC and section.size:
                self._code(section)
            elif section.flags & _ALLOC and section.name.startswith((".data", ".rodata", ".bss")):
                self._data(section)
            elif section.name == "license":
                self.assembly.license = self._bytes(section).split(b"\0")[0].decode("utf-8", "replace")
            elif section.name == "maps" and section.size and not show:
                raise AsmError("%s: its maps are defined without BTF (section maps), which no loader takes since "
                               "libbpf 1.0: use section .maps" % path)
        self._maps()
        self._lines()
        for section in self.image.sections:
            if section.type == _REL and 0 < section.info < len(self.image.sections):
                self._relocate(section, self.image.sections[section.info])

    def _bytes(self, section):
        if section.type == _NOBITS and section.size > _LARGEST:
            raise AsmError("%s: %s has %d bytes" % (self.path, section.name, section.size))
        return bytes(section.size) if section.type == _NOBITS else bytes(self.image.data(section))

    def _symbols(self):
        """[(name, type, section index, value, size, global)], as numbered in the symbol table."""
        table = self.image.section(".symtab")
        if table is None:
            raise AsmError("%s: no symbol table: nothing says where its programs are" % self.path)
        names = self._bytes(self.image.sections[table.link])
        out = []
        for name, info, _, index, value, size in struct.iter_unpack(self.order + "IBBHQQ", self._bytes(table)):
            end = names.find(b"\0", name)
            out.append((names[name:end].decode("utf-8", "replace"), info & 15, index, value, size, info >> 4))
        return self._writable(out) if self.show else out

    def _writable(self, symbols):
        """The symbols with names that the assembler takes, each for one place: C calls a function r2, IR calls it 2,
        and the static functions of linked objects may share a name."""
        sections, taken, copies, out = self.image.sections, {}, {}, []
        for symbol in symbols:
            name, kind, index, value = symbol[:4]
            if name and 0 < index < len(sections) and not sections[index].name.endswith("maps") and (
                    kind == _FUNC or kind != _SECTION and not sections[index].flags & _EXEC):
                name = stem = name if _WRITABLE(name) else "_" + re.sub(r"[^\w.$]", "_", name)
                while taken.setdefault(name, (index, value)) != (index, value):
                    copies[stem] = copies.get(stem, 1) + 1
                    name = "%s.%d" % (stem, copies[stem])
            out.append((name, *symbol[1:]))
        return out

    def _btf(self):
        section = self.image.section(".BTF")
        if section is None:
            return None
        from rawbpf.elf.btf import Btf
        return Btf.parse(self._bytes(section), path=self.path)

    def _code(self, section):
        made = Section(section.name)
        made.instructions = decode(self._bytes(section), self.byteorder)
        made.lines = [(self.path, 0, "")] * len(made.instructions)
        made.entries = set()
        self.assembly.sections[section.name] = made
        at = {slot: index for index, slot in enumerate(slot_numbers(made.instructions))}
        for name, kind, index, value, _, bind in self.symbols:
            if kind == _FUNC and index == section.index:
                if value // 8 not in at or value % 8:
                    raise AsmError("%s: the function %s starts inside an instruction" % (self.path, name))
                made.labels[name] = at[value // 8]
                made.entries.add(name)
                if section.name != ".text" and bind:
                    self.assembly.globals.add(name)

    def _data(self, section):
        made = Data(section.name)
        made.content = bytearray(self._bytes(section))
        made.symbols = {name: value for name, kind, index, value, _, _ in self.symbols
                        if index == section.index and name and kind != _SECTION}
        self.assembly.data[section.name] = made

    # maps

    def _maps(self):
        if self.image.section(".maps") is None:
            return
        if self.btf is None:
            raise AsmError("%s: it has maps, but no BTF that says of what type" % self.path)
        from rawbpf.loader.uapi import MAP_TYPES
        types = {number: name for name, number in MAP_TYPES.items()}
        from rawbpf.elf.btf import DataSection, Variable
        section = self.btf.find(".maps", "datasec")
        for entry in section.variables if isinstance(section, DataSection) else ():
            variable = self.btf.type(entry.id)
            if not isinstance(variable, Variable):
                raise AsmError("%s: BTF describes something else than a map in .maps" % self.path)
            self._map(variable.name, variable.type, types)
        # an inner map that is described like another is that other
        described = {}
        for name, definition in self.assembly.maps.items():
            described.setdefault(definition._replace(name=None, options=tuple(definition.options.items())), name)
        for name, inner in self.inner.items():
            key = self.assembly.maps[inner]._replace(name=None, options=tuple(self.assembly.maps[inner].options.items()))
            self.assembly.maps[name].options["inner"] = described[key]
            if described[key] != inner:
                del self.assembly.maps[inner]

    def _map(self, name, kind, types):
        values = self._definition(name, kind, types)
        if values.get("type") not in types:
            raise AsmError("%s: the map %s is of no type that is known" % (self.path, name))
        self.assembly.maps[name] = MapDefinition(
            name, types[values.pop("type")], values.pop("key_size", 0), values.pop("value_size", 0),
            values.pop("max_entries", 0), values.pop("flags", 0), values)

    def _definition(self, name, kind, types):
        """{field: number} of a map: __uint(x, n) is a pointer to int[n], __type(x, t) a pointer to t, __array(values,
        t) an array of pointers to t."""
        from rawbpf.elf.types import Array, Pointer, Struct, strip
        kind = strip(kind)
        if not isinstance(kind, Struct):
            raise AsmError("%s: the map %s is not described by a struct" % (self.path, name))
        values = {}
        for field in kind.fields:
            pointer = strip(field.type)
            if field.name == "values" and isinstance(pointer, Array):
                element = strip(pointer.element)
                inside = strip(element.target) if isinstance(element, Pointer) else None
                if isinstance(inside, Struct) and name not in self.inner.values():
                    self.inner[name] = name + ".inner"
                    self._map(name + ".inner", inside, types)
                continue
            target = strip(pointer.target) if isinstance(pointer, Pointer) else None
            if field.name in _FIELDS and isinstance(target, Array):
                values[_FIELDS[field.name]] = target.count
            elif field.name in ("key", "value") and target is not None:
                values[field.name + "_size"] = getattr(target, "size", None) or 0
            else:
                raise AsmError("%s: the map %s says %r, which is nothing that maps have" % (
                    self.path, name, field.name))
        return values

    # lines

    def _lines(self):
        section = self.image.section(".BTF.ext")
        if section is None or self.btf is None:
            return
        data, order = self._bytes(section), self.order
        header, = struct.unpack_from(order + "I", data, 4)
        at, size = struct.unpack_from(order + "II", data, 16)
        if header >= 32 and struct.unpack_from(order + "I", data, 28)[0] > 4 and not self.show:
            raise AsmError("%s: its code depends on the kernel (CO-RE), but no section says what a program of it "
                           "attaches to: name one as libbpf does" % self.path)
        at += header
        end = at + size
        record, = struct.unpack_from(order + "I", data, at) if size else (16,)
        at += 4
        while at < end:
            name, count = struct.unpack_from(order + "II", data, at)
            at += 8
            made = self.assembly.sections.get(self.btf.string(name))
            places = {}
            for _ in range(count):
                offset, file, text, where = struct.unpack_from(order + "IIII", data, at)
                places[offset // 8] = (self.btf.string(file), where >> 10, self.btf.string(text))
                at += record
            if made is not None:
                line = (self.path, 0, "")
                for index, slot in enumerate(slot_numbers(made.instructions)[:-1]):
                    line = places.get(slot, line)
                    made.lines[index] = line

    # relocations

    def _relocate(self, table, section):
        made = self.assembly.sections.get(section.name)
        if made is None:
            return
        at = {slot: index for index, slot in enumerate(slot_numbers(made.instructions))}
        for offset, info in struct.iter_unpack(self.order + "QQ", self._bytes(table)):
            index, number = at.get(offset // 8), info >> 32
            if index is None or offset % 8 or number >= len(self.symbols) or index >= len(made.instructions):
                raise AsmError("%s: a relocation of %s at %#x names no instruction or no symbol" % (
                    self.path, section.name, offset))
            instruction = made.instructions[index]
            made.instructions[index] = self._resolved(instruction, self.symbols[number], section.name, offset)

    def _resolved(self, i, symbol, where, offset):
        name, kind, index, value, _, _ = symbol
        if not 0 <= index < len(self.image.sections):
            raise AsmError("%s: %s+%#x refers to %s, which is nowhere" % (self.path, where, offset, name))
        target = self.image.sections[index] if index else None
        if i.code == _CALL:
            if target is None:
                self._extern(self.assembly.kfuncs, symbol)
                return i._replace(src=_PSEUDO_KFUNC, imm=0, ref=KsymRef(name))
            return i._replace(src=_PSEUDO_CALL, imm=0, ref=FuncRef(self._function(
                target, value if kind != _SECTION else (i.imm + 1) * 8, name)))
        if i.code != _LDDW:
            raise AsmError("%s: %s+%#x: a relocation of an instruction that takes none" % (self.path, where, offset))
        if target is None:
            self._extern(self.assembly.kfuncs if self.btf and self.btf.find_id(name, "func") else self.assembly.ksyms,
                         symbol)
            return i._replace(src=3, imm=0, ref=KsymRef(name))
        if target.name == ".maps" or target.name == "maps" and self.show:
            return i._replace(src=1, imm=0, ref=MapRef(name))
        if target.flags & _EXEC:
            return i._replace(src=_PSEUDO_FUNC, imm=0, ref=FuncRef(self._function(target, value + i.imm, name)))
        if target.name in self.assembly.data or self.show:
            return i._replace(src=_PSEUDO_VALUE, imm=0, ref=MapRef(target.name, value + i.imm))
        raise AsmError("%s: %s+%#x refers to %s in section %s, which holds no data that programs have" % (
            self.path, where, offset, name, target.name))

    def _extern(self, known, symbol):
        """A kernel symbol, with the type that the object expects of it."""
        from .kernel_symbols import kind_of
        name, bind = symbol[0], symbol[5]
        if name not in known:
            known[name] = kind_of(self.btf, name, "func" if known is self.assembly.kfuncs else "var") if self.btf else None
            if bind == 2:
                self.assembly.weak.add(name)

    def _function(self, target, value, name):
        section = self.assembly.sections.get(target.name)
        if section is not None and target.name not in self.starts:
            slots, starts = slot_numbers(section.instructions), {}
            for label, at in section.labels.items():
                starts.setdefault(slots[at] * 8, []).append(label)
            self.starts[target.name] = starts
        found = self.starts.get(target.name, {}).get(value)
        if not found:
            raise AsmError("%s: %s+%#x is called, but no function starts there (%s)" % (
                self.path, target.name, value, name or "no symbol"))
        return name if name in found else found[0]
