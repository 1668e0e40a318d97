"""software, hardware, cache and pmu: what perf_event_open(2) counts, each so many occurrences.

    software:page-faults:100   hardware:cache-misses:1000000   cache:L1-dcache-load-misses:10000
    pmu:cpu/mem-loads/:1000   pmu:"cpu/event=0x3c,umask=0x1/"   (/sys/bus/event_source/devices/*/{events,format})
"""

import os
from typing import NamedTuple

from .base import Listed, Source, SourceError, has_wildcard, matcher, nearest, try_number
from .timers import TimerPoint, integer

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
            count = integer(parts[1]) or 0
            if not 0 < count < 1 << 64:
                raise SourceError("%s count should be a positive integer" % self.shown)
        if has_wildcard(parts[0]):
            raise SourceError("wildcards are not allowed for %s probe type" % self.shown)
        return Spec(parts[0], count)

    def expand(self, spec, target):
        self.check(spec.event)
        return [PerfPoint(self, spec, target.pid)]

    def check(self, event):
        """SourceError if there is no such event."""
        names = self.events()
        if event not in names:
            raise SourceError("%s is not a %s probe" % (event, self.shown),
                              ["%s:%s:" % (self.shown, n) for n in nearest(event, names)])

    def cpus(self, event):
        """The CPUs that the event is opened on, None for all."""
        return None

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
    """Events of a PMU by the names and terms that sysfs lists: Documentation/ABI/testing/
    sysfs-bus-event_source-devices-{events,format}."""

    names = ("pmu",)
    usage = 'pmu:DEVICE/EVENT/[:COUNT] or pmu:"DEVICE/TERM=VALUE,.../"[:COUNT]'

    def events(self):
        """{"cpu/mem-loads/": its text}, from sysfs."""
        table = {}
        for device in _listdir(DEVICES):
            for event in _listdir(_EVENTS % device):
                if not event.endswith((".scale", ".unit", ".snapshot", ".per-pkg")):
                    table["%s/%s/" % (device, event)] = "%s/%s" % (_EVENTS % device, event)
        return table

    def check(self, event):
        self.config(event)

    def default(self, event):
        return 1000000

    def config(self, event):
        """(type, {"config": ..., "config1": ..., ...}) of "device/terms/"."""
        device, slash, rest = event.partition("/")
        if not slash or not rest.endswith("/") or not rest[:-1]:
            raise SourceError("%s: an event is written as DEVICE/EVENT/ or DEVICE/TERM=VALUE,.../" % event,
                              ["pmu:" + name for name in nearest(event, self.events())])
        try:
            with open("%s/%s/type" % (DEVICES, device)) as file:
                kind = int(file.read())
        except (OSError, ValueError):
            raise SourceError("this machine has no PMU %s" % device, nearest(device, _listdir(DEVICES)),
                              missing=True) from None
        values = {}
        for term in rest[:-1].split(","):
            values.update(self._term(device, term))
        fields = dict.fromkeys(_PLAIN, 0)
        for name, value in values.items():
            if value is None:
                raise SourceError("%s needs a value for %s, as in pmu:%s,%s=0x1/"
                                  % (event, name, event.rstrip("/"), name))
            field, bits = _format(device, name)
            if value >> len(bits):
                raise SourceError("%s: %s=%#x has more than the %d bits of that term" % (event, name, value, len(bits)))
            if field not in fields:
                raise SourceError("%s: the term %s belongs to %s, which is not supported" % (event, name, field))
            fields[field] |= _spread(value, bits)
        return kind, fields

    def _term(self, device, term):
        """{term: value} of one part: an event's name, "name=value" or "name" for 1. A value that the event
        leaves open ("?") is None."""
        name, equals, text = term.partition("=")
        if not equals and "/" not in name:
            try:
                with open("%s/%s" % (_EVENTS % device, name)) as file:
                    parts = file.read().strip().split(",")
            except OSError:
                parts = None
            if parts is not None:
                return {key: None if value == "?" else _value(value or "1", device, key)
                        for key, _, value in (part.partition("=") for part in parts)}
        if name not in _listdir("%s/%s/format" % (DEVICES, device)) and name not in _PLAIN:
            known = [*_listdir(_EVENTS % device), *_listdir("%s/%s/format" % (DEVICES, device))]
            raise SourceError("%s has neither an event nor a term called %s" % (device, name), nearest(name, known),
                              missing=True)
        return {name: _value(text if equals else "1", device, name)}

    def attr(self, spec, count):
        from rawbpf.loader import perf

        kind, fields = self.config(spec.event)
        return perf.Attr("event %s" % spec.event, type=kind, sample_period=count, **fields)

    def cpus(self, event):
        """A PMU that is not of each CPU says which CPUs it is asked on."""
        from rawbpf.loader import kernel

        device = event.split("/")[0]
        for name in ("cpumask", "cpus"):
            try:
                with open("%s/%s/%s" % (DEVICES, device, name)) as file:
                    return kernel.parse_cpu_list(file.read())
            except OSError:
                continue
        return None


_PLAIN = ("config", "config1", "config2", "config3", "config4")


def _value(text, device, name):
    value = try_number(text)
    if value is None:
        raise SourceError("%s/%s=%s/: that is no number of 64 bits" % (device, name, text))
    return value


def _listdir(path):
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _format(device, name):
    """(attr field, its bits from the lowest) that a term's value goes to: format/event has
    "config:0-7,32-35"."""
    if name in _PLAIN:
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

    @property
    def name(self):
        return "%s:%s:%s" % (self.source.shown, self.spec.event, self.spec.count or "")

    @property
    def count(self):
        return self.spec.count or self.source.default(self.spec.event)

    def attr(self):
        return self.source.attr(self.spec, self.count)

    def everywhere(self):
        chosen = self.source.cpus(self.spec.event)
        return super().everywhere() if chosen is None else [(-1, cpu) for cpu in chosen]
