"""Pins, object files, vanishing objects, batch files: in a BPF file system that nobody else sees."""

import json
import os
import struct

import pytest

from rawbpf.loader import Map, Program
from rawbpf.loader.detached import mount
from rawbpf.tools.inspect import objects
from tests.loader import code
from tests.tools.inspecting import run, run_json

pytestmark = pytest.mark.root


@pytest.fixture
def bpffs():
    fd = mount("bpf")
    yield "/proc/self/fd/%d" % fd
    os.close(fd)


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


def test_a_million_elements_need_little_memory():
    """The dump of a large map must not hold it: measured in a child on 200,000 elements."""
    import subprocess
    import sys
    with Map.create("array", 4, 8, 200000, name="t_large") as item:
        text = ("import resource, os, sys\nfrom rawbpf.tools import cli\nsys.stdout = open(os.devnull, 'w')\n"
                "cli.main(['map', 'dump', 'id', '%d'])\n"
                "sys.stderr.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))" % item.info().id)
        done = subprocess.run([sys.executable, "-c", text], text=True, capture_output=True, timeout=60)
    assert int(done.stderr) < 60000, done.stderr
