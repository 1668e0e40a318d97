"""struct_ops, arenas and USDT probes in objects that clang made; values from the fixtures' sources."""

import socket
import struct
import subprocess

import pytest

from rawbpf.loader import KernelError, Object, ObjectError, arg_ctx, kernel
from rawbpf.loader.btf import BtfObject
from tests.bpfcc import compile_bpf, compile_bpf_text

pytestmark = [pytest.mark.peer, pytest.mark.kernel]
PACKET = bytes(14)
TCP_CONGESTION = 13


def transfer(congestion):
    """100,000 bytes over the loopback interface under a congestion control."""
    with socket.socket() as listener, socket.socket() as sender:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sender.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion.encode())
        sender.connect(listener.getsockname())
        with listener.accept()[0] as receiver:
            sender.sendall(b"x" * 100000)
            got = 0
            while got < 100000:
                got += len(receiver.recv(65536))


@pytest.fixture
def network():
    """The loopback interface may be down in a virtual machine."""
    from tests.loader.test_links import loopback_up
    loopback_up()


def test_a_struct_of_functions(network):
    with Object.open(compile_bpf("struct_ops.c")) as obj:
        assert dict(obj.maps["plain"].items()) == {
            "ssthresh": "mine_ssthresh", "cong_avoid": "mine_cong_avoid", "undo_cwnd": "mine_undo_cwnd",
            "invented": "mine_invented", "flags": 0, "name": "rawbpf_plain"}
        # what no kernel has is not loaded, and what is only made when asked for is not made
        obj.load()
        assert {name for name, each in obj.programs.items() if each.program is not None} == {
            "mine_ssthresh", "mine_cong_avoid", "mine_undo_cwnd"}
        assert obj.maps["plain"].map is not None and obj.maps["linked"].map is None
        with obj.attach():
            transfer("rawbpf_plain")
            assert obj.bss["avoided"] > 0
        with pytest.raises(OSError):
            transfer("rawbpf_plain")
        with pytest.raises(KernelError, match="is or was registered, which can be done once"):
            obj.attach()


def test_a_struct_of_functions_with_a_link(network):
    with Object.open(compile_bpf("struct_ops.c")) as obj:
        obj.maps["plain"].autocreate, obj.maps["linked"].autocreate = False, True
        obj.maps["linked"]["name"] = "rawbpf_other"
        if kernel.release() < (6, 4):
            with pytest.raises(KernelError, match=r"with a link .* needs Linux 6.4"):
                obj.load()
            return
        obj.load()
        with obj.attach() as links:
            assert links.links[0].info().type == "struct_ops"
            assert links.links[0].info().map_id == obj.maps["linked"].map.info().id
            transfer("rawbpf_other")
            assert obj.bss["avoided"] > 0
        with pytest.raises(OSError):
            transfer("rawbpf_other")


def test_the_command_registers_it(network, rawbpf):
    import json
    import signal
    process = rawbpf.start("load", compile_bpf("struct_ops.c"), "--attach", "--json")
    answer = json.loads(process.stdout.readline())
    assert [(each["name"], each["attached"]) for each in answer["maps"] if each["type"] == "struct_ops"] == [
        ("plain", True)]
    transfer("rawbpf_plain")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    with pytest.raises(OSError):
        transfer("rawbpf_plain")


def test_one_struct_in_place_of_another(network):
    """A link of one struct_ops map is updated to another, as long as connections go on."""
    if kernel.release() < (6, 4):
        return
    with Object.open(compile_bpf("struct_ops.c")) as one, Object.open(compile_bpf("struct_ops.c")) as two:
        for obj in (one, two):
            obj.maps["plain"].autocreate, obj.maps["linked"].autocreate = False, True
            obj.load()
        with one.attach() as links:
            transfer("rawbpf_linked")
            before = one.bss["avoided"]
            two.maps["linked"].map.update(0, two.maps["linked"].value())
            links.links[0].update(two.maps["linked"].map)
            transfer("rawbpf_linked")
            assert two.bss["avoided"] > 0 and one.bss["avoided"] == before


@pytest.mark.parametrize("change, reason", [
    (dict(create="absent"), "the kernel has no struct not_in_any_kernel that programs may implement"),
    (dict(load="lonely"), "no struct of .struct_ops refers to it"),
    (dict(load="mine_invented"), "the kernel's struct tcp_congestion_ops has no such function"),
    (dict(drop="cong_avoid"), "the kernel does not take it"),
])
def test_structs_that_do_not_fit(change, reason):
    with Object.open(compile_bpf("struct_ops.c")) as obj:
        with pytest.raises((ObjectError, KernelError), match=reason):
            if "create" in change:
                obj.maps[change["create"]].autocreate = True
            if "drop" in change:
                obj.maps["plain"][change["drop"]] = None
            obj.load(change.get("load"))
            obj.attach().close()


