"""Listing of the kernel's types: `-l 'struct tcp*'`, with definitions for `-lv`."""

from . import kernel_btf
from .base import Listed, matcher

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
    return pattern.split(" ", 1)[0] in KINDS and " " in pattern


def list_types(pattern):
    """ListedTypes that match "struct NAME", "union N*" or "enum *", sorted, each once."""
    kind, _, name = pattern.partition(" ")
    matches = matcher(name.strip())
    kinds = ("enum", "enum64") if kind == "enum" else (kind,)
    found = {}
    for module in kernel_btf.modules():
        btf = kernel_btf.of(module)
        for each, number in btf.names(*kinds) if btf is not None else ():
            if each and matches(each):
                found.setdefault(each, (module, number))
    for each, (module, number) in sorted(found.items()):
        yield ListedType("%s %s" % (kind, each), module, number)
