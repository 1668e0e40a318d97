"""Programs that the verifier must refuse: each is explained with the right instruction and the right kind."""

import ctypes
import struct
import threading

import pytest

from rawbpf.asm import assemble
from rawbpf.loader import kernel, ksyms
from rawbpf.loader.refusals import KINDS
from rawbpf.tools.units import Unit, of_assembly
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


def task_struct():
    """{field: offset} of the fields of task_struct that programs name, and "end", its size."""
    from rawbpf.elf import types
    task = ksyms.vmlinux().find("task_struct", "struct")
    return {"end": task.size, **{name: types.find_field(task, name).offset for name in ("real_parent", "last_wakee")}}


def record_of(case):
    text = refused.MAPS + (case.text % task_struct() if "%(" in case.text else case.text)
    assembly = assemble(text, "case.s", strict=case.strict)
    assembly.license = case.license
    unit, = of_assembly(assembly, "case.s", case.type)
    with unit:
        unit.make_maps()
        record = with_cap_bpf_alone(lambda: verify(unit)) if case.weak else verify(unit)
    return record, marked(text)


def wrong_with(case):
    """What is not as it should be with the record of a case, or None."""
    told = refused.expected(case, kernel.release())
    record, line = record_of(case)
    why = record["refusal"]
    got = why["kind"] if why else "accepted" if record["accepted"] else "error"
    if got != told:
        return "%s instead of %s: %s" % (got, told, why["message"] if why else record["error"])
    if why and told == case.kind and line is not None and why["line"] != line:
        return "line %s (slot %s): %s" % (why["line"], why["slot"], why["message"])
    return None


@pytest.mark.kernel
def test_a_program_of_each_kind():
    """On every kernel; `python -m tests.tools.refused` runs all of them anywhere."""
    first = {case.kind: case for case in reversed(refused.ALL)}
    slow = ("too-complex", "too-large")
    assert not [(case.text, wrong) for case in first.values() if case.kind not in slow for wrong in [wrong_with(case)] if wrong]


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("kind", sorted({case.kind for case in refused.ALL}))
def test_all_programs(kind):
    assert not [(case.text, wrong) for case in refused.ALL if case.kind == kind for wrong in [wrong_with(case)] if wrong]


def told(unit):
    with unit:
        why = verify(unit)["refusal"]
    return why["kind"], why["message"]


@pytest.mark.kernel
def test_type_information_that_does_not_fit():
    """The function information of one function for a program of two."""
    from rawbpf.loader.btf import BtfObject, function_types
    data, info = function_types([("main", 0)])
    code = assemble("call f\nexit\nf: r0 = 0\nexit", "a.s").instructions()
    kind, message = told(Unit("a.s", "a", "xdp", code, options=lambda: {"btf": BtfObject.load(data), "func_info": info}))
    assert (kind, message) == ("btf", "number of funcs in func_info doesn't match number of subprogs")


@pytest.mark.kernel
def test_a_target_that_nothing_is_attached_to():
    """A tracepoint program for a struct: such a program wants the typedef of a tracepoint."""
    struct_id = ksyms.vmlinux().find_id("task_struct", "struct")
    code = assemble("r0 = 0\nexit", "a.s").instructions()
    unit = Unit("a.s", "a", "tracing", code, license="GPL", options=lambda: {
        "expected_attach_type": "trace_raw_tp", "attach_btf_id": struct_id})
    assert told(unit) == ("attach-target", "attach_btf_id %d is not a typedef" % struct_id)


def test_there_are_enough_of_them():
    assert len(refused.ALL) >= 300
    assert len({(case.type, case.text, case.license, case.weak) for case in refused.ALL}) == len(refused.ALL)
    # what cannot be had of a kernel that has no bug, and with a JIT
    assert set(KINDS) - {case.kind for case in refused.ALL} == {"verifier-bug", "other", "not-supported",
                                                             # below, and of objects in test_verify_objects.py
                                                             "kptr", "btf", "attach-target"}
