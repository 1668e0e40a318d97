"""rawbpf btf: C that compiles and has the sizes and offsets that the BTF says; records as bpftool has them."""

import collections
import ctypes
import json
import os
import struct
import subprocess

import pytest

from rawbpf.elf import btf_raw
from rawbpf.elf.btf import Btf
from rawbpf.elf.image import ElfError
from rawbpf.elf.unpack import unpack
from rawbpf.loader import BtfObject, Map
from tests.bpfcc import clang
from tests.vm.kernels import kernel
from tests.tools.inspecting import run, run_json

VMLINUX = "/sys/kernel/btf/vmlinux"


def layout_checks(btf):
    """C that fails to compile where sizes and offsets of the named structs differ from the BTF."""
    count = collections.Counter(name for kind in ("struct", "union", "enum", "fwd", "enum64")
                                for name, _ in btf.names(kind))
    lines = []
    for kind in ("struct", "union"):
        for name, number in btf.names(kind):
            if not name or count[name] != 1:
                continue
            of = btf_raw.record(btf, number)
            lines.append("_Static_assert(sizeof(%s %s) == %d, \"%s\");" % (kind, name, of.rest, name))
            for member in btf_raw.members(btf, of):
                if member.name and not member.bit_size and btf_raw.size(btf, member.type):
                    lines.append("_Static_assert(__builtin_offsetof(%s %s, %s) == %d, \"%s.%s\");" % (
                        kind, name, member.name, member.bit_offset // 8, name, member.name))
    typedefs = list(btf.names("typedef"))
    count = collections.Counter(name for name, _ in typedefs)
    for name, number in typedefs:
        try:
            size = btf_raw.size(btf, number)
        except ElfError:
            continue        # of a function, or of what is declared only
        if size and count[name] == 1:
            lines.append("_Static_assert(sizeof(%s) == %d, \"%s\");" % (name, size, name))
    return lines


def compiles(header, lines, folder, compiler=("gcc",)):
    (folder / "types.h").write_text(header)
    (folder / "check.c").write_text('#include "types.h"\n' + "\n".join(lines) + "\n")
    done = subprocess.run([*compiler, "-std=gnu11", "-fsyntax-only", "-Werror", "check.c"], cwd=folder, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.slow
def test_c_of_the_kernel_has_its_layout(tmp_path):
    if not os.path.exists(VMLINUX):
        pytest.fail("this kernel has no BTF")
    status, header, error = run("btf", "dump", "file", VMLINUX, "format", "c")
    assert (status, error) == (0, "")
    lines = layout_checks(Btf.open())
    assert len(lines) > 10000 and "#include" not in header
    compiles(header, lines, tmp_path)


def _lz4(packed):
    """LZ4's legacy frame: blocks of 8 MB, each with its length."""
    library, at, out = ctypes.CDLL("liblz4.so.1"), 4, []
    while at < len(packed):
        length = int.from_bytes(packed[at:at + 4], "little")
        block = ctypes.create_string_buffer(8 << 20)
        got = library.LZ4_decompress_safe(packed[at + 4:at + 4 + length], block, length, len(block))
        assert got > 0
        out.append(block.raw[:got])
        at += 4 + length
    return b"".join(out)


def btf_of_an_image(path):
    """The section .BTF of the kernel in a bzImage (Documentation/arch/x86/boot.rst)."""
    image = path.read_bytes()
    at = (image[0x1f1] + 1) * 512 + int.from_bytes(image[0x248:0x24c], "little")
    packed = image[at:at + int.from_bytes(image[0x24c:0x250], "little")]
    size = int.from_bytes(packed[-4:], "little")
    kernel = _lz4(packed[:-4]) if packed[:4] == b"\2!L\x18" else unpack(2, packed[:-4], size)
    table, width, count, names = (int.from_bytes(kernel[a:b], "little") for a, b in ((40, 48), (58, 60), (60, 62), (62, 64)))
    sections = [struct.unpack_from("=IIQQQQ", kernel, table + width * number) for number in range(count)]
    for name, _, _, _, start, length in sections:
        found = sections[names][4] + name
        if kernel[found:found + 5] == b".BTF\0":
            return kernel[start:start + length]
    raise AssertionError("%s has no BTF" % path)


@pytest.mark.demand
@pytest.mark.parametrize("series", ["5.10", "6.1", "6.12", "sid"])
def test_c_of_other_kernels_has_their_layout(series, tmp_path):
    """Those of the matrix, by gcc and clang."""
    path = tmp_path / "vmlinux"
    path.write_bytes(btf_of_an_image(kernel(series)))
    status, header, error = run("btf", "dump", "file", path, "format", "c")
    assert (status, error) == (0, "")
    lines = layout_checks(Btf.open(str(path)))
    assert len(lines) > 10000
    compiles(header, lines, tmp_path)
    compiles(header, lines, tmp_path, [*clang(), "-DBPF_NO_PRESERVE_ACCESS_INDEX"])


@pytest.mark.peer
def test_c_of_this_kernel_by_clang(tmp_path):
    header = run("btf", "dump", "file", VMLINUX, "format", "c")[1]
    compiles(header, layout_checks(Btf.open()), tmp_path, [*clang(), "-DBPF_NO_PRESERVE_ACCESS_INDEX"])


def blob(*types, strings):
    body = b"".join(types)
    return struct.pack("<HBBIIIII", 0xeb9f, 1, 0, 24, 0, len(body), len(body), len(strings)) + body + strings


INT = struct.pack("<IIII", 1, 1 << 24, 4, 1 << 24 | 32)         # 1: int
STRINGS = b"\0int\0a\0b\0s\0"


def test_gaps_and_packing(tmp_path):
    """Layouts that C does not give by itself: a hole of 12 bytes, a member off its alignment, a long tail."""
    holes = struct.pack("<IIIIIIIII", 9, 4 << 24 | 2, 64, 5, 1, 0, 7, 1, 128)
    packed = struct.pack("<IIIIII", 9, 4 << 24 | 1, 7, 5, 1, 24)
    for number, structure in enumerate((holes, packed)):
        path = tmp_path / ("b%d" % number)
        path.write_bytes(blob(INT, structure, strings=STRINGS))
        header = run("btf", "dump", "file", path, "format", "c")[1]
        compiles(header, layout_checks(Btf.open(str(path))), tmp_path)


def test_a_named_struct_as_nameless_member(tmp_path):
    """As kernels have them that are built with -fms-extensions: its members are there, at their places."""
    inner = struct.pack("<IIIIII", 9, 4 << 24 | 1, 4, 5, 1, 0)
    outer = struct.pack("<IIIIIIIII", 11, 4 << 24 | 2, 8, 0, 2, 0, 7, 1, 32)
    path = tmp_path / "b"
    path.write_bytes(blob(INT, inner, outer, strings=b"\0int\0a\0b\0s\0o\0"))
    header = run("btf", "dump", "file", path, "format", "c")[1]
    compiles(header, layout_checks(Btf.open(str(path))) + [
        "_Static_assert(__builtin_offsetof(struct o, a) == 0 && __builtin_offsetof(struct o, b) == 4, \"\");"], tmp_path)


def test_raw_records(tmp_path):
    path = tmp_path / "b"
    path.write_bytes(blob(INT, struct.pack("<IIIIIIIII", 9, 4 << 24 | 2, 8, 5, 1, 0, 7, 1, 32), strings=STRINGS))
    assert run("btf", "dump", "file", path)[1] == (
        "[1] INT 'int' size=4 bits_offset=0 nr_bits=32 encoding=SIGNED\n"
        "[2] STRUCT 's' size=8 vlen=2\n\t'a' type_id=1 bits_offset=0\n\t'b' type_id=1 bits_offset=32\n")
    assert run_json("btf", "dump", "file", path, "root_id", 1) == {"types": [
        {"id": 1, "kind": "INT", "name": "int", "size": 4, "bits_offset": 0, "nr_bits": 32, "encoding": "SIGNED"}]}


@pytest.mark.parametrize("data", [b"", b"\x9f\xeb", blob(INT, strings=STRINGS)[:-3], blob(INT[:-4], strings=STRINGS),
                                  blob(struct.pack("<III", 0, 31 << 24, 0), strings=STRINGS),
                                  blob(struct.pack("<III", 0, 2 << 24, 1), strings=STRINGS),
                                  blob(struct.pack("<IIIIII", 0, 3 << 24, 0, 1, 1, 5), strings=STRINGS),
                                  blob(struct.pack("<III", 99, 8 << 24, 1), strings=STRINGS),
                                  # a struct in itself, one in another and back, 600 in one another
                                  blob(INT, struct.pack("<IIIIII", 9, 4 << 24 | 1, 4, 0, 2, 0), strings=STRINGS),
                                  blob(INT, *(struct.pack("<IIIIII", 5, 4 << 24 | 1, 4, 0, n, 0) for n in (3, 2)), strings=STRINGS),
                                  blob(INT, *(struct.pack("<IIIIII", 0, 4 << 24 | 1, 4, 5, n, 0) for n in range(1, 600)),
                                       strings=STRINGS),
                                  blob(struct.pack("<IIIIII", 9, 4 << 24 | 1, 7, 5, 77, 24), strings=STRINGS)])
@pytest.mark.parametrize("form", ["raw", "c"])
def test_damaged_btf_is_one_error(data, form, tmp_path):
    path = tmp_path / "b"
    path.write_bytes(data)
    status, out, error = run("btf", "dump", "file", path, "format", form)
    assert status == 0 or (status == 255 and error.count("\n") == 1 and error.startswith("Error: ")), error


@pytest.mark.root
def test_of_a_map():
    data = blob(INT, struct.pack("<IIIIIIIII", 9, 4 << 24 | 2, 8, 5, 1, 0, 7, 1, 32), strings=STRINGS)
    with BtfObject.load(data) as types:
        with Map.create("hash", 4, 8, 4, name="t_btf", btf=types, btf_key_type_id=1, btf_value_type_id=2) as item:
            item.update(struct.pack("=i", -5), struct.pack("=ii", 7, -8))
            number, own = item.info().id, item.info().btf_id
            assert own in [fields["id"] for fields in run_json("btf", "show")]
            assert run_json("btf", "show", "id", own)["map_ids"] == [number]
            assert "struct s {\n\tint a;\n\tint b;\n};" in run("btf", "dump", "map", "id", number, "format", "c")[1]
            assert run_json("map", "show", "id", number)["btf_id"] == own
            element = {"key": -5, "value": {"a": 7, "b": -8}}
            assert run_json("map", "dump", "id", number)[0]["formatted"] == element
            assert json.loads(run("map", "dump", "id", number)[1]) == [element]
            assert json.loads(run("map", "lookup", "id", number, "key", "hex", "fb", "ff", "ff", "ff")[1]) == element
