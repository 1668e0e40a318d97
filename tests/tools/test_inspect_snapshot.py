"""rawbpf snapshot, --snapshot, diff and who: what was told of the living is told of the dead."""

import json
import os
import struct
import time
import zipfile

import pytest

from rawbpf.asm import assemble
from rawbpf.loader import Map, Program
from rawbpf.loader.link import attach_raw_tracepoint
from tests.tools.inspecting import run, run_json

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

CODE = """
main: r1 = map[t_table] ll
*(u32 *)(r10 - 4) = 7
r2 = r10
r2 += -4
call bpf_map_lookup_elem
r1 = 3
call inner
r0 = 0
exit
inner: r0 = r1
call bpf_ktime_get_ns
exit
"""


class World:
    """A map with two elements, a program that uses it, a link: their ids."""

    def __enter__(self):
        self.table = Map.create("hash", 4, 8, 10, name="t_table")
        self.cpus = Map.create("percpu_array", 4, 8, 1, name="t_cpus")
        for key, value in ((7, 0x1122), (9, 5)):
            self.table.update(struct.pack("=I", key), struct.pack("=Q", value))
        self.program = Program.load("raw_tracepoint", assemble(CODE).instructions(), maps={"t_table": self.table}, name="t_who")
        self.link = attach_raw_tracepoint(self.program, "sys_enter")
        self.ids = {"prog": self.program.info().id, "map": self.table.info().id, "cpus": self.cpus.info().id}
        self.linked = hasattr(self.link, "info")
        return self

    def __exit__(self, *_):
        for one in (self.link, self.program, self.table, self.cpus):
            one.close()


def wait_for_the_end(world):
    """The kernel frees a program that was attached some time after its last user has gone."""
    until = time.monotonic() + 20
    for kind in ("prog", "map"):        # the program's maps go after it
        while run(kind, "show", "id", world.ids[kind])[0] == 0 and time.monotonic() < until:
            time.sleep(0.02)
        assert run(kind, "show", "id", world.ids[kind])[0] == 255


COMMANDS = [("prog", "show"), ("map", "show"), ("prog", "show", "id", "{prog}"), ("prog", "show", "name", "t_who"),
            ("prog", "dump", "xlated", "id", "{prog}", "opcodes"), ("prog", "dump", "jited", "id", "{prog}", "opcodes"),
            ("map", "show", "id", "{map}"), ("map", "dump", "id", "{map}"), ("map", "dump", "id", "{cpus}"),
            ("map", "lookup", "id", "{map}", "key", "hex", "07", "00", "00", "00"), ("tree",), ("perf",),
            ("who", "*ktime_get_ns")]


def own(text, ids):
    """Records of the test's own objects, without what changes by itself: other programs, run counts."""
    found = json.loads(text)
    if isinstance(found, list) and found and isinstance(found[0], dict) and "id" in found[0] and "key" not in found[0]:
        found = [one for one in found if one["id"] in ids.values()]
    return found


def test_every_inspector_reads_it(tmp_path):
    file = tmp_path / "host.snapshot"
    with World() as world:
        status, out, error = run("snapshot", file, "maps")
        assert (status, error) == (0, "") and " programs, " in out
        live = {}
        for words in COMMANDS:
            words = tuple(word.format(**world.ids) for word in words)
            if words[0] not in ("tree", "perf"):
                live[words] = run_json(*words), run(*words)[1]
        functions = world.program.jited_functions()
    wait_for_the_end(world)
    for words, (as_json, text) in live.items():
        if words[1:] == ("show",):
            of_test = [one for one in as_json if one["id"] in world.ids.values()]
            assert of_test == own(run("-j", *words, "--snapshot", file)[1], world.ids)
        else:
            assert run_json(*words, "--snapshot", file) == as_json
            assert run(*words, "--snapshot", file)[1] == text
    assert len(functions) == 2
    assert run_json("map", "dump", "id", world.ids["map"], "--snapshot", file)[0].keys() == {"key", "value"}
    for words in ("tree",), ("perf",), ("link",), ("net",), ("btf",), ("cgroup", "tree"):
        status, out, error = run(*words, "--snapshot", file)
        assert status == 0 or words[0] == "cgroup", error
    # at once after it, the kernel is asked again
    assert world.ids["prog"] not in [one["id"] for one in run_json("prog", "show")]


