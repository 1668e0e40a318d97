"""Inspectors where things are not as they should be: ids that wrap, names with odd bytes, damaged types and snapshots. At
most one error, never a traceback, always a document."""

import errno
import json
import os
import random
import struct
import subprocess
import sys
import zipfile

import pytest

from rawbpf.asm import assemble
from rawbpf.loader import BtfObject, Map, PerfEvent, Program, ids, link, perf, syscalls
from rawbpf.loader.btf import function_types
from rawbpf.loader.detached import mount
from rawbpf.loader.netlink import Socket
from rawbpf.tools.inspect import objects
from tests.loader import code
from tests.loader.interfaces import pair
from tests.loader.test_links import in_netns
from tests.tools.inspecting import run
from tests.tools.population import VALUES, types

pytestmark = pytest.mark.root
LAST = (1 << 31) - 2        # idr_alloc_cyclic(..., 1, INT_MAX): after this one they begin at 1 again


def test_ids_that_wrap(monkeypatch):
    """What is made during the walk has lower numbers than what was there: it ends, and names nothing twice."""
    living = [5, 4000, LAST - 1, LAST]

    def after(command, start_id):
        assert command == "map_get_next_id" and start_id <= LAST
        found = min((number for number in living if number > start_id), default=None)
        if found is None:
            raise OSError(errno.ENOENT, "")
        if start_id >= 4000:
            living.append(max(number for number in living if number < 100) + 1)     # 6, 7, ...: the counter has wrapped
        return 0, {"next_id": found}
    monkeypatch.setattr(syscalls, "bpf_out", after)
    assert list(ids.walk("map")) == [5, 4000, LAST - 1, LAST]


def test_an_id_that_is_another_object_by_now():
    """A number that was given again: what is there now is shown, as what it is."""
    with Map.create("array", 4, 4, 1, name="t_first") as item:
        number = item.info().id
    assert run("map", "show", "id", LAST)[0] == 255 and run("map", "show", "id", 1 << 31)[0] == 255
    status, out, error = run("map", "show", "id", number)
    assert (status, out) == (255, "") and error.count("\n") == 1


