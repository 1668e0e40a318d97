"""What the C lines of a script mean: `#define`, `#if`, `#include`, struct and enum definitions.

No header of the kernel or of C is needed: types and enums come from BTF, constants from `constants`; an
`#include` of one is passed over. Files in the include path are read by `cdecl`.

A macro is used in a script as bpftrace uses it: its text is parsed as an expression of its own, so
that `A * 3` with `#define A 1 + 2` is 9 (and not 7 as in C). Macros with parameters, which
bpftrace does not have, work the same way. In C definitions and in `#if` macros are expanded as in C.
"""

import os
import re

from . import ast, cdecl
from .constants import value as known_constant
from .diagnostics import Diagnostics, ExpandedSpan, ScriptError, Source, Span
from .parser import parse_expression
from .parser_expr import ExpressionParser

DEFINE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)(\(([^)]*)\))?\s*(.*)", re.S).match
DIRECTIVE = re.compile(r"\s*#\s*([a-z_]*)\s*(.*)", re.S).match
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z").match
TOKENS = re.compile(r"""[A-Za-z_][A-Za-z0-9_]*|[0-9][0-9A-Za-z_.]*|"(?:[^"\\]|\\.)*"?|"""
                    r"""'(?:[^'\\]|\\.)*'?|\s+|\#\#|(?s:.)""")
COMMENT = re.compile(r"""("(?:[^"\\\n]|\\.)*"?)|//[^\n]*|/\*(?s:.*?)(?:\*/|\Z)""")
CONTINUED = re.compile(r"\\[ \t]*\r?\n")
INCLUDE = re.compile(r'\s*(?:"([^"]*)"|<([^>]*)>)').match

#: Headers of the kernel and of C, whose types and constants are there without them: folders and single files.
KNOWN_FOLDERS = frozenset("""acpi arpa asm asm-generic bcc bits block bpf clocksource crypto drm dt-bindings fs generated
    gnu hyperv keys kernel kunit kvm linux math-emu media memory misc mm mtd net netinet netpacket pcmcia ras rdma rpc
    rv scsi soc sound sys target trace uapi ufs vdso video xen""".split())
KNOWN_HEADERS = frozenset(name + ".h" for name in """alloca assert byteswap ctype dirent dlfcn elf endian errno error
    execinfo fcntl features float fnmatch getopt glob grp iconv ifaddrs inttypes iso646 langinfo libgen limits link
    locale malloc math memory mntent mqueue netdb paths poll pthread pwd regex resolv sched search semaphore setjmp
    shadow signal spawn stab stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string strings
    syscall sysexits syslog termios threads time tgmath ucontext uchar ulimit unistd utime utmp utmpx vmlinux wait wchar
    wctype wordexp""".split())
MAX_EXPANSION = 1 << 18     # characters, of C text
MAX_NODES = 50000           # of expressions
MAX_INCLUDES = 200


class Macro:
    """`parameters` is None for a macro without parentheses."""

    __slots__ = ("name", "parameters", "body", "span")

    def __init__(self, name, parameters, body, span=None):
        self.name = name
        self.parameters = parameters
        self.body = body
        self.span = span


def strip_comments(text):
    """The text with comments as spaces (line breaks stay)."""
    def blank(match):
        return match.group(1) or "\n" * match.group().count("\n") or " "
    return COMMENT.sub(blank, text)


