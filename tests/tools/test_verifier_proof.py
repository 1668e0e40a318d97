"""What is large loads on every kernel: long strings, wide keys, long scripts. Nothing is refused for the stack or for
complexity, and what is loaded gives what it should."""

import pytest

from rawbpf.loader import kernel
from rawbpf.tools.trace import Script

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

LONG = "x" * 900
OPEN = "tracepoint:syscalls:sys_enter_openat"


def values(script, **options):
    """What a script prints until it ends."""
    with Script(script, **options) as running:
        return [event.value for event in running if hasattr(event, "value")]


@pytest.mark.parametrize("size", [200, 4096])
def test_strings_of_any_length(size):
    """Copied, compared, measured, searched, as values and in tuples."""
    text = LONG[:size - 2]
    assert values('config = { max_strlen = %d } BEGIN { $s = "%s"; $t = $s; @v = $s; @k["a"] = $t; print($s == $t); print(@v == @k["a"]); print(strlen($t)); '
                  'print(strcontains($s, "xy")); $u = (1, $s, $t); print($u.1 == $u.2); print($s == "x"); exit(); }' % (size, text)) == [
        True, True, len(text), False, True, False]


@pytest.mark.parametrize("size", [1024, 4096])
@pytest.mark.parametrize("where, source", [(OPEN, "str(args.filename)"), ("BEGIN", "str(1)"), ("profile:hz:1", "str(1)")])
def test_texts_of_other_memory(size, where, source):
    """Four of them in a record, four as values of maps."""
    from rawbpf.tools.trace.engine import compile_script
    from rawbpf.tools.trace.session import Session
    from tests.tools.test_random_scripts import _Nobody
    script = ('config = { max_strlen = %d } %s { printf("%%s %%s %%s %%s\\n", S, S, S, S); @a = S; @b[1] = S; @c["k"] = (1, S); $x = S; $y = S; '
              'if ($x == $y || $x == "abc" || S == comm) { print($x); } printf("%%r", buf(1, %d)); @d[comm] = count(); }' % (size, where, size - 4))
    with Session(compile_script(script.replace("S", source)), _Nobody()) as session:
        session.load()


@pytest.mark.parametrize("count", [2, 8])
def test_wide_keys(count):
    """Several strings of 1,000 bytes; what does not fit the kernel's key is cut."""
    keys = ", ".join('"%s"' % (letter * 300) for letter in "abcdefgh"[:count])
    script = ("BEGIN { @m[%s] = 5; @c[%s] = count(); @c[%s] = count(); print(@m[%s]); print(has_key(@m, (%s))); for ($kv : @m) { print($kv.1); } "
              "clear(@m); clear(@c); exit(); }" % ((keys,) * 5))
    if kernel.release() < (5, 13):
        script = script.replace("for ($kv : @m) { print($kv.1); } ", "print(5); ")
    assert values(script) == [5, True, 5]


@pytest.mark.parametrize("body, count", [
    ('printf("%d %s\\n", pid, comm);', 60), ("@m[comm, pid] = count();", 60), ("@x += nsecs % 7;", 150), ("$a = $a * 3 + pid % 5;", 200),
    ("if (pid > $a) { $a++; } else { $a += 2; }", 100), ('if (comm == "abcdefgh") { @n++; }', 60), ("@h = hist(nsecs % 1000);", 30),
    ("@l[pid] = lhist(nsecs % 1000, 0, 1000, 10);", 30), ("$a = $a / (pid - 5);", 60)])
def test_long_scripts(body, count):
    from rawbpf.tools.trace.engine import compile_script
    from rawbpf.tools.trace.session import Session
    from tests.tools.test_random_scripts import _Nobody
    with Session(compile_script("%s { $a = (int64)1; %s @ = $a; }" % (OPEN, body * count)), _Nobody()) as session:
        session.load()


@pytest.mark.parametrize("loop, result", [
    ("$i = 0; while ($i < 1000) { $i++; $s += $i; }", 500500), ("for ($i : 0..64) { $s += $i; }", 2016),
    ("for ($i : 0..8) { for ($j : 0..8) { for ($k : 0..8) { $s++; } } }", 512), ("unroll(100) { $s += 2; }", 200),
    ("$i = 0; while ($i < 30) { $i++; if ($i % 2 == 0) { continue; } if ($i > 21) { break; } $s += $i; }", 121)])
def test_loops(loop, result):
    assert values("BEGIN { $s = (int64)0; %s print($s); exit(); }" % loop) == [result]


def test_loops_that_compare_strings():
    assert values('BEGIN { $n = 0; $t = "%s"; for ($i : 0..20) { if ($t == "%s") { $n++; } } print($n); exit(); }' % (LONG[:100], LONG[:100])) == [20]


@pytest.mark.kernel(since="5.17")
def test_loops_of_unknown_length_over_large_values():
    assert values('config = { max_strlen = 1024 } BEGIN { $n = 5000; $c = 0; $t = "%s"; for ($i : 0..$n) { if ($t == "%s") { $c++; } @v[$i & 3] = $t; } '
                  "print($c); print(@v[1] == $t); clear(@v); exit(); }" % (LONG, LONG)) == [5000, True]


def test_many_maps_and_variables():
    many = "".join("@m%d[comm] = (%d, \"t\"); $v%d = @m%d[comm]; $s%d = comm; " % (i, i, i, i, i) for i in range(40))
    assert values("BEGIN { %s print($v39.0); %s exit(); }" % (many, "".join("clear(@m%d); " % i for i in range(40)))) == [39]


@pytest.mark.kernel(since="5.17")
def test_many_values_across_loops():
    """Five callbacks inside each other share little stack: values go to scratch memory where it is not enough."""
    names = "abcdefgh"
    body = "".join('$%s = (1, "%s"); ' % (name, name * 20) for name in names)
    loops = "".join("for ($i%d : 0..$n) { @k%d[comm, $i%d, \"%s\"] = 1; " % (i, i, i, "k" * 60) for i in range(5))
    assert values("BEGIN { $n = 1; @n = 1; $n = @n; %s %s $z = %s; print($z); %s exit(); } END { %s }" % (
        body, loops, " + ".join("$%s.0" % name for name in names), "}" * 5, "".join("clear(@k%d); " % i for i in range(5)))) == [8]
