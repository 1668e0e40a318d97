"""C lines of scripts: macros, conditionals, headers, type definitions, constants; script arguments."""

import errno
import signal
import socket
import stat
import subprocess

import pytest

from rawbpf.elf.types import Struct, Typedef, declaration, find_field
from rawbpf.tools.trace import ast, constants
from rawbpf.tools.trace.arguments import bind
from rawbpf.tools.trace.diagnostics import Diagnostics, ScriptError, Source
from rawbpf.tools.trace.parser import parse
from rawbpf.tools.trace.preprocess import Names, prepare
from rawbpf.tools.trace.printer import text


def prepared(script, **options):
    parsed = parse(Source("stdin", script))
    return parsed, prepare(parsed, **options)


def block(script, **options):
    """The statements of the first probe after expansion, on one line."""
    parsed, _ = prepared(script, **options)
    return " ".join(" ".join(text(s) for s in parsed.probes[0].block.statements).split())


def error(script, **options):
    with pytest.raises(ScriptError) as caught:
        prepared(script, **options)
    return caught.value.format()


# ---- macros in scripts ----

@pytest.mark.parametrize("lines, written, meant", [
    ("#define A 1 + 2", "A * 3;", "(1 + 2) * 3;"),         # a whole expression, as bpftrace takes it
    ("#define A B\n#define B 7", "print(A);", "print(7);"),
    ('#define RED "\\033[31m"', "print(RED);", 'print("\\x1b[31m");'),
    ("#define F(x) ((x) * 2)", "F(3 + 1);", "(3 + 1) * 2;"),
    ("#define F(x, y) x < y ? x : y", "F($a, 2);", "($a < 2) ? $a : 2;"),
    ("#define P $1", "print(P);", "print($1);"),
    ("#define T unsigned long", "(T)1;", "(unsigned long)1;"),
    ("#define A 1\n#undef A", "A;", "A;"),
    ("#define A", "A(1);", "A(1);"),
    ("#define A 1 // comment", "A;", "1;"),
    ("#define A 1 /* comment */ + 2", "A;", "1 + 2;"),
    ("#define F(x) g(x)", "F;", "F;"),
])
def test_macros(lines, written, meant):
    assert block("%s\nBEGIN { %s }" % (lines, written)) == meant


@pytest.mark.parametrize("lines, chosen", [
    ("#ifdef X\n#define A 1\n#else\n#define A 2\n#endif", 2),
    ("#define X\n#ifdef X\n#define A 1\n#else\n#define A 2\n#endif", 1),
    ("#ifndef BPFTRACE_HAVE_BTF\n#define A 1\n#else\n#define A 2\n#endif", 2),
    ("#define N 3\n#if N > 2 && defined(N)\n#define A 1\n#endif", 1),
    ("#if 0\n#define A 1\n#elif 1\n#define A 2\n#elif 1\n#define A 3\n#else\n#define A 4\n#endif", 2),
    ("#if UNKNOWN\n#define A 1\n#else\n#define A 2\n#endif", 2),
    ("#if 0\n#if 1\n#define A 1\n#endif\n#else\n#define A 2\n#endif", 2),
    ("#if LINUX_VERSION_CODE >= KERNEL_VERSION(4, 0, 0)\n#define A 1\n#endif", 1),
    ("#if (1 << 3) / 2 == 4 ? 1 : 0\n#define A 1\n#endif", 1),
    ("#define F(a, b) a + b\n#if F(1, 2) == 3\n#define A 1\n#endif", 1),
])
def test_conditionals(lines, chosen):
    assert block(lines + "\nBEGIN { A; }") == "%d;" % chosen


def test_lines_that_do_not_count_are_not_looked_at():
    parsed, names = prepared("#if 0\n#error no\n#include \"nothing\"\nstruct x { nonsense y; };\n#endif\nBEGIN { 1 }")
    assert names.type("struct", "x") is None


@pytest.mark.parametrize("name", ["<a", '"a', "a", "", '"a>'])
def test_an_include_names_a_file(name):
    with pytest.raises(ScriptError) as caught:
        prepared("#include %s\nBEGIN { 1 }" % name)
    assert caught.value.message == 'expected "FILENAME" or <FILENAME>'


