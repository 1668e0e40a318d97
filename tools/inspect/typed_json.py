"""Bytes decoded by a BTF type into JSON values as bpftool forms them.

Enumerations are names, char arrays strings, bit fields and 16-byte integers hexadecimal, pointers
numbers. In plain text hexadecimal numbers stand without quotes and pointers are hexadecimal strings.
"""

import struct
import sys

from rawbpf.elf import types
from rawbpf.elf.btf import DataSection, Variable

from .output import Verbatim

_ORDER = sys.byteorder
_DEEP = 64


def render(t, data, plain, btf=None, depth=0, function=None):
    """plain: for a person, not for -j. btf: where the variables of a data section are. function: makes a
    value of a pointer to a function, which is (its type, the number); default: the number."""
    if isinstance(t, DataSection):
        return {t.name: [{btf.name(entry.id): render(btf.type(entry.id).type,
                                                     data[entry.offset:entry.offset + entry.size], plain, btf)}
                         for entry in t.variables]}
    if isinstance(t, Variable):
        return render(t.type, data, plain, btf, depth)
    bare = types.strip(t)
    if depth > _DEEP or len(data) < bare.size:
        raise ValueError("the type does not fit the data")
    if isinstance(bare, types.Struct):
        return _struct(bare, data, plain, depth, function)
    if isinstance(bare, types.Array):
        return _array(bare, data, plain, depth, function)
    if isinstance(bare, types.Pointer):
        value = int.from_bytes(data[:bare.size], _ORDER)
        if function is not None and isinstance(bare.target, types.Function):
            return function(bare.target, value)
        if not plain:
            return value
        return "0x%x" % value if value else "(nil)"
    if isinstance(bare, types.Enum):
        value = int.from_bytes(data[:bare.size], _ORDER, signed=bare.signed)
        return next((name for name, number in bare.values.items() if number == value), value)
    if isinstance(bare, types.Float) and bare.size in (4, 8):
        return struct.unpack("=f" if bare.size == 4 else "=d", data[:bare.size])[0]
    if isinstance(bare, types.Int):
        return _int(bare, data[:bare.size], plain)
    return Verbatim("(unsupported-kind)" if plain else '"(unsupported-kind)"')


def _int(t, data, plain):
    value = int.from_bytes(data, _ORDER, signed=t.signed)
    if t.encoding == "bool":
        return bool(value)
    if t.size > 8:
        return _hex(int.from_bytes(data, _ORDER), plain)
    return value


def _hex(value, plain):
    return Verbatim("0x%x" % value) if plain else "0x%x" % value


def _struct(t, data, plain, depth, function):
    fields = []
    for field in t.fields:
        if field.bit_size is None:
            size = types.strip(field.type).size
            fields.append((field.name, render(field.type, data[field.offset:field.offset + size], plain, None,
                                              depth + 1, function)))
        else:
            size = (field.bit_offset + field.bit_size + 7) // 8
            word = int.from_bytes(data[field.offset:field.offset + size], _ORDER)
            fields.append((field.name, _hex(word >> field.bit_offset & (1 << field.bit_size) - 1, plain)))
    return Members(fields)


class Members(dict):
    """Named values in order; anonymous members have the name "" each."""

    def __init__(self, fields):
        super().__init__()
        self.fields = fields

    def items(self):
        return self.fields


def _array(t, data, plain, depth, function):
    element = t.element
    while isinstance(element, types.Qualified):
        element = element.target
    if isinstance(element, types.Int) and element.size == 1 and element.name == "char":
        end = data.find(b"\0", 0, t.count)
        if end >= 0 and all(0x1f < byte < 0x7f for byte in data[:end]):
            return data[:end].decode()
    size = types.strip(element).size
    if size * t.count > len(data):
        raise ValueError("the type does not fit the data")
    return [render(element, data[at:at + size], plain, None, depth + 1, function) for at in range(0, size * t.count, size or 1)]
