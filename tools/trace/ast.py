"""The syntax tree of a script.

Every node has a `span`; `children()` gives its child nodes in source order. Nodes say what was
written, with three conveniences: compound assignment keeps its operator, a predicate stays apart
from the block, and `->` and `.` are both `FieldAccess`.

Built-in variables, enum constants and names of C constants are all `Identifier`: which of them a
name is belongs to the compiler. Types are `NamedType`, `PointerType`, `ArrayType` or
`Typeof(expression)`; where the grammar cannot tell a type from an expression (`sizeof(x)`), the
operand is an `Identifier`.
"""

from .ast_expr import (Expr, Block, If, Ternary, Integer, String, Bool, Identifier, Positional,
    PositionalCount, Variable, Map, MapAccess, Call, Unary, Increment, AddressOf, Binary, FieldAccess,
    TupleAccess, ArrayAccess, Tuple, Record, Named, Cast, Sizeof, Offsetof, Typeinfo, Comptime, NamedType,
    PointerType, ArrayType, Typeof)   # noqa: F401
from .ast_node import Node, clone, transform  # noqa: F401


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
