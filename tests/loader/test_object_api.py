"""Small programs as their users write them: what Python sees of an object's maps, programs and attachments."""

import asyncio
import errno
import os
import socket
import struct

import pytest

from rawbpf.loader import KernelError, Map, Object, ObjectError, kernel, link_net
from rawbpf.loader.mapkinds import lpm_key
from rawbpf.loader.uapi import F_BEFORE
from tests.bpfcc import compile_bpf
from tests.loader.interfaces import frames, pair
from tests.loader.test_links import cgroup, in_netns     # noqa: F401 (a fixture)

pytestmark = [pytest.mark.peer, pytest.mark.kernel, pytest.mark.slow]
ROW = {"count": 5, "comm": "sh", "arr": [1, 2, 3]}


@pytest.fixture(scope="module")
def obj():
    with Object.open(compile_bpf("api.c")) as obj:
        obj.rodata["wanted"] = 5
        obj.load(only=["classify"])
        obj.load(only=["classify", "drop", "pass", "egress"])      # what is loaded stays as it is
        yield obj


def veth():
    """Makes va and vb -> could it? The guests' kernels have veth as a module, which is not there."""
    try:
        pair("veth", "va", "vb")
    except KernelError as error:
        assert error.errno == errno.EOPNOTSUPP and os.environ.get("RAWBPF_CC")
        return False
    return True


def test_structs_as_keys_and_values(obj):
    stats, key = obj.maps["stats"], {"pid": 1, "kind": 2, "port": 80}
    stats[key] = ROW
    assert stats[key] == ROW and key in stats and dict(key, pid=2) not in stats and len(stats) == 1
    assert list(stats.items()) == [(key, ROW)]
    with pytest.raises(ValueError, match="struct key has no member kin"):
        stats[{"pid": 1, "kin": 2}] = ROW
    with pytest.raises(ValueError, match="struct key takes a dict of its members, not 5"):
        stats[5] = ROW
    del stats[key]
    with pytest.raises(KeyError):
        stats[key]


def test_a_closed_object():
    with Object.open(compile_bpf("api.c")) as obj:
        obj.rodata["wanted"] = 5
        obj.load(only="pass")
    for use in (lambda: obj.bss["hits"], lambda: obj.bss.update({"hits": 1}), lambda: obj.rodata.memory("wanted"),
                lambda: obj.maps[".bss"].read(0, 8), lambda: obj.maps["stats"][1]):
        with pytest.raises(ObjectError, match="is closed|is not loaded"):
            use()
    with obj.load(only="pass"):
        assert obj.rodata["wanted"] == 5


def test_maps_of_maps(obj):
    outer = obj.maps["outer"]
    with Map.create("hash", 4, 8, 8) as one, outer.new_inner(name="two") as two:
        outer[1], outer[2] = one, two
        assert dict(outer.items()) == {1: one.info().id, 2: two.info().id}
        with outer.map.inner(2) as again:
            again[5] = struct.pack("=Q", 6)
        assert two[5] == struct.pack("=Q", 6) and two.info().name == "two"
        outer[2] = outer.new_inner()        # the map of maps keeps it
        assert outer.map.inner(2).info().name == "outer.inner"
        with Map.create("hash", 8, 8, 8) as other, pytest.raises(KernelError):
            outer[3] = other
    with pytest.raises(ObjectError, match="map stats: holds no maps"):
        obj.maps["stats"].new_inner()


def test_queues_and_prefixes(obj):
    obj.maps["queue"].push(ROW)
    assert (obj.maps["queue"].peek(), obj.maps["queue"].pop(), obj.maps["queue"].pop()) == (ROW, ROW, None)
    with pytest.raises(ObjectError, match="map stats: a hash map has keys"):
        obj.maps["stats"].push(ROW)
    routes = obj.maps["routes"]
    routes[{"prefixlen": 8, "addr": [10, 0, 0, 0]}] = 1
    routes.map[lpm_key("10.1.0.0/16")] = struct.pack("=I", 2)
    assert [routes.get({"prefixlen": 32, "addr": address}) for address in ([10, 2, 2, 3], [10, 1, 2, 3], [11, 1, 1, 1])] == [
        1, 2, None]
    assert lpm_key("10.1.2.3") == lpm_key(32, bytes([10, 1, 2, 3])) and lpm_key("::/0") == bytes(20)


