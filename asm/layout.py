"""The order of blocks, once registers are chosen: as few jumps as possible.

The layout of a function's blocks is its reverse postorder: every block comes after those that lead to
it (loops aside), so that falling through is the rule.
"""

from . import fold
from .flow import reachable
from .ir import Op, Value


def tidy(function, registers):
    """Drops copies that move nothing and blocks that only jump on; shares returns; orders the blocks."""
    for block in function.blocks:
        block.ops = [op for op in block.ops if not (
            op.kind == "copy" and type(op.args[0]) is Value and registers[op.args[0].n] == registers[op.dst.n])]
    _share_returns(function, registers)
    _skip_jumps(function, registers)
    _skip_tests(function, registers)
    merge_tails(function, registers)
    reachable(function)
    _sink_unlikely(function)
    _turn_loops(function)


def _skip_tests(function, registers):
    """A block that sets a register to a number and goes to one that only tests it goes on at once."""
    for block in function.blocks:
        for _ in range(len(function.blocks)):
            last = block.ops[-1]
            test = last.info[0].ops[0] if last.kind == "jump" else None
            if test is None or test.kind != "branch" or type(test.args[1]) is not int:
                break
            known = _number_in(block, registers[test.args[0].n], registers)
            if known is None:
                break
            operator, width, then, otherwise = test.info
            target = then if fold.compare(operator, known, test.args[1], width) else otherwise
            block.ops[-1] = Op("jump", None, (), (target,), last.span)


def _number_in(block, register, registers):
    """The number that a register holds at the end of a block, if an instruction there says so; else None."""
    for op in reversed(block.ops):
        if op.kind == "call" or op.kind == "atomic" and op.info[0] == "cmpxchg":
            return None
        if op.dst is not None and registers.get(op.dst.n) == register:
            return op.args[0] if op.kind == "copy" and type(op.args[0]) is int else None
    return None


def _turn_loops(function):
    """A jump back to a block that only tests becomes that test, where what follows is one of its outcomes."""
    for block, after in zip(function.blocks, function.blocks[1:]):
        last = block.ops[-1]
        if last.kind == "jump" and last.info[0] is not after:
            test = last.info[0].ops[0]
            if test.kind == "branch" and after in test.info[2:]:
                block.ops[-1] = Op("branch", None, test.args, test.info, test.span)


def merge_tails(function, registers, least=3):
    """Blocks that go to the same place and end with the same `least` or more instructions share them."""
    while True:
        groups = {}
        for block in function.blocks:
            if block.ops[-1].kind == "jump" and len(block.ops) > least:
                groups.setdefault((block.ops[-1].info[0], _instruction(block.ops[-2], registers)), []).append(block)
        best = None
        for (target, _), blocks in groups.items():
            if len(blocks) > 1:
                count = _common(blocks, registers)
                if count >= least and (best is None or count * (len(blocks) - 1) > best[0]):
                    best = count * (len(blocks) - 1), count, blocks
        if best is None:
            return
        _, count, blocks = best
        whole = next((block for block in blocks if len(block.ops) == count + 1 and block is not function.blocks[0]), None)
        shared = whole
        if shared is None:
            shared = function.block("tail")
            shared.ops = blocks[0].ops[-count - 1:]
        for block in blocks:
            if block is not shared:
                block.ops[-count - 1:] = [Op("jump", None, (), (shared,), block.ops[-1].span)]
        _skip_jumps(function, registers)
        reachable(function)


def _common(blocks, registers):
    """With how many equal instructions before their jump blocks end."""
    count = 1
    while all(len(block.ops) > count + 1 for block in blocks):
        first = _instruction(blocks[0].ops[-count - 2], registers)
        if any(_instruction(block.ops[-count - 2], registers) != first for block in blocks):
            break
        count += 1
    return count


def _instruction(op, registers):
    """Equal for operations that become the same instructions."""
    return (op.kind, None if op.dst is None else registers.get(op.dst.n), op.info,
            *[("r", registers[arg.n]) if type(arg) is Value else arg for arg in op.args])


def _share_returns(function, registers):
    """`r0 = 0; exit` once, where it is needed more than once; going there takes one instruction."""
    places = {}
    for block in function.blocks:
        last = block.ops[-1]
        if last.kind == "ret":
            operand = last.args[0]
            key = registers[operand.n] if type(operand) is Value else operand
            if type(operand) is not Value or key != 0:
                places.setdefault((type(operand), key), []).append(block)
    for blocks in places.values():
        if len(blocks) > 1:
            shared = function.block("ret")
            shared.ops.append(blocks[0].ops[-1])
            for block in blocks:
                block.ops[-1] = Op("jump", None, (), (shared,), block.ops[-1].span)


_NEAR = 15000      # operations, of which most are one or two slots


def _sink_unlikely(function):
    """Moves a block that hardly ever runs to the end, where that costs no jump: the usual way has one less.

    Unlikely is what runs when something is 0 or NULL: a lookup that finds nothing, a full buffer.
    """
    blocks, unlikely = function.blocks, []
    if sum(len(block.ops) for block in blocks) > _NEAR:
        return                  # jumps to the end and back would be too long
    for i in range(1, len(blocks) - 1):
        last, block, after = blocks[i - 1].ops[-1], blocks[i], blocks[i + 1]
        if last.kind != "branch" or block.ops[-1].kind == "branch" or block.ops[-1].info == (after,):
            continue
        operator, width, then, otherwise = last.info
        if last.args[1] == 0 and (operator == "==" and (then, otherwise) == (block, after)
                                  or operator == "!=" and (otherwise, then) == (block, after)):
            unlikely.append(block)
    if unlikely:
        moved = set(unlikely)
        function.blocks = [block for block in blocks if block not in moved] + unlikely


def _skip_jumps(function, registers):
    """Whoever goes to a block that only jumps goes to its target."""
    def final(block):
        seen = set()
        while len(block.ops) == 1 and block.ops[0].kind == "jump" and block not in seen:
            seen.add(block)
            block = block.ops[0].info[0]
        return block

    for block in function.blocks:
        last = block.ops[-1]
        if last.kind == "jump":
            last.info = (final(last.info[0]),)
        elif last.kind == "branch":
            operator, width, then, otherwise = last.info
            then, otherwise = final(then), final(otherwise)
            if then is otherwise:
                block.ops[-1] = Op("jump", None, (), (then,), last.span)
            else:
                last.info = (operator, width, then, otherwise)
        if block.ops[-1].kind == "jump":
            only = block.ops[-1].info[0]
            end = only.ops[0]
            if end.kind == "ret" and type(end.args[0]) is Value and registers[end.args[0].n] == 0:
                block.ops[-1] = end  # exit alone is no longer than the way there
