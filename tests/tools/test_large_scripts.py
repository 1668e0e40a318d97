"""Scripts that grow without measure: an early limit with a clear error, or work that grows with the script and no faster.
What is counted is calls and sizes, not seconds."""

import pytest

from rawbpf.tools.trace import types
from rawbpf.tools.trace.compiler import Compiler
from rawbpf.tools.trace.diagnostics import ScriptError, Source
from rawbpf.tools.trace.machine import Machine
from rawbpf.tools.trace.parser import parse


class Box(Machine):
    """A machine with two CPUs and everything a new kernel has."""

    cpus, release, ringbuf, btf, kernel_reads, pid_namespace = 2, (6, 12), True, None, True, None

    def has_helper(self, name, program_type):
        return True


def compiled(text):
    """What becomes of a script, its macros expanded."""
    return Compiler(parse(Source("stdin", text)), machine=Box(), environment={}).compile()


def error(text):
    with pytest.raises(ScriptError) as caught:
        compiled(text)
    return caught.value.message


@pytest.fixture
def clones(monkeypatch):
    """The number of nodes that were copied or parsed of macros, in a list."""
    from rawbpf.tools.trace import ast, diagnostics
    made = []
    new = diagnostics.ExpandedSpan.__init__

    def count(self, span, origin):
        made.append(1)
        new(self, span, origin)
    monkeypatch.setattr(diagnostics.ExpandedSpan, "__init__", count)
    clone = ast.clone

    def counted(node):
        made.extend(1 for _ in node.walk())
        return clone(node)
    monkeypatch.setattr(ast, "clone", counted)
    return made


@pytest.mark.parametrize("script", [
    # each level twice the one below: 2**40 in all
    "macro m0() { 1 } %s BEGIN { print(m40()); }" % " ".join(
        "macro m%d() { m%d() + m%d() }" % (i + 1, i, i) for i in range(40)),
    "macro m(a) { a + a } BEGIN { print(%s1%s); }" % ("m(" * 40, ")" * 40),
    "#define A0 1\n%sBEGIN { print(A40); }" % "".join("#define A%d (A%d + A%d)\n" % (i + 1, i, i) for i in range(40)),
    "#define M(a) (a + a)\nBEGIN { print(%s1%s); }" % ("M(" * 40, ")" * 40),
], ids=["macros", "arguments", "defines", "defines with arguments"])
def test_expansion_is_counted_while_it_grows(clones, monkeypatch, script):
    from rawbpf.tools.trace import macros, preprocess
    for module in (macros, preprocess):
        assert module.MAX_NODES <= 100000
        monkeypatch.setattr(module, "MAX_NODES", 2000)
    assert "is too large" in error(script)
    assert 1000 < len(clones) < 8000


def test_expansion_within_the_budget():
    assert compiled("macro m(a) { a + a } BEGIN { print(%s1%s); }" % ("m(" * 4, ")" * 4)).programs


def test_a_long_chain_of_defines_asks_for_each_once(monkeypatch):
    from rawbpf.tools.trace import preprocess
    texts, parse_expression = [], preprocess.parse_expression

    def counted(source, diagnostics, values=()):
        assert not isinstance(values, (set, frozenset, list)), "all names are copied for each"
        texts.append(source.text)
        return parse_expression(source, diagnostics, values)
    monkeypatch.setattr(preprocess, "parse_expression", counted)
    compiled("#define A0 7\n%sBEGIN { print(A300); }" % "".join("#define A%d A%d\n" % (i + 1, i) for i in range(300)))
    assert texts == ["A%d" % i for i in range(299, -1, -1)] + ["7"]


def test_unroll_within_unroll_is_multiplied_out_before_anything_is_made(monkeypatch):
    from rawbpf.tools.trace.lower import Lowering

    def never(self):
        raise AssertionError("code was made")
    monkeypatch.setattr(Lowering, "run", never)
    for depth in (3, 5):
        message = error("BEGIN { %s@x++; %s }" % ("unroll(100) { " * depth, "} " * depth))
        assert message.startswith("the unrolled code is too large: ") and message.endswith(", 200000 are the most")
    # it is the sum that counts
    body = "unroll(100) { unroll(100) { @x++; } } "
    assert "too large" in error("BEGIN { %s }" % (body * 5))


def test_unroll_within_unroll():
    code = compiled("BEGIN { unroll(100) { unroll(2) { @x++; } } }").programs[0].code
    assert len(code.instructions) > 200


@pytest.mark.parametrize("name", ["printf", "errorf", "warnf", "fail"])
def test_formats_take_128_arguments(name):
    """As in bpftrace: the format is one of them."""
    script = 'BEGIN { %s("%s"%s); }'
    assert error(script % (name, "%d" * 128, ", 1" * 128)) == "%s() takes up to 128 arguments (129 provided)" % name
    if name != "fail":
        assert compiled(script % (name, "%d" * 127, ", 1" * 127)).programs


def test_long_keys_are_cut_in_few_steps(monkeypatch):
    """200 strings of 504 bytes are 327 bytes each, in whole words 320, of the 65536 that a key may have."""
    from rawbpf.tools.trace import resolve
    calls, plain = [], resolve._key_type

    def counted(kind, longest):
        calls.append(longest)
        return plain(kind, longest)
    monkeypatch.setattr(resolve, "_key_type", counted)
    stored = resolve.key_type(types.Tuple([types.String(500)] * 200), 1 << 16)
    assert {element.size for element in stored.elements} == {320} and stored.size == 64000
    assert len(set(calls)) <= 18
    assert [e.size for e in resolve.key_type(types.Tuple([types.String(400), types.Integer(8)]), 512).elements] == [400, 8]
    assert [e.size for e in resolve.key_type(types.Tuple([types.String(600), types.Integer(8)]), 512).elements] == [504, 8]


def test_a_wide_tuple_and_a_long_literal_are_stores_that_nobody_compares():
    """Each constant of a tuple and each word of a literal is stored once."""
    from rawbpf.asm import stores
    count = 0
    plain = stores._covered

    def counted(known, off, size):
        nonlocal count
        count += 1
        return plain(known, off, size)
    stores._covered = counted
    try:
        compiled("BEGIN { @x = (%s); }" % ", ".join(["1"] * 400))
        assert 100 < count < 1000
        count = 0
        compiled('config = { max_strlen = 8192 } BEGIN { print("%s"); }' % ("a" * 8000))
        assert 1000 < count < 2000
    finally:
        stores._covered = plain
