"""The parts of a script: text in, `ast.Script` out.

The grammar is bpftrace 0.27's (`docs/language.md` there); where that release refuses what its
predecessors and the scripts in the wild have (macros without parentheses, stray semicolons,
`typedef`, `#` lines that go on in the next line), this parser takes it.
"""

import re
import sys
from contextlib import contextmanager

from . import ast
from .attachpoints import attach_points
from .diagnostics import Diagnostics, Source, Span, outermost
from .lexer import SKIP
from .parser_expr import MAX_CHAIN, NUMBERED, TAGS, TooDeep, is_type_word
from .parser_stmt import StatementParser

ORDER = "C definitions must appear before probes and functions"

# A run of an attach point's text; quotes keep everything inside them.
QUOTED = re.compile(r'"[^"\\]*(?:\\(?s:.)?[^"\\]*)*("|\Z)').match
PLAIN = re.compile(r'[^\s{,/"]*').match
DIRECTIVE = re.compile(r"[^\n\\]*(?:\\(?s:.)[^\n\\]*)*").match
DEFINED = re.compile(r"#\s*define\s+([A-Za-z_][A-Za-z0-9_]*)(?:\([^)]*\))?\s*([A-Za-z_0-9]*)").match
HEAD = re.compile(r"[A-Za-z0-9_]+").match


