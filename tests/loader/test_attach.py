"""Attaching: each way counts exactly what the target did, and no more after close()."""

import functools
import os
import re
import struct
import subprocess

import pytest

from rawbpf.loader import KernelError, LinkGroup, Map, PerfEvent, Program, features, link, perf
from tests.loader.code import (EXIT, RETURN_0, alu, atomic_add, call, insn, load, lookup, map_fd, mov,
                               mov_reg)

# Prints the file offsets of two functions and a semaphore; then for each number n that it reads calls
# work n times and other 2n times, and prints the semaphore.
TARGET = r"""
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
volatile unsigned short sem __attribute__((section(".probes"), used));
__attribute__((noinline)) int work(int x) { __asm__ volatile(""); return x * 3; }
__attribute__((noinline)) int other(int x) { __asm__ volatile(""); return x - 1; }
static int find(struct dl_phdr_info *info, size_t size, void *data)
{
    unsigned long *at = data, base = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && *at >= base + p->p_vaddr && *at < base + p->p_vaddr + p->p_filesz) {
            *at = *at - base - p->p_vaddr + p->p_offset;
            return 1;
        }
    }
    return 1;      /* the first is the program itself */
}
static unsigned long offset(volatile void *what)
{
    unsigned long at = (unsigned long)what;
    dl_iterate_phdr(find, &at);
    return at;
}
int main(void)
{
    int n;
    printf("%lu %lu %lu\n", offset(work), offset(other), offset(&sem));
    fflush(stdout);
    while (scanf("%d", &n) == 1) {
        for (int i = 0; i < n; i++) { work(i); other(i); other(i); }
        printf("%d\n", sem);
        fflush(stdout);
    }
    return 0;
}
"""


class Target:
    def __init__(self, path):
        self.path = path
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.work, self.other, self.semaphore = map(int, self.process.stdout.readline().split())

    def run(self, count):
        """Calls work `count` times and other twice as often -> the semaphore's value."""
        self.process.stdin.write("%d\n" % count)
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def target(compile_c):
    running = Target(compile_c(TARGET, "-O1", name="target"))
    yield running
    running.close()


class Counter:
    """A kprobe program that counts its runs in slot `cookie` (0 without) of an array and keeps the
    word at `word` of pt_regs in slot 15."""

    def __init__(self, type="kprobe", cookie=False, word=None, **options):
        self.map = Map.create("array", 4, 8, 16)
        get = mov_reg(9, 1) + (call(174) if cookie else mov(0, 0))
        code = get + (insn(0x63, 10, 0, -4) + map_fd(1, self.map) + mov_reg(2, 10) + alu(0, 2, -4) +
                      call(1) + insn(0x55, 0, 0, 1, 0) + EXIT + mov(1, 1) + atomic_add(0, 0, 1))
        if word is not None:
            code += load(7, 9, word) + lookup(self.map, 6, 15) + insn(0x7b, 6, 7, 0)
        self.program = Program.load(type, code + RETURN_0, name="counter", **options)

    def __getitem__(self, slot):
        return struct.unpack("=Q", self.map.lookup(struct.pack("=I", slot)))[0]


# pt_regs: the first argument and the return value (arch/*/include/uapi/asm/ptrace.h)
FIRST_ARGUMENT, RETURN_VALUE = {"x86_64": (14 * 8, 10 * 8), "aarch64": (0, 0)}[os.uname().machine]


@pytest.mark.kernel
def test_uprobe_and_uretprobe(target):
    entry, back = Counter(word=FIRST_ARGUMENT), Counter(word=RETURN_VALUE)
    with link.attach_perf_event(entry.program, PerfEvent.open(perf.uprobe(target.path, target.work))), \
            link.attach_perf_event(back.program, PerfEvent.open(
                perf.uprobe(target.path, target.work, retprobe=True))):
        target.run(100)
    assert (entry[0], entry[15]) == (100, 99)
    assert (back[0], back[15]) == (100, 99 * 3)
    target.run(100)
    assert (entry[0], back[0]) == (100, 100)


@pytest.mark.kernel
def test_uprobe_of_one_process(target):
    counter, all_of_it = Counter(), Counter()
    mine = Target(target.path)
    attr = perf.uprobe(target.path, target.work)
    with LinkGroup([link.attach_perf_event(counter.program, PerfEvent.open(
                        attr, pid=mine.process.pid)),
                    link.attach_perf_event(all_of_it.program, PerfEvent.open(attr))]):
        mine.run(30)
        target.run(1000)
    mine.close()
    assert (counter[0], all_of_it[0]) == (30, 1030)


