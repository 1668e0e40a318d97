"""Built-in functions, one by one: what each gives, and what it refuses. Expected values are bpftrace 0.27's, or facts of
this machine read in another way."""

import os
import re

import pytest

from tests.tools import forked

pytestmark = [pytest.mark.root, pytest.mark.slow]


def run(*arguments):
    """The command's (status, stdout, stderr), without the time that Python takes to start."""
    done = forked.rawbpf(*arguments)
    return done.returncode, done.stdout.decode("utf-8", "surrogateescape"), done.stderr.decode("utf-8", "surrogateescape")


@pytest.fixture
def lines():
    """The lines that a script prints in its BEGIN."""
    def printed(body, *options, head="", status=0):
        code, out, err = run("trace", "-q", *options, "-e", "%s begin { %s exit() }" % (head, body))
        assert code == status, err
        return out.rstrip("\n").split("\n")
    return printed


@pytest.fixture
def refused():
    """The first error's text of a script that is refused."""
    def error(body, *options, head="", probe="begin"):
        code, _, err = run("trace", "-q", *options, "-e", "%s %s { %s }" % (head, probe, body))
        assert code == 1 and "Traceback" not in err
        return re.search("ERROR: (.*)", err).group(1)
    return error


def test_relatives_of_the_task(rawbpf):
    with open("/proc/self/comm") as file:
        comm = file.read().strip()
    done = rawbpf("trace", "-q", "-e", "begin { print((ppid, pcomm, leader_tid == pid, leader_comm() == comm, ppid(curtask) == ppid)); "
                  "exit() }")
    assert done.stdout.split("\n")[0] == "(%d, %s, true, true, true)" % (os.getpid(), comm)


def test_assertions(rawbpf, refused):
    done = rawbpf("trace", "-q", "-e", 'begin { assert(1 == 1, "one"); assert(1 == 2, "two"); }')
    assert done.returncode == 1 and "failed: one" not in done.stderr
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


def test_searching_in_strings(lines):
    assert lines('$s = "abcdef"; $n = "cd"; $m = "ef"; $x = "zz"; $e = "";'
                 " print((strstr($s, $n), strstr($s, $m), strstr($s, $x), strstr($s, $e), strcontains($s, $n), strcontains($s, $x)));"
                 ' print((strstr("abc", "c"), strstr($s, "ef"), strcontains($s, "q"), strstr(comm, $n)));') == [
        "(2, 4, -1, 0, true, false)", "(2, 4, false, -1)"]


@pytest.mark.parametrize("text, part", [("aaab", "aab"), ("abcabd", "abd"), ("", "a"), ("a", ""), ("aaaa", "aaaaa"), ("abab", "ba")])
def test_searching_is_the_same_without_the_kernels_function(text, part):
    """What is a loop before Linux 6.17."""
    from rawbpf.tools.trace import Script
    from rawbpf.tools.trace.machine import Machine
    known = Machine.has_kfunc
    try:
        for has in (known, lambda machine, name, type: False):
            Machine.has_kfunc = has
            with Script('begin { $t = "%s"; $p = "%s"; printf("%%d", strstr($t, $p)); exit() }' % (text, part)) as script:
                assert [event.arguments[0] for event in script] == [text.find(part)]
    finally:
        Machine.has_kfunc = known


def test_joining_and_measuring_strings(lines, refused):
    assert lines('$s = "abc"; print(str_concat("ab", "cd")); print((str_concat($s, $s), strlen(str_concat($s, "de")))); '
                 'print((strcap("abc"), strcap($s), strlen($s))); print(str_concat(comm, "!") != comm);') == [
        "abcd", "(abcabc, 5)", "(4, 4, 3)", "true"]
    assert refused("print(strlen(1));") == "string-like values must be either strings, arrays or pointers"
    assert refused("print(strcap((int32 *)1));") == "string-like pointers must point to a char-like type"


def test_memcmp(lines, refused):
    assert lines('$a = "abc"; print((memcmp($a, "abd", 3), memcmp($a, "abd", 2), memcmp("abd", $a, 3), memcmp((int32)1, (int32)2, 4)));') == [
        "(-1, 0, 1, -1)"]
    assert "of 9 bytes" in refused('print(memcmp("abc", "abc", 9));')


def test_literals_are_told_from_values(lines):
    assert lines('$a = 1; print((is_literal(1), is_literal("a"), is_literal(true), is_literal(1 + 2), is_literal((1, 2)))); '
                 "print((is_literal(pid), is_literal($a)));") == ["(true, true, true, true, true)", "(false, false)"]


