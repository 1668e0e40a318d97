import lzma
import os
import re
import shutil
import struct
import time
from pathlib import Path

import pytest

from rawbpf.elf import symbols as symbols_module
from rawbpf.elf.image import ElfError, Image
from rawbpf.elf.symbols import Symbols
from tests.cc import compile_c
from tests.elf.files import TARGET, debug_split, readelf_symbols, run

IFUNC = """
static int fast(int x) { return x + 1; }
static int (*pick(void))(int) { return fast; }
int calc(int) __attribute__((ifunc("pick")));
int main(void) { int s = 0; for (int i = 0; i < 100; i++) s = calc(s); return s != 100; }
"""

ALIASES = """
__attribute__((noinline)) int strong(int x) { return x + 1; }
int soft(int) __attribute__((weak, alias("strong")));
static volatile int data = 5;
int shared_data = 6;
int main(void) { return strong(data) + shared_data; }
"""

VERSIONED = """
int old_way(int x) { return x; }
int new_way(int x) { return x + 1; }
__asm__(".symver old_way,way@LIB_1.0");
__asm__(".symver new_way,way@@LIB_2.0");
"""


def symbols(path, **options):
    return Symbols(Image.open(path), **options)


def as_readelf(found):
    return {(s.name + ("" if not s.version else "@@" + s.version if s.default else "@" + s.version),
             s.value, s.size, s.type, s.bind) for s in found}


@pytest.mark.parametrize("source, flags", [
    (TARGET, ("-O1",)), (TARGET, ("-O1", "-static")), (TARGET, ("-O1", "-static-pie")), (TARGET, ("-O1", "-no-pie")),
    (IFUNC, ("-O1",)), (ALIASES, ("-O1",)),
], ids=("pie", "static", "static-pie", "no-pie", "ifunc", "aliases"))
def test_functions_and_objects_are_readelfs(source, flags):
    path = compile_c(source, *flags, name="m")
    found = list(symbols(path).each())
    expected = {row for row in readelf_symbols(path) if not row[0].startswith("<")}
    # readelf prints dynamic symbols twice, without their versions the second time
    both = {(name, value) for name, value, *_ in expected if "@" in name}
    expected = {row for row in expected if not any((name, row[1]) in both for name in (
        row[0] + "@" + n.split("@", 1)[1] for n, _ in both if n.split("@")[0] == row[0]))}
    assert len(found) > 15
    assert as_readelf(found) == expected


def test_ifunc_keeps_its_type():
    found = symbols(compile_c(IFUNC)).find("calc")
    assert found.type == "IFUNC" and found.is_function


def test_versions(tmp_path):
    (tmp_path / "map").write_text("LIB_1.0 { global: way; local: *; };\nLIB_2.0 { global: way; } LIB_1.0;\n")
    path = compile_c(VERSIONED, "-shared", "-fPIC", "-Wl,--version-script=%s" % (tmp_path / "map"), "-s", name="v.so")
    library = symbols(path)
    both = library.find_all("way")
    assert [(s.version, s.default) for s in both] == [("LIB_2.0", True), ("LIB_1.0", False)]
    assert library.find("way") == library.find("way@@LIB_2.0") == library.find("way@LIB_2.0")
    assert library.find("way@LIB_1.0").value != library.find("way").value
    assert library.find("way@LIB_3.0") is None
    assert {s.version for s in library if s.name == "way"} == {"LIB_1.0", "LIB_2.0"}


def test_aliases_both_listed_and_the_strong_one_names_the_address():
    program = symbols(compile_c(ALIASES, "-O1"))
    strong, soft = program.find("strong"), program.find("soft")
    assert strong.value == soft.value and soft.bind == "WEAK"
    assert {"strong", "soft"} <= {s.name for s in program}
    assert program.at(strong.value + 1) == (strong, 1)
    assert program.find("data").type == "OBJECT" and program.find("data").bind == "LOCAL"
    assert program.at(program.find("shared_data").value + 3)[0].name == "shared_data"


def test_functions_of_the_same_name(tmp_path):
    for name in "ab":
        (tmp_path / (name + ".c")).write_text(
            "static __attribute__((noinline)) int twin(int x) { return x * %d; }\nint %s(int x) { return twin(x); }\n"
            % (ord(name), name))
    (tmp_path / "m.c").write_text("int a(int), b(int); int main(void) { return a(1) + b(2); }")
    run("gcc", "-O1", "-o", "m", "m.c", "a.c", "b.c", cwd=tmp_path)
    found = symbols(tmp_path / "m").find_all("twin")
    assert len({s.value for s in found}) == 2


def test_an_address_before_the_first_or_after_the_last_function_has_no_name():
    program = symbols(compile_c(TARGET, "-O1"))
    work = program.find("work")
    assert program.at(work.value)[0].name == "work"
    assert program.at(work.value + work.size - 1) == (work, work.size - 1)
    assert program.at(0) is None
    assert program.at(1 << 40) is None


