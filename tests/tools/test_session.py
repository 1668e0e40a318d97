"""Scripts run end to end: attach, events, the traced process, signals, and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests import bpf, leaks

pytestmark = pytest.mark.root

COUNT = int(os.environ.get("RAWBPF_COUNT", 8000000))    # calls that eight processes make together
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"

CALLS = r"""
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) int tick(int x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1, x = 0;
	for (int i = 0; i < n; i++)
		x = tick(x);
	return x != n;
}
"""

SYSCALLS = r"""
#include <stdlib.h>
#include <unistd.h>
#include <sys/syscall.h>
int main(int argc, char **argv)
{
	for (long n = atol(argv[1]); n > 0; n--)
		syscall(SYS_getppid);
	return 0;
}
"""

LOOP = r"""
#include <unistd.h>
#include <stdlib.h>
__attribute__((noinline)) int work(int x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 3000;
	for (int s = 0; s < n; s = work(s))
		usleep(10000);
	return 0;
}
"""


@pytest.fixture
def here(tmp_path, compile_c):
    """A folder with the programs fun, read_rand, usdt_hello, calls, ppid and loop, as ./NAME."""
    header = (FIXTURES / "sdt.h").read_text()
    for name in ("fun", "read_rand", "usdt_hello"):
        source = (FIXTURES / (name + ".c")).read_text().replace('#include "sdt.h"', header)
        (tmp_path / name).symlink_to(compile_c(source, "-O1", "-lpthread", name=name))
    (tmp_path / "calls").symlink_to(compile_c(CALLS, "-O1", name="calls"))
    (tmp_path / "ppid").symlink_to(compile_c(SYSCALLS, "-O1", name="ppid"))
    (tmp_path / "loop").symlink_to(compile_c(LOOP, "-O1", name="loop"))
    return tmp_path


def started(process):
    """Wait until a started trace says that its probes are attached; returns what it said before."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("Attached"):
            return lines
    raise AssertionError("the trace has ended: " + "".join(lines))


def tracer_children(pid):
    return open("/proc/%d/task/%d/children" % (pid, pid)).read().split()


# -- the shortest scripts

def test_exit_needs_no_room_in_the_buffer(rawbpf):
    script = r'config = { perf_rb_pages = 1; } BEGIN { for ($i : 0..3000) { printf("%d\n", $i); } exit(3); } interval:s:100 {}'
    done = rawbpf("trace", "-e", script)
    lines = done.stdout.split()
    assert done.returncode == 3 and lines == [str(number) for number in range(len(lines))]
    assert int(re.search("Total lost event count: ([0-9]+)", done.stderr).group(1)) == 3000 - len(lines)   # exit's is none


def test_what_a_command_of_the_script_says_and_how_it_ends(rawbpf):
    done = rawbpf("trace", "-q", "--unsafe", "-e",
                  'BEGIN { system("echo a; echo b >&2; exit 3"); system("echo c"); system("kill -9 $$"); exit(); }')
    assert (done.returncode, done.stdout.rstrip()) == (0, "a\nb\n\nc")
    assert done.stderr == "ERROR: command exited with code 3\nERROR: command ended by signal 9\n"


def test_begin(rawbpf):
    done = rawbpf("trace", "-e", r'BEGIN { printf("hi\n"); exit(); }')
    assert (done.returncode, done.stdout, done.stderr) == (0, "hi\n\n\n", "Attached 1 probe\n")


def test_json(rawbpf):
    done = rawbpf("trace", "-f", "json", "-e", r'BEGIN { printf("hi\n"); @a[1, "x"] = 2; exit(); }')
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ('{"type": "attached_probes", "count": 1, "data": {"probes": 1}}\n'
                           '{"type": "printf", "data": "hi\\n"}\n'
                           '{"type": "map", "data": {"@a": {"1,x": 2}}}\n')


