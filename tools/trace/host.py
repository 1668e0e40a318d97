"""What decoding asks of the machine that runs the trace: names of addresses and users, clocks.

All of it is looked up when a value is printed, and remembered. Only the memory maps of processes have to be
remembered before they are needed, as a stack that is printed at the end may belong to a process that has
ended by then: scripts with user stacks have them recorded (processes.py), and programs tell of each process
that they take a stack of for the first time (`remember`).
"""

import time

from . import types

BOOT, MONOTONIC, TAI, WALL = 0, 1, 2, 3


class Host(types.Host):
    """The answers of this machine."""

    def __init__(self):
        self.str_trunc_trailer = ".."
        self.lines = self.demangles = True      # config: show_debug_info, cpp_demangle
        self._session = None
        self._kernel = None           # KernelSymbols
        self._processes = None        # Processes
        self._users = None
        self._cgroups = None
        self._since_boot = None
        self._names = {}              # mangled -> readable

    def open(self, session):
        """Called by the session that uses it."""
        self._session = session
        compiled = session.compiled
        self.str_trunc_trailer = getattr(compiled.config, "str_trunc_trailer", "..")
        self.lines = getattr(compiled.config, "show_debug_info", True)
        self.demangles = getattr(compiled.config, "cpp_demangle", True)
        kinds = [kind for event in compiled.events for _, kind in event.fields]
        for info in compiled.maps.values():
            kinds += [info.key_type, info.value_type]
        if any(map(_names_a_process, kinds)):
            self.processes.watch()
            if session.process is not None and not session.process.held:
                self.processes.look(session.process.pid)

    @property
    def processes(self):
        """The Processes, made when somebody asks."""
        if self._processes is None:
            from .processes import Processes
            self._processes = Processes()
        return self._processes

    def fileno(self):
        """A descriptor that becomes readable when `settle` should be called; -1: there is none."""
        return self._processes.fileno() if self._processes is not None else -1

    def close(self):
        if self._processes is not None:
            self._processes.close()

    # -- stacks

    def stack_frames(self, stack_id):
        return self._session.compiled.stack_frames(self._session.maps, stack_id)

    def kernel_stack(self, addresses, mode):
        kernel = self._kernel_symbols()

        def frames(address, called):
            if self.lines:
                return kernel.frames(address, called)
            found = kernel.resolve(address)
            return [found] if found else []
        return self._stack(addresses, mode, frames, "0x%x")

    def user_stack(self, addresses, pid, probe_id, mode):
        program = self.processes.program(addresses, pid)
        if mode == "build_id":
            found = [(self.processes.build_id(address, pid, program), address) for address in addresses]
            return "\n" + "".join(["%s 0x%x\n" % where if where else "0x%x\n" % address for where, address in found])

        def frames(address, called):
            if self.lines:
                return self.processes.frames(address, pid, called, program)
            found = self.processes.resolve(address, pid, program)
            return [found] if found else []
        return self._stack(addresses, mode, frames, "0x%x ([unknown])" if mode == "perf" else "0x%x")

    def _stack(self, addresses, mode, frames, unknown):
        """Frames as text, a line each, after a line break: bpftrace's modes."""
        if mode == "raw":
            return "\n" + "".join(["%x\n" % address for address in addresses])
        lines = []
        for number, address in enumerate(addresses):
            # what called the next frame is the instruction before its return address
            for text in [self._frame(found, mode) for found in frames(address, number > 0)] or [unknown % address]:
                lines.append("\t%x %s\n" % (address, text) if mode == "perf" else "        %s\n" % text)
        return "\n" + "".join(lines)

    def _frame(self, found, mode):
        """One function of a stack, a Frame or a Resolved."""
        name = self._demangled(found.name)
        if found.offset is None:                        # a call that was inlined
            if mode == "perf":
                return "%s (inlined)" % name
            text = "[inlined] " + name
        else:
            text = "%s+%d" % (name, found.offset)
            if mode == "perf":
                return "%s (%s)" % (text, found.module) if found.module else text
        file = getattr(found, "file", None)
        return "%s@%s:%d" % (text, file, found.line) if file else text

    def _demangled(self, name):
        if self.demangles and name.startswith("_"):
            if name not in self._names:
                from rawbpf.elf.demangle import demangle
                self._names[name] = demangle(name)
            return self._names[name]
        return name

    def kernel_symbol(self, address):
        found = self._in_kernel(address)
        return found.name if found else "0x%x" % address

    def user_symbol(self, address, pid, probe_id):
        found = self.processes.resolve(address, pid)
        return self._demangled(found.name) if found else "0x%x" % address

    def _in_kernel(self, address):
        return self._kernel_symbols().resolve(address)

    def _kernel_symbols(self):
        if self._kernel is None:
            from rawbpf.elf.symbolizer import KernelSymbols
            try:
                self._kernel = KernelSymbols()
            except OSError:
                self._kernel = KernelSymbols(b"")
            if not self._kernel.readable and self._session is not None:
                from .results import Notice
                self._session.emit(Notice("kernel addresses have no names: seeing them in /proc/kallsyms needs "
                                          "CAP_SYSLOG (or the sysctls kernel.kptr_restrict=0 and "
                                          "kernel.perf_event_paranoid=1)"))
        return self._kernel

    # -- processes

    def remember(self, pid):
        """Look at a process while it lives; programs tell of each once."""
        self.processes.look(pid)
        if self._session is not None and getattr(self._session, "unwinder", None) is not None:
            self._session.unwinder.met(pid)

    def settle(self):
        """Called between two batches of records."""
        if self._processes is not None:
            self._processes.settle()

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


def _names_a_process(kind):
    """Does a value of this type hold addresses of a process?"""
    if isinstance(kind, (types.UserStack, types.UserSymbol)):
        return True
    if isinstance(kind, types.Tuple):
        return any(map(_names_a_process, kind.elements))
    if isinstance(kind, types.Record):
        return any(_names_a_process(field.type) for field in kind.fields)
    return isinstance(kind, types.Array) and _names_a_process(kind.element)
