"""Every parser over damaged files: nothing but an `ElfError`, no hang.

The slices are fixed by their seed. More of them: `RAWBPF_FUZZ=100000 pytest -m "slow or not slow" tests/elf/test_fuzz.py`.
"""

import os
import random
import time
import zipfile
import zlib
from pathlib import Path

import pytest

from rawbpf.elf import ldcache, stapsdt, symbolizer, types, unpack, unwind_table
from rawbpf.elf.archive import Archive
from rawbpf.elf.btf import Btf
from rawbpf.elf.dwarf import Dwarf
from rawbpf.elf.dwarf_split import Package, SplitInfo, Splits
from rawbpf.elf.golang import go_table
from rawbpf.elf.image import ElfError, Image
from rawbpf.elf.relocations import relocations
from rawbpf.elf.source_lines import SourceLines
from rawbpf.elf.symbols import Symbols
from rawbpf.elf.unwind import Unwind
from tests.cc import compile_c
from tests.elf.files import TARGET, debug_split, run
from tests.elf.test_btf import sample
from tests.elf.test_dwarf import SOURCE as TYPED
from tests.elf.test_dwarf_split import pack_5
from tests.elf.test_golang import image_of, table
from tests.elf.test_ldcache import cache
from tests.elf.test_stapsdt import TWO_SITES
from tests.elf.test_symbolizer import KALLSYMS

