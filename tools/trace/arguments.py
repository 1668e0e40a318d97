"""What the command line gives a script: `$1`, `$#`, and the options that `getopt()` asks for.

`bind` puts the values in place, so that the compiler sees literals only.
"""

from . import ast
from .diagnostics import Diagnostic, Diagnostics, ScriptError
from .lexer import number, signed_number

TRUE = ("1", "true", "on", "yes")
FALSE = ("0", "false", "off", "no")


class Option:
    """One `getopt(name, default, description)`; `kind` is "bool", "string", "uint64", "int64"."""

    __slots__ = ("name", "kind", "default", "description")

    def __init__(self, name, kind, default, description):
        self.name = name
        self.kind = kind
        self.default = default
        self.description = description


def literal(node):
    """(kind, value) of the default in a getopt call, or None."""
    if isinstance(node, ast.Bool):
        return "bool", node.value
    if isinstance(node, ast.String):
        return "string", node.value
    if isinstance(node, ast.Integer):
        return "uint64", node.value
    if isinstance(node, ast.Unary) and node.op == "-" and isinstance(node.operand, ast.Integer):
        return "int64", -node.operand.value
    return None


def string_of(call):
    """`str()` of a literal, cut to a length that is one: a string literal itself."""
    arguments = call.arguments
    found = literal(arguments[0]) if 1 <= len(arguments) <= 2 else None
    if found is None or found[0] == "bool":
        return call
    data = str(found[1]).encode("utf-8", "surrogateescape")
    if len(arguments) == 2:
        if not isinstance(arguments[1], ast.Integer):
            return call
        data = data[:arguments[1].value]
    return ast.String(call.span, data.decode("utf-8", "surrogateescape"))


