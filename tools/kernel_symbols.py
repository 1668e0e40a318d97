"""Types of the kernel's functions and variables, for objects that refer to them: as asm.prototypes writes types."""

import functools


@functools.lru_cache(maxsize=None)
def _btf():
    from rawbpf.elf.btf import Btf
    from rawbpf.elf.image import ElfError
    try:
        return Btf.open()
    except (ElfError, OSError):
        return None


def kernel_type(name, kind):
    """The type of the running kernel's function ("func") or variable ("var"), or None."""
    btf = _btf()
    return kind_of(btf, name, kind) if btf is not None else None


def kind_of(btf, name, kind):
    """The same of any Btf."""
    from rawbpf.elf.btf import Variable
    found = btf.find(name, kind)
    if found is None:
        return None
    found = _tuple(found.type if isinstance(found, Variable) else found)
    return None if found == ("void",) or _nameless(found) else found


def _nameless(kind):
    """Is there a struct without a name in it, which no declaration can say?"""
    return kind[0] in ("struct", "union", "enum") and not kind[1] or any(
        _nameless(part) for part in (*kind[1:], *(kind[2] if kind[0] == "function" else ())) if isinstance(part, tuple)
        and part and isinstance(part[0], str))


def _tuple(type, depth=0):
    from rawbpf.elf.types import Array, Enum, Function, Int, Pointer, Struct, strip
    type = strip(type)
    if isinstance(type, Int):
        return "int", type.name, type.size, type.signed
    if isinstance(type, Pointer):
        # loaders look this far at most
        return "pointer", _tuple(type.target, depth + 1) if depth < 8 else ("void",)
    if isinstance(type, Array):
        return "array", _tuple(type.element, depth + 1), type.count
    if isinstance(type, Struct):
        return type.kind, type.name
    if isinstance(type, Enum):
        return "enum", type.name
    if isinstance(type, Function):
        return ("function", _tuple(type.returns, depth + 1) if depth < 8 else ("void",),
                tuple(_tuple(each.type, depth + 1) for each in type.parameters) if depth < 8 else ())
    return ("void",)
