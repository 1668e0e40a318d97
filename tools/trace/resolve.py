"""From names to types: every expression of a probe gets its `type`, every map and variable its own.

Types flow between probes through maps, so the compiler runs this over all programs until nothing
changes any more, and then once with `final` set, when what is still unknown is an error. One program is
one probe body for one group of points; the types of a body are written on its nodes just before it is
lowered (`node.type`), since the next group may give the same node another type.

The rules (promotion, signedness, which operators take what) are bpftrace 0.27's.
"""
from . import ast, builtins, types
from .diagnostics import ScriptError, nearest
from .types import BOOL, INT8, INT64, UINT64, Aggregate, Integer, Pointer, String, Tuple, promote

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
LOGICAL = ("&&", "||")


class Unresolved(Exception):
    """A type that a later pass will know."""


class MapVariable:
    """@x: its types as far as known. `scalar` None: nothing was seen yet."""

    def __init__(self, name, span):
        self.name, self.span = name, span
        self.scalar = None
        self.key = self.value = None
        self.declared = None            # ast.MapDeclaration
        self.aggregate_argument = None

    def __repr__(self):
        return "<MapVariable %s[%s] = %s>" % (self.name, self.key, self.value)


class Variable:
    """$x in one scope of one program."""

    def __init__(self, name, span, depth):
        self.name, self.span = name, span
        self.type = None
        self.sized = False              # declared with a type: assignments convert to it
        self.depth = depth              # number of loops with a callback around it
        self.captured = False           # used inside a callback further in: lives in memory
        self.place = None               # where lowering keeps it: an ir.Value, a Place, or an offset in the frame
        self.start = 0                  # of a loop by callback: offset in the frame of the range's first number


class Unit:
    """What is resolved and lowered together: one probe (or one function) for one group of points."""

    def __init__(self, probe, points, number):
        self.probe, self.points, self.number = probe, points, number
        self.variables = {}             # (id of block, name) -> Variable
        self.for_variables = {}         # id of For -> Variable
        self.sizes = {}                 # id of a sizeof or offsetof -> number

    @property
    def point(self):
        return self.points[0]


