"""Functions on strings: strlen, strncmp, strcontains, strstr, strerror, signal_name."""
from .. import strings, types
from ..types import BOOL, INT64, UINT64, Integer, String
from . import Argument, Builtin, register


@register
class _Strlen(Builtin):
    names = ("strlen",)
    pure = True
    arguments = (Argument("string", "text"),)
    returns = UINT64

    def constant(self, r, call):
        text = r.constant(call.arguments[0])
        return len(text.encode("utf-8", "surrogateescape")) if isinstance(text, str) else None

    def value(self, b, call):
        f = b.f
        place = b.direct(b.place(call.arguments[0]))
        base = b.address(place)
        index = f.variable()
        f.set(index, 0)
        loop, more, done = f.block("strlen"), f.block(), f.block()
        f.jump(loop)
        f.position(loop)
        f.branch("==", f.load(f.alu("+", base, index), 0, 1), 0, done, more)
        f.position(more)
        f.set(index, f.alu("+", index, 1))
        f.branch("<", index, place.type.size, loop, done)
        f.position(done)
        return index


@register
class _Strncmp(Builtin):
    names = ("strncmp",)
    pure = True
    arguments = (Argument("string", "left"), Argument("string", "right"), Argument("literal integer", "n"))
    returns = UINT64

    def value(self, b, call):
        """0 when the first n bytes are equal."""
        f = b.f
        left, right, limit = call.arguments
        n = b.constant(limit)
        result = f.variable()
        f.set(result, 1)
        same, done = f.block("same"), f.block()
        constants = [b.constant(left), b.constant(right)]
        if n <= 0:
            return 0
        places = [b.direct(b.place(left)), b.direct(b.place(right))]
        size = min(n, places[0].type.size, places[1].type.size)
        index = f.variable()
        f.set(index, 0)
        one, two = b.address(places[0]), b.address(places[1])
        loop, equal, more = f.block("strncmp"), f.block(), f.block()
        f.jump(loop)
        f.position(loop)
        byte = f.load(f.alu("+", one, index), 0, 1)
        f.branch("==", byte, f.load(f.alu("+", two, index), 0, 1), equal, done)
        f.position(equal)
        f.branch("==", byte, 0, same, more)
        f.position(more)
        f.set(index, f.alu("+", index, 1))
        f.branch("<", index, size, loop, same)
        f.position(same)
        f.set(result, 0)
        f.jump(done)
        f.position(done)
        del constants
        return result


class _Search(Builtin):
    """NAME(text, part), part a literal: the text is searched byte by byte for `part`."""
    pure = True
    arguments = (Argument("string", "text"), Argument("literal string", "part"))

    def of_index(self, index):
        """The result, given the index (operand or int) of the first place, -1 for none."""
        raise NotImplementedError(self.name)

    def constant(self, r, call):
        text, part = [r.constant(a) for a in call.arguments]
        if not isinstance(text, str):
            return None
        return self.of_index(text.encode("utf-8", "surrogateescape").find(part.encode("utf-8", "surrogateescape")))

    def value(self, b, call):
        f = b.f
        part = b.constant(call.arguments[1]).encode("utf-8", "surrogateescape")
        place = b.direct(b.place(call.arguments[0]))
        size = place.type.size
        if not part:
            return int(self.of_index(0))
        if len(part) > size:
            return int(self.of_index(-1))
        base = b.address(place)
        result, index = f.variable(), f.variable()
        f.set(result, int(self.of_index(-1)))
        f.set(index, 0)
        loop, following, found, done = f.block("search"), f.block(), f.block(), f.block()
        f.jump(loop)
        f.position(loop)
        at = f.alu("+", base, index)
        first = f.load(at, 0, 1)
        nonzero = f.block()
        f.branch("==", first, 0, done, nonzero)
        f.position(nonzero)
        value = first
        for offset, wanted in enumerate(part):
            match = f.block()
            value = f.load(at, offset, 1) if offset else first
            f.branch("==", value, wanted, match, following)
            f.position(match)
        f.jump(found)
        f.position(following)
        f.set(index, f.alu("+", index, 1))
        f.branch("<=", index, size - len(part), loop, done)
        f.position(found)
        f.set(result, self.of_index(index))
        f.jump(done)
        f.position(done)
        return result


@register
class _Strcontains(_Search):
    names = ("strcontains",)
    returns = BOOL

    def of_index(self, index):
        return index >= 0 if isinstance(index, int) else 1


@register
class _Strstr(_Search):
    """The index of the first place, or -1."""
    names = ("strstr",)
    returns = INT64

    def of_index(self, index):
        return index


class _Named(Builtin):
    """A number's name, when the number is known at compile time or by a table in the program."""
    pure = True
    arguments = (Argument("integer", "number"),)

    def __init__(self, name, table):
        self.names, self.table = (name,), table

    def resolve(self, r, call):
        r.arguments(self, call)
        return String(max(len(t) for t in self.table().values()) + 1)

    def constant(self, r, call):
        number = r.constant(call.arguments[0])
        return self.table().get(number, "") if isinstance(number, int) else None

    def store(self, b, call, dest):
        f = b.f
        number = f.copy(b.value(call.arguments[0]))
        done = f.block("named")
        f.store(dest.base, dest.off, 0, 1)
        for value, text in self.table().items():
            hit, following = f.block(), f.block()
            f.branch("==", number, value, hit, following)
            f.position(hit)
            strings.store_literal(b, text.encode(), dest, False)
            f.jump(done)
            f.position(following)
        f.jump(done)
        f.position(done)


def _errors():
    import errno
    import os
    return {number: os.strerror(number) for number in errno.errorcode}


def _signals():
    import signal
    return {int(s): signal.strsignal(s) for s in signal.valid_signals() if signal.strsignal(s)}


register(_Named("strerror", _errors))
register(_Named("signal_name", _signals))

__all__ = ["INT64", "Integer", "types"]
