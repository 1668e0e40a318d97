"""Calls that cannot mean anything, or that come too early, too late or in the wrong process: one clear error each, of the
kind that the documentation names, and nothing done."""

import copy
import os
import pickle
import socket
import threading

import pytest

from rawbpf.asm import assemble, write_object
from rawbpf.loader import KernelError, Map, Object, ObjectError, kernel, link
from rawbpf.loader.netlink import INGRESS, Socket
from rawbpf.loader.ringbuf import RingBuffer
from rawbpf.loader.perfbuf import PerfBuffer
from rawbpf.loader.uapi import ATTACH_TYPES, MAP_TYPES
from tests.bpfcc import compile_bpf_text
from tests.loader.test_links import in_netns

pytestmark = pytest.mark.root
TEXT = """
.license "GPL"
.map ring ringbuf max_entries=4096
.map table hash key=4 value=4 max_entries=4
.section %s
    r0 = 0
    exit
"""

LARGE = """#include "bpf.h"
char big[1 << 28];
int n;
SEC("socket") int probe(void *ctx) { return big[5] + n; }
"""


def opened(section="socket", **options):
    return Object.parse(write_object(assemble(TEXT % section), MAP_TYPES), "misuse.o", **options)


def only(obj):
    program, = obj.programs.values()
    return program


