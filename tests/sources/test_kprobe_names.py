"""Which functions a probe's text means, on a kernel that is played: its symbols and what ftrace can trace."""

import errno

import pytest

from rawbpf import sources
from rawbpf.loader import features
from rawbpf.sources import SourceError, Target, kallsyms, kernel_btf, kprobe

KALLSYMS = b"""ffffffff81000100 T alone
ffffffff81000200 t twice
ffffffff81000300 t twice
ffffffff81000400 t variant.isra.0
ffffffff81000480 t variant.cold
ffffffff81000500 t untraced
ffffffff81000600 t half
ffffffff81000700 t half
ffffffff81000800 t forbidden
ffffffff81000900 D data
ffffffffc0000000 t twice\t[mod]
ffffffffc0000100 t modfn\t[mod]
ffffffffc0002000 t bpf_prog_0123456789abcdef_alone\t[bpf]
"""
HIDDEN = b"".join(b"0" * 16 + line[16:] for line in KALLSYMS.splitlines(True))
TRACEABLE = [("alone", ""), ("twice", ""), ("twice", ""), ("variant.isra.0", ""), ("half", ""), ("forbidden", ""),
             ("twice", "mod"), ("modfn", "mod")]
# where ftrace's call is: behind a landing pad of four bytes
PLACES = {0xffffffff81000104, 0xffffffff81000204, 0xffffffff81000304, 0xffffffff81000404, 0xffffffff81000604,
          0xffffffff81000804, 0xffffffffc0000004, 0xffffffffc0000104}


@pytest.fixture
def played(monkeypatch):
    def play(text=KALLSYMS, multi=True, places=PLACES):
        monkeypatch.setattr(kallsyms, "_text", lambda: text)
        monkeypatch.setattr(kallsyms, "traceable", lambda: TRACEABLE)
        monkeypatch.setattr(kallsyms, "_traced_places", lambda: places)
        monkeypatch.setattr(kallsyms, "blacklist", lambda: frozenset(["forbidden"]))
        monkeypatch.setattr(kprobe, "has_kprobes", lambda: True)
        monkeypatch.setattr(features, "has_link", lambda name: multi)
        kallsyms.traceable_counts.cache_clear()

    yield play
    kallsyms.traceable_counts.cache_clear()


def found(text, **target):
    return [(point.function, point.module, point.address & 0xffffffff) for point in
            sources.expand(text, Target(**target))]


TWICE = [("twice", "", 0x81000200), ("twice", "", 0x81000300), ("twice", "", 0xc0000000)]


@pytest.mark.parametrize("multi", [True, False])
def test_names(played, multi):
    played(multi=multi)
    assert found("kprobe:alone") == [("alone", "", 0)]          # the name says it all
    assert found("kprobe:vmlinux:alone") == [("alone", "vmlinux", 0)]
    assert found("kprobe:modfn") == [("modfn", "", 0)]
    assert found("kprobe:mod:modfn") == [("modfn", "mod", 0)]
    assert found("kprobe:variant.isra.0") == [("variant.isra.0", "", 0)]
    assert found("kprobe:twice") == TWICE                       # by address, all of them
    assert found("kretprobe:vmlinux:twice") == [("twice", "vmlinux", 0x81000200), ("twice", "vmlinux", 0x81000300)]
    assert found("kprobe:mod:twice") == [("twice", "mod", 0)]   # the only one there
    assert [point.offset for point in sources.expand("kprobe:twice+4")] == [4, 4, 4]
    assert found("kprobe:0xffffffff81000100", unsafe=True) == [("", "", 0x81000100)]


@pytest.mark.parametrize("multi", [True, False])
def test_wildcards(played, multi):
    played(multi=multi)
    assert found("kprobe:tw*") == TWICE
    # the module's own is not the only one of that name, and a kprobe_multi link knows no modules
    expected = [("modfn", "mod", 0), ("twice", "mod", 0xc0000000)]
    assert found("kprobe:mod:*") == expected
    assert [name for name, _, _ in found("kprobe:*")] == ["alone", "half", "modfn", "twice", "twice", "twice",
                                                          "variant.isra.0"]
    # one of the two can be traced: by name where only such are looked at, else by its address
    assert found("kprobe:hal*") == [("half", "", 0x81000600)]


def test_without_the_places_of_ftrace(played):
    """Before 6.5: every address, and the kernel says which it takes."""
    played(multi=False, places=None)
    assert found("kprobe:hal*") == [("half", "", 0x81000600), ("half", "", 0x81000700)]


