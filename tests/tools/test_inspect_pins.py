"""Pins, object files, vanishing objects, batch files: in a BPF file system that nobody else sees."""

import json
import os
import struct

import pytest

from rawbpf.loader import Map, Program
from rawbpf.tools.inspect import objects
from tests.loader import code
from tests.tools.inspecting import run, run_json

pytestmark = pytest.mark.root


def test_pin_and_open_again(bpffs):
    with Program.load("xdp", code.RETURN_0, name="t_pin") as program:
        number = program.info().id
        assert run("prog", "pin", "id", number, bpffs + "/p") == (0, "", "")
    assert run_json("prog", "show", "pinned", bpffs + "/p")["id"] == number
    assert run("map", "show", "pinned", bpffs + "/p")[2].endswith("that is a prog, not a map\n")
    assert run("prog", "show", "pinned", bpffs + "/none")[0] == 255
    os.unlink(bpffs + "/p")


def test_pinned_paths_are_shown_with_f(bpffs, monkeypatch):
    monkeypatch.setattr(objects, "bpffs_mounts", lambda: [bpffs])
    with Map.create("array", 4, 4, 1, name="t_pinned") as item:
        item.pin(bpffs + "/m")
        number = item.info().id
        assert run_json("map", "show", "-f", "id", number)["pinned"] == [bpffs + "/m"]
        assert "\n\tpinned %s/m\n" % bpffs in run("map", "show", "-f", "id", number)[1]
        assert "pinned" not in run_json("map", "show", "id", number)
        os.unlink(bpffs + "/m")


def test_map_create(bpffs):
    path = bpffs + "/made"
    assert run("map", "create", path, "type", "lru_hash", "key", 8, "value", 16, "entries", 32, "name", "t_made") == (
        0, "", "")
    fields = run_json("map", "show", "pinned", path)
    assert (fields["type"], fields["name"], fields["bytes_key"], fields["bytes_value"], fields["max_entries"]) == (
        "lru_hash", "t_made", 8, 16, 32)
    assert run("map", "create", path, "type", "lru_hash", "key", 8, "value", 16, "entries", 32, "name", "t")[0] == 255
    os.unlink(path)


def test_load(bpffs, tmp_path):
    source, target = tmp_path / "x.s", tmp_path / "x.o"
    source.write_text('.section xdp\n.global one\none:\n  r0 = 1\n  exit\n')
    status, _, error = run("asm", "-o", target, "-f", "elf", source)
    if status:
        pytest.fail(error)
    assert run("prog", "load", target, bpffs + "/one") == (0, "", "")
    assert run_json("prog", "show", "pinned", bpffs + "/one")["type"] == "xdp"
    assert run("prog", "loadall", target, bpffs + "/all", "type", "xdp") == (0, "", "")
    name, = os.listdir(bpffs + "/all")
    assert name == "one"
    os.unlink(bpffs + "/one")
    os.unlink(bpffs + "/all/one")


def test_load_of_what_is_no_object(bpffs, tmp_path):
    (tmp_path / "x.o").write_bytes(b"\x7fELFnothing")
    status, out, error = run("prog", "load", tmp_path / "x.o", bpffs + "/p")
    assert status == 255 and error.startswith("Error: ") and error.count("\n") == 1


def test_what_vanishes_while_it_is_listed_is_passed_over(monkeypatch):
    with Map.create("array", 4, 4, 1) as item:
        number = item.info().id
        monkeypatch.setattr(objects.ids, "walk", lambda kind: iter([number, 4000000000]))
        assert [fields["id"] for fields in run_json("map", "show")] == [number]


def test_missing_privileges_are_named(rawbpf):
    done = rawbpf("prog", "show", user=65534, group=65534)
    assert done.returncode == 255 and "CAP_SYS_ADMIN" in done.stderr and done.stderr.count("\n") == 1


