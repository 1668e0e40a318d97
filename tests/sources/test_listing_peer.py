"""Listings, byte for byte what bpftrace prints."""

import os
import re

import pytest

from tests.cc import compile_c
from tests.peers import bpftrace

pytestmark = [pytest.mark.peer, pytest.mark.root]


def both(rawbpf, *arguments):
    ours = rawbpf("trace", *arguments)
    assert ours.returncode == 0, ours.stderr
    return ours.stdout, bpftrace(*arguments, capture_output=True, text=True).stdout


def definitions(text):
    """{(kind, name): the first definition} of a verbose listing of types. bpftrace numbers names that the kernel
    has twice, and prints what a type needs before it: only what is listed itself counts."""
    found = {}
    for whole, kind, name in re.findall(r"^\S+: ((struct|union|enum) (\S+) \{\n.*?^\}[^\n]*;)$", text, re.M | re.S):
        found.setdefault((kind, re.sub(r"___\d+$", "", name)), re.sub(r"___\d+\b", "", whole))
    return found


@pytest.mark.slow
def test_definitions_of_all_types(rawbpf):
    compared = 0
    for kind in ("struct *", "union *", "enum *"):
        ours, theirs = (definitions(text) for text in both(rawbpf, "-lv", kind))
        common = set(ours) & set(theirs)
        assert [name for name in sorted(common) if ours[name] != theirs[name]] == []
        compared += len(common)
    print("%d definitions agree" % compared)
    assert compared > 5000


@pytest.mark.parametrize("arguments", [
    ("-l", "tracepoint:*"), ("-lv", "tracepoint:*"), ("-l", "t:sched:*"), ("-lv", "tracepoint:syscalls:sys_enter_read"),
    ("-l", "tracepoint:*exec*"), ("-l", "software:*"), ("-l", "hardware:*"), ("-l", "interval:*"), ("-l", "profile:*"),
    ("-l", "self:*"), ("-l", "tracepoint:nosuch:*"), ("-lv", "struct iovec"),
])
def test_kernel_events(rawbpf, arguments):
    ours, theirs = both(rawbpf, *arguments)
    assert ours == theirs


def test_functions_of_a_program(rawbpf):
    program = compile_c("int work(int n) { return n; } int work_more(long a, char *b) { return 0; }\n"
                        "int main(void) { return work(0); }", name="lists")
    for pattern in ("uprobe:%s:*", "u:%s:w*", "uretprobe:%s:work", "*:%s:work*"):
        ours, theirs = both(rawbpf, "-l", pattern % program)
        assert ours == theirs
    ours, theirs = both(rawbpf, "-lv", "uprobe:%s:w*" % program)
    assert ours == theirs
    folder, base = os.path.split(program)
    ours = rawbpf("trace", "-l", "uprobe:./%s:work" % base, cwd=folder).stdout
    assert ours == "uprobe:./lists:work\n"
