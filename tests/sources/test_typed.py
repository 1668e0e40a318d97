"""Events whose arguments BTF describes, and counting events: rawtracepoint, fentry, fexit, iter,
software, hardware, cache, watchpoint."""

import ctypes
import os
import re
import subprocess
import threading

import pytest

from rawbpf import sources
from rawbpf.elf.types import find_field
from rawbpf.loader import kernel
from rawbpf.sources import SourceError, Target, fentry
from tests.cc import compile_c
from tests.sources.harness import Seen, argument, field, program_for, tracing


def with_pid(values=lambda f, c, p: []):
    return lambda f, ctx, point: [f.alu(">>", f.call("bpf_get_current_pid_tgid"), 32)] + values(f, ctx, point)


def mine(seen):
    return [row[1:] for row in seen.rows if row[0] == os.getpid()]


def read_some():
    with open("/proc/self/maps", "rb", buffering=0) as file:
        return len(file.read(777))


@pytest.mark.kernel
def test_raw_tracepoint_arguments():
    """sys_enter(regs, id): the number of the system call, by position and by name."""
    number = {"x86_64": 39, "aarch64": 172}[os.uname().machine]  # getpid
    libc = ctypes.CDLL(None)
    with tracing("rawtracepoint:sys_enter", with_pid(argument(1)), 2) as seen:
        libc.syscall(ctypes.c_long(number))
    assert (number,) in mine(seen)
    with tracing("rawtracepoint:sys_enter", with_pid(field("id")), 2) as seen:
        libc.syscall(ctypes.c_long(number))
    assert (number,) in mine(seen)
    assert seen.points[0].name == "rawtracepoint:vmlinux:sys_enter"


@pytest.mark.kernel
def test_raw_tracepoint_wildcard():
    program = compile_c("int main(void) { return 0; }", name="plain")
    with tracing("rawtracepoint:sched_process_e*", args=False) as seen:
        subprocess.run([program], check=True)
    assert [point.event for point in seen.points][:2] == ["sched_process_exec", "sched_process_exit"]
    assert seen.hits >= 2


@pytest.mark.kernel
def test_raw_tracepoint_listing():
    (listed,) = sources.list_events("rawtracepoint:vmlinux:sched_switch")
    assert listed.text == "rawtracepoint:vmlinux:sched_switch"
    assert listed.arguments[0] == "bool preempt"
    assert listed.arguments[1] == "struct task_struct * prev"
    with pytest.raises(SourceError, match="No matches"):
        sources.expand("rawtracepoint:sched_swich")


@pytest.mark.kernel
def test_software_event():
    """Every page of 4 MiB of fresh memory is one fault."""
    pages = 1024
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    size = pages * 4096
    with tracing("software:page-faults:1", with_pid(), 1) as seen:
        where = libc.mmap(None, ctypes.c_size_t(size), 3, 0x22, -1, ctypes.c_long(0))
        libc.madvise(ctypes.c_void_p(where), ctypes.c_size_t(size), 15)  # no huge pages
        ctypes.memset(where, 1, size)
    libc.munmap(ctypes.c_void_p(where), ctypes.c_size_t(size))
    assert pages <= seen.hits


@pytest.mark.kernel
def test_counting_events_are_listed_and_judged():
    assert [e.text for e in sources.list_events("software:cpu*")] == [
        "software:cpu-clock:", "software:cpu-migrations:", "software:cpu:"]
    assert len(list(sources.list_events("hardware:*"))) == 12
    names = [point.name for point in sources.expand("s:faults:10") + sources.expand("software:cs")]
    assert names == ["software:faults:10", "software:cs:"]
    with pytest.raises(SourceError) as caught:
        sources.expand("software:page-fault")
    assert "software:page-faults:" in caught.value.hints
    try:
        with tracing("hardware:cycles:100000"):
            pass
    except SourceError as error:
        assert "no such hardware counter" in error.reason


def test_cache_events_have_perf_numbers():
    """perf_event_open(2): cache | operation << 8 | result << 16."""
    from rawbpf.sources.perf_event import Cache

    events = Cache().events()
    assert events["L1-dcache-loads"] == 0
    assert events["L1-dcache-load-misses"] == 0x10000
    assert events["LLC-store-misses"] == 0x10102
    assert events["branch-prefetches"] == 0x205


def test_bits_of_a_pmu_format():
    """What sysfs' "config:0-7,32-35" means for a value."""
    from rawbpf.sources.perf_event import _spread

    assert _spread(0xabc, list(range(0, 8)) + list(range(32, 36))) == 0xa000000bc