def in_child(body):
    """Whether body() is true in a forked child."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if body() else 2
        finally:
            os._exit(status)
    return os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 0


def test_a_ring_has_no_length():
    with opened() as obj:
        assert bool(obj.maps["ring"]) and bool(obj.maps["table"])       # not loaded either
        obj.load()
        ring = obj.maps["ring"]
        threading.Timer(0.02, ring.reader().close).start()
        assert list(ring) == [] and ring
        with pytest.raises(TypeError, match="map ring: a ringbuf map has no keys to count"):
            len(ring)
        assert len(obj.maps["table"]) == 0 and obj.maps["table"]


@pytest.mark.parametrize("name, value, said", [
    ("max_entries", -1, "-1 does not fit into 32 bits"), ("max_entries", 1 << 32, "4294967296 does not fit into 32 bits"),
    ("max_entries", 1.5, "1.5 is no number"), ("max_entries", "1", "'1' is no number"), ("max_entries", None, "None is no"),
    ("key_size", None, "None is no number"), ("flags", -1, "does not fit"), ("numa_node", "x", "is no number")])
def test_shapes_of_maps(name, value, said):
    for which in ("ring", "table"):
        with opened() as obj:
            setattr(obj.maps[which], name, value)
            with pytest.raises(ValueError, match="map %s: %s: .*%s" % (which, name, said)):
                obj.load()
            assert obj.maps[which].map is None


def test_shapes_of_maps_that_are_there():
    with opened() as obj, Map.create("hash", 4, 4, 4) as other:
        with pytest.raises(ValueError, match="5000000000 is no descriptor"):
            obj.maps["table"].reuse(5000000000)
        obj.load()
        before = obj.maps["table"].map
        with pytest.raises(ObjectError, match="map table: is created: reuse"):
            obj.maps["table"].reuse(other)
        with pytest.raises(ObjectError, match=r"its max_entries is set before load\(\)"):
            obj.maps["ring"].max_entries = 1 << 20
        assert obj.maps["table"].map is before
        obj.close()
        obj.maps["table"].reuse(other)
        assert obj.load().maps["table"].map.info().id == other.info().id


def test_what_is_of_this_process_only():
    with opened() as obj:
        obj.load()
        group = link.LinkGroup()
        for thing in (obj, only(obj), obj.maps["ring"], obj.maps["ring"].reader(), obj.bss, group,
                      obj.maps["table"].typed, obj.maps["table"].map):
            for use in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="can be neither copied nor pickled"):
                    use(thing)


def test_descriptors_that_are_none(tmp_path):
    for bad, said in ((-1, "-1 is no descriptor"), (1 << 32, "is no descriptor"), ("x", "is no descriptor, and has none"),
                      (None, "None is no"), (1 << 20, "is no open descriptor")):
        with pytest.raises(ValueError, match=said):
            Map.from_fd(bad)
    with open(str(tmp_path / "file"), "w") as file:
        with pytest.raises(ValueError, match="that is a file, not a map"):
            Map.from_fd(file.fileno())
        file.write("it is still the caller's")
    with pytest.raises(ValueError, match="'x' is no descriptor"):
        opened(token="x")
    with pytest.raises(ValueError, match="'x' is no descriptor"):
        Map.create("array_of_maps", 4, 4, 1, inner_map="x")
    with pytest.raises(ValueError, match="kconfig is a dict"):
        opened(kconfig=5)


def test_paths_as_bytes(tmp_path):
    path = tmp_path / "misuse.o"
    path.write_bytes(write_object(assemble(TEXT % "socket"), MAP_TYPES))
    with Object.open(os.fsencode(path), pin_root=b"/sys/fs/bpf") as obj:
        assert obj.file.path == str(path) and obj.pin_root == "/sys/fs/bpf"


@pytest.mark.kernel(since="5.9")
@pytest.mark.parametrize("section, target, options, said", [
    ("xdp", 1 << 31, {}, "2147483648 is no interface's index"), ("tc", 1 << 31, {}, "is no interface's index"),
    ("tc", -1, {}, "is no interface's index"), ("xdp", 1.5, {}, "1.5 is no interface"), ("xdp", None, {}, "None is no interface"),
    ("xdp", "lo", {"foo": 1}, r"attach_to\(\) of a xdp program takes no foo: it takes mode"),
    ("tc", "lo", {"priority": 1 << 16}, "priority: 65536 does not"), ("tc", "lo", {"handle": -1}, "handle: -1 does not"),
    ("cgroup_skb/egress", None, {}, "None is no descriptor"), ("sk_msg", object(), {}, "is no descriptor"),
    ("socket", 5, {}, "goes on a socket, not on 5"), ("perf_event", 5, {}, "goes on a PerfEvent, not on 5"),
    ("kprobe", None, {}, "goes on a PerfEvent, not on None"), ("xdp", 0, {"attach_type": 5}, "no such interface|Invalid"),
])
def test_targets_that_are_none(section, target, options, said):
    with opened(section) as obj:
        obj.load()
        program, = obj.programs.values()
        with pytest.raises((ValueError, ObjectError, KernelError), match=said):
            program.attach_to(target, **options)
        program.target = 5
        with pytest.raises(ObjectError, match="its target is a text"):
            program.attach()


def test_which_program_it_was():
    with opened("tracepoint/nogroup/none") as obj:
        obj.load()
        with pytest.raises(KernelError, match="^program .*: tracepoint nogroup/none: No such file"):
            only(obj).attach()
        only(obj).target = "sched/sched_switch"
        with only(obj).attach() as attached, pytest.raises(ValueError, match="None is no descriptor"):
            link.Link.update(attached if attached.fd >= 0 else link.Link(os.dup(0)), None)


@pytest.mark.kernel(since="6.4")
def test_a_hook_twice():
    with opened("netfilter") as obj:
        obj.load()
        with pytest.raises(ValueError, match="no hook is called {}: they are pre_routing"):
            only(obj).attach_to({})
        with pytest.raises(ObjectError, match="takes no hook: it takes pf, priority, defragment"):
            only(obj).attach_to("local_in", hook="local_in")


@pytest.mark.slow
@pytest.mark.kernel(since="6.1")
def test_iterators_that_take_no_map():
    """The kernel would take the map's descriptor for the number of a thread."""
    with opened("iter/task") as obj:
        obj.load()
        program, = obj.programs.values()
        for target, options, said in ((obj.maps["table"], {}, r"takes no target: attach_to\(\)"), (3, {}, "takes no target"),
                                      (None, {"order": 1}, "takes no order")):
            with pytest.raises(ObjectError, match="an iterator iter/task " + said):
                program.attach_to(target, **options)
        program.expected_attach_type = ATTACH_TYPES["trace_iter"]       # by number
        program.attach_to(pid=os.getpid()).close()
    with pytest.raises(ValueError, match="an iterator has a map, or a cgroup"):
        link.iter_info(pid=1, cgroup=2)


