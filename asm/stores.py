"""Stores that others make superfluous, or that can be one with others."""

from .helpers import NUMBER
from .ir import Op, Value

# Give memory that is aligned to 8 bytes.
_ALIGNED = {NUMBER["bpf_" + name] for name in (
    "ringbuf_reserve map_lookup_elem map_lookup_percpu_elem").split()}


def drop_overwritten(function):
    """Removes stores through pointers to what the same block stores to again before anything can read it."""
    apart = {op.dst.n for block in function.blocks for op in block.ops if op.kind == "call" and op.info[0] == "helper"}
    for block in function.blocks:
        gone, again = set(), {}   # Value.n -> {(offset, size)} that is written further on
        for i in range(len(block.ops) - 1, -1, -1):
            op = block.ops[i]
            kind = op.kind
            if kind == "store":
                base, (off, size) = op.args[0], op.info
                if type(base) is Value:
                    later = again.setdefault(base.n, set())
                    if _covered(later, off, size):
                        gone.add(i)
                    else:
                        later.add((off, size))
            elif kind in ("load", "atomic", "call"):
                if kind != "load" or type(op.args[0]) is not tuple:
                    again.clear()
                else:               # of the stack, where no helper's result points
                    again = {n: later for n, later in again.items() if n in apart}
        if gone:
            block.ops = [op for i, op in enumerate(block.ops) if i not in gone]


def _covered(stores, off, size):
    """Is one of the (offset, size) around all of these bytes? A store is of 1, 2, 4 or 8 bytes: few can be."""
    if len(stores) <= 16:
        return any(at <= off and off + size <= at + length for at, length in stores)
    return any((off - back, length) in stores for length in (1, 2, 4, 8) for back in range(length - size + 1))


def merge_stores(function):
    """Joins stores of numbers to neighbouring bytes into one wider store, where it is known to be aligned."""
    import sys
    little = sys.byteorder == "little"
    aligned = _aligned(function)
    for block in function.blocks:
        out, last = [], None
        for op in block.ops:
            while op.kind == "store" and type(op.args[1]) is int and (
                    type(op.args[0]) is tuple or op.args[0].n in aligned):
                joined = last is not None and _join(last, op, little)
                if not joined:
                    break
                out.pop()
                op = joined
                last = out[-1] if out and out[-1].kind == "store" else None
            out.append(op)
            last = op if op.kind == "store" and type(op.args[1]) is int and (
                type(op.args[0]) is tuple or op.args[0].n in aligned) else None
        block.ops = out


def _aligned(function):
    """Numbers of the Values that are addresses of memory aligned to 8 bytes."""
    found = set()
    for block in function.blocks:
        for op in block.ops:
            if op.kind == "call" and op.info[0] == "helper" and op.info[1] in _ALIGNED or op.kind == "copy" and (
                    type(op.args[0]) is tuple and op.args[0][0] == "map" and not (op.args[0][2] or 0) % 8):
                found.add(op.dst.n)
    return found


def _join(first, second, little):
    """One store that does what two of equal size do, or None."""
    (base, low), (off, size) = first.args, first.info
    (other, high), (off2, size2) = second.args, second.info
    if type(base) is not type(other) or type(low) is not int or size != size2 or size == 8:
        return None
    if type(base) is tuple:
        if base[1] is not other[1] or base[1].align < 2 * size:
            return None
        a, b, base = base[2] + off, other[2] + off2, ("stack", base[1], 0)
    elif base is not other:
        return None
    else:
        a, b = off, off2
    if abs(a - b) != size or min(a, b) % (2 * size):
        return None
    if (a > b) == little:
        low, high = high, low
    mask = (1 << 8 * size) - 1
    value = low & mask | (high & mask) << 8 * size
    value -= value >> 16 * size - 1 << 16 * size
    if size == 4 and not -1 << 31 <= value < 1 << 31:
        return None
    return Op("store", None, (base, value), (min(a, b), 2 * size), first.span)
