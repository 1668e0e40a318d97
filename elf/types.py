"""The one model of C types: what BTF, DWARF, tracepoint formats and scripts all speak.

Sizes and offsets are in bytes, bit offsets and bit sizes in bits. An attribute that leads to
another type (`Pointer.target`, `Struct.fields`, ...) may be given as a function without
arguments; it is called when the attribute is first read, so that a type with a thousand
neighbours costs only itself. C's recursion always passes a struct; readers of hostile files
see to it that chains of pointers, typedefs, qualifiers and arrays end.

Types compare by what they are: equal names, sizes and targets; structs, unions and enums by
kind, name and size when they have a name and by identity when they have none.
"""

from typing import NamedTuple


class Lazy:
    """An attribute that may be given as a function to call at the first read."""

    def __init__(self, slot):
        self.slot = slot

    def __get__(self, owner, owner_type=None):
        if owner is None:
            return self
        value = getattr(owner, self.slot)
        if callable(value):
            value = value()
            setattr(owner, self.slot, value)
        return value


class Type:
    """Base of all types. `size` is in bytes (0 where C has none), `name` may be empty."""

    __slots__ = ()
    name = ""
    size = 0

    def _key(self):
        return (type(self),)

    def __eq__(self, other):
        return self is other or (isinstance(other, Type) and self._key() == other._key())

    def __hash__(self):
        return hash((type(self), self.name, self.size))

    def __str__(self):
        return declaration(self)

    def __repr__(self):
        return "<%s %s>" % (type(self).__name__, declaration(self))


class Void(Type):
    __slots__ = ()
    name = "void"


class Int(Type):
    """`encoding` is "", "char" or "bool"."""

    __slots__ = ("name", "size", "signed", "encoding")

    def __init__(self, name, size, signed, encoding=""):
        self.name = name
        self.size = size
        self.signed = signed
        self.encoding = encoding

    def _key(self):
        return (Int, self.name, self.size, self.signed, self.encoding)


class Float(Type):
    __slots__ = ("name", "size")

    def __init__(self, name, size):
        self.name = name
        self.size = size

    def _key(self):
        return (Float, self.name, self.size)


class Pointer(Type):
    __slots__ = ("_target", "size")
    target = Lazy("_target")

    def __init__(self, target, size=8):
        self._target = target
        self.size = size

    def _key(self):
        return (Pointer, self.size, self.target._key())


class Array(Type):
    """`count` is 0 for a flexible array (`T name[]`)."""

    __slots__ = ("_element", "count")
    element = Lazy("_element")

    def __init__(self, element, count):
        self._element = element
        self.count = count

    @property
    def size(self):
        return self.element.size * self.count

    def _key(self):
        return (Array, self.count, self.element._key())


class Field(NamedTuple):
    """A member of a struct or union, or a field of a tracepoint.

    `offset` is where the storage begins that a bit field is read from; `bit_offset` counts from
    there to the lowest bit in the byte order of the type's owner (little endian: from the lowest
    bit of the storage) and `bit_size` is None unless it is a bit field. `loc` is "data_loc" or
    "rel_loc" for a dynamic field of a tracepoint.
    """

    name: str
    type: Type
    offset: int
    bit_offset: int = 0
    bit_size: object = None
    loc: str = ""


class Struct(Type):
    """`kind` is "struct" or "union"; one that is only declared has `forward` set and no fields."""

    __slots__ = ("kind", "name", "size", "_fields", "forward")
    fields = Lazy("_fields")

    def __init__(self, kind, name, size, fields=(), forward=False):
        self.kind = kind
        self.name = name
        self.size = size
        self._fields = fields
        self.forward = forward

    def _key(self):
        return (Struct, self.kind, self.name, self.size) if self.name else (Struct, id(self))


class Enum(Type):
    """`values` is a dict from the enumerators' names to their numbers, in their order."""

    __slots__ = ("name", "size", "signed", "_values")
    values = Lazy("_values")

    def __init__(self, name, size, signed, values):
        self.name = name
        self.size = size
        self.signed = signed
        self._values = values

    def _key(self):
        return (Enum, self.name, self.size) if self.name else (Enum, id(self))