SET = """
#include "bpf.h"
struct tcp_congestion_ops { unsigned long invented; char name[16]; };
SEC(".struct_ops") struct tcp_congestion_ops mine = { %s };
"""


@pytest.mark.parametrize("text, reason", [(".invented = 5", "member invented .* is set, and this kernel does not have"),
                                          (".name = \"a\"", None)])
def test_members_that_only_other_kernels_have(text, reason):
    with Object.open(compile_bpf_text(SET % text)) as obj:
        if reason is None:
            assert set(obj.maps["mine"].kernel.members) == {"name"}
            return
        with pytest.raises(ObjectError, match=reason):
            obj.load()


def test_globals_in_an_arena():
    with Object.open(compile_bpf("arena.c", "-mcpu=v3")) as obj:
        assert dict(obj.arena.items()) == {"hits": 7, "table": [1, 2, 3], "untouched": 0}
        obj.arena["hits"] = 8
        if kernel.release() < (6, 9):
            with pytest.raises(KernelError, match="map type arena needs Linux 6.9"):
                obj.load(only="count")
            return
        obj.load(only="count")
        assert obj.programs["count"].program.test_run(PACKET).retval == 13
        assert dict(obj.arena.items()) == {"hits": 13, "table": [1, 42, 3], "untouched": 0}
        obj.arena["hits"] = 1
        assert obj.programs["count"].program.test_run(PACKET).retval == 6
        # in the last of its pages
        assert bytes(obj.maps["area"].memory()[7 * 4096:7 * 4096 + 8]) == (6).to_bytes(8, "little")


def test_an_arena_too_small():
    with Object.open(compile_bpf("arena.c", "-mcpu=v3")) as obj:
        obj.maps["area"].max_entries = 0
        with pytest.raises(ObjectError, match="0 pages are too few for 32 bytes"):
            obj.load(only="count")


DRAIN = """
#include "bpf.h"
static long (*dynptr_read)(void *to, u32 size, const void *from, u32 offset, u64 flags) = (void *)201;
static long (*drain)(void *map, void *callback, void *context, u64 flags) = (void *)209;
struct { __uint(type, 31); __uint(max_entries, 5000); } orders SEC(".maps");
u64 sum, count;
static long one(void *record, void *context)
{
	u64 value = 0;
	dynptr_read(&value, 8, record, 0, 0);
	sum += value;
	count++;
	return 0;
}
SEC("raw_tp/sys_enter") int take(void *ctx)
{
	u64 none = 0;
	drain(&orders, one, &none, 0);
	return 0;
}
"""


def test_records_to_a_program():
    import os
    with Object.open(compile_bpf_text(DRAIN)) as obj:
        if kernel.release() < (6, 1):
            with pytest.raises(KernelError, match="map type user_ringbuf needs Linux 6.1"):
                obj.load()
            return
        obj.load()
        assert obj.maps["orders"].map.max_entries == 8192
        for number in range(1, 11):
            assert obj.maps["orders"].writer().write(number.to_bytes(8, "little"))
        with obj.attach():
            for _ in range(100):
                os.getpid()
                if obj.bss["count"] == 10:
                    break
        assert (obj.bss["count"], obj.bss["sum"]) == (10, 55)
        with pytest.raises(ObjectError, match="a user_ringbuf map has no records to read"):
            obj.maps["orders"].reader()


PROBES = r"""
#include <stdio.h>
#include <unistd.h>
/* A note as SystemTap's sdt.h makes it: with a semaphore, and operands of every kind that libbpf's tables know. */
unsigned short cart_semaphore __attribute__((section(".probes")));
#define NOTE(arguments) \
    __asm__ volatile("990: nop\n.pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n.4byte 992f-991f,994f-993f,3\n" \
    "991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b\n.8byte 0\n.8byte cart_semaphore\n" \
    ".asciz \"shop\"\n.asciz \"cart\"\n.asciz \"" arguments "\"\n994: .balign 4\n.popsection" \
    :: "b"(-5L), "S"(cells), "D"(3L) : "memory")
int main(void)
{
    char line[8];
    long cells[4] = {1, 2, 0x1122334455667788, 4};
    while (read(0, line, 1) == 1) {
        if (!cart_semaphore) { puts("off"); fflush(stdout); continue; }
        /* a constant, a signed 4-byte register, memory at a register, memory at a register and an index */
        NOTE("4@$77 -4@%%ebx 8@16(%%rsi) -8@(%%rsi,%%rdi,8)");
        puts("on");
        fflush(stdout);
    }
}
"""


