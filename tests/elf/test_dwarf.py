"""DWARF: what gcc wrote, read back, against the source, addr2line and pyelftools."""

import os
import re
import shutil
import subprocess

import pytest

from rawbpf.elf import types
from rawbpf.elf.dwarf import Dwarf
from rawbpf.elf.image import ElfError, Image
from rawbpf.elf.symbols import Symbols
from rawbpf.elf.types import declaration, definition, find_field, strip
from tests.cc import compile_c
from tests.elf.files import run, version

SOURCE = r"""
typedef unsigned int number_t;
enum color { RED, GREEN = 5, BLUE = -2 };
struct point { int x, y; };
struct later;
union either { long n; double d; char bytes[8]; };
struct node {
    struct node *next;
    struct { int a; number_t b; };
    char name[16];
    int grid[3][5];
    unsigned low : 3, mid : 5, high : 24;
    enum color color;
    union either either;
    int (*compare)(const void *, const void *, ...);
    const volatile number_t *cells;
    _Bool flag;
    float ratio;
    long double wide;
    struct later *later;
    int tail[];
};
typedef struct { short s; } nameless_t;

__attribute__((noipa)) static int hidden(nameless_t n, const char *text) { return n.s + *text; }

__attribute__((noinline)) int work(struct node *node, const char *name, enum color color,
                                   double factor, int many, ...)
{
    if (!node)
        return -1;
    node->grid[1][2] = color;
    return hidden((nameless_t){many}, name) + (int)factor;
}

void nothing(void) { __asm__ volatile(""); }

int main(int argc, char **argv)
{
    struct node node = {0};
    nothing();
    return work(&node, argv[0], GREEN, 1.5, argc);
}
"""

VERSIONS = [("-gdwarf-%d" % version, optimised) for version in (2, 3, 4, 5) for optimised in ("-O0", "-O2")]
VARIANTS = VERSIONS + [("-gdwarf-4", "-fdebug-types-section"), ("-gdwarf-5", "-fdebug-types-section"), ("-gdwarf-5", "-gz"),
                       ("-gdwarf-4", "-freorder-functions"), ("-gdwarf-5", "-no-pie")]
if version("gcc") >= (11,):
    VARIANTS.append(("-gdwarf64", "-O1"))


@pytest.fixture(params=VARIANTS, ids=["".join(v) for v in VARIANTS])
def program(request):
    path = compile_c(SOURCE, "-Wno-psabi", *request.param, name="typed")
    image = Image.open(path)
    dwarf = Dwarf.open(image)
    dwarf.symbols = Symbols(image)
    dwarf.file = path
    return dwarf


def function(program, name):
    return program.function(program.symbols.find(name).value)


def test_functions(program):
    assert declaration(function(program, "work")) == \
        "int work(struct node *node, const char *name, enum color color, double factor, int many, ...)"
    assert declaration(function(program, "main")) == "int main(int argc, char **argv)"
    assert declaration(function(program, "nothing")) == "void nothing(void)"
    assert [p.name for p in function(program, "hidden").parameters] == ["n", "text"]
    assert program.function(program.symbols.find("work").value + 1) is None
    assert program.function(0) is None


def test_struct(program):
    node = program.find("node", "struct")
    expected = {"next": (0, None), "a": (8, None), "b": (12, None), "name": (16, None), "grid": (32, None), "low": (92, 3),
                "mid": (92, 5), "high": (92, 24), "color": (96, None), "either": (104, None), "compare": (112, None),
                "cells": (120, None), "flag": (128, None), "ratio": (132, None), "wide": (144, None), "later": (160, None),
                "tail": (168, None)}
    found = {name: find_field(node, name) for name in expected}
    assert {n: (f.offset, f.bit_size) for n, f in found.items()} == expected
    assert [found[n].bit_offset for n in ("low", "mid", "high")] == [0, 3, 8]
    assert node.size == 176
    declared = {n: declaration(f.type, n) for n, f in found.items()}
    assert declared["grid"] == "int grid[3][5]" and declared["tail"] == "int tail[]"
    assert declared["compare"] == "int (*compare)(const void *, const void *, ...)"
    assert declared["cells"] in ("const volatile number_t *cells", "volatile const number_t *cells")
    assert found["next"].type.target is node
    assert found["later"].type.target.forward
    assert (strip(found["flag"].type).encoding, strip(found["ratio"].type).size, strip(found["wide"].type).size) == ("bool", 4, 16)
    assert strip(found["name"].type.element).encoding == "char"


