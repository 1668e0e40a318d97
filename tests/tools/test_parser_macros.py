"""Macros of the language: what their calls become, and what is wrong with some."""

import pytest

from rawbpf.tools.trace import frontend
from rawbpf.tools.trace.diagnostics import Diagnostics, ScriptError, Source
from rawbpf.tools.trace.parser import parse
from rawbpf.tools.trace.printer import text

MACROS = """
macro one() { 1 }
macro add_one(x) { x + 1 }
macro add_two(x) { add_one(x) + 1 }
macro both($a, @b) { $a += 1; @b[0] += $a; }
macro twice(x) { x; x; }
macro local(x) { $t = x; $t * 2 }
macro cast(t, x) { (t*)x }
macro size(t) { sizeof(t) }
macro where(t, f) { offsetof(struct t, f) }
macro pick(@m, key) { @m[key] }
macro pick($v, key) { $v + key }
"""


def expanded(script):
    parsed = parse(Source("stdin", script))
    found = Diagnostics()
    frontend.run(parsed, lambda kind, name: None, diagnostics=found)
    assert not parsed.macros
    return parsed


@pytest.mark.parametrize("use, becomes", [
    ("f(one());", "f({ 1 });"),
    ("f(one);", "f({ 1 });"),
    ("one!();", "{ 1; }"),
    ("f(add_one(2 * 3));", "f({ (2 * 3) + 1 });"),
    ("f(add_one($x));", "f({ ({ $x }) + 1 });"),
    ("f(add_two(5));", "f({ ({ 5 + 1 }) + 1 });"),
    ("f(add_one(add_one(1)));", "f({ ({ 1 + 1 }) + 1 });"),
    ("both($x, @y);", "{ $x += 1; @y[0] += $x; }"),
    ('twice({ printf("hi") });', '{ { printf("hi"); } { printf("hi"); } }'),
    ("f(local(3));", "f({ $$local_$t = 3; $$local_$t * 2 });"),
    ("f(cast(typeof(uint8), -1));", "f({ (uint8*)(-1) });"),
    ("f(cast(typeof(struct task), $x));", "f({ (struct task*)({ $x }) });"),
    ("f(size(typeof(int8[4])));", "f({ sizeof(int8[4]) });"),
    ("f(where(task, mm));", "f({ offsetof(struct task, mm) });"),
    ("f(where(task, a.b));", "f({ offsetof(struct task, a.b) });"),
    ("f(pick(@q, 2), pick($q, 2));", "f({ @q[2] }, { $q + 2 });"),
    ("$one = 1; f($one, @one, x.one);", "$one = 1; f($one, @one, x.one);"),
])
def test_calls(use, becomes):
    probe = expanded(MACROS + "begin { %s }" % use).probes[0]
    assert " ".join(" ".join(text(s) for s in probe.block.statements).split()) == becomes


@pytest.mark.parametrize("script, message", [
    ("macro bad() { @x++ }\nbegin { bad(); }", """\
stdin:1:15-17: ERROR: Unhygienic access to map: @x. Maps must be passed into the macro as arguments.
macro bad() { @x++ }
              ~~
stdin:2:9-14: ERROR: expanded from
begin { bad(); }
        ~~~~~
"""),
    ("macro w($x) { $x++ }\nbegin { w(@x); }", """\
stdin:2:9-14: ERROR: Call to w() has arguments that do not match any definition.
begin { w(@x); }
        ~~~~~
stdin:2:11-13: ERROR: Mismatched arg. w() expects a variable for arg $x but got a map.
begin { w(@x); }
          ~~
stdin:1:9-11: ERROR: This is the argument in the closest definition.
macro w($x) { $x++ }
        ~~
"""),
    ("macro w(@x) { 1 }\nbegin { w(1 + 1); }", """\
stdin:2:9-17: ERROR: Call to w() has arguments that do not match any definition.
begin { w(1 + 1); }
        ~~~~~~~~
stdin:2:11-16: ERROR: Mismatched arg. w() expects a map for arg @x but got an expression.
begin { w(1 + 1); }
          ~~~~~
stdin:1:9-11: ERROR: This is the argument in the closest definition.
macro w(@x) { 1 }
        ~~
"""),
    ("macro w(x) { x }\nbegin { w(); }", """\
stdin:2:9-12: ERROR: Call to w() has arguments that do not match any definition.
begin { w(); }
        ~~~
stdin:1:1-8: ERROR: The closest definition of w() has a different number of arguments. Expected: 1 but got 0
macro w(x) { x }
~~~~~~~
"""),
    ("macro a() { b() }\nmacro b() { a() }\nbegin { a(); }", """\
stdin:2:13-16: ERROR: Recursive macro call detected. Call chain: a > b > a
macro b() { a() }
            ~~~
stdin:1:13-16: ERROR: expanded from
macro a() { b() }
            ~~~
stdin:3:9-12: ERROR: expanded from
begin { a(); }
        ~~~
"""),
    ("macro a(x) { x }\nmacro a(y) { y }\nbegin { 1 }", """\
stdin:2:1-8: ERROR: Redefinition of macro: a
macro a(y) { y }
~~~~~~~
stdin:1:1-8: ERROR: This is the original definition.
macro a(x) { x }
~~~~~~~
"""),
    ("macro b($x, $x) { }\nbegin { 1 }", """\
stdin:1:13-15: ERROR: Variable for macro argument has already been used: $x
macro b($x, $x) { }
            ~~
"""),
])
def test_errors(script, message):
    with pytest.raises(ScriptError) as caught:
        expanded(script)
    assert caught.value.format() == message


@pytest.mark.peer
def test_errors_are_bpftraces(tmp_path):
    from tests.peers import bpftrace
    for mark in test_errors.pytestmark:
        for script, message in mark.args[1]:
            assert bpftrace("-e", script).stderr == message, script
