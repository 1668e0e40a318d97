"""What decoding asks of the machine that runs the trace: names of addresses and users, clocks.

All of it is looked up when a value is printed and remembered. The memory map of a traced process has to
be remembered before it is needed: a stack that is printed at the end may belong to a process that
has ended by then. So processes are looked at as soon as they are known: the one of -c or -p at once,
those in the keys of maps while the trace runs.
"""

import time

from . import types

WATCH_INTERVAL = 0.1     # seconds between two looks for new processes
WATCH_SHARE = 50         # looking may cost 1/50 of the time

BOOT, MONOTONIC, TAI, WALL = 0, 1, 2, 3


class Host(types.Host):
    """The answers of this machine."""

    def __init__(self):
        self.str_trunc_trailer = ".."
        self._session = None
        self._kernel = None           # KernelSymbols
        self._cache = None            # SymbolCache
        self._processes = {}          # pid -> ProcessSymbols, None when it could not be read
        self._renewed = {}            # pid -> time of the last look at its maps
        self._watched = []            # MapInfos with user stacks or symbols in their keys
        self._watch_at = 0.0
        self._users = None
        self._cgroups = None
        self._since_boot = None

    def open(self, session):
        """Called by the session that uses it."""
        self._session = session
        compiled = session.compiled
        self.str_trunc_trailer = getattr(compiled.config, "str_trunc_trailer", "..")
        infos = compiled.maps.values()
        self._watched = [info for info in infos if _asks_user(info.key_type) or _asks_user(info.value_type)]
        self._follow = bool(self._watched) or any(
            _asks_user(kind) for event in _events(compiled) for _, kind in event.fields)

    # -- stacks

    def stack_frames(self, stack_id):
        return self._session.compiled.stack_frames(self._session.maps, stack_id)

    def kernel_stack(self, addresses, mode):
        return _stack(addresses, mode, self._kernel_frame)

    def user_stack(self, addresses, pid, probe_id, mode):
        def frame(address, perf):
            return self._user_frame(address, pid, perf)
        return _stack(addresses, mode, frame)

    def _kernel_frame(self, address, perf):
        found = self._in_kernel(address)
        return "%s+%d" % (found.name, found.offset) if found else "0x%x" % address

    def _user_frame(self, address, pid, perf):
        found = self._in_process(address, pid)
        if found is None:
            return "0x%x ([unknown])" % address if perf else "0x%x" % address
        text = "%s+%d" % (found.name, found.offset)
        return "%s (%s)" % (text, found.module) if perf else text

    def kernel_symbol(self, address):
        found = self._in_kernel(address)
        return found.name if found else "0x%x" % address

    def user_symbol(self, address, pid, probe_id):
        found = self._in_process(address, pid)
        return found.name if found else "0x%x" % address

    def _in_kernel(self, address):
        if self._kernel is None:
            from rawbpf.elf.symbolizer import KernelSymbols
            try:
                self._kernel = KernelSymbols()
            except OSError:
                self._kernel = KernelSymbols(b"")
        return self._kernel.resolve(address)

    # -- processes

    def _in_process(self, address, pid):
        process = self.remember(pid)
        found = process.resolve(address) if process is not None else None
        if found is None and process is not None and process.mapping(address) is None and self._renew(pid):
            process = self._processes[pid]
            found = process.resolve(address) if process is not None else None
        return found

    def remember(self, pid):
        """The ProcessSymbols of a process, None when it has ended before anybody looked at it."""
        if pid not in self._processes:
            self._renew(pid)
        return self._processes.get(pid)

    def _renew(self, pid):
        """Read a process's maps (again); False when there is nothing new to be had."""
        now = time.monotonic()
        if now - self._renewed.get(pid, -1.0) < WATCH_INTERVAL:
            return False
        self._renewed[pid] = now
        from rawbpf.elf.symbolizer import ProcessSymbols, SymbolCache
        if self._cache is None:
            self._cache = SymbolCache()
        try:
            process = ProcessSymbols.of(pid, self._cache)
        except OSError:
            process = None
        if process is not None and process.mappings:
            self._processes[pid] = process
            return True
        self._processes.setdefault(pid, None)
        return False

    def settle(self):
        """Called between two batches of records: look at processes while they live."""
        if not self._follow:
            return
        now = time.monotonic()
        if now < self._watch_at:
            return
        process = self._session.process
        if process is not None and process.pid:
            self._renew(process.pid)
        for info in self._watched:
            for pid in self._pids(info):
                if pid not in self._processes:
                    self._renew(pid)
        spent = time.monotonic() - now
        self._watch_at = now + max(WATCH_INTERVAL, spent * WATCH_SHARE)

    def _pids(self, info):
        """The processes whose stacks or symbols a map holds."""
        pids = set()
        kernel_map = self._session.maps[info.kernel_map]
        for offset, kind in _user_parts(info.key_type):
            for key in kernel_map.keys():
                pids.add(int.from_bytes(key[offset + 8:offset + 12], "little"))
        for offset, kind in _user_parts(info.value_type):
            for _, cells in info.raw(self._session.maps):
                pids.update(int.from_bytes(cell[offset + 8:offset + 12], "little") for cell in cells)
        return pids

    # -- users, cgroups

    def user_name(self, uid):
        if self._users is None:
            self._users = {}
            try:
                with open("/etc/passwd", encoding="utf-8", errors="surrogateescape") as file:
                    for line in file:
                        fields = line.split(":")
                        if len(fields) >= 3 and fields[2].isdigit():
                            self._users.setdefault(int(fields[2]), fields[0])
            except OSError:
                pass
        return self._users.get(uid, "")

    def cgroup_path(self, cgroup_id, pattern):
        if self._cgroups is None:
            from .cgroups import Cgroups
            self._cgroups = Cgroups()
        return self._cgroups.paths(cgroup_id, pattern)

    # -- clocks

    def wall_clock(self, nsecs, mode):
        """Nanoseconds since the epoch for a time of one of the kernel's clocks."""
        if mode == BOOT:
            if self._since_boot is None:
                self._since_boot = _offset(time.CLOCK_BOOTTIME)
            return nsecs + self._since_boot
        return nsecs

    def timestamp(self, nsecs, mode, form):
        return format_time(self.wall_clock(nsecs, mode), form)


