"""Built-in functions, one by one: what each gives, and what it refuses. Expected values are bpftrace 0.27's, or facts of
this machine read in another way."""

import os
import re

import pytest

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def lines(rawbpf):
    """The lines that a script prints in its BEGIN."""
    def run(body, *options, head="", status=0):
        done = rawbpf("trace", "-q", *options, "-e", "%s begin { %s exit() }" % (head, body))
        assert done.returncode == status, done.stderr
        return done.stdout.rstrip("\n").split("\n")
    return run


@pytest.fixture
def refused(rawbpf):
    """The first error's text of a script that is refused."""
    def run(body, *options, head="", probe="begin"):
        done = rawbpf("trace", "-q", *options, "-e", "%s %s { %s }" % (head, probe, body))
        assert done.returncode == 1 and "Traceback" not in done.stderr
        return re.search("ERROR: (.*)", done.stderr).group(1)
    return run


def test_relatives_of_the_task(rawbpf):
    with open("/proc/self/comm") as file:
        comm = file.read().strip()
    done = rawbpf("trace", "-q", "-e", "begin { print((ppid, pcomm, leader_tid == pid, leader_comm() == comm, ppid(curtask) == ppid)); "
                  "exit() }")
    assert done.stdout.split("\n")[0] == "(%d, %s, true, true, true)" % (os.getpid(), comm)


def test_assertions(rawbpf, refused):
    done = rawbpf("trace", "-q", "-e", 'begin { assert(1 == 1, "one"); assert(1 == 2, "two"); }')
    assert done.returncode == 1 and "one" not in done.stderr
    assert re.search("^stdlib/base.bt:.*: ERROR: assert failed: two\nstdin:1:32-53: ERROR: expanded from$", done.stderr, re.M)
    assert refused('static_assert(sizeof(uint32) == 8, "four");') == "four"
    assert refused("assert_str(1);") == "string-like values must be either strings, arrays or pointers"


def test_a_macro_of_the_script_comes_first(lines):
    assert lines("print(ppid); assert(5);", head="macro ppid() { 7 } macro assert(x) { print(x) }") == ["7", "5"]


def test_container_of(lines):
    head = "struct inner { int a; } struct outer { long x; struct inner y; }"
    assert lines("$p = (struct inner *)0x1010; print(container_of($p, typeof(struct outer), y));", head=head) == ["0x1008"]


@pytest.mark.parametrize("text, base, full", [
    ("1", "int", "int8"), ("(uint64)1", "int", "uint64"), ('"a"', "string", "string[2]"), ("int32*", "pointer", "int32 *"),
    ('(1, "a")', "tuple", "(int8,string[2])"), ("struct task_struct", "c_type", "struct task_struct"),
    ("(a=1, b=300)", "record", "record { .a = int8, .b = int16 }"), ("int8[4]", "array", "int8[4]"),
    ("@s", "sum_t", "sum_t"), ("kstack", "kstack", "kstack_bpftrace_127"), ("ustack(perf, 3)", "ustack", "ustack_perf_3"),
    ("ntop(1)", "inet", "inet[24]"), ('buf("abc", 2)', "buffer", "buffer[6]"), ("BPF_MAP_TYPE_HASH", "int", "enum bpf_map_type"),
    ("ksym(0)", "ksym_t", "ksym_t"), ('pton("127.0.0.1")', "array", "uint8[4]"), ("void*", "pointer", "void *"), ("nsecs", "int", "uint64"),
])
def test_typeinfo(lines, text, base, full):
    assert lines("print(typeinfo(%s)); @s = sum(3); print(typeinfo(%s).base_type);" % (text, text),
                 head="config = { unstable_typeinfo = enable }")[:2] == ["{ .btf_id = 0, .base_type = %s, .full_type = %s }" % (base, full), base]


def test_typeinfo_is_compared_when_the_script_is_compiled(lines, refused, rawbpf):
    head = "config = { unstable_typeinfo = enable }"
    assert lines("print(typeinfo(1) == typeinfo(2)); if comptime (typeinfo(1) != typeinfo(int8)) { nonsense() } else { print(2) }",
                 head=head) == ["true", "2"]
    assert refused("print(typeinfo(1));") == ("typeinfo feature is not enabled by default. To enable this unstable feature, set the "
                                              "config flag to enable. unstable_typeinfo=enable")
    done = rawbpf("trace", "-q", "-e", "config = { unstable_typeinfo = warn } begin { print(typeinfo(1) == typeinfo(2)); exit() }")
    assert done.stderr == ("WARNING: Script is using an unstable feature: typeinfo. To prevent this warning you must explicitly enable it "
                           "in the config e.g. unstable_typeinfo=enable\n")


def test_records_are_the_same_in_any_order(lines):
    assert lines('$a = (x=1, y="abc"); $a = (y="hello", x=300); print($a); print((a=1, b=2) == (b=2, a=1)); '
                 "@n[(x=1, y=2)] = 5; @n[(y=2, x=1)]++; print(@n[(x=1, y=2)]); clear(@n);") == [
        "{ .x = 300, .y = hello }", "true", "6"]


def test_enumerators_of_the_kernel_have_names(lines):
    assert lines('$r = BPF_MAP_TYPE_HASH; printf("%d, %s\\n", $r, $r); print(BPF_MAP_TYPE_HASH + 1);') == [
        "1, BPF_MAP_TYPE_HASH", "2"]
