"""Instructions as text: the verifier's and bpftool's syntax, made unambiguous where theirs is not.

It differs from the verifier log only where that does not determine the instruction: `lddw` ends in
` ll` and names its pseudo source, calls of functions and kfuncs say which they are, 32-bit registers are
`w` wherever the operation is 32 bits wide. What has no text form is `.insn code, dst, src, off, imm`.
`text.assemble` reads all of it back to the same bytes.
"""

from .helpers import NAME
from .instruction import HALF, FuncRef, KsymRef, Label, MapRef, slot_numbers
from .opcodes import *

_LAST = 11
_ALU_TEXT = {key: op for op, key in ALU_OPERATION.items()}
_JUMP_TEXT = {code: op for op, code in JUMP_OPERATION.items()}
_CTYPE = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
_PSEUDO = {BPF_PSEUDO_MAP_FD: "map_fd", BPF_PSEUDO_MAP_IDX: "map_idx", BPF_PSEUDO_BTF_ID: "btf_id",
           BPF_PSEUDO_FUNC: "func"}
_PSEUDO_VALUE = {BPF_PSEUDO_MAP_VALUE: "map_fd", BPF_PSEUDO_MAP_IDX_VALUE: "map_idx"}
_FETCH = {BPF_ADD: "add", BPF_OR: "or", BPF_AND: "and", BPF_XOR: "xor"}


def text(instruction):
    """One instruction as text. Jump targets are relative: `goto pc+3`."""
    return _insn(instruction) if instruction[1] > 10 or instruction[2] > 10 else _listed(instruction)


def _listed(instruction):
    """The same, with r11 for the register that the kernel has for itself, and uses in what it makes of a program."""
    code, dst, src, off, imm, ref = instruction
    if ref is HALF:
        return _insn(instruction)
    return (_FORMS[code & 7](code, dst, src, off, imm, ref) if dst <= _LAST else None) or _insn(instruction)


def disassemble(instructions, first=0):
    """Lines `   3: (bf) r6 = r1`, numbered by slot as the verifier does, `first` being the first number."""
    numbers = slot_numbers(instructions)
    return "\n".join("%4d: (%02x) %s" % (first + number, instruction.code, _listed(instruction))
                     for number, instruction in zip(numbers, instructions))


def _insn(instruction):
    code, dst, src, off, imm, ref = instruction
    if code == LDDW and ref is None:
        low, high = imm & 0xFFFFFFFF, imm >> 32 & 0xFFFFFFFF
        return ".insn %#x, %d, %d, %d, %#x, %#x" % (code, dst, src, off, low, high)
    return ".insn %#x, %d, %d, %d, %d" % (code, dst, src, off, imm)


def _ld(code, dst, src, off, imm, ref):
    mode = code & 0xE0
    if code == LDDW:
        if off or src > 6:
            return None
        if ref is not None:
            if isinstance(ref, MapRef):
                return "r%d = map[%s]%s ll" % (dst, ref.name, "" if ref.offset is None else "[0]+%d" % ref.offset)
            return "r%d = %s[%s] ll" % (dst, "func" if isinstance(ref, FuncRef) else "ksym", ref.name)
        low, high = imm & 0xFFFFFFFF, imm >> 32 & 0xFFFFFFFF
        if not src:
            return "r%d = %#x ll" % (dst, imm & (1 << 64) - 1)
        low -= low >> 31 << 32
        if src in _PSEUDO_VALUE:
            return "r%d = %s[%d][0]+%d ll" % (dst, _PSEUDO_VALUE[src], low, high)
        if high:
            return None
        if src == BPF_PSEUDO_FUNC:
            return "r%d = func[pc%+d] ll" % (dst, low)
        return "r%d = %s[%d] ll" % (dst, _PSEUDO[src], low)
    size = CODE_SIZE[code & 0x18]
    if mode == BPF_ABS and size != 8 and not (dst or src or off):
        return "r0 = *(%s *)skb[%d]" % (_CTYPE[size], imm)
    if mode == BPF_IND and size != 8 and src <= _LAST and not (dst or off):
        return "r0 = *(%s *)skb[r%d %+d]" % (_CTYPE[size], src, imm)
    return None


def _memory(code, base, off):
    return "*(%s *)(r%d %+d)" % (_CTYPE[CODE_SIZE[code & 0x18]], base, off)


def _ldx(code, dst, src, off, imm, ref):
    mode = code & 0xE0
    if imm or src > _LAST:
        return None
    if mode == BPF_MEM:
        return "r%d = %s" % (dst, _memory(code, src, off))
    if mode == BPF_MEMSX and code & 0x18 != BPF_DW:
        return "r%d = %s" % (dst, _memory(code, src, off).replace("u", "s", 1))
    return None


def _st(code, dst, src, off, imm, ref):
    if code & 0xE0 == BPF_MEM and not src:
        return "%s = %d" % (_memory(code, dst, off), imm)
    return None


