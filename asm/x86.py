"""x86-64 machine code to text: the integer instructions that the kernel's BPF JIT emits, and their kin.

Encodings: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, appendix A (opcode maps)
and chapter 2 (prefixes, ModRM, SIB, VEX). Text: AT&T syntax as GNU objdump prints it.
"""

from .machinecode import MachineInstruction

_R64 = ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi"] + ["r%d" % n for n in range(8, 16)]
_REGISTERS = {
    8: _R64,
    4: ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"] + ["r%dd" % n for n in range(8, 16)],
    2: ["ax", "cx", "dx", "bx", "sp", "bp", "si", "di"] + ["r%dw" % n for n in range(8, 16)],
    1: ["al", "cl", "dl", "bl", "spl", "bpl", "sil", "dil"] + ["r%db" % n for n in range(8, 16)],
}
_HIGH_BYTES = ["al", "cl", "dl", "bl", "ah", "ch", "dh", "bh"]      # without a REX prefix
_SUFFIX = {1: "b", 2: "w", 4: "l", 8: "q"}
_ALU = ("add", "or", "adc", "sbb", "and", "sub", "xor", "cmp")
_SHIFT = ("rol", "ror", "rcl", "rcr", "shl", "shr", None, "sar")
_UNARY = (None, None, "not", "neg", "mul", "imul", "div", "idiv")
_CONDITION = ("o", "no", "b", "ae", "e", "ne", "be", "a", "s", "ns", "p", "np", "l", "ge", "le", "g")
_SEGMENTS = {0x2e: "cs", 0x36: "ss", 0x3e: "ds", 0x26: "es", 0x64: "fs", 0x65: "gs"}
_BITS = {1: 8, 2: 16, 4: 32, 8: 64}


class _Unknown(Exception):
    """These bytes are no instruction that is known here."""


class _Reader:
    """The bytes of one instruction, read from left to right."""

    def __init__(self, code, start):
        self.code, self.start, self.at = code, start, start
        self.size16 = 0             # how often the prefix stands there
        self.lock = self.sized = False
        self.memory = ""
        self.repeat = 0             # 0xf2 or 0xf3, until something means it
        self.segment = ""
        self.rex = self.meant = 0   # meant: the bits of REX that say something here
        self.relative = None        # displacement from the next instruction

    def byte(self):
        if self.at >= len(self.code) or self.at - self.start >= 15:
            raise _Unknown
        self.at += 1
        return self.code[self.at - 1]

    def signed(self, size):
        if self.at + size > len(self.code):
            raise _Unknown
        self.at += size
        return int.from_bytes(self.code[self.at - size:self.at], "little", signed=True)

    def prefixes(self):
        """-> the first byte of the opcode."""
        byte = self.byte()
        while True:
            if byte == 0x66:
                self.size16 += 1
            elif byte == 0xf0 and not self.lock:
                self.lock = True
            elif byte in (0xf2, 0xf3):
                self.repeat = byte
            elif byte in _SEGMENTS and not self.segment:
                self.segment = _SEGMENTS[byte]
            else:
                break
            byte = self.byte()
        if byte & 0xf0 == 0x40:
            self.rex = byte
            byte = self.byte()
        return byte

    @property
    def size(self):
        """Operand size in bytes of an instruction that has all three."""
        self.sized = True
        return 8 if self.rex & 8 else 2 if self.size16 else 4

    def register(self, number, size):
        if size == 1 and 4 <= number < 8:
            self.meant |= 0x40
            if not self.rex:
                return "%" + _HIGH_BYTES[number]
        return "%" + _REGISTERS[size][number]

    def low(self, opcode, size):
        """The register that the low bits of the opcode name."""
        self.meant |= 1
        return self.register(opcode & 7 | (self.rex & 1) << 3, size)

    @property
    def source(self):
        """Number of the register that the reg field names, where it is no part of the opcode."""
        self.meant |= 4
        return self.digit | (self.rex & 4) << 1

    def modrm(self):
        """Reads ModRM, SIB and displacement: self.digit, self.memory (text, "" for a register)."""
        modrm = self.byte()
        mod, self.digit, self.rm = modrm >> 6, modrm >> 3 & 7, modrm & 7
        if mod == 3:
            self.meant |= 1
            self.rm |= (self.rex & 1) << 3
            self.memory = ""
            return
        base, index, scale = self.rm, None, 1
        if self.rm == 4:
            self.meant |= 2
            sib = self.byte()
            base, index, scale = sib & 7, sib >> 3 & 7 | (self.rex & 2) << 2, 1 << (sib >> 6)
            if index == 4:
                index = None
        displacement = 0
        self.meant |= 1     # objdump takes it so even where no base is named
        if mod == 0 and base == 5:
            displacement = self.signed(4)
            if self.rm != 4:
                self.relative = displacement
                self.memory = "%s(%%rip)" % _hex(displacement)
                return self._segment()
            base = None
        elif mod:
            displacement = self.signed(1 if mod == 1 else 4)
        if base is not None:
            base |= (self.rex & 1) << 3
        inside = "%" + _R64[base] if base is not None else ""
        if index is not None:
            inside += ",%%%s,%d" % (_R64[index], scale)
        elif self.rm == 4 and (scale != 1 or base is not None and base & 7 != 4):
            inside += ",%riz," + str(scale)
            index = 4
        if base is None and index is None:
            self.memory = _hex(displacement & (1 << 64) - 1)
        else:
            self.memory = "%s(%s)" % (_hex(displacement) if mod or base is None else "", inside)
        return self._segment()

    def _segment(self):
        if self.segment in ("fs", "gs"):        # the others are ignored in 64-bit mode
            self.memory = "%%%s:%s" % (self.segment, self.memory)
            self.segment = ""

    def operand(self, size):
        return self.memory or self.register(self.rm, size)


