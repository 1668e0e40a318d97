"""The section .BTF.ext: where functions, source lines and CO-RE relocations are in each code section.

Documentation/bpf/btf.rst, ".BTF.ext section": a header with up to three sub-sections, each a record size
followed by, for every code section, the section's name, a count and that many records. Their first word
is an offset in bytes into the code section.
"""

import struct
from typing import NamedTuple

from .image import ElfError

CORE_KINDS = ("byte_off", "byte_sz", "field_exists", "signed", "lshift_u64", "rshift_u64", "local_type_id",
              "target_type_id", "type_exists", "type_size", "enumval_exists", "enumval_value", "type_matches")


class CoreRelocation(NamedTuple):
    """struct bpf_core_relo: the instruction at `offset` (bytes) depends on the `access` ("0:1:2") into the
    local type `type_id`; `kind` is a name of CORE_KINDS, "kind N" when it is newer."""

    offset: int
    type_id: int
    access: str
    kind: str


class BtfExt:
    """`functions`, `lines`: section name -> [(offset, record without its first word)], with the record
    sizes `function_size`, `line_size`; `relocations`: section name -> [CoreRelocation]. In the order of
    offsets."""

    def __init__(self, data, btf, path):
        self.path, self._data, self._btf = path, bytes(data), btf
        if len(data) < 24:
            raise ElfError(path, 0, ".BTF.ext of %d bytes is too short for its header" % len(data))
        magic, version, _, header = struct.unpack_from("=HBBI", data)
        if magic != 0xeb9f or version != 1:
            raise ElfError(path, 0, ".BTF.ext has magic 0x%04x, version %d" % (magic, version))
        if header < 24 or header > len(data):
            raise ElfError(path, 4, ".BTF.ext has a header of %d bytes" % header)
        func_off, func_len, line_off, line_len = struct.unpack_from("=IIII", data, 8)
        core_off = core_len = 0
        if header >= 32:
            core_off, core_len = struct.unpack_from("=II", data, 24)
        self.function_size, self.functions = self._table(header + func_off, func_len, 8, "func_info")
        self.line_size, self.lines = self._table(header + line_off, line_len, 16, "line_info")
        _, relocations = self._table(header + core_off, core_len, 16, "CO-RE relocation")
        self.relocations = {name: [self._relocation(offset, rest) for offset, rest in records]
                            for name, records in relocations.items()}

    def _table(self, start, length, smallest, what):
        data, end, found = self._data, start + length, {}
        if not length:
            return smallest, found
        if end > len(data) or length < 4:
            raise ElfError(self.path, start, "the %s records lie outside .BTF.ext" % what)
        size, = struct.unpack_from("=I", data, start)
        if size < smallest or size % 4 or size > 4096:
            raise ElfError(self.path, start, "%s records of %d bytes" % (what, size))
        at = start + 4
        while at < end:
            if at + 8 > end:
                raise ElfError(self.path, at, "the %s records are cut short" % what)
            name, count = struct.unpack_from("=II", data, at)
            at += 8
            if not count or at + size * count > end:
                raise ElfError(self.path, at - 4, "%d %s records do not fit" % (count, what))
            records = found.setdefault(self._btf.string(name), [])
            for place in range(at, at + size * count, size):
                records.append((struct.unpack_from("=I", data, place)[0], data[place + 4:place + size]))
            at += size * count
        for records in found.values():
            records.sort(key=lambda record: record[0])
        return size, found

    def _relocation(self, offset, rest):
        type_id, access, kind = struct.unpack_from("=III", rest)
        name = CORE_KINDS[kind] if kind < len(CORE_KINDS) else "kind %d" % kind
        return CoreRelocation(offset, type_id, self._btf.string(access), name)
