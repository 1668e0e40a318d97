"""Which bytes of the stack slots are still needed: dead stores, and what `frame` has to keep apart.

Bytes are bits of one int, slot after slot. A slot whose address may be anywhere (`escaped`) is needed
as long as anything runs.
"""

from .flow import predecessors, successors
from .ir import Value


class SlotLiveness:
    """live_out[block]: the bytes that are read after its end before they are written."""

    def __init__(self, function):
        self.function = function
        self.base, self.all = {}, {}
        at = 0
        for slot in function.slots:
            self.base[slot] = at
            self.all[slot] = (1 << slot.size) - 1 << at
            at += slot.size
        self.escaped = self._find_escaped()
        self.live_out = self._solve()

    def _find_escaped(self):
        """Slots whose address is put where its uses cannot be followed.

        An address is followed through copies to calls: `held` says which slot a Value points to.
        """
        mask, leader, slots, other = 0, {}, {}, set()

        def find(n):
            top = n
            while top in leader:
                top = leader[top]
            while n != top:
                leader[n], n = top, leader[n]
            return top

        for block in self.function.blocks:
            for op in block.ops:
                kind, dst = op.kind, op.dst
                for position, arg in enumerate(op.args):
                    if type(arg) is tuple:
                        if arg[0] != "stack" or kind == "call" or position == 0 and kind in ("load", "store", "atomic"):
                            continue
                        if kind == "copy":
                            slots.setdefault(dst.n, set()).add(arg[1])
                        else:
                            mask |= self.all[arg[1]]
                    elif type(arg) is Value and kind != "call":
                        if kind != "copy":
                            other.add(arg.n)
                        elif find(arg.n) != find(dst.n):
                            leader[find(arg.n)] = find(dst.n)
                if dst is not None and kind != "copy":
                    other.add(dst.n)  # it is something else at times
        groups, members = {}, {}
        for n in slots:
            groups.setdefault(find(n), set()).update(slots[n])
        for n in {*leader, *slots}:
            if find(n) in groups:
                members.setdefault(find(n), set()).update((n, find(n)))
        self.held = held = {}
        for top, found in groups.items():
            if len(found) > 1 or not other.isdisjoint(members[top]):
                for slot in found:
                    mask |= self.all[slot]
            else:
                held.update(dict.fromkeys(members[top], *found))
        return mask

    def effect(self, op):
        """(read, written): masks of bytes."""
        kind = op.kind
        read = written = 0
        for position, arg in enumerate(op.args):
            if type(arg) is Value:
                if arg.n in self.held and kind != "copy":
                    read |= self.all[self.held[arg.n]]
                continue
            if type(arg) is not tuple or arg[0] not in ("stack", "spill") or kind == "copy" and arg[0] == "stack":
                continue
            slot = arg[1]
            if position == 0 and kind in ("load", "store"):
                off, size = op.info[:2]
                mask = (1 << size) - 1 << self.base[slot] + arg[2] + off
                if kind == "load":
                    read |= mask
                else:
                    written |= mask
            elif kind == "spill" and position == 0:
                written |= self.all[slot]
            else:
                read |= self.all[slot]
        return read, written

    def _solve(self):
        blocks = self.function.blocks
        read, keep = {}, {}
        for block in blocks:
            needed, written = 0, 0
            for op in reversed(block.ops):
                if op.args:
                    r, w = self.effect(op)
                    if r or w:
                        needed = needed & ~w | r
                        written |= w
            read[block], keep[block] = needed, ~written
        live_in = dict(read)
        live_out = dict.fromkeys(blocks, 0)
        before = predecessors(blocks)
        work = list(blocks)
        while work:
            block = work.pop()
            out = 0
            for target in successors(block):
                out |= live_in[target]
            live_out[block] = out
            new = read[block] | out & keep[block]
            if new != live_in[block]:
                live_in[block] = new
                work.extend(before[block])
        return live_out


def drop_dead_stores(function, kinds=("store",)):
    """Removes stores to bytes of slots that nothing reads before they are written again."""
    if not function.slots:
        return
    liveness = SlotLiveness(function)
    for block in function.blocks:
        live = liveness.live_out[block] | liveness.escaped
        kept = []
        for op in reversed(block.ops):
            if op.args:
                read, written = liveness.effect(op)
                if written and op.kind in kinds:
                    if not written & live:
                        continue
                    live = live & ~written | written & liveness.escaped
                live |= read
            kept.append(op)
        if len(kept) != len(block.ops):
            kept.reverse()
            block.ops = kept


def mentioned_slots(op, index, held):
    """Mask of the slots that an operation uses, or whose address it takes."""
    mask = 0
    for arg in op.args:
        if type(arg) is tuple:
            if arg[0] in ("stack", "spill"):
                mask |= 1 << index[arg[1]]
        elif type(arg) is Value and arg.n in held:
            mask |= 1 << index[held[arg.n]]
    return mask


def begun_slots(blocks, mentions):
    """dict block -> mask of the slots that are mentioned on some way to its start."""
    here = {}
    for block in blocks:
        mask = 0
        for mention in mentions[block]:
            mask |= mention
        here[block] = mask
    before = predecessors(blocks)
    begun = dict.fromkeys(blocks, 0)
    changed = True
    while changed:
        changed = False
        for block in blocks:
            mask = 0
            for source in before[block]:
                mask |= here[source] | begun[source]
            if mask != begun[block]:
                begun[block] = mask
                changed = True
    return begun