def _hex(value):
    return "-0x%x" % -value if value < 0 else "0x%x" % value


def _immediate(value, size):
    return "$0x%x" % (value & (1 << _BITS[size]) - 1)


def decode_one(code, offset):
    """The MachineInstruction at an offset of `code`; `.byte` where there is none that is known."""
    reader = _Reader(code, offset)
    try:
        mnemonic, operands, target = _decode(reader)
    except _Unknown:
        return _unknown(code, offset)
    if _meaningless_prefix(reader, mnemonic):
        return _unknown(code, offset)
    size = reader.at - offset
    if target is None and reader.relative is not None:
        target = reader.at + reader.relative
    mnemonic = "data16 " * (reader.size16 - 1) + ("lock " if reader.lock else "") + (reader.segment + " " if reader.segment else "") \
        + _idle_rex(reader) + mnemonic
    return MachineInstruction(offset, size, mnemonic, tuple(operands), target)


def _meaningless_prefix(reader, mnemonic):
    """objdump names those; no compiler makes them, but for the CS of long no-operations."""
    if reader.repeat or reader.segment and not (reader.segment == "cs" and mnemonic[:3] == "nop"):
        return True
    if reader.size16 and (reader.rex & 8 or not reader.sized):
        return True
    if reader.lock and (not reader.memory or mnemonic[:3] in ("cmp", "mov", "tes") and mnemonic != "cmpxchg"):
        return True
    return False


def _idle_rex(reader):
    """"rex.W " of a REX prefix of which something says nothing, "" otherwise."""
    meant = reader.meant | (8 if reader.sized else 0)
    if not reader.rex & 15 & ~meant and (reader.rex != 0x40 or meant & 0x40):
        return ""
    bits = "".join(name for name, bit in (("W", 8), ("R", 4), ("X", 2), ("B", 1)) if reader.rex & bit)
    return "rex.%s " % bits if bits else "rex "


def _unknown(code, offset):
    return MachineInstruction(offset, 1, ".byte", ("0x%x" % code[offset],), None, False)


def _decode(reader):
    opcode = reader.prefixes()
    if opcode == 0x0f:
        return _decode_0f(reader)
    if opcode in (0xc4, 0xc5):
        return _decode_vex(reader, opcode)
    if reader.lock and not (opcode < 0x40 and opcode & 7 < 2 or opcode in (0x80, 0x81, 0x83, 0x86, 0x87, 0xf6, 0xf7,
                                                                          0xfe, 0xff)):
        raise _Unknown
    for low, high, decoder in _ONE_BYTE:
        if low <= opcode <= high:
            return decoder(reader, opcode)
    raise _Unknown


