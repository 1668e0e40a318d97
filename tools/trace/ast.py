"""The syntax tree of a script.

Every node has a `span`; `children()` gives its child nodes in source order. Nodes say what was
written, with three conveniences: compound assignment keeps its operator, a predicate stays apart
from the block, and `->` and `.` are both `FieldAccess`.

Built-in variables, enum constants and names of C constants are all `Identifier`: which of them a
name is belongs to the compiler. Types are `NamedType`, `PointerType`, `ArrayType` or
`Typeof(expression)`; where the grammar cannot tell a type from an expression (`sizeof(x)`), the
operand is an `Identifier`.
"""


class Node:
    """`fields` names the attributes that hold child nodes: a node, a list of nodes, or None."""

    __slots__ = ("span",)
    fields = ()

    def children(self):
        for name in self.fields:
            child = getattr(self, name)
            if child is None:
                continue
            if isinstance(child, list):
                yield from child
            else:
                yield child

    def walk(self):
        """This node and everything below it, parents first. Does not recurse."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(list(node.children())))

    def __repr__(self):
        from .printer import text
        return "<%s %s>" % (type(self).__name__, text(self))


def transform(node, change):
    """Replaces nodes below `node`, children first: each child becomes `change(child)` (which may
    return the child itself). Returns `change(node)`."""
    for name in node.fields:
        child = getattr(node, name)
        if child is None:
            continue
        if isinstance(child, list):
            child[:] = [transform(item, change) for item in child]
        else:
            new = transform(child, change)
            if new is not child:
                setattr(node, name, new)
    return change(node)


def clone(node):
    """A copy of the tree below `node`; spans and other values are shared."""
    new = object.__new__(type(node))
    for kind in type(node).__mro__[:-1]:
        for slot in kind.__slots__:
            if hasattr(node, slot):
                setattr(new, slot, getattr(node, slot))
    for name in node.fields:
        child = getattr(node, name)
        if isinstance(child, list):
            setattr(new, name, [clone(item) for item in child])
        elif child is not None:
            setattr(new, name, clone(child))
    return new


# ---- the script as a whole ----

class Script(Node):
    """`items` are all of the parts in source order; the other lists are the same by kind.
    `header` is the `#!` line or None, `source` the Source."""

    __slots__ = ("source", "header", "items")
    fields = ("items",)

    def __init__(self, span, source, header, items):
        self.span = span
        self.source = source
        self.header = header
        self.items = items

    def of(self, kind):
        return [item for item in self.items if isinstance(item, kind)]

    @property
    def probes(self):
        return self.of(Probe)

    @property
    def macros(self):
        return self.of(Macro)

    @property
    def functions(self):
        return self.of(Function)

    @property
    def map_declarations(self):
        return self.of(MapDeclaration)

    @property
    def imports(self):
        return self.of(Import)

    @property
    def definitions(self):
        return self.of(CDefinition)

    @property
    def config(self):
        """The Config or None (there is at most one)."""
        found = self.of(Config)
        return found[0] if found else None


class CDefinition(Node):
    """C source text: a `#define`, `#include`, ... line or a struct, union or enum definition."""

    __slots__ = ("text",)

    def __init__(self, span, text):
        self.span = span
        self.text = text


class Config(Node):
    """`config = { name = value; ... }`"""

    __slots__ = ("settings",)
    fields = ("settings",)

    def __init__(self, span, settings):
        self.span = span
        self.settings = settings


class Setting(Node):
    """One line of a config block; `value` is an int, a bool or a str."""

    __slots__ = ("name", "value")

    def __init__(self, span, name, value):
        self.span = span
        self.name = name
        self.value = value


class Import(Node):
    """`import "name";` at the top or (as a statement) in a block."""

    __slots__ = ("name",)

    def __init__(self, span, name):
        self.span = span
        self.name = name


class MapDeclaration(Node):
    """`let @name = type(max_entries);`; `name` includes the `@`."""

    __slots__ = ("name", "type", "max_entries")

    def __init__(self, span, name, type, max_entries):
        self.span = span
        self.name = name
        self.type = type
        self.max_entries = max_entries


class Macro(Node):
    """`macro name(parameters) { ... }`; parameters are Variable, Map or Identifier."""

    __slots__ = ("name", "parameters", "body")
    fields = ("parameters", "body")

    def __init__(self, span, name, parameters, body):
        self.span = span
        self.name = name
        self.parameters = parameters
        self.body = body


class Function(Node):
    """`fn name($a : type, ...) : type { ... }`"""

    __slots__ = ("name", "parameters", "returns", "body")
    fields = ("parameters", "returns", "body")

    def __init__(self, span, name, parameters, returns, body):
        self.span = span
        self.name = name
        self.parameters = parameters
        self.returns = returns
        self.body = body


class Parameter(Node):
    """A parameter of a Function."""

    __slots__ = ("variable", "declared")
    fields = ("variable", "declared")

    def __init__(self, span, variable, declared):
        self.span = span
        self.variable = variable
        self.declared = declared


class Probe(Node):
    """Attach points, an optional predicate and a block. The span covers the attach points."""

    __slots__ = ("attach_points", "predicate", "block")
    fields = ("attach_points", "predicate", "block")

    def __init__(self, span, attach_points, predicate, block):
        self.span = span
        self.attach_points = attach_points
        self.predicate = predicate
        self.block = block


class AttachPoint(Node):
    """`text` as it was written; `parts` are its parts between colons, with quotes removed and
    positional parameters filled in; `kind` is parts[0]; `label` is "x" in `x=kprobe:f`, or None."""

    __slots__ = ("text", "parts", "label")

    def __init__(self, span, text, parts, label=None):
        self.span = span
        self.text = text
        self.parts = parts
        self.label = label

    @property
    def kind(self):
        return self.parts[0]


# ---- statements ----

class ExprStatement(Node):
    """An expression for its effect (calls, `++`, an If, a Block)."""

    __slots__ = ("expr",)
    fields = ("expr",)

    def __init__(self, span, expr):
        self.span = span
        self.expr = expr


class Discard(Node):
    """`_ = expr;`"""

    __slots__ = ("expr",)
    fields = ("expr",)

    def __init__(self, span, expr):
        self.span = span
        self.expr = expr


class Assign(Node):
    """`target op= value`. `op` is "" for plain assignment, else "+", "<<", ...; the target is a
    Variable, a Map, a MapAccess, or the VarDecl of `let $x = value` (whose op is "")."""

    __slots__ = ("target", "op", "value")
    fields = ("target", "value")

    def __init__(self, span, target, op, value):
        self.span = span
        self.target = target
        self.op = op
        self.value = value


class VarDecl(Node):
    """`let $x` with an optional type."""

    __slots__ = ("variable", "declared")
    fields = ("variable", "declared")

    def __init__(self, span, variable, declared):
        self.span = span
        self.variable = variable
        self.declared = declared


class While(Node):
    __slots__ = ("condition", "body")
    fields = ("condition", "body")

    def __init__(self, span, condition, body):
        self.span = span
        self.condition = condition
        self.body = body


class Unroll(Node):
    __slots__ = ("count", "body")
    fields = ("count", "body")

    def __init__(self, span, count, body):
        self.span = span
        self.count = count
        self.body = body


class For(Node):
    """`for $variable : iterable { ... }`; the iterable is a Map or a Range."""

    __slots__ = ("variable", "iterable", "body")
    fields = ("variable", "iterable", "body")

    def __init__(self, span, variable, iterable, body):
        self.span = span
        self.variable = variable
        self.iterable = iterable
        self.body = body


class Range(Node):
    """`first..end`, the end not included."""

    __slots__ = ("first", "end")
    fields = ("first", "end")

    def __init__(self, span, first, end):
        self.span = span
        self.first = first
        self.end = end


class Break(Node):
    __slots__ = ()

    def __init__(self, span):
        self.span = span


class Continue(Node):
    __slots__ = ()

    def __init__(self, span):
        self.span = span


class Return(Node):
    __slots__ = ("value",)
    fields = ("value",)

    def __init__(self, span, value):
        self.span = span
        self.value = value


# ---- expressions ----

class Expr(Node):
    """`type` is free for the compiler."""

    __slots__ = ("type",)


class Block(Expr):
    """`{ statements }`, or with `value` the block expression `{ statements value }`."""

    __slots__ = ("statements", "value")
    fields = ("statements", "value")

    def __init__(self, span, statements, value=None):
        self.span = span
        self.statements = statements
        self.value = value


class If(Expr):
    """`if condition { } else ...`, as a statement or for its value. `then` is a Block; `otherwise`
    a Block, another If, or None."""

    __slots__ = ("condition", "then", "otherwise")
    fields = ("condition", "then", "otherwise")

    def __init__(self, span, condition, then, otherwise):
        self.span = span
        self.condition = condition
        self.then = then
        self.otherwise = otherwise


class Ternary(Expr):
    """`condition ? then : otherwise`; `then` is None in `condition ?: otherwise`."""

    __slots__ = ("condition", "then", "otherwise")
    fields = ("condition", "then", "otherwise")

    def __init__(self, span, condition, then, otherwise):
        self.span = span
        self.condition = condition
        self.then = then
        self.otherwise = otherwise


class Integer(Expr):
    """`value` is the literal with suffix and exponent applied, 0 <= value < 2**64; `text` how it
    was written; `suffix` "", "u", "ul", "ull", "l", "ll", "ns", "us", "ms", "s", "m", "h", "d"."""

    __slots__ = ("value", "text", "suffix")

    def __init__(self, span, value, text=None, suffix=""):
        self.span = span
        self.value = value
        self.text = text
        self.suffix = suffix


class String(Expr):
    """`value` is a str; bytes that are not UTF-8 are surrogate escapes."""

    __slots__ = ("value",)

    def __init__(self, span, value):
        self.span = span
        self.value = value


class Bool(Expr):
    __slots__ = ("value",)

    def __init__(self, span, value):
        self.span = span
        self.value = value


class Identifier(Expr):
    """A bare name: built-in variable, enum constant, C constant, macro, stack mode, ..."""

    __slots__ = ("name",)

    def __init__(self, span, name):
        self.span = span
        self.name = name


class Positional(Expr):
    """`$1`"""

    __slots__ = ("index",)

    def __init__(self, span, index):
        self.span = span
        self.index = index


class PositionalCount(Expr):
    """`$#`"""

    __slots__ = ()

    def __init__(self, span):
        self.span = span


class Variable(Expr):
    """`$name`; `name` includes the `$`."""

    __slots__ = ("name",)

    def __init__(self, span, name):
        self.span = span
        self.name = name


class Map(Expr):
    """`@name` without a key; `name` includes the `@` (and is "@" for the anonymous map)."""

    __slots__ = ("name",)

    def __init__(self, span, name):
        self.span = span
        self.name = name


class MapAccess(Expr):
    """`@name[key, ...]`. `map` is a Map and `keys` the list of written keys; `@x[(1, 2)]` has one
    key, a Tuple (and means the same as `@x[1, 2]`)."""

    __slots__ = ("map", "keys")
    fields = ("map", "keys")

    def __init__(self, span, map, keys):
        self.span = span
        self.map = map
        self.keys = keys

    @property
    def name(self):
        return self.map.name


class Call(Expr):
    """`name(arguments)`; an argument may also be a Typeof."""

    __slots__ = ("name", "arguments")
    fields = ("arguments",)

    def __init__(self, span, name, arguments):
        self.span = span
        self.name = name
        self.arguments = arguments


class Unary(Expr):
    """`op` is "-", "!", "~", or "*" (dereference)."""

    __slots__ = ("op", "operand")
    fields = ("operand",)

    def __init__(self, span, op, operand):
        self.span = span
        self.op = op
        self.operand = operand


class Increment(Expr):
    """`++x`, `x++`, `--x`, `x--` of a Variable, Map or MapAccess. `op` is "++" or "--"; `prefix`
    says that the value is the new one."""

    __slots__ = ("op", "prefix", "target")
    fields = ("target",)

    def __init__(self, span, op, prefix, target):
        self.span = span
        self.op = op
        self.prefix = prefix
        self.target = target


class AddressOf(Expr):
    """`&$x` or `&@x`."""

    __slots__ = ("operand",)
    fields = ("operand",)

    def __init__(self, span, operand):
        self.span = span
        self.operand = operand


class Binary(Expr):
    """`op`: `+ - * / % & | ^ << >> == != < <= > >= && ||`"""

    __slots__ = ("op", "left", "right")
    fields = ("left", "right")

    def __init__(self, span, op, left, right):
        self.span = span
        self.op = op
        self.left = left
        self.right = right


class FieldAccess(Expr):
    """`operand.name` or `operand->name`."""

    __slots__ = ("operand", "name")
    fields = ("operand",)

    def __init__(self, span, operand, name):
        self.span = span
        self.operand = operand
        self.name = name


class TupleAccess(Expr):
    """`operand.0`"""

    __slots__ = ("operand", "index")
    fields = ("operand",)

    def __init__(self, span, operand, index):
        self.span = span
        self.operand = operand
        self.index = index


class ArrayAccess(Expr):
    """`operand[index]`"""

    __slots__ = ("operand", "index")
    fields = ("operand", "index")

    def __init__(self, span, operand, index):
        self.span = span
        self.operand = operand
        self.index = index


class Tuple(Expr):
    __slots__ = ("elements",)
    fields = ("elements",)

    def __init__(self, span, elements):
        self.span = span
        self.elements = elements


class Record(Expr):
    """`(name=value, ...)`; the elements are Named."""

    __slots__ = ("elements",)
    fields = ("elements",)

    def __init__(self, span, elements):
        self.span = span
        self.elements = elements


class Named(Node):
    """`name=value` in a Record."""

    __slots__ = ("name", "value")
    fields = ("value",)

    def __init__(self, span, name, value):
        self.span = span
        self.name = name
        self.value = value


class Cast(Expr):
    """`(target)operand`; the target is a type node or Typeof."""

    __slots__ = ("target", "operand")
    fields = ("target", "operand")

    def __init__(self, span, target, operand):
        self.span = span
        self.target = target
        self.operand = operand


class Sizeof(Expr):
    """`sizeof(operand)`; a type node or an expression (maybe an Identifier that names a type)."""

    __slots__ = ("operand",)
    fields = ("operand",)

    def __init__(self, span, operand):
        self.span = span
        self.operand = operand


class Offsetof(Expr):
    """`offsetof(operand, a.b.c)`; `path` is ["a", "b", "c"]."""

    __slots__ = ("operand", "path")
    fields = ("operand",)

    def __init__(self, span, operand, path):
        self.span = span
        self.operand = operand
        self.path = path


class Typeinfo(Expr):
    """`typeinfo(operand)`"""

    __slots__ = ("operand",)
    fields = ("operand",)

    def __init__(self, span, operand):
        self.span = span
        self.operand = operand


class Comptime(Expr):
    """`comptime operand`: must be known when the script is compiled."""

    __slots__ = ("operand",)
    fields = ("operand",)

    def __init__(self, span, operand):
        self.span = span
        self.operand = operand


# ---- types as they are written ----

class NamedType(Node):
    """`int32`, `struct task_struct`, ...; `kind` is "", "struct", "union" or "enum"."""

    __slots__ = ("kind", "name")

    def __init__(self, span, kind, name):
        self.span = span
        self.kind = kind
        self.name = name

    @property
    def full_name(self):
        return self.kind + " " + self.name if self.kind else self.name


class PointerType(Node):
    __slots__ = ("target",)
    fields = ("target",)

    def __init__(self, span, target):
        self.span = span
        self.target = target


class ArrayType(Node):
    """`element[count]`; count 0 when none is written."""

    __slots__ = ("element", "count")
    fields = ("element",)

    def __init__(self, span, element, count):
        self.span = span
        self.element = element
        self.count = count


class Typeof(Node):
    """`typeof(operand)`: the type of an expression (or a type node, as a macro's argument)."""

    __slots__ = ("operand",)
    fields = ("operand",)

    def __init__(self, span, operand):
        self.span = span
        self.operand = operand
