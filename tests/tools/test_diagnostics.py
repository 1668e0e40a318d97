"""The layout of errors and warnings: bpftrace's."""

import io

from rawbpf.tools.trace.diagnostics import (Diagnostics, ExpandedSpan, ScriptError, Source, Span,
                                            nearest)

TEXT = "BEGIN { foo(1); }\n\tbar\t(2);\nlast"


def span(text, part):
    start = text.index(part)
    return Span(Source("stdin", text), start, start + len(part))


def test_positions_are_lines_and_byte_columns():
    source = Source("x", "ab\n\u00e9cd\n\nz")
    assert [source.position(at) for at in (0, 1, 2, 3, 4, 6, 7, 8, 9)] == [
        (1, 1), (1, 2), (1, 3), (2, 1), (2, 3), (2, 5), (3, 1), (4, 1), (4, 2)]
    assert [source.line(n) for n in (1, 2, 3, 4)] == ["ab", "\u00e9cd", "", "z"]


def test_one_line():
    assert ScriptError(span(TEXT, "foo(1)"), "Unknown function: 'foo'", ["did you mean 'fo'?"]).format() == """\
stdin:1:9-15: ERROR: Unknown function: 'foo'
BEGIN { foo(1); }
        ~~~~~~
HINT: did you mean 'fo'?
"""


def test_tabs_are_four_columns_in_both_lines():
    assert ScriptError(span(TEXT, "bar\t(2)"), "no").format() == """\
stdin:2:2-9: ERROR: no
    bar    (2);
    ~~~~~~~~~~
"""


def test_bytes_that_are_no_utf8_are_shown_as_such():
    assert span("a \udcff\udcc3 b", "b").context() == ["a \ufffd\ufffd b", "     ~"]
    assert span("\udcff(\n)", "(\n)").context() == ["\ufffd(", ")"]


def test_several_lines_are_all_shown():
    assert ScriptError(span(TEXT, "(2);\nla"), "no").format() == """\
stdin:2-3: ERROR: no
\tbar\t(2);
last
"""


def test_end_of_text_and_no_place():
    source = Source("f.bt", "abc")
    assert ScriptError(Span(source, 3, 3), "more").format() == "f.bt:1:4-4: ERROR: more\nabc\n   \n"
    assert ScriptError(None, "no probes").format() == "ERROR: no probes\n"


def test_non_ascii_lines():
    assert ScriptError(span('"\u00e9"; x', "x"), "no").format() == 'stdin:1:7-8: ERROR: no\n"\u00e9"; x\n     ~\n'


def test_contexts_and_expansions():
    outer = span("BEGIN { M; }", "M")
    inner = ExpandedSpan(span("a+M", "M"), outer)
    error = ScriptError(inner, "recursion", ["hint"], [("seen here", span("x y", "y"))])
    assert error.format() == """\
stdin:1:3-4: ERROR: recursion
a+M
  ~
stdin:1:3-4: ERROR: seen here
x y
  ~
HINT: hint
stdin:1:9-10: ERROR: expanded from
BEGIN { M; }
        ~
"""


def test_errors_come_before_warnings_and_are_raised_together():
    found = Diagnostics()
    found.warning(span(TEXT, "bar"), "careful", "a hint")
    found.error(span(TEXT, "foo"), "first")
    found.error(None, "second")
    try:
        found.check()
    except ScriptError as error:
        assert (error.message, error.span.text) == ("first", "foo")
        assert str(error).splitlines()[-3:] == ["    bar    (2);", "    ~~~", "HINT: a hint"]
        assert error.format() == found.format()
    again = Diagnostics()
    again.add(error_of(found))
    assert [len(again.errors), len(again.warnings)] == [2, 1]


def error_of(found):
    try:
        found.check()
    except ScriptError as error:
        return error


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colours_only_on_a_terminal():
    found = Diagnostics()
    found.error(span("abc", "b"), "no", "hint")
    plain, coloured = io.StringIO(), Terminal()
    found.emit(plain)
    found.emit(coloured)
    assert plain.getvalue() == "stdin:1:2-3: ERROR: no\nabc\n ~\nHINT: hint\n"
    assert coloured.getvalue() == "\033[31mstdin:1:2-3: ERROR: no\033[0m\nabc\n ~\nHINT: hint\n"


def test_nearest_names():
    assert nearest("prntf", ["print", "printf", "strftime"])[0] == "printf"
    assert nearest("zzz", ["print"]) == []
