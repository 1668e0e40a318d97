"""Scripts on every kernel of the matrix: kprobes, raw_syscalls, profiles, the tutorial, an exact histogram."""

import re
import subprocess
import time
from pathlib import Path

import pytest

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"

SLEEPER = r"""
#include <time.h>
int main(void)
{
	struct timespec t = {0, 1000000};
	for (int i = 0; i < 20; i++)
		nanosleep(&t, 0);
	return 0;
}
"""

READER = r"""
#include <fcntl.h>
#include <unistd.h>
int main(void)
{
	static char bytes[4096];
	int fd = open("/dev/zero", O_RDONLY);
	for (int i = 0; i < 5; i++)
		if (read(fd, bytes, 3) != 3) return 1;
	for (int i = 0; i < 7; i++)
		if (read(fd, bytes, 100) != 100) return 1;
	for (int i = 0; i < 2; i++)
		if (read(fd, bytes, 4096) != 4096) return 1;
	for (int i = 0; i < 3; i++)
		if (read(fd, bytes, 0) != 0) return 1;
	close(fd);
	for (int i = 0; i < 4; i++)
		if (read(fd, bytes, 1) != -1) return 1;
	return 0;
}
"""

SPINNER = r"""
#include <time.h>
volatile unsigned long n;
__attribute__((noinline)) void step(void) { n++; }       /* a leaf has no frame: spin has one */
__attribute__((noinline)) void spin(void) { for (int i = 0; i < 1000; i++) step(); n--; }
int main(void)
{
	while (clock() < 1.5 * CLOCKS_PER_SEC)             /* of its own time, however busy the machine */
		spin();
	return 0;
}
"""


@pytest.fixture
def here(tmp_path, compile_c):
    for name, source in (("sleeper", SLEEPER), ("reader", READER), ("spinner", SPINNER),
                         ("read_rand", (FIXTURES / "read_rand.c").read_text())):
        (tmp_path / name).symlink_to(compile_c(source, "-O1", "-lpthread", "-fno-omit-frame-pointer", name=name))
    return tmp_path


NOT_HANDLED = r"WARNING: \d+ events? (was|were) not handled: the kernel was in another BPF program or in a map operation on the CPU\n"


def run(rawbpf, here, script, command, said=""):
    """Output of a script without errors; `said` is a pattern for what may be on the error stream.

    A kernel that may be preempted in a BPF program (7.2) passes over the tracepoints that the CPU meets
    meanwhile, and counts them; such a run is told of and does not count here.
    """
    for _ in range(5):
        done = rawbpf("trace", "-q", "--no-warnings", "-c", command, "-e", script, cwd=here)
        if not re.fullmatch(NOT_HANDLED, done.stderr):
            break
    assert done.returncode == 0 and re.fullmatch(said, done.stderr), done.stderr
    return done.stdout


# -- what the host may lack: kprobes

@pytest.mark.vm
def test_kprobe(rawbpf, here):
    assert run(rawbpf, here, 'kprobe:do_nanosleep /comm == "sleeper"/ { @ = count(); }', "./sleeper") == "\n\n@: 20\n"


@pytest.mark.vm
def test_kprobe_with_an_argument_and_a_stack(rawbpf, here):
    out = run(rawbpf, here, 'kprobe:vfs_read /comm == "reader"/ { @n[arg2] = count(); @s[kstack(1)] = count(); }', "./reader")
    assert "@n[100]: 7\n" in out and "@n[4096]: 2\n" in out
    assert re.search(r"@s\[\n        vfs_read\+\d+\n\]: \d+\n", out)


@pytest.mark.vm
def test_kretprobe(rawbpf, here):
    out = run(rawbpf, here, 'kretprobe:vfs_read /comm == "reader"/ { @[retval] = count(); }', "./reader")
    assert "@[100]: 7\n" in out and "@[4096]: 2\n" in out and "@[3]: 5\n" in out


@pytest.mark.vm
def test_kprobe_on_a_wildcard(rawbpf, here):
    out = run(rawbpf, here, 'kprobe:*nanosleep* /comm == "sleeper"/ { @[func] = count(); @p[probe] = count(); }', "./sleeper")
    assert "@[do_nanosleep]: 20\n" in out and "@p[kprobe:do_nanosleep]: 20\n" in out


# -- what every kernel has

@pytest.mark.kernel
def test_raw_syscalls(rawbpf, here):
    out = run(rawbpf, here, 'tracepoint:raw_syscalls:sys_enter { @[comm] = count(); }', "./sleeper")
    assert int(re.search(r"^@\[sleeper\]: (\d+)$", out, re.M)[1]) >= 20


@pytest.mark.kernel
def test_profile(rawbpf, here):
    out = run(rawbpf, here, 'profile:hz:99 { @[kstack, ustack, comm] = count(); } '
              'profile:hz:99 /comm == "spinner"/ { @n = count(); }', "./spinner",
              # an interrupt may find no memory for a new stack; it is counted
              r"(WARNING: \d stacks? could not be stored\n)*")
    assert re.search(r"^        (spin|step)\+\d+(@\S+)?\n        main\+\d+(@\S+)?\n", out, re.M)
    assert 100 < int(re.search(r"^@n: (\d+)$", out, re.M)[1]) < 200   # 1.5 s of processor time at 99 Hz