class Names:
    """What the C text of a script defines. `find(kind, name)` looks a type up elsewhere (BTF)."""

    def __init__(self, find=None, include_paths=(), diagnostics=None):
        self.scope = cdecl.Scope(find)
        self.macros = {}
        self.include_paths = list(include_paths)
        self.diagnostics = diagnostics or Diagnostics()
        self.included = []
        self.conditions = []        # of the #ifs around: [active, one was taken, outside active]
        for name, body in predefined().items():
            self.macros[name] = Macro(name, None, body)
        self.macros["KERNEL_VERSION"] = Macro(
            "KERNEL_VERSION", ["a", "b", "c"], "(((a) << 16) + ((b) << 8) + ((c) > 255 ? 255 : (c)))")

    # ---- what the compiler asks ----

    def type(self, kind, name):
        """The Type that is called so: kind "struct", "union", "enum", or "" for a typedef or a
        type of C itself ("unsigned long"); None if nobody knows it."""
        if kind:
            return self.scope.tagged(kind, name)
        words = name.split()
        if all(word in cdecl.WORDS for word in words):
            return cdecl.word_type(words)
        return self.scope.named(name)

    def enumerator(self, name):
        """(value, Enum) of an enumerator that the script defines, or None."""
        return self.scope.enumerators.get(name)

    @staticmethod
    def constant(name):
        """The value of a C constant of the system's headers, or None."""
        return known_constant(name)

    # ---- directives ----

    @property
    def active(self):
        return not self.conditions or self.conditions[-1][0]

    def directive(self, text, span, folder):
        """One `#` line without comments. Errors are raised at `span`."""
        match = DIRECTIVE(CONTINUED.sub(" ", text))
        name, rest = match.groups()
        rest = rest.strip()
        if name in ("if", "ifdef", "ifndef"):
            taken = self.active and self.test(name, rest, span)
            self.conditions.append([taken, taken, self.active])
        elif name in ("elif", "else", "elifdef", "elifndef"):
            if not self.conditions:
                raise ScriptError(span, "#%s without #if" % name)
            state = self.conditions[-1]
            test = "if" + name[4:]
            state[0] = state[2] and not state[1] and (name == "else" or self.test(test, rest, span))
            state[1] = state[1] or state[0]
        elif name == "endif":
            if not self.conditions:
                raise ScriptError(span, "#endif without #if")
            self.conditions.pop()
        elif self.active:
            self.act(name, rest, span, folder)

    def act(self, name, rest, span, folder):
        if name == "define":
            self.define(rest, span)
        elif name == "undef":
            self.macros.pop(rest, None)
        elif name in ("include", "include_next", "import"):
            self.include(rest, span, folder)
        elif name == "error":
            raise ScriptError(span, "#error " + rest)
        elif name == "warning":
            self.diagnostics.warning(span, "#warning " + rest)
        elif name not in ("pragma", "line", "ident", ""):
            raise ScriptError(span, "unknown preprocessor directive '#%s'" % name)

    def define(self, rest, span):
        match = DEFINE(rest)
        if not match:
            raise ScriptError(span, "#define needs a name")
        name, parenthesis, parameters, body = match.groups()
        if parenthesis is not None:
            parameters = [part.strip() for part in parameters.split(",")] if parameters.strip() else []
            if not all(part == "..." or WORD(part) for part in parameters):
                raise ScriptError(span, "the parameters of macro '%s' must be names" % name)
        else:
            parameters = None
        self.macros[name] = Macro(name, parameters, " ".join(body.split("\n")).strip(), span)

    def test(self, kind, text, span):
        if kind == "ifdef":
            return text in self.macros
        if kind == "ifndef":
            return text not in self.macros
        text = re.sub(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))",
                      lambda m: str(int((m.group(1) or m.group(2)) in self.macros)), text)
        text = re.sub(r"\b__has_(?:include|attribute|builtin|feature)\s*\([^)]*\)", "0", text)
        text = self.expand(text, span)
        return bool(self.evaluate_text(text, span, zero=True))

    def include(self, rest, span, folder):
        match = INCLUDE(rest) or INCLUDE(self.expand(rest, span).strip())
        if not match:
            if self.included and rest.strip().isidentifier():
                return      # in a header the name may be a macro of one that is passed over
            raise ScriptError(span, "expected \"FILENAME\" or <FILENAME>")
        quoted, system = match.groups()
        folders = self.include_paths if quoted is None else [folder or "."] + self.include_paths
        for base in folders:
            path = os.path.join(base, quoted or system)
            if os.path.isfile(path):
                return self.include_file(path, span)
        name = quoted or system
        if name.split("/")[0] not in KNOWN_FOLDERS and name not in KNOWN_HEADERS:
            raise ScriptError(span, "'%s' file not found" % name)

    def include_file(self, path, span=None):
        """Reads a header. OSError becomes a ScriptError."""
        real = os.path.realpath(path)
        if real in self.included:
            return
        self.included.append(real)
        if len(self.included) > MAX_INCLUDES:
            raise ScriptError(span, "more than %d headers are included" % MAX_INCLUDES)
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                source = Source(path, file.read())
        except OSError as error:
            raise ScriptError(span, "cannot read '%s': %s" % (path, error.strerror))
        self.header(source, os.path.dirname(path))

    def header(self, source, folder=None):
        """Takes in the text of a header."""
        depth = len(self.conditions)
        text = self.lines(source, source.text, folder)
        if len(self.conditions) != depth:
            raise ScriptError(Span(source, len(source.text), len(source.text)), "missing #endif")
        cdecl.Parser(Source(source.name, text), self.scope, self.evaluate).run()

    def lines(self, source, text, folder, span=None):
        """C text with its directives carried out and its macros expanded, line by line."""
        out, at = [], 0
        text = strip_comments(text)
        while at < len(text):
            end = text.find("\n", at)
            end = len(text) if end < 0 else end + 1
            line = text[at:end]
            while CONTINUED.search(line) and end < len(text):
                more = text.find("\n", end)
                more = len(text) if more < 0 else more + 1
                line, end = line + text[end:more], more
            if line.lstrip().startswith("#"):
                start = source.starts[min(text.count("\n", 0, at), len(source.starts) - 1)]
                where = span or Span(source, start, start + len(line.rstrip("\n")))
                self.directive(line, where, folder)
                line = ""
            elif not self.active:
                line = ""
            elif self.macros:
                line = self.expand(line, span)
            out.append(line if line.endswith("\n") else line + "\n" * text.count("\n", at, end))
            at = end
        return "".join(out)

    # ---- macros as C has them ----

    def expand(self, text, span, hidden=frozenset(), room=None):
        """C text with all macros expanded."""
        room = [MAX_EXPANSION] if room is None else room
        tokens, out, at = TOKENS.findall(text), [], 0
        while at < len(tokens):
            token = tokens[at]
            at += 1
            macro = self.macros.get(token) if token not in hidden else None
            if macro is not None and macro.parameters is not None:
                arguments, after = self.arguments(tokens, at)
                if arguments is None:
                    macro = None
                else:
                    at = after
            if macro is None:
                out.append(token)
                continue
            body = macro.body
            if macro.parameters is not None:
                body = self.substitute(macro, arguments, span, hidden, room)
            room[0] -= len(body) + 1
            if room[0] < 0 or len(hidden) > 100:
                raise ScriptError(span or macro.span, "the expansion of macro '%s' is too large" % token)
            out.append(self.expand(body, span, hidden | {token}, room))
        return "".join(out)

    @staticmethod
    def arguments(tokens, at):
        """The texts between parentheses at tokens[at], and the place after them; or (None, at)."""
        start = at
        while at < len(tokens) and tokens[at].isspace():
            at += 1
        if at == len(tokens) or tokens[at] != "(":
            return None, start
        depth, arguments, part = 1, [], []
        for place in range(at + 1, len(tokens)):
            token = tokens[place]
            depth += (token in "([{") - (token in ")]}")
            if not depth:
                arguments.append("".join(part).strip())
                return ([] if arguments == [""] else arguments), place + 1
            if token == "," and depth == 1:
                arguments.append("".join(part).strip())
                part = []
            else:
                part.append(token)
        return None, start

    def substitute(self, macro, arguments, span, hidden, room):
        parameters = macro.parameters
        if parameters and parameters[-1] == "...":
            fixed = len(parameters) - 1
            arguments = arguments[:fixed] + [", ".join(arguments[fixed:])]
            parameters = parameters[:-1] + ["__VA_ARGS__"]
        if len(arguments) != len(parameters):
            raise ScriptError(span or macro.span, "macro '%s' takes %d arguments, %d given"
                              % (macro.name, len(parameters), len(arguments)))
        given = dict(zip(parameters, arguments))
        tokens = [token for token in TOKENS.findall(macro.body)]
        out, at = [], 0
        while at < len(tokens):
            token = tokens[at]
            following = tokens[at + 1] if at + 1 < len(tokens) else ""
            if token == "#" and following in given:
                out.append('"%s"' % given[following].replace("\\", "\\\\").replace('"', '\\"'))
                at += 1
            elif token == "##":
                while out and out[-1].isspace():
                    out.pop()
                while following.isspace():
                    at += 1
                    following = tokens[at + 1] if at + 1 < len(tokens) else ""
                out.append(given.get(following, following))
                at += 1
            elif token in given:
                pasted = "##" in [t for t in tokens[at + 1:at + 3] if not t.isspace()][:1]
                out.append(given[token] if pasted else self.expand(given[token], span, hidden, room))
            else:
                out.append(token)
            at += 1
        return "".join(out)

    # ---- constant expressions ----

    def evaluate(self, source, start, end):
        """The value of the constant expression source.text[start:end]."""
        return self.evaluate_text(source.text[start:end], Span(source, start, end))

    def evaluate_text(self, text, span, zero=False):
        """`zero`: names that nobody knows are 0, as in #if."""
        expr = parse_expression(Source(span.source.name, text.strip()), Diagnostics())
        if expr is None:
            raise ScriptError(span, "not a constant expression: " + text.strip())
        try:
            return self.fold(expr, zero)
        except ValueError as error:
            raise ScriptError(span, "not a constant expression: %s (%s)" % (text.strip(), error))

    def fold(self, node, zero):
        kind = type(node)
        if kind is ast.Integer:
            return node.value
        if kind is ast.Bool:
            return int(node.value)
        if kind is ast.Identifier:
            return self.named_value(node.name, zero)
        if kind is ast.Unary and node.op != "*":
            value = self.fold(node.operand, zero)
            return {"-": -value, "~": ~value, "!": int(not value)}[node.op]
        if kind is ast.Binary:
            return self.fold_binary(node, zero)
        if kind is ast.Ternary:
            condition = self.fold(node.condition, zero)
            if condition:
                return condition if node.then is None else self.fold(node.then, zero)
            return self.fold(node.otherwise, zero)
        if kind is ast.Cast:
            return self.fold(node.operand, zero)
        if kind is ast.Sizeof:
            return self.size(node.operand)
        if kind is ast.Call and zero:
            return 0
        raise ValueError("it has more than numbers and operators in it")

    def named_value(self, name, zero):
        found = self.scope.enumerators.get(name)
        if found is not None:
            return found[0]
        value = known_constant(name)
        if value is None and not zero:
            raise ValueError("'%s' is not known" % name)
        return value or 0

    def fold_binary(self, node, zero):
        left = self.fold(node.left, zero)
        op = node.op
        if op == "&&" or op == "||":
            if bool(left) == (op == "||"):
                return int(op == "||")
            return int(bool(self.fold(node.right, zero)))
        right = self.fold(node.right, zero)
        if op in ("/", "%"):
            if not right:
                raise ValueError("division by zero")
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return quotient if op == "/" else left - right * quotient
        if op in ("<<", ">>") and not 0 <= right < 64:
            raise ValueError("a shift by %d" % right)
        value = OPERATIONS[op](left, right)
        if not -(1 << 64) < value < 1 << 64:
            raise ValueError("the number is too large")
        return value

    def size(self, operand):
        """sizeof: of a type node, or of a name that is a type."""
        if isinstance(operand, ast.PointerType):
            return 8
        if isinstance(operand, ast.ArrayType):
            return operand.count * self.size(operand.element)
        found = None
        if isinstance(operand, ast.NamedType):
            found = self.type(operand.kind, operand.name)
        elif isinstance(operand, ast.Identifier):
            found = self.type("", operand.name)
        if found is None:
            raise ValueError("the type in sizeof is not known")
        return found.size


