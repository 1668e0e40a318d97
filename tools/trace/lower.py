"""From a typed probe body to IR: statements, expressions, and where values lie.

A value that fits a register is an *operand* (an ir.Value, or an int that is known now), always extended to
64 bits by its type. Anything larger is in a `Place` of memory, and is made directly where it is needed
(`store`): in a record of the ring buffer, a map's value, a key, or scratch memory.

One Lowering makes one program. Callbacks of loops over maps are further ir.Functions; variables they share
with the code around them live in a frame on the stack, whose address the callback gets.
"""
from rawbpf.asm import ir

from . import ast, builtins, strings, types
from .diagnostics import ScriptError
from .maps import MapCode, kind_step
from .output import OutputCode
from .place import Place
from .resolve import COMPARISONS, LOGICAL, loop_by_callback
from .scratch import Scratch
from .types import Integer, Pointer, Record, String, Tuple

STACK_VALUE = 64        # temporaries up to this size are on the BPF stack


class Lowering(MapCode, OutputCode):
    """`unit` a resolve.Unit whose nodes carry their types; `r` the Resolver that put them there."""

    def __init__(self, script, unit, r, name):
        self.script, self.unit, self.r = script, unit, r
        self.point = unit.point
        self.f = ir.Function(name)
        self.ctx = self.f.params[0]
        self.scratch = Scratch(self, claimed=script.interruptible(self.point))
        self.scopes = []
        self.loops = []              # (break block, continue block)
        self.callbacks = 0
        self.frame = None            # base of the shared frame: Slot, or Value in a callback
        self.inner_scratch = None    # scratch base in a callback
        self._owner = None           # the block that variables at hand belong to

    # -- the program

    def run(self):
        """Make the code; returns the ir.Function."""
        f, probe = self.f, self.unit.probe
        self.exit, self.leave = f.block("exit"), f.block("leave")
        early, body, late, start = f.block("start"), f.block("body"), f.block("late"), f.block("first")
        self._make_frame()
        guard = self.point.guard(f, self.ctx)
        if guard is None:
            f.jump(early)
        else:
            f.branch("==", guard, 0, self.exit, early)
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
        f.ret(0)
        return f

    def _make_frame(self):
        """The variables that callbacks use, if there are any, in one piece of stack: the context, the scratch
        memory's address, a word that says "return", then the variables."""
        unit = self.unit
        shared = [v for v in [*unit.variables.values(), *unit.for_variables.values()] if v.captured]
        loops = [n for n in unit.probe.block.walk() if isinstance(n, ast.For) and loop_by_callback(self.r, n)]
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
            if var.type.scalar or var.type.size <= STACK_VALUE:
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
        if size <= STACK_VALUE:
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

    def _do_For(self, node):
        if isinstance(node.iterable, ast.Range):
            if loop_by_callback(self.r, node):
                self._loop_callback(node)
            else:
                self._for_range(node)
        else:
            self._for_map(node)

    def _for_range(self, node):
        """A loop whose bounds are known: the verifier walks it."""
        f = self.f
        var = self.unit.for_variables[id(node)]
        first, end = self.value(node.iterable.first), self.value(node.iterable.end)
        index = f.variable()
        f.set(index, first)
        test, body, following, done = f.block("for"), f.block("body"), f.block("next"), f.block("endfor")
        f.jump(test)
        f.position(test)
        f.branch("s<", index, end, body, done)
        f.position(body)
        self.scopes.append({node.variable.name: var})
        if var.captured:
            self._store_variable(var, index)
        else:
            var.place = f.variable()
            f.set(var.place, index)
        self.loops.append((done, following))
        self.block(node.body)
        self.loops.pop()
        self.scopes.pop()
        if not f.terminated:
            f.jump(following)
        f.position(following)
        f.set(index, f.alu("+", index, 1))
        f.jump(test)
        f.position(done)

    def _callback(self, node, params, frame, bind):
        """A Function with the body of a loop; bind(function) gives the loop variable its value."""
        outer = self.f, self.ctx, self.frame, self.inner_scratch, self.loops, self.exit, self.leave
        self.callbacks += 1
        f = self.f = ir.Function("%s_loop%d" % (outer[0].name, self.callbacks), params)
        f.span = node.span
        self.frame = f.params[frame]
        self.ctx = f.load(self.frame, 0, 8)
        self.inner_scratch = f.variable()
        f.set(self.inner_scratch, f.load(self.frame, 8, 8))
        more, stop, leave = f.block("more"), f.block("stop"), f.block("return")
        self.exit = self.leave = leave
        self.loops = [(stop, more)]
        var = self.unit.for_variables[id(node)]
        self.scopes.append({node.variable.name: var})
        bind(f, var)
        self.block(node.body)
        self.scopes.pop()
        if not f.terminated:
            f.jump(more)
        f.position(more)
        f.ret(0)
        f.position(stop)
        f.ret(1)
        f.position(leave)
        f.store(self.frame, 16, 1, 8)
        f.ret(1)
        self.f, self.ctx, self.frame, self.inner_scratch, self.loops, self.exit, self.leave = outer
        return f

    def _frame_address(self):
        return self.f.address(self.frame) if isinstance(self.frame, ir.Slot) else self.frame

    def _after_loop(self):
        """Leave the program when the loop's body said `return`."""
        f = self.f
        following = f.block("endfor")
        f.branch("!=", f.load(self.frame, 16, 8), 0, self.leave, following)
        f.position(following)

    def _loop_callback(self, node):
        """`for ($i : a..b)` by bpf_loop."""
        f = self.f
        if not self.script.machine.has_helper("bpf_loop", self.point.program_type):
            self.error(node, "A loop whose bounds are only known at run time needs Linux 5.17 (bpf_loop)",
                       ["give the range constant bounds of at most 64 turns"])
        first = f.copy(self.value(node.iterable.first))
        end = self.value(node.iterable.end)
        some, done = f.block("loop"), f.block("noloop")
        f.branch("s<", first, end, some, done)
        f.position(some)
        base = Place(self.frame, self.unit.for_variables[id(node)].start, types.INT64)
        f.store(base.base, base.off, first, 8)

        def bind(g, var):
            index = g.alu("+", g.load(self.frame, var.start, 8), g.params[0])
            if var.captured:
                self._store_variable(var, index)
            else:
                var.place = index

        body = self._callback(node, 2, 1, bind)
        f.call("bpf_loop", f.alu("-", end, first), f.func(body), self._frame_address(), 0)
        self._after_loop()
        f.jump(done)
        f.position(done)

    def _for_map(self, node):
        """`for ($kv : @x)` by bpf_for_each_map_elem."""
        f = self.f
        if not self.script.machine.has_helper("bpf_for_each_map_elem", self.point.program_type):
            self.error(node, "A loop over a map needs Linux 5.13 (bpf_for_each_map_elem)")
        storage = self.script.storage[node.iterable.name]

        def bind(g, var):
            if not var.captured:
                var.place = self.temporary(var.type)
            row = self._memory(var)
            key, value = var.type.elements
            self.copy(Place(g.params[1], 0, key), row.at(var.type.offsets[0], key))
            target = row.at(var.type.offsets[1], value)
            kind = storage.info.value_type
            if isinstance(kind, types.Aggregate):
                operand = self.aggregate_of(node, storage, g.params[1], g.params[2])
                g.store(target.base, target.off, operand, 8)
            else:
                self.copy(Place(g.params[2], 0, kind), target)

        body = self._callback(node, 4, 3, bind)
        f.call("bpf_for_each_map_elem", f.map(storage.kernel_map.name), f.func(body), self._frame_address(), 0)
        self._after_loop()

    def _do_Break(self, node):
        self.f.jump(self.loops[-1][0])

    def _do_Continue(self, node):
        self.f.jump(self.loops[-1][1])

    def _do_Return(self, node):
        if node.value is not None:
            self.value(node.value)
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

    # -- operands

    def value(self, node):
        """The operand of an expression whose type fits a register."""
        constant = self.constant(node)
        if isinstance(constant, (bool, int)):
            return int(constant)
        return getattr(self, "_value_" + type(node).__name__)(node)

    def _value_Identifier(self, node):
        return self.entry(node).value(self, node)

    _value_Call = _value_Identifier

    def _value_Variable(self, node):
        return self._get(self._variable(node, None))

    def _value_Map(self, node):
        return self.read_map(node)

    _value_MapAccess = _value_Map

    def _value_Comptime(self, node):
        return self.value(node.operand)

    def _value_Unary(self, node):
        f = self.f
        if node.op == "*":
            return self.load(self._dereferenced(node))
        if node.op == "!":
            return self._truth(node)
        operand, kind = self.value(node.operand), self._signless(node)
        result = f.neg(operand) if node.op == "-" else f.alu("^", operand, -1)
        # bpftrace works in the operand's width and takes the result as a number without sign
        return f.extend(result, kind.size, False) if kind.size < 8 else result

    def _dereferenced(self, node):
        pointer = node.operand.type
        if isinstance(pointer, Integer):
            space = "user" if self._space(node.operand) else "kernel"
            return Place(self._in_register(node.operand), 0, types.UINT64, space)
        if not isinstance(pointer, Pointer):
            return self.place(node.operand)
        return Place(self._in_register(node.operand), 0, node.type, self._pointer_space(pointer))

    def _in_register(self, node):
        operand = self.value(node)
        return self.f.const(operand) if isinstance(operand, int) else operand

    def _space(self, node):
        """Whether a number means user memory as an address."""
        space = self.r.space(node)
        return self.point.user_space if space is None else space

    def _pointer_space(self, pointer):
        return "user" if (self.point.user_space if pointer.user is None else pointer.user) else "kernel"

    def _value_AddressOf(self, node):
        return self.address(self._memory(self._variable(node.operand, None)))

    def _value_Increment(self, node):
        return self._increment(node, want=True)

    def _increment(self, node, want):
        if not isinstance(node.target, ast.Variable):
            return self.increment_map(node, want)
        var = self._variable(node.target, None)
        old = self._get(var)
        step = kind_step(self, var.type) if isinstance(var.type, Pointer) else 1
        new = self.convert(self.f.alu(node.op[0], old, step), types.INT64, var.type)
        self._set(var, new)
        return new if node.prefix else old

    def _value_Binary(self, node):
        op = node.op
        if op in LOGICAL or op in COMPARISONS:
            return self._truth(node)
        left = self._widened(node.left)
        if not isinstance(left, int) and any(isinstance(n, (ast.Increment, ast.Call, ast.Block))
                                             for n in node.right.walk()):
            left = self.f.copy(left)
        return self.arithmetic(op, left, self._widened(node.right), node.left.type, node.right.type, node)

    def _widened(self, node):
        """An operand of arithmetic and comparisons: what `-` and `~` made in a small width gets its sign back here."""
        operand = self.value(node)
        if isinstance(node, ast.Unary) and node.op in "-~" and not isinstance(operand, int):
            kind = self._signless(node)
            if kind.size < 8 and kind.signed:
                return self.f.extend(operand, kind.size, True)
        return operand

    def _signless(self, node):
        """The type in whose width `-` and `~`, several of them also, are worked out."""
        while isinstance(node, ast.Unary) and node.op in "-~":
            node = node.operand
        return node.type

    def arithmetic(self, op, left, right, left_type, right_type, node):
        """left op right in 64 bits; pointers step by what they point at."""
        f = self.f
        if isinstance(left_type, Pointer):
            right = f.alu("*", right, kind_step(self, left_type)) if kind_step(self, left_type) > 1 else right
        elif isinstance(right_type, Pointer):
            left = f.alu("*", left, kind_step(self, right_type)) if kind_step(self, right_type) > 1 else left
        if op not in ("/", "%"):
            return f.alu(op, left, right)
        if isinstance(right, int) and right:
            return f.alu(op, left, right)
        result = f.variable()
        zero, fine, done = f.block("by_zero"), f.block(), f.block()
        f.branch("==", right, 0, zero, fine)
        f.position(fine)
        f.set(result, f.alu(op, left, right))
        f.jump(done)
        f.position(zero)
        f.set(result, 1)
        self.warn_at_run_time(node, "Divide or modulo by 0 detected. This can lead to unexpected results. "
                              "1 is being used as the result.")
        f.jump(done)
        f.position(done)
        return result

    def _truth(self, node):
        """0 or 1."""
        f = self.f
        if isinstance(node, ast.Binary) and node.op in COMPARISONS and self._number(node.left) \
                and self._number(node.right):
            return f.compare(*self._comparison(node))
        result = f.variable()
        then, done = f.block(), f.block()
        f.set(result, 0)
        self.condition(node, then, done)
        f.position(then)
        f.set(result, 1)
        f.jump(done)
        f.position(done)
        return result

    def _value_Ternary(self, node):
        f = self.f
        result = f.variable()
        then, otherwise, done = f.block("then"), f.block("else"), f.block("endif")
        if node.then is None:
            first = f.copy(self.value(node.condition))
            f.branch("!=", first, 0, then, otherwise)
            f.position(then)
            f.set(result, self.convert(first, node.condition.type, node.type))
        else:
            self.condition(node.condition, then, otherwise)
            f.position(then)
            f.set(result, self.convert(self.value(node.then), node.then.type, node.type))
        f.jump(done)
        f.position(otherwise)
        f.set(result, self.convert(self.value(node.otherwise), node.otherwise.type, node.type))
        f.jump(done)
        f.position(done)
        return result

    def _value_If(self, node):
        f = self.f
        result = f.variable()
        then, otherwise, done = f.block("then"), f.block("else"), f.block("endif")
        self.condition(node.condition, then, otherwise)
        for block, part in ((then, node.then), (otherwise, node.otherwise)):
            f.position(block)
            f.set(result, self.convert(self.value(part), part.type, node.type))
            f.jump(done)
        f.position(done)
        return result

    def _value_Block(self, node):
        return self._in_block(node, lambda: self.value(node.value))

    def _in_block(self, node, work):
        """Run the statements of a block expression, then work() with its variables in sight."""
        f = self.f
        self.scopes.append({})
        self._statements(node)
        if f.terminated:
            f.position(f.block("unreachable"))
        result = work()
        self.scopes.pop()
        return result

    def _value_TupleAccess(self, node):
        return self.load(self.place(node))

    def _value_ArrayAccess(self, node):
        return self.load(self.place(node))

    def _value_FieldAccess(self, node):
        kind = node.operand.type
        if isinstance(kind, builtins.ContextRecord):
            return kind.value(self, node)
        place = self.place(node)
        field = self._c_field(node)
        if field is None or field.bit_size is None:
            return self.load(place)
        size = field.type.size
        value = self.load(place.typed(Integer(size, False)))
        value = self.f.alu(">>", value, field.bit_offset) if field.bit_offset else value
        value = self.f.alu("&", value, (1 << field.bit_size) - 1)
        if getattr(node.type, "signed", False):
            shift = 64 - field.bit_size
            value = self.f.alu("s>>", self.f.alu("<<", value, shift), shift)
        return value

    def _c_field(self, node):
        kind = node.operand.type
        if isinstance(kind, Pointer):
            return self.r.field(node, kind.target, node.name)
        if isinstance(kind, Record) and kind.c_type is not None:
            return self.r.field(node, kind.c_type, node.name)
        return None

    def _value_Cast(self, node):
        source, target = node.operand.type, node.type
        if isinstance(source, types.Array):
            place = self.direct(self.place(node.operand))
            return self.f.load(place.base, place.off, min(target.size, source.size), target.signed)
        operand = self.value(node.operand)
        if isinstance(target, types.Boolean) and not isinstance(source, types.Boolean):
            return self.f.compare("!=", operand, 0)
        return self.convert(operand, source, target)

    def convert(self, operand, source, target):
        """An operand of type `source` as `target`: cut or extended where that changes it."""
        if not isinstance(target, Integer):
            return operand
        if isinstance(source, Integer) and not isinstance(operand, int):
            if types.covers(target, source):
                return operand
        elif isinstance(operand, int):
            low = operand & (1 << 8 * target.size) - 1
            return low - (1 << 8 * target.size) if target.signed and low >> 8 * target.size - 1 else low
        elif isinstance(source, types.Boolean) or target.size == 8:
            return operand
        return self.f.extend(operand, target.size, target.signed)

    # -- branches

    def condition(self, node, then, otherwise):
        """Branch on whether an expression is true."""
        f = self.f
        constant = self.constant(node)
        if constant is not None and not isinstance(constant, str):
            f.jump(then if constant else otherwise)
        elif isinstance(node, ast.Unary) and node.op == "!":
            self.condition(node.operand, otherwise, then)
        elif isinstance(node, ast.Binary) and node.op in LOGICAL:
            second = f.block()
            if node.op == "&&":
                self.condition(node.left, second, otherwise)
            else:
                self.condition(node.left, then, second)
            f.position(second)
            self.condition(node.right, then, otherwise)
        elif isinstance(node, ast.Binary) and node.op in COMPARISONS:
            if self._number(node.left) and self._number(node.right):
                f.branch(*self._comparison(node), then, otherwise)
                return
            if node.op == "!=":
                then, otherwise = otherwise, then
            if isinstance(node.left.type, String):
                strings.equal(self, node.left, node.right, then, otherwise)
            else:
                self._equal_memory(node, then, otherwise)
        else:
            f.branch("!=", self.value(node), 0, then, otherwise)

    def _number(self, node):
        return isinstance(node.type, (Integer, types.Boolean, Pointer))

    def _comparison(self, node):
        """(op, left, right) for numbers, both made one type and compared with its sign."""
        left, right = node.left.type, node.right.type
        op, signed = node.op, False
        a = self._widened(node.left)
        if not isinstance(a, int) and not isinstance(node.right, ast.Integer):
            a = self.f.copy(a)
        c = self._widened(node.right)
        if isinstance(left, Integer) and isinstance(right, Integer):
            common = types.promote(left, right)
            signed = common.signed
            a, c = self.convert(a, left, common), self.convert(c, right, common)
        if isinstance(a, int):
            a = self.f.const(a)
        return ("s" + op if signed and op not in ("==", "!=") else op), a, c

    def _equal_memory(self, node, then, otherwise):
        kind = types.promote(node.left.type, node.right.type) or node.left.type
        places = []
        for part in (node.left, node.right):
            place = self.temporary(kind)
            strings.zero(self, place, 0, kind.size)
            self.store(part, place, clean=True)
            places.append(place)
        strings.equal_bytes(self, places[0], places[1], kind.size, then, otherwise)

    # -- memory

    def temporary(self, kind, size=None):
        """Room for a value until the program ends."""
        size = max(kind.size if size is None else size, 1)
        if size <= STACK_VALUE:
            return Place(self.f.slot(-(-size // 8) * 8), 0, kind)
        return self.scratch.place(kind, size)

    def address(self, place):
        return strings.address(self, place)

    def direct(self, place):
        """The place, or a copy of it that the program can load from."""
        if place.space is None and place.direct_load is None:
            return place
        copy = self.temporary(place.type)
        strings.copy_bytes(self, place, copy, place.type.size)
        return copy

    def load(self, place):
        """The operand at a place."""
        kind = place.type
        signed = getattr(kind, "signed", False)
        if place.direct_load is not None:
            return place.direct_load(0, kind.size, signed)
        if place.space is None:
            return self.f.load(place.base, place.off, kind.size, signed)
        slot = self.f.slot(8)
        self.probe_read(self.f.address(slot), kind.size, self.address(place), place.space)
        return self.f.load(slot, 0, kind.size, signed)

    def read_helper(self, space, string=False):
        """The name of the helper that reads `space`; an error where kernel reads are locked down."""
        from rawbpf.sources import memory
        if space == "kernel" and not self.script.machine.kernel_reads:
            raise ScriptError(self.f.span, "Reading kernel memory is not allowed here: %s"
                              % self.script.machine.kernel_reads_reason)
        return memory.helper(space == "user", string, self.script.machine.has_helper)

    def probe_read(self, dest, size, source, space):
        """Copy `size` bytes from address `source` to address `dest`; zeros when it cannot be read."""
        self.f.call(self.read_helper(space), dest, size, source)

    def place(self, node):
        """The Place of an expression whose type does not fit a register (or that lies in memory anyway)."""
        method = getattr(self, "_place_" + type(node).__name__, None)
        place = method(node) if method is not None else None
        if place is None:
            place = self.temporary(node.type)
            self.store(node, place)
        return place

    def _place_Variable(self, node):
        return self._memory(self._variable(node, None))

    def _place_Map(self, node):
        place = self.read_map(node)
        return place if isinstance(place, Place) else None

    _place_MapAccess = _place_Map

    def _place_Unary(self, node):
        return self._dereferenced(node) if node.op == "*" else None

    def _place_TupleAccess(self, node):
        kind = node.operand.type
        return self.place(node.operand).at(kind.offsets[node.index], node.type)

    def _place_FieldAccess(self, node):
        kind = node.operand.type
        if isinstance(kind, builtins.ContextRecord):
            return kind.place(self, node)
        if isinstance(kind, Pointer):
            field = self._c_field(node)
            return Place(self._in_register(node.operand), field.offset, node.type, self._pointer_space(kind))
        if kind.c_type is not None:
            return self.place(node.operand).at(self._c_field(node).offset, node.type)
        for field in kind.fields:
            if field.name == node.name:
                return self.place(node.operand).at(field.offset, node.type)
        return None

    def _place_ArrayAccess(self, node):
        kind = node.operand.type
        constant = self.constant(node.index)
        if isinstance(kind, Tuple):
            return self.place(node.operand).at(kind.offsets[constant], node.type)
        size = self.script.complete(kind.target).size if isinstance(kind, Pointer) else node.type.size
        if isinstance(kind, Pointer):
            base = Place(self._in_register(node.operand), 0, node.type, self._pointer_space(kind))
        else:
            base = self.place(node.operand)
        if constant is not None:
            return base.at(constant * size, node.type)
        if base.direct_load is not None:
            base = self.direct(base)
        index = self.value(node.index)
        if base.space is None:
            count = max(1, kind.size // max(size, 1))
            index = self._bounded(index, count)
        where = self.f.alu("+", self.address(base), self.f.alu("*", index, size) if size != 1 else index)
        return Place(where, 0, node.type, base.space)

    def _bounded(self, index, count):
        """An index into our own memory, zero when it is outside."""
        f = self.f
        result = f.variable()
        inside, done = f.block(), f.block()
        f.set(result, 0)
        f.branch("<", index, count, inside, done)
        f.position(inside)
        f.set(result, index)
        f.jump(done)
        f.position(done)
        return result

    def _place_Cast(self, node):
        if isinstance(node.type, String) or (isinstance(node.type, types.Array)
                                             and not node.operand.type.scalar):
            return self.place(node.operand).typed(node.type)
        return None

    # -- writing values to memory

    def store(self, node, dest, clean=False):
        """Write an expression's value to a place, in the place's type. `clean`: every byte of it, for keys."""
        kind, source = dest.type, node.type
        if kind.scalar:
            self.f.store(dest.base, dest.off, self.convert(self.value(node), source, kind), kind.size)
            return
        constant = self.constant(node)
        if isinstance(constant, str):
            strings.store_literal(self, constant.encode("utf-8", "surrogateescape"), dest, clean)
            return
        method = getattr(self, "_store_" + type(node).__name__, None)
        if method is not None and method(node, dest, clean):
            return
        self.copy(self.place(node), dest, clean)

    def _store_Identifier(self, node, dest, clean):
        entry = self.entry(node)
        place = entry.place(self, node) if hasattr(entry, "place") else None
        if place is not None:
            self.copy(place, dest, clean)
            return True
        if clean and isinstance(dest.type, String):
            written = getattr(entry, "fills", 0)        # bytes that the entry always writes
            strings.zero(self, dest, min(written, dest.type.size), dest.type.size)
        entry.store(self, node, dest)
        return True

    _store_Call = _store_Identifier

    def _store_Tuple(self, node, dest, clean):
        for element, offset, part in zip(dest.type.elements, dest.type.offsets, node.elements):
            self.store(part, dest.at(offset, element), clean)
        return True

    def _store_Record(self, node, dest, clean):
        for field, element in zip(dest.type.fields, node.elements):
            self.store(element.value, dest.at(field.offset, field.type), clean)
        return True

    def _store_Ternary(self, node, dest, clean):
        f = self.f
        then, otherwise, done = f.block("then"), f.block("else"), f.block("endif")
        if node.then is None:
            return False
        self.condition(node.condition, then, otherwise)
        for block, part in ((then, node.then), (otherwise, node.otherwise)):
            f.position(block)
            self.store(part, dest, clean)
            f.jump(done)
        f.position(done)
        return True

    _store_If = _store_Ternary

    def _store_Block(self, node, dest, clean):
        self._in_block(node, lambda: self.store(node.value, dest, clean))
        return True

    def copy(self, source, dest, clean=False):
        """Copy a value between places, converted to the destination's type."""
        kind = dest.type
        if kind.scalar:
            self.f.store(dest.base, dest.off, self.convert(self.load(source), source.type, kind), kind.size)
        elif isinstance(kind, String):
            strings.copy_string(self, source, dest, clean)
        elif isinstance(kind, Tuple):
            for index, element in enumerate(kind.elements):
                part = source.at(source.type.offsets[index], source.type.elements[index])
                self.copy(part, dest.at(kind.offsets[index], element), clean)
        else:
            strings.copy_bytes(self, source, dest, min(kind.size, source.type.size))
