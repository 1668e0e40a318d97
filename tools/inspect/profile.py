"""`prog profile`: counters of the processor around the runs of a program (fentry and fexit on it, 5.5+)."""

import struct
import time

from rawbpf.asm import assemble
from rawbpf.loader import Map, PerfEvent, Program, kernel
from rawbpf.loader.errors import KernelError
from rawbpf.loader.link import LinkGroup, attach_tracing
from rawbpf.loader.perf import TYPE_HARDWARE, TYPE_HW_CACHE, TYPE_SOFTWARE, counter

from .event_pipe import Interrupt
from .words import fail

_READ, _MISS = 0 << 8, 1 << 16
# type, config, and what it is measured against: (metric, times, text)
METRICS = {
    "cycles": (TYPE_HARDWARE, 0, None),
    "instructions": (TYPE_HARDWARE, 1, ("cycles", 1, "insns per cycle")),
    "l1d_loads": (TYPE_HW_CACHE, 0 | _READ, None),
    "llc_misses": (TYPE_HW_CACHE, 2 | _READ | _MISS, ("instructions", 1e6, "LLC misses per million insns")),
    "itlb_misses": (TYPE_HW_CACHE, 4 | _READ | _MISS, ("instructions", 1e6, "itlb misses per million insns")),
    "dtlb_misses": (TYPE_HW_CACHE, 3 | _READ | _MISS, ("instructions", 1e6, "dtlb misses per million insns")),
    # nanoseconds, by the kernel's clock: there on every machine
    "cpu_clock": (TYPE_SOFTWARE, 0, None),
}
_SIZE = 24      # struct bpf_perf_event_value: counter, enabled, running

_READ_ONE = """
r1 = map[events{n}] ll
r2 = 0xffffffff ll
r3 = r10
r3 += {at}
r4 = 24
call bpf_perf_event_read_value
if r0 != 0 goto out
"""
_LOOK_UP = """
*(u32 *)(r10 - 4) = {n}
r1 = map[{map}] ll
r2 = r10
r2 += -4
call bpf_map_lookup_elem
if r0 == 0 goto out
"""


def _at(number):
    return -32 - _SIZE * number


def _enter(count):
    text = ""
    for number in range(count):
        text += _READ_ONE.format(n=number, at=_at(number))
    for number in range(count):
        text += _LOOK_UP.format(n=number, map="entered")
        for word in (0, 8, 16):
            text += "r1 = *(u64 *)(r10 + {0})\n*(u64 *)(r0 + {1}) = r1\n".format(_at(number) + word, word)
    return text + "out: r0 = 0\nexit\n"


def _leave(count):
    text = ""
    # the one that was read last on the way in is read first on the way out
    for number in reversed(range(count)):
        text += _READ_ONE.format(n=number, at=_at(number))
    for number in range(count):
        text += _LOOK_UP.format(n=number, map="entered")
        text += "r1 = *(u64 *)(r0 + 8)\nif r1 == 0 goto out\n"      # it was entered before we were there
        for word in (0, 8, 16):
            text += "r1 = *(u64 *)(r10 + {0})\nr2 = *(u64 *)(r0 + {1})\nr1 -= r2\n*(u64 *)(r10 + {0}) = r1\n".format(
                _at(number) + word, word)
        text += "*(u64 *)(r0 + 8) = 0\n" if number + 1 == count else ""
        text += _LOOK_UP.format(n=number, map="spent")
        for word in (0, 8, 16):
            text += "r1 = *(u64 *)(r10 + {0})\nr2 = *(u64 *)(r0 + {1})\nr2 += r1\n*(u64 *)(r0 + {1}) = r2\n".format(
                _at(number) + word, word)
    text += _LOOK_UP.format(n=0, map="runs") + "r1 = *(u64 *)(r0 + 0)\nr1 += 1\n*(u64 *)(r0 + 0) = r1\n"
    return text + "out: r0 = 0\nexit\n"


def run(session, words, program):
    seconds, chosen = None, []
    if words and words.peek() == "duration":
        words.next("duration")
        seconds = words.number("duration")
    while words:
        name = words.next("metric")
        if name not in METRICS:
            fail("unknown metric %s: there are %s" % (name, ", ".join(METRICS)))
        if name not in chosen:
            chosen.append(name)
    if not 0 < len(chosen) <= 4:
        fail("too many metrics: 4 at most" if chosen else "no metric: there are %s" % ", ".join(METRICS))
    chosen.sort(key=list(METRICS).index)
    functions = program.func_info()
    if not functions:
        fail("program %d has no BTF, which fentry needs to attach to it" % program.info().id)
    _show(session, chosen, _measure(program, functions[0][1], chosen, seconds))


def _measure(program, function, chosen, seconds):
    """(runs, [(counter, enabled, running)])."""
    opened = LinkGroup()
    with opened:
        maps = {"entered": Map.create("percpu_array", 4, _SIZE, len(chosen), name="prof_entered"),
                "spent": Map.create("percpu_array", 4, _SIZE, len(chosen), name="prof_spent"),
                "runs": Map.create("percpu_array", 4, 8, 1, name="prof_runs")}
        for each in maps.values():
            opened.add(each)
        for number, name in enumerate(chosen):
            events = maps["events%d" % number] = Map.create("perf_event_array", 4, 4, max(kernel.online_cpus()) + 1)
            opened.add(events)
            for cpu in kernel.online_cpus():
                event = PerfEvent.open(counter(name, *METRICS[name][:2]), -1, cpu)
                opened.add(event)
                events.update(cpu, event)
        for kind, text in (("trace_fexit", _leave(len(chosen))), ("trace_fentry", _enter(len(chosen)))):
            try:
                loaded = Program.load("tracing", assemble(text).instructions(), maps=maps, expected_attach_type=kind,
                                      attach_prog=program, attach_btf_id=function, name="profile")
                opened.add(loaded)
                opened.add(attach_tracing(loaded))
            except KernelError as error:
                fail("profiling cannot attach to program %d: %s" % (program.info().id, error))
        _wait(seconds)
        runs = sum(struct.unpack("=Q", one)[0] for one in maps["runs"].lookup(bytes(4)))
        spent = []
        for number in range(len(chosen)):
            values = [struct.unpack("=QQQ", one) for one in maps["spent"].lookup(struct.pack("=I", number))]
            spent.append(tuple(map(sum, zip(*values))))
    return runs, spent


def _wait(seconds):
    end = None if seconds is None else time.monotonic() + seconds
    with Interrupt() as asked:
        while not asked and (end is None or time.monotonic() < end):
            time.sleep(0.1 if end is None else max(0, min(0.1, end - time.monotonic())))


def _show(session, chosen, measured):
    runs, spent = measured
    if session.json is not None:
        session.json.value([{"metric": name, "run_cnt": runs, "value": value, "enabled": enabled, "running": running}
                            for name, (value, enabled, running) in zip(chosen, spent)])
        return
    session.write("\n%18d %-20s\n" % (runs, "run_cnt"))
    for name, (value, enabled, running) in zip(chosen, spent):
        line = "%18d %-20s" % (value, name)
        against = METRICS[name][2]
        base = spent[chosen.index(against[0])][0] if against and against[0] in chosen else 0
        line += "# %8.2f %-30s" % (value * against[1] / base, against[2]) if base else "%-41s" % ""
        if enabled > running:
            line += "(%4.2f%%)" % (running * 100 / enabled)
        session.write(line + "\n")
