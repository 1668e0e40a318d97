"""Random IR functions that every verifier accepts and that always end.

`program(seed)` returns a main function over two array maps: "data", whose values it reads and writes,
and "out", into whose first value it writes everything it computed. Values of both are 64 bytes.
"""

import random

from rawbpf.asm import ir

EDGES = (0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 255, 256, 65535, 65536, -1, -2, -8, 127, 128, (1 << 31) - 1, 1 << 31,
         (1 << 32) - 1, 1 << 32, (1 << 63) - 1, -(1 << 63), -(1 << 31), 0x123456789abcdef0)
ALU = ("+", "-", "*", "/", "%", "s/", "s%", "|", "&", "^", "<<", ">>", "s>>")
COMPARE = ("==", "!=", "<", "<=", ">", ">=", "s<", "s<=", "s>", "s>=", "&")
VALUE_SIZE = 64
ENTRIES = 1  # map_value needs an array of one
MAPS = ("data", "out")


def program(seed, size=12, variables=6, atomics=True, aliases=True):
    """aliases: the stack is also reached through addresses that are computed or chosen when it runs (Linux 6.6:
    before 5.12 that is refused, and 6.1 forgets what stands beside a part that is written so)."""
    return _Generator(random.Random(seed), size, variables, atomics, aliases).main()


