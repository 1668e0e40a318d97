"""The grammar of one assembly statement: text -> Instruction.

It takes what the verifier's log, bpftool and llvm-objdump print, wherever that determines the
instruction; where they differ both spellings are read (`goto pc+3` and `goto +0x3`, `r1 = *(u32 *)(r2 +0)`
and `w1 = ...`, `atomic64_xchg(...)` and `xchg_64(...)`). A few forms are our own, for what none of them
can say: `map[NAME] ll`, `map_fd[3][0]+8 ll`, `func[NAME] ll`, `call kfunc[NAME]`, `.insn`.
"""

import re

from .errors import AsmError
from .helpers import NAME, NUMBER
from .instruction import HALF, FuncRef, Instruction, KsymRef, Label, MapRef
from .opcodes import *


class Unexpected(Exception):
    """What stands at `start`..`end` of a statement is wrong."""

    def __init__(self, start, end, reason):
        self.start, self.end, self.reason = start, end, reason


_TOKEN = re.compile(r"""
    (?P<space>[ \t]+)
  | (?P<number>0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+)(?![\w.])
  | (?P<name>[A-Za-z_.$][\w.$]*|[0-9]+[bf](?!\w))
  | (?P<char>'(?:\\.|[^\\'])')
  | (?P<string>"(?:\\.|[^"\\])*")
  | (?P<op><<=|>>=|\+=|-=|\*=|/=|%=|\|=|&=|\^=|==|!=|<=|>=|<<|>>|[-+*/%|&^<>=~()\[\],:\#@])
""", re.X)

_REGISTER = re.compile(r"([rRwW])(\d+)$")
_TYPES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "s8": 1, "s16": 2, "s32": 4, "s64": 8}
_ESCAPES = {"n": 10, "t": 9, "r": 13, "0": 0, "\\": 92, "'": 39, '"': 34, "a": 7, "b": 8, "f": 12, "v": 11}
_FETCH = {"add": BPF_ADD, "or": BPF_OR, "and": BPF_AND, "xor": BPF_XOR}
_SWAPS = {kind + bits: (kind, int(bits)) for kind in ("be", "le", "bswap") for bits in ("16", "32", "64")}
_PSEUDO = {"map_fd": (BPF_PSEUDO_MAP_FD, BPF_PSEUDO_MAP_VALUE), "map_idx": (BPF_PSEUDO_MAP_IDX, BPF_PSEUDO_MAP_IDX_VALUE),
           "btf_id": (BPF_PSEUDO_BTF_ID, None)}


