"""Objects that other people wrote and compiled, inside Debian's libbpf-tools and beside its xdp-tools: where
libbpf (in bpftool) loads one as it is, so do we; where it refuses, we do."""

import os
import struct
import subprocess
import sys
import tempfile

import pytest

from rawbpf.loader import KernelError, Object, ObjectError
from tests import peers
from tests.debian import Suite

pytestmark = [pytest.mark.peer, pytest.mark.root]
EM_BPF = 247


def embedded(data):
    """The BPF objects inside a program that was built with a libbpf skeleton."""
    at = data.find(b"\x7fELF", 4)
    while at >= 0:
        head = data[at:at + 64]
        if len(head) == 64 and struct.unpack_from("<H", head, 18)[0] == EM_BPF:
            shoff, = struct.unpack_from("<Q", head, 40)
            entry, count = struct.unpack_from("<HH", head, 58)
            yield data[at:at + shoff + entry * count]
        at = data.find(b"\x7fELF", at + 4)


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objects")
    root = Suite("sid").root("libbpf-tools", ["libbpf-tools"])
    result = []
    for path in sorted((root / "usr/sbin").iterdir()):
        if path.is_file():
            for number, data in enumerate(embedded(path.read_bytes())):
                target = folder / ("%s.%d.bpf.o" % (path.name, number))
                target.write_bytes(data)
                result.append(target)
    return result


def xdp_objects():
    root = Suite("sid").root("xdp-tools", ["xdp-tools"])
    found = sorted((root / "usr/lib/x86_64-linux-gnu/bpf").glob("*.o"))
    assert len(found) > 10
    return found


def libbpf_loads(bpftool, path, bpffs):
    def enter():
        peers.private_mounts()
        peers.mount("bpf", bpffs, "bpf")
        peers.mount(bpffs, "/sys/fs/bpf", bind=True)      # where libbpf pins maps by name
    done = subprocess.run([*bpftool, "prog", "loadall", str(path), os.path.join(bpffs, "all")],
                          preexec_fn=enter, capture_output=True, text=True, timeout=120)
    return done.returncode == 0, done.stderr


LOAD = """
import sys
sys.path.insert(0, {top!r})
from tests import peers
peers.private_mounts()
peers.mount("bpf", {bpffs!r}, "bpf")
from rawbpf.loader import KernelError, Object, ObjectError
for path in {paths!r}:
    try:
        with Object.open(path, pin_root={bpffs!r}) as obj:
            obj.load()
        print("")
    except (KernelError, ObjectError) as error:
        print(error)
    for each in obj.maps.values():
        if each.pin_path:
            import os
            os.unlink(each.pin_path)
"""


def refusals(paths, bpffs):
    """Why we refuse each object, "" for those that load, in mounts of our own."""
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(peers.__file__))))
    done = subprocess.run([sys.executable, "-c", LOAD.format(top=top, bpffs=bpffs, paths=list(map(str, paths)))],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def test_whole_objects_beside_libbpf(objects, record_property):
    assert len(objects) > 60
    counts = {"both load": 0, "both refuse": 0}
    with tempfile.TemporaryDirectory() as bpffs:
        paths, bpftool = objects + xdp_objects(), peers.command("bpftool")
        for path, refused in zip(paths, refusals(paths, bpffs)):
            theirs, said = libbpf_loads(bpftool, path, bpffs)
            assert theirs == (not refused), "%s: %s\n%s" % (path.name, refused, said)
            counts["both load" if theirs else "both refuse"] += 1
    record_property("counts", counts)
    assert counts["both load"] > 40 and sum(counts.values()) == len(paths)


def resize(obj):
    """What the tools' own user space does: it sets the sizes that the objects leave open."""
    for each in obj.maps.values():
        if not each.max_entries and each.type in ("hash", "stack_trace", "array"):
            each.max_entries = 64
        if each.type == "stack_trace" and not each.value_size:
            each.value_size = 127 * 8


def test_each_program_by_itself(objects):
    loaded, refused = 0, []
    for path in objects:
        with Object.open(str(path)) as obj:
            resize(obj)
            obj.prepare()
            assert obj.btf is not None or obj.file.btf is None, "%s: %s" % (path.name, obj.btf_error)
            for name in obj.select():
                try:
                    obj.programs[name].load()
                    loaded += 1
                except (KernelError, ObjectError) as error:
                    refused.append((obj.programs[name], str(error)))
    # those whose target the tool's user space picks, or that this kernel forbids
    for program, reason in refused:
        assert "has no function" in reason or "Operation not permitted" in reason or "cannot use helper" in reason, \
            "%s: %s" % (program.name, reason)
    assert loaded > 400