class _Generator:
    def __init__(self, rng, size, variables, atomics, aliases):
        self.rng, self.size, self.nvars, self.atomics = rng, size, variables, atomics
        # Not in every function: they keep the passes from nearly all they do with memory.
        self.aliases = aliases and rng.random() < 0.5

    def main(self):
        rng = self.rng
        self.callees = []
        if rng.random() < 0.4:
            helper = ir.Function("helper", params=rng.randint(1, 3))
            self.begin(helper, pointers=False)
            self.variables[:len(helper.params)] = [helper.copy(p) for p in helper.params]
            self.statements(3, 1)
            helper.ret(self.operand())
            self.callees.append(helper)
        f = ir.Function("main")
        self.begin(f)
        self.statements(self.size, 0)
        for i, value in enumerate(self.variables[:6]):
            f.store(self.out, 8 * i, value, 8)
        for i, slot in enumerate(self.slots[:2]):
            f.store(self.out, 48 + 8 * i, f.load(slot, rng.choice((0, 8)), 8), 8)
        f.ret(f.alu("&", self.operand(), 0xffff))
        return f

    def begin(self, f, pointers=True):
        rng = self.rng
        self.f = f
        self.span = 0
        self.context = f.params[0] if pointers else None
        self.slots = [f.slot(rng.choice((8, 16, 24))) for _ in range(3)]
        self.slots = [s if s.size > 8 else f.slot(16) for s in self.slots]
        for slot in self.slots:
            for off in range(0, slot.size, 8):
                f.store(slot, off, rng.choice(EDGES), 8)
        self.values = []
        if pointers:
            self.out = f.map_value("out")
            self.data = f.map_value("data")
            self.pointers = [self.out, self.data]
        else:
            self.pointers = [f.map_value("data")]
        self.variables = []
        for i in range(self.nvars):
            v = f.variable()
            f.set(v, f.load(self.pointers[-1], 8 * (i % 8), 8) if rng.random() < 0.7 else rng.choice(EDGES))
            self.variables.append(v)
        self.places = []
        if self.aliases:
            for _ in range(2):
                v = f.variable()
                f.set(v, f.address(rng.choice(self.slots)))
                self.places.append(v)

    def operand(self):
        rng = self.rng
        r = rng.random()
        if r < 0.25:
            return rng.choice(EDGES) if rng.random() < 0.7 else rng.randint(-1 << 63, (1 << 63) - 1)
        if r < 0.6 and self.values:
            return rng.choice(self.values[-8:])
        return rng.choice(self.variables)

    def expression(self):
        rng, f = self.rng, self.f
        r = rng.random()
        if r < 0.45:
            v = f.alu(rng.choice(ALU), self.operand(), self.operand(), rng.choice((32, 64, 64)))
        elif r < 0.55:
            v = f.extend(self.operand(), rng.choice((1, 2, 4, 8)), rng.random() < 0.5)
        elif r < 0.6:
            v = f.neg(self.operand())
        elif r < 0.65:
            v = f.swap(rng.choice(("be", "le", "bswap")), self.operand(), rng.choice((16, 32, 64)))
        elif r < 0.72:
            v = f.compare(rng.choice(COMPARE), self.operand(), self.operand(), rng.choice((32, 64)))
        elif r < 0.87:
            v = self.load()
        elif r < 0.92:
            v = f.copy(self.operand())
        elif r < 0.96 and self.callees:
            callee = rng.choice(self.callees)
            v = f.call_function(callee, *(self.operand() for _ in callee.params))
        elif self.context is not None:
            slot = rng.choice(self.slots)
            size = rng.choice((4, 8, 16))
            where = rng.choice(self.places) if self.places and rng.random() < 0.3 else f.address(slot)
            v = f.call("bpf_skb_load_bytes", self.context, rng.randrange(0, 48), where, size)
        else:
            v = f.copy(1)
        self.values.append(v)
        return v

    def place(self):
        """A base, and an offset at which `size` bytes may be accessed."""
        rng, f = self.rng, self.f
        size = rng.choice((1, 2, 4, 8))
        if self.places and rng.random() < 0.35:
            return (*self.alias(), size)
        if rng.random() < 0.6:
            slot = rng.choice(self.slots)
            return slot, rng.randrange(0, slot.size, size), size
        base = rng.choice(self.pointers)
        if rng.random() < 0.3:
            index = f.alu("&", self.operand(), 0x38)
            base = f.alu("+", base, index)
            return base, 0, size
        if rng.random() < 0.3:
            base = f.alu("+", base, rng.choice((8, 16, 24)))
            return base, rng.randrange(-8, 32, size), size
        return base, rng.randrange(0, VALUE_SIZE, size), size

    def alias(self):
        """An address in the stack that the passes cannot or need not follow, and an offset where 8 bytes are."""
        rng, f = self.rng, self.f
        r, slot = rng.random(), rng.choice(self.slots)
        if r < 0.3:
            return f.alu("+", f.address(slot), f.alu("&", self.operand(), 8)), 0
        if r < 0.5:             # outside, and in again
            away = rng.choice((-8, 32))
            return f.alu("+", f.alu("+", f.address(slot), away), 8), rng.choice((0, 8)) - away - 8
        return rng.choice(self.places), rng.choice((0, 8))

    def load(self):
        base, off, size = self.place()
        return self.f.load(base, off, size, self.rng.random() < 0.3)

    def statements(self, count, depth):
        for _ in range(count):
            self.statement(depth)

    def statement(self, depth):
        rng, f = self.rng, self.f
        self.span += 1
        f.span = self.span
        r = rng.random()
        if r < 0.35:
            f.set(rng.choice(self.variables), self.expression())
        elif r < 0.45:
            f.set(rng.choice(self.variables), self.operand())
        elif r < 0.55:
            self.expression()
        elif r < 0.67:
            base, off, size = self.place()
            f.store(base, off, self.operand(), size)
        elif r < 0.72:
            if self.atomics:
                self.atomic()
        elif depth < 3 and r < 0.86:
            self.condition(depth)
        elif depth < 2 and r < 0.93:
            self.loop(depth)
        else:
            self.lookup(depth)

    def atomic(self):
        rng, f = self.rng, self.f
        size = rng.choice((4, 8))
        base = rng.choice(self.pointers + [self.slots[0]])
        off = rng.randrange(0, 16, size)
        op = rng.choice(("+", "|", "&", "^", "xchg", "cmpxchg"))
        operand = (self.operand(), self.operand()) if op == "cmpxchg" else self.operand()
        v = f.atomic(op, base, off, operand, size, rng.random() < 0.5)
        if v is not None:
            self.values.append(v)

    def inside(self, count, depth):
        """Statements of which nothing but variables and memory is seen afterwards."""
        values, pointers = list(self.values), list(self.pointers)
        self.statements(count, depth + 1)
        self.values, self.pointers = values, pointers

    def condition(self, depth):
        rng, f = self.rng, self.f
        then, otherwise, end = f.block("then"), f.block("else"), f.block("end")
        has_else = rng.random() < 0.5
        a, b = self.operand(), self.operand()
        if rng.random() < 0.3:
            a, b, op = f.compare(rng.choice(COMPARE), a, b), 0, "!="
        else:
            op = rng.choice(COMPARE)
        f.branch(op, a, b, then, otherwise if has_else else end, rng.choice((32, 64)))
        f.position(then)
        self.inside(rng.randint(0, 3), depth)
        f.jump(end)
        f.position(otherwise)
        self.inside(rng.randint(1, 2) if has_else else 0, depth)
        f.jump(end)
        f.position(end)

    def loop(self, depth):
        rng, f = self.rng, self.f
        head, body, end = f.block("head"), f.block("body"), f.block("end")
        i = f.variable()
        f.set(i, 0)
        f.jump(head)
        f.position(head)
        f.branch("<", i, rng.randint(1, 3), body, end)
        f.position(body)
        self.inside(rng.randint(1, 3), depth)
        f.set(i, f.alu("+", i, 1))
        f.jump(head)
        f.position(end)

    def lookup(self, depth):
        rng, f = self.rng, self.f
        key = f.slot(4, 4)
        f.store(key, 0, rng.choice((0, 1, 3, 9)), 4)
        p = f.call("bpf_map_lookup_elem", f.map("data"), f.address(key))
        found, end = f.block("found"), f.block("end")
        f.branch("!=", p, 0, found, end)
        f.position(found)
        values, pointers = list(self.values), list(self.pointers)
        self.pointers.append(p)
        v = f.load(p, rng.randrange(0, 64, 8), 8)
        f.set(rng.choice(self.variables), v)
        f.store(p, 8, f.alu("+", v, 1), 8)
        self.inside(rng.randint(0, 2), depth)
        self.values, self.pointers = values, pointers
        f.jump(end)
        f.position(end)
