"""Every class for Python programs: `with X(...).attach(program) as link`, what it counts, and that it is gone after it."""

import ctypes
import mmap
import os
import subprocess
import time

import pytest

from rawbpf import sources
from rawbpf.asm import compile_function, ir
from rawbpf.loader.maps import Map
from rawbpf.sources import SourceError
from tests.cc import compile_c

pytestmark = pytest.mark.kernel


def count(probe, work):
    """How often the events of `probe` that concern this process (or its child) happen during `work()`, and after."""
    f = ir.Function("count")
    f.atomic("+", f.map_value("hits"), 0, 1)
    f.ret(0)
    with Map.create("array", 4, 8, 1) as hits:
        with probe.load(compile_function(f).instructions, maps={"hits": hits}) as program:
            with probe.attach(program) as link:
                assert link.links and link.refused == []
                work()
            during = int.from_bytes(hits.lookup(bytes(4)), "little")
            work()
        assert int.from_bytes(hits.lookup(bytes(4)), "little") == during
    return during


def getppid():
    for _ in range(3):
        ctypes.CDLL(None).getppid()


PROGRAM = """
#include <unistd.h>
volatile long counter;
__attribute__((noinline)) int work(int n) { counter += n; return n; }
int main(void) { char c; while (read(0, &c, 1) == 1) { work(1); work(2); if (write(1, &c, 1) != 1) return 1; } return 0; }
"""


@pytest.fixture
def child():
    """A process that calls work() twice for each `step()`, and writes `counter` as often."""
    path = compile_c(PROGRAM, "-O1", name="child")
    process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def step():
        process.stdin.write(b"x")
        assert process.stdout.read(1) == b"x"

    process.step, process.path = step, path
    process.step()
    yield process
    process.stdin.close()
    process.stdout.close()
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Uprobe", "Uretprobe"])
def test_functions_of_a_program(child, kind):
    assert count(getattr(sources, kind)(child.path, "work"), child.step) == 2
    assert count(getattr(sources, kind)(child.path, "wor*", pid=child.pid), child.step) == 2


def test_a_variable_of_a_process(child):
    try:
        assert count(sources.Watchpoint("counter", 8, "w", pid=child.pid), child.step) == 2
    except SourceError as error:        # an emulated processor may have no debug registers
        assert "debug registers" in error.reason


@pytest.mark.slow
def test_usdt():
    from tests.sources.test_usdt import SDT, portable
    path = compile_c(portable(SDT + 'int main(void) { for (int n = 0; n < 3; n++) { SDT("demo", "one", "0", "4@%%edi", "D"(n));'
                     ' SDT("demo", "one", "0", "4@%%esi", "S"(n)); } return 0; }'), "-O1", name="dp")
    assert count(sources.Usdt(path, "demo", "one"), lambda: subprocess.run([path], check=True)) == 6


def test_system_calls():
    assert count(sources.Tracepoint("syscalls", "sys_enter_getppid"), getppid) >= 3
    assert count(sources.RawTracepoint("sys_enter"), getppid) >= 3


def test_clocks_and_counters():
    assert count(sources.Profile("hz", 999), lambda: time.sleep(0.03)) >= 5
    assert count(sources.Interval("ms", 5), lambda: time.sleep(0.03)) >= 1
    assert count(sources.Software("page-faults", 1), lambda: mmap.mmap(-1, 1 << 22).write(bytes(1 << 22))) > 0


def test_iterator():
    f = ir.Function("pids")
    probe = sources.Iter("task")
    f.atomic("+", f.map_value("hits"), 0, 1)
    f.ret(0)
    with Map.create("array", 4, 8, 1) as hits:
        with probe.load(compile_function(f).instructions, maps={"hits": hits}) as program, probe.attach(program) as link:
            assert link.read() == b""
        assert int.from_bytes(hits.lookup(bytes(4)), "little") >= 1


def read():
    with open("/dev/zero", "rb", buffering=0) as file:
        for _ in range(3):
            file.read(16)


@pytest.mark.vm
@pytest.mark.parametrize("kind", ["Kprobe", "Kretprobe", "Fentry", "Fexit"])
def test_functions_of_the_kernel(kind):
    assert count(getattr(sources, kind)("vfs_read"), read) >= 3


@pytest.mark.vm
def test_a_program_for_each_function():
    """What one program cannot be attached to is said when it is loaded."""
    with pytest.raises(SourceError, match=r"events, and each needs a program of its own"):
        sources.Fentry("vfs_rea*").load(())
    several = sources.Kprobe("vfs_rea*")
    assert len(several.points) > 1 and count(several, read) >= 3
