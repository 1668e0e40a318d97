"""Time: nsecs, elapsed, strftime, time, jiffies."""
import struct
import time

from .. import results, types
from ..compiled import KernelMap
from ..types import UINT64
from . import Argument, Builtin, arguments_of, register, value

_CLOCKS = {"boot": 0, "monotonic": 1, "tai": 2, "sw_tai": 3}


@register
class _Nsecs(Builtin):
    """nsecs: nanoseconds since boot, sleep included, unless another clock is named."""
    names = ("nsecs",)
    bare = pure = True
    arguments = (Argument("word", "clock", optional=True),)
    returns = UINT64

    def resolve(self, r, call):
        r.arguments(self, call)
        for word in arguments_of(call):
            if word.name not in _CLOCKS:
                r.error(word, "Invalid timestamp mode: %s" % word.name)
        return UINT64

    def clock(self, call):
        words = arguments_of(call)
        return _CLOCKS[words[0].name] if words else 0

    def value(self, b, call):
        mode, f, machine = self.clock(call), b.f, b.script.machine
        kind = b.point.program_type
        if mode == 0 and machine.has_helper("bpf_ktime_get_boot_ns", kind):
            return f.call("bpf_ktime_get_boot_ns")
        if mode == 2:
            if not machine.has_helper("bpf_ktime_get_tai_ns", kind):
                b.error(call, "Kernel does not support tai timestamp (Linux 6.1), please try sw_tai")
            return f.call("bpf_ktime_get_tai_ns")
        if mode == 3:
            return f.alu("+", f.call("bpf_ktime_get_boot_ns"), machine.tai_offset)
        return f.call("bpf_ktime_get_ns")


@value("elapsed", returns=UINT64)
def _elapsed(b):
    """Nanoseconds since the trace was started, just before BEGIN."""
    f = b.f
    boot = b.script.machine.has_helper("bpf_ktime_get_boot_ns", b.point.program_type)
    b.script.add_kernel_map(KernelMap("elapsed", "array", 4, 8, 1, content=(_boot_time if boot else _monotonic_time,)))
    return f.alu("-", f.call("bpf_ktime_get_boot_ns" if boot else "bpf_ktime_get_ns"),
                 f.load(f.map_value("elapsed"), 0, 8))


def _boot_time():
    return struct.pack("=Q", time.clock_gettime_ns(time.CLOCK_BOOTTIME))


def _monotonic_time():
    return struct.pack("=Q", time.monotonic_ns())


@value("jiffies", returns=UINT64)
def _jiffies(b):
    return b.f.call("bpf_jiffies64")


@register
class _Strftime(Builtin):
    names = ("strftime",)
    pure = True
    arguments = (Argument("literal string", "format"), Argument("integer", "nsecs"))

    def resolve(self, r, call):
        r.arguments(self, call)
        when = call.arguments[1]
        constant = r.constant(when)
        if isinstance(constant, int) and constant < 0:
            r.error(when, "strftime() can not take negative values")
        from . import lookup
        entry = lookup(getattr(when, "name", ""))
        mode = entry.clock(when) if hasattr(entry, "clock") else 0
        return types.Timestamp(r.constant(call.arguments[0]), mode)

    def value(self, b, call):
        return b.value(call.arguments[1])


@register
class _Time(Builtin):
    """time(): the wall clock when the record is read."""
    names = ("time",)
    arguments = (Argument("literal string", "format", optional=True),)

    def statement(self, b, call):
        form = b.constant(call.arguments[0]) if call.arguments else "%H:%M:%S\n"

        def action(session, values):
            session.emit(results.Time(time.strftime(form, time.localtime())))
        b.send(b.event(call, "time", [], action), lambda record: None)
