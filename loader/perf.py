"""Performance events: perf_event_open(2) with ready-made attributes for what programs attach to.

The kprobe and uprobe PMUs (4.17+) make a probe that lives exactly as long as its descriptor, so a
tracer that is killed leaves none behind, as the text interface of tracefs would.
"""

import errno
import functools
import struct

from . import kernel, syscalls
from .errors import KernelError, explain, refused
from .introduced import since
from .kobject import KernelObject, text_buffer
from .syscalls import PERF_EVENT_ATTR, address

# enum perf_type_id
TYPE_HARDWARE, TYPE_SOFTWARE, TYPE_TRACEPOINT, TYPE_HW_CACHE, TYPE_RAW, TYPE_BREAKPOINT = range(6)

SOFTWARE = {"cpu_clock": 0, "task_clock": 1, "page_faults": 2, "context_switches": 3,
            "cpu_migrations": 4, "page_faults_min": 5, "page_faults_maj": 6, "alignment_faults": 7,
            "emulation_faults": 8, "dummy": 9, "bpf_output": 10, "cgroup_switches": 11}
HARDWARE = {"cpu_cycles": 0, "instructions": 1, "cache_references": 2, "cache_misses": 3,
            "branch_instructions": 4, "branch_misses": 5, "bus_cycles": 6,
            "stalled_cycles_frontend": 7, "stalled_cycles_backend": 8, "ref_cpu_cycles": 9}
BREAKPOINT_R, BREAKPOINT_W, BREAKPOINT_X = 1, 2, 4

SAMPLE_TIME, SAMPLE_RAW = 1 << 2, 1 << 10
FLAG_PID_CGROUP = 1 << 2


@functools.lru_cache(maxsize=None)
def _pmu(name):
    """(type, bit of config that makes it a return probe) of a dynamic PMU."""
    base = "/sys/bus/event_source/devices/" + name
    text = kernel._read(base + "/type")
    if text is None:
        option = {"kprobe": "CONFIG_KPROBE_EVENTS", "uprobe": "CONFIG_UPROBE_EVENTS"}.get(name, "")
        raise KernelError("%s event" % name, errno.ENOENT,
                          since((4, 17), "the %s PMU" % name) or
                          "the kernel has no %s PMU: it is built without %s" % (name, option))
    bit = kernel._read(base + "/format/retprobe")
    return int(text), int(bit.strip().rpartition(":")[2]) if bit else 0


class Attr:
    """A struct perf_event_attr being filled in: fields of syscalls.PERF_EVENT_ATTR by name, and what
    its pointers point to. `what` names the event in errors."""

    __slots__ = ("what", "kind", "fields", "_texts")

    def __init__(self, what, kind="perf", **fields):
        self.what, self.kind, self.fields, self._texts = what, kind, fields, []

    def _text(self, data):
        buffer = text_buffer(data, "a name")
        self._texts.append(buffer)
        return address(buffer)

    def pack(self):
        return PERF_EVENT_ATTR.pack(**self.fields)


def _rate(period, freq):
    if (period is None) == (freq is None):
        raise ValueError("give one of period and freq")
    if freq is not None:
        return {"sample_freq": freq, "flags": syscalls.ATTR_FREQ}
    return {"sample_period": period}


def tracepoint(id):
    """The tracepoint with this number (tracefs events/GROUP/NAME/id), each hit."""
    return Attr("tracepoint event", type=TYPE_TRACEPOINT, config=id, sample_period=1)


def kprobe(function=None, offset=0, address=0, retprobe=False):
    """A kprobe at function + offset ("MODULE:function" too), or at a kernel address."""
    type, bit = _pmu("kprobe")
    where = function if function is not None else "%#x" % address
    attr = Attr("%s event at %s%s" % ("kretprobe" if retprobe else "kprobe", where,
                                      "+%#x" % offset if offset else ""),
                type=type, config=int(retprobe) << bit)
    if function is not None:
        attr.fields.update(kprobe_func=attr._text(function.encode()), probe_offset=offset)
    else:
        attr.fields.update(kprobe_addr=address)
    return attr


def uprobe(path, offset, ref_ctr_offset=0, retprobe=False):
    """A uprobe at a file offset of a binary; ref_ctr_offset is the file offset of a USDT semaphore,
    which the kernel counts up while the event exists (4.20+)."""
    type, bit = _pmu("uprobe")
    path = path if isinstance(path, bytes) else str(path).encode("utf-8", "surrogateescape")
    attr = Attr("%s event at %s+%#x" % ("uretprobe" if retprobe else "uprobe",
                                        path.decode("utf-8", "replace"), offset),
                type=type, config=int(retprobe) << bit | ref_ctr_offset << 32)
    attr.fields.update(uprobe_path=attr._text(path), probe_offset=offset)
    return attr


def _of(table, name, what):
    try:
        return table[name]
    except KeyError:
        raise ValueError("no %s is called %r: they are %s" % (what, name, ", ".join(table))) from None


def software(name, period=None, freq=None):
    """A software event of SOFTWARE, every `period` or `freq` times a second."""
    return Attr("software event %s" % name, type=TYPE_SOFTWARE, config=_of(SOFTWARE, name, "software event"),
                **_rate(period, freq))


def hardware(name, period=None, freq=None):
    """A generic hardware event of HARDWARE; needs a PMU, which many virtual machines lack."""
    return Attr("hardware event %s" % name, type=TYPE_HARDWARE, config=_of(HARDWARE, name, "hardware event"),
                **_rate(period, freq))


