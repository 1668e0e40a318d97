"""The intermediate representation and its builder: what the rest of the project makes code with.

A `Function` is blocks of operations over virtual registers (`Value`), 64 bits wide. A Value is set by the
operation that made it; one from `variable()` is set as often as wanted. An operand is a Value or an int
(taken modulo 2**64). Blocks end in `jump`, `branch` or `ret`. `str(function)` prints it.

    f = Function("main")
    hit, miss = f.block("hit"), f.block("miss")
    key = f.slot(4)
    f.store(key, 0, 0, 4)
    p = f.call("bpf_map_lookup_elem", f.map("counts"), f.address(key))
    f.branch("==", p, 0, miss, hit)
    f.position(hit)
    f.atomic("+", p, 0, 1)
    f.jump(miss)
    f.position(miss)
    f.ret(0)
"""

from .errors import AsmError
from .helpers import NAME, helper_number
from .opcodes import ALU_OPERATION, ATOMIC_OPERATION, JUMP_OPERATION

_SIZES = (1, 2, 4, 8)
_MASK = (1 << 64) - 1


class Value:
    """A virtual register of 64 bits."""

    __slots__ = ("n",)

    def __init__(self, n):
        self.n = n

    def __repr__(self):
        return "v%d" % self.n


class Slot:
    """Bytes on the BPF stack. Slots that are never in use at the same time share space."""

    __slots__ = ("n", "size", "align")

    def __init__(self, n, size, align):
        self.n, self.size, self.align = n, size, align

    def __repr__(self):
        return "slot%d" % self.n


class SpillSlot(Slot):
    """A slot of the register allocator's: only whole, by `spill` stores and as an operand."""

    __slots__ = ()


class Op:
    """One operation: `dst` (a Value or None) = `kind`(`args`), with what is no operand in `info`.

    kind      args                 info
    copy      operand              -      operand may also be a Symbol, see below
    alu       a, b                 (operator, width)
    neg       a                    -
    swap      a                    ("be" | "le" | "bswap", bits)
    extend    a                    (bytes, signed)
    load      base                 (offset, bytes, signed)
    store     base, value          (offset, bytes)
    atomic    base, value[, new]   (operator, offset, bytes, fetch)   cmpxchg: value is what is expected
    call      operands             ("helper", number) | ("function", Function) | ("kfunc", name)
    compare   a, b                 (operator, width)
    jump      -                    (block,)
    branch    a, b                 (operator, width, then, otherwise)
    ret       value                -

    A Symbol is an address that is known when the program is loaded, and cheaper to make again than to
    keep: ("stack", Slot, offset), ("map", name, None | offset in its first value), ("func", Function),
          ("ksym", name).

    Passes add `phi` (see ssa.py), and register allocation `spill` slot, value and the operand ("spill",
    SpillSlot, 0), which is what is stored there.
    """

    __slots__ = ("kind", "dst", "args", "info", "span")

    def __init__(self, kind, dst, args, info, span):
        self.kind, self.dst, self.args, self.info, self.span = kind, dst, args, info, span

    def __str__(self):
        return op_text(self)


TERMINATORS = ("jump", "branch", "ret")


class Block:
    """Operations that run one after the other; the last one is a terminator."""

    __slots__ = ("n", "hint", "ops")

    def __init__(self, n, hint):
        self.n, self.hint, self.ops = n, hint, []

    @property
    def terminated(self):
        return bool(self.ops) and self.ops[-1].kind in TERMINATORS

    def __repr__(self):
        return "%s%d" % (self.hint or "b", self.n)


