"""rawbpf prog, map and link: what the tests made must be what the commands show."""

import json
import os
import struct

import pytest

from rawbpf.loader import Map, Program
from rawbpf.loader.link import attach_raw_tracepoint
from rawbpf.tools.inspect.output import JsonWriter
from tests.loader import code
from tests.tools.inspecting import run, run_json

pytestmark = pytest.mark.root


@pytest.fixture
def table():
    with Map.create("hash", 4, 8, 10, name="t_hash") as item:
        item.update(struct.pack("=I", 7), struct.pack("=Q", 0x1122))
        yield item


@pytest.fixture
def program(table):
    with Program.load("socket_filter", code.map_fd(1, table) + code.RETURN_0, name="t_prog") as loaded:
        yield loaded


def test_show_says_what_was_loaded(program, table):
    fields = run_json("prog", "show", "id", program.info().id)
    assert fields["type"] == "socket_filter" and fields["name"] == "t_prog" and fields["gpl_compatible"] is True
    assert fields["map_ids"] == [table.info().id] and fields["bytes_xlated"] == 32 and fields["uid"] == os.getuid()
    assert fields["tag"] == program.info().tag and fields["orphaned"] is False


def test_show_lists_it_among_others(program):
    for words in (["show"], ["list"], []):
        numbers = [fields["id"] for fields in run_json("prog", *words)]
        assert program.info().id in numbers and numbers == sorted(set(numbers))


@pytest.mark.parametrize("how", ["id", "tag", "name"])
def test_selection(program, how):
    info = program.info()
    found = run_json("prog", "show", how, {"id": info.id, "tag": info.tag, "name": "t_prog"}[how])
    found = found if isinstance(found, list) else [found]
    assert info.id in [fields["id"] for fields in found]


def test_text_has_bpftools_layout(program, table):
    info = program.info()
    status, out, error = run("prog", "show", "id", info.id)
    lines = out.split("\n")
    assert (status, error) == (0, "")
    assert lines[0] == "%d: socket_filter  name t_prog  tag %s  gpl" % (info.id, info.tag)
    assert lines[1].startswith("\tloaded_at 20") and lines[1].endswith("  uid %d" % os.getuid())
    assert lines[2].startswith("\txlated 32B  jited ") and lines[2].endswith("B  map_ids %d" % table.info().id)


def test_pids_are_those_of_other_processes(program, rawbpf):
    done = rawbpf("prog", "show", "-j", "id", program.info().id)
    assert os.getpid() in [one["pid"] for one in json.loads(done.stdout)["pids"]]


def test_dump_is_the_kernels_text(program, table):
    number = table.info().id
    assert run("prog", "dump", "xlated", "id", program.info().id) == (
        0, "   0: (18) r1 = map[id:%d]\n   2: (b7) r0 = 0\n   3: (95) exit\n" % number, "")
    first = run_json("prog", "dump", "xlated", "id", program.info().id, "opcodes")[0]
    imm = ["0x%02x" % byte for byte in struct.pack("<I", number)] + ["0x00"] * 8
    assert first == {"disasm": "(18) r1 = map[id:%d]" % number, "opcodes": {
        "code": "0x18", "src_reg": "0x1", "dst_reg": "0x1", "off": ["0x00", "0x00"], "imm": imm}}


def test_visual_graph_has_the_edges_of_the_branches():
    # 0: if r1 == 0 goto 2; 1: r1 = 0 (falls); 2: r0 = 0; exit
    text = code.jeq(1, 0, 1) + code.mov(1, 0) + code.RETURN_0
    with Program.load("socket_filter", text.replace(code.jeq(1, 0, 1), code.load(1, 1, 0, 4) + code.jeq(1, 0, 1))
                      ) as loaded:
        out = run("prog", "dump", "xlated", "id", loaded.info().id, "visual")[1]
    edges = [line.split(" [")[0].strip() for line in out.split("\n") if "solid" in line]
    assert edges == ["fn_0_bb_0:s -> fn_0_bb_2:n", "fn_0_bb_2:s -> fn_0_bb_3:n", "fn_0_bb_2:s -> fn_0_bb_4:n",
                     "fn_0_bb_3:s -> fn_0_bb_4:n", "fn_0_bb_4:s -> fn_0_bb_1:n"]


def test_run_gives_the_return_value(tmp_path):
    packet = tmp_path / "packet"
    packet.write_bytes(bytes(range(64)))
    with Program.load("xdp", code.mov(0, 2) + code.EXIT) as loaded:
        fields = run_json("prog", "run", "id", loaded.info().id, "data_in", packet, "data_out", "-", "repeat", 2)
    assert fields["retval"] == 2 and fields["data_out"] == list(range(64))


@pytest.mark.parametrize("argv, said", [
    (["prog", "show", "id", "4000000000"], "Error: get by id (4000000000): No such file or directory\n"),
    (["prog", "show", "id", "x"], "Error: can't parse x as ID\n"),
    (["prog", "show", "tag", "12"], "Error: can't parse tag\n"),
    (["prog", "show", "name"], "Error: name is missing\n"),
    (["prog", "show", "nmae", "x"], "Error: expected 'id', 'tag', 'name' or 'pinned', got: 'nmae'\n"),
    (["prog", "shwo"], "Error: unknown command 'shwo': did you mean 'show'?\n"),
    (["prog", "run", "id", "4000000000"], "Error: get by id (4000000000): No such file or directory\n"),
    (["map", "show", "id", "4000000000"], "Error: get map by id (4000000000): No such file or directory\n"),
    (["link", "show", "id", "4000000000"], "Error: get link by id (4000000000): No such file or directory\n"),
])
def test_errors_are_one_line(argv, said):
    assert run(*argv) == (255, "", said)