@pytest.mark.kernel
def test_watchpoint_of_a_process():
    counter = ctypes.c_uint64(0)
    address = ctypes.addressof(counter)
    try:
        with tracing("watchpoint:0x%x:8:w" % address, target=Target(pid=os.getpid())) as seen:
            for number in range(7):
                counter.value = number
    except SourceError as error:
        # a machine may have no debug registers (some emulators)
        assert "breakpoint" in error.reason
        return
    assert seen.hits == 7


WATCHED = r"""
#include <unistd.h>
volatile int counter __attribute__((aligned(8)));
int main(void) { char c; if (read(0, &c, 1) != 1) return 1; for (int i = 0; i < 5; i++) counter = i; return 0; }
"""


@pytest.mark.kernel
def test_watchpoint_on_a_symbol():
    program = compile_c(WATCHED, "-O1", "-pie", "-fPIE", name="watched")
    child = subprocess.Popen([program], stdin=subprocess.PIPE)
    try:
        from tests.sources.test_uprobe import until_it_waits

        until_it_waits(child.pid)
        with tracing("watchpoint:counter:4:w", target=Target(pid=child.pid)) as seen:
            child.communicate(b"x")
        assert seen.hits == 5
    finally:
        child.kill()
        child.wait()


@pytest.mark.kernel
def test_execution_needs_no_alignment():
    """Instructions begin anywhere: one at an address that is odd, of a program that runs from its start."""
    program = compile_c("""__attribute__((noinline, aligned(16))) void slide(void) { __asm__ volatile("nop; nop; nop"); }
                           int main(void) { for (int i = 0; i < 7; i++) slide(); return 0; }""", "-O1", "-fno-pie", "-no-pie", name="slides")
    place = sources.expand("uprobe:%s:slide" % program)[0].vaddr + (1 if os.uname().machine == "x86_64" else 4)
    child = subprocess.Popen(["sh", "-c", 'read x; exec "$0"', program], stdin=subprocess.PIPE)
    try:
        with tracing("watchpoint:0x%x:8:x" % place, target=Target(pid=child.pid)) as seen:
            child.communicate(b"x\n")
        assert seen.hits == 7
    finally:
        child.kill()
        child.wait()


@pytest.mark.kernel
@pytest.mark.slow
def test_watchpoint_of_a_command(rawbpf):
    """With -c a symbol is one of the program that will run, not of what the process is before."""
    # with a value in the file: what the kernel clears when it loads the program is written to, too
    program = compile_c(WATCHED.replace("(8)));", "(8))) = 7;"), "-O1", "-fno-pie", "-no-pie", name="watched_fixed")
    done = rawbpf("trace", "-q", "-c", program, "-e", "watchpoint:counter:4:w { @ = count(); } uprobe:main { @main = count(); }", input="x")
    assert done.returncode == 0 and sorted(done.stdout.split("\n"))[-2:] == ["@: 5", "@main: 1"], done
    program = compile_c(WATCHED, "-O1", "-pie", "-fPIE", name="watched")
    done = rawbpf("trace", "-q", "-c", program, "-e", "watchpoint:counter:4:w { @ = count(); }", input="x")
    assert done.returncode == 1 and "is not known before the command runs" in done.stderr, done


@pytest.mark.parametrize("pid", [-1, 0, 1 << 40, "x", 1.5, True])
def test_what_is_no_pid(pid):
    with pytest.raises(SourceError, match="no number of a process"):
        sources.Uprobe("/bin/sh", "main", pid=pid)


@pytest.mark.parametrize("text, says", [
    ("watchpoint:0x1000:8", "requires 3"),
    ("watchpoint:0:8:w", "non-zero address"),
    ("watchpoint:name:8:w", "non-zero address"),
    ("watchpoint:0x1000:3:w", r"one of \(1,2,4,8\)"),
    ("watchpoint:0x1000:8:q", "combination"),
    ("watchpoint:0x1000:8:ww", "duplicated"),
    ("watchpoint:0x1001:8:w", "not a multiple"),
    ("watchpoint:0x1001:2:rw", "not a multiple"),
    ("iter:t*", "wildcards"),
    ("iter", "requires 1 or 2"),
    ("fentry:bpf", "requires a bpf program name"),
    ("fentry:a:b:c", "Only the 'bpf' variant"),
    ("fentry:vfs_read+4", "not to addresses"),
    ("rawtracepoint:a:b:c", "requires 1 or 2"),
    ("software:cs:x", "positive integer"),
    ("software:*", "wildcards are not allowed"),
    ("hardware::5", "requires 1 or 2"),
])
def test_refused(text, says):
    kind, *parts = sources.split(text)
    source = sources.find(kind)
    with pytest.raises(SourceError, match=says):
        source.expand(source.parse(parts, Target()), Target())


