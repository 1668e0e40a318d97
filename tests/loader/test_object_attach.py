"""attach_to() of what is seldom attached: packet filters of netfilter, functions in place of others; programs that are
loaded once more."""

import os
import struct
import time

import pytest

from rawbpf.asm import assemble, write_object
from rawbpf.loader import KernelError, Link, Map, Object, ObjectError, features, ids, kernel, link
from rawbpf.loader.detached import mount
from rawbpf.loader.uapi import MAP_TYPES
from tests.bpfcc import compile_bpf, compile_bpf_text
from tests.loader.test_links import in_netns, loopback_up, send
from tests.loader.test_object_kernel import COUNT


def counting(section, result=0, **options):
    """An Object of one program that counts its runs in `hits` and returns `result`."""
    text = COUNT.replace("    r0 = 0\n    exit", "    r0 = %d\n    exit" % result)
    return Object.parse(write_object(assemble(text % section), MAP_TYPES), "counting.o", **options)


def hits(obj):
    return struct.unpack("=Q", obj.maps["hits"].map.lookup(bytes(4)))[0]


@pytest.mark.slow
@pytest.mark.kernel(since="6.4")
def test_a_packet_filter():
    """Drops what comes in, or goes out, in one network namespace; only IPv4 where that was asked for."""
    def body():
        import socket
        loopback_up()
        for hook, arrives, options in (("local_in", 0, {}), ("local_out", 0, {"priority": -1}), ("pre_routing", 0, {}),
                                       ("forward", 5, {}), ("local_in", 5, {"pf": "ipv6"})):
            with counting("netfilter") as obj:           # 0: NF_DROP
                obj.load()
                program, = obj.programs.values()
                with pytest.raises(ObjectError, match="does not say what it attaches to"):
                    program.attach()
                with program.attach_to(hook, **options) as attached:
                    assert send(wait=bool(arrives)) == arrives, hook
                    seen = 5 if hook in ("local_in", "pre_routing") else 1 if hook == "local_out" else 0
                    assert hits(obj) == (0 if "pf" in options else seen), hook
                    info = attached.info()
                    assert (info.type, info.pf, info.priority) == (
                        "netfilter", socket.AF_INET6 if "pf" in options else socket.AF_INET, options.get("priority", 0))
                assert send(wait=True) == 5
        with counting("netfilter", 1) as obj:           # NF_ACCEPT
            obj.load()
            program, = obj.programs.values()
            with program.attach_to("local_in"):
                assert send(wait=True) == 5 and hits(obj) == 5
            with pytest.raises(ValueError, match="no hook is called 'nowhere': they are pre_routing, local_in"):
                program.attach_to("nowhere")
            with pytest.raises(ValueError, match="no protocol family is called 'ipv5': they are ipv4, ipv6"):
                program.attach_to("local_in", pf="ipv5")
            with pytest.raises(KernelError, match="priority"):
                program.attach_to("local_in", priority=-1 << 31)
    if features.has_program("netfilter"):      # CONFIG_NETFILTER_BPF_LINK
        in_netns(body)


REPLACED = '#include "bpf.h"\nSEC("freplace/global_sum") int replaced(int a, int b) { return a * 100; }\n'


