"""compile_function: from an IR Function, and those it refers to, to instructions."""

from collections import namedtuple

from .emit import Emitter, link
from .errors import AsmError
from .flow import clone, reachable
from .frame import LIMIT, layout
from .instruction import MapRef
from .layout import tidy
from .lower import lower
from .regalloc import allocate
from .unroll import optimised

Code = namedtuple("Code", "instructions spans maps stack_depth functions")
Code.__doc__ = """Compiled code: the main function first, then those it refers to.

instructions  list of Instruction; maps are MapRef and kfuncs KsymRef, all else is resolved
spans         what `f.span` was, for each instruction (None for what the compiler added on its own)
maps          names of the maps referred to, in order of appearance
stack_depth   bytes of stack in use when it is deepest, callees and callbacks included
functions     dict name -> index in `instructions` where it starts
"""

_LEVELS = {"v1": 1, "v2": 2, "v3": 3, "v4": 4}


def compile_function(function, cpu="v3"):
    """Compiles `function` and every Function that it calls or takes the address of; the IR stays as it is.

    cpu is the instruction set: "v1" (all kernels), "v2" (4.14), "v3" (5.1; atomics with fetch 5.12),
    "v4" (6.6). Raises AsmError when a block has no end, or when the stack is too small.
    """
    level = _LEVELS.get(cpu)
    if level is None:
        raise AsmError("no instruction set %r: v1, v2, v3 and v4 exist" % (cpu,))
    emitters, depths, callees = {}, {}, {}
    waiting, seen = [function], {function.name: function}
    while waiting:
        current = waiting.pop(0)
        emitter, used, others = _compile_one(current, level, current is function)
        emitters[current.name] = emitter
        depths[current.name], callees[current.name] = used, [other.name for other in others]
        for other in others:
            if seen.setdefault(other.name, other) is not other:
                raise AsmError("two functions are called %s" % other.name)
            if other.name not in emitters and other not in waiting:
                waiting.append(other)
    instructions, spans, first = link(emitters, level)
    maps = list(dict.fromkeys(i.ref.name for i in instructions if type(i.ref) is MapRef))
    return Code(instructions, spans, maps, _deepest(function.name, depths, callees, ()), first)


def _deepest(name, depths, callees, callers):
    """Bytes of stack that `name` and what it calls use together; each frame is rounded up, as the verifier does."""
    if name in callers:
        raise AsmError("function %s calls itself; BPF has no recursion" % name)
    below = max((_deepest(callee, depths, callees, (*callers, name)) for callee in callees[name]), default=0)
    if not callees[name] and not callers:
        return depths[name]
    depth = max(1, depths[name]) + 31 & ~31
    if depth + below > LIMIT:
        raise AsmError("function %s and what it calls need %d bytes of stack; BPF has %d" % (name, depth + below, LIMIT))
    return depth + below


def _compile_one(function, level, main):
    function = clone(function)
    reachable(function)
    function = optimised(function, level, main)
    lower(function, level)
    registers = allocate(function)
    places, used = layout(function)     # before copies between Values in one register are gone: addresses go through them
    tidy(function, registers)
    others = []         # as they are needed in the end: passes may have found code that is never reached
    for block in function.blocks:
        for op in block.ops:
            if op.kind == "call" and op.info[0] == "function":
                others.append(op.info[1])
            others.extend(arg[1] for arg in op.args if type(arg) is tuple and arg[0] == "func")
    return Emitter(function, registers, places, level), used, others
