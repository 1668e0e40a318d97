"""Control flow and liveness of a Function: what several passes ask for.

Sets of Values are ints used as bit masks over `Value.n`: one `|` joins two sets of any size.
"""

from .errors import AsmError
from .ir import TERMINATORS, Block, Function, Op, Value


def clone(function):
    """A copy whose blocks and operations can be changed; Values and Slots are shared."""
    copy = Function.__new__(Function)
    copy.__dict__.update(function.__dict__)
    copy.slots = list(function.slots)
    copy.params = list(function.params)
    blocks = {}
    for block in function.blocks:
        blocks[block] = Block(block.n, block.hint)
    for block, twin in blocks.items():
        ops = twin.ops
        for op in block.ops:
            info = op.info
            if op.kind == "jump":
                info = (blocks[info[0]],)
            elif op.kind == "branch":
                info = (info[0], info[1], blocks[info[2]], blocks[info[3]])
            ops.append(Op(op.kind, op.dst, op.args, info, op.span))
    copy.blocks = list(blocks.values())
    return copy


def successors(block):
    """The blocks that control goes to from the end of `block`."""
    last = block.ops[-1]
    if last.kind == "jump":
        return last.info
    if last.kind == "branch":
        then, otherwise = last.info[2:]
        return (then,) if then is otherwise else (then, otherwise)
    return ()


def reachable(function):
    """Blocks that control can reach, in reverse postorder; those it cannot are dropped from the function."""
    entry = function.blocks[0]
    if any(entry in successors(block) for block in function.blocks if block.terminated):
        # Nothing goes back to the entry: it is where parameters arrive.
        loop, entry = entry, function.block("entry")
        entry.ops.append(Op("jump", None, (), (loop,), None))
    order, seen = [], {entry}
    stack = [(entry, iter(_checked_successors(function, entry)))]
    while stack:
        block, following = stack[-1]
        for target in following:
            if target not in seen:
                seen.add(target)
                stack.append((target, iter(_checked_successors(function, target))))
                break
        else:
            stack.pop()
            order.append(block)
    order.reverse()
    function.blocks = order
    return order


def _checked_successors(function, block):
    ops = block.ops
    if not ops or ops[-1].kind not in TERMINATORS:
        raise AsmError("function %s: block %r has no end (jump, branch or ret)" % (function.name, block))
    # The last one first, so that reverse postorder puts `then` behind the branch.
    return successors(block)[::-1]


def predecessors(blocks):
    """dict block -> list of the blocks that go to it."""
    before = {block: [] for block in blocks}
    for block in blocks:
        for target in successors(block):
            before[target].append(block)
    return before


def liveness(blocks):
    """(before, after): dicts block -> mask of the Values that are needed at its start, and after its end."""
    used, defined = {}, {}
    for block in blocks:
        use = define = 0
        for op in block.ops:
            for arg in op.args:
                if type(arg) is Value and not define >> arg.n & 1:
                    use |= 1 << arg.n
            if op.dst is not None:
                define |= 1 << op.dst.n
        used[block], defined[block] = use, ~define
    live_in = dict(used)
    live_out = dict.fromkeys(blocks, 0)
    before = predecessors(blocks)
    work = list(blocks)
    waiting = set(work)
    while work:
        block = work.pop()
        waiting.discard(block)
        out = 0
        for target in successors(block):
            out |= live_in[target]
        if out != live_out[block]:
            live_out[block] = out
        new = used[block] | out & defined[block]
        if new != live_in[block]:
            live_in[block] = new
            for source in before[block]:
                if source not in waiting:
                    waiting.add(source)
                    work.append(source)
    return live_in, live_out


def bits(mask):
    """The numbers of the bits that are set."""
    if mask < 1 << 64:
        numbers = []
        while mask:
            low = mask & -mask
            numbers.append(low.bit_length() - 1)
            mask ^= low
        return numbers
    # Of a large number every step above would copy all of it.
    digits = bin(mask)[:1:-1]
    numbers, at = [], digits.find("1")
    while at >= 0:
        numbers.append(at)
        at = digits.find("1", at + 1)
    return numbers
