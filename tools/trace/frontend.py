"""The steps between a parsed script and the compiler, in their order.

C lines are carried out, the macros of C and then those of the language are expanded, and `$1` and
`getopt()` get their values: the compiler sees none of them. A script that has nothing for a step does not
pay for it: their modules take a fifth of the time that a short script needs to start.
"""

C_MACROS = ("LINUX_VERSION_CODE", "KERNEL_VERSION")     # there without a #define


def run(script, find, positional=(), named=(), include_paths=(), includes=(), diagnostics=None):
    """Does all that to a Script in place; returns the preprocess.Names of its C text.

    find(kind, name): the Type of BTF or None; the others as `prepare` and `bind` take them."""
    from .parser import deep_recursion
    with deep_recursion():
        return _run(script, find, positional, named, include_paths, includes, diagnostics)


def _run(script, find, positional, named, include_paths, includes, diagnostics):
    from .parser import check_depth
    text = script.source.text
    if "import" in text and script.imports:
        from .imports import follow
        text = follow(script, diagnostics)
    if includes or script.definitions or any(name in text for name in C_MACROS):
        from .preprocess import prepare
        names = prepare(script, find, include_paths, includes, diagnostics)
    else:
        names = _NoText(find, include_paths, diagnostics)
    from .stdlib import macros_of
    library = macros_of(text)
    own_macros = bool(script.macros)
    has_macros = bool(own_macros or library)
    if has_macros:
        from . import macros
        macros.expand(script, diagnostics, library)
        diagnostics.check()
    if own_macros or script.definitions:        # what they stand for may be deeper than what the parser lets through
        check_depth(script, diagnostics)
        diagnostics.check()
    if has_macros or "= {" in text or "={" in text:
        from . import ast
        ast.transform(script, _assigned_inside)
    if named or "$" in text or "getopt" in text:
        from .arguments import bind
        bind(script, positional, named, diagnostics)
    return names


def _assigned_inside(node):
    """`@x = { statements; count() }` as `{ statements; @x = count(); }`: what a map keeps one of a CPU is no value that a
    block could have."""
    from . import ast, builtins
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Block):
        return node
    inner = node.value
    while isinstance(inner.value, ast.Block):
        inner = inner.value
    entry = builtins.lookup(inner.value.name) if isinstance(inner.value, (ast.Call, ast.Identifier)) else None
    if entry is None or not entry.aggregate:
        return node
    block = node.value
    inner.statements.append(ast.Assign(node.span, node.target, node.op, inner.value))
    inner.value = None
    outer = block
    while outer is not inner:           # blocks within become statements
        following, outer.value = outer.value, None
        outer.statements.append(ast.ExprStatement(following.span, following))
        outer = following
    return ast.ExprStatement(node.span, block)


class _NoText:
    """The Names of a script without C text: a `preprocess.Names`, made when somebody asks for one."""

    def __init__(self, *arguments):
        self._arguments = arguments

    def __getattr__(self, name):
        if name == "_names":
            from .preprocess import Names
            self._names = Names(*self._arguments)
            return self._names
        return getattr(self._names, name)
