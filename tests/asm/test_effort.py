"""Assembling and disassembling stay linear, and cheap by instruction: counted in calls, not in seconds.

`python -m tests.bench.assembler` measures the seconds.
"""

import sys

import pytest

from rawbpf.asm import assemble, decode, disassemble, encode
from tests.bench.assembler import written

pytestmark = pytest.mark.slow


def calls(work):
    """How many functions, Python's own included, `work()` calls."""
    count = 0

    def each(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")
    before = sys.getprofile()
    sys.setprofile(each)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def check(make, work, most):
    small, large = (calls(lambda: work(given)) for given in (make(500), make(4000)))
    assert large <= 8.5 * small
    assert large <= most * 4000, large / 4000


def test_assembling():
    check(written, lambda source: assemble(source).instructions(), 60)


def test_disassembling():
    def code(count):
        return encode(i._replace(ref=None) for i in assemble(written(count)).instructions())
    check(code, lambda data: disassemble(decode(data)), 25)


def test_jumps_to_labels_that_are_defined_again_and_again():
    def source(count):
        return "1: r0 = 0\nif r0 == 0 goto 1b\n" * (count // 4) + "exit"
    check(source, assemble, 60)


def test_a_name_that_does_not_exist_is_not_compared_with_all(monkeypatch):
    """What an error costs beyond the same text without: as much among many names as among half of them."""
    from rawbpf.asm import AsmError, resolve
    monkeypatch.setattr(resolve, "_COMPARED", 100)

    def work(source):
        try:
            assemble(source)
        except AsmError:
            return

    def more(count):
        source = "".join("label_%d: r0 = 0\n" % i for i in range(count))
        return calls(lambda: work(source + "goto label_x\n")) - calls(lambda: work(source + "goto label_1\n"))
    assert more(800) < 1.1 * more(400)