def test_the_first_addresses_are_found_without_sorting(monkeypatch):
    """In a large table; what comes out is the same, in sizes from the whole table down to no symbol at all."""
    path = compile_c(TARGET, "-O1", "-static")
    sorted_ = symbols(path)
    whole = [sorted_.at(vaddr) for vaddr in range(0x3ff000, 0x4c0000, 0x2357)]
    assert sum(found is not None for found in whole) > 50
    for near in (1 << 20, 1 << 9, 1):
        monkeypatch.setattr(symbols_module, "_NEAR", near)
        monkeypatch.setattr(symbols_module, "_LARGE", 0)
        monkeypatch.setattr(symbols_module, "_FEW", 1 << 30)
        other = symbols(path)
        assert [other.at(vaddr) for vaddr in range(0x3ff000, 0x4c0000, 0x2357)] == whole


def test_suffix_of_another_name():
    # the linker stores "work" once, as the end of "homework"
    program = symbols(compile_c("int homework(void) { return 1; } int work(void) { return 2; } int main(void) { return 0; }"))
    assert program.find("work").name == "work"
    assert program.find("work").value != program.find("homework").value
    assert program.find("ork") is None and program.find("home") is None and program.find("") is None


def test_rust_name():
    name = "_ZN3app8$LT$impl$GT$3run17h00112233445566eeE"
    program = symbols(compile_c('int run(void) __asm__("%s"); int run(void) { return 1; } int main(void) { return run(); }' % name))
    assert program.find(name).name == name


def test_mini_debug_info(tmp_path):
    path = debug_split(tmp_path)
    assert " hidden" not in run("readelf", "-sW", path)
    program = symbols(path)
    assert program.find("hidden").type == "FUNC"
    assert {"hidden", "work", "main"} <= {s.name for s in program}
    assert program.at(program.find("hidden").value + 1)[0].name == "hidden"
    assert program.problems == []


@pytest.mark.parametrize("payload, reason", [
    (b"junk" * 50, "cannot be unpacked"),
    (lzma.compress(b"not an ELF file"), "not an ELF"),
    (lzma.compress(b"\x7fELF" * 1000)[:-30], "cut short|cannot be unpacked"),
], ids=("junk", "no-elf", "short"))
def test_broken_mini_debug_info_costs_only_itself(tmp_path, payload, reason):
    path = tmp_path / "m"
    shutil.copy(compile_c(TARGET, "-rdynamic"), path)
    (tmp_path / "payload").write_bytes(payload)
    run("strip", "-s", path)
    run("objcopy", "--add-section", ".gnu_debugdata=%s" % (tmp_path / "payload"), path)
    program = symbols(path)
    assert "work" in {s.name for s in program}
    assert [p for p in program.problems if "gnu_debugdata" in p.path]
    assert any(word in str(program.problems[0]) for word in reason.split("|"))


def test_mini_debug_info_that_unpacks_to_gigabytes_is_bounded(tmp_path):
    packer = lzma.LZMACompressor(preset=0)
    block = bytes(1 << 20)
    data = b"".join(packer.compress(block) for _ in range(8)) + packer.flush()     # 8 MB of zeros, which say how it would go on
    path = tmp_path / "m"
    shutil.copy(compile_c(TARGET), path)
    (tmp_path / "payload").write_bytes(data)
    run("strip", "-s", path)
    run("objcopy", "--add-section", ".gnu_debugdata=%s" % (tmp_path / "payload"), path)
    program = symbols(path)
    list(program)
    assert re.search("unpacks to more than 1 MB, from [0-9]{4} bytes", str(program.problems[0]))


@pytest.mark.parametrize("place", ("beside", ".debug", "global"))
def test_debug_link(tmp_path, place):
    home = tmp_path / "opt"
    home.mkdir()
    path = home / "same"
    shutil.copy(compile_c(TARGET, "-Wl,--build-id=none", name="same"), path)
    folder = {"beside": home / "x", ".debug": home / ".debug", "global": tmp_path / "usr/lib/debug/opt"}[place]
    folder.mkdir(parents=True)
    # Recipe D: the debug file has the program's own name, so the program lies where it is looked for first
    debug = folder / ("same.debug" if place == "beside" else "same")
    run("objcopy", "--only-keep-debug", path, debug)
    run("strip", path)
    run("objcopy", "--add-gnu-debuglink=%s" % debug, path)
    if place == "beside":
        debug = Path(shutil.move(debug, home))
    program = symbols(path, root=str(tmp_path))
    assert program.find("hidden").type == "FUNC"
    debug.write_bytes(debug.read_bytes() + b"x")        # now the checksum is another
    assert symbols(path, root=str(tmp_path)).find("hidden") is None


def test_debug_file_by_build_id(tmp_path):
    path = tmp_path / "m"
    shutil.copy(compile_c(TARGET, "-Wl,--build-id=0xabcdef0123", name="m"), path)
    debug = tmp_path / "usr/lib/debug/.build-id/ab/cdef0123.debug"
    debug.parent.mkdir(parents=True)
    run("objcopy", "--only-keep-debug", path, debug)
    run("strip", path)
    assert symbols(path).find("hidden") is None
    assert symbols(path, root=str(tmp_path)).find("hidden").type == "FUNC"


