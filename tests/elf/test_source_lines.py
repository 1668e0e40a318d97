"""Source lines and inlined calls: against what binutils' addr2line prints for every instruction."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rawbpf.elf.dwarf import Dwarf
from rawbpf.elf.image import Image
from rawbpf.elf.kernel_lines import KernelLines
from rawbpf.elf.source_lines import SourceLines
from rawbpf.elf.symbolizer import KernelSymbols, ProcessSymbols
from rawbpf.elf.symbols import Symbols
from tests.cc import compile_c
from tests.elf.files import run, version

pytestmark = pytest.mark.slow

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
volatile int sink;
static inline __attribute__((always_inline)) int inner(int x)
{
    sink += x;
    return x * 3;
}
static inline __attribute__((always_inline)) int middle(int x)
{
    int y = inner(x + 1);
    for (int i = 0; i < x; i++) {
        sink = inner(i);
    }
    return y;
}
__attribute__((noinline)) int outer(int x)
{
    int y = middle(x);
    if (__builtin_expect(sink == 12345, 0)) { fprintf(stderr, "rare %d\n", y); abort(); }
    return y + inner(y);
}
int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) { puts("ready"); fflush(stdout); pause(); }
    return outer(argc) == 0;
}
"""


def by_addr2line(path, addresses):
    """{address: [(function, file, line)]}, the innermost first."""
    text = subprocess.run(["addr2line", "-a", "-i", "-f", "-e", str(path)], check=True, text=True, capture_output=True,
                          input="".join("0x%x\n" % a for a in addresses)).stdout
    found = {}
    for part in re.split(r"^0x", text, flags=re.M)[1:]:
        lines = part.splitlines()
        places = [(name, *re.match(r"(.*):(\d+|\?)", where).groups()) for name, where in zip(lines[1::2], lines[2::2])]
        # with -flto binutils names the unit that the linker's plugin made
        found[int(lines[0], 16)] = [(name, os.path.normpath(file.replace("<artificial>", "inlined.c")), int(line)) for name, file, line in places if line != "?"]
    return found


@pytest.mark.parametrize("flags", [("-O2",), ("-O2", "-gdwarf-4"), ("-Os", "-gdwarf-3", "-gstrict-dwarf"), ("-O3", "-flto"),
                                   ("-O0",), ("-O2", "-g1"), ("-O2", "-gz")], ids=" ".join)
def test_every_instruction_is_addr2lines(flags):
    path = compile_c(SOURCE, *flags, name="inlined")
    symbols = Symbols(Image.open(path))
    addresses = [a for name in ("outer", "main") for s in [symbols.find(name)] for a in range(s.value, s.value + s.size)]
    expected = by_addr2line(path, addresses)
    ours = {a: [(p.name, p.file, p.line) for p in symbols.lines.at(a) if p.line] for a in addresses}
    assert {a: (ours[a], expected[a]) for a in addresses if ours[a] != expected[a]} == {}
    if flags[0] != "-O0":
        assert {len(places) for places in ours.values()} >= {1, 2}, "nothing was inlined"


@pytest.mark.skipif(version("gcc") < (11,), reason="gcc 11 was the first to write it")
def test_64_bit_dwarf_says_the_same():
    """(which addr2line cannot read)"""
    def places(*flags):
        symbols = Symbols(Image.open(compile_c(SOURCE, "-O2", *flags, name="inlined")))
        outer = symbols.find("outer")
        return [[(p.name, os.path.basename(p.file), p.line) for p in symbols.lines.at(a)]
                for a in range(outer.value, outer.value + outer.size)]

    assert places("-gdwarf-5", "-gdwarf64") == places("-gdwarf-5") != []


def test_without_debug_information():
    symbols = Symbols(Image.open(compile_c(SOURCE, "-O2", "-g0", name="inlined")))
    assert symbols.lines.dwarf is None and symbols.lines.at(symbols.find("outer").value) == []


def test_a_unit_that_cannot_be_read_is_tried_once(monkeypatch):
    image = Image.open(compile_c(SOURCE, "-O2", name="inlined"))
    outer, tried = Symbols(image).find("outer"), []
    monkeypatch.setattr(Dwarf, "_ranges_of", lambda *of: tried.append(of) or int("broken"))
    lines = SourceLines(image)
    assert [lines.at(outer.value + n) for n in range(20)] == [[]] * 20 and len(tried) == 1


def test_frames_of_a_process():
    """The names of the symbols stay; lines and inlined calls are added; a return address means the call before it."""
    path = compile_c(SOURCE, "-O2", name="inlined")
    process = subprocess.Popen([path, "x"], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        with ProcessSymbols.of(process.pid) as symbols:
            outer = Symbols(Image.open(path)).find("outer")
            base = next(m for m in symbols.mappings if m.path == path and m.offset == 0).start
            frames = {a: symbols.frames(base + a) for a in range(outer.value, outer.value + outer.size)}
            expected = by_addr2line(path, list(frames))
            for a, found in frames.items():
                assert [(f.name, f.file, f.line) for f in found] == expected[a]
                assert found[-1][:3] == ("outer", a - outer.value, path)
                assert all(f.offset is None and f.module == "" for f in found[:-1])
                assert a == outer.value or symbols.frames(base + a, called=True)[-1].line == frames[a - 1][-1].line
    finally:
        process.kill()
        process.wait()


def test_the_kernels_own(tmp_path):
    """A `vmlinux` with debug information, loaded 0x10000 above where it was linked."""
    path = compile_c(SOURCE.replace("int main", "__asm__(\".globl _stext\\n_stext:\"); int main"), "-O2", "-no-pie",
                     "-Wl,--build-id", name="vmlinux")
    image = Image.open(path)
    symbols = Symbols(image)
    outer, start = symbols.find("outer"), symbols.find("_stext")
    section = image.section(".note.gnu.build-id")
    (tmp_path / "notes").write_bytes(bytes(image.data(section)))
    text = "".join("%016x T %s\n" % (s.value + 0x10000, s.name) for s in sorted((outer, start), key=lambda s: s.value))
    kernel = KernelSymbols(text)
    kernel._lines = KernelLines(kernel, [path], tmp_path / "notes")
    found = kernel.frames(outer.value + 0x10000)
    expected = by_addr2line(path, [outer.value])[outer.value]
    assert [(f.name, f.file, f.line) for f in found] == expected and found[-1].offset == 0
    # another kernel's is not used
    (tmp_path / "notes").write_bytes(bytes(image.data(section))[:-1] + b"\0")
    assert KernelLines(kernel, [path], tmp_path / "notes").at(outer.value + 0x10000) == []


def test_a_separate_debug_file(tmp_path):
    path = tmp_path / "inlined"
    path.write_bytes(Path(compile_c(SOURCE, "-O2", name="inlined")).read_bytes())
    outer = Symbols(Image.open(path)).find("outer").value
    expected = SourceLines(Image.open(path)).at(outer)
    run("objcopy", "--only-keep-debug", path, tmp_path / "inlined.debug")
    run("strip", path)
    assert SourceLines(Image.open(path)).at(outer) == []
    run("objcopy", "--add-gnu-debuglink=inlined.debug", path, cwd=tmp_path)
    assert expected and SourceLines(Image.open(path)).at(outer) == expected
    assert shutil.which("addr2line")
