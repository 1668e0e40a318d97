"""Functions that may only be assigned to a map: count, sum, avg, min, max, stats, hist, lhist.

Each changes a *cell*: this CPU's value of the map (see maps.py). `prepare` evaluates the arguments before
the cell is looked up; `update` is the code on the cell. `atomic`: another program may change the cell in
between, so only atomic instructions are exact.
"""
from .. import types
from ..written import type_text
from . import Argument, Builtin, arguments_of, register


class Aggregate(Builtin):
    aggregate = True
    kind = None             # the types.Aggregate
    arguments = (Argument("integer", "n"),)

    def resolve(self, r, call):
        r.arguments(self, call)
        given = call.arguments[0].type
        if not isinstance(given, types.Integer):
            r.error(call, "%s() only supports integer arguments (%s provided)" % (self.name, type_text(given)))
        return self.kind(given.signed and not given.flexible or given.flexible)

    def prepare(self, b, call):
        """The number, in a register or known."""
        operand = b.value(call.arguments[0])
        return operand if isinstance(operand, int) else b.f.copy(operand)

    def update(self, b, call, cell, number, atomic):
        raise NotImplementedError


@register
class _Count(Aggregate):
    names = ("count",)
    arguments = ()

    def resolve(self, r, call):
        r.arguments(self, call)
        return types.Count()

    def prepare(self, b, call):
        return 1

    def update(self, b, call, cell, number, atomic):
        b.add(cell, 0, 1, atomic)


@register
class _Sum(Aggregate):
    names = ("sum",)
    kind = types.Sum

    def update(self, b, call, cell, number, atomic):
        b.add(cell, 0, number, atomic)


class _Total(Aggregate):
    """A total and a count."""

    def update(self, b, call, cell, number, atomic):
        b.add(cell, 0, number, atomic)
        b.add(cell, 8, 1, atomic)


@register
class _Avg(_Total):
    names = ("avg",)
    kind = types.Average


@register
class _Stats(_Total):
    names = ("stats",)
    kind = types.Statistics


class _Extreme(Aggregate):
    """min and max: the encoded number (types.Maximum) only ever grows."""

    def update(self, b, call, cell, number, atomic):
        f = b.f
        number = f.copy(cell.type.encode(f, f.const(number) if isinstance(number, int) else number))
        f.store(cell.base, cell.off + 8, 1, 8)
        larger, done = f.block("larger"), f.block()
        old = f.variable()
        f.set(old, f.load(cell.base, cell.off, 8))
        if not atomic:
            f.branch(">", number, old, larger, done)
            f.position(larger)
            f.store(cell.base, cell.off, number, 8)
            f.jump(done)
            f.position(done)
            return
        f.branch(">", number, old, larger, done)
        for _ in range(4):      # each turn means that another program changed it in between
            f.position(larger)
            seen = f.atomic("cmpxchg", cell.base, cell.off, (old, number))
            again, larger = f.block(), f.block("larger")
            f.branch("==", seen, old, done, again)
            f.position(again)
            f.set(old, seen)
            f.branch(">", number, old, larger, done)
        f.position(larger)
        f.jump(done)
        f.position(done)


@register
class _Min(_Extreme):
    names = ("min",)
    kind = types.Minimum


@register
class _Max(_Extreme):
    names = ("max",)
    kind = types.Maximum


class _Histogram(Aggregate):
    def add_to_bucket(self, b, cell, index, atomic):
        f = b.f
        place = cell.at(0, cell.type)
        if isinstance(index, int):
            b.add(cell, 8 * index, 1, atomic)
            return
        place.base = f.alu("+", b.address(cell), f.alu("<<", index, 3))
        place.off = 0
        b.add(place, 0, 1, atomic)