@pytest.mark.kernel
def test_tutorial(rawbpf, here):
    out = run(rawbpf, here, """
uprobe:./read_rand:thread_fun { @start[tid] = nsecs; }
uretprobe:./read_rand:thread_fun { @ns[pid, tid, @start[tid]] = (nsecs - @start[tid]); delete(@start[tid]); }
tracepoint:syscalls:sys_enter_read /comm=="read_rand"/ { @start_read[tid] = nsecs; }
tracepoint:syscalls:sys_exit_read /comm=="read_rand"/ {
  @ns_read[pid, tid, @start[tid]] = (nsecs - @start_read[tid]);
  @ret[pid, tid, @start[tid]] = args->ret;
  delete(@start_read[tid]);
}
""", "./read_rand")
    rows = [tuple(map(int, row)) for row in re.findall(r"^@ns\[(\d+), (\d+), (\d+)\]: (\d+)$", out, re.M)]
    assert len({row[1] for row in rows}) == len(rows) == 4
    assert [row[3] for row in rows] == sorted(row[3] for row in rows)
    read = {tuple(map(int, row[:3])): int(row[3])
            for row in re.findall(r"^@ret\[(\d+), (\d+), (\d+)\]: (\d+)$", out, re.M)}
    assert [read[row[:3]] for row in rows] == [16] * 4


@pytest.mark.kernel
def test_histogram_of_the_sizes_of_reads(rawbpf, here):
    out = run(rawbpf, here, 'tracepoint:syscalls:sys_enter_read /comm == "reader"/ { @fd[tid] = args.fd; } '
              'tracepoint:syscalls:sys_exit_read /comm == "reader" && (args.ret < 300 || args.ret == 4096)/ { @ = hist(args.ret); }',
              "./reader")
    lines = re.findall(r"^(.{16}) *(\d+) \|(@*) *\|$", out, re.M)
    assert [(head.strip(), int(count)) for head, count, _ in lines] == [
        ("(..., 0)", 4), ("[0]", 3), ("[1]", 0), ("[2, 4)", 5), ("[4, 8)", 0), ("[8, 16)", 0), ("[16, 32)", 0),
        ("[32, 64)", 0), ("[64, 128)", 7), ("[128, 256)", 0), ("[256, 512)", 0), ("[512, 1K)", 0), ("[1K, 2K)", 0),
        ("[2K, 4K)", 0), ("[4K, 8K)", 2)]
    assert [len(bar) for _, _, bar in lines] == [29, 22, 0, 37, 0, 0, 0, 0, 52, 0, 0, 0, 0, 0, 14]


@pytest.mark.kernel
def test_printf_and_losses_on_every_kind_of_buffer(rawbpf, here):
    script = r'tracepoint:syscalls:sys_exit_read /comm == "reader"/ { @c = count(); printf("%d %s\n", args.ret, comm); }'
    out = run(rawbpf, here, script, "./reader")
    assert out.count("100 reader\n") == 7 and out.count("-9 reader\n") == 4
    count = int(re.search(r"^@c: (\d+)$", out, re.M)[1])
    assert len(re.findall(r"^-?\d+ reader$", out, re.M)) == count


@pytest.mark.kernel
def test_an_interval_ends_a_trace(rawbpf):
    begin = time.monotonic()
    done = rawbpf("trace", "-q", "-e", r'interval:ms:200 { printf("%d\n", cpu >= 0); exit(); }')
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n\n\n", "")
    assert time.monotonic() - begin > 0.2


@pytest.mark.kernel
def test_uprobes_count_exactly(rawbpf, here):
    trace = rawbpf.start("trace", "-e", "uprobe:./spinner:spin { @ = count(); @x++; @k[comm] = count(); @s[pid] = sum(1); }", cwd=here)
    for line in trace.stderr:
        if line.startswith("Attached"):
            break
    workers = [subprocess.Popen(["./spinner"], cwd=here) for _ in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0]
    trace.terminate()
    out, _ = trace.communicate(timeout=60)
    total = int(re.search(r"^@: (\d+)$", out, re.M)[1])
    assert total > 0
    assert "@x: %d\n" % total in out and "@k[spinner]: %d\n" % total in out
    assert sum(map(int, re.findall(r"^@s\[\d+\]: (\d+)$", out, re.M))) == total


@pytest.mark.vm
@pytest.mark.parametrize("event", ("kprobe:hrtimer_nanosleep", "kretprobe:hrtimer_nanosleep", "fentry:hrtimer_nanosleep", "fexit:hrtimer_nanosleep",
                                   "tracepoint:syscalls:sys_enter_clock_nanosleep", "rawtracepoint:signal_generate"))
def test_probes_of_one_event_run_as_written(event):
    """The kernel runs those of some kinds in the order of attaching, and of some the last one first."""
    import os
    import signal
    from rawbpf.tools.trace import Script
    with Script("".join("%s /pid == %d/ { print(%d); } " % (event, os.getpid(), number) for number in (1, 2, 3))) as script:
        script.attach()
        for _ in range(3):
            time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGURG)     # is ignored
        script.stop()
        seen = [each.value for each in script]
    assert len(seen) >= 9 and seen == [1, 2, 3] * (len(seen) // 3)


@pytest.mark.vm
@pytest.mark.parametrize("function", ("hrtimer_nanosleep", "hrtimer_nanos*"))
def test_kprobe_and_kretprobe_of_one_function(function):
    """One program and one link where the kernel has sessions (6.10); what they do is the same."""
    import os
    from rawbpf.loader import features
    from rawbpf.tools.trace import Script
    with Script("kprobe:%s /pid == %d/ { @s[tid] = nsecs; @n += arg1 == arg1; } kretprobe:%s /@s[tid]/ { if (retval == 0) { print(nsecs - @s[tid]); } "
                "delete(@s, tid); }" % (function, os.getpid(), function)) as script:
        script.attach()
        assert len(script.compiled.programs) == (1 if features.has_link("kprobe_session") else 2)
        for _ in range(3):
            time.sleep(0.002)
        script.stop()
        seen = [each.value for each in script]
    assert len(seen) == 3 and min(seen) >= 1000000      # the clocks of emulated machines are not exact
    assert script.maps["@n"] == 3 and script.maps["@s"] == {}
