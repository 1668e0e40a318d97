"""Instructions from allocated operations: moves at calls, operands, jump offsets."""

from .errors import AsmError
from .fold import COMMUTATIVE
from .instruction import FuncRef, Instruction, KsymRef, MapRef
from .ir import Value
from .lower import fits32
from .opcodes import *

_FROM_V2 = ("<", "<=", "s<", "s<=")
_MOV = BPF_ALU64 | BPF_MOV


class Jump:
    """A jump whose target is still a block."""

    __slots__ = ("code", "dst", "src", "imm", "target")

    def __init__(self, code, dst, src, imm, target):
        self.code, self.dst, self.src, self.imm, self.target = code, dst, src, imm, target


class Emitter:
    """Emits one function into `code`, a list of Instruction and Jump; `starts` says where blocks begin."""

    def __init__(self, function, registers, places, level):
        self.registers, self.places, self.level = registers, places, level
        self.code, self.spans, self.starts = [], [], {}
        self.span = None
        order = function.blocks
        for position, block in enumerate(order):
            self.next = order[position + 1] if position + 1 < len(order) else None
            self.starts[block] = len(self.code)
            if position == 0:
                self._move_all([(registers[value.n], register) for register, value in enumerate(function.params, 1)
                                if value.n in registers])
            for op in block.ops:
                self.span = op.span
                getattr(self, "_" + op.kind)(op)

    def _emit(self, code, dst=0, src=0, off=0, imm=0, ref=None):
        self.code.append(Instruction(code, dst, src, off, imm, ref))
        self.spans.append(self.span)

    def _jump_to(self, target, code=JA, dst=0, src=0, imm=0):
        self.code.append(Jump(code, dst, src, imm, target))
        self.spans.append(self.span)

    # moves

    def _move(self, dst, operand):
        """Register dst = a Value, a constant, an address or what was spilled."""
        if type(operand) is Value:
            src = self.registers[operand.n]
            if src != dst:
                self._emit(_MOV | BPF_X, dst, src)
            return
        if type(operand) is int:
            if fits32(operand):
                self._emit(_MOV, dst, imm=operand)
            elif 0 <= operand < 1 << 32:
                self._emit(BPF_ALU | BPF_MOV, dst, imm=operand - (1 << 32))
            else:
                self._emit(LDDW, dst, imm=operand & (1 << 64) - 1)
            return
        kind, what, off = operand
        if kind == "spill":
            self._emit(BPF_LDX | BPF_MEM | BPF_DW, dst, 10, self.places[what])
        elif kind == "stack":
            self._emit(_MOV | BPF_X, dst, 10)
            if self.places[what] + off:
                self._emit(BPF_ALU64 | BPF_ADD, dst, imm=self.places[what] + off)
        elif kind == "map":
            src = BPF_PSEUDO_MAP_FD if off is None else BPF_PSEUDO_MAP_VALUE
            self._emit(LDDW, dst, src, ref=MapRef(what, off))
        elif kind == "ksym":
            self._emit(LDDW, dst, BPF_PSEUDO_BTF_ID, ref=KsymRef(what))
        else:
            self._emit(LDDW, dst, BPF_PSEUDO_FUNC, ref=FuncRef(what.name))

    def _move_all(self, moves):
        """Registers dst = src for all (dst, src) as if at once."""
        pending = {dst: src for dst, src in moves if dst != src}
        sources = list(pending.values())
        while pending:
            ready = [dst for dst in pending if dst not in sources]
            for dst in ready:
                src = pending.pop(dst)
                sources.remove(src)
                self._emit(_MOV | BPF_X, dst, src)
            if not ready:
                # Only rings are left: open one with a register that no move needs.
                spare = next(r for r in (0, 5, 4, 3, 2, 1, 9, 8, 7, 6) if r not in pending and r not in sources
                             and all(r != dst for dst, _ in moves))
                dst, src = next(iter(pending.items()))
                self._emit(_MOV | BPF_X, spare, src)
                pending[dst] = spare
                sources[sources.index(src)] = spare

    def _call(self, op):
        registers = self.registers
        self._move_all([(register, registers[arg.n]) for register, arg in enumerate(op.args, 1)
                        if type(arg) is Value])
        for register, arg in enumerate(op.args, 1):
            if type(arg) is not Value:
                self._move(register, arg)
        kind, callee = op.info
        if kind == "helper":
            self._emit(CALL, imm=callee)
        elif kind == "function":
            self._emit(CALL, src=BPF_PSEUDO_CALL, ref=FuncRef(callee.name))
        else:
            self._emit(CALL, src=BPF_PSEUDO_KFUNC_CALL, ref=KsymRef(callee))
        self._result(op, 0)

    def _result(self, op, register):
        dst = self.registers.get(op.dst.n) if op.dst is not None else None
        if dst is not None and dst != register:
            self._emit(_MOV | BPF_X, dst, register)

    def _copy(self, op):
        self._move(self.registers[op.dst.n], op.args[0])

    # arithmetic

    def _source(self, operand):
        """(BPF_X or BPF_K, source register, immediate)."""
        if type(operand) is Value:
            return BPF_X, self.registers[operand.n], 0
        return BPF_K, 0, operand

    def _alu(self, op):
        operator, width = op.info
        operation, off = ALU_OPERATION[operator]
        a, b = op.args
        dst = self.registers[op.dst.n]
        if type(b) is Value and self.registers[b.n] == dst and operator in COMMUTATIVE:
            a, b = b, a
        if width == 32 and type(a) is int:
            a &= 0xFFFFFFFF
        self._move(dst, a)
        x, src, imm = self._source(b)
        self._emit((BPF_ALU64 if width == 64 else BPF_ALU) | operation | x, dst, src, off, imm)

    def _neg(self, op):
        dst = self.registers[op.dst.n]
        self._move(dst, op.args[0])
        self._emit(BPF_ALU64 | BPF_NEG, dst)

    def _swap(self, op):
        kind, bits = op.info
        code = {"le": BPF_ALU | BPF_END, "be": BPF_ALU | BPF_END | BPF_X, "bswap": BPF_ALU64 | BPF_END}[kind]
        dst = self.registers[op.dst.n]
        self._move(dst, op.args[0])
        self._emit(code, dst, imm=bits)

    def _extend(self, op):
        size, signed = op.info
        dst, src = self.registers[op.dst.n], self.registers[op.args[0].n]
        if signed:
            self._emit(_MOV | BPF_X, dst, src, size * 8)
        else:
            self._emit(BPF_ALU | BPF_MOV | BPF_X, dst, src)

    def _compare(self, op):
        operator, width = op.info
        dst = self.registers[op.dst.n]
        x, src, imm = self._source(op.args[1])
        absent = self.level < 2 and operator in _FROM_V2
        operator = INVERTED[operator] if absent else operator
        self._emit(_MOV, dst, imm=int(not absent))
        self._emit((BPF_JMP if width == 64 else BPF_JMP32) | JUMP_OPERATION[operator] | x,
                   self.registers[op.args[0].n], src, 1, imm)
        self._emit(_MOV, dst, imm=int(absent))

    # memory

    def _address(self, base, off):
        if type(base) is Value:
            return self.registers[base.n], off
        return 10, self.places[base[1]] + base[2] + off

    def _load(self, op):
        off, size, signed = op.info
        src, off = self._address(op.args[0], off)
        self._emit(BPF_LDX | (BPF_MEMSX if signed else BPF_MEM) | SIZE_CODE[size], self.registers[op.dst.n], src, off)

    def _store(self, op):
        off, size = op.info
        dst, off = self._address(op.args[0], off)
        x, src, imm = self._source(op.args[1])
        self._emit((BPF_STX if x else BPF_ST) | BPF_MEM | SIZE_CODE[size], dst, src, off, imm)

    def _spill(self, op):
        home, value = op.args
        if type(value) is Value:
            self._emit(BPF_STX | BPF_MEM | BPF_DW, 10, self.registers[value.n], self.places[home[1]])
        else:
            self._emit(BPF_ST | BPF_MEM | BPF_DW, 10, 0, self.places[home[1]], value)

    def _atomic(self, op):
        operator, off, size, fetch = op.info
        dst, off = self._address(op.args[0], off)
        imm = ATOMIC_OPERATION[operator]
        value = op.args[-1]
        if operator == "cmpxchg":
            self._move(0, op.args[1])
        elif fetch:
            imm |= BPF_FETCH
        self._emit(BPF_STX | BPF_ATOMIC | SIZE_CODE[size], dst, self.registers[value.n], off, imm)
        if operator == "cmpxchg":
            self._result(op, 0)

    # control

    def _jump(self, op):
        if op.info[0] is not self.next:
            self._jump_to(op.info[0])

    def _branch(self, op):
        operator, width, then, otherwise = op.info
        a, b = op.args
        inverse = INVERTED.get(operator)
        if self.level < 2 and inverse in _FROM_V2:
            inverse = SWAPPED[inverse] if type(b) is Value else None
        if then is self.next and inverse is not None:
            if inverse is not INVERTED[operator]:
                a, b = b, a
            then, otherwise, operator = otherwise, then, inverse
        x, src, imm = self._source(b)
        self._jump_to(then, (BPF_JMP if width == 64 else BPF_JMP32) | JUMP_OPERATION[operator] | x,
                      self.registers[a.n], src, imm)
        if otherwise is not self.next:
            self._jump_to(otherwise)

    def _ret(self, op):
        self._move(0, op.args[0])
        self._emit(EXIT)


