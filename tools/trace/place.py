"""Places: where a value that does not fit a register lies while a program runs."""


class Place:
    """`type` at `base` + `off`. `base`: an ir.Value (an address) or ir.Slot. `space`: None when the program
    may load from it directly (its stack, a map's value, a record), else which memory the address means:
    "user" or "kernel". `load`: for data inside the program's context, `load(offset, size, signed)` makes an
    operand of some of its bytes (None when it cannot)."""

    __slots__ = ("base", "off", "type", "space", "direct_load")

    def __init__(self, base, off, type, space=None, direct_load=None):
        self.base, self.off, self.type, self.space, self.direct_load = base, off, type, space, direct_load

    def at(self, offset, type):
        """The part of it at `offset`."""
        load = self.direct_load
        return Place(self.base, self.off + offset, type, self.space,
                     load and (lambda o, size, signed=False: load(offset + o, size, signed)))

    def typed(self, type):
        return Place(self.base, self.off, type, self.space, self.direct_load)


def words(size, align=8):
    """(offset, width) pairs that cover `size` bytes with the widest aligned accesses."""
    offset = 0
    while offset < size:
        width = align
        while width > size - offset or offset % width:
            width >>= 1
        yield offset, width
        offset += width
