"""From names to types: every expression of a probe gets its `type`, every map and variable its own.

Types flow between probes through maps, so the compiler runs this over all programs until nothing
changes any more, and then once with `final` set, when what is still unknown is an error. One program is
one probe body for one group of points; the types of a body are written on its nodes just before it is
lowered (`node.type`), since the next group may give the same node another type.

The rules (promotion, signedness, which operators take what) are bpftrace 0.27's.
"""
from . import ast, builtins, types
from .diagnostics import ScriptError
from .doubts import Doubts, whole
from .folding import Folding, loop_by_callback
from .resolve_expr import ExpressionTypes
from .types import INT8, Aggregate, Integer, Pointer, String, Tuple, promote
from .written import Unresolved, WrittenTypes, type_text

MAX_UNROLLED = 200000       # nodes that all unroll() of a program make


class MapVariable:
    """@x: its types as far as known. `scalar` None: nothing was seen yet."""

    def __init__(self, name, span):
        self.name, self.span = name, span
        self.scalar = None
        self.key = self.value = None
        self.written_key = None         # the key's type as written, for messages: `key` is what is stored
        self.declared = None            # ast.MapDeclaration
        self.aggregate_argument = None

    def __repr__(self):
        return "<MapVariable %s[%s] = %s>" % (self.name, self.key, self.value)


class Variable:
    """$x in one scope of one program."""

    def __init__(self, name, span, depth):
        self.name, self.span = name, span
        self.type = None
        self.space = None               # which memory a number in it means as an address, see Resolver.space
        self.assigned = False
        self.origin = "declaration"     # what made it: for messages
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
        self.infos = {}                 # id of a typeinfo -> ast.Record
        self.used = {}                  # id of an ast.Variable that is read -> Variable
        self.returning = None           # the Unit of the kretprobe that is one session with this kprobe
        self.session = ()               # the points of that session

    @property
    def point(self):
        return self.points[0]


