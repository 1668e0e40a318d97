"""The inspectors beside bpftool, on objects that the tests load: the same fields in the same order, the same text."""

import contextlib
import functools
import json
import os
import socket
import struct
import subprocess
import sys

import pytest

from rawbpf.loader import BtfObject, Map, PerfEvent, Program, ksyms, link, link_net, perf
from rawbpf.loader.btf import function_types
from tests.loader import code
from tests.peers import command
from tests.tools.inspecting import run, without_pids

pytestmark = [pytest.mark.root, pytest.mark.peer]

LOOPBACK = socket.if_nametoindex("lo")
STRINGS = b"\0int\0a\0b\0s\0char\0RED\0color\0unsigned int\0_Bool\0.data\0v\0long\0"


def at(name):
    return STRINGS.index(b"\0" + name + b"\0") + 1


def info(kind, count=0, flag=0):
    return flag << 31 | kind << 24 | count


def types():
    """1 int; 2 char; 3 char[8]; 4 enum; 5 unsigned; 6 bool; 7 pointer to 8; 8 struct s of all; 9 int[2][2] by 10."""
    pack = struct.pack
    out = pack("<IIII", at(b"int"), info(1), 4, 1 << 24 | 32)
    out += pack("<IIII", at(b"char"), info(1), 1, 1 << 24 | 8)
    out += pack("<IIIIII", 0, info(3), 0, 2, 1, 8)
    out += pack("<IIIII", at(b"color"), info(6, 1), 4, at(b"RED"), 3)
    out += pack("<IIII", at(b"unsigned int"), info(1), 4, 32)
    out += pack("<IIII", at(b"_Bool"), info(1), 1, 4 << 24 | 8)
    out += pack("<III", 0, info(2), 8)
    members = [("a", 1, 0, 0), ("b", 3, 32, 0), ("v", 4, 96, 0), ("a", 5, 128, 3), ("b", 5, 131, 29), ("v", 6, 160, 0),
               ("s", 7, 192, 0), ("a", 9, 256, 0), ("b", 2, 384, 0)]
    out += pack("<III", at(b"s"), info(4, len(members), 1), 56)
    for name, kind, bit, size in members:
        out += pack("<III", at(name.encode()), kind, size << 24 | bit)
    out += pack("<IIIIII", 0, info(3), 0, 10, 1, 2)
    out += pack("<IIIIII", 0, info(3), 0, 1, 1, 2)
    return pack("<HBBIIIII", 0xeb9f, 1, 0, 24, 0, len(out), len(out), len(STRINGS)) + out + STRINGS


VALUES = (struct.pack("=i8siIBxxxQ4iB7x", -7, b"text\0xyz", 3, 5 | 9 << 3, 1, 0x1234, 1, -2, 3, 4, 65),
          struct.pack("=i8siIBxxxQ4iB7x", 0, b"\xff" * 8, 4, 0, 0, 0, 0, 0, 0, 0, 1))


@pytest.fixture(scope="module")
def host():
    """A host with objects of many kinds: what keeps them alive."""
    with contextlib.ExitStack() as stack:
        keep = stack.enter_context
        maps = [keep(Map.create(kind, key, value, entries, name=kind[:15], flags=flags))
                for kind, key, value, entries, flags in (
            ("hash", 4, 8, 10, 0), ("array", 4, 24, 2, 0), ("percpu_array", 4, 8, 1, 0), ("percpu_hash", 20, 20, 3, 0),
            ("lru_hash", 4, 4, 4, 0), ("lpm_trie", 8, 4, 4, 1), ("queue", 0, 4, 2, 0), ("stack", 0, 4, 2, 0),
            ("ringbuf", 0, 0, 4096, 0), ("stack_trace", 4, 64, 2, 0), ("bloom_filter", 0, 4, 8, 0),
            ("perf_event_array", 4, 4, 2, 0), ("prog_array", 4, 4, 4, 0), ("cgroup_array", 4, 4, 2, 0),
            ("devmap", 4, 4, 2, 0), ("sockmap", 4, 4, 2, 0), ("sk_storage", 4, 8, 0, 0), ("array", 4, 8, 1, 1 << 10))]
        outer = keep(Map.create("array_of_maps", 4, 4, 3, inner_map=maps[0], name="outer"))
        outer.update(1, maps[0])
        maps[0].update(b"\1\2\3\4", bytes(8))
        maps[3].update(bytes(range(20)), bytes(range(20)))
        maps[5].update(b"\x18\0\0\0\x0a\0\0\0", b"\1\1\1\1")
        typed = keep(BtfObject.load(types()))
        for kind in ("hash", "percpu_hash", "array"):
            item = keep(Map.create(kind, 4, 56, 4, name="t_" + kind, btf=typed, btf_key_type_id=1, btf_value_type_id=8))
            for number, value in enumerate(VALUES):
                item.update(struct.pack("=i", number), value)
            maps.append(item)
        main = code.map_fd(1, maps[0]) + code.mov_reg(2, 10) + code.store_imm(10, -4, 0, 4) + code.alu(0, 2, -4) \
            + code.call(code.LOOKUP) + code.insn(0x85, 0, 1, 0, 1) + code.EXIT + code.mov(0, 1) \
            + code.insn(0xc3, 10, 0, -4, 1) + code.RETURN_0
        blob, functions = function_types([("main", 0), ("second", 8)])
        strings = len(blob) - blob.index(b"\0long\0")
        lines = struct.pack("=IIII", 0, strings - 5, strings - 5, 7 << 10 | 3) + struct.pack("=IIII", 8, 0, 1, 9 << 10 | 1)
        programs = [keep(Program.load("socket_filter", main, name="t_two", btf=keep(BtfObject.load(blob)),
                                      func_info=functions, line_info=(16, lines)))]
        for kind, attach in (("raw_tracepoint", None), ("kprobe", None), ("xdp", None), ("tracepoint", None),
                             ("sched_cls", None), ("perf_event", None), ("cgroup_skb", "cgroup_inet_egress"),
                             ("sk_lookup", "sk_lookup"), ("kprobe", "trace_uprobe_multi")):
            programs.append(keep(Program.load(kind, code.RETURN_0, name="t_" + kind, expected_attach_type=attach,
                                              license="GPL" if kind != "kprobe" else "MIT")))
        maps[12].update(0, programs[0])
        links = [keep(link.attach_raw_tracepoint(programs[1], "sched_switch")),
                 keep(link.attach_uprobe_multi(programs[9], os.path.realpath("/proc/self/exe"), [0x1000, 0x1010],
                                               cookies=[5, 6])),
                 keep(link_net.attach_xdp(programs[3], LOOPBACK)),
                 keep(link_net.attach_netns(programs[8], link_net.open_path("/proc/self/ns/net"), "sk_lookup")),
                 keep(link.attach_perf_event(
                     programs[6], PerfEvent.open(perf.software("cpu_clock", 10**9), -1, 0), cookie=7)),
                 keep(link.attach_perf_event(programs[2], PerfEvent.open(perf.uprobe("/bin/true", 0x2000), -1, 0)))]
        for kind, attach, make in (
                ("sched_cls", "tcx_ingress", lambda p: link_net.attach_tcx(p, LOOPBACK, "tcx_ingress")),
                ("netfilter", "netfilter", lambda p: link_net.attach_netfilter(p, priority=5))):
            links.append(keep(make(keep(Program.load(kind, code.RETURN_0, expected_attach_type=attach)))))
        links.append(keep(link.attach_iter(keep(Program.load(
            "tracing", code.RETURN_0, name="t_iter", expected_attach_type="trace_iter",
            attach_btf_id=ksyms.find("bpf_iter_task", "func")[0])))))
        yield maps + [outer], programs, links


