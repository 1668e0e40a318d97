"""The types of single script values and what they ask of the outside (see types.py)."""
import struct
from typing import NamedTuple


class Host:
    """What decoding asks of the outside: symbols, users, cgroups, clocks. Numbers in, text out."""

    def stack_frames(self, stack_id):
        """The addresses of a stored stack, innermost first."""
        return []

    def kernel_stack(self, addresses, mode):
        """mode: "bpftrace", "perf", "raw", "build_id"; text with a leading newline and one line a frame."""
        return "".join(["\n"] + ["        0x%x\n" % a for a in addresses])

    def user_stack(self, addresses, pid, probe_id, mode):
        return self.kernel_stack(addresses, mode)

    def kernel_symbol(self, address):
        return "0x%x" % address

    def user_symbol(self, address, pid, probe_id):
        return "0x%x" % address

    def user_name(self, uid):
        return str(uid)

    def cgroup_path(self, cgroup_id, pattern):
        return ""

    def wall_clock(self, nsecs, mode):
        """Nanoseconds since 1970 of a time; mode as below."""
        return nsecs

    def timestamp(self, nsecs, mode, form):
        """strftime() of a time; mode: 0 since boot, 1 monotonic, 2 tai, 3 wall clock of the program."""
        return str(nsecs)

    str_trunc_trailer = ".."


UNKNOWN = Host()


class Stats(NamedTuple):
    count: int
    average: int
    total: int


class Histogram(NamedTuple):
    """Buckets from the first to the last that is not empty. `bounds` are (low, high) with high exclusive;
    None is open. `labels` are the same bounds as printed."""
    bounds: list
    labels: list
    counts: list


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPES.update((chr(c), "\\u%04x" % c) for c in range(32) if chr(c) not in "\n\r\t")
_ESCAPES.update((chr(c), "\\u%04x" % c) for c in range(0xdc80, 0xdd00))   # bytes that are no UTF-8
_TRANSLATION = str.maketrans(_ESCAPES)


def json_string(text):
    """A JSON string as bpftrace escapes it. A byte that is no UTF-8 becomes the escape of its surrogate
    (0xff: \\udcff), which Python's `encode("utf-8", "surrogateescape")` turns back into the byte."""
    return '"' + text.translate(_TRANSLATION) + '"'


def json_number(value):
    """A number, in quotes when a double cannot hold it exactly (RFC 8259, section 6)."""
    text = str(value)
    return text if -1 << 53 <= value <= 1 << 53 or int(float(value)) == value else '"%s"' % text


class ValueType:
    """Base of all. `size` and `align` in bytes; `name` as error messages write it."""
    size = 0
    align = 8
    name = "none"
    aggregate = False       # lives only in maps, reduced over CPUs
    multiline = False       # printed on the lines after its map's name
    scalar = False          # fits a register: Integer, Boolean, Pointer and the like
    json_kind = "map"       # the "type" of the JSON line of a map of these

    def decode(self, data, host=UNKNOWN):
        """Python value of `data` (bytes of at least `size`)."""
        raise TypeError("values of type %s cannot be decoded" % self.name)

    def text(self, value):
        return str(value)

    def json(self, value):
        return json_string(self.text(value))

    def sort_key(self, value):
        """What a map sorts by when this is its key (or part of it)."""
        return 0

    def _identity(self):
        return ()

    def __eq__(self, other):
        return type(self) is type(other) and self._identity() == other._identity()

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash((type(self), self._identity()))

    def __str__(self):
        return self.name

    def __repr__(self):
        return "<%s %s>" % (type(self).__name__, self.name)


class NoneType(ValueType):
    def decode(self, data, host=UNKNOWN):
        return None

    def text(self, value):
        return "null"

    def json(self, value):
        return "null"


_FORMATS = {(1, False): "B", (1, True): "b", (2, False): "H", (2, True): "h",
            (4, False): "I", (4, True): "i", (8, False): "Q", (8, True): "q"}


class Integer(ValueType):
    """An integer of 1, 2, 4 or 8 bytes; `enum` (an elf.types.Enum) prints its names. `flexible`: the type of a
    literal that is not negative, whose sign adapts to what it meets."""
    scalar = True

    def __init__(self, size=8, signed=True, enum=None, flexible=False):
        self.size = self.align = size
        self.flexible = flexible
        self.signed = signed
        self.enum = enum
        self.format = _FORMATS[size, signed]
        self.name = ("int%d" if signed else "uint%d") % (size * 8)
        if enum is not None:
            self.name = "enum " + enum.name
            self._names = None
        self._unpack = struct.Struct("=" + self.format).unpack_from

    def _identity(self):
        return self.size, self.signed, self.enum and self.enum.name

    def decode(self, data, host=UNKNOWN):
        return self._unpack(data)[0]

    def text(self, value):
        if self.enum is None:
            return "%d" % value
        if self._names is None:
            values = self.enum.values
            pairs = values.items() if hasattr(values, "items") else values
            self._names = {number: name for name, number in reversed(list(pairs))}
        return self._names.get(value, str(value))

    def json(self, value):
        return json_number(value)

    def sort_key(self, value):
        bits = 8 * self.size
        return value if value < 1 << bits - 1 else value - (1 << bits)


