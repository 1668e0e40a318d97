"""Runs a compiled script: maps and programs into the kernel, probes attached, records read and handed to
the events' actions, everything detached again.

    with Session(compiled, renderer) as session:
        session.start()                 # load, BEGIN, attach
        session.release()               # the command of -c begins
        while session.running:
            session.poll(0.1)
        session.finish()                # detach, the rest of the records, END, maps

Nothing here is pinned: every object lives by a file descriptor of this process, so that the kernel
detaches and frees everything when the process is gone, however it went.
"""

import os
import select
import struct
import sys
import time

from . import results
from .compiled import EXITING, Loss
from .reader import open_reader
from .writer import ClosedPipe

F_MMAPABLE = 1 << 10
BUSY, IDLE = 0.001, 0.05     # seconds between two looks into the buffer: see Session.poll
PATIENCE = 1.0               # seconds in which records are still handled when somebody has asked for the end
ABANDONED = Loss("output", "not handled")
LOSS_INTERVAL = 0.2          # seconds between two looks at the loss counters
# Seconds from exit() to the end of the probes. bpftrace takes as long to detach, and scripts that call exit() at the first of
# many events that come at once count on it.
LINGER = 0.02


class Session:
    """One run of a `compiled.Compiled`. `renderer` gets the results (`emit`); `process` is a child.Child or
    child.Process whose end is the trace's end."""

    def __init__(self, compiled, renderer, process=None, host=None):
        self.compiled = compiled
        self.renderer = renderer
        self.process = process
        self.maps = {}
        self.programs = []           # (CompiledProgram, Program)
        self.attachments = []
        self.watched = []           # (address, attachment)
        self.packet_files = {}      # path -> packets.PacketFile
        self.attached = 0            # events that are attached, BEGIN and END included
        self.mode = ""              # "test" or "bench": only probes of that kind (and BEGIN and END) run
        self.exit_code = 0
        self.running = False         # until something says stop
        self.exiting = False         # exit() was called: later records do not count
        self.until = None            # time.monotonic() after which records are no longer handled
        self.abandoned = False       # that time has come
        self.passed_over = 0         # records that were not handled
        self.interrupted = False     # somebody outside has asked for the end, perhaps before it began
        self.refused = []            # (Point, reason) of points that the kernel did not take
        self.log_level = 0           # of the verifier
        self._reader = None
        self._epoll = None
        self._wake = None            # pipe that stop() writes to, from a signal handler or a thread
        self._output = -1            # descriptor of the output, when its closed end ends the trace
        self._delay = BUSY
        self._lost = {}
        self._losses_at = 0.0
        self._memory = {}            # the values of kernel maps that are looked at often, mapped
        self.dwarf_pids = ()         # further processes for dw_ustack()
        self.unwinder = None         # unwinder.Unwinder, where the script has a dw_ustack()
        if host is None:
            from .host import Host
            host = Host()
        self.host = host
        host.open(self)

    # -- starting

    def load(self):
        """Create the maps and load the programs. KernelError, VerifierError."""
        from rawbpf.loader.maps import Map
        self._prepare_unwinding()
        for info in self.compiled.kernel_maps.values():
            if self.unwinder is not None and info.name == "unwind_rows":
                info = info._replace(max_entries=self.unwinder.entries)
            self.maps[info.name] = Map.create(info.map_type, info.key_size, info.value_size, info.max_entries,
                                              name=info.name, flags=info.flags)
            content = [(key.to_bytes(4, sys.byteorder), value) for key, value in enumerate(info.content)
                       if not callable(value)]
            if content:
                self.maps[info.name].update_batch(content)
        if self.unwinder is not None:
            self.unwinder.fill(self.maps)
        from rawbpf.loader.program import LOG_MAX, Program
        config = self.compiled.config
        log_max = min(max(config.log_size, 1), LOG_MAX) if "log_size" in config.given else LOG_MAX
        for program in self.compiled.programs:
            if program.when in ("test", "bench") and program.when != self.mode or self.mode and program.when is None:
                continue
            loaded = Program.load(program.program_type, program.code.instructions, name=program.name,
                                  maps=self.maps, license=config.license,
                                  expected_attach_type=program.expected_attach_type,
                                  log_level=self.log_level, log_max=log_max, **program.load_options())
            self.programs.append((program, loaded))
        self._reader = open_reader(self.compiled, self.maps)
        self._epoll = select.epoll()
        self._wake = os.pipe()
        for fd in self._wake:
            os.set_blocking(fd, False)
        self._epoll.register(self._wake[0], select.EPOLLIN)
        if self._reader is not None:
            # Edge-triggered: records that nobody was woken for wait for the timer, see poll().
            self._epoll.register(self._reader.fileno(), select.EPOLLIN | select.EPOLLET)
        if self.process is not None and self.process.pidfd >= 0:
            self._epoll.register(self.process.pidfd, select.EPOLLIN)
        if self.host.fileno() >= 0:
            self._epoll.register(self.host.fileno(), select.EPOLLIN)

    def _prepare_unwinding(self):
        """Read the unwinding tables of the processes in question where the script asks for them."""
        if "unwind_rows" not in self.compiled.kernel_maps:
            return
        from .unwinder import Unwinder
        pids = list(self.dwarf_pids)
        if self.process is not None and not self.process.held:
            pids.append(self.process.pid)
        elif self.process is None and not pids:
            from rawbpf.sources import SourceError
            raise SourceError("dw_ustack requires a target process. Use -p, -c, or --dwarf-pid to specify one.")
        self.unwinder = Unwinder(self, pids)

    def start(self):
        """`load` unless that was done, run BEGIN, attach every probe."""
        if not self.programs:
            self.load()
        for info in self.compiled.kernel_maps.values():
            for key, value in enumerate(info.content):
                if callable(value):
                    self.maps[info.name].update(key.to_bytes(4, sys.byteorder), value())
        self.fire("begin")
        if self.mode:
            self.running = False
            return
        self.attach()
        self.fire("iter")
        # A script of nothing but BEGIN and END is over when these have run.
        self.running = not self.interrupted and any(program.when in (None, "signal")
                                                    for program, _ in self.programs)

    def release(self):
        """Let the command of -c run; all probes are attached."""
        if self.process is not None and self.unwinder is not None and self.process.held:
            self.unwinder.release(self.process)
        elif self.process is not None:
            self.process.release()

    def attach(self):
        """Attach all programs that the kernel runs. What it refuses is noted in `refused`; when nothing of a
        probe is left, that is a SourceError, unless the config's missing_probes says otherwise."""
        from rawbpf.sources import SourceError
        ordered = [pair for pair in self.programs if not pair[0].when]
        # The kernel runs several programs of one event in the order of attaching for some kinds of event
        # and in the opposite order for others: each kind is attached so that they run as written.
        ordered = ([pair for pair in ordered if not pair[0].points[0].last_first]
                   + [pair for pair in reversed(ordered) if pair[0].points[0].last_first])
        attached = set()
        for program, loaded in ordered:
            if self.interrupted:
                break               # thousands of probes take their time
            try:
                attachment = program.points[0].attach(loaded, program.points, program.cookies)
            except SourceError as error:
                if self.compiled.config.missing_probes == "error":
                    error.probe = program.points[0].name
                    raise
                self.refused += [(point, error.reason) for point in program.points]
                continue
            self.attachments.append(attachment)
            if program.points[0].source.shown == "watchpoint":
                self.watched += [(point.address, attachment) for point in program.points]
            self.refused += attachment.refused
            refused = {id(point) for point, _ in attachment.refused}
            attached |= {(id(program.probe), point.name) for point in program.points if id(point) not in refused}
        # a USDT probe in several places is one
        self.attached = len(attached) + sum(len(program.points) for program, _ in self.programs if program.when)

    def fire(self, when, signal=None):
        """Run the programs of BEGIN, END or self:signal:X now."""
        for program, loaded in self.programs:
            if program.when == when:
                for point in program.points:
                    if signal is None or point.signal == signal:
                        pinned = point.fire(loaded)
                        if pinned:
                            self.emit(results.Pinned(pinned))

    @property
    def signals(self):
        """Numbers of the signals that the script has probes for."""
        return {point.signal for program, _ in self.programs if program.when == "signal"
                for point in program.points}

    def signal(self, number):
        """Run the script's probes for a signal that this process has got."""
        self.fire("signal", number)

    # -- running

    def watch_output(self, fd):
        """End the trace (by writer.ClosedPipe) when nobody reads the pipe `fd` any more."""
        self._output = fd
        self._epoll.register(fd, 0)        # EPOLLERR is always reported

    def stop(self):
        """End the trace soon. May be called from a signal handler or another thread."""
        self.interrupted = True
        self.running = False
        self.until = time.monotonic() + PATIENCE
        try:
            os.write(self._wake[1], b"s")
        except (BlockingIOError, OSError, TypeError):
            pass          # it is awake already, or closed

    def poll(self, timeout=None):
        """Wait up to `timeout` seconds (None: until something ends the trace) for events and handle them.
        Returns how many records there were.

        Programs do not wake the reader for every record: that would cost the traced system more than
        the record does. So the reader looks by itself, every millisecond while there is something and
        more and more seldom up to `IDLE` while there is not; a buffer that fills quickly wakes it.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        total = 0
        while True:
            got = self.consume()
            total += got
            now = time.monotonic()
            if now >= self._losses_at:
                self._losses_at = now + LOSS_INTERVAL
                self.report_losses()
                self._hear_exit()
            self.host.settle()
            if self.unwinder is not None:
                self.unwinder.settle()
            if not self.running:
                return total
            if got:
                self._delay = BUSY
            else:
                self._delay = min(self._delay * 2, IDLE)
            if deadline is not None:
                if now >= deadline:
                    return total
                self._wait(min(self._delay, deadline - now))
            else:
                self._wait(self._delay)
            if timeout is not None and total:
                return total

    def _wait(self, seconds):
        ready = self._epoll.poll(seconds)
        for fd, _ in ready:
            if fd == self._wake[0]:
                try:
                    os.read(fd, 64)
                except BlockingIOError:
                    pass
            elif fd == self._output:
                raise ClosedPipe()
        process = self.process
        if process is not None and (process.pidfd < 0 or any(fd == process.pidfd for fd, _ in ready)):
            if not process.alive():
                if process.pidfd >= 0:
                    self._epoll.unregister(process.pidfd)
                self.running = False

    def consume(self):
        """Handle the records that are there; returns how many there were."""
        count = self._reader.consume(self) if self._reader is not None else 0
        self.renderer.settle()
        return count

    def drain(self):
        """Handle records until there are none."""
        while self.consume():
            pass
        self._hear_exit()

    # -- what actions of events call

    def emit(self, result):
        """Hand a result to the renderer."""
        self.renderer.emit(result)

    def exit(self, code=0):
        """exit(): the trace ends, and records that come after this one are not handled."""
        self.exit_code = code
        # an iterator is read to its end all the same
        self.exiting = not any(program.when == "iter" for program, _ in self.programs)
        self.running = False

    def _hear_exit(self):
        """Whether an exit() found no room for its record. What is in the buffer came before it, and is handled."""
        if EXITING not in self.maps:
            return
        exiting, unheard, code = struct.unpack("=QIi", self._look(EXITING, 16))
        if unheard:
            self.maps[EXITING].update(bytes(4), struct.pack("=QII", exiting, 0, 0))
            self.exit_code = code
            self.running = False

    def map_result(self, info, top=0, div=0):
        """A script map as it is now, as a results.MapResult."""
        rows = info.rows(self.maps, self.host, top, div)
        return results.MapResult(info.name, info.key_type, info.value_type, rows)

    def print_map(self, info, top=0, div=0):
        """print(@x): unlike at the end of the script, a scalar that was never set shows a zero."""
        result = self.map_result(info, top, div)
        kind = info.value_type
        if info.scalar and not result.rows and not kind.multiline:
            blank = bytes(kind.size)
            result.rows = [(None, kind.reduce([blank]) if kind.aggregate else kind.decode(blank, self.host))]
        self.emit(result)

    def clear_map(self, info):
        info.clear(self.maps)

    def zero_map(self, info):
        info.zero(self.maps)

    # -- losses

    @property
    def lost_events(self):
        """Records of events that found no room, so far."""
        return sum(count for loss, count in self._lost.items() if loss.kind == "output")

    def report_losses(self):
        """Emit what was lost since the last time."""
        for loss, count in self._read_losses():
            more = count - self._lost.get(loss, 0)
            if more <= 0:
                continue
            self._lost[loss] = count
            if loss.kind == "output":
                self.emit(results.LostEvents(more))
            else:
                info = self.compiled.maps.get(loss.name)
                self.emit(results.Failures(loss.kind, loss.name, more, info.max_entries if info else 0))

    def _read_losses(self):
        lost = self.maps.get("lost")
        if lost is None:
            return []
        return self.compiled.read_losses(self._look("lost", lost.value_size))

    def _look(self, name, size):
        """The value of a kernel map of one value. By memory where it can be: the kernel passes over programs on a CPU whose
        task is in a map operation."""
        map = self.maps[name]
        if name not in self._memory and map.flags & F_MMAPABLE:
            self._memory[name] = map.memory()
        return self._memory[name][:size] if name in self._memory else map.lookup(bytes(4))

    def report_missed(self):
        """Emit how often the kernel passed over a program: when a CPU is in a BPF program or map operation
        already, it does not run another one of most kinds there. Known since Linux 5.12."""
        missed = 0
        for _, program in self.programs:
            missed += getattr(program.info(), "recursion_misses", 0)
        if missed:
            self.emit(results.Failures("missed", "", missed))

    def packet_file(self, path):
        """The pcap file called so, made at the first packet."""
        if path not in self.packet_files:
            from .builtins.packets import PacketFile
            self.packet_files[path] = PacketFile(path)
        return self.packet_files[path]

    def unwatch(self, address):
        """Remove the watchpoints at an address."""
        for watched, attachment in self.watched:
            if watched == address and attachment in self.attachments:
                self.attachments.remove(attachment)
                attachment.close()

    # -- ending

    def detach(self):
        """No probe fires after this."""
        attachments, self.attachments = self.attachments, []
        links = [link for attachment in attachments for link in attachment.links]
        if links:
            from rawbpf.loader.link import close_all
            close_all(links)

    def finish(self, print_maps=True, maps=True):
        """Detach, handle what was recorded before, run END; emits the last losses and, with `print_maps`,
        End and (`maps`) the maps."""
        self.running = False
        if self.exiting and any(not point.own for program, _ in self.programs if not program.when for point in program.points):
            time.sleep(LINGER)
        self.detach()
        if self.process is not None:
            self.process.close()
        self.drain()              # after exit() these are passed over
        if self.abandoned:
            self.emit(results.LostEvents(self.passed_over))
            self._lost[ABANDONED] = self.passed_over
        self.exiting, self.until = False, None
        self.fire("end")
        self.drain()
        self.report_losses()
        self.report_missed()
        if not print_maps:
            return
        self.emit(results.End())
        if maps and self.compiled.config.print_maps_on_exit:
            for info in self.compiled.maps.values():
                self.emit(self.map_result(info))

    def close(self):
        """Let everything go. The session is over."""
        self.detach()
        for file in self.packet_files.values():
            file.close()
        self.packet_files = {}
        for _, program in self.programs:
            program.close()
        self.programs = []
        for memory in self._memory.values():
            memory.close()
        self._memory = {}
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        for map in self.maps.values():
            map.close()
        self.maps = {}
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        wake, self._wake = self._wake, None     # first of all: who stops it now writes to no descriptor that was closed
        for fd in wake or ():
            os.close(fd)
        self.host.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
