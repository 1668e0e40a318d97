"""The optional route through LLVM (llvmlite): our IR as LLVM IR, and its optimised BPF code.

Needs the package `llvmlite` (extra "llvm"); nothing else of rawbpf imports this module. LLVM IR:
https://llvm.org/docs/LangRef.html.
"""

import re

from .errors import AsmError
from .flow import bits, clone, predecessors, reachable, successors
from .ir import Value
from .slots import SlotLiveness, begun_slots, mentioned_slots

_PREDICATE = {"==": "eq", "!=": "ne", "<": "ult", "<=": "ule", ">": "ugt", ">=": "uge", "s<": "slt", "s<=": "sle",
              "s>": "sgt", "s>=": "sge"}
_BINARY = {"+": "add", "-": "sub", "*": "mul", "|": "or", "&": "and", "^": "xor"}
_ATOMIC = {"+": "add", "|": "or", "&": "and", "^": "xor", "xchg": "xchg"}


def llvm_ir(function, cpu="v4"):
    """The function, and those it refers to, as the text of an LLVM module; `cpu`: what it will be compiled for.

    Maps become external globals `map.NAME` (address) and `value.NAME` or `value.NAME.OFFSET` (of the first
    value), kfuncs external functions.
    """
    return _Module(function, cpu).text()


class _Module:
    def __init__(self, function, cpu):
        self.functions, self.globals, self.declared = [function], {}, set()
        self.signed_division = cpu == "v4"   # LLVM refuses it for older ones

    def text(self):
        bodies = []
        done = 0
        while done < len(self.functions):
            bodies.append(_Body(self, self.functions[done], done == 0).text())
            done += 1
        lines = ['target triple = "bpf"', 'target datalayout = "e-m:e-p:64:64-i64:64-i128:128-n32:64-S128"']
        lines += ["@%s = external global i8" % name for name in self.globals.values()]
        lines += sorted(self.declared)
        return "\n".join(lines + bodies)


class _Lifetimes:
    """Where slots begin and cease to be in use: LLVM lets slots share stack only where it is told.

    A slot is in use where it was mentioned before and holds what is read later; one whose address cannot be
    followed always is.
    """

    def __init__(self, function):
        self.slots, self.blocks = function.slots, function.blocks
        self.liveness = liveness = SlotLiveness(function)
        index = {slot: i for i, slot in enumerate(self.slots)}
        self.mentions = {block: [mentioned_slots(op, index, liveness.held) for op in block.ops]
                         for block in self.blocks}
        self.free = ~self._slots_of(liveness.escaped)
        begun = begun_slots(self.blocks, self.mentions)
        self.live, self.active = {}, {}   # after each operation; at the start of each block
        for block in self.blocks:
            live, after = liveness.live_out[block], []
            for op in reversed(block.ops):
                after.append(self._slots_of(live))
                if op.args:
                    read, written = liveness.effect(op)
                    live = live & ~written | read
            self.live[block] = after[::-1]
            self.active[block] = begun[block] & self._slots_of(live) & self.free

    def _slots_of(self, mask):
        """Mask of the slots of which a mask of bytes has some."""
        found = 0
        if mask:
            for i, slot in enumerate(self.slots):
                if mask & self.liveness.all[slot]:
                    found |= 1 << i
        return found

    def block(self, block, before):
        """Before each operation of the block: [slots that begin, slots that cease (that first)]; `before`: the blocks
        that control comes from."""
        arriving = 0
        for source in before:
            for target in successors(source):
                arriving |= self.active[target]
        active = self.active[block]
        leaving = 0
        for target in successors(block):
            leaving |= self.active[target]
        marks = [[0, arriving & ~active]]   # before the first, and after each
        for mention, live in zip(self.mentions[block][:-1], self.live[block]):
            marks[-1][0] |= mention & self.free & ~active
            active |= mention & self.free
            marks.append([0, active & ~live])
            active &= live
        marks[-1][0] |= leaving & ~active
        marks[-1][1] |= active & ~leaving
        return marks


def _from(framed, operand):
    return operand in framed if isinstance(operand, Value) else isinstance(operand, tuple) and operand[0] == "stack"


def _stack_addresses(function):
    """The values that can be the address of a slot, or of something within it."""
    framed, more = set(), True
    while more:
        before = len(framed)
        for block in function.blocks:
            for op in block.ops:
                if (op.kind == "copy" or op.kind == "alu" and op.info[0] in "+-" and op.info[1] == 64) and \
                        any(_from(framed, x) for x in op.args):
                    framed.add(op.dst)
        more = len(framed) > before
    return framed


