"""Which function fentry means where names are not unique, on a kernel that is played."""

import pytest

from rawbpf import sources
from rawbpf.elf import types
from rawbpf.sources import SourceError, fentry, kallsyms, kernel_btf


def function(name, variadic=False):
    return types.Function(name, [types.Parameter("regs", types.Pointer(types.VOID))], types.VOID, variadic)


class PlayedBtf:
    """Type ids by name, as pahole writes them: a function may be there twice."""

    count = 1
    names = {"once": [1], "listed_twice": [2, 3], "two": [4], "talks": [5], "hidden": [6], "shared": [7]}

    def __init__(self, names=None):
        self.names = names or self.names

    def find_ids(self, name, kind):
        return self.names.get(name, [])

    def functions(self):
        return [(name, number) for name, numbers in self.names.items() for number in numbers]

    def type(self, number):
        name = next(name for name, numbers in self.names.items() if number in numbers)
        return function(name, name == "talks")

    def signature(self, number):
        return len(self.type(number).parameters), self.type(number).variadic


@pytest.fixture(autouse=True)
def played(monkeypatch):
    btf = {"vmlinux": PlayedBtf(), "mod": PlayedBtf({"shared": [9]})}
    monkeypatch.setattr(fentry, "require_trampolines", lambda: None)
    monkeypatch.setattr(fentry, "refusal", lambda: "")
    monkeypatch.setattr(kernel_btf, "of", lambda name: btf[name or "vmlinux"])
    monkeypatch.setattr(kernel_btf, "vmlinux", lambda: btf["vmlinux"])
    monkeypatch.setattr(kernel_btf, "modules", lambda: ["vmlinux", "mod"])
    monkeypatch.setattr(kallsyms, "blacklist", lambda: frozenset())
    monkeypatch.setattr(kallsyms, "traceable", lambda: [
        ("once", ""), ("listed_twice", ""), ("two", ""), ("two", ""), ("talks", ""), ("shared", ""), ("shared", "mod")])


def test_one_function_that_btf_has_twice():
    (point,) = sources.expand("fentry:listed_twice")
    assert (point.name, point.type_id, point.warning) == ("fentry:vmlinux:listed_twice", 2, "")


def test_two_functions_that_btf_has_once():
    """The kernel takes one of them: said, not silent."""
    (point,) = sources.expand("fexit:vmlinux:two")
    assert point.warning == ("2 functions are called two: the kernel attaches fexit to one of them only; kprobe:two "
                             "means all")


def test_a_name_of_two_modules():
    with pytest.raises(SourceError, match="specify module") as caught:
        sources.expand("fentry:shared")
    assert caught.value.hints == ["fentry:vmlinux:shared", "fentry:mod:shared"]
    (point,) = sources.expand("fentry:mod:shared")
    assert (point.name, point.type_id, point.warning) == ("fentry:mod:shared", 9, "")


def test_what_is_refused():
    with pytest.raises(SourceError, match="variable number of arguments"):
        sources.expand("fentry:talks")
    with pytest.raises(SourceError, match="hidden cannot be traced"):
        sources.expand("fentry:hidden")
    with pytest.raises(SourceError, match="No matches") as caught:
        sources.expand("fentry:onc")
    assert caught.value.hints == ["fentry:once"]


def test_wildcard_leaves_out_what_cannot_be():
    assert [point.name for point in sources.expand("fentry:*")] == [
        "fentry:mod:shared", "fentry:vmlinux:listed_twice", "fentry:vmlinux:once", "fentry:vmlinux:shared",
        "fentry:vmlinux:two"]