OPERATIONS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b), "<": lambda a, b: int(a < b), "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b), ">=": lambda a, b: int(a >= b),
}


def predefined():
    """Macros that are there without a definition."""
    machine = os.uname()
    version = [int(part) for part in re.findall(r"\d+", machine.release)[:3]] + [0, 0, 0]
    code = (version[0] << 16) + (version[1] << 8) + min(version[2], 255)
    return {"BPFTRACE_HAVE_BTF": "1", "__linux__": "1", "LINUX_VERSION_CODE": str(code),
            "__%s__" % machine.machine: "1"}


class Either:
    """What is in one of two."""

    def __init__(self, *parts):
        self.parts = parts

    def __contains__(self, item):
        first, second = self.parts
        return item in first or item in second


class Expander:
    """Replaces the uses of macros in a script's probes, functions and bpftrace macros."""

    def __init__(self, macros, diagnostics):
        self.macros = macros
        self.diagnostics = diagnostics
        self.active = {}            # names of macros that are being expanded, the outermost first
        self.left = MAX_NODES       # that may still be made

    def change(self, node):
        if type(node) is ast.Identifier:
            macro = self.macros.get(node.name)
            if macro is not None and macro.parameters is None:
                return self.expand(macro, node, {})
        elif type(node) is ast.Call:
            macro = self.macros.get(node.name)
            if macro is not None and macro.parameters is not None:
                if len(macro.parameters) != len(node.arguments):
                    self.diagnostics.error(node.span, "macro '%s' takes %d arguments, %d given" % (
                        node.name, len(macro.parameters), len(node.arguments)))
                    return node
                return self.expand(macro, node, dict(zip(macro.parameters, node.arguments)))
        elif type(node) is ast.NamedType and not node.kind:
            macro = self.macros.get(node.name)
            if macro is not None and macro.parameters is None:
                return self.expand_type(macro, node)
        return node

    def expand(self, macro, node, arguments):
        """The macro's text as an expression, with its uses of other macros expanded."""
        if macro.name in self.active:
            self.diagnostics.error(node.span, "Macro recursion: " + "->".join(self.active))
            return node
        expr = parse_expression(Source(macro.name, macro.body), Diagnostics(),
                                Either(self.macros, macro.parameters or ()))
        if expr is None:
            self.diagnostics.error(node.span, "unable to expand macro as an expression: " + macro.body)
            return node
        for inner in expr.walk():
            inner.span = ExpandedSpan(inner.span, node.span)
            self.left -= 1
        if self.spent(macro, node):
            return node
        self.active[macro.name] = None
        expr = ast.transform(expr, self.change)
        del self.active[macro.name]
        if arguments:
            sizes = {name: sum(1 for _ in given.walk()) for name, given in arguments.items()}

            def argument(inner):
                if type(inner) is ast.Identifier and inner.name in arguments:
                    self.left -= sizes[inner.name]
                    if not self.spent(macro, node):
                        return ast.clone(arguments[inner.name])
                return inner
            expr = ast.transform(expr, argument)
        return expr

    def spent(self, macro, node):
        """Whether too many nodes were made: an error once, and no macro is expanded any more."""
        if self.left >= 0:
            return False
        if self.macros:
            self.diagnostics.error(node.span, "the expansion of macro '%s' is too large" % macro.name)
            self.macros = {}
        return True

    def expand_type(self, macro, node):
        parser = ExpressionParser(Source(macro.name, macro.body), Diagnostics())
        found = parser.type()
        if found is None or parser.kind != "end" or macro.name in self.active:
            return node
        for inner in found.walk():
            inner.span = ExpandedSpan(inner.span, node.span)
        self.active[macro.name] = None
        found = ast.transform(found, self.change)
        del self.active[macro.name]
        return found