class _Body:
    def __init__(self, module, function, main):
        self.module, self.main = module, main
        self.function = clone(function)
        reachable(self.function)
        self.lines, self.count = [], 0

    def new(self, text):
        self.count += 1
        name = "%%t%d" % self.count
        self.lines.append("  %s = %s" % (name, text))
        return name

    def text(self):
        function = self.function
        values = {}
        for block in function.blocks:
            for op in block.ops:
                for v in (op.dst, *op.args):
                    if isinstance(v, Value):
                        values[v.n] = v
        for v in function.params:
            values[v.n] = v
        self.framed = _stack_addresses(function)
        # No tables: they would be in a section of data, where the program has only its maps.
        head = "define %s i64 @\"%s\"(%s) %s\"no-jump-tables\"=\"true\" {" % ("" if self.main else "internal", function.name, ", ".join(
            "i64 %%p%d" % i for i in range(len(function.params))), "" if self.main else "noinline ")
        self.lines.append("start:")
        for n in values:
            self.lines.append("  %%v%d = alloca i64" % n)
            self.lines.append("  store i64 0, ptr %%v%d" % n)
        for slot in function.slots:
            self.lines.append("  %%s%d = alloca [%d x i8], align %d" % (slot.n, slot.size, slot.align))
        for i, v in enumerate(function.params):
            self.lines.append("  store i64 %%p%d, ptr %%v%d" % (i, v.n))
        self.lines.append("  br label %%b%d" % function.blocks[0].n)
        lifetimes, before = _Lifetimes(function), predecessors(function.blocks)
        for block in function.blocks:
            self.lines.append("b%d:" % block.n)
            for op, (begin, cease) in zip(block.ops, lifetimes.block(block, before[block])):
                self._mark("end", cease)
                self._mark("start", begin)
                result = getattr(self, "_" + op.kind)(op)
                if op.dst is not None:
                    self.lines.append("  store i64 %s, ptr %%v%d" % (result, op.dst.n))
        return "\n".join([head, *self.lines, "}"])

    def _mark(self, what, slots):
        for i in bits(slots):
            slot = self.function.slots[i]
            self.module.declared.add("declare void @llvm.lifetime.%s.p0(i64, ptr)" % what)
            self.lines.append("  call void @llvm.lifetime.%s.p0(i64 %d, ptr %%s%d)" % (what, slot.size, slot.n))

    def operand(self, operand):
        if isinstance(operand, Value):
            return self.new("load i64, ptr %%v%d" % operand.n)
        if isinstance(operand, int):
            return str(operand)
        return self.new("ptrtoint ptr %s to i64" % self.pointer(operand))

    def pointer(self, operand, off=0):
        if isinstance(operand, tuple):
            kind, what, more = operand
            if kind == "stack":
                name = "%%s%d" % what.n
            elif kind == "func":
                if what not in self.module.functions:
                    self.module.functions.append(what)
                return "@" + what.name
            elif kind == "ksym":
                self.module.declared.add("@%s = external global i8, section \".ksyms\"" % what)
                return "@" + what
            else:
                key = (what, more)
                name = "@" + self.module.globals.setdefault(key, '"%s.%s"' % ("map" if more is None else "value", what)
                                                             if not more else '"value.%s.%d"' % key)
                more = 0
            off += more
        else:
            name = self.new("inttoptr i64 %s to ptr" % self.operand(operand))
        return self.new("getelementptr i8, ptr %s, i64 %d" % (name, off)) if off else name

    def narrow(self, value, bits):
        if bits == 64:
            return value
        if value.lstrip("-").isdigit():
            number = int(value) & (1 << bits) - 1
            return str(number - (number >> bits - 1 << bits))
        return self.new("trunc i64 %s to i%d" % (value, bits))

    def widen(self, value, bits, signed=False):
        return value if bits == 64 else self.new("%s i%d %s to i64" % ("sext" if signed else "zext", bits, value))

    def _copy(self, op):
        return self.operand(op.args[0])

    def _alu(self, op):
        operator, width = op.info
        if operator == "+" and width == 64:
            for address, distance in (op.args, op.args[::-1]):
                if _from(self.framed, address):
                    return self._moved(address, distance)
        a, b = (self.narrow(self.operand(x), width) for x in op.args)
        t = "i%d" % width
        if operator in _BINARY:
            r = self.new("%s %s %s, %s" % (_BINARY[operator], t, a, b))
        elif operator in ("<<", ">>", "s>>"):
            b = self.new("and %s %s, %d" % (t, b, width - 1))
            r = self.new("%s %s %s, %s" % ({"<<": "shl", ">>": "lshr", "s>>": "ashr"}[operator], t, a, b))
        else:
            r = self.division(operator, a, b, t, width)
        return self.widen(r, width)

    def _moved(self, address, distance):
        """A stack address and a distance: as an addition of numbers LLVM would make it `|`, as the slot's alignment
        leaves the low bits free, and the verifier takes no pointer there."""
        moved = self.new("getelementptr i8, ptr %s, i64 %s" % (self.pointer(address), self.operand(distance)))
        return self.new("ptrtoint ptr %s to i64" % moved)

    def division(self, operator, a, b, t, width):
        """Division and remainder as BPF has them: by 0 they are 0 and a, of the least number by -1 its negative."""
        zero = self.new("icmp eq %s %s, 0" % (t, b))
        divisor = self.new("select i1 %s, %s 1, %s %s" % (zero, t, t, b))
        if operator[0] == "s" and self.module.signed_division:
            minus = self.new("icmp eq %s %s, -1" % (t, b))
            divisor = self.new("select i1 %s, %s 1, %s %s" % (minus, t, t, divisor))
            q = self.new("sdiv %s %s, %s" % (t, a, divisor))
            negative = self.new("sub %s 0, %s" % (t, a))
            q = self.new("select i1 %s, %s %s, %s %s" % (minus, t, negative, t, q))
        elif operator[0] == "s":
            # Of the magnitudes; the sign is (x ^ sign) - sign with sign 0 or -1.
            above, below = self.sign(a, t, width), self.sign(divisor, t, width)
            q = self.new("udiv %s %s, %s" % (t, self.flip(a, above, t), self.flip(divisor, below, t)))
            q = self.flip(q, self.new("xor %s %s, %s" % (t, above, below)), t)
        else:
            q = self.new("udiv %s %s, %s" % (t, a, divisor))
        if operator[-1] == "/":
            return self.new("select i1 %s, %s 0, %s %s" % (zero, t, t, q))
        return self.new("sub %s %s, %s" % (t, a, self.new("mul %s %s, %s" % (t, q, b))))

    def sign(self, a, t, width):
        return self.new("ashr %s %s, %d" % (t, a, width - 1))

    def flip(self, a, sign, t):
        return self.new("sub %s %s, %s" % (t, self.new("xor %s %s, %s" % (t, a, sign)), sign))

    def _neg(self, op):
        return self.new("sub i64 0, %s" % self.operand(op.args[0]))

    def _swap(self, op):
        kind, bits = op.info
        a = self.narrow(self.operand(op.args[0]), bits)
        if kind != "le":
            self.module.declared.add("declare i%d @llvm.bswap.i%d(i%d)" % (bits, bits, bits))
            a = self.new("call i%d @llvm.bswap.i%d(i%d %s)" % (bits, bits, bits, a))
        return self.widen(a, bits)

    def _extend(self, op):
        size, signed = op.info
        return self.widen(self.narrow(self.operand(op.args[0]), size * 8), size * 8, signed)

    def condition(self, op):
        operator, width = op.info[:2]
        a, b = (self.narrow(self.operand(x), width) for x in op.args)
        if operator == "&":
            a, b, operator = self.new("and i%d %s, %s" % (width, a, b)), "0", "!="
        return self.new("icmp %s i%d %s, %s" % (_PREDICATE[operator], width, a, b))

    def _compare(self, op):
        return self.new("zext i1 %s to i64" % self.condition(op))

    def _load(self, op):
        off, size, signed = op.info
        return self.widen(self.new("load i%d, ptr %s" % (size * 8, self.pointer(op.args[0], off))), size * 8, signed)

    def _store(self, op):
        off, size = op.info
        value = self.narrow(self.operand(op.args[1]), size * 8)
        self.lines.append("  store i%d %s, ptr %s" % (size * 8, value, self.pointer(op.args[0], off)))

    def _atomic(self, op):
        operator, off, size, fetch = op.info
        t = "i%d" % (size * 8)
        values = [self.narrow(self.operand(x), size * 8) for x in op.args[1:]]
        where = self.pointer(op.args[0], off)
        if operator == "cmpxchg":
            pair = self.new("cmpxchg ptr %s, %s %s, %s %s seq_cst seq_cst" % (where, t, values[0], t, values[1]))
            return self.widen(self.new("extractvalue {%s, i1} %s, 0" % (t, pair)), size * 8)
        # Only without an order is it the instruction that fetches nothing.
        order = "seq_cst" if fetch else "monotonic"
        return self.widen(self.new("atomicrmw %s ptr %s, %s %s %s" % (_ATOMIC[operator], where, t, values[0], order)),
                          size * 8)

    def _call(self, op):
        kind, callee = op.info
        args = ", ".join("i64 " + self.operand(a) if not isinstance(a, tuple) else "ptr " + self.pointer(a)
                         for a in op.args)
        if kind == "function":
            if callee not in self.module.functions:
                self.module.functions.append(callee)
            return self.new("call i64 @%s(%s)" % (callee.name, args))
        if kind == "kfunc":
            self.module.declared.add("declare i64 @%s(...) section \".ksyms\"" % callee)
            return self.new("call i64 (...) @%s(%s)" % (callee, args))
        return self.new("call i64 inttoptr (i64 %d to ptr)(%s)" % (callee, args))

    def _jump(self, op):
        self.lines.append("  br label %%b%d" % op.info[0].n)

    def _branch(self, op):
        then, otherwise = op.info[2:]
        self.lines.append("  br i1 %s, label %%b%d, label %%b%d" % (self.condition(op), then.n, otherwise.n))

    def _ret(self, op):
        self.lines.append("  ret i64 %s" % self.operand(op.args[0]))


