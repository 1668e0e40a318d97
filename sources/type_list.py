"""Listing of the kernel's types: `-l 'struct tcp*'`, with definitions for `-lv`."""

from . import kernel_btf
from .base import Listed, has_wildcard, matcher, nearest

KINDS = ("struct", "union", "enum")


class ListedType(Listed):
    """`text` is "struct name"; `verbose()` its C definition with the module it comes from."""

    __slots__ = ("module", "type_id")

    def __init__(self, text, module, type_id):
        super().__init__(text)
        self.module = module
        self.type_id = type_id

    def definition(self):
        """Its C definition, without the last semicolon."""
        from rawbpf.elf.types import definition

        return definition(kernel_btf.of(self.module).type(self.type_id))

    def verbose(self):
        return ["%s: %s;" % (self.module, self.definition()), ""]


def is_type_pattern(pattern):
    return len(pattern.split(None, 1)) == 2 and pattern.split(None, 1)[0] in KINDS


def _names(kind):
    """(name, module, type id) of the kernel's types of a kind."""
    for module in kernel_btf.modules():
        btf = kernel_btf.of(module)
        for name, number in btf.names(*(("enum", "enum64") if kind == "enum" else (kind,))) if btf is not None else ():
            if name:
                yield name, module, number


def list_types(pattern):
    """ListedTypes that match "struct NAME", "union N*" or "enum *", sorted, each once."""
    kind, name = pattern.split(None, 1)
    matches = matcher(name.strip())
    found = {}
    for each, module, number in _names(kind):
        if matches(each):
            found.setdefault(each, (module, number))
    for each, (module, number) in sorted(found.items()):
        yield ListedType("%s %s" % (kind, each), module, number)


def nothing(pattern):
    """Why no type matches: one of another kind that is called so, or the nearest names."""
    kind, name = pattern.split(None, 1)
    name = name.strip()
    if has_wildcard(name):
        return ""
    near = ["%s %s" % (each, name) for each in KINDS if each != kind and name in (found[0] for found in _names(each))]
    near = near or ["%s %s" % (kind, each) for each in nearest(name, {found[0] for found in _names(kind)})]
    return "the kernel's BTF has no %s of that name" % kind + (" (%s?)" % " or ".join(near) if near else "")
