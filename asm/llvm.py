"""The optional route through LLVM (llvmlite): our IR as LLVM IR, and its optimised BPF code.

Needs the package `llvmlite` (extra "llvm"); nothing else of rawbpf imports this module.
"""

from .ir import Value, signed64
from .opcodes import INVERTED

_PREDICATE = {"==": "eq", "!=": "ne", "<": "ult", "<=": "ule", ">": "ugt", ">=": "uge", "s<": "slt", "s<=": "sle",
              "s>": "sgt", "s>=": "sge"}
_BINARY = {"+": "add", "-": "sub", "*": "mul", "|": "or", "&": "and", "^": "xor"}
_ATOMIC = {"+": "add", "|": "or", "&": "and", "^": "xor", "xchg": "xchg"}


def llvm_ir(function):
    """The function, and those it refers to, as the text of an LLVM module.

    Maps become external globals `map.NAME` (address) and `value.NAME` (of the first value).
    """
    return _Module(function).text()


class _Module:
    def __init__(self, function):
        self.functions, self.globals, self.declared = [function], {}, set()

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


class _Body:
    def __init__(self, module, function, main):
        self.module, self.function, self.main = module, function, main
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
        head = "define %s i64 @\"%s\"(%s) %s{" % ("" if self.main else "internal", function.name, ", ".join(
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
        for block in function.blocks:
            if not block.ops:
                continue
            self.lines.append("b%d:" % block.n)
            for op in block.ops:
                result = getattr(self, "_" + op.kind)(op)
                if op.dst is not None:
                    self.lines.append("  store i64 %s, ptr %%v%d" % (result, op.dst.n))
        return "\n".join([head, *self.lines, "}"])

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
        a, b = (self.narrow(self.operand(x), width) for x in op.args)
        t = "i%d" % width
        if operator in _BINARY:
            r = self.new("%s %s %s, %s" % (_BINARY[operator], t, a, b))
        elif operator in ("<<", ">>", "s>>"):
            b = self.new("and %s %s, %d" % (t, b, width - 1))
            r = self.new("%s %s %s, %s" % ({"<<": "shl", ">>": "lshr", "s>>": "ashr"}[operator], t, a, b))
        else:
            zero = self.new("icmp eq %s %s, 0" % (t, b))
            divisor = self.new("select i1 %s, %s 1, %s %s" % (zero, t, t, b))
            if operator[0] == "s":
                least = self.new("icmp eq %s %s, -1" % (t, b))
                divisor = self.new("select i1 %s, %s 1, %s %s" % (least, t, t, divisor))
                q = self.new("sdiv %s %s, %s" % (t, a, divisor))
                negative = self.new("sub %s 0, %s" % (t, a))
                q = self.new("select i1 %s, %s %s, %s %s" % (least, t, negative, t, q))
            else:
                q = self.new("udiv %s %s, %s" % (t, a, divisor))
            if operator[-1] == "/":
                r = self.new("select i1 %s, %s 0, %s %s" % (zero, t, t, q))
            else:
                m = self.new("mul %s %s, %s" % (t, q, b))
                r = self.new("sub %s %s, %s" % (t, a, m))
        return self.widen(r, width)

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
        return self.widen(self.new("atomicrmw %s ptr %s, %s %s seq_cst" % (_ATOMIC[operator], where, t, values[0])),
                          size * 8)

    def _call(self, op):
        kind, callee = op.info
        args = ", ".join("i64 " + self.operand(a) if not isinstance(a, tuple) else "ptr " + self.pointer(a)
                         for a in op.args)
        if kind == "function":
            if callee not in self.module.functions:
                self.module.functions.append(callee)
            return self.new("call i64 @%s(%s)" % (callee.name, args))
        return self.new("call i64 inttoptr (i64 %d to ptr)(%s)" % (callee, args))

    def _jump(self, op):
        self.lines.append("  br label %%b%d" % op.info[0].n)

    def _branch(self, op):
        then, otherwise = op.info[2:]
        self.lines.append("  br i1 %s, label %%b%d, label %%b%d" % (self.condition(op), then.n, otherwise.n))

    def _ret(self, op):
        self.lines.append("  ret i64 %s" % self.operand(op.args[0]))


def compile_llvm(text, cpu="v3", level=2):
    """The BPF object (ELF) of an LLVM module's text, optimised at -O`level`."""
    from llvmlite import binding
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    module = binding.parse_assembly(text)
    module.verify()
    machine = binding.Target.from_triple("bpf").create_target_machine(cpu=cpu, opt=level)
    options = binding.create_pipeline_tuning_options(speed_level=level)
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module), machine.emit_assembly(module)
