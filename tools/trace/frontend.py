"""The steps between a parsed script and the compiler, in their order.

C lines are carried out, the macros of C and then those of the language are expanded, and `$1` and
`getopt()` get their values: the compiler sees none of them.
"""

from . import macros
from .arguments import bind
from .preprocess import prepare


def run(script, find, positional=(), named=(), include_paths=(), includes=(), diagnostics=None):
    """Does all that to a Script in place; returns the preprocess.Names of its C text.

    find(kind, name): the Type of BTF or None; the others as `prepare` and `bind` take them."""
    names = prepare(script, find, include_paths, includes, diagnostics)
    macros.expand(script, diagnostics)
    diagnostics.check()
    bind(script, positional, named, diagnostics)
    return names