def test_without_the_elements(tmp_path):
    with World() as world:
        run("snapshot", tmp_path / "s")
    assert run("map", "dump", "id", world.ids["map"], "--snapshot", tmp_path / "s") == (
        255, "", "Error: the snapshot has no elements of map %d: it was taken without 'maps'\n" % world.ids["map"])


@pytest.mark.parametrize("words, said", [
    (("map", "update", "id", "1"), "not supported: rawbpf map update on a snapshot, because it would change something"),
    (("prog", "pin", "id", "1", "/x"), "not supported: rawbpf prog pin on a snapshot, because it would change something"),
    (("top",), "not supported: rawbpf top on a snapshot, because it asks the running kernel"),
])
def test_it_is_only_looked_at(tmp_path, words, said):
    assert run(*words, "--snapshot", "unread")[2] == "Error: %s\n" % said


def test_damaged_files(tmp_path):
    with World():
        run("snapshot", tmp_path / "s", "maps")
    data = (tmp_path / "s").read_bytes()
    damaged = [b"", b"PK", data[:1000], data[:-30], b"x" * 5000]
    for number, content in enumerate(damaged):
        (tmp_path / "d").write_bytes(content)
        status, out, error = run("prog", "show", "--snapshot", tmp_path / "d")
        assert (status, out) == (255, "") and error.startswith("Error: ") and error.count("\n") == 1, number
    with zipfile.ZipFile(tmp_path / "e", "w") as archive:
        archive.writestr("snapshot.json", json.dumps({"format": 99, "objects": {}}))
    assert "a snapshot of format 99" in run("prog", "--snapshot", tmp_path / "e")[2]
    assert run("prog", "--snapshot", tmp_path / "missing")[2] == "Error: %s: No such file or directory\n" % (tmp_path / "missing")
    assert run("snapshot", "/dev/null")[2] == "Error: /dev/null is no regular file\n"
    assert not [name for name in os.listdir(tmp_path) if name.startswith(("s.", "d."))]


def test_diff(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    with World() as world:
        run("snapshot", old)
        with Map.create("array", 4, 4, 1, name="t_new") as added:
            number = added.info().id
            world.table.freeze()
            run("snapshot", new)
    changes = {(one["change"], one["kind"], one["id"]): one for one in run_json("diff", old, new)}
    assert changes["added", "map", number] == {"change": "added", "kind": "map", "id": number, "type": "array", "name": "t_new"}
    assert changes["changed", "map", world.ids["map"]]["fields"] == {"frozen": [0, 1]}
    assert ("removed", "prog", world.ids["prog"]) not in changes
    wait_for_the_end(world)
    gone = {(one["change"], one["kind"], one["id"]) for one in run_json("diff", old)}
    assert ("removed", "prog", world.ids["prog"]) in gone and ("removed", "map", world.ids["map"]) in gone
    text = run("diff", old, new)[1]
    assert "+ map %d  array  t_new\n" % number in text
    assert "~ map %d  hash  t_table\n    frozen: 0 -> 1\n" % world.ids["map"] in text
    assert run("diff")[2] == "Error: file of the older snapshot is missing\n"


def test_who_calls():
    with World() as world:
        found = [one for one in run_json("who", "bpf_ktime_get_ns") if one["prog_id"] == world.ids["prog"]]
        assert found == [{"function": "bpf_ktime_get_ns", "how": "called", "prog_id": world.ids["prog"],
                          "type": "raw_tracepoint", "name": "t_who"}]
        assert "bpf_ktime_get_ns: called by program %d  raw_tracepoint  name t_who\n" % world.ids["prog"] in run(
            "who", "bpf_kt?me_get_ns")[1]
        assert run("who", "no_such_function") == (1, "", "no program is attached to no_such_function or calls it\n")
        assert run("who", "no_such_function", "-j") == (1, "[]\n", "")


@pytest.mark.vm
def test_who_is_attached(rawbpf):
    trace = rawbpf.start("trace", "-e", 'kprobe:vfs_read { @ = count(); } BEGIN { printf("ready\\n"); }')
    while trace.stdout.readline() != "ready\n":
        assert trace.poll() is None
    found = json.loads(rawbpf("-j", "who", "vfs_read").stdout)
    assert [(one["function"], one["how"], one["type"]) for one in found] == [("vfs_read", "kprobe", "kprobe")]
    assert [one["function"] for one in json.loads(rawbpf("-j", "who", "vfs_rea?").stdout)] == ["vfs_read"]
