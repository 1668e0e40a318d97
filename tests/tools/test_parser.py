"""The parser: which tree a script has, and what is said about one that is wrong.

parse_trees.txt holds scripts and their trees printed again, parse_errors.txt wrong scripts and the
messages; the `peer` tests show that bpftrace's formatter and bpftrace's messages are the same."""

import re
import time
from pathlib import Path

import pytest

from rawbpf.tools.trace import ast
from rawbpf.tools.trace.diagnostics import Diagnostics, ScriptError, Source
from rawbpf.tools.trace.lexer import number, signed_number
from rawbpf.tools.trace.parser import parse, parse_expression
from rawbpf.tools.trace.printer import text

HERE = Path(__file__).parent


def cases(name):
    blocks = (HERE / name).read_text(encoding="utf-8").rstrip("\n").split("\n====\n")
    return [tuple(block.split("\n---\n")) for block in blocks]


TREES = cases("parse_trees.txt")
ERRORS = cases("parse_errors.txt")


# What bpftrace does not say: which bracket is not closed where the text ends too early.
MORE = re.compile(r"^HINT: (the script ends here.*|the '.' at \S+ closes nothing)\n", re.M)


def errors(script):
    """As bpftrace says them."""
    with pytest.raises(ScriptError) as caught:
        parse(Source("stdin", script))
    return MORE.sub("", caught.value.format())


def tree(script):
    """The statements of a BEGIN block, printed on one line."""
    script = parse(Source("stdin", "BEGIN { %s }" % script))
    return " ".join(" ".join(text(s) for s in script.probes[0].block.statements).split())


def squeezed(printed):
    return " ".join(printed.split())


@pytest.mark.parametrize("script, printed", TREES)
def test_tree(script, printed):
    parsed = text(parse(Source("stdin", script)))
    assert squeezed(parsed) == squeezed(printed)
    assert text(parse(Source("printed", parsed))) == parsed


@pytest.mark.parametrize("script, message", ERRORS)
def test_error(script, message):
    assert errors(script).rstrip("\n") == message


@pytest.mark.parametrize("script, hint", [
    ("BEGIN { exit() ", "the script ends here, and the '{' at 1:7 is not closed"),
    ("BEGIN { if (1) { print(1 ", "the script ends here, and the '(' at 1:23 is not closed"),
    ('BEGIN { print("}"); /* } */ // }', "the script ends here, and the '{' at 1:7 is not closed"),
    ("BEGIN", "the script ends here"), ("BEGIN { } }", "the '}' at 1:11 closes nothing"),
    ('BEGIN { "', None), ("BEGIN { exit() $a }", None)])
def test_where_the_text_ends_too_early(script, hint):
    with pytest.raises(ScriptError) as caught:
        parse(Source("stdin", script))
    first = caught.value.diagnostics[0]
    assert first.hints == ([hint] if hint else [])
    assert not any(each.hints for each in caught.value.diagnostics[1:])


@pytest.mark.peer
def test_trees_are_bpftraces(tmp_path):
    from tests.peers import bpftrace
    path = tmp_path / "script.bt"
    for script, printed in TREES:
        path.write_text(script)
        theirs = bpftrace("--fmt", path)
        assert not theirs.stderr, script
        # bpftrace's tree has @x[(1, 2)] and @x[1, 2] as one
        theirs = squeezed(text(parse(Source("theirs", theirs.stdout)))).replace("@x[1, 2] +=", "@x[(1, 2)] +=")
        assert theirs == squeezed(printed)


@pytest.mark.peer
def test_errors_are_bpftraces(tmp_path):
    from tests.peers import bpftrace
    path = tmp_path / "script.bt"
    for script, message in ERRORS:
        path.write_text(script, encoding="utf-8")
        theirs = bpftrace("--fmt", path).stderr.replace(str(path), "stdin").rstrip("\n")
        assert theirs == message, script


# ---- beyond bpftrace 0.27: what its predecessors and C habits have ----

@pytest.mark.parametrize("written, meant", [
    ('print("a" "b" "\\x41");', 'print("abA");'),
    ("print('a'); print('\\n');", "print(97); print(10);"),
    ("$x = 0x10UL + 10U + 5LL;", "$x = (0x10UL + 10U) + 5LL;"),
    ("(unsigned int)$x; (unsigned long long)1; (const char *)$p;",
     "(unsigned int)$x; (unsigned long long)1; (char*)$p;"),
    ("(cpu) * 2; (comm); (uid) - 1; (retval) & 1;", "cpu * 2; comm; uid - 1; retval & 1;"),
    ("greet!(); if (1) { } ++$x;", "greet(); if (1) { } ++$x;"),
    ("$a == 1 ? f(1) : g(2); $x++ + 1;", "($a == 1) ? f(1) : g(2); ($x++) + 1;"),
    (";;1;;", "1;"),
    ("print(0b101);", "print(0b101);"),
])
def test_older_and_wider_spellings(written, meant):
    assert tree(written) == meant