def test_a_run_with_a_packet_and_its_context(obj):
    run = obj.programs["classify"].program.test_run(bytes(60), ctx=struct.pack("=III", 0, 0, 41))
    assert (run.retval, struct.unpack_from("=I", run.ctx, 8)) == (5, (42,))
    assert sum(obj.maps["percpu"][0]) == obj.bss["hits"] > 0


@pytest.mark.parametrize("name", ["ring", "perf"])
def test_records_awaited(obj, name):
    """The value type of the map is that of its records."""
    async def first():
        records = obj.maps[name].reader()       # before something is sent: a perf buffer only then is there
        records.records()
        obj.programs["classify"].program.test_run(bytes(60))
        async for event in obj.maps[name]:
            return event
    assert asyncio.run(asyncio.wait_for(first(), 10)) == {"pid": 7, "comm": "abc", "ts": 9}


@pytest.mark.kernel(since="5.8")
def test_records_that_are_short(obj):
    """One without all members of its type comes as bytes, nothing invented; a closed reader is made anew."""
    ring, run = obj.maps["ring"], obj.programs["classify"].program.test_run
    ring.reader().close()
    ring.records()
    event = struct.pack("=I16s4xQ", 7, b"abc", 9)
    for record_type, shown in (("struct row", event), (None, {"pid": 7, "comm": "abc", "ts": 9}),
                               ("struct prefix", {"prefixlen": 7, "addr": list(b"abc\0")})):
        ring.record_type = record_type
        run(bytes(60))
        assert ring.records() == [shown]
    ring.record_type = None
    with pytest.raises(TypeError, match="made with no options: close"):
        ring.reader(pages=8)


@pytest.mark.kernel(since="5.9")
def test_interfaces_by_name():
    def body():
        with Object.open(compile_bpf("api.c")) as obj:
            obj.load(only=["drop", "pass"])
            if not veth():
                return
            assert frames("va", "vb") == 5
            with obj.programs["drop"].attach_to("vb") as link:
                assert frames("va", "vb") == 0
                link.update(obj.programs["pass"])
                assert frames("va", "vb") == 5
            with pytest.raises(ObjectError, match="there is no interface vc"):
                obj.programs["drop"].attach_to("vc")
    in_netns(body)


@pytest.mark.kernel(since="6.6")
def test_an_order_of_two():
    def body():
        if not veth():
            return
        with Object.open(compile_bpf("api.c")) as one, Object.open(compile_bpf("api.c")) as two:
            first, second = (each.load(only="tcx").programs["tcx"] for each in (one, two))
            with first.attach_to("vb") as link, second.attach_to("vb", flags=F_BEFORE, relative=link):
                assert link_net.prog_query(socket.if_nametoindex("vb"), "tcx_ingress").prog_ids == [
                    second.program.info().id, first.program.info().id]
                assert frames("va", "vb") == 5
                assert (one.bss["hits"], two.bss["hits"]) == (5, 5)
    in_netns(body)


def test_a_filter_of_traffic_control():
    """A classifier, by its return value, where there is no tcx, too."""
    def body():
        if not veth():
            return
        with Object.open(compile_bpf("api.c")) as obj:
            program = obj.load(only="shot").programs["shot"]
            for name, direction in (("vb", "ingress"), ("va", "egress")):
                with program.attach_to(name, direction=direction) as one:
                    assert frames("va", "vb") == 0
                    with program.attach_to(name, direction=direction) as two:
                        assert (one.priority, one.handle) != (two.priority, two.handle)
                assert frames("va", "vb") == 5
            assert obj.bss["hits"] == 5 + 1         # on the way out the sender is told of the first one
    in_netns(body)