class Typedef(Type):
    __slots__ = ("name", "_target")
    target = Lazy("_target")

    def __init__(self, name, target):
        self.name = name
        self._target = target

    @property
    def size(self):
        return self.target.size

    def _key(self):
        return (Typedef, self.name, self.target._key())


class Qualified(Type):
    """`qualifier` is "const", "volatile", "restrict", "atomic" or "type_tag"; `tag` is the type
    tag's text ("user", "rcu", "percpu", ...), which C declarations leave out."""

    __slots__ = ("qualifier", "_target", "tag")
    target = Lazy("_target")

    def __init__(self, qualifier, target, tag=""):
        self.qualifier = qualifier
        self._target = target
        self.tag = tag

    @property
    def size(self):
        return self.target.size

    def _key(self):
        return (Qualified, self.qualifier, self.tag, self.target._key())


class Parameter(NamedTuple):
    name: str
    type: Type


class Function(Type):
    """A function, or with an empty name a prototype. `variadic`: ends in `...`."""

    __slots__ = ("name", "_parameters", "_returns", "variadic")
    parameters = Lazy("_parameters")
    returns = Lazy("_returns")

    def __init__(self, name, parameters, returns, variadic=False):
        self.name = name
        self._parameters = parameters
        self._returns = returns
        self.variadic = variadic

    def _key(self):
        return (Function, self.name, id(self))


VOID = Void()


def strip(t):
    """The type without typedefs and qualifiers around it."""
    while isinstance(t, (Typedef, Qualified)):
        t = t.target
    return t


def tags(t):
    """The type tags around a pointer's target: {"user"} for `char __user *`."""
    found = set()
    t = strip(t)
    t = t.target if isinstance(t, Pointer) else t
    while isinstance(t, (Typedef, Qualified)):
        if isinstance(t, Qualified) and t.qualifier == "type_tag":
            found.add(t.tag)
        t = t.target
    return found


def find_field(struct, name):
    """The field `name` of a struct or union (typedefs and qualifiers are looked through), also
    when it sits in anonymous members: its offset is then from the outer struct. None if absent."""
    return _find_field(strip(struct), name, 0, set())


def _find_field(struct, name, base, seen):
    if not isinstance(struct, Struct) or id(struct) in seen:
        return None
    anonymous = []
    for field in struct.fields:
        if field.name == name:
            return field._replace(offset=field.offset + base) if base else field
        if not field.name and field.bit_size is None:
            anonymous.append(field)
    seen.add(id(struct))
    for field in anonymous:
        found = _find_field(strip(field.type), name, base + field.offset, seen)
        if found is not None:
            return found
    return None


_DEEP = 50      # declarators nest a handful deep in real code; more is a loop in a hostile file


def declaration(t, name="", spaced=False, depth=0):
    """C text that declares `name` with the type, without the semicolon; with no name, the type's
    own. `t` may be a Field, whose name and bit size are then used. `spaced` separates the star
    from the name (`struct file * file`), as trace listings do."""
    if isinstance(t, Field):
        text = declaration(t.type, t.name, spaced, depth)
        return text if t.bit_size is None else "%s : %d" % (text, t.bit_size)
    inner = name
    qualifiers = []
    for _ in range(_DEEP):
        if isinstance(t, Qualified):
            if t.qualifier != "type_tag" and t.qualifier not in qualifiers:
                qualifiers.append("_Atomic" if t.qualifier == "atomic" else t.qualifier)
            t = t.target
            continue
        if isinstance(t, Pointer):
            star = " ".join(["*"] + qualifiers)
            glue = " " if inner and (qualifiers or inner[0] == "(" or (spaced and inner == name)) else ""
            inner = star + glue + inner
            qualifiers = []
            t = t.target
            bare = _skip_qualifiers(t)
            if isinstance(bare, (Array, Function)) and not bare.name:
                inner = "(" + inner + ")"
            continue
        if isinstance(t, Array):
            inner += "[%d]" % t.count if t.count else "[]"
            t = t.element
            continue
        if isinstance(t, Function) and (not t.name or inner):
            inner += "(" + _parameters(t, spaced, depth) + ")"
            t = t.returns
            continue
        break
    else:
        return "... " + inner
    if isinstance(t, Function):
        return declaration(t.returns, t.name + "(" + _parameters(t, spaced, depth) + ")", spaced, depth + 1)
    words = qualifiers + [_base(t)]
    return " ".join(words + [inner] if inner else words)


