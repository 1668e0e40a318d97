"""The reference evaluator of the IR: says what a Function must compute, one operation after the other."""

from rawbpf.asm.ir import Value

from .machine import FUNCTIONS, M64, STACK, alu, holds, signed, swap


class Evaluator:
    def __init__(self, world, limit=100000):
        self.world, self.memory, self.limit = world, world.memory, limit
        self.steps = 0

    def run(self, function, args=(), depth=0):
        values = dict(zip((p.n for p in function.params), args))
        slots = {}
        memory, regions = self.memory, list(self.memory.regions)
        at = STACK + 0x100000 * (depth + 1)
        for slot in function.slots:
            slots[slot] = memory.add(at, bytearray(slot.size))
            at += slot.size + 64

        def get(operand):
            if isinstance(operand, Value):
                return values[operand.n]
            if isinstance(operand, int):
                return operand & M64
            kind, what, off = operand
            if kind == "stack":
                return slots[what] + off
            if kind == "map":
                return self.world.maps[what] + (-1 if off is None else off)
            return FUNCTIONS

        block = function.blocks[0]
        while True:
            for op in block.ops:
                self.steps += 1
                if self.steps > self.limit:
                    raise AssertionError("too many steps")
                kind, info, a = op.kind, op.info, [get(arg) for arg in op.args]
                result = None
                if kind == "copy":
                    result = a[0]
                elif kind == "alu":
                    result = alu(info[0], a[0], a[1], info[1])
                elif kind == "neg":
                    result = -a[0] & M64
                elif kind == "swap":
                    result = swap("be" if info[0] == "bswap" else info[0], a[0], info[1])
                elif kind == "extend":
                    result = a[0] & (1 << info[0] * 8) - 1
                    result = signed(result, info[0] * 8) & M64 if info[1] else result
                elif kind == "compare":
                    result = int(holds(info[0], a[0], a[1], info[1]))
                elif kind == "load":
                    result = memory.read(a[0] + info[0] & M64, info[1])
                    result = signed(result, info[1] * 8) & M64 if info[2] else result
                elif kind == "store":
                    memory.write(a[0] + info[0] & M64, info[1], a[1])
                elif kind == "atomic":
                    operator, off, size, fetch = info
                    address = a[0] + off & M64
                    result = memory.read(address, size)
                    if operator == "cmpxchg":
                        if result == a[1] & (1 << 8 * size) - 1:
                            memory.write(address, size, a[2])
                    else:
                        memory.write(address, size, a[1] if operator == "xchg"
                                     else alu(operator, result, a[1], size * 8))
                elif kind == "call":
                    if info[0] == "function":
                        result = self.run(info[1], a, depth + 1)
                    else:
                        result = self.world.helper(info[1], a)
                elif kind == "jump":
                    block = info[0]
                    break
                elif kind == "branch":
                    block = info[2] if holds(info[0], a[0], a[1], info[1]) else info[3]
                    break
                elif kind == "ret":
                    memory.regions = regions
                    return a[0]
                if op.dst is not None:
                    values[op.dst.n] = result