@pytest.mark.vm
@pytest.mark.kernel(since="5.10")
@pytest.mark.slow
def test_a_function_of_another_program_is_replaced():
    """attach_to() puts it into another program than the one it was loaded for, by the name of the function; pinned, it
    stays there."""
    fd = mount("bpf")
    with Object.open(compile_bpf("features.c")) as one, Object.open(compile_bpf("features.c")) as two, \
            Object.open(compile_bpf_text(REPLACED)) as ext:
        for each, number in ((one, 1000), (two, 500)):
            each.rodata["targ_uid"] = number
            each.load(only="calls")
        first, second = one.programs["calls"], two.programs["calls"]

        def results():      # global_sum(targ_uid, 1) + twice(3)
            return [each.program.test_run(bytes(14)).retval for each in (first, second)]
        def settle(wanted):         # the kernel is rid of a link when its workers come to it
            end = time.monotonic() + 5
            while results() != wanted and time.monotonic() < end:
                time.sleep(0.01)
            assert results() == wanted
        plain = [2 * 1000 + 2 + 6, 2 * 500 + 2 + 6]
        replaced = ext.programs["replaced"]
        replaced.attach_prog = first
        ext.load()
        assert results() == plain
        with pytest.raises(ObjectError, match="has no function nowhere"):
            replaced.attach_to(second, function="nowhere")
        with replaced.attach_to(second, function="global_sum") as attached:
            assert results() == [plain[0], 100 * 500 + 6]
            info = attached.info()
            assert info.type == "tracing"
            if kernel.release() >= (5, 13):     # older ones do not tell whose function it is
                assert info.target_obj_id == second.program.info().id
            with pytest.raises(KernelError, match="is attached once by itself: name the program and its function"):
                replaced.attach()
            with replaced.attach_to(first, function="global_sum"):
                assert results() == [100 * 1000 + 6, 100 * 500 + 6]
            settle([plain[0], 100 * 500 + 6])
            path = "/proc/self/fd/%d/kept" % fd
            attached.pin(path)
        assert results() == [plain[0], 100 * 500 + 6]
        os.unlink(path)
        settle(plain)
        # loaded once more, for the other program
        with replaced.clone(attach_prog=second) as again, link.attach_tracing(again):
            assert results() == [plain[0], 100 * 500 + 6]
        settle(plain)
    os.close(fd)


@pytest.mark.kernel
def test_a_program_loaded_once_more():
    """Other maps, another name, a log: none of it changes the object's own program."""
    with counting("socket", 7) as obj, Map.create("array", 4, 8, 1) as other:
        program, = obj.programs.values()
        for early in (program.clone, program.load):
            with pytest.raises(ObjectError, match=r"its map hits is not there: prepare\(\) or load\(\) the object first"):
                early()
        obj.prepare()
        with program.clone(name="before") as first:
            assert program.program is None and first.test_run(bytes(14)).retval == 7 and hits(obj) == 1
        obj.load()
        own = program.program
        with program.clone(maps={"hits": other}, name="again", log_level=1) as again:
            assert again.info().name == "again" and again.info().id != own.info().id
            assert again.info().tag == own.info().tag and "processed" in again.log and not program.log
            assert again.test_run(bytes(14), repeat=3).retval == 7
            assert other[0] == struct.pack("=Q", 3) and hits(obj) == 1
            assert program.program is own and own.test_run(bytes(14)).retval == 7 and hits(obj) == 2
            number = again.info().id
        assert ids.open_fd("prog", number) is None
        with pytest.raises(KernelError, match="proprietary|GPL|Invalid"):
            program.clone(flags=1 << 31)
        with pytest.raises(TypeError, match="no_such_option"):
            program.clone(no_such_option=1)
        for options, said in (({"maps": {"hist": other}}, "the object has no map hist; did you mean hits"),
                              ({"target": "x"}, "takes no target"), ({"attach_prog": own}, "takes no attach_prog"),
                              ({"maps": {"hits": None}}, "None is no descriptor")):
            with pytest.raises((ObjectError, ValueError), match=said):
                program.clone(**options)
        assert own.test_run(bytes(14)).retval == 7
    for late in (program.clone, program.load, obj.attach, obj.fill_program_arrays):
        with pytest.raises(ObjectError, match="is closed"):
            late()
    with pytest.raises(ObjectError, match="is not loaded"):
        counting("socket").attach()


@pytest.mark.kernel(since="5.9")
def test_a_program_for_another_target():
    """An iterator over maps, loaded once more as one over programs."""
    with counting("iter/bpf_map") as obj:
        obj.load()
        program, = obj.programs.values()
        with program.clone(target="bpf_prog") as over_programs:
            for item, kind in ((program.program, "map"), (over_programs, "prog")):
                before, there = hits(obj), len(list(ids.walk(kind)))
                with link.attach_iter(item) as attached:
                    assert attached.info().target_name == "bpf_" + kind
                    attached.read()
                assert abs(hits(obj) - before - there - 1) <= 3      # one for each, one for the end; others may be at work
        with pytest.raises(ObjectError, match="no iterator nowhere"):
            program.clone(target="nowhere")
        assert isinstance(attached, Link)
