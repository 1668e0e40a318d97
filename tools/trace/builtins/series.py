"""tseries: values over time."""
import os

from .. import ast, types
from ..written import type_text
from . import Argument, register
from .aggregates import Aggregate

FUNCTIONS = ("avg", "max", "min", "sum")


@register
class _Tseries(Aggregate):
    """tseries(n, interval, count, function): one value for each of the last `count` intervals of so many nanoseconds: the
    last one, or their average, maximum, minimum or sum."""
    names = ("tseries",)
    arguments = (Argument("integer", "n"), Argument("literal integer", "interval_ns"),
                 Argument("literal integer", "num_intervals"), Argument("literal string", "agg", optional=True))

    def resolve(self, r, call):
        from ..timeseries import TimeSeries
        r.unstable(call, "tseries")
        r.arguments(self, call)
        given = call.arguments[0].type
        if not isinstance(given, types.Integer):
            r.error(call, "tseries() only supports integer arguments (%s provided)" % type_text(given))
        interval, count = [r.constant(argument) for argument in call.arguments[1:3]]
        for name, number in (("interval_ns", interval), ("num_intervals", count)):
            if number < 0:
                r.error(call, "tseries: invalid %s value (must be non-negative literal)" % name)
            if number == 0:
                r.error(call, "tseries() %s must be >= 1 (0 provided)" % name)
        if count > 1000000:
            r.error(call, "tseries() num_intervals must be < 1000000 (%d provided)" % count)
        agg = r.constant(call.arguments[3]) if len(call.arguments) == 4 else ""
        if agg and agg not in FUNCTIONS:
            r.error(call, "tseries() expects one of the following aggregation functions: %s (\"%s\" provided)"
                    % (", ".join(FUNCTIONS), agg))
        return TimeSeries(interval, count, agg, given.signed)

    def prepare(self, b, call):
        """(number, now, interval's number, offset of its bucket)"""
        f, kind = b.f, call.type
        operand = b.value(call.arguments[0])
        number = f.copy(f.const(operand) if isinstance(operand, int) else operand)
        now = f.copy(self._now(b, call))
        epoch = f.copy(f.alu("/", now, kind.interval))
        bucket, inside, over = f.variable(), f.block(), f.block()
        f.set(bucket, f.alu("%", epoch, kind.count))
        f.branch("<", bucket, kind.count, inside, over)     # which the verifier does not know
        f.position(over)
        f.set(bucket, 0)
        f.jump(inside)
        f.position(inside)
        return number, now, epoch, f.copy(f.alu("*", bucket, 24))

    def _now(self, b, call):
        """Nanoseconds of TAI; for tests, the value of the scalar map that BPFTRACE_DUMMY_TS_MAP names."""
        map = os.environ.get("BPFTRACE_DUMMY_TS_MAP")
        if map in b.script.storage and b.script.storage[map].info.scalar:
            return b.read_map(ast.Map(call.span, map))
        boot = b.script.machine.has_helper("bpf_ktime_get_boot_ns", b.point.program_type)
        now = b.f.call("bpf_ktime_get_boot_ns" if boot else "bpf_ktime_get_ns")
        return b.f.alu("+", now, b.script.machine.tai_offset)

    def update(self, b, call, cell, prepared, atomic):
        f, kind = b.f, call.type
        number, now, epoch, offset = prepared
        place = cell.at(0, cell.type)
        place.base, place.off = f.copy(f.alu("+", b.address(cell), offset)), 0
        base = place.base
        if kind.agg == "":
            f.store(base, 0, number, 8)
            f.store(base, 8, now, 8)
            f.store(base, 16, epoch, 8)
            return
        fresh, same = f.block("interval"), f.block()
        f.branch("==", f.load(base, 16, 8), epoch, same, fresh)
        f.position(fresh)
        f.store(base, 0, 0, 8)
        f.store(base, 8, 0, 8)
        f.store(base, 16, epoch, 8)
        f.jump(same)
        f.position(same)
        if kind.agg in ("sum", "avg"):
            b.add(place, 0, number, atomic)
            if kind.agg == "avg":
                b.add(place, 8, 1, atomic)
            return
        better, compare, done = f.block(), f.block(), f.block()
        f.branch("==", f.load(base, 8, 8), 0, better, compare)
        f.position(compare)
        op = ("s" if kind.signed else "") + (">" if kind.agg == "max" else "<")
        f.branch(op, number, f.load(base, 0, 8), better, done)
        f.position(better)
        f.store(base, 0, number, 8)
        f.store(base, 8, 1, 8)
        f.jump(done)
        f.position(done)
