"""Inspectors where what is asked cannot be had: one error in the form asked for, status 255, and nothing that looks like an
answer. What names hold that others gave makes no lines of its own."""

import json
import os
import struct
import subprocess
import sys
import zipfile

import pytest

from rawbpf.elf.image import printable
from rawbpf.loader import KernelError, Program
from rawbpf.sources.base import SourceError
from rawbpf.tools import cli
from rawbpf.tools.inspect import cgroup, objects, perf, snapshot, token, tree
from rawbpf.tools.inspect.command import Session
from rawbpf.tools.inspect.output import legible
from tests.loader import code
from tests.tools.inspecting import run


def both(*words):
    """(the error as text, the document under -j) of what fails."""
    status, out, error = run(*words)
    assert status == 255 and error.startswith("Error: ") and error.count("\n") == 1, (status, out, error)
    status, out, said = run("-j", *words)
    assert status == 255 and said == ""
    return error[7:-1], json.loads(out)


def test_bytes_that_are_no_characters_are_shown_as_they_are():
    assert printable("a\udcff\n\x1b\u00e9\udc80") == "a\\xff\\x0a\\x1b\u00e9\\x80"


def test_names_make_no_lines_of_their_own():
    """As text; JSON has its own way."""
    out = []
    odd = "a\n7: xdp  name forged\x1b[2J\udcff"
    record = {"holder": odd, "objects": [{"kind": "map", "id": 1, "type": "hash", "name": odd, "only": False}], "pinned": [odd]}
    Session({}, out.append).show([record], lambda one: one["holder"] + "\n" + "".join(tree._lines(one["objects"], 1)) + one["pinned"][0])
    shown = "a\\x0a7: xdp  name forged\\x1b[2J\\xff"
    assert "".join(out) == "%s\n  map 1 hash %s\n%s" % (shown, shown, shown) and record["holder"] == odd


def test_names_of_types_and_lines_of_source(tmp_path):
    """BTF whose names end the line: as bpftool has them where they are names."""
    odd, member = b"a\n[7] INT 'x\x1b\xff", b"m\n"
    strings = b"\0" + odd + b"\0" + member + b"\0"
    kinds = struct.pack("=8I", 1, 1 << 24, 4, 1 << 24 | 32, 1, 4 << 24 | 1, 4, 2 + len(odd)) + struct.pack("=II", 1, 0)
    (tmp_path / "b").write_bytes(struct.pack("=HBBIIIII", 0xeb9f, 1, 0, 24, 0, len(kinds), len(kinds), len(strings)) + kinds + strings)
    assert run("btf", "dump", "file", tmp_path / "b")[1] == (
        "[1] INT 'a\\x0a[7] INT 'x\\x1b\\xff' size=4 bits_offset=0 nr_bits=32 encoding=SIGNED\n"
        "[2] STRUCT 'a\\x0a[7] INT 'x\\x1b\\xff' size=4 vlen=1\n\t'm\\x0a' type_id=1 bits_offset=0\n")
    assert legible("\tif (a)\t/* \x1b[2J\n */") == "\tif (a)\t/* \\x1b[2J\\x0a */"


def test_places_of_mounts(tmp_path):
    """Octal is what the kernel writes of blanks, newlines and backslashes; all else is as it is."""
    place = "/m\u00e9\u3000\udcff\\040\\134n\\012\r"
    path = tmp_path / "mounts"
    path.write_bytes(("bpf %s bpf rw,delegate_cmds=prog_load 0 0\nnone %s cgroup2 rw 0 0\n" % (place, place)).encode("utf-8", "surrogateescape"))
    wanted = "/m\u00e9\u3000\udcff \\n\n\r"
    assert cgroup.mounted(path) == wanted and [one["token_info"] for one in token.records(path)] == [wanted]
    path.write_bytes(("1 2 0:3 / %s rw shared:1 - bpf bpf rw\n" % place).encode("utf-8", "surrogateescape"))
    assert objects.bpffs_mounts(path) == [wanted]


