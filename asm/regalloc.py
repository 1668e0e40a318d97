"""Registers for Values: a graph-colouring allocator (Chaitin and Briggs) over r0 to r9.

What the BPF calling convention fixes is not copied around but steers the choice: a Value that lives
across a call may not have r0-r5, which calls clobber; one that is an argument, a result or a parameter
prefers its register. What `emit` then still has to move at a call, it moves all at once. Copies between
Values disappear when both can have one register. What finds no register is spilled: constants and
addresses are made again where they are used, the rest gets a stack slot.
"""

from collections import defaultdict
from heapq import heappop, heappush

from .fold import COMMUTATIVE
from .flow import bits, liveness, predecessors, successors
from .ir import Op, SpillSlot, Value
from .slots import drop_dead_stores

CLOBBERED = 0b0000111111
REGISTERS = 0b1111111111
_HOPELESS = 16   # so many Values at once are not all the same in disguise
_POPCOUNT = [bin(mask).count("1") for mask in range(1024)]


def allocate(function):
    """dict Value.n -> register; inserts the spill code that this takes into the function."""
    weight = _frequency(function)
    segments, unspillable = set(), set()
    first = True
    while True:
        # Joining whatever can be joined is best if it works out at once; spilling is not worth it. Where something
        # was spilled already, or far too much is alive, it hardly ever does before the last round.
        graph = _Graph(function, weight, unspillable)
        if first and graph.pressure <= _HOPELESS:
            if not graph.attempt(False):
                return graph.registers()
            graph = _Graph(function, weight, unspillable)
        spilled = graph.attempt(True)
        if not spilled:
            careful = graph.registers()
            if first:
                return careful
            graph = _Graph(function, weight, unspillable)
            return careful if graph.attempt(False) else graph.registers()
        _Spiller(function, segments, unspillable).spill(spilled)
        first = False


def _frequency(function):
    """dict block -> how often it runs, guessed: 8 times as often for each loop around it."""
    blocks = function.blocks
    position = {block: i for i, block in enumerate(blocks)}
    weight = dict.fromkeys(blocks, 1)
    before = None
    for block in blocks:
        for target in successors(block):
            if position[target] <= position[block]:
                # The natural loop of a back edge: what reaches its source without passing its head.
                before = before or predecessors(blocks)
                body, work = {target}, [block]
                while work:
                    member = work.pop()
                    if member not in body:
                        body.add(member)
                        work.extend(before[member])
                for member in body:
                    weight[member] = min(weight[member] * 8, 4096)
    return weight


