"""Boots a virtual machine, runs one command in it, and tells what the command printed.

The guest's first serial port is its console: what the command prints, between two marks.
"""

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from .debian import CACHE
from .image import Image

# tool -> the Debian package that has it
NEEDS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static"}
# Before a command: however this process ends, that one does not outlive it.
_BOUND = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
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


def system(image, busybox=None):
    """Write what every guest has: busybox (the host's, or a static one) as init and shell, the folders, two users."""
    for name in ("proc", "sys", "dev", "tmp", "run", "root", "bin", "lib64", "etc"):
        image.folder(name)
    if busybox is None:
        image.binary("busybox", "/bin/busybox")
    else:
        image.add(busybox, "/bin/busybox")
    image.write("/init", INIT.encode(), executable=True)
    image.write("/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
    image.write("/etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    if busybox is None and Path("/etc/ld.so.cache").exists():
        image.add("/etc/ld.so.cache")
    image.write("/usr/bin/rawbpf", b'#!/bin/sh\nexec python3 -m rawbpf.tools "$@"\n', executable=True)


def _command_image(path, command, environment, folder):
    """An initramfs beside the large one, with the command and its environment."""
    with open(path, "wb") as out:
        image = Image(out)
        lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
        image.write("/command", "\n".join([*lines, "cd " + shlex.quote(folder), command, ""]).encode())
        image.close()


@contextlib.contextmanager
def slot(waiting=None):
    """Wait for one of as many places as the host has CPUs: more guests than that only slow each other. `waiting` is
    called once where machines of others take the places."""
    (CACHE / "vm").mkdir(parents=True, exist_ok=True)
    files = [open(CACHE / "vm" / f"slot{number}.lock", "w") for number in range(os.cpu_count() or 1)]
    try:
        while not _stopped.is_set() and not any(_locked(file) for file in files):
            if waiting is not None and len(_running) < len(files):
                waiting()
                waiting = None
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
    """End every machine that runs, and start no more until go_on(), from another thread."""
    _stopped.set()
    for machine in list(_running):
        machine.kill()


def go_on():
    """Machines may be started again."""
    _stopped.clear()


def accelerator():
    """QEMU's options for how to run a guest: by the CPU itself where this process may, else (and where that fails)
    by emulation."""
    kvm = ["-accel", "kvm"] if os.access("/dev/kvm", os.R_OK | os.W_OK) and _VIRTUAL.search(_cpu_flags()) else []
    return [*kvm, "-accel", "tcg,thread=single", "-cpu", "max"]


def x86_64():
    """QEMU for this machine's own kind."""
    return ["qemu-system-x86_64", *accelerator(), "-smp", "1"]


_VIRTUAL = re.compile(r"\b(?:vmx|svm)\b")


def _cpu_flags():
    with open("/proc/cpuinfo") as file:
        return next((line for line in file if line.startswith("flags")), "")


def run(kernel, initrd, command, log, on_line=None, memory="1500M", timeout=900, environment=None, folder="/",
        devices=(), prepare=None, emulator=None, console="ttyS0"):
    """Boot `kernel` with `initrd` and run the shell `command` in `folder`: its exit status.

    Everything that the console shows goes to the file `log`; each line that the command prints
    also to `on_line`. `devices` are more options of QEMU, `emulator` is its program with those that choose the
    machine, `console` the kernel's name of its first serial port, `prepare` is called in its process before
    it begins. `GuestError` if the guest does not get that far.
    """
    with tempfile.TemporaryDirectory(prefix="rawbpf-vm-") as place:
        small, joined = Path(place) / "command.cpio", Path(place) / "initrd"
        _command_image(small, command, environment or {}, folder)
        joined.write_bytes(Path(initrd).read_bytes() + small.read_bytes())
        with open(log, "w") as transcript:
            machine = subprocess.Popen(
                [*(_BOUND if prepare is None else ()), *(emulator or x86_64()),
                 "-m", memory, "-display", "none", "-monitor", "none", "-no-reboot", "-nic", "none",
                 "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console", *devices,
                 "-kernel", str(kernel), "-initrd", str(joined),
                 # stalls are the host's, which is too busy to emulate in time
                 "-append", f"console={console} quiet panic=-1 rcupdate.rcu_cpu_stall_suppress=1"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                preexec_fn=prepare)
            _running.add(machine)
            if _stopped.is_set():
                machine.kill()
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
