"""`macro name(...) { ... }`: every call becomes the macro's block.

Macros are hygienic, as in bpftrace: the body sees its own variables (renamed, so that they never
meet the caller's), the variables and maps it was given, and no others. A parameter `$a` wants a
variable and `@a` a map, which the body may change; a plain name stands for any expression (or, given
as `typeof(...)`, for a type) and is put in wherever the body uses it.
"""

from . import ast, builtins
from .diagnostics import ExpandedSpan, outermost
from .parser_stmt import effect

TYPE_OPERATORS = (ast.Sizeof, ast.Offsetof, ast.Typeof, ast.Typeinfo)
MAX_NODES = 100000      # that expansion may make
MAX_DEPTH = 400         # of macros in macros


class Frame:
    """What names mean in the body of one expansion; `depth` counts macros in macros."""

    def __init__(self, macro, depth, caller):
        self.macro = macro
        self.depth = depth
        self.caller = caller
        self.variables = {}
        self.maps = {}
        self.exprs = {}
        self.sizes = {}         # nodes of exprs

    def chain(self):
        """The macros that are being expanded, the outermost first."""
        frame, macros = self, []
        while frame is not None:
            macros.append(frame.macro)
            frame = frame.caller
        return macros[::-1]

    def variable(self, name):
        if name in self.variables:
            return self.variables[name]
        depth = "" if self.depth == 1 else "_%d" % self.depth
        return "$$%s%s_%s" % (self.macro.name, depth, name)


def mismatch(macro, arguments):
    """How far the arguments are from what the macro takes; 0 if they fit."""
    distance = 1024 * abs(len(macro.parameters) - len(arguments))
    for parameter, argument in zip(macro.parameters, arguments):
        if isinstance(parameter, (ast.Map, ast.Variable)) and type(argument) is not type(parameter):
            distance += 1
    return distance


