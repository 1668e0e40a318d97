"""Prints a syntax tree as a script again (`-d ast`), every operator's operands in parentheses.

It parses to the same tree."""

from . import ast

ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
# What needs no parentheses as an operand.
CLOSED = (ast.Integer, ast.String, ast.Bool, ast.Positional, ast.PositionalCount, ast.Identifier,
          ast.Sizeof, ast.Offsetof, ast.Typeinfo, ast.Variable, ast.ArrayAccess, ast.TupleAccess,
          ast.MapAccess, ast.Call, ast.Map, ast.FieldAccess, ast.Tuple, ast.Record)


def quote(value):
    out = []
    for byte in value.encode("utf-8", "surrogateescape"):
        char = chr(byte)
        if char in ESCAPES:
            out.append(ESCAPES[char])
        elif 32 <= byte < 127:
            out.append(char)
        else:
            out.append("\\x%02x" % byte)
    return '"%s"' % "".join(out)


def text(node):
    """The node as script text; several lines for blocks, indented by two spaces."""
    return PRINTERS[type(node)](node)


def operand(node):
    if isinstance(node, CLOSED):
        return text(node)
    if isinstance(node, ast.Comptime):
        return text(node) if isinstance(node.operand, CLOSED) else "(%s)" % text(node)
    return "(%s)" % text(node)


def indent(lines):
    return "".join("  %s\n" % line if line else "\n" for line in lines.split("\n"))


def commas(nodes):
    return ", ".join(text(node) for node in nodes)


def body(block):
    """A block with its braces."""
    lines = [text(statement) for statement in block.statements]
    if block.value is not None:
        lines.append(text(block.value))
    return "{\n%s}" % indent("\n".join(lines)) if lines else "{\n}"


def script(node):
    parts = [text(item) for item in node.items]
    return (node.header or "") + "\n\n".join(parts) + ("\n" if parts else "")


def config(node):
    return "config = {\n%s}" % indent("\n".join(text(item) for item in node.settings))


def setting(node):
    value = node.value
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, str) and (not value or not value.replace("_", "a").isalnum()):
        value = quote(value)
    return "%s = %s;" % (node.name, value)


def probe(node):
    head = ",\n".join(point.text for point in node.attach_points)
    predicate = "" if node.predicate is None else "/%s/\n" % text(node.predicate)
    return "%s\n%s%s" % (head, predicate, body(node.block))


def expr_statement(node):
    end = "" if isinstance(node.expr, (ast.If, ast.Block)) else ";"
    return text(node.expr) + end


def declaration(node):
    if node.declared is None:
        return "let " + node.variable.name
    return "let %s : %s" % (node.variable.name, text(node.declared))


def assign(node):
    target = declaration(node.target) if isinstance(node.target, ast.VarDecl) else text(node.target)
    return "%s %s= %s;" % (target, node.op, text(node.value))


def if_(node):
    parts = []
    while isinstance(node, ast.If):
        condition = text(node.condition)
        if not isinstance(node.condition, ast.Comptime):
            condition = "(%s)" % condition
        parts.append("if %s %s" % (condition, body(node.then)))
        node = node.otherwise
    if node is not None:
        parts.append(body(node))
    return " else ".join(parts)


def ternary(node):
    then = node.condition if node.then is None else node.then
    return "%s ? %s : %s" % (operand(node.condition), operand(then), operand(node.otherwise))


def increment(node):
    parts = (node.op, text(node.target)) if node.prefix else (text(node.target), node.op)
    return "".join(parts)


def unary(node):
    return node.op + operand(node.operand)


def binary(node):
    """Chains that lean to the left are printed by a loop: they may be long."""
    rights = []
    while isinstance(node, ast.Binary):
        rights.append(" %s %s" % (node.op, operand(node.right)))
        op, node = node.op, node.left
        if isinstance(node, ast.Binary) and not (op == node.op and op in ("&&", "||")):
            return "(%s)%s" % (binary(node), "".join(reversed(rights)))
    return operand(node) + "".join(reversed(rights))


def tuple_(node):
    if len(node.elements) == 1:
        return "(%s,)" % text(node.elements[0])
    return "(%s)" % commas(node.elements)