class Statement:
    """The tokens of one statement and a place among them. `symbols`: name -> number of .equ."""

    def __init__(self, text, symbols=None, start=0):
        self.text, self.symbols = text, symbols or {}
        self.tokens = tokens = []
        position, end = start, len(text)
        match = _TOKEN.match
        while position < end:
            found = match(text, position)
            if found is None:
                raise Unexpected(position, position + 1, "%r belongs to no statement" % text[position])
            kind = found.lastgroup
            if kind != "space":
                tokens.append((kind, found.group(), position, found.end()))
            position = found.end()
        tokens.append(("end", "", end, end + 1))
        self.at = 0

    # reading tokens

    def peek(self, ahead=0):
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)][1]

    def kind(self, ahead=0):
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)][0]

    def next(self):
        token = self.tokens[self.at]
        self.at += 1
        return token[1]

    def take(self, text):
        """Consumes the next token if it is `text`."""
        if self.tokens[self.at][1] == text and self.tokens[self.at][0] != "string":
            self.at += 1
            return True
        return False

    def expect(self, *texts):
        token = self.tokens[self.at]
        if token[1] not in texts or token[0] == "end":
            self.fail("expected %s" % _alternatives(texts))
        self.at += 1
        return token[1]

    def fail(self, reason, back=0):
        """Raises Unexpected at the next token, or at one `back` before it."""
        kind, text, start, end = self.tokens[max(self.at - back, 0)]
        raise Unexpected(start, end, reason + (", but the line ends" if kind == "end" else ""))

    def end(self):
        if self.kind() != "end":
            self.fail("expected nothing more on this line")

    # parts

    def number(self, low=-1 << 63, high=(1 << 64) - 1, what="number"):
        """An expression of numbers, characters and .equ names within bounds."""
        start = self.tokens[self.at][2]
        value = self._sum()
        if not low <= value <= high:
            raise Unexpected(start, self.tokens[self.at - 1][3], "%s %d must be %d to %d" % (what, value, low, high))
        return value

    def imm(self):
        """A 32-bit immediate; the upper half of the unsigned range is taken as its bit pattern."""
        value = self.number(-1 << 31, (1 << 32) - 1, "immediate")
        return value - (1 << 32) if value >= 1 << 31 else value

    def _sum(self, level=0):
        if level == len(_LEVELS):
            return self._unary()
        value = self._sum(level + 1)
        while self.peek() in _LEVELS[level] and self.kind() == "op":
            operator = self.next()
            right = self._sum(level + 1)
            if operator in ("/", "%") and not right:
                self.fail("division by zero", 1)
            if operator in ("<<", ">>") and not 0 <= right < 64:
                self.fail("a shift by %d" % right, 1)
            value = _ARITHMETIC[operator](value, right)
        return value

    def _unary(self):
        if self.take("-"):
            return -self._unary()
        if self.take("+"):
            return self._unary()
        if self.take("~"):
            return ~self._unary()
        if self.take("("):
            value = self._sum()
            self.expect(")")
            return value
        kind, text = self.kind(), self.peek()
        if kind == "number":
            self.at += 1
            if len(text) > 1 and text[0] == "0" and text.isdigit():
                if "8" in text or "9" in text:
                    self.fail("a number that starts with 0 is octal", 1)
                return int(text, 8)
            return int(text, 0)
        if kind == "char":
            self.at += 1
            return unescape(text)[0]
        if kind == "name" and text in self.symbols:
            self.at += 1
            return self.symbols[text]
        self.fail("expected a number")

    def register(self, wanted="r"):
        """The number of a register; `wanted` lists the letters allowed."""
        found = _REGISTER.match(self.peek())
        if not found or found.group(1).lower() not in wanted:
            self.fail("expected %s" % " or ".join("a register %s0 to %s10" % (w, w) for w in wanted))
        number = int(found.group(2))
        if number > 10:
            self.fail("registers go from %s0 to %s10" % (found.group(1), found.group(1)))
        self.at += 1
        return number

    def at_register(self, wanted="rw"):
        found = _REGISTER.match(self.peek()) if self.kind() == "name" else None
        return bool(found) and found.group(1).lower() in wanted and self.peek() not in self.symbols

    def operator(self, texts, prefix=True):
        """One of `texts`, `s/=` and the like possibly written apart."""
        signed = prefix and self.peek() == "s" and "s" + self.peek(1) in texts
        text = ("s" if signed else "") + self.peek(1 if signed else 0)
        if text not in texts:
            self.fail("expected one of %s" % " ".join(texts))
        self.at += 2 if signed else 1
        return text

    def type(self):
        """`(u32 *)` -> (bytes, signed)."""
        self.expect("(")
        name = self.peek()
        if name not in _TYPES:
            self.fail("expected u8, u16, u32, u64, s8, s16 or s32")
        self.at += 1
        self.expect("*")
        self.expect(")")
        return _TYPES[name], name[0] == "s"

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
        if text == "-" and self.kind(1) == "name" and _REGISTER.match(self.peek(1)):
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
            if text.lower() in _SWAPS:
                return self._swap(dst)
            if self.peek(1) == "(":
                made = self._function(wide, dst)
                if made:
                    return made
            elif text not in self.symbols or self.peek(1) == "[":
                return self._address(dst)
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
        kind, bits = _SWAPS[self.next().lower()]
        self._same(dst, "r")
        cls = BPF_ALU64 if kind == "bswap" else BPF_ALU
        return Instruction(cls | BPF_END | (BPF_X if kind == "be" else 0), dst, 0, 0, bits)

    def _load(self, wide, dst):
        self.at += 1
        size, signed = self.type()
        if self.take("skb"):
            return self._packet(dst, size)
        src, off = self.memory()
        if signed and (size == 8 or not wide):
            self.fail("a sign-extending load is of s8, s16 or s32 into an r register")
        if not wide and size == 8:
            self.fail("64 bits do not fit a w register")
        return Instruction(BPF_LDX | (BPF_MEMSX if signed else BPF_MEM) | SIZE_CODE[size], dst, src, off)

    def _packet(self, dst, size):
        if dst or size == 8:
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
        letters = "rw"
        found = re.match(r"(?:atomic(?P<w>64)?_(?P<what>fetch_add|fetch_or|fetch_and|fetch_xor|xchg|cmpxchg)"
                         r"|(?P<llvm>xchg|cmpxchg)(?P<bits>_64|32_32)|(?P<acquire>load_acquire)"
                         r"|(?P<cast>addr_space_cast))$", name)
        if not found:
            return None
        self.at += 1
        if found.group("cast"):
            return self._cast(dst)
        self.expect("(")
        if found.group("acquire"):
            size, _ = self.type()
            src, off = self.memory()
            self.expect(")")
            return Instruction(BPF_STX | BPF_ATOMIC | SIZE_CODE[size], dst, src, off, BPF_LOAD_ACQ)
        what = found.group("what") or found.group("llvm")
        if found.group("llvm"):
            size = 8 if found.group("bits") == "_64" else 4
            base = self.register()
            off = self.displacement()
        else:
            size, _ = self.type()
            if size not in (4, 8):
                self.fail("atomic operations are of u32 or u64", 3)
            base, off = self.memory()
        code = BPF_STX | BPF_ATOMIC | SIZE_CODE[size]
        self.expect(",")
        if what == "cmpxchg":
            if dst != 0:
                raise Unexpected(0, len(self.text), "cmpxchg compares with and sets r0")
            self._same(0, "rw")
            self.expect(",")
            src = self.register(letters)
            imm = BPF_CMPXCHG
        else:
            self._same(dst, "rw")
            src = dst
            imm = BPF_XCHG if what == "xchg" else _FETCH[what[6:]] | BPF_FETCH
        self.expect(")")
        return Instruction(code, base, src, off, imm)

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
        size, signed = self.type()
        if signed:
            self.fail("expected u8, u16, u32 or u64", 3)
        dst, off = self.memory()
        self.expect("=")
        if self.at_register():
            src = self.register("r" if size == 8 else "rw")
            return Instruction(BPF_STX | BPF_MEM | SIZE_CODE[size], dst, src, off)
        return Instruction(BPF_ST | BPF_MEM | SIZE_CODE[size], dst, 0, off, self.imm())

    def _lock(self):
        self.expect("*")
        size, _ = self.type()
        if size not in (4, 8):
            self.fail("atomic operations are of u32 or u64", 3)
        dst, off = self.memory()
        operator = self.operator(("+=", "|=", "&=", "^="))
        src = self.register("r" if size == 8 else "rw")
        return Instruction(BPF_STX | BPF_ATOMIC | SIZE_CODE[size], dst, src, off, ATOMIC_OPERATION[operator[0]])

    def _store_release(self):
        self.expect("(")
        size, _ = self.type()
        dst, off = self.memory()
        self.expect(",")
        src = self.register("r" if size == 8 else "rw")
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
                self.at += 1
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


