"""Links of the kinds that are no tracing: what they do, info, update, detach, pins; and queries."""

import ctypes
import os
import socket
import struct
import traceback

import pytest

from rawbpf.loader import KernelError, Map, PerfEvent, Program, ids, link, perf
from rawbpf.loader import link_net
from rawbpf.loader.btf import BtfObject
from rawbpf.loader.detached import mount
from rawbpf.loader.kobject import make_pin_folder
from rawbpf.loader.link import Link
from rawbpf.loader.query import task_fd_query
from tests.loader.code import EXIT, RETURN_0, atomic_add, lookup, mov

CLONE_NEWNET = 0x40000000


def in_netns(function):
    """Runs function() in a child that has a network of its own, so that the host's is not touched."""
    child = os.fork()
    if not child:
        status = 1
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "unshare")
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def counting(type, result, **options):
    """(program that counts its runs and returns result, function that gives the count)"""
    counter = Map.create("array", 4, 8, 1)
    code = lookup(counter, 6) + mov(1, 1) + atomic_add(6, 0, 1) + mov(0, result) + EXIT
    program = Program.load(type, code, **options)
    return program, lambda: struct.unpack("=Q", counter.lookup(bytes(4)))[0]


def loopback_up():
    """Brings lo up: SIOCSIFFLAGS."""
    import fcntl
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))


