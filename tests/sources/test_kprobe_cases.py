"""kprobes where it is not simple: several functions of one name, functions that cannot be probed, wildcards
with such among them, suffixes of the compiler, arguments on the stack, sessions, a killed tracer."""

import collections
import mmap
import os
import re
import signal
import tempfile
import time

import pytest

from rawbpf import sources
from rawbpf.asm import compile_function, ir
from rawbpf.loader import features, kernel
from rawbpf.loader.maps import Map
from rawbpf.sources import KprobeSession, SourceError, abi, kallsyms, kprobe
from tests.sources.harness import tracing
from tests.sources.test_kprobe import mine, own, sleep

pytestmark = pytest.mark.vm


def attached_places():
    """{address: flags} of the kernel's kprobes, and the functions that ftrace has hooked for others."""
    with open("/sys/kernel/debug/kprobes/list") as file:
        return {int(line.split()[0], 16) for line in file}


def hooked():
    with open("/sys/kernel/tracing/enabled_functions") as file:
        return {line.split()[0] for line in file}


def twice():
    """A name that two functions of vmlinux have, both traceable."""
    counts = kallsyms.traceable_counts()
    by_name = {}
    for (name, module), found in kallsyms.addresses(set(n for n, c in counts.items() if c == 2)).items():
        if not module and "." not in name and name not in kallsyms.blacklist():
            by_name[name] = sorted(found)
    return next((name, found) for name, found in sorted(by_name.items()) if len(found) == 2)


def untraceable():
    """Text symbols within the kernel's own code that ftrace knows nothing of and no blacklist names."""
    with open("/proc/kallsyms") as file:
        lines = (line.split() for line in file)
        first, last = sorted(int(words[0], 16) for words in lines if words[2] in ("_stext", "_etext"))
    bad = kallsyms.blacklist()
    for (name, module), found in sorted(kallsyms.addresses().items()):
        if (not module and len(found) == 1 and first < found[0] < last and kallsyms.untraceable(name)
                and re.match(r"[a-z_]\w+\Z", name) and name not in bad):
            yield name, found[0]


@pytest.mark.slow
def test_both_of_one_name(rawbpf):
    """Report 27: all of them by address, in a script too."""
    name, places = twice()
    before = attached_places()
    with tracing("kprobe:%s" % name) as seen:
        assert not seen.refused and len(seen.points) == 2
        new = attached_places() - before
    assert all(any(0 <= at - place <= 8 for at in new) for place in places), (new, places)
    listed = rawbpf("trace", "-l", "kprobe:" + name)
    assert listed.stdout == "kprobe:%s\n" % name
    done = rawbpf("trace", "-e", "kprobe:%s { @[reg(\"%s\")] = count(); } interval:ms:100 { exit(); }"
                  % (name, abi.host().pc))
    assert done.returncode == 0 and "could not be attached" not in done.stderr, done.stderr


@pytest.mark.slow
def test_wildcard_has_both_of_one_name():
    name, places = twice()
    points = sources.expand("kprobe:%s*" % name)
    assert sorted(point.address for point in points if point.function == name) == places
    with tracing("kprobe:%s*" % name, args=False) as seen:
        assert not seen.refused


@pytest.mark.slow
def test_hidden_addresses_are_said(rawbpf):
    """With addresses hidden nothing is chosen: the name alone is refused, in a wildcard the rest is attached."""
    name, _ = twice()
    path = "/proc/sys/kernel/kptr_restrict"
    with open(path) as file:
        before = file.read()
    try:
        with open(path, "w") as file:
            file.write("2")
        done = rawbpf("trace", "-e", "kprobe:%s { exit(); }" % name)
        assert done.returncode == 1
        assert "2 kernel functions are called %s (in vmlinux)" % name in done.stderr
        assert "kptr_restrict" in done.stderr and "Traceback" not in done.stderr
        wild = name[:3] + "*"
        done = rawbpf("trace", "-e", "kprobe:%s { @ = count(); } interval:ms:50 { exit(); }" % wild,
                      env={**os.environ, "BPFTRACE_MAX_PROBES": "5000"})
        assert done.returncode == 0, done.stderr
        assert "are called %s" % name in done.stderr
    finally:
        with open(path, "w") as file:
            file.write(before)


