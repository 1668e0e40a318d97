"""software, hardware, cache and pmu: what perf_event_open(2) counts, each so many occurrences.

    software:page-faults:100   hardware:cache-misses:1000000   cache:L1-dcache-load-misses:10000
    pmu:cpu/mem-loads/:1000   (events of /sys/bus/event_source/devices/*/events)
"""

import os
from typing import NamedTuple

from .base import Listed, Source, SourceError, has_wildcard, matcher, nearest, try_number
from .timers import TimerPoint

# shown name, alias, the name in loader.perf, default period
SOFTWARE = (
    ("alignment-faults", "", "alignment_faults", 1),
    ("bpf-output", "", "bpf_output", 1),
    ("context-switches", "cs", "context_switches", 1000),
    ("cpu-clock", "cpu", "cpu_clock", 1000000),
    ("cpu-migrations", "", "cpu_migrations", 1),
    ("dummy", "", "dummy", 1),
    ("emulation-faults", "", "emulation_faults", 1),
    ("major-faults", "", "page_faults_maj", 1),
    ("minor-faults", "", "page_faults_min", 100),
    ("page-faults", "faults", "page_faults", 100),
    ("task-clock", "", "task_clock", 1),
)
HARDWARE = (
    ("backend-stalls", "", "stalled_cycles_backend", 1000000),
    ("branch-instructions", "branches", "branch_instructions", 100000),
    ("branch-misses", "", "branch_misses", 100000),
    ("bus-cycles", "", "bus_cycles", 100000),
    ("cache-misses", "", "cache_misses", 1000000),
    ("cache-references", "", "cache_references", 1000000),
    ("cpu-cycles", "cycles", "cpu_cycles", 1000000),
    ("frontend-stalls", "", "stalled_cycles_frontend", 1000000),
    ("instructions", "", "instructions", 1000000),
    ("ref-cycles", "", "ref_cpu_cycles", 1000000),
)

# perf_event_open(2): config of PERF_TYPE_HW_CACHE is cache | operation << 8 | result << 16
_CACHES = ("L1-dcache", "L1-icache", "LLC", "dTLB", "iTLB", "branch", "node")
_OPERATIONS = (("load", "loads"), ("store", "stores"), ("prefetch", "prefetches"))

DEVICES = "/sys/bus/event_source/devices"
_EVENTS = DEVICES + "/%s/events"


class Spec(NamedTuple):
    event: str
    count: int  #: 0: the event's default


class PerfSource(Source):
    def parse(self, parts, target):
        if len(parts) not in (1, 2) or not parts[0]:
            raise self.count_error(1, 2)
        count = 0
        if len(parts) == 2 and parts[1] not in ("*", ""):
            count = try_number(parts[1])
            if not count:
                raise SourceError("%s count should be a positive integer" % self.shown)
        if has_wildcard(parts[0]):
            raise SourceError("wildcards are not allowed for %s probe type" % self.shown)
        return Spec(parts[0], count)

    def expand(self, spec, target):
        names = self.events()
        if spec.event not in names:
            raise SourceError("%s is not a %s probe" % (spec.event, self.shown),
                              ["%s:%s:" % (self.shown, n) for n in nearest(spec.event, names)])
        return [PerfPoint(self, spec, target.pid)]

    def list(self, pattern, target):
        event, _, rest = pattern.partition(":")
        matches = matcher(event or "*")
        lines = {"%s:%s:" % (self.shown, name) for name in self.events() if matches(name)}
        for line in sorted(lines):
            yield Listed(line)


class Table(PerfSource):
    table = ()

    def events(self):
        return {name: row for row in self.table for name in row[:2] if name}

    def default(self, event):
        return self.events()[event][3]


class Software(Table):
    names = ("software", "s")
    listed = "kernel"
    usage = "software:EVENT[:COUNT]"
    table = SOFTWARE

    def attr(self, spec, count):
        from rawbpf.loader import perf

        return perf.software(self.events()[spec.event][2], period=count)


class Hardware(Table):
    names = ("hardware", "h")
    listed = "kernel"
    usage = "hardware:EVENT[:COUNT]"
    table = HARDWARE

    def attr(self, spec, count):
        from rawbpf.loader import perf

        return perf.hardware(self.events()[spec.event][2], period=count)


class Cache(PerfSource):
    names = ("cache",)
    usage = "cache:EVENT[:COUNT]"

    def events(self):
        """perf's names: L1-dcache-loads, L1-dcache-load-misses, ..."""
        table = {}
        for number, cache in enumerate(_CACHES):
            for operation, (one, many) in enumerate(_OPERATIONS):
                table["%s-%s" % (cache, many)] = number | operation << 8
                table["%s-%s-misses" % (cache, one)] = number | operation << 8 | 1 << 16
        return table

    def default(self, event):
        return 1000000

    def attr(self, spec, count):
        from rawbpf.loader import perf

        return perf.Attr("cache event %s" % spec.event, type=perf.TYPE_HW_CACHE,
                         config=self.events()[spec.event], sample_period=count)


class Pmu(PerfSource):
    names = ("pmu",)
    usage = "pmu:DEVICE/EVENT/[:COUNT]"

    def events(self):
        """{"cpu/mem-loads/": its text}, from sysfs."""
        table = {}
        for device in _listdir(DEVICES):
            for event in _listdir(_EVENTS % device):
                if not event.endswith((".scale", ".unit")):
                    table["%s/%s/" % (device, event)] = "%s/%s" % (_EVENTS % device, event)
        return table

    def default(self, event):
        return 1000000

    def attr(self, spec, count):
        from rawbpf.loader import perf

        device = spec.event.split("/")[0]
        fields = {"config": 0, "config1": 0, "config2": 0}
        with open(self.events()[spec.event]) as file:
            terms = file.read().strip().split(",")
        for term in terms:
            name, _, value = term.partition("=")
            if value == "?":
                raise SourceError("%s needs a value for %s, which cannot be given here" % (spec.event, name))
            field, bits = _format(device, name)
            fields[field] |= _spread(int(value or "1", 0), bits)
        with open("%s/%s/type" % (DEVICES, device)) as file:
            kind = int(file.read())
        return perf.Attr("event %s" % spec.event, type=kind, sample_period=count, **fields)


def _listdir(path):
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _format(device, name):
    """(attr field, its bits from the lowest) that a term's value goes to: format/event has
    "config:0-7,32-35"."""
    if name in ("config", "config1", "config2"):
        return name, list(range(64))
    try:
        with open("%s/%s/format/%s" % (DEVICES, device, name)) as file:
            field, _, ranges = file.read().strip().partition(":")
    except OSError:
        raise SourceError("the term %s of %s is not in sysfs" % (name, device)) from None
    bits = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        bits += range(int(first), int(last or first) + 1)
    return field, bits


def _spread(value, bits):
    return sum((value >> index & 1) << bit for index, bit in enumerate(bits))


class PerfPoint(TimerPoint):
    """One event on every CPU, or for one process."""

    def __init__(self, source, spec, pid):
        self.source = source
        self.spec = spec
        self.pid = pid

    @property
    def name(self):
        return "%s:%s:%s" % (self.source.shown, self.spec.event, self.spec.count or "")

    @property
    def count(self):
        return self.spec.count or self.source.default(self.spec.event)

    def attr(self):
        return self.source.attr(self.spec, self.count)

    def places(self):
        if self.pid is None:
            return super().places()
        return [(self.pid, cpu) for _, cpu in super().places()]