def compile_llvm(module, cpu="v3", level=2):
    """(object_of, assembly_of) the module."""
    text = str(module)
    return object_of(text, cpu, level), assembly_of(text, cpu, level)


def object_of(module, cpu="v3", level=2, unroll=True, apart=True):
    """BPF object (ELF) of an LLVM module, optimised at -O`level`; unroll: loops may be.

    module: the text of one, or an `llvmlite.ir.Module`. cpu: "v1" to "v4". Raises ImportError without llvmlite,
    and AsmError with what LLVM says where it refuses the module. It may then end the process that it runs in,
    which is why that is another one, unless apart is False: that is faster.
    """
    return _work(module, apart, lambda machine, module: machine.emit_object(module), cpu, level, unroll)


def assembly_of(module, cpu="v3", level=2):
    """The assembly text that LLVM makes of a module: otherwise as `object_of`."""
    return _work(module, True, lambda machine, module: machine.emit_assembly(module).encode(), cpu, level, True).decode(
        "utf-8", "replace")


def _work(module, apart, emit, *options):
    import llvmlite.binding  # noqa: F401  once, not in every child
    text = str(module)
    if apart:
        return _apart(lambda: _emitted(text, emit, *options))
    try:
        return _emitted(text, emit, *options)
    except RuntimeError as error:
        raise AsmError(_reason(str(error), 1)) from None


