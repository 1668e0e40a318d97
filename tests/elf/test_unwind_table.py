"""Unwinding rows as numbers: each says what the row says (and those are readelf's: test_unwind.py)."""

from bisect import bisect_right

import pytest

from rawbpf.elf.image import ElfError, Image
from rawbpf.elf.ldcache import find_library
from rawbpf.elf.unwind import FRAME_POINTER, STACK_POINTER, Unwind
from rawbpf.elf.unwind_table import BY_FP, BY_SP, END, KEPT, PLT, SIGNAL, UNKNOWN, table

pytestmark = pytest.mark.slow


def signed(value, bits):
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def unpacked(rule):
    """(kind, offset of the CFA, where the frame pointer is, where the return address is)"""
    return rule >> 24 & 15, signed(rule, 24), signed(rule >> 32, 16), signed(rule >> 48, 16)


def compare(path):
    """(rows, those that are UNKNOWN) of an image, after each was compared."""
    image = Image.open(path)
    made, unwind = table(image), Unwind(image)
    assert list(made.lows) == sorted(set(made.lows))
    registers = {STACK_POINTER[image.machine]: BY_SP, FRAME_POINTER[image.machine]: BY_FP}
    rows = unknown = 0
    for low, _, place in unwind.fdes():
        for row in unwind.rows(place):
            rows += 1
            kind, offset, frame, address = unpacked(made.rules[bisect_right(made.lows, row.low - made.base) - 1])
            saved = row.registers.get(FRAME_POINTER[image.machine])
            back = row.registers.get(row.return_register)
            if kind == UNKNOWN:
                unknown += 1
            elif kind in (BY_SP, BY_FP):
                assert (row.cfa.kind, registers[row.cfa.register], row.cfa.offset) == ("register", kind, offset)
                assert frame == (KEPT if saved is None or saved.kind == "same" else saved.offset)
                assert address == (KEPT if back is None or back.kind == "same" else back.offset)
            elif kind == END:
                assert back.kind == "undefined"
            else:
                assert kind in (PLT, SIGNAL) and row.cfa.kind == "expression"
    return rows, unknown


def test_the_c_library():
    rows, unknown = compare(find_library("c"))
    assert rows > 10000 and unknown < rows / 1000


@pytest.mark.peer
def test_aarch64():
    from tests.debian import Suite
    root = Suite("bookworm", "arm64").root("arm64-libc", ["libc6"])
    rows, unknown = compare(root / "lib/aarch64-linux-gnu/libc.so.6")
    assert rows > 5000 and unknown < rows / 100


def test_what_has_none():
    from tests.elf.test_symbols import elf_with
    assert len(table(Image(elf_with(b"\0", b""))).lows) == 0
    data = bytearray(elf_with(b"\0", b""))
    data[18] = 0
    with pytest.raises(ElfError, match="unwinding on machine 0 is not supported"):
        table(Image(bytes(data)))