ROUNDS = int(os.environ.get("RAWBPF_FUZZ", "3000"))
SLOW_ROUNDS = ROUNDS if "RAWBPF_FUZZ" in os.environ else ROUNDS // 3       # of what takes milliseconds each
FORM_ROUNDS = ROUNDS if "RAWBPF_FUZZ" in os.environ else ROUNDS // 2       # in each of two forms
ZSTD = "28b52ffd04588d000050736f6d652074657874200100db5b152457b4dc76"     # of a text that is repeated
INTERESTING = (0, 1, 0x7f, 0x80, 0xff, 0xffff, 0x7fffffff, 0xffffffff, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


def damaged(data, hot, seed):
    """`data` with a few changes: cut short, bits flipped, words overwritten; mostly in the `hot`
    ranges, where headers and tables are."""
    rng = random.Random(seed)
    result = bytearray(data)
    if rng.random() < 0.15:
        del result[rng.randrange(len(result)):]
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not result:
            break
        start, end = rng.choice(hot) if rng.random() < 0.8 else (0, len(result))
        at = rng.randrange(start, max(end, start + 1))
        if at >= len(result):
            continue
        if rng.random() < 0.5:
            result[at] ^= 1 << rng.randrange(8)
        else:
            width = rng.choice((1, 2, 4, 8))
            value = rng.choice(INTERESTING) & ((1 << 8 * width) - 1)
            result[at:at + width] = value.to_bytes(width, "little")
    return bytes(result)


def campaign(data, hot, use, rounds=ROUNDS):
    """Use ROUNDS damaged copies; how many of them were refused."""
    slowest = 0
    refused = 0
    for seed in range(rounds):
        broken = damaged(data, hot, seed)
        start = time.thread_time()
        try:
            use(broken)
        except ElfError as error:
            assert str(error)
            refused += 1
        slowest = max(slowest, time.thread_time() - start)
    assert slowest < 2, slowest
    print("%d refused, %d read, the slowest %.0f ms" % (refused, rounds - refused, 1000 * slowest))     # seen with -s
    return refused


def small(source, *flags):
    """A program's bytes, and the ranges of its headers and tables."""
    path = compile_c(source, "-O1", "-nostdlib", "-fno-asynchronous-unwind-tables", "-g0", *flags, name="tiny")
    data = Path(path).read_bytes()
    image = Image(data)
    hot = [(0, 64), (64, 64 + 56 * len(image.segments)), (image._shoff, len(data))]
    hot += [(s.offset, s.offset + s.size) for s in image.sections if s.name in (
        ".symtab", ".dynsym", ".strtab", ".gnu.version_d", ".note.stapsdt", ".note.gnu.build-id")]
    return data, hot


def test_image():
    data, hot = small(TARGET.replace("usleep(10000);", ""), "-shared", "-fPIC")

    def use(broken):
        image = Image(broken)
        image.segments, image.build_id, image.executable_ranges(), image.debug_link
        image.file_offset(0x1000), image.vaddr(0x1000)
        for section in image.sections:
            image.data(section)

    assert campaign(data, hot, use) > ROUNDS / 10


@pytest.mark.slow
def test_symbols():
    data, hot = small(TARGET.replace("usleep(10000);", ""), "-shared", "-fPIC")

    def use(broken):
        symbols = Symbols(Image(broken))
        symbols.find("work"), symbols.at(0x1010), len(list(symbols.each()))
        assert set(symbols.function_names()) == {s.name for s in symbols.functions()}

    assert campaign(data, hot, use) > ROUNDS / 10


@pytest.mark.slow
def test_versions(tmp_path):
    (tmp_path / "map").write_text("L_1 { global: one; local: *; };\nL_2 { global: two; } L_1;\n")
    data, hot = small("int one(void) { return 1; } int two(void) { return 2; }", "-shared", "-fPIC",
                      "-Wl,--version-script=%s" % (tmp_path / "map"))

    def use(broken):
        symbols = Symbols(Image(broken))
        [s.version for s in symbols], symbols.find("two@L_2")

    assert campaign(data, hot, use) > ROUNDS / 10


@pytest.mark.slow
def test_stapsdt():
    data, hot = small(TWO_SITES.replace("int main(int argc, char **argv)", "int _start(int argc)"))
    assert campaign(data, hot, lambda broken: stapsdt.notes(Image(broken))) > ROUNDS / 10


@pytest.mark.slow
def test_relocations():
    path = compile_c(TARGET, "-O1", "-g0", name="m")
    data = Path(path).read_bytes()
    image = Image(data)
    hot = [(s.offset, s.offset + s.size) for s in image.sections if s.name in (".rela.dyn", ".rela.plt", ".dynsym")]
    hot.append((image._shoff, len(data)))
    assert campaign(data, hot, lambda broken: list(relocations(Image(broken)))) > ROUNDS / 20


def test_go():
    def use(broken):
        go = go_table(image_of(broken))
        if go is not None:
            list(go.each((2,))), go.find("main.work"), go.covering(0x10010, (2,))

    data = table()
    assert campaign(data, [(0, len(data))], use) > ROUNDS / 10


def test_operands():
    texts = ["8@(%rdi,%rsi,8) -4@$-9", "8@foo+4(%rip) 1@%dil", "8f@%xmm0 8@-8(%rbp)", "-4@[sp, 12] 8@[x0, x1, lsl 3]"]
    rng = random.Random(1)
    for _ in range(ROUNDS):
        text = "".join(rng.choice("8@(%rdi,rsx0 )-$4+f:[]#w1") if rng.random() < 0.2 else c for c in rng.choice(texts))
        for machine in ("x86_64", "aarch64"):
            for operand in stapsdt.Operands(machine=machine, lookup={"foo": 64}.get)(text):
                assert operand.kind != "unknown" or operand.reason


@pytest.mark.slow
def test_mini_debug_info(tmp_path):
    data = debug_split(tmp_path).read_bytes()
    section = Image(data).section(".gnu_debugdata")
    hot = [(section.offset, section.offset + section.size)]

    def use(broken):
        symbols = Symbols(Image(broken))
        symbols.find("hidden"), len(list(symbols))

    campaign(data, hot, use)


@pytest.mark.slow
def test_btf():
    blob, _ = sample()
    data = blob.bytes()

    def use(broken):
        btf = Btf.parse(broken)
        btf.find("node"), btf.enumerator("RED"), list(btf.functions())
        for type_id in range(min(btf.count, 60)):
            btf.name(type_id)
            try:
                found = btf.type(type_id)
            except ElfError:
                continue
            if isinstance(found, types.Type):
                types.declaration(found), types.definition(found), types.find_field(found, "b"), found.size

    assert campaign(data, [(0, 24), (24, len(data))], use) > ROUNDS / 10


def test_split_btf():
    base, _ = sample()
    data = base.bytes()
    base = Btf.parse(data)
    size = len(data)

    def use(broken):
        btf = Btf.parse(broken, base)
        btf.find("node", "struct"), btf.find_id("open", "func"), btf.tags(3)

    assert campaign(data, [(0, 24), (24, size)], use) > ROUNDS / 10


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-gdwarf-4",), ("-gdwarf-5", "-O2")], ids=("4", "5"))
def test_dwarf(flags):
    path = compile_c(TYPED, "-Wno-psabi", *flags, name="typed")
    data = Path(path).read_bytes()
    image = Image(data)
    work = Symbols(image).find("work").value
    hot = [(s.offset, s.offset + s.size) for s in image.sections if s.name in (
        ".debug_info", ".debug_abbrev", ".debug_line", ".debug_aranges", ".debug_rnglists", ".debug_ranges")]

    def use(broken):
        dwarf = Dwarf(Image(broken))
        dwarf.addresses("typed.c", 30), dwarf.line(work), dwarf.files()
        function = dwarf.function(work)
        for found in (function, dwarf.find("node", "struct"), dwarf.find("color"), dwarf.find("nameless_t")):
            if found is not None:
                types.declaration(found), types.find_field(found, "b")
                if not isinstance(found, types.Function):
                    types.definition(found), found.size

    assert campaign(data, hot, use, SLOW_ROUNDS) > SLOW_ROUNDS / 20


# two units without headers, so that a copy is read in a millisecond: calls inlined into each other, functions of
# several ranges, types that refer to themselves
UNITS = (r"""
struct node { struct node *next; int a : 3, b; union { long l; char c[5]; } u; };
enum color { RED, GREEN = -2 };
volatile int sink;
extern void rare(int) __attribute__((cold, noreturn));
static inline __attribute__((always_inline)) int inner(int x) { sink += x; return x * 3; }
static inline __attribute__((always_inline)) int middle(int x)
{
    int y = inner(x + 1);
    for (int i = 0; i < x; i++) { sink = inner(i); }
    return y;
}
__attribute__((noinline)) int outer(int x)
{
    int y = middle(x);
    if (__builtin_expect(sink == 12345, 0)) { sink = 1; rare(y); }
    return y + inner(y);
}
int work(struct node *n, enum color c) { return n ? n->b + (c == RED) : outer(c); }
""", r"""
typedef struct node { struct node *next; int other; } node_t;
extern int outer(int);
static __attribute__((noinline)) int twice(int x) { return outer(x) * 2; }
static inline __attribute__((always_inline)) int three(int x) { return twice(x) + 1; }
__attribute__((cold, noreturn)) void rare(int x) { for (;;) { outer(three(x)); } }
void _start(void) { rare(three(1)); }
""")


def units_program(folder, *flags):
    """Path of the program of UNITS."""
    folder = Path(folder)
    for number, source in enumerate(UNITS):
        (folder / ("unit%d.c" % number)).write_text(source)
        run("gcc", "-g", "-O2", "-fno-asynchronous-unwind-tables", *flags, "-c", "unit%d.c" % number, cwd=folder)
    run("gcc", "-nostdlib", "-no-pie", "-o", "prog", "unit0.o", "unit1.o", cwd=folder)
    return folder / "prog"


def debug_ranges(image, *names):
    """The ranges of an image's sections with debug information, some of them twice: there is where most is read."""
    often = [".debug_info", ".debug_abbrev", ".debug_line", *names]
    return [(s.offset, s.offset + s.size) for name in often for s in image.sections if s.name.startswith(name)] + [
        (s.offset, s.offset + s.size) for s in image.sections if s.name.startswith(".debug_")]


SPLITS = {"4": ("-gdwarf-4", "-fdebug-types-section"), "5": ("-gdwarf-5",), "dwo": ("-gdwarf-5", "-fdebug-types-section")}


@pytest.mark.slow
@pytest.mark.parametrize("form", SPLITS)
def test_split_dwarf(monkeypatch, tmp_path, form):
    """Damages the program with the skeletons and what has the rest of them: a package, or one unit's .dwo file."""
    path = units_program(tmp_path, "-gsplit-dwarf", *SPLITS[form])
    if form == "4":
        run("dwp", "-e", "prog", "-o", "prog.dwp", cwd=tmp_path)
    elif form == "5":
        pack_5(path)
    program, split = path.read_bytes(), (tmp_path / ("unit0.dwo" if form == "dwo" else "prog.dwp")).read_bytes()
    places, parts = Symbols(Image(program)), [program, split]
    outer, work = places.find("outer"), places.find("work").value
    infos = Splits._infos
    monkeypatch.setattr(Splits, "_open_package", lambda self: None if form == "dwo" else Package(Image(parts[1])))
    monkeypatch.setattr(Splits, "_infos", lambda self, *unit: [SplitInfo(Image(parts[1]))] if form == "dwo" else infos(self, *unit))

    def read():
        image = Image(parts[0])
        dwarf, lines = Dwarf(image), SourceLines(image)
        lines._dwarf = dwarf
        yield max(([p.name for p in lines.at(vaddr)] for vaddr in range(outer.value, outer.value + outer.size, 5)), key=len)
        for found in (dwarf.function(work), dwarf.find("node", "struct")):
            if found is not None:
                yield types.declaration(found)
                types.find_field(found, "b")

    # all of it is read from there
    known = list(read())
    assert known == [["inner", "middle", "outer"], "int work(struct node *n, enum color c)", "struct node"]

    def use(broken):
        parts[:] = broken[:len(program)], broken[len(program):]
        list(read())

    hot = debug_ranges(Image(split), ".debug_cu_index", ".debug_tu_index", ".debug_str_offsets")
    hot = [(low + len(program), high + len(program)) for low, high in hot] + debug_ranges(Image(program))
    assert SLOW_ROUNDS / 20 < campaign(program + split, hot, use, SLOW_ROUNDS) < SLOW_ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-gdwarf-4",), ("-gdwarf-5",)], ids=("4", "5"))
def test_source_lines(flags, tmp_path):
    data = units_program(tmp_path, *flags).read_bytes()
    image = Image(data)
    symbols = Symbols(image)
    spans = [range(s.value, s.value + s.size, 7) for name in ("outer", "rare", "twice") for s in [symbols.find(name)]]

    def read(lines):
        return {tuple(place.name for place in lines.at(vaddr)) for span in spans for vaddr in span}

    whole = {("inner", "middle", "outer"), ("middle", "outer"), ("three", "rare"), ("rare",), ("twice",)}
    assert read(SourceLines(image)) >= whole
    same = [0]

    def use(broken):
        same[0] += read(SourceLines(Image(broken))) >= whole

    # a stack has no room for errors: only what has no ELF header is refused
    assert campaign(data, debug_ranges(image), use, FORM_ROUNDS) < FORM_ROUNDS / 50
    assert FORM_ROUNDS / 20 < same[0] < FORM_ROUNDS


@pytest.mark.slow
def test_unwind_table():
    data = Path(compile_c(TARGET, "-O1", "-g0", name="m")).read_bytes()
    image = Image(data)
    frames = image.section(".eh_frame")

    def use(broken):
        made = unwind_table.table(Image(broken))
        assert len(made.lows) == len(made.rules) and list(made.lows) == sorted(made.lows)

    campaign(data, [(frames.offset, frames.offset + frames.size)], use)


@pytest.mark.slow
@pytest.mark.parametrize("method", (1, 2), ids=("zlib", "zstd"))
def test_compressed_sections(method):
    data = zlib.compress(b"some text " * 100) if method == 1 else bytes.fromhex(ZSTD)
    assert unpack.unpack(method, data, 1000) == b"some text " * 100

    def use(broken):
        try:
            unpack.unpack(method, broken, 1000)
        except unpack.UnpackError as error:
            raise ElfError("x", None, str(error)) from None

    assert campaign(data, [(0, len(data))], use) > ROUNDS / 2


@pytest.mark.slow
def test_archive(tmp_path):
    path = tmp_path / "x.zip"
    library = Path(compile_c("int f(void) { return 1; }", "-shared", "-fPIC", "-O1", "-nostdlib", name="libf.so")).read_bytes()
    entry = zipfile.ZipInfo("lib/libf.so")
    entry.extra = (b"\xff\xff" + (4062 - len(entry.filename)).to_bytes(2, "little")).ljust(4066 - len(entry.filename), b"\0")
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(entry, library)
    data = path.read_bytes()
    assert Archive(path).symbols_at(4096 + 10).find("f") is not None

    def use(broken):
        path.write_bytes(broken)
        archive = Archive(path)
        archive.symbols_at(4096 + 10)
        for name in archive.entries:
            archive.image(name)

    campaign(data, [(0, 64), (len(data) - 200, len(data)), (4096, 4160)], use)


def test_unwind():
    path = compile_c(TARGET, "-O1", "-g0", name="m")
    data = Path(path).read_bytes()
    image = Image(data)
    work = Symbols(image).find("work").value
    frames, header = image.section(".eh_frame"), image.section(".eh_frame_hdr")
    place = next(p for low, _, p in Unwind(image).fdes() if low == work)
    hot = [(frames.offset + place, frames.offset + place + 64), (frames.offset, frames.offset + 256)]
    if header is not None:
        hot.append((header.offset, header.offset + 64))

    def use(broken):
        unwind = Unwind(Image(broken))
        unwind.row(work + 1), unwind.rows(place)

    campaign(data, hot, use)


def test_ldcache():
    data = cache([("liba.so", "/liba.so", 0x303), ("libb.so.1", "/libb.so.1", 0xa03)])
    campaign(data, [(0, len(data))], ldcache.read_cache)


@pytest.mark.slow
def test_texts():
    maps = b"\n".join(Path("/proc/self/maps").read_bytes().split(b"\n")[:8])

    def use(broken):
        kernel = symbolizer.KernelSymbols(broken)
        kernel.resolve(0xffffffff81000104), kernel.resolve(0xffffffffc0001041), kernel.find("twin"), list(kernel)

    listed = symbolizer.PerfMap("/nowhere")

    def jit(broken):
        listed._take(broken)
        listed._find(0x10007), listed._find(1 << 63)

    jitted = b"10000 20 interpreted loop\n10020 10 lazy\n-5 1 x\nffffffffffffffff ff last\n"
    assert campaign(jitted, [(0, len(jitted))], jit) == 0
    assert campaign(KALLSYMS, [(0, len(KALLSYMS))], use) == 0
    assert campaign(maps, [(0, len(maps))], lambda broken: symbolizer.ProcessSymbols(broken).resolve(0x7f0000000000)) == 0
