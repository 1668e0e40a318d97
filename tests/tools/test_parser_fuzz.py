"""Any text is parsed to a tree or refused with a ScriptError, soon. `RAWBPF_FUZZ=50000` runs more than the
1500 scripts of the default run; a script that fails is found again by its number."""

import os
import random
import time

import pytest

from rawbpf.tools.trace import ast, frontend
from rawbpf.tools.trace.diagnostics import Diagnostics, ScriptError, Source
from rawbpf.tools.trace.parser import parse
from rawbpf.tools.trace.printer import text
from tests.tools import script_grammar

COUNT = int(os.environ.get("RAWBPF_FUZZ", 1500))


def front(script):
    """The Script after the whole front end, or the ScriptError (whose text must come out too)."""
    try:
        parsed = parse(Source("stdin", script), ["one", "2"])
        printed = text(parsed)
        assert text(parse(Source("printed", printed), ["one", "2"])) == printed
        frontend.run(parsed, lambda kind, name: None, ["one", "2"], [], diagnostics=Diagnostics())
        assert not [node for node in parsed.walk() if isinstance(node, (ast.Positional, ast.Macro))]
        return parsed
    except ScriptError as error:
        assert error.format().endswith("\n")
        return error


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_any_script_is_parsed_or_refused(part):
    for number in range(part, COUNT, 10):
        script = script_grammar.any_script(random.Random(number))
        start = time.process_time()
        try:
            front(script)
        except Exception as error:
            raise AssertionError("script %d: %s" % (number, script)) from error
        assert time.process_time() - start < 1, (number, script)


def test_scripts_of_the_grammar_are_correct():
    for number in range(COUNT // 10):
        script = script_grammar.script(random.Random(number))
        assert isinstance(front(script), ast.Script), (script, str(front(script)))


@pytest.mark.parametrize("piece", ["/*", "//", '"', "(", "[", "{", "@x[", "a ", "1 ", "\\", "'", "struct a ", "(a ", "#if 1\n", "#define A\\\n",
                                   "__attribute__((", "kprobe:f,", "-", "/", "\n", " ", "$x.", "f(", "\u00e9", "\0", "typedef int *", '"\\',
                                   "struct x { ", "a::", "$1"])
@pytest.mark.parametrize("around", ["%s", "BEGIN { %s", "BEGIN { $x = %s }", "struct x { int %s", "kprobe:%s { 1 }"])
def test_repetition_takes_no_long_time(piece, around):
    """Twenty thousand of anything in a row: no superlinear search hides in the lexer."""
    script = around % (piece * 20000)
    start = time.process_time()
    try:
        parse(Source("stdin", script))
    except ScriptError:
        pass
    assert time.process_time() - start < 2
