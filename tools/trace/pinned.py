"""printf in a pinned iterator: the text goes to whoever reads the pinned file, by bpf_seq_printf (Linux 5.8).

The kernel makes the text, from a format in a map and 64-bit words; strings are given by their address.
"""
import re

from . import types
from .compiled import KernelMap

_SPEC = re.compile(r"%([-0]?\d*)(?:hh|h|ll|l|j|z|t)?([a-zA-Z]+?|%)(?=[^a-zA-Z]|$|.)")
_NUMBERS = {"d": "lld", "i": "lld", "u": "llu", "x": "llx", "X": "llX", "p": "llx", "c": "c"}
MOST = 12       # arguments: MAX_BPRINTF_VARARGS


def writes_there(point):
    """Whether a point's printf goes to the readers of a pinned iterator."""
    return point.when == "iter" and bool(point.spec.pin)


def seq_printf(b, call, text, values):
    """Code of a printf with this format and these expressions."""
    f = b.f
    kinds = iter([value.type for value in values])

    def spec(match):
        width, letter = match.group(1), match.group(2)
        if letter == "%":
            return "%%"
        kind = next(kinds)
        if isinstance(kind, types.String) and letter == "s":
            return "%" + width + "s"
        if isinstance(kind, (types.Integer, types.Pointer, types.Boolean)) and (letter in _NUMBERS or letter == "s"):
            return ("0x" if letter == "p" else "") + "%" + width + _NUMBERS.get(letter, "lld")
        b.error(call, "a pinned iterator cannot print a value of type %s with %%%s: the kernel makes its text"
                % (kind.name, letter))
    made = _SPEC.sub(spec, text).encode("utf-8", "surrogateescape") + b"\0"
    if len(values) > MOST:
        b.error(call, "a pinned iterator prints at most %d values at once" % MOST)
    name = "format%d" % sum(1 for known in b.script.extra_maps if known.startswith("format"))
    size = -(-len(made) // 8) * 8
    b.script.add_kernel_map(KernelMap(name, "array", 4, size, 1, content=(made.ljust(size, b"\0"),)))
    words = []
    for value in values:
        if value.type.scalar:
            words.append(f.copy(b.convert(b.value(value), value.type, types.INT64)))
        else:
            place = b.direct(b.place(value))
            if not isinstance(place.base, int):
                whole = b.scratch.place(value.type)     # outside of the stack: the kernel reads it by its address
                b.copy(place, whole)
                place = whole
            words.append(f.copy(b.address(place)))
    data = f.slot(8 * max(len(words), 1))
    for index, word in enumerate(words):
        f.store(data, 8 * index, word, 8)
    meta = f.load(b.ctx, 0, 8)
    f.call("bpf_seq_printf", f.load(meta, 0, 8), f.map_value(name), len(made), f.address(data) if words else 0, 8 * len(words))