def _skip_qualifiers(t):
    for _ in range(_DEEP):
        if not isinstance(t, Qualified):
            break
        t = t.target
    return t


def _parameters(function, spaced, depth):
    if depth > 8:
        return "..."
    texts = [declaration(p.type, p.name, spaced, depth + 1) for p in function.parameters]
    if function.variadic:
        texts.append("...")
    return ", ".join(texts) or "void"


def _base(t):
    if isinstance(t, Struct):
        return t.kind + " " + t.name if t.name else t.kind + " {...}"
    if isinstance(t, Enum):
        return "enum " + t.name if t.name else "enum {...}"
    return t.name


_MODES = {1: "byte", 2: "HI", 8: "word"}


def definition(t, indent="\t"):
    """C text that defines a struct, union, enum or typedef with all its members (anonymous ones
    written out, named ones by name; gaps filled, see type_layout), ending without the last semicolon."""
    return _definition(t, "", indent, 0)


def _definition(t, name, indent, depth):
    if isinstance(t, Typedef) and not depth:
        target = t.target
        if not getattr(target, "name", ""):
            return "typedef " + _definition(target, t.name, indent, 1)
        return "typedef " + declaration(target, t.name)
    core, after = t, ""
    while isinstance(core, Array):
        after += "[%d]" % core.count
        core = core.element
    own = isinstance(core, (Struct, Enum)) and (not depth or not core.name)
    if not own or depth > 16 or getattr(core, "forward", False):
        return _member(core, name + after, indent, depth)
    outer = indent * max(depth - 1, 0)
    attribute = ""
    if isinstance(core, Enum):
        wide = ("LL" if core.signed else "ULL") if any(not -1 << 31 <= v < 1 << 32 for v in core.values.values()) else ""
        lines = ["%s%s%s = %d%s," % (outer, indent, n, v, wide) for n, v in core.values.items()]
        if core.size in _MODES and not wide:
            attribute = " __attribute__((mode(%s)))" % _MODES[core.size]
    else:
        lines, packed = _members(core, indent, max(depth, 1))
        attribute = " __attribute__((packed))" if packed else ""
    head = ("enum" if isinstance(core, Enum) else core.kind) + (" " + core.name if core.name else "")
    body = "\n%s\n%s" % ("\n".join(lines), outer) if lines else ""
    return "%s {%s}%s%s" % (head, body, attribute, " " + name + after if name else "")


def _member(t, name, indent, depth):
    """A member of any other type; what has no name is written out, behind pointers and qualifiers too."""
    text, core = declaration(t, name).replace("[]", "[0]"), t
    while isinstance(core, (Pointer, Qualified, Array)):
        core = core.element if isinstance(core, Array) else core.target
    if isinstance(core, (Struct, Enum)) and not core.name and depth <= 16 and not getattr(core, "forward", False):
        text = text.replace(_base(core), _definition(core, "", indent, depth), 1)
    return text


def _members(struct, indent, depth):
    """The lines of a struct's body, and whether it is packed."""
    from .type_layout import gaps

    pad, lines = indent * depth, []
    fillings, packed = gaps(struct)
    for field, before in zip(struct.fields, fillings):
        lines += ["%s%s: %d;" % (pad, name, width) for name, width in before]
        text = _definition(field.type, field.name, indent, depth + 1)
        lines.append("%s%s%s;" % (pad, text, "" if field.bit_size is None else ": %d" % field.bit_size))
    return lines + ["%s%s: %d;" % (pad, name, width) for name, width in fillings[-1]], packed
