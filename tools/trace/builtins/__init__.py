"""The built-in variables and functions of the language: one registered entry each.

An entry is an object of a subclass of `Builtin` (or is made by the decorators `value` and `statement`)
that says all there is to say about one built-in: its names, its arguments, its type, the code it
becomes, and, if it acts in user space, the record that the program sends and what is done with it.
The compiler asks entries and knows none by name. Entries are grouped by subject in the modules of
this package.

In an entry, `r` is the resolve.Resolver (types, constants, errors), `b` the lower.Lowering (code).
"""
from typing import NamedTuple, Optional

from ..types import ValueType

_ENTRIES = {}
#: Modules of this package that are not imported yet: each is when a name was not found in those before it.
_WAITING = ["output", "process", "clock", "aggregates", "probe", "maps", "memory", "stacks", "network", "text", "addresses", "kernel",
            "packets", "series", "tables"]


MOST = 128      # arguments of a variadic one


class Argument(NamedTuple):
    """What an argument may be. kind: "any" (a value), "integer" (or pointer), "string", "map" (@x without a
    key), "word" (a bare name such as `perf`), "literal string", "literal integer", "literal" (either)."""
    kind: str = "any"
    name: str = ""
    optional: bool = False


class Builtin:
    """One built-in. Override `resolve` when the type depends on the arguments; `value` (an operand) for
    what fits a register, `store` (writes to a Place) for what does not, `statement` for what has no
    value."""
    names = ()
    arguments = ()          # of Argument
    variadic = False        # up to MOST arguments in all
    bare = False            # may be written without parentheses
    returns: Optional[ValueType] = None
    unsafe = False          # needs --unsafe
    aggregate = False       # may only stand right of `@map =`
    ends = False            # nothing behind a call of it runs
    pure = False            # a call whose value is not used is worth a warning
    reads_args = False      # depends on the fields of `args`: points with other fields need another program
    follows = False         # hands the helper a pointer that the verifier must know: see Point.followable
    per_point = False       # its value differs by point: see point_texts.py

    @property
    def name(self):
        return self.names[0]

    def resolve(self, r, call):
        """The type of the call, after its arguments were checked; None for a statement."""
        r.arguments(self, call)
        return self.returns

    def constant(self, r, call):
        """The value (int, str or bool) when it is known at compile time, else None."""
        return None

    def value(self, b, call):
        raise NotImplementedError(self.name)

    def store(self, b, call, dest):
        raise NotImplementedError(self.name)

    def statement(self, b, call):
        """For its effect only."""
        if self.returns is not None or call.type is not None:
            b.discard(call)


def register(entry):
    """Add an entry (an object or a class without arguments to its constructor). Returns it."""
    made = entry() if isinstance(entry, type) else entry
    for name in made.names:
        _ENTRIES[name] = made
    return entry


class _Value(Builtin):
    bare = True
    pure = True

    def __init__(self, names, returns, code):
        self.names, self.returns = names, returns
        self._code = code

    def value(self, b, call):
        return self._code(b)


def value(*names, returns):
    """Decorator: a built-in variable whose code is `function(b) -> operand`."""
    def decorate(function):
        register(_Value(names, returns, function))
        return function
    return decorate


def lookup(name):
    """The entry called `name`, or None. bpftrace's own library writes `__builtin_comm` for what `comm` is."""
    if name.startswith("__builtin_"):
        name = name[10:]
    while name not in _ENTRIES and _WAITING:
        _load()
    return _ENTRIES.get(name)


def names(bare=False):
    """All names (those that may stand without parentheses)."""
    while _WAITING:
        _load()
    return [n for n, entry in _ENTRIES.items() if entry.bare or not bare]


def _load():
    from importlib import import_module
    import_module("." + _WAITING.pop(0), __name__)


def arguments_of(call):
    """The arguments as written; none for a built-in without parentheses."""
    return getattr(call, "arguments", ())


class ContextRecord:
    """Mixin for the type of a record whose fields are read from the program's context (`args`)."""

    def value(self, b, node):
        """Operand of the field that a FieldAccess node names."""
        raise NotImplementedError

    def place(self, b, node):
        """Place of a field that fits no register."""
        raise NotImplementedError