def test_stripped_has_no_symbols_and_no_error(tmp_path):
    path = tmp_path / "m"
    shutil.copy(compile_c(TARGET, "-static"), path)
    run("strip", "-s", path)
    program = symbols(path)
    assert list(program) == [] and program.find("main") is None and program.at(0x401000) is None


def test_wrong_tables_are_errors_with_a_place():
    data = bytearray(Path(compile_c(TARGET)).read_bytes())
    table = Image(bytes(data)).section(".symtab")
    header = struct.unpack_from("<Q", data, 40)[0] + table.index * 64
    for at, form, value, reason in ((24, "<Q", 1 << 40, "outside the file"), (32, "<Q", 1 << 62, "outside the file"),
                                    (40, "<I", 9999, "no string table"), (56, "<Q", 7, "7 bytes")):
        broken = data[:]
        struct.pack_into(form, broken, header + at, value)
        with pytest.raises(ElfError, match=reason) as caught:
            Symbols(Image(bytes(broken), "b"))
        assert caught.value.offset is not None


@pytest.mark.slow
def test_a_hundred_thousand_equal_symbols_cost_no_quadratic_time():
    # A table in which every symbol has the same name and every name is a suffix of one string.
    count = 100000
    strings = b"\0" + b"a\0" * count
    rows = b"".join(struct.pack("<IBBHQQ", 1 + 2 * (i % count), 0x12, 0, 1, 0x1000 + i, 1) for i in range(count))
    data = elf_with(strings, rows)
    program = Symbols(Image(data))
    assert len(program.find_all("a")) == count
    assert program.at(0x1000 + 5)[0].name == "a"
    assert len(list(program)) == count


def elf_with(strings, rows):
    """A minimal ELF64 file with one .symtab and its string table."""
    head = 64
    sections = [(0,) * 10, (0, 2, 0, 0, head + len(strings), len(rows), 2, 0, 8, 24), (0, 3, 0, 0, head, len(strings), 0, 0, 1, 0)]
    table = b"".join(struct.pack("<IIQQQQIIQQ", *s) for s in sections)
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, head + len(strings) + len(rows), 0, 64, 56, 0, 64, 3, 0)
    return header + strings + rows + table


COUNT = 500000


def value_of(number):
    return 0x1000 + 200 * (number * 7919 % COUNT)


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """A file of 110 MB with half a million functions, in no order."""
    names = ["namespace_component_%06d_function_name" % n for n in range(COUNT)]
    size = len(names[0]) + 1
    strings = b"\0" + "\0".join(names).encode() + b"\0"
    rows = b"".join(struct.pack("<IBBHQQ", 1 + size * n, 0x12, 0, 1, value_of(n), 200) for n in range(COUNT))
    path = tmp_path_factory.mktemp("big") / "big"
    path.write_bytes(elf_with(strings, rows))
    os.truncate(path, 110 << 20)
    return path


@pytest.mark.parametrize("how, budget", [("list", 1.5), ("find", 0.3), ("miss", 0.3), ("at", 0.3)])
def test_half_a_million_symbols_in_100_mb(big, how, budget):
    # time of this thread, so that a busy machine does not count; on a quiet one it is the clock's
    start = time.thread_time()
    program = Symbols(Image.open(big))
    if how == "list":
        assert len(program.function_names()) == COUNT
    elif how == "find":
        assert program.find("namespace_component_312345_function_name").value == value_of(312345)
    elif how == "miss":
        assert program.find("no_such_function") is None
    else:
        assert program.at(value_of(312345) + 7)[0].name == "namespace_component_312345_function_name"
    assert time.thread_time() - start < budget


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-s",), ("-static",)], ids=str)
def test_names_alone(flags):
    program = Symbols(Image.open(compile_c("int f(void) { return 1; } int main(void) { return f(); }", *flags, name="names")))
    assert set(program.function_names()) == {s.name for s in program.functions()}
    assert ("f" in program.function_names()) == (flags != ("-s",))


def test_a_name_without_end_is_an_error():
    data = elf_with(b"\0abc", struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 0x1000, 4))
    with pytest.raises(ElfError, match="name lies outside"):
        list(Symbols(Image(data)))
    with pytest.raises(ElfError, match="name lies outside"):
        Symbols(Image(data)).function_names()
    behind = elf_with(b"\0abc\0", struct.pack("<IBBHQQ", 5, 0x12, 0, 1, 0x1000, 4))
    with pytest.raises(ElfError, match="name lies outside"):
        Symbols(Image(behind)).function_names()


def test_library_symbols_of_this_process():
    # what the dynamic linker resolves is where we say it is
    import ctypes
    libc = ctypes.CDLL(None)
    with open("/proc/self/maps") as file:
        lines = [line.split() for line in file if "libc.so.6" in line or "/libc-2" in line]
    base = int(lines[0][0].split("-")[0], 16)
    library = symbols(lines[0][5])
    for name in ("envz_add", "hcreate_r", "sigsetmask"):  # a program that uses one may have its own entry for it
        address = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
        assert address - base == library.find(name).value
