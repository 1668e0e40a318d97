"""Value numbering over the dominator tree of a function in SSA form.

One walk does what has to know the values of operands: copies and constants are propagated, constant
operations folded, equal operations and loads found (Briggs, Cooper and Simpson's dominator-based value
numbering), stored values forwarded to loads, branches decided that an earlier branch already decided,
and constant offsets moved into memory operands.
"""

import sys

from . import fold
from .flow import predecessors, successors
from .helpers import NUMBER
from .ir import Op, Value, signed64
from .lower import fits32
from .opcodes import INVERTED
from .ssa import dominators

# The same whenever a program asks: one call is enough.
CONSTANT = {NUMBER["bpf_" + name] for name in (
    "get_current_pid_tgid get_current_uid_gid get_smp_processor_id get_numa_node_id get_current_task "
    "get_current_task_btf get_current_cgroup_id get_func_ip get_attach_cookie get_func_arg_cnt").split()}
# Read something and leave all memory as it is.
PURE = CONSTANT | {NUMBER["bpf_" + name] for name in (
    "ktime_get_ns ktime_get_boot_ns ktime_get_coarse_ns ktime_get_tai_ns jiffies64 get_prandom_u32 "
    "map_lookup_elem map_lookup_percpu_elem this_cpu_ptr per_cpu_ptr").split()}
# Write at most what they are given a pointer to, and maps: the context stays as it is.
_TAME = PURE | {NUMBER["bpf_" + name] for name in (
    "map_update_elem map_delete_elem map_push_elem probe_read probe_read_user probe_read_kernel probe_read_str "
    "probe_read_user_str probe_read_kernel_str perf_event_output ringbuf_output ringbuf_reserve ringbuf_submit "
    "ringbuf_discard get_stackid get_stack get_current_comm trace_printk trace_vprintk strncmp snprintf "
    "perf_event_read perf_event_read_value probe_write_user send_signal send_signal_thread for_each_map_elem "
    "loop copy_from_user get_ns_current_pid_tgid get_func_arg get_func_ret d_path dynptr_from_mem").split()}

_UNARY = {"neg": lambda a, info: signed64(-a), "swap": lambda a, info: fold.swap(info[0], a, info[1]),
          "extend": lambda a, info: fold.extend(a, *info)}


def number_values(function, level=3, main=True):
    """One walk; returns True if a branch was decided, so that blocks may be unreachable now.

    main: the parameter is a context, which no pointer but itself points into.
    """
    return _Walk(function, level, main).run()


