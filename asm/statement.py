"""The grammar of one assembly statement: text -> Instruction.

It takes what the verifier's log, bpftool and llvm-objdump print, wherever that determines the
instruction; where they differ both spellings are read (`goto pc+3` and `goto +0x3`, `r1 = *(u32 *)(r2 +0)`
and `w1 = ...`, `atomic64_xchg(...)` and `xchg_64(...)`). A few forms are our own, for what none of them
can say: `map[NAME] ll`, `map_fd[3][0]+8 ll`, `func[NAME] ll`, `call kfunc[NAME]`, `.insn`.
"""

import re

from .helpers import NUMBER
from .instruction import HALF, FuncRef, Instruction, KsymRef, Label, MapRef
from .opcodes import *
from .tokens import REGISTER, Tokens, Unexpected, alternatives

TYPES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "s8": 1, "s16": 2, "s32": 4, "s64": 8}
FETCH = {"add": BPF_ADD, "or": BPF_OR, "and": BPF_AND, "xor": BPF_XOR}
SWAPS = {kind + bits: (kind, int(bits)) for kind in ("be", "le", "bswap") for bits in ("16", "32", "64")}
_PSEUDO = {"map_fd": (BPF_PSEUDO_MAP_FD, BPF_PSEUDO_MAP_VALUE), "map_idx": (BPF_PSEUDO_MAP_IDX, BPF_PSEUDO_MAP_IDX_VALUE),
           "btf_id": (BPF_PSEUDO_BTF_ID, None)}
_ASSIGN = ("=", *(op + "=" for op in ALU_OPERATION))
_COMPARE = tuple(JUMP_OPERATION)
_KEYWORDS = ("lock", "store_release", "ld_pseudo", "if", "goto", "gotol", "gotox", "may_goto", "exit", "call", "callx",
             ".insn")
# what no constant of .equ may be called
RESERVED = {*TYPES, *SWAPS, *_PSEUDO, *_KEYWORDS, "ll", "pc", "s", "skb", "map", "func", "subprog", "ksym", "kfunc",
            "atomic", "addr_space_cast", "load_acquire"}