def _arithmetic(reader, opcode):
    name, form = _ALU[opcode >> 3], opcode & 7
    if form > 5:
        raise _Unknown
    size = reader.size if form & 1 else 1
    if form > 3:
        value = reader.signed(min(size, 4))
        return name, (_immediate(value, size), reader.register(0, size)), None
    reader.modrm()
    pair = reader.register(reader.source, size), reader.operand(size)
    return name, pair if form < 2 else pair[::-1], None


def _push_pop(reader, opcode):
    return "push" if opcode < 0x58 else "pop", (reader.low(opcode, 8),), None


def _movslq(reader, opcode):
    if reader.size != 8:
        raise _Unknown
    reader.modrm()
    return "movslq", (reader.operand(4), reader.register(reader.source, 8)), None


def _push_immediate(reader, opcode):
    return "push", (_immediate(reader.signed(1 if opcode == 0x6a else 4), 8),), None


def _imul_immediate(reader, opcode):
    size = reader.size
    reader.modrm()
    source = reader.operand(size)
    value = reader.signed(1 if opcode == 0x6b else min(size, 4))
    return "imul", (_immediate(value, size), source, reader.register(reader.source, size)), None


def _jump(reader, opcode):
    displacement = reader.signed(4 if opcode in (0xe8, 0xe9) else 1)
    name = {0xe8: "call", 0xe9: "jmp", 0xeb: "jmp"}.get(opcode) or "j" + _CONDITION[opcode & 15]
    return _to(name, reader.at + displacement)


def _to(name, target):
    return name, ("0x%x" % (target & (1 << 64) - 1),), target


def _suffixed(reader, name, size):
    """The name, with the size where no register operand tells it."""
    return name + _SUFFIX[size] if reader.memory else name


def _group1(reader, opcode):
    size = reader.size if opcode & 1 else 1
    reader.modrm()
    operand = reader.operand(size)
    value = reader.signed(min(size, 4) if opcode == 0x81 else 1)
    return _suffixed(reader, _ALU[reader.digit], size), (_immediate(value, size), operand), None


def _register_first(reader, opcode):
    """test, xchg, mov with ModRM."""
    size = reader.size if opcode & 1 else 1
    name = {0x84: "test", 0x86: "xchg"}.get(opcode & 0xfe, "mov")
    reader.modrm()
    pair = reader.register(reader.source, size), reader.operand(size)
    return name, pair[::-1] if opcode in (0x8a, 0x8b) else pair, None


def _lea(reader, opcode):
    size = reader.size
    reader.modrm()
    if not reader.memory:
        raise _Unknown
    return "lea", (reader.memory, reader.register(reader.source, size)), None


def _nop(reader, opcode):
    if reader.repeat == 0xf3 and opcode == 0x90 and not reader.rex:
        reader.repeat = 0
        return "pause", (), None
    if reader.rex & 1 or opcode != 0x90:
        size = reader.size
        return "xchg", (reader.register(0, size), reader.low(opcode, size)), None
    return ("xchg", ("%ax", "%ax"), None) if reader.size16 and reader.size else ("nop", (), None)


def _widen(reader, opcode):
    names = ("cltq", "cwtl", "cbtw") if opcode == 0x98 else ("cqto", "cltd", "cwtd")
    return names[{8: 0, 4: 1, 2: 2}[reader.size]], (), None


def _test_accumulator(reader, opcode):
    size = reader.size if opcode & 1 else 1
    return "test", (_immediate(reader.signed(min(size, 4)), size), reader.register(0, size)), None


def _mov_immediate(reader, opcode):
    size = reader.size if opcode & 8 else 1
    value = reader.signed(size)
    register = reader.low(opcode, size)
    return "movabs" if size == 8 else "mov", (_immediate(value, size), register), None