def test_an_error_in_the_middle_leaves_a_document():
    """What refuses to be walked over: the list ends, and what the kernel said is the status."""
    with Map.create("ringbuf", 0, 0, 4096) as ring:
        for words, shown in (([], "Found 0 elements\n"), (["-j"], "[]\n")):
            status, out, error = run("map", "dump", "id", ring.info().id, *words)
            assert (status, out) == (-524 & 255, shown) and error.count("\n") == 1
    parts = []
    writer = JsonWriter(parts.append)
    writer.open("{")
    writer.name("elements")
    writer.open("[")
    writer.value(1)
    writer.error("gone")
    assert json.loads("".join(parts)) == {"elements": [1, {"error": "gone"}]}


def test_errors_are_json_where_json_was_asked_for():
    status, out, error = run("-j", "prog", "show", "id", 4000000000)
    assert (status, error) == (255, "")
    assert json.loads(out) == {"error": "get by id (4000000000): No such file or directory"}


# maps

def test_map_show(table):
    info = table.info()
    fields = run_json("map", "show", "id", info.id)
    assert (fields["type"], fields["name"], fields["flags"], fields["bytes_key"], fields["bytes_value"],
            fields["max_entries"], fields["frozen"]) == ("hash", "t_hash", 0, 4, 8, 10, 0)


def test_map_elements(table):
    number = table.info().id
    seven, value = ["0x07", "0x00", "0x00", "0x00"], ["0x22", "0x11"] + ["0x00"] * 6
    assert run("map", "dump", "id", number) == (
        0, "key: 07 00 00 00  value: 22 11 00 00 00 00 00 00\nFound 1 element\n", "")
    assert run_json("map", "dump", "id", number) == [{"key": seven, "value": value}]
    assert run_json("map", "lookup", "id", number, "key", 7, 0, 0, 0) == {"key": seven, "value": value}
    assert run_json("map", "getnext", "id", number) == {"key": None, "next_key": seven}
    assert run("map", "lookup", "id", number, "key", 8, 0, 0, 0) == (254, "key:\n08 00 00 00\n\nNot found\n", "")


def test_map_changes(table):
    number = table.info().id
    assert run_json("map", "update", "id", number, "key", "hex", "ff", "0", "0", "0", "value", *"12345678") is None
    assert table.lookup(b"\xff\0\0\0") == bytes(range(1, 9))
    assert run("map", "update", "id", number, "key", 7, 0, 0, 0, "value", *"00000000", "noexist") == (
        239, "", "Error: update failed: File exists\n")
    assert run("map", "delete", "id", number, "key", 255, 0, 0, 0) == (0, "", "")
    assert table.lookup(b"\xff\0\0\0") is None
    assert run("map", "freeze", "id", number) == (0, "", "")
    assert run_json("map", "show", "id", number)["frozen"] == 1


@pytest.mark.parametrize("words, said", [
    (["key", "1"], "key expected 4 bytes got 1"), (["key", "hex", "xx"], "error parsing byte: xx"),
    (["key", "256", "0", "0", "0"], "error parsing byte: 256"), ([], "did not find key"),
    (["key", "1", "2", "3", "4", "5"], "expected 'key', got: '5'"),
])
def test_data_that_is_wrong(table, words, said):
    assert run("map", "lookup", "id", table.info().id, *words) == (255, "", "Error: %s\n" % said)


def test_queue():
    with Map.create("queue", 0, 4, 3) as item:
        number = item.info().id
        assert run("map", "push", "id", number, "value", 1, 2, 3, 4) == (0, "", "")
        assert run("map", "peek", "id", number) == (0, "value: 01 02 03 04\n", "")
        assert run_json("map", "pop", "id", number) == {"key": [], "value": ["0x01", "0x02", "0x03", "0x04"]}
        assert run("map", "pop", "id", number) == (254, "Error: empty map\n", "")
        assert run("map", "peek", "id", number) == (254, "key:\n\n\nNot found\n", "")


def test_per_cpu_values():
    with Map.create("percpu_array", 4, 4, 1) as item:
        cpus = len(item.lookup(bytes(4)))
        item.update(bytes(4), [struct.pack("=I", cpu + 1) for cpu in range(cpus)])
        fields = run_json("map", "lookup", "id", item.info().id, "key", 0, 0, 0, 0)
    assert [(one["cpu"], one["value"][0]) for one in fields["values"]] == [
        (cpu, "0x%02x" % (cpu + 1)) for cpu in range(cpus)]


# links

def test_link():
    with Program.load("raw_tracepoint", code.RETURN_0, name="t_rtp") as loaded:
        with attach_raw_tracepoint(loaded, "sched_switch") as link:
            number = link.info().id
            fields = run_json("link", "show", "id", number)
            text = run("link", "show", "id", number)[1]
    assert (fields["id"], fields["type"], fields["prog_id"], fields["tp_name"]) == (
        number, "raw_tracepoint", fields["prog_id"], "sched_switch")
    assert text.startswith("%d: raw_tracepoint  prog %d  \n\ttp 'sched_switch'  " % (number, fields["prog_id"]))
