"""Where bpftrace's own suite holds rawbpf to bpftrace's ways: one test a case of that suite which was done otherwise before."""

import os
import re
import subprocess
import sys
import zipfile

import pytest

from tests.tools import forked

pytestmark = [pytest.mark.root, pytest.mark.slow]

CALLS = """
#include <unistd.h>
__attribute__((noinline)) int work(int x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
__asm__(".globl sizeless\\n.type sizeless,@function\\nsizeless: mov $5,%eax\\nret\\n.size other, 1\\nother: nop\\n");
int sizeless(void);
int main(void) { int s = sizeless(); for (int i = 0; i < 200; i++) s = work(s); return s != 205; }
"""


def run(*arguments, **environment):
    """The command's (status, stdout, stderr)."""
    if environment:
        done = subprocess.run([sys.executable, "-m", "rawbpf.tools", *map(str, arguments)], capture_output=True, text=True,
                              env=dict(os.environ, **environment))
        return done.returncode, done.stdout, done.stderr
    done = forked.rawbpf(*map(str, arguments))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_intervals_end_with_exit():
    """Not one more runs between exit() and the end, whoever calls it, however short they are."""
    for _ in range(5):
        assert run("trace", "-q", "-e", "interval:us:50 { @ = count(); exit(); }")[1] == "\n\n@: 1\n"


def test_the_first_interval_of_1970():
    code, out, _ = run("trace", "-q", "-f", "json", "-e", 'begin { @ts = (uint64)0; @["a"] = tseries(5, 100ms, 4); @ts = 100000000; '
                       '@["a"] = tseries(6, 100ms, 4); clear(@ts); exit(); }', BPFTRACE_DUMMY_TS_MAP="@ts")
    assert code == 0 and '"value":0},' in out and '"value":6}' in out


def test_bit_fields_are_never_negative():
    """bpftrace 0.27.1 prints 217 for b of this struct."""
    script = ("struct s { short a:4, b:8; int c:32; } begin { $x = (uint64)0xffffffff00000d91; $p = (struct s *)&$x; "
              "print(($p.a, $p.b, $p.c)); print(*$p); exit(); }")
    code, out, err = run("trace", "-q", "-e", script)
    assert (code, out) == (0, "(1, 217, -1)\n{ .a = 1, .b = 217, .c = -1 }\n\n\n"), err


def test_a_function_without_a_size(compile_c):
    program = compile_c(CALLS, "-O1", name="calls")
    code, _, err = run("trace", "-e", "uprobe:%s:sizeless { exit(); }" % program)
    assert code == 255 and re.search(r"^ERROR: Could not determine boundary for sizeless \(symbol has size 0\)\.\n"
                                     r"Use --unsafe to force attachment\. WARNING: ", err, re.M)
    assert run("trace", "-q", "--unsafe", "-c", program, "-e", "uprobe:%s:sizeless { print(1); exit(); }" % program)[1] == "1\n\n\n"


def test_a_library_anywhere_in_an_archive(compile_c, tmp_path):
    program = compile_c(CALLS, "-O1", name="calls")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as packed:
        packed.write(program, "calls")
    code, _, err = run("trace", "-e", 'uprobe:"%s/app.zip!/calls":work {} begin { exit() }' % tmp_path)
    assert code == 0 and "Attached 2 probes" in err and "does not begin on a page boundary of its archive" in err


def test_addresses_in_names_of_probes_are_decimal(compile_c):
    program = compile_c(CALLS, "-O1", "-no-pie", name="calls")
    found = subprocess.run(["nm", program], capture_output=True, text=True).stdout
    address = int(re.search("^([0-9a-f]+) . work$", found, re.M).group(1), 16)
    out = run("trace", "-q", "-c", program, "-e", "uprobe:%s:0x%x { print(probe); exit(); }" % (program, address))[1]
    assert out == "uprobe:%s:%d\n\n\n" % (program, address)


def test_a_verifier_log_that_does_not_fit():
    code, _, err = run("trace", "-v", "-e", "config = { log_size = 2 } begin { exit(); }")
    assert code == 255 and err.endswith("ERROR: Error loading BPF program for begin_1. Error code: -28 (No space left on device).\n")
    assert re.search("^WARNING: Kernel log seems to be trimmed.* BPFTRACE_LOG_SIZE .* current value of 2 bytes", err, re.M)
    assert run("trace", "-e", "begin { exit(); }", BPFTRACE_LOG_SIZE="2")[0] == 0


def test_typeof_is_no_value():
    code, _, err = run("trace", "-e", "begin { print(typeof(pid)); }")
    assert code == 1 and err.startswith("stdin:1:15-26: ERROR: When used as a call argument, `typeof` builtin only valid for macro "
                                        "calls that are expecting a type parameter\n")


