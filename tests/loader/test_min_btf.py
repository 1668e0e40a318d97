"""BTF cut down to what objects need: they relocate against it as against the whole."""

import os
import subprocess

import pytest

from rawbpf.elf.bpf_object import BpfObjectFile
from rawbpf.elf.btf import VMLINUX, Btf
from rawbpf.loader import Object
from rawbpf.loader.core_relo import CoreResolver
from rawbpf.loader.min_btf import minimal, relocations
from tests.peers import command
from tests.tools.inspecting import run
from .test_object_tools import objects                  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.root, pytest.mark.peer]


def outcome(resolver, relocation):
    """What an instruction becomes, without the ids of types, which move."""
    result = resolver.resolve(relocation)
    if relocation.kind == "target_type_id":
        return bool(result.value)
    return result.value, bool(result.poison), result.original_size, result.size, result.resize


def test_every_relocation_comes_out_the_same(objects):  # noqa: F811
    vmlinux, count = Btf.open(), 0
    for path in objects:
        file = BpfObjectFile.open(path)
        data = minimal(vmlinux, [file])
        assert len(data) < 60000
        cut = Btf.parse(data, None, "cut")
        whole, small = CoreResolver(file.btf, vmlinux), CoreResolver(file.btf, cut)
        for relocation in relocations(file):
            assert outcome(small, relocation) == outcome(whole, relocation), (path.name, whole.describe(relocation))
            count += 1
    assert count > 800


def test_the_command_and_libbpf(objects, tmp_path):     # noqa: F811
    chosen = [path for path in objects if path.name.startswith(("execsnoop", "biolatency", "opensnoop", "tcpconnlat"))]
    assert len(chosen) >= 4
    ours, theirs = tmp_path / "ours.btf", tmp_path / "theirs.btf"
    assert run("gen", "min_core_btf", VMLINUX, ours, *chosen) == (0, "", "")
    subprocess.run(command("bpftool", "gen", "min_core_btf", VMLINUX, theirs, *chosen), check=True)
    # bpftool keeps the same structs with the same members
    def shape(path):
        btf = Btf.open(path)
        found = {}
        for number in range(1, btf.count):
            if btf.kind(number) in ("struct", "union"):
                found.setdefault(btf.name(number), set()).update(field.name for field in btf.type(number).fields)
        return found
    mine, bpftools = shape(ours), shape(theirs)
    assert {name: members for name, members in bpftools.items() if not members <= mine.get(name, set())} == {}
    for path in chosen:
        with Object.open(path, btf_path=os.fspath(ours)) as obj:
            assert obj.programs
    # and takes ours in place of the kernel's, as a file that objects load with
    done = subprocess.run(command("bpftool", "btf", "dump", "file", ours, "format", "raw"), stdout=subprocess.PIPE, check=True)
    assert done.stdout.count(b"\n") > 50


def test_errors(tmp_path):
    assert run("gen", "min_core_btf", VMLINUX, tmp_path / "o")[2] == "Error: object file is missing\n"
    assert run("gen", "object", tmp_path / "o")[2] == "Error: input file is missing\n"
    assert run("gen", "object", "/dev/null", "/dev/null")[0] == 255
    (tmp_path / "text").write_text("no object")
    status, out, error = run("gen", "object", tmp_path / "o", tmp_path / "text")
    assert (status, out, error.count("\n")) == (255, "", 1) and not (tmp_path / "o").exists()