def _stx(code, dst, src, off, imm, ref):
    mode, size = code & 0xE0, CODE_SIZE[code & 0x18]
    if src > _LAST:
        return None
    if mode == BPF_MEM and not imm:
        return "%s = r%d" % (_memory(code, dst, off), src)
    if mode != BPF_ATOMIC:
        return None
    memory = "(%s *)(r%d %+d)" % (_CTYPE[size], dst, off)
    if imm == BPF_LOAD_ACQ:
        return "r%d = load_acquire((%s *)(r%d %+d))" % (dst, _CTYPE[size], src, off)
    if imm == BPF_STORE_REL:
        return "store_release(%s, r%d)" % (memory, src)
    if size not in (4, 8):
        return None
    r, wide = ("r", "64") if size == 8 else ("w", "")
    if imm in _FETCH:
        return "lock *%s %s= %s%d" % (memory, _ALU_TEXT[imm, 0], r, src)
    if imm & ~BPF_FETCH in _FETCH:
        return "%s%d = atomic%s_fetch_%s(%s, %s%d)" % (r, src, wide, _FETCH[imm & ~BPF_FETCH], memory, r, src)
    if imm == BPF_XCHG:
        return "%s%d = atomic%s_xchg(%s, %s%d)" % (r, src, wide, memory, r, src)
    if imm == BPF_CMPXCHG:
        return "%s0 = atomic%s_cmpxchg(%s, %s0, %s%d)" % (r, wide, memory, r, r, src)
    return None


def _alu(code, dst, src, off, imm, ref):
    operation, wide = code & 0xF0, code & 7 == BPF_ALU64
    r = "r" if wide else "w"
    if operation == BPF_END:
        if src or off or imm not in (16, 32, 64) or wide and code & BPF_X:
            return None
        kind = "bswap" if wide else "be" if code & BPF_X else "le"
        return "r%d = %s%d r%d" % (dst, kind, imm, dst)
    if operation == BPF_NEG:
        return None if src or off or imm or code & BPF_X else "%s%d = -%s%d" % (r, dst, r, dst)
    register = code & BPF_X
    if register and (imm and operation != BPF_MOV or src > _LAST) or not register and src:
        return None
    value = "%s%d" % (r, src) if register else "%d" % imm
    if operation == BPF_MOV:
        if not off and not (register and imm):
            return "%s%d = %s" % (r, dst, value)
        if register and wide and off == 1:
            return "r%d = addr_space_cast(r%d, %d, %d)" % (dst, src, imm >> 16 & 0xFFFF, imm & 0xFFFF)
        if register and wide and off == -1 and not imm:
            return "r%d = &(void __percpu *)(r%d)" % (dst, src)
        if register and not imm and off in ((8, 16, 32) if wide else (8, 16)):
            return "%s%d = (s%d)%s" % (r, dst, off, value)
        return None
    op = _ALU_TEXT.get((operation, off))
    return op and "%s%d %s= %s" % (r, dst, op, value)


def _jmp(code, dst, src, off, imm, ref):
    operation, wide = code & 0xF0, code & 7 == BPF_JMP
    target = "goto %s" % ref.name if isinstance(ref, Label) else "goto pc%+d" % off
    if code == JAX:
        return None if src or off or imm else "gotox r%d" % dst
    if operation == BPF_JA:
        if dst or src or code & BPF_X:
            return None
        if wide:
            return None if imm else target
        if off:
            return None
        return "gotol %s" % ref.name if isinstance(ref, Label) else "gotol pc%+d" % imm
    if operation == BPF_CALL:
        return _call(code, dst, src, off, imm, ref)
    if operation == BPF_EXIT:
        return "exit" if code == EXIT and not (dst or src or off or imm) else None
    if operation == BPF_JCOND:
        return "may_" + target if code == BPF_JMP | BPF_JCOND and not (dst or src or imm) else None
    r = "r" if wide else "w"
    if code & BPF_X:
        if imm or src > _LAST:
            return None
        value = "%s%d" % (r, src)
    elif src:
        return None
    else:
        value = "%#x" % (imm & 0xFFFFFFFF)
    op = _JUMP_TEXT.get(operation)
    return op and "if %s%d %s %s %s" % (r, dst, op, value, target)


def _call(code, dst, src, off, imm, ref):
    if code == CALL | BPF_X:
        return None if src or off or imm else "callx r%d" % dst
    if code != CALL or dst:
        return None
    if isinstance(ref, (FuncRef, KsymRef)):
        if off:
            return None
        return "call %s" % ref.name if isinstance(ref, FuncRef) else "call kfunc[%s]" % ref.name
    if src == BPF_PSEUDO_KFUNC_CALL:
        return "call kfunc#%d%s" % (imm, ", %d" % off if off else "")
    if off or src > 1:
        return None
    if src == BPF_PSEUDO_CALL:
        return "call pc%+d" % imm
    return "call %s#%d" % (NAME[imm], imm) if 0 <= imm < len(NAME) else "call %d" % imm


_FORMS = (_ld, _ldx, _st, _stx, _alu, _jmp, _jmp, _alu)
