"""`rawbpf verify` inside guests: the same command on other kernels, whose records come back as JSON."""

import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path

from ..failure import Failure, read_bytes
from . import SUITES, machine
from .debian import CACHE, DebianError
from .image import SITE, Image
from .kernels import kernel as fetched
from .kernels import ready

ROOMS = ("asm", "elf", "loader", "sources", "tools")
HOST = "/host"      # where the guest has the host's files, each at its own path
TIMEOUT = 600       # seconds a guest may take
_INCLUDE = re.compile(rb'^\s*\.include\s+"([^"]+)"', re.M)
_LEVELS = {1: "1", 2: "2", 4: "stats"}
_ENDS = (signal.SIGTERM, signal.SIGHUP)


class Guests:
    """Kernels that are asked at the same time, as many as there are CPUs.

        with Guests(["5.10", "/boot/vmlinuz-6.9"], ["a.s"]) as guests:
            guests.start()
            for record in guests.records("5.10"): ...

    Leaving it early, also by a signal, ends the machines. A kernel that does not come up, dies or hangs is said in
    the `error` of a record; Failure is for what no kernel can do anything about."""

    def __init__(self, kernels, paths, type=None, level=0, timeout=TIMEOUT):
        self.kernels, self.paths, self.timeout = kernels, paths, timeout
        self._arguments = ["rawbpf", "verify", "--json", *(["--type", type] if type else []),
                           *(["--log-level", _LEVELS[level]] if level else []), "--"]
        self._runs, self._folder, self._before = {}, None, {}
        if kernels:
            _check(kernels[0])

    def __enter__(self):
        return self     # a signal between this and the block would leave what was begun here

    def start(self):
        """Boots them all; records() waits."""
        if not self.kernels:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="rawbpf-vm-")
        if threading.current_thread() is threading.main_thread():
            # as an exception, so that files are removed
            self._before = {number: signal.signal(number, _exit) for number in _ENDS
                            if signal.getsignal(number) is signal.SIG_DFL}
        folder = Path(self._folder.name)
        self._arguments += pack(folder / "initrd", self.paths)
        (CACHE / "vm").mkdir(parents=True, exist_ok=True)
        # A signal inside Thread.start() would leave one behind that nobody waits for; and threads that block signals
        # leave them to the one that is to be interrupted.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *_ENDS})
        try:
            for number, series in enumerate(self.kernels):
                run = _Run(series, folder / ("%d.log" % number))
                run.thread = threading.Thread(target=run, args=(folder / "initrd", shlex.join(self._arguments), self.timeout))
                run.thread.start()
                self._runs[series] = run
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def records(self, series):
        """The records of one kernel, when it is done."""
        run = self._runs[series]
        _wait(run.done)
        if run.broken is not None:
            raise run.broken
        yield from run.records
        shown = ["stdin" if path == "-" else path for path in self.paths]
        if run.error:
            seen = {record["file"] for record in run.records}
            for path in [path for path in shown if path not in seen] or shown[-1:]:
                yield _not_run(series, path, run.error)

    def __exit__(self, kind, *_):
        if kind is not None:
            machine.stop_all()
        for run in self._runs.values():
            _wait(run.done)
        if kind is not None:
            machine.go_on()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._folder is not None:
            self._folder.cleanup()


def _wait(done):
    """Until a run is done. Thread.join() will not do: interrupted, Python 3.11 takes the thread for one that has ended;
    and a signal that comes just before a wait without a limit is noticed only behind it."""
    while not done.wait(0.2):
        continue


def _exit(number, _):
    raise SystemExit(128 + number)


def _check(series):
    missing = [package for tool, package in machine.NEEDS.items() if not shutil.which(tool)]
    if missing:
        raise Failure("--kernel %s boots a virtual machine, which needs: apt-get install %s" % (series, " ".join(missing)))
    if platform.machine() != "x86_64":
        raise Failure("--kernel %s: the kernels and this machine's Python must be of one architecture, x86_64" % series)


def _not_run(series, path, error):
    from ..verify import record_of
    return dict(record_of(path, "", ""), kernel=series, release=series, error=error)


class _Run:
    """One kernel's run: a thread's work. `records`, and `error`: why there are not all of them."""

    def __init__(self, series, log):
        self.series, self.log, self.records, self.error, self.broken = series, log, [], "", None
        self._said, self.done = [], threading.Event()

    def __call__(self, initrd, command, timeout):
        try:
            self._boot(initrd, command, timeout)
        except (machine.GuestError, DebianError) as error:
            self.error = str(error)
            console = self.log.read_text(errors="replace") if self.log.exists() else ""
            panic = re.search(r"Kernel panic[^\r\n]*", console) or re.search(r"^qemu[^:\n]*: .*", console, re.M)
            if panic:
                self.error += ": " + panic[0]
            if console:
                kept = CACHE / "vm" / ("verify-%s.log" % os.path.basename(self.series))
                shutil.copy(self.log, kept)
                self.error += " (its console: %s)" % kept
        except BaseException as error:      # told by who waits for it
            self.broken = error
        finally:
            self._place()
            self.done.set()

    def _boot(self, initrd, command, timeout):
        if self.series in SUITES:
            if not ready(self.series):
                sys.stderr.write("kernel %s: downloading Debian's to %s\n" % (self.series, CACHE))
            image = fetched(self.series)
        else:
            image = Path(self.series)
        with machine.slot(self._waits):
            machine.run(image, initrd, command, self.log, self._line, timeout=timeout,
                        environment={"PYTHONPATH": SITE, "PYTHONDONTWRITEBYTECODE": "1"}, folder=HOST + os.getcwd())
        if not self.records or any(text.startswith(("ERROR: ", "{")) for text in self._said):
            self.error = re.sub(r"^ERROR: ", "", "\n".join(self._said).replace(HOST + "/", "/")) or "it said nothing"

    def _waits(self):
        sys.stderr.write("kernel %s: waiting for another virtual machine on this host to end\n" % self.series)

    def _line(self, text):
        try:
            self.records.append(json.loads(text))
        except ValueError:
            self._said.append(text.rstrip("\n"))

    def _place(self):
        """The guest's names of kernel and files become the host's."""
        for record in self.records:
            record["kernel"] = self.series
            for part in (record, record["refusal"] or {}):
                if part.get("file", "").startswith(HOST + "/"):
                    part["file"] = part["file"][len(HOST):]


def pack(path, files):
    """Write an initramfs with this Python, this package and the files; returns their names in the guest."""
    names = []
    with open(path, "wb") as out:
        image = Image(out)
        machine.system(image)
        image.python(())
        for room in ROOMS:
            image.add(next(iter(importlib.util.find_spec("rawbpf." + room).submodule_search_locations)),
                      "%s/rawbpf/%s" % (SITE, room))
        image.folder(HOST + os.getcwd())
        for name in files:
            if name == "-":
                name = "stdin"
                image.write(HOST + os.path.abspath(name), read_bytes("-"))
            else:
                _add(image, name, set())
            names.append(HOST + name if os.path.isabs(name) else name)
        image.close()
    return names


def _add(image, name, seen):
    """A file, and those that it includes."""
    place = os.path.abspath(name)
    if place in seen or not os.path.isfile(name):
        return
    seen.add(place)
    image.add(name, HOST + place)
    with open(name, "rb") as file:
        for found in _INCLUDE.findall(file.read()):
            _add(image, os.path.join(os.path.dirname(name), os.fsdecode(found)), seen)