class Boolean(ValueType):
    scalar = True
    size = align = 1
    name = "bool"
    format = "?"

    def decode(self, data, host=UNKNOWN):
        return data[0] != 0

    def text(self, value):
        return "true" if value else "false"

    def json(self, value):
        return self.text(value)


class Pointer(ValueType):
    """An address; `target` is a C type (elf.types) or None for void; `user`: True in user space, False in
    the kernel, None when unknown; `context`: the program's own context (readable by plain loads)."""
    scalar = True
    size = align = 8
    format = "Q"

    def __init__(self, target=None, user=None, context=False):
        self.target, self.user, self.context = target, user, context

    @property
    def name(self):
        if self.target is None:
            return "void *"
        from rawbpf.elf.types import declaration
        return declaration(self.target, "").rstrip() + " *"

    def _identity(self):
        return ()               # all addresses are stored alike

    def decode(self, data, host=UNKNOWN):
        return int.from_bytes(data[:8], "little")

    def text(self, value):
        return "0x%x" % value

    def json(self, value):
        return json_number(value)


class String(ValueType):
    """Up to `size` bytes, ended by NUL when shorter. A string that fills its buffer was cut: it is
    printed with the truncation trailer."""
    align = 1
    name = "string"

    def __init__(self, size, whole=False):
        self.size, self.whole = size, whole     # whole: a C array, which may be full

    def _identity(self):
        return (self.size,)

    def decode(self, data, host=UNKNOWN):
        data = bytes(data[:self.size])
        end = data.find(0)
        if end >= 0 or self.whole:
            return data[:end if end >= 0 else None].decode("utf-8", "surrogateescape")
        return data.decode("utf-8", "surrogateescape") + host.str_trunc_trailer

    def sort_key(self, value):
        return value.encode("utf-8", "surrogateescape")


def hex_buffer(data, keep_ascii=True, escape=True):
    r"""Bytes as bpftrace prints buffers: \x1f escapes; printable ones as they are (`keep_ascii`), or plain
    hex separated by spaces (not `escape`)."""
    if not escape:
        return " ".join("%02x" % b for b in data)
    return "".join(chr(b) if keep_ascii and 32 <= b < 127 else "\\x%02x" % b for b in data)


class Raw(ValueType):
    """Bytes as they are."""
    align = 8
    name = "bytes"

    def __init__(self, size):
        self.size = size

    def _identity(self):
        return (self.size,)

    def decode(self, data, host=UNKNOWN):
        return bytes(data[:self.size])


class Buffer(ValueType):
    """buf(): a length (u32) and up to `capacity` bytes."""
    align = 4

    def __init__(self, capacity):
        self.capacity = capacity
        self.size = 4 + capacity
        self.name = "buffer[%d]" % capacity

    def _identity(self):
        return (self.capacity,)

    def decode(self, data, host=UNKNOWN):
        length = int.from_bytes(data[:4], "little")
        return bytes(data[4:4 + min(length, self.capacity)])

    def text(self, value):
        return hex_buffer(value)

    def json(self, value):
        # each byte is a signed char there
        return "[" + ",".join(str(b - 256 if b > 127 else b) for b in value) + "]"


class Array(ValueType):
    def __init__(self, element, count):
        self.element, self.count = element, count
        self.size, self.align = element.size * count, element.align
        self.name = "%s[%d]" % (element.name, count)

    def _identity(self):
        return self.element, self.count

    def decode(self, data, host=UNKNOWN):
        step, decode = self.element.size, self.element.decode
        return [decode(data[i:i + step], host) for i in range(0, self.count * step, step)]

    def text(self, value):
        return "[" + ",".join(map(self.element.text, value)) + "]"

    def json(self, value):
        return "[" + ",".join(map(self.element.json, value)) + "]"