@pytest.mark.slow
def test_what_cannot_be_traced_is_explained():
    """Not EINVAL but why: of a few functions without a tracer's place, every refusal says so."""
    refused = 0
    for number, (name, _) in enumerate(untraceable()):
        if number == 12:
            break
        try:
            with tracing("kprobe:" + name):
                continue  # some kernels allow it
        except SourceError as error:
            assert "%s cannot be traced: it is marked notrace" % name in error.reason
            refused += 1
    assert refused >= 3


def test_blacklisted_offset_is_explained():
    name = next(name for name in sorted(kallsyms.blacklist()) if kallsyms.find(name) and "." not in name)
    for text in ("kprobe:%s+4", "kretprobe:%s"):
        with pytest.raises(SourceError, match="blacklist"):
            sources.expand(text % name)


@pytest.mark.slow
@pytest.mark.parametrize("multi", [True, False])
def test_one_refused_of_a_wildcard(monkeypatch, multi):
    """Report 29: the rest is attached, and what was refused is known with its reason."""
    if multi and not features.has_link("kprobe_multi"):
        multi = False
    name = None
    for name, _ in untraceable():
        try:
            with tracing("kprobe:" + name):
                continue
        except SourceError:
            break
    real = kprobe.candidates
    monkeypatch.setattr(kprobe, "candidates", lambda module, function: sorted(real(module, function) + [(name, "")]))
    if not multi:
        monkeypatch.setattr(kprobe, "has_multi", lambda: False)
    with tracing("kprobe:vfs_read*", mine(), 1, args=False) as seen:
        with open("/proc/self/maps", "rb", buffering=0) as file:
            file.read(10)
    assert [point.function for point, _ in seen.refused] == [name]
    assert "cannot be traced" in seen.refused[0][1]
    assert len(seen.points) > 1 and own(seen)


@pytest.mark.slow
def test_suffixes_of_the_compiler(rawbpf):
    """.isra.0, .constprop.0, .cold: by their whole names, as kallsyms has them."""
    names = [name for name, module in kallsyms.names() if not module]
    traceable = kallsyms.traceable_counts()
    tried = {}
    for suffix in (".isra.0", ".constprop.0", ".cold"):
        for name in names:
            if (name.endswith(suffix) and names.count(name) == 1 and name.count(".") == suffix.count(".")
                    and (suffix == ".cold" or traceable.get(name) == 1) and name not in kallsyms.blacklist()):
                try:
                    with tracing("kprobe:" + name) as seen:
                        assert seen.points[0].func == name
                    tried[suffix] = name
                    break
                except SourceError as error:
                    assert suffix == ".cold" and "cannot" in error.reason or "blacklist" in error.reason, error.reason
    assert set(tried) >= {".isra.0", ".constprop.0"}, tried
    done = rawbpf("trace", "-e", "kprobe:%s { @ = count(); } interval:ms:50 { exit(); }" % tried[".isra.0"])
    assert done.returncode == 0, done.stderr
    base = tried[".isra.0"][:-len(".isra.0")]
    if base not in names:
        with pytest.raises(SourceError, match="only variants") as caught:
            sources.expand("kprobe:" + base)
        assert "kprobe:" + tried[".isra.0"] in caught.value.hints


def test_arguments_behind_the_registers():
    """do_mmap(file, addr, len, prot, flags, [vm_flags,] pgoff, populate, uf): uf is a pointer into the caller's
    stack and always behind the registers; pgoff is what mmap(2) was given, wherever it is."""
    (point,) = sources.expand("kprobe:do_mmap")
    names = [field.name for field in point.arguments().fields]
    pgoff, uf = map(names.index, ("pgoff", "uf"))
    assert uf >= len(registers())

    def values(f, ctx, point):
        fields = point.arguments().fields
        return [point.argument(f, ctx, pgoff), point.field(f, ctx, fields[pgoff]), point.argument(f, ctx, uf),
                point.field(f, ctx, fields[uf]), point.register(f, ctx, "sp"),
                point.stack_argument(f, ctx, uf - len(registers()))]

    with tempfile.TemporaryFile() as file, tracing("kprobe:do_mmap", mine(values), 7) as seen:
        file.truncate(8 * mmap.ALLOCATIONGRANULARITY)
        with mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ, offset=5 * mmap.ALLOCATIONGRANULARITY):
            pass
    ((by_number, by_name, number, name, sp, direct),) = [row for row in own(seen) if row[0] == row[1] == 5]
    assert (by_number, by_name) == (5, 5)
    assert number == name == direct
    assert 0 < number - sp < 16384  # in the kernel's stack


