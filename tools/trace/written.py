"""Types as scripts write them, and as messages write them.

A mixin of resolve.Resolver for type nodes (`int32`, `struct x *`, `typeof(...)`), and `type_text`.
"""
import functools

from . import ast, types
from .types import BOOL, INT8, INT64, UINT64, Integer, Pointer, String, Tuple


class Unresolved(Exception):
    """A type that a later pass will know."""


SIMPLE = {"bool": BOOL}
for _bits in (8, 16, 32, 64):
    SIMPLE["int%d" % _bits] = SIMPLE["int%d_t" % _bits] = SIMPLE["s%d" % _bits] = Integer(_bits // 8, True)
    SIMPLE["uint%d" % _bits] = SIMPLE["uint%d_t" % _bits] = SIMPLE["u%d" % _bits] = Integer(_bits // 8, False)
SIMPLE.update({"char": Integer(1, False), "short": Integer(2, True), "int": Integer(4, True), "long": INT64,
               "unsigned char": Integer(1, False), "unsigned short": Integer(2, False),
               "unsigned int": Integer(4, False), "unsigned long": UINT64, "long long": INT64,
               "unsigned long long": UINT64, "size_t": UINT64})


def to_c(kind):
    """The C type of a script type, for pointers to it."""
    from rawbpf.elf import types as c
    if isinstance(kind, Integer):
        return kind.enum or c.Int(kind.name, kind.size, kind.signed, "char" if kind.name == "int8" else "")
    if isinstance(kind, types.Boolean):
        return c.Int("bool", 1, False, "bool")
    if isinstance(kind, Pointer):
        return c.Pointer(kind.target if kind.target is not None else c.Void())
    if isinstance(kind, types.CRecord):
        return kind.c_type
    if isinstance(kind, String):
        return c.Array(c.Int("char", 1, True, "char"), kind.size)
    if isinstance(kind, types.Array) and kind.element != INT8:      # which C takes for text
        return c.Array(to_c(kind.element), kind.count)
    if isinstance(kind, types.NoneType):
        return c.Void()
    made = _pointed_at()("struct", kind.name, kind.size)      # `types.from_c` turns it back
    made.value_type = kind
    return made


@functools.lru_cache(maxsize=None)
def _pointed_at():
    """The class of C types that stand for values of the language in pointers."""
    from rawbpf.elf.types import Struct
    return type("ScriptValue", (Struct,), {"__slots__": ("value_type",)})


def type_text(kind):
    """A type as bpftrace's messages write it."""
    if kind is None:
        return "none"
    if isinstance(kind, String):
        return "string[%d]" % kind.size if kind.size else "string"
    if isinstance(kind, Tuple):
        return "(%s)" % ",".join(map(type_text, kind.elements))
    if isinstance(kind, types.KernelStack):
        return "%s_%s_%d" % (kind.name, kind.mode, kind.limit)
    if isinstance(kind, (types.Inet, types.Buffer)):
        return "%s[%d]" % (kind.name.split("[")[0], kind.size)
    if isinstance(kind, types.UserName):
        return "username_t"
    if isinstance(kind, types.Record) and not isinstance(kind, types.CRecord):
        return "record { %s }" % ", ".join(".%s = %s" % (f.name, type_text(f.type)) for f in kind.fields)
    return kind.name


_BASES = ((Integer, "int"), (String, "string"), (Pointer, "pointer"), (types.Array, "array"), (Tuple, "tuple"),
          (types.CRecord, "c_type"), (types.Record, "record"), (types.Buffer, "buffer"), (types.UserStack, "ustack"),
          (types.KernelStack, "kstack"))


def base_text(kind):
    """The kind of a type without its parameters, as typeinfo() says it."""
    for base, name in _BASES:
        if isinstance(kind, base):
            return name
    return kind.name


class WrittenTypes:
    """What type nodes mean."""

    def written_type(self, node):
        """The script type of a type node."""
        from rawbpf.elf import types as c
        if isinstance(node, ast.Typeof):
            inner = node.operand
            if isinstance(inner, (ast.NamedType, ast.PointerType, ast.ArrayType)):
                return self.written_type(inner)
            if isinstance(inner, ast.Map):
                var = self.map_variable(inner)
                if var.value is None:
                    raise Unresolved()
                return var.value
            return self.type_of(inner) if isinstance(inner, ast.Identifier) else self.expr(inner)
        if isinstance(node, ast.NamedType) and not node.kind:
            if node.name == "string":
                return String(0)
            simple = SIMPLE.get(node.name)
            if simple is not None:
                return simple
            if node.name == "void":
                return types.NONE
        if isinstance(node, ast.ArrayType):
            element = self.written_type(node.element)
            if isinstance(element, String):
                if node.count > self.config.max_strlen and not self.meta:
                    self.error(node, "String type is too long (over %d bytes): string[%d]" % (self.config.max_strlen, node.count),
                               ["Increase BPFTRACE_MAX_STRLEN."])
                return String(node.count)
            return types.Array(element, node.count)
        if isinstance(node, ast.PointerType):
            target = self.c_type(node.target)
            return Pointer(None if isinstance(target, c.Void) else target)
        return self.c_value(self.c_type(node), None)

    def named_type(self, kind, name):
        """What the script, the kernel, C or the probed program calls so, or None."""
        found = self.script.named_type(kind, name)
        return self.point.named_type(kind, name) if found is None else found

    def c_type(self, node):
        """The C type of a type node."""
        from rawbpf.elf import types as c
        if isinstance(node, ast.PointerType):
            return c.Pointer(self.c_type(node.target))
        if isinstance(node, ast.ArrayType):
            return c.Array(self.c_type(node.element), node.count)
        if isinstance(node, ast.Typeof):
            kind = self.written_type(node)
            return to_c(kind)
        if not node.kind:
            if node.name == "void":
                return c.Void()
            if node.name == "char":
                return c.Int("char", 1, True, "char")
            simple = SIMPLE.get(node.name)
            if simple is not None:
                return to_c(simple)
            if node.name == "string":
                return c.Int("char", 1, True, "char")
        named = self.named_type(node.kind, node.name)
        if named is None:
            self.error(node, "Cannot resolve unknown type \"%s\"" % node.full_name)
        return named