HOLD = """
import ctypes, sys
sys.path.insert(0, %r)
from rawbpf.loader import Map
item = Map.create("array", 4, 4, 1, name="t_odd")
ctypes.CDLL(None).prctl(15, b"a\\xff\\x1b\\n\\"b\\\\", 0, 0, 0)
print(item.info().id, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_odd_names_of_processes():
    holder = subprocess.Popen([sys.executable, "-c", HOLD % os.getcwd()], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        number = int(holder.stdout.readline())
        found, = [one for one in json.loads(run("-j", "map", "show")[1]) if one["id"] == number]
        assert found["pids"] == [{"pid": holder.pid, "comm": 'a\ufffd\x1b\n"b\\'}]
        assert json.loads(run("-p", "map", "show", "id", number)[1])["pids"] == found["pids"]
        for words in (["map", "show", "id", number], ["tree"], ["tree", "-j"], ["map"]):
            assert run(*words)[::2] == (0, "")
        # through a pipe, with no locale
        for environment in ({"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}, {"PYTHONIOENCODING": "ascii"}):
            done = subprocess.run([sys.executable, "-m", "rawbpf.tools", "map", "show", "id", str(number), "-j"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, env={**os.environ, **environment})
            assert (done.returncode, done.stderr) == (0, b"") and json.loads(done.stdout)["id"] == number
            done = subprocess.run([sys.executable, "-m", "rawbpf.tools", "map", "show", "id", str(number)], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, env={**os.environ, **environment})
            assert (done.returncode, done.stderr) == (0, b"") and b"pids a\\xff\\x1b\\x0a\"b\\(%d)" % holder.pid in done.stdout
    finally:
        holder.communicate()


@pytest.mark.slow
def test_odd_names_of_pins_and_files(tmp_path, monkeypatch):
    fd = mount("bpf")
    place = "/proc/%d/fd/%d" % (os.getpid(), fd)
    odd = os.fsdecode(b"p \xff\n\"\x1b\\")
    monkeypatch.setattr(objects, "bpffs_mounts", lambda: [place])
    file = tmp_path / odd
    file.write_bytes(bytes(4096))
    with Map.create("array", 4, 4, 1, name="t_pinned") as item, Program.load("kprobe", code.RETURN_0) as program, \
            link.attach_perf_event(program, PerfEvent.open(perf.uprobe(os.fsdecode(file), 64), -1, 0)) as attached:
        item.pin("%s/%s" % (place, odd))
        number = item.info().id
        pinned = json.loads(run("-j", "-f", "map", "show", "id", number)[1])["pinned"]
        assert pinned == ["%s/p \ufffd\n\"\x1b\\" % place]
        assert run("map", "show", "pinned", "%s/%s" % (place, odd))[0] == 0
        assert "\n\tpinned %s/p \\xff\\x0a\"\\x1b\\\n" % place in run("-f", "map", "show", "id", number)[1]
        for words in (["perf"], ["tree", "-f"], ["link"], ["link", "-f"]):
            assert run(*words)[::2] == (0, "")
            json.loads(run("-j", *words)[1])
        shown = json.loads(run("-j", "perf")[1])
        assert [one["filename"] for one in shown if one["pid"] == os.getpid()] == [str(tmp_path) + "/p \ufffd\n\"\x1b\\"]
        assert run("snapshot", tmp_path / "s")[::2] == (0, "")
        for words in (["map"], ["perf"], ["tree"], ["link"]):
            assert run(*words, "-f", "--snapshot", tmp_path / "s")[::2] == (0, "")
        assert json.loads(run("-j", "-f", "map", "show", "id", number, "--snapshot", tmp_path / "s")[1])["pinned"] == pinned
        attached.close()
    os.unlink("%s/%s" % (place, odd))
    os.close(fd)


def test_odd_names_of_interfaces():
    def body():
        odd = b"i\xff\"\x1b\\"
        index = pair("veth", "po0", "po1")[0]
        name = struct.pack("=HH", 4 + len(odd) + 1, 3) + odd + b"\0"
        with Socket() as netlink:
            list(netlink.ask("down", 16, 0x5, struct.pack("=BxHiII", 0, 0, index, 0, 1)))
            list(netlink.ask("rename", 16, 0x5, struct.pack("=BxHiII", 0, 0, index, 0, 0) + name + bytes(-len(name) % 4)))
        with Program.load("xdp", code.mov(0, 2) + code.EXIT, name="t_odd") as program:
            assert run("net", "attach", "xdpgeneric", "id", program.info().id, "dev", os.fsdecode(odd)) == (0, "", "")
            shown, = json.loads(run("-j", "net")[1])
            assert [(one["devname"], one["ifindex"]) for one in shown["xdp"]] == [("i\ufffd\"\x1b\\", index)]
            assert "i\\xff\"\\x1b\\(%d) generic id %d" % (index, program.info().id) in run("net")[1]
    in_netns(body)


CODE = """
main: r1 = map[table] ll
*(u32 *)(r10 - 4) = 1
r2 = r10
r2 += -4
call bpf_map_lookup_elem
call inner
r0 = 0
exit
inner: r0 = 1
exit
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """A snapshot with types, elements, machine code and a link: (its members, ids)."""
    folder = tmp_path_factory.mktemp("hostile")
    blob, functions = function_types([("main", 0), ("inner", 9)])
    with BtfObject.load(types()) as typed, Map.create(
            "hash", 4, 56, 4, name="table", btf=typed, btf_key_type_id=1, btf_value_type_id=8) as table, BtfObject.load(blob) as described, \
            Program.load("raw_tracepoint", assemble(CODE).instructions(), maps={"table": table}, name="t_main", btf=described,
                         func_info=functions) as program, link.attach_raw_tracepoint(program, "sched_switch") as attached:
        for number, value in enumerate(VALUES):
            table.update(struct.pack("=I", number), value)
        assert run("snapshot", folder / "s", "maps", "features")[0] == 0
        numbers = {"prog": program.info().id, "map": table.info().id, "link": attached.info().id,
                   "btf": [table.info().btf_id, program.info().btf_id]}
    with zipfile.ZipFile(folder / "s") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    said = json.loads(members["snapshot.json"])
    # of others only what is small: they differ from run to run
    for kind in ("prog", "map", "link"):
        said["objects"][kind] = [one for one in said["objects"][kind] if one["info"]["id"] == numbers[kind]]
    said["objects"]["btf"] = [one for one in said["objects"]["btf"] if one["info"]["id"] in numbers["btf"] or
                              one["info"].get("name") == "vmlinux"]
    del members["btf/vmlinux"]
    keep = ["maps/%d.json" % numbers["map"], *("code/%d.%s" % (numbers["prog"], what) for what in ("xlated", "jited")),
            *("btf/%d" % number for number in numbers["btf"])]
    small = {name: members[name] for name in keep if name in members}
    small["kallsyms"] = b"".join(members["kallsyms"].splitlines(True)[:2000])
    return said, small, numbers


