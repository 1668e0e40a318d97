"""Static single assignment: every Value set once, with `phi` where control joins; and back from it.

    phi   dst = args[i] when control came from info[i]    first in a block, all at once

Dominators after Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm".
"""

from .flow import bits, liveness, predecessors, successors
from .ir import Block, Op, Value


def dominators(order, before):
    """dict block -> its immediate dominator (the entry: itself); `order` is a reverse postorder."""
    number = {block: i for i, block in enumerate(order)}
    parent = [0] + [None] * (len(order) - 1)
    sources = [[number[b] for b in before[block]] for block in order]
    changed = True
    while changed:
        changed = False
        for i in range(1, len(order)):
            new = None
            for j in sources[i]:
                if parent[j] is None:
                    continue
                if new is None:
                    new = j
                    continue
                k = j
                while new != k:
                    while k > new:
                        k = parent[k]
                    while new > k:
                        new = parent[new]
            if parent[i] != new:
                parent[i] = new
                changed = True
    return {block: order[parent[i]] for i, block in enumerate(order)}


def construct(function):
    """Brings the function (blocks in reverse postorder) into SSA form; a Value read before it is set is 0."""
    blocks = function.blocks
    entry = blocks[0]
    live_in, _ = liveness(blocks)
    places, several = {}, {}
    for value in function.params:
        places[value.n] = entry
    unset = live_in[entry]
    for value in function.params:
        unset &= ~(1 << value.n)
    if unset:
        entry.ops[:0] = [Op("copy", Value(n), (0,), None, None) for n in bits(unset)]
    for block in blocks:
        for op in block.ops:
            if op.dst is not None:
                n = op.dst.n
                if n in places:
                    if n not in several:
                        several[n] = {places[n]}
                    several[n].add(block)
                else:
                    places[n] = block
    if not several:
        return
    before = predecessors(blocks)
    idom = dominators(blocks, before)
    phis = _place_phis(function, several, live_in, before, idom)
    _rename(function, several, phis, idom)


def _place_phis(function, several, live_in, before, idom):
    """dict block -> {n: phi} on the dominance frontiers of the assignments, where n is still needed."""
    frontier = {block: set() for block in function.blocks}
    for block in function.blocks:
        if len(before[block]) > 1:
            for source in before[block]:
                while source is not idom[block]:
                    frontier[source].add(block)
                    source = idom[source]
    phis = {}
    for n, defined in several.items():
        work, placed = list(defined), set()
        while work:
            for block in frontier[work.pop()]:
                if block not in placed:
                    placed.add(block)
                    if live_in[block] >> n & 1:
                        phi = Op("phi", function.variable(), [None] * len(before[block]), before[block], None)
                        phis.setdefault(block, {})[n] = phi
                        work.append(block)
    return phis


def _rename(function, several, phis, idom):
    entry = function.blocks[0]
    children = {block: [] for block in function.blocks}
    for block in function.blocks[1:]:
        children[idom[block]].append(block)
    work = [(entry, {value.n: value for value in function.params if value.n in several})]
    while work:
        block, current = work.pop()
        mine = phis.get(block)
        if mine:
            for n, phi in mine.items():
                current[n] = phi.dst
        for op in block.ops:
            args = op.args
            for arg in args:
                if type(arg) is Value and arg.n in several:
                    op.args = tuple([current.get(a.n, a) if type(a) is Value else a for a in args])
                    break
            if op.dst is not None and op.dst.n in several:
                current[op.dst.n] = op.dst = function.variable()
        for target in successors(block):
            if target in phis:
                for n, phi in phis[target].items():
                    phi.args[phi.info.index(block)] = current[n]
        for child in children[block]:
            work.append((child, dict(current)))
    for block, mine in phis.items():
        block.ops[:0] = list(mine.values())
    for block in function.blocks:
        for op in block.ops:
            if op.kind != "phi":
                break
            op.args = tuple(op.args)


def destruct(function):
    """Replaces each phi by copies at the ends of the blocks before, into a Value of its own.

    That Value is copied once more where the phi was, so copies of several phis cannot disturb each
    other; register allocation makes most of them disappear.
    """
    for block in list(function.blocks):
        ops = block.ops
        if not ops or ops[0].kind != "phi":
            continue
        count = 0
        while ops[count].kind == "phi":
            count += 1
        phis = ops[:count]
        arrivals = []
        for phi in phis:
            arrivals.append(function.variable())
            ops[len(arrivals) - 1] = Op("copy", phi.dst, (arrivals[-1],), None, None)
        for i, source in enumerate(phis[0].info):
            if source.ops[-1].kind == "branch":
                source = _split(function, source, block)
            last = source.ops.pop()
            for phi, arrival in zip(phis, arrivals):
                source.ops.append(Op("copy", arrival, (phi.args[i],), None, last.span))
            source.ops.append(last)


def _split(function, source, target):
    """A new block on the edge source -> target."""
    branch = source.ops[-1]
    middle = function.block("edge")
    function.blocks.pop()
    middle.ops.append(Op("jump", None, (), (target,), branch.span))
    operator, width, then, otherwise = branch.info
    branch.info = (operator, width, middle if then is target else then, middle if otherwise is target else otherwise)
    function.blocks.insert(function.blocks.index(target), middle)
    return middle