def registers():
    return abi.host().arguments


@pytest.mark.vm(since="6.10")
def test_session_is_entry_and_return():
    """Counts by is_return; returning 1 at the entry spares the return."""
    if not features.has_link("kprobe_session"):  # arm64 came later
        with pytest.raises(SourceError, match="kprobe sessions: this kernel has none"):
            KprobeSession("do_nanosleep").points
        return

    def program(spare):
        f = ir.Function("session")
        ctx = f.params[0]
        ours, end = f.block("ours"), f.block("end")
        f.branch("==", f.alu(">>", f.call("bpf_get_current_pid_tgid"), 32), os.getpid(), ours, end)
        f.position(ours)
        place = f.alu("+", f.map_value("counts"), f.alu("*", f.alu("&", KprobeSession.is_return(f, ctx), 1), 8))
        f.atomic("+", place, 0, 1)
        f.ret(1 if spare else 0)
        f.position(end)
        f.ret(1)
        return compile_function(f).instructions

    for spare, expected in ((False, [3, 3]), (True, [3, 0])):
        counts = Map.create("array", 4, 16, 1)
        probe = KprobeSession("do_nanosleep")
        with probe.load(program(spare), maps={"counts": counts}) as loaded, probe.attach(loaded):
            sleep(3)
        assert list(memoryview(counts.lookup(b"\0" * 4)).cast("Q")) == expected
        counts.close()
    assert len(KprobeSession("vfs_*").points) > 20


def test_session_before_6_10():
    if kernel.release() < (6, 10):
        with pytest.raises(SourceError, match="kprobe_session needs Linux 6.10"):
            KprobeSession("vfs_read").points


def test_nothing_is_left_of_a_killed_tracer(rawbpf):
    before, functions = attached_places(), hooked()
    tracer = rawbpf.start("trace", "-e", "kprobe:do_nanosleep+0 { @ = count(); } kretprobe:vfs_read { @r = count(); } "
                                         "kprobe:vfs_wr* { @w = count(); }")
    while "Attached" not in tracer.stderr.readline():
        assert tracer.poll() is None
    assert attached_places() != before or hooked() != functions
    tracer.send_signal(signal.SIGKILL)
    tracer.wait()
    deadline = time.monotonic() + 20
    while (attached_places() != before or hooked() - functions) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert attached_places() == before and not hooked() - functions
    with open("/sys/kernel/tracing/kprobe_events") as file:
        assert file.read() == ""


@pytest.mark.slow
def test_more_than_1024_in_one_wildcard(rawbpf):
    """Over the limit that a script has by default, once it is raised: every one of them counts as attached."""
    by_start = collections.Counter(name[:size] for name in {name for name, _ in kprobe.candidates("", "*")} for size in (1, 2, 3))
    count, start = min((count, start) for start, count in by_start.items() if count > 1030)
    script = "kprobe:%s* { @ = count(); } interval:ms:100 { exit(); }" % start
    if not features.has_link("kprobe_multi"):  # whose links count as one probe
        done = rawbpf("trace", "-e", script)
        assert done.returncode == 1 and "exceeds the current limit of 1024 probes" in done.stderr
        if not os.environ.get("RAWBPF_LONG"):
            return  # a perf event each: the kernel takes minutes for them in an emulated guest
    done = rawbpf("trace", "-e", script, timeout=600, env={**os.environ, "BPFTRACE_MAX_PROBES": "10000"})
    assert done.returncode == 0, done.stderr
    attached = int(re.search(r"Attached (\d+) probes", done.stderr + done.stdout).group(1))
    assert count + 1 - 20 <= attached <= count + 1, (attached, count)
    print("%d probes: %s" % (attached, done.stdout.split()))
