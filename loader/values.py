"""Bytes of the kernel as Python values and back: by a struct format, or by a C type of BTF or DWARF.

`codec(spec)` gives an object with `size`, `decode(bytes)` and `encode(value)`. Layout is what the type
says (offsets are BTF's own), so packed structs, bit fields and 16-byte integers come out as C wrote
them. In Python they are: integers and pointers int, bool bool, float float, char arrays text (up to the
NUL; bytes that are no UTF-8 as surrogates, which encode() turns back), other arrays lists, structs and
unions dicts (members of anonymous ones among the others), enumerations int.
"""

import struct
import sys

_ORDER = sys.byteorder


_MEMBERS = 1 << 16          # of one type, with those of its structs


class Codec:
    """`count`: how many Python values decode() makes."""

    __slots__ = ("size", "decode", "encode", "count")

    def __init__(self, size, decode, encode, count=1):
        self.size, self.decode, self.encode, self.count = size, decode, encode, count


def codec(spec):
    """A Codec for: an int n (n plain bytes), a struct format (one field: the bare value, else a
    tuple; native byte order, no padding unless the format says "@"), an elf.types.Type, or a Codec."""
    if isinstance(spec, int):
        return Codec(spec, bytes, lambda value: _exactly(value, spec))
    if isinstance(spec, str):
        return _of_format(spec)
    if isinstance(spec, Codec):
        return spec
    return of_type(spec)


def _exactly(value, size):
    if isinstance(value, (int, str)):       # bytes(4) would be four zeros
        raise ValueError("this takes %d bytes, not %r" % (size, value))
    data = bytes(value)
    if len(data) != size:
        raise ValueError("this takes %d bytes, not %d" % (size, len(data)))
    return data


def _of_format(text):
    try:
        form = struct.Struct(text if text[:1] in "@=<>!" else "=" + text)
    except struct.error as error:
        raise ValueError("%r is no struct format: %s" % (text, error)) from None
    count = len(form.unpack(bytes(form.size)))

    def encode(value):
        try:
            return form.pack(value) if count == 1 else form.pack(*value)
        except (struct.error, TypeError) as error:
            raise ValueError("%r does not fit the format %r%s: %s" % (
                value, text, "" if count == 1 else ", which takes a tuple of %d" % count, error)) from None
    return Codec(form.size, (lambda data: form.unpack(data)[0]) if count == 1 else form.unpack, encode)


def of_type(type):
    """The Codec of an elf.types.Type. TypeError for what has no value (void, functions, structs whose members do not
    fit together)."""
    return _of_type(type, [_MEMBERS])


def _of_type(type, left):
    from rawbpf.elf import types
    type = types.strip(type)
    make = {types.Int: _int, types.Float: _float, types.Pointer: _pointer, types.Enum: _enum}.get(type.__class__)
    if make is not None:
        return make(type)
    make = {types.Array: _array, types.Struct: _struct}.get(type.__class__)
    if make is None:
        raise TypeError("a %s has no value" % type)
    left[0] -= 1
    if left[0] < 0:
        raise TypeError("a %s has more than %d members" % (type, _MEMBERS))
    return make(type, left)


def _integer(size, signed):
    def decode(data):
        return int.from_bytes(data[:size], _ORDER, signed=signed)

    def encode(value):
        try:
            number = int(value)
        except (TypeError, ValueError):
            raise ValueError("%r is no integer" % (value,)) from None
        # -1 for the largest unsigned value, as in C
        if not -1 << 8 * size - 1 <= number < 1 << 8 * size:
            raise ValueError("%d does not fit into %d bytes" % (number, size))
        return (number & (1 << 8 * size) - 1).to_bytes(size, _ORDER)
    return Codec(size, decode, encode)


def _int(type):
    plain = _integer(type.size, type.signed)
    if type.encoding == "bool":
        return Codec(type.size, lambda data: bool(plain.decode(data)), plain.encode)
    return plain


def _enum(type):
    return _integer(type.size, type.signed)


def _pointer(type):
    return _integer(type.size, False)