def damage(dice, said):
    """One value somewhere in the records replaced or taken away."""
    at = said
    while True:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        if not keys:
            return
        key = dice.choice(list(keys))
        if isinstance(at[key], (dict, list)) and at[key] and dice.random() < 0.9:
            at = at[key]
            continue
        if dice.random() < 0.3:
            del at[key]
        else:
            at[key] = dice.choice([None, -1, 1 << 70, "", "\ud800x", [], {}, "type 99", 3.5, [[]], {"hex": "zz"}, True])
        return


@pytest.mark.slow
def test_damaged_snapshots(recording, tmp_path):
    """Types, code and records that do not fit together: RAWBPF_DAMAGED snapshots (60), all inspectors on each."""
    original, small, numbers = recording
    dice = random.Random(20261201)
    commands = [["prog"], ["prog", "show", "id", numbers["prog"]], ["prog", "dump", "xlated", "id", numbers["prog"], "linum"],
                ["prog", "dump", "xlated", "id", numbers["prog"], "visual"], ["prog", "dump", "jited", "id", numbers["prog"]],
                ["map"], ["map", "dump", "id", numbers["map"]], ["map", "lookup", "id", numbers["map"], "key", 1, 0, 0, 0], ["link"],
                ["btf"], ["btf", "dump", "id", numbers["btf"][0]], ["btf", "dump", "id", numbers["btf"][0], "format", "c"],
                ["btf", "dump", "map", "id", numbers["map"]], ["perf"], ["net"], ["cgroup", "tree"], ["struct_ops"],
                ["tree"], ["who", "*"], ["feature", "probe"], ["feature", "probe", "macros"]]
    path = tmp_path / "damaged"
    for _ in range(int(os.environ.get("RAWBPF_DAMAGED", 60))):
        members, said = dict(small), json.loads(json.dumps(original))
        if dice.random() < 0.6:
            for _ in range(dice.randrange(1, 4)):
                damage(dice, said)
        else:
            name = dice.choice(list(small))
            data = bytearray(members[name])
            for _ in range(dice.randrange(1, 6)):
                at = dice.randrange(len(data))
                data[at:at + dice.choice((0, 1, 1, 4))] = bytes([dice.randrange(256)])
            members[name] = bytes(data[:dice.choice((len(data), len(data), len(data) // 2))])
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
            archive.writestr("snapshot.json", json.dumps(said))
        for words in dice.sample(commands, 8):
            flags = dice.choice(([], ["-j"], ["-p"]))
            status, out, error = run(*words, *flags, "--snapshot", path)
            assert status in (0, 1, 254, 255) and error.count("\n") <= 2, (words, error)
            if flags and "visual" not in words and "macros" not in words and "c" not in words:
                json.loads(out)
