"""BTF, written: the types of maps, variables and functions, and where functions and lines start.

Format: Documentation/bpf/btf.rst and include/uapi/linux/btf.h. The kernel wants it for callbacks
(func_info) and prints source lines from it (line_info); libbpf reads map definitions from it.
"""

import struct

from .errors import AsmError

INT, PTR, ARRAY, STRUCT, FUNC, FUNC_PROTO, VAR, DATASEC = 1, 2, 3, 4, 12, 13, 14, 15
STATIC, GLOBAL = 0, 1
_MAGIC = 0xEB9F
_LINE_LIMIT, _COLUMN_LIMIT = (1 << 22) - 1, (1 << 10) - 1


class BtfWriter:
    """Collects types and strings; `bytes()` is the content of a .BTF section."""

    def __init__(self):
        self._types, self._count = bytearray(), 0
        self._strings, self._known = bytearray(b"\0"), {"": 0}
        self._shared = {}

    def string(self, text):
        """The offset of a string."""
        at = self._known.get(text)
        if at is None:
            at = self._known[text] = len(self._strings)
            self._strings += text.replace("\0", " ").encode("utf-8", "replace") + b"\0"
        return at

    def _add(self, name, kind, vlen, size_or_type, body=b""):
        self._types += struct.pack("=III", self.string(name), kind << 24 | vlen, size_or_type) + body
        self._count += 1
        return self._count

    def _once(self, key, make):
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def integer(self, name="int", size=4, signed=True):
        return self._once((INT, name), lambda: self._add(
            name, INT, 0, size, struct.pack("=I", signed << 24 | size * 8)))

    def pointer(self, target):
        return self._once((PTR, target), lambda: self._add("", PTR, 0, target))

    def array(self, element, count):
        return self._once((ARRAY, element, count), lambda: self._add(
            "", ARRAY, 0, 0, struct.pack("=III", element, self.integer(), count)))

    def struct(self, name, size, fields):
        """fields: (name, type, byte offset)."""
        body = b"".join(struct.pack("=III", self.string(n), t, 8 * off) for n, t, off in fields)
        return self._add(name, STRUCT, len(fields), size, body)

    def function(self, name, parameters=1, linkage=STATIC):
        """long name(long, ...)."""
        long = self.integer("long", 8)
        proto = self._once((FUNC_PROTO, parameters), lambda: self._add(
            "", FUNC_PROTO, parameters, long, b"".join(struct.pack("=II", self.string("a%d" % i), long)
                                                       for i in range(parameters))))
        return self._add(name, FUNC, linkage, proto)

    def variable(self, name, type, linkage=GLOBAL):
        return self._add(name, VAR, 0, type, struct.pack("=I", linkage))

    def section(self, name, size, variables):
        """variables: (VAR, offset, size)."""
        body = b"".join(struct.pack("=III", *variable) for variable in variables)
        return self._add(name, DATASEC, len(variables), size, body)

    def bytes(self):
        header = struct.pack("=HBBIIIII", _MAGIC, 1, 0, 24, 0, len(self._types), len(self._types), len(self._strings))
        return header + bytes(self._types) + bytes(self._strings)

    def line_records(self, places, starts=(0,)):
        """bpf_line_info records of (slot, filename, line, column, text), in the order of slots.

        There is one where the place changes, and one at each of `starts`: the kernel demands it at the
        first instruction of a function.
        """
        out, last = [], None
        pending = sorted(starts, reverse=True)
        for slot, *place in places:
            while pending and pending[-1] < slot:
                start = pending.pop()
                out.append(self._line_record(start, *(last or place)))
            if place != last or pending and pending[-1] == slot:
                out.append(self._line_record(slot, *place))
            if pending and pending[-1] == slot:
                pending.pop()
            last = place
        out.extend(self._line_record(start, *last) for start in reversed(pending) if last)
        return out

    def _line_record(self, slot, filename, line, column, text):
        return struct.pack("=IIII", slot, self.string(filename), self.string(text),
                           min(line, _LINE_LIMIT) << 10 | min(column, _COLUMN_LIMIT))


def debug_info(functions, places=()):
    """(BTF, func_info, line_info) of one program, the last two as (record size, records).

    functions: (name, slot it starts at), the main one first; places: (slot, filename, line, column, the
    line's text) in the order of slots.
    """
    starts = [slot for _, slot in functions]
    if starts != sorted(starts) or not starts or starts[0]:
        raise AsmError("functions must be given in the order of their slots, from 0")
    writer = BtfWriter()
    records = b"".join(struct.pack("=II", slot, writer.function(name)) for name, slot in functions)
    lines = writer.line_records(places, starts)
    return writer.bytes(), (8, records), (16, b"".join(lines)) if lines else (0, b"")


def code_info(code, place=None):
    """`debug_info` of a compiled `Code`. place(span) -> (filename, line, column, the line's text) or None."""
    from .instruction import slot_numbers
    slots = slot_numbers(code.instructions)
    functions = sorted(code.functions.items(), key=lambda item: item[1])
    places = []
    if place is not None:
        found = {}
        for slot, span in zip(slots, code.spans):
            if span is None:
                continue
            if span not in found:
                found[span] = place(span)
            if found[span] is not None:
                places.append((slot, *found[span]))
    return debug_info([(name, slots[index]) for name, index in functions], places)
