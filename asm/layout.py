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
    reachable(function)
    _sink_unlikely(function)


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


def _sink_unlikely(function):
    """Moves a block that hardly ever runs to the end, where that costs no jump: the usual way has one less.

    Unlikely is what runs when something is 0 or NULL: a lookup that finds nothing, a full buffer.
    """
    blocks, unlikely = function.blocks, []
    for i in range(1, len(blocks) - 1):
        last, block, after = blocks[i - 1].ops[-1], blocks[i], blocks[i + 1]
        if last.kind != "branch" or block.ops[-1].kind == "branch" or block.ops[-1].info == (after,):
            continue
        operator, width, then, otherwise = last.info
        if last.args[1] == 0 and (operator == "==" and (then, otherwise) == (block, after)
                                  or operator == "!=" and (otherwise, then) == (block, after)):
            unlikely.append(block)
    if unlikely:
        function.blocks = [block for block in blocks if block not in unlikely] + unlikely


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