def test_an_iterator_over_a_map():
    with Object.open(compile_bpf("api.c")) as obj:
        obj.load(only=["element", "classify"])
        for number in range(20):
            obj.maps["stats"][{"pid": number, "kind": 1, "port": 2}] = ROW
        with obj.programs["element"].attach_to(obj.maps["stats"]) as link:
            assert (link.read(), obj.bss["hits"]) == (b"", 21)      # it also runs at the end
            link.read()
            assert obj.bss["hits"] == 42
        for target, options, said in ((None, {}, r"takes a map: attach_to\(map\)"), (None, {"pid": 1}, "takes a map"),
                                      (obj.maps["stats"], {"order": 1}, "takes no order")):
            with pytest.raises(ObjectError, match="iterator iter/bpf_map_elem " + said):
                obj.programs["element"].attach_to(target, **options)


def test_a_filter_of_a_socket():
    with Object.open(compile_bpf("api.c")) as obj:
        obj.load(only="nothing")
        one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with one, two:
            two.settimeout(0.05)
            with obj.programs["nothing"].attach_to(two):
                one.send(b"dropped")
                with pytest.raises(OSError):
                    two.recv(10)
            one.send(b"arrives")
            assert two.recv(10) == b"arrives"
        assert obj.bss["hits"] == 1


def test_an_attach_type_that_the_section_leaves_open(cgroup):       # noqa: F811
    with Object.open(compile_bpf("api.c")) as obj:
        program = obj.load(only="either").programs["either"]
        with pytest.raises(ObjectError, match="is not attached to a target like that"):
            program.attach_to(cgroup)
        with program.attach_to(cgroup, attach_type="cgroup_inet_ingress") as link:
            assert link.info().attach_type == "cgroup_inet_ingress"


@pytest.mark.kernel(since="5.15")
def test_cookies_and_processes():
    """A target, a cookie and a process that are given when a program is attached."""
    with Object.open(compile_bpf("api.c")) as obj:
        obj.load(only=["user", "point", "element"])
        obj.programs["user"].target = "libc.so.6:getpid"
        with obj.programs["user"].attach(cookie=1000, pid=os.getpid()), obj.programs["user"].attach(cookie=3, pid=1):
            os.getpid()
            os.getpid()
        assert (obj.bss["hits"], obj.bss["cookies"]) == (2, 2000)
        with obj.programs["point"].attach(cookie=1 << 40):
            os.getppid()
        assert obj.bss["cookies"] % (1 << 40) == 2000 and obj.bss["cookies"] >> 40 >= 1
        with pytest.raises(ObjectError, match="program point: tp takes no pid"):
            obj.programs["point"].attach(pid=1)


def test_a_cgroup_by_its_path(obj, cgroup):       # noqa: F811
    with obj.programs["egress"].attach_to("/proc/self/fd/%d" % cgroup) as link:
        assert link_net.prog_query(cgroup, "cgroup_inet_egress").prog_ids == [obj.programs["egress"].program.info().id]
        assert link.info().attach_type == "cgroup_inet_egress"
    assert link_net.prog_query(cgroup, "cgroup_inet_egress").prog_ids == []
    with pytest.raises(ObjectError, match="/no/such: No such file"):
        obj.programs["egress"].attach_to("/no/such")


def test_an_object_in_a_child(obj):
    child = os.fork()
    if not child:
        try:
            obj.programs["pass"].program.info()
        except ValueError as error:
            os._exit(7 if "the parent process's" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert obj.programs["pass"].program.info().name == "pass"


def test_a_size_of_a_ring_that_is_none():
    with Object.open(compile_bpf("api.c")) as obj:
        assert (obj.maps["ring"].value_size, obj.maps["perf"].value_size) == (0, 4)
        if kernel.release() >= (5, 8):
            obj.maps["ring"].max_entries = 5000
            obj.load(only="classify")
            assert obj.maps["ring"].map.max_entries == 8192
