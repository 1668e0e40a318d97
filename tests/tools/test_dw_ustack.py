"""dw_ustack(): user stacks of programs without frame pointers. The expected callers are those that the source says."""

import re
import signal
import subprocess

import pytest

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

# no frame pointers; a frame of variable size, one of several pages, and a deep one
SOURCE = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
volatile int sink;
__attribute__((noinline)) void funcD(void) { sink = 42; }
__attribute__((noinline)) void funcC(int n) { char b[n + 16]; sink = b[0] = n; funcD(); sink = b[0]; }
__attribute__((noinline)) void funcB(void) { funcC(33); sink; }
__attribute__((noinline)) void funcA(void) { char big[50000]; sink = big[0] = 1; funcB(); sink = big[3]; }
__attribute__((noinline)) void spin(void) { for (volatile long i = 0; i < 1000000; i++) sink += i; sink = 1; }
__attribute__((noinline)) void nap(void) { usleep(1000); sink = 1; }
__attribute__((noinline)) int deep(int n) { int x = n ? deep(n - 1) : (funcD(), 0); return x + sink; }
static void handler(int number) { sink = number; funcD(); sink = number; }
__attribute__((noinline)) void raised(void) { raise(SIGUSR1); sink = 2; }
int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    long times = argc > 2 ? atol(argv[2]) : 3;
    signal(SIGUSR1, handler);
    if (!strcmp(what, "fork")) { getchar(); if (fork()) { wait(0); return 0; } }
    for (volatile long i = 0; i < times; i++) {
        if (!strcmp(what, "spin")) spin();
        else if (!strcmp(what, "nap")) nap();
        else if (!strcmp(what, "deep")) deep(40);
        else if (!strcmp(what, "signal")) raised();
        else funcA();
        if (!strcmp(what, "fork")) usleep(100000);
        if (!strcmp(what, "slow")) usleep(1000);
    }
    return 0;
}
"""
ON = "config = { unstable_dw_ustack=enable; show_debug_info=0 } "
CHAIN = ["funcD", "funcC", "funcB", "funcA", "main"]


@pytest.fixture
def nofp(tmp_path, compile_c):
    def make(*flags):
        (tmp_path / "nofp").symlink_to(compile_c(SOURCE, "-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls",
                                                 *flags, name="nofp"))
        return tmp_path
    return make


def stacks(text):
    """[[function]] of all stacks in an output."""
    return [re.findall(r"^ {8}(\S+?)\+\d+$", part, re.M) for part in re.findall(r"@\w*\[\n(.*?)\]: \d+$", text, re.M | re.S)]


def traced(rawbpf, folder, script, *arguments, command="./nofp"):
    done = rawbpf("trace", "-q", "-c", " ".join([command, *arguments]), "-e", ON + script, cwd=folder)
    assert done.returncode == 0 and done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("flags", [(), ("-no-pie",), ("-static",), ("-static-pie",), ("-fcf-protection=none",)], ids=str)
def test_the_whole_stack_from_the_first_hit_on(rawbpf, nofp, flags):
    """Twice the same stack, of a program that runs for less than a millisecond: its tables are there in time."""
    found = stacks(traced(rawbpf, nofp(*flags), "uprobe:./nofp:funcD { @[dw_ustack()] = count(); }"))
    assert len(found) == 1 and found[0][:5] == CHAIN and found[0][-1] == "_start"


def test_frame_pointers_do_not_know_it(rawbpf, nofp):
    found = stacks(traced(rawbpf, nofp(), "uprobe:./nofp:funcD { @[ustack()] = count(); }"))
    assert found[0][:5] != CHAIN


def test_limit_and_mode(rawbpf, nofp):
    out = traced(rawbpf, nofp(), 'uprobe:./nofp:funcD { printf("%s|", dw_ustack(perf, 3)); print(dw_ustack(raw, 2)); exit(); }')
    assert re.fullmatch(r"\n(\t[0-9a-f]+ func[DCB]\+\d+ \(\S*/nofp\)\n){3}\|\n([0-9a-f]+\n){2}\n*", out)


def test_deep(rawbpf, nofp):
    found = stacks(traced(rawbpf, nofp(), "uprobe:./nofp:funcD { @[dw_ustack()] = count(); }", "deep"))
    assert found[0][:43] == ["funcD"] + ["deep"] * 41 + ["main"]


def test_through_a_signal_handler(rawbpf, nofp):
    found = stacks(traced(rawbpf, nofp(), "uprobe:./nofp:funcD { @[dw_ustack()] = count(); }", "signal"))
    assert [name for name in found[0] if name in ("funcD", "handler", "raised", "main", "_start")] == [
        "funcD", "handler", "raised", "main", "_start"]


def test_a_forked_process(rawbpf, nofp):
    """It has its parent's tables as soon as the reader knows of it: the second hit at the latest."""
    folder = nofp()
    parent = subprocess.Popen(["./nofp", "fork", "5"], cwd=folder, stdin=subprocess.PIPE)
    trace = rawbpf.start("trace", "--dwarf-pid", str(parent.pid), "-e", ON + "uprobe:./nofp:funcD { @[dw_ustack()] = count(); }",
                         cwd=folder)
    assert "Attached" in trace.stderr.readline()
    parent.communicate(b"\n")
    trace.send_signal(signal.SIGINT)
    out, _ = trace.communicate(timeout=20)
    assert any(found[:5] == CHAIN for found in stacks(out)), out