class Binder:

    def __init__(self, positional, named, diagnostics):
        self.positional = list(positional)
        self.named = named
        self.diagnostics = diagnostics
        self.options = {}

    # ---- positional parameters ----

    def argument(self, index):
        return self.positional[index - 1] if index <= len(self.positional) else ""

    def change(self, node):
        """For ast.transform. `str()` has its own rule, so that it runs before its argument's."""
        kind = type(node)
        if kind is ast.Positional:
            return self.number_or_string(node)
        if kind is ast.PositionalCount:
            return ast.Integer(node.span, len(self.positional))
        if kind is ast.Call and node.name == "getopt":
            return self.getopt(node)
        if kind is ast.Call and node.name == "str":
            return string_of(node)
        if kind is ast.Binary and node.op == "+":
            return self.moved(node)
        return node

    def number_or_string(self, node):
        """A parameter outside str(): a number if it is one, 0 if it is not given."""
        text = self.argument(node.index)
        if not text:
            self.diagnostics.warning(node.span, "Positional parameter $%d is empty or not provided. "
                                     % node.index)
            return ast.Integer(node.span, 0)
        try:
            value = signed_number(text)
        except ValueError:
            return ast.String(node.span, text)
        if value < 0:
            return ast.Unary(node.span, "-", ast.Integer(node.span, -value))
        return ast.Integer(node.span, value)

    def moved(self, node):
        """`string + number`: the string without its first bytes."""
        left, right = node.left, node.right
        if not isinstance(left, ast.String) or not isinstance(right, ast.Integer):
            return node
        data = left.value.encode("utf-8", "surrogateescape")
        if right.value >= len(data):
            self.diagnostics.warning(node.span, "literal string will always be empty")
        return ast.String(node.span, data[right.value:].decode("utf-8", "surrogateescape"))

    def strings(self, script):
        """Makes the parameters directly inside str() strings, before anything else is replaced."""
        for node in script.walk():
            if type(node) is not ast.Call or node.name != "str" or not node.arguments:
                continue
            first = node.arguments[0]
            if type(first) is ast.Positional:
                node.arguments[0] = ast.String(first.span, self.argument(first.index))
            elif type(first) is ast.Binary and first.op == "+" and type(first.left) is ast.Positional:
                first.left = ast.String(first.left.span, self.argument(first.left.index))

    # ---- options ----

    def getopt(self, call):
        option = self.option(call)
        if option is None:
            return call
        value = self.value(option)
        if option.kind == "bool":
            return ast.Bool(call.span, value)
        if option.kind == "string":
            return ast.String(call.span, value)
        node = ast.Integer(call.span, abs(value))
        if value < 0:
            node = ast.Unary(call.span, "-", node)
        return ast.Cast(call.span, ast.NamedType(call.span, "", option.kind), node)

    def option(self, call):
        """The Option that a getopt call declares; None after an error."""
        error = self.diagnostics.error
        arguments = call.arguments
        if not 1 <= len(arguments) <= 3:
            error(call.span, "The 'getopt' function can take a maximum of three arguments and a "
                  "minimum of one argument.")
            return None
        if not isinstance(arguments[0], ast.String):
            error(arguments[0].span, "First argument to 'getopt' must be a string literal.")
            return None
        name, description = arguments[0].value, ""
        if len(arguments) == 3:
            if not isinstance(arguments[2], ast.String):
                error(arguments[2].span, "Function 'getopt' requires the third parameter to be a "
                      "string literal.")
                return None
            description = arguments[2].value
        kind, default = "bool", False
        if len(arguments) > 1:
            found = literal(arguments[1])
            if found is None:
                error(arguments[1].span, "Second argument to 'getopt' must be a string literal, "
                      "integer literal, or a boolean literal.")
                return None
            kind, default = found
        return self.merged(call, Option(name, kind, default, description))

    def merged(self, call, option):
        """The option, after a look at an earlier getopt of the same name."""
        earlier = self.options.get(option.name)
        if earlier is None:
            self.options[option.name] = option
            return option
        if (earlier.kind, earlier.default) != (option.kind, option.default):
            shown = str(earlier.default).lower() if earlier.kind == "bool" else earlier.default
            self.diagnostics.error(call.span, "Command line option '%s' needs to have the same "
                                   "default value in all places it is used. Previous default value: "
                                   "%s" % (option.name, shown))
            return None
        if option.description and earlier.description not in ("", option.description):
            self.diagnostics.error(call.span, "Command line option '%s' must have the same "
                                   "description in all places it's used. Hint: You can wrap it in a "
                                   "macro" % option.name)
            return None
        earlier.description = earlier.description or option.description
        return earlier

    def value(self, option):
        """The value given on the command line, or the default."""
        if option.name not in self.named:
            return option.default
        text = self.named[option.name]

        def wrong(reason):
            raise ScriptError(None, "program command line option --%s %s (value: %s)"
                              % (option.name, reason, "true" if text is None else text))

        if option.kind == "bool":
            if text is None or text.lower() in TRUE:
                return True
            if text.lower() not in FALSE:
                wrong("expects a boolean (e.g. 'true')")
            return False
        if text is None:
            wrong("expects a string" if option.kind == "string" else "expects an integer")
        if option.kind == "string":
            return text
        try:
            value = signed_number(text)
        except ValueError as error:
            reason = str(error)
            wrong("value is out of range" if reason.startswith("overflow")
                  else reason.rpartition(": ")[0])
        if option.kind == "uint64" and value < 0:
            value += 1 << 64
        elif option.kind == "int64" and value >= 1 << 63:
            wrong("value is out of range")
        return value

    def check_names(self):
        """Refuses options that the script does not know; answers --help."""
        unknown = [name for name in self.named if name not in self.options]
        if not unknown:
            return
        lines = ["--" + option.name + (": " + option.description if option.description else "")
                 for option in self.options.values()]
        if unknown == ["help"]:
            usage = Diagnostic("HINT", None, "\n".join(["expected program options:", *lines]))
            raise ScriptError.of([usage])
        raise ScriptError(None, "unexpected program command line options: "
                          + ", ".join("--" + name for name in unknown), ["expected program options: " + ", ".join(lines)])


def options(words):
    """{name: value or None} of ["name=value", "flag"]."""
    named = {}
    for word in words:
        name, equals, value = word.partition("=")
        named[name] = value if equals else None
    return named


def bind(script, positional=(), named=(), diagnostics=None):
    """Replaces `$1`, `$#` and `getopt(...)` in a Script by their values.

    positional: strings; named: ["name=value", "flag"]. Returns {name: Option}."""
    from .parser import deep_recursion
    diagnostics = diagnostics or Diagnostics()
    binder = Binder(positional, options(named), diagnostics)
    with deep_recursion():
        binder.strings(script)
        ast.transform(script, binder.change)
    diagnostics.check()
    binder.check_names()
    return binder.options