class Parser(StatementParser):

    def script(self):
        start, header = self.start, None
        if self.text.startswith("#!", start):
            end = self.text.find("\n", start)
            end = len(self.text) if end < 0 else end + 1
            header = self.text[start:end]
            self.seek(end)
        items = []
        self.definitions(items)
        self.settings(items)
        while self.kind != "end" and not self.errors:
            at = self.start
            item = self.item()
            if item is not None:
                items.append(item)
            if self.pos <= at:
                self.error("unexpected input")
        return ast.Script(Span(self.source, 0, self.pos), self.source, header, items)

    # ---- the parts of a script ----

    def definitions(self, items):
        """The C definitions, which come first."""
        while not self.errors:
            if self.value == "#" and not self.text.startswith("#!", self.start):
                items.append(self.directive())
            elif self.is_definition():
                items.append(self.definition())
            else:
                return

    def settings(self, items):
        """The config block and the imports, in any order."""
        seen = False
        while not self.errors:
            if self.value == "import":
                items.append(self.import_())
            elif self.value == "config" and seen:
                self.refuse("duplicate config block")
            elif self.value == "config":
                seen = True
                items.append(self.config())
            else:
                return

    def item(self):
        """A probe, macro, function or map declaration; None after an error."""
        value, start = self.value, self.start
        if value == "#" and not self.text.startswith("#!", start):
            self.directive()
            end = min(self.pos + 1, len(self.text))     # bpftrace counts the line break in
            return self.error(ORDER, start, end)
        if self.is_definition():
            self.definition()
            return self.error(ORDER, start, self.pos)
        if value == "config":
            return self.refuse("config must appear before probes and functions")
        if value == "import":
            return self.refuse("root imports must appear before probes and functions")
        if value == "macro":
            return self.macro()
        if value == "fn":
            return self.function()
        if value == "let":
            return self.map_declaration()
        return self.probe()

    def refuse(self, message):
        start = self.start
        self.next()
        self.error(message, start, self.pos)

    def directive(self):
        """A line of the C preprocessor, with the lines that it is continued on."""
        start = self.start
        end = DIRECTIVE(self.text, start).end()
        self.seek(end)
        text = self.text[start:end].rstrip()
        match = DEFINED(text)
        if match and not is_type_word(match.group(2)):
            self.defined.add(match.group(1))
        return ast.CDefinition(Span(self.source, start, end), text)

    def is_definition(self):
        """Whether a struct, union, enum or typedef definition follows (and not a probe)."""
        if self.kind != "name" or self.value not in TAGS and self.value != "typedef":
            return False
        text, pos = self.text, SKIP(self.text, self.stop).end()
        while pos < len(text):
            char = text[pos]
            if char == "{":
                return True
            name = HEAD(text, pos)
            if name:
                pos = name.end()
            elif char in "([":
                pos = self.balanced(pos, char, ")" if char == "(" else "]")
                if pos is None:
                    return False
            elif self.value == "typedef" and char in "*;":
                if char == ";":
                    return True
                pos += 1
            else:
                return False
            pos = SKIP(text, pos).end()
        return False

    def balanced(self, pos, opening, closing):
        """The offset after the bracket that closes the one at `pos`; None if there is none."""
        depth = 0
        for at in range(pos, len(self.text)):
            depth += (self.text[at] == opening) - (self.text[at] == closing)
            if not depth:
                return at + 1
        return None

    def definition(self):
        """A C type definition, kept as text."""
        start, typedef, depth = self.start, self.value == "typedef", 0
        while self.kind != "end":
            depth += (self.value == "{") - (self.value == "}")
            closed = self.value == "}" and not depth
            if typedef and self.value == ";" and not depth:
                break
            self.next()
            if closed and not typedef:
                break
        end = self.pos
        while self.match("__attribute__"):
            closing = None
            if self.value == "(" and self.text.startswith("((", self.start):
                closing = self.balanced(self.start, "(", ")")
                if closing is None:
                    self.error("__attribute__ syntax error, mismatched '(' and ')'")
            else:
                self.error("__attribute__ syntax error, expected '(('")
            if closing is None:
                break
            end = closing
            self.seek(closing)
        text = self.text[start:end].rstrip()
        self.match(";")
        if not text.endswith(";"):
            text += ";"
        return ast.CDefinition(self.span(start), text)

    def config(self):
        start = self.start
        self.next()
        if not self.expect("=") or not self.expect("{"):
            return None
        settings = []
        while self.value != "}" and self.kind != "end":
            setting = self.setting()
            if setting is None:
                break
            settings.append(setting)
            if self.value != "}" and not self.expect(";"):
                while self.kind != "end" and self.value != "}":
                    self.next()
                break
        self.expect("}")
        return ast.Config(self.span(start), settings)

    def setting(self):
        start = self.start
        name = self.name("expected config key")
        if name is None or not self.expect("="):
            return None
        if self.kind == "string":
            value = self.string()
        elif self.kind == "int":
            value = self.integer()[0]
        else:
            value = self.name("expected string, int, boolean, or ident")
            if value in ("true", "false"):
                value = value == "true"
        return ast.Setting(self.span(start), name, value)

    def macro(self):
        start = self.start
        self.next()
        name = self.name("expected macro name")
        if name is None:
            return None
        span = self.span(start)
        parameters = []
        if self.value != "{":
            if not self.expect("("):
                return None
            if self.value != ")":
                parameters.append(self.macro_parameter())
                while self.match(","):
                    parameters.append(self.macro_parameter())
            if not self.expect(")"):
                return None
        body = self.block()
        return body and ast.Macro(span, name, parameters, body)

    def macro_parameter(self):
        if self.kind == "variable":
            return self.variable()
        if self.kind == "map":
            return self.map()
        start = self.start
        name = self.name("expected macro argument ($var, @map, or identifier)")
        if name is not None and is_reserved(name):
            self.error("builtin '%s' can't be used as a macro argument" % name, start, self.pos)
        return ast.Identifier(self.span(start), name or "")

    def function(self):
        start = self.start
        self.next()
        name = self.name("expected function name")
        if name is None:
            return None
        span = self.span(start)
        if not self.expect("("):
            return None
        parameters = []
        if self.value != ")":
            while True:
                parameter = self.parameter()
                if parameter is None:
                    break
                parameters.append(parameter)
                if not self.match(","):
                    break
        if not self.expect(")") or not self.expect(":"):
            return None
        returns = self.declared_type()
        body = returns and self.block(False)
        return body and ast.Function(span, name, parameters, returns, body)

    def parameter(self):
        start = self.start
        if self.kind != "variable":
            self.error("expected variable in function argument")
            return None
        variable = self.variable()
        if not self.expect(":"):
            return None
        declared = self.declared_type()
        return declared and ast.Parameter(self.span(start), variable, declared)

    def map_declaration(self):
        start = self.start
        self.next()
        if self.kind != "map":
            return self.error("root-level let statements need to be map declarations, e.g. let "
                              "@a = hash(2);", start, start + 3)
        name = self.value
        self.next()
        if not self.expect("="):
            return None
        type = self.name("expected map type name")
        if type is None or not self.expect("("):
            return None
        if self.kind != "int":
            return self.error("expected positive integer for map declaration max entries")
        entries = self.integer()[0]
        if not self.expect(")"):
            return None
        self.match(";")
        return ast.MapDeclaration(self.span(start), name, type, entries)

    # ---- probes ----

    def probe(self):
        start = self.start
        points = [self.attach_point()]
        while points[-1] and self.match(","):
            if self.value == "/" or self.value == "{":
                break
            points.append(self.attach_point())
        if points[-1] is None:
            points.pop()
            if not points:
                return None
        span = Span(self.source, start, points[-1].span.end)
        predicate = None
        if self.value == "/" or self.value == "/=":
            self.seek(self.start + 1)
            predicate = self.expression()
            if self.value == "/":
                self.next()
            else:
                self.error("expected '/' to close predicate")
        block = self.block(False)
        return block and ast.Probe(span, points, predicate, block)

    def attach_point(self):
        """The text up to a space, a comma, a `{`, or the `/` of a predicate."""
        text, start = self.text, self.start
        pos, colon = start, False
        while True:
            end = PLAIN(text, pos).end()
            colon = colon or ":" in text[pos:end]
            pos = end
            char = text[pos:pos + 1]
            if char == '"':
                pos = QUOTED(text, pos).end()
            elif char == "/" and (colon or pos == start or text[pos + 1:pos + 2] in ("/", "*")):
                pos += 1
            else:
                break
        self.seek(pos)
        if pos == start:
            self.error("expected attach point")
            return None
        return ast.AttachPoint(Span(self.source, start, pos), text[start:pos], None)


