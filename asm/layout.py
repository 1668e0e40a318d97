"""The order of blocks, once registers are chosen: as few jumps as possible.

The layout of a function's blocks is its reverse postorder: every block comes after those that lead to
it (loops aside), so that falling through is the rule.
"""

from .flow import reachable
from .ir import Op, Value


def tidy(function, registers):
    """Drops copies that move nothing and blocks that only jump on; shares returns; orders the blocks."""
    for block in function.blocks:
        block.ops = [op for op in block.ops if not (
            op.kind == "copy" and type(op.args[0]) is Value and registers[op.args[0].n] == registers[op.dst.n])]
    _share_returns(function, registers)
    _skip_jumps(function, registers)
    return reachable(function)


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