def send(count=5, wait=False):
    """`count` datagrams over the loopback interface; how many arrived."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver, \
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(2 if wait else 0.2)
        got = 0
        try:
            for _ in range(count):
                sender.sendto(b"x" * 50, receiver.getsockname())
            for _ in range(count):
                receiver.recv(100)
                got += 1
        except OSError:      # EPERM for the sender, a timeout for the receiver
            return got
        return got


@pytest.fixture
def cgroup():
    """Descriptor of an empty cgroup, by a cgroup2 file system that is mounted nowhere."""
    root = mount("cgroup2")
    name = "rawbpf-test-%d" % os.getpid()
    os.mkdir(name, dir_fd=root)
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    yield fd
    os.close(fd)
    os.rmdir(name, dir_fd=root)
    os.close(root)


def enter(cgroup, pid):
    fd = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroup)
    os.write(fd, str(pid).encode())
    os.close(fd)


@pytest.mark.kernel
def test_cgroup_link(cgroup):
    """A program on a cgroup decides over what a process in it may send; update() changes the verdict."""
    deny, denied = counting("cgroup_skb", 0, expected_attach_type="cgroup_inet_egress")
    allow, allowed = counting("cgroup_skb", 1, expected_attach_type="cgroup_inet_egress")
    attached = link_net.attach_cgroup(deny, cgroup, "cgroup_inet_egress")
    info = attached.info()
    assert (info.type, info.attach_type, info.prog_id) == ("cgroup", "cgroup_inet_egress", deny.info().id)
    assert link_net.prog_query(cgroup, "cgroup_inet_egress").prog_ids == [deny.info().id]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.read(reading, 1)
            assert send() == 0
            os.kill(os.getppid(), 0)
            os.write(2, b"")
            os.read(reading, 1)
            assert send(wait=True) == 5
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    try:
        enter(cgroup, child)
        os.write(writing, b"1")
        while denied() < 1:
            os.sched_yield()
        attached.update(allow, old=deny)
        os.write(writing, b"2")
    finally:
        status = os.waitpid(child, 0)[1]
        os.close(reading)
        os.close(writing)
    assert os.waitstatus_to_exitcode(status) == 0
    assert allowed() >= 5
    with pytest.raises(KernelError, match="EPERM.*: another program is there than the `old` one"):
        attached.update(deny, old=deny)         # allow is there
    attached.close()
    assert link_net.prog_query(cgroup, "cgroup_inet_egress").prog_ids == []


@pytest.mark.kernel
def test_cgroup_without_link(cgroup):
    program, _ = counting("cgroup_skb", 1, expected_attach_type="cgroup_inet_ingress")
    link_net.prog_attach(program, cgroup, "cgroup_inet_ingress")
    assert link_net.prog_query(cgroup, "cgroup_inet_ingress").prog_ids == [program.info().id]
    with pytest.raises(KernelError, match="EPERM.*: a program on this cgroup or on one above it was attached without F_ALLOW_MULTI"):
        link_net.attach_cgroup(program, cgroup, "cgroup_inet_ingress")
    link_net.prog_detach(program, cgroup, "cgroup_inet_ingress")
    assert link_net.prog_query(cgroup, "cgroup_inet_ingress").prog_ids == []
    with pytest.raises(KernelError, match="not attached there"):
        link_net.prog_detach(program, cgroup, "cgroup_inet_ingress")


@pytest.mark.kernel
def test_links_to_what_is_no_target():
    program, _ = counting("cgroup_skb", 1, expected_attach_type="cgroup_inet_ingress")
    with open("/dev/null") as file, pytest.raises(KernelError, match="no cgroup"):
        link_net.attach_cgroup(program, file, "cgroup_inet_ingress")
    xdp, _ = counting("xdp", 2)
    with pytest.raises(KernelError, match="no such interface"):
        link_net.attach_xdp(xdp, 999999)


@pytest.mark.kernel
def test_xdp_link():
    def body():
        loopback_up()
        index = socket.if_nametoindex("lo")
        passing, passed = counting("xdp", 2)
        dropping, dropped = counting("xdp", 1)
        assert send(wait=True) == 5
        with link_net.attach_xdp(passing, index, "skb") as attached:
            assert send(wait=True) == 5 and passed() == 5
            assert (attached.info().type, attached.info().ifindex) == ("xdp", index)
            attached.update(dropping)
            assert send() == 0 and dropped() == 5
            with pytest.raises(KernelError, match="another program is there"):
                link_net.attach_xdp(passing, index, "skb")
            attached.detach()
            assert send(wait=True) == 5
        assert (passed(), dropped()) == (5, 5)
    in_netns(body)


@pytest.mark.kernel(since="6.6")
def test_tcx_links_in_order():
    """A program put before another runs first, and may keep the packet from it."""
    from rawbpf.loader.uapi import F_BEFORE

    def body():
        loopback_up()
        index = socket.if_nametoindex("lo")
        going_on, count = counting("sched_cls", -1, expected_attach_type="tcx_ingress")  # TCX_NEXT
        dropping, drops = counting("sched_cls", 2, expected_attach_type="tcx_ingress")   # TCX_DROP
        with link_net.attach_tcx(going_on, index, "tcx_ingress") as first:
            assert send(wait=True) == 5 and count() == 5
            with link_net.attach_tcx(dropping, index, "tcx_ingress", F_BEFORE, going_on) as second:
                assert send() == 0
                assert (count(), drops()) == (5, 5)
                found = link_net.prog_query(index, "tcx_ingress")
                assert found.prog_ids == [dropping.info().id, going_on.info().id]
                assert found.link_ids == [second.info().id, first.info().id]
                assert second.info().ifindex == index
            assert send(wait=True) == 5 and count() == 10
        assert send(wait=True) == 5 and count() == 10
    in_netns(body)


@pytest.mark.kernel
def test_netns_link():
    def body():
        loopback_up()
        program, count = counting("sk_lookup", 1, expected_attach_type="sk_lookup")
        with link_net.open_path("/proc/self/ns/net") as netns:
            with link_net.attach_netns(program, netns, "sk_lookup") as attached:
                assert send(wait=True) == 5
                assert count() >= 1
                assert attached.info().netns_ino == os.stat("/proc/self/ns/net").st_ino
                seen = count()
            assert send(wait=True) == 5 and count() == seen
    in_netns(body)


@pytest.mark.kernel(since="6.4")
def test_netfilter_link():
    def body():
        loopback_up()
        program, count = counting("netfilter", 0, expected_attach_type="netfilter")     # NF_DROP
        with link_net.attach_netfilter(program, "ipv4", "local_in", priority=-128) as attached:
            assert send() == 0 and count() == 5
            info = attached.info()
            assert (info.pf, info.hooknum, info.priority) == (2, 1, -128)
        assert send(wait=True) == 5 and count() == 5
    from rawbpf.loader import features
    if features.has_program("netfilter"):      # CONFIG_NETFILTER_BPF_LINK
        in_netns(body)


# -- pins, ids, info --

@pytest.fixture
def bpffs():
    """Path of a BPF file system that no other process sees."""
    fd = mount("bpf")
    yield "/proc/self/fd/%d" % fd
    os.close(fd)


@pytest.mark.kernel
def test_pins(bpffs):
    map = Map.create("hash", 4, 8, 10, name="pinned")
    map.update(b"key1", b"value--1")
    program, count = counting("raw_tracepoint", 0, name="pinned")
    attached = link.attach_raw_tracepoint(program, "sys_enter")
    for item, name in ((map, "map"), (program, "prog"), (attached, "link")):
        item.pin(bpffs + "/" + name)
        with pytest.raises(KernelError, match="pinned there already"):
            item.pin(bpffs + "/" + name)
    number = program.info().id
    for item in (map, program, attached):
        item.close()
    before = count()
    os.getppid()
    assert count() > before                 # the pin keeps it attached
    with Map.pinned(bpffs + "/map") as again:
        assert again.lookup(b"key1") == b"value--1" and again.name == "pinned"
    with Program.pinned(bpffs + "/prog") as again:
        assert again.info().id == number and again.type == "raw_tracepoint"
    with Link.pinned(bpffs + "/link") as again:
        assert again.info().prog_id == number
        assert again.info().tp_name == "sys_enter"
    with pytest.raises(ValueError, match="is a map, not a prog"):
        Program.pinned(bpffs + "/map")
    with pytest.raises(KernelError, match="nothing is pinned there"):
        Map.pinned(bpffs + "/none")
    with Map.create("array", 4, 4, 1) as other:
        with pytest.raises(KernelError, match="not in a BPF file system"):
            other.pin("/dev/shm/rawbpf-no-pin")
        with pytest.raises(KernelError, match="directory does not exist"):
            other.pin(bpffs + "/no/such")
        with pytest.raises(KernelError, match="ENOENT") as caught:
            make_pin_folder(bpffs + "/no/such")
        assert "not in" not in str(caught.value)
    for name in ("map", "prog", "link"):
        os.unlink(bpffs + "/" + name)
    seen = count()
    os.getppid()
    # detached with the last reference, after a grace period at most
    assert count() - seen < 1000000


@pytest.mark.root
@pytest.mark.parametrize("path", ["/proc/x", "/proc/no/such/x", "/dev/shm/x", "/dev/shm/no/such", "/sys/kernel/x", "here", "no/such"])
def test_every_path_outside_of_a_bpf_file_system_is_said_to_be(path, tmp_path, monkeypatch):
    """Whatever the error: procfs and sysfs give ENOENT in folders that are there."""
    monkeypatch.chdir(tmp_path)
    with Map.create("array", 4, 4, 1) as map:
        for use in (lambda: map.pin(path), lambda: Map.pinned(path)):
            with pytest.raises(KernelError, match=r"the path is not in a BPF file system \(mount -t bpf bpf /sys/fs/bpf\)"):
                use()
    assert not os.path.exists(path)


@pytest.mark.kernel(since="6.6")
def test_pins_relative_to_a_descriptor():
    fd = mount("bpf")
    with Map.create("array", 4, 4, 1) as map:
        map.pin("here", dir_fd=fd)
        with Map.pinned("here", dir_fd=fd) as again:
            assert again.info().id == map.info().id
    os.close(fd)


@pytest.mark.kernel
def test_ids():
    with Map.create("hash", 4, 8, 10) as map, Program.load("kprobe", RETURN_0) as program:
        for kind, item in (("map", map), ("prog", program)):
            number = item.info().id
            found = list(ids.walk(kind))
            assert number in found and found == sorted(found)
            with type(item).from_id(number) if kind == "prog" else Map.from_id(number) as again:
                assert again.info().id == number
        number = map.info().id
    with pytest.raises(KernelError, match="there is no such map"):
        Map.from_id(number)
    assert ids.open_fd("map", number) is None


@pytest.mark.kernel
def test_links_have_ids():
    program, _ = counting("raw_tracepoint", 0)
    with link.attach_raw_tracepoint(program, "sys_exit") as attached:
        number = attached.info().id
        assert number in ids.walk("link")
        with Link.from_id(number) as again:
            assert again.info().tp_name == "sys_exit"


@pytest.mark.kernel(since="6.6")
def test_info_of_perf_and_multi_links(compile_c):
    from tests.loader.test_attach import TARGET, Target
    target = Target(compile_c(TARGET, "-O1", name="target"))
    single, _ = counting("kprobe", 0)
    with link.attach_perf_event(single, PerfEvent.open(perf.uprobe(target.path, target.work)),
                                cookie=5) as attached:
        info = attached.info()
        assert (info.type, info.perf_type, info.name, info.offset) == (
            "perf_event", "uprobe", os.path.realpath(target.path), target.work)
    several, _ = counting("kprobe", 0, expected_attach_type="trace_uprobe_multi")
    with link.attach_uprobe_multi(several, target.path, [target.work, target.other],
                                  cookies=[7, 8]) as attached:
        from rawbpf.loader import kernel
        info = attached.info()
        assert info.type == "uprobe_multi"
        if kernel.release() >= (6, 8):
            assert info.path == os.path.realpath(target.path)
            assert dict(zip(info.offsets, info.cookies)) == {target.work: 7, target.other: 8}
    target.close()


@pytest.mark.kernel
def test_ioctl_links_have_no_info():
    from rawbpf.loader import features
    if features.has_link("perf_event"):
        return
    program, _ = counting("perf_event", 0)
    with link.attach_perf_event(program, PerfEvent.open(perf.software("dummy", period=1))) as attached:
        with pytest.raises(KernelError, match="needs Linux 5.15"):
            attached.info()


@pytest.mark.kernel
def test_task_fd_query(compile_c):
    from tests.loader.test_attach import TARGET, Target
    target = Target(compile_c(TARGET, "-O1", name="target"))
    program, _ = counting("kprobe", 0)
    raw, _ = counting("raw_tracepoint", 0)
    with link.attach_perf_event(program, PerfEvent.open(perf.uprobe(target.path, target.work))) as one, \
            link.attach_raw_tracepoint(raw, "sys_enter") as two:
        found = task_fd_query(os.getpid(), one.event.fd)
        assert (found.fd_type, found.prog_id, found.probe_offset) == (
            "uprobe", program.info().id, target.work)
        assert found.name == os.path.realpath(target.path) or found.name == target.path
        found = task_fd_query(os.getpid(), two.fd)
        assert (found.fd_type, found.prog_id, found.name) == (
            "raw_tracepoint", raw.info().id, "sys_enter")
        with open("/dev/null") as file:
            assert task_fd_query(os.getpid(), file.fileno()) is None
    target.close()


@pytest.mark.kernel
def test_iterator():
    """A program that writes nothing still visits every map; one run ends with end of file."""
    from rawbpf.loader import ksyms
    found = ksyms.find("bpf_iter_bpf_map", "func")
    program, count = counting("tracing", 0, expected_attach_type="trace_iter", attach_btf_id=found[0])
    maps = len(list(ids.walk("map")))
    with link.attach_iter(program) as attached:
        fd = link.iter_open(attached)
        assert os.read(fd, 100) == b""
        os.close(fd)
        assert abs(count() - maps - 1) <= 3        # one for each, one for the end; others may be at work


@pytest.mark.kernel
def test_btf_objects():
    from rawbpf.loader.btf import storage_types
    with BtfObject.load(storage_types(24)) as mine:
        info = mine.info()
        assert not info.kernel_btf and info.name == ""
        assert mine.data() == storage_types(24)
        with BtfObject.from_id(info.id) as again:
            assert again.data() == mine.data()
    with pytest.raises(KernelError, match="load of BTF.*Invalid"):
        BtfObject.load(b"no BTF" + bytes(50))
    with pytest.raises(KernelError, match="type_id=77 Invalid|Invalid"):
        BtfObject.load(storage_types(24).replace(struct.pack("=II", 2, 1), struct.pack("=II", 77, 1)))


@pytest.mark.kernel(since="5.11")
def test_kernel_btf():
    with BtfObject.of_module("vmlinux") as kernel_types:
        with open("/sys/kernel/btf/vmlinux", "rb") as file:
            assert kernel_types.data() == file.read()
    with pytest.raises(KernelError, match="none of that name"):
        BtfObject.of_module("no_such_module")


@pytest.mark.kernel(since="6.2")
def test_kfunc_call():
    from rawbpf.asm import Instruction, KsymRef
    from rawbpf.loader.uapi import F_SLEEPABLE
    code = [Instruction(0x85, 0, 2, 0, 0, KsymRef("bpf_rcu_read_lock")),
            Instruction(0x85, 0, 2, 0, 0, KsymRef("bpf_rcu_read_unlock")),
            Instruction(0xb7, 0, 0, 0, 7), Instruction(0x95)]
    with Program.load("syscall", code, flags=F_SLEEPABLE) as program:
        assert program.test_run().retval == 7
    with pytest.raises(ValueError, match="no kfunc bpf_no_such_thing"):
        Program.load("syscall", [Instruction(0x85, 0, 2, 0, 0, KsymRef("bpf_no_such_thing"))])


@pytest.mark.kernel
def test_token():
    """The initial user namespace has no tokens, and before 6.9 nobody has."""
    from rawbpf.loader import kernel
    from rawbpf.loader.kobject import Token
    root = mount("bpf")
    with pytest.raises(KernelError, match="not for the initial one|delegate_" if kernel.release() >= (6, 9)
                       else "needs Linux 6.9"):
        Token.create(root)
    os.close(root)


@pytest.mark.kernel(since="6.18")
def test_stream_of_a_program_that_says_nothing():
    with Program.load("syscall", RETURN_0, flags=1 << 4) as program:
        assert program.read_stream() == b""
