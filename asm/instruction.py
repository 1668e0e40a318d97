"""One eBPF instruction as a value, and its 8-byte encoding (RFC 9669, struct bpf_insn).

struct bpf_insn is `u8 code; u8 dst:4, src:4; s16 off; s32 imm` in the byte order of the machine that
runs it. `lddw` (code 0x18) fills two of them and is one `Instruction`.
"""

import sys
from collections import namedtuple
from struct import Struct, error as struct_error

from .errors import AsmError
from .opcodes import LDDW

MapRef = namedtuple("MapRef", "name offset", defaults=(None,))
MapRef.__doc__ = "A map's address; with an offset, the address of its first value plus that many bytes."
Label = namedtuple("Label", "name")
Label.__doc__ = "A place in the same program that a jump goes to."
FuncRef = namedtuple("FuncRef", "name")
FuncRef.__doc__ = "A function of the same program: called (call) or its address taken (lddw)."
KsymRef = namedtuple("KsymRef", "name")
KsymRef.__doc__ = "A kernel symbol: a kfunc that is called, or a variable whose address lddw takes."
HalfRef = namedtuple("HalfRef", "")
HalfRef.__doc__ = "Marks one slot with code 0x18 that is no whole lddw: reserved fields of its second slot are set."
HALF = HalfRef()


class Instruction(namedtuple("Instruction", "code dst src off imm ref", defaults=(0, 0, 0, 0, None))):
    """`code dst src off imm` as struct bpf_insn has them, and `ref`, what is still symbolic.

    `off` counts slots of 8 bytes in jumps. `imm` is signed, 32 bits wide; of `lddw` it is the unsigned
    64-bit value: the low half is the first slot's imm (map fd, BTF id, ...), the high half the second's.
    """

    __slots__ = ()

    @property
    def slots(self):
        """How many 8-byte slots it fills: 2 for lddw, else 1."""
        return 2 if self.code == LDDW and self.ref is not HALF else 1

    def __str__(self):
        from .disassembler import text
        return text(self)


_STRUCTS = {"little": Struct("<BBhi"), "big": Struct(">BBhi")}


def encode(instructions, byteorder=sys.byteorder):
    """The bytes of instructions, 8 a slot. Every `ref` must be resolved (None)."""
    pack = _STRUCTS[byteorder].pack
    big = byteorder == "big"
    out = []
    for index, (code, dst, src, off, imm, ref) in enumerate(instructions):
        if ref is not None and ref is not HALF:
            raise AsmError("instruction %d: %r is not resolved" % (index, ref))
        if not (0 <= dst <= 15 and 0 <= src <= 15):
            raise AsmError("instruction %d: registers %d and %d must be 0 to 15" % (index, dst, src))
        registers = dst << 4 | src if big else src << 4 | dst
        try:
            if code == LDDW and ref is None:
                if not -1 << 63 <= imm < 1 << 64:
                    raise AsmError("instruction %d: %#x needs more than 64 bits" % (index, imm))
                low, high = imm & 0xFFFFFFFF, imm >> 32 & 0xFFFFFFFF
                out.append(pack(code, registers, off, low - (low >> 31 << 32)))
                out.append(pack(0, 0, 0, high - (high >> 31 << 32)))
            else:
                out.append(pack(code, registers, off, imm))
        except struct_error:
            raise AsmError("instruction %d: code %d, offset %d or immediate %d does not fit" %
                           (index, code, off, imm)) from None
    return b"".join(out)


def decode(data, byteorder=sys.byteorder):
    """The instructions that these bytes hold; `encode` gives the same bytes back, whatever they are."""
    if len(data) % 8:
        raise AsmError("%d bytes are no whole number of 8-byte instructions" % len(data))
    big = byteorder == "big"
    out = []
    slots = _STRUCTS[byteorder].iter_unpack(data)
    new = tuple.__new__
    for code, registers, off, imm in slots:
        dst, src = (registers >> 4, registers & 15) if big else (registers & 15, registers >> 4)
        if code != LDDW:
            out.append(new(Instruction, (code, dst, src, off, imm, None)))
            continue
        second = next(slots, None)
        if second is None:
            raise AsmError("slot %d: lddw is cut off after its first half" % (len(data) // 8 - 1))
        if second[:3] == (0, 0, 0):
            out.append(new(Instruction, (code, dst, src, off, imm & 0xFFFFFFFF | (second[3] & 0xFFFFFFFF) << 32,
                                         None)))
        else:
            # One slot at a time, so that a second slot which looks like lddw is read as it stands.
            out.append(new(Instruction, (code, dst, src, off, imm, HALF)))
            code, registers, off, imm = second
            dst, src = (registers >> 4, registers & 15) if big else (registers & 15, registers >> 4)
            out.append(new(Instruction, (code, dst, src, off, imm, HALF if code == LDDW else None)))
    return out


def slot_numbers(instructions):
    """The slot that each instruction starts at, and one more: how many slots there are."""
    numbers, slot = [], 0
    for instruction in instructions:
        numbers.append(slot)
        slot += instruction.slots
    numbers.append(slot)
    return numbers
