"""Names of addresses in processes that may have ended when the names are printed.

What is known of a process comes from two sides: from /proc/PID/maps while it lives (complete, but somebody must
look in time), and from the kernel's records of what processes map from the start of the trace on (nothing is
missed, but there is none for what was mapped before).
"""

import time

INTERVAL = 0.1        # seconds between two looks at the maps of one process
KEPT = 20000          # processes whose records are kept
FORMER = 4            # programs of one process that are remembered after it has executed another one


class Processes:
    """`resolve(address, pid)` -> symbolizer.Resolved or None."""

    def __init__(self):
        from rawbpf.elf.symbolizer import SymbolCache
        self._cache = SymbolCache()
        self._snapshots = {}      # pid -> ProcessSymbols of its /proc/PID/maps, None when there was none to read
        self._looked = {}         # pid -> time of the last look
        self._mapped = {}         # pid -> lines of its executable mappings, from the records
        self._former = {}         # pid -> [(its ProcessSymbols or None, lines of its mappings)] of before it executed another program
        self._recorded = {}       # pid -> (number of lines, ProcessSymbols of them)
        self._events = None
        self.listener = None      # called with (kind, pid, *rest) of each record

    def watch(self):
        """Record from now on what processes map. Where the kernel does not let us, only living processes have
        names."""
        from rawbpf.loader.errors import KernelError
        from rawbpf.loader.process_events import ProcessEvents
        try:
            self._events = ProcessEvents()
        except KernelError:
            self._events = None

    def fileno(self):
        """Readable when there is much to `settle`; -1 when nothing is watched."""
        return self._events.fileno() if self._events is not None else -1

    def settle(self):
        """Take in the records that are there."""
        if self._events is None:
            return
        for kind, pid, *rest in self._events.consume():
            if self.listener is not None:
                self.listener(kind, pid, *rest)
            if kind == "mmap":
                self._mapped.setdefault(pid, []).append(rest[0])
            elif kind == "exec":
                before = self._snapshots.get(pid), self._mapped.get(pid)
                if any(before):
                    self._former[pid] = [before, *self._former.get(pid, ())][:FORMER]
                self._mapped[pid] = []
                self._forget(pid)
            elif kind == "fork":
                self._former.pop(pid, None)
                parent = self._mapped.get(rest[0])
                if parent is not None:
                    self._mapped[pid] = list(parent)
                else:
                    self._mapped.pop(pid, None)
                looked = self._snapshots.get(pid)
                self._forget(pid)
                # what was seen of it before this record was read may be of the process that had its number before
                if looked is not None and self.look(pid) is None:
                    self._snapshots[pid] = looked
                elif parent is None and self._snapshots.get(rest[0]) is not None:
                    self._snapshots.setdefault(pid, self._snapshots[rest[0]])
        while len(self._mapped) > KEPT:
            oldest = next(iter(self._mapped))
            for table in (self._recorded, self._former, self._mapped):
                table.pop(oldest, None)

    def _forget(self, pid):
        """The process has other code now, or its number belongs to another one."""
        for table in (self._snapshots, self._looked, self._recorded):
            table.pop(pid, None)

    def resolve(self, address, pid, program=None):
        """The name of an address in a process. `program`: what `program` said of its stack."""
        symbols = self._with(address, pid, program)
        return symbols.resolve(address) if symbols is not None else None

    def frames(self, address, pid, called, program=None):
        """Its functions and source lines: see ProcessSymbols.frames."""
        symbols = self._with(address, pid, program)
        return symbols.frames(address, called) if symbols is not None else []

    def build_id(self, address, pid, program=None):
        """(build id, file offset) of an address in a process, or None."""
        symbols = self._with(address, pid, program)
        return symbols.build_id(address) if symbols is not None else None

    def program(self, addresses, pid):
        """Which program's stack that is: the ProcessSymbols of one that the process ran before it executed another
        one, if that has more of the addresses mapped; else None. Programs that are no PIEs lie at the same
        addresses, but their libraries hardly ever."""
        def known(symbols):
            return sum(symbols.mapping(address) is not None for address in addresses) if symbols is not None else 0
        most = known(self.look(pid))
        if most < len(addresses):       # perhaps it has executed another program since
            self.settle()
            most = max(known(self.look(pid)), known(self._of_records(pid)))
        best = None
        for each in self._formers(pid) if most < len(addresses) else ():
            if known(each) > most:
                best, most = each, known(each)
        return best

    def _with(self, address, pid, program=None):
        """The ProcessSymbols in which an address of a process has a name, or None."""
        if program is not None and program.resolve(address) is not None:
            return program
        snapshot = self.look(pid)
        if snapshot is None or (snapshot.resolve(address) is None and snapshot.mapping(address) is None):
            if self._look_again(pid):
                snapshot = self._snapshots[pid]
            if snapshot is None or snapshot.resolve(address) is None:
                self.settle()
                recorded = self._of_records(pid)
                if recorded is not None and recorded.resolve(address) is not None:
                    return recorded
                return self._of_former(address, pid) or snapshot
        return snapshot

    def _of_former(self, address, pid):
        """As `_with`, of the programs that the process ran before."""
        return next((each for each in self._formers(pid) if each.resolve(address) is not None), None)

    def _formers(self, pid):
        """ProcessSymbols of the programs that the process ran before, the last one first."""
        from rawbpf.elf.symbolizer import ProcessSymbols
        former = self._former.get(pid, ())
        for number, (symbols, lines) in enumerate(former):
            if isinstance(lines, list):
                lines = ProcessSymbols(b"\n".join(lines), cache=self._cache) if lines else None
                former[number] = symbols, lines
            yield from filter(None, (symbols, lines))

    def look(self, pid):
        """Remember a process as it is now, unless that was done. The ProcessSymbols, or None."""
        if pid not in self._snapshots:
            self._look_again(pid)
        return self._snapshots.get(pid)

    def _look_again(self, pid):
        """Read a process's maps; False when there is nothing new to be had."""
        from rawbpf.elf.symbolizer import ProcessSymbols
        now = time.monotonic()
        if now - self._looked.get(pid, -1.0) < INTERVAL:
            return False
        self._looked[pid] = now
        try:
            snapshot = ProcessSymbols.of(pid, self._cache)
        except OSError:
            snapshot = None
        if snapshot is not None and snapshot.mappings:
            self._snapshots[pid] = snapshot
            return True
        self._snapshots.setdefault(pid, None)
        return False

    def _of_records(self, pid):
        lines = self._mapped.get(pid)
        if not lines:
            return None
        count, symbols = self._recorded.get(pid, (0, None))
        if count != len(lines):
            from rawbpf.elf.symbolizer import ProcessSymbols
            symbols = ProcessSymbols(b"\n".join(lines), pid=pid, cache=self._cache)
            self._recorded[pid] = len(lines), symbols
        return symbols

    def close(self):
        if self._events is not None:
            self._events.close()
            self._events = None
