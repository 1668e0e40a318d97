"""`rawbpf verify` of objects that clang made: why and on which line of C they are refused. The marks are in fixtures/bpf."""

import json
import os

import pytest

from rawbpf.tools.units import read
from rawbpf.tools.verify import verify
from tests.bpfcc import FIXTURES, compile_bpf

pytestmark = [pytest.mark.peer, pytest.mark.root]


@pytest.fixture(scope="module")
def found():
    """{program: record}"""
    out = {}
    for unit in read(compile_bpf("refused.c")):
        with unit:
            out[unit.name] = verify(unit)
    return out


def wrong_line(name):
    """The marked line of a program, or of what it calls."""
    lines = (FIXTURES / "refused.c").read_text().split("\n")
    start = next(n for n, line in enumerate(lines) if line.startswith("int %s(" % name) or line.startswith("static noinline int %s(" % name))
    return next(n for n in range(start, len(lines)) if lines[n].endswith("/* wrong */")) + 1


@pytest.mark.parametrize("name, kind, place", [
    ("beyond_the_packet", "out-of-bounds-packet", None), ("not_null_checked", "null-check", None),
    ("in_a_function", "out-of-bounds-stack", "inner"), ("field_that_is_gone", "missing-in-kernel", None),
    ("store_to_a_kptr", "kptr", None),
])
def test_refused(found, name, kind, place):
    record = found[name]
    why = record["refusal"]
    assert not record["accepted"] and record["error"] == "" and why["kind"] == kind, why
    assert os.path.basename(why["file"]) == "refused.c" and why["line"] == wrong_line(place or name), why
    assert why["text"].endswith("/* wrong */") and why["registers"] and why["path"][0] == 0
    if name == "field_that_is_gone":
        assert "task_struct" in why["message"] and "no_such_field" in why["message"]


def test_nothing_is_pinned(found):
    assert not os.path.exists("/sys/fs/bpf/by_name")


def test_types_given_on_the_command_line(rawbpf):
    done = rawbpf("verify", "--json", "--type", "xdp", "--program", "not_null_checked", compile_bpf("refused.c"))
    record, = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 1 and record["type"] == "xdp" and record["refusal"]["kind"] == "null-check"
    done = rawbpf("verify", "--program", "none_such", compile_bpf("refused.c"))
    assert done.returncode == 1 and done.stderr.startswith("ERROR: no program none_such; there are beyond_the_packet, ")


def test_annotated_with_lines_of_c(rawbpf):
    done = rawbpf("verify", "--annotate", "--program", "beyond_the_packet", compile_bpf("refused.c"))
    lines = done.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("; if (data + 14 > end)"))
    assert any(line.strip().startswith(";") and "return data[14]" in line for line in lines[at:])
    assert any("=pkt(" in line for line in lines)
