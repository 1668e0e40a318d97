"""Writing instructions by hand, in Python.

    b = Builder()
    b.set(u32[r10 - 4], 0)
    b.call("bpf_map_lookup_elem", MapRef("hits"), r10 - 4)
    with b.when(r0 != 0):
        b.set(r1, u64[r0])
        b.add(r1, 1)
        b.set(u64[r0], r1)
    b.set(r0, 0)
    b.exit()
    instructions = b.build()

`r0`-`r10` are registers, `w0`-`w10` their low halves (32-bit operations), `u8 u16 u32 u64 s8 s16 s32` index
memory, `r10 - 4` is an address and `r0 != 0` a condition (signed: `r0.slt(5)`, `sle`, `sgt`, `sge`). `when`, `unless`,
`otherwise`, `loop` and `count` are for `with`. A builder, instructions or assembly text are appended with `append`;
`relocate` replaces what is symbolic, `assembly` makes what `write_object` takes.
"""

from contextlib import contextmanager

from .errors import AsmError
from .helpers import helper_number
from .instruction import FuncRef, Instruction, KsymRef, Label, MapRef, slot_numbers
from .opcodes import *
from .operands import *
from .operands import REGISTERS, TYPES, Type

__all__ = ["Builder", "FuncRef", "Instruction", "KsymRef", "Label", "MapRef", "relocate", *REGISTERS, *TYPES]


class Loop(str):
    """The label behind a loop, to leave it with jump(); `again`: the label of its next round."""

    __slots__ = ("again",)

    def __new__(cls, end, again):
        made = str.__new__(cls, end)
        made.again = again
        return made