def counter(name, type, config):
    """An event that only counts, in the kernel: TYPE_HARDWARE, TYPE_HW_CACHE or TYPE_SOFTWARE with its config."""
    return Attr("counter %s" % name, type=type, config=config, flags=syscalls.ATTR_EXCLUDE_USER)


def breakpoint(address, length, type=BREAKPOINT_W, inherit=False):
    """A hardware breakpoint (debug register): type is a sum of BREAKPOINT_*, length 1, 2, 4 or 8.
    With inherit, threads and children that the traced one starts later have it too."""
    return Attr("breakpoint event at %#x" % address, type=TYPE_BREAKPOINT, bp_type=type,
                bp_addr=address, bp_len=length, sample_period=1,
                flags=syscalls.ATTR_INHERIT if inherit else 0)


def bpf_output(wakeup_events=1, wakeup_watermark=0, time=False):
    """What bpf_perf_event_output() writes into: wakes the reader after so many events, or, when
    given, after so many bytes. time: the kernel's clock in each record."""
    flags = syscalls.ATTR_WATERMARK if wakeup_watermark else 0
    return Attr("BPF output event", type=TYPE_SOFTWARE, config=SOFTWARE["bpf_output"],
                sample_type=SAMPLE_RAW | (SAMPLE_TIME if time else 0), sample_period=1, flags=flags,
                wakeup_events=wakeup_watermark or wakeup_events)


class PerfEvent(KernelObject):
    __slots__ = ("what",)

    def __init__(self, fd, what=""):
        super().__init__(fd)
        self.what = what

    @classmethod
    def open(cls, attr, pid=-1, cpu=-1, flags=0):
        """Opens an event (an Attr from above) for one process on any CPU, or for all on one CPU.

        With neither, CPU 0 stands for everywhere: probes and tracepoints with a program attached
        fire on all CPUs whichever their event was opened on.
        """
        if pid == -1 and cpu == -1:
            cpu = 0 if 0 in kernel.online_cpus() else kernel.online_cpus()[0]
        try:
            fd = syscalls.perf_event_open(attr.pack(), pid, cpu, -1, flags)
        except OSError as error:
            permitted = ""
            if "uprobe_path" in attr.fields and not kernel.has_capability("CAP_SYS_ADMIN"):
                permitted = "needs CAP_SYS_ADMIN: CAP_PERFMON is not enough for uprobes on this kernel"
            raise refused(attr.what, error, "perf", invalid=_why(attr, error.errno, pid), permitted=permitted) from None
        return cls(fd, attr.what)

    def enable(self):
        syscalls.perf_ioctl(self.fileno(), syscalls.PERF_IOC_ENABLE)

    def disable(self):
        syscalls.perf_ioctl(self.fileno(), syscalls.PERF_IOC_DISABLE)

    def set_bpf(self, program):
        """Attaches a program the way before links (PERF_EVENT_IOC_SET_BPF)."""
        try:
            syscalls.perf_ioctl(self.fileno(), syscalls.PERF_IOC_SET_BPF, program.fileno())
        except OSError as error:
            raise KernelError("attach to %s" % self.what, error.errno, _set_bpf_text(error.errno)
                              ) from None

    def pause_output(self, paused=True):
        syscalls.perf_ioctl(self.fileno(), syscalls.PERF_IOC_PAUSE_OUTPUT, int(paused))

    def count(self):
        """The event's counter."""
        import os
        return struct.unpack("=Q", os.read(self.fileno(), 8))[0]


def _set_bpf_text(code):
    if code == errno.EEXIST:
        return "the event has a program already"
    if code == errno.E2BIG:
        return "64 programs are attached to this event already"
    if code == errno.EINVAL:
        return "the program's type does not fit the event"
    return explain(code, "perf")


def _why(attr, code, pid):
    if code == errno.ESRCH:
        return "there is no process %d" % pid
    none = (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV)
    if attr.fields["type"] in (TYPE_HARDWARE, TYPE_HW_CACHE) and code in none + (errno.EINVAL,):
        return "this machine has no such hardware counter (virtual machines often have none)"
    if code == errno.E2BIG:
        field, version = ("config4", (6, 19)) if attr.fields.get("config4") else ("config3", (6, 3))
        return since(version, field) or "this kernel's struct perf_event_attr has no %s" % field
    if attr.fields["type"] == TYPE_BREAKPOINT and code == errno.ENOSPC:
        return "all debug registers are in use"
    if attr.fields["type"] > TYPE_BREAKPOINT and attr.what.startswith("event ") and code in none + (errno.EINVAL,):
        return ("this PMU does not take that event, or only counts it: a program is run by events that interrupt "
                "(sampling)")
    if attr.what.startswith(("kprobe", "kretprobe")):
        return {errno.ENOENT: "the kernel has no such function",
                errno.EINVAL: "the kernel does not allow a probe there (not an instruction's start, or "
                              "on its blacklist)",
                errno.EILSEQ: "that is inside an instruction",
                errno.EADDRNOTAVAIL: "several functions have that name: give the address"}.get(code, "")
    if attr.what.startswith(("uprobe", "uretprobe")):
        return {errno.ENOENT: "there is no such file",
                errno.EINVAL: "it is no regular file, or nothing is at that offset",
                errno.EIO: "it cannot be read there"}.get(code, "")
    if code == errno.ENOENT or code == errno.EINVAL and attr.fields["type"] == TYPE_TRACEPOINT:
        return "the kernel has no such event"
    return ""
