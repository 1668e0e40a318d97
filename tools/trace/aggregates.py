"""The types of aggregates: maps that keep one value a CPU, reduced when they are read (see types.py)."""
import struct

from .values import UNKNOWN, Histogram, Integer, Stats, ValueType, json_number


def _words(data, signed):
    return struct.unpack("=%d%s" % (len(data) // 8, "q" if signed else "Q"), data)


def _wrap(value, signed):
    value &= (1 << 64) - 1
    return value - (1 << 64) if signed and value >> 63 else value


def divide(value, div):
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

    def together(self, values, host):
        """What is printed of all the values of a map."""
        return values

    def scaled(self, value, div):
        return divide(value, div)

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
    size = 16
    json_kind = "stats"

    def reduce(self, values):
        words = _words(b"".join([v[:16] for v in values]), self.signed)
        count = sum(words[1::2])
        return divide(_wrap(sum(words[0::2]), self.signed), count) if count else 0

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
        return Stats(count, divide(total, count) if count else 0, total)

    def text(self, value):
        return "{ .count = %d, .average = %d, .total = %d }" % value

    def json(self, value):
        return '{"count": %s, "average": %s, "total": %s}' % tuple(map(json_number, value))

    def scaled(self, value, div):
        return value._replace(average=divide(value.average, div))

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