def test_names_of_numbers(lines):
    assert lines("$m = 1; $n = 9999; print((strerror(2), strerror(999), strerror(-2), strerror(0), strerror($m), strerror(-$m), strerror($n), strerror(133)));"
                 " print((signal_name(2), signal_name(99), signal_name(0), signal_name(34), signal_name($m), signal_name($n)));"
                 " print((syscall_name(__NR_read), syscall_name($n), syscall_name(SYS_execve)));") == [
        "(No such file or directory, Unknown error, No such file or directory, Success, Operation not permitted, Operation not permitted, "
        "Unknown error, Memory page has hardware error)", "(Interrupt, N/A, Unknown signal 0, Real-time signal 0, Hangup, N/A)", "(read, Unknown syscall, execve)"]


def test_find(lines, refused):
    assert lines('@m[1] = 5; @t[1] = (1, "hello"); @c[1, "a"] = count(); let $v; let $t; $n = (int64)0; '
                 "print((find(@m, 1, $v), $v)); print((find(@m, 2, $v), $v)); if (find(@t, 1, $t)) { print($t.1); } "
                 'print((find(@c, (1, "a"), $n), $n)); clear(@m); clear(@t); clear(@c);') == [
        "(true, 5)", "(false, 5)", "hello", "(true, 1)"]
    assert refused("@m[1] = 5; print(find(@m, 1, 3));") == "Call to find() has arguments that do not match any definition."
    assert "scalar map" in refused("@m = 5; let $v; print(find(@m, 1, $v));")


def test_config_is_a_record(lines):
    assert lines("print((config.max_strlen, config.stack_mode, config().print_maps_on_exit));",
                 head="config = { max_strlen = 64; stack_mode = perf }") == ["(64, perf, true)"]


def test_kfuncs(lines, refused):
    assert lines('print((kfunc_exist("bpf_map_sum_elem_count"), kfunc_exist("no_such_function"), kfunc_allowed("no_such_function")));') == [
        "(true, false, false)"]
    assert refused("$a = comm; print(kfunc_exist($a));") == "kfunc_exist() accepts a string literal only"


@pytest.mark.parametrize("probe, call, message", [
    ("begin", "socket_cookie(curtask)", 'socket_cookie can not be used with "begin" probes'),
    ("begin", 'skboutput("x", curtask, 1, 0)', 'skboutput can not be used with "begin" probes'),
    ("begin", "override(1)", "override() can only be used inside kprobes"),
    ("begin", "path(curtask)", "The path function can only be used with 'fentry', 'fexit', 'iter' probes"),
    ("begin", 'uaddr("x")', 'uaddr can not be used with "begin" probes'),
    ("begin", "write_user(1, 2, 3)", "write_user() is unsafe. To use you need the --unsafe flag"),
    ("begin", 'percpu_kaddr("no_such_variable")', 'Could not resolve variable "no_such_variable" from BTF'),
    ("begin", "comm(1)", "Syntax comm(PID) is not supported in this probe type yet. Type: special"),
    ("begin", 'comm("a")', "Only integer supported for comm()'s pid"),
])
def test_where_functions_do_not_work(refused, probe, call, message):
    assert refused("print(%s);" % call, probe=probe) == message


TARGET = """
#include <unistd.h>
int counter = 7; char small = 3; short mid = 9; long big = 11; const char *prompt = "hello>"; char room[8] = "before";
__attribute__((noinline)) int work(int x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
int main(void) { volatile char first = prompt[0]; (void)first; int s = 0; for (int i = 0; i < 3; i++) { s = work(s); usleep(1000); } return write(1, room, 6) != 6; }
"""


@pytest.mark.parametrize("flags", [("-pie",), ("-no-pie",)])
@pytest.mark.parametrize("probe", ["uprobe", "uretprobe"])
def test_uaddr(rawbpf, compile_c, probe, flags):
    program = compile_c(TARGET, "-O1", "-fno-pie" if flags == ("-no-pie",) else "-fPIE", *flags, name="uaddr")
    done = rawbpf("trace", "-q", "-c", program, "-e", probe + ":%s:work { printf(\"%%d %%d %%d %%d %%s|\", *uaddr(\"counter\"), *uaddr(\"small\"), "
                  "*uaddr(\"mid\"), *uaddr(\"big\"), str(*uaddr(\"prompt\"))); exit() }" % program)
    assert "7 3 9 11 hello>|" in done.stdout, done.stderr


def test_comm_of_another_process(rawbpf):
    """In programs that may call bpf_task_from_pid: here a profile's (Linux 6.12 and later)."""
    done = rawbpf("trace", "-q", "-e", "profile:hz:99 { print((comm(%d), comm(99999999))); exit() }" % os.getpid())
    with open("/proc/self/comm") as file:
        assert done.stdout.split("\n")[0] == "(%s, N/A)" % file.read().strip()
    assert "WARNING: No such process (pid=99999999)" in done.stderr


