"""Expressions and types of the script language, by precedence climbing.

The grammar is that of bpftrace 0.27 (`docs/language.md`, `docs/language_parsing.md`) and, beyond
it, what older scripts and C habits bring: adjacent string literals, character literals, casts to
`unsigned int` and the like, `name!()` for macros.
"""

import re

from . import ast
from .diagnostics import Span
from .lexer import SKIP, TOKEN, Lexer

PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}

TYPE_NAMES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 void min_t max_t sum_t count_t avg_t "
    "stats_t umin_t umax_t usum_t uavg_t ustats_t timestamp macaddr_t cgroup_path_t string buffer "
    "inet username_t".split())
C_TYPE_WORDS = frozenset("unsigned signed char short int long".split())
TAGS = frozenset(("struct", "union", "enum"))
QUALIFIERS = frozenset(("const", "volatile"))

# Names that are a value, so that `(name) - 1` is arithmetic and not a cast.
VALUES = frozenset(
    "args ctx kstack nsecs pid tid ustack comm cpid cpu curtask elapsed func gid jiffies ncpus "
    "numaid ppid probe probetype rand retval uid usermode username cgroup".split())
NUMBERED = re.compile(r"s?arg[0-9]+\Z").match

# What an expression can start with, after the `)` of a cast.
OPERAND_KINDS = frozenset("name variable map int string param count char".split())
OPERAND_STARTS = frozenset(("(", "-", "!", "~", "*", "&", "++", "--"))
REFERENCE_ENDS = frozenset(";,={})")

MAX_NESTING = 250      # levels; keeps the parser and what comes after it off Python's limit
MAX_CHAIN = 1000       # depth of a tree that grows without nesting: 1 + 1 + ..., else if ...


def is_value(name):
    return name in VALUES or name.startswith("__builtin_") or NUMBERED(name) is not None


def is_type_word(word):
    return word in C_TYPE_WORDS or word in TAGS or word in QUALIFIERS or word in TYPE_NAMES


class TooDeep(Exception):
    """Ends the parse; the error is already among the diagnostics."""