@pytest.mark.parametrize("multi", [True, False])
def test_listed_twice_and_there_once(played, multi, monkeypatch):
    """5.10 lists system calls that do not exist under one name, dozens of times; one symbol is called that."""
    played(multi=multi, places=None)
    monkeypatch.setattr(kallsyms, "traceable", lambda: [*TRACEABLE, ("alone", ""), ("alone", "")])
    kallsyms.traceable_counts.cache_clear()
    kallsyms._memo.clear()
    assert found("kprobe:al*") == [("alone", "", 0x81000100)]
    kallsyms._memo.clear()


def test_hidden_addresses(played):
    played(HIDDEN)
    with pytest.raises(SourceError, match=r"3 kernel functions are called twice \(in mod, vmlinux\), and their "
                                          "addresses are hidden"):
        sources.expand("kprobe:twice")
    points = sources.expand("kprobe:*")
    assert [point.function for point in points if point.refusal] == ["twice", "twice"]
    assert "kptr_restrict" in points[-2].refusal
    (point,) = sources.expand("kprobe:tw*")[:1]
    with pytest.raises(SourceError, match="addresses are hidden"):
        point.attach(None, [point])


def test_refusals(played):
    played()
    with pytest.raises(SourceError, match="forbidden is on the kernel's kprobe blacklist"):
        sources.expand("kprobe:forbidden+4")
    with pytest.raises(SourceError, match="left only variants") as caught:
        sources.expand("kprobe:variant")
    assert caught.value.hints == ["kprobe:variant.cold", "kprobe:variant.isra.0"]
    with pytest.raises(SourceError) as caught:
        sources.expand("kprobe:vmlinux:modfn")
    assert caught.value.hints == ["kprobe:mod:modfn"]
    with pytest.raises(SourceError, match="No matches"):
        sources.expand("kprobe:data")
    with pytest.raises(SourceError) as caught:
        sources.expand("kprobe:alon")
    assert caught.value.hints == ["kprobe:alone"]
    for text, says in (("kprobe:a+x", "invalid offset"), ("kprobe:a+1+2", "more than one offset"),
                       ("kprobe:a*+4", "wildcards with an offset"), ("kretprobe:a+4", "Offset not allowed"),
                       ("kprobe:0x1000", "--unsafe"), ("kprobe:a:b:c", "requires 1 or 2")):
        with pytest.raises(SourceError, match=says):
            sources.expand(text)


@pytest.mark.parametrize("code, offset, says", [
    (errno.EINVAL, 0, "untraced cannot be traced: it is marked notrace"),
    (errno.EINVAL, 4, "untraced cannot be traced"),
    (errno.ESRCH, 0, "untraced cannot be traced")])
def test_errno_in_words(played, code, offset, says):
    played()
    point = kprobe.KprobePoint(kprobe.Kprobe(), "", "untraced", offset)
    assert says in kprobe._explain(point, OSError(code, ""))


def test_errno_of_an_offset(played):
    played()
    for code in (errno.EINVAL, errno.EILSEQ):
        point = kprobe.KprobePoint(kprobe.Kprobe(), "", "alone", 3)
        assert kprobe._explain(point, OSError(code, "")).startswith("offset 3 of alone is not the start of an instr")
    # what the compiler split off is judged as its function
    assert not kallsyms.untraceable("variant.isra.0") and kallsyms.untraceable("untraced")


def test_listing(played, monkeypatch):
    monkeypatch.setattr(kernel_btf, "prototype", lambda name, module=None: None)
    played()
    assert [each.text for each in sources.list_events("kprobe:*")] == [
        "kprobe:alone", "kprobe:half", "kprobe:modfn", "kprobe:twice", "kprobe:variant.isra.0"]
    assert [each.text for each in sources.list_events("kprobe:mod:*")] == ["kprobe:mod:modfn", "kprobe:mod:twice"]
    assert [each.text for each in sources.list_events("kprobe:*:t*")] == ["kprobe:mod:twice", "kprobe:vmlinux:twice"]


def test_harmful_ones_are_no_pattern_s(monkeypatch):
    """What runs whenever a CPU idles or leaves a critical section; a name alone still means it."""
    names = [(name, "") for name in ("arch_cpu_idle", "arch_cpu_idle_enter", "default_idle", "rcu_note", "srcu_note")]
    monkeypatch.setattr(kallsyms, "traceable", lambda: names)
    monkeypatch.setattr(kallsyms, "blacklist", frozenset)
    assert kprobe.candidates("", "*") == [("arch_cpu_idle_enter", ""), ("srcu_note", "")]
    assert kprobe.candidates("", "rcu_*") == []