def _shift(reader, opcode):
    size = reader.size if opcode & 1 else 1
    reader.modrm()
    name = _SHIFT[reader.digit]
    if name is None:
        raise _Unknown
    operand = reader.operand(size)
    if opcode >= 0xd2:
        amount = "%cl"
    else:
        amount = "$0x%x" % (reader.signed(1) & 0xff) if opcode < 0xd0 else "$1"
    return _suffixed(reader, name, size), (amount, operand), None


def _mov_memory_immediate(reader, opcode):
    size = reader.size if opcode & 1 else 1
    reader.modrm()
    if reader.digit:
        raise _Unknown
    operand = reader.operand(size)
    return _suffixed(reader, "mov", size), (_immediate(reader.signed(min(size, 4)), size), operand), None


def _plain(reader, opcode):
    return {0xc3: "ret", 0xc9: "leave", 0xcc: "int3", 0xf4: "hlt"}[opcode], (), None


def _group3(reader, opcode):
    size = reader.size if opcode & 1 else 1
    reader.modrm()
    operand = reader.operand(size)
    if reader.digit < 2:
        return _suffixed(reader, "test", size), (_immediate(reader.signed(min(size, 4)), size), operand), None
    return _suffixed(reader, _UNARY[reader.digit], size), (operand,), None


def _group5(reader, opcode):
    reader.modrm()
    kind = reader.digit
    if kind < 2:
        size = reader.size if opcode & 1 else 1
        return _suffixed(reader, ("inc", "dec")[kind], size), (reader.operand(size),), None
    name = {2: "call", 4: "jmp", 6: "push"}.get(kind)
    if opcode == 0xfe or name is None:
        raise _Unknown
    operand = reader.operand(8)
    if kind == 6:
        return name, (operand,), None
    # the segment prefix of an indirect jump means "no tracking"
    if reader.segment == "ds":
        name, reader.segment = "notrack " + name, ""
    return name, ("*" + operand,), None


_ONE_BYTE = (
    (0x00, 0x3f, _arithmetic), (0x50, 0x5f, _push_pop), (0x63, 0x63, _movslq), (0x68, 0x68, _push_immediate),
    (0x69, 0x69, _imul_immediate), (0x6a, 0x6a, _push_immediate), (0x6b, 0x6b, _imul_immediate), (0x70, 0x7f, _jump),
    (0x80, 0x81, _group1), (0x83, 0x83, _group1), (0x84, 0x8b, _register_first), (0x8d, 0x8d, _lea),
    (0x90, 0x97, _nop), (0x98, 0x99, _widen), (0xa8, 0xa9, _test_accumulator), (0xb0, 0xbf, _mov_immediate),
    (0xc0, 0xc1, _shift), (0xc3, 0xc3, _plain), (0xc6, 0xc7, _mov_memory_immediate), (0xc9, 0xc9, _plain),
    (0xcc, 0xcc, _plain), (0xd0, 0xd3, _shift), (0xe8, 0xe9, _jump), (0xeb, 0xeb, _jump), (0xf4, 0xf4, _plain), (0xf6, 0xf7, _group3),
    (0xfe, 0xff, _group5))


# -- two-byte opcodes

def _decode_0f(reader):
    opcode = reader.byte()
    if reader.lock and opcode not in (0xab, 0xb0, 0xb1, 0xb3, 0xba, 0xbb, 0xc0, 0xc1):
        raise _Unknown
    if opcode == 0x1e and reader.repeat == 0xf3 and reader.byte() == 0xfa:
        reader.repeat = 0
        return "endbr64", (), None
    if 0x80 <= opcode <= 0x8f:
        return _to("j" + _CONDITION[opcode & 15], reader.at + reader.signed(4) + 4)
    for low, high, decoder in _TWO_BYTES:
        if low <= opcode <= high:
            return decoder(reader, opcode)
    raise _Unknown


def _no_operand(reader, opcode):
    return {0x0b: "ud2", 0x31: "rdtsc", 0xa2: "cpuid"}[opcode], (), None


def _long_nop(reader, opcode):
    size = reader.size
    reader.modrm()
    if reader.digit:
        raise _Unknown
    return _suffixed(reader, "nop", size), (reader.operand(size),), None


def _cmov(reader, opcode):
    size = reader.size
    reader.modrm()
    return "cmov" + _CONDITION[opcode & 15], (reader.operand(size), reader.register(reader.source, size)), None


