"""begin, end, self, test and bench: what the tracer itself raises.

A begin or end program runs once in this process: by a test run of a raw tracepoint program on Linux
5.10+, before that by a uprobe on a function of our own that is then called.
"""

import os
import signal
from typing import NamedTuple

from .base import Attachment, Listed, Point, Source, SourceError, matcher, nearest

SIGNALS = ("SIGUSR1",)


class Spec(NamedTuple):
    signal: str = ""  #: of a test or benchmark, its name


class Begin(Source):
    names = ("begin", "BEGIN")
    usage = "begin"
    when = "begin"

    def parse(self, parts, target):
        if parts and parts != ["*"]:
            raise SourceError("begin/end probes should not have a target")
        return Spec()

    def expand(self, spec, target):
        return [SpecialPoint(self, self.shown, self.when)]

    def list(self, pattern, target):
        return iter(())


class End(Begin):
    names = ("end", "END")
    usage = "end"
    when = "end"


class Test(Begin):
    """Run once by `--test`; bench: many times by `--bench`."""

    names = ("test",)
    usage = "test:NAME"
    when = "test"

    def parse(self, parts, target):
        if len(parts) != 1 or not parts[0]:
            raise self.count_error(1)
        return Spec(parts[0])

    def expand(self, spec, target):
        return [SpecialPoint(self, "%s:%s" % (self.shown, spec.signal), self.when)]


class Bench(Test):
    names = ("bench",)
    usage = "bench:NAME"
    when = "bench"


class Self(Source):
    names = ("self",)
    usage = "self:signal:SIGNAL"

    def parse(self, parts, target):
        if len(parts) != 2:
            raise self.count_error(2)
        trigger, name = parts
        if trigger != "signal":
            raise SourceError("%s is not a supported trigger" % trigger, ["self:signal:SIGUSR1"])
        if name not in SIGNALS:
            raise SourceError("%s is not a supported signal" % name, nearest(name, SIGNALS))
        return Spec(name)

    def expand(self, spec, target):
        point = SpecialPoint(self, "self:signal:" + spec.signal, "signal")
        point.signal = int(getattr(signal, spec.signal))
        return [point]

    def list(self, pattern, target):
        matches = matcher(pattern or "*")
        for name in SIGNALS:
            if matches("signal:" + name):
                yield Listed("self:signal:" + name)


class SpecialPoint(Point):
    def __init__(self, source, name, when):
        self.source = source
        self._name = name
        self.when = when

    @property
    def name(self):
        return self._name

    @property
    def program_type(self):
        if self.when == "bench":
            return "xdp"        # which the kernel repeats and times
        return "raw_tracepoint" if can_test_run() else "kprobe"

    def group_key(self, args=True):
        return ("special", self._name)

    def attach(self, program, points, cookies=None):
        return Attachment([])

    def fire(self, program):
        if program.type == "raw_tracepoint":
            program.test_run()
        else:
            call_probed(program)


def can_test_run():
    from rawbpf.loader import kernel

    return kernel.release() >= (5, 10)


def call_probed(program):
    """Run a kprobe program once: put it as a uprobe on a function of two instructions, in a file in
    memory that only this process has, and call that."""
    import ctypes
    import mmap

    from rawbpf.loader import perf
    from rawbpf.loader.link import attach_perf_event

    from . import abi

    code = abi.host().return_code
    fd = os.memfd_create("rawbpf-probed", os.MFD_CLOEXEC)
    try:
        os.write(fd, code.ljust(mmap.PAGESIZE, b"\0"))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                              ctypes.c_int, ctypes.c_long]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        where = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, fd, 0)
        if where in (None, ctypes.c_void_p(-1).value):
            raise SourceError("cannot map a page of code: %s" % os.strerror(ctypes.get_errno()))
        try:
            attr = perf.uprobe("/proc/self/fd/%d" % fd, 0)
            event = perf.PerfEvent.open(attr, os.getpid(), -1)
            with attach_perf_event(program, event):
                ctypes.CFUNCTYPE(None)(where)()
        finally:
            libc.munmap(where, mmap.PAGESIZE)
    finally:
        os.close(fd)