def sized(name):
    def printer(node):
        return "%s(%s)" % (name, type_operand(node.operand))
    return printer


def type_operand(node):
    """`sizeof(x[1])` of a name x is a type, so that the expression gets parentheses."""
    inner = node
    while isinstance(inner, ast.ArrayAccess):
        inner = inner.operand
    if inner is not node and isinstance(inner, ast.Identifier):
        return "(%s)" % text(node)
    return text(node)


def array_type(node):
    return "%s[%s]" % (text(node.element), node.count or "")


def loop(keyword, head):
    return lambda node: "%s %s %s" % (keyword, head(node), body(node.body))


PRINTERS = {
    ast.Script: script,
    ast.CDefinition: lambda node: node.text,
    ast.Config: config,
    ast.Setting: setting,
    ast.Import: lambda node: "import %s;" % quote(node.name),
    ast.MapDeclaration: lambda node: "let %s = %s(%d);" % (node.name, node.type, node.max_entries),
    ast.Macro: lambda node: "macro %s(%s)\n%s" % (node.name, commas(node.parameters),
                                                  body(node.body)),
    ast.Function: lambda node: "fn %s(%s) : %s\n%s" % (node.name, commas(node.parameters),
                                                       text(node.returns), body(node.body)),
    ast.Parameter: lambda node: "%s : %s" % (node.variable.name, text(node.declared)),
    ast.Probe: probe,
    ast.AttachPoint: lambda node: node.text,
    ast.ExprStatement: expr_statement,
    ast.Discard: lambda node: "_ = %s;" % text(node.expr),
    ast.Assign: assign,
    ast.VarDecl: lambda node: declaration(node) + ";",
    ast.While: loop("while", lambda node: "(%s)" % text(node.condition)),
    ast.Unroll: loop("unroll", lambda node: "(%s)" % text(node.count)),
    ast.For: loop("for", lambda node: "%s : %s" % (node.variable.name, text(node.iterable))),
    ast.Range: lambda node: "(%s)..(%s)" % (text(node.first), text(node.end)),
    ast.Break: lambda node: "break;",
    ast.Continue: lambda node: "continue;",
    ast.Return: lambda node: "return;" if node.value is None else "return %s;" % text(node.value),
    ast.Block: body,
    ast.If: if_,
    ast.Ternary: ternary,
    ast.Integer: lambda node: str(node.value) if node.text is None else node.text,
    ast.String: lambda node: quote(node.value),
    ast.Bool: lambda node: "true" if node.value else "false",
    ast.Identifier: lambda node: node.name,
    ast.Positional: lambda node: "$%d" % node.index,
    ast.PositionalCount: lambda node: "$#",
    ast.Variable: lambda node: node.name,
    ast.Map: lambda node: node.name,
    ast.MapAccess: lambda node: "%s[%s]" % (node.name, commas(node.keys)),
    ast.Call: lambda node: "%s(%s)" % (node.name, commas(node.arguments)),
    ast.Unary: unary,
    ast.Increment: increment,
    ast.AddressOf: lambda node: "&" + operand(node.operand),
    ast.Binary: binary,
    ast.FieldAccess: lambda node: "%s.%s" % (operand(node.operand), node.name),
    ast.TupleAccess: lambda node: "%s.%d" % (operand(node.operand), node.index),
    ast.ArrayAccess: lambda node: "%s[%s]" % (operand(node.operand), text(node.index)),
    ast.Tuple: tuple_,
    ast.Record: lambda node: "(%s)" % commas(node.elements),
    ast.Named: lambda node: "%s=%s" % (node.name, operand(node.value)),
    ast.Cast: lambda node: "(%s)%s" % (text(node.target), operand(node.operand)),
    ast.Sizeof: sized("sizeof"),
    ast.Typeinfo: sized("typeinfo"),
    ast.Typeof: sized("typeof"),
    ast.Offsetof: lambda node: "offsetof(%s, %s)" % (type_operand(node.operand),
                                                     ".".join(node.path)),
    ast.Comptime: lambda node: "comptime " + operand(node.operand),
    ast.NamedType: lambda node: node.full_name,
    ast.PointerType: lambda node: text(node.target) + "*",
    ast.ArrayType: array_type,
}