class Tuple(ValueType):
    """Values side by side, each at its own alignment."""

    def __init__(self, elements):
        self.elements = tuple(elements)
        self.offsets, offset, self.align = [], 0, 1
        for element in self.elements:
            offset = -(-offset // element.align) * element.align
            self.offsets.append(offset)
            offset += element.size
            self.align = max(self.align, element.align)
        self.size = -(-offset // self.align) * self.align
        self.name = "(" + ",".join(e.name for e in self.elements) + ")"

    def _identity(self):
        return self.elements

    def decode(self, data, host=UNKNOWN):
        return tuple([e.decode(data[o:o + e.size], host) for e, o in zip(self.elements, self.offsets)])

    def text(self, value):
        return "(" + ", ".join([e.text(v) for e, v in zip(self.elements, value)]) + ")"

    def json(self, value):
        return "[" + ",".join([e.json(v) for e, v in zip(self.elements, value)]) + "]"

    def sort_key(self, value):
        return tuple([e.sort_key(v) for e, v in zip(self.elements, value)])


class Field(NamedTuple):
    """A field of a Record. Bit fields: `bit_offset` from `offset`'s byte, `bit_size` bits, which are never negative: bpftrace
    extends them with zeros whatever their type, and scripts count on it."""
    name: str
    type: ValueType
    offset: int
    bit_offset: int = 0
    bit_size: int = 0


class Record(ValueType):
    """A struct by value: of C (`c_type`) or of named script values."""

    def __init__(self, name, fields, size, align=8, c_type=None):
        self.name, self.fields, self.size, self.align, self.c_type = name, fields, size, align, c_type

    def _identity(self):
        return self.name, self.size, tuple((f.name, f.type, f.offset) for f in self.fields)

    def decode(self, data, host=UNKNOWN):
        out = {}
        for field in self.fields:
            piece = data[field.offset:field.offset + field.type.size]
            if field.bit_size and field.bit_size != 8 * field.type.size:
                out[field.name] = int.from_bytes(piece, "little") >> field.bit_offset & (1 << field.bit_size) - 1
            else:
                out[field.name] = field.type.decode(piece, host)
        return out

    def text(self, value):
        if not self.fields:
            return "{}"
        return "{ " + ", ".join([".%s = %s" % (f.name, f.type.text(value[f.name]))
                                 for f in self.fields]) + " }"

    def json(self, value):
        return "{" + ", ".join([json_string(f.name) + ": " + f.type.json(value[f.name])
                                for f in self.fields]) + "}"


# --- values that are numbers in the kernel and text here ---------------------------------------------

class KernelStack(ValueType):
    """kstack: the id of a stored stack (u64)."""
    scalar = True
    size = 8
    name = "kstack"

    def __init__(self, limit=127, mode="bpftrace"):
        self.limit, self.mode = limit, mode

    def _identity(self):
        return self.limit, self.mode

    def decode(self, data, host=UNKNOWN):
        number = int.from_bytes(data[:8], "little")
        return host.kernel_stack(host.stack_frames(number), self.mode)


class UserStack(KernelStack):
    """ustack: the id of a stored stack (u64), the process (u32) and the probe (u32)."""
    scalar = False
    size = 16
    name = "ustack"

    def decode(self, data, host=UNKNOWN):
        number, pid, probe = struct.unpack_from("=QII", data)
        return host.user_stack(host.stack_frames(number), pid, probe, self.mode)


class KernelSymbol(ValueType):
    size = 8
    scalar = True
    name = "ksym_t"

    def decode(self, data, host=UNKNOWN):
        return host.kernel_symbol(int.from_bytes(data[:8], "little"))


class UserSymbol(ValueType):
    """usym(): address (u64), process (u32), probe (u32)."""
    size = 16
    name = "usym_t"

    def decode(self, data, host=UNKNOWN):
        return host.user_symbol(*struct.unpack_from("=QII", data))


class Inet(ValueType):
    """ntop(): address family (u64), then 16 bytes of address."""
    size = 24
    name = "inet"

    def decode(self, data, host=UNKNOWN):
        import socket
        family = int.from_bytes(data[:8], "little")
        if family == socket.AF_INET:
            return socket.inet_ntop(socket.AF_INET, bytes(data[8:12]))
        if family == socket.AF_INET6:
            return socket.inet_ntop(socket.AF_INET6, bytes(data[8:24]))
        return ""


class UserName(ValueType):
    size = 8
    scalar = True
    name = "username"

    def decode(self, data, host=UNKNOWN):
        return host.user_name(int.from_bytes(data[:8], "little"))


class MacAddress(ValueType):
    size, align = 6, 1
    name = "mac_address"

    def decode(self, data, host=UNKNOWN):
        return ":".join("%02X" % b for b in data[:6])


class Timestamp(ValueType):
    """strftime(): nanoseconds (u64) of the clock `mode`, printed with `form`."""
    scalar = True
    size = 8
    name = "timestamp"

    def __init__(self, form, mode):
        self.form, self.mode = form, mode

    def _identity(self):
        return self.form, self.mode

    def decode(self, data, host=UNKNOWN):
        return host.timestamp(int.from_bytes(data[:8], "little"), self.mode, self.form)


class CgroupPath(ValueType):
    size = 8
    scalar = True
    name = "cgroup_path"

    def __init__(self, pattern):
        self.pattern = pattern

    def _identity(self):
        return (self.pattern,)

    def decode(self, data, host=UNKNOWN):
        return host.cgroup_path(int.from_bytes(data[:8], "little"), self.pattern)