def prepare(script, find=None, include_paths=(), includes=(), diagnostics=None):
    """Carries out the C lines of a Script and expands its C macros in place; returns the Names.

    find(kind, name): a Type of BTF or None; include_paths: folders of `-I`; includes: files of
    `--include`. A ScriptError says what is wrong with the C text."""
    diagnostics = diagnostics or Diagnostics()
    names = Names(find, include_paths, diagnostics)
    folder = os.path.dirname(script.source.name) if os.path.isfile(script.source.name) else "."
    own = None
    try:
        for path in includes:
            names.include('"%s"' % path, None, ".")
        for item in script.definitions:
            own = item.span
            if item.text.startswith("#"):
                names.directive(strip_comments(item.text), item.span, folder)
            elif names.active:
                define_types(names, script.source, item, folder)
        if names.conditions:
            raise ScriptError(own, "missing #endif")
    except ScriptError as error:
        diagnostics.add(error)
    diagnostics.check()
    mine = {name: macro for name, macro in names.macros.items() if macro.span is not None}
    mine["LINUX_VERSION_CODE"] = names.macros.get("LINUX_VERSION_CODE")
    mine["KERNEL_VERSION"] = names.macros.get("KERNEL_VERSION")
    expander = Expander({name: macro for name, macro in mine.items() if macro}, diagnostics)
    from .parser import deep_recursion
    with deep_recursion():
        for item in script.items:
            if isinstance(item, (ast.Probe, ast.Function, ast.Macro)):
                ast.transform(item, expander.change)
    diagnostics.check()
    return names


def define_types(names, source, item, folder):
    """A struct, union, enum or typedef definition of a script."""
    text = names.lines(source, item.text, folder, item.span)
    if text.rstrip("; \n") == item.text.rstrip("; \n"):
        return cdecl.Parser(source, names.scope, names.evaluate, item.span.start, item.span.end).run()
    try:
        cdecl.Parser(Source(source.name, text), names.scope, names.evaluate).run()
    except ScriptError as error:
        raise ScriptError(item.span, error.message)