def format_time(nsecs, form):
    """strftime(3) in local time, with bpftrace's %f, %l and %k: micro-, milli- and nanoseconds."""
    seconds, rest = divmod(nsecs, 1000000000)
    if not seconds:
        return "(?)"
    for letter, digits in (("%f", "%06d" % (rest // 1000)), ("%k", "%09d" % rest),
                           ("%l", "%03d" % (rest // 1000000))):
        form = form.replace(letter, digits)
    return time.strftime(form, time.localtime(seconds)) or "(?)"


def _offset(clock):
    """Nanoseconds between the epoch and the start of a clock, from the closest of five readings."""
    best = None
    for _ in range(5):
        before = time.clock_gettime_ns(time.CLOCK_REALTIME)
        there = time.clock_gettime_ns(clock)
        after = time.clock_gettime_ns(time.CLOCK_REALTIME)
        if best is None or after - before < best[0]:
            best = after - before, (before + after) // 2 - there
    return best[1]


def _stack(addresses, mode, frame):
    """Frames as text, a line each, after a line break: bpftrace's three modes."""
    if mode == "raw":
        lines = ["%x" % address for address in addresses]
    elif mode == "perf":
        lines = ["\t%x %s" % (address, frame(address, True)) for address in addresses]
    else:
        lines = ["        " + frame(address, False) for address in addresses]
    return "\n" + "".join([line + "\n" for line in lines])


def _user_parts(kind, offset=0):
    """(offset, type) of every part of a value type that names a process."""
    if isinstance(kind, (types.UserStack, types.UserSymbol)):
        return [(offset, kind)]
    parts = []
    if isinstance(kind, types.Tuple):
        for at, element in zip(kind.offsets, kind.elements):
            parts += _user_parts(element, offset + at)
    elif isinstance(kind, types.Record):
        for field in kind.fields:
            parts += _user_parts(field.type, offset + field.offset)
    elif isinstance(kind, types.Array):
        for index in range(kind.count):
            parts += _user_parts(kind.element, offset + index * kind.element.size)
    return parts


def _asks_user(kind):
    return kind is not None and bool(_user_parts(kind))


def _events(compiled):
    events = compiled.events
    return events.values() if hasattr(events, "values") else events
