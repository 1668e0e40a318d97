"""Probe texts: splitting, quoting, wildcards, and what is refused."""

import os

import pytest

from rawbpf import sources
from rawbpf.sources import SourceError, Target, matcher, paths, quote, split
from rawbpf.sources.base import number, try_number


@pytest.mark.parametrize("text, parts", [
    ("kprobe:vfs_read", ["kprobe", "vfs_read"]),
    ("BEGIN", ["BEGIN"]),
    ('usdt:./a:"web-shop":cart', ["usdt", "./a", "web-shop", "cart"]),
    ('uprobe:"/opt/a:b/c d":f', ["uprobe", "/opt/a:b/c d", "f"]),
    (r'uprobe:./a:"say \"hi\" \\"', ["uprobe", "./a", 'say "hi" \\']),
    ("tracepoint:xhci-hcd:xhci_urb", ["tracepoint", "xhci-hcd", "xhci_urb"]),
    ("profile:hz:", ["profile", "hz", ""]),
])
def test_split(text, parts):
    assert split(text) == parts


def test_split_refuses_an_open_quote():
    with pytest.raises(SourceError, match="quote"):
        split('uprobe:"a:b')


@pytest.mark.parametrize("part", ["plain", "_ZN3app8$LT$impl$GT$3run17h00112233445566eeE", "a b",
                                  'x"y', "back\\slash", "a:b", "operator()(int, char)", "lib++x"])
def test_what_is_quoted_reads_back(part):
    assert split("uprobe:./a:" + quote(part))[-1] == part


def test_plain_names_stay_plain():
    for part in ("vfs_read", "./fun", "/usr/lib/x86_64-linux-gnu/libc.so.6", "web-shop", "foo.isra.0"):
        assert quote(part) == part
    assert quote("a$b") == '"a$b"'


@pytest.mark.parametrize("pattern, name, expected", [
    ("vfs_*", "vfs_read", True), ("vfs_*", "xvfs_read", False), ("*read", "vfs_read", True),
    ("v*d", "vfs_read", True), ("ab*ba", "aba", False), ("vfs_r??d", "vfs_read", True),
    ("[uv]fs_*", "ufs_x", True), ("[uv]fs_*", "zfs_x", False), ("*", "", True), ("a*b*c", "axxbyyc", True),
    ("read", "read", True), ("read", "reads", False), ("a.b*", "axb", False),
])
def test_wildcards(pattern, name, expected):
    assert bool(matcher(pattern)(name)) is expected


def test_numbers():
    assert number("0x1f") == 31 and number("17") == 17 and number("010") == 8
    assert try_number("vfs") is None and try_number("08") is None
    assert try_number("0x1" + "0" * 16) is None  # more than 64 bits


def test_kinds():
    assert sources.find("k").shown == "kprobe"
    assert sources.find("kretprobe").shown == "kretprobe"
    assert sources.find("BEGIN").shown == "begin"
    assert sources.find("U").shown == "usdt"
    with pytest.raises(SourceError) as caught:
        sources.find("kprob")
    assert "kprobe" in caught.value.hints


@pytest.mark.parametrize("text, says", [
    ("kprobe", "requires 1 or 2"),
    ("kprobe:a:b:c", "requires 1 or 2"),
    ("kprobe:f+1+2", "more than one offset"),
    ("kprobe:f+x", "invalid offset"),
    ("kprobe:0xffff", "--unsafe"),
    ("kretprobe:f+4", "Offset not allowed"),
    ("kprobe:f*+4", "wildcards"),
    ("uprobe:./a", "requires 2"),
    ("uprobe:./a:", "requires 2"),
    ("uretprobe:./a:f+4", "function offset"),
    ("uprobe:./*:0x100", "wildcards with absolute address"),
    ("usdt:a", "requires 2 or 3"),
    ("usdt::x", "path or pid"),
    ("tracepoint:x", "requires 2"),
    ("tracepoint:a:b:c", "requires 2"),
    ("tracepoint:../x:y", "invalid tracepoint name"),
    ("profile:fooo:1", "not an accepted unit of time"),
    ("profile:hz", "Invalid rate"),
    ("profile:hz:x", "integer frequency"),
    ("profile:hz:0", "positive integer"),
    ("interval:5", "Minimum is 1000 or 1us. Found: 5 nanoseconds"),
    ("BEGIN:x", "should not have a target"),
    ("self:signal:SIGKILL", "not a supported signal"),
    ("self:foo:SIGUSR1", "not a supported trigger"),
])
def test_refused(text, says):
    kind, *parts = split(text)
    with pytest.raises(SourceError) as caught:
        sources.find(kind).parse(parts, Target())
    assert says in caught.value.reason
    assert not caught.value.missing


@pytest.mark.parametrize("text, name", [
    ("profile:hz:99", "profile:hz:99"), ("p:hz:99", "profile:hz:99"), ("i:s:1", "interval:s:1"),
    ("interval:10ms", "interval:us:10000"), ("interval:1000000", "interval:us:1000"),
    ("i:1s", "interval:us:1000000"), ("interval:ms:1_000", "interval:ms:1000"),
    ("interval:us:1e3", "interval:us:1000"), ("BEGIN", "begin"), ("END", "end"),
    ("self:signal:SIGUSR1", "self:signal:SIGUSR1"),
])
def test_names(text, name):
    (point,) = sources.expand(text)
    assert point.name == name


def test_timer_listing():
    listed = [each.text for each in sources.list_events("interval:*")]
    assert listed == ["interval:hz:", "interval:ms:", "interval:s:", "interval:us:"]


KALLSYMS = b"""ffffffff81000000 T _text
ffffffff81000100 t vfs_read
ffffffff81000200 d vfs_read
ffffffff81000300 t vfs_reader
ffffffffc0000000 t vfs_read\t[ext9]
ffffffffc0001000 t a_vfs_read\t[ext9]
ffffffffc0002000 t vfs_read\t[bpf]
ffffffffc0003000 W last
"""


def test_kernel_symbols(monkeypatch):
    from rawbpf.sources import kallsyms

    monkeypatch.setattr(kallsyms, "_text", lambda: KALLSYMS)
    assert kallsyms.find("vfs_read") == [(0xffffffff81000100, ""), (0xffffffffc0000000, "ext9")]
    assert kallsyms.find("vfs_read", "ext9") == [(0xffffffffc0000000, "ext9")]
    assert kallsyms.find("vfs_read", "vmlinux") == [(0xffffffff81000100, "")]
    assert kallsyms.find("last") == [(0xffffffffc0003000, "")]
    assert kallsyms.find("vfs") == []
    assert kallsyms.addresses({"vfs_read"})[("vfs_read", "ext9")] == [0xffffffffc0000000]


def test_a_process_that_is_no_more():
    """Said as that, not as files that cannot be read: gone, or waiting for its parent."""
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    asked = (lambda: paths.mapped(pid), lambda: paths.exe(pid),
             lambda: list(sources.list_events("uprobe:*", Target(pid=pid))), lambda: list(sources.list_events("usdt:*", Target(pid=pid))))
    for reason in ("process %d has ended" % pid, "there is no process %d" % pid):
        for ask in asked:
            with pytest.raises(SourceError) as caught:
                ask()
            assert caught.value.reason == reason
        if reason.startswith("process"):
            os.waitpid(pid, 0)
