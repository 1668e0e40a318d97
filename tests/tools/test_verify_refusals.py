"""Programs that the verifier must refuse: each is explained with the right instruction and the right kind."""

import ctypes
import struct
import threading

import pytest

from rawbpf.asm import assemble
from rawbpf.loader.refusals import KINDS
from rawbpf.tools.units import of_assembly
from rawbpf.tools.verify import verify

from . import refused

CAP_BPF = 39
VERSION_3 = 0x20080522


def marked(text):
    """The number of the line that is wrong, or None."""
    lines = [n for n, line in enumerate(text.split("\n"), 1) if line.endswith("; !")]
    assert len(lines) < 2
    return lines[0] if lines else None


def with_cap_bpf_alone(work):
    """work() in a thread whose effective capabilities are CAP_BPF alone (they belong to the thread)."""
    out = []

    def run():
        libc = ctypes.CDLL(None, use_errno=True)
        header, data = struct.pack("=Ii", VERSION_3, 0), ctypes.create_string_buffer(24)
        assert libc.capget(header, data) == 0
        effective, permitted, inherited, effective_high, permitted_high, inherited_high = struct.unpack("=6I", data.raw)
        data.raw = struct.pack("=6I", 0, permitted, inherited, 1 << CAP_BPF - 32, permitted_high, inherited_high)
        assert libc.capset(header, data) == 0
        out.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return out[0]


def record_of(case):
    text = refused.MAPS + case.text
    assembly = assemble(text, "case.s", strict=case.strict)
    assembly.license = case.license
    unit, = of_assembly(assembly, "case.s", case.type)
    with unit:
        unit.make_maps()
        record = with_cap_bpf_alone(lambda: verify(unit)) if case.weak else verify(unit)
    return record, marked(text)


@pytest.mark.root
@pytest.mark.parametrize("case", refused.ALL, ids=lambda case: case.kind)
def test_refusal(case):
    record, line = record_of(case)
    assert record["error"] == "" and not record["accepted"]
    why = record["refusal"]
    assert why["kind"] == case.kind, why["message"]
    if line is not None:
        assert why["line"] == line, (why["slot"], why["message"])


def test_there_are_enough_of_them():
    assert len(refused.ALL) >= 200
    assert {case.kind for case in refused.ALL} <= set(KINDS)
    assert len({(case.type, case.text, case.license, case.weak) for case in refused.ALL}) == len(refused.ALL)
