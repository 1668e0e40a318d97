"""Writes BTF by hand, from Documentation/bpf/btf.rst: the parser's tests must not share its tables."""

import struct


class Blob:
    """`add` returns the new type's id; `bytes()` is the BTF. A split one gets the base's first id
    and string length."""

    def __init__(self, first_id=1, first_string=0, order="<"):
        self.order = order
        self.next = first_id
        self.first_string = first_string
        self.types = b""
        self.strings = b"" if first_string else b"\0"
        self.known = {}

    def string(self, text):
        if not text:
            return 0
        if text not in self.known:
            self.known[text] = self.first_string + len(self.strings)
            self.strings += text.encode() + b"\0"
        return self.known[text]

    def words(self, *values):
        return struct.pack("%s%dI" % (self.order, len(values)), *(v & 0xffffffff for v in values))

    def add(self, kind, name="", size_or_type=0, rest=(), vlen=0, flag=0):
        self.types += self.words(self.string(name), flag << 31 | kind << 24 | vlen, size_or_type, *rest)
        self.next += 1
        return self.next - 1

    def int(self, name, size, signed=0, bits=None):
        return self.add(1, name, size, [signed << 24 | (size * 8 if bits is None else bits)])

    def ptr(self, target):
        return self.add(2, "", target)

    def array(self, element, count):
        return self.add(3, "", 0, [element, element, count])

    def struct(self, name, size, fields, kind=4):
        """fields: (name, type, bit offset) or, if any is a bit field, (name, type, bit offset, bits)."""
        flag = any(len(f) == 4 for f in fields)
        rest = []
        for field in fields:
            offset = field[2] | (field[3] << 24 if len(field) == 4 else 0)
            rest += [self.string(field[0]), field[1], offset]
        return self.add(kind, name, size, rest, len(fields), int(flag))

    def enum(self, name, values, signed=0, size=4):
        rest = [word for n, v in values for word in (self.string(n), v)]
        return self.add(6, name, size, rest, len(values), signed)

    def enum64(self, name, values, signed=0):
        rest = [word for n, v in values for word in (self.string(n), v & 0xffffffff, v >> 32)]
        return self.add(19, name, 8, rest, len(values), signed)

    def proto(self, returns, parameters):
        rest = [word for n, t in parameters for word in (self.string(n), t)]
        return self.add(13, "", returns, rest, len(parameters))

    def bytes(self):
        head = struct.pack(self.order + "HBBIIIII", 0xeb9f, 1, 0, 24, 0, len(self.types), len(self.types), len(self.strings))
        return head + self.types + self.strings