def test_a_probe_that_cannot_be_attached():
    code, _, err = run("trace", "--unsafe", "-e", "kprobe:0x12345678 {}")
    assert code in (1, 255) and re.search("ERROR: Unable to attach probe: kprobe:305419896", err)
    code, _, err = run("trace", "--unsafe", "-e", "kprobe:vmlinux:nonsense {}")
    assert code == 1 and 'WARNING: nonsense is not traceable (either non-existing, inlined, or marked as "notrace")' in err
    assert "ERROR: Unable to attach probe: kprobe:vmlinux:nonsense: there is no such function" in err


@pytest.mark.parametrize("statement, message", [
    ('@a = count(); printf("%d", @a)', "unsupported format specifier for type 'count_t': d"),
    ('@a[1] = sum(1); errorf("%x", @a[1])', "unsupported format specifier for type 'sum_t': x"),
    ("@a = max(1); print(-@a)", "The - operator can not be used on expressions of type 'max_t'"),
    ("@a = count(); exit(@a)", "exit() only supports integer arguments (count_t provided)"),
    ("@a = count(); @b = hist(@a)", "hist() only supports integer arguments (count_t provided)"),
])
def test_aggregates_are_no_numbers_by_themselves(statement, message):
    code, _, err = run("trace", "-e", "begin { %s }" % statement)
    assert code == 1 and re.search("ERROR: (.*)", err).group(1) == message


def test_aggregates_are_numbers_in_expressions():
    assert run("trace", "-q", "-e", 'begin { @a = count(); $x = @a; printf("%d %d %d %s\\n", $x, @a + 0, (int64)@a, @a); exit(); }')[1] == \
        "1 1 1 1\n\n\n@a: 1\n"


def test_usermode_everywhere():
    """Where an event has no registers, it is known."""
    out = run("trace", "-q", "-e", "begin { print(usermode); } tracepoint:sched:sched_switch /!usermode/ { print(usermode); exit(); }")[1]
    assert out.split() == ["1", "0"]


@pytest.mark.parametrize("name, value, message", [
    ("MAX_STRLEN", "abc", "BPFTRACE_MAX_STRLEN: expecting a number, got abc"),
    ("MAX_STRLEN", "-1", "BPFTRACE_MAX_STRLEN: expecting a number, got -1"),
    ("PRINT_MAPS_ON_EXIT", "maybe", "BPFTRACE_PRINT_MAPS_ON_EXIT: Invalid bool value: valid values are true, false, 1 or 0."),
    ("MISSING_PROBES", "x", "BPFTRACE_MISSING_PROBES: Invalid value for BPFTRACE_MISSING_PROBES: valid values are ignore, warn and error."),
    ("LICENSE", "MIT", "Invalid value for license. Found: MIT. Valid values: Dual MIT/GPL, Dual BSD/GPL, Dual MPL/GPL, "
                       "GPL and additional rights, GPL v2, GPL."),
    ("MAX_STRLEN", "0x10000000000000000", "BPFTRACE_MAX_STRLEN: expecting a number, got 0x10000000000000000"),
    ("MAX_STRLEN", "08", "BPFTRACE_MAX_STRLEN: expecting a number, got 08"),
    ("BTF", "/nonexistent", "BPFTRACE_BTF: /nonexistent: No such file or directory"),
])
def test_wrong_settings_in_the_environment(name, value, message):
    code, out, err = run("trace", "-e", "begin { print(curtask.pid); exit(); }", **{"BPFTRACE_" + name: value})
    assert (code, out, err) == (1 if name == "BTF" else 2, "", "ERROR: %s\n" % message)


def test_numbers_in_the_environment_are_cs():
    for text, length in (("010", 8), ("0x10", 16), ("12", 12)):
        err = run("trace", "-e", "begin { print(\"%s\"); exit(); }" % ("a" * 20), BPFTRACE_MAX_STRLEN=text)[2]
        assert "String is too long (over %d bytes): " % length in err


def test_colour_by_the_environment():
    red = "\x1b[31m"
    assert red in run("trace", "-e", "begin { nosuch(); }", BPFTRACE_COLOR="always")[2]
    assert red in run("trace", "-p", "x", "-e", "begin { }", BPFTRACE_COLOR="always")[2]
    assert "\x1b" not in run("trace", "-e", "begin { nosuch(); }", BPFTRACE_COLOR="never")[2]
    assert run("trace", "-q", "-e", "begin { exit(); }", BPFTRACE_COLOR="blue")[2] == (
        "WARNING: Invalid env value! The valid values of `BPFTRACE_COLOR` are [auto|always|never]. The current value is blue!\n")


def test_types_from_another_file():
    """BPFTRACE_BTF names the file that types are looked up in: a module's has no task_struct of its own."""
    out = run("trace", "-q", "-e", "begin { print(curtask.pid > 0); exit(); }", BPFTRACE_BTF="/sys/kernel/btf/vmlinux")[1]
    assert out == "true\n\n\n"