class _Graph:
    def __init__(self, function, weight, unspillable):
        self.function, self.unspillable = function, unspillable
        self.adjacent = defaultdict(set)   # Value.n -> set of Value.n that need another register
        self.forbidden = defaultdict(int)  # Value.n -> mask of registers it may not have
        self.wishes = defaultdict(dict)    # Value.n -> {register: how much it would save}
        self.cost = defaultdict(int)       # Value.n -> what spilling it costs
        self.copies = []     # (weight, n, n): dst and source of copies
        self.affinities = [] # and of other operations that could overwrite their operand
        self.alias = {}
        self.pressure = 0    # how many Values are alive at once
        self._build(weight)

    def attempt(self, careful):
        """Coalesces and colours, once; returns what found no register."""
        self.coalesce(careful)
        return self.colour()

    def _build(self, weight):
        function = self.function
        adjacent, forbidden, cost, wishes = self.adjacent, self.forbidden, self.cost, self.wishes
        _, live_out = liveness(function.blocks)

        def interfere(n, others):
            """n and each of the set `others` need different registers."""
            mine = adjacent[n]
            new = others - mine
            new.discard(n)
            mine |= new
            for other in new:
                adjacent[other].add(n)

        def wish(value, register, amount):
            mine = wishes[value.n]
            mine[register] = mine.get(register, 0) + amount

        for block in function.blocks:
            often = weight[block]
            live = set(bits(live_out[block]))
            for op in reversed(block.ops):
                if len(live) > self.pressure:
                    self.pressure = len(live)
                kind, dst, args = op.kind, op.dst, op.args
                uses = [arg for arg in args if type(arg) is Value]
                for value in uses:
                    cost[value.n] += often
                    adjacent[value.n]
                if dst is not None:
                    n = dst.n
                    cost[n] += often
                    adjacent[n]
                    live.discard(n)
                    source = args[0].n if kind == "copy" and type(args[0]) is Value else None
                    if source is None:
                        interfere(n, live)
                    else:
                        if source != n:
                            self.copies.append((often, n, source))
                            interfere(n, live - {source})
                    if kind == "compare":
                        # It is set before the operands are compared.
                        interfere(n, {value.n for value in uses})
                    elif kind == "alu":
                        a, b = args
                        if type(b) is Value and b is not a:
                            if op.info[0] in COMMUTATIVE and type(a) is Value:
                                self.affinities.append((often, n, b.n))
                            else:
                                interfere(n, {b.n})  # dst = a would overwrite it
                        if type(a) is Value:
                            self.affinities.append((often, n, a.n))
                    elif kind in ("neg", "swap") and type(args[0]) is Value:
                        self.affinities.append((often, n, args[0].n))
                if kind == "call":
                    mask = 0
                    for n in live:
                        forbidden[n] |= CLOBBERED
                    if dst is not None:
                        wish(dst, 0, often)
                    for register, arg in enumerate(args, 1):
                        if type(arg) is Value:
                            wish(arg, register, often)
                elif kind == "ret":
                    if type(args[0]) is Value:
                        wish(args[0], 0, often)
                elif kind == "atomic" and op.info[0] == "cmpxchg":
                    for n in live:
                        forbidden[n] |= 1
                    for arg in (args[0], args[2]):
                        if type(arg) is Value:
                            forbidden[arg.n] |= 1
                    wish(dst, 0, often)
                    if type(args[1]) is Value:
                        wish(args[1], 0, often)
                for value in uses:
                    live.add(value.n)
        parameters = [value.n for value in function.params]
        for register, value in enumerate(function.params, 1):
            if value.n in adjacent:
                wish(value, register, weight[function.blocks[0]])
                cost[value.n] += 1
                interfere(value.n, {n for n in parameters if n in adjacent})
        for n in adjacent:
            forbidden[n], cost[n], wishes[n]
        # The ends of copies first: if they are joined, the loop's variables are; an operand can be chosen.
        self.copies.sort(key=lambda copy: -copy[0])
        self.affinities.sort(key=lambda copy: -copy[0])
        self.copies += self.affinities

    def find(self, n):
        alias, top = self.alias, n
        while top in alias:
            top = alias[top]
        while n != top:             # the next one finds it at once
            alias[n], n = top, alias[n]
        return top

    def coalesce(self, careful):
        """Gives both ends of a copy one node where nothing keeps them apart.

        careful: only where that cannot make the graph harder to colour.
        """
        adjacent = self.adjacent
        for _, a, b in self.copies:
            a, b = self.find(a), self.find(b)
            if a == b or b in adjacent[a]:
                continue
            if len(adjacent[a]) < len(adjacent[b]):
                a, b = b, a
            forbidden = self.forbidden[a] | self.forbidden[b]
            if careful and not self._safe(a, b, forbidden):
                continue
            self.alias[b] = a
            neighbours = adjacent.pop(b)
            for other in neighbours:
                adjacent[other].discard(b)
                adjacent[other].add(a)
            adjacent[a] |= neighbours
            self.forbidden[a] = forbidden
            self.cost[a] += self.cost.pop(b, 0)
            for register, amount in self.wishes.pop(b, {}).items():
                self.wishes[a][register] = self.wishes[a].get(register, 0) + amount

    def _safe(self, a, b, forbidden):
        """Briggs: the joined node has fewer hard-to-colour neighbours than registers."""
        available = _POPCOUNT[REGISTERS & ~forbidden]
        adjacent, hard = self.adjacent, 0
        for n in adjacent[a] | adjacent[b]:
            degree = len(adjacent[n]) - (n in adjacent[a] and n in adjacent[b])
            if degree >= _POPCOUNT[REGISTERS & ~self.forbidden[n]]:
                hard += 1
                if hard >= available:
                    return False
        return True

    def colour(self):
        """Chooses registers; returns the Value numbers (of all coalesced ones) that got none."""
        adjacent, forbidden = self.adjacent, self.forbidden
        degree = {n: len(neighbours) for n, neighbours in adjacent.items()}
        room = {n: _POPCOUNT[REGISTERS & ~forbidden[n]] for n in adjacent}
        easy = [n for n in adjacent if degree[n] < room[n]]
        hard = {n for n in adjacent if degree[n] >= room[n]}
        # By what spilling costs; that only rises while neighbours go, so one that is no longer true is corrected.
        price = self._spill_price(degree)
        prices = sorted([(price(n), n) for n in hard])
        order, removed = [], set()
        while easy or hard:
            if easy:
                n = easy.pop()
            else:
                while True:
                    told, n = heappop(prices)
                    if n in hard:
                        now = price(n)
                        if now == told:
                            break
                        heappush(prices, (now, n))
                hard.discard(n)
            removed.add(n)
            order.append(n)
            for other in adjacent[n] - removed:
                degree[other] -= 1
                if degree[other] == room[other] - 1 and other in hard:
                    hard.discard(other)
                    easy.append(other)
        self.register = register = {}
        partners = {}
        for amount, a, b in self.copies:
            a, b = self.find(a), self.find(b)
            if a != b and b not in adjacent[a]:
                partners.setdefault(a, []).append((amount, b))
                partners.setdefault(b, []).append((amount, a))
        failed = []
        holders = [set() for _ in range(10)]    # who has a register
        wishing = {n for n, wishes in self.wishes.items() if wishes}    # and not yet one
        for n in reversed(order):
            taken, neighbours = forbidden[n], adjacent[n]
            for candidate, those in enumerate(holders):
                if not taken >> candidate & 1 and not neighbours.isdisjoint(those):
                    taken |= 1 << candidate
            wishing.discard(n)
            dislikes = {}
            for other in neighbours & wishing:
                for wanted, amount in self.wishes[other].items():
                    dislikes[wanted] = dislikes.get(wanted, 0) + amount
            if taken & REGISTERS == REGISTERS:
                failed.append(n)
                continue
            likes = self.wishes[n]
            for amount, other in partners.get(n, ()):
                if other in register:
                    likes[register[other]] = likes.get(register[other], 0) + amount
                else:
                    for wanted, more in self.wishes[other].items():
                        likes[wanted] = likes.get(wanted, 0) + min(amount, more)
            best = None
            for candidate in _PREFERENCE:
                if not taken >> candidate & 1:
                    price = 2 * dislikes.get(candidate, 0) - 3 * likes.get(candidate, 0)
                    if best is None or price < lowest:
                        best, lowest = candidate, price
            register[n] = best
            holders[best].add(n)
        if not failed:
            return []
        failed = set(failed)
        members = {}
        for n in self.alias:
            members.setdefault(self.find(n), []).append(n)
        return [(n, members.get(n, [])) for n in failed]

    def _spill_price(self, degree):
        cost, unspillable = self.cost, self.unspillable

        def price(n):
            return (n in unspillable, cost[n] / (degree[n] + 1))
        return price

    def registers(self):
        result = dict(self.register)
        for n in self.alias:
            result[n] = self.register[self.find(n)]
        return result