# The names that bpftrace's grammar itself knows.
RESERVED = frozenset("args ctx kstack nsecs pid tid ustack".split())


def is_reserved(name):
    return name in RESERVED or name.startswith("__builtin_") or NUMBERED(name) is not None


def check_depth(script, diagnostics):
    """Refuses a tree that would take the compiler beyond Python's recursion limit."""
    stack = [(script, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > MAX_CHAIN:
            diagnostics.error(outermost(node.span), "the expression is too long or nested too deeply "
                              "(more than %d levels)" % MAX_CHAIN)
            return
        stack.extend((child, depth + 1) for child in node.children())


@contextmanager
def deep_recursion():
    """Room for recursion over the deepest tree that `parse` lets through."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 20 * MAX_CHAIN))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def parse(source, positional=(), diagnostics=None):
    """The Script of a Source. `positional` are the values of $1, $2, ... (str). Warnings, and errors
    before they are raised as one ScriptError, are added to `diagnostics`.

    C definitions are not acted on: see `preprocess`."""
    if isinstance(source, str):
        source = Source("stdin", source)
    diagnostics = diagnostics or Diagnostics()
    parser = Parser(source, diagnostics)
    script = None
    with deep_recursion():
        try:
            script = parser.script()
        except TooDeep:
            pass
    if script is not None and not diagnostics.errors:
        if parser.chain > MAX_CHAIN - 300:
            check_depth(script, diagnostics)
        attach_points(script, positional, diagnostics)
    diagnostics.check()
    return script


def parse_expression(source, diagnostics, values=()):
    """The expression that is all of a Source, or None after errors (or for empty text). `values`
    are names that are no types."""
    parser = Parser(source, diagnostics)
    parser.defined = values
    if parser.kind == "end":
        return None
    with deep_recursion():
        try:
            expr = parser.expression()
        except TooDeep:
            return None
    if parser.kind != "end":
        parser.error("unexpected input")
    return None if diagnostics.errors else expr
