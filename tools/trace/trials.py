"""`--test` and `--bench`: the probes test:NAME and bench:NAME of a script.

A test passes when it returns 0, says no error and does not exit() with a status; what it prints is shown
if it fails. A benchmark is repeated by the kernel until it has taken a millisecond; what it prints is not shown. One
that returns something else than 0 is passed over.
"""

import time

from .diagnostics import colored
from .results import BenchmarkResult, Complaint, Message, TestResult, TextRenderer

PACKET = bytes(14)          # of an Ethernet header, without which XDP programs are not run
ENOUGH = 1000000            # nanoseconds
STEPS = ((1000, 10000), (10000, 100), (100000, 10), (ENOUGH, 2))    # below so many nanoseconds: so many times more


class _Kept:
    """A writer that keeps the text."""

    def __init__(self):
        self.data = bytearray()

    def write(self, data):
        self.data += data

    def settle(self):
        pass


class _Capture(TextRenderer):
    """Takes the place of a session's renderer while a probe runs; `errors` are counted."""

    def __init__(self):
        self.kept = _Kept()
        super().__init__(self.kept, self.kept)
        self.errors = 0

    def emit(self, result):
        self.errors += isinstance(result, Message) and result.severity == "ERROR"
        super().emit(result)


def _captured(session, work):
    """(what work() returned, the _Capture, the status that the script exited with)."""
    shown, session.renderer = session.renderer, _Capture()
    try:
        result = work()
        session.drain()
        return result, session.renderer, session.exit_code
    finally:
        session.renderer = shown
        session.exiting, session.exit_code = False, 0


def _run(loaded, repeat=1):
    """(what the program returned, nanoseconds of one run)"""
    began = time.perf_counter_ns()
    done = loaded.test_run(PACKET if loaded.type == "xdp" else None, repeat=repeat)
    return done.retval, done.duration if loaded.type == "xdp" else time.perf_counter_ns() - began


def run(session, mode):
    """Run all probes of a mode ("test" or "bench"); returns the exit status."""
    chosen = [(point.name.partition(":")[2], loaded) for program, loaded in session.programs if program.when == mode
              for point in program.points]
    return (_tests if mode == "test" else _benchmarks)(session, chosen)


def _tests(session, chosen):
    names, passed = [name for name, _ in chosen], []
    out = getattr(session.renderer, "out", None)
    color = out is not None and colored(out)
    for index, (_, loaded) in enumerate(chosen):
        (returned, duration), capture, status = _captured(session, lambda: _run(loaded))
        passed.append(returned == 0 and not capture.errors and not status)
        session.emit(TestResult(names, index, passed, duration, capture.kept.data.decode("utf-8", "surrogateescape"),
                                color))
    return 0 if all(passed) else 1


def _benchmarks(session, chosen):
    names, status = [name for name, _ in chosen], 0
    first = True
    for name, loaded in chosen:
        repeat = 1
        while True:
            (returned, duration), capture, code = _captured(session, lambda: _run(loaded, repeat))
            if returned and not code:
                break           # it wants to be passed over
            total = duration * repeat
            more = next((factor for limit, factor in STEPS if total < limit), None)
            if more is not None:
                repeat *= more
                continue
            if code or capture.errors:
                session.emit(Complaint("Benchmark '%s' failed." % name))
                status = 1
            else:
                session.emit(BenchmarkResult(names, name, first, duration, repeat))
                first = False
            break
    return status