def test_usdt_arguments(compile_c):
    path = compile_c(PROBES, "-O1", "-no-pie", name="shop")      # operands of x86_64
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        def hit():
            process.stdin.write("x")
            process.stdin.flush()
            return process.stdout.readline().strip()
        with Object.open(compile_bpf("usdt.c")) as obj:
            program = obj.programs["absent"]
            program.target = path + ":shop:cart"
            obj.load()
            assert hit() == "off"
            with obj.attach():
                assert hit() == "on" and hit() == "on"
                assert obj.bss["seen"] == 2 and obj.bss["count"] == 4
                assert obj.bss["values"] == [77, -5, 0x1122334455667788, 4]
                assert obj.bss["kinds"] == [2, 2, 2, 2]
            assert hit() == "off"
            program.target = path + ":shop:nothing"
            with pytest.raises(ObjectError, match="has no probe shop:nothing"):
                obj.attach()
            program.target = path + ":shop"
            with pytest.raises(ObjectError, match="a probe is PATH:PROVIDER:NAME"):
                obj.attach()
        process.stdin.close()


@pytest.mark.slow
@pytest.mark.parametrize("as_this_kernel", [True, False])
def test_the_context_of_global_functions(as_this_kernel, monkeypatch):
    """An argument is the context by its tag since 6.8; before, a second prototype of the function says so."""
    assert arg_ctx.known() == (kernel.release() >= (6, 8))
    if not as_this_kernel:
        monkeypatch.setattr(arg_ctx, "known", lambda: False)
    contexts = {"probe": "bpf_user_pt_regs_t", "sample": "bpf_perf_event_data", "raw": "bpf_raw_tracepoint_args",
                "packet": "__sk_buff", "frame": "xdp_md"}
    with Object.open(compile_bpf("arg_ctx.c")) as obj:
        obj.load()
        records = obj.maps["events"].reader()
        for name, number in (("packet", 77), ("frame", 78)):
            obj.programs[name].program.test_run(bytes(14))
            assert struct.unpack_from("=i", next(iter(records)))[0] == number
        if as_this_kernel and arg_ctx.known():
            return
        for name, context in contexts.items():
            with BtfObject.from_id(obj.programs[name].program.info().btf_id) as btf:
                types = btf.parse()
            functions = [types.type(number) for _, number in obj.programs[name].program.func_info()]
            assert len(functions) == (4 if name in ("probe", "sample", "raw") else 3)
            for function in functions[1:]:
                found = [each.type.target for each in function.parameters if hasattr(each.type, "target")]
                assert [(each.kind, each.name) for each in found] == [("struct", context)]


ONE_USER = """
#include "bpf.h"
struct { __uint(type, 2); __uint(max_entries, 1); __type(key, u32); __type(value, u64); } own SEC(".maps");
u64 hits;
SEC("socket") int mine(void *ctx) { u32 k = 0; u64 *v = lookup(&own, &k); hits += 1; if (v) *v += 1; return 5; }
SEC("socket") int other(void *ctx) { u32 k = 0; u64 *v = lookup(&own, &k); if (v) *v += 2; return 6; }
"""


@pytest.mark.slow
def test_a_map_for_one_program():
    with Object.open(compile_bpf_text(ONE_USER)) as obj:
        obj.maps["own"].exclusive_program = "mine"
        if kernel.release() < (6, 18):
            with pytest.raises(KernelError, match="a map for one program needs Linux 6.18"):
                obj.load()
            return
        with pytest.raises(KernelError, match="load of socket_filter program other: .*excl_prog_hash"):
            obj.load()
        obj.load(only="mine")
        assert obj.programs["mine"].program.test_run(PACKET).retval == 5
        assert obj.maps["own"][0] == 1


LARGE = """
#include "bpf.h"
struct pair { u8 left, right; };
struct pair many[1 << 20];
u64 some[4];
const volatile u32 fixed[3] = {1, 2, 3};
SEC("socket") int add(void *ctx) { some[2] += 7; many[1000].right += fixed[1]; return 0; }
"""


@pytest.mark.slow
def test_variables_as_memory():
    with Object.open(compile_bpf_text(LARGE)) as obj:
        obj.bss.memory("many")[1998:2001] = b"abc"
        obj.load()
        for _ in range(2):
            obj.programs["add"].program.test_run(PACKET)
        assert bytes(obj.bss.memory("many")[1998:2002]) == b"abc\4"
        some = obj.bss.memory("some").cast("Q")
        some[3] = 5
        assert some.tolist() == obj.bss["some"] == [0, 0, 14, 5]
        assert obj.rodata.memory("fixed").readonly and obj.rodata["fixed"] == [1, 2, 3]
        with pytest.raises(ObjectError, match=r"variable many: .* use memory\('many'\)"):
            obj.bss["many"]
        del some