@pytest.mark.kernel
def test_semaphore_is_counted_while_attached(target):
    counter = Counter()
    assert target.run(1) == 0
    with link.attach_perf_event(counter.program, PerfEvent.open(
            perf.uprobe(target.path, target.work, ref_ctr_offset=target.semaphore))):
        assert target.run(1) == 1
    assert target.run(1) == 0
    assert counter[0] == 1


@pytest.mark.kernel(since="5.15")
def test_cookies_of_perf_links(target):
    counter = Counter(cookie=True)
    with LinkGroup([link.attach_perf_event(counter.program, PerfEvent.open(
            perf.uprobe(target.path, offset)), cookie=cookie)
            for cookie, offset in ((3, target.work), (7, target.other))]):
        target.run(50)
    assert (counter[3], counter[7], counter[0]) == (50, 100, 0)


@pytest.mark.kernel
def test_cookie_without_links_names_the_version(target):
    if features.has_link("perf_event"):
        return
    counter = Counter()
    with pytest.raises(KernelError, match="needs Linux 5.15"):
        link.attach_perf_event(counter.program, PerfEvent.open(perf.uprobe(target.path, target.work)),
                               cookie=1)


@pytest.mark.kernel(since="6.6")
def test_uprobe_multi(target):
    counter = Counter(cookie=True, expected_attach_type="trace_uprobe_multi")
    with link.attach_uprobe_multi(counter.program, target.path, [target.work, target.other],
                                  cookies=[4, 5], ref_ctr_offsets=[target.semaphore, 0]):
        assert target.run(200) == 1
    assert target.run(10) == 0
    assert (counter[4], counter[5]) == (200, 400)


@pytest.mark.kernel(since="6.6")
def test_uretprobe_multi_of_one_process(target):
    counter = Counter(expected_attach_type="trace_uprobe_multi", word=RETURN_VALUE)
    mine = Target(target.path)
    with link.attach_uprobe_multi(counter.program, target.path, [target.work], retprobe=True,
                                  pid=mine.process.pid):
        target.run(500)
        mine.run(40)
    mine.close()
    assert (counter[0], counter[15]) == (40, 39 * 3)


@pytest.mark.kernel(since="6.13")
def test_uprobe_session_runs_at_both_ends(target):
    counter = Counter(expected_attach_type="trace_uprobe_session")
    with link.attach_uprobe_multi(counter.program, target.path, [target.work], session=True):
        target.run(20)
    assert counter[0] == 40


@pytest.mark.kernel(since="6.6")
def test_many_uprobes_of_one_link(compile_c):
    """One link of 100 places; separate events cost the kernel a grace period each."""
    count = 100
    path = compile_c("".join(
        "__attribute__((noinline)) void f%d(void) { __asm__ volatile(\"nop\"); }\n" % i for i in range(count)) +
        "#include <stdio.h>\nextern char __executable_start;\nint main(void) {"
        "void (*all[])(void) = {" + ",".join("f%d" % i for i in range(count)) + "};"
        "for (int i = 0; i < %d; i++) { printf(\"%%ld \", (long)all[i] - (long)&__executable_start);"
        " all[i](); } return 0; }" % count, name="many")
    offsets = [int(word) for word in subprocess.check_output([path]).split()]
    counter = Counter(expected_attach_type="trace_uprobe_multi")
    with link.attach_uprobe_multi(counter.program, path, offsets):
        subprocess.check_output([path])
    assert counter[0] == count
    subprocess.check_output([path])
    assert counter[0] == count


@pytest.mark.kernel
def test_links_of_a_group_all_close(target):
    counter = Counter()
    group = LinkGroup()
    for offset in (target.work, target.other) * 4:
        group.add(link.attach_perf_event(counter.program,
                                         PerfEvent.open(perf.uprobe(target.path, offset))))
    target.run(10)
    group.close()
    target.run(10)
    assert counter[0] == 10 * 4 + 20 * 4
    assert len(group) == 0


@pytest.mark.kernel
def test_sampling():
    """A process that computes for a while is sampled about `freq` times a second of its time."""
    counter = Counter("perf_event")
    with PerfEvent.open(perf.software("cpu_clock", freq=1000), pid=os.getpid()) as event:
        with link.attach_perf_event(counter.program, event):
            start = os.times()
            while sum(os.times()[:2]) - sum(start[:2]) < 0.5:
                sum(range(1000))
    assert 10 < counter[0] < 1000      # virtual machines sample less often