def test_no_tracefs(monkeypatch):
    from rawbpf.sources import tracefs

    def none():
        raise SourceError("tracefs is not mounted")
    monkeypatch.setattr(tracefs, "tracefs", none)
    assert both("prog", "tracelog") == ("tracefs is not mounted", {"error": "tracefs is not mounted"})


def test_perf_of_who_may_not_ask(monkeypatch):
    """Who may not ask sees no descriptors either: what they find is nothing."""
    def refused(pid, fd):
        assert pid == os.getpid() and os.readlink("/proc/self/fd/%d" % fd) == "/"
        raise KernelError("query", 1)
    monkeypatch.setattr(perf, "task_fd_query", refused)
    monkeypatch.setattr(os, "listdir", lambda path: [])
    said, shown = both("perf", "show")
    assert "Operation not permitted" in said and shown == [{"error": said}]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A snapshot of two cgroups, nothing attached to one; and one as they were before the folders were in it."""
    said = {"format": snapshot.FORMAT, "objects": {kind: [] for kind in snapshot.KINDS}, "cgroup_root": "/c", "cgroup_folders": ["/c", "/c/a"],
            "cgroup": [{"cgroup": "/c", "programs": [{"id": 3, "attach_type": "cgroup_device", "attach_flags": "", "name": "n"}]}]}
    folder = tmp_path_factory.mktemp("cgroups")
    for name in ("new", "old"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("snapshot.json", json.dumps(said))
        said.pop("cgroup_folders", None)
    return folder


def test_cgroups_that_are_not(recorded, tmp_path):
    (tmp_path / "file").write_text("")
    for path, why in ((tmp_path / "none", "No such file or directory"), (tmp_path / "file", "Not a directory")):
        for verb in ("show", "tree"):
            said, shown = (run("cgroup", verb, path)[2][7:-1], json.loads(run("-j", "cgroup", verb, path)[1]))
            assert said == "%s: %s" % (path, why) and shown in ({"error": said}, [{"error": said}])
            assert run("cgroup", verb, path)[0] == run("-j", "cgroup", verb, path)[0] == 255
    new = ("--snapshot", recorded / "new")
    for verb in ("show", "tree"):
        said = "/c/b: the snapshot has no such cgroup"
        assert both("cgroup", verb, "/c/b", *new) == (said, {"error": said})
        assert json.loads(run("-j", "cgroup", verb, "/c/a", *new)[1]) == []
        assert json.loads(run("-j", "cgroup", verb, "/c/b", "--snapshot", recorded / "old")[1]) == []       # it cannot tell
    assert [one["id"] for one in json.loads(run("-j", "cgroup", "show", "/c/", *new)[1])] == [3]
    assert [one["cgroup"] for one in json.loads(run("-j", "cgroup", "tree", *new)[1])] == ["/c"]


def test_a_snapshot_that_is_ended_leaves_no_file(tmp_path):
    """kill -9 as well: until it is complete the file has no name."""
    seen = []

    def ended(what):
        seen.append(os.listdir(tmp_path))
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        snapshot.take(str(tmp_path / "s"), progress=ended)
    assert seen == [[]] and os.listdir(tmp_path) == []


def test_files_without_a_name_first(tmp_path, monkeypatch):
    """Where the file system has none (then a file with a name takes its place), the same snapshot."""
    monkeypatch.setattr(snapshot._Writer, "write", lambda self, features: self.archive.writestr("snapshot.json", "{}") or {})
    path = tmp_path / "s"
    for flag in (os.O_TMPFILE, os.O_DIRECTORY | os.O_WRONLY):       # the second: EISDIR, as of a kernel that has not heard of it
        monkeypatch.setattr(os, "O_TMPFILE", flag)
        for _ in range(2):          # new, and in the place of another
            assert snapshot.take(str(path)) == {}
            assert zipfile.ZipFile(path).read("snapshot.json") == b"{}" and os.listdir(tmp_path) == ["s"]
            assert path.stat().st_mode & 0o777 == 0o600
        path.unlink()


@pytest.mark.parametrize("name", ["a-b", "a b", "\udcff", "n\n"])
def test_names_that_maps_cannot_have(name):
    said, shown = both("map", "create", "/nonexistent/x", "type", "hash", "key", 4, "value", 4, "entries", 1, "name", name)
    assert said.startswith("map create failed: a name has letters, digits, _ and . alone")


@pytest.mark.parametrize("words", [
    ["prog", "a\nb\udcff"], ["prog", "show", "a\nb\udcff"], ["prog", "show", "id", "a\nb\udcff"], ["map", "show", "name", "a\nb\udcff"],
    ["version", "--a\nb\udcff"], ["gen", "object", "/nonexistent/o", "/nonexistent/a\nb\udcff"], ["batch", "file", "/nonexistent/a\nb\udcff"],
    ["version", "-B", "/nonexistent/a\nb\udcff"], ["btf", "dump", "file", "/nonexistent/a\nb\udcff"], ["cgroup", "show", "/nonexistent/a\nb\udcff"],
    ["map", "show", "pinned", "/nonexistent/a\nb\udcff"], ["map", "create", "/x", "name", "a", "type", "a\nb\udcff"],
    ["prog", "--snapshot", "/nonexistent/a\nb\udcff"],
    ["net", "attach", "xdp", "id", "1", "dev", "a\nb\udcff"], ["cgroup", "attach", "/", "a\nb\udcff", "id", "1"], ["top", "interval", "a\nb\udcff"],
])
@pytest.mark.root
def test_words_that_are_repeated(words):
    status, out, error = run(*words)
    assert (status, out, error.count("\n")) == (255, "", 1) and "a\\x0ab\\xff" in error or words[0] == "net" or words[1] == "create", error
    shown = json.loads(run("-j", *words)[1])
    assert (shown[0] if isinstance(shown, list) else shown)["error"] == error[7:-1]


def test_commands_and_options_that_are_repeated():
    for words in (["a\nb\udcff"], ["-\n"], ["-jB"], ["-B", "\n"]):
        status, out, error = run(*words)
        assert (status, out, error.count("\n")) == (1, "", 1)


def test_top_of_no_tables():
    assert both("top", "count", 0) == ("count: from 1", {"error": "count: from 1"})


def test_batches(tmp_path):
    assert both("batch", "file", tmp_path) == ("%s: Is a directory" % tmp_path, [{"error": "%s: Is a directory" % tmp_path}])
    (tmp_path / "b").write_text("version\nbogus a\nversion\n")
    status, out, error = run("-j", "batch", "file", tmp_path / "b")
    first, second = json.loads(out)
    assert (status, error, first["command"], second["command"]) == (255, "", ["version"], ["bogus", "a"])
    assert second["output"]["error"].startswith("line 2: unknown object 'bogus'")


@pytest.mark.parametrize("text", ["a" * 70000, "a\n" + "b\\\n" * 70000])
def test_lines_without_end(tmp_path, text):
    """Of /dev/zero no more is read either."""
    (tmp_path / "b").write_text("version\n" + text)
    status, out, error = run("-j", "batch", "file", tmp_path / "b")
    assert status == 255 and "more than 65536 characters" in out or text[1] == "\n"
    said = run("batch", "file", "/dev/zero")
    assert (said[0], said[2]) == (255, "Error: line 1: more than 65536 characters\n")


@pytest.mark.root
def test_files_that_are_read_or_written(tmp_path):
    """Each is named, and has an end."""
    with Program.load("socket_filter", code.RETURN_0) as program:
        one = "id", program.info().id
        for words, why in ((("dump", "xlated", *one, "file", "/dev/full"), "/dev/full: No space left on device"),
                           (("dump", "xlated", *one, "file", "/nonexistent/x"), "/nonexistent/x: No such file or directory"),
                           (("run", *one, "data_in", "/nonexistent/x"), "/nonexistent/x: No such file or directory")):
            assert both("prog", *words) == (why, {"error": why})


def test_what_other_rooms_raise(monkeypatch):
    """AsmError (of /dev/zero as input), ...: what is for people is said to them."""
    from rawbpf.asm import AsmError
    from rawbpf.elf.unpack import UnpackError
    from rawbpf.loader.errors import ObjectError
    from rawbpf.tools.inspect import batch
    for error in (AsmError("/dev/zero: more\nthan"), ObjectError("/dev/zero: more\nthan"), UnpackError("/dev/zero: more\nthan")):
        def work(session, words, error=error):
            raise error
        monkeypatch.setitem(batch.VERBS, "file", work)
        said, shown = both("batch", "file")
        assert "/dev/zero: more\\x0athan" in said and shown == {"error": said}


@pytest.mark.root
def test_folders_for_pins(bpffs, tmp_path):
    (tmp_path / "x.s").write_text(".section xdp\n.global one\none:\n  r0 = 1\n  exit\n")
    source, empty = tmp_path / "x.o", set(os.listdir(bpffs))
    assert run("asm", "-f", "elf", "-o", source, tmp_path / "x.s")[0] == 0
    new = tmp_path / "new"
    for folder, words in ((new, ("load", source, bpffs + "/x", "pinmaps", new)), (tmp_path, ("load", source, bpffs + "/x", "pinmaps", tmp_path)),
                          (new, ("loadall", source, new)), (new, ("loadall", source, bpffs + "/d", "pinmaps", new))):
        said, shown = both("prog", *words)
        assert said.split(": ")[-2:] == [str(folder), "the path is not in a BPF file system (mount -t bpf bpf /sys/fs/bpf)"]
        assert shown == {"error": said} and set(os.listdir(bpffs)) == empty and not new.exists()
    assert run("prog", "loadall", source, bpffs + "/d", "pinmaps", bpffs + "/m") == (0, "", "")
    assert set(os.listdir(bpffs)) - empty == {"d", "m"} and os.listdir(bpffs + "/d") == ["one"]


@pytest.mark.parametrize("words, said", [
    (["--legacy", "prog", "show"], "Error: not supported: -l, because bpftool has it no longer"), (["-jk", "x", "prog", "load"], ""),
    (["-kx", "prog", "load"], "Error: not supported: -k, because programs are not signed"),
    (["-i", "x", "prog", "load"], "Error: not supported: -i, because programs are not signed"),
    (["--use", "prog", "load"], "Error: not supported: -L, because"), (["--snap", "/nonexistent", "prog"], "Error: /nonexistent: No such"),
    (["--base-btf", "/nonexistent", "version"], "Error: /nonexistent: No such file or directory"),
    (["-B/dev/null", "btf", "show"], "Error: /dev/null at offset 0x0: BTF of 0 bytes"),
    (["version", "-B", "/nonexistent"], "Error: /nonexistent: No such file or directory"),
])
def test_options_in_front_are_refused(words, said):
    status, out, error = run(*words)
    assert status == 255 and error.startswith(said) and (said or json.loads(out)["error"].startswith("not supported: -k"))


def test_options_in_front_of_each_command():
    """-j before the command is -j behind it."""
    for name in cli.COMMANDS:
        assert cli._options_last(["-j", name, "x"]) == [name, "x", "-j"] and cli._width(name) == 0


@pytest.mark.parametrize("words, said", [
    (["-k"], "option '-k' needs a value: FILE"), (["-jB"], "option '-B' needs a value: FILE"), (["-L"], "not supported: -L, because"),
    (["-i", "prog", "load"], "not supported: -i, because programs are not signed"),
    (["-j"], "-j goes with an inspector, as in: rawbpf -j prog show"),
    (["-B", "/x"], "-B goes with an inspector, as in: rawbpf -B /x prog show"),
])
def test_options_alone(words, said):
    status, out, error = run(*words)
    assert (status, out) == (1, "") and error.startswith("ERROR: " + said) and error.count("\n") == 1


FULL = """
import os, sys
from rawbpf.tools import cli
os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", [["version"], ["-j", "version"], ["batch", "help"], ["-j", "batch", "file", "/nonexistent"]])
def test_an_output_that_takes_nothing(words):
    done = subprocess.run([sys.executable, "-c", FULL, *words], stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (255, b"Error: No space left on device\n")
