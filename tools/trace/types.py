"""The types of script values: what a map, a record or a variable of a script can hold.

Each type is one small class that knows its size in memory, how its bytes become a Python value
(`decode`), and how that value is written: `text(value)` as bpftrace 0.27 prints it, `json(value)` as
the JSON text that bpftrace emits (a string: spacing is part of the format).

Python values: integers are `int`, booleans `bool`, strings `str` (bytes that are no UTF-8 are
surrogate escapes, so they can be turned back), tuples `tuple`, arrays `list`, structs `dict`,
buffers `bytes`, stacks and symbols `str`; avg, min, max, count and sum are `int`, stats a `Stats`,
hist and lhist a `Histogram`.

`host` is what decoding may have to ask of the outside world (the session implements it; `Host` below
is the interface with the answers of a machine about which nothing is known).

`values.py` has the single values, `aggregates.py` what maps keep one of a CPU; this module the rules of
mixing them and of the texts of keys.

C types (BTF, DWARF, tracepoint formats) are the model of `elf/types.py`; `from_c` gives the script type
of a C type.
"""
from .aggregates import (Aggregate, Average, Count, Hist, LinearHist, Maximum, Minimum, Statistics, Sum, divide)
from .values import (UNKNOWN, Array, Boolean, Buffer, CgroupPath, Field, Histogram, Host, Inet, Integer, KernelStack,
                     KernelSymbol, MacAddress, NoneType, Pointer, Raw, Record, Stats, String, Timestamp, Tuple,
                     UserName, UserStack, UserSymbol, ValueType, hex_buffer, json_number, json_string)

# --- the rules of mixing types ------------------------------------------------------------------------

INT8, INT32, INT64 = Integer(1, True), Integer(4, True), Integer(8, True)
UINT8, UINT16, UINT32, UINT64 = Integer(1, False), Integer(2, False), Integer(4, False), Integer(8, False)
BOOL, NONE = Boolean(), NoneType()


def literal(value):
    """The type of an integer literal: the smallest signed type that holds it, else uint64."""
    for size in (1, 2, 4, 8):
        if -1 << 8 * size - 1 <= value < 1 << 8 * size - 1:
            return Integer(size, True, flexible=value >= 0)
    return UINT64


def _promote_integers(a, b):
    flexible = a.flexible and b.flexible
    size = max(a.size, b.size)
    if a.signed == b.signed:
        return Integer(size, a.signed, flexible=flexible)
    if a.flexible or b.flexible:
        return Integer(size, (not a.flexible and a.signed) or (not b.flexible and b.signed), flexible=flexible)
    if (a.signed and a.size > b.size) or (b.signed and b.size > a.size):
        return Integer(size, True)
    return Integer(min(8, 2 * size), True)


def promote(current, new):
    """The type that holds values of both types, or None. `current` None: nothing is known yet."""
    if current is None:
        return new
    if isinstance(current, Integer) and isinstance(new, Integer):
        if current == new and current.flexible == new.flexible:
            return new
        if current.enum is not None and current.enum == new.enum:
            return current if current.size >= new.size else new
        return _promote_integers(current, new)
    if type(current) is not type(new):
        return None
    if isinstance(current, String):
        return current if current.size >= new.size else new
    if isinstance(current, Tuple):
        if len(current.elements) != len(new.elements):
            return None
        elements = [promote(a, b) for a, b in zip(current.elements, new.elements)]
        return None if None in elements else Tuple(elements)
    if isinstance(current, Pointer):
        if current.target is None or new.target is None or current.user is None:
            return new if current.target is None else current
        return current
    if isinstance(current, KernelStack):
        return current if (current.limit, current.mode) == (new.limit, new.mode) else None
    if isinstance(current, Buffer):
        return current if current.capacity >= new.capacity else new
    if isinstance(current, Record) and current.c_type is None and new.c_type is None:
        return _promote_records(current, new)
    if isinstance(current, (Record, Array)):
        return current if current == new else None
    if isinstance(current, Aggregate):
        if type(current)._identity is Aggregate._identity:
            return current if current.signed else new
        return current if current == new else None
    return current


