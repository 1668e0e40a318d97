"""The statements that nearly all of a program is made of, read by one regular expression each.

They accept less than `statement.Statement` and read it alike (a test compares them): what our own
disassembler prints, and what people write most.
"""

import re

from .instruction import HALF, Instruction, Label
from .opcodes import *
from .helpers import NAME
from .statement import FETCH, SWAPS, TYPES

_new = tuple.__new__
_R = "(10|[0-9])"
_N = "(-?(?:0x[0-9a-f]{1,16}|[1-9][0-9]{0,18}|0))"
_OFF = "([+-]) ?(0x[0-9a-f]{1,5}|[1-9][0-9]{0,5}|0)"
_MEM = r"\(r%s ?%s\)" % (_R, _OFF)
_GOTO = r"(?:pc([+-][0-9]{1,10})|([A-Za-z_]\w*))$"


def _match(pattern, **parts):
    return re.compile(pattern.format(R=_R, N=_N, OFF=_OFF, MEM=_MEM, GOTO=_GOTO, **parts)).match


_alu = _match(r"([rw]){R} (\+|-|\*|s/|/|s%|%|\||&|\^|<<|>>|s>>|)= (?:([rw]){R}|{N})$")
_ldx = _match(r"r{R} = \*\(([us])(8|16|32|64) \*\){MEM}$")
_lddw = _match(r"r{R} = {N} ll$")
_store = _match(r"\*\((u8|u16|u32|u64) \*\){MEM} = (?:r{R}|{N})$")
_if = _match(r"if ([rw]){R} (==|!=|s?[<>]=?|&) (?:([rw]){R}|{N}) goto {GOTO}")
_goto = _match(r"(goto|gotol|may_goto) {GOTO}")
_lock = _match(r"lock \*\((u32|u64) \*\){MEM} ([+|&^])= ([rw]){R}$")
_atomic = _match(r"([rw]){R} = atomic(64)?_(?:fetch_(add|or|and|xor)|(xchg)|(cmpxchg))\(\((u32|u64) \*\){MEM}, "
                 r"(?:([rw])0, )?([rw]){R}\)$")
_ordered = _match(r"(?:r{R} = load_acquire\(\((u8|u16|u32|u64) \*\){MEM}\)|"
                  r"store_release\(\((u8|u16|u32|u64) \*\){MEM}, r{R}\))$")
_insn = _match(r"\.insn {N}, ([0-9]|1[0-5]), ([0-9]|1[0-5]), {N}, {N}(?:, {N})?$")
_call = re.compile(r"call (?:pc([+-][0-9]{1,10})|(bpf_\w+)#([0-9]{1,10})|kfunc#(-?[0-9]{1,10}))$").match
_unary = _match(r"([rw]){R} = (?:-([rw]){R}|\((s8|s16|s32)\)([rw]){R}|(be16|be32|be64|le16|le32|le64|bswap16|bswap32|"
                r"bswap64) r{R})$")


def _imm(number):
    """A 32-bit immediate, or None when it is none."""
    imm = int(number, 0)
    if imm > 0:
        return imm - (imm >> 31 << 32) if imm <= 0xFFFFFFFF else None
    return imm if imm >= -0x80000000 else None


def _off(sign, number):
    off = int(sign + number, 0)
    return off if -0x8000 <= off <= 0x7FFF else None


