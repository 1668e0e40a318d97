"""The maps that a BPF object defines: BTF-defined ones (section `.maps`) and the older `maps`.

A BTF-defined map is a variable of an anonymous struct whose members' types carry the numbers: a pointer to
an array of N elements says N, a pointer to a type says that type, an enumeration's value says a 64-bit
number (libbpf's documentation, "BTF-style maps"). `values` is a trailing array of pointers: to an inner
map's struct, or to functions; relocations of the section say what it is filled with. A `maps` section is an
array of struct bpf_map_def: type, key_size, value_size, max_entries, map_flags.
"""

import struct
from typing import NamedTuple, Optional

from . import btf_raw
from .image import TABLE_LIMIT

_HASH_OF_MAPS, _ARRAY_OF_MAPS, _PROG_ARRAY = 13, 12, 3
PIN_NONE, PIN_BY_NAME = 0, 1


class MapDefinition(NamedTuple):
    """`type` is the number of enum bpf_map_type; `key_type` and `value_type` BTF ids (0: unknown); `inner`
    the MapDefinition of the maps it holds; `values` [(index, symbol name)] that it is filled with."""

    name: str
    type: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int = 0
    key_type: int = 0
    value_type: int = 0
    map_extra: int = 0
    numa_node: Optional[int] = None
    pinning: int = PIN_NONE
    inner: object = None
    values: tuple = ()
    offset: int = 0
    section: int = 0


def read_maps(file):
    """name -> MapDefinition."""
    result = {}
    for definition in [*_legacy(file), *_btf_defined(file)]:
        if definition.name in result:
            raise file.error("two maps are called %s" % definition.name)
        result[definition.name] = definition
    return result


def _legacy(file):
    section = file.image.section("maps")
    if section is None or not section.size:
        return
    symbols = sorted((symbol for symbol in file.symbols if symbol.section == section.index and symbol.type in (0, 1)
                      and symbol.name), key=lambda symbol: symbol.value)
    if not symbols or section.size % len(symbols) or section.size // len(symbols) < 20:
        raise file.error("section maps: %d bytes for %d maps" % (section.size, len(symbols)), section.offset)
    step = section.size // len(symbols)
    data = file.image.data(section, TABLE_LIMIT)
    for symbol in symbols:
        if symbol.value % step or symbol.value + step > section.size:
            raise file.error("map %s does not start at a multiple of %d" % (symbol.name, step), section.offset)
        fields = struct.unpack_from("=5I", data, symbol.value)
        if any(data[symbol.value + 20:symbol.value + step]):
            raise file.error("map %s: its definition has fields besides the five that are known" % symbol.name,
                             section.offset)
        yield MapDefinition(symbol.name, *fields, offset=symbol.value, section=section.index)


def _btf_defined(file):
    section = file.image.section(".maps")
    if section is None or not section.size:
        return
    if file.btf is None or not file.btf.find_id(".maps", "datasec"):
        raise file.error("has a section .maps and no BTF that describes it: compile it with -g", section.offset)
    for name, offset, _, type_id, _ in file.variables(".maps"):
        yield _Reader(file, name, section.index, offset).definition(type_id)


def definition_of(file, variable):
    """The MapDefinition of a VAR (a Record), which may be extern, without what it is filled with."""
    return _Reader(file, variable.name, 0, 0).definition(variable.rest)


class _Reader:
    """Reads one map's struct."""

    def __init__(self, file, name, section, offset):
        self.file, self.btf, self.name, self.section, self.offset = file, file.btf, name, section, offset

    def error(self, reason):
        return self.file.error("map %s: %s" % (self.name, reason))

    def number(self, member):
        """The number that a member's type carries."""
        kind = btf_raw.skip(self.btf, member.type)
        if kind.kind in ("enum", "enum64"):
            values = btf_raw.enumerators(self.btf, kind)
            if len(values) == 1:
                return values[0][1]
        if kind.kind == "ptr":
            array = btf_raw.skip(self.btf, kind.rest)
            if array.kind == "array":
                return array.words[2]
        raise self.error("%s should be made by __uint() or __ulong()" % member.name)

    def pointed(self, member):
        kind = btf_raw.skip(self.btf, member.type)
        if kind.kind != "ptr":
            raise self.error("%s should be made by __type()" % member.name)
        return kind.rest

    def definition(self, type_id, inner=False):
        struct_type = btf_raw.skip(self.btf, type_id)
        if struct_type.kind != "struct":
            raise self.error("is a %s, not a struct" % struct_type.kind)
        fields = dict(name=self.name, type=0, key_size=0, value_size=0, max_entries=0,
                      offset=self.offset, section=self.section)
        for member in btf_raw.members(self.btf, struct_type):
            if member.name in ("type", "max_entries", "map_extra", "numa_node", "pinning"):
                fields[member.name] = self.number(member)
            elif member.name == "map_flags":
                fields["flags"] = self.number(member)
            elif member.name in ("key_size", "value_size"):
                self.size(fields, member.name, self.number(member))
            elif member.name in ("key", "value"):
                pointed = self.pointed(member)
                fields[member.name + "_type"] = pointed
                self.size(fields, member.name + "_size", btf_raw.size(self.btf, pointed))
            elif member.name == "values":
                self.values(fields, member, inner)
            elif not self.file.relaxed_maps:
                raise self.error("member %s is not known" % member.name)
        if not fields["type"]:
            raise self.error("says no type")
        if fields["pinning"] if "pinning" in fields else 0:
            if inner or fields["pinning"] != PIN_BY_NAME:
                raise self.error("pinning %d is not known here" % fields["pinning"])
        return MapDefinition(**fields)

    def size(self, fields, what, value):
        if fields[what] and fields[what] != value:
            raise self.error("%s is both %d and %d" % (what, fields[what], value))
        fields[what] = value

    def values(self, fields, member, inner):
        array = btf_raw.skip(self.btf, member.type)
        if inner or array.kind != "array" or array.words[2]:
            raise self.error("values is not a trailing array (or maps are nested twice)")
        pointer = btf_raw.skip(self.btf, array.words[0])
        pointed = btf_raw.skip(self.btf, pointer.rest) if pointer.kind == "ptr" else pointer
        if pointed.kind == "struct":
            if fields["type"] not in (_HASH_OF_MAPS, _ARRAY_OF_MAPS, 0):
                raise self.error("values are maps, its type is not one of maps")
            fields["inner"] = _Reader(self.file, self.name + ".inner", 0, 0).definition(pointed.id, True)
        elif pointed.kind != "func_proto":
            raise self.error("values point to a %s, not to maps or functions" % pointed.kind)
        self.size(fields, "value_size", 4)
        base = self.offset + member.bit_offset // 8
        filled = []
        for offset, relocation in sorted(self.file.relocations.get(self.section, {}).items()):
            if offset >= base and self.owner(offset) == self.name:
                if (offset - base) % 8:
                    raise self.error("values are filled at byte %d, between two elements" % (offset - base))
                filled.append(((offset - base) // 8, relocation.symbol.name))
        fields["values"] = tuple(filled)

    def owner(self, offset):
        """Name of the variable of the section that an offset lies in."""
        best = ("", -1)
        for name, start, _, _, _ in self.file.variables(".maps"):
            if best[1] < start <= offset:
                best = (name, start)
        return best[0]
