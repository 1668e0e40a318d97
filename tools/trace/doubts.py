"""What is not wrong but looks like a mistake: warnings of the resolver, a mixin of resolve.Resolver.

They are given in the final pass only, when all types are known.
"""
from . import ast, builtins, types
from .diagnostics import Span
from .types import Aggregate, Integer
from .written import type_text


def ends(node):
    """Whether control never comes out behind a statement or expression: it returns, exits, or leaves the loop."""
    if isinstance(node, (ast.Return, ast.Break, ast.Continue)):
        return True
    if isinstance(node, ast.ExprStatement):
        return ends(node.expr)
    if isinstance(node, ast.Block):
        return any(map(ends, node.statements)) or node.value is not None and ends(node.value)
    if isinstance(node, ast.If):
        return node.otherwise is not None and ends(node.then) and ends(node.otherwise)
    if isinstance(node, ast.Call):
        entry = builtins.lookup(node.name)
        return entry is not None and entry.ends
    return False


def fits(kind, target):
    """Whether every value of an integer type is one of another."""
    if kind.signed == target.signed or kind.flexible:
        return kind.size <= target.size
    return not kind.signed and kind.size < target.size


class Whole:
    """The place of a statement with its semicolon."""

    def __init__(self, span):
        self.span = span


def operation(node):
    """The place of what is done: of `$x %= 3`, from the operator on."""
    if not isinstance(node, ast.Assign) or type(node.span) is not Span:
        return node
    start = node.target.span.end
    text = node.span.source.text
    while start < len(text) and text[start].isspace():
        start += 1
    return Whole(Span(node.span.source, start, node.span.end))


def whole(node, last=True):
    """A statement's place, of an expression's with the semicolon; not `last`: without, at the end of a block."""
    span = node.span
    if not isinstance(node, ast.ExprStatement) or isinstance(node.expr, ast.Increment):
        return node
    end = span.end
    text = span.source.text
    while end < len(text) and text[end].isspace():
        end += 1
    if type(span) is not Span or text[end:end + 1] != ";" or not last and text[end + 1:end + 200].lstrip().startswith("}"):
        return node
    return Whole(Span(span.source, span.start, end + 1))


class Doubts:
    """`self.warn` is the resolver's."""

    def unreachable(self, block):
        """Statements behind one that ends the program or the loop."""
        if not self.final:
            return
        statements = block.statements
        for at, statement in enumerate(statements):
            if ends(statement):
                if at + 1 < len(statements):
                    self.warn(whole(statements[at + 1]), "Unreachable statement.")
                if block.value is not None:
                    self.warn(block.value, "Unreachable expression; block type is implicitly none.")
                return

    def lossy(self, node, kind, target):
        """A number that becomes one of a type that does not hold all of its values."""
        if not self.final or not isinstance(kind, Integer) or not isinstance(target, Integer) or fits(kind, target):
            return
        if self.constant(node) is None and not self.aggregated(node):
            self.warn(node, "Expression of type: %s being cast to type: %s. This may cause unexpected results. Use an "
                      "explicit cast to suppress this warning." % (type_text(kind), type_text(target)))

    def aggregated(self, node):
        """Whether an expression is what a map keeps one of a CPU: read, it is a number."""
        if not isinstance(node, (ast.Map, ast.MapAccess)) or node.name not in self.script.maps:
            return False
        return isinstance(self.script.maps[node.name].value, Aggregate)

    def distinct_pointers(self, node, left, right):
        """Pointers to different types compared."""
        if left.target is None or right.target is None:
            return
        texts = [type_text(types.from_c(side.target)) for side in (left, right)]
        if texts[0] != texts[1]:
            self.warn(node, "comparison of distinct pointer types: %s, %s" % tuple(texts), (), [
                ("left (%s)" % texts[0], node.left), ("right (%s)" % texts[1], node.right)])

    def used(self, node, var):
        if not var.assigned and not self.meta:
            self.warn(node, "Variable used before it was assigned: %s" % var.name)

    def never_assigned(self):
        """Variables that are declared and nothing else."""
        for var in self.unit.variables.values():
            if not var.assigned:
                self.warn(var, "Variable %s was never assigned to." % var.name)
