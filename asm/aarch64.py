"""AArch64 machine code to text: the instructions that the kernel's BPF JIT emits, and their kin.

Encodings: Arm Architecture Reference Manual for A-profile, chapter C4 (A64 instruction set encoding). Text: as
GNU objdump prints it, with the aliases that it prefers, without its comments.
"""

import struct

from .machinecode import MachineInstruction

_CONDITION = ("eq", "ne", "cs", "cc", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le", "al", "nv")
_HINTS = {0: "nop", 1: "yield", 2: "wfe", 3: "wfi", 4: "sev", 5: "sevl", 7: "xpaclri", 16: "esb", 20: "csdb",
          22: "clearbhb", 25: "paciasp", 29: "autiasp", 32: "bti", 34: "bti c", 36: "bti j", 38: "bti jc"}
_BARRIERS = {15: "sy", 14: "st", 13: "ld", 11: "ish", 10: "ishst", 9: "ishld", 7: "nsh", 6: "nshst", 5: "nshld",
             3: "osh", 2: "oshst", 1: "oshld"}
# op0:op1:CRn:CRm:op2 without the top bit of op0, which is always set
_SYSTEM_REGISTERS = {0x5e82: "tpidr_el0", 0x4684: "tpidr_el1", 0x6682: "tpidr_el2", 0x4208: "sp_el0",
                     0x5f02: "cntvct_el0", 0x5f06: "cntvctss_el0", 0x5a10: "nzcv"}
_SHIFTS = ("lsl", "lsr", "asr", "ror")
_EXTENDS = ("uxtb", "uxth", "uxtw", "uxtx", "sxtb", "sxth", "sxtw", "sxtx")
_SIZE = ("b", "h", "", "")


class _Unknown(Exception):
    """This word is no instruction that is known here."""


def _bits(word, low, count):
    return word >> low & (1 << count) - 1


def _signed(value, bits):
    return value - (value >> bits - 1 << bits)


def _reg(number, wide, stack=False):
    """Register 31 is the stack pointer or zero, as the instruction has it."""
    if number == 31:
        return ("sp" if wide else "wsp") if stack else "xzr" if wide else "wzr"
    return ("x%d" if wide else "w%d") % number


def decode_one(code, offset):
    """The MachineInstruction at an offset of `code`; `.inst` where there is none that is known."""
    if offset + 4 > len(code):
        rest = tuple("0x%02x" % byte for byte in code[offset:])
        return MachineInstruction(offset, len(rest), ".byte", rest, None, False, "%s\t%s", ", ")
    (word,) = struct.unpack_from("<I", code, offset)
    try:
        mnemonic, operands, relative = _decode(word)
    except _Unknown:
        return MachineInstruction(offset, 4, ".inst", ("0x%08x" % word,), None, False, "%s\t%s", ", ")
    target = None
    if relative is not None:
        target = offset + relative
        operands += ("0x%x" % (target & (1 << 64) - 1),)
    return MachineInstruction(offset, 4, mnemonic, operands, target, True, "%s\t%s", ", ")


def _decode(word):
    """(mnemonic, operands, distance of a pc-relative last operand or None)."""
    group = _bits(word, 25, 4)
    if group >> 1 == 4:
        decoder = _IMMEDIATE.get(_bits(word, 23, 3))
        if decoder is None:
            raise _Unknown
        return decoder(word, word >> 31, _bits(word, 0, 5), _bits(word, 5, 5))
    if group >> 1 == 5:
        return _branch(word)
    if group & 5 == 4:
        return _load_store(word)
    if group & 7 == 5:
        return _data_register(word, word >> 31, _bits(word, 0, 5), _bits(word, 5, 5))
    raise _Unknown


# -- data processing, immediate

def _address(word, page, rd, _):
    if page:
        raise _Unknown          # adrp
    return "adr", (_reg(rd, True),), _signed(_bits(word, 5, 19) << 2 | _bits(word, 29, 2), 21)


def _add_immediate(word, wide, rd, rn):
    sub, flags, shift, value = _bits(word, 30, 1), _bits(word, 29, 1), _bits(word, 22, 1), _bits(word, 10, 12)
    tail = ("#0x%x" % value,) + (("lsl #12",) if shift else ())
    if flags and rd == 31:
        return "cmp" if sub else "cmn", (_reg(rn, wide, True),) + tail, None
    if not (sub or flags or shift or value) and 31 in (rd, rn):
        return "mov", (_reg(rd, wide, True), _reg(rn, wide, True)), None
    name = ("sub" if sub else "add") + ("s" if flags else "")
    return name, (_reg(rd, wide, not flags), _reg(rn, wide, True)) + tail, None


def _bitmask(word, wide):
    """The value of a logical immediate (DecodeBitMasks of the manual)."""
    n, immr, imms = _bits(word, 22, 1), _bits(word, 16, 6), _bits(word, 10, 6)
    length = (n << 6 | ~imms & 63).bit_length() - 1
    if length < 1 or n and not wide:
        raise _Unknown
    size = 1 << length
    ones, rotation = (imms & size - 1) + 1, immr & size - 1
    if ones == size:
        raise _Unknown
    element = (1 << ones) - 1
    element = (element >> rotation | element << size - rotation) & (1 << size) - 1
    return sum(element << at for at in range(0, 64 if wide else 32, size))


def _logical_immediate(word, wide, rd, rn):
    kind, value = _bits(word, 29, 2), _bitmask(word, wide)
    text = "#0x%x" % value
    if kind == 3 and rd == 31:
        return "tst", (_reg(rn, wide), text), None
    if kind == 1 and rn == 31 and not _movable(value, 64 if wide else 32):
        return "mov", (_reg(rd, wide, True), text), None
    return ("and", "orr", "eor", "ands")[kind], (_reg(rd, wide, kind != 3), _reg(rn, wide), text), None


def _movable(value, bits):
    """Whether movz or movn can make it: `mov` means those then."""
    return any(one & ~(0xffff << shift) == 0 for one in (value, ~value & (1 << bits) - 1)
               for shift in range(0, bits, 16))


def _move_wide(word, wide, rd, _):
    kind, half, value = _bits(word, 29, 2), _bits(word, 21, 2), _bits(word, 5, 16)
    if half > 1 and not wide or kind == 1:
        raise _Unknown
    shift, register = 16 * half, _reg(rd, wide)
    raw = ("#0x%x" % value,) + (("lsl #%d" % shift,) if shift else ())
    if kind == 3:
        return "movk", (register,) + raw, None
    if not value and shift or not kind and not wide and value == 0xffff:
        return "movz" if kind else "movn", (register,) + raw, None
    whole = value << shift if kind else ~(value << shift) & (1 << (64 if wide else 32)) - 1
    return "mov", (register, "#0x%x" % whole), None


def _bitfield(word, wide, rd, rn):
    kind, immr, imms, size = _bits(word, 29, 2), _bits(word, 16, 6), _bits(word, 10, 6), 64 if wide else 32
    if _bits(word, 22, 1) != wide or kind == 3 or immr >= size or imms >= size:
        raise _Unknown
    d, s = _reg(rd, wide), _reg(rn, wide)
    if kind != 1 and imms == size - 1:
        return ("asr", None, "lsr")[kind], (d, s, "#%d" % immr), None
    if kind == 0 and immr == 0 and imms in (7, 15, 31):
        return {7: "sxtb", 15: "sxth", 31: "sxtw"}[imms], (d, _reg(rn, False)), None
    if kind == 2 and imms + 1 == immr:
        return "lsl", (d, s, "#%d" % (size - immr)), None
    if kind == 2 and immr == 0 and imms in (7, 15) and not wide:
        return {7: "uxtb", 15: "uxth"}[imms], (d, s), None
    if imms < immr:
        place = "#%d" % (size - immr), "#%d" % (imms + 1)
        if kind == 1 and rn == 31:
            return "bfc", (d,) + place, None
        return ("sbfiz", "bfi", "ubfiz")[kind], (d, s) + place, None
    return ("sbfx", "bfxil", "ubfx")[kind], (d, s, "#%d" % immr, "#%d" % (imms - immr + 1)), None


def _extract(word, wide, rd, rn):
    rm, lsb = _bits(word, 16, 5), _bits(word, 10, 6)
    if _bits(word, 29, 2) or _bits(word, 21, 1) or _bits(word, 22, 1) != wide or not wide and lsb > 31:
        raise _Unknown
    if rm == rn:
        return "ror", (_reg(rd, wide), _reg(rn, wide), "#%d" % lsb), None
    return "extr", (_reg(rd, wide), _reg(rn, wide), _reg(rm, wide), "#%d" % lsb), None


_IMMEDIATE = {0: _address, 1: _address, 2: _add_immediate, 4: _logical_immediate, 5: _move_wide, 6: _bitfield,
              7: _extract}


# -- branches, exceptions, system

def _branch(word):
    if _bits(word, 26, 5) == 5:
        return "bl" if word >> 31 else "b", (), _signed(_bits(word, 0, 26), 26) * 4
    if _bits(word, 25, 6) == 0x1a:
        name = "cbnz" if word >> 24 & 1 else "cbz"
        return name, (_reg(_bits(word, 0, 5), word >> 31),), _signed(_bits(word, 5, 19), 19) * 4
    if _bits(word, 25, 6) == 0x1b:
        bit = word >> 31 << 5 | _bits(word, 19, 5)
        return "tbnz" if word >> 24 & 1 else "tbz", (_reg(_bits(word, 0, 5), bit > 31), "#%d" % bit), \
            _signed(_bits(word, 5, 14), 14) * 4
    if word >> 24 == 0x54 and not word & 16:
        return "b." + _CONDITION[word & 15], (), _signed(_bits(word, 5, 19), 19) * 4
    if word & 0xff9ffc1f == 0xd61f0000 and _bits(word, 21, 2) < 3:
        name, register = ("br", "blr", "ret")[_bits(word, 21, 2)], _bits(word, 5, 5)
        return name, () if name == "ret" and register == 30 else (_reg(register, True),), None
    if word & 0xffe0001f in (0xd4000001, 0xd4200000):
        return "svc" if word & 1 else "brk", ("#0x%x" % _bits(word, 5, 16),), None
    if word & 0xfffff01f == 0xd503201f:
        name = _HINTS.get(_bits(word, 5, 7))
        if name is None:
            raise _Unknown
        return name.split()[0], tuple(name.split()[1:]), None
    return _system(word)


def _system(word):
    if word & 0xfffff0ff == 0xd50330bf:
        return "dmb", (_BARRIERS.get(_bits(word, 8, 4), "#0x%02x" % _bits(word, 8, 4)),), None
    if word == 0xd5033fdf:
        return "isb", (), None
    if word == 0xd50330ff:
        return "sb", (), None
    if word & 0xfffff0ff == 0xd503309f and _bits(word, 8, 4) not in (0, 4):
        return "dsb", (_BARRIERS.get(_bits(word, 8, 4), "#0x%02x" % _bits(word, 8, 4)),), None
    name = _SYSTEM_REGISTERS.get(_bits(word, 5, 15))
    if name and word >> 20 in (0xd53, 0xd51):
        register = _reg(_bits(word, 0, 5), True)
        return ("mrs", (register, name), None) if word >> 20 == 0xd53 else ("msr", (name, register), None)
    raise _Unknown


# -- loads and stores

def _load_store(word):
    if word >> 26 & 1:
        raise _Unknown          # floating point and vectors
    kind, rn, rt = _bits(word, 27, 3), _bits(word, 5, 5), _bits(word, 0, 5)
    if kind == 1 and not word >> 24 & 1:
        return _exclusive(word, rn, rt)
    if kind == 3 and not word >> 24 & 1:
        literal = (("ldr", False), ("ldr", True), ("ldrsw", True))
        if word >> 30 == 3:
            raise _Unknown
        name, wide = literal[word >> 30]
        return name, (_reg(rt, wide),), _signed(_bits(word, 5, 19), 19) * 4
    if kind == 5:
        return _pair(word, rn, rt)
    if kind != 7:
        raise _Unknown
    if word >> 24 & 1:
        size, opc = word >> 30, _bits(word, 22, 2)
        name, wide = _transfer(size, opc, "r")
        return name, (_reg(rt, wide), _memory(rn, _bits(word, 10, 12) << size)), None
    return _load_store_other(word, rn, rt)


def _transfer(size, opc, infix):
    """(mnemonic, whether the register is 64 bits) of a single-register load or store."""
    if opc == 0:
        return "st%s%s" % (infix, _SIZE[size]), size == 3
    if opc == 1:
        return "ld%s%s" % (infix, _SIZE[size]), size == 3
    if size == 3 or size == 2 and opc == 3:
        raise _Unknown
    return "ld%ss%s" % (infix, ("b", "h", "w")[size]), opc == 2


def _memory(base, offset=0, after="]"):
    return "[%s%s%s" % (_reg(base, True, True), ", #%d" % offset if offset else "", after)


def _load_store_other(word, rn, rt):
    size, opc, form = word >> 30, _bits(word, 22, 2), _bits(word, 10, 2)
    if word >> 21 & 1:
        if form == 2:
            return _register_offset(word, rn, rt, size, opc)
        if form == 0:
            return _atomic(word, rn, rt, size)
        raise _Unknown
    offset = _signed(_bits(word, 12, 9), 9)
    name, wide = _transfer(size, opc, {0: "ur", 2: "tr"}.get(form, "r"))
    register = _reg(rt, wide)
    if form == 1:
        return name, (register, _memory(rn), "#%d" % offset), None
    if form == 3:
        return name, (register, "[%s, #%d]!" % (_reg(rn, True, True), offset)), None
    return name, (register, _memory(rn, offset)), None


def _register_offset(word, rn, rt, size, opc):
    option, scaled, rm = _bits(word, 13, 3), _bits(word, 12, 1), _bits(word, 16, 5)
    if not option & 2:
        raise _Unknown
    name, wide = _transfer(size, opc, "r")
    index = _reg(rm, option & 1)
    if option == 3:
        how = ", lsl #%d" % size if scaled else ""
    else:
        how = ", %s%s" % (_EXTENDS[option], " #%d" % size if scaled else "")
    return name, (_reg(rt, wide), "[%s, %s%s]" % (_reg(rn, True, True), index, how)), None


def _atomic(word, rn, rt, size):
    """LSE: ldadd and its kin, swp; st* where the old value is dropped; ldapr."""
    order, rs, op = _bits(word, 22, 2), _bits(word, 16, 5), _bits(word, 12, 4)
    wide, suffix = size == 3, ("", "l", "a", "al")[order] + _SIZE[size]
    if op == 8:
        return "swp" + suffix, (_reg(rs, wide), _reg(rt, wide), _memory(rn)), None
    if op == 12 and order == 2 and rs == 31:
        return "ldapr" + _SIZE[size], (_reg(rt, wide), _memory(rn)), None
    if op > 7:
        raise _Unknown
    name = ("add", "clr", "eor", "set", "smax", "smin", "umax", "umin")[op]
    if rt == 31 and not order & 2:
        return "st%s%s" % (name, suffix), (_reg(rs, wide), _memory(rn)), None
    return "ld%s%s" % (name, suffix), (_reg(rs, wide), _reg(rt, wide), _memory(rn)), None


def _exclusive(word, rn, rt):
    size, o2, load, o1 = word >> 30, _bits(word, 23, 1), _bits(word, 22, 1), _bits(word, 21, 1)
    rs, o0, rt2 = _bits(word, 16, 5), _bits(word, 15, 1), _bits(word, 10, 5)
    wide, memory = size == 3, _memory(rn)
    if o1:
        if not o2 or rt2 != 31:
            raise _Unknown      # pairs
        name = "cas" + ("a" if load else "") + ("l" if o0 else "") + _SIZE[size]
        return name, (_reg(rs, wide), _reg(rt, wide), memory), None
    if rt2 != 31 or (load or o2) and rs != 31:
        raise _Unknown
    if o2:
        name = ("ld" if load else "st") + (("ar" if load else "lr") if o0 else "lar" if load else "llr") + _SIZE[size]
        return name, (_reg(rt, wide), memory), None
    name = (("ldaxr" if o0 else "ldxr") if load else "stlxr" if o0 else "stxr") + _SIZE[size]
    return name, (() if load else (_reg(rs, False),)) + (_reg(rt, wide), memory), None


def _pair(word, rn, rt):
    opc, form, load, rt2 = word >> 30, _bits(word, 23, 2), _bits(word, 22, 1), _bits(word, 10, 5)
    if opc == 3 or opc == 1 and not (load and form) or load and rt == rt2:
        raise _Unknown
    if form & 1 and rn != 31 and rn in (rt, rt2):
        raise _Unknown          # both would write the base
    wide = opc > 0
    offset = _signed(_bits(word, 15, 7), 7) * (8 if opc == 2 else 4)
    name = ("ld" if load else "st") + ("np" if not form else "p") + ("sw" if opc == 1 else "")
    registers = _reg(rt, wide), _reg(rt2, wide)
    if form == 1:
        return name, registers + (_memory(rn), "#%d" % offset), None
    if form == 3:
        return name, registers + ("[%s, #%d]!" % (_reg(rn, True, True), offset),), None
    return name, registers + (_memory(rn, offset),), None


# -- data processing, register

def _data_register(word, wide, rd, rn):
    rm, top = _bits(word, 16, 5), _bits(word, 21, 8)
    d, n, m = _reg(rd, wide), _reg(rn, wide), _reg(rm, wide)
    if not top & 0x80:
        if top & 8 and top & 1:
            return _add_extended(word, wide, rd, rn, rm)
        shift, amount = _bits(word, 22, 2), _bits(word, 10, 6)
        if not wide and amount > 31:
            raise _Unknown
        tail = ("%s #%d" % (_SHIFTS[shift], amount),) if amount or shift else ()
        if top & 8:
            return _add_shifted(word, shift, (rd, d), (rn, n), m, tail)
        return _logical_shifted(word, (rd, d), (rn, n), m, tail)
    if word >> 24 & 31 == 0x1b:
        return _three_sources(word, wide, rd, rn, rm)
    if top == 0xd6:
        if word >> 30 & 1:
            return _one_source(word, wide, d, n, rm)
        name = {2: "udiv", 3: "sdiv", 8: "lsl", 9: "lsr", 10: "asr", 11: "ror"}.get(_bits(word, 10, 6))
        if name and not word >> 29 & 1:
            return name, (d, n, m), None
    if top in (0xd4, 0xd5) and not top & 1 and not word >> 29 & 1 and not word >> 11 & 1:
        return _select(word, rd, rn, rm, d, n, m)
    raise _Unknown


def _add_shifted(word, shift, destination, first, m, tail):
    sub, flags = _bits(word, 30, 1), _bits(word, 29, 1)
    if shift == 3:
        raise _Unknown
    if flags and destination[0] == 31:
        return "cmp" if sub else "cmn", (first[1], m) + tail, None
    if sub and first[0] == 31:
        return "negs" if flags else "neg", (destination[1], m) + tail, None
    return ("sub" if sub else "add") + ("s" if flags else ""), (destination[1], first[1], m) + tail, None


def _logical_shifted(word, destination, first, m, tail):
    kind, negated = _bits(word, 29, 2), _bits(word, 21, 1)
    if kind == 1 and first[0] == 31:
        if not negated and not tail:
            return "mov", (destination[1], m), None
        if negated:
            return "mvn", (destination[1], m) + tail, None
    if kind == 3 and destination[0] == 31 and not negated:
        return "tst", (first[1], m) + tail, None
    name = (("and", "bic"), ("orr", "orn"), ("eor", "eon"), ("ands", "bics"))[kind][negated]
    return name, (destination[1], first[1], m) + tail, None


def _add_extended(word, wide, rd, rn, rm):
    sub, flags, option, amount = _bits(word, 30, 1), _bits(word, 29, 1), _bits(word, 13, 3), _bits(word, 10, 3)
    if amount > 4 or _bits(word, 22, 2):
        raise _Unknown
    m = _reg(rm, wide and option & 3 == 3)
    stack = rn == 31 or rd == 31 and not flags
    if option == (3 if wide else 2) and stack:
        tail = ("lsl #%d" % amount,) if amount else ()
    else:
        tail = (_EXTENDS[option] + (" #%d" % amount if amount else ""),)
    if flags and rd == 31:
        return "cmp" if sub else "cmn", (_reg(rn, wide, True), m) + tail, None
    name = ("sub" if sub else "add") + ("s" if flags else "")
    return name, (_reg(rd, wide, not flags), _reg(rn, wide, True), m) + tail, None


def _three_sources(word, wide, rd, rn, rm):
    ra, kind, minus = _bits(word, 10, 5), _bits(word, 21, 3), _bits(word, 15, 1)
    if word >> 29 & 3:
        raise _Unknown
    d, n, m = _reg(rd, wide), _reg(rn, wide), _reg(rm, wide)
    if kind == 0:
        if ra == 31:
            return "mneg" if minus else "mul", (d, n, m), None
        return "msub" if minus else "madd", (d, n, m, _reg(ra, wide)), None
    if not wide:
        raise _Unknown
    if kind in (2, 6) and ra == 31 and not minus:
        return "umulh" if kind == 6 else "smulh", (d, n, m), None
    if kind in (1, 5):
        sign, n, m = "u" if kind == 5 else "s", _reg(rn, False), _reg(rm, False)
        if ra == 31:
            return sign + ("mnegl" if minus else "mull"), (d, n, m), None
        return sign + ("msubl" if minus else "maddl"), (d, n, m, _reg(ra, True)), None
    raise _Unknown


def _one_source(word, wide, d, n, rm):
    names = {0: "rbit", 1: "rev16", 2: "rev32" if wide else "rev", 3: "rev" if wide else None, 4: "clz", 5: "cls"}
    name = names.get(_bits(word, 10, 6))
    if rm or word >> 29 & 1 or name is None:
        raise _Unknown
    return name, (d, n), None


def _select(word, rd, rn, rm, d, n, m):
    kind, condition = _bits(word, 30, 1) << 1 | _bits(word, 10, 1), _bits(word, 12, 4)
    if kind and rn == rm and condition < 14:
        inverse = _CONDITION[condition ^ 1]
        if rn == 31 and kind in (1, 2):
            return "cset" if kind == 1 else "csetm", (d, inverse), None
        if rn != 31 or kind == 3:
            return ("cinc", "cinv", "cneg")[kind - 1], (d, n, inverse), None
    return ("csel", "csinc", "csinv", "csneg")[kind], (d, n, m, _CONDITION[condition]), None