def _float(type):
    if type.size not in (4, 8):
        return codec(type.size)
    form = struct.Struct("=f" if type.size == 4 else "=d")

    def encode(value):
        try:
            return form.pack(value)
        except (struct.error, OverflowError) as error:
            raise ValueError("%r is no %s: %s" % (value, type.name, error)) from None
    return Codec(type.size, lambda data: form.unpack(data[:form.size])[0], encode)


def _is_char(type):
    from rawbpf.elf import types
    type = types.strip(type)
    return isinstance(type, types.Int) and type.size == 1 and (
        type.encoding == "char" or type.name in ("char", "signed char"))


def _array(type, left):
    count = type.count
    if _is_char(type.element):
        def decode_text(data):
            return bytes(data[:count]).split(b"\0")[0].decode("utf-8", "surrogateescape")

        def encode_text(value):
            if isinstance(value, str):
                value = value.encode("utf-8", "surrogateescape")
            if not isinstance(value, (bytes, bytearray, memoryview)):
                raise ValueError("%s takes text or bytes, not %r" % (type, value))
            if len(value) > count:
                raise ValueError("text of %d bytes does not fit into %s" % (len(value), type))
            return bytes(value).ljust(count, b"\0")
        return Codec(count, decode_text, encode_text)
    element = _of_type(type.element, left)
    size = element.size

    def decode(data):
        return [element.decode(data[at:at + size]) for at in range(0, size * count, size or 1)]

    def encode(values):
        if not hasattr(values, "__len__") or isinstance(values, (str, dict)):
            raise ValueError("%s takes a list of its elements, not %r" % (type, values))
        if len(values) > count:
            raise ValueError("%d elements do not fit into %s" % (len(values), type))
        return b"".join(map(element.encode, values)).ljust(size * count, b"\0")
    return Codec(size * count, decode, encode, 1 + element.count * (count if size else 0))


def _struct(type, left):
    members, values = [], 1
    for name, get, put, count in _members(type, 0, type.size, left):
        members.append((name, get, put))
        values += count

    def decode(data):
        return {name: get(data) for name, get, _ in members}

    def encode(values):
        if not hasattr(values, "keys"):
            raise ValueError("%s takes a dict of its members, not %r" % (type, values))
        buffer = bytearray(type.size)
        known = set()
        for name, _, put in members:
            known.add(name)
            if name in values:
                put(buffer, values[name])
        unknown = set(values) - known
        if unknown:
            raise ValueError("%s has no member %s" % (type, ", ".join(sorted(unknown))))
        return bytes(buffer)
    return Codec(type.size, decode, encode, values)


def _members(type, base, end, left):
    """(name, decode(data of the whole), encode(buffer, value), number of values) of each named member; all before
    byte `end` of the whole."""
    from rawbpf.elf import types
    left[0] -= len(type.fields)
    for field in type.fields:
        inner, at = types.strip(field.type), base + field.offset
        if left[0] < 0:
            raise TypeError("a %s has more than %d members" % (type, _MEMBERS))
        if not field.name and isinstance(inner, types.Struct) and field.bit_size is None:
            yield from _members(inner, at, end, left)
        elif field.name and field.bit_size is not None:
            yield (field.name,) + _bit_field(inner, at, field.bit_offset, field.bit_size) + (1,)
        elif field.name:
            item = _of_type(inner, left)
            if at + item.size > end:
                raise TypeError("member %s of %s lies outside" % (field.name, type))
            yield (field.name,) + _member(item, at) + (item.count,)


def _member(item, offset):
    def get(data):
        return item.decode(data[offset:offset + item.size])

    def put(buffer, value):
        buffer[offset:offset + item.size] = item.encode(value)
    return get, put


def _bit_field(type, offset, shift, bits):
    # the storage may be wider than the type when a packed field straddles
    size = max(type.size, (shift + bits + 7) // 8)
    mask = (1 << bits) - 1
    signed = getattr(type, "signed", False)

    def place(data):
        part = data[offset:offset + size]
        return int.from_bytes(part, _ORDER), len(part)

    def get(data):
        value = place(data)[0] >> shift & mask
        return value - (1 << bits) if signed and value >> bits - 1 else value

    def put(buffer, value):
        word, have = place(buffer)
        word = word & ~(mask << shift) | (int(value) & mask) << shift
        buffer[offset:offset + have] = word.to_bytes(have, _ORDER)
    return get, put
