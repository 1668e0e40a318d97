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

C types (BTF, DWARF, tracepoint formats) are the model of `elf/types.py`; `from_c` gives the script type
of a C type.
"""
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
    json_kind = "map"       # "type" of the JSON record of a map of these
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

    def __init__(self, size):
        self.size = size

    def _identity(self):
        return (self.size,)

    def decode(self, data, host=UNKNOWN):
        data = bytes(data[:self.size])
        end = data.find(0)
        if end >= 0:
            return data[:end].decode("utf-8", "surrogateescape")
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
    """A field of a Record. Bit fields: `bit_offset` from `offset`'s byte, `bit_size` bits."""
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
            if field.bit_size:
                number = int.from_bytes(piece, "little") >> field.bit_offset & (1 << field.bit_size) - 1
                if field.type.signed and number >> field.bit_size - 1:
                    number -= 1 << field.bit_size
                out[field.name] = number
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


# --- aggregates: one value a CPU, reduced when read ----------------------------------------------------

def _words(data, signed):
    return struct.unpack("=%d%s" % (len(data) // 8, "q" if signed else "Q"), data)


def _wrap(value, signed):
    value &= (1 << 64) - 1
    return value - (1 << 64) if signed and value >> 63 else value


def _divide(value, div):
    """C's division: towards zero."""
    return -(-value // div) if value < 0 else value // div


class Aggregate(ValueType):
    """`reduce(values)` makes one Python value of the CPUs' byte strings (None: nothing was stored on
    any of them). `scaled(value, div)` is what print(@x, top, div) shows."""
    aggregate = True
    castable = True         # an expression can read it as a number
    size = 8

    def __init__(self, signed=True):
        self.signed = signed

    def _identity(self):
        return (self.signed,)

    def decode(self, data, host=UNKNOWN):
        return self.reduce([bytes(data[:self.size])])

    def text(self, value):
        return "%d" % value

    def json(self, value):
        return json_number(value)

    def scaled(self, value, div):
        return _divide(value, div)

    def order(self, value):
        return value

    # reading it in a program: `start` makes the state, `combine` adds one CPU's value, `finish` the number

    zero_when_set = False   # the bytes may be all zero although something was stored

    def start(self, f):
        total = f.variable()
        f.set(total, 0)
        return total

    def combine(self, f, state, cell):
        f.set(state, f.alu("+", state, f.load(cell, 0, 8)))

    def finish(self, f, state):
        return state

    @property
    def scalar_type(self):
        """The type that the aggregate has when an expression reads it."""
        return Integer(8, self.signed)


class Count(Aggregate):
    name = "count_t"

    def __init__(self, signed=False):
        self.signed = signed

    def reduce(self, values):
        return _wrap(sum(_words(b"".join([v[:8] for v in values]), self.signed)), self.signed)


class Sum(Count):
    name = "sum_t"
    zero_when_set = True


class Average(Aggregate):
    """total (u64), count (u64)"""
    name = "avg_t"
    json_kind = "stats"
    size = 16
    json_kind = "stats"

    def reduce(self, values):
        words = _words(b"".join([v[:16] for v in values]), self.signed)
        count = sum(words[1::2])
        return _divide(_wrap(sum(words[0::2]), self.signed), count) if count else 0

    def start(self, f):
        total, count = f.variable(), f.variable()
        f.set(total, 0)
        f.set(count, 0)
        return total, count

    def combine(self, f, state, cell):
        for part, offset in zip(state, (0, 8)):
            f.set(part, f.alu("+", part, f.load(cell, offset, 8)))

    def finish(self, f, state):
        return f.alu("s/" if self.signed else "/", *state)


class Statistics(Average):
    name = "stats_t"
    castable = False

    def reduce(self, values):
        words = _words(b"".join([v[:16] for v in values]), self.signed)
        count, total = sum(words[1::2]), _wrap(sum(words[0::2]), self.signed)
        return Stats(count, _divide(total, count) if count else 0, total)

    def text(self, value):
        return "{ .count = %d, .average = %d, .total = %d }" % value

    def json(self, value):
        return '{"count": %s, "average": %s, "total": %s}' % tuple(map(json_number, value))

    def scaled(self, value, div):
        return value._replace(average=_divide(value.average, div))

    def order(self, value):
        return value.average


class Maximum(Aggregate):
    """A number (u64) and whether it was ever set (u64). The number is kept so that a larger one, compared
    without sign, is what is wanted, and 0 what everything is larger than: `encode`."""
    name = "max_t"
    size = 16
    flip = 0                # xor with all ones: the smallest becomes the largest
    wider = staticmethod(max)

    @property
    def mask(self):
        return self.flip ^ (1 << 63 if self.signed else 0)

    def encode(self, f, operand):
        return f.alu("^", operand, self.mask) if self.mask else operand

    def reduce(self, values):
        words = _words(b"".join([v[:16] for v in values]), False)
        present = [_wrap(v ^ self.mask, self.signed) for v, was_set in zip(words[0::2], words[1::2]) if was_set]
        return self.wider(present) if present else 0

    def start(self, f):
        best, known = f.variable(), f.variable()
        f.set(best, 0)
        f.set(known, 0)
        return best, known

    def combine(self, f, state, cell):
        best, known = state
        value = f.load(cell, 0, 8)
        larger, done = f.block(), f.block()
        f.set(known, f.alu("|", known, f.load(cell, 8, 8)))
        f.branch(">", value, best, larger, done)
        f.position(larger)
        f.set(best, value)
        f.jump(done)
        f.position(done)

    def finish(self, f, state):
        best, known = state
        result = f.variable()
        f.set(result, 0)
        some, done = f.block(), f.block()
        f.branch("==", known, 0, done, some)
        f.position(some)
        f.set(result, self.encode(f, best))
        f.jump(done)
        f.position(done)
        return result


class Minimum(Maximum):
    name = "min_t"
    flip = (1 << 64) - 1
    wider = staticmethod(min)


class _Buckets(Aggregate):
    """An array of counters. `size` is all of them: one u64 a bucket."""
    multiline = True
    json_kind = "hist"
    castable = False
    json_kind = "hist"
    castable = False

    def reduce(self, values):
        """A list of counts, one a bucket."""
        words = _words(b"".join([v[:self.size] for v in values]), False)
        n = self.buckets
        return [sum(words[i::n]) for i in range(n)]

    def scaled(self, value, div):
        return value

    def order(self, value):
        return sum(value)

    def histogram(self, counts):
        """The counts as a Histogram from the first to the last bucket that is not empty."""
        used = [i for i, n in enumerate(counts) if n]
        if not used:
            return Histogram([], [], [])
        span = range(used[0], used[-1] + 1)
        bounds = [self.bounds(i) for i in span]
        return Histogram(bounds, [tuple(None if b is None else self.label(b) for b in pair)
                                  for pair in bounds], [counts[i] for i in span])

    def text(self, value):
        """One line a bucket, each with its newline."""
        hist = self.histogram(value)
        top = max(hist.counts, default=0)
        lines = []
        for (low, high), (low_text, high_text), count in zip(*hist):
            if low is None:
                head = "(..., %s)" % high_text
            elif high is None:
                head = "[%s, ...)" % low_text
            elif high == low + 1 and low_text.lstrip("-").isdigit() and high_text.lstrip("-").isdigit():
                head = "[%s]" % low_text
            else:
                head = "[%s, %s)" % (low_text, high_text)
            lines.append("%-16s%8d |%-52s|\n" % (head, count, "@" * _bar(count, top)))
        return "".join(lines)

    def json(self, value):
        out = []
        hist = self.histogram(value)
        for (low, high), count in zip(hist.bounds, hist.counts):
            out.append("{" + ("" if low is None else '"min": %s, ' % json_number(low))
                       + ("" if high is None else '"max": %s, ' % json_number(high - 1))
                       + '"count": %d}' % count)
        return "[" + ",".join(out) + "]"


def _single(value):
    """Rounded to a C float."""
    return struct.unpack("f", struct.pack("f", value))[0]


def _bar(count, top):
    """Width of a bar of at most 52: in single precision, as the layout being matched computes it."""
    return int(_single(_single(_single(count) / _single(top)) * 52))


class Hist(_Buckets):
    """hist(n, bits): bucket 0 is negative numbers; then 2^bits buckets for 0 .. 2^bits - 1, one each; then
    2^bits buckets for every power of two."""
    name = "hist_t"
    signed = True

    def __init__(self, bits=0):
        self.bits = bits
        self.buckets = ((64 - bits) << bits) + (1 << bits) + 1 if bits else 66
        self.size = 8 * self.buckets

    def _identity(self):
        return (self.bits,)

    def scaled(self, value, div):
        return [n // div for n in value]

    def bucket(self, number):
        """The index of a number's bucket."""
        if number < 0:
            return 0
        power = number.bit_length() - 1 - self.bits      # number = 2^power * (2^bits + ...)
        if power < 0:
            return number + 1
        return (power + 1 << self.bits) + (number >> power & (1 << self.bits) - 1) + 1

    def _start(self, index):
        """The smallest number in bucket `index` (from 1)."""
        k = self.bits
        if index <= 2 << k:
            return index - 1
        index -= 1
        return (1 << (index >> k) - 1) * ((1 << k) + (index & (1 << k) - 1))

    def bounds(self, index):
        return (None, 0) if index == 0 else (self._start(index), self._start(index + 1))

    def label(self, number):
        k = self.bits
        if number <= 2 << k:
            return str(number)
        power = number.bit_length() - 1 - k      # number = 2^power * (2^k + interval)
        decade = power // 10
        return "%d%s" % (number >> 10 * decade, ("", "K", "M", "G", "T", "P", "E")[decade])


class LinearHist(_Buckets):
    """lhist(n, min, max, step): a bucket below, one for each step, one from max on."""
    name = "lhist_t"

    def __init__(self, low, high, step):
        self.low, self.high, self.step = low, high, step
        self.buckets = (high - low) // step + 2
        self.size = 8 * self.buckets

    def _identity(self):
        return self.low, self.high, self.step

    def bucket(self, number):
        """The index of a number's bucket."""
        if number < self.low:
            return 0
        return self.buckets - 1 if number >= self.high else (number - self.low) // self.step + 1

    def bounds(self, index):
        return (None if index == 0 else self.low + (index - 1) * self.step,
                self.low + index * self.step if self.low + index * self.step <= self.high else None)

    def label(self, number):
        if self.step % 1024 or number == 0:
            return str(number)
        if number % (1 << 20) == 0:
            return "%dM" % (number >> 20)
        return "%dK" % (number >> 10) if number % 1024 == 0 else str(number)


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
            return current
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
    if isinstance(current, (Record, Array)):
        return current if current == new else None
    if isinstance(current, Aggregate):
        if type(current)._identity is Aggregate._identity:
            return current if current.signed else new
        return current if current == new else None
    return current


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
        self.align = 8
        self._fields = None

    def _identity(self):
        return self.c_type

    @property
    def fields(self):
        if self._fields is None:
            self._fields = [Field(f.name, from_c(f.type), f.offset, f.bit_offset, f.bit_size or 0)
                            for f in self.c_type.fields]
        return self._fields


def from_c(c_type, user=None):
    """The script type of a C type (elf.types); `user`: which memory its pointers mean."""
    from rawbpf.elf import types as c
    bare = c.strip(c_type)
    if isinstance(bare, c.Int):
        if bare.encoding == "bool":
            return BOOL
        return Integer(bare.size, bare.signed) if bare.size <= 8 else Array(UINT8, bare.size)
    if isinstance(bare, c.Enum):
        return Integer(bare.size, bare.signed, bare)
    if isinstance(bare, c.Pointer):
        target = bare.target
        return Pointer(None if isinstance(c.strip(target), c.Void) else target, user)
    if isinstance(bare, c.Array):
        element = c.strip(bare.element)
        if isinstance(element, c.Int) and element.size == 1 and (element.signed or element.name == "char"):
            return String(bare.count)
        return Array(from_c(bare.element, user), bare.count)
    if isinstance(bare, c.Struct):
        return CRecord(bare)
    if isinstance(bare, c.Float):
        return Array(UINT8, bare.size)
    return NONE


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
