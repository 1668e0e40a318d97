"""One call instead of several: helpers that give the same answer all the time a program runs.

`pid`, `tid` and a predicate on `pid` each call bpf_get_current_pid_tgid; one call serves all that it
dominates. A pass over the IR before the code generator's own.
"""
from rawbpf.asm.helpers import helper_number

CONSTANT = ("bpf_get_current_pid_tgid", "bpf_get_current_uid_gid", "bpf_get_smp_processor_id",
            "bpf_get_current_task", "bpf_get_current_cgroup_id", "bpf_get_numa_node_id", "bpf_get_attach_cookie")
_NUMBERS = {helper_number(name) for name in CONSTANT}


def merge_calls(function):
    """Replace calls of CONSTANT helpers by copies of an earlier call that is always made before."""
    seen = {function}
    waiting = [function]
    while waiting:
        current = waiting.pop()
        _merge(current)
        for block in current.blocks:
            for op in block.ops:
                others = [op.info[1]] if op.kind == "call" and op.info[0] == "function" else []
                others += [arg[1] for arg in op.args if type(arg) is tuple and arg[0] == "func"]
                for other in others:
                    if other not in seen:
                        seen.add(other)
                        waiting.append(other)


def _same(op):
    return op.kind == "call" and op.info[0] == "helper" and op.info[1] in _NUMBERS


def _merge(function):
    calls = [op for block in function.blocks for op in block.ops if _same(op)]
    if len(calls) < 2:
        return
    dominators = _dominators(function)
    first = {}                  # (helper, arguments) -> [(block, dst)]
    for block in _order(function):
        for index, op in enumerate(block.ops):
            if not _same(op):
                continue
            key = op.info[1], op.args
            for other, value in first.get(key, ()):
                if other in dominators[block]:
                    block.ops[index] = type(op)("copy", op.dst, (value,), None, op.span)
                    break
            else:
                first.setdefault(key, []).append((block, op.dst))


def _successors(block):
    last = block.ops[-1] if block.ops else None
    if last is None:
        return ()
    if last.kind == "jump":
        return (last.info[0],)
    return last.info[2:4] if last.kind == "branch" else ()


def _order(function):
    """Blocks in reverse postorder from the entry."""
    order, seen = [], {function.blocks[0]}
    stack = [(function.blocks[0], iter(_successors(function.blocks[0])))]
    while stack:
        block, following = stack[-1]
        for successor in following:
            if successor not in seen:
                seen.add(successor)
                stack.append((successor, iter(_successors(successor))))
                break
        else:
            order.append(block)
            stack.pop()
    return order[::-1]


def _dominators(function):
    """Block -> set of the blocks that lie on every way to it (itself included)."""
    order = _order(function)
    before = {block: [] for block in order}
    for block in order:
        for successor in _successors(block):
            before[successor].append(block)
    everything = set(order)
    result = {block: everything for block in order}
    result[order[0]] = {order[0]}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            new = set.intersection(*[result[b] for b in before[block]]) | {block}
            if new != result[block]:
                result[block] = new
                changed = True
    return result