def link(emitters, level):
    """Instructions, spans and the first instruction of each function, all jumps and local calls resolved."""
    code, spans, first, targets = [], [], {}, {}
    for name, emitter in emitters.items():
        first[name] = len(code)
        for block, start in emitter.starts.items():
            targets[block] = len(code) + start
        code += emitter.code
        spans += emitter.spans
    slots = _slots(code)
    if slots[-1] > 0x7FFF:
        slots = _reach(code, spans, targets, first, slots, level)
    out = []
    for index, item in enumerate(code):
        if type(item) is Jump:
            off = slots[targets[item.target]] - slots[index] - 1
            item = Instruction(item.code, imm=off) if item.code == JA32 else (
                Instruction(item.code, item.dst, item.src, off, item.imm))
        elif type(item.ref) is FuncRef:
            off = slots[first[item.ref.name]] - slots[index] - 1
            item = item._replace(imm=off & 0xFFFFFFFF if item.code == LDDW else off, ref=None)
        out.append(item)
    return out, spans, first


def _slots(code):
    slots, slot = [], 0
    for item in code:
        slots.append(slot)
        slot += 2 if item.code == LDDW else 1
    slots.append(slot)
    return slots


def _reach(code, spans, targets, first, slots, level):
    """Makes jumps that 16 bits cannot hold reach their target; returns the slots of the new code.

    In rounds, since what is put in pushes other things apart: all that are too long now, then those that are then."""
    limit = 0x7000
    most = 4 * slots[-1]
    while slots[-1] <= most:
        far = [i for i, item in enumerate(code) if type(item) is Jump and item.code != JA32
               and abs(slots[targets[item.target]] - slots[i]) > limit]
        if not far:
            return slots
        (_lengthen if level >= 4 else _step)(code, spans, targets, first, slots, far)
        slots = _slots(code)
    raise AsmError("the code is so large that its jumps do not reach their targets")