@pytest.mark.kernel
def test_refusals_say_why(target):
    with pytest.raises(KernelError, match="there is no such file"):
        PerfEvent.open(perf.uprobe("/no/such/file", 0x1000))
    with pytest.raises(KernelError, match="there is no process 4194304"):
        PerfEvent.open(perf.software("cpu_clock", freq=10), pid=4194304)
    with pytest.raises(KernelError, match="no such event"):
        PerfEvent.open(perf.tracepoint(999999))
    with pytest.raises(ValueError, match="one of period and freq"):
        perf.software("cpu_clock")
    counter = Counter("perf_event")
    with PerfEvent.open(perf.uprobe(target.path, target.work)) as event:
        with pytest.raises(KernelError, match="program's type does not fit"):
            link.attach_perf_event(counter.program, event)


@pytest.mark.kernel(since="6.6")
def test_uprobe_multi_refusals(target):
    counter = Counter(expected_attach_type="trace_uprobe_multi")
    with pytest.raises(KernelError, match="no such file"):
        link.attach_uprobe_multi(counter.program, "/no/such/file", [1])
    with pytest.raises(KernelError, match="no process 4194304"):
        link.attach_uprobe_multi(counter.program, target.path, [target.work], pid=4194304)


# -- what only the virtual machines have --

@functools.lru_cache(maxsize=None)
def addresses(*names):
    with open("/proc/kallsyms", "rb") as file:
        text = file.read()
    found = [re.search(rb"^([0-9a-f]+) \w %s$" % name.encode(), text, re.M) for name in names]
    return [int(match[1], 16) for match in found if match]


def fprobe():
    """Has the kernel what kprobe_multi stands on?"""
    return bool(addresses("register_fprobe"))


def call_getpgid(times):
    """`times` calls of getpgid(2), which no library caches."""
    for _ in range(times):
        os.getpgid(0)


GETPGID = {"x86_64": "__x64_sys_getpgid", "aarch64": "__arm64_sys_getpgid"}[os.uname().machine]


@pytest.mark.vm
def test_kprobes_by_name_and_address():
    for options in ({"function": GETPGID}, {"address": addresses(GETPGID)[0]}):
        entry, back = Counter(), Counter()
        with link.attach_perf_event(entry.program, PerfEvent.open(perf.kprobe(**options))), \
                link.attach_perf_event(back.program, PerfEvent.open(perf.kprobe(**options,
                                                                                retprobe=True))):
            call_getpgid(300)
        assert (entry[0], back[0]) == (300, 300)
        call_getpgid(10)
        assert entry[0] == 300


@pytest.mark.vm
def test_kprobe_refusals():
    with pytest.raises(KernelError, match="no such function"):
        PerfEvent.open(perf.kprobe("no_such_function_here"))


@pytest.mark.vm(since="6.2")         # Debian's 6.1 is built without CONFIG_FPROBE
def test_kprobe_multi():
    names = [GETPGID, GETPGID.replace("getpgid", "getsid")]
    for how in ({"symbols": names}, {"addresses": addresses(*names)}):
        for retprobe in (False, True):
            counter = Counter(cookie=True, expected_attach_type="trace_kprobe_multi")
            # The kernel wants no order; cookies follow their function.
            with link.attach_kprobe_multi(counter.program, cookies=[6, 9], retprobe=retprobe, **how):
                call_getpgid(120)
                for _ in range(30):
                    os.getsid(0)
            assert (counter[6], counter[9], counter[0]) == (120, 30, 0)


@pytest.mark.vm(since="6.10")
def test_kprobe_session():
    counter = Counter(expected_attach_type="trace_kprobe_session")
    with link.attach_kprobe_multi(counter.program, [GETPGID], session=True):
        call_getpgid(50)
    assert counter[0] == 100


@pytest.mark.vm(since="5.18")
def test_kprobe_multi_refusals():
    counter = Counter(expected_attach_type="trace_kprobe_multi")
    with pytest.raises(KernelError, match="not a function that can be traced" if fprobe() else "CONFIG_FPROBE"):
        link.attach_kprobe_multi(counter.program, ["no_such_function_here"])


@pytest.mark.kernel
def test_links_the_kernel_says_it_has():
    """By the versions that introduced them."""
    from rawbpf.loader import kernel
    release = kernel.release()[:2]
    assert features.has_link("perf_event") == (release >= (5, 15))
    assert features.has_link("uprobe_multi") == (release >= (6, 6))
    assert features.has_link("uprobe_session") == (release >= (6, 13))
    assert features.has_link("kprobe_multi") == (release >= (5, 18) and fprobe())
    assert features.has_link("kprobe_session") == (release >= (6, 10) and fprobe())