@pytest.mark.slow
@pytest.mark.kernel
def test_programs_of_sockets():
    """What takes it away is the process that put it there, once, and only where no other has taken its place."""
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, two, opened() as obj:
        obj.load()
        program = only(obj)           # drops all

        def arrives():
            one.send(b"x")
            try:
                return two.recv(10, socket.MSG_DONTWAIT) == b"x"
            except BlockingIOError:
                return False
        first = program.attach_to(two)
        second = program.attach_to(two)
        first.close()
        assert not arrives()
        assert in_child(lambda: second.close() is None) and not arrives()
        second.close()
        assert arrives()
        third = program.attach_to(two)
        two.setsockopt(socket.SOL_SOCKET, 27, 0)        # SO_DETACH_BPF
        for _ in range(2):
            third.close()


@pytest.mark.slow       # not in guests, whose kernels have clsact as a module
def test_filters_of_traffic_control():
    def body():
        with opened("tc") as obj:
            obj.load()
            program = only(obj)

            def filters():
                with Socket() as netlink:
                    return len(list(netlink.filters(1)))
            placed = program.attach_to("lo")
            assert in_child(lambda: placed.close() is None) and filters() == 1
            placed.close()
            assert filters() == 0
            gone = program.attach_to(1)
            with Socket() as netlink:
                netlink.remove_filter(1, INGRESS, gone.priority, gone.handle)
            for _ in range(2):
                gone.close()
    in_netns(body)


def test_a_descriptor_limit(monkeypatch):
    """Readers say it as other calls of the kernel do."""
    import errno

    def full(*_, **options):
        raise OSError(errno.EMFILE, "Too many open files")
    with Map.create("ringbuf", 0, 0, 4096) as ring, Map.create("perf_event_array", 4, 4, 2) as perf:
        with monkeypatch.context() as patched:
            patched.setattr(os, "dup", full)
            for kind, map in ((RingBuffer, ring), (PerfBuffer, perf)):
                with pytest.raises(KernelError, match="%s of map .*EMFILE.*ulimit -n" % kind.__name__):
                    kind(map)
        with monkeypatch.context() as patched:
            patched.setattr("select.epoll", full)
            with pytest.raises(KernelError, match="PerfBuffer of map .*ulimit -n"):
                PerfBuffer(perf)
    kernel._possible.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", full)
        with pytest.raises(OSError, match="Too many open files"):
            kernel.possible_cpus()
    assert kernel.possible_cpus()


@pytest.mark.slow
@pytest.mark.peer
def test_a_large_variable():
    """Zeros are not written: 256 MiB of them are there in no time, and what was set before is in them."""
    import resource
    import time
    with Object.parse(open(compile_bpf_text(LARGE), "rb").read()) as obj:
        obj.bss.memory("big")[1 << 27] = 7
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.process_time()
        obj.load()
        assert time.process_time() - start < 1.5
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10
        memory = obj.bss.memory("big")
        assert memory[1 << 27] == 7 and memory[0] == 0 == memory[(1 << 28) - 1]
        with pytest.raises(ObjectError, match=r"268435456 bytes in all are too many to be Python's: use memory\('big'\)"):
            obj.bss["big"]

        def lost():         # although the parent has a view
            for use in (lambda: obj.bss["n"], lambda: obj.bss.update({"n": 9})):
                with pytest.raises(ValueError, match="is the parent process's"):
                    use()
            return True
        assert in_child(lost) and obj.bss["n"] == 0
        del memory
