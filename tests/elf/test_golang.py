"""Stripped Go programs: the function table against the symbol table of the same program unstripped."""

import os
import struct
import subprocess

import pytest

from rawbpf.elf.golang import GoTable, go_table, version
from rawbpf.elf.image import ElfError, Image
from rawbpf.elf.symbols import Symbols
from tests.elf.test_stapsdt import with_note

PROGRAM = """package main
import "fmt"
%s
//go:noinline
func work(x int) int { return x*3 + 1 }
func main() { fmt.Println(work(2)%s) }
"""
CGO = ('/*\n#include <math.h>\nstatic int half(int x) { return x / 2; }\n*/\nimport "C"\n', ", C.half(4)")
RELEASES = (("bookworm", "1.19"), ("sid", "1.26"), ("sid", "1.27"))


def build(release, folder, *flags, cgo=False):
    from tests.debian import CACHE, Suite
    suite, number = release
    root = Suite(suite).root("go-" + number, ["golang-%s-go" % number, "golang-%s-src" % number])
    home = root / "usr/lib" / ("go-" + number)
    (folder / "p.go").write_text(PROGRAM % (CGO if cgo else ("", "")))
    environment = dict(os.environ, GOROOT=str(home), GOCACHE=str(CACHE / ("go-%s-built" % number)), GOFLAGS="-mod=mod",
                       GO111MODULE="off", CGO_ENABLED="1" if cgo else "0", GOTOOLCHAIN="local", HOME=str(folder))
    subprocess.run([home / "bin/go", "build", *flags, "-o", folder / "p", folder / "p.go"], env=environment, check=True,
                   capture_output=True, text=True)
    return folder / "p"


@pytest.mark.demand
@pytest.mark.parametrize("flags, cgo", [((), False), ((), True), (("-buildmode=pie",), False), (("-buildmode=pie",), True)],
                         ids=("plain", "cgo", "pie", "pie-cgo"))
@pytest.mark.parametrize("release", RELEASES, ids=[r[1] for r in RELEASES])
def test_a_stripped_program_has_the_functions_of_the_whole_one(tmp_path, release, flags, cgo):
    path = build(release, tmp_path, *flags, cgo=cgo)
    whole = Image.open(path)
    assert version(whole).startswith("go" + release[1])
    expected = {}
    for symbol in Symbols(whole):
        # the linker marks functions of the old calling convention, the function table does not
        expected.setdefault(symbol.value, set()).add(symbol.name.replace(".abi0", ""))
    stripped = tmp_path / "s"
    subprocess.run(["strip", "-s", "-o", stripped, path], check=True)
    symbols = Symbols(Image.open(stripped))
    found = list(symbols)
    assert symbols.problems == [] and len(found) > 1000
    work = symbols.find("main.work")
    assert "main.work" in expected[work.value]
    assert symbols.at(work.value + 3) == (work, 3)
    wrong = [s for s in found if not s.version and s.value not in expected]
    assert wrong == []
    # the table shortens type arguments and array sizes to [...]
    assert [(s.name, expected[s.value]) for s in found
            if "[" not in s.name and s.name.replace("\u00b7", ".") not in expected[s.value]] == []


def table(magic=0xfffffff1, text=0x10000, names=b"main.main\0main.work\0", rows=((0, 0x10, 0), (0x40, 0x20, 10)), last=0x60):
    """A pclntab of the layout of Go 1.18 and later: header, names, functab, one record a function."""
    functab_size = 8 * len(rows) + 4
    records = b"".join(struct.pack("<Ii", entry, name) for entry, _, name in rows)
    functab = b"".join(struct.pack("<II", entry, functab_size + 8 * n) for n, (entry, _, _) in enumerate(rows)) + struct.pack("<I", last)
    head = struct.pack("<IHBB8Q", magic, 0, 1, 8, len(rows), 0, text, 72, 0, 0, 0, 72 + len(names))
    return head + names + functab + records


def image_of(data):
    """An image with executable code at 0x10000 that calls `data` its .gopclntab."""
    image = with_note(data)
    section = image.section(".note.stapsdt")._replace(name=".gopclntab")
    image._by_name[".gopclntab"] = section
    return image


def test_the_table():
    go = go_table(image_of(table()))
    assert [(s.name, s.value, s.size) for s in go.each((2,))] == [("main.main", 0x10000, 0x40), ("main.work", 0x10040, 0x20)]
    assert [s.value for s in go.find("main.work")] == [0x10040] and go.find("work") == []
    assert go.covering(0x1005f, (2,)).name == "main.work" and go.covering(0x10060, (2,)) is None
    assert go_table(with_note(b"")) is None


@pytest.mark.parametrize("data, reason", [
    (table(magic=0xfffffff2), "layout 0xfffffff2 is not known"), (table(text=0), "text starts is not found"),
    (table(text=0x900000), "not lie in the program's code"), (table()[:60], "cut short"), (table()[:80], "says that it has 2"),
    (table(rows=((0x40, 0, 0), (0, 0, 10))), "not sorted"),
])
def test_what_cannot_be_placed_is_refused(data, reason):
    with pytest.raises(ElfError, match="Go's function table.*" + reason):
        go_table(image_of(data))


def test_layout_of_go_1_16():
    names = b"main.main\0"
    functab = struct.pack("<QQQ", 0x10020, 24, 0x10030)
    head = struct.pack("<IHBB7Q", 0xfffffffa, 0, 1, 8, 1, 0, 64, 0, 0, 0, 64 + len(names))
    go = go_table(image_of(head + names + functab + struct.pack("<Qi", 0x10020, 0)))
    assert [(s.name, s.value, s.size) for s in go.each((2,))] == [("main.main", 0x10020, 0x10)]


def test_layout_of_go_1_2():
    head = struct.pack("<IHBBQ", 0xfffffffb, 0, 1, 8, 1) + struct.pack("<QQQ", 0x10020, 40, 0x10030)
    go = go_table(image_of(head + struct.pack("<Qi", 0x10020, 52) + b"main.main\0"))
    assert [(s.name, s.value, s.size) for s in go.each((2,))] == [("main.main", 0x10020, 0x10)]
