"""Unwinding tables as small numbers: what a BPF program needs of `.eh_frame` to go one frame up.

Every row of `unwind.py` becomes the first address it holds for (less `Table.base`, 32 bits) and a rule of 64 bits:

    bits 0-23   signed: offset of the CFA (the caller's stack pointer) from its base; for PLT: the limit
    bits 24-27  kind: what the base is, see below
    bits 32-47  signed: where the caller's frame pointer is saved, from the CFA; KEPT: it was not changed
    bits 48-63  signed: where the return address is; KEPT: in the link register

Rows that say more than that (registers in expressions, other bases) are UNKNOWN; few functions have any.
"""

from array import array
from typing import NamedTuple

from .image import ElfError
from .unwind import FRAME_POINTER, STACK_POINTER, Unwind, evaluate

UNKNOWN, BY_SP, BY_FP, PLT, SIGNAL, END = range(6)
KEPT = -0x8000
MOST = 2 << 20      # rows of one file
# breg7 +8, breg16 +0, lit15, and, LIMIT, ge, lit3, shl, plus: within the 16 bytes of an entry of .plt
_PLT_HEAD, _PLT_TAIL = bytes((0x77, 0x08, 0x80, 0x00, 0x3f, 0x1a)), bytes((0x2a, 0x33, 0x24, 0x22))
# x86_64: rip and rbp of the interrupted code, from the stack pointer: struct rt_sigframe begins with ucontext
SIGNAL_IP, SIGNAL_SP, SIGNAL_FP = 168, 160, 120


class Table(NamedTuple):
    """`lows` (array "I", sorted) and `rules` (array "Q"), parallel; `base`: the virtual address that counts as 0."""

    base: int
    lows: array
    rules: array


def table(image):
    """The Table of an image, empty without `.eh_frame`. ElfError."""
    if image.machine not in STACK_POINTER:
        raise ElfError(image.path, None, "unwinding on %s is not supported" % image.machine)
    unwind = Unwind(image)
    fdes = unwind.fdes()
    lows, rules = array("I"), array("Q")
    base = fdes[0][0] if fdes else 0
    end = base
    for low, high, place in fdes:
        if low < end or high - base >> 32:
            continue            # overlaps the one before: the first has it
        if low - end >= 16:     # less is what fills up to the next function
            lows.append(end - base), rules.append(0)
        try:
            rows = unwind.rows(place)
        except ElfError:
            rows = ()           # one broken entry does not cost the others
        at = low
        for row in rows:
            if not at <= row.low < row.high <= high:
                break
            if row.low > at:
                lows.append(at - base), rules.append(0)
            value = rule(row, image.machine)
            if not rules or rules[-1] != value or not lows:
                lows.append(row.low - base), rules.append(value)
            at = row.high
        if at < high:
            lows.append(at - base), rules.append(0)
        end = high
        if len(lows) > MOST:
            raise ElfError(image.path, None, "has more than %d unwinding rows" % MOST)
    if lows:
        lows.append(end - base), rules.append(0)
    return Table(base, lows, rules)


def rule(row, machine):
    """A unwind.Row as 64 bits; 0 (UNKNOWN) when they do not suffice."""
    registers, ra = row.registers, row.return_register
    back = registers.get(ra)
    if back is not None and back.kind == "undefined":
        return END << 24
    if row.cfa.kind == "expression":
        return _special(row, machine)
    if row.cfa.kind != "register":
        return 0
    bases = {STACK_POINTER[machine]: BY_SP, FRAME_POINTER[machine]: BY_FP}
    kind = bases.get(row.cfa.register)
    frame = _saved(registers.get(FRAME_POINTER[machine]))
    address = _saved(back)
    if kind is None or frame is None or address is None or not -1 << 23 <= row.cfa.offset < 1 << 23:
        return 0
    if machine == "x86_64" and address == KEPT:
        return 0
    return pack(kind, row.cfa.offset, frame, address)


def pack(kind, offset, frame, address):
    return offset & 0xffffff | kind << 24 | (frame & 0xffff) << 32 | (address & 0xffff) << 48


def _saved(rule):
    """The offset from the CFA where a register is; KEPT where it still is; None when it is elsewhere."""
    if rule is None or rule.kind == "same":
        return KEPT
    if rule.kind == "offset" and KEPT < rule.offset < 0x8000:
        return rule.offset
    return None


def _special(row, machine):
    if machine != "x86_64":
        return 0
    text = row.cfa.expression
    if len(text) == 11 and text[:6] == _PLT_HEAD and text[7:] == _PLT_TAIL and 0x30 <= text[6] <= 0x4f:
        return pack(PLT, text[6] - 0x30, KEPT, -8)
    if row.signal and (_from_sp(row.registers.get(16)), _from_sp(row.registers.get(6))) == (SIGNAL_IP, SIGNAL_FP):
        return pack(SIGNAL, 0, 0, 0)
    return 0


def _from_sp(rule):
    """Where an expression finds a register, from the stack pointer."""
    if rule is None or rule.kind != "expression":
        return None
    try:
        return evaluate(rule.expression, {7: 0}, None, [0])
    except (KeyError, TypeError, ValueError, IndexError):
        return None