@functools.lru_cache(maxsize=None)
def _bpftool():
    return command("bpftool")


def bpftool(*words):
    return subprocess.run([*_bpftool(), *map(str, words)], text=True, capture_output=True, timeout=60)


def same(*words):
    """Asserts that both say the same of this command line."""
    theirs = bpftool(*words)
    status, out, error = run(*words)
    if "-j" in words:
        mine, other = without_pids(json.loads(out)), json.loads(theirs.stdout)
        for fields in (mine, other):
            if words[0] == "btf" and "map_ids" in fields:
                fields["map_ids"].sort()        # bpftool's are in the order of a hash table
        assert json.dumps(mine) == json.dumps(other), words
    else:
        lines = [line for line in out.split("\n") if not line.startswith("\tpids ")]
        assert "\n".join(lines) == theirs.stdout, words
    assert not error or theirs.returncode, error
    return theirs.returncode, status


def test_programs(host):
    for program in host[1]:
        number = program.info().id
        for words in (["show"], ["dump", "xlated"]):
            same("prog", *words, "id", number, "-j")
            same("prog", *words, "id", number)
        for flags in (["opcodes"], ["linum"], ["opcodes", "linum"]):
            same("prog", "dump", "xlated", "id", number, *flags, "-j")
            same("prog", "dump", "xlated", "id", number, *flags)


def test_maps(host):
    for item in host[0]:
        number = item.info().id
        same("map", "show", "id", number)
        same("map", "show", "id", number, "-j")


def test_elements(host):
    for item in host[0]:
        if item.type in ("sk_storage", "bloom_filter", "queue", "stack", "ringbuf"):
            continue        # no elements that can be walked
        number = item.info().id
        same("map", "dump", "id", number)
        same("map", "dump", "id", number, "-j")


def test_links(host):
    for one in host[2]:
        number = one.info().id
        same("link", "show", "id", number)
        same("link", "show", "id", number, "-j")


def test_btf(host):
    for item in host[0] + host[1]:
        number = getattr(item.info(), "btf_id", 0)
        if number:
            same("btf", "show", "id", number, "-j")
            same("btf", "dump", "id", number, "-j")
            same("btf", "dump", "id", number)


def test_perf(host):
    mine = json.loads(run("perf", "show", "-j")[1])
    theirs = json.loads(bpftool("perf", "show", "-j").stdout)
    own = [fields for fields in theirs if fields["pid"] == os.getpid()]
    assert own and [fields for fields in mine if fields["pid"] == os.getpid()] == own


@pytest.mark.parametrize("words", [["-j"], [], ["macros"], ["macros", "prefix", "X_"]])
def test_features(words):
    same("feature", "probe", *words)


@pytest.mark.parametrize("group", ["prog_types", "map_types", "attach_types", "link_types", "helpers"])
def test_builtins(group):
    same("feature", "list_builtins", group)
    same("feature", "list_builtins", group, "-j")


def test_features_of_an_unprivileged_user():
    """In JSON: what bpftool finds that a user without capabilities can do here."""
    done = subprocess.run(command("bpftool", "feature", "probe", "unprivileged", "-j"), stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, universal_newlines=True)
    ours = subprocess.run([sys.executable, "-m", "rawbpf.tools", "feature", "probe", "unprivileged", "-j"],
                          stdout=subprocess.PIPE, universal_newlines=True)
    assert ours.returncode == 0 and json.loads(ours.stdout) == json.loads(done.stdout)