def test_batch(tmp_path):
    with Map.create("array", 4, 4, 1, name="t_batch") as item:
        number = item.info().id
        path = tmp_path / "batch"
        path.write_text("# comment\nmap update id %d key 0 0 0 0 \\\n value 1 2 3 4\nmap lookup id %d key 0 0 0 0\n"
                        % (number, number))
        assert run("batch", "file", path) == (
            0, "key: 00 00 00 00  value: 01 02 03 04\nprocessed 2 commands\n", "")
        assert [one["output"] for one in json.loads(run("batch", "-j", "file", path)[1])][1]["value"] == [
            "0x01", "0x02", "0x03", "0x04"]
        assert item.lookup(bytes(4)) == struct.pack("=4B", 1, 2, 3, 4)
    path.write_text("prog shwo\nprog show\n")
    assert run("batch", "file", path)[0] == 255
    path.write_text("version\nnet show\nstruct_ops show\nlin show\n")       # words cut short, as bpftool takes them
    done = json.loads(run("batch", "-j", "file", path)[1])
    assert "version" in done[0]["output"] and list(done[1]["output"][0])[:2] == ["xdp", "tc"]
    assert isinstance(done[2]["output"], list) and isinstance(done[3]["output"], list)
    path.write_text("gen object %s/out %s\n" % (tmp_path, path))
    assert run("batch", "file", path)[0] == 255 and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_million_elements_need_little_memory():
    """The dump of a large map must not hold it: measured in a child on 200,000 elements."""
    import subprocess
    import sys
    with Map.create("array", 4, 8, 200000, name="t_large") as item:
        text = ("import os, sys\nfrom rawbpf.tools import cli\nsys.stdout = open(os.devnull, 'w')\n"
                "cli.main(['map', 'dump', 'id', '%d'])\n"
                "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0], file=sys.stderr)" % item.info().id)
        done = subprocess.run([sys.executable, "-c", text], text=True, capture_output=True, timeout=60)
    assert int(done.stderr) < 60000, done.stderr


def test_iterator_is_run_by_reading_its_pin(bpffs, tmp_path):
    source, target = tmp_path / "x.s", tmp_path / "x.o"
    source.write_text(".section iter/task\n.global dump\ndump:\n  r0 = 0\n  exit\n")
    assert run("asm", "-o", target, "-f", "elf", source)[0] == 0
    assert run("iter", "pin", target, bpffs + "/it") == (0, "", "")
    with open(bpffs + "/it", "rb") as file:
        assert file.read() == b""
    os.unlink(bpffs + "/it")


def test_link_pin_and_detach(bpffs):
    from rawbpf.loader import link_net
    with Program.load("sk_lookup", code.mov(0, 1) + code.EXIT, expected_attach_type="sk_lookup") as program:
        with link_net.attach_netns(program, link_net.open_path("/proc/self/ns/net"), "sk_lookup") as link:
            number = link.info().id
            assert run("link", "pin", "id", number, bpffs + "/l") == (0, "", "")
    fields = run_json("link", "show", "pinned", bpffs + "/l")
    assert fields["netns_ino"] == os.stat("/proc/self/ns/net").st_ino
    assert run("link", "detach", "pinned", bpffs + "/l") == (0, "", "")
    assert run_json("link", "show", "id", number)["netns_ino"] == 0     # still there, attached to nothing
    os.unlink(bpffs + "/l")


def test_any_words_are_at_most_one_error():
    import random
    dice = random.Random(7)
    keywords = ("show id tag name pinned 1 0 99999999999 -1 hex key value dump xlated opcodes visual linum lookup x '' "
                "file format c raw root_id kv all any exist noexist -j -p -f --bogus jited \xff").split()
    for _ in range(400):
        words = [dice.choice(keywords) for _ in range(dice.randrange(6))]
        status, out, error = run(dice.choice(("prog", "map", "link", "btf", "perf", "tree")), *words)
        assert status in (0, 1, 254, 255) and "Traceback" not in error
        assert status == 0 or error.count("\n") <= 1, (words, error)