class Builder:
    """Instructions in the making."""

    def __init__(self):
        self._items = []     # Instruction, or str: a label
        self._labels, self._functions = set(), []
        self._count = 0

    # labels and control

    def new_label(self, hint="L"):
        """A name that nothing else in this builder has."""
        self._count += 1
        return ".%s%d" % (hint, self._count)

    def label(self, name=None):
        """Defines a label here; returns its name."""
        name = self.new_label() if name is None else name
        if not isinstance(name, str) or not name:
            raise AsmError("a label is a name, not %r" % (name,))
        if name in self._labels:
            raise AsmError("label %s is defined twice" % name)
        self._labels.add(name)
        self._items.append(name)
        return name

    def function(self, name):
        """A function starts here: `call(FuncRef(name))` calls it, `set(r2, FuncRef(name))` takes its address."""
        self._functions.append(name)
        return self.label(name)

    def jump(self, target, condition=None):
        """goto target; with a Condition only if it holds."""
        if condition is None:
            self._emit(JA, ref=Label(target))
            return
        self._branch(condition, target)

    def jump_far(self, target):
        """gotol (v4): reaches further than 32767 slots."""
        self._emit(JA32, ref=Label(target))

    def jump_to(self, register):
        """gotox: to the address in a register, which comes out of a map of type insn_array (Linux 6.19)."""
        self._need_wide(register)
        self._emit(JAX, register.number)

    def may_jump(self, target):
        """may_goto (Linux 6.9): leaves a loop that runs too long."""
        self._emit(BPF_JMP | BPF_JCOND, ref=Label(target))

    def _branch(self, condition, target, invert=False):
        if not isinstance(condition, Condition):
            raise AsmError("%r is no condition, as r0 == 0 is one" % (condition,))
        op, a, b = condition.op, condition.a, condition.b
        if invert and op not in INVERTED:
            # No jump on "no bit in common": one over the other.
            over = self.new_label()
            self._branch(condition, over)
            self.jump(target)
            self.label(over)
            return
        _register(a, "a condition compares a register with something")
        cls = (BPF_JMP if a.width == 64 else BPF_JMP32) | JUMP_OPERATION[INVERTED[op] if invert else op]
        x, src, imm = self._source(a, b)
        self._emit(cls | x, a.number, src, 0, imm, Label(target))

    @contextmanager
    def when(self, condition):
        """What is built inside runs if the condition holds."""
        end = self.new_label("skip")
        self._branch(condition, end, invert=True)
        yield end
        self.label(end)

    @contextmanager
    def unless(self, condition):
        """What is built inside runs if the condition does not hold."""
        end = self.new_label("skip")
        self._branch(condition, end)
        yield end
        self.label(end)

    @contextmanager
    def otherwise(self):
        """Right behind when() or unless(): what is built inside runs if that did not."""
        skipped = self._items[-1] if self._items else None
        if not isinstance(skipped, str) or not skipped.startswith(".skip"):
            raise AsmError("otherwise() stands right behind when() or unless()")
        end = self.new_label("end")
        self._items.pop()
        self.jump(end)
        self._items.append(skipped)
        yield end
        self.label(end)

    @contextmanager
    def loop(self, condition=None, invert=False):
        """Runs what is built inside as long as the condition holds (invert: does not; without one: until a jump leaves
        it); gives a Loop."""
        loop = Loop(self.new_label("end"), self.new_label("loop"))
        self.label(loop.again)
        if condition is not None:
            self._branch(condition, loop, invert=not invert)
        yield loop
        self.jump(loop.again)
        self.label(loop)

    @contextmanager
    def count(self, register, stop, start=0, step=1):
        """A loop with `register` from start up to (step below 0: down to) and not including stop; gives a Loop."""
        if not isinstance(step, int) or step == 0:
            raise AsmError("a step is a number that is not 0")
        _register(register)
        loop, head = Loop(self.new_label("end"), self.new_label("next")), self.new_label("loop")
        self.set(register, start)
        self.label(head)
        signed = step < 0 or isinstance(start, int) and start < 0 or isinstance(stop, int) and stop < 0
        self._branch(Condition(("s" if signed else "") + (">=" if step > 0 else "<="), register, stop), loop)
        yield loop
        self.label(loop.again)
        self.add(register, step)
        self.jump(head)
        self.label(loop)

    def exit(self):
        self._emit(EXIT)

    # moves

    def set(self, destination, source):
        """A register or memory becomes: a register, a number, memory, an address, a MapRef, a FuncRef."""
        if isinstance(destination, Memory):
            return self._store(destination, source)
        if not isinstance(destination, Register):
            raise AsmError("only registers and memory can be set, not %r" % (destination,))
        dst, wide = destination.number, destination.width == 64
        mov = (BPF_ALU64 if wide else BPF_ALU) | BPF_MOV
        if isinstance(source, bool) or isinstance(source, Condition):
            raise AsmError("a condition is no value; set the register inside when()")
        if isinstance(source, int):
            if -1 << 31 <= source < 1 << 31:
                self._emit(mov, dst, imm=source)
            elif not wide and 0 <= source < 1 << 32:
                self._emit(mov, dst, imm=source - (1 << 32))
            elif wide and -1 << 63 <= source < 1 << 64:
                self._emit(LDDW, dst, imm=source & (1 << 64) - 1)
            else:
                raise AsmError("%d does not fit %r" % (source, destination))
        elif isinstance(source, Register):
            self._same_width(destination, source)
            self._emit(mov | BPF_X, dst, source.number)
        elif isinstance(source, Address):
            self._need_wide(destination)
            if source.base.number != dst:
                self._emit(mov | BPF_X, dst, source.base.number)
            if source.off:
                self._emit(BPF_ALU64 | BPF_ADD, dst, imm=self._imm(source.off, 64))
        elif isinstance(source, Memory):
            if source.signed or source.size == 8:
                self._need_wide(destination)
            self._emit(BPF_LDX | (BPF_MEMSX if source.signed else BPF_MEM) | SIZE_CODE[source.size], dst,
                       source.address.base.number, self._off(source.address.off))
        elif isinstance(source, (MapRef, FuncRef, KsymRef)):
            self._need_wide(destination)
            pseudo = {MapRef: BPF_PSEUDO_MAP_FD, FuncRef: BPF_PSEUDO_FUNC, KsymRef: BPF_PSEUDO_BTF_ID}[type(source)]
            if isinstance(source, MapRef) and source.offset is not None:
                pseudo = BPF_PSEUDO_MAP_VALUE
            self._emit(LDDW, dst, pseudo, ref=source)
        else:
            raise AsmError("%r cannot be put in a register" % (source,))

    def sign_extend(self, destination, source, bits):
        """The low `bits` (8, 16, 32) of source, sign-extended (v4)."""
        _register(destination), _register(source)
        self._same_width(destination, source)
        if bits not in (8, 16, 32) or bits == 32 and destination.width == 32:
            raise AsmError("no sign extension of %r bits" % (bits,))
        self._emit((BPF_ALU64 if destination.width == 64 else BPF_ALU) | BPF_MOV | BPF_X, destination.number,
                   source.number, bits)

    def lddw(self, destination, value, source=0):
        """A 64-bit constant, or with a BPF_PSEUDO_* source what that makes of it: the descriptor of a map in its low
        half (and an offset in the high one), an index into fd_array, a BTF id."""
        self._need_wide(destination)
        if not isinstance(value, int) or not -1 << 63 <= value < 1 << 64 or source not in range(16):
            raise AsmError("%r of source %r is no 64-bit constant" % (value, source))
        self._emit(LDDW, destination.number, source, imm=value & (1 << 64) - 1)

    def packet(self, kind, offset=0, index=None):
        """r0 = *(kind *)skb[index + offset], in this machine's byte order: the program ends with 0 where there is no
        packet. r6 must hold the context; r1 to r5 are lost. kind: u8, u16 or u32."""
        if not isinstance(kind, Type) or kind.signed or kind.size == 8:
            raise AsmError("packet loads are of u8, u16 or u32")
        if index is not None:
            self._need_wide(index)
        self._emit(BPF_LD | (BPF_ABS if index is None else BPF_IND) | SIZE_CODE[kind.size],
                   src=0 if index is None else index.number, imm=self._imm(offset))

    def addr_space_cast(self, destination, source, to, origin):
        """An address of the address space `origin` as one of `to` (1: arena, 0: the kernel's; Linux 6.9)."""
        self._need_wide(destination)
        self._need_wide(source)
        if to not in range(1 << 16) or origin not in range(1 << 16):
            raise AsmError("address spaces are numbers below 65536, not %r and %r" % (to, origin))
        self._emit(BPF_ALU64 | BPF_MOV | BPF_X, destination.number, source.number, BPF_ADDR_SPACE_CAST,
                   self._imm(to << 16 | origin))

    def _store(self, memory, source):
        if memory.signed:
            raise AsmError("stores have no sign: use u8, u16, u32 or u64")
        code = BPF_MEM | SIZE_CODE[memory.size]
        base, off = memory.address.base.number, self._off(memory.address.off)
        if isinstance(source, Register):
            if memory.size == 8:
                self._need_wide(source)
            self._emit(BPF_STX | code, base, source.number, off)
        elif isinstance(source, int):
            bits = 8 * memory.size
            if not -1 << bits - 1 <= source < 1 << bits:
                raise AsmError("%d does not fit %d bytes" % (source, memory.size))
            if memory.size == 8 and not -1 << 31 <= source < 1 << 31:
                raise AsmError("%d does not fit a 32-bit immediate: set a register first" % source)
            self._emit(BPF_ST | code, base, 0, off, self._imm(source, 64 if memory.size == 8 else 32))
        else:
            raise AsmError("%r cannot be stored" % (source,))

    # arithmetic: destination op= source

    def alu(self, op, destination, source):
        """destination op= source, op as in the assembly text: "+", "s/", "s>>", ..."""
        if not isinstance(op, str) or op not in ALU_OPERATION:
            raise AsmError("no operation %s" % (op,))
        _register(destination)
        operation, off = ALU_OPERATION[op]
        x, src, imm = self._source(destination, source)
        self._emit((BPF_ALU64 if destination.width == 64 else BPF_ALU) | operation | x, destination.number, src, off, imm)

    def add(self, destination, source):
        self.alu("+", destination, source)

    def sub(self, destination, source):
        self.alu("-", destination, source)

    def mul(self, destination, source):
        self.alu("*", destination, source)

    def div(self, destination, source):
        self.alu("/", destination, source)

    def sdiv(self, destination, source):
        self.alu("s/", destination, source)

    def mod(self, destination, source):
        self.alu("%", destination, source)

    def smod(self, destination, source):
        self.alu("s%", destination, source)

    def or_(self, destination, source):
        self.alu("|", destination, source)

    def and_(self, destination, source):
        self.alu("&", destination, source)

    def xor(self, destination, source):
        self.alu("^", destination, source)

    def lsh(self, destination, source):
        self.alu("<<", destination, source)

    def rsh(self, destination, source):
        self.alu(">>", destination, source)

    def arsh(self, destination, source):
        self.alu("s>>", destination, source)

    def neg(self, destination):
        _register(destination)
        self._emit((BPF_ALU64 if destination.width == 64 else BPF_ALU) | BPF_NEG, destination.number)

    def swap(self, kind, destination, bits):
        """"be" and "le" convert the low bits (16, 32, 64) to or from that order; "bswap" always swaps (v4)."""
        code = {"le": BPF_ALU | BPF_END, "be": BPF_ALU | BPF_END | BPF_X, "bswap": BPF_ALU64 | BPF_END}
        if kind not in code or bits not in (16, 32, 64):
            raise AsmError("no byte swap %s%s" % (kind, bits))
        if _register(destination).width < bits:
            raise AsmError("%r has no %d bits to swap" % (destination, bits))
        self._emit(code[kind], destination.number, imm=bits)

    # atomics

    def atomic(self, op, memory, source, fetch=False):
        """memory op= source atomically (op: + | & ^ xchg cmpxchg); with fetch, source becomes the old value.

        cmpxchg compares with r0 and leaves the old value there.
        """
        if _memory(memory).size not in (4, 8) or op not in ATOMIC_OPERATION:
            raise AsmError("no atomic operation %s of %d bytes" % (op, memory.size))
        self._as_wide(source, memory)
        imm = ATOMIC_OPERATION[op] | (BPF_FETCH if fetch else 0)
        self._emit(BPF_STX | BPF_ATOMIC | SIZE_CODE[memory.size], memory.address.base.number, source.number,
                   self._off(memory.address.off), imm)

    def load_acquire(self, destination, memory):
        """(Linux 6.15)"""
        self._as_wide(destination, memory)
        self._emit(BPF_STX | BPF_ATOMIC | SIZE_CODE[memory.size], destination.number, memory.address.base.number,
                   self._off(memory.address.off), BPF_LOAD_ACQ)

    def store_release(self, memory, source):
        """(Linux 6.15)"""
        self._as_wide(source, memory)
        self._emit(BPF_STX | BPF_ATOMIC | SIZE_CODE[memory.size], memory.address.base.number, source.number,
                   self._off(memory.address.off), BPF_STORE_REL)

    # calls

    def call(self, function, *arguments):
        """A helper by name or number, a FuncRef or a KsymRef (kfunc); arguments go to r1 to r5 first.

        Arguments are whatever `set` takes. Registers among them are moved as if all at once.
        """
        if not isinstance(function, (str, int, FuncRef, KsymRef)) or isinstance(function, bool):
            raise AsmError("a call takes the name or number of a helper, a FuncRef or a KsymRef, not %r" % (function,))
        self._arguments(arguments)
        if isinstance(function, FuncRef):
            self._emit(CALL, src=BPF_PSEUDO_CALL, ref=function)
        elif isinstance(function, KsymRef):
            self._emit(CALL, src=BPF_PSEUDO_KFUNC_CALL, ref=function)
        else:
            self._emit(CALL, imm=self._imm(function) if isinstance(function, int) else helper_number(function))

    def callx(self, register):
        """Calls the address in a register (no kernel takes it yet)."""
        self._need_wide(register)
        self._emit(CALL | BPF_X, register.number)

    def _arguments(self, arguments):
        if len(arguments) > 5:
            raise AsmError("a call with %d arguments; BPF passes at most 5" % len(arguments))
        pending = dict(enumerate(arguments, 1))
        while pending:
            reads = {n: self._read_by(a) - {n} for n, a in pending.items()}
            ready = next((n for n in pending if not any(n in r for m, r in reads.items() if m != n)), None)
            if ready is None:
                # A ring of registers: r0 is not an argument, and the call clobbers it.
                ready = next(iter(pending))
                self.set(r0, Register(ready, 64))
                pending = {n: self._renamed(a, ready) for n, a in pending.items()}
            argument, target = pending.pop(ready), Register(ready, 64)
            if not (isinstance(argument, Register) and argument.number == ready and argument.width == 64):
                self.set(target if not isinstance(argument, Register) or argument.width == 64 else Register(ready, 32),
                         argument)

    @staticmethod
    def _read_by(argument):
        if isinstance(argument, Register):
            return {argument.number}
        if isinstance(argument, Address):
            return {argument.base.number}
        return {argument.address.base.number} if isinstance(argument, Memory) else set()

    @staticmethod
    def _renamed(argument, number):
        """The argument with r0 for register `number`."""
        if isinstance(argument, Register) and argument.number == number:
            return Register(0, argument.width)
        if isinstance(argument, Address) and argument.base.number == number:
            return Address(r0, argument.off)
        if isinstance(argument, Memory) and argument.address.base.number == number:
            return Memory(argument.size, argument.signed, Address(r0, argument.address.off))
        return argument

    # composition

    def append(self, other):
        """Adds instructions: of a Builder, an iterable of Instruction, or assembly text (labels stay its own)."""
        if isinstance(other, str):
            from .text import assemble
            other = assemble(other, strict=False).instructions()
        if not isinstance(other, Builder):
            items = list(other) if hasattr(other, "__iter__") else [other]
            for item in items:
                self.raw(item)
            return self
        items, names = list(other._items), {}
        for item in items:
            if isinstance(item, str):
                names[item] = self.new_label(item.strip(".").rstrip("0123456789") or "L") if (
                    item in self._labels or item.startswith(".")) else item
        for item in items:
            if isinstance(item, str):
                self.label(names[item])
            elif isinstance(item.ref, (Label, FuncRef)) and item.ref.name in names:
                self._items.append(item._replace(ref=type(item.ref)(names[item.ref.name])))
            else:
                self._items.append(item)
        self._functions += [names[name] for name in other._functions]
        return self

    def raw(self, instruction):
        """Any Instruction; a jump may have a Label as its ref."""
        if not isinstance(instruction, Instruction):
            raise AsmError("%r is no instruction" % (instruction,))
        self._items.append(instruction)

    def build(self):
        """The instructions, labels resolved; maps, kernel symbols and functions elsewhere stay symbolic."""
        code, labels = [], {}
        for item in self._items:
            if isinstance(item, str):
                labels[item] = len(code)
            else:
                code.append(item)
        slots = slot_numbers(code)
        for index, item in enumerate(code):
            if isinstance(item.ref, (Label, FuncRef)):
                target = labels.get(item.ref.name)
                if target is None:
                    if isinstance(item.ref, FuncRef):
                        continue
                    raise AsmError("instruction %d goes to %s, which is not defined" % (index, item.ref.name))
                if target == len(code):
                    raise AsmError("instruction %d goes to %s, behind the last instruction" % (index, item.ref.name))
                off = slots[target] - slots[index] - 1
                if isinstance(item.ref, FuncRef) or item.code == JA32:
                    item = item._replace(imm=off & 0xFFFFFFFF if item.code == LDDW else off, ref=None)
                elif -0x8000 <= off < 0x8000:
                    item = item._replace(off=off, ref=None)
                else:
                    raise AsmError("instruction %d: %s is %d slots away; a jump reaches 32767" % (
                        index, item.ref.name, off))
                code[index] = item
        return code

    def assembly(self, section, maps=(), license=None):
        """An Assembly with this program in a section ("xdp", "kprobe/NAME", ...), for `write_object`. maps: what
        MapRefs name, as MapDefinitions."""
        from .assembly import Assembly, Section
        made, out = Assembly(), Section(section)
        out.instructions = self.build()
        out.lines = [("<builder>", index, str(i)) for index, i in enumerate(out.instructions, 1)]
        index, wanted = 0, set(self._functions)
        for item in self._items:
            if not isinstance(item, str):
                index += 1
            elif item in wanted:
                out.labels[item] = index
        out.entries = set(out.labels)
        made.sections[section] = out
        made.maps = {each.name: each for each in maps}
        made.license = license
        return made

    def __len__(self):
        return sum(not isinstance(item, str) for item in self._items)

    # details

    def _emit(self, code, dst=0, src=0, off=0, imm=0, ref=None):
        self._items.append(Instruction(code, dst, src, off, imm, ref))

    def _source(self, destination, source):
        """(BPF_X or BPF_K, src, imm) of an operand."""
        if isinstance(source, Register):
            self._same_width(destination, source)
            return BPF_X, source.number, 0
        if isinstance(source, int):
            return BPF_K, 0, self._imm(source, destination.width)
        raise AsmError("%r is neither a register nor a number" % (source,))

    def _same_width(self, a, b):
        if a.width != b.width:
            raise AsmError("%r and %r differ in width" % (a, b))

    def _need_wide(self, register):
        if _register(register).width != 64:
            raise AsmError("%r is 32 bits wide; an r register is needed" % register)

    def _as_wide(self, register, memory):
        """Atomic instructions: of a w register only its half is meant, of an r register all or the low half."""
        if _memory(memory).signed:
            raise AsmError("atomic instructions are of u8, u16, u32 or u64")
        if _register(register).width < 8 * memory.size and memory.size == 8:
            raise AsmError("%r has no 8 bytes" % register)

    def _imm(self, number, width=32):
        """The immediate of an operation on `width` bits: it is sign-extended to 64."""
        if not isinstance(number, int) or not -1 << 31 <= number < 1 << 32:
            raise AsmError("%s does not fit a 32-bit immediate" % (number,))
        if number < 1 << 31:
            return number
        if width == 64:
            raise AsmError("%d does not fit a 32-bit immediate, which has a sign: set a register first" % number)
        return number - (1 << 32)

    def _off(self, number):
        if not isinstance(number, int):
            raise AsmError("an offset is a whole number, not %r" % (number,))
        if not -0x8000 <= number < 0x8000:
            raise AsmError("offset %d does not fit 16 bits" % number)
        return number