def test_other_types(program):
    color = program.find("color", "enum")
    assert color.values == {"RED": 0, "GREEN": 5, "BLUE": -2} and color.size == 4 and color.signed
    assert program.find("number_t").target.name == "unsigned int"
    assert [f.name for f in program.find("either", "union").fields] == ["n", "d", "bytes"]
    assert program.find("nameless_t").target.fields[0].name == "s"
    assert program.find("node", "union") is None and program.find("nod") is None and program.find("ode") is None
    assert "\tunsigned int mid: 5;\n" in definition(program.find("node"))


def test_lines(program):
    text = SOURCE.splitlines()
    for name in ("work", "hidden", "main"):
        value = program.symbols.find(name).value
        for address in (value, value + 9):
            expected = run("addr2line", "-e", program.file, hex(address)).split(" ")[0].strip()
            file, line = program.line(address)
            if expected.endswith(":?"):
                continue
            # older assemblers write the folder twice; addr2line and we may then differ in it
            assert "%s:%d" % (os.path.basename(file), line) == os.path.basename(expected)
    wanted = next(n for n, line in enumerate(text, 1) if "node->grid" in line)
    line, addresses = program.addresses("typed.c", wanted)
    assert line >= wanted
    for address in addresses:
        # binutils 2.40 finds no line at some addresses of 64-bit DWARF
        assert run("addr2line", "-e", program.file, hex(address)).split(":")[1].split()[0].strip() in (str(line), "?")
    assert program.addresses("typed.c", 100000) is None and program.addresses("other.c", 1) is None
    assert program.line(0) is None
    assert any(f.endswith("/typed.c") for f in program.files())


def test_the_next_line_with_code():
    dwarf = Dwarf.open(Image.open(compile_c("int main(void)\n{\n\n\n\treturn 7;\n}\n", "-O0", name="gap")))
    assert dwarf.addresses("gap.c", 3)[0] == 5


def test_without_debug_information(tmp_path):
    path = tmp_path / "s"
    shutil.copy(compile_c(SOURCE, name="typed"), path)
    run("strip", path)
    assert Dwarf.open(Image.open(path)) is None


def test_separate_debug_file(tmp_path):
    path = tmp_path / "m"
    shutil.copy(compile_c(SOURCE, "-Wl,--build-id=0xabcdef77", name="typed"), path)
    value = Symbols(Image.open(path)).find("work").value
    debug = tmp_path / "usr/lib/debug/.build-id/ab/cdef77.debug"
    debug.parent.mkdir(parents=True)
    run("objcopy", "--only-keep-debug", path, debug)
    run("strip", path)
    dwarf = Dwarf.open(Image.open(path), root=str(tmp_path))
    assert dwarf.path == str(debug) and dwarf.function(value).name == "work"


def build(folder, sources, *command):
    for name, text in sources.items():
        (folder / name).write_text(text)
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def test_several_units_and_inlined_functions(tmp_path):
    build(tmp_path, {
        "a.h": "struct shared { int one; long two; };\n",
        "a.c": '#include "a.h"\n__attribute__((noinline)) int first(struct shared *s) { return s->one; }\n',
        "b.c": '#include "a.h"\nstatic inline int small(struct shared *p, int extra) { return p->two + extra; }\n'
               "__attribute__((noinline)) int second(struct shared *q) { return small(q, 3); }\n"
               "int (*address)(struct shared *, int) = small;\n",
        "m.c": '#include "a.h"\nint first(struct shared *), second(struct shared *);\n'
               "int main(void) { struct shared s = {1, 2}; return first(&s) + second(&s); }\n",
    }, "gcc", "-g", "-O2", "-o", "m", "a.c", "b.c", "m.c")
    image = Image.open(tmp_path / "m")
    dwarf, symbols = Dwarf.open(image), Symbols(image)
    assert len(dwarf.info.units) == 3
    assert declaration(dwarf.function(symbols.find("second").value)) == "int second(struct shared *q)"
    # the copy outside of line takes all from its abstract instance
    assert declaration(dwarf.function(symbols.find("small").value)) == "int small(struct shared *p, int extra)"
    line, addresses = dwarf.addresses("b.c", 2)
    inside = [symbols.at(a)[0].name for a in addresses]
    assert line == 2 and {"small", "second"} <= set(inside)