class ExpressionParser(Lexer):
    """Every method starts at the current token and leaves the first one that it does not use."""

    def __init__(self, source, diagnostics):
        super().__init__(source, diagnostics)
        self.depth = 0
        self.chain = 0          # how much deeper than `depth` the tree may have grown
        self.defined = set()    # names that a #define makes values

    def deeper(self):
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.error("nested too deeply (more than %d levels)" % MAX_NESTING)
            raise TooDeep

    # ---- operators ----

    def expression(self):
        self.deeper()
        expr = self.binary(self.unary(), 1)
        if self.value == "?":
            expr = self.ternary(expr)
        self.depth -= 1
        return expr

    def ternary(self, condition):
        start = condition.span.start
        self.next()
        if self.value == ":":
            self.next()
            otherwise = self.expression()
            return ast.Ternary(self.span(start), condition, None, otherwise)
        then = self.expression()
        self.expect(":")
        otherwise = self.expression()
        return ast.Ternary(self.span(start), condition, then, otherwise)

    def binary(self, left, least):
        """Continues `left` with operators of precedence `least` and above."""
        while True:
            op = self.value
            precedence = PRECEDENCE.get(op, 0)
            if precedence < least:
                return left
            if op == "/" and self.text.startswith("{", SKIP(self.text, self.stop).end()):
                return left     # the end of a predicate
            self.chain += 1
            self.next()
            right = self.unary()
            if PRECEDENCE.get(self.value, 0) > precedence:
                right = self.binary(right, precedence + 1)
            left = ast.Binary(Span(self.source, left.span.start, self.pos), op, left, right)

    def unary(self):
        op = self.value
        if op == "-" or op == "!" or op == "*" or op == "~":
            start = self.start
            self.next()
            self.deeper()
            operand = self.unary()
            self.depth -= 1
            return ast.Unary(self.span(start), op, operand)
        if op == "++" or op == "--":
            start = self.start
            self.next()
            self.deeper()
            target = self.unary()
            self.depth -= 1
            if not isinstance(target, (ast.Variable, ast.Map, ast.MapAccess)):
                self.error("increment/decrement requires a variable or map",
                           target.span.start, target.span.end)
            return ast.Increment(self.span(start), op, True, target)
        if op == "&":
            return self.address()
        return self.postfix(self.primary())

    def address(self):
        start = self.start
        self.next()
        if self.kind == "variable":
            operand = self.variable()
        elif self.kind == "map":
            operand = self.map()
        else:
            self.error("address-of operator (&) can only be used on a map or variable")
            self.deeper()
            operand = self.unary()
            self.depth -= 1
        return ast.AddressOf(self.span(start), operand)

    def postfix(self, expr):
        while True:
            op = self.value
            if op == "." or op == "->":
                self.next()
                if self.kind == "int" and op == ".":
                    index = self.integer()[0]
                    expr = ast.TupleAccess(self.span(expr.span.start), expr, index)
                else:
                    name = self.name("expected field name after '%s'" % op)
                    if name is None:
                        return expr
                    expr = ast.FieldAccess(self.span(expr.span.start), expr, name)
            elif op == "[":
                self.next()
                index = self.expression()
                self.expect("]")
                expr = ast.ArrayAccess(self.span(expr.span.start), expr, index)
            elif op == "++" or op == "--":
                if not isinstance(expr, (ast.Variable, ast.Map, ast.MapAccess)):
                    start = self.start
                    self.next()
                    self.error("increment/decrement requires a variable or map", start, self.pos)
                    return expr
                self.next()
                expr = ast.Increment(self.span(expr.span.start), op, False, expr)
            else:
                return expr
            self.chain += 1

    # ---- what stands between operators ----

    def primary(self):
        kind = self.kind
        if kind == "name":
            return self.named()
        if kind == "variable":
            return self.variable()
        if kind == "map":
            return self.map_access()
        start = self.start
        if kind == "int":
            value, text, suffix = self.integer()
            return ast.Integer(self.span(start), value, text, suffix)
        if kind == "string" or kind == "open":
            value = self.string()
            return ast.String(self.span(start), value)
        if self.value == "(":
            return self.parentheses()
        if self.value == "{":
            self.deeper()
            block = self.block()
            self.depth -= 1
            return block or self.nothing()
        if kind == "count":
            self.next()
            return ast.PositionalCount(self.span(start))
        if kind == "param":
            return self.positional()
        if kind == "char":
            value = self.character()
            return ast.Integer(self.span(start), value, str(value))
        if self.value == "$":
            self.error("expected identifier after '$'")
        else:
            self.error("expected expression")
        return self.nothing()

    def nothing(self):
        """Stands for an expression that is not there, after an error."""
        return ast.Identifier(Span(self.source, self.pos, self.pos), "")

    def named(self):
        name, start = self.value, self.start
        if name in KEYWORDS:
            return KEYWORDS[name](self)
        self.next()
        if self.value == "(":
            return self.call(name, start)
        if self.value == "!" and self.peek() == "(":
            self.next()
            return self.call(name, start)
        if name == "true" or name == "false":
            return ast.Bool(Span(self.source, start, self.pos), name == "true")
        return ast.Identifier(Span(self.source, start, self.pos), name)

    def call(self, name, start):
        self.next()
        arguments = []
        if self.value != ")":
            arguments.append(self.argument())
            while self.match(","):
                arguments.append(self.argument())
        self.expect(")")
        return ast.Call(self.span(start), name, arguments)

    def argument(self):
        if self.value == "typeof":
            return self.typeof()
        return self.expression()

    def variable(self):
        name, start = self.value, self.start
        self.next()
        return ast.Variable(self.span(start), name)

    def map(self):
        name, start = self.value, self.start
        self.next()
        return ast.Map(self.span(start), name)

    def map_access(self):
        map = self.map()
        if self.value != "[":
            return map
        self.next()
        keys = [self.expression()]
        while self.match(","):
            keys.append(self.expression())
        self.expect("]")
        return ast.MapAccess(self.span(map.span.start), map, keys)

    def positional(self):
        text, start = self.value, self.start
        self.next()
        digits = text[1:].lstrip("0")
        if not digits or len(digits) > 19 or int(digits) >= 1 << 63:
            self.error("param %s is out of integer range [1, %d]" % (text, (1 << 63) - 1),
                       start, self.pos)
            digits = "1"
        return ast.Positional(self.span(start), int(digits))

    # ---- parentheses: (expr), (a, b), (a=1, b=2), (type)expr ----

    def parentheses(self):
        start = self.start
        self.next()
        if self.kind == "name":
            if self.peek() == "=" and not is_value(self.value):
                return self.record(start)
            if self.is_cast():
                return self.cast(start)
        elif self.match(")"):
            return ast.Tuple(self.span(start), [])
        expr = self.expression()
        if self.value != ",":
            self.expect(")")
            return expr
        elements = [expr]
        while self.match(",") and self.value != ")":
            elements.append(self.expression())
        self.expect(")")
        return ast.Tuple(self.span(start), elements)

    def record(self, start):
        """After the `(` at `start`."""
        elements, seen = [], set()
        while True:
            at = self.start
            name = self.name("expected identifier")
            if name is None:
                self.skip_parentheses()
                break
            self.expect("=")
            value = self.expression()
            element = ast.Named(self.span(at), name, value)
            if name in seen:
                self.error("Named argument list already contains name: " + name,
                           at, element.span.end)
            seen.add(name)
            elements.append(element)
            if not self.match(","):
                break
        self.expect(")")
        return ast.Record(self.span(start), elements)

    def skip_parentheses(self):
        """To the `)` of the innermost open `(`."""
        depth = 1
        while self.kind != "end":
            depth += (self.value == "(") - (self.value == ")")
            if not depth:
                return
            self.next()

    def type_ahead(self):
        """If the current name and what follows could be a type: its names, whether pointer or array
        suffixes follow, and the match of the token after that."""
        text, names, suffix = self.text, [self.value], False
        match = TOKEN(text, self.stop)
        while match.lastgroup == "name":
            names.append(match.group("name"))
            match = TOKEN(text, match.end())
        while True:
            value = match.group(match.lastgroup)
            if value == "[":
                match = TOKEN(text, match.end())
                if match.lastgroup == "int":
                    match = TOKEN(text, match.end())
                if match.group(match.lastgroup) != "]":
                    return names, False, match
            elif value != "*":
                return names, suffix, match
            suffix = True
            match = TOKEN(text, match.end())

    def is_cast(self):
        """Whether the name at hand, after a `(`, starts the type of a cast."""
        if self.value == "typeof":
            return True
        names, suffix, match = self.type_ahead()
        if match.group(match.lastgroup) != ")":
            return False
        match = TOKEN(self.text, match.end())
        if match.lastgroup not in OPERAND_KINDS and match.group(match.lastgroup) not in OPERAND_STARTS:
            return False
        first = names[0]
        if len(names) > 1:
            return first in TAGS or first in QUALIFIERS or first in C_TYPE_WORDS
        return not is_value(first) and (suffix or first not in self.defined)

    def cast(self, start):
        """After the `(` at `start`."""
        if self.value == "typeof":
            target = self.typeof()
        else:
            target = self.type()
        self.expect(")")
        span = self.span(start)
        self.deeper()
        operand = self.unary()
        self.depth -= 1
        return ast.Cast(span, target, operand)

    # ---- keywords ----

    def if_(self):
        """if (cond) { } else if (cond) { } else { }"""
        branches = []
        otherwise = None
        while True:
            start = self.start
            self.next()
            branches.append((start, self.condition(), self.block()))
            if self.value != "else":
                break
            self.next()
            if self.value == "if":
                self.chain += 1
                continue
            if self.value == "{":
                otherwise = self.block()
            else:
                self.error("expected '{' or 'if' after 'else'")
            break
        for start, condition, then in reversed(branches):
            otherwise = ast.If(self.span(start), condition, then, otherwise)
        return otherwise

    def condition(self):
        """Of an if, while or unroll: without parentheses only an operand."""
        if self.match("("):
            condition = self.expression()
            self.expect(")")
            return condition
        return self.unary()

    def sizeof(self):
        start = self.start
        self.next()
        self.expect("(")
        operand = self.type_or_expression()
        self.expect(")")
        return ast.Sizeof(self.span(start), operand)

    def typeinfo(self):
        start = self.start
        self.next()
        self.expect("(")
        operand = self.type_or_expression()
        self.expect(")")
        return ast.Typeinfo(self.span(start), operand)

    def offsetof(self):
        start = self.start
        self.next()
        self.expect("(")
        operand = self.type_or_expression()
        self.expect(",")
        path = [self.name("expected field name") or ""]
        while self.match("."):
            path.append(self.name("expected field name") or "")
        self.expect(")")
        return ast.Offsetof(self.span(start), operand, path)

    def comptime(self):
        start = self.start
        self.next()
        self.deeper()
        operand = self.unary()
        self.depth -= 1
        return ast.Comptime(self.span(start), operand)

    # ---- types ----

    def type(self):
        """`struct name *`, `int32`, `string[64]`, `unsigned long`, ...; None after an error."""
        while self.value in QUALIFIERS:
            self.next()
        start, kind = self.start, ""
        name = self.name("expected type name")
        if name is None:
            return None
        if name in TAGS:
            kind = name
            name = self.name("expected identifier")
            if name is None:
                return None
        elif name in C_TYPE_WORDS:
            while self.value in C_TYPE_WORDS:
                name += " " + self.value
                self.next()
        while self.value in QUALIFIERS:
            self.next()
        return self.type_suffixes(ast.NamedType(self.span(start), kind, name))

    def type_suffixes(self, type):
        start = type.span.start
        while True:
            if self.match("*"):
                type = ast.PointerType(self.span(start), type)
            elif self.value == "*=":                # `let $x : int8 *= ...`
                self.seek(self.start + 1)
                type = ast.PointerType(self.span(start), type)
            elif self.match("["):
                count = self.integer()[0] if self.kind == "int" else 0
                self.expect("]")
                type = ast.ArrayType(self.span(start), type, count)
            else:
                return type
            self.chain += 1

    def typeof(self):
        """`typeof(expression or type)`"""
        start = self.start
        self.next()
        self.expect("(")
        operand = self.type_or_expression()
        self.expect(")")
        return ast.Typeof(self.span(start), operand)

    def declared_type(self):
        """After the colon of a `let` or a parameter: a type node or Typeof; None after an error."""
        return self.typeof() if self.value == "typeof" else self.type()

    def type_or_expression(self):
        """The operand of sizeof, offsetof, typeinfo, typeof. A bare name that is not a built-in
        type stays an Identifier."""
        if self.value == "typeof":
            return self.typeof().operand
        if self.kind == "name":
            names, suffix, match = self.type_ahead()
            first = names[0]
            known = first in TYPE_NAMES or first in C_TYPE_WORDS
            if len(names) > 1:
                known = known or first in TAGS or first in QUALIFIERS
            elif suffix and not is_value(first):
                known = True
            if known and match.group(match.lastgroup) in REFERENCE_ENDS:
                return self.type()
        return self.expression()


KEYWORDS = {
    "if": ExpressionParser.if_,
    "sizeof": ExpressionParser.sizeof,
    "offsetof": ExpressionParser.offsetof,
    "typeinfo": ExpressionParser.typeinfo,
    "comptime": ExpressionParser.comptime,
}
