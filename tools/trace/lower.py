"""From a typed probe body to IR: statements, expressions, and where values lie.

A value that fits a register is an *operand* (an ir.Value, or an int that is known now), always extended to
64 bits by its type. Anything larger is in a `Place` of memory, and is made directly where it is needed
(`store`): in a record of the ring buffer, a map's value, a key, or scratch memory.

One Lowering makes one program. Callbacks of loops over maps are further ir.Functions; variables they share
with the code around them live in a frame on the stack, whose address the callback gets.
"""
from rawbpf.asm import ir

from . import ast, builtins, strings, types
from .builtins.process import current
from .compiled import EXITING
from .diagnostics import ScriptError
from .folding import loop_by_callback
from .lower_expr import ExpressionCode
from .lower_loops import LoopCode
from .lower_memory import STACK_VALUE, MemoryCode
from .maps import STACK_KEY, MapCode
from .output import OutputCode
from .place import Place
from .scratch import Scratch
from .types import Pointer


class Lowering(LoopCode, ExpressionCode, MemoryCode, MapCode, OutputCode):
    """`unit` a resolve.Unit whose nodes carry their types; `r` the Resolver that put them there; `function` the ir.Function
    at whose end the code goes; `frugal`: little goes to the stack."""

    def __init__(self, script, unit, r, function, frugal=False, callbacks=0):
        self.script, self.unit, self.r = script, unit, r
        # values and keys up to this size are on the BPF stack
        self.stack_value, self.stack_key = (8, 8) if frugal else (STACK_VALUE, STACK_KEY)
        self.point = unit.point
        for var in (*unit.variables.values(), *unit.for_variables.values()):
            var.place, var.start = None, 0
        self.f = function
        self.ctx = self.f.params[0]
        self.scratch = Scratch(self, claimed=script.interruptible(self.point))
        self.scopes = []
        self.result = None           # the variable that holds what is returned, where that matters
        self.at = None               # the expression at hand, for messages
        self.loops = []              # (break block, continue block)
        self.callbacks = callbacks   # so many are in the function already
        self.depth = 0               # of callbacks in callbacks
        self.frame = None            # base of the shared frame: Slot, or Value in a callback
        self.inner_scratch = None    # scratch base in a callback
        self._owner = None           # the block that variables at hand belong to

    # -- the program

    def run(self):
        """Make the code."""
        f, probe = self.f, self.unit.probe
        self.exit, self.leave = f.block("exit"), f.block("leave")
        early, body, late, start = f.block("start"), f.block("body"), f.block("late"), f.block("first")
        self._make_frame()
        if self.point.when in ("test", "bench"):
            self.result = f.variable()      # what the program returns
            f.set(self.result, 0)
        guard = self.point.guard(f, self.ctx)
        if guard is not None:
            going = f.block("going")
            f.branch("==", guard, 0, self.exit, going)
            f.position(going)
        pid = self.script.target.pid
        if pid is not None and self.point.compares_pid:
            inside = f.block("inside")
            f.branch("!=", current(self), pid, self.exit, inside)
            f.position(inside)
        if self.script.ending and all(point.own for point in self.unit.points):
            f.branch("!=", f.load(f.map_value(EXITING, 0), 0, 8), 0, self.exit, early)
        else:
            f.jump(early)
        f.position(start)
        self.scopes = [{}]
        if probe.predicate is not None:
            f.span = probe.predicate.span
            self.condition(probe.predicate, late, self.leave if self.scratch.used else self.exit)
            before = self.scratch.used
        else:
            before = False
            f.jump(late)
        f.position(body)
        self.block(probe.block)
        if not f.terminated:
            f.jump(self.leave)
        for block, following, here in ((early, start, before), (late, body, not before)):
            f.position(block)
            if here and self.scratch.used:
                self.scratch.open(self.exit)
                if self.frame is not None:
                    f.store(self.frame, 8, self.scratch.base, 8)
            f.jump(following)
        f.position(self.leave)
        self.scratch.close()
        f.jump(self.exit)
        f.position(self.exit)
        f.ret(0 if self.result is None else self.result)

    def _make_frame(self):
        """The variables that callbacks use, if there are any, in one piece of stack: the context, the scratch
        memory's address, a word that says "return", then the variables."""
        unit = self.unit
        shared = [v for v in [*unit.variables.values(), *unit.for_variables.values()] if v.captured]
        loops = [n for n in unit.probe.block.walk() if isinstance(n, ast.For) and id(n) in unit.for_variables
                 and loop_by_callback(self.r, n)]       # others are in a branch that is never reached
        if not loops:
            for var in shared:
                self._place_variable(var)
            return
        size = 24
        for loop in loops:
            if isinstance(loop.iterable, ast.Range):
                unit.for_variables[id(loop)].start = size
                size += 8
        for var in shared:
            if var.type.scalar or var.type.size <= self.stack_value:
                var.place = size
                size += -(-max(var.type.size, 8) // 8) * 8
            else:
                self._place_variable(var)
        f = self.f
        self.frame = f.slot(size)
        f.store(self.frame, 0, self.ctx, 8)
        for offset in range(8, size, 8):
            f.store(self.frame, offset, 0, 8)

    def _place_variable(self, var):
        """Memory for a variable that is no register."""
        size = max(var.type.size, 8)
        if size <= self.stack_value:
            slot = self.f.slot(-(-size // 8) * 8)
            for offset in range(0, slot.size, 8):
                self.f.store(slot, offset, 0, 8)
            var.place = Place(slot, 0, var.type)
        else:
            var.place = self.scratch.place(var.type)

    def scratch_base(self):
        """The scratch memory's address in the function at hand."""
        return self.scratch.base if self.inner_scratch is None else self.inner_scratch

    def error(self, node, message, hints=()):
        raise ScriptError(node.span, message, hints)

    def constant(self, node):
        return self.r.constant(node)

    def entry(self, node):
        """The built-in that a node names, or None."""
        return builtins.lookup(node.name) if isinstance(node, (ast.Call, ast.Identifier)) else None

    def count_loss(self, kind, name=""):
        """One more in the counter of `kind`."""
        f = self.f
        f.atomic("+", f.map_value("lost", 8 * self.script.loss(kind, name)), 0, 1)

    # -- statements

    def block(self, node):
        """Statements of a block; the block's value is left to the caller."""
        self.scopes.append({})
        self._statements(node)
        self.scopes.pop()

    def _statements(self, node):
        f = self.f
        outer, self._owner = self._owner, node
        for statement in node.statements:
            if f.terminated:
                f.position(f.block("unreachable"))
            f.span = statement.span
            getattr(self, "_do_" + type(statement).__name__)(statement)
        self._owner = outer

    def _do_ExprStatement(self, node):
        expr = node.expr
        if isinstance(expr, ast.Block):
            self.block(expr)
        elif isinstance(expr, ast.If):
            self._do_if(expr)
        elif isinstance(expr, ast.Increment):
            self._increment(expr, want=False)
        elif isinstance(expr, ast.Ternary):
            self._do_ternary(expr)
        else:
            self.effect(expr)

    def effect(self, node):
        """An expression for what it does."""
        entry = self.entry(node)
        if entry is not None:
            entry.statement(self, node)
        elif isinstance(node, ast.Ternary):
            self._do_ternary(node)
        else:
            self.discard(node)

    def discard(self, node):
        """Evaluate for side effects."""
        if node.type is None:
            self.effect(node)
        elif node.type.scalar:
            self.value(node)
        else:
            self.place(node)

    def _do_Discard(self, node):
        self.discard(node.expr)

    def _do_Import(self, node):
        pass

    def _do_if(self, node):
        f = self.f
        constant = self.constant(node.condition)
        if constant is not None:
            chosen = node.then if constant else node.otherwise
            if chosen is not None:
                self._branch_body(chosen)
            return
        then, otherwise, done = f.block("then"), f.block("else"), f.block("endif")
        self.condition(node.condition, then, otherwise if node.otherwise is not None else done)
        f.position(then)
        self._branch_body(node.then)
        if not f.terminated:
            f.jump(done)
        if node.otherwise is not None:
            f.position(otherwise)
            self._branch_body(node.otherwise)
            if not f.terminated:
                f.jump(done)
        f.position(done)

    def _branch_body(self, node):
        if isinstance(node, ast.If):
            self._do_if(node)
        else:
            self.block(node)
            if node.value is not None:
                self.discard(node.value)

    def _do_ternary(self, node):
        f = self.f
        then, otherwise, done = f.block("then"), f.block("else"), f.block("endif")
        self.condition(node.condition, then, otherwise)
        for block, part in ((then, node.then), (otherwise, node.otherwise)):
            f.position(block)
            if part is not None:
                self.effect(part)
            if not f.terminated:
                f.jump(done)
        f.position(done)

    def _do_VarDecl(self, node):
        var = self._variable(node.variable, self._owner, declare=True)
        if var.type is None:
            return
        if var.type.scalar:
            self._set(var, 0)
        else:
            place = self._memory(var)
            strings.zero(self, place, 0, var.type.size)

    def _do_Assign(self, node):
        target = node.target
        if isinstance(target, (ast.Map, ast.MapAccess)):
            self.assign_map(node)
            return
        owner = self._owner
        if isinstance(target, ast.VarDecl):
            self._assign_variable(self._variable(target.variable, owner, declare=True), node)
        else:
            self._assign_variable(self._variable(target, owner), node)

    def _assign_variable(self, var, node):
        kind = var.type
        if node.op:
            value = self.arithmetic(node.op, self._get(var), self._widened(node.value), kind, node.value.type, node)
            result = types.INT64 if not isinstance(kind, Pointer) else kind
            self._set(var, self.convert(value, result, kind))
        elif kind.scalar:
            self._set(var, self.convert(self.value(node.value), node.value.type, kind))
        else:
            place = self._separate(node.value, kind) if self._mentions(node.value, var.name) else None
            if place is not None:
                self.copy(place, self._memory(var))
            else:
                self.store(node.value, self._memory(var))

    def _mentions(self, node, name):
        return any(isinstance(n, ast.Variable) and n.name == name for n in node.walk())

    def _do_While(self, node):
        f = self.f
        test, body, done = f.block("while"), f.block("body"), f.block("endwhile")
        f.jump(test)
        f.position(test)
        self.condition(node.condition, body, done)
        f.position(body)
        self.loops.append((done, test))
        self.block(node.body)
        self.loops.pop()
        if not f.terminated:
            f.jump(test)
        f.position(done)

    def _do_Unroll(self, node):
        f = self.f
        done = f.block("endunroll")
        for _ in range(self.constant(node.count)):
            following = f.block("again")
            self.loops.append((done, following))
            self.block(node.body)
            self.loops.pop()
            if not f.terminated:
                f.jump(following)
            f.position(following)
        f.jump(done)
        f.position(done)

    def _do_Break(self, node):
        self.f.jump(self.loops[-1][0])

    def _do_Continue(self, node):
        self.f.jump(self.loops[-1][1])

    def _do_Return(self, node):
        if node.value is not None:
            value = self.value(node.value)
            if self.result is not None and not self.callbacks:
                self.f.set(self.result, value)
        self.f.jump(self.leave)

    # -- variables

    def _variable(self, node, owner, declare=False):
        """The resolve.Variable that a Variable node means here."""
        if not declare:
            for scope in reversed(self.scopes):
                if node.name in scope:
                    return scope[node.name]
        var = self.unit.variables[id(owner), node.name]
        self.scopes[-1][node.name] = var
        return var

    def _memory(self, var):
        """The Place of a variable that lives in memory."""
        if isinstance(var.place, int):
            return Place(self.frame, var.place, var.type)
        if var.place is None:
            var.place = self.temporary(var.type)
        if self.inner_scratch is not None and var.place.base is self.scratch.base:
            return Place(self.inner_scratch, var.place.off, var.type)
        return var.place

    def _get(self, var):
        """The operand of a variable that fits a register."""
        if var.captured:
            place = self._memory(var)
            return self.f.load(place.base, place.off, var.type.size, getattr(var.type, "signed", False))
        if var.place is None:
            var.place = self.f.variable()
            self.f.set(var.place, 0)
        return self.f.copy(var.place)

    def _set(self, var, operand):
        if var.captured:
            self._store_variable(var, operand)
            return
        if var.place is None:
            var.place = self.f.variable()
        self.f.set(var.place, operand)

    def _store_variable(self, var, operand):
        place = self._memory(var)
        self.f.store(place.base, place.off, operand, var.type.size)
