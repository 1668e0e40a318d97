"""Control that goes past tests whose outcome is known where it comes from."""

from . import fold
from .flow import predecessors, reachable, successors
from .ir import Op, Value


def thread_constants(function):
    """A block that sets a variable to a number and goes to one that only tests it goes on at once.

    This is before SSA form: `a && b` as a value, with both outcomes set in blocks of their own.
    """
    changed = False
    for block in function.blocks:
        passed = set()          # two tests of the same variable may lead to each other
        while block.ops[-1].kind == "jump":
            target = block.ops[-1].info[0]
            if target in passed:
                break
            passed.add(target)
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
            operator, width, then, otherwise = test.info
            outcome = fold.compare(operator, known, number, width)
            block.ops[-1] = Op("jump", None, (), (then if outcome else otherwise,), block.ops[-1].span)
            changed = True
            if (then if outcome else otherwise) is target:
                break
    if changed:
        reachable(function)


def fold_phis(function):
    """An operation on numbers and the only user of a phi of numbers becomes that phi: of the results."""
    phis, users = {}, {}
    for block in function.blocks:
        for op in block.ops:
            if op.kind == "phi" and all(type(arg) is int for arg in op.args):
                phis[op.dst.n] = op
            for arg in op.args:
                if type(arg) is Value:
                    users[arg.n] = users.get(arg.n, 0) + 1
    if not phis:
        return False
    changed = False
    for block in function.blocks:
        kept = []
        for op in block.ops:
            phi = None
            if op.kind in _RESULT:
                found = [arg.n for arg in op.args if type(arg) is Value]
                if len(found) == 1 and users[found[0]] == 1 and all(type(a) in (int, Value) for a in op.args):
                    phi = phis.get(found[0])
            if phi is None:
                kept.append(op)
                continue
            result = _RESULT[op.kind]
            phi.args = tuple([result(*[number if type(arg) is Value else arg for arg in op.args], *op.info or ())
                              for number in phi.args])
            phi.dst = op.dst
            phis[op.dst.n] = phi
            changed = True
        block.ops = kept
    return changed


_RESULT = {
    "alu": lambda a, b, operator, width: fold.alu(operator, a, b, width),
    "compare": lambda a, b, operator, width: int(fold.compare(operator, a, b, width)),
    "extend": fold.extend,
    "swap": lambda a, kind, bits: fold.swap(kind, a, bits),
}


def thread_phis(function):
    """A block with nothing but a test of a phi: who brings a number goes where the test sends it.

    The phi may have no other user: nothing behind the block needs to know it then.
    """
    users = {}
    for block in function.blocks:
        for op in block.ops:
            for arg in op.args:
                if type(arg) is Value:
                    users[arg.n] = users.get(arg.n, 0) + 1
    before = predecessors(function.blocks)
    changed = False
    for block in function.blocks:
        if len(block.ops) != 2:
            continue
        phi, test = block.ops
        if phi.kind != "phi" or test.kind != "branch" or test.args[0] is not phi.dst or type(test.args[1]) is not int or (
                users[phi.dst.n] != 1):
            continue
        operator, width, then, otherwise = test.info
        keep = []
        for source, arg in zip(phi.info, phi.args):
            if type(arg) is int and source is not block:
                target = then if fold.compare(operator, arg, test.args[1], width) else otherwise
                if target is not block and source not in before[target]:
                    _redirect(source, block, target)
                    before[target].append(source)
                    before[block].remove(source)
                    changed = True
                    continue
            keep.append((source, arg))
        phi.info, phi.args = [source for source, _ in keep], tuple([arg for _, arg in keep])
        if not keep:
            # Nobody comes here any more; `prune` drops it, and its operands of phis.
            block.ops[0] = Op("copy", phi.dst, (0,), None, phi.span)
    return changed


def _redirect(source, old, new):
    """source goes to `new` instead of `old`, which brought the operands of new's phis."""
    last = source.ops[-1]
    last.info = tuple([new if item is old else item for item in last.info])
    for phi in new.ops:
        if phi.kind != "phi":
            break
        phi.args = (*phi.args, phi.args[phi.info.index(old)])
        phi.info = [*phi.info, source]
