"""Kinds of events by wildcards, in scripts (bpftrace's rules: its kinds of the kernel, or of user space where a process
or a file is meant) and in listings, which are never silently empty."""

import pytest

from rawbpf import sources
from rawbpf.sources import SourceError, Target
from rawbpf.tools.trace.attachpoints import of_kinds
from rawbpf.tools.trace.parser import parse
from tests.cc import compile_c

MAIN = "int main(void) { return 0; }"


def kinds(text, pid=None):
    (point,) = parse(text + " { }").probes[0].attach_points
    return [each.parts for each in of_kinds(point, Target(pid=pid))]


@pytest.mark.parametrize("text, expected", [
    ("k*:vfs_read", [["kprobe", "vfs_read"]]),      # those of entries only
    ("f*:xfs:xfs_read", [["fentry", "xfs", "xfs_read"]]),
    ("*tracepoint:sched_*", [["rawtracepoint", "sched_*"], ["tracepoint", "sched_*"]]),
    ("u*:/bin/sh:main", [["uprobe", "/bin/sh", "main"], ["usdt", "/bin/sh", "main"]]),
    ("*:sh:main", [[kind, "sh", "main"] for kind in (
        "fentry", "hardware", "iter", "kprobe", "rawtracepoint", "software", "tracepoint")]),
    ("*sleep*", [[kind, "*sleep*"] for kind in (
        "fentry", "hardware", "iter", "kprobe", "rawtracepoint", "software", "tracepoint")]),
    ("kprobe:vfs_*", [["kprobe", "vfs_*"]]),
])
def test_kinds(text, expected):
    assert kinds(text) == expected


def test_of_a_process():
    assert kinds("*:main", 1) == [["uprobe", "main"], ["usdt", "main"]]
    with pytest.raises(SourceError, match="No probe type matched for k\\*"):
        kinds("k*:main", 1)


@pytest.mark.root
@pytest.mark.slow
def test_scripts(rawbpf):
    program = compile_c(MAIN, name="program")
    done = rawbpf("trace", "-q", "-e", "*:%s:main { @[probe]++ } begin { } interval:ms:1 { }" % program, "-c", program)
    assert done.stdout.split() == ["@[uprobe:%s:main]:" % program, "1"] and done.stderr == ""       # usdt has no such
    done = rawbpf("trace", "-e", "fo*:x { }")
    assert done.returncode == 1 and done.stderr.startswith("stdin:1:1-6: ERROR: No probe type matched for fo*\n")
    done = rawbpf("trace", "-e", "u*:/nowhere:x { }")
    assert done.returncode == 1 and done.stderr.count("HINT: target file '/nowhere' does not exist") == 1
    done = rawbpf("list", "-e", "t*:sched:sched_sw*h,u*:%s:main { }" % program)
    assert done.stdout == "tracepoint:sched:sched_switch\nuprobe:%s:main\n" % program


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("pattern, status, says", [
    ("u*:/nowhere:main", 0, "WARNING: no event matches u*:/nowhere:main: uprobe, usdt: target file '/nowhere' does not exist"),
    ("hard*", 0, "WARNING: no event matches hard*: that is a pattern of names; the events of a kind are hardware:*"),
    ("prof*:hz", 1, "ERROR: No probe type matched for prof*\nHINT: profile:\n"),
    ("foo*:x", 1, "ERROR: No probe type matched for foo*\n"),
    ("foo:x", 1, "ERROR: Invalid probe type: foo\n"),
])
def test_listings(rawbpf, pattern, status, says):
    done = rawbpf("list", pattern)
    assert (done.returncode, done.stdout) == (status, "") and done.stderr.startswith(says)


@pytest.mark.root
def test_what_the_kernel_lacks(monkeypatch):
    """Every kind that a wildcard means is asked why it has nothing."""
    from rawbpf.tools.trace import listing
    refuse = {"fentry": "no trampolines", "kprobe": "no kprobes"}
    for name, why in refuse.items():
        def require(self, why=why):
            raise SourceError(why)
        monkeypatch.setattr(type(sources.find(name)), "require", require)
    assert listing._why_nothing("fe*:f", Target()) == "no trampolines"
    assert listing._why_nothing("k*:f", Target()) == "no kprobes"
    assert listing._why_nothing("*:no_such_function", Target()) == "fentry: no trampolines; kprobe: no kprobes"