def test_time_series(rawbpf):
    """Values in one interval of an hour, unless an hour begins just now."""
    script = ('config = { unstable_tseries = enable } begin { @l = tseries(4, 1h, 3); @l = tseries(5, 1h, 3); @m[1] = tseries(-3, 1h, 5, "min"); '
              '@m[1] = tseries(-5, 1h, 5, "min"); @x = tseries(1, 1h, 5, "max"); @x = tseries(9, 1h, 5, "max"); @a = tseries(7, 1h, 2, "avg"); '
              '@a = tseries(-4, 1h, 2, "avg"); @s = tseries((uint64)7, 1h, 2, "sum"); @s = tseries((uint64)8, 1h, 2, "sum"); exit() }')
    done = rawbpf("trace", "-q", "-f", "json", "-e", script)
    assert [int(number) for number in re.findall(r'"value":(-?\d+)', done.stdout)] == [1, 5, -5, 15, 9]
    assert re.search(r'^{"type": "tseries", "data": {"@m": {"1": \[{"interval_start":"\d{4}-\d\d-\d\d \d\d:00:00.000000000","value":-5}\]}}}$',
                     done.stdout, re.M)
    done = rawbpf("trace", "-q", "-e", "begin { @ = tseries(4, 1h, 3); exit() }")
    graph = ["@:", " " * 19 + "3".ljust(21) + "5".rjust(32), "hh:mm:ss.ns        |" + "_" * 51 + "|", None,
             " " * 19 + "v" + "_" * 51 + "v", " " * 19 + "3".ljust(21) + "5".rjust(32)]
    found = done.stdout.rstrip("\n").split("\n")[2:]
    assert len(found) == 6 and re.match(r"^\d\d:00:00\.000000000 \|" + " " * 25 + r"\*" + " " * 25 + r"\| 4$", found[3])
    assert [line for line in found if line != found[3]] == [line for line in graph if line is not None]
    assert done.stderr == ("WARNING: Script is using an unstable feature: tseries. To prevent this warning you must explicitly enable it in "
                           "the config e.g. unstable_tseries=enable\n")


@pytest.mark.parametrize("arguments, message", [
    ("1, 0, 1", "tseries() interval_ns must be >= 1 (0 provided)"), ("1, 1s, 0", "tseries() num_intervals must be >= 1 (0 provided)"),
    ("1, 1s, 1000001", "tseries() num_intervals must be < 1000000 (1000001 provided)"),
    ('1, 1s, 5, "stats"', 'tseries() expects one of the following aggregation functions: avg, max, min, sum ("stats" provided)'),
])
def test_time_series_refuse(refused, arguments, message):
    assert refused("@ = tseries(%s);" % arguments) == message


def test_loops_in_branches_that_are_never_reached(lines):
    assert lines("$n = 3; if comptime (sizeof(uint64) == 4) { for ($i : 0..$n) { $n++; print(nonsense()); } } print($n);") == ["3"]


def test_a_loop_that_is_unrolled(lines):
    """The body of the inner loop is a function of its own each time, with its own variables."""
    assert lines('$n = 2; unroll(2) { for ($i : 0..$n) { $t = ($i, "x"); $s = comm; let $z = $i; print(($t.0, $s == comm, $z)); } }') == [
        "(0, true, 0)", "(1, true, 1)"] * 2


def test_a_pinned_iterator_writes_to_its_readers(rawbpf):
    """In a mount namespace of its own: bpffs, the pinned file, and what cat reads of it after the tracer has ended."""
    import shlex
    import subprocess
    script = 'iter:task:listed /ctx.task.pid == %d/ { printf("%%s|%%5d|%%x|%%d%%%%\\n", ctx.task.comm, ctx.task.pid, 255, -1); }' % os.getpid()
    trace = shlex.join(rawbpf.command("trace", "-q", "-e", script))
    done = subprocess.run(["unshare", "-m", "sh", "-c", "mount -t bpf none /sys/fs/bpf && %s && cat /sys/fs/bpf/listed" % trace],
                          capture_output=True, text=True, timeout=60)
    with open("/proc/self/comm") as file:
        comm = file.read().strip()
    assert done.stdout.split("\n") == ["Program pinned to /sys/fs/bpf/listed", "", "", "%s|%5d|ff|-1%%" % (comm, os.getpid()), ""], done.stderr


SIGNALLED = """
#include <signal.h>
#include <unistd.h>
static volatile int got;
static void on(int number) { got = number; }
__attribute__((noinline)) int work(int x) { __asm__ volatile("" : "+r"(x)); return x; }
int main(void) { signal(SIGUSR1, on); work(SIGUSR1); work(99); for (int i = 0; i < 5; i++) usleep(1000); return got == SIGUSR1 ? write(1, "caught\\n", 7) != 7 : 1; }
"""


