"""The code of expressions whose values fit a register, and of conditions. A mixin of lower.Lowering."""
from . import ast, builtins, strings, types
from .folding import COMPARISONS, LOGICAL
from .maps import kind_step
from .place import Place
from .types import Integer, Pointer, Record, String


class ExpressionCode:
    """`value` and `condition`, one method a kind of node."""

    def value(self, node):
        """The operand of an expression whose type fits a register."""
        constant = self.constant(node)
        if isinstance(constant, (bool, int)):
            return int(constant)
        outer, self.at = self.at, node
        result = getattr(self, "_value_" + type(node).__name__)(node)
        self.at = outer
        return result

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
        if pointer.context:
            return None
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
        live = self.r.live_branches(node)
        if len(live) == 1:
            return self.value(live[0])
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
        context = self._context(node.operand)
        if context is not None:
            return context.value(self, node)
        place = self.place(node)
        field = self._c_field(node)
        if field is None or field.bit_size in (None, 8 * field.type.size):
            return self.load(place)
        size = field.type.size
        value = self.load(place.typed(Integer(size, False)))
        value = self.f.alu(">>", value, field.bit_offset) if field.bit_offset else value
        return self.f.alu("&", value, (1 << field.bit_size) - 1)     # never negative, as in bpftrace: scripts count on it

    def _context(self, node):
        """The type of an expression that is `args` itself, whose fields the event has; None of others, copies of it
        also."""
        while isinstance(node, ast.Unary):
            node = node.operand
        return node.type if isinstance(node, ast.Identifier) and isinstance(node.type, builtins.ContextRecord) else None

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
        if isinstance(target, Pointer) and isinstance(source, Integer) and source.size < 8:
            target = Integer(source.size, False)        # an address has no sign
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