def test_exit_code_end_and_maps(rawbpf):
    done = rawbpf("trace", "-q", "-e",
                  r'BEGIN { @b = 1; @a["k"] = 2; exit(7); } END { printf("end\n"); }')
    assert (done.returncode, done.stdout, done.stderr) == (7, "end\n\n\n@a[k]: 2\n@b: 1\n", "")


def test_a_script_without_events_ends_by_itself(rawbpf):
    done = rawbpf("trace", "-q", "-e", "BEGIN { @x = 1; }")
    assert (done.returncode, done.stdout) == (0, "\n\n@x: 1\n")


@pytest.mark.slow
def test_scripts_from_files_and_stdin_with_arguments(rawbpf, tmp_path):
    text = 'BEGIN { printf("%d %s\\n", $1, str($2)); exit(); }'
    script = tmp_path / "args.bt"
    script.write_text("#!/usr/bin/env -S rawbpf trace\n" + text + "\n")
    assert rawbpf("trace", "-q", script, "5", "six").stdout == "5 six\n\n\n"
    assert rawbpf("trace", "-q", "-", "5", "six", input=text).stdout == "5 six\n\n\n"
    assert rawbpf("trace", "-q", "-e", text, "--", "5", "six").stdout == "5 six\n\n\n"


def test_output_to_a_file(rawbpf, tmp_path):
    done = rawbpf("trace", "-o", tmp_path / "out", "-e", r'BEGIN { printf("hi\n"); exit(); }')
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Attached 1 probe\n")
    assert (tmp_path / "out").read_text() == "hi\n\n\n"
    done = rawbpf("trace", "-o", "/nonexistent/out", "-e", "BEGIN { exit(); }")
    assert (done.returncode, done.stderr) == (
        1, "ERROR: failed to open output file '/nonexistent/out': No such file or directory\n")


def test_a_full_disk_is_one_line(rawbpf):
    for script in (r'BEGIN { printf("hi\n"); exit(); }', r'interval:ms:5 { printf("hi\n"); }'):
        done = rawbpf("trace", "-q", "-o", "/dev/full", "-e", script)
        assert (done.returncode, done.stderr) == (1, "ERROR: cannot write the output: No space left on device\n")
    with open("/dev/full", "w") as full:
        done = rawbpf("trace", "-l", "tracepoint:syscalls:*", stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, "ERROR: cannot write the output: No space left on device\n")


def test_dry_run_attaches_and_prints_nothing(rawbpf):
    done = rawbpf("trace", "--dry-run", "-e", r'END { printf("end\n"); } interval:s:1 { @x = 1; }')
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_stages(rawbpf):
    done = rawbpf("trace", "-q", "-d", "all", "-e", "BEGIN { @x = 1; exit(); }")
    for stage in ("ast", "types", "ir", "asm", "verifier"):
        assert "# %s\n" % stage in done.stdout
    assert "exit\n" in done.stdout and "processed" in done.stdout


# -- the tutorial's programs