def _emitted(text, emit, cpu, level, unroll):
    from llvmlite import binding
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    module = binding.parse_assembly(text)
    triple = module.triple or "bpf"
    if not triple.startswith("bpf"):
        raise RuntimeError("it is for the target %s, not for bpf" % triple)
    module.verify()
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=level)
    options = binding.create_pipeline_tuning_options(speed_level=level)
    options.loop_unrolling = unroll
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return emit(machine, module)


def _apart(work):
    """The bytes that `work()` returns in a process of its own: where LLVM cannot compile something it ends that."""
    import os
    # in memory: nothing to leave behind, and no folder is needed
    with open(os.memfd_create("made"), "w+b") as made, open(os.memfd_create("said"), "w+b") as said:
        child = os.fork()
        if not child:
            status = 1
            try:
                os.dup2(said.fileno(), 2)
                try:
                    made.write(work())
                    made.flush()
                    status = 0
                except RuntimeError as error:
                    os.write(2, str(error).encode("utf-8", "replace"))
            finally:
                os._exit(status)
        status = os.waitpid(child, 0)[1]
        if status:
            said.seek(0)
            raise AsmError(_reason(said.read().decode("utf-8", "replace"), status))
        made.seek(0)
        return made.read()


def _reason(text, status):
    """What LLVM says, in one line: its first error, without the dump of the code that follows."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        placed = re.match(r"<string>:(\d+):(\d+): error: (.*)", line)
        if placed:
            return "line %s, column %s: %s" % placed.groups()
        for start in ("LLVM ERROR: ", "error: "):
            at = line.find(start)
            if at >= 0:
                said = line[at + len(start):].replace("<unknown>:0:0: ", "")
                return said
    said = [line for line in lines if not line.startswith(("LLVM IR parsing error", "<string>"))]
    return said[0] if said else "LLVM ended with status %d and said nothing" % status
