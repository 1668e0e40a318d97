"""From the IR to operations that are one BPF instruction each, still over virtual registers.

Operands that an instruction cannot hold are put in registers, and what the cpu level lacks is written
out. ALU operations still have a destination of their own: that `dst op= b` overwrites its first operand is
left to register allocation (which gives both one register where it can) and emission (which copies).
"""

from .errors import AsmError
from .flow import liveness
from .fold import COMMUTATIVE
from .ir import Op, Value
from .opcodes import INVERTED, SWAPPED


def fits32(number):
    return -1 << 31 <= number < 1 << 31


def signed32(number):
    number &= 0xFFFFFFFF
    return number - (number >> 31 << 32)


def lower(function, level):
    """Rewrites the function's blocks in place for cpu level 1 to 4."""
    _, live_out = liveness(function.blocks)
    for block in function.blocks:
        _Lowering(function, level, live_out[block]).block(block)


class _Lowering:
    """One block, from its end to its start: that is how it is known which operands are still needed."""

    def __init__(self, function, level, live):
        self.function, self.level, self.live = function, level, live
        self.out = []

    def block(self, block):
        for op in reversed(block.ops):
            start = len(self.out)
            self.span = op.span
            getattr(self, "_" + op.kind)(op)
            # What one operation became was appended in running order; the list as a whole is reversed.
            if len(self.out) - start > 1:
                self.out[start:] = self.out[:start - 1 if start else None:-1]
            live = self.live
            if op.dst is not None:
                live &= ~(1 << op.dst.n)
            for arg in op.args:
                if type(arg) is Value:
                    live |= 1 << arg.n
            self.live = live
        self.out.reverse()
        block.ops = self.out

    def _emit(self, kind, dst, args, info=None):
        self.out.append(Op(kind, dst, args, info, self.span))
        return dst

    def _keep(self, op):
        self.out.append(op)

    def _register(self, operand):
        """operand in a register."""
        if type(operand) is Value:
            return operand
        return self._emit("copy", self.function.variable(), (operand,))

    def _operand(self, operand, width=64):
        """operand as a register or a 32-bit immediate."""
        if type(operand) is int:
            if width == 32:
                return signed32(operand)
            if fits32(operand):
                return operand
        return self._register(operand)

    def _dies(self, value):
        return type(value) is Value and not self.live >> value.n & 1

    # values

    _copy = _jump = _call = _ret = _keep

    def _alu(self, op):
        operator, width = op.info
        a, b = op.args
        if operator in ("s/", "s%") and self.level < 4:
            return self._signed_division(op)
        if operator in COMMUTATIVE and (type(a) is int or type(a) is Value and self._dies(b) and not (
                self._dies(a))):
            a, b = b, a
        if type(b) is int:
            if operator in ("<<", ">>", "s>>"):
                b &= width - 1
            elif operator in ("/", "%", "s/", "s%") and not b & (1 << width) - 1:
                # The verifier refuses an immediate 0, though the operation is defined.
                b = self._register(0)
        self._emit("alu", op.dst, (a, self._operand(b, width)), (operator, width))

    def _signed_division(self, op):
        """Division of the magnitudes; the sign is (x ^ sign) - sign with sign 0 or -1."""
        operator, width = op.info
        new = self.function.variable

        def magnitude(x):
            value, sign = x, new()
            if width == 32:
                value = new()
                self._sign_extend(value, self._register(x), 4)
            self._emit("alu", sign, (value, 63), ("s>>", 64))
            flipped = self._emit("alu", new(), (value, sign), ("^", 64))
            return self._emit("alu", new(), (flipped, sign), ("-", 64)), sign

        a, sign = magnitude(op.args[0])
        b, divisor_sign = magnitude(op.args[1])
        if operator == "s/":
            sign = self._emit("alu", new(), (sign, divisor_sign), ("^", 64))
        quotient = self._emit("alu", new(), (a, b), (operator[1], 64))
        flipped = self._emit("alu", new(), (quotient, sign), ("^", 64))
        # The low half of the difference is what 32 bits of it are.
        self._emit("alu", op.dst, (flipped, sign), ("-", width))

    def _neg(self, op):
        self._emit("neg", op.dst, op.args)

    def _swap(self, op):
        kind, bits = op.info
        a = op.args[0]
        if kind == "bswap" and self.level < 4:
            # One of be and le swaps; both in a row swap once and clear the upper bits, on either machine.
            a = self._emit("swap", self.function.variable(), (a,), ("be", bits))
            kind = "le"
        self._emit("swap", op.dst, (a,), (kind, bits))

    def _extend(self, op):
        size, signed = op.info
        a = self._register(op.args[0])
        if size == 8:
            self._emit("copy", op.dst, (a,))
        elif signed:
            self._sign_extend(op.dst, a, size)
        elif size == 4:
            self._emit("extend", op.dst, (a,), (4, False))
        else:
            self._emit("alu", op.dst, (a, (1 << size * 8) - 1), ("&", 64))

    def _sign_extend(self, dst, a, size):
        if self.level >= 4:
            self._emit("extend", dst, (a,), (size, True))
            return
        shifted = self._emit("alu", self.function.variable(), (a, 64 - size * 8), ("<<", 64))
        self._emit("alu", dst, (shifted, 64 - size * 8), ("s>>", 64))

    def _compare(self, op):
        args, info = self._comparison(op.args, op.info)
        self._emit("compare", op.dst, args, info)

    def _comparison(self, args, info):
        operator, width = info[:2]
        a, b = args
        if type(a) is not Value and type(b) is Value:
            a, b, operator = b, a, SWAPPED[operator]
        a = self._register(a)
        if width == 32 and self.level < 3:
            # There is no 32-bit jump: compare what is shifted to the top.
            a, x = self._emit("alu", self.function.variable(), (a, 32), ("<<", 64)), a
            if x is b:
                b = a
            elif type(b) is Value:
                b = self._emit("alu", self.function.variable(), (b, 32), ("<<", 64))
            else:
                b = signed32(b) << 32
            width = 64
        b = self._operand(b, width)
        if self.level < 2 and operator in ("<", "<=", "s<", "s<=") and type(b) is Value:
            a, b, operator = b, a, SWAPPED[operator]
        return (a, b), (operator, width, *info[2:])

    def _branch(self, op):
        args, info = self._comparison(op.args, op.info)
        if self.level < 2 and info[0] in ("<", "<=", "s<", "s<="):
            info = (INVERTED[info[0]], info[1], info[3], info[2])
        self._emit("branch", None, args, info)

    # memory

    def _base(self, base):
        return base if type(base) is tuple and base[0] == "stack" else self._register(base)

    def _load(self, op):
        off, size, signed = op.info
        base = self._base(op.args[0])
        if not signed or size == 8 or self.level >= 4:
            self._emit("load", op.dst, (base,), (off, size, signed and size != 8))
            return
        loaded = self._emit("load", self.function.variable(), (base,), (off, size, False))
        self._sign_extend(op.dst, loaded, size)

    def _store(self, op):
        off, size = op.info
        base, value = op.args
        base = self._base(base)
        if type(value) is int and size == 8 and not fits32(value) and type(base) is tuple:
            import sys
            halves = (signed32(value), signed32(value >> 32))
            for half in (0, 1):
                self._emit("store", None, (base, halves[half ^ (sys.byteorder == "big")]), (off + 4 * half, 4))
            return
        if type(value) is int and size < 8:
            value = signed32(value)
        self._emit("store", None, (base, self._operand(value)), (off, size))

    def _atomic(self, op):
        operator, off, size, fetch = op.info
        if fetch and operator not in ("xchg", "cmpxchg") and not self.live >> op.dst.n & 1:
            fetch = False
        if self.level < 3 and (fetch or operator != "+"):
            raise AsmError("function %s: atomic %s%s needs instruction set v3 (Linux 5.12)" % (
                self.function.name, operator, " with fetch" if fetch else ""))
        base = self._base(op.args[0])
        value = op.args[1]
        if operator == "cmpxchg":
            self._emit("atomic", op.dst, (base, value, self._register(op.args[2])), op.info)
        elif fetch:
            self._emit("copy", op.dst, (value,)) if value is not op.dst else None
            self._emit("atomic", op.dst, (base, op.dst), op.info)
        else:
            self._emit("atomic", None, (base, self._register(value)), (operator, off, size, False))