def test_cplusplus(tmp_path):
    build(tmp_path, {"c.cc": """
namespace outer { struct item { int first; static int shared; virtual ~item() {} };
struct derived : item { char second; int method(long n) const; };
int derived::method(long n) const { return second + n; } }
struct item { long other; };
int outer::item::shared;
template <typename T> T twice(const T &value) { return value * 2; }
int call(outer::derived &d, int &&moved) { item i{3}; return d.method(1) + twice(moved) + i.other; }
int main() { outer::derived d; return call(d, 2); }
"""}, "g++", "-g", "-O0", "-o", "c", "c.cc")
    image = Image.open(tmp_path / "c")
    dwarf, symbols = Dwarf.open(image), Symbols(image)
    method = dwarf.function(symbols.find("_ZNK5outer7derived6methodEl").value)
    assert [p.name for p in method.parameters] == ["this", "n"] and method.name == "method"
    derived = dwarf.find("outer::derived", "struct")
    assert find_field(derived, "first").offset == 8 and find_field(derived, "second").offset == 12
    assert find_field(derived, "shared") is None
    assert [f.name for f in dwarf.find("outer::item").fields] == ["_vptr.item", "first"]
    assert dwarf.find("nobody::item") is None
    call = dwarf.function(symbols.find("_Z4callRN5outer7derivedEOi").value)
    assert [declaration(p.type) for p in call.parameters] == ["struct derived *", "int *"]


def test_a_common_file_that_is_missing_says_so(tmp_path):
    path = tmp_path / "m"
    shutil.copy(compile_c(SOURCE, name="typed"), path)
    (tmp_path / "link").write_bytes(b"missing.debug\0" + bytes(20))
    run("objcopy", "--add-section", ".gnu_debugaltlink=%s" % (tmp_path / "link"), path)
    dwarf = Dwarf.open(Image.open(path))
    with pytest.raises(ElfError, match="missing.debug"):
        dwarf.info.alt()


@pytest.mark.parametrize("flags", [("-gdwarf-4",), ("-gdwarf-5",), ("-gdwarf-5", "-O2")])
def test_every_entry_is_pyelftools(flags):
    from elftools.elf.elffile import ELFFile
    path = compile_c(SOURCE + "\n#include <stdio.h>\n#include <math.h>\n", *flags, name="many")
    with open(path, "rb") as file:
        expected = [(die.offset, die.tag, {k: v.value for k, v in die.attributes.items()
                                           if k in ("DW_AT_byte_size", "DW_AT_decl_line", "DW_AT_encoding")})
                    for unit in ELFFile(file).get_dwarf_info().iter_CUs() for die in unit.iter_DIEs() if die.tag]
    info = Dwarf.open(Image.open(path)).info
    found = []
    for unit in info.units:
        for position, abbreviation, _ in unit.entries():
            _, attributes = unit.attributes(position)
            found.append((position, abbreviation.tag, {
                name: attributes[number].value for number, name in
                ((0x0b, "DW_AT_byte_size"), (0x3b, "DW_AT_decl_line"), (0x3e, "DW_AT_encoding")) if number in attributes}))
    from elftools.dwarf.enums import ENUM_DW_TAG
    assert len(found) > 60
    assert found == [(offset, ENUM_DW_TAG[tag], attributes) for offset, tag, attributes in expected]
