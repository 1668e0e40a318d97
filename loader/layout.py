"""C structures as named fields over `struct`: the few lines of ctypes.Structure that bpf_attr needs.

A Layout is written as C declarations without the semicolons: "u32 map_type, u64 key, s32 fd,
char[16] name". Fields are placed by the C rules (natural alignment, which is that of every 64-bit
ABI of Linux); "a|b" gives the members of a union that start at one place the same slot.
"""

import struct

_TYPES = {
    "u8": ("B", 1), "u16": ("H", 2), "u32": ("I", 4), "s32": ("i", 4), "u64": ("Q", 8), "s64": ("q", 8),
}


def packed(form, what, *values):
    """struct.pack(); a ValueError that names what does not fit in."""
    form = struct.Struct(form)
    try:
        return form.pack(*values)
    except struct.error:
        raise _unfit(what, values if len(values) > 1 else values[0], form) from None


def _unfit(what, value, form):
    if len(form.format) == 2:
        if not isinstance(value, int):
            return ValueError("%s: %r is no number" % (what, value))
        return ValueError("%s: %d does not fit into %d bits%s" % (
            what, value, 8 * form.size, "" if form.format[1:] in "iqhb" else " without a sign"))
    return ValueError("%s: %r does not fit into them" % (what, value))


class Layout:
    __slots__ = ("size", "fields", "_whole")

    def __init__(self, text):
        offset = 0
        self.fields, self._whole = {}, {}       # the second: by the size of buffers, what unpack() needs
        for declaration in text.split(","):
            kind, names = declaration.split()
            if kind.startswith("char["):
                length = int(kind[5:-1])
                form, size, align = "%ds" % length, length, 1
            else:
                form, size = _TYPES[kind]
                align = size
            offset = (offset + align - 1) & -align
            slot = (offset, struct.Struct("=" + form))
            for name in names.split("|"):
                self.fields[name] = slot
            offset += size
        self.size = (offset + 7) & -8

    def pack(self, **values):
        """A zeroed bytearray of `size` bytes with these fields set."""
        buffer = bytearray(self.size)
        fields = self.fields
        for name, value in values.items():
            if value:
                offset, form = fields[name]
                try:
                    form.pack_into(buffer, offset, value)
                except struct.error:
                    raise _unfit(name, value, form) from None
            elif name not in fields:
                raise KeyError(name)
        return buffer

    def get(self, buffer, name):
        offset, form = self.fields[name]
        return form.unpack_from(buffer, offset)[0]

    def set(self, buffer, name, value):
        offset, form = self.fields[name]
        try:
            form.pack_into(buffer, offset, value)
        except struct.error:
            raise _unfit(name, value, form) from None

    def unpack(self, buffer):
        """{field: value} of all fields that lie within the buffer; char arrays are cut at the NUL."""
        known = self._whole.get(len(buffer))
        if known is None:
            known = self._whole[len(buffer)] = self._within(len(buffer))
        form, names, others = known
        values = dict(zip(names, form.unpack_from(buffer)))
        for name, same in others:
            values[name] = values[same]
        return values

    def _within(self, size):
        """(one Struct of what lies within so many bytes, its fields, [(name, other name of the same place)])."""
        text, at, names, others = "=", 0, {}, []
        for name, (offset, form) in self.fields.items():
            if offset in names:
                others.append((name, names[offset]))
            elif offset + form.size <= size:
                text += "%dx%s" % (offset - at, form.format[1:])
                at, names[offset] = offset + form.size, name
        return struct.Struct(text), tuple(names.values()), others