def test_read_rand(rawbpf, here):
    (here / "tutorial.bt").write_text("""
uprobe:./read_rand:thread_fun { @start[tid] = nsecs; }
uretprobe:./read_rand:thread_fun { @ns[pid, tid, @start[tid]] = (nsecs - @start[tid]); delete(@start[tid]); }
tracepoint:syscalls:sys_enter_read /comm=="read_rand"/ { @start_read[tid] = nsecs; }
tracepoint:syscalls:sys_exit_read /comm=="read_rand"/ {
  @ns_read[pid, tid, @start[tid]] = (nsecs - @start_read[tid]);
  @ret[pid, tid, @start[tid]] = args->ret;
  delete(@start_read[tid]);
}
""")
    done = rawbpf("trace", "-q", "--no-warnings", "-c", "./read_rand", "tutorial.bt", cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert "64 bytes\n" in done.stdout
    rows = {}
    for line in done.stdout.splitlines():
        found = re.match(r"@(\w+)\[(\d+), (\d+), (\d+)\]: (\d+)$", line)
        if found:
            rows.setdefault(found[1], []).append(tuple(map(int, found.groups()[1:])))
    assert len(rows["ns"]) == 4
    assert len({row[1] for row in rows["ns"]}) == 4 and len({row[0] for row in rows["ns"]}) == 1
    values = [row[3] for row in rows["ns"]]
    assert values == sorted(values) and all(0 < value < 10 ** 9 for value in values)
    # outside thread_fun the third part of the key is 0: the reads of the dynamic linker
    inside = [row for row in rows["ret"] if row[2]]
    assert sorted(row[:3] for row in inside) == sorted(row[:3] for row in rows["ns"])
    assert {row[3] for row in inside} == {16}
    assert [row[3] for row in rows["ret"]] == sorted(row[3] for row in rows["ret"])
    assert "@start[" not in done.stdout and "@start_read[" not in done.stdout


def test_usdt_hello(rawbpf, here):
    before = int(time.time())
    process = subprocess.Popen(["./usdt_hello"], cwd=here)
    try:
        done = rawbpf("trace", "-q", "-p", process.pid, "-e",
                      r'usdt:./usdt_hello:yeet-Im-a-USDT-probe:USDT-test-probe { printf("%d\n", arg0); exit(); }',
                      cwd=here)
    finally:
        process.kill()
        process.wait()
    second = int(done.stdout.split()[0])
    assert before <= second <= time.time()


def test_fun(rawbpf, here):
    done = rawbpf("trace", "-q", "-c", "./fun", "-e", "uprobe:./fun:bar,uprobe:./fun:foo { @[func] = count(); } "
                  "uretprobe:./fun:bar { @r[retval] = count(); }", cwd=here)
    assert done.stdout.endswith("18\n\n\n@[foo]: 3\n@[bar]: 6\n@r[1]: 2\n@r[2]: 2\n@r[3]: 2\n")


# -- exact counts

@pytest.mark.slow
def test_eight_processes_are_counted_exactly(rawbpf, here):
    name = "ppid%d" % os.getpid()         # others may run this test at the same time
    (here / name).symlink_to((here / "ppid").resolve())
    trace = rawbpf.start("trace", "-e", 'tracepoint:syscalls:sys_enter_getppid /comm == "%s"/ ' % name +
                         "{ @c = count(); @s = sum(1); @x++; @k[1] = count(); @y[cpu >= 0]++; }", cwd=here)
    started(trace)
    workers = [subprocess.Popen(["./" + name, str(COUNT // 8)], cwd=here) for _ in range(8)]
    assert [worker.wait() for worker in workers] == [0] * 8
    trace.send_signal(signal.SIGINT)
    out, _ = trace.communicate(timeout=20)
    assert out == "\n\n@c: {0}\n@k[1]: {0}\n@s: {0}\n@x: {0}\n@y[true]: {0}\n".format(COUNT)


# -- the traced process

def test_the_first_instruction_of_a_command_is_traced(rawbpf, here):
    done = rawbpf("trace", "-q", "-c", "./calls 1", "-e",
                  'tracepoint:syscalls:sys_enter_execve /pid == cpid/ { @exec = count(); } uprobe:./calls:main { @main = count(); }'
                  ' uprobe:./calls:_start { @start = count(); }', cwd=here)
    assert done.stdout == "\n\n@exec: 1\n@main: 1\n@start: 1\n"


def test_the_end_of_the_command_is_the_end(rawbpf, here):
    begin = time.monotonic()
    done = rawbpf("trace", "-q", "-c", "sleep 0.3", "-e", "interval:s:100 { } END { @x = 1; }")
    assert (done.returncode, done.stdout) == (0, "\n\n@x: 1\n")
    assert 0.3 < time.monotonic() - begin < 10
    process = subprocess.Popen(["sleep", "1"])
    done = rawbpf("trace", "-q", "-p", process.pid, "-e", "interval:s:100 { }")
    assert (done.returncode, done.stdout) == (0, "\n\n")
    process.wait()


def test_exit_ends_the_command(rawbpf):
    trace = rawbpf("trace", "-q", "-c", "sleep 61", "-e", "interval:ms:50 { exit(); }", timeout=10)
    assert trace.returncode == 0
    assert not [1 for pid in filter(str.isdigit, os.listdir("/proc")) if _command(pid) == "sleep 61"]


def hold_up(trace):
    """Wait until the command of a started trace has ended, without reading the trace's output."""
    while not tracer_children(trace.pid):
        time.sleep(0.02)
    child = tracer_children(trace.pid)[0]
    while "State:\tZ" not in _status(child) and _status(child):
        time.sleep(0.02)


def _status(pid):
    try:
        return open("/proc/%s/status" % pid).read()
    except OSError:
        return ""


def _command(pid):
    try:
        return open("/proc/%s/cmdline" % pid).read().replace("\0", " ").strip()
    except OSError:
        return ""


def test_a_command_that_the_kernel_does_not_run(rawbpf, tmp_path):
    (tmp_path / "text").write_text("no program\n")
    (tmp_path / "text").chmod(0o755)
    done = rawbpf("trace", "-c", tmp_path / "text", "-e", "interval:s:1 { }")
    assert (done.returncode, done.stdout) == (255, "")
    assert done.stderr == ("ERROR: cannot run '%s': neither a program nor a script with a #! line\n"
                           % (tmp_path / "text"))


def test_tracing_a_process_is_tracing_only_it(rawbpf, here):
    target = subprocess.Popen(["./loop"], cwd=here)
    other = subprocess.Popen(["./loop"], cwd=here)
    try:
        done = rawbpf("trace", "-q", "-p", target.pid, "-e",
                      "uprobe:./loop:work { @[pid] = count(); } interval:ms:300 { exit(); }", cwd=here)
    finally:
        for process in (target, other):
            process.kill()
            process.wait()
    assert re.fullmatch(r"\n\n@\[%d\]: \d+\n" % target.pid, done.stdout)


# -- signals

@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_detaches_and_prints_the_maps(rawbpf, here, number):
    trace = rawbpf.start("trace", "-e", r'uprobe:./calls:tick { @ = count(); } END { printf("end\n"); }', cwd=here)
    assert started(trace) == ["Attached 2 probes\n"]
    subprocess.run(["./calls", "1000"], cwd=here, check=True)
    trace.send_signal(number)
    out, err = trace.communicate(timeout=10)
    assert (trace.returncode, out, err) == (0, "end\n\n\n@: 1000\n", "")


def test_what_was_recorded_before_a_signal_is_printed(rawbpf, here):
    trace = rawbpf.start("trace", "-e", r'uprobe:./calls:tick { printf("%d\n", arg0); }', cwd=here)
    started(trace)
    subprocess.run(["./calls", "5000"], cwd=here, check=True)
    trace.send_signal(signal.SIGINT)
    out, err = trace.communicate(timeout=10)
    assert out == "".join("%d\n" % n for n in range(5000)) + "\n\n"


def test_a_second_signal_ends_a_trace_whose_output_nobody_reads(rawbpf, here):
    before = bpf.program_ids()
    trace = rawbpf.start("trace", "-c", "./ppid 100000000", "-e",
                         r'tracepoint:syscalls:sys_enter_getppid /pid == cpid/ { printf("%d\n", pid); }', cwd=here)
    started(trace)
    child = tracer_children(trace.pid)[0]
    deadline = time.monotonic() + 3      # some kernels do not say where a process waits
    while "pipe_write" not in _wchan(trace.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    trace.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert trace.poll() is None
    trace.send_signal(signal.SIGINT)
    assert trace.wait(5) == 130
    assert _command(child) == "" and not leaks.orphaned_programs(before)


def _wchan(pid):
    return open("/proc/%d/wchan" % pid).read()


def test_a_script_may_have_probes_for_signals(rawbpf):
    trace = rawbpf.start("trace", "-e", r'self:signal:SIGUSR1 { @ = count(); printf("got %d\n", 1); }')
    started(trace)
    trace.send_signal(signal.SIGUSR1)
    assert trace.stdout.readline() == "got 1\n"
    trace.send_signal(signal.SIGTERM)
    assert trace.communicate(timeout=10)[0] == "\n\n@: 1\n"


def test_killing_the_tracer_leaves_nothing(rawbpf, here):
    before = bpf.program_ids()
    trace = rawbpf.start("trace", "-c", "./loop", "-e",
                         "uprobe:./loop:work { @ = count(); } tracepoint:syscalls:sys_enter_read { @r[comm] = count(); }",
                         cwd=here)
    started(trace)
    children = tracer_children(trace.pid)
    assert len(children) == 1 and bpf.program_ids() - before
    trace.kill()
    trace.wait()
    assert not leaks.orphaned_programs(before)
    deadline = time.monotonic() + 5
    while _command(children[0]) == "./loop" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _command(children[0]) != "./loop"


def test_two_traces_side_by_side(rawbpf, here):
    script = "uprobe:./calls:tick { @ = count(); }"
    traces = [rawbpf.start("trace", "-e", script, cwd=here) for _ in range(2)]
    for trace in traces:
        started(trace)
    subprocess.run(["./calls", "777"], cwd=here, check=True)
    for trace in traces:
        trace.send_signal(signal.SIGINT)
    assert [trace.communicate(timeout=10)[0] for trace in traces] == ["\n\n@: 777\n"] * 2


def test_a_closed_pipe_is_a_quiet_end(rawbpf):
    before = bpf.program_ids()
    trace = rawbpf.start("trace", "-e", r'interval:ms:1 { printf("%d\n", nsecs); }')
    for _ in range(2):
        trace.stdout.readline()
    trace.stdout.close()
    assert trace.wait(10) == 0
    assert trace.stderr.read() == "Attached 1 probe\n"
    assert not leaks.orphaned_programs(before)


def test_no_mount_appears(rawbpf):
    before = leaks.mounts()
    trace = rawbpf.start("trace", "-e", "tracepoint:syscalls:sys_enter_read { @ = count(); }")
    started(trace)
    assert leaks.mounts() == before
    trace.send_signal(signal.SIGINT)
    trace.communicate(timeout=10)
    assert leaks.mounts() == before


# -- losses

def test_printed_and_lost_are_all(rawbpf, here):
    """The output is held up, so that the buffer runs full: what was not printed is told, exactly."""
    trace = rawbpf.start("trace", "-c", "./ppid 600000", "-e",
                         r'tracepoint:syscalls:sys_enter_getppid /pid == cpid/ { @c = count(); printf("%d\n", pid); }', cwd=here)
    hold_up(trace)
    out, err = trace.communicate(timeout=60)
    lines, _, maps = out.partition("\n\n\n")
    printed = lines.count("\n") + 1
    lost = [int(n) for n in re.findall(r"^Lost (\d+) events$", err, re.M)]
    assert maps == "@c: 600000\n"
    assert lost and printed + sum(lost) == 600000
    assert "WARNING: Total lost event count: %d\n" % sum(lost) in err


@pytest.mark.slow
def test_losses_in_json(rawbpf, here):
    trace = rawbpf.start("trace", "-f", "json", "-c", "./ppid 600000", "-e",
                         r'tracepoint:syscalls:sys_enter_getppid /pid == cpid/ { printf("%d\n", pid); }', cwd=here)
    hold_up(trace)
    out, err = trace.communicate(timeout=60)
    records = [json.loads(line) for line in out.splitlines()]
    printed = sum(record["type"] == "printf" for record in records)
    lost = [record["data"]["events"] for record in records if record["type"] == "lost_events"]
    assert lost and printed + sum(lost) == 600000
    assert err == "WARNING: Total lost event count: %d\n" % sum(lost)


def test_a_trace_that_runs_makes_no_bpf_calls(rawbpf):
    """While a task is in one that touches a map, the kernel passes over tracing programs on its CPU, which a
    kernel that preempts tasks makes long enough to lose events."""
    trace = rawbpf.start("trace", "-e", r'interval:ms:5 { printf("%d\n", 1); @[1] = count(); }')
    started(trace)
    time.sleep(0.3)
    done = rawbpf("trace", "-q", "-e", "tracepoint:syscalls:sys_enter_bpf /pid == $1/ { @[args.cmd] = count(); } "
                  "tracepoint:syscalls:sys_enter_write /pid == $1/ { @w = count(); } interval:ms:700 { exit(); }",
                  str(trace.pid))
    assert re.fullmatch(r"\n\n@w: \d+\n", done.stdout)


def test_a_full_map_is_told(rawbpf):
    script = r"""config = { max_map_keys = 8 }
BEGIN { $i = 0; while ($i < 12) { @[$i] = $i + 1; $i++; } printf("%d\n", @[11]); exit(); }"""
    done = rawbpf("trace", "-q", "-e", script)
    assert done.stdout == "0\n\n\n" + "".join("@[%d]: %d\n" % (i, i + 1) for i in range(8))
    assert "4 updates" in done.stderr and "@" in done.stderr and "max_map_keys" in done.stderr
    done = rawbpf("trace", "-q", "-f", "json", "-e", script)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["data"] for r in records if r["type"] == "map_full"] == [
        {"count": 4, "map": "@", "max_entries": 8}]


# -- names

STACK = r"\n\n@\[\n        tick\+0(?:@\S+calls\.c:\d+)?\n, %s\]: 3\n@s\[tick\]: 3\n"


def test_a_stack_has_names_when_its_process_has_ended(rawbpf, here):
    """It lives for less than a millisecond."""
    script = 'uprobe:./calls:tick { @[ustack(1), comm] = count(); @s[usym(reg("ip"))] = count(); }'
    done = rawbpf("trace", "-q", "-c", "./calls 3", "-e", script, cwd=here)
    assert re.fullmatch(STACK % "calls", done.stdout)
    trace = rawbpf.start("trace", "-e", script, cwd=here)
    started(trace)
    subprocess.run(["./calls", "3"], cwd=here, check=True)
    trace.send_signal(signal.SIGINT)
    assert re.fullmatch(STACK % "calls", trace.communicate(timeout=10)[0])


def test_a_stack_has_names_when_its_process_was_there_before(rawbpf, here):
    target = subprocess.Popen(["./loop"], cwd=here)
    trace = rawbpf.start("trace", "-e", "uprobe:./loop:work { @[ustack(1)] = count(); }", cwd=here)
    started(trace)
    time.sleep(0.3)
    target.kill()
    target.wait()
    trace.send_signal(signal.SIGINT)
    assert re.fullmatch(r"\n\n@\[\n        work\+0(?:@\S+)?\n\]: \d+\n", trace.communicate(timeout=10)[0])


def test_names_after_the_process_forked_and_became_another_program(rawbpf, here):
    (here / "script").write_text("#!/bin/sh\n./calls 1; (./calls 2); exec ./calls 4\n")
    (here / "script").chmod(0o755)
    done = rawbpf("trace", "-q", "-c", "./script", "-e", "uprobe:./calls:tick { @[ustack(1)] = count(); @n++; }", cwd=here)
    assert re.fullmatch(r"\n\n@\[\n        tick\+0(?:@\S+)?\n\]: 4\n@n: 4\n", done.stdout)


# -- privileges

def unprivileged(rawbpf, capabilities, *arguments):
    capabilities = "-all" + "".join(",+" + name for name in capabilities)
    return subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                           "--inh-caps=" + capabilities, "--ambient-caps=" + capabilities,
                           *rawbpf.command(*arguments)], capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("capabilities, missing", [
    ([], "CAP_BPF (to create maps and load programs) and CAP_PERFMON (to trace with them)"),
    (["bpf"], "CAP_PERFMON (to trace with them)"),
    (["perfmon"], "CAP_BPF (to create maps and load programs)"),
])
def test_a_missing_capability_is_named(rawbpf, capabilities, missing):
    done = unprivileged(rawbpf, capabilities, "trace", "-e", "BEGIN { exit(); }")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("ERROR: missing %s: run as root, or grant " % missing)
    assert done.stderr.count("\n") == 1


def test_two_capabilities_are_enough_for_begin_and_tracepoints_say_what_they_need(rawbpf):
    done = unprivileged(rawbpf, ["bpf", "perfmon"], "trace", "-e", r'BEGIN { printf("hi\n"); exit(); }')
    assert (done.returncode, done.stdout, done.stderr) == (0, "hi\n\n\n", "Attached 1 probe\n")
    done = unprivileged(rawbpf, ["bpf", "perfmon"], "trace", "-e", "tracepoint:sched:sched_switch { exit(); }")
    assert done.returncode != 0 and done.stdout == ""
    assert "tracefs" in done.stderr and "CAP_" in done.stderr


@pytest.mark.parametrize("capabilities, missing", [
    (["bpf", "perfmon"], "CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH"),
    (["bpf", "perfmon", "sys_admin"], "CAP_DAC_READ_SEARCH"),
    (["bpf", "perfmon", "dac_read_search"], "CAP_SYS_ADMIN"),
])
def test_what_tracefs_without_a_mount_needs(rawbpf, capabilities, missing):
    if os.path.isdir("/sys/kernel/tracing/events"):
        return      # mounted: nothing is missing, or what its mode says
    done = unprivileged(rawbpf, capabilities, "trace", "-e", "tracepoint:sched:sched_switch { exit(); }")
    assert done.returncode == 1
    assert "opening it without a mount needs %s (or: mount" % missing in done.stderr


@pytest.mark.slow
def test_uprobes_with_two_capabilities_run_or_name_what_is_missing(rawbpf):
    script = 'uprobe:libc:getppid { exit(); } interval:ms:10 { exit(); }'
    done = unprivileged(rawbpf, ["bpf", "perfmon"], "trace", "-e", script)
    assert done.returncode == 0 or "needs CAP_SYS_ADMIN" in done.stderr
    done = unprivileged(rawbpf, ["bpf", "perfmon", "sys_admin"], "trace", "-e", script)
    assert (done.returncode, done.stderr) == (0, "Attached 2 probes\n")


def test_elapsed_starts_with_the_trace(rawbpf):
    done = rawbpf("trace", "-q", "-e", 'BEGIN { @begin = elapsed < 100000000; } interval:ms:200 '
                  '{ $e = elapsed; @later = $e >= 200000000 && $e < 5000000000; exit(); }')
    assert done.stdout == "\n\n@begin: true\n@later: true\n"


@pytest.mark.slow
def test_names_of_the_kernel_may_need_a_capability(rawbpf):
    done = unprivileged(rawbpf, ["bpf", "perfmon"], "trace", "-q", "-e",
                        "BEGIN { @[ksym(0xffffffff81000000)] = 1; exit(); }")
    assert done.returncode == 0
    assert ("CAP_SYSLOG" in done.stderr) == ("@[0xffffffff81000000]: 1" in done.stdout)
    done = unprivileged(rawbpf, ["bpf", "perfmon", "syslog"], "trace", "-q", "-e",
                        "BEGIN { @[ksym(0xffffffff81000000)] = 1; exit(); }")
    assert done.stderr == ""
