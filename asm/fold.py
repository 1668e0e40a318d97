"""What an operation is when some of its operands are known: constant folding and algebra.

Nothing here widens what the verifier has to prove: a value that was checked stays the value that is
used, and pointers are only ever moved by constants.
"""

from .ir import Value, signed64
from .opcodes import INVERTED, SWAPPED

COMMUTATIVE = ("+", "*", "|", "&", "^")
_M64 = (1 << 64) - 1


def alu(operator, a, b, width):
    """a op b for numbers, as BPF computes it; signed 64 bits."""
    mask = (1 << width) - 1
    a, b = a & mask, b & mask
    if operator[0] == "s":
        sa, sb = a - (a >> width - 1 << width), b - (b >> width - 1 << width)
        if operator == "s>>":
            return signed64((sa >> (b & width - 1)) & mask)
        if not b:
            return 0 if operator == "s/" else signed64(a)
        quotient = abs(sa) // abs(sb)
        if operator == "s/":
            return signed64((-quotient if (sa < 0) != (sb < 0) else quotient) & mask)
        rest = abs(sa) - quotient * abs(sb)
        return signed64((-rest if sa < 0 else rest) & mask)
    return signed64(_UNSIGNED[operator](a, b, width) & mask)


_UNSIGNED = {
    "+": lambda a, b, width: a + b,
    "-": lambda a, b, width: a - b,
    "*": lambda a, b, width: a * b,
    "/": lambda a, b, width: a // b if b else 0,
    "%": lambda a, b, width: a % b if b else a,
    "|": lambda a, b, width: a | b,
    "&": lambda a, b, width: a & b,
    "^": lambda a, b, width: a ^ b,
    "<<": lambda a, b, width: a << (b & width - 1),
    ">>": lambda a, b, width: a >> (b & width - 1),
}


def extend(a, size, signed):
    a &= (1 << 8 * size) - 1
    if signed:
        a -= a >> 8 * size - 1 << 8 * size
    return signed64(a)


def swap(kind, a, bits):
    """be, le and bswap of a number on the machine that this runs on."""
    import sys
    a &= (1 << bits) - 1
    if kind == "bswap" or (kind == "be") == (sys.byteorder == "little"):
        a = int.from_bytes(a.to_bytes(bits // 8, "little"), "big")
    return signed64(a)


def compare(operator, a, b, width):
    """a op b for numbers; or for one Value with itself; None if it depends."""
    if type(a) is not int or type(b) is not int:
        if a is b and operator != "&":
            return operator in ("==", "<=", ">=", "s<=", "s>=")
        if b == 0 and operator in ("<", ">=", "&"):
            return operator == ">="
        return None
    mask = (1 << width) - 1
    a, b = a & mask, b & mask
    if operator[0] == "s":
        operator = operator[1:]
        a, b = a - (a >> width - 1 << width), b - (b >> width - 1 << width)
    return {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b,
            "&": a & b != 0}[operator]


def identity(operator, a, b, width):
    """a op b when that is an operand or a number whatever the rest is: x + 0, x & 0, x - x; or None.

    With width 32, "x" stands for its low half: the caller extends it.
    """
    if type(b) is int:
        b &= (1 << width) - 1
        if b == 0:
            if operator in ("+", "-", "|", "^", "<<", ">>", "s>>", "%", "s%"):
                return a
            if operator in ("*", "&", "/", "s/"):
                return 0
        elif b == 1:
            if operator in ("*", "/", "s/"):
                return a
            if operator in ("%", "s%"):
                return 0
        elif b == (1 << width) - 1:
            if operator == "&":
                return a
            if operator == "|":
                return signed64(b)
    elif type(a) is int:
        if a & (1 << width) - 1 == 0 and operator in ("/", "%", "s/", "s%", "<<", ">>", "s>>"):
            return 0
    elif a is b:
        if operator in ("-", "^"):
            return 0
        if operator in ("|", "&"):
            return a
    return None


def strength(operator, b, width):
    """(operator, number) that does the same for less, given x op b with a number b; else None."""
    b &= (1 << width) - 1
    if b and not b & b - 1:
        shift = b.bit_length() - 1
        if operator == "*":
            return "<<", shift
        if operator == "/":
            return ">>", shift
        if operator == "%":
            return "&", b - 1
    if operator == "-" and b != 1 << width - 1:
        b = -b & (1 << width) - 1
        return "+", b - (b >> width - 1 << width)
    return None


def comparison(operator, a, b):
    """(operator, a, b) with the number, if there is one, on the right."""
    if type(a) is int and type(b) is not int:
        return SWAPPED[operator], b, a
    return operator, a, b


def implied(operator, truth):
    """Comparisons of the same operands whose outcome is known once `operator` came out as `truth`."""
    if not truth:
        if operator not in INVERTED:
            return ()
        operator = INVERTED[operator]
    return _IMPLIED.get(operator, ())


_IMPLIED = {}
for _true, _also in {"==": ("<=", ">=", "s<=", "s>="), "!=": (), "<": ("<=", "!="), ">": (">=", "!="), "<=": (),
                     ">=": (), "s<": ("s<=", "!="), "s>": ("s>=", "!="), "s<=": (), "s>=": (), "&": ()}.items():
    _list = [(_true, True)] + [(other, True) for other in _also]
    _IMPLIED[_true] = tuple(_list + [(INVERTED[op], False) for op, _ in _list if op in INVERTED])