def record(fields):
    """The Record of (name, type) pairs, laid out in their order."""
    out, offset, align = [], 0, 1
    for name, kind in fields:
        offset = -(-offset // kind.align) * kind.align
        out.append(Field(name, kind, offset))
        offset += kind.size
        align = max(align, kind.align)
    return Record("record", out, -(-offset // align) * align, align)


def _promote_records(current, new):
    theirs = {field.name: field.type for field in new.fields}
    if set(theirs) != {field.name for field in current.fields} or len(theirs) != len(new.fields):
        return None
    merged = [(field.name, promote(field.type, theirs[field.name])) for field in current.fields]
    return None if any(kind is None for _, kind in merged) else record(merged)


def covers(wide, narrow):
    """Whether every value of integer type `narrow`, extended to 64 bits by its sign, is already what
    `wide` makes of it."""
    if wide.size == 8:
        return True
    if wide.signed == narrow.signed:
        return wide.size >= narrow.size
    return wide.signed and wide.size > narrow.size


class CRecord(Record):
    """A C struct or union; its fields' script types are made when they are asked for."""

    def __init__(self, c_type):
        self.c_type, self.size = c_type, c_type.size
        self.name = "%s %s" % (c_type.kind, c_type.name) if c_type.name else c_type.kind
        self._fields = self._align = None

    def _identity(self):
        return self.c_type

    @property
    def align(self):
        if self._align is None:
            self._align = alignment(self.c_type)
        return self._align

    @property
    def fields(self):
        if self._fields is None:
            self._fields = list(_members(self.c_type))
        return self._fields


def _members(struct, base=0, outer=()):
    """The Fields of a C struct or union, with those of its members without a name in these' places."""
    from rawbpf.elf import types as c
    for field in struct.fields:
        inner = c.strip(field.type)
        if not field.name and isinstance(inner, c.Struct) and inner not in outer:
            yield from _members(inner, base + field.offset, (*outer, struct))
        else:
            yield Field(field.name, from_c(field.type), base + field.offset, field.bit_offset, field.bit_size or 0)


def alignment(c_type):
    """The alignment of a C type (elf.types) in bytes; of a packed struct, what its layout says."""
    from rawbpf.elf import types as c
    bare = c.strip(c_type)
    while isinstance(bare, c.Array):
        bare = c.strip(bare.element)
    if not isinstance(bare, c.Struct):
        return min(max(getattr(bare, "size", 8), 1), 16)
    align = 1
    for field in bare.fields:
        wanted = alignment(field.type)
        if field.bit_size is None and field.offset % wanted:
            wanted = 1
        align = max(align, wanted)
    while bare.size % align:
        align >>= 1
    return align


def from_c(c_type, user=None):
    """The script type of a C type (elf.types); `user`: which memory its pointers mean."""
    from rawbpf.elf import types as c
    bare = c.strip(c_type)
    if isinstance(bare, (c.Int, c.Enum)) and bare.size not in (1, 2, 4, 8):     # of 16 bytes; Rust's (), of none
        return Array(UINT8, bare.size)
    if isinstance(bare, c.Int):
        if bare.encoding == "bool":
            return BOOL
        return Integer(bare.size, bare.signed)
    if isinstance(bare, c.Enum):
        return Integer(bare.size, bare.signed, bare if bare.name else None)     # one without a name prints its number
    if isinstance(bare, c.Pointer):
        target = bare.target
        return Pointer(None if isinstance(c.strip(target), c.Void) else target, user)
    if isinstance(bare, c.Array):
        element = c.strip(bare.element)
        if isinstance(element, c.Int) and element.size == 1 and (element.signed or element.name == "char"):
            return String(bare.count)
        return Array(from_c(bare.element, user), bare.count)
    if isinstance(bare, c.Struct):
        return getattr(bare, "value_type", None) or CRecord(bare)
    return NONE         # floating-point numbers, too


# --- keys -------------------------------------------------------------------------------------------------

def key_text(key_type, key):
    """What stands between the brackets of @map[...]: a tuple without its parentheses."""
    text = key_type.text(key)
    return text[1:-1] if len(text) >= 2 and text[0] == "(" and text[-1] == ")" else text


def json_keys(key_type, keys):
    """The names of a JSON object for a map's keys: bpftrace's form (no parentheses, no spaces). Where two
    different keys would get one name, each of those is written as the JSON text of its value instead."""
    names = [key_text(key_type, k).replace(" ", "") for k in keys]
    if len(set(names)) < len(names):
        seen = {}
        for name in names:
            seen[name] = seen.get(name, 0) + 1
        names = [key_type.json(k) if seen[n] > 1 else n for n, k in zip(names, keys)]
    return [json_string(n) for n in names]
