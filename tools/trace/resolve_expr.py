"""The types of expressions: a mixin of resolve.Resolver, one method a kind of node."""
from . import ast, builtins, types
from .diagnostics import nearest
from .doubts import operation
from .folding import COMPARISONS, LOGICAL
from .types import BOOL, INT8, INT64, UINT64, Aggregate, Integer, Pointer, String, Tuple, promote
from .written import SIMPLE, Unresolved, base_text, to_c, type_text


def _arguments(count):
    return {0: "no arguments", 1: "one argument"}.get(count, "%d arguments" % count)


class ExpressionTypes:
    """`expr` and what it needs."""

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
        if entry.variadic:
            most = builtins.MOST
        if not least <= len(given) <= most:
            if least == most:
                self.error(call, "%s() requires %s (%d provided)" % (call.name, _arguments(least), len(given)))
            if len(given) < least:
                self.error(call, "%s() requires at least %s (%d provided)" % (call.name, _arguments(least), len(given)))
            self.error(call, "%s() takes up to %s (%d provided)" % (call.name, _arguments(most), len(given)))
        for index, argument in enumerate(given):
            kind = entry.arguments[index].kind if index < len(entry.arguments) else "any"
            self._argument(call, kind, argument)

    def _argument(self, call, kind, node):
        if kind == "map":
            if not isinstance(node, ast.Map):
                self.error(node, "%s() expects a map argument" % call.name)
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
                found = self.aggregate_of(node) or found
                self.error(node, "%s() expects a %s literal (%s provided)"
                           % (call.name, kind[8:] or "string or integer", type_text(found)))
        elif kind == "integer" and (not isinstance(found, (Integer, Pointer, types.Boolean)) or self.aggregate_of(node)):
            found = self.aggregate_of(node) or found
            self.error(node, "%s() only supports integer arguments (%s provided)" % (call.name, type_text(found)))
        elif kind == "string" and not isinstance(found, String):
            self.error(node, "%s() only supports string arguments (%s provided)" % (call.name, type_text(found)))

    def _Typeof(self, node):
        self.error(node, "When used as a call argument, `typeof` builtin only valid for macro calls that are expecting a "
                         "type parameter")

    def _Variable(self, node):
        var = self._find(node.name)
        if var is None:
            known = [name for scope in self.scopes for name in scope]
            hints = nearest(node.name, known)
            self.error(node, "Undefined or undeclared variable: %s" % node.name,
                       hints and ["Did you mean %s?" % " or ".join(hints)])
        self.capture(var)
        self.used(node, var)
        self.unit.used[id(node)] = var
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

    def aggregate_of(self, node):
        """The aggregate that an expression is as a whole, though its value is a number; None of others."""
        if not isinstance(node, (ast.Map, ast.MapAccess)):
            return None
        name = node.name if isinstance(node, ast.Map) else node.map.name
        var = self.script.maps.get(name)
        return var.value if var is not None and isinstance(var.value, Aggregate) else None

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
        if self.aggregate_of(node.operand) is not None:
            self._bad_unary(node, self.aggregate_of(node.operand))
        if node.op == "!":
            if not isinstance(kind, (Integer, types.Boolean, Pointer)):
                self._bad_unary(node, kind)
            return BOOL
        if not isinstance(kind, Integer):
            self._bad_unary(node, kind)
        constant = self.constant(node)
        if isinstance(constant, int):
            if constant < -1 << 63:
                self.error(node, "negative value will underflow")
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
            signed = node.op == "--" or getattr(kind, "castable", False) and kind.scalar_type.signed
            self.error(node, "Type mismatch for %s: trying to assign value of type '%s' when map already has a type '%s'"
                       % (var.name, INT64 if signed else UINT64, type_text(kind)))
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
        if isinstance(left, String) or isinstance(right, String):
            constant = self.constant(node)
            if isinstance(constant, str):       # "abc" + "d", "abc" + 1
                if not constant:
                    self.warn(node, "literal string will always be empty")
                return String(len(constant.encode("utf-8", "surrogateescape")) + 1)
            if isinstance(constant, bool):
                return BOOL
        if isinstance(left, Pointer) or isinstance(right, Pointer):
            return self._pointer_type(node, op, left, right)
        if isinstance(left, types.Boolean) and isinstance(right, types.Boolean):
            return BOOL
        if isinstance(left, numbers) and isinstance(right, numbers):
            if op in COMPARISONS or op in LOGICAL:
                if isinstance(left, Integer) and isinstance(right, Integer) and op in COMPARISONS:
                    self._check_sign(node, op, left, right, left_node, right_node)
                    common = promote(left, right)
                    self.lossy(left_node, left, common)
                    self.lossy(right_node, right, common)
                return BOOL
            a, b = left, right
            a_signed = getattr(a, "signed", False)
            b_signed = getattr(b, "signed", False)
            if getattr(a, "flexible", False) and not getattr(b, "flexible", False):
                a_signed = b_signed
            elif getattr(b, "flexible", False) and not getattr(a, "flexible", False):
                b_signed = a_signed
            if op in ("/", "%") and (a_signed or b_signed) and self.constant(node) is None and left != right:
                self.warn(operation(node), "signed operands for '%s' can lead to undefined behavior (cast to unsigned to "
                          "silence warning)" % op)
            result = INT64 if a_signed or b_signed or op == "-" else UINT64
            self.lossy(left_node, left, result)
            self.lossy(right_node, right, result)
            return result
        if op in ("==", "!="):
            if isinstance(left, String) and isinstance(right, String):
                return BOOL
            if type(left) is type(right) and isinstance(left, (Tuple, types.Array, types.Buffer,
                                                                           types.Record)):
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
                if op in COMPARISONS:
                    self.distinct_pointers(node, left, right)
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
        live = self.live_branches(node)
        if len(live) < 2:
            sides = [self.expr(part, void=True) for part in live]
            return sides[0] if sides and (node.otherwise is not None) else None
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
        return types.record([(element.name, self.expr(element.value)) for element in node.elements])

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
        if isinstance(kind, (types.Array, String)):
            constant, count = self.constant(node.index), kind.size if isinstance(kind, String) else kind.count
            if isinstance(constant, int) and constant < 0:
                self.error(node, "The array index operator [] only accepts non-negative integer indices. Got: %s" % type_text(index))
            if isinstance(constant, int) and count and constant >= count:
                self.error(node, "the index %d is out of bounds for array of size %d" % (constant, count))
            return INT8 if isinstance(kind, String) else kind.element
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
            self.error(node, "Record does not contain a field named '%s'" % node.name)
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
            if isinstance(node, ast.Offsetof):
                self.error(node, "'%s %s' has no field named '%s'" % (bare.kind, bare.name, name))
            title = getattr(node.operand.type, "title", None) or "%s %s" % (bare.kind, bare.name)
            self.error(node, "Struct/union of type '%s' does not contain a field named '%s'" % (title, name),
                       near and ["Did you mean %s?" % " or ".join(near)])
        return field

    def c_value(self, c_type, user):
        """The script type of C data in user (True) or kernel memory."""
        kind = types.from_c(c_type, user)
        if isinstance(kind, String):
            return String(kind.size, whole=True)
        if isinstance(kind, types.CRecord):
            kind.c_type = self.script.complete(kind.c_type)
            kind.size = kind.c_type.size
            kind.user = user
        return kind

    def _Cast(self, node):
        source = self.expr(node.operand)
        target = self._cast_to(node, source, self.written_type(node.target))
        if self.final and type_text(source) == type_text(target) and not self.aggregated(node.operand):
            self.warn(node, "Unnecessary cast: expression is already of type %s" % type_text(source))
        return target

    def _cast_to(self, node, source, target):
        """The type of a cast: a pointer keeps its memory, an array without a count takes the value's."""
        numbers = (Integer, Pointer, types.Boolean)
        if isinstance(source, types.CRecord):
            self.error(node, "Cannot cast from C type \"%s\"" % type_text(source))
        if isinstance(target, Pointer):
            user = source.user if isinstance(source, Pointer) else self.space(node.operand)
            return Pointer(target.target, self.point.user_space if user is None else user)
        if isinstance(target, Integer):
            fits = isinstance(source, numbers) or isinstance(source, types.Array) and source.size == target.size
            if target.enum is not None:
                target = Integer(8, target.signed, target.enum)
                if isinstance(node.operand, ast.Integer):
                    self._check_enumerator(node, target, node.operand.value)
        elif isinstance(target, types.Boolean):
            fits = isinstance(source, numbers)
        elif isinstance(target, String):
            fits = isinstance(source, String) and (not target.size or target.size >= source.size)
            target = source if fits and not target.size else target
        else:
            fits = isinstance(target, types.Array)
            if fits:
                target, fits = self._cast_to_array(node, source, target)
        if not fits:
            self.error(node, "Cannot cast from \"%s\" to \"%s\"" % (type_text(source), type_text(target)))
        return target

    def _check_enumerator(self, node, target, value):
        values = target.enum.values
        if value not in (values.values() if hasattr(values, "values") else [number for _, number in values]):
            self.error(node, "Enum: %s doesn't contain a variant value of %d" % (target.enum.name, value))

    def _cast_to_array(self, node, source, target):
        """(type, whether it can be)"""
        element = target.element
        if not target.count:
            if source.size % element.size:
                self.error(node, "Cannot determine array size: the element size is incompatible with the cast "
                           "integer size")
            target = types.Array(element, source.size // element.size)
        if isinstance(source, Integer) and source.size < target.size <= 8:
            return target, isinstance(element, (Integer, types.Boolean))
        return target, source == target or (
            isinstance(element, (Integer, types.Boolean)) and target.size == source.size
            and isinstance(source, (Integer, types.Boolean, String)))

    def space(self, node):
        """Which memory a number means as an address: True user, False kernel, None unknown."""
        if isinstance(node.type, Pointer):
            return node.type.user
        if isinstance(node, (ast.Identifier, ast.Call)):
            entry = builtins.lookup(node.name)
            space = getattr(entry, "space", None)
            if space is not None:
                return space(self)
        if isinstance(node, ast.Variable):
            return self.unit.used[id(node)].space if id(node) in self.unit.used else None
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
        return self.type_of(operand).size

    def type_of(self, operand):
        self.meta += 1
        try:
            return self._type_of(operand)
        finally:
            self.meta -= 1

    def _type_of(self, operand):
        """The type that the operand of sizeof or typeinfo is or has."""
        if isinstance(operand, (ast.NamedType, ast.PointerType, ast.ArrayType, ast.Typeof)):
            return self.written_type(operand)
        if isinstance(operand, ast.Identifier) and builtins.lookup(operand.name) is None:
            if operand.name in SIMPLE:
                return SIMPLE[operand.name]
            named = self.named_type("", operand.name)
            if named is not None:
                return self.c_value(named, None)
        if isinstance(operand, ast.Map):
            var = self.map_variable(operand)
            if var.scalar is False:         # a map with keys means the type of those
                if var.key is None:
                    raise Unresolved()
                return var.key
            if var.value is not None and isinstance(var.value, Aggregate):
                return var.value
        if isinstance(operand, ast.MapAccess):
            var = self.map_target(operand)
            if var.value is not None and isinstance(var.value, Aggregate):
                operand.type = var.value.scalar_type
                return var.value
        return self.expr(operand)

    def _Offsetof(self, node):
        self.meta += 1
        self.unit.sizes[id(node)] = self.offset_of(node)
        self.meta -= 1
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
        """A record of literals. What the language itself is made of may use it without the setting."""
        if not node.span.source.name.startswith("stdlib/"):
            self.unstable(node, "typeinfo")
        kind = self.type_of(node.operand)
        info = ast.Record(node.span, [])
        for name, value in (("btf_id", ast.Integer(node.span, 0)), ("base_type", ast.String(node.span, base_text(kind))),
                            ("full_type", ast.String(node.span, type_text(kind)))):
            info.elements.append(ast.Named(node.span, name, value))
        self.unit.infos[id(node)] = info
        return self.expr(info)

    def _Comptime(self, node):
        kind = self.expr(node.operand)
        if self.constant(node.operand) is None:
            self.error(node, "Unable to resolve comptime expression")
        return kind
