"""What instructions written in Python are about: registers, addresses, memory, conditions. See builder.py."""

from .errors import AsmError

REGISTERS = [letter + str(n) for letter in "rw" for n in range(11)]
TYPES = ["u8", "u16", "u32", "u64", "s8", "s16", "s32"]
__all__ = ["Address", "Condition", "Memory", "Register", *REGISTERS, *TYPES]


class Register:
    """A register, 64 bits (`rN`) or its low 32 (`wN`)."""

    __slots__ = ("number", "width")
    __hash__ = object.__hash__

    def __init__(self, number, width):
        self.number, self.width = number, width

    def __repr__(self):
        return "%s%d" % ("r" if self.width == 64 else "w", self.number)

    def __add__(self, offset):
        return Address(self, 0) + offset

    def __sub__(self, offset):
        return Address(self, 0) - offset

    def __eq__(self, other):
        return Condition("==", self, other)

    def __ne__(self, other):
        return Condition("!=", self, other)

    def __lt__(self, other):
        return Condition("<", self, other)

    def __le__(self, other):
        return Condition("<=", self, other)

    def __gt__(self, other):
        return Condition(">", self, other)

    def __ge__(self, other):
        return Condition(">=", self, other)

    def __and__(self, other):
        return Condition("&", self, other)

    def slt(self, other):
        return Condition("s<", self, other)

    def sle(self, other):
        return Condition("s<=", self, other)

    def sgt(self, other):
        return Condition("s>", self, other)

    def sge(self, other):
        return Condition("s>=", self, other)


class Address:
    """base + off, to be computed or to index memory with."""

    __slots__ = ("base", "off")

    def __init__(self, base, off):
        if base.width != 64:
            raise AsmError("%r is no address: it is 32 bits wide" % base)
        self.base, self.off = base, off

    def __add__(self, offset):
        return Address(self.base, self.off + _whole(offset))

    def __sub__(self, offset):
        return Address(self.base, self.off - _whole(offset))


def _whole(offset):
    if not isinstance(offset, int):
        raise AsmError("an address is a register and a whole number, not %r: alu() and add() compute" % (offset,))
    return offset


class Memory:
    """*(u32 *)(base + off)."""

    __slots__ = ("size", "signed", "address")

    def __init__(self, size, signed, address):
        self.size, self.signed, self.address = size, signed, address


class Type:
    """`u32[r10 - 4]` is memory."""

    __slots__ = ("size", "signed")

    def __init__(self, size, signed):
        self.size, self.signed = size, signed

    def __getitem__(self, where):
        if isinstance(where, Register):
            where = Address(where, 0)
        if not isinstance(where, Address):
            raise AsmError("memory is indexed by a register, or by one plus an offset, not by %r" % (where,))
        return Memory(self.size, self.signed, where)


class Condition:
    """a op b."""

    __slots__ = ("op", "a", "b")

    def __init__(self, op, a, b):
        self.op, self.a, self.b = op, a, b

    def __bool__(self):
        raise AsmError("a condition on registers is known when the program runs: "
                       "use it with when(), unless() or jump()")


r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10 = (Register(n, 64) for n in range(11))
w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10 = (Register(n, 32) for n in range(11))
u8, u16, u32, u64 = (Type(size, False) for size in (1, 2, 4, 8))
s8, s16, s32 = (Type(size, True) for size in (1, 2, 4))
