"""Every kind of link by one table: what info says, a pin that keeps it attached, update and detach where the kernel has
them, and that nothing stays. What each kind does to packets and functions is in the other files."""

import errno
import os
import socket
import time
from typing import Any, NamedTuple

import pytest

from rawbpf.loader import KernelError, Map, PerfEvent, Program, features, ids, kernel, ksyms, link, link_net, perf
from rawbpf.loader.detached import mount
from rawbpf.loader.link import Link
from rawbpf.loader.uapi import LINK_TYPES
from tests.loader.interfaces import pair
from tests.loader.test_links import cgroup, counting, in_netns, loopback_up      # noqa: F401 (a fixture)

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


class Kind(NamedTuple):
    """program: type and options of Program.load; attach(program) -> Link; fields: what info() says; update, detach: the
    first kernel that can, None where none can."""

    program: Any
    attach: Any
    fields: dict
    update: Any = None
    detach: Any = None
    since: tuple = (5, 8)


def _target(prefix, name, kind="func"):
    found = ksyms.find(prefix + name, kind)
    return found[0] if found else 0


def _uprobe():
    from rawbpf.elf import Image, Symbols
    from rawbpf.elf.ldcache import find_library
    image = Image.open(find_library("c"))
    return image.path, image.file_offset(Symbols(image).find("getppid").value)


def network():
    """Kinds of a network namespace of its own, the loopback interface's among them."""
    lo = socket.if_nametoindex("lo")
    netns = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    inode = os.stat("/proc/self/ns/net").st_ino
    sockets = Map.create("sockmap", 4, 8, 4)
    return {
        "netns": Kind(("sk_lookup", "sk_lookup"), lambda p: link_net.attach_netns(p, netns, "sk_lookup"),
                      {"netns_ino": inode, "attach_type": "sk_lookup"}, (5, 8), (5, 9), (5, 9)),
        "xdp": Kind(("xdp", None), lambda p: link_net.attach_xdp(p, lo, "skb"), {"ifindex": lo}, (5, 9), (5, 9), (5, 9)),
        "tcx": Kind(("sched_cls", "tcx_egress"), lambda p: link_net.attach_tcx(p, lo, "tcx_egress"),
                    {"ifindex": lo, "attach_type": "tcx_egress"}, (6, 6), (6, 6), (6, 6)),
        "netkit": Kind(("sched_cls", "netkit_primary"), lambda p: link_net.attach_netkit(
            p, socket.if_nametoindex("nk0"), "netkit_primary"), {"attach_type": "netkit_primary"}, (6, 7), (6, 7), (6, 7)),
        "netfilter": Kind(("netfilter", "netfilter"), lambda p: link_net.attach_netfilter(p, "ipv4", "forward", 7),
                          {"pf": 2, "hooknum": 2, "priority": 7, "flags": 0}, None, (6, 4), (6, 4)),
        "sockmap": Kind(("sk_msg", "sk_msg_verdict"), lambda p: link_net.attach_sockmap(p, sockets, "sk_msg_verdict"),
                        {"map_id": sockets.info().id, "attach_type": "sk_msg_verdict"}, (6, 10), (6, 10), (6, 10)),
    }


def others(cgroup):        # noqa: F811
    path, offset = _uprobe()
    number = _target("", "do_sys_openat2") or _target("", "do_sys_open")
    traced = {"attach_btf_id": number}
    return {
        "raw_tracepoint": Kind(("raw_tracepoint", None), lambda p: link.attach_raw_tracepoint(p, "sys_enter"),
                               {"tp_name": "sys_enter"}),
        "cgroup": Kind(("cgroup_skb", "cgroup_inet_egress"), lambda p: link_net.attach_cgroup(
            p, cgroup, "cgroup_inet_egress"), {"cgroup_id": os.fstat(cgroup).st_ino, "attach_type": "cgroup_inet_egress"},
            (5, 7), (5, 9)),
        "iter": Kind(("tracing", "trace_iter", {"attach_btf_id": _target("bpf_iter_", "bpf_map")}), link.attach_iter,
                     {"target_name": "bpf_map"} if kernel.release() >= (5, 10) else {}, (5, 8)),
        "perf_event": Kind(("kprobe", None), lambda p: link.attach_perf_event(p, PerfEvent.open(perf.uprobe(path, offset))),
                           {"perf_type": "uprobe", "offset": offset} if kernel.release() >= (6, 6) else {}, since=(5, 15)),
        "uprobe_multi": Kind(("kprobe", "trace_uprobe_multi"), lambda p: link.attach_uprobe_multi(p, path, [offset]),
                             {"path": os.path.realpath(path), "offsets": [offset]} if kernel.release() >= (6, 8) else {},
                             since=(6, 6)),
        "kprobe_multi": Kind(("kprobe", "trace_kprobe_multi"), lambda p: link.attach_kprobe_multi(p, ["do_nanosleep"]),
                             {"count": 1} if kernel.release() >= (6, 6) else {}, since=(5, 18)),
        "tracing": Kind(("tracing", "trace_fentry", traced), link.attach_tracing,
                        {"attach_type": "trace_fentry", **({"target_btf_id": number} if kernel.release() >= (6, 0) else {})}),
        "tracing_multi": Kind(("tracing", "trace_fentry_multi"), lambda p: link.attach_tracing_multi(
            p, "trace_fentry_multi", [number]), {"count": 1, "ids": [number]}, since=(7, 2)),
    }