def test_the_file_of_an_include_may_be_a_macro():
    assert block("#define H <linux/sched.h>\n#include H\nBEGIN { 1 }") == "1;"
    with pytest.raises(ScriptError, match="file not found"):
        prepared("#define H \"no.h\"\n#include H\nBEGIN { 1 }")


def test_arrays_have_a_size_that_can_be():
    with pytest.raises(ScriptError, match="an array of [0-9]+ bytes"):
        prepared("struct S { int a[1000000][1000000][1000000]; };\nBEGIN { 1 }")


def test_headers_are_not_needed():
    assert block("#include <linux/sched.h>\n#include <stdio.h>\n#include \"errno.h\"\nBEGIN { 1 }") == "1;"


def test_headers_of_nobody_known():
    for name in ('"missing.h"', "<lol/no.h>"):
        with pytest.raises(ScriptError) as caught:
            block("#include %s\nBEGIN { 1 }" % name)
        assert caught.value.message == "'%s' file not found" % name.strip('"<>')


@pytest.mark.parametrize("script, message", [
    ("#define M M+1\nBEGIN { M; }", """\
M:1:1-2: ERROR: Macro recursion: M
M+1
~
stdin:2:9-10: ERROR: expanded from
BEGIN { M; }
        ~
"""),
    ("#define M {\nBEGIN { M; }", """\
stdin:2:9-10: ERROR: unable to expand macro as an expression: {
BEGIN { M; }
        ~
"""),
    ("#define F(a) a\nBEGIN { F(1, 2); }", """\
stdin:2:9-16: ERROR: macro 'F' takes 1 arguments, 2 given
BEGIN { F(1, 2); }
        ~~~~~~~
"""),
    ("#if 1\nBEGIN { }", "stdin:1:1-6: ERROR: missing #endif\n#if 1\n~~~~~\n"),
    ("#endif\nBEGIN { }", "stdin:1:1-7: ERROR: #endif without #if\n#endif\n~~~~~~\n"),
    ("#error stop\nBEGIN { }", "stdin:1:1-12: ERROR: #error stop\n#error stop\n~~~~~~~~~~~\n"),
    ("#if 1 / 0\n#endif\nBEGIN { }",
     "stdin:1:1-10: ERROR: not a constant expression: 1 / 0 (division by zero)\n#if 1 / 0\n~~~~~~~~~\n"),
    ("#nonsense\nBEGIN { }",
     "stdin:1:1-10: ERROR: unknown preprocessor directive '#nonsense'\n#nonsense\n~~~~~~~~~\n"),
])
def test_errors_of_c_lines(script, message):
    assert error(script) == message


@pytest.mark.slow
def test_a_bomb_of_macros_ends():
    lines = ["#define A0 1"] + ["#define A%d A%d + A%d + A%d" % (n, n - 1, n - 1, n - 1) for n in range(1, 30)]
    assert "too large" in error("\n".join(lines) + "\nBEGIN { A29; }")
    assert "too large" in error("\n".join(lines) + "\n#if A29\n#endif\nBEGIN { }")


# ---- C definitions ----

DEFINITIONS = """
struct plain { char a; int b; short c; long d; };
struct bits { int a : 3; unsigned int b : 5; unsigned char c : 2; int : 0; int d : 30; int e : 30; long f : 40; };
struct packed { char a; int b; short c; } __attribute__((packed));
struct aligned { char a; int b __attribute__((aligned(16))); };
struct nested { struct { int x; union { char y; long z; }; } in[2]; struct plain p; };
struct pointers { struct pointers *next; void *data[3]; int (*call)(int, char *); const char *name; };
struct arrays { char text[4 * 4]; int grid[2][3]; unsigned long long big; double f; };
struct packedbits { char a; int b : 20; int c : 20; } __attribute__((packed));
struct flexible { int n; char data[]; };
union either { char a; long b; int c[5]; };
"""
NAMES = ["plain", "bits", "packed", "aligned", "nested", "pointers", "arrays", "packedbits", "flexible"]


def test_layout_is_the_compilers(tmp_path):
    """sizeof and offsetof of the same definitions as gcc has them."""
    _, names = prepared(DEFINITIONS + "BEGIN { }")
    checks = []
    for kind, name in [("struct", n) for n in NAMES] + [("union", "either")]:
        struct = names.type(kind, name)
        checks.append("_Static_assert(sizeof(%s %s) == %d, \"size\");" % (kind, name, struct.size))
        for field in struct.fields:
            if field.bit_size is None and field.name:
                checks.append("_Static_assert(__builtin_offsetof(%s %s, %s) == %d, \"offset\");"
                              % (kind, name, field.name, field.offset))
    source = tmp_path / "check.c"
    source.write_text(DEFINITIONS + "\n".join(checks) + "\n")
    subprocess.run(["gcc", "-c", "-o", str(tmp_path / "check.o"), str(source)], check=True)