def test_numbers_stay_numbers_in_an_address_space():
    """What bpftrace 0.27.1 prints."""
    script = ("begin { $x = kptr(5); print(uptr((uint64)5)); print(sizeof(kptr((uint32)5))); print($x + 1); print(uptr((int8*)5)); "
              "print(*kptr(1)); exit(); }")
    assert run("trace", "-q", "-e", script)[1] == "5\n4\n6\n0x5\n0\n\n\n"
    code, _, err = run("trace", "-e", 'begin { print(kptr("abc")); }')
    assert code == 1 and "ERROR: kptr() only supports integer or pointer arguments (string provided)\n" in err


@pytest.mark.parametrize("body, expected", [
    ('print("a" < "b"); print("abc" >= "b"); print("abc" + 1); print(2 + "abc"); printf("%s" + "\\n", "x" + "y")', "true\nfalse\nbc\nc\nxy\n"),
    ('$x = "a" + "b"; print($x == "ab"); print($x[1]); if ("b" > "abc") { print(1) }', "true\n98\n1\n"),
])
def test_literal_strings_are_folded(body, expected):
    code, out, err = run("trace", "-q", "-e", "begin { %s; exit(); }" % body)
    assert (code, out) == (0, expected + "\n\n"), err


@pytest.mark.parametrize("body, message, columns", [
    ("$x = comm; print($x[20])", "the index 20 is out of bounds for array of size 16", "26-32"),
    ("$x = comm; print($x[-1])", "The array index operator [] only accepts non-negative integer indices. Got: int8", "26-32"),
    ('print(str("abc")[5])', "the index 5 is out of bounds for array of size 4", "15-28"),
])
def test_an_index_outside_of_a_string(body, message, columns):
    code, _, err = run("trace", "-e", "begin { %s; exit(); }" % body)
    assert code == 1 and err.startswith("stdin:1:%s: ERROR: %s\n" % (columns, message))


@pytest.mark.parametrize("script, columns, message", [
    ("begin { exit(); $x = 1; @y = 2; }", "17-23", "Unreachable statement."),
    ("begin { exit(); print(1); }", "17-26", "Unreachable statement."),
    ("begin { nsecs; exit(); }", "9-15", "Return value discarded."),
    ("begin { (1, 2); exit(); }", "9-16", "Return value discarded."),
])
def test_places_of_statements(script, columns, message):
    assert run("trace", "-e", script)[2].startswith("stdin:1:%s: WARNING: %s\n" % (columns, message))


def test_stacks_in_a_pid_namespace(compile_c):
    """Names for the processes that the tracer's own /proc shows, by the numbers that it has for them."""
    program = compile_c(CALLS.replace("int s = sizeless();", "int s = sizeless(); for (;;) { s = work(s); usleep(10000); }"), "-O1",
                        name="looping")
    script = "uprobe:%s:work { printf(\"%%s|%%s\", ustack(2), usym(reg(\"ip\"))); exit(); }" % program
    done = subprocess.run(["unshare", "-pf", "--mount-proc", "--kill-child", "sh", "-c", '"$1" & exec "$0" -m rawbpf.tools trace -q -e "$2"',
                           sys.executable, program, script], capture_output=True, text=True, timeout=60)
    assert re.match(r"\n        work\+0@\S+\n(?s:.*)\|work\n", done.stdout), (done.stdout, done.stderr)


def test_more_frames_than_there_can_be():
    assert run("trace", "-q", "-e", "begin { @ = len(kstack(perf, 200)); exit(); }")[0] == 0
    err = run("trace", "-e", "begin { print(kstack(1025)); }")[2]
    assert "ERROR: kstack([int limit]): limit shouldn't exceed 1024, 1025 given\n" in err


@pytest.mark.parametrize("expression, message", [
    ("(string)5", 'Cannot cast from "int8" to "string"'), ('reg("ip")', 'reg can not be used with "begin" probes'),
    ("comptime pid", "Unable to resolve comptime expression")])
def test_words_of_errors(expression, message):
    assert re.search("ERROR: (.*)", run("trace", "-e", "begin { print(%s); }" % expression)[2]).group(1) == message


def test_a_path_that_is_too_long_is_its_end(tmp_path):
    """The kernel writes paths from their end on; bpftrace shows what fits."""
    (tmp_path / "name-of-a-file").write_text("")
    script = ("iter:task_file { if (ctx.task.tgid == pid && ctx.file != 0 && ctx.fd == 0) { "
              "printf(\"%s|%s|\", path(ctx.file.f_path), path(ctx.file.f_path, 5)); } }")
    with open(tmp_path / "name-of-a-file") as held:
        done = subprocess.run([sys.executable, "-m", "rawbpf.tools", "trace", "-q", "-e", script], stdin=held, capture_output=True,
                              text=True)
    assert done.stdout.strip() == "%s|file|" % (tmp_path / "name-of-a-file"), done.stderr
