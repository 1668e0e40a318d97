"""Names of numbers: strerror, signal_name, syscall_name. The texts are in a map, one element a number."""
from .. import strings
from ..compiled import KernelMap
from ..place import Place
from ..types import String
from . import Argument, Builtin, register

SIZE = 64


class _Named(Builtin):
    """`table()` is {number: text}; `unknown` the text of all other numbers; `sign`: the number may be negated."""
    pure = True
    arguments = (Argument("integer", "number"),)
    returns = String(SIZE)

    def __init__(self, name, table, unknown, negated=False):
        self.names, self.table, self.unknown, self.negated = (name,), table, unknown, negated

    def constant(self, r, call):
        number = r.constant(call.arguments[0])
        if not isinstance(number, int):
            return None
        number = (number & 0xffffffff ^ 0x80000000) - 0x80000000
        return self.table().get(abs(number) if self.negated else number, self.unknown)

    def store(self, b, call, dest):
        f = b.f
        table = self.table()
        count = max(table) + 1
        texts = tuple(table.get(number, self.unknown).encode().ljust(SIZE, b"\0") for number in range(count))
        b.script.add_kernel_map(KernelMap(self.name, "array", 4, SIZE, count, content=texts))
        number = f.variable()
        f.set(number, f.extend(b._widened(call.arguments[0]), 4, True))
        if self.negated:
            below, ready = f.block(), f.block()
            f.branch("s<", number, 0, below, ready)
            f.position(below)
            f.set(number, f.neg(number))
            f.jump(ready)
            f.position(ready)
        key = f.slot(4, 4)
        f.store(key, 0, number, 4)
        found = f.copy(f.call("bpf_map_lookup_elem", f.map(self.name), f.address(key)))
        known, unknown, done = f.block(), f.block("unknown"), f.block()
        f.branch("==", found, 0, unknown, known)
        f.position(known)
        strings.copy_string(b, Place(found, 0, self.returns), dest, True)
        f.jump(done)
        f.position(unknown)
        strings.store_literal(b, self.unknown.encode(), dest, True)
        f.jump(done)
        f.position(done)


def _errors():
    import os
    # Python's errno has no name for the last of them
    texts = {number: os.strerror(number) for number in range(134)}
    return {number: text for number, text in texts.items() if not text.startswith("Unknown error")}


def _signals():
    import signal
    return {n: n not in (0, 32, 33) and signal.strsignal(n) or "Unknown signal %d" % n for n in range(65)}


def _syscalls():
    from ..syscall_names import names
    return names()


register(_Named("strerror", _errors, "Unknown error", True))
register(_Named("signal_name", _signals, "N/A"))
register(_Named("syscall_name", _syscalls, "Unknown syscall"))
