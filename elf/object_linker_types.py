"""Do two objects that are linked mean the same by one name? Their BTF says what each takes it for.

The rules are those of libbpf's linker: functions and variables have types of one kind and size, structs (but for those
behind pointers) the same members in the same places, an extern map says all that its definition says. How integers are
signed, the values of enumerations and the lengths of arrays may differ.
"""

from . import btf_raw as raw
from .bpf_maps import definition_of

_DEEP = 64              # of types in types; BTF that goes on is damaged
_NAMED = frozenset(("struct", "union", "enum", "enum64", "fwd", "func", "var"))
_SIZED = frozenset(("int", "float", "enum", "enum64"))
_MAP_PARTS = ("type", "key_size", "value_size", "max_entries", "flags", "numa_node", "pinning")


def shared(btf):
    """name -> Record of each function and variable that is not static."""
    found = {}
    for type_id in range(1, btf.count):
        if btf.kind(type_id) in ("func", "var"):
            record = raw.record(btf, type_id)
            if (record.vlen if record.kind == "func" else record.words[0]):
                found.setdefault(record.name, record)
    return found


def differ(one, first, two, second, is_map):
    """What keeps the Record `second` of a BpfObjectFile from being what `first` of another one is, or ""."""
    if is_map and first.kind == second.kind == "var":
        return _maps_differ(one, definition_of(one, first), two, definition_of(two, second))
    return _differ(one.btf, first.id, two.btf, second.id, True, _DEEP)


def _maps_differ(one, first, two, second):
    for part in _MAP_PARTS:
        if getattr(first, part) != getattr(second, part):
            return "%s %s and %s of a map" % (part, getattr(first, part), getattr(second, part))
    for part in ("key_type", "value_type"):
        ids = getattr(first, part), getattr(second, part)
        if bool(ids[0]) != bool(ids[1]):
            return "a map with and one without a %s" % part.replace("_", " ")
        why = ids[0] and _differ(one.btf, ids[0], two.btf, ids[1], True, _DEEP)
        if why:
            return "the %s of a map: %s" % (part.replace("_", " "), why)
    if (first.inner is None) != (second.inner is None):
        return "a map that holds maps and one that does not"
    return "" if first.inner is None else _maps_differ(one, first.inner, two, second.inner)


def _differ(one, first_id, two, second_id, exact, left):
    """exact: not behind a pointer."""
    first, second = raw.skip(one, first_id), raw.skip(two, second_id)
    kinds = {first.kind, second.kind}
    if not exact and len(kinds) == 2 and "fwd" in kinds:
        declared, other = (first, second) if first.kind == "fwd" else (second, first)
        kinds = {other.kind, "union" if declared.flag else "struct"}
    if len(kinds) == 2:
        return "%s and %s" % (_shown(first), _shown(second))
    kind = first.kind
    if kind in _NAMED and first.name != second.name:
        return "%s and %s" % (_shown(first), _shown(second))
    if kind in _SIZED:
        return "" if first.rest == second.rest else "%s of %d bytes and %s of %d" % (
            _shown(first), first.rest, _shown(second), second.rest)
    if not left:
        return ""
    if kind in ("ptr", "func", "var"):
        return _differ(one, first.rest, two, second.rest, exact and kind != "ptr", left - 1)
    if kind == "array":
        return _differ(one, first.words[0], two, second.words[0], exact, left - 1)
    if kind == "func_proto":
        pairs = list(zip(raw.parameters(first), raw.parameters(second))) + [(first.rest, second.rest)]
        if first.vlen != second.vlen:
            return "%d and %d parameters" % (first.vlen, second.vlen)
    elif kind in ("struct", "union") and exact and second.kind == kind:
        members = list(zip(raw.members(one, first), raw.members(two, second)))
        if first.vlen != second.vlen or any((a.name, a.bit_offset) != (b.name, b.bit_offset) for a, b in members):
            return "two %s with other members" % _shown(first)
        pairs = [(a.type, b.type) for a, b in members]
    else:
        return ""
    return next(filter(None, (_differ(one, a, two, b, exact, left - 1) for a, b in pairs)), "")


def _shown(record):
    kind = {"ptr": "a pointer", "func_proto": "a function", "func": "a function", "array": "an array", "var": "a variable",
            "fwd": "struct", "int": "", "float": ""}.get(record.kind, record.kind)
    return " ".join(filter(None, (kind, record.name)))