@pytest.mark.vm
def test_fentry_and_fexit():
    with tracing("fentry:vfs_read", with_pid(field("count")), 2) as seen:
        read_some()
    assert (777,) in mine(seen)

    def both(f, ctx, point):
        return [point.retval(f, ctx)] + field("count")(f, ctx, point)

    with tracing("fexit:vfs_read", with_pid(both), 3) as seen:
        got = read_some()
    assert (got, 777) in mine(seen)
    assert seen.points[0].name == "fexit:vmlinux:vfs_read"
    assert seen.points[0].retval_type().name == "ssize_t"


@pytest.mark.slow
@pytest.mark.vm
def test_fentry_listing_and_wildcard():
    listed = {e.text: e for e in sources.list_events("fentry:vfs_rea*")}
    assert listed["fentry:vmlinux:vfs_read"].arguments == [
        "struct file * file", "char * buf", "size_t count", "loff_t * pos"]
    points = sources.expand("fentry:vfs_rea*")
    assert "fentry:vmlinux:vfs_readv" in {point.name for point in points}
    assert len({point.group_key() for point in points}) == len(points)
    with pytest.raises(SourceError) as caught:
        sources.expand("fentry:vfs_reed")
    assert "fentry:vfs_read" in caught.value.hints


@pytest.mark.vm
def test_kprobe_arguments_and_return_type_by_btf():
    with tracing("kprobe:vfs_read", with_pid(field("count")), 2) as seen:
        read_some()
    assert (777,) in mine(seen)
    (point,) = sources.expand("kretprobe:vfs_read")
    assert point.retval_type().name == "ssize_t"


@pytest.mark.kernel(since="5.8")
def test_iterator_runs_once_for_each_task():
    """Every thread of this process, seen by direct loads from the kernel's task_struct."""
    (point,) = sources.expand("iter:task")
    (task_field,) = point.arguments().fields
    assert task_field.name == "task"

    def tgid(f, ctx, point):
        value, there, end = f.variable(), f.block(), f.block()
        f.set(value, 0)
        f.branch("==", point.guard(f, ctx), 0, end, there)  # one run at the end has no task
        f.position(there)
        task = point.field(f, ctx, task_field)
        offset = find_field(task_field.type.target, "tgid").offset
        f.set(value, f.load(task, offset, 4))
        f.jump(end)
        f.position(end)
        return [value]

    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    try:
        program, counters = program_for(point, tgid, 1)
        with program, point.attach(program, [point]) as attachment:
            assert attachment.read() == b""
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    seen = Seen(counters, 1, [point], attachment)
    assert seen.rows.count((os.getpid(),)) == 6


@pytest.mark.root
def test_fentry_is_refused_with_a_reason_where_it_cannot_be(monkeypatch):
    """A kernel that takes no such program is asked once, and says so like one without kprobes."""
    monkeypatch.setattr(fentry, "refusal", lambda: "the kernel is locked down (integrity)")
    reason = "this kernel has no fentry and fexit: the kernel is locked down (integrity)"
    for use, text in ((lambda: sources.expand("fentry:vfs_read"), "Unable to attach probe: fentry:vmlinux:vfs_read: " + reason),
                      (lambda: sources.expand("fexit:vfs_rea*"), reason), (sources.find("fentry").require, reason)):
        with pytest.raises(SourceError) as caught:
            use()
        assert caught.value.reason == text
    with pytest.raises(SourceError, match="No matches for fentry no_such_function_there"):
        sources.expand("fentry:no_such_function_there")


@pytest.mark.root
def test_what_the_kernel_says_of_fentry_programs(monkeypatch):
    """What is told of all is what becomes of one."""
    fentry.refusal.cache_clear()
    told = fentry.refusal()
    monkeypatch.setattr(fentry, "refusal", lambda: "")
    (point,) = sources.expand("fentry:vfs_read")
    if not told:
        program_for(point, lambda f, c, p: [], 0)
        return
    with pytest.raises(OSError, match=re.escape(told)):
        program_for(point, lambda f, c, p: [], 0)
    assert "locked down (%s)" % kernel.lockdown() in told or "security module" in told


@pytest.mark.kernel
def test_listing_of_types():
    """struct iovec is two members in every kernel."""
    (listed,) = sources.list_events("struct iovec")
    assert listed.text == "struct iovec"
    assert listed.verbose() == ["vmlinux: struct iovec {\n\tvoid *iov_base;\n\t__kernel_size_t iov_len;\n};", ""]
    assert "struct iov_iter" in [each.text for each in sources.list_events("struct iov*")]
    (listed,) = sources.list_events("enum pid_type")
    assert "\tPIDTYPE_PID = 0,\n\tPIDTYPE_TGID = 1,\n" in listed.verbose()[0]
