"""Objects that our own assembler writes, loaded: maps, data, subprograms, pins; and nothing stays."""

import ctypes
import gc
import json
import os
import struct
import subprocess
import sys
import time
import zipfile

import pytest

from rawbpf.asm import assemble, write_object
from rawbpf.elf.image import Image
from rawbpf.elf.symbols import Symbols
from rawbpf.loader import KernelError, Object, ObjectError, kernel, perf
from rawbpf.loader.object_btf import has_kind
from rawbpf.loader.uapi import MAP_TYPES
from tests import peers

pytestmark = pytest.mark.kernel

SOURCE = """
.license "GPL"
.map cells array key=4 value=8 max_entries=4
.rodata
limit:
    .quad 1000
.bss
seen:
    .quad 0
.section socket
    r6 = limit ll
    r6 = *(u64 *)(r6 + 0)
    r1 = seen ll
    r2 = *(u64 *)(r1 + 0)
    r2 += 1
    *(u64 *)(r1 + 0) = r2
    *(u32 *)(r10 - 4) = 2
    r2 = r10
    r2 += -4
    r1 = map[cells] ll
    call bpf_map_lookup_elem
    if r0 == 0 goto out
    *(u64 *)(r0 + 0) = r6
out:
    r1 = r6
    call half
    exit
.section raw_tp/sys_enter
    r0 = 0
    exit
.section kprobe/no_such_function_here
    r0 = 0
    exit
.text
half:
    r0 = r1
    r0 >>= 1
    exit
"""


@pytest.fixture(scope="module")
def data():
    return write_object(assemble(SOURCE), MAP_TYPES)


def by_section(obj, section):
    found, = [each for each in obj.programs.values() if each.section == section]
    return found


def test_load_run_and_read(data):
    with Object.parse(data, "own.o") as obj:
        obj.maps[".rodata"].write(0, struct.pack("=Q", 84))
        obj.load()
        assert by_section(obj, "socket").program.test_run(bytes(14)).retval == 42
        assert obj.maps["cells"].map.lookup(struct.pack("=I", 2)) == struct.pack("=Q", 84)
        assert obj.maps[".bss"].read(0, 8) == struct.pack("=Q", 1)
        obj.maps[".bss"].write(0, struct.pack("=Q", 10))
        by_section(obj, "socket").program.test_run(bytes(14))
        assert obj.maps[".bss"].read(0, 8) == struct.pack("=Q", 11)
        with pytest.raises(KernelError):
            obj.maps[".rodata"].map.update(bytes(4), bytes(8))


def test_only_what_is_asked_for(data):
    with Object.parse(data, "own.o") as obj:
        wanted = by_section(obj, "raw_tp/sys_enter")
        obj.load(only=wanted.name)
        assert [each.name for each in obj.programs.values() if each.program is not None] == [wanted.name]
        assert not any(each.map for each in obj.maps.values())
        with obj.attach() as links:
            assert len(links) == 1
        assert wanted.program.info().name == wanted.name[:15]


def test_an_attachment_that_cannot_be_undoes_the_others(data):
    with Object.parse(data, "own.o") as obj:
        obj.load()
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(KernelError, match="no such function|no kprobe PMU"):
            obj.attach()
        assert len(os.listdir("/proc/self/fd")) == before


def test_no_descriptor_stays(data):
    def cycle():
        with Object.parse(data, "own.o") as obj:
            obj.load()
    cycle()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        cycle()
    broken = data.replace(b"raw_tp/sys_enter", b"raw_xx/sys_enter")
    for _ in range(10):
        with pytest.raises(ObjectError, match="no program type"):
            Object.parse(broken, "own.o").load()
    gc.collect()        # what pytest.raises() keeps
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_probes_of_btf_kinds_agree_with_the_kernels_history():
    release = tuple(map(int, os.uname().release.split(".")[:2]))
    for kind, since in (("func", (5, 0)), ("datasec", (5, 2)), ("float", (5, 13)), ("decl_tag", (5, 16)),
                        ("type_tag", (5, 17)), ("enum64", (6, 0))):
        assert has_kind(kind) == (release >= since), kind


PIN = """
import os, sys
sys.path.insert(0, {top!r})
from tests import peers
peers.private_mounts()
peers.mount("bpf", {folder!r}, "bpf")
from rawbpf.tools.cli import main
status = main(["load", {path!r}, "--json", "--only", {name!r}, "--attach", "--pin", {folder!r} + "/mine"])
from rawbpf.loader import Link, Program
print(sorted(os.listdir({folder!r} + "/mine")))
print(Program.pinned({folder!r} + "/mine/" + {name!r}).type)
print(main(["load", {path!r}, "--only", {name!r}, "--pin", {folder!r} + "/mine"]))
for name in os.listdir({folder!r} + "/mine"):
    os.unlink({folder!r} + "/mine/" + name)
sys.exit(status)
"""