class Macros:

    def __init__(self, diagnostics):
        self.diagnostics = diagnostics
        self.by_name = {}
        self.left = MAX_NODES

    # ---- definitions ----

    def define(self, macro):
        same = self.by_name.setdefault(macro.name, [])
        for other in same:
            if not mismatch(other, macro.parameters):
                self.diagnostics.error(macro.span, "Redefinition of macro: " + macro.name,
                                       contexts=[("This is the original definition.", other.span)])
                return
        seen = set()
        for parameter in macro.parameters:
            if parameter.name in seen:
                kind = {ast.Variable: "Variable", ast.Map: "Map"}.get(type(parameter), "Ident")
                self.diagnostics.error(parameter.span, "%s for macro argument has already been used: %s"
                                       % (kind, parameter.name))
                return
            seen.add(parameter.name)
        same.append(macro)

    def lookup(self, name, arguments, span):
        """The macro that fits a use, or None; a use that fits none of that name is an error."""
        same = self.by_name.get(name)
        if not same:
            return None
        best = min(same, key=lambda macro: mismatch(macro, arguments))
        if not mismatch(best, arguments):
            return best
        if builtins.lookup(name) is not None:
            return None
        contexts = []
        if len(best.parameters) != len(arguments):
            contexts.append(("The closest definition of %s() has a different number of arguments. "
                             "Expected: %d but got %d" % (name, len(best.parameters), len(arguments)),
                             best.span))
        self.diagnostics.error(span, "Call to %s() has arguments that do not match any definition."
                               % name, contexts=contexts)
        if not contexts:
            self.explain(best, arguments)
        return None

    def explain(self, macro, arguments):
        """An error at each argument of the wrong kind."""
        kinds = {ast.Map: "map", ast.Variable: "variable"}
        for parameter, argument in zip(macro.parameters, arguments):
            wanted = kinds.get(type(parameter))
            given = kinds.get(type(argument))
            if wanted and given != wanted:
                self.diagnostics.error(
                    argument.span, "Mismatched arg. %s() expects a %s for arg %s but got %s."
                    % (macro.name, wanted, parameter.name, "a " + given if given else "an expression"),
                    contexts=[("This is the argument in the closest definition.", parameter.span)])

    # ---- uses ----

    def expand(self, node, frame):
        """The node with all macros below it expanded; `frame` None outside of macros."""
        if isinstance(node, TYPE_OPERATORS) and isinstance(node.operand, ast.Identifier):
            return self.type_operator(node, frame)
        for name in node.fields:
            child = getattr(node, name)
            if isinstance(child, list):
                child[:] = [self.expand(item, frame) for item in child]
            elif child is not None:
                setattr(node, name, self.expand(child, frame))
        change = CHANGES.get(type(node))
        return node if change is None else change(self, node, frame)

    def type_operator(self, node, frame):
        """sizeof(name) and the like: the name is a type, or a parameter that stands for one."""
        given = frame and frame.exprs.get(node.operand.name)
        if given is not None:
            given = ast.clone(given)
            node.operand = given.operand if isinstance(given, ast.Typeof) else given
        return self.path(node, frame) if isinstance(node, ast.Offsetof) else node

    def path(self, node, frame):
        """offsetof(x, field): a parameter may stand for the fields."""
        given = frame and len(node.path) == 1 and frame.exprs.get(node.path[0])
        if not given:
            return node
        fields = []
        while isinstance(given, ast.FieldAccess):
            fields.append(given.name)
            given = given.operand
        if isinstance(given, ast.Identifier):
            node.path = [given.name] + fields[::-1]
        elif fields:
            self.diagnostics.error(node.span, "FieldAccess expressions must be made up entirely of "
                                   "idents (e.g. a.b.c) to replace the second argument in `offsetof`")
        return node

    def variable(self, node, frame):
        if frame is not None:
            node.name = frame.variable(node.name)
        return node

    def map(self, node, frame):
        if frame is None:
            return node
        if node.name in frame.maps:
            node.name = frame.maps[node.name]
        else:
            self.diagnostics.error(node.span, "Unhygienic access to map: %s. Maps must be passed into "
                                   "the macro as arguments." % node.name)
        return node

    def identifier(self, node, frame):
        if frame is not None and node.name in frame.exprs:
            given = frame.exprs[node.name]
            self.left -= frame.sizes[node.name]
            return node if self.spent(frame.macro, node) else ast.clone(given)
        macro = self.lookup(node.name, [], node.span)
        return node if macro is None else self.body(macro, node, [], frame)

    def call(self, node, frame):
        macro = self.lookup(node.name, node.arguments, node.span)
        if macro is not None:
            return self.body(macro, node, node.arguments, frame)
        for argument in node.arguments:
            if isinstance(argument, ast.Typeof):
                self.diagnostics.error(argument.span, "When used as a call argument, `typeof` builtin "
                                       "only valid for macro calls that are expecting a type parameter")
        return node

    def named_type(self, node, frame):
        """A type whose name is a parameter."""
        given = frame and frame.exprs.get(node.name)
        if given is None:
            return node
        inner = given.operand if isinstance(given, ast.Typeof) else given
        if isinstance(inner, ast.Identifier):
            node.name = inner.name
        elif isinstance(inner, ast.NamedType) and not (inner.kind and node.kind):
            return ast.NamedType(node.span, node.kind or inner.kind, inner.name)
        elif isinstance(given, ast.Typeof) and not node.kind:
            return ast.clone(inner if isinstance(inner, (ast.PointerType, ast.ArrayType)) else given)
        else:
            self.diagnostics.error(node.span, "Invalid replacement for macro '%s' type parameter '%s' "
                                   "which makes up the type '%s'"
                                   % (frame.macro.name, node.name, node.full_name))
        return node

    def body(self, macro, node, arguments, frame):
        """The block that takes the place of a use."""
        chain = frame.chain() if frame is not None else []
        if macro in chain:
            names = [other.name for other in chain[chain.index(macro):]] + [macro.name]
            self.diagnostics.error(node.span, "Recursive macro call detected. Call chain: "
                                   + " > ".join(names))
            return node
        if len(chain) == MAX_DEPTH:
            self.by_name = {}
            self.diagnostics.error(outermost(node.span), "macros are nested too deeply (more than %d levels)" % MAX_DEPTH)
            return node
        inner = Frame(macro, len(chain) + 1, frame)
        for parameter, argument in zip(macro.parameters, arguments):
            if isinstance(parameter, ast.Variable):
                inner.variables[parameter.name] = argument.name
            elif isinstance(parameter, ast.Map):
                inner.maps[parameter.name] = argument.name
            else:
                if isinstance(argument, (ast.Variable, ast.Map)):
                    argument = ast.Block(argument.span, [], argument)
                inner.exprs[parameter.name] = argument
                inner.sizes[parameter.name] = sum(1 for _ in argument.walk())
        block = ast.clone(macro.body)
        for part in block.walk():
            part.span = ExpandedSpan(part.span, node.span)
            self.left -= 1
        if self.spent(macro, node):
            return node
        return self.expand(block, inner)

    def spent(self, macro, node):
        """Whether expansion made too many nodes: an error once, and nothing is expanded any more."""
        if self.left >= 0:
            return False
        if self.by_name:
            self.by_name = {}
            self.diagnostics.error(node.span, "the expansion of macro '%s' is too large" % macro.name)
        return True

    def statement(self, node, _frame):
        effect(node.expr)
        return node


CHANGES = {
    ast.Variable: Macros.variable, ast.Map: Macros.map, ast.Identifier: Macros.identifier,
    ast.Call: Macros.call, ast.NamedType: Macros.named_type, ast.ExprStatement: Macros.statement,
    ast.Offsetof: Macros.path,
}


def expand(script, diagnostics, library=()):
    """Expands all uses of a Script's macros in place and takes their definitions out of it. Errors
    are added to `diagnostics`. `library`: further macros, which those of the script come before."""
    from .parser import deep_recursion
    macros = Macros(diagnostics)
    for macro in script.macros:
        macros.define(macro)
        for node in macro.body.walk():
            if isinstance(node, ast.Return):
                diagnostics.error(node.span, "'return' statement is not allowed in a macro")
    for macro in library:
        if all(mismatch(own, macro.parameters) for own in macros.by_name.get(macro.name, ())):
            macros.define(macro)
    with deep_recursion():
        for item in script.items:
            if isinstance(item, (ast.Probe, ast.Function)):
                macros.expand(item, None)
    script.items[:] = [item for item in script.items if not isinstance(item, ast.Macro)]