def test_bit_fields_are_where_the_compiler_puts_them(tmp_path):
    """Each bit field set to all ones in turn, in memory that gcc lays out."""
    _, names = prepared(DEFINITIONS + "BEGIN { }")
    fields = [(name, field) for name in ("bits", "packedbits") for field in names.type("struct", name).fields
              if field.bit_size is not None]
    body = ["#include <stdio.h>", "#include <string.h>", DEFINITIONS, "int main(void) {"]
    for name, field in fields:
        body.append("{ struct %s s; memset(&s, 0, sizeof s); s.%s = -1; unsigned char *p = (void *)&s;"
                    "for (unsigned i = 0; i < sizeof s; i++) printf(\"%%02x\", p[i]); printf(\"\\n\"); }"
                    % (name, field.name))
    body.append("return 0; }")
    source = tmp_path / "bits.c"
    source.write_text("\n".join(body))
    subprocess.run(["gcc", "-w", "-o", str(tmp_path / "bits"), str(source)], check=True)
    printed = subprocess.run([str(tmp_path / "bits")], check=True, capture_output=True, text=True).stdout.split()
    for (name, field), memory in zip(fields, printed):
        ones = ((1 << field.bit_size) - 1) << (8 * field.offset + field.bit_offset)
        assert int.from_bytes(bytes.fromhex(memory), "little") == ones, (name, field.name)


def test_declarations():
    _, names = prepared(DEFINITIONS + "BEGIN { }")
    fields = {field.name: declaration(field) for field in names.type("struct", "pointers").fields}
    assert fields == {"next": "struct pointers *next", "data": "void *data[3]",
                      "call": "int (*call)(int, char *)", "name": "const char *name"}
    assert declaration(names.type("struct", "arrays").fields[1]) == "int grid[2][3]"
    assert find_field(names.type("struct", "nested").fields[0].type.element, "z").offset == 8


def test_enums_and_typedefs():
    _, names = prepared("enum e { A, B = 5, C, D = -1, E = 1 << 4 | 1 };\ntypedef unsigned long word;\n"
                        "typedef struct { word w; enum { P = B + 1, Q } q; } pair;\nstruct s { pair p; word w[C]; };\nBEGIN { }")
    assert {name: names.enumerator(name)[0] for name in "ABCDEPQ"} == dict(A=0, B=5, C=6, D=-1, E=17, P=6, Q=7)
    assert names.enumerator("A")[1].name == "e" and names.enumerator("A")[1].signed
    assert isinstance(names.type("", "word"), Typedef)
    assert names.type("", "pair").size == 16
    assert names.type("struct", "s").size == 16 + 6 * 8


def test_macros_and_conditionals_inside_definitions():
    _, names = prepared("#define N 4\n#define FIELD(t, n) t n;\nstruct s {\n#ifdef N\n  int a[N * 2];\n#else\n  nonsense b;\n#endif\n"
                        "  FIELD(char, c)\n} BEGIN { }")
    assert [(field.name, field.offset) for field in names.type("struct", "s").fields] == [("a", 0), ("c", 32)]


@pytest.mark.parametrize("name, size", [("int", 4), ("unsigned int", 4), ("long unsigned int", 8), ("unsigned char", 1),
                                        ("u8", 1), ("__u16", 2), ("uint32_t", 4), ("s64", 8), ("size_t", 8), ("_Bool", 1),
                                        ("long long", 8), ("pid_t", 4), ("unsigned", 4), ("__int128", 16)])
def test_types_without_a_header(name, size):
    assert Names().type("", name).size == size