def _register(operand, said="a register is needed"):
    if not isinstance(operand, Register):
        raise AsmError("%s, not %r" % (said, operand))
    return operand


def _memory(operand):
    if not isinstance(operand, Memory):
        raise AsmError("memory is needed, as u64[r1] is, not %r" % (operand,))
    return operand


def relocate(instructions, maps=None, values=None, kfuncs=None):
    """instructions with what is symbolic replaced.

    maps: dict name -> map file descriptor; values: dict name -> number (for MapRef: instead of the map's
    address; for KsymRef of lddw: its BTF id); kfuncs: dict name -> BTF id, or (BTF id, offset field). Refs
    that none of them has stay.
    """
    maps, values, kfuncs = maps or {}, values or {}, kfuncs or {}
    out = []
    for i in instructions:
        if not isinstance(i, Instruction):
            raise AsmError("%r is no instruction" % (i,))
        ref = i.ref
        if isinstance(ref, MapRef) and ref.name in maps:
            fd = maps[ref.name]
            i = i._replace(src=BPF_PSEUDO_MAP_FD if ref.offset is None else BPF_PSEUDO_MAP_VALUE,
                           imm=fd | ((ref.offset or 0) & 0xFFFFFFFF) << 32, ref=None)
        elif isinstance(ref, MapRef) and ref.name in values:
            i = i._replace(src=0, imm=values[ref.name] + (ref.offset or 0) & (1 << 64) - 1, ref=None)
        elif isinstance(ref, KsymRef) and i.code == LDDW and ref.name in values:
            i = i._replace(src=BPF_PSEUDO_BTF_ID, imm=values[ref.name], ref=None)
        elif isinstance(ref, KsymRef) and i.code == CALL and ref.name in kfuncs:
            number = kfuncs[ref.name]
            number, off = number if isinstance(number, tuple) else (number, 0)
            i = i._replace(src=BPF_PSEUDO_KFUNC_CALL, imm=number, off=off, ref=None)
        out.append(i)
    return out
