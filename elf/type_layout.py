"""Where C would put the members of a struct, and what a definition must add where BTF or DWARF put them elsewhere.

As libbpf's btf_dump does: a struct whose members are not at multiples of their alignment is packed; a gap
that alignment does not make is filled with unnamed bit fields of `long`.
"""

from .types import Array, Enum, Float, Int, Pointer, Struct, strip

LARGEST = 1 << 20       # bits: no compiler leaves more; a damaged file can say anything
_PADS = (("long", 64), ("int", 32), ("short", 16), ("char", 8))


class _Layout:
    """Alignments, each worked out once; structs that hold themselves (damaged files) end."""

    def __init__(self):
        self._known = {}  # id(struct) -> (struct, alignment of members, packed); it is kept so that its id stays its own

    def align(self, t):
        """Alignment of a type in bytes, as the C compiler of a 64-bit machine has it."""
        t = strip(t)
        for _ in range(64):
            if not isinstance(t, Array):
                break
            t = strip(t.element)
        if isinstance(t, Pointer):
            return t.size or 8
        if isinstance(t, Struct):
            widest, packed = self.of(t)
            return 1 if packed else widest
        return max(1, min(t.size, 16)) if isinstance(t, (Int, Enum, Float)) else 1

    def of(self, struct):
        """(the widest alignment of a member, whether it needs __attribute__((packed)))."""
        known = self._known.get(id(struct))
        if known is None:
            if len(self._known) > 20000:
                self._known.clear()
            self._known[id(struct)] = (struct, 1, False)  # while its members are asked
            widest = max([self.align(field.type) for field in struct.fields], default=1)
            packed = bool(struct.fields) and (struct.size % widest != 0 or any(
                field.bit_size is None and field.offset % self.align(field.type) for field in struct.fields))
            known = self._known[id(struct)] = (struct, widest, packed)
        return known[1:]


_LAYOUT = _Layout()


def gaps(struct):
    """[fillings before each member] with one more entry for those at the end, and whether it is packed. A
    filling is ("long", 64): the type and the width of an unnamed bit field."""
    layout = _LAYOUT
    widest, tight = layout.of(struct)
    at, found, in_bits = 0, [], False
    if struct.kind != "struct":
        return [[] for _ in range(len(struct.fields) + 1)], tight
    for field in struct.fields:
        bits = field.bit_size
        begin = 8 * field.offset + (field.bit_offset if bits is not None else 0)
        found.append(_fill(at, begin, 1 if tight else layout.align(field.type), in_bits and bits is not None))
        in_bits = bits is not None
        at = begin + (bits if in_bits else 8 * strip(field.type).size)
    found.append(_fill(at, 8 * struct.size, 1 if tight else widest, False))
    return found, tight


def _fill(at, end, alignment, in_bits):
    """Fillings from bit `at` to bit `end`, where something of `alignment` bytes (or, `in_bits`, a bit field after
    another) comes next. The compiler pads up to a boundary of the filling's type by itself; a mark of width 0
    makes it do so where it would not."""
    if at >= end:
        return []
    if end - at > LARGEST:
        return [("long", end - at)]
    name, width = next((pad for pad in _PADS if -(-at // pad[1]) * pad[1] <= end), _PADS[-1])
    start, found = -(-at // width) * width, []
    if at < start <= end:
        natural = -(-at // (8 * alignment)) * 8 * alignment == start
        if in_bits or start == end and not natural or start != end and end - start <= start - at:
            found.append((name, start - at if in_bits else 0))
        at = start
    while end - at >= width:
        found.append((name, width))
        at += width
    if at < end:
        found.append((next(pad for pad, size in reversed(_PADS) if size >= end - at), end - at))
    return found
