"""Built-in functions that need kprobes, fentry or kernel memory: inside the virtual machines only."""

import os
import re
import socket
import struct

import pytest

from rawbpf.loader import kernel
from rawbpf.tools.trace import Script
from rawbpf.tools.trace.diagnostics import ScriptError

pytestmark = pytest.mark.slow

TARGET = """
#include <unistd.h>
char room[8] = "before";
__attribute__((noinline)) int work(int x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
int main(void) { int s = 0; for (int i = 0; i < 3; i++) { s = work(s); usleep(1000); } return write(1, room, 6) != 6; }
"""


def first(script, act, timeout=10.0, **options):
    """The first event of a script after `act()`."""
    import time
    with Script(script, **options).attach() as running:
        act()
        deadline = time.monotonic() + timeout
        while running.running and time.monotonic() < deadline:
            for event in running.poll(0.2):
                return event
        raise AssertionError("no event came in %g s" % timeout)


def send(port=9, payload=b"hello packet"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(payload, ("127.0.0.1", port))


@pytest.fixture
def loopback():
    """lo up: ioctl SIOCSIFFLAGS."""
    import fcntl
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x49))


@pytest.mark.vm(since="6.1")
def test_path_of_an_argument(tmp_path):
    """What bpf_d_path makes of args.file, and the end of it that fits into a smaller size. (Of the few functions that may call
    it, close() no longer goes through filp_close since Linux 6.6.)"""
    name = tmp_path / "a-file"
    event = first('fentry:security_file_open /pid == %d/ { $p = path(args.file.f_path); if ($p == "%s") { print(($p, path(args.file.f_path, 4))); } }'
                  % (os.getpid(), name), lambda: name.write_text("x"))
    assert event.value == (str(name), "ile")


@pytest.mark.vm(since="5.10")
def test_path_in_an_iterator():
    """iter:task_file, whose file may be missing. Iterators may call bpf_d_path since Linux 5.12."""
    with open("/proc/self/status") as held:
        text = ("iter:task_file { if (ctx.fd == %d && ctx.task.tgid == %d) { printf(\"%%s\", path(ctx.file.f_path)); } }"
                % (held.fileno(), os.getpid()))
        if kernel.release() < (5, 12):
            with pytest.raises(ScriptError, match=r"path\(\) in an iterator needs Linux 5\.12 \(bpf_d_path\)"):
                Script(text)
            return
        with Script(text) as script:
            assert [event.value for event in script if event.value] == ["/proc/%d/status" % os.getpid()]


@pytest.mark.vm(since="5.10")
def test_per_cpu_variables():
    """The number of its CPU in every run queue; 0 for a CPU that there is not. Debian's 5.10 was built with a pahole
    that left per-CPU variables out of the BTF."""
    with open("/sys/kernel/btf/vmlinux", "rb") as types:
        if b"\0runqueues\0" not in types.read():
            with pytest.raises(ScriptError, match='Could not resolve variable "runqueues" from BTF'):
                Script('begin { print(percpu_kaddr("runqueues")) }')
            return
    event = first('begin { $mine = (struct rq *)percpu_kaddr("runqueues"); $first = (struct rq *)percpu_kaddr("runqueues", 0); '
                  'print(($mine.cpu == cpu, $first.cpu, $first.nr_running < 1000, percpu_kaddr("runqueues", 10000))); exit() }', lambda: None)
    assert event.value == (True, 0, True, 0)


@pytest.mark.vm(since="5.10")
def test_override_where_the_kernel_has_it(rawbpf):
    """Kernels with CONFIG_BPF_KPROBE_OVERRIDE return what was asked for; others are told apart by their error."""
    from rawbpf.loader import features
    script = 'kprobe:__x64_sys_getuid /pid == %d/ { override(2 << 21); }' % os.getpid()
    if features.has_helper("bpf_override_return", "kprobe"):
        with Script(script, unsafe=True).attach():
            assert os.getuid() == 2 << 21
        assert os.getuid() == 0
    else:
        done = rawbpf("trace", "--unsafe", "-e", script)
        assert done.returncode == 1 and "override() is not supported by this kernel (CONFIG_BPF_KPROBE_OVERRIDE" in done.stderr
    done = rawbpf("trace", "-e", script)
    assert "override() is unsafe. To use you need the --unsafe flag" in done.stderr


@pytest.mark.vm(since="5.10")
def test_write_user(rawbpf, compile_c):
    program = compile_c(TARGET, "-O1", name="room")
    done = rawbpf("trace", "-q", "--unsafe", "-c", program, "-e",
                  'uprobe:%s:work { $t = "after!"; @ok = write_user(uaddr("room"), $t, 6); }' % program)
    assert "after!" in done.stdout and "@ok: true" in done.stdout, done.stderr


@pytest.mark.vm(since="6.1")
def test_packets_in_pcap_files(tmp_path, loopback):
    """An IP packet as it was sent, without the 14 bytes of the Ethernet header; pcap's format is that of its manual page."""
    with Script('fentry:__dev_queue_xmit /pid == %d/ { $r = skboutput("%s", args.skb, args.skb.len, 14); printf("%%d", $r); }'
                % (os.getpid(), tmp_path / "out.pcap")).attach() as script:
        send()
        script.stop()
        values = [event.arguments[0] for event in script]
    assert set(values) == {0}       # the answer that nobody listens is one too
    data = (tmp_path / "out.pcap").read_bytes()
    magic, major, minor, _, _, length, link = struct.unpack_from("=IHHiIII", data)
    assert (magic, major, minor, length, link) == (0xa1b2c3d4, 2, 4, 65535, 101)
    seconds, micro, kept, whole = struct.unpack_from("=IIII", data, 24)
    packet = data[40:40 + kept]
    import time
    assert kept == whole == 20 + 8 + 12 and abs(seconds - time.time()) < 100 and micro < 10 ** 6 and len(data) >= 40 + kept
    assert packet[0] == 0x45 and packet[12:20] == bytes([127, 0, 0, 1] * 2) and packet[-12:] == b"hello packet"


@pytest.mark.vm(since="6.1")
def test_socket_cookie(loopback):
    """As SO_COOKIE (57) says it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        cookie, = struct.unpack("=Q", sender.getsockopt(socket.SOL_SOCKET, 57, 8))
        event = first("fentry:inet_sendmsg /pid == %d/ { print(socket_cookie(args.sock.sk)); }" % os.getpid(),
                      lambda: sender.sendto(b"x", ("127.0.0.1", 9)))
    assert event.value == cookie


@pytest.mark.vm(since="5.10")
def test_context_of_kprobes():
    """ctx is struct pt_regs there; usermode is 0 in the kernel."""
    event = first("kprobe:do_nanosleep /pid == %d/ { print((ctx.ip == reg(\"ip\"), ctx.di == arg0, usermode)); }" % os.getpid(),
                  lambda: os.system(":") or __import__("time").sleep(0.01))
    assert event.value == (True, True, 0)


@pytest.mark.vm(since="5.10")
def test_a_watchpoint_is_removed():
    """unwatch(): jiffies changes a hundred times a second; after the first hit nothing more is counted for long."""
    with open("/proc/kallsyms") as file:
        address = re.search(r"^([0-9a-f]+) . jiffies$", file.read(), re.M).group(1)
    import time
    with Script("watchpoint:0x%s:8:w { @hits = count(); unwatch(0x%s); }" % (address, address)).attach() as script:
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            script.poll(0.1)
        seen = script.maps["@hits"]
        time.sleep(1)
        script.poll(0.1)
        assert 0 < seen == script.maps["@hits"]