class Resolver(ExpressionTypes, WrittenTypes, Folding, Doubts):
    """`script` is a compiler.ScriptState: maps, config, options, machine, C types, warnings."""

    def __init__(self, script, unit, final):
        self.script, self.unit, self.final = script, unit, final
        self.config, self.options = script.config, script.options
        self.point = unit.point
        self.scopes = []
        self.depth = 0
        self.loops = 0
        self.unrolling = 0              # how many unroll() are around
        self.unrolled = 0               # nodes that unroll() makes of the program so far
        self.meta = 0                   # inside sizeof and the like: not evaluated
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
        self.never_assigned()

    def _guard(self, work, node):
        try:
            return work()
        except Unresolved:
            if self.final and not self.script.diagnostics.errors:      # else a consequence of those
                for part in node.walk():
                    var = self.script.maps.get(part.name) if isinstance(part, ast.Map) else None
                    if var is not None and var.value is None:
                        self.script.diagnostics.error(part.span, "Undefined map: %s" % part.name)
                        return
                self.script.diagnostics.error(node.span, "Unable to resolve the type of this expression")
        except ScriptError as error:
            if self.final:
                self.script.diagnostics.add(error)

    def error(self, node, message, hints=(), contexts=()):
        """Raises a ScriptError at node's place; contexts: (message, node) of further places."""
        raise ScriptError(node.span, message, hints, [(text, where.span) for text, where in contexts])

    def warn(self, node, message, hints=(), contexts=()):
        if self.final:
            self.script.warn(node.span, message, hints, [(text, where.span) for text, where in contexts])

    def unstable(self, node, feature):
        """A feature that bpftrace calls unstable: a warning, or an error, unless the config says otherwise."""
        setting = "unstable_" + feature
        state = getattr(self.config, setting)
        if state == "error":
            self.error(node, "%s feature is not enabled by default. To enable this unstable feature, set the config flag "
                       "to enable. %s=enable" % (feature, setting))
        if state == "warn" and self.final:
            self.script.warn(None, "Script is using an unstable feature: %s. To prevent this warning you must explicitly "
                             "enable it in the config e.g. %s=enable" % (feature, setting))

    # -- statements

    def block(self, block):
        """The type of the block's value, None without."""
        self.scopes.append({})
        outer, self._owner = self._owner, block
        self.unreachable(block)
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
                self.warn(whole(node, False), "Return value discarded.")

    def _effect(self, node):
        """An if or a block as a statement."""
        node.type = None
        if isinstance(node, ast.Block):
            kind = self.block(node)
            if kind is not None:
                self.warn(node, "Return value discarded.")
            return
        self._guard(lambda: self.condition(node.condition), node.condition)
        for part in self.live_branches(node):
            self._effect(part)

    def live_branches(self, node):
        """The branches of an if that can be reached: where `if comptime` is decided, what the other one holds need not
        even mean anything here."""
        branches = [node.then, node.otherwise]
        if isinstance(node.condition, ast.Comptime):
            chosen = self.constant(node.condition)
            if chosen is not None:
                branches = branches[:1] if chosen else branches[1:]
        return [part for part in branches if part is not None]

    def _Discard(self, node):
        self.expr(node.expr)

    def _Import(self, node):
        if self.config.unstable_import_statement == "error":
            self.error(node, "Import statements that are not at the top level are primarily for the standard library. If this "
                       "is functionality you need, please file an issue to explain why.")
        if not node.name.startswith("stdlib/"):
            self.error(node, "importing \"%s\" is not supported in a block, only at the top" % node.name)

    def _VarDecl(self, node, value=None):
        name = node.variable.name
        earlier = self._find(name)
        if earlier is not None:
            self.error(node, "Variable %s was already declared. Variable shadowing is not allowed." % name, (),
                       [("This is the %s." % earlier.origin, earlier)])
        var = self._declare(node.variable, self._owner)
        var.assigned, var.origin, var.span = False, "initial declaration", node.span
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
            if isinstance(target, ast.Variable):        # it is known from here on, though not its type
                var = self._find(target.name) or self._declare(target, self._owner)
                var.assigned = True
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
                var.origin, var.span = "initial assignment", node.span
            self.capture(var)
        var.assigned = True
        self.not_void(value, kind)
        if isinstance(kind, Aggregate):
            self.error(node, "Value '%s' cannot be assigned to a scratch variable." % kind)
        self._merge_variable(node, value, var, kind)
        target.type = var.type
        if isinstance(kind, Integer):
            var.space = self.space(value)

    def assign_variable(self, node, target, kind):
        """A value of this type goes to a Variable node's variable, which is made if need be."""
        var = self._find(target.name)
        if var is None:
            var = self._declare(target, self._owner)
        self.capture(var)
        var.assigned = True
        self._merge_variable(node, node, var, kind)
        target.type = var.type

    def _merge_variable(self, node, value, var, kind):
        if var.sized:
            self._check_fits(node, value, kind, var.type, var.name)
        else:
            merged = promote(var.type, kind)
            if merged is None:
                self.error(node, "Type mismatch for %s: trying to assign value of type '%s' when variable already "
                           "has a type '%s'" % (var.name, type_text(kind), type_text(var.type)))
            self._set_variable(var, merged)
        self.lossy(value, kind, var.type)

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

    def capture(self, var):
        """Note that a variable is used where we are: by a callback that does not own it, it lives in memory."""
        if var.depth < self.depth and not var.captured:
            var.captured = True
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
        self.warn(node, "While loops are deprecated and may be removed in the future.", [
            "For loops support ranges (e.g. `for ($x : $start..$end) { ... }`), and can be used in place of while. These "
            "are more easily proven to be bounded by the verifier."])
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
        if not self.unrolling:
            self.unrolled += self._written_out(node)
            if self.unrolled > MAX_UNROLLED:
                self.error(node, "the unrolled code is too large: %d expressions and statements, %d are the most"
                           % (self.unrolled, MAX_UNROLLED))
        self.loops += 1
        self.unrolling += 1
        self.block(node.body)
        self.unrolling -= 1
        self.loops -= 1

    def _written_out(self, node):
        """How many nodes there are below this one when each unroll() is as many copies of its body."""
        total, work = 0, [(node, 1)]
        while work:
            part, times = work.pop()
            total += times
            if isinstance(part, ast.Unroll):
                count = self.constant(part.count)
                times *= count if isinstance(count, int) and 1 <= count <= 100 else 1
            work += [(child, times) for child in part.children()]
        return total

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
            earlier = self._find(node.variable.name)
            self.error(node.variable, "Loop declaration shadows existing variable: %s" % node.variable.name, (),
                       [("This is the %s." % earlier.origin, earlier)])
        self.depth += inner
        self.loops += 1
        self.scopes.append({})
        var = self.unit.for_variables.get(id(node))
        if var is None:
            var = self.unit.for_variables[id(node)] = Variable(node.variable.name, node.variable.span, self.depth)
        var.assigned, var.origin = True, "loop variable"
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
        var = self.map_variable(node, False, (
            "%s has no explicit keys (scalar map), and cannot be used for iteration" % node.name, node))
        if var.key is None or var.value is None:
            raise Unresolved()
        if isinstance(var.value, Aggregate) and not var.value.castable:
            self.error(node, "Loop expression does not support type: %s" % var.value)
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

    def map_variable(self, node, scalar=None, otherwise=""):
        """The MapVariable of a Map node; `scalar` says how it is used here, `otherwise` (message, node) what is
        wrong when it is the other kind."""
        var = self.script.maps.get(node.name)
        if var is None:
            var = self.script.maps[node.name] = MapVariable(node.name, node.span)
            self.changed = True
        if scalar is not None:
            if var.scalar is None:
                var.scalar = scalar
                self.changed = True
            elif var.scalar != scalar and otherwise:
                self.error(otherwise[1], otherwise[0])
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
                       "arguments: '%s'" % (var.name, type_text(kind), type_text(var.written_key)))
        if not merged.size:
            self.error(node, "Value '%s' cannot be used as a map key: it has no bytes." % kind)
        var.written_key = promote(var.written_key, kind)
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
            if type(kind) is type(var.value) and isinstance(kind, types.Hist):
                self.error(getattr(node, "value", node), "Different bits in a single hist unsupported")
            if type(kind) is type(var.value) and isinstance(kind, types.LinearHist):
                self.error(getattr(node, "value", node), "Different lhist bounds in a single map unsupported")
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
            if self.final and self.aggregated(value):
                self._no_copy(node, value)
            kind = self.expr(value)
        self.not_void(value, kind)
        if isinstance(kind, types.NoneType):
            self.error(node, "Value '%s' cannot be assigned to a map." % kind)
        self.set_map_value(node, var, kind)
        self.lossy(value, kind, var.value)
        target.type = var.value

    def _no_copy(self, node, value):
        """`@b = @a` where @a keeps one value of a CPU."""
        kind = self.script.maps[value.name].value
        usual = kind.name[:-2] if kind.name.endswith("_t") else kind.name
        self.error(node, "Map value '%s' cannot be assigned from one map to another. The function that returns this type "
                   "must be called directly e.g. `%s = %s(%s);`." % (
                       kind, node.target.name, usual, "" if usual == "count" else "retval"),
                   ["Add a cast to integer if you want the value of the aggregate, e.g. `%s = (int64)%s;`."
                    % (node.target.span.text, value.span.text)] if kind.castable else [])

    def _default_value(self, var):
        """A map that is only ever incremented holds integers."""
        if not self.script.defaults:
            raise Unresolved()
        var.value = INT8
        self.changed = True


def key_type(kind, limit):
    """What a map stores for a key of this type: integers at least 4 bytes (hashing is fastest so), strings in
    whole words. Where the whole may have no more than `limit` bytes, long strings are cut."""
    stored = _key_type(kind, 1 << 20)
    if stored.size <= limit:
        return stored
    fits, above = 1, limit // 8         # words of a string
    while above - fits > 1:
        middle = (fits + above) // 2
        if _key_type(kind, 8 * middle).size <= limit:
            fits = middle
        else:
            above = middle
    return _key_type(kind, 8 * fits)


def _key_type(kind, longest):
    if isinstance(kind, Integer):
        return kind if kind.size >= 4 else Integer(4, kind.signed, kind.enum, kind.flexible)
    if isinstance(kind, String):
        return String(min(-(-kind.size // 8) * 8, longest))
    if isinstance(kind, Tuple):
        return Tuple([_key_type(e, longest) for e in kind.elements])
    return kind
