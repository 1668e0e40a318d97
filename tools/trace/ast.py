"""The syntax tree of a script.

Every node has a `span`; `children()` gives its child nodes in source order. Nodes say what was
written, with three conveniences: compound assignment keeps its operator, a predicate stays apart
from the block, and `->` and `.` are both `FieldAccess`.

Built-in variables, enum constants and names of C constants are all `Identifier`: which of them a
name is belongs to the compiler. Types are `NamedType`, `PointerType`, `ArrayType` or
`Typeof(expression)`; where the grammar cannot tell a type from an expression (`sizeof(x)`), the
operand is an `Identifier`.
"""

from .ast_node import Node, clone, transform  # noqa: F401


# ---- expressions ----

class Expr(Node):
    """`type` is free for the compiler."""

    __slots__ = ("type",)


class Block(Expr):
    """`{ statements }`, or with `value` the block expression `{ statements value }`."""

    __slots__ = ("statements", "value")
    fields = ("statements", "value")
    defaults = (None,)


class If(Expr):
    """`if condition { } else ...`, as a statement or for its value. `then` is a Block; `otherwise`
    a Block, another If, or None."""

    __slots__ = ("condition", "then", "otherwise")
    fields = ("condition", "then", "otherwise")


class Ternary(Expr):
    """`condition ? then : otherwise`; `then` is None in `condition ?: otherwise`."""

    __slots__ = ("condition", "then", "otherwise")
    fields = ("condition", "then", "otherwise")


class Integer(Expr):
    """`value` is the literal with suffix and exponent applied, 0 <= value < 2**64; `text` how it
    was written; `suffix` "", "u", "ul", "ull", "l", "ll", "ns", "us", "ms", "s", "m", "h", "d"."""

    __slots__ = ("value", "text", "suffix")
    defaults = (None, "")


class String(Expr):
    """`value` is a str; bytes that are not UTF-8 are surrogate escapes."""

    __slots__ = ("value",)


class Bool(Expr):
    __slots__ = ("value",)


class Identifier(Expr):
    """A bare name: built-in variable, enum constant, C constant, macro, stack mode, ..."""

    __slots__ = ("name",)


class Positional(Expr):
    """`$1`"""

    __slots__ = ("index",)


class PositionalCount(Expr):
    """`$#`"""

    __slots__ = ()


class Variable(Expr):
    """`$name`; `name` includes the `$`."""

    __slots__ = ("name",)


class Map(Expr):
    """`@name` without a key; `name` includes the `@` (and is "@" for the anonymous map)."""

    __slots__ = ("name",)


class MapAccess(Expr):
    """`@name[key, ...]`. `map` is a Map and `keys` the list of written keys; `@x[(1, 2)]` has one
    key, a Tuple (and means the same as `@x[1, 2]`)."""

    __slots__ = ("map", "keys")
    fields = ("map", "keys")

    @property
    def name(self):
        return self.map.name


class Call(Expr):
    """`name(arguments)`; an argument may also be a Typeof."""

    __slots__ = ("name", "arguments")
    fields = ("arguments",)


class Unary(Expr):
    """`op` is "-", "!", "~", or "*" (dereference)."""

    __slots__ = ("op", "operand")
    fields = ("operand",)


class Increment(Expr):
    """`++x`, `x++`, `--x`, `x--` of a Variable, Map or MapAccess. `op` is "++" or "--"; `prefix`
    says that the value is the new one."""

    __slots__ = ("op", "prefix", "target")
    fields = ("target",)


class AddressOf(Expr):
    """`&$x` or `&@x`."""

    __slots__ = ("operand",)
    fields = ("operand",)


class Binary(Expr):
    """`op`: `+ - * / % & | ^ << >> == != < <= > >= && ||`"""

    __slots__ = ("op", "left", "right")
    fields = ("left", "right")


class FieldAccess(Expr):
    """`operand.name` or `operand->name`."""

    __slots__ = ("operand", "name")
    fields = ("operand",)


class TupleAccess(Expr):
    """`operand.0`"""

    __slots__ = ("operand", "index")
    fields = ("operand",)


class ArrayAccess(Expr):
    """`operand[index]`"""

    __slots__ = ("operand", "index")
    fields = ("operand", "index")


class Tuple(Expr):
    __slots__ = ("elements",)
    fields = ("elements",)


class Record(Expr):
    """`(name=value, ...)`; the elements are Named."""

    __slots__ = ("elements",)
    fields = ("elements",)


class Named(Node):
    """`name=value` in a Record."""

    __slots__ = ("name", "value")
    fields = ("value",)


class Cast(Expr):
    """`(target)operand`; the target is a type node or Typeof."""

    __slots__ = ("target", "operand")
    fields = ("target", "operand")