def test_a_name_that_is_defined_is_no_type():
    script = parse(Source("stdin", "#define N 4\nBEGIN { $x = (N) - 1; $y = (M) - 1; }"))
    first, second = script.probes[0].block.statements
    assert isinstance(first.value, ast.Binary)
    assert isinstance(second.value, ast.Cast)


def test_adjacent_lines_of_a_define_are_one():
    script = parse(Source("stdin", "#define A 1 + \\\n  2\nBEGIN { A }"))
    assert script.definitions[0].text == "#define A 1 + \\\n  2"


def test_macro_without_parentheses():
    assert parse(Source("stdin", "macro m { 1 } BEGIN { m }")).macros[0].parameters == []


# ---- details of the tree ----

def test_spans_cover_what_was_written():
    source = Source("stdin", "BEGIN {\n\t@x[1, $y] = count() + 2 * 3;\n}")
    statement = parse(source).probes[0].block.statements[0]
    spans = {type(node).__name__: node.span.text for node in statement.walk()}
    assert spans == {
        "Assign": "@x[1, $y] = count() + 2 * 3", "MapAccess": "@x[1, $y]", "Map": "@x",
        "Integer": "3", "Variable": "$y", "Binary": "2 * 3", "Call": "count()"}
    assert statement.value.span.location == "stdin:2:14-29"
    assert statement.value.right.span.text == "2 * 3"


def test_compound_assignment_keeps_its_operator():
    statement = parse(Source("stdin", "BEGIN { @x[1] <<= 2; }")).probes[0].block.statements[0]
    assert (statement.op, type(statement.target)) == ("<<", ast.MapAccess)


def test_last_expression_of_a_probe_is_a_statement_and_of_a_block_its_value():
    probe = parse(Source("stdin", "BEGIN { $x = { 1; 2 }; { 3 } }")).probes[0]
    assert probe.block.value is None
    assert probe.block.statements[0].value.value.value == 2
    inner = probe.block.statements[1].expr
    assert inner.value is None and len(inner.statements) == 1


@pytest.mark.parametrize("written, value", [
    (r'"\n\t\r\"\\"', "\n\t\r\"\\"), (r'"\101\7\0603"', "A\x0703"), (r'"\x41\x4a2\x9"', "AJ2\t"),
    (r'"\xe4\xbd\xa0"', "\u4f60"), (r'"\xff"', "\udcff"), ('"\u4f60"', "\u4f60"), ('""', ""),
])
def test_strings(written, value):
    assert parse_expression(Source("x", written), Diagnostics()).value == value


@pytest.mark.parametrize("written, value", [
    ("0", 0), ("42", 42), ("017", 15), ("0x1F", 31), ("0XfF", 255), ("1e6", 1000000), ("9e18", 9 * 10**18),
    ("1_000_000", 1000000), ("0x_ff", 255), ("1us", 1000), ("2ms", 2000000), ("1s", 10**9), ("1m", 60 * 10**9),
    ("1h", 3600 * 10**9), ("1d", 86400 * 10**9), ("5ns", 5), ("7ull", 7), ("18446744073709551615", 2**64 - 1),
    ("2e3s", 2000 * 10**9),
])
def test_numbers(written, value):
    assert number(written)[0] == value
    assert parse_expression(Source("x", written), Diagnostics()).value == value


@pytest.mark.parametrize("written, message", [
    ("18446744073709551616", "overflow error, maximum value is 18446744073709551615: 18446744073709551616"),
    ("1e20", "overflow error, maximum value is 18446744073709551615: 1e20"),
    ("4294967296u", "overflow error, maximum value is 4294967295: 4294967296u"),
    ("12e4", "coefficient part of scientific literal must be 1-9: 12e4"),
    ("5e", "invalid trailing bytes: 5e"), ("089", "invalid trailing bytes: 089"), ("x", "invalid integer: x"),
    ("", "invalid integer: "), ("9" * 5000, "overflow error, maximum value is 18446744073709551615: " + "9" * 5000),
    ("1e" + "9" * 5000, "overflow error, maximum value is 18446744073709551615: 1e" + "9" * 5000),
])
def test_wrong_numbers(written, message):
    with pytest.raises(ValueError) as caught:
        number(written)
    assert str(caught.value) == message