# Those that calls do not clobber last: a Value that does not need them leaves them to those that do.
_PREFERENCE = (1, 2, 3, 4, 5, 0, 6, 7, 8, 9)


class _Spiller:
    """Puts nodes on the stack.

    A Value is loaded at its first use after a call and kept in a register until the next call or the end
    of the block. Where even that is too much (it is asked to spill such a register), every use loads.
    """

    def __init__(self, function, segments, unspillable):
        self.function, self.segments, self.unspillable = function, segments, unspillable
        self.home, self.constant, self.brief = {}, {}, set()

    def spill(self, spilled):
        self._find_homes(spilled)
        function = self.function
        for number, block in enumerate(function.blocks):
            self.out, self.held = [], {}
            if number == 0:
                for i, value in enumerate(function.params):
                    if value.n in self.home:
                        function.params[i] = arrived = self._fresh(value)
                        self._store(value, arrived, None)
            for op in block.ops:
                self._op(op)
            block.ops = self.out
        drop_dead_stores(function, ("spill",))

    def _find_homes(self, spilled):
        definitions = {}
        wanted = {n for node, members in spilled for n in (node, *members)}
        for block in self.function.blocks:
            for op in block.ops:
                if op.dst is not None and op.dst.n in wanted:
                    definitions.setdefault(op.dst.n, []).append(op)
        for node, members in spilled:
            family = {node, *members}
            if family & self.segments:
                self.brief |= family
            made = [op for n in family for op in definitions.get(n, ()) if not (
                op.kind == "copy" and type(op.args[0]) is Value and op.args[0].n in family)]
            source = made[0].args[0] if made and made[0].kind == "copy" else None
            if source is not None and type(source) is not Value and all(
                    op.kind == "copy" and op.args[0] == source for op in made):
                self.constant.update(dict.fromkeys(family, source))
            else:
                slot = SpillSlot(len(self.function.slots), 8, 8)
                self.function.slots.append(slot)
                self.home.update(dict.fromkeys(family, ("spill", slot, 0)))

    def _fresh(self, value):
        made = self.function.variable()
        (self.unspillable if value.n in self.brief else self.segments).add(made.n)
        return made

    def _store(self, value, register, span):
        self.out.append(Op("spill", None, (self.home[value.n], register), None, span))
        if value.n not in self.brief:
            self.held[value.n] = register

    def _take(self, value, span):
        """A register that holds the spilled `value`."""
        held = self.held.get(value.n)
        if held is None:
            held = self._fresh(value)
            self.out.append(Op("copy", held, (self.home.get(value.n, self.constant.get(value.n)),), None, span))
            if value.n not in self.brief:
                self.held[value.n] = held
        return held

    def _op(self, op):
        home, constant = self.home, self.constant
        kind, dst, span = op.kind, op.dst, op.span
        if dst is not None and dst.n in constant:
            return
        taken, args = {}, []
        for position, arg in enumerate(op.args):
            if type(arg) is Value and (arg.n in home or arg.n in constant):
                if arg.n not in self.held and (kind in ("call", "ret") or position == 0 and (
                        kind in ("neg", "swap") or kind == "alu" and op.args[1] is not arg)):
                    arg = home.get(arg.n, constant.get(arg.n))  # from where it is
                else:
                    if arg.n not in taken:
                        taken[arg.n] = self._take(arg, span)
                    arg = taken[arg.n]
            args.append(arg)
        if kind == "call":
            self.held.clear()
        if dst is None or dst.n not in home:
            self.out.append(Op(kind, dst, tuple(args), op.info, span))
            return
        if kind == "copy" and op.args[0] is not dst and type(op.args[0]) is Value and (
                home.get(op.args[0].n) is home[dst.n]):
            if op.args[0].n in self.held:
                self.held[dst.n] = self.held[op.args[0].n]
            return
        two_address = kind == "atomic" and op.info[0] != "cmpxchg"
        register = taken[dst.n] if two_address and dst.n in taken else self._fresh(dst)
        self.out.append(Op(kind, register, tuple(args), op.info, span))
        self._store(dst, register, span)
