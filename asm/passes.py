"""The passes over the IR: each takes a Function (blocks in reverse postorder) and changes it in place."""

from .flow import predecessors, reachable, successors
from .ir import Op, Value
from .numbering import PURE, number_values
from .slots import drop_dead_stores
from .ssa import construct, destruct
from .stores import drop_overwritten, merge_stores
from .threading import fold_phis, thread_constants, thread_phis


def optimise(function, level, main=True):
    """All of them, in the order that suits; the function ends up outside SSA form."""
    thread_constants(function)
    construct(function)
    for _ in range(3):
        decided = number_values(function, level, main)
        if decided:
            prune(function)
        drop_dead_code(function)
        folded = fold_phis(function)
        threaded = thread_phis(function)
        if threaded:
            prune(function)
        if not (decided or folded or threaded):
            break
    drop_extensions(function)
    drop_dead_stores(function)
    drop_overwritten(function)
    drop_dead_code(function)
    merge_stores(function)
    hold_constants(function)
    destruct(function)
    join_blocks(function)


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


def drop_extensions(function):
    """Extends nothing of which only the bits that are there before are needed: an s32 that is stored as one."""
    needed = {}   # Value.n -> how many low bits anybody looks at
    candidates = []
    for block in function.blocks:
        for op in block.ops:
            kind, info = op.kind, op.info
            if kind == "extend" or kind == "load" and info[2]:
                candidates.append(op)
            for position, arg in enumerate(op.args):
                if type(arg) is Value:
                    bits = 64
                    if kind == "store" and position == 1:
                        bits = 8 * info[1]
                    elif kind == "extend":
                        bits = 8 * info[0]
                    elif kind == "swap" or kind == "alu" and info[1] == 32 and info[0] in ("+", "-", "*", "&", "|", "^"):
                        bits = info[1]
                    elif kind == "alu" and info[0] == "&" and type(op.args[1]) is int and op.args[1] >= 0:
                        bits = op.args[1].bit_length()
                    if bits > needed.get(arg.n, 0):
                        needed[arg.n] = bits
    for op in candidates:
        if op.kind == "load":
            off, size, _ = op.info
            if needed.get(op.dst.n, 0) <= 8 * size:
                op.info = (off, size, False)
        elif needed.get(op.dst.n, 0) <= 8 * op.info[0]:
            op.kind, op.info = "copy", None


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