def test_signed_numbers():
    assert signed_number("-9223372036854775808") == -2**63
    assert signed_number("-0x10") == -16
    with pytest.raises(ValueError):
        signed_number("-9223372036854775809")


# ---- attach points ----

@pytest.mark.parametrize("text, parts", [
    ("kprobe:f", ["kprobe", "f"]),
    ('uprobe:"/a b/c":"f:g"', ["uprobe", "/a b/c", "f:g"]),
    ('uprobe:"/a\\"b":f', ["uprobe", '/a"b', "f"]),
    ("usdt:./dp:web-shop:cart__add", ["usdt", "./dp", "web-shop", "cart__add"]),
    ("uprobe:./lib++x:foo+0x10", ["uprobe", "./lib++x", "foo+0x10"]),
    ("uprobe:$1:x$2y", ["uprobe", "/bin/sh", "xmainy"]),
    ('uprobe:"$1":$9', ["uprobe", "$1", ""]),
    ("uprobe:/$1/$3", ["uprobe", "//bin/sh/"]),
])
def test_attach_points(text, parts):
    script = parse(Source("stdin", text + " { 1 }"), ["/bin/sh", "main"])
    assert [point.parts for point in script.probes[0].attach_points] == [parts]
    assert script.probes[0].attach_points[0].text == text


def test_attach_point_with_a_label():
    point = parse(Source("stdin", "mine=kprobe:f { 1 }")).probes[0].attach_points[0]
    assert (point.label, point.parts, point.kind) == ("mine", ["kprobe", "f"], "kprobe")


def test_parameters_that_are_none():
    with pytest.raises(ScriptError) as caught:
        parse(Source("stdin", "uprobe:/bin/bash:$a { 1 }"))
    assert caught.value.format() == """\
stdin:1:1-20: ERROR: invalid trailing character for positional param: a. Try quoting this entire part if this is intentional e.g. "$a".
uprobe:/bin/bash:$a { 1 }
~~~~~~~~~~~~~~~~~~~
stdin:1:1-20: ERROR: No attach points for probe
uprobe:/bin/bash:$a { 1 }
~~~~~~~~~~~~~~~~~~~
"""


# ---- size ----

@pytest.mark.parametrize("script", [
    "BEGIN { $x = " + "(" * 5000 + "1" + ")" * 5000 + "; }",
    "BEGIN { $x = " + "-" * 1 + "!" * 20000 + "1; }",
    "BEGIN { " + "{" * 3000 + "}" * 3000 + " }",
    "BEGIN { " + "if (1) {" * 3000 + "}" * 3000 + " }",
    "BEGIN { $x = " + "f(" * 3000 + ")" * 3000 + "; }",
    "BEGIN { $x = " + "@x[" * 3000 + "]" * 3000 + "; }",
    "BEGIN { $x = " + "1 ? 1 : " * 3000 + "1; }",
    "BEGIN { $x = " + "1 + " * 3000 + "1; }",
    "BEGIN { $x = $y" + ".a" * 3000 + "; }",
    "BEGIN { if (1) { } " + "else if (2) { } " * 3000 + "}",
    "BEGIN { $x = (" + "(uint8)" * 3000 + "1); }",
    "BEGIN { $x = (struct a " + "*" * 5000 + ")1; }",
])
def test_too_deep_is_an_error_not_a_crash(script):
    with pytest.raises(ScriptError) as caught:
        parse(Source("stdin", script))
    assert "deep" in caught.value.message


def test_deep_but_fine():
    script = parse(Source("stdin", "BEGIN { $x = " + "(" * 200 + "1" + ")" * 200 + "; $y = " + "1 + " * 600 + "1; }"))
    assert text(script).count("+") == 600


def test_parses_fast():
    """A script of 200 lines takes less than 20 ms of processor time."""
    lines = ['  if (@start[tid, "x"] > 0 && args.ret >= 0) {\n    @us[comm, pid] = hist((nsecs - @start[tid, "x"]) / 1000);\n'
             '    printf("%-6d %-16s %s\\n", pid, comm, str(args.filename));\n  }\n'] * 50
    source = Source("stdin", "tracepoint:syscalls:sys_exit_read / comm == \"x\" / {\n%s}\n" % "".join(lines))
    best = min(timed(source) for _ in range(5))
    assert best < 0.02


def timed(source):
    start = time.process_time()
    parse(source)
    return time.process_time() - start