class Resolver:
    """`script` is a compiler.ScriptState: maps, config, options, machine, C types, warnings."""

    def __init__(self, script, unit, final):
        self.script, self.unit, self.final = script, unit, final
        self.config, self.options = script.config, script.options
        self.point = unit.point
        self.scopes = []
        self.depth = 0
        self.loops = 0
        self.changed = False
        self._owner = None              # the block that variables at hand belong to

    # -- running

    def run(self):
        """Resolve the unit. Errors go to the script's diagnostics in the final pass."""
        probe = self.unit.probe
        self.scopes = [{}]
        if probe.predicate is not None:
            self._guard(lambda: self.condition(probe.predicate), probe.predicate)
        self.block(probe.block)

    def _guard(self, work, node):
        try:
            return work()
        except Unresolved:
            if self.final and not self.script.diagnostics.errors:      # else a consequence of those
                self.script.diagnostics.error(node.span, "Unable to resolve the type of this expression")
        except ScriptError as error:
            if self.final:
                self.script.diagnostics.add(error)

    def error(self, node, message, hints=(), contexts=()):
        """Raises a ScriptError at node's place; contexts: (message, node) of further places."""
        raise ScriptError(node.span, message, hints, [(text, where.span) for text, where in contexts])

    def warn(self, node, message, hints=()):
        if self.final:
            self.script.warn(node.span, message, hints)

    # -- statements

    def block(self, block):
        """The type of the block's value, None without."""
        self.scopes.append({})
        outer, self._owner = self._owner, block
        try:
            for statement in block.statements:
                self._owner = block
                self._guard(lambda: self.statement(statement), statement)
            self._owner = block
            if block.value is not None:
                return self.expr(block.value)
            return None
        finally:
            self.scopes.pop()
            self._owner = outer

    def statement(self, node):
        getattr(self, "_" + type(node).__name__)(node)

    def _ExprStatement(self, node):
        expr = node.expr
        if isinstance(expr, (ast.If, ast.Block)):
            self._effect(expr)
            return
        kind = self.expr(expr, void=True)
        if kind is not None and not isinstance(expr, (ast.Increment, ast.Ternary)):
            entry = builtins.lookup(expr.name) if isinstance(expr, ast.Call) else None
            if entry is None or entry.pure:
                self.warn(node, "Return value discarded.")

    def _effect(self, node):
        """An if or a block as a statement."""
        node.type = None
        if isinstance(node, ast.Block):
            kind = self.block(node)
            if kind is not None:
                self.warn(node, "Return value discarded.")
            return
        self.condition(node.condition)
        self._effect(node.then)
        if node.otherwise is not None:
            self._effect(node.otherwise)

    def _Discard(self, node):
        self.expr(node.expr)

    def _Import(self, node):
        pass        # imports were followed before

    def _VarDecl(self, node, value=None):
        name = node.variable.name
        earlier = self._find(name)
        if earlier is not None:
            self.error(node, "Variable %s was already declared. Variable shadowing is not allowed." % name, (),
                       [("This is the initial declaration.", earlier)])
        var = self._declare(node.variable, self._owner)
        if node.declared is not None:
            declared = self.written_type(node.declared)
            if not (isinstance(declared, String) and declared.size == 0):
                self._set_variable(var, declared)
                var.sized = True
        return var

    def _Assign(self, node):
        try:
            self._assign(node)
        except (ScriptError, Unresolved):
            target = node.target
            if isinstance(target, ast.VarDecl):
                target = target.variable
            if isinstance(target, ast.Variable) and self._find(target.name) is None:
                self._declare(target, self._owner)      # it is known from here on, though not its type
            raise

    def _assign(self, node):
        target, value = node.target, node.value
        if isinstance(target, (ast.Map, ast.MapAccess)):
            self._assign_map(node, target, value)
            return
        if isinstance(target, ast.VarDecl):
            kind = self.expr(value)
            var = self._VarDecl(target)
            target = target.variable
        else:
            kind = self.expr(value) if not node.op else self._compound(node, target, value)
            var = self._find(target.name)
            if var is None:
                var = self._declare(target, self._owner)
        self.not_void(value, kind)
        if isinstance(kind, Aggregate):
            self.error(node, "Value '%s' cannot be assigned to a scratch variable." % kind)
        if var.sized:
            self._check_fits(node, value, kind, var.type, var.name)
        else:
            merged = promote(var.type, kind)
            if merged is None:
                self.error(node, "Type mismatch for %s: trying to assign value of type '%s' when variable already "
                           "has a type '%s'" % (var.name, type_text(kind), type_text(var.type)))
            self._set_variable(var, merged)
        target.type = var.type

    def _compound(self, node, target, value):
        left = self.expr(target)
        right = self.expr(value)
        return self.binary_type(node, node.op, left, right, target, value)

    def _check_fits(self, node, value, kind, wanted, name):
        if isinstance(kind, Integer) and isinstance(wanted, Integer):
            constant = self.constant(value)
            if isinstance(constant, int):
                low, high = (-1 << 8 * wanted.size - 1, 1 << 8 * wanted.size - 1) if wanted.signed else (
                    0, 1 << 8 * wanted.size)
                if not low <= constant < high:
                    self.error(node, "Type mismatch for %s: trying to assign value of type '%s' when variable already "
                               "has a type '%s'" % (name, type_text(kind), type_text(wanted)))
            return
        if isinstance(kind, String) and isinstance(wanted, String):
            if kind.size > wanted.size:
                self.error(node, "Type mismatch for %s: trying to assign value of type '%s' when variable already "
                           "has a type '%s'" % (name, type_text(kind), type_text(wanted)))
            return
        if promote(wanted, kind) is None and not (isinstance(wanted, Pointer) and isinstance(kind, Pointer)):
            self.error(node, "Type mismatch for %s: trying to assign value of type '%s' when variable already has "
                       "a type '%s'" % (name, type_text(kind), type_text(wanted)))

    def _set_variable(self, var, kind):
        if var.type is None or var.type != kind or getattr(var.type, "flexible", 0) != getattr(kind, "flexible", 0):
            var.type = kind
            self.changed = True

    def _declare(self, node, owner):
        key = (id(owner), node.name)
        var = self.unit.variables.get(key)
        if var is None:
            var = self.unit.variables[key] = Variable(node.name, node.span, self.depth)
            self.changed = True
        self.scopes[-1][node.name] = var
        return var

    def _find(self, name):
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def _While(self, node):
        self.condition(node.condition)
        self.loops += 1
        self.block(node.body)
        self.loops -= 1

    def _Unroll(self, node):
        count = self.constant(node.count)
        self.expr(node.count)
        if not isinstance(count, int):
            self.error(node, "invalid unroll value")
        if count < 1:
            self.error(node, "unroll minimum value is 1")
        if count > 100:
            self.error(node, "unroll maximum value is 100")
        self.loops += 1
        self.block(node.body)
        self.loops -= 1

    def _For(self, node):
        if isinstance(node.iterable, ast.Range):
            first, end = self.expr(node.iterable.first), self.expr(node.iterable.end)
            for kind, part in ((first, node.iterable.first), (end, node.iterable.end)):
                if not isinstance(kind, Integer):
                    self.error(part, "Loop range requires an integer for the start value"
                               if part is node.iterable.first else
                               "Loop range requires an integer for the end value")
            kind = first if first.size >= end.size else end
            kind = Integer(kind.size, kind.signed)
            inner = 1 if loop_by_callback(self, node) else 0
        else:
            kind = self._map_row(node.iterable)
            inner = 1
        if self._find(node.variable.name) is not None:
            self.error(node.variable, "Loop declaration shadows existing variable: %s" % node.variable.name)
        self.depth += inner
        self.loops += 1
        self.scopes.append({})
        var = self.unit.for_variables.get(id(node))
        if var is None:
            var = self.unit.for_variables[id(node)] = Variable(node.variable.name, node.variable.span, self.depth)
        self._set_variable(var, kind)
        self.scopes[-1][node.variable.name] = var
        node.variable.type = kind
        try:
            self.block(node.body)
        finally:
            self.scopes.pop()
            self.depth -= inner
            self.loops -= 1

    def _map_row(self, node):
        """The type of a `for` variable over a map: (key, value)."""
        var = self.map_variable(node, scalar=False)
        if var.key is None or var.value is None:
            raise Unresolved()
        return Tuple([var.key, var.value.scalar_type if isinstance(var.value, Aggregate) else var.value])

    def _Break(self, node):
        if not self.loops:
            self.error(node, "'break' statement is not allowed in a probe")

    def _Continue(self, node):
        if not self.loops:
            self.error(node, "'continue' statement is not allowed in a probe")

    def _Return(self, node):
        if node.value is not None:
            kind = self.expr(node.value)
            if not isinstance(kind, (Integer, types.Boolean)):
                self.error(node, "probes return an integer, not '%s'" % type_text(kind))

    # -- maps

    def map_variable(self, node, scalar=None):
        """The MapVariable of a Map node; `scalar` says how it is used here."""
        var = self.script.maps.get(node.name)
        if var is None:
            var = self.script.maps[node.name] = MapVariable(node.name, node.span)
            self.changed = True
        if scalar is not None:
            if var.scalar is None:
                var.scalar = scalar
                self.changed = True
            elif var.scalar and not scalar:
                self.error(node, "%s used as a map with an explicit key (non-scalar map), previously used without "
                           "an explicit key (scalar map)" % node.name)
            elif scalar and not var.scalar:
                self.error(node, "%s used as a map without an explicit key (scalar map), previously used with an "
                           "explicit key (non-scalar map)" % node.name)
        return var

    def map_target(self, node):
        """The MapVariable of a Map or MapAccess, its key's type taken into account."""
        if isinstance(node, ast.Map):
            return self.map_variable(node, scalar=True)
        var = self.map_variable(node, scalar=False)
        self.map_key(node, var, node.keys)
        return var

    def map_key(self, node, var, keys):
        """Merge the type of written keys into the map's."""
        kinds = []
        for key in keys:
            kind = self.expr(key)
            self.not_void(key, kind)
            if isinstance(kind, Aggregate):
                self.error(node, "Value '%s' cannot be used as a map key." % kind)
            kinds.append(kind)
        kind = kinds[0] if len(kinds) == 1 else Tuple(kinds)
        merged = promote(var.key, key_type(kind, self.script.machine.max_key))
        if merged is None:
            self.error(node, "Argument mismatch for %s: trying to access with arguments: '%s' when map expects "
                       "arguments: '%s'" % (var.name, type_text(kind), type_text(var.key)))
        if var.key is None or merged != var.key:
            var.key = merged
            self.changed = True

    def set_map_value(self, node, var, kind):
        """Merge a value's type into the map's."""
        if var.value is not None and isinstance(var.value, Aggregate) != isinstance(kind, Aggregate):
            merged = None
        else:
            merged = promote(var.value, kind)
        if merged is None:
            self.error(node, "Type mismatch for %s: trying to assign value of type '%s' when map already has a type "
                       "'%s'" % (var.name, type_text(kind), type_text(var.value)))
        if var.value is None or merged != var.value or (
                getattr(merged, "flexible", 0) != getattr(var.value, "flexible", 0)):
            var.value = merged
            self.changed = True

    def _assign_map(self, node, target, value):
        entry = builtins.lookup(value.name) if isinstance(value, ast.Call) else None
        if isinstance(value, ast.Identifier):
            entry = builtins.lookup(value.name)
        if entry is not None and entry.aggregate:
            var = self.map_target(target)
            kind = entry.resolve(self, value)
            value.type = target.type = kind
            self.set_map_value(node, var, kind)
            if node.op:
                self.error(node, "%s() cannot be combined with %s=" % (entry.name, node.op))
            return
        var = self.map_target(target)
        if node.op:
            if var.value is None:
                self._default_value(var)
            kind = self._compound(node, target, value)
        else:
            kind = self.expr(value)
        self.not_void(value, kind)
        if isinstance(kind, types.NoneType):
            self.error(node, "Value '%s' cannot be assigned to a map." % kind)
        if isinstance(var.value, Aggregate) and not node.op and isinstance(value, (ast.Map, ast.MapAccess)):
            self.error(node, "Map value '%s' cannot be assigned from one map to another." % var.value)
        self.set_map_value(node, var, kind)
        target.type = var.value

    def _default_value(self, var):
        """A map that is only ever incremented holds integers."""
        if not self.script.defaults:
            raise Unresolved()
        var.value = INT8
        self.changed = True

    # -- expressions

    def expr(self, node, void=False):
        """The type of an expression, noted on the node. `void`: it may have none."""
        kind = getattr(self, "_" + type(node).__name__)(node)
        node.type = kind
        if kind is None and not void:
            self.not_void(node, kind)
        return kind

    def not_void(self, node, kind):
        if kind is None:
            name = getattr(node, "name", None)
            self.error(node, "%s has no value" % (name + "()" if name else "this expression"))

    def condition(self, node):
        kind = self.expr(node)
        if not isinstance(kind, (Integer, types.Boolean, Pointer)):
            self.error(node, "Invalid condition: a value of type '%s' is neither true nor false" % type_text(kind))

    def _Integer(self, node):
        return types.literal(node.value)

    def _String(self, node):
        size = len(node.value.encode("utf-8", "surrogateescape")) + 1
        if size > self.config.max_strlen:
            self.error(node, "String is too long (over %d bytes): %s" % (self.config.max_strlen, node.value))
        return String(size)

    def _Bool(self, node):
        return BOOL

    def _Positional(self, node):
        value = self.positional(node.index)
        return String(len(value.encode("utf-8", "surrogateescape")) + 1) if isinstance(value, str) else (
            types.Integer(8, True, flexible=value >= 0))

    def positional(self, index):
        """$index as an int, or a str if it is no number."""
        words = self.options.positional
        if index > len(words):
            return 0
        try:
            value = int(words[index - 1], 0)
        except ValueError:
            try:
                value = int(words[index - 1])
            except ValueError:
                return words[index - 1]
        return value

    def _PositionalCount(self, node):
        return INT64

    def _Identifier(self, node):
        entry = builtins.lookup(node.name)
        if entry is not None:
            if not entry.bare:
                self.error(node, "%s is a function: write %s(...)" % (node.name, node.name))
            return entry.resolve(self, node)
        constant = self.script.constant(node.name)
        if constant is not None:
            return constant[1]
        hints = nearest(node.name, builtins.names(bare=True))
        self.error(node, "Unknown identifier: '%s'" % node.name, hints and ["Did you mean %s?" % " or ".join(hints)])

    def _Call(self, node):
        entry = builtins.lookup(node.name)
        if entry is None:
            hints = nearest(node.name, builtins.names())
            self.error(node, "Unknown function: '%s'" % node.name,
                       hints and ["Did you mean %s?" % " or ".join(hints)])
        if entry.aggregate:
            self.error(node, "%s() must be assigned directly to a map" % node.name,
                       ["e.g. `@x = %s(...);`" % node.name])
        if entry.unsafe and not self.options.unsafe:
            self.error(node, "%s() is an unsafe function being used in safe mode" % node.name,
                       ["use --unsafe to allow it"])
        return entry.resolve(self, node)

    def arguments(self, entry, call):
        """Check the number and kinds of a call's arguments and give the values their types."""
        given = builtins.arguments_of(call)
        least = sum(1 for a in entry.arguments if not a.optional)
        most = len(entry.arguments)
        if len(given) < least or (len(given) > most and not entry.variadic):
            if least == most and not entry.variadic:
                wanted = "%d argument%s" % (least, "" if least == 1 else "s") if least else "no arguments"
                self.error(call, "%s() requires %s (%d provided)" % (call.name, wanted, len(given)))
            if len(given) < least:
                self.error(call, "%s() requires at least %d argument%s (%d provided)"
                           % (call.name, least, "" if least == 1 else "s", len(given)))
            self.error(call, "%s() takes up to %d argument%s (%d provided)"
                       % (call.name, most, "" if most == 1 else "s", len(given)))
        for index, argument in enumerate(given):
            kind = entry.arguments[index].kind if index < most else "any"
            self._argument(call, kind, argument)

    def _argument(self, call, kind, node):
        if kind == "map":
            if not isinstance(node, ast.Map):
                self.error(node, "%s() expects a map to be provided" % call.name)
            self.map_variable(node)
            return
        if kind == "word":
            if not isinstance(node, ast.Identifier):
                self.error(node, "%s() expects a name here" % call.name)
            return
        if kind == "literal string" and isinstance(node, ast.String):
            node.type = String(len(node.value) + 1)     # of any length: it stays in user space
            return
        found = self.expr(node)
        if kind.startswith("literal"):
            constant = self.constant(node)
            wanted = {"literal string": str, "literal integer": int, "literal": (str, int)}[kind]
            if not isinstance(constant, wanted):
                self.error(node, "%s() expects a %s literal (%s provided)"
                           % (call.name, kind[8:] or "string or integer", type_text(found)))
        elif kind == "integer" and not isinstance(found, (Integer, Pointer, types.Boolean)):
            self.error(node, "%s() only supports integer arguments (%s provided)" % (call.name, type_text(found)))
        elif kind == "string" and not isinstance(found, String):
            self.error(node, "%s() only supports string arguments (%s provided)" % (call.name, type_text(found)))

    def _Variable(self, node):
        var = self._find(node.name)
        if var is None:
            known = [name for scope in self.scopes for name in scope]
            hints = nearest(node.name, known)
            self.error(node, "Undefined or undeclared variable: %s" % node.name,
                       hints and ["Did you mean %s?" % " or ".join(hints)])
        if var.depth < self.depth and not var.captured:
            var.captured = True
            self.changed = True
        if var.type is None:
            raise Unresolved()
        return var.type

    def _Map(self, node):
        return self._read_map(node, self.map_variable(node, scalar=True))

    def _MapAccess(self, node):
        return self._read_map(node, self.map_target(node))

    def _read_map(self, node, var):
        if var.value is None:
            if not self.script.defaults:
                raise Unresolved()
            self._default_value(var)
        kind = var.value
        if isinstance(kind, Aggregate):
            if not kind.castable:
                self.error(node, "Map value '%s' cannot be read: it can only be printed" % kind)
            return kind.scalar_type
        return kind

    def _Unary(self, node):
        kind = self.expr(node.operand)
        if node.op == "*":
            if isinstance(kind, Pointer):
                if kind.target is None:
                    self.error(node, "Cannot dereference void pointer")
                return self.c_value(kind.target, kind.user)
            if isinstance(kind, Integer):
                return UINT64
            if isinstance(kind, types.Record) and kind.c_type is not None:
                return kind         # *args: as it always was
            self.error(node, "Can not dereference type '%s'. It is not a pointer." % type_text(kind))
        if node.op == "!":
            if not isinstance(kind, (Integer, types.Boolean, Pointer)):
                self._bad_unary(node, kind)
            return BOOL
        if not isinstance(kind, Integer):
            self._bad_unary(node, kind)
        constant = self.constant(node)
        if isinstance(constant, int):
            return types.literal(constant)
        return INT64 if kind.signed else UINT64

    def _bad_unary(self, node, kind):
        self.error(node, "The %s operator can not be used on expressions of type '%s'" % (node.op, type_text(kind)))

    def _Increment(self, node):
        target = node.target
        if isinstance(target, ast.Variable):
            kind = self.expr(target)
            var = self._find(target.name)
            if isinstance(kind, Pointer):
                return kind
            if not isinstance(kind, Integer):
                self._bad_unary(node, kind)
            if var.sized:
                return kind
            result = INT64 if kind.signed or node.op == "--" else UINT64
            merged = promote(var.type, result)
            self._set_variable(var, merged)
            target.type = var.type
            return result
        if not isinstance(target, (ast.Map, ast.MapAccess)):
            self.error(node, "The %s operator must be applied to a map or variable" % node.op)
        var = self.map_target(target)
        if var.value is None:
            self._default_value(var)
        kind = var.value
        if isinstance(kind, Pointer):
            target.type = kind
            return kind
        if not isinstance(kind, Integer):
            self.error(node, "The %s operator can not be used on expressions of type '%s'"
                       % (node.op, type_text(kind)))
        result = INT64 if kind.signed or node.op == "--" else UINT64
        self.set_map_value(node, var, result)
        target.type = var.value
        return result

    def _AddressOf(self, node):
        if isinstance(node.operand, ast.Variable):
            kind = self.expr(node.operand)
            var = self._find(node.operand.name)
            if not var.captured:
                var.captured = True
                self.changed = True
            return Pointer(to_c(kind), False)
        self.error(node, "The address of a map can only be taken by functions written in C")

    def _Binary(self, node):
        left, right = self.expr(node.left), self.expr(node.right)
        constant = self.constant(node)
        kind = self.binary_type(node, node.op, left, right, node.left, node.right)
        if isinstance(constant, int) and not isinstance(constant, bool) and isinstance(kind, Integer):
            return types.literal(constant)
        return kind

    def binary_type(self, node, op, left, right, left_node, right_node):
        numbers = (Integer, types.Boolean, Pointer)
        if isinstance(left, Pointer) or isinstance(right, Pointer):
            return self._pointer_type(node, op, left, right)
        if isinstance(left, types.Boolean) and isinstance(right, types.Boolean):
            return BOOL
        if isinstance(left, numbers) and isinstance(right, numbers):
            if op in COMPARISONS or op in LOGICAL:
                if isinstance(left, Integer) and isinstance(right, Integer) and op in COMPARISONS:
                    self._check_sign(node, op, left, right, left_node, right_node)
                return BOOL
            a, b = left, right
            a_signed = getattr(a, "signed", False)
            b_signed = getattr(b, "signed", False)
            if getattr(a, "flexible", False) and not getattr(b, "flexible", False):
                a_signed = b_signed
            elif getattr(b, "flexible", False) and not getattr(a, "flexible", False):
                b_signed = a_signed
            if op in ("/", "%") and (a_signed or b_signed) and self.constant(node) is None and left != right:
                self.warn(node, "signed operands for '%s' can lead to undefined behavior (cast to unsigned to "
                          "silence warning)" % op)
            return INT64 if a_signed or b_signed or op == "-" else UINT64
        if op in ("==", "!="):
            if isinstance(left, String) and isinstance(right, String):
                return BOOL
            if type(left) is type(right) and isinstance(left, (Tuple, types.Array, types.Buffer)):
                if promote(left, right) is not None or isinstance(left, types.Buffer):
                    return BOOL
        if type(left) is not type(right):
            self.error(node, "Type mismatch for '%s': comparing %s with %s" % (op, type_text(left), type_text(right)),
                       (), [("left (%s)" % type_text(left), left_node),
                            ("right (%s)" % type_text(right), right_node)])
        self.error(node, "The %s operator can not be used on expressions of types %s, %s"
                   % (op, type_text(left), type_text(right)))

    def _check_sign(self, node, op, left, right, left_node, right_node):
        """A number without a sign is never below zero: say so instead of never matching."""
        for unsigned, bound, which, test in ((left, right_node, left_node, ("<",)),
                                             (right, left_node, right_node, (">",))):
            if not unsigned.signed and op in test and self.constant(bound) == 0:
                self.warn(node, "this is never true: '%s' is of the unsigned type %s" % (
                    which.span.text, type_text(unsigned)),
                    ["cast it if it has a sign, e.g. (int32)%s" % which.span.text])
            value = self.constant(bound)
            if isinstance(value, int) and value < 0 and not unsigned.signed and unsigned.size == 8 \
                    and op in COMPARISONS and isinstance(which, ast.Identifier):
                self.warn(node, "'%s' has no known sign (%s); an int result of -1 reads as 4294967295" % (
                    which.span.text, type_text(unsigned)),
                    ["cast it if it has a sign, e.g. (int32)%s" % which.span.text])

    def _pointer_type(self, node, op, left, right):
        pointer, other = (left, right) if isinstance(left, Pointer) else (right, left)
        if isinstance(other, Pointer):
            if op in COMPARISONS or op in LOGICAL:
                return BOOL
        elif isinstance(other, (Integer, types.Boolean)):
            if op == "+" or (op == "-" and isinstance(left, Pointer)):
                return pointer
            if op in COMPARISONS or op in LOGICAL:
                return BOOL
        self.error(node, "The %s operator can not be used on expressions of types %s, %s"
                   % (op, type_text(left), type_text(right)))

    def _Ternary(self, node):
        self.condition(node.condition)
        if node.then is None:
            left = node.condition.type
        else:
            left = self.expr(node.then, void=True)
        right = self.expr(node.otherwise, void=True)
        return self._join(node, left, right)

    def _join(self, node, left, right):
        if left is None and right is None:
            return None
        merged = promote(left, right) if left is not None and right is not None else None
        if merged is None:
            self.error(node, "Branches must return the same type or compatible types: have '%s' and '%s'"
                       % (type_text(left), type_text(right)))
        return merged

    def _If(self, node):
        self.condition(node.condition)
        left = self.expr(node.then, void=True)
        right = self.expr(node.otherwise, void=True) if node.otherwise is not None else None
        if left is None or right is None:
            return None
        return self._join(node, left, right)

    def _Block(self, node):
        return self.block(node)

    def _Tuple(self, node):
        kinds = []
        for element in node.elements:
            kind = self.expr(element)
            if isinstance(kind, Aggregate):
                self.error(element, "Map type %s cannot exist inside a tuple." % kind)
            kinds.append(kind)
        return Tuple(kinds)

    def _Record(self, node):
        fields, offset, align = [], 0, 1
        for element in node.elements:
            kind = self.expr(element.value)
            offset = -(-offset // kind.align) * kind.align
            fields.append(types.Field(element.name, kind, offset))
            offset += kind.size
            align = max(align, kind.align)
        return types.Record("record", fields, -(-offset // align) * align, align)

    def _TupleAccess(self, node):
        kind = self.expr(node.operand)
        if not isinstance(kind, Tuple):
            self.error(node, "Can not access index '%d' on expression of type '%s'" % (node.index, type_text(kind)))
        if node.index >= len(kind.elements):
            self.error(node, "Invalid tuple index: %d. Found %d elements in tuple." % (
                node.index, len(kind.elements)))
        return kind.elements[node.index]

    def _ArrayAccess(self, node):
        kind = self.expr(node.operand)
        index = self.expr(node.index)
        if not isinstance(index, Integer):
            self.error(node.index, "The array index operator [] only accepts integer indices. Got: %s"
                       % type_text(index))
        if isinstance(kind, types.Array):
            constant = self.constant(node.index)
            if isinstance(constant, int) and kind.count and not 0 <= constant < kind.count:
                self.error(node, "the index %d is out of bounds for array of size %d" % (constant, kind.count))
            return kind.element
        if isinstance(kind, String):
            return INT8
        if isinstance(kind, Pointer) and kind.target is not None:
            return self.c_value(kind.target, kind.user)
        if isinstance(kind, Tuple):
            constant = self.constant(node.index)
            if isinstance(constant, int) and 0 <= constant < len(kind.elements):
                return kind.elements[constant]
        self.error(node, "The array index operator [] can only be used on arrays, pointers, and tuples, found %s."
                   % type_text(kind))

    def _FieldAccess(self, node):
        operand = node.operand
        kind = self.expr(operand)
        if isinstance(kind, Pointer):
            if kind.target is None:
                self.error(node, "Can not access field '%s' on expression of type '%s'" % (
                    node.name, type_text(kind)))
            struct, user = kind.target, kind.user
        elif isinstance(kind, types.Record) and kind.c_type is None:
            for field in kind.fields:
                if field.name == node.name:
                    return field.type
            self.error(node, "Record has no field named '%s'" % node.name)
        elif isinstance(kind, types.Record):
            struct, user = kind.c_type, getattr(kind, "user", None)
        else:
            self.error(node, "Can not access field '%s' on expression of type '%s'" % (node.name, type_text(kind)))
        field = self.field(node, struct, node.name)
        if field.loc:
            return INT64        # the address of the data
        return self.c_value(field.type, user)

    def field(self, node, struct, name):
        """The elf.types.Field `name` of a C struct."""
        from rawbpf.elf import types as c
        bare = c.strip(struct)
        if not isinstance(bare, c.Struct):
            self.error(node, "Can not access field '%s' on expression of type '%s'" % (name, bare))
        bare = self.script.complete(bare)
        field = c.find_field(bare, name)
        if field is None:
            names = [f.name for f in bare.fields if f.name]
            near = nearest(name, names)
            title = getattr(node.operand.type, "title", None) or "%s %s" % (bare.kind, bare.name)
            self.error(node, "Struct/union of type '%s' does not contain a field named '%s'" % (title, name),
                       near and ["Did you mean %s?" % " or ".join(near)])
        return field

    def c_value(self, c_type, user):
        """The script type of C data in user (True) or kernel memory."""
        kind = types.from_c(c_type, user)
        if isinstance(kind, types.CRecord):
            kind.c_type = self.script.complete(kind.c_type)
            kind.size = kind.c_type.size
            kind.user = user
        return kind

    def _Cast(self, node):
        source = self.expr(node.operand)
        target = self.written_type(node.target)
        if isinstance(target, Pointer):
            user = source.user if isinstance(source, Pointer) else self.space(node.operand)
            if user is None:
                user = self.point.user_space
            return Pointer(target.target, user)
        if isinstance(target, Integer):
            if isinstance(source, (Integer, Pointer, types.Boolean, types.Array)):
                return target
            self.error(node, "Cannot cast from \"%s\" to \"%s\"" % (type_text(source), type_text(target)))
        if isinstance(target, types.Boolean) and isinstance(source, (Integer, Pointer, types.Boolean)):
            return BOOL
        if isinstance(target, String) and isinstance(source, String):
            return String(max(target.size, source.size) if target.size == 0 else target.size)
        if isinstance(target, types.Array):
            if target.count == 0:
                return types.Array(target.element, source.size // target.element.size)
            if source.size == target.size or isinstance(source, Integer):
                return target
        self.error(node, "Cannot cast from \"%s\" to \"%s\"" % (type_text(source), type_text(target)))

    def space(self, node):
        """Which memory a number means as an address: True user, False kernel, None unknown."""
        if isinstance(node.type, Pointer):
            return node.type.user
        if isinstance(node, ast.Identifier):
            entry = builtins.lookup(node.name)
            space = getattr(entry, "space", None)
            if space is not None:
                return space(self)
        if isinstance(node, ast.FieldAccess):
            kind = node.operand.type
            if isinstance(kind, Pointer):
                return kind.user
            if isinstance(kind, types.CRecord) and self.field(node, kind.c_type, node.name).loc:
                return False    # dynamic data of a tracepoint lies in its record
            return getattr(kind, "user", None)
        if isinstance(node, ast.Binary):
            left = self.space(node.left)
            return self.space(node.right) if left is None else left
        if isinstance(node, ast.Cast) or isinstance(node, ast.Unary) and node.op == "*":
            return self.space(node.operand)
        return None

    def _Sizeof(self, node):
        self.unit.sizes[id(node)] = self.size_of(node.operand)
        return UINT64

    def size_of(self, operand):
        if isinstance(operand, (ast.NamedType, ast.PointerType, ast.ArrayType, ast.Typeof)):
            return self.written_type(operand).size
        if isinstance(operand, ast.Identifier) and builtins.lookup(operand.name) is None:
            named = self.script.named_type("", operand.name)
            if named is not None:
                return named.size
        return self.expr(operand).size

    def _Offsetof(self, node):
        self.unit.sizes[id(node)] = self.offset_of(node)
        return UINT64

    def offset_of(self, node):
        operand = node.operand
        if isinstance(operand, (ast.NamedType, ast.Typeof)):
            kind = self.written_type(operand)
        else:
            kind = self.expr(operand)
            if isinstance(kind, Pointer):
                kind = types.from_c(kind.target)
        offset = 0
        for name in node.path:
            if not isinstance(kind, types.CRecord):
                self.error(node, "'%s' is not a C type." % type_text(kind))
            field = self.field(node, kind.c_type, name)
            offset += field.offset
            kind = self.c_value(field.type, None)
        return offset

    def _Typeinfo(self, node):
        self.error(node, "typeinfo is not supported")

    def _Comptime(self, node):
        kind = self.expr(node.operand)
        if self.constant(node.operand) is None:
            self.error(node, "Unable to evaluate at compile time.")
        return kind

    # -- types as they are written

    def written_type(self, node):
        """The script type of a type node."""
        from rawbpf.elf import types as c
        if isinstance(node, ast.Typeof):
            inner = node.operand
            if isinstance(inner, (ast.NamedType, ast.PointerType, ast.ArrayType)):
                return self.written_type(inner)
            if isinstance(inner, ast.Map):
                var = self.map_variable(inner)
                if var.value is None:
                    raise Unresolved()
                return var.value
            return self.expr(inner)
        if isinstance(node, ast.NamedType) and not node.kind:
            if node.name == "string":
                return String(0)
            simple = SIMPLE.get(node.name)
            if simple is not None:
                return simple
            if node.name == "void":
                return types.NONE
        if isinstance(node, ast.ArrayType):
            element = self.written_type(node.element)
            if isinstance(element, String):
                return String(node.count)
            return types.Array(element, node.count)
        if isinstance(node, ast.PointerType):
            target = self.c_type(node.target)
            return Pointer(None if isinstance(target, c.Void) else target)
        return self.c_value(self.c_type(node), None)

    def c_type(self, node):
        """The C type of a type node."""
        from rawbpf.elf import types as c
        if isinstance(node, ast.PointerType):
            return c.Pointer(self.c_type(node.target))
        if isinstance(node, ast.ArrayType):
            return c.Array(self.c_type(node.element), node.count)
        if isinstance(node, ast.Typeof):
            kind = self.written_type(node)
            return to_c(kind)
        if not node.kind:
            if node.name == "void":
                return c.Void()
            simple = SIMPLE.get(node.name)
            if simple is not None:
                return to_c(simple)
            if node.name == "string":
                return c.Int("char", 1, True, "char")
        named = self.script.named_type(node.kind, node.name)
        if named is None:
            self.error(node, "Cannot resolve unknown type \"%s\"" % node.full_name)
        return named

    # -- what is known at compile time

    def constant(self, node):
        """The int, bool or str that an expression is, or None."""
        if isinstance(node, (ast.Integer, ast.String, ast.Bool)):
            return node.value
        if isinstance(node, ast.Positional):
            return self.positional(node.index)
        if isinstance(node, ast.PositionalCount):
            return len(self.options.positional)
        if isinstance(node, (ast.Identifier, ast.Call)):
            entry = builtins.lookup(node.name)
            if entry is not None:
                return entry.constant(self, node)
            if isinstance(node, ast.Identifier):
                found = self.script.constant(node.name)
                return found and found[0]
            return None
        if isinstance(node, ast.Unary):
            value = self.constant(node.operand)
            if isinstance(value, str) or value is None or node.op == "*":
                return None
            if node.op == "!":
                return not value
            value = int(value)
            return -value if node.op == "-" else ~value & (1 << 64) - 1
        if isinstance(node, ast.Binary):
            return self._fold(node)
        if isinstance(node, ast.Ternary):
            chosen = self.constant(node.condition)
            if chosen is None or isinstance(chosen, str):
                return None
            return self.constant(node.then if chosen and node.then is not None else
                                 node.condition if chosen else node.otherwise)
        if isinstance(node, ast.Comptime):
            return self.constant(node.operand)
        if isinstance(node, (ast.Sizeof, ast.Offsetof)):
            return self.unit.sizes.get(id(node))
        if isinstance(node, ast.Block) and not node.statements and node.value is not None:
            return self.constant(node.value)
        return None

    def _fold(self, node):
        left = self.constant(node.left)
        op = node.op
        if op in LOGICAL and left is not None and not isinstance(left, str):
            if bool(left) == (op == "||"):
                return op == "||"
        right = self.constant(node.right)
        if left is None or right is None:
            return None
        if isinstance(left, str) or isinstance(right, str):
            if isinstance(left, str) and isinstance(right, str) and op in ("==", "!="):
                return (left == right) == (op == "==")
            return None
        if op in COMPARISONS:
            return {"==": left == right, "!=": left != right, "<": left < right, "<=": left <= right,
                    ">": left > right, ">=": left >= right}[op]
        if op in LOGICAL:
            return bool(left and right) if op == "&&" else bool(left or right)
        left, right = int(left), int(right)
        if op in ("/", "%") and right == 0 or op in ("<<", ">>") and not 0 <= right < 64:
            self.error(node, "unable to fold literals due to overflow or underflow")
        value = {"+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right,
                 "/": lambda: types._divide(left, abs(right)) * (1 if right > 0 else -1),
                 "%": lambda: abs(left) % abs(right) * (-1 if left < 0 else 1),
                 "&": lambda: left & right, "|": lambda: left | right, "^": lambda: left ^ right,
                 "<<": lambda: left << right, ">>": lambda: left >> right}[op]()
        if not -1 << 63 <= value < 1 << 64:
            self.error(node, "unable to fold literals due to overflow or underflow")
        return value


def loop_by_callback(r, node):
    """Whether a `for` becomes a call of bpf_loop or bpf_for_each_map_elem with its body as a function of its own;
    short ranges with constant bounds are plain loops."""
    if not isinstance(node.iterable, ast.Range):
        return True
    first, end = r.constant(node.iterable.first), r.constant(node.iterable.end)
    return not (isinstance(first, int) and isinstance(end, int) and end - first <= 64)


SIMPLE = {"bool": BOOL}
for _bits in (8, 16, 32, 64):
    SIMPLE["int%d" % _bits] = SIMPLE["int%d_t" % _bits] = SIMPLE["s%d" % _bits] = Integer(_bits // 8, True)
    SIMPLE["uint%d" % _bits] = SIMPLE["uint%d_t" % _bits] = SIMPLE["u%d" % _bits] = Integer(_bits // 8, False)
SIMPLE.update({"char": INT8, "short": Integer(2, True), "int": Integer(4, True), "long": INT64,
               "unsigned char": Integer(1, False), "unsigned short": Integer(2, False),
               "unsigned int": Integer(4, False), "unsigned long": UINT64, "long long": INT64,
               "unsigned long long": UINT64, "size_t": UINT64})


def to_c(kind):
    """The C type of a script type, for pointers to it."""
    from rawbpf.elf import types as c
    if isinstance(kind, Integer):
        return kind.enum or c.Int(kind.name, kind.size, kind.signed, "char" if kind.name == "int8" else "")
    if isinstance(kind, types.Boolean):
        return c.Int("bool", 1, False, "bool")
    if isinstance(kind, Pointer):
        return c.Pointer(kind.target if kind.target is not None else c.Void())
    if isinstance(kind, types.CRecord):
        return kind.c_type
    if isinstance(kind, String):
        return c.Array(c.Int("char", 1, True, "char"), kind.size)
    if isinstance(kind, types.Array):
        return c.Array(to_c(kind.element), kind.count)
    return c.Void()


def key_type(kind, limit):
    """What a map stores for a key of this type: integers at least 4 bytes (hashing is fastest so), strings in
    whole words. Where the whole may have no more than `limit` bytes, long strings are cut."""
    stored = _key_type(kind, 1 << 20)
    cut = limit
    while stored.size > limit and cut > 8:
        cut -= 8
        stored = _key_type(kind, cut)
    return stored


def _key_type(kind, longest):
    if isinstance(kind, Integer):
        return kind if kind.size >= 4 else Integer(4, kind.signed, kind.enum, kind.flexible)
    if isinstance(kind, String):
        return String(min(-(-kind.size // 8) * 8, longest))
    if isinstance(kind, Tuple):
        return Tuple([_key_type(e, longest) for e in kind.elements])
    return kind


def type_text(kind):
    """A type as bpftrace's messages write it."""
    if kind is None:
        return "none"
    if isinstance(kind, String):
        return "string[%d]" % kind.size if kind.size else "string"
    if isinstance(kind, Tuple):
        return "(%s)" % ",".join(map(type_text, kind.elements))
    return kind.name