@pytest.mark.kernel(since="5.15")
def test_from_within_the_kernel(rawbpf, nofp):
    script = "tracepoint:syscalls:sys_enter_clock_nanosleep /pid == cpid/ { @[dw_ustack()] = count(); }"
    found = stacks(traced(rawbpf, nofp("-static"), script, "nap"))
    assert len(found) == 1 and found[0][-5:-3] + found[0][-1:] == ["nap", "main", "_start"]


def test_profile_of_a_running_process(rawbpf, nofp):
    folder = nofp()
    process = subprocess.Popen(["./nofp", "spin", "1000000"], cwd=folder)
    try:
        done = rawbpf("trace", "-q", "-p", process.pid, "-e", ON + "profile:hz:99 /pid == %d/ { @[dw_ustack()] = count(); } "
                      "interval:s:1 { exit(); }" % process.pid, cwd=folder)
        assert done.returncode == 0
        # samples in the kernel need Linux 5.15, and are by frame pointers before
        assert any(found[:2] == ["spin", "main"] and found[-1] == "_start" for found in stacks(done.stdout)), done.stdout
    finally:
        process.kill()
        process.wait()


def test_further_processes_and_unknown_ones(rawbpf, nofp):
    folder = nofp()
    one, other = (subprocess.Popen(["./nofp", "slow", "1000000"], cwd=folder) for _ in range(2))
    try:
        done = rawbpf("trace", "-q", "--dwarf-pid", one.pid, "-e", ON + "uprobe:./nofp:funcD { @s[pid, dw_ustack(5)] = count(); "
                      "if (pid == %d) { @one++; } else { @other++; } if (@one > 20 && @other > 20) { exit(); } }" % one.pid, cwd=folder)
        out, err = done.stdout, done.stderr
        names = {int(pid): re.findall(r"^(\w+)\+\d+$", re.sub(" ", "", text), re.M)
                 for pid, text in re.findall(r"@s\[(\d+), \n(.*?)\]: \d+$", out, re.M | re.S)
                 if "funcC" in text}
        assert names.get(one.pid) == CHAIN, out + err
        assert "No DWARF unwind data available for this process (%d)" % other.pid in err
        assert "process (%d)" % one.pid not in err
    finally:
        for process in (one, other):
            process.kill()
            process.wait()


def test_a_process_is_asked_for(rawbpf, nofp):
    done = rawbpf("trace", "-e", ON + "uprobe:./nofp:funcD { print(dw_ustack()); }", cwd=nofp())
    assert done.returncode != 0
    assert "dw_ustack requires a target process. Use -p, -c, or --dwarf-pid to specify one." in done.stderr


def test_it_is_an_unstable_feature(rawbpf, nofp):
    script = "uprobe:./nofp:funcD { @[dw_ustack(2)] = count(); }"
    folder = nofp()
    assert "unstable feature: dw_ustack" in rawbpf("trace", "-c", "./nofp", "-e", script, cwd=folder).stderr
    refused = rawbpf("trace", "-c", "./nofp", "-e", "config = { unstable_dw_ustack=error } " + script, cwd=folder)
    assert refused.returncode == 1 and "dw_ustack feature is not enabled by default" in refused.stderr


@pytest.mark.parametrize("pid", ("x", "0", "4194303"))
def test_wrong_pids(rawbpf, nofp, pid):
    done = rawbpf("trace", "--dwarf-pid", pid, "-e", "BEGIN { exit() }", cwd=nofp())
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and done.stderr.startswith("ERROR: ")