def _setcc(reader, opcode):
    reader.modrm()
    return "set" + _CONDITION[opcode & 15], (reader.operand(1),), None


def _bit(reader, opcode):
    size = reader.size
    reader.modrm()
    if opcode == 0xba:
        if reader.digit < 4:
            raise _Unknown
        operand = reader.operand(size)
        name = ("bt", "bts", "btr", "btc")[reader.digit & 3]
        return _suffixed(reader, name, size), ("$0x%x" % (reader.signed(1) & 0xff), operand), None
    return {0xa3: "bt", 0xab: "bts", 0xb3: "btr", 0xbb: "btc"}[opcode], (
        reader.register(reader.source, size), reader.operand(size)), None


def _fence(reader, opcode):
    modrm = reader.byte()
    name = {0xe8: "lfence", 0xf0: "mfence", 0xf8: "sfence"}.get(modrm)
    if name is None or reader.repeat:
        raise _Unknown
    return name, (), None


def _imul(reader, opcode):
    size = reader.size
    reader.modrm()
    return "imul", (reader.operand(size), reader.register(reader.source, size)), None


def _exchange(reader, opcode):
    size = reader.size if opcode & 1 else 1
    reader.modrm()
    return "cmpxchg" if opcode < 0xc0 else "xadd", (reader.register(reader.source, size), reader.operand(size)), None


def _extend(reader, opcode):
    """movzb*, movzw*, movsb*, movsw*."""
    size, source = reader.size, 2 if opcode & 1 else 1
    if source == size:
        raise _Unknown
    reader.modrm()
    name = "mov%s%s%s" % ("z" if opcode < 0xb8 else "s", _SUFFIX[source], _SUFFIX[size])
    return name, (reader.operand(source), reader.register(reader.source, size)), None


def _count(reader, opcode):
    name = {(0xb8, 0xf3): "popcnt", (0xbc, 0xf3): "tzcnt", (0xbd, 0xf3): "lzcnt", (0xbc, 0): "bsf",
            (0xbd, 0): "bsr"}.get((opcode, reader.repeat))
    if name is None:
        raise _Unknown
    size, reader.repeat = reader.size, 0
    reader.modrm()
    return name, (reader.operand(size), reader.register(reader.source, size)), None


def _bswap(reader, opcode):
    if reader.size == 2:
        raise _Unknown
    return "bswap", (reader.low(opcode, reader.size),), None


_TWO_BYTES = (
    (0x0b, 0x0b, _no_operand), (0x1f, 0x1f, _long_nop), (0x31, 0x31, _no_operand), (0x40, 0x4f, _cmov),
    (0x90, 0x9f, _setcc), (0xa2, 0xa2, _no_operand), (0xa3, 0xa3, _bit), (0xab, 0xab, _bit), (0xae, 0xae, _fence),
    (0xaf, 0xaf, _imul), (0xb0, 0xb1, _exchange), (0xb3, 0xb3, _bit), (0xb6, 0xb7, _extend), (0xb8, 0xb8, _count),
    (0xba, 0xbb, _bit), (0xbc, 0xbd, _count), (0xbe, 0xbf, _extend), (0xc0, 0xc1, _exchange), (0xc8, 0xcf, _bswap))


def _decode_vex(reader, opcode):
    """The shifts of BMI2 by a register: shlx, sarx, shrx (VEX.LZ.{66,F3,F2}.0F38 F7 /r)."""
    if opcode != 0xc4 or reader.rex or reader.size16 or reader.repeat or reader.lock:
        raise _Unknown
    first, second = reader.byte(), reader.byte()
    name = {1: "shlx", 2: "sarx", 3: "shrx"}.get(second & 3)
    if first & 31 != 2 or second & 4 or name is None or reader.byte() != 0xf7:
        raise _Unknown
    # W, and the inverted R, X, B, are the bits of REX
    reader.rex = second >> 4 & 8 | ~first >> 5 & 7
    size = reader.size
    count = reader.register(~second >> 3 & 15, size)
    reader.modrm()
    return name, (count, reader.operand(size), reader.register(reader.source, size)), None
