"""-p and -c: events of kinds that the kernel tells of all processes are those of the one only."""

import json
import os
import signal
import subprocess
import time

import pytest

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

SPINS = r"""
#include <pthread.h>
#include <unistd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
static void *spin(void *n) { alarm(20); for (;;) syscall(SYS_getppid); return n; }
int main(void)
{
	pthread_t thread;
	char go;
	read(0, &go, 1);
	if (!fork())
		spin(0);
	pthread_create(&thread, 0, spin, 0);
	pthread_join(thread, 0);
	return 0;
}
"""

EVENTS = """profile:hz:99 { @p[pid] = count(); } software:cpu-clock:1000000 { @c[pid] = count(); }
    tracepoint:raw_syscalls:sys_enter { @t[pid] = count(); } rawtracepoint:sys_enter { @r[pid] = count(); }
    interval:ms:50 { @ticks = count(); }  interval:ms:400 { exit(); } """


def test_process(rawbpf, compile_c):
    """A thread and a child that start after the tracer: the thread counts, the child does not."""
    process = subprocess.Popen([compile_c(SPINS, "-pthread", name="spins")], stdin=subprocess.PIPE,
                               start_new_session=True)
    try:
        trace = rawbpf.start("trace", "-q", "-f", "json", "-p", process.pid, "-e",
                             'begin { printf("on"); } ' + EVENTS)
        assert "on" in trace.stdout.readline()
        process.stdin.write(b"g")
        process.stdin.flush()
        out, err = trace.communicate(timeout=20)
        found = {}
        for line in out.splitlines():
            record = json.loads(line)
            if isinstance(record.get("data"), dict):
                found.update(record["data"])
        mine = {str(process.pid)}
        for name in ("@p", "@c", "@t", "@r"):
            assert set(found[name]) == mine, (name, found, err)
        assert found["@p"][str(process.pid)] >= 3       # of at most 39; the machine may be busy
        assert found["@ticks"] >= 3
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_sleeping_process_has_none(rawbpf):
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        done = rawbpf("trace", "-q", "-p", sleeper.pid, "-e", "profile:hz:99, tracepoint:sched:sched_switch, "
                      "rawtracepoint:sched_switch { @ = count(); } interval:ms:200 { exit(); }")
        assert done.returncode == 0 and done.stdout.strip() == "", done
    finally:
        sleeper.kill()
        sleeper.wait()


def test_command(rawbpf):
    done = rawbpf("trace", "-q", "-c", "/bin/true", "-e", "tracepoint:raw_syscalls:sys_enter { @[pid == cpid] = count(); }")
    assert done.returncode == 0 and done.stdout.strip().startswith("@[true]: ") and "false" not in done.stdout, done


LEAVES = r"""
#include <pthread.h>
#include <unistd.h>
__attribute__((noinline)) int work(int x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
static void *go_on(void *n) { for (int i = 0; i < 3000; i++) { work(i); usleep(5000); } return n; }
int main(void) { pthread_t t; pthread_create(&t, 0, go_on, 0); pthread_exit(0); }
"""


def test_the_first_thread_has_ended(rawbpf, compile_c):
    program = compile_c(LEAVES, "-pthread", "-O1", name="leaves")
    process = subprocess.Popen([program])
    try:
        deadline = time.monotonic() + 10
        while open("/proc/%d/stat" % process.pid).read().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
            time.sleep(0.01)
        done = rawbpf("trace", "-q", "-f", "json", "-p", process.pid, "-e", "uprobe:%s:work, uprobe:work { @[ustack(1)] = count(); } "
                      "tracepoint:syscalls:sys_enter_clock_nanosleep { @t = count(); } interval:ms:400 { exit(); }" % program)
        assert done.returncode == 0, done.stderr
        assert "work+0" in done.stdout and '"@t"' in done.stdout, done
    finally:
        process.kill()
        process.wait()