def _lengthen(code, spans, targets, first, _slots, far):
    """if ... goto +1; goto +1; gotol target"""
    added = {}
    for i in far:
        jump = code[i]
        if jump.code == JA:
            jump.code = JA32
        else:
            code[i] = Instruction(jump.code, jump.dst, jump.src, 1, jump.imm)
            added[i + 1] = [(None, Jump(JA32, 0, 0, 0, jump.target), spans[i])]
    _insert(code, spans, targets, first, added)


def _step(code, spans, targets, first, slots, far):
    """A step on the way, which all from one side to a target share that reach it: goto over it; goto target."""
    from bisect import bisect_left
    added, steps = {}, {}
    for i in far:
        jump, here = code[i], slots[i]
        forward = slots[targets[jump.target]] > here
        place, step = steps.get((jump.target, forward), (None, None))
        if step is None or (place <= i if forward else here - slots[place] > 0x5800):
            place = min(bisect_left(slots, here + (0x5000 if forward else -0x5000)), len(code) - 1)
            while type(code[place - 1]) is Instruction and code[place - 1].off == 1 and code[place - 1].code & 7 in (
                    BPF_JMP, BPF_JMP32):
                place -= 1  # never between a jump over the next instruction and that
            step = object()
            steps[jump.target, forward] = place, step
            added.setdefault(place, []).append((step, Jump(JA, 0, 0, 0, jump.target), spans[i]))
        jump.target = step
    _insert(code, spans, targets, first, added)


def _insert(code, spans, targets, first, added):
    """`added`: index -> [(label or None, Jump, span)] to put before what is there, with a jump over each."""
    old, old_spans = code[:], spans[:]
    code.clear(), spans.clear()
    moved, labels = [], {}
    for i, item in enumerate(old):
        for label, jump, span in added.get(i, ()):
            code.append(Instruction(JA, off=1))
            if label is not None:
                labels[label] = len(code)
            code.append(jump)
            spans += span, span
        moved.append(len(code))
        code.append(item)
        spans.append(old_spans[i])
    for table in (targets, first):
        for key, index in table.items():
            table[key] = moved[index]
    targets.update(labels)
