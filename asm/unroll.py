"""Short loops over what is known, written out: most often nothing is left of them then.

A loop is peeled as often as its counter's limit says, without asking what it does, and the passes decide what they
can. It pays where the loop itself is unreachable in the end and the function shorter.
"""

from .flow import clone, predecessors, reachable, successors
from .ir import Block, Op
from .passes import optimise

ROUNDS, SIZE, GROWTH = 16, 32, 1500   # of a loop; operations in a round of it; operations added to a function


def optimised(function, level, main):
    """The function after `optimise`, with short loops or without: whichever is shorter. Its blocks are changed."""
    best, headers = None, {loop[0].n for loop in _loops(function)}
    while headers:
        other = clone(function)
        for loop in [loop for loop in _loops(other) if loop[0].n in headers]:
            _peel(other, *loop)
        optimise(other, level, main)
        if best is None or _length(other) < _length(best):
            best = other
        stayed = headers & {loop[0].n for loop in _loops(other)}
        headers = headers - stayed if stayed else None
    optimise(function, level, main)
    return function if best is None or _length(function) <= _length(best) else best


def _length(function):
    return sum(len(block.ops) for block in function.blocks)


def _loops(function):
    """(header, blocks, rounds) of each loop without another in it that calls nothing and may have few rounds."""
    blocks = function.blocks
    index = {block: i for i, block in enumerate(blocks)}
    before, bodies = predecessors(blocks), {}
    for header in blocks:
        latches = [source for source in before[header] if index[source] >= index[header]]
        if latches:
            body, work = {header}, latches
            while work:
                block = work.pop()
                if block not in body:
                    body.add(block)
                    work.extend(before[block])
            bodies[header] = body
    found, room = [], GROWTH
    for header, body in bodies.items():
        if any(other is not header and other in body for other in bodies):
            continue
        ops = [op for block in body for op in block.ops]
        limits = [op.args[1] for op in ops if op.kind == "branch" and type(op.args[1]) is int and op.info[0] != "&"
                  and not (op.info[2] in body and op.info[3] in body) and 0 < op.args[1] <= ROUNDS]
        if not limits or len(ops) > SIZE or any(op.kind in ("call", "atomic") for op in ops):
            continue
        rounds = max(limits) + 1
        room -= rounds * len(ops)
        if room >= 0:
            found.append((header, sorted(body, key=index.get), rounds))
    return found


def _peel(function, header, body, rounds):
    """Writes the first rounds out before the loop."""
    entered = [block for block in function.blocks if header in successors(block) and block not in body]
    following = header
    for _ in range(rounds):
        copies = {}
        for block in body:
            copies[block] = Block(function.block_count, block.hint)
            function.block_count += 1
        for block, twin in copies.items():
            targets = dict(copies)
            targets[header] = following
            twin.ops = [Op(op.kind, op.dst, op.args, _targets(op, targets), op.span) for op in block.ops]
        following = copies[header]
    for block in entered:
        last = block.ops[-1]
        last.info = _targets(last, {header: following})
    reachable(function)


def _targets(op, to):
    if op.kind == "jump":
        return (to.get(op.info[0], op.info[0]),)
    if op.kind == "branch":
        operator, width, then, otherwise = op.info
        return (operator, width, to.get(then, then), to.get(otherwise, otherwise))
    return op.info
