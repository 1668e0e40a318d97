"""Report 53: what is compiled for kernels older than those of the matrix calls nothing that they lack.

The kernel is played: its features are those of loader/introduced.py up to its version, which other tests compare
with the kernels that there are."""

import pytest

from rawbpf.asm.helpers import helper_name
from rawbpf.loader import features, introduced, kernel
from rawbpf.sources import kallsyms, kprobe
from tests.tools.test_compiler import Box, compiled, helpers


@pytest.fixture(params=[(4, 18), (5, 4)], ids=["4.18", "5.4"])
def old(request, monkeypatch):
    release = request.param

    def has(kind):
        def known(name, *_):
            first = introduced.version(kind, name)
            return first is not None and first <= release
        return known

    monkeypatch.setattr(kernel, "release", lambda: release + (0,))
    monkeypatch.setattr(features, "has_helper", has("helper"))
    monkeypatch.setattr(features, "has_map", has("map"))
    monkeypatch.setattr(features, "has_link", has("link"))
    monkeypatch.setattr(kprobe, "has_kprobes", lambda: True)
    monkeypatch.setattr(kallsyms, "_text", lambda: b"ffffffff81000100 T do_sys_open\n")
    monkeypatch.setattr(kallsyms, "traceable", lambda: [("do_sys_open", "")])

    class Old(Box):
        ringbuf = has("map")("ringbuf")

        def has_helper(self, name, program_type):
            return has("helper")(name)

        def has_kfunc(self, name, program_type):
            return False

    Old.release = release
    return Old()


@pytest.mark.parametrize("script", [
    'BEGIN { printf("hi\\n"); exit(); }',
    'kprobe:do_sys_open { printf("%s\\n", str(arg1)); }',
    'kprobe:do_sys_open { @[comm, pid] = count(); @h = hist(arg2); @s[kstack] = sum(nsecs); }',
])
def test_only_what_the_kernel_has(old, script):
    made = compiled(script, old)
    for number, program in enumerate(made.programs):
        for name in helpers(made, number):
            assert introduced.version("helper", name) <= old.release, name
        assert program.expected_attach_type is None
        if old.release < (5, 1):  # no 32-bit jumps yet
            assert all(instruction.code & 7 != 6 for instruction in program.code.instructions)
    for name, each in made.kernel_maps.items():
        assert introduced.version("map", each.map_type) <= old.release, (name, each.map_type)


def test_the_substitutes(old):
    made = compiled('kprobe:do_sys_open { printf("%s\\n", str(arg1)); }', old)
    names = helpers(made)
    assert "bpf_probe_read_str" in names and "bpf_perf_event_output" in names
    assert "perf_event_array" in {each.map_type for each in made.kernel_maps.values()}
    assert helper_name(25) == "bpf_perf_event_output"
