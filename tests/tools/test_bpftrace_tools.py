"""bpftrace's own tools (`tools/*.bt` of its repository, which Debian installs in /usr/sbin): each compiles, loads, attaches,
and prints what the workload of this test did. The kernel may lack what a tool probes: then the error says so."""

import os
import re
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from rawbpf.loader import kernel
from rawbpf.sources import SourceError
from rawbpf.tools.trace import Script
from rawbpf.tools.trace.diagnostics import ScriptError

pytestmark = [pytest.mark.vm, pytest.mark.slow]

TOOLS = Path("/usr/share/bpftrace/tools")       # put there by tests/vm
ME = os.getpid()


def comm():
    return re.escape(open("/proc/self/comm").read().strip())


def files():
    with open("/etc/passwd") as file:
        file.read()
    for name in ("/no/such/file", "/etc"):
        try:
            os.stat(name)
            os.statvfs(name)
        except OSError:
            pass
    with open("/tmp/rawbpf-tools", "w") as file:
        file.write("x")
        file.flush()
        os.fsync(file.fileno())
    os.unlink("/tmp/rawbpf-tools")
    os.sync()


def processes():
    subprocess.run(["/bin/true", "one", "two"], check=False)
    os.kill(ME, 0)
    os.setresuid(0, 0, 0)
    thread = threading.Thread(target=time.sleep, args=(0.01,))
    thread.start()
    thread.join()
    time.sleep(0.02)


def network():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        with socket.create_connection(listener.getsockname()) as client:
            server, _ = listener.accept()
            client.send(b"x" * 3000)
            server.recv(4096)
            server.close()
    try:
        socket.create_connection(("127.0.0.1", 1), 1)
    except OSError:
        pass
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    left.send(b"unix packet")
    right.recv(64)
    left.close()
    right.close()


#: What the output matches after the workload ({comm}, {pid} of this test); None: the guest has nothing to show, or not always.
SHOWS = {
    "bashreadline": None, "biolatency-kp": None, "biolatency": None, "biosnoop": "TIME\\(ms\\)", "biostacks": None, "bitesize": None,
    "capable": "Tracing cap_capable", "cpuwalk": "Sampling CPU", "dcsnoop": "{pid} +{comm} +[RM] ", "execsnoop": "{pid} +/bin/true one two",
    "gethostlatency": None, "killsnoop": "{pid} +{comm} +0 +{pid} +0|{comm}", "loads": "load averages: \\d+\\.\\d{{3}} ", "mdflush": None,
    "naptime": "COMM", "oomkill": None, "opensnoop": "{pid} +{comm} +\\d+ +0 /etc/passwd", "pidpersec": "@: \\d+", "runqlat": "\\[\\d+",
    "runqlen": None, "setuids": "{pid} +{comm} +0 +setresuid ruid=0 euid=0 suid=0 \\(0\\)", "ssllatency": None, "sslsnoop": None,
    "statsnoop": "{pid} +{comm} +\\d+ /etc", "swapin": None, "syncsnoop": "{pid} +{comm} +tracepoint:syscalls:sys_enter_fsync",
    "syscount": "Top 10 syscalls", "tcpaccept": "{pid} +{comm} +127.0.0.1 +\\d+ +127.0.0.1", "tcpconnect": "{pid} +{comm} +127.0.0.1 +\\d+ +127.0.0.1 +1\\b",
    "tcpdrop": "Tracing", "tcplife": "127.0.0.1 +\\d+ +127.0.0.1", "tcpretrans": None, "tcpsynbl": "backlog size", "threadsnoop": None,
    "undump": "{comm} +{pid} +11 +unix packet", "vfscount": "vfs_\\w+\\]: \\d+", "vfsstat": "@\\[vfs_\\w+\\]: \\d+", "writeback": "Tracing", "xfsdist": None,
}


#: The Linux that a tool needs: for its tracepoints, for bpf_loop(). bpftrace refuses it before, too.
NEEDS = {"biosnoop": (6, 5), "opensnoop": (5, 17), "tcpdrop": (5, 17)}


@pytest.fixture(scope="module")
def loopback():
    import fcntl
    import struct
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x49))


def test_all_of_them_are_here():
    assert {path.stem for path in TOOLS.glob("*.bt")} == set(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_a_tool(name, loopback):
    path = TOOLS / (name + ".bt")
    try:
        script = Script(path.read_text(), name=str(path))
    except ScriptError as error:
        # something that this kernel has not: said as such
        assert re.search("No matches|does not exist|not found|no such|Failed to resolve kernel symbol|no executable or library|"
                         "does not contain a field|cannot be traced|No probes to attach|needs Linux", str(error)), error
        assert SHOWS[name] is None or kernel.release() < NEEDS.get(name, (0,)), error
        return
    text = []
    try:
        with script.attach():
            deadline = time.monotonic() + (2.5 if name in ("loads", "pidpersec", "vfsstat") else 0.3)
            for work in (files, processes, network):
                work()
            while True:
                text += [event.text() for event in script.poll(0.1)]
                if time.monotonic() > deadline:
                    break
            script.stop()
            text += [event.text() for event in script]
    except SourceError as error:
        assert SHOWS[name] is None, error
        return
    from rawbpf.tools.trace.results import MapResult
    maps = script.maps
    for info in script.compiled.maps.values():
        value = maps[info.name]
        rows = [] if value is None else list(value.items()) if not info.scalar else [(None, value)]
        text.append(MapResult(info.name, info.key_type, info.value_type, rows).text())
    text = "".join(text)
    assert "Traceback" not in text
    if SHOWS[name] is not None:
        assert re.search(SHOWS[name].format(comm=comm(), pid=ME), text), text[-3000:]
