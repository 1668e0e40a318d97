"""Links and attachments of further kinds: sockets' maps, functions of programs, iterators over a map, order on a cgroup;
maps by index."""

import errno
import os
import socket
import struct

import pytest

from rawbpf.loader import KernelError, Map, Program, kernel, ksyms, link, link_net
from rawbpf.loader.uapi import F_AFTER, F_BEFORE
from tests.loader.code import EXIT, insn, load, lookup
from tests.loader.interfaces import frames, pair
from tests.loader.test_links import cgroup, counting, in_netns, loopback_up      # noqa: F401 (a fixture)

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


def connected():
    """Two ends of a TCP connection."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


def exchange(sender, receiver, count=3):
    for _ in range(count):
        sender.sendall(b"x" * 100)
        got = 0
        while got < 100:
            got += len(receiver.recv(100))


def test_messages_of_a_socket_map():
    """An sk_msg program sees what the sockets of a map send."""
    def body():
        loopback_up()
        program, count = counting("sk_msg", 1, expected_attach_type="sk_msg_verdict")
        one, other = connected()
        with one, other, Map.create("sockmap", 4, 8, 4) as sockets:
            if kernel.release() >= (6, 10):
                with link_net.attach_sockmap(program, sockets, "sk_msg_verdict") as attached:
                    info = attached.info()
                    assert (info.type, info.map_id, info.attach_type) == ("sockmap", sockets.info().id, "sk_msg_verdict")
                    assert link_net.prog_query(sockets, "sk_msg_verdict").prog_ids == [program.info().id]
                    second, seen = counting("sk_msg", 1, expected_attach_type="sk_msg_verdict")
                    attached.update(second)
                    assert link_net.prog_query(sockets, "sk_msg_verdict").prog_ids == [second.info().id]
                    sockets[1] = one
                    exchange(one, other)
                    assert seen() >= 3 and count() == 0
                    sockets.delete(1)
                    before = seen()
                    exchange(one, other)
                    assert seen() == before
                assert link_net.prog_query(sockets, "sk_msg_verdict").prog_ids == []
            else:
                with pytest.raises(KernelError, match="needs Linux 6.10"):
                    link_net.attach_sockmap(program, sockets, "sk_msg_verdict")
            link_net.prog_attach(program, sockets, "sk_msg_verdict")
            sockets[2] = other
            before = count()
            exchange(other, one)
            assert count() - before >= 3
            link_net.prog_detach(program, sockets, "sk_msg_verdict")
    in_netns(body)


@pytest.mark.kernel(since="5.13")
def test_packets_of_a_socket_map():
    """An sk_skb program sees what the sockets of a map receive."""
    def body():
        loopback_up()
        program, count = counting("sk_skb", 1, expected_attach_type="sk_skb_verdict")
        one, other = connected()
        with one, other, Map.create("sockhash", 4, 8, 4) as sockets:
            link_net.prog_attach(program, sockets, "sk_skb_verdict")
            sockets[77] = one
            exchange(other, one)
            assert count() >= 3
            link_net.prog_detach(program, sockets, "sk_skb_verdict")
    in_netns(body)


def test_an_iterator_over_a_map():
    """Runs once for each element, and once at the end; the link says which map it is."""
    found = ksyms.find("bpf_iter_bpf_map_elem", "func")
    program, count = counting("tracing", 0, expected_attach_type="trace_iter", attach_btf_id=found[0])
    with Map.create("hash", 4, 8, 100) as map:
        for number in range(30):
            map[number] = bytes(8)
        with link.attach_iter(program, struct.pack("=I", map.fileno())) as attached:
            assert (attached.info().target_name, attached.info().map_id) == ("bpf_map_elem", map.info().id)
            fd = link.iter_open(attached)
            assert os.read(fd, 100) == b""
            os.close(fd)
            assert count() == 31
        with pytest.raises(KernelError):
            link.attach_iter(program, struct.pack("=I", 0xffff))


@pytest.mark.kernel(since="6.16")
def test_order_on_a_cgroup(cgroup):     # noqa: F811
    programs = [counting("cgroup_skb", 1, expected_attach_type="cgroup_inet_egress")[0] for _ in range(3)]
    first, second, third = (program.info().id for program in programs)

    def there():
        return link_net.prog_query(cgroup, "cgroup_inet_egress").prog_ids
    with link_net.attach_cgroup(programs[0], cgroup, "cgroup_inet_egress") as one:
        with link_net.attach_cgroup(programs[1], cgroup, "cgroup_inet_egress", F_BEFORE, one) as two:
            with link_net.attach_cgroup(programs[2], cgroup, "cgroup_inet_egress", F_AFTER, two):
                assert there() == [second, third, first]
            assert there() == [second, first]
        assert there() == [first]


def test_netkit_needs_a_device():
    program, _ = counting("sched_cls", 0)
    lo = socket.if_nametoindex("lo")
    with pytest.raises(KernelError) as caught:
        link_net.attach_netkit(program, lo, "netkit_primary")
    if kernel.release() < (6, 7):
        assert "needs Linux 6.7" in str(caught.value)
    else:
        assert "interface" in str(caught.value)


@pytest.mark.kernel(since="6.7")
def test_netkit():
    """Both ends of a pair have programs, by links on the first one; they run in their order until one drops."""
    def body():
        try:
            one, two = pair("netkit", "nk0", "nk1")
        except KernelError as error:
            assert error.errno == errno.EOPNOTSUPP      # a kernel without CONFIG_NETKIT
            assert "NETKIT=y" not in str(kernel.config())
            return
        (program, count), (other, others) = (counting("sched_cls", 0, expected_attach_type="netkit_primary"),
                                             counting("sched_cls", 0, expected_attach_type="netkit_peer"))
        dropping, dropped = counting("sched_cls", 2, expected_attach_type="netkit_primary")     # NETKIT_DROP
        with link_net.attach_netkit(program, one, "netkit_primary") as first, \
                link_net.attach_netkit(other, one, "netkit_peer") as peers:
            assert (first.info().type, first.info().ifindex, first.info().attach_type) == ("netkit", one, "netkit_primary")
            assert peers.info().attach_type == "netkit_peer"
            assert (frames("nk0", "nk1"), count(), others()) == (5, 5, 0)
            assert (frames("nk1", "nk0"), count(), others()) == (5, 5, 5)
            with link_net.attach_netkit(dropping, one, "netkit_primary", F_BEFORE, first) as before:
                assert link_net.prog_query(one, "netkit_primary").prog_ids == [
                    dropping.info().id, program.info().id]
                assert link_net.prog_query(one, "netkit_peer").prog_ids == [other.info().id]
                assert (frames("nk0", "nk1"), count(), dropped()) == (0, 5, 1)        # the sender is told of the first
                passing, passed = counting("sched_cls", -1, expected_attach_type="netkit_primary")      # NETKIT_NEXT
                before.update(passing)
                assert (frames("nk0", "nk1"), count(), dropped(), passed()) == (5, 10, 1, 5)
            with pytest.raises(KernelError):
                link_net.attach_netkit(program, two, "netkit_primary")       # the second end takes none
        assert (frames("nk0", "nk1"), frames("nk1", "nk0"), others()) == (5, 5, 5)
    in_netns(body)


@pytest.mark.kernel(since="5.14")
def test_maps_by_index():
    """BPF_PSEUDO_MAP_IDX: the instruction names a place in fd_array."""
    with Map.create("array", 4, 8, 1) as one, Map.create("array", 4, 8, 1) as two:
        two[0] = struct.pack("=Q", 55)
        code = lookup(one, 6).replace(insn(0x18, 1, 1, 0, one.fd), insn(0x18, 1, 5, 0, 1)) + load(0, 6, 0) + EXIT
        with Program.load("socket_filter", code, fd_array=[one, two]) as program:
            assert program.test_run(bytes(14)).retval == 55
            assert program.info().map_ids == [two.info().id]
        if kernel.release() >= (6, 14):
            with Program.load("socket_filter", code, fd_array=[one, two], bind_fd_array=True) as program:
                assert sorted(program.info().map_ids) == sorted([one.info().id, two.info().id])


