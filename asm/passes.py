"""The passes over the IR: each takes a Function (blocks in reverse postorder) and changes it in place."""

from .flow import predecessors, reachable, successors
from .ir import Op, Value
from .numbering import PURE, number_values
from .slots import drop_dead_stores
from .ssa import construct, destruct


def optimise(function, level, main=True):
    """All of them, in the order that suits; the function ends up outside SSA form."""
    thread_constants(function)
    construct(function)
    for _ in range(3):
        decided = number_values(function, level, main)
        if decided:
            prune(function)
        drop_dead_code(function)
        if not decided:
            break
    drop_dead_stores(function)
    drop_dead_code(function)
    merge_stores(function)
    hold_constants(function)
    destruct(function)
    join_blocks(function)


def thread_constants(function):
    """A block that sets a variable to a number and goes to one that only tests it goes on at once.

    This is before SSA form: `a && b` as a value, with both outcomes set in blocks of their own.
    """
    changed = False
    for block in function.blocks:
        while block.ops[-1].kind == "jump":
            target = block.ops[-1].info[0]
            if target is block or len(target.ops) != 1 or target.ops[0].kind != "branch":
                break
            test = target.ops[0]
            value, number = test.args
            if type(value) is not Value or type(number) is not int:
                break
            known = None
            for op in reversed(block.ops):
                if op.dst is not None and op.dst.n == value.n:
                    if op.kind == "copy" and type(op.args[0]) is int:
                        known = op.args[0]
                    break
            if known is None:
                break
            from .fold import compare
            operator, width, then, otherwise = test.info
            outcome = compare(operator, known, number, width)
            block.ops[-1] = Op("jump", None, (), (then if outcome else otherwise,), block.ops[-1].span)
            changed = True
            if (then if outcome else otherwise) is target:
                break
    if changed:
        reachable(function)


def prune(function):
    """Drops blocks that nothing reaches, and their operands of phis."""
    reachable(function)
    kept = predecessors(function.blocks)
    for block in function.blocks:
        for op in block.ops:
            if op.kind != "phi":
                break
            sources = kept[block]
            if len(sources) != len(op.info) or any(a is not b for a, b in zip(sources, op.info)):
                value = dict(zip(op.info, op.args))
                op.info = sources
                op.args = tuple([value[source] for source in sources])


_REMOVABLE = ("copy", "alu", "neg", "swap", "extend", "load", "compare", "phi")


def drop_dead_code(function):
    """Removes operations whose results nobody needs."""
    made, work, needed = {}, [], set()
    for block in function.blocks:
        for op in block.ops:
            if op.kind in _REMOVABLE or op.kind == "call" and op.info[0] == "helper" and op.info[1] in PURE:
                made[op.dst.n] = op
            else:
                work.append(op)
    while work:
        for arg in work.pop().args:
            if type(arg) is Value and arg.n not in needed:
                needed.add(arg.n)
                if arg.n in made:
                    work.append(made[arg.n])
    for block in function.blocks:
        block.ops = [op for op in block.ops if op.dst is None or op.dst.n in needed or op.dst.n not in made]


def merge_stores(function):
    """Joins stores of numbers to neighbouring bytes of a slot into one wider store."""
    import sys
    little = sys.byteorder == "little"
    for block in function.blocks:
        out, last = [], None
        for op in block.ops:
            while op.kind == "store" and type(op.args[1]) is int and type(op.args[0]) is tuple:
                joined = last is not None and _join(last, op, little)
                if not joined:
                    break
                out.pop()
                op = joined
                last = out[-1] if out and out[-1].kind == "store" else None
            out.append(op)
            last = op if op.kind == "store" and type(op.args[1]) is int and type(op.args[0]) is tuple else None
        block.ops = out


def _join(first, second, little):
    """One store that does what two of equal size do, or None."""
    (base, low), (off, size) = first.args, first.info
    (other, high), (off2, size2) = second.args, second.info
    if type(base) is not tuple or type(low) is not int or base[1] is not other[1] or size != size2 or size == 8:
        return None
    a, b = base[2] + off, other[2] + off2
    if abs(a - b) != size or min(a, b) % (2 * size) or base[1].align < 2 * size:
        return None
    if (a > b) == little:
        low, high = high, low
    mask = (1 << 8 * size) - 1
    value = low & mask | (high & mask) << 8 * size
    value -= value >> 16 * size - 1 << 16 * size
    if size == 4 and not -1 << 31 <= value < 1 << 31:
        return None
    return Op("store", None, (("stack", base[1], 0), value), (min(a, b), 2 * size), first.span)


def hold_constants(function):
    """Keeps an address or a large number that is needed often in a Value.

    Making one takes two slots. An address that a call takes costs one to copy from a register, so it pays
    from the third use on, a large number in arithmetic from the second. Should no register be free, the
    allocator makes it again at each use, as if this had not been done.
    """
    from .lower import fits32
    from .ssa import dominators
    blocks = function.blocks
    idom = dominators(blocks, predecessors(blocks))
    children = {block: [] for block in blocks}
    for block in blocks[1:]:
        children[idom[block]].append(block)
    groups = []
    work = [(blocks[0], {})]
    while work:
        block, leaders = work.pop()
        for op in block.ops:
            kind = op.kind
            for arg in op.args:
                if kind == "call":
                    worth = 3 if type(arg) is tuple and arg[0] != "func" else 0
                else:
                    worth = 2 if type(arg) is int and not fits32(arg) and kind in ("alu", "store", "compare", "branch") else 0
                if worth:
                    if arg not in leaders:
                        leaders[arg] = []
                        groups.append((arg, leaders[arg], block, worth))
                    leaders[arg].append(op)
        for child in children[block]:
            work.append((child, dict(leaders)))
    for constant, users, block, worth in groups:
        if len(users) < worth:
            continue
        value = function.variable()
        block.ops.insert(block.ops.index(users[0]), Op("copy", value, (constant,), None, users[0].span))
        for op in users:
            op.args = tuple([value if type(arg) is type(constant) and arg == constant else arg for arg in op.args])


def join_blocks(function):
    """Joins a block with the only one that follows it, if it is the only one before that."""
    reachable(function)
    before = predecessors(function.blocks)
    gone = set()
    for block in function.blocks:
        if block in gone:
            continue
        while block.ops[-1].kind == "jump":
            target = block.ops[-1].info[0]
            if target is block or len(before[target]) != 1 or target is function.blocks[0]:
                break
            block.ops.pop()
            block.ops += target.ops
            gone.add(target)
            for after in successors(target):
                before[after] = [block if b is target else b for b in before[after]]
    function.blocks = [block for block in function.blocks if block not in gone]