class Statement(Tokens):
    """One statement; `instruction()` reads it."""

    # parts

    def type(self):
        """`(u32 *)` -> (bytes, signed)."""
        self.expect("(")
        name = self.peek()
        if name not in TYPES:
            self.fail("expected u8, u16, u32, u64, s8, s16 or s32")
        self.at += 1
        self.expect("*")
        self.expect(")")
        return TYPES[name], name[0] == "s"

    def unsigned(self, *sizes, what):
        """`(u32 *)` of one of the sizes -> bytes."""
        size, signed = self.type()
        if signed or size not in sizes:
            self.fail("%s: expected %s" % (what, alternatives(["u%d" % (8 * size) for size in sizes])), 3)
        return size

    def _letter(self, size):
        """The registers that hold `size` bytes: w or r, but all of r for 8."""
        return "r" if size == 8 else "rw"

    def memory(self):
        """`(r10 -8)` -> (register, offset)."""
        self.expect("(")
        base = self.register()
        off = self.displacement()
        self.expect(")")
        return base, off

    def displacement(self):
        if self.peek() in (")", ",", "]"):
            return 0
        if self.peek() not in ("+", "-"):
            self.fail("expected + or - and an offset, or )")
        return self.number(-0x8000, 0x7FFF, "offset")

    # statements

    def instruction(self):
        """The whole statement."""
        kind, text = self.kind(), self.peek()
        lower = text.lower()
        if kind == "name" and self.at_register():
            made = self._assignment()
        elif text == "*":
            made = self._store()
        elif lower in _KEYWORDS:
            self.at += 1
            made = getattr(self, "_" + lower.strip("."))()
        else:
            self.fail("expected an instruction (r1 = ..., *(u64 *)(...) = ..., if, goto, call, exit, ...)")
        self.end()
        return made

    def _assignment(self):
        wide = self.peek()[0] in "rR"
        letter = "r" if wide else "w"
        dst = self.register("rw")
        operator = self.operator(_ASSIGN)
        cls = BPF_ALU64 if wide else BPF_ALU
        if operator != "=":
            operation, off = ALU_OPERATION[operator[:-1]]
            if self.at_register():
                return Instruction(cls | operation | BPF_X, dst, self.register(letter), off)
            return Instruction(cls | operation, dst, 0, off, self.imm())
        text, kind = self.peek(), self.kind()
        if text == "*":
            return self._load(wide, dst)
        if text == "&" and wide:
            for word in "& ( void __percpu * ) (".split():
                self.expect(word)
            src = self.register("r")
            self.expect(")")
            return Instruction(BPF_ALU64 | BPF_MOV | BPF_X, dst, src, BPF_ADDR_PERCPU)
        if text == "-" and self.kind(1) == "name" and REGISTER.match(self.peek(1)):
            self.at += 1
            self._same(dst, letter)
            return Instruction(cls | BPF_NEG, dst)
        if text == "(" and self.peek(1) in ("s8", "s16", "s32") and self.peek(2) == ")":
            bits = int(self.peek(1)[1:])
            if bits == 32 and not wide:
                self.at += 1
                self.fail("expected s8 or s16")
            self.at += 3
            return Instruction(cls | BPF_MOV | BPF_X, dst, self.register(letter), bits)
        if kind == "name":
            if self.at_register():
                return Instruction(cls | BPF_MOV | BPF_X, dst, self.register(letter))
            if text.lower() in SWAPS:
                if not wide:
                    self.fail("byte swaps are of an r register: r%d = %s r%d" % (dst, text.lower(), dst))
                return self._swap(dst)
            if self.peek(1) == "(":
                made = self._function(wide, dst)
                if made:
                    return made
            elif text not in self.symbols or self.peek(1) == "[":
                made = self._address(dst)
                if not wide:
                    raise Unexpected(0, len(self.text), "a 64-bit constant needs an r register")
                return made
        start = self.at
        value = self.number()
        if self.peek() == "ll":
            self.at += 1
            if not wide:
                self.at = start
                self.fail("a 64-bit constant needs an r register")
            return Instruction(LDDW, dst, 0, 0, value & (1 << 64) - 1)
        if not -1 << 31 <= value < 1 << 32:
            end, self.at = self.at, start
            raise Unexpected(self.tokens[start][2], self.tokens[end - 1][3], "%d needs more than 32 bits; "
                             "a 64-bit constant is written with ` ll` behind it" % value)
        return Instruction(cls | BPF_MOV, dst, 0, 0, value - (1 << 32) if value >= 1 << 31 else value)

    def _same(self, dst, letter):
        if self.register(letter) != dst:
            self.fail("expected %s%d: source and destination are one register" % (letter, dst), 1)

    def _swap(self, dst):
        kind, bits = SWAPS[self.next().lower()]
        self._same(dst, "r")
        cls = BPF_ALU64 if kind == "bswap" else BPF_ALU
        return Instruction(cls | BPF_END | (BPF_X if kind == "be" else 0), dst, 0, 0, bits)

    def _load(self, wide, dst):
        self.at += 1
        size, signed = self.type()
        if self.take("skb"):
            return self._packet(dst, size, signed)
        src, off = self.memory()
        if signed and (size == 8 or not wide):
            self.fail("a sign-extending load is of s8, s16 or s32 into an r register")
        if not wide and size == 8:
            self.fail("64 bits do not fit a w register")
        return Instruction(BPF_LDX | (BPF_MEMSX if signed else BPF_MEM) | SIZE_CODE[size], dst, src, off)

    def _packet(self, dst, size, signed):
        if dst or size == 8 or signed:
            self.fail("packet loads are of u8, u16 or u32 into r0", 1)
        self.expect("[")
        if self.at_register():
            src = self.register()
            imm = self.imm() if self.peek() != "]" else 0
            mode = BPF_IND
        else:
            src, imm, mode = 0, self.imm(), BPF_ABS
        self.expect("]")
        return Instruction(BPF_LD | mode | SIZE_CODE[size], 0, src, 0, imm)

    def _function(self, wide, dst):
        """r2 = atomic64_fetch_add((u64 *)(r1 +8), r2) and what else looks like a call; None for `name (`."""
        name = self.peek()
        found = re.match(r"(?:atomic(?P<w>64)?_(?P<what>fetch_add|fetch_or|fetch_and|fetch_xor|xchg|cmpxchg)"
                         r"|(?P<llvm>xchg|cmpxchg)(?P<bits>_64|32_32)|(?P<acquire>load_acquire)"
                         r"|(?P<cast>addr_space_cast))$", name)
        if not found:
            return None
        self.at += 1
        if found.group("cast"):
            self._fits(wide, 8)
            return self._cast(dst)
        self.expect("(")
        if found.group("acquire"):
            size = self.unsigned(1, 2, 4, 8, what="load_acquire")
            self._fits(wide, size)
            src, off = self.memory()
            self.expect(")")
            return Instruction(BPF_STX | BPF_ATOMIC | SIZE_CODE[size], dst, src, off, BPF_LOAD_ACQ)
        what = found.group("what") or found.group("llvm")
        if found.group("llvm"):
            size = 8 if found.group("bits") == "_64" else 4
            base = self.register()
            off = self.displacement()
        else:
            size = self.unsigned(*((8,) if found.group("w") else (4, 8)), what=name)
            base, off = self.memory()
        self._fits(wide, size)
        letters = self._letter(size)
        code = BPF_STX | BPF_ATOMIC | SIZE_CODE[size]
        self.expect(",")
        if what == "cmpxchg":
            if dst != 0:
                raise Unexpected(0, len(self.text), "cmpxchg compares with and sets r0")
            self._same(0, letters)
            self.expect(",")
            src = self.register(letters)
            imm = BPF_CMPXCHG
        else:
            self._same(dst, letters)
            src = dst
            imm = BPF_XCHG if what == "xchg" else FETCH[what[6:]] | BPF_FETCH
        self.expect(")")
        return Instruction(code, base, src, off, imm)

    def _fits(self, wide, size):
        if size == 8 and not wide:
            raise Unexpected(self.tokens[0][2], self.tokens[0][3], "64 bits do not fit a w register")

    def _cast(self, dst):
        self.expect("(")
        src = self.register()
        self.expect(",")
        to = self.number(0, 0xFFFF, "address space")
        self.expect(",")
        origin = self.number(0, 0xFFFF, "address space")
        self.expect(")")
        value = to << 16 | origin
        return Instruction(BPF_ALU64 | BPF_MOV | BPF_X, dst, src, BPF_ADDR_SPACE_CAST, value - (value >> 31 << 32))

    def _address(self, dst):
        """map[name][0]+8 ll, func[name] ll, ksym[name] ll, map_fd[3] ll, symbol ll, symbol + 8 ll."""
        name = self.next()
        ref, src, imm = None, 0, 0
        if self.peek() == "[":
            if name not in ("map", "func", "subprog", "ksym", *_PSEUDO):
                self.fail("expected map, map_fd, map_idx, func, ksym or btf_id", 1)
            self.at += 1
            if name in _PSEUDO:
                src, value_src = _PSEUDO[name]
                imm = self.number(-1 << 31, (1 << 32) - 1) & 0xFFFFFFFF
                self.expect("]")
                if value_src and self.peek() == "[":
                    src, imm = value_src, imm | self._first_value() << 32
            elif name == "func" and self.peek() == "pc" or name == "subprog":
                self.take("pc")
                src, imm = BPF_PSEUDO_FUNC, self.number(-1 << 31, (1 << 31) - 1) & 0xFFFFFFFF
                self.expect("]")
            else:
                start = self.tokens[self.at][2]
                while self.kind() != "end" and self.peek() != "]":
                    self.at += 1
                target = self.text[start:self.tokens[self.at][2]].strip()
                self.expect("]")
                if not target:
                    self.fail("expected a name", 1)
                if name == "map":
                    ref = MapRef(target, self._first_value() if self.peek() == "[" else None)
                else:
                    ref = KsymRef(target) if name == "ksym" else FuncRef(target)
                    src = BPF_PSEUDO_FUNC if name == "func" else BPF_PSEUDO_BTF_ID
            self.take("ll")
        else:
            off = self.number(-1 << 31, (1 << 32) - 1) if self.peek() in ("+", "-") else 0
            if self.peek() != "ll":
                self.fail("expected ` ll` behind the address of a symbol" if self.at > 3 else
                          "expected a register, a number, or a symbol and ` ll`", 0 if self.at > 3 else 1)
            self.at += 1
            ref = SymbolRef(name, off)
        if isinstance(ref, MapRef):
            src = BPF_PSEUDO_MAP_FD if ref.offset is None else BPF_PSEUDO_MAP_VALUE
        return Instruction(LDDW, dst, src, 0, imm, ref)

    def _first_value(self):
        """`[0]+8` -> 8."""
        self.expect("[")
        if self.number() != 0:
            self.fail("expected 0: only the first value has an address", 1)
        self.expect("]")
        return self.number(0, (1 << 32) - 1, "offset") if self.peek() == "+" else 0

    def _store(self):
        self.at += 1
        size = self.unsigned(1, 2, 4, 8, what="a store")
        dst, off = self.memory()
        self.expect("=")
        if self.at_register():
            src = self.register(self._letter(size))
            return Instruction(BPF_STX | BPF_MEM | SIZE_CODE[size], dst, src, off)
        return Instruction(BPF_ST | BPF_MEM | SIZE_CODE[size], dst, 0, off, self.imm())

    def _lock(self):
        self.expect("*")
        size = self.unsigned(4, 8, what="lock")
        dst, off = self.memory()
        operator = self.operator(("+=", "|=", "&=", "^="))
        src = self.register(self._letter(size))
        return Instruction(BPF_STX | BPF_ATOMIC | SIZE_CODE[size], dst, src, off, ATOMIC_OPERATION[operator[0]])

    def _store_release(self):
        self.expect("(")
        size = self.unsigned(1, 2, 4, 8, what="store_release")
        dst, off = self.memory()
        self.expect(",")
        src = self.register(self._letter(size))
        self.expect(")")
        return Instruction(BPF_STX | BPF_ATOMIC | SIZE_CODE[size], dst, src, off, BPF_STORE_REL)

    def _ld_pseudo(self):
        dst = self.register()
        self.expect(",")
        src = self.number(0, 15, "pseudo source")
        self.expect(",")
        return Instruction(LDDW, dst, src, 0, self.number(-1 << 31, (1 << 32) - 1) & 0xFFFFFFFF)

    def _if(self):
        wide = self.peek()[:1] in ("r", "R")
        letter = "r" if wide else "w"
        dst = self.register("rw")
        operator = self.operator(_COMPARE)
        cls = (BPF_JMP if wide else BPF_JMP32) | JUMP_OPERATION[operator]
        if self.at_register():
            cls, src, imm = cls | BPF_X, self.register(letter), 0
        else:
            src, imm = 0, self.imm()
        self.take(",")
        if self.peek().lower() != "goto":
            self.fail("expected goto")
        self.at += 1
        off, ref = self._target(16)
        return Instruction(cls, dst, src, off, imm, ref)

    def _target(self, bits):
        """pc+3, +0x3 (perhaps with <label> behind it), 3, or a label -> (offset, Label or None)."""
        if self.peek() == "pc" and self.peek(1) in ("+", "-"):
            self.at += 1
        if self.kind() in ("number", "op") or self.kind() == "name" and self.peek() in self.symbols:
            off = self.number(-1 << bits - 1, (1 << bits - 1) - 1, "jump offset")
            if self.take("<"):
                while self.kind() != "end" and self.next() != ">":
                    continue
            return off, None
        if self.kind() != "name":
            self.fail("expected a label, or pc+N")
        return 0, Label(self.next())

    def _goto(self):
        off, ref = self._target(16)
        return Instruction(JA, 0, 0, off, 0, ref)

    def _gotol(self):
        off, ref = self._target(32)
        return Instruction(JA32, 0, 0, 0, off, ref)

    def _gotox(self):
        return Instruction(JAX, self.register("r"))

    def _may_goto(self):
        off, ref = self._target(16)
        return Instruction(BPF_JMP | BPF_JCOND, 0, 0, off, 0, ref)

    def _exit(self):
        return Instruction(EXIT)

    def _callx(self):
        return Instruction(CALL | BPF_X, self.register())

    def _call(self):
        if self.at_register("r"):
            return self._callx()
        kind, name = self.kind(), self.peek()
        if kind == "name" and name == "pc" and self.peek(1) in ("+", "-"):
            self.at += 1
            imm = self.number(-1 << 31, (1 << 31) - 1, "call offset")
            if self.take("#"):
                self.next()     # bpftool names what it calls
            return Instruction(CALL, 0, BPF_PSEUDO_CALL, 0, imm)
        if kind != "name" or name in self.symbols:
            return Instruction(CALL, 0, 0, 0, self.number(-1 << 31, (1 << 31) - 1, "helper number"))
        self.at += 1
        if name == "kfunc" and self.take("["):
            target = self.next()
            self.expect("]")
            return Instruction(CALL, 0, BPF_PSEUDO_KFUNC_CALL, 0, 0, KsymRef(target))
        if self.take("#"):
            number = self.number(-1 << 31, (1 << 31) - 1, "function number")
            off = self.number(-0x8000, 0x7FFF, "BTF index") if self.take(",") else 0
            if name == "kfunc" or name != "unknown" and name not in NUMBER:
                return Instruction(CALL, 0, BPF_PSEUDO_KFUNC_CALL, off, number)
            return Instruction(CALL, 0, 0, 0, number)
        # A function of the program, or a helper: whoever knows the labels decides.
        return Instruction(CALL, 0, 0, 0, 0, CallRef(name))

    def _insn(self):
        limits = ((0, 255, "code"), (0, 15, "dst"), (0, 15, "src"), (-0x8000, 0xFFFF, "off"))
        fields = []
        for low, high, what in limits:
            fields.append(self.number(low, high, what))
            self.expect(",")
        code, dst, src, off = fields
        off -= off >> 15 << 16 if off > 0 else 0
        imm = self.imm()
        if self.take(","):
            if code != LDDW:
                self.fail("only lddw (code 0x18) has a second immediate", 1)
            return Instruction(code, dst, src, off, imm & 0xFFFFFFFF | (self.imm() & 0xFFFFFFFF) << 32)
        return Instruction(code, dst, src, off, imm, HALF if code == LDDW else None)


class SymbolRef(tuple):
    """`name ll`: what `name` is is known when the whole file is read."""

    __slots__ = ()

    def __new__(cls, name, offset):
        return tuple.__new__(cls, (name, offset))

    name = property(lambda self: self[0])
    offset = property(lambda self: self[1])


class CallRef(tuple):
    """`call name`: a function of the file, or a helper."""

    __slots__ = ()

    def __new__(cls, name):
        return tuple.__new__(cls, (name,))

    name = property(lambda self: self[0])