@pytest.mark.parametrize("function", ["signal", "signal_thread"])
def test_signals(rawbpf, compile_c, function):
    """One that the program catches, and a number that is none."""
    program = compile_c(SIGNALLED, "-O1", name="signalled")
    done = rawbpf("trace", "-q", "--unsafe", "-c", program, "-e", "uprobe:%s:work { %s(arg0); }" % (program, function))
    assert "caught" in done.stdout
    assert "ERROR: %s() expects an integer between 1 and 64 (inclusive). Got 99\n" % function in done.stderr


@pytest.mark.parametrize("probe, call, message", [
    ("begin", "signal(5)", "signal() can not be used for this probetype special"),
    ("profile:hz:1", "signal(65)", "signal() accepts a string literal or an integer between 1 and 64 (inclusive)"),
    ("profile:hz:1", 'signal_thread("ABC")', "Invalid string for signal: ABC"),
    ("profile:hz:1", "signal((1, 2))", "signal() accepts a string literal or a positive integer"),
])
def test_signals_refused(refused, probe, call, message):
    assert refused("%s;" % call, "--unsafe", probe=probe) == message
    assert refused("signal(5);", probe="profile:hz:1") == "signal() is unsafe. To use you need the --unsafe flag"


def test_strings_are_compared_and_measured_byte_by_byte():
    """Equal beginnings of all lengths around words, and what follows the NUL of a longer string that was there before."""
    import random
    source = random.Random(7)
    texts = [source.choice("ab") * n for n in (0, 1, 2, 6, 7, 8, 9, 14, 15, 16, 17, 23, 24, 25, 31, 40)]
    texts += [t[:-1] + "z" for t in texts if t] + [t + "q" for t in texts[3:9]]
    pairs = [(source.choice(texts), source.choice(texts)) for _ in range(16)]
    pairs += [(t, t) for t in texts[:10]] + [(t, t + "a") for t in texts[:10]]
    from rawbpf.tools.trace import Script
    results = []
    for start in range(0, len(pairs), 12):
        body = "".join('$s = "%s"; $t = "%s"; $s = "%s"; $t = "%s"; print(($s == $t, strlen($s), strlen($t))); ' % ("x" * 45, "y" * 43, one, two)
                       for one, two in pairs[start:start + 12])
        with Script("BEGIN { %s exit(); }" % body) as script:
            results += [event.value for event in script]
    assert results == [(one == two, len(one), len(two)) for one, two in pairs]


def test_short_strings_joined_among_others(lines):
    """On the BPF stack, where other values were before."""
    assert lines('@a["x", 1, pcomm] = 1; @n[(1, 2).0] = count(); print(strncmp(str_concat("\\xc3\\xa9", leader_comm), "abc", 3) != 0); '
                 'print(str_concat("ab", leader_comm) == str_concat("ab", comm)); clear(@a); clear(@n);') == ["true", "true"]


def test_a_short_choice_of_long_strings(lines):
    """The shorter one leaves nothing behind it that cannot be read."""
    assert lines('$n = 1; @a["x", 1, pcomm] = 1; $s = $n ? "one" : "a longer text, of 40 bytes or something"; print((1, $s)); '
                 'printf("%s|%d\\n", $n == 2 ? "0123456789abcdef0123456789" : "two", 5); clear(@a);') == [
        "(1, one)", "two|5"]


def test_raw_tracepoints_hand_their_objects_to_helpers(tmp_path):
    """The verifier knows what the arguments are: the cookie as SO_COOKIE (57) says it, a packet's first bytes, and each of
    two events by its name."""
    import socket
    import struct
    from rawbpf.tools.trace import Script
    text = ('rawtracepoint:inet_sock_set_state,rawtracepoint:tcp_probe /pid == %d/ { @[probe, socket_cookie((struct sock *)arg0)] = count(); } '
            'rawtracepoint:consume_skb /pid == %d/ { @sent = skboutput("%s", args.skb, 20, 0); }'
            % (os.getpid(), os.getpid(), tmp_path / "out.pcap"))
    with Script(text).attach() as script, socket.socket() as listener, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        cookie, = struct.unpack("=Q", listener.getsockopt(socket.SOL_SOCKET, 57, 8))
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        sender.sendto(b"x" * 40, listener.getsockname())
        script.stop()
        list(script)
        assert ("rawtracepoint:vmlinux:inet_sock_set_state", cookie) in script.maps["@"]
        assert script.maps["@sent"] == 0
    assert (tmp_path / "out.pcap").stat().st_size >= 24 + 16 + 20
