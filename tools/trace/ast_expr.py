"""The nodes of expressions and types (see ast.py, which has all nodes)."""

from .ast_node import Node


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