class Sizeof(Expr):
    """`sizeof(operand)`; a type node or an expression (maybe an Identifier that names a type)."""

    __slots__ = ("operand",)
    fields = ("operand",)


class Offsetof(Expr):
    """`offsetof(operand, a.b.c)`; `path` is ["a", "b", "c"]."""

    __slots__ = ("operand", "path")
    fields = ("operand",)


class Typeinfo(Expr):
    """`typeinfo(operand)`"""

    __slots__ = ("operand",)
    fields = ("operand",)


class Comptime(Expr):
    """`comptime operand`: must be known when the script is compiled."""

    __slots__ = ("operand",)
    fields = ("operand",)


# ---- types as they are written ----

class NamedType(Node):
    """`int32`, `struct task_struct`, ...; `kind` is "", "struct", "union" or "enum"."""

    __slots__ = ("kind", "name")

    @property
    def full_name(self):
        return self.kind + " " + self.name if self.kind else self.name


class PointerType(Node):
    __slots__ = ("target",)
    fields = ("target",)


class ArrayType(Node):
    """`element[count]`; count 0 when none is written."""

    __slots__ = ("element", "count")
    fields = ("element",)


class Typeof(Node):
    """`typeof(operand)`: the type of an expression (or a type node, as a macro's argument)."""

    __slots__ = ("operand",)
    fields = ("operand",)


# ---- the script as a whole ----

class Script(Node):
    """`items` are all of the parts in source order; the other lists are the same by kind.
    `header` is the `#!` line or None, `source` the Source."""

    __slots__ = ("source", "header", "items")
    fields = ("items",)

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


class Config(Node):
    """`config = { name = value; ... }`"""

    __slots__ = ("settings",)
    fields = ("settings",)


class Setting(Node):
    """One line of a config block; `value` is an int, a bool or a str."""

    __slots__ = ("name", "value")


class Import(Node):
    """`import "name";` at the top or (as a statement) in a block."""

    __slots__ = ("name",)


class MapDeclaration(Node):
    """`let @name = type(max_entries);`; `name` includes the `@`."""

    __slots__ = ("name", "type", "max_entries")


class Macro(Node):
    """`macro name(parameters) { ... }`; parameters are Variable, Map or Identifier."""

    __slots__ = ("name", "parameters", "body")
    fields = ("parameters", "body")


class Function(Node):
    """`fn name($a : type, ...) : type { ... }`"""

    __slots__ = ("name", "parameters", "returns", "body")
    fields = ("parameters", "returns", "body")


class Parameter(Node):
    """A parameter of a Function."""

    __slots__ = ("variable", "declared")
    fields = ("variable", "declared")


class Probe(Node):
    """Attach points, an optional predicate and a block. The span covers the attach points."""

    __slots__ = ("attach_points", "predicate", "block")
    fields = ("attach_points", "predicate", "block")


class AttachPoint(Node):
    """`text` as it was written; `parts` are its parts between colons, with quotes removed and
    positional parameters filled in; `kind` is parts[0]; `label` is "x" in `x=kprobe:f`, or None."""

    __slots__ = ("text", "parts", "label")
    defaults = (None,)

    @property
    def kind(self):
        return self.parts[0]


# ---- statements ----

class ExprStatement(Node):
    """An expression for its effect (calls, `++`, an If, a Block)."""

    __slots__ = ("expr",)
    fields = ("expr",)


class Discard(Node):
    """`_ = expr;`"""

    __slots__ = ("expr",)
    fields = ("expr",)


class Assign(Node):
    """`target op= value`. `op` is "" for plain assignment, else "+", "<<", ...; the target is a
    Variable, a Map, a MapAccess, or the VarDecl of `let $x = value` (whose op is "")."""

    __slots__ = ("target", "op", "value")
    fields = ("target", "value")


class VarDecl(Node):
    """`let $x` with an optional type."""

    __slots__ = ("variable", "declared")
    fields = ("variable", "declared")


class While(Node):
    __slots__ = ("condition", "body")
    fields = ("condition", "body")


class Unroll(Node):
    __slots__ = ("count", "body")
    fields = ("count", "body")


class For(Node):
    """`for $variable : iterable { ... }`; the iterable is a Map or a Range."""

    __slots__ = ("variable", "iterable", "body")
    fields = ("variable", "iterable", "body")


class Range(Node):
    """`first..end`, the end not included."""

    __slots__ = ("first", "end")
    fields = ("first", "end")


class Break(Node):
    __slots__ = ()


class Continue(Node):
    __slots__ = ()


class Return(Node):
    __slots__ = ("value",)
    fields = ("value",)