_LEVELS = (("|",), ("^",), ("&",), ("<<", ">>"), ("+", "-"), ("*", "/", "%"))
_ARITHMETIC = {"|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "&": lambda a, b: a & b,
               "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "+": lambda a, b: a + b,
               "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: int(a / b) if abs(a) < 1 << 52
               else a // b, "%": lambda a, b: a % b}
_ASSIGN = ("=", *(op + "=" for op in ALU_OPERATION))
_COMPARE = tuple(JUMP_OPERATION)
_KEYWORDS = ("lock", "store_release", "ld_pseudo", "if", "goto", "gotol", "may_goto", "exit", "call", "callx", ".insn")


def unescape(quoted):
    """The bytes of a quoted string or character, quotes included."""
    body, out, i = quoted[1:-1], bytearray(), 0
    while i < len(body):
        if body[i] != "\\":
            out += body[i].encode()
            i += 1
            continue
        found = re.match(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", body[i:], re.S)
        if found.group(1):
            out.append(int(found.group(1), 16))
        elif found.group(2):
            out.append(int(found.group(2), 8) & 255)
        elif found.group(3) in _ESCAPES:
            out.append(_ESCAPES[found.group(3)])
        else:
            raise AsmError("unknown escape \\%s" % found.group(3))
        i += found.end()
    return bytes(out)


def _alternatives(texts):
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " or " + texts[-1]


# What makes up nearly all of a program, read by one regular expression each. They accept less than the
# grammar above and must read it alike (a test compares them).

_N = r"(-?(?:0x[0-9a-f]+|[1-9][0-9]*|0))"
_ALU_FAST = re.compile(r"([rw])(10|[0-9]) (\+|-|\*|s/|/|s%%|%%|\||&|\^|<<|>>|s>>|)= (?:([rw])(10|[0-9])|%s)$" % _N).match
_MEM_FAST = re.compile(r"\*\((u8|u16|u32|u64) \*\)\(r(10|[0-9]) ?([+-]) ?(0x[0-9a-f]+|[0-9]+)\) = (?:r(10|[0-9])|%s)$"
                       % _N).match
_LDX_FAST = re.compile(r"r(10|[0-9]) = \*\((u8|u16|u32|u64) \*\)\(r(10|[0-9]) ?([+-]) ?(0x[0-9a-f]+|[0-9]+)\)$").match
_IF_FAST = re.compile(r"if ([rw])(10|[0-9]) (==|!=|s?[<>]=?|&) (?:([rw])(10|[0-9])|%s) goto (?:pc([+-][0-9]+)|([A-Za-z_]\w*))$"
                      % _N).match
_GOTO_FAST = re.compile(r"goto (?:pc([+-][0-9]+)|([A-Za-z_]\w*))$").match


def fast(text, new=tuple.__new__):
    """The Instruction of one of the most common statements, or None."""
    first = text[0]
    if first == "r" or first == "w":
        found = _ALU_FAST(text)
        if found:
            letter, dst, operator, source, register, number = found.groups()
            cls = BPF_ALU64 if letter == "r" else BPF_ALU
            operation, off = ALU_OPERATION[operator] if operator else (BPF_MOV, 0)
            if register:
                if source != letter:
                    return None
                return new(Instruction, (cls | operation | BPF_X, int(dst), int(register), off, 0, None))
            imm = int(number, 0)
            if -0x80000000 <= imm <= 0xFFFFFFFF:
                return new(Instruction, (cls | operation, int(dst), 0, off, imm - (imm >> 31 << 32) if imm > 0 else imm,
                                         None))
            return None
        found = _LDX_FAST(text)
        if found:
            dst, size, src, sign, off = found.groups()
            off = int(sign + off, 0) if off[0] != "0" or off == "0" or off[1] == "x" else 0x10000
            if -0x8000 <= off <= 0x7FFF:
                return new(Instruction, (BPF_LDX | BPF_MEM | SIZE_CODE[_TYPES[size]], int(dst), int(src), off, 0, None))
    elif first == "*":
        found = _MEM_FAST(text)
        if found:
            size, dst, sign, off, src, number = found.groups()
            off = int(sign + off, 0) if off[0] != "0" or off == "0" or off[1] == "x" else 0x10000
            if -0x8000 <= off <= 0x7FFF:
                size = SIZE_CODE[_TYPES[size]]
                if src:
                    return new(Instruction, (BPF_STX | BPF_MEM | size, int(dst), int(src), off, 0, None))
                imm = int(number, 0)
                if -0x80000000 <= imm <= 0x7FFFFFFF:
                    return new(Instruction, (BPF_ST | BPF_MEM | size, int(dst), 0, off, imm, None))
    elif first == "g":
        found = _GOTO_FAST(text)
        if found:
            off, label = found.groups()
            off = int(off or 0)
            if -0x8000 <= off <= 0x7FFF:
                return new(Instruction, (JA, 0, 0, off, 0, Label(label) if label else None))
    elif first == "i":
        found = _IF_FAST(text)
        if found:
            letter, dst, operator, source, register, number, off, label = found.groups()
            code = (BPF_JMP if letter == "r" else BPF_JMP32) | JUMP_OPERATION[operator]
            ref = Label(label) if label else None
            off = int(off or 0)
            if not -0x8000 <= off <= 0x7FFF or source not in (None, letter):
                return None
            if register:
                return new(Instruction, (code | BPF_X, int(dst), int(register), off, 0, ref))
            imm = int(number, 0)
            if -0x80000000 <= imm <= 0xFFFFFFFF:
                return new(Instruction, (code, int(dst), 0, off, imm - (imm >> 31 << 32) if imm > 0 else imm, ref))
    return None
