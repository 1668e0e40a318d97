"""Events as Python objects, for programs that bring their own BPF code.

    from rawbpf.sources import Uprobe

    probe = Uprobe("/bin/bash", "readline")
    with probe.load(code, maps={"counts": counts}) as program, probe.attach(program) as link:
        ...

Every class takes what stands after the kind in a probe's text, in as many strings; wildcards too.
"""

import os

from . import find
from .base import SourceError, Target


_LAST_PID = 1 << 22      # PID_MAX_LIMIT


def _text(part):
    """Names and paths as text, of bytes and pathlib's too."""
    return os.fsdecode(part) if isinstance(part, (bytes, os.PathLike)) else str(part)


class Probe:
    """One probe: `points` are the events it stands for (found when first asked for). `pid`, `unsafe`,
    `root`: see base.Target. Errors are SourceError; wrong text is refused here already."""

    kind = ""

    def __init__(self, *parts, pid=None, unsafe=False, root=""):
        self.source = self.find()
        if pid is not None and (not isinstance(pid, int) or isinstance(pid, bool) or not 0 < pid <= _LAST_PID):
            raise SourceError("%r is no number of a process" % (pid,))
        self.target = Target(pid, unsafe, root)
        self.spec = self.source.parse([_text(part) for part in parts], self.target)
        self._points = None

    def find(self):
        return find(self.kind)

    @property
    def points(self):
        if self._points is None:
            self._points = self.source.expand(self.spec, self.target)
        return self._points

    @property
    def program_type(self):
        return self.points[0].program_type

    @property
    def expected_attach_type(self):
        return self.points[0].expected_attach_type

    def load(self, instructions, **options):
        """Program.load with the type this probe needs. One program serves all points; where the kernel wants one for
        each (a wildcard of fentry), SourceError. Code that reads arguments is right for the points that are
        `groups_with` the one that made it."""
        from rawbpf.loader.program import Program

        first = self.points[0]
        if any(point.load_options != first.load_options for point in self.points):
            raise SourceError("%s is %d events, and each needs a program of its own: a %s by name for each of "
                              "`points`" % (self, len(self.points), type(self).__name__))
        return Program.load(self.program_type, instructions,
                            expected_attach_type=self.expected_attach_type,
                            **{**self.points[0].load_options, **options})

    def attach(self, program, cookies=None):
        """Attach to all points; an Attachment, to be closed or used in `with`."""
        if not hasattr(program, "fileno"):
            raise SourceError("%r is no loaded program: `load` and Program.load return one" % (program,))
        return self.points[0].attach(program, self.points, cookies)

    def __repr__(self):
        return "%s(%s)" % (type(self).__name__, ", ".join(map(repr, filter(None, self.spec))))


class Kprobe(Probe):
    """Kprobe("vfs_read"), Kprobe("ext4", "ext4_*"), Kprobe(0xffffffff81000000, unsafe=True)"""

    kind = "kprobe"


class Kretprobe(Kprobe):
    kind = "kretprobe"


class KprobeSession(Kprobe):
    """KprobeSession("vfs_*"): one program at entry and return (6.10+); `is_return(f, ctx)` in its code says
    which, and returning 1 at the entry spares the return."""

    kind = "kprobe_session"

    @staticmethod
    def find():
        from .kprobe import KprobeSession as Source

        return Source()

    @staticmethod
    def is_return(f, ctx):
        return f.call_kfunc("bpf_session_is_return", ctx)


class Uprobe(Probe):
    """Uprobe("/bin/bash", "readline"), Uprobe("libc", "malloc", pid=1234), Uprobe("./a.out", 0x1149)"""

    kind = "uprobe"


class Uretprobe(Uprobe):
    kind = "uretprobe"


class Usdt(Probe):
    """Usdt("./server", "provider", "name")"""

    kind = "usdt"


class Tracepoint(Probe):
    """Tracepoint("sched", "sched_switch")"""

    kind = "tracepoint"


class RawTracepoint(Probe):
    kind = "rawtracepoint"


class Fentry(Probe):
    kind = "fentry"


class Fexit(Probe):
    kind = "fexit"


class Iter(Probe):
    """Iter("task", pid=1234), Iter("bpf_map_elem", map=some_map): `attach(program).read()` runs it."""

    kind = "iter"

    def __init__(self, *parts, map=None, **options):
        super().__init__(*parts, **options)
        self.map = map

    def attach(self, program, cookies=None):
        self.points[0].map = self.map
        return super().attach(program, cookies)


class Profile(Probe):
    """Profile("hz", "99")"""

    kind = "profile"


class Interval(Probe):
    kind = "interval"


class Software(Probe):
    kind = "software"


class Hardware(Probe):
    kind = "hardware"


class Cache(Probe):
    """Cache("L1-dcache-load-misses", 10000)"""

    kind = "cache"


class Pmu(Probe):
    """Pmu("cpu/mem-loads/", 1000)"""

    kind = "pmu"


class Watchpoint(Probe):
    kind = "watchpoint"