def _register(text):
    """rN = ..., wN = ..."""
    found = _alu(text)
    if found:
        letter, dst, operator, source, register, number = found.groups()
        cls = BPF_ALU64 if letter == "r" else BPF_ALU
        operation, off = ALU_OPERATION[operator] if operator else (BPF_MOV, 0)
        if register:
            return (cls | operation | BPF_X, int(dst), int(register), off, 0) if source == letter else None
        imm = _imm(number)
        return None if imm is None else (cls | operation, int(dst), 0, off, imm)
    found = _ldx(text)
    if found:
        dst, sign, bits, src, direction, number = found.groups()
        off = _off(direction, number)
        if off is None or sign == "s" and bits == "64":
            return None
        return (BPF_LDX | (BPF_MEM if sign == "u" else BPF_MEMSX) | SIZE_CODE[int(bits) // 8], int(dst), int(src), off, 0)
    found = _lddw(text)
    if found:
        value = int(found.group(2), 0)
        return (LDDW, int(found.group(1)), 0, 0, value & (1 << 64) - 1) if -1 << 63 <= value < 1 << 64 else None
    found = _atomic(text)
    if found:
        return _fetch(*found.groups())
    return _one_operand(text) or (_acquire_release(text) if "load_acquire" in text else None)


def _fetch(letter, dst, wide, fetch, xchg, cmpxchg, size, base, direction, number, compared, source, src):
    off = _off(direction, number)
    if off is None or bool(compared) != bool(cmpxchg) or wide and size == "u32":
        return None
    if size == "u64" and not letter == source == (compared or "r") == "r":
        return None
    if int(dst) != (0 if cmpxchg else int(src)):
        return None
    imm = BPF_CMPXCHG if cmpxchg else BPF_XCHG if xchg else FETCH[fetch] | BPF_FETCH
    return BPF_STX | BPF_ATOMIC | SIZE_CODE[TYPES[size]], int(base), int(src), off, imm


def _one_operand(text):
    found = _unary(text)
    if not found:
        return None
    letter, dst, negated, neg, sign, from_, src, swap, swapped = found.groups()
    cls = BPF_ALU64 if letter == "r" else BPF_ALU
    if neg:
        return (cls | BPF_NEG, int(dst), 0, 0, 0) if neg == dst and negated == letter else None
    if sign:
        if from_ != letter or sign == "s32" and letter == "w":
            return None
        return cls | BPF_MOV | BPF_X, int(dst), int(src), int(sign[1:]), 0
    if swapped != dst or letter == "w":
        return None
    kind, bits = SWAPS[swap]
    return (BPF_ALU64 if kind == "bswap" else BPF_ALU) | BPF_END | (BPF_X if kind == "be" else 0), int(dst), 0, 0, bits


def _acquire_release(text):
    found = _ordered(text)
    if not found:
        return None
    dst, size, base, direction, number, size2, base2, direction2, number2, src = found.groups()
    off = _off(direction or direction2, number or number2)
    if off is None:
        return None
    code = BPF_STX | BPF_ATOMIC | SIZE_CODE[TYPES[size or size2]]
    return (code, int(dst), int(base), off, BPF_LOAD_ACQ) if dst else (code, int(base2), int(src), off, BPF_STORE_REL)


def _memory(text):
    found = _store(text)
    if not found:
        return None
    size, dst, direction, number, src, value = found.groups()
    off, size = _off(direction, number), SIZE_CODE[TYPES[size]]
    if off is None:
        return None
    if src:
        return BPF_STX | BPF_MEM | size, int(dst), int(src), off, 0
    imm = _imm(value)
    return None if imm is None else (BPF_ST | BPF_MEM | size, int(dst), 0, off, imm)


def _locked(text):
    found = _lock(text)
    if not found:
        return None
    size, dst, direction, number, operator, letter, src = found.groups()
    off = _off(direction, number)
    if off is None or size == "u64" and letter == "w":
        return None
    return BPF_STX | BPF_ATOMIC | SIZE_CODE[TYPES[size]], int(dst), int(src), off, ATOMIC_OPERATION[operator]


def _branch(text):
    found = _if(text)
    if not found:
        return None
    letter, dst, operator, source, register, number, off, label = found.groups()
    code = (BPF_JMP if letter == "r" else BPF_JMP32) | JUMP_OPERATION[operator]
    ref = Label(label) if label else None
    off = int(off or 0)
    if not -0x8000 <= off <= 0x7FFF:
        return None
    if register:
        return (code | BPF_X, int(dst), int(register), off, 0, ref) if source == letter else None
    imm = _imm(number)
    return None if imm is None else (code, int(dst), 0, off, imm, ref)


def _jump(text):
    found = _goto(text)
    if not found:
        return None
    kind, off, label = found.groups()
    off, ref = int(off or 0), Label(label) if label else None
    if kind == "gotol":
        return (JA32, 0, 0, 0, off, ref) if -1 << 31 <= off < 1 << 31 else None
    return (JA if kind == "goto" else BPF_JMP | BPF_JCOND, 0, 0, off, 0, ref) if -0x8000 <= off <= 0x7FFF else None


def _function(text):
    found = _call(text)
    if not found:
        return None
    local, helper, number, kfunc = found.groups()
    if helper:
        # a name that is not this number's is for the grammar to judge
        number = int(number)
        return (CALL, 0, 0, 0, number) if number < len(NAME) and NAME[number] == helper else None
    imm = int(local or kfunc)
    if not -1 << 31 <= imm < 1 << 31:
        return None
    return CALL, 0, BPF_PSEUDO_CALL if local else BPF_PSEUDO_KFUNC_CALL, 0, imm


def _any(text):
    found = _insn(text)
    if not found:
        return None
    code, dst, src, off, imm, high = found.groups()
    code, off, imm = int(code, 0), int(off, 0), _imm(imm)
    if not 0 <= code <= 255 or not -0x8000 <= off <= 0x7FFF or imm is None:
        return None
    if high is None:
        return code, int(dst), int(src), off, imm, HALF if code == LDDW else None
    high = _imm(high)
    if high is None or code != LDDW:
        return None
    return code, int(dst), int(src), off, imm & 0xFFFFFFFF | (high & 0xFFFFFFFF) << 32


_BY_LETTER = {"r": _register, "w": _register, "*": _memory, "i": _branch, "g": _jump, "m": _jump, "c": _function,
              "l": _locked, "s": _acquire_release, ".": _any}


def fast(text):
    """The Instruction of one of the most common statements, or None."""
    read = _BY_LETTER.get(text[0])
    made = read(text) if read else (EXIT, 0, 0, 0, 0) if text == "exit" else None
    if made is None:
        return None
    return _new(Instruction, made if len(made) == 6 else made + (None,))
