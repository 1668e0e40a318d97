"""Boots a guest, runs one command in it, and compiles for it.

The guest's first serial port is its console: what the command prints, between two marks.  At the
other end of the second one is `compile_for`, because the guest has no compiler (see tests/cc.py).
"""

import base64
import contextlib
import ctypes
import fcntl
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from tests import cc
from tests.debian import CACHE
from tests.vm.image import SITE, Image

PROJECT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("asm", "elf", "loader", "sources", "tools")
# pytest and what its versions import, and the project's dependency
MODULES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli",
           "typing_extensions", "py", "elftools")
PR_SET_PDEATHSIG = 1
BEGIN, STATUS = "rawbpf-guest-begin", "rawbpf-guest-status:"

INIT = f"""#!/bin/busybox sh
export PATH=/usr/local/bin:/usr/bin:/bin:/sbin HOME=/root TERM=dumb LANG=C.UTF-8
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs none /dev/shm
mount -t devpts none /dev/pts
mount -t tmpfs none /tmp
mount -t tmpfs none /run
mount -t tracefs none /sys/kernel/tracing
mount -t debugfs none /sys/kernel/debug
mount -t bpf none /sys/fs/bpf
mount -t cgroup2 none /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd
ip link set lo up
stty -onlcr < /dev/console
echo {BEGIN}
sh /command
echo "{STATUS} $?"
poweroff -f
"""


class GuestError(Exception):
    """The guest did not come up, died, or did not end in time."""


def pack(path, extra=()):
    """Write an initramfs with Python, pytest and the checkout (as /project) to `path`.

    `extra` are `(file or folder, place in the guest)`.
    """
    with open(path, "wb") as out:
        image = Image(out)
        for name in ("proc", "sys", "dev", "tmp", "run", "root", "bin", "lib64", "etc"):
            image.folder(name)
        image.binary("busybox", "/bin/busybox")
        image.write("/init", INIT.encode(), executable=True)
        image.write("/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
        image.write("/etc/group", b"root:x:0:\nnogroup:x:65534:\n")
        if Path("/etc/ld.so.cache").exists():
            image.add("/etc/ld.so.cache")
        image.python(MODULES)
        image.add(PROJECT, "/project")
        for room in ROOMS:
            image.link(f"{SITE}/rawbpf/{room}", f"/project/{room}")
        image.write("/usr/bin/rawbpf", b'#!/bin/sh\nexec python3 -m rawbpf.tools "$@"\n', executable=True)
        for source, place in extra:
            image.add(Path(source).resolve(), place)
        image.close()


def _command_image(path, command, environment):
    """An initramfs beside the large one, with the command and its environment."""
    with open(path, "wb") as out:
        image = Image(out)
        lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
        image.write("/command", "\n".join([*lines, "cd /project", command, ""]).encode())
        image.close()


def compile_for(connection):
    """Serve a guest's requests to compile, one JSON line each, until it is gone."""
    with connection, connection.makefile("rwb") as stream:
        for line in stream:
            try:
                request = json.loads(line)
                answer = {"binary": base64.b64encode(cc.build(**request)).decode()}
            except (ValueError, TypeError, cc.CompileError) as error:
                answer = {"error": str(error)}
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()


def _serve(listener):
    try:
        connection = listener.accept()[0]
        compile_for(connection)
    except OSError:
        return  # the listener or the machine is closed


@contextlib.contextmanager
def slot():
    """Wait for one of as many places as the host has CPUs: more guests than that only slow each other."""
    (CACHE / "vm").mkdir(parents=True, exist_ok=True)
    files = [open(CACHE / "vm" / f"slot{number}.lock", "w") for number in range(os.cpu_count() or 1)]
    try:
        while not _stopped.is_set() and not any(_locked(file) for file in files):
            _stopped.wait(0.2)
        if _stopped.is_set():
            raise GuestError("interrupted")
        yield
    finally:
        for file in files:
            file.close()


def _locked(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_running, _stopped = set(), threading.Event()


def stop_all():
    """End every machine that runs, and start no more, from another thread."""
    _stopped.set()
    for machine in list(_running):
        machine.kill()


def _die_with_parent():
    """In a child before exec: however the tests end, no machine outlives them."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def run(kernel, initrd, command, log, on_line=None, memory="1500M", timeout=900):
    """Boot `kernel` with `initrd` and run the shell `command` in /project: its exit status.

    Everything that the console shows goes to the file `log`; each line that the command prints
    also to `on_line`.  `GuestError` if the guest does not get that far.
    """
    environment = {"PYTHONPATH": SITE, "RAWBPF_CC": "/dev/ttyS1", "PYTHONDONTWRITEBYTECODE": ""}
    environment.update({name: os.environ[name] for name in ("CI",) if os.environ.get(name)})
    with tempfile.TemporaryDirectory(prefix="rawbpf-vm-") as folder:
        small = Path(folder) / "command.cpio"
        _command_image(small, command, environment)
        joined = Path(folder) / "initrd"
        joined.write_bytes(Path(initrd).read_bytes() + small.read_bytes())
        with socket.socket(socket.AF_UNIX) as listener, open(log, "w") as transcript:
            listener.bind(f"{folder}/cc")
            listener.listen()
            threading.Thread(target=_serve, args=(listener,), daemon=True).start()
            machine = subprocess.Popen(
                ["qemu-system-x86_64", "-accel", "tcg,thread=single", "-cpu", "max", "-smp", "1",
                 "-m", memory, "-display", "none", "-monitor", "none", "-no-reboot", "-nic", "none",
                 "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
                 "-chardev", f"socket,id=cc,path={folder}/cc", "-serial", "chardev:cc",
                 "-kernel", str(kernel), "-initrd", str(joined),
                 "-append", "console=ttyS0 quiet panic=-1"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent)
            _running.add(machine)
            killer = threading.Timer(timeout, machine.kill)
            killer.start()
            started = time.monotonic()
            try:
                status, begun = _read(machine.stdout, transcript, on_line)
            finally:
                killer.cancel()
                machine.kill()  # its console is closed, or this run is interrupted
                machine.wait()
                machine.stdout.close()
                _running.discard(machine)
    if status is None and time.monotonic() - started >= timeout:
        raise GuestError(f"no end within {timeout} s")
    if status is None:
        raise GuestError("the guest died before the command ended" if begun else
                         "the guest never reached the command")
    return status


def _read(stream, transcript, on_line):
    """Copy the console; returns the command's status (None if it never ended) and if it began."""
    status, begun = None, False
    for raw in stream:
        line = raw.decode(errors="replace").replace("\r", "")
        transcript.write(line)
        transcript.flush()
        ended = re.search(STATUS + r" (\d+)", line)
        if ended:
            status = int(ended[1])
        elif BEGIN in line:
            begun = True
        elif begun and status is None and on_line:
            on_line(line)
    return status, begun