class _Walk:
    def __init__(self, function, level, main):
        self.function, self.level = function, level
        self.before = predecessors(function.blocks)
        self.same = {}      # n -> the operand it is equal to
        self.symbol = {}    # n -> the map or function whose address it is
        self.place = {}     # n -> (base, offset) of a sum with a constant
        self.made = {}      # n -> the Op that sets it
        self.width = {}     # n -> how many low bits of it can be set, if not 64
        self.table = {}     # what was computed, and outcomes of comparisons, in the dominating blocks
        self.undo = []
        self.memory_after = {}
        self.decided = False
        self.context = {value.n for value in function.params[:1]} if main else ()
        self._scan()

    def _scan(self):
        """Counts uses; finds the slots that something else than loads, stores and calls may reach."""
        self.uses = uses = {}
        pointer = {}            # n -> (slot, offset): of a Value that `_sum` and `_copy` make one of
        self.escaped = escaped = set()
        joined = []
        for block in self.function.blocks:
            for op in block.ops:
                kind = op.kind
                if kind == "phi":
                    joined.append(op)   # its operands may be made further on
                for position, arg in enumerate(op.args):
                    if type(arg) is Value:
                        uses[arg.n] = uses.get(arg.n, 0) + 1
                        held = pointer.get(arg.n)
                    else:
                        held = arg[1:] if type(arg) is tuple and arg[0] == "stack" else None
                    if held is None or kind == "call" or position == 0 and kind in ("load", "store", "atomic"):
                        continue
                    if kind == "copy":
                        pointer[op.dst.n] = held
                    elif kind == "alu" and op.info == ("+", 64) and position == 0 and type(op.args[1]) is int and (
                            _inside(held, op.args[1])):
                        pointer[op.dst.n] = held[0], held[1] + op.args[1]
                    else:
                        escaped.add(held[0])
        for op in joined:
            escaped.update(pointer[arg.n][0] for arg in op.args if type(arg) is Value and arg.n in pointer)

    def run(self):
        blocks = self.function.blocks
        idom = dominators(blocks, self.before)
        children = {block: [] for block in blocks}
        for block in blocks[1:]:
            children[idom[block]].append(block)
        # Reverse postorder within siblings: every block but a loop's head has all before it visited.
        work = [(blocks[0], False)]
        marks = {}
        while work:
            block, leaving = work.pop()
            if leaving:
                self._rewind(marks[block])
                continue
            marks[block] = len(self.undo)
            work.append((block, True))
            self._block(block)
            for child in reversed(children[block]):
                work.append((child, False))
        return self.decided

    def _remember(self, table, key, value):
        self.undo.append((table, key, table.get(key)))
        table[key] = value

    def _rewind(self, mark):
        undo = self.undo
        while len(undo) > mark:
            table, key, value = undo.pop()
            if value is None:
                del table[key]
            else:
                table[key] = value

    def _resolve(self, operand):
        same = self.same
        while type(operand) is Value and operand.n in same:
            operand = same[operand.n]
        return operand

    def _bits(self, operand):
        """How many low bits of the operand can be set."""
        if type(operand) is Value:
            return self.width.get(operand.n, 64)
        if type(operand) is int:
            return operand.bit_length() if operand >= 0 else 64
        return 64

    # blocks

    def _block(self, block):
        before = self.before[block]
        self._join(before)
        if len(before) == 1:
            self._edge(before[0], block)
        self.out = []
        for op in block.ops:
            kind = op.kind
            if kind == "phi":
                self._phi(op)
            else:
                op.args = args = tuple([self._resolve(a) if type(a) is Value else a for a in op.args])
                self.span = op.span
                getattr(self, "_" + kind)(op)
        block.ops = self.out
        self.memory_after[block] = self.memory
        for target in successors(block):
            for op in target.ops:
                if op.kind != "phi":
                    break
                op.args = tuple([self._resolve(a) if source is block else a for a, source in zip(op.args, op.info)])

    def _join(self, before):
        """What is in memory whichever way control came."""
        states = [self.memory_after.get(source) for source in before]
        self.memory = {}
        if not states or None in states:
            return
        for base, known in states[0].items():
            others = [state.get(base) for state in states[1:]]
            if None not in others:
                self.memory[base] = dict(known) if not others else {
                    where: value for where, value in known.items() if all(o.get(where) == value for o in others)}

    def _edge(self, source, block):
        """What is known because `source` branched here."""
        last = source.ops[-1]
        if last.kind != "branch":
            return
        operator, width, then, otherwise = last.info
        a, b = last.args
        truth = then is block
        for other, outcome in fold.implied(operator, truth):
            self._remember(self.table, ("if", other, a, b, width), outcome)
        if width == 64 and type(b) is int and (operator == "==" and truth or operator == "!=" and not truth):
            if type(a) is Value:
                self._remember(self.same, a.n, b)

    def _phi(self, op):
        args = {self._resolve(a) for a in op.args}
        args.discard(op.dst)
        if len(args) == 1:
            only = args.pop()
            self.same[op.dst.n] = only
            return
        if all(type(a) in (int, Value) for a in args):
            width = max(self._bits(a) for a in args)
            if width < 64:
                self.width[op.dst.n] = width
        self.out.append(op)

    def _low(self, operand, bits):
        """The operand, or what has the same low bits before it was extended or masked."""
        while type(operand) is Value:
            made = self.made.get(operand.n)
            if made is None:
                return operand
            if made.kind == "extend" and 8 * made.info[0] >= bits:
                operand = self._resolve(made.args[0])
            elif made.kind == "alu" and made.info[0] == "&" and type(made.args[1]) is int and (
                    made.args[1] + 1 & (1 << bits) - 1 == 0) and made.info[1] >= bits:
                operand = self._resolve(made.args[0])
            else:
                return operand
        return operand

    # operations

    def _add(self, op, key=None):
        """Appends the operation, or finds the Value of an equal one before it."""
        if key is not None:
            known = self.table.get(key)
            if known is not None:
                self.same[op.dst.n] = known
                return False
            self._remember(self.table, key, op.dst)
        if op.dst is not None:
            self.made[op.dst.n] = op
        self.out.append(op)
        return True

    def _copy(self, op):
        operand = op.args[0]
        if type(operand) is tuple and operand[0] != "stack":
            if self._add(op, ("copy", operand)):
                self.symbol[op.dst.n] = operand
            return
        self.same[op.dst.n] = operand

    def _alu(self, op):
        operator, width = op.info
        a, b = op.args
        if width == 32:
            a, b = self._low(a, 32), self._low(b, 32)
        if type(a) is int and type(b) is int:
            self.same[op.dst.n] = fold.alu(operator, a, b, width)
            return
        if type(a) is int and operator in fold.COMMUTATIVE or type(a) is Value and type(b) is tuple and operator == "+":
            a, b = b, a
        if type(b) is int and operator in ("<<", ">>", "s>>"):
            b &= width - 1          # as the operation does; of a count that is too large the verifier follows nothing
        result = fold.identity(operator, a, b, width)
        if result is not None:
            self._become(op, result, width)
            return
        if type(b) is int:
            cheaper = fold.strength(operator, b, width)
            if cheaper:
                operator, b = cheaper
            if width == 64:
                if operator == "+" and self._sum(op, a, b):
                    return
                if operator == "&" and b >= 0 and b & (1 << self._bits(a)) - 1 == (1 << self._bits(a)) - 1:
                    self.same[op.dst.n] = a
                    return
                if operator == ">>" and self._shifted_back(op, a, b):
                    return
                if operator == "&" and b == 0xFFFFFFFF:
                    self._extend(Op("extend", op.dst, (a,), (4, False), op.span))
                    return
        elif operator in fold.COMMUTATIVE and type(a) is Value and type(b) is Value and a.n > b.n:
            a, b = b, a
        op.args, op.info = (a, b), (operator, width)
        if self._add(op, ("alu", operator, a, b, width)):
            bits = self._result_bits(operator, a, b, width)
            if bits < 64:
                self.width[op.dst.n] = bits

    def _result_bits(self, operator, a, b, width):
        """How many low bits of a op b can be set, as far as the verifier sees it too."""
        left, right = min(self._bits(a), width), min(self._bits(b), width)
        if operator == "&":
            return min(left, right)
        if operator in ("|", "^"):
            return max(left, right)
        if operator == ">>" and type(b) is int:
            return max(left - (b & width - 1), 0)
        if operator == "<<" and type(b) is int:
            return min(left + (b & width - 1), width)
        if operator == "+" and max(left, right) < width:
            return max(left, right) + 1
        return width

    def _become(self, op, operand, width):
        """op is `operand`, of which `width` bits count."""
        if width == 32 and type(operand) is Value:
            self._extend(Op("extend", op.dst, (operand,), (4, False), op.span))
        else:
            self.same[op.dst.n] = operand if type(operand) is not int or width == 64 else operand & 0xFFFFFFFF

    def _sum(self, op, a, b):
        """a + b with a number b: addresses are collected as base and offset."""
        if type(a) is tuple:
            if a[0] == "stack" and _inside(a[1:], b):
                self.same[op.dst.n] = ("stack", a[1], a[2] + b)
                return True
            return False
        base, off = self.place.get(a.n, (a, 0))
        self.place[op.dst.n] = (base, off + b)
        if base is not a and self.uses.get(a.n, 0) == 1 and fits32(off + b):
            # Nobody looks at the sum in between, so no check of it is lost.
            if off + b == 0:
                self.same[op.dst.n] = base
                return True
            op.args, op.info = (base, off + b), ("+", 64)
            self._add(op, ("alu", "+", base, off + b, 64))
            return True
        return False

    def _shifted_back(self, op, a, b):
        """x << n >> n is an extension of the low bits."""
        made = self.made.get(a.n) if type(a) is Value else None
        if made is not None and made.kind == "alu" and made.info == ("<<", 64) and made.args[1] == b == 32:
            self._extend(Op("extend", op.dst, (made.args[0],), (4, False), op.span))
            return True
        return False

    def _unary(self, op):
        a = op.args[0]
        if type(a) is int:
            self.same[op.dst.n] = _UNARY[op.kind](a, op.info)
            return False
        return self._add(op, (op.kind, a, op.info))

    def _neg(self, op):
        self._unary(op)

    def _swap(self, op):
        op.args = (self._low(op.args[0], op.info[1]),)
        if self._unary(op) and op.info[1] < 64:
            self.width[op.dst.n] = op.info[1]

    def _extend(self, op):
        size, signed = op.info
        bits = self._bits(op.args[0])
        if size == 8 or bits < 8 * size or bits == 8 * size and not signed:
            self.same[op.dst.n] = op.args[0]
            return
        op.args = (self._low(op.args[0], 8 * size),)
        if self._unary(op) and not signed:
            self.width[op.dst.n] = 8 * size

    def _comparison(self, op):
        """Sets op.args and op.info to the simplest comparison; returns its outcome if that is known."""
        operator, width = op.info[:2]
        operator, a, b = fold.comparison(operator, *op.args)
        inverted = False
        while True:
            made = self.made.get(a.n) if type(a) is Value else None
            if made is None or b != 0 or operator not in ("==", "!="):
                break
            if made.kind == "compare":
                inverted ^= operator == "=="
                operator, width = made.info
                a, b = (self._resolve(x) for x in made.args)
            elif made.kind == "alu" and made.info[0] == "&" and (width == 64 or made.info[1] == width) and (
                    self.uses.get(a.n) == 1):
                inverted ^= operator == "=="
                operator, width = "&", made.info[1]
                a, b = (self._resolve(x) for x in made.args)
            else:
                break
        if inverted and operator in INVERTED:
            operator, inverted = INVERTED[operator], False
        operator, a, b = fold.comparison(operator, a, b)
        if width == 32:
            a, b = self._low(a, 32), self._low(b, 32)
        if width == 64 and type(b) is int and not fits32(b) and 0 <= b < 1 << 32 and operator[0] != "s" and (
                self.level >= 3 and self._bits(a) <= 32):
            width = 32
        if width == 32 and type(b) is int:
            b = signed64(b & 0xFFFFFFFF)
        outcome = fold.compare(operator, a, b, width)
        if outcome is None and type(b) is int:
            outcome = self._beyond(operator, a, b, width)
        if outcome is None:
            outcome = self.table.get(("if", operator, a, b, width))
        op.args, op.info = (a, b), (operator, width, *op.info[2:])
        return (outcome if outcome is None else outcome != inverted), inverted

    def _beyond(self, operator, a, b, width):
        """The outcome of a op b if b is larger than anything that the known bits of a can be."""
        bits = self._bits(a)
        if bits < width and b & (1 << width) - 1 >= 1 << bits and operator != "&":
            if operator[0] != "s":
                return operator in ("!=", "<", "<=")
            return (operator in ("s<", "s<=")) == (b >= 0 and not (width == 32 and b >> 31 & 1))
        return None

    def _compare(self, op):
        original = op.args, op.info
        outcome, inverted = self._comparison(op)
        if outcome is not None:
            self.same[op.dst.n] = int(outcome)
            return
        if inverted:
            op.args, op.info = original
        if self._add(op, ("compare", op.info, op.args)):
            self.width[op.dst.n] = 1

    def _branch(self, op):
        then, otherwise = op.info[2:]
        outcome, inverted = self._comparison(op)
        if inverted:
            then, otherwise = otherwise, then
        operator, width = op.info[:2]
        op.info = (operator, width, then, otherwise)
        if outcome is not None or then is otherwise:
            # `outcome` speaks of the branch as it was written.
            target = (otherwise if outcome == inverted else then) if outcome is not None else then
            op = Op("jump", None, (), (target,), op.span)
            self.decided = True
        self.out.append(op)

    def _jump(self, op):
        self.out.append(op)

    def _ret(self, op):
        op.args = tuple([self.symbol.get(a.n, a) if type(a) is Value else a for a in op.args])
        self.out.append(op)

    # memory: self.memory is {base: {(offset, size): (what is there, it is known to be extended)}}

    def _place(self, op, off):
        """Moves constants from the base into the offset; returns (key of the base, offset)."""
        base = op.args[0]
        if type(base) is Value:
            root, more = self.place.get(base.n, (base, 0))
            if root is not base and -0x8000 <= off + more < 0x8000:
                base, off = root, off + more
                op.args = (base, *op.args[1:])
        if type(base) is tuple and base[0] == "stack":
            return base[1], base[2] + off, off
        return base, off, off

    def _load(self, op):
        off, size, signed = op.info
        key, at, off = self._place(op, off)
        op.info = (off, size, signed)
        known = self.memory.get(key, {})
        found = known.get((at, size))
        if found is None and type(key) is not Value:
            found = _within(known, at, size)
        if found is not None:
            bits = self._bits(found)
            if type(found) is int:
                self.same[op.dst.n] = fold.extend(found, size, signed)
                return
            if size == 8 or bits < 8 * size or bits == 8 * size and not signed:
                self.same[op.dst.n] = found
                return
            if not signed:
                # The low bytes of what was stored.
                self._extend(Op("extend", op.dst, (found,), (size, False), op.span))
                return
        self._add(op)
        if not signed or size == 8:
            if size < 8:
                self.width[op.dst.n] = 8 * size
            self.memory.setdefault(key, {})[at, size] = op.dst

    def _forget(self, key, at, size):
        """Something else may be in these bytes from now on."""
        memory = self.memory
        known = memory.get(key)
        if known:
            for there, length in _overlapping(known, at, size):
                value = known.pop((there, length))
                if type(value) is int and length > 1:
                    for i, byte in enumerate(_bytes(value, length), there):
                        if not at <= i < at + size:
                            known[i, 1] = byte
        if type(key) is not Value:
            if key in self.escaped:
                self._forget_others(key)
        elif key.n not in self.context:
            self._forget_others(key)

    def _forget_others(self, key):
        """What a pointer of unknown origin may point to, other than where `key` itself does."""
        for other in list(self.memory):
            if other is key or type(other) is Value and other.n in self.context:
                continue
            if type(other) is Value or other in self.escaped:
                del self.memory[other]

    def _store(self, op):
        off, size = op.info
        key, at, off = self._place(op, off)
        op.info = (off, size)
        value = op.args[1]
        if size < 8:
            low = self._low(value, 8 * size)
            if low is not value:
                op.args, value = (op.args[0], low), low
        known = self.memory.get(key, {})
        if known.get((at, size)) == value:
            return
        if type(value) is int and type(key) is not Value and _within(known, at, size) == value & (1 << 8 * size) - 1:
            return
        self._forget(key, at, size)
        if type(value) is int or type(value) is Value:
            self.memory.setdefault(key, {})[at, size] = value
        self.out.append(op)

    def _atomic(self, op):
        operator, off, size, fetch = op.info
        key, at, off = self._place(op, off)
        op.info = (operator, off, size, fetch)
        self._forget(key, at, size)
        self._add(op)
        if fetch and size == 4:
            self.width[op.dst.n] = 32

    def _call(self, op):
        kind, callee = op.info
        op.args = args = tuple([self.symbol.get(a.n, a) if type(a) is Value else a for a in op.args])
        if kind == "helper" and callee in CONSTANT:
            self._add(op, ("call", callee, args))
            return
        self._add(op)
        if kind == "helper" and callee in PURE:
            return
        tame = kind == "helper" and callee in _TAME
        given = {arg[1] for arg in args if type(arg) is tuple and arg[0] == "stack"}
        for base in list(self.memory):
            if type(base) is Value:
                if not (tame and base.n in self.context):
                    del self.memory[base]
            elif base in given or base in self.escaped:
                del self.memory[base]


def _inside(place, distance):
    """Is (slot, offset) still in the slot, or at its end, that far on?"""
    slot, off = place
    return 0 <= off + distance <= slot.size


def _overlapping(known, at, size):
    """List of the (offset, size) among the keys of `known` that have some of these bytes."""
    if len(known) <= 64:
        return [(there, length) for there, length in known if there < at + size and at < there + length]
    return [place for length in (1, 2, 4, 8) for place in [(there, length) for there in range(
        at - length + 1, at + size)] if place in known]


def _within(known, at, size):
    """The number in these bytes, if numbers are known in all of them; else None."""
    data, seen = bytearray(size), set()
    for there, length in _overlapping(known, at, size):
        value = known[there, length]
        if type(value) is int:
            for i, byte in enumerate(_bytes(value, length), there - at):
                if 0 <= i < size:
                    seen.add(i)
                    data[i] = byte
            if len(seen) == size:
                return int.from_bytes(data, sys.byteorder)
    return None


def _bytes(value, length):
    """What a store of `length` bytes of the number leaves in memory."""
    return (value & (1 << 8 * length) - 1).to_bytes(length, sys.byteorder)