@register
class _Hist(_Histogram):
    names = ("hist",)
    arguments = (Argument("integer", "n"), Argument("literal integer", "bits", optional=True))

    def resolve(self, r, call):
        r.arguments(self, call)
        bits = r.constant(call.arguments[1]) if len(call.arguments) == 2 else 0
        if not 0 <= bits <= 5:
            r.error(call.arguments[1], "hist: bits %d must be 0..5" % bits)
        return types.Hist(bits)

    def prepare(self, b, call):
        """The bucket of the number."""
        kind = call.type
        f, bits = b.f, kind.bits
        number = b.value(call.arguments[0])
        if isinstance(number, int):
            return kind.bucket(number)
        number = f.copy(number)
        index = f.variable()
        f.set(index, 0)
        not_negative, positive, done = f.block(), f.block("log2"), f.block("bucket")
        f.branch("s<", number, 0, done, not_negative)
        f.position(not_negative)
        small = (1 << bits) if bits else 1
        f.set(index, f.alu("+", number, 1))
        f.branch("<", number, small, done, positive)
        f.position(positive)
        log = self._log2(f, number)
        if not bits:
            f.set(index, f.alu("+", log, 2))
        else:
            shift = f.alu("-", log, bits)
            low = f.alu("&", f.alu(">>", number, shift), (1 << bits) - 1)
            f.set(index, f.alu("+", f.alu("+", f.alu("<<", f.alu("+", shift, 1), bits), low), 1))
        f.jump(done)
        f.position(done)
        limited = f.variable()
        f.set(limited, index)
        return self._bound(f, limited, kind.buckets)

    def _log2(self, f, number):
        """floor(log2(number)) of a number that is not zero, by halving the range."""
        rest, log = f.variable(), f.variable()
        f.set(rest, number)
        f.set(log, 0)
        for step in (32, 16, 8, 4, 2):
            wide, following = f.block(), f.block()
            f.branch(">=", rest, 1 << step, wide, following)
            f.position(wide)
            f.set(rest, f.alu(">>", rest, step))
            f.set(log, f.alu("+", log, step))
            f.jump(following)
            f.position(following)
        return f.alu("+", log, f.alu(">>", rest, 1))

    def _bound(self, f, index, count):
        """The verifier wants to see that the index is inside."""
        done, over = f.block(), f.block()
        f.branch("<", index, count, done, over)
        f.position(over)
        f.set(index, count - 1)
        f.jump(done)
        f.position(done)
        return index

    def update(self, b, call, cell, index, atomic):
        self.add_to_bucket(b, cell, index, atomic)


@register
class _Lhist(_Histogram):
    names = ("lhist",)
    arguments = (Argument("integer", "n"), Argument("literal integer", "min"), Argument("literal integer", "max"),
                 Argument("literal integer", "step"))

    def resolve(self, r, call):
        r.arguments(self, call)
        low, high, step = [r.constant(a) for a in call.arguments[1:]]
        if step <= 0:
            r.error(call, "lhist() step must be >= 1 (%d provided)" % step)
        if low > high:
            r.error(call, "lhist() min must be less than max (provided min %d and max %d)" % (low, high))
        buckets = (high - low) // step
        if buckets > 1000:
            r.error(call, "lhist() too many buckets, must be <= 1000 (would need %d)" % buckets)
        if high - low < step:
            r.error(call, "lhist() step is too large for the given range (provided step %d for range %d)"
                    % (step, high - low))
        return types.LinearHist(low, high, step)

    def prepare(self, b, call):
        kind, f = call.type, b.f
        number = b.value(call.arguments[0])
        if isinstance(number, int):
            return kind.bucket(number)
        number = f.copy(number)
        index = f.variable()
        f.set(index, 0)
        over, inside, inner, done = f.block(), f.block(), f.block(), f.block("bucket")
        f.branch("s<", number, kind.low, done, inside)
        f.position(inside)
        f.branch("s>=", number, kind.high, over, inner)
        f.position(over)
        f.set(index, kind.buckets - 1)
        f.jump(done)
        f.position(inner)
        f.set(index, f.alu("+", f.alu("/", f.alu("-", number, kind.low) if kind.low else number, kind.step), 1))
        f.jump(done)
        f.position(done)
        return _Hist()._bound(f, index, kind.buckets)

    def update(self, b, call, cell, index, atomic):
        self.add_to_bucket(b, cell, index, atomic)


__all__ = ["arguments_of"]