def test_the_command_pins(data, tmp_path):
    path = tmp_path / "own.o"
    path.write_bytes(data)
    folder = tmp_path / "bpffs"
    folder.mkdir()
    name = by_section(Object.parse(data), "raw_tp/sys_enter").name
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(peers.__file__))))
    done = subprocess.run([sys.executable, "-c", PIN.format(top=top, folder=str(folder), path=str(path), name=name)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, names, kind, second = done.stdout.splitlines()
    row, = json.loads(first)["programs"]
    assert row["attached"] and row["pinned"] == "%s/mine/%s" % (folder, name)
    assert names == str([name, name + "_link"]) or "_link" not in names and os.uname().release < "5.8"
    assert kind == "raw_tracepoint"
    assert second == "1" and "something is pinned there already" in done.stderr


@pytest.mark.slow
def test_the_command_names_what_is_wrong(rawbpf, tmp_path):
    (tmp_path / "text").write_text("no object")
    done = rawbpf("load", tmp_path / "text")
    assert done.returncode == 1 and "text:1:1: expected an instruction" in done.stderr
    done = rawbpf("load", tmp_path / "absent")
    assert done.returncode == 1 and "No such file" in done.stderr
    done = rawbpf("load")
    assert done.returncode == 1 and "usage: rawbpf load" in done.stderr


FAILING = """
import json, os, resource, sys
sys.path.insert(0, {top!r})
from tests import peers
peers.private_mounts()
peers.mount("bpf", {folder!r}, "bpf")
from rawbpf.tools.cli import main
os.chdir({folder!r})
good, half, clash, wrong = {paths!r}
def shown():
    return sorted(os.path.join(path, name)[2:] for path, folders, files in os.walk(".")
                  for name in folders + files if not name.endswith(".debug"))
for arguments in ([good, "--pin", "a.b"], [good, "--only", "nope"], [good, "--btf", "/nothing"], ["/nothing"], ["/"],
                  [half, "--only", "bad", "--pin", "d"], [clash, "--attach", "--pin", "d"], [wrong]):
    print("?", main(["load", "--json", "--pin-maps", {folder!r}, *arguments]), shown(), flush=True)
print("?", main(["load", half, "--pin-maps", "."]), shown(), flush=True)
print("?", main(["load", good, "--only", "look", "--only", "look", "--pin", "d", "--pin-maps", "."]), shown(), flush=True)
os.rename("d/look", "shared")
print("?", main(["load", good, "--json", "--pin-maps", {folder!r}]), flush=True)
os.unlink("shared")
resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
print("?", main(["load", good, "--json", "--pin-maps", {folder!r}]), flush=True)
"""


@pytest.mark.peer
@pytest.mark.slow
def test_the_command_answers_whatever_fails(tmp_path):
    """--json always gives JSON; nothing stays pinned of what failed."""
    from tests.bpfcc import compile_bpf_text
    from tests.loader.test_object_peer import PINNED
    folder = tmp_path / "bpffs"
    folder.mkdir()
    pinned = PINNED % 8
    paths = [compile_bpf_text(text) for text in (
        pinned, pinned + 'SEC("socket") int bad(void *ctx) { return *(int *)0; }\n',
        pinned + 'SEC("raw_tp/sys_enter") int r1(void *ctx) { return 0; }\n'
        'SEC("raw_tp/sys_enter") int r1_link(void *ctx) { return 0; }\n',
        '#include "bpf.h"\nSEC("xdp") int other(void *ctx) { return 1; }\n'
        'SEC("socket") int own(void *ctx) { return 1; }\n'
        'struct { __uint(type, 3); __uint(max_entries, 3); __uint(key_size, 4); __array(values, int(void *)); } jump '
        'SEC(".maps") = { .values = { [0] = (void *)&own, [2] = (void *)&other } };\n')]
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(peers.__file__))))
    done = subprocess.run([sys.executable, "-c", FAILING.format(top=top, folder=str(folder), paths=paths)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    answers, states = [line for line in lines if line.startswith("{")], [line for line in lines if line[0] == "?"]
    for answer, wanted in zip(answers, ("no dots", "has no program nope", "/nothing: No such file", "/nothing: No such file",
                                      "/: Is a directory", "refused by the verifier", "would both be pinned as r1_link",
                                      "map jump: its element 2, program other", "is a prog, not a map", "Too many open files")):
        json.loads(answer)
        assert wanted in answer
    assert len(answers) == 10
    assert states[:9] == ["? 1 []"] * 9
    assert states[9:] == ["? 0 ['d', 'd/look', 'shared']"] + ["? 1"] * 2


@pytest.mark.slow
def test_options_without_a_value(rawbpf):
    for option in ("--pin", "--pin-maps", "--btf", "--only"):
        done = rawbpf("load", "some.o", option, "")
        assert done.returncode == 1 and "option '%s' takes a" % option in done.stderr


COUNT = """
.license "GPL"
.map hits array key=4 value=8 max_entries=1
.section %s
    *(u32 *)(r10 - 4) = 0
    r2 = r10
    r2 += -4
    r1 = map[hits] ll
    call bpf_map_lookup_elem
    if r0 == 0 goto out
    r1 = 1
    lock *(u64 *)(r0 + 0) += r1
out:
    r0 = 0
    exit
"""


@pytest.mark.parametrize("section", ["uprobe/libc.so.6:getpid", "uretprobe/libc.so.6:getpid", "raw_tp/sys_enter",
                                     "tracepoint/syscalls/sys_enter_getpid", "tp/syscalls/sys_exit_getpid"])
def test_attached_by_its_section(section):
    with Object.parse(write_object(assemble(COUNT % section), MAP_TYPES)) as obj:
        obj.load()
        with obj.attach() as links:
            assert len(links) == 1
            for _ in range(6):
                os.getpid()
            hits = obj.maps["hits"].map
            assert int.from_bytes(hits.lookup(bytes(4)), "little") >= 6


def test_a_library_in_an_archive(compile_c, tmp_path):
    """ARCHIVE!/MEMBER, stored on a page boundary, from where this process maps it."""
    library = compile_c("int zipped(int x) { return x + 1; }", "-shared", "-fPIC", "-O1", name="libzipped.so")
    image = Image.open(library)
    place = image.file_offset(Symbols(image).find("zipped").value)
    archive, entry = str(tmp_path / "app.zip"), zipfile.ZipInfo("libzipped.so")
    room = 4096 - 30 - len(entry.filename) - 4      # after the local header comes an extra field of so many bytes
    entry.extra = struct.pack("<HH", 0xffff, room) + bytes(room)
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr(entry, open(library, "rb").read())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    with open(archive, "rb") as file:
        start = libc.mmap(None, os.path.getsize(library), 5, 2, file.fileno(), 4096)    # PROT_READ | PROT_EXEC, MAP_PRIVATE
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(start + place)
    for name in ("zipped", "zipped+0", "zip*"):
        kind = "uprobe.multi" if "*" in name else "uprobe"
        if "*" in name and kernel.release() < (6, 6):
            continue
        with Object.parse(write_object(assemble(COUNT % ("%s/%s!/libzipped.so:%s" % (kind, archive, name))), MAP_TYPES)) as obj:
            obj.load()
            with obj.attach():
                assert [function(41) for _ in range(3)] == [42] * 3
            function(1)
            assert obj.maps["hits"].map[0] == struct.pack("=Q", 3)
    with Object.parse(write_object(assemble(COUNT % ("uprobe/%s!/none:zipped" % archive)), MAP_TYPES)) as obj:
        obj.load()
        with pytest.raises(ObjectError, match="app.zip has no member none"):
            obj.attach()


@pytest.mark.parametrize("section, reason", [
    ("uretprobe/libc.so.6:getpid+4", "a return probe has no offset: getpid"),
    ("uprobe/libc.so.6:no_such_function", "has no function no_such_function"),
    ("uprobe/no_such_command:main", "no library or command is called no_such_command"),
    ("tp/no/such", "the kernel has no such tracepoint"), ("tp/nothing", "no GROUP/NAME"),
    ("raw_tp/no_such", "no tracepoint of that name"), ("usdt/libc.so.6:a:b", "has no probe a:b"),
])
def test_what_a_section_names_and_is_not_there(section, reason):
    with Object.parse(write_object(assemble(COUNT % section), MAP_TYPES)) as obj:
        obj.load()
        with pytest.raises((KernelError, ObjectError), match=reason):
            obj.attach()


@pytest.mark.parametrize("section, reason", [
    ("tp_btf/no_such", "the kernel has no tracepoint no_such"), ("iter/no_such", "no iterator no_such"),
    ("fentry/no_such", "no function no_such"), ("freplace/x", "set its attach_prog"),
    ("struct_ops/x", "no struct of .struct_ops refers to it"), ("nonsense", "no program type"),
])
def test_what_cannot_be_loaded(section, reason):
    with Object.parse(write_object(assemble(COUNT % section), MAP_TYPES)) as obj:
        with pytest.raises(ObjectError, match=reason):
            obj.load()


def test_a_size_that_the_object_leaves_open():
    with Object.parse(write_object(assemble(COUNT.replace("array", "hash") % "socket"), MAP_TYPES)) as obj:
        obj.maps["hits"].max_entries = 0
        with pytest.raises(KernelError, match=r"leaves its max_entries open: set obj.maps\['hits'\].max_entries before"):
            obj.load()
        obj.maps["hits"].max_entries = 5
        assert obj.load().maps["hits"].map.max_entries == 5


def test_attached_to_a_target_that_is_given():
    with Object.parse(write_object(assemble(COUNT % "perf_event"), MAP_TYPES)) as obj:
        obj.load()
        program, = obj.programs.values()
        with pytest.raises(ObjectError, match="does not say what it attaches to"):
            program.attach()
        event = perf.PerfEvent.open(perf.software("cpu_clock", period=1000000), pid=os.getpid())
        with program.attach_to(event):
            end = time.monotonic() + 20
            while not any(obj.maps["hits"].map.lookup(bytes(4))) and time.monotonic() < end:
                sum(range(10000))
            assert any(obj.maps["hits"].map.lookup(bytes(4)))
