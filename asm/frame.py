"""Places for stack slots: those whose lifetimes are disjoint share bytes of the 512 there are."""

from .errors import AsmError
from .flow import bits, predecessors, successors
from .regalloc import SpillSlot

LIMIT = 512


def layout(function):
    """(dict Slot -> offset from r10, bytes used). The function is as register allocation left it."""
    slots = function.slots
    index = {slot: i for i, slot in enumerate(slots)}
    blocks = function.blocks
    mentions, escaped = {}, 0
    for block in blocks:
        found = []
        for op in block.ops:
            mask = kill = 0
            for position, arg in enumerate(op.args):
                if type(arg) is tuple and arg[0] in ("stack", "spill"):
                    bit = 1 << index[arg[1]]
                    mask |= bit
                    if op.kind == "spill" or (op.kind == "store" and position == 0 and arg[2] + op.info[0] == 0
                                              and op.info[1] >= arg[1].size):
                        kill |= bit
                    if op.kind == "copy" and arg[0] == "stack":
                        escaped |= bit
            found.append((mask, kill))
        mentions[block] = found
    # Before a slot is first mentioned, and after the last mention, its bytes are free.
    begun = _solve(blocks, mentions, predecessors(blocks), forward=True)
    needed = _solve(blocks, mentions, {block: successors(block) for block in blocks}, forward=False)
    apart = [0] * len(slots)
    for block in blocks:
        ahead = needed[block]
        states = []
        for mask, kill in reversed(mentions[block]):
            states.append(ahead | mask)
            ahead = ahead & ~kill | mask & ~kill
        started = begun[block]
        for (mask, kill), ahead in zip(mentions[block], reversed(states)):
            started |= mask
            if mask:
                live = started & (ahead | escaped)
                for i in bits(mask):
                    apart[i] |= live
    for i, mask in enumerate(apart):
        for j in bits(mask):
            apart[j] |= 1 << i
    used = 0
    for mask in apart:
        used |= mask
    places, depth = {}, 0
    for i in sorted(bits(used), key=lambda i: (isinstance(slots[i], SpillSlot), -slots[i].align, -slots[i].size)):
        slot = slots[i]
        taken = sorted((-places[slots[j]] - slots[j].size, -places[slots[j]])
                       for j in bits(apart[i]) if slots[j] in places)
        start = 0
        for low, high in taken:
            if _end(start, slot) <= low:
                break
            start = max(start, high)
        end = _end(start, slot)
        places[slot] = -end
        depth = max(depth, end)
    if depth > LIMIT:
        raise AsmError("function %s needs %d bytes of stack; BPF has %d" % (function.name, depth, LIMIT))
    return places, depth


def _end(start, slot):
    return (start + slot.size + slot.align - 1) // slot.align * slot.align


def _solve(blocks, mentions, before, forward):
    """dict block -> mask of slots: mentioned on some way to its start, or needed on some way from its end."""
    generate, keep = {}, {}
    for block in blocks:
        mask = kill = 0
        for m, k in mentions[block] if forward else reversed(mentions[block]):
            if forward:
                mask |= m
            else:
                mask = mask & ~k | m & ~k
                kill |= k
        generate[block], keep[block] = mask, ~kill
    result = dict.fromkeys(blocks, 0)
    changed = True
    while changed:
        changed = False
        for block in blocks if forward else reversed(blocks):
            mask = 0
            for other in before[block]:
                mask |= generate[other] | result[other] & keep[other]
            if mask != result[block]:
                result[block] = mask
                changed = True
    return result
