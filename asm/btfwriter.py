"""BTF, written: the types of maps, variables and functions, and where functions and lines start.

Format: Documentation/bpf/btf.rst and include/uapi/linux/btf.h. The kernel wants it for callbacks
(func_info) and prints source lines from it (line_info); libbpf reads map definitions from it.
"""

import struct

from .errors import AsmError

(INT, PTR, ARRAY, STRUCT, UNION, ENUM, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FUNC_PROTO, VAR, DATASEC, FLOAT,
 DECL_TAG, TYPE_TAG, ENUM64) = range(1, 20)
_SIGNED, _CHAR, _BOOL = 1, 2, 4     # encodings of an INT
STATIC, GLOBAL = 0, 1
_MAGIC = 0xEB9F
_LINE_LIMIT, _COLUMN_LIMIT = (1 << 22) - 1, (1 << 10) - 1


class BtfWriter:
    """Collects types and strings; `bytes()` is the content of a .BTF section. Each method gives the type's id.
    Types that say nothing but what they are made of (integers, pointers, arrays, qualifiers, typedefs, prototypes)
    are written once however often they are asked for; structs, functions and variables as often as they are."""

    def __init__(self):
        self._types, self.count = bytearray(), 1        # count: the id that the next type gets
        self._strings, self._known = bytearray(b"\0"), {"": 0}
        self._shared = {}

    def string(self, text):
        """The offset of a string."""
        at = self._known.get(text)
        if at is None:
            at = self._known[text] = len(self._strings)
            try:        # bytes that were no UTF-8 when they were read come out as they were
                data = text.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                data = text.encode("utf-8", "replace")
            self._strings += data.replace(b"\0", b" ") + b"\0"
        return at

    def add(self, name, kind, vlen, rest, words=(), flag=0):
        """Any type as the format has it: `rest` is its size or the type it refers to, `words` what follows."""
        if vlen > 0xffff:
            raise AsmError("a BTF type of %d members: it can have 65535" % vlen)
        self._types += struct.pack("=III%dI" % len(words), self.string(name), flag << 31 | kind << 24 | vlen,
                                   rest & 0xffffffff, *[word & 0xffffffff for word in words])
        self.count += 1
        return self.count - 1

    def _once(self, *key):
        """add() with these arguments, or the id of what it gave before."""
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = self.add(*key)
        return found

    def integer(self, name="int", size=4, signed=True, encoding=""):
        """encoding: "", "char" or "bool"."""
        bits = (_SIGNED if signed else 0) | {"": 0, "char": _CHAR, "bool": _BOOL}[encoding]
        return self._once(name, INT, 0, size, (bits << 24 | size * 8,))

    def floating(self, name, size):
        return self._once(name, FLOAT, 0, size)

    def pointer(self, target):
        """target 0: void."""
        return self._once("", PTR, 0, target)

    def qualified(self, kind, target):
        """kind: CONST, VOLATILE or RESTRICT."""
        return self._once("", kind, 0, target)

    def typedef(self, name, target):
        return self._once(name, TYPEDEF, 0, target)

    def type_tag(self, text, target):
        return self._once(text, TYPE_TAG, 0, target)

    def decl_tag(self, text, target, component=-1):
        """component: number of the member or parameter it is on, -1: the whole."""
        return self._once(text, DECL_TAG, 0, target, (component,))

    def array(self, element, count):
        return self._once("", ARRAY, 0, 0, (element, self.integer(), count))

    def forward(self, name, union=False):
        return self._once(name, FWD, 0, 0, (), int(union))

    def struct(self, name, size, fields, union=False):
        """fields: (name, type, byte offset) or, of bit fields, (name, type, byte offset, bit offset, bits)."""
        packed = any(len(field) > 3 and field[4] for field in fields)
        words = []
        for field in fields:
            at = 8 * field[2]
            if packed and len(field) > 3:
                at = field[4] << 24 | at + field[3]
            words += [self.string(field[0]), field[1], at]
        return self.add(name, UNION if union else STRUCT, len(fields), size, words, int(packed))

    def enum(self, name, values, size=4, signed=False):
        """values: (name, number). Of 8 bytes: an ENUM64 (6.0+)."""
        words = []
        for text, value in values:
            words += [self.string(text), value] + ([value >> 32] if size == 8 else [])
        return self.add(name, ENUM64 if size == 8 else ENUM, len(values), size, words, int(signed))

    def prototype(self, returns, parameters):
        """parameters: (name, type); ("", 0) at the end: more of any kind."""
        words = [word for name, kind in parameters for word in (self.string(name), kind)]
        return self._once("", FUNC_PROTO, len(parameters), returns, tuple(words))

    def function(self, name, parameters=1, linkage=STATIC, prototype=None):
        """A function of this prototype or, by a number of parameters, long name(long, ...)."""
        if prototype is None:
            long = self.integer("long", 8)
            prototype = self.prototype(long, [("a%d" % i, long) for i in range(parameters)])
        return self.add(name, FUNC, linkage, prototype)

    def variable(self, name, type, linkage=GLOBAL):
        return self.add(name, VAR, 0, type, (linkage,))

    def section(self, name, size, variables):
        """variables: (VAR, offset, size)."""
        return self.add(name, DATASEC, len(variables), size, [word for variable in variables for word in variable])

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
    records = b"".join(struct.pack("=II", slot, writer.function(identifier(name))) for name, slot in functions)
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


def identifier(name):
    """`name` as one of C's, which is what BTF takes."""
    name = "".join([c if c.isascii() and c.isalnum() or c == "_" else "_" for c in name])
    return name if name[:1].isalpha() or name[:1] == "_" else "_" + name