@pytest.mark.parametrize("script, message", [
    ("struct x { badtype y; };\nBEGIN { }", "stdin:1:12-19: ERROR: unknown type name 'badtype'\n"),
    ("struct x { int y : 40; };\nBEGIN { }", "stdin:1:22-23: ERROR: a bit field of 40 bits\n"),
    ("struct x { struct y z; };\nBEGIN { }", "stdin:1:22-23: ERROR: the member 'z' has the incomplete type struct y\n"),
    ("struct x { int y[n]; };\nBEGIN { }", "stdin:1:18-19: ERROR: not a constant expression: n ('n' is not known)\n"),
    ("struct x { int y[-1]; };\nBEGIN { }", "stdin:1:20-21: ERROR: an array of -1 elements\n"),
    ("struct x { int y int z };\nBEGIN { }", "stdin:1:18-21: ERROR: expected ';' in a C declaration\n"),
    ("struct x { unsigned double y; };\nBEGIN { }", "stdin:1:12-27: ERROR: 'unsigned double' is no type\n"),
])
def test_errors_of_definitions(script, message):
    assert error(script).startswith(message)


def test_struct_of_btf_is_asked_for():
    known = Struct("struct", "task_struct", 64, ())
    asked = []

    def find(kind, name):
        asked.append((kind, name))
        return known if name == "task_struct" else None
    _, names = prepared("struct mine { struct task_struct t; struct other *o; };\nBEGIN { }", find=find)
    assert names.type("struct", "mine").size == 72
    assert ("struct", "task_struct") in asked


def test_headers_in_the_include_path(tmp_path):
    (tmp_path / "a.h").write_text('#ifndef A_H\n#define A_H\n#include "b.h"\n#define SIZE (COUNT * 2)\n'
                                  "static inline int f(int x) { return x; }\nextern int g(void), h;\n"
                                  "struct a { struct b b[SIZE]; }; /* a\n comment */\n#endif\n")
    (tmp_path / "b.h").write_text('#include "a.h"\n#define COUNT 3\nstruct b { int x; };\nint prototype(struct b *, ...);\n')
    parsed, names = prepared("#include <a.h>\n#include <a.h>\nBEGIN { SIZE; }", include_paths=[str(tmp_path)])
    assert names.type("struct", "a").size == 24
    assert text(parsed.probes[0].block.statements[0]) == "COUNT * 2;".replace("COUNT", "3")
    _, names = prepared("BEGIN { }", includes=[str(tmp_path / "a.h")])
    assert names.type("struct", "b").size == 4
    assert error("BEGIN { }", includes=[str(tmp_path / "none.h")]) == \
        "ERROR: '%s' file not found\n" % (tmp_path / "none.h")
    (tmp_path / "c.h").write_text("int a;\nstruct c {\n  nonsense x;\n};\n")
    assert error("#include <c.h>\nBEGIN { }", include_paths=[str(tmp_path)]) == \
        "%s:3:3-11: ERROR: unknown type name 'nonsense'\n  nonsense x;\n  ~~~~~~~~\n" % (tmp_path / "c.h")


# ---- constants ----

@pytest.mark.parametrize("name, value", [
    ("AF_INET", socket.AF_INET), ("AF_INET6", 10), ("ENOENT", errno.ENOENT), ("EINPROGRESS", 115), ("SIGKILL", signal.SIGKILL),
    ("S_IFMT", stat.S_IFMT(0o177777)), ("S_IFDIR", 0o40000), ("O_CREAT", 0o100), ("IPPROTO_TCP", 6), ("IPPROTO_UDP", 17),
    ("ICMP_ECHO", 8), ("DT_DIR", 4), ("MAP_ANONYMOUS", 0x20), ("PROT_WRITE", 2), ("TASK_UNINTERRUPTIBLE", 2),
    ("TASK_COMM_LEN", 16), ("ERESTARTSYS", 512), ("PF_KTHREAD", 0x200000), ("CLONE_NEWNS", 0x20000), ("TCP_LISTEN", 10),
    ("INT_MAX", 2**31 - 1), ("AT_FDCWD", -100), ("NULL", 0), ("F_SETFL", 4), ("ETH_P_IPV6", 0x86dd), ("O_RDONLY", 0),
])
def test_constants(name, value):
    assert constants.value(name) == value


def test_what_is_no_constant():
    for name in ("nothing", "AF_NOTHING", "errorcode", "S_ISDIR", "EAI", "O_NOTHING", "AF", "__name__"):
        assert constants.value(name) is None


# ---- script arguments ----

def bound(script, positional=(), named=()):
    parsed = parse(Source("stdin", script), positional)
    found = Diagnostics()
    prepare(parsed)
    bind(parsed, positional, named, found)
    printed = " ".join(text(s) for s in parsed.probes[0].block.statements)
    return printed, found.format()