def _gone(number, kind="link"):
    """Is the link (or program) with this id away? What is the last to hold it lets go after a grace period."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        fd = ids.open_fd(kind, number)
        if fd is None:
            return True
        os.close(fd)
        time.sleep(0.01)
    return False


def _possible(name, kind):
    """Has this kernel such links? Debian builds some kernels without FPROBE, BPF netfilter, netkit; others are locked
    down against fentry."""
    if name == "netkit":
        try:
            pair("netkit", "nk0", "nk1")
        except KernelError as error:
            assert error.errno == errno.EOPNOTSUPP
            return False
    if kernel.release() < kind.since:
        if name == "perf_event":        # the event itself holds the program there, and is no link
            before = set(ids.walk("link"))
            with kind.attach(_loaded(kind)):
                assert set(ids.walk("link")) <= before
            return False
        with pytest.raises((KernelError, ValueError)):
            kind.attach(_loaded(kind))
        return False
    if name.startswith("tracing"):
        return features.has_program("tracing", kind.program[1]) and kernel.lockdown() in (None, "none")
    return features.has_link(name)


def _loaded(kind):
    type, attach_type, *more = kind.program
    return counting(type, 1 if type == "cgroup_skb" or type == "sk_msg" or type == "sk_lookup" else 0,
                    **dict(more[0] if more else {}, expected_attach_type=attach_type))[0]


def walk(name, kind, folder):
    """The whole life of one link."""
    first, second = _loaded(kind), _loaded(kind)
    one, two = first.info().id, second.info().id
    attached, path = kind.attach(first), folder + "/" + name
    info = attached.info()
    number = info.id
    assert (info.type, info.prog_id) == (name, one)
    assert {field: getattr(info, field) for field in kind.fields} == kind.fields
    assert number in ids.walk("link")
    attached.pin(path)
    attached.close()
    with Link.pinned(path) as attached:
        assert attached.info() == info
        if kind.update is None:
            with pytest.raises(KernelError, match="this kind of link cannot be updated"):
                attached.update(second)
        else:
            attached.update(second, old=first)
            assert attached.info().prog_id == two and attached.info().id == number
            with pytest.raises(KernelError, match="another program is there than the `old` one"):
                attached.update(first, old=first)
            with Program.load("kprobe" if kind.program[0] != "kprobe" else "tracepoint", bytes.fromhex(
                    "b700000000000000" "9500000000000000")) as other, pytest.raises(KernelError, match="EINVAL"):
                attached.update(other)
            attached.update(first)
            assert attached.info().prog_id == one
        if kind.detach is None or kernel.release() < kind.detach:
            with pytest.raises(KernelError, match="this kind of link cannot be detached: close it"):
                attached.detach()
        else:
            attached.detach()
            again = kind.attach(second)         # the place is free, though the old link is there
            assert again.info().id != number and attached.info().id == number
            again.close()
        os.unlink(path)
    assert _gone(number)
    for program in (first, second):
        program.close()
    assert _gone(two, "prog")


@pytest.fixture
def folder():
    fd = mount("bpf")
    yield "/proc/self/fd/%d" % fd
    os.close(fd)


@pytest.mark.parametrize("name", ["raw_tracepoint", "cgroup", "iter", "perf_event", "uprobe_multi", "kprobe_multi",
                                  "tracing", "tracing_multi"])
def test_links(name, cgroup, folder):       # noqa: F811
    kind = others(cgroup)[name]
    if _possible(name, kind):
        walk(name, kind, folder)


@pytest.mark.parametrize("name", ["netns", "xdp", "tcx", "netkit", "netfilter", "sockmap"])
def test_links_of_a_network(name, folder):
    def body():
        loopback_up()
        kind = network()[name] if kernel.release() >= (5, 9) else None
        if kind is not None and _possible(name, kind):
            walk(name, kind, folder)
    in_netns(body)


@pytest.mark.peer
def test_links_of_structs(folder):
    """struct_ops: info names the map; pinned it stays registered; another map takes its place; detach (6.10+)."""
    from rawbpf.loader import Object
    from tests.bpfcc import compile_bpf
    if kernel.release() < (6, 4):
        return
    with Object.open(compile_bpf("struct_ops.c")) as one, Object.open(compile_bpf("struct_ops.c")) as two:
        for obj in (one, two):
            obj.maps["plain"].autocreate, obj.maps["linked"].autocreate = False, True
            obj.load()
        group = one.attach()
        info = group.links[0].info()
        group.links[0].pin(folder + "/ops")
        group.close()
        with Link.pinned(folder + "/ops") as attached:
            assert attached.info() == info and (info.type, info.map_id) == ("struct_ops", one.maps["linked"].map.info().id)
            two.maps["linked"].map.update(0, two.maps["linked"].value())
            attached.update(two.maps["linked"].map)
            assert attached.info().map_id == two.maps["linked"].map.info().id
            os.unlink(folder + "/ops")
            if kernel.release() >= (6, 10):
                attached.detach()
                assert attached.info().map_id == 0
        assert _gone(info.id)


def test_the_table_has_every_kind():
    """All of enum bpf_link_type, but "unspec"."""
    here = {"raw_tracepoint", "cgroup", "iter", "perf_event", "uprobe_multi", "kprobe_multi", "tracing", "tracing_multi",
            "netns", "xdp", "tcx", "netkit", "netfilter", "sockmap", "struct_ops"}
    assert here == set(LINK_TYPES) - {"unspec"}
