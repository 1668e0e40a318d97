"""Split DWARF: what is read from .dwo files and packages is what the same program has with all of it inside."""

import importlib
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from rawbpf.elf import types, unpack
from rawbpf.elf.dwarf import Dwarf
from rawbpf.elf.image import ElfError, Image
from rawbpf.elf.symbols import Symbols
from tests.elf.files import run
from tests.elf.test_dwarf import SOURCE
from tests.elf.test_source_lines import SOURCE as INLINED

pytestmark = pytest.mark.slow

OTHER = "struct other { struct other *o; int n; };\nint other(struct other *o, int n) { return o ? o->n : n; }\n"


def build(folder, *flags):
    """The program of three units, compiled and linked in a folder."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    (folder / "typed.c").write_text(SOURCE.replace("int main(", "int typed_main("))
    (folder / "inlined.c").write_text(INLINED)
    (folder / "other.c").write_text(OTHER)
    for name in ("typed", "inlined", "other"):
        run("gcc", "-g", "-O2", "-Wno-psabi", *flags, "-c", "-o", name + ".o", name + ".c", cwd=folder)
    run("gcc", "-g", *[f for f in flags if f.startswith("-fuse-ld")], "-o", "prog", "typed.o", "inlined.o", "other.o", cwd=folder)
    return folder / "prog"


def known(path):
    """What our reader says of the program: functions, types, lines."""
    image = Image.open(path)
    symbols, dwarf = Symbols(image), Dwarf.open(image)
    found = {}
    for name in ("work", "hidden", "outer", "other", "typed_main"):
        function = dwarf.function(symbols.find(name).value)
        found[name] = types.declaration(function) if function is not None else None
    for name in ("node", "point", "other", "color", "nameless_t"):
        kind = dwarf.find(name)
        found["type " + name] = types.definition(kind) if kind is not None else None
    for name in ("outer", "work"):
        symbol = symbols.find(name)
        found["lines " + name] = [[(p.name, os.path.basename(p.file or ""), p.line) for p in symbols.lines.at(a)]
                                  for a in range(symbol.value, symbol.value + symbol.size)]
    found["line 20"] = [line for line, _ in [dwarf.addresses("inlined.c", 20)]]
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return {version: known(build(folder / version, "-gdwarf-" + version)) for version in ("4", "5")}


def pack_5(program):
    """A package of version 5 (DWARF 5, 7.3.5) of the .dwo files beside a program, by objcopy."""
    columns = {1: "info", 3: "abbrev", 6: "str_offsets", 8: "rnglists"}
    whole, rows, folder = {name: b"" for name in ("info", "abbrev", "str_offsets", "rnglists", "str")}, [], program.parent
    for path in sorted(folder.glob("*.dwo")):
        image = Image.open(path)
        parts = {name: bytes(image.data(image.section(".debug_%s.dwo" % name))) if image.section(".debug_%s.dwo" % name)
                 else b"" for name in whole}
        # the strings of all are one section: each unit's offsets move by what is before
        offsets = bytearray(parts["str_offsets"])
        for at in range(8, len(offsets), 4):
            offsets[at:at + 4] = (int.from_bytes(offsets[at:at + 4], "little") + len(whole["str"])).to_bytes(4, "little")
        parts["str_offsets"] = bytes(offsets)
        rows.append((struct.unpack_from("<Q", parts["info"], 12)[0],
                     [(len(whole[name]), len(parts[name])) for name in columns.values()]))
        for name, data in parts.items():
            whole[name] += data
    slots = 8
    ids, numbers = [0] * slots, [0] * slots
    for number, (dwo_id, _) in enumerate(rows, 1):
        at = dwo_id & slots - 1
        while numbers[at]:
            at = at + ((dwo_id >> 32) & slots - 1 | 1) & slots - 1
        ids[at], numbers[at] = dwo_id, number
    index = struct.pack("<HHIII", 5, 0, len(columns), len(rows), slots)
    index += struct.pack("<%dQ%dI" % (slots, slots), *ids, *numbers) + struct.pack("<%dI" % len(columns), *columns)
    for which in (0, 1):
        for _, parts in rows:
            index += struct.pack("<%dI" % len(columns), *[part[which] for part in parts])
    command = ["objcopy"]
    for name, data in [("debug_%s.dwo" % name, data) for name, data in whole.items()] + [("debug_cu_index", index)]:
        (folder / name).write_bytes(data)
        command += ["--add-section", ".%s=%s" % (name, folder / name)]
    (folder / "empty.s").write_text("")
    run("gcc", "-c", "-o", "empty.o", "empty.s", cwd=folder)
    run(*command, folder / "empty.o", folder / "prog.dwp")


FORMS = [("4",), ("5",), ("4", "-fdebug-types-section"), ("5", "-fdebug-types-section")]


@pytest.mark.parametrize("version, flags", [(f[0], f[1:]) for f in FORMS], ids=str)
@pytest.mark.parametrize("where", ("dwo", "moved", "dwp"))
def test_it_is_the_same(whole, tmp_path, version, flags, where):
    program = build(tmp_path / "made", "-gdwarf-" + version, "-gsplit-dwarf", *flags)
    assert Image.open(program).section(".debug_info").size < 400        # skeletons only
    if where == "moved":        # beside the program, which is not where it was compiled
        shutil.move(str(tmp_path / "made"), str(tmp_path / "elsewhere"))
        program = tmp_path / "elsewhere" / "prog"
    if where == "dwp":
        if version == "4":
            run("dwp", "-e", "prog", "-o", "prog.dwp", cwd=program.parent)
        elif flags:
            return      # packed by nobody: binutils knows version 4 only, and LLVM 14 does not end
        else:
            pack_5(program)
        for path in program.parent.glob("*.dwo"):
            path.unlink()
    assert known(program) == whole[version]


def test_without_the_files_lines_are_left(tmp_path):
    program = build(tmp_path / "made", "-gdwarf-5", "-gsplit-dwarf")
    for path in program.parent.glob("*.dwo"):
        path.unlink()
    image = Image.open(program)
    symbols, dwarf = Symbols(image), Dwarf.open(image)
    place = symbols.find("outer").value
    assert dwarf.function(place) is None and dwarf.find("node") is None
    assert dwarf.line(place)[0].endswith("/inlined.c")
    assert {os.path.basename(path).split("-")[-1] for path in dwarf.missing} >= {"inlined.dwo"}


def test_a_file_of_another_compilation_is_not_used(tmp_path):
    program = build(tmp_path / "made", "-gdwarf-5", "-gsplit-dwarf")
    home = program.parent
    (home / "prog-other.dwo" if (home / "prog-other.dwo").exists() else home / "other.dwo").write_bytes(
        next(home.glob("*typed.dwo")).read_bytes())
    image = Image.open(program)
    assert Dwarf.open(image).function(Symbols(image).find("other").value) is None


def test_zstd(tmp_path):
    plain = build(tmp_path / "made", "-gdwarf-5")
    try:
        run("objcopy", "--compress-debug-sections=zstd", plain, tmp_path / "packed")
    except subprocess.CalledProcessError:
        pytest.fail("this test needs binutils with zstd (2.40)")
    image = Image.open(tmp_path / "packed")
    assert known(tmp_path / "packed") == known(plain)
    section = image.section(".debug_info")
    assert bytes(image.data(section)) == bytes(Image.open(plain).data(Image.open(plain).section(".debug_info")))
    # damaged, or other than it says
    data = bytearray((tmp_path / "packed").read_bytes())
    data[section.offset + 30] ^= 0xff
    with pytest.raises(ElfError, match="zstd"):
        Image(bytes(data)).data(section)
    with pytest.raises(ElfError, match="does not unpack to its|zstd"):
        data = bytearray((tmp_path / "packed").read_bytes())
        data[section.offset + 8] += 1
        Image(bytes(data)).data(section)


def test_zstd_without_a_library(monkeypatch):
    monkeypatch.setattr(unpack, "_library", False)
    try:
        importlib.import_module("compression.zstd")
    except ImportError:
        with pytest.raises(unpack.UnpackError, match="needs Python 3.14 or the library libzstd.so.1"):
            unpack.unpack(2, b"", 1)
    with pytest.raises(unpack.UnpackError, match="method 7"):
        unpack.unpack(7, b"", 1)