def test_positional_parameters():
    script = "BEGIN { f(str($1 + 2)); f($1); f(str($2)); f($2); f($#); f($3 + 1); f(str($4)); f($5); }"
    assert bound(script, ["hello", "-5", "1ms", "x", "0x10"]) == (
        'f("llo"); f("hello"); f("-5"); f(-5); f(5); f(1000000 + 1); f("x"); f(16);', "")


def test_str_of_a_literal_is_one():
    script = 'BEGIN { f(str("argument", 3)); f(str(42)); f(str(-7, 9)); f(str($1, 2)); f(str("a" , $x)); f(str($y)); f(str("\\u00e9x", 2)); }'
    assert bound(script.replace("\\u00e9", "\u00e9"), ["hello"])[0] == \
        'f("arg"); f("42"); f("-7"); f("he"); f(str("a", $x)); f(str($y)); f("\\xc3\\xa9");'


def test_positional_parameters_that_are_not_given():
    assert bound("BEGIN { f($1); f(str($1)); }") == ('f(0); f("");', """\
stdin:1:11-13: WARNING: Positional parameter $1 is empty or not provided. 
BEGIN { f($1); f(str($1)); }
          ~~
""")


def test_parameter_in_a_define():
    assert bound("#define LIMIT $1\nBEGIN { f(LIMIT); }", ["7"])[0] == "f(7);"


GETOPT = 'BEGIN { f(getopt("n", 1, "a number")); f(getopt("b")); f(getopt("s", "x")); f(getopt("z", -1)); f(getopt("t", true)); }'


@pytest.mark.parametrize("named, values", [
    ([], '(uint64)1 false "x" (int64)(-1) true'),
    (["n=5", "b", "s=hello", "z=-7", "t=off"], '(uint64)5 true "hello" (int64)(-7) false'),
    (["n=-1", "b=yes", "s=", "z=0x10", "t=1"], '(uint64)18446744073709551615 true "" (int64)16 true'),
])
def test_options(named, values):
    assert bound(GETOPT, (), named)[0] == " ".join("f(%s);" % value for value in values.split(" "))


@pytest.mark.parametrize("named, message", [
    (["n=x"], "ERROR: program command line option --n invalid integer (value: x)\n"),
    (["n=5q"], "ERROR: program command line option --n invalid trailing bytes (value: 5q)\n"),
    (["n=99999999999999999999"], "ERROR: program command line option --n value is out of range (value: 99999999999999999999)\n"),
    (["n"], "ERROR: program command line option --n expects an integer (value: true)\n"),
    (["s"], "ERROR: program command line option --s expects a string (value: true)\n"),
    (["b=2"], "ERROR: program command line option --b expects a boolean (e.g. 'true') (value: 2)\n"),
    (["q"], "ERROR: unexpected program command line options: --q\nHINT: expected program options: --n: a number, --b, --s, --z, --t\n"),
    (["help"], "HINT: expected program options:\n--n: a number\n--b\n--s\n--z\n--t\n"),
])
def test_wrong_options(named, message):
    with pytest.raises(ScriptError) as caught:
        bound(GETOPT, (), named)
    assert caught.value.format() == message


@pytest.mark.parametrize("script, message", [
    ("BEGIN { getopt(); }", "The 'getopt' function can take a maximum of three arguments and a minimum of one argument."),
    ("BEGIN { getopt(1); }", "First argument to 'getopt' must be a string literal."),
    ('BEGIN { getopt("a", pid); }',
     "Second argument to 'getopt' must be a string literal, integer literal, or a boolean literal."),
    ('BEGIN { getopt("a", 1); getopt("a", 2); }', "Command line option 'a' needs to have the same default value in all "
     "places it is used. Previous default value: 1"),
])
def test_wrong_getopt(script, message):
    with pytest.raises(ScriptError) as caught:
        bound(script)
    assert caught.value.message == message


def test_the_tree_can_be_copied():
    probe = parse(Source("stdin", "BEGIN { if (1) { @x[1, 2] = f($y); } }")).probes[0]
    copy = ast.clone(probe)
    assert text(copy) == text(probe)
    assert not {id(node) for node in copy.walk()} & {id(node) for node in probe.walk()}