class Function:
    """A BPF function under construction; `params` arguments (at most 5) arrive in r1 to r5."""

    def __init__(self, name, params=1):
        if not 0 <= params <= 5:
            raise AsmError("function %s: %d parameters; a BPF function has at most 5" % (name, params))
        self.name = name
        self.values = 0
        self.slots = []
        self.blocks = []
        self.block_count = 0
        self.span = None
        self.params = [self.variable() for _ in range(params)]
        self.current = self.block("entry")

    # blocks

    def block(self, hint=""):
        """A new, empty block; `hint` names it in the printed form."""
        block = Block(self.block_count, hint)
        self.block_count += 1
        self.blocks.append(block)
        return block

    def position(self, block):
        """Code is appended to `block` from now on."""
        self.current = block

    @property
    def terminated(self):
        return self.current.terminated

    def _add(self, kind, args, info=None, result=True):
        block = self.current
        if block.terminated:
            raise AsmError("function %s: %s after the end of block %r" % (self.name, kind, block))
        dst = self.variable() if result else None
        block.ops.append(Op(kind, dst, args, info, self.span))
        return dst

    # values

    def variable(self):
        """A new Value, to be given with `set`."""
        self.values += 1
        return Value(self.values - 1)

    def const(self, number):
        return self._add("copy", (_operand(number),))

    def set(self, variable, operand):
        """variable = operand."""
        block = self.current
        if block.terminated:
            raise AsmError("function %s: set after the end of block %r" % (self.name, block))
        block.ops.append(Op("copy", variable, (_operand(operand),), None, self.span))

    def copy(self, value):
        """A new Value that keeps what `value` is now."""
        return self._add("copy", (_operand(value),))

    def alu(self, op, a, b, width=64):
        """a op b; `/` and `%` by zero give 0 and a; shifts take the count modulo width; 32: upper half 0."""
        if op not in ALU_OPERATION or width not in (32, 64):
            raise AsmError("no ALU operation %s of %s bits" % (op, width))
        return self._add("alu", (_operand(a), _operand(b)), (op, width))

    def neg(self, a):
        return self._add("neg", (_operand(a),))

    def swap(self, kind, a, bits):
        """Byte order: "be"/"le" convert the low `bits` (16, 32, 64) from or to it, "bswap" always swaps."""
        if kind not in ("be", "le", "bswap") or bits not in (16, 32, 64):
            raise AsmError("no byte swap %s%s" % (kind, bits))
        return self._add("swap", (_operand(a),), (kind, bits))

    def extend(self, a, size, signed):
        """The low `size` bytes of a, extended with zeros or the sign to 64 bits."""
        if size not in _SIZES:
            raise AsmError("extend from %s bytes" % size)
        return self._add("extend", (_operand(a),), (size, bool(signed)))

    def compare(self, op, a, b, width=64):
        """1 if a op b else 0."""
        _check_comparison(op, width)
        return self._add("compare", (_operand(a), _operand(b)), (op, width))

    # memory

    def slot(self, size, align=8):
        """`size` bytes of stack."""
        if size <= 0 or align not in _SIZES:
            raise AsmError("a stack slot of %s bytes aligned to %s" % (size, align))
        slot = Slot(len(self.slots), size, align)
        self.slots.append(slot)
        return slot

    def load(self, base, off, size, signed=False):
        """The `size` bytes at base + off (base: Value or Slot), extended to 64 bits."""
        base, off = self._base(base, off, size)
        return self._add("load", (base,), (off, size, bool(signed)))

    def store(self, base, off, operand, size):
        """The low `size` bytes of operand to base + off (base: Value or Slot)."""
        base, off = self._base(base, off, size)
        self._add("store", (base, _operand(operand)), (off, size), False)

    def atomic(self, op, base, off, operand, size=8, fetch=False):
        """Atomically base[off] op= operand. Returns the old value with `fetch`, else None.

        "xchg" always returns the old value; so does "cmpxchg", whose operand is (expected, new).
        Only `+` without fetch exists before cpu "v3" (Linux 5.12).
        """
        if op not in ATOMIC_OPERATION or size not in (4, 8):
            raise AsmError("no atomic operation %s of %s bytes" % (op, size))
        operands = operand if op == "cmpxchg" else (operand,)
        fetch = bool(fetch) or op in ("xchg", "cmpxchg")
        base, off = self._base(base, off, size)
        return self._add("atomic", (base, *map(_operand, operands)), (op, off, size, fetch), fetch)

    def _base(self, base, off, size):
        """(operand, offset) of memory; an offset that no instruction holds is added before."""
        if size not in _SIZES or not -1 << 31 <= off < 1 << 31:
            raise AsmError("memory of %s bytes at offset %s" % (size, off))
        if isinstance(base, Slot):
            if not 0 <= off <= base.size - size:
                raise AsmError("bytes %d to %d are outside %r of %d bytes" % (off, off + size, base, base.size))
            return ("stack", base, 0), off
        if not isinstance(base, Value):
            raise AsmError("%r is no base address: a Value or a Slot is" % (base,))
        return (base, off) if -0x8000 <= off < 0x8000 else (self.alu("+", base, off), 0)

    # addresses

    def address(self, slot, off=0):
        """The address of byte `off` of a stack slot."""
        if not 0 <= off <= slot.size:
            raise AsmError("offset %d is outside %r of %d bytes" % (off, slot, slot.size))
        return self._add("copy", (("stack", slot, off),))

    def map(self, name):
        """The address of the map `name`, as helpers take it."""
        return self._add("copy", (("map", name, None),))

    def map_value(self, name, off=0):
        """The address of byte `off` of the first value of the array map `name` (Linux 5.2)."""
        return self._add("copy", (("map", name, off),))

    def func(self, other):
        """The address of another Function of the program, as bpf_loop and the like take it (Linux 5.13)."""
        return self._add("copy", (("func", other, None),))

    def ksym(self, name):
        """The address of a variable of the kernel that BTF knows: of a per-CPU one, what bpf_per_cpu_ptr takes (Linux 5.10)."""
        return self._add("copy", (("ksym", name, None),))

    # calls

    def call(self, helper, *operands):
        """A helper by name or number; its result."""
        number = helper if isinstance(helper, int) else helper_number(helper)
        return self._call(("helper", number), operands)

    def call_function(self, function, *operands):
        """Another Function of the program; its result."""
        if len(operands) != len(function.params):
            raise AsmError("%s takes %d arguments, not %d" % (function.name, len(function.params), len(operands)))
        return self._call(("function", function), operands)

    def call_kfunc(self, name, *operands):
        """A kernel function by name (Linux 5.13); its result."""
        return self._call(("kfunc", name), operands)

    def _call(self, callee, operands):
        if len(operands) > 5:
            raise AsmError("a call with %d arguments; BPF passes at most 5" % len(operands))
        return self._add("call", tuple(map(_operand, operands)), callee)

    # terminators

    def jump(self, block):
        self._add("jump", (), (block,), False)

    def branch(self, op, a, b, then, otherwise, width=64):
        """To block `then` if a op b, else to `otherwise`."""
        _check_comparison(op, width)
        self._add("branch", (_operand(a), _operand(b)), (op, width, then, otherwise), False)

    def ret(self, operand):
        self._add("ret", (_operand(operand),), None, False)

    def __str__(self):
        lines = ["function %s(%s)" % (self.name, ", ".join(map(repr, self.params)))]
        for block in self.blocks:
            lines.append("%r:" % block)
            lines.extend("    " + op_text(op) for op in block.ops)
        return "\n".join(lines)


