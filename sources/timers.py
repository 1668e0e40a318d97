"""profile and interval: time. `profile` fires on every CPU, `interval` on one.

    profile:hz:99   interval:s:1   interval:ms:100   profile:us:500   interval:10ms

Each is a software perf event (cpu-clock) with a frequency or a period.
"""

import errno
import os
import re
from typing import NamedTuple

from .attach import attach_each
from .base import Listed, Source, SourceError, has_wildcard, matcher, nearest
from .paths import held
from .registers import RegistersPoint

_NANOSECONDS = {"us": 1000, "ms": 1000 ** 2, "s": 1000 ** 3}
UNITS = ("hz", "ms", "s", "us")
_SUFFIX = {"": 1, "ns": 1, "us": 1000, "ms": 1000 ** 2, "s": 1000 ** 3, "m": 60 * 1000 ** 3,
           "h": 3600 * 1000 ** 3, "d": 86400 * 1000 ** 3}


_INHERIT, _ENABLE_ON_EXEC = 1 << 1, 1 << 12       # of struct perf_event_attr


class Spec(NamedTuple):
    unit: str
    count: int


class Timer(Source):
    listed = ""

    def parse(self, parts, target):
        if len(parts) == 1:
            return Spec("us", self._duration(parts[0]))
        if len(parts) != 2:
            raise self.count_error(1, 2)
        unit, text = parts
        if not unit:
            raise SourceError("%s probe must have unit of time" % self.shown)
        if unit not in UNITS:
            raise SourceError("%s is not an accepted unit of time" % unit,
                              nearest(unit, UNITS) or ["hz, s, ms, us"])
        count = integer(text)
        if count is None:
            raise SourceError("%s probe must have an integer frequency" % self.shown)
        if count * _NANOSECONDS.get(unit, 1) >= 1 << 63:
            raise SourceError("%s frequency is too large: %s:%s is more than 2^63-1 nanoseconds" % (self.shown, unit, text)
                              if unit != "hz" else "%s frequency is too large: %s" % (self.shown, text))
        if not count:
            raise SourceError("%s frequency should be a positive integer" % self.shown)
        return Spec(unit, count)

    def _duration(self, text):
        """Microseconds of "10ms", "1s", "5000" (nanoseconds)."""
        match = re.match(r"(.*?)(ns|us|ms|s|m|h|d)?\Z", text)
        count = integer(match.group(1))
        if count is None:
            raise SourceError("Invalid rate of %s probe: %s" % (self.shown, text))
        nanoseconds = count * _SUFFIX[match.group(2) or ""]
        if nanoseconds < 1000:
            raise SourceError("Invalid rate of %s probe. Minimum is 1000 or 1us. Found: %d "
                              "nanoseconds" % (self.shown, nanoseconds))
        if nanoseconds >= 1 << 63:
            raise SourceError("Invalid rate of %s probe: %s" % (self.shown, text))
        return nanoseconds // 1000

    def expand(self, spec, target):
        return [self.point(self, spec, target.pid)]

    def list(self, pattern, target):
        unit = (pattern or "*").split(":")[0] or "*"
        matches = matcher(unit)
        for each in UNITS:
            if matches(each) or has_wildcard(pattern) and matches(each + ":"):
                yield Listed("%s:%s:" % (self.shown, each))


def integer(text):
    """An integer literal: decimal with "_" between digits, hexadecimal, or 1e6; None if not one."""
    if re.match(r"0[xX][0-9a-fA-F]+\Z", text):
        return int(text, 16)
    if re.match(r"\d+(_\d+)*\Z", text):
        return int(text.replace("_", ""))
    match = re.match(r"(\d+)e(\d{1,2})\Z", text)
    return int(match.group(1)) * 10 ** int(match.group(2)) if match else None


class TimerPoint(RegistersPoint):
    program_type = "perf_event"
    compares_pid = True     # the events of a process go to its children too, see `attach`

    def __init__(self, source, spec, pid=None):
        self.source = source
        self.spec = spec
        self.pid = pid

    @property
    def name(self):
        return "%s:%s:%d" % (self.source.shown, self.spec.unit, self.spec.count)

    @property
    def cookies(self):
        from .attach import perf_cookies

        return perf_cookies()

    def group_key(self, args=True):
        return ("perf_event",)

    def places(self):
        """(pid, cpu) of each perf event that makes this point."""
        return self.everywhere() if self.pid is None else _of_threads(self.pid)

    def everywhere(self):
        from rawbpf.loader import kernel

        return [(-1, cpu) for cpu in kernel.online_cpus()]

    def attr(self):
        from rawbpf.loader import perf

        unit, count = self.spec
        if unit == "hz":
            return perf.software("cpu_clock", freq=count)
        return perf.software("cpu_clock", period=count * _NANOSECONDS[unit])

    def attach(self, program, points, cookies=None):
        from rawbpf.loader.link import LinkGroup, attach_perf_event
        from rawbpf.loader.perf import PerfEvent

        def one(point, cookie):
            links = LinkGroup()
            try:
                for pid, cpu in point.places():
                    attr = point.attr()
                    if pid >= 0:    # for the threads that start later; what is to run a program counts from then on
                        attr.fields["flags"] = attr.fields.get("flags", 0) | _INHERIT | (
                            _ENABLE_ON_EXEC if pid in held else 0)
                    try:
                        event = PerfEvent.open(attr, pid, cpu)
                    except OSError as error:
                        if error.errno == errno.ESRCH and pid >= 0 and len(point.places()) > 1:
                            continue    # this thread has ended
                        raise
                    try:
                        links.add(attach_perf_event(program, event, cookie))
                        if pid in held:
                            event.disable()
                    except BaseException:
                        event.close()
                        raise
            except BaseException:
                links.close()
                raise
            return links

        return attach_each(points, one, cookies, _explain)


def _explain(point, error):
    from rawbpf.loader import kernel

    limit = kernel.sysctl("kernel.perf_event_max_sample_rate")
    if (error.errno == errno.EINVAL and getattr(point.spec, "unit", "") == "hz" and limit
            and point.spec.count > int(limit)):
        return ("%d Hz is more than kernel.perf_event_max_sample_rate, which is %s"
                % (point.spec.count, limit))
    return str(error)


def _of_threads(pid):
    """[(thread, -1)]: events of a process are of each of its threads, on whatever CPU."""
    try:
        return [(int(thread), -1) for thread in os.listdir("/proc/%d/task" % pid)]
    except OSError:
        raise SourceError("there is no process %d" % pid) from None


class IntervalPoint(TimerPoint):
    own = True
    compares_pid = False    # the tracer's clock, with -p too

    def places(self):
        return self.everywhere()[:1]


class Profile(Timer):
    names = ("profile", "p")
    usage = "profile:UNIT:COUNT"
    point = TimerPoint


class Interval(Timer):
    names = ("interval", "i")
    usage = "interval:UNIT:COUNT"
    point = IntervalPoint
