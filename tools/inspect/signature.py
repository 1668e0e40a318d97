"""Types as bpftool declares functions: `int run(struct xdp_md * ctx)`."""

from rawbpf.elf import types

_DEEP = 32


def function(btf, type_id):
    """The declaration of the function with this BTF id."""
    found = btf.type(type_id)
    if not isinstance(found, types.Function):
        return ""
    return _function(found, found.name)


def prototype(proto):
    """The declaration of a function type, without a name: `int (struct xdp_md * )`."""
    return _function(proto, "")


def _function(proto, name, depth=0):
    parts = []
    for parameter in proto.parameters:
        parts.append(_text(parameter.type, depth) + parameter.name if parameter.name
                     else _text(parameter.type, depth).rstrip(" "))
    if proto.variadic:
        parts.append("...")
    return "%s%s(%s)" % (_text(proto.returns, depth), name, ", ".join(parts))


def _text(t, depth=0):
    if depth > _DEEP:
        return "... "
    if isinstance(t, types.Pointer):
        return _text(t.target, depth + 1) + "* "
    if isinstance(t, types.Qualified):
        prefix = "" if t.qualifier == "type_tag" else t.qualifier + " "
        return prefix + _text(t.target, depth + 1)
    if isinstance(t, types.Array):
        return _text(t.element, depth + 1) + "[%d]" % t.count
    if isinstance(t, types.Struct):
        return "%s %s " % (t.kind, t.name)
    if isinstance(t, types.Enum):
        return "enum %s " % t.name
    if isinstance(t, types.Function):
        return _function(t, "", depth + 1)
    return t.name + " "
