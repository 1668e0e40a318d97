"""Places for stack slots: those whose lifetimes are disjoint share bytes of the 512 there are."""

from .errors import AsmError
from .flow import bits
from .ir import SpillSlot
from .slots import SlotLiveness, begun_slots, mentioned_slots

LIMIT = 512


def layout(function):
    """(dict Slot -> offset from r10, bytes used). The function is as register allocation left it."""
    slots = function.slots
    if not slots:
        return {}, 0
    index = {slot: i for i, slot in enumerate(slots)}
    blocks = function.blocks
    liveness = SlotLiveness(function)
    mentions = {}
    for block in blocks:
        mentions[block] = [mentioned_slots(op, index, liveness.held) for op in block.ops]
    begun = begun_slots(blocks, mentions)
    # Two slots need different places if both hold something when one of them is used.
    apart = [0] * len(slots)
    whole = [liveness.all[slot] for slot in slots]
    always = _slots_in(liveness.escaped, whole)
    for block in blocks:
        live = liveness.live_out[block] | liveness.escaped
        holding = _slots_in(live, whole)
        alive = []
        for op, mask in zip(reversed(block.ops), reversed(mentions[block])):
            alive.append(holding)
            if mask:
                read, written = liveness.effect(op)
                live = (live & ~written | read) | liveness.escaped
                for i in bits(mask & ~always):
                    holding = holding | 1 << i if live & whole[i] else holding & ~(1 << i)
        started = begun[block]
        for mask, holding in zip(mentions[block], reversed(alive)):
            started |= mask
            if mask:
                holding = holding & started | mask
                for i in bits(mask):
                    apart[i] |= holding
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


def _slots_in(live, whole):
    """Mask of the slots of whose bytes, `whole`, some are in the mask `live`."""
    found = 0
    if live:
        for i, mask in enumerate(whole):
            if live & mask:
                found |= 1 << i
    return found


def _end(start, slot):
    return (start + slot.size + slot.align - 1) // slot.align * slot.align