def signed64(number):
    """number modulo 2**64 as a signed value."""
    number &= _MASK
    return number - (number >> 63 << 64)


def _operand(operand):
    if isinstance(operand, Value):
        return operand
    if isinstance(operand, int):
        return signed64(operand)
    raise AsmError("%r is no operand: a Value or an int is" % (operand,))


def _check_comparison(op, width):
    if op not in JUMP_OPERATION or width not in (32, 64):
        raise AsmError("no comparison %s of %s bits" % (op, width))


def operand_text(operand):
    if isinstance(operand, tuple):
        kind, what, off = operand
        name = what.name if kind == "func" else what
        return "%s %s%s" % (kind, name, "" if off is None else " + %d" % off)
    return repr(operand)


def op_text(op):
    """One operation as a line of text."""
    args, info = [operand_text(arg) for arg in op.args], op.info
    if op.kind in ("alu", "compare"):
        text = "%s %s %s (%d)" % (args[0], info[0], args[1], info[1])
    elif op.kind == "branch":
        text = "if %s %s %s (%d) goto %r else %r" % (args[0], info[0], args[1], *info[1:])
    elif op.kind == "jump":
        text = "goto %r" % info[0]
    elif op.kind == "load":
        text = "%s%d [%s + %d]" % ("s" if info[2] else "u", info[1] * 8, args[0], info[0])
    elif op.kind == "store":
        text = "u%d [%s + %d] = %s" % (info[1] * 8, args[0], info[0], args[1])
    elif op.kind == "call":
        what, callee = info
        name = {"helper": lambda: NAME[callee] if callee < len(NAME) else "#%d" % callee,
                "function": lambda: callee.name, "kfunc": lambda: callee}[what]()
        text = "call %s(%s)" % (name, ", ".join(args))
    else:
        text = " ".join([op.kind, *(str(i) for i in info or ()), ", ".join(args)])
    return "%r = %s" % (op.dst, text) if op.dst is not None else text
