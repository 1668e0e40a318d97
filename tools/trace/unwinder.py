"""Keeps the tables that dw_ustack() reads (unwind_code.py) for the processes that are traced.

A table is made once a file and serves every process that maps it. Processes named by -p and --dwarf-pid have theirs
before the first probe fires. The command of -c gets its tables at the entry point of its program: by then the dynamic
linker has mapped the libraries, and a probe there stops the process (bpf_send_signal, SIGSTOP) until they are written.
Processes that the traced ones fork, and files that they map later, follow as the kernel's records tell of them.
"""

import os
import signal
import struct
import time

from rawbpf.elf.image import ElfError, Image
from rawbpf.elf.process import ENDED, state
from rawbpf.elf.symbolizer import ProcessSymbols, SymbolCache
from rawbpf.elf.unwind_table import table

from . import results
from .unwind_code import ELEMENT, FAR, MAPPINGS, PROCESSES, ROOM, ROWS, SLACK, TABLES

WAIT = 30.0     # seconds for the command to reach its entry point


class Unwinder:
    """The tables of one session. `pids`: processes that are there already."""

    def __init__(self, session, pids):
        self.session, self.pids = session, list(pids)
        self.known = {}             # process -> its entry in the map
        self._cache = SymbolCache()
        self._tables = {}           # file -> (first element, Table, written)
        self._next = 1              # element 0 stands for no table
        self._changed = set()
        self._told = set()
        self._maps = None
        for pid in self.pids:
            self._read(pid)

    @property
    def entries(self):
        """How many elements the map of tables needs."""
        return self._next + SLACK

    def fill(self, maps):
        """Write what is known into the maps, which are there now."""
        self._maps = maps
        self._limit = maps[TABLES].max_entries
        for pid in self.pids:
            self.add(pid)
        processes = self.session.host.processes
        processes.watch()
        processes.listener = self._record

    # -- processes

    def add(self, pid):
        """Write a process's tables; False when it cannot be looked at."""
        rows = self._read(pid)
        if rows is None:
            return False
        starts = [0] + [start for start, _, _, _ in rows]
        rows = [(0, 0, 0, 0)] + rows
        starts += [FAR] * (MAPPINGS - len(starts))
        value = struct.pack("=%dQ" % MAPPINGS, *starts)
        value += b"".join(struct.pack("=QQQQ", end, bias & (1 << 64) - 1, number, 0) for _, end, bias, number in rows)
        self._maps[PROCESSES].update(struct.pack("=I", pid), value.ljust(MAPPINGS * 40, b"\0"))
        self.known[pid] = len(rows)
        return True

    def met(self, pid):
        """A program has seen a process for the first time."""
        if pid not in self.known:
            added = self.add(pid)
            if pid not in self._told:
                self._told.add(pid)
                self.session.emit(results.Notice(
                    "No DWARF unwind data available for this process (%d)%s: its stacks are by frame pointers" % (
                        pid, " until now" if added else "")))

    def settle(self):
        """Follow what the processes have done."""
        changed, self._changed = self._changed, set()
        for pid in changed:
            self.add(pid)

    def _record(self, kind, pid, *rest):
        if kind == "fork":
            self.known.pop(pid, None)       # another process had that number
        if kind == "fork" and rest[0] in self.known or kind == "mmap" and pid in self.known:
            self._changed.add(pid)
        elif kind == "exit" and pid in self.known:
            # it stays known: what it has sent may not have been read yet
            self._changed.discard(pid)
            try:
                self._maps[PROCESSES].delete(struct.pack("=I", pid))
            except (OSError, KeyError):
                pass                # it is not there any more

    def _read(self, pid):
        """[(start, end, bias, directory)] of a process's code, None when there is none to read."""
        try:
            symbols = ProcessSymbols.of(pid, self._cache)
        except OSError:
            return None
        with symbols:
            rows = []
            for mapping in symbols.mappings:
                if "x" in mapping.permissions and mapping.end <= FAR and len(rows) < MAPPINGS - 1:
                    bias, number = self._table(symbols, mapping)
                    rows.append((mapping.start, mapping.end, bias, number))
            return rows or None

    # -- tables

    def _table(self, symbols, mapping):
        """(bias, directory) for a mapping; directory 0 where there is no table."""
        image = symbols.image(mapping)
        key = mapping.device, mapping.inode, mapping.path, mapping.deleted, image.file_base if image is not None else 0
        if key not in self._tables:
            self._tables[key] = self._make(image)
        first, made, written = self._tables[key]
        if not first:
            return 0, 0
        if self._maps is not None and not written:
            if not self._write(first, made):
                self._tables[key] = 0, None, False
                return 0, 0
            self._tables[key] = first, made._replace(lows=None, rules=None), True
        vaddr = image.vaddr(mapping.offset - image.file_base)
        return (mapping.start - vaddr + made.base, first) if vaddr is not None else (0, 0)

    def _make(self, image):
        try:
            made = table(image) if image is not None and image.bits == 64 else None
        except ElfError:
            made = None
        if made is None or not made.lows:
            return 0, None, False
        first, self._next = self._next, self._next + 1 - (-len(made.lows) // ROWS)
        return first, made, False

    def _write(self, first, made):
        """Put a table into the map; False when there is no room."""
        parts = -(-len(made.lows) // ROWS)
        if first + parts >= self._limit:
            self.session.emit(results.Notice("no room for the unwinding tables of files that were mapped later"))
            return False
        directory = made.lows[::ROWS].tobytes().ljust(ROOM * 4, b"\xff")
        self._maps[TABLES].update(struct.pack("=I", first), directory.ljust(ELEMENT, b"\0"))
        for part in range(parts):
            lows = made.lows[part * ROWS:(part + 1) * ROWS].tobytes().ljust(ROWS * 4, b"\xff")
            rules = made.rules[part * ROWS:(part + 1) * ROWS].tobytes().ljust(ROWS * 8, b"\0")
            self._maps[TABLES].update(struct.pack("=I", first + 1 + part), lows + rules)
        return True

    # -- the command of -c

    def release(self, child):
        """Let the command run, and give it its tables before its own first instruction."""
        stop = self._stop_at_entry(child)
        try:
            child.release()
            if stop is not None and self._wait_for(child.pid):
                self.add(child.pid)
        finally:
            for each in stop or ():
                each.close()
            if stop is not None and child.status is None:
                os.kill(child.pid, signal.SIGCONT)      # a stop that is on its way is forgotten, too

    def _wait_for(self, pid):
        """Wait until the command stops; False when it does not."""
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline and not self.session.interrupted:
            letter = state(pid)
            if letter in (b"T", *ENDED, b""):
                return letter == b"T"
            time.sleep(0.0005)
        return False

    def _stop_at_entry(self, child):
        """(attachment, program) that stop the command when it has been loaded; None where that cannot be done."""
        from rawbpf.asm import compile_function, ir
        from rawbpf.loader.errors import KernelError
        from rawbpf.sources import SourceError, Uprobe
        try:
            path = _program(child.path)
            probe = Uprobe(path, Image.open(path).entry, pid=child.pid, unsafe=True)
            f = ir.Function("stop")
            f.call("bpf_send_signal", int(signal.SIGSTOP))
            f.ret(0)
            program = probe.load(compile_function(f).instructions)
            try:
                return probe.attach(program), program
            except BaseException:
                program.close()
                raise
        except (ElfError, SourceError, KernelError, OSError):
            return None


def _program(path):
    """The ELF file that the kernel runs for a path: that of a script is its interpreter's."""
    for _ in range(4):
        with open(path, "rb") as file:
            head = file.read(256)
        words = head[2:].split(b"\n", 1)[0].split() if head[:2] == b"#!" else ()
        if not words:
            return path
        path = os.fsdecode(words[0])
    return path
