"""A machine after the instruction set document (RFC 9669): what `rawbpf.asm` makes is run on it.

Written from the document, with nothing of rawbpf.asm but the Instruction tuple. Registers that were never
written, or that a call clobbered, are None: reading one is an error, as it is for the verifier.
"""

from rawbpf.asm.instruction import slot_numbers

M64 = (1 << 64) - 1
M32 = (1 << 32) - 1
STACK = 0x10000000
CONTEXT = 0x20000000
MAPS = 0x30000000
FUNCTIONS = 0x70000000
PACKET = bytes(range(0x80, 0xc0))


class Fault(Exception):
    pass


def signed(x, bits):
    x &= (1 << bits) - 1
    return x - (x >> bits - 1 << bits)


class Memory:
    """Little-endian bytes at made-up addresses."""

    def __init__(self):
        self.regions = []

    def add(self, address, data):
        self.regions.append((address, data))
        return address

    def find(self, address, size):
        for start, data in self.regions:
            if start <= address and address + size <= start + len(data):
                return data, address - start
        raise Fault("no memory of %d bytes at %#x" % (size, address))

    def read(self, address, size):
        data, at = self.find(address, size)
        return int.from_bytes(data[at:at + size], "little")

    def write(self, address, size, value):
        data, at = self.find(address, size)
        data[at:at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")


class World:
    """Maps with one bytearray of values each, and the helpers that the tests use."""

    def __init__(self, maps, value_size=64):
        self.memory = Memory()
        self.value_size = value_size
        self.maps = {}
        for i, (name, data) in enumerate(maps.items()):
            self.maps[name] = self.memory.add(MAPS + 0x100000 * (i + 1), data)
        self.entries = {name: len(data) // value_size for name, data in maps.items()}

    def helper(self, number, args):
        if number == 1:  # map_lookup_elem of an array
            name = next(n for n, at in self.maps.items() if at - 1 == args[0])
            index = self.memory.read(args[1], 4)
            return self.maps[name] + index * self.value_size if index < self.entries[name] else 0
        if number == 26:  # skb_load_bytes(skb, offset, to, size)
            _, offset, to, size = args
            for i, byte in enumerate(PACKET[offset:offset + size]):
                self.memory.write(to + i, 1, byte)
            return 0
        raise Fault("no helper %d" % number)


HELPER_ARGS = {1: 2, 26: 4}


def alu(op, a, b, bits):
    """a op b of `bits` bits, zero-extended; op as `rawbpf.asm.ir` spells it."""
    mask = (1 << bits) - 1
    a, b = a & mask, b & mask
    sa, sb = signed(a, bits), signed(b, bits)
    if op == "+":
        r = a + b
    elif op == "-":
        r = a - b
    elif op == "*":
        r = a * b
    elif op == "/":
        r = a // b if b else 0
    elif op == "%":
        r = a % b if b else a
    elif op == "s/":
        r = (abs(sa) // abs(sb)) * (-1 if (sa < 0) != (sb < 0) else 1) if b else 0
    elif op == "s%":
        r = (abs(sa) % abs(sb)) * (-1 if sa < 0 else 1) if b else a
    elif op == "|":
        r = a | b
    elif op == "&":
        r = a & b
    elif op == "^":
        r = a ^ b
    elif op == "<<":
        r = a << (b & bits - 1)
    elif op == ">>":
        r = a >> (b & bits - 1)
    elif op == "s>>":
        r = sa >> (b & bits - 1)
    else:
        raise Fault(op)
    return r & mask


def holds(op, a, b, bits):
    mask = (1 << bits) - 1
    a, b = a & mask, b & mask
    if op.startswith("s"):
        a, b, op = signed(a, bits), signed(b, bits), op[1:]
    return {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "&": a & b != 0}[op]


def swap(kind, a, bits):
    a &= (1 << bits) - 1
    return a if kind == "le" else int.from_bytes(a.to_bytes(bits // 8, "little"), "big")


_ALU = {0x00: "+", 0x10: "-", 0x20: "*", 0x30: "/", 0x40: "|", 0x50: "&", 0x60: "<<", 0x70: ">>", 0x90: "%",
        0xa0: "^", 0xc0: "s>>"}
_JMP = {0x10: "==", 0x20: ">", 0x30: ">=", 0x40: "&", 0x50: "!=", 0x60: "s>", 0x70: "s>=", 0xa0: "<", 0xb0: "<=",
        0xc0: "s<", 0xd0: "s<="}
_SIZE = {0x00: 4, 0x08: 2, 0x10: 1, 0x18: 8}


class Machine:
    def __init__(self, instructions, world, limit=100000):
        self.world, self.memory, self.limit = world, world.memory, limit
        self.slots = {}
        for slot, instruction in zip(slot_numbers(instructions), instructions):
            self.slots[slot] = instruction
        self.steps = 0

    def run(self, args=(), pc=0, depth=0):
        stack = STACK + 0x1000 * depth
        memory = self.memory
        memory.regions = [r for r in memory.regions if r[0] != stack]
        memory.add(stack, bytearray(512))
        regs = [None] * 11
        regs[1:1 + len(args)] = args
        regs[10] = stack + 512

        def get(r):
            if regs[r] is None:
                raise Fault("slot %d reads r%d, which is not set" % (pc, r))
            return regs[r]

        def put(r, value):
            if r == 10:
                raise Fault("slot %d writes r10" % pc)
            regs[r] = value & M64

        while True:
            self.steps += 1
            if self.steps > self.limit:
                raise Fault("too many steps")
            if pc not in self.slots:
                raise Fault("no instruction at slot %d" % pc)
            code, dst, src, off, imm, ref = self.slots[pc]
            cls, following = code & 7, pc + 1
            if cls in (4, 7):  # ALU, ALU64
                bits, op = (64 if cls == 7 else 32), code & 0xf0
                b = None if op in (0x80, 0xd0) else get(src) if code & 8 else imm & M64
                if op == 0xb0:
                    if off:
                        b = signed(b, off)
                    put(dst, b & (1 << bits) - 1)
                elif op == 0x80:
                    put(dst, -get(dst) & (1 << bits) - 1)
                elif op == 0xd0:
                    put(dst, swap("be" if cls == 7 or code & 8 else "le", get(dst), imm))
                else:
                    name = _ALU[op]
                    put(dst, alu("s" + name if off else name, get(dst), b, bits))
            elif cls in (5, 6):
                op = code & 0xf0
                if op == 0x00:
                    following += off if cls == 5 else imm
                elif code == 0x85:
                    if src == 1:
                        result = self.run([r for r in regs[1:6]], pc + 1 + imm, depth + 1)
                    else:
                        result = self.world.helper(imm, [get(i + 1) for i in range(HELPER_ARGS[imm])])
                    regs[1:6] = [None] * 5
                    regs[0] = result
                elif code == 0x95:
                    return get(0)
                else:
                    b = get(src) if code & 8 else imm & M64
                    if holds(_JMP[op], get(dst), b, 64 if cls == 5 else 32):
                        following += off
            elif cls == 0:
                if code != 0x18:
                    raise Fault("ld %#x" % code)
                following += 1
                if ref is not None:
                    put(dst, self.world.maps[ref.name] + (-1 if ref.offset is None else ref.offset))
                elif src == 4:
                    put(dst, FUNCTIONS + pc + 1 + signed(imm, 32))
                elif src == 0:
                    put(dst, imm)
                else:
                    raise Fault("lddw src %d" % src)
            elif cls == 1:
                size = _SIZE[code & 0x18]
                value = memory.read(get(src) + signed(off, 16), size)
                put(dst, signed(value, size * 8) if code & 0xe0 == 0x80 else value)
            elif cls == 2:
                memory.write(get(dst) + off, _SIZE[code & 0x18], imm)
            elif code & 0xe0 == 0x60:
                memory.write(get(dst) + off, _SIZE[code & 0x18], get(src))
            elif imm == 0x100:      # load-acquire
                put(dst, memory.read(get(src) + off, _SIZE[code & 0x18]))
            elif imm == 0x110:      # store-release
                memory.write(get(dst) + off, _SIZE[code & 0x18], get(src))
            else:
                self.atomic(code, get(dst) + off, src, imm, get, put)
            pc = following

    def atomic(self, code, address, src, imm, get, put):
        size = _SIZE[code & 0x18]
        old = self.memory.read(address, size)
        if imm == 0xf1:
            if old == get(0) & (1 << size * 8) - 1:
                self.memory.write(address, size, get(src))
            put(0, old)
            return
        new = get(src) if imm == 0xe1 else alu(_ALU[imm & 0xf0], old, get(src), size * 8)
        self.memory.write(address, size, new)
        if imm & 1:
            put(src, old)
