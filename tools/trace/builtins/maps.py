"""Functions on maps: delete, clear, zero, len, has_key."""
from .. import ast, strings, types
from ..place import Place
from ..types import BOOL, INT64
from ..written import Unresolved
from . import Argument, Builtin, register


@register
class _Delete(Builtin):
    """delete(@x, key), delete(@x) for a scalar, and the older delete(@x[key])."""
    names = ("delete",)
    variadic = pure = True

    def resolve(self, r, call):
        given = call.arguments
        if not given:
            r.error(call, "delete() expects at least 1 argument (0 provided)")
        if isinstance(given[0], ast.MapAccess) or (len(given) == 1 and isinstance(given[0], ast.Map)):
            for target in given:
                if not isinstance(target, (ast.Map, ast.MapAccess)):
                    r.error(target, "delete() expects a map argument")
                if isinstance(target, ast.Map):
                    r.map_variable(target, True, (
                        "call to delete() with a single argument expects a map without explicit keys (scalar map)", call))
                r.map_target(target)
            return BOOL
        if not isinstance(given[0], ast.Map) or len(given) != 2:
            r.error(call, "delete() expects a map and a key")
        _key_argument(r, call, "delete() with two arguments")
        return BOOL

    def value(self, b, call):
        given = call.arguments
        if len(given) == 2 and isinstance(given[0], ast.Map) and not isinstance(given[1], (ast.Map, ast.MapAccess)) \
                or len(given) == 2 and not b.storage(given[0]).info.scalar and isinstance(given[0], ast.Map):
            return self._one(b, given[0], _keys(given[1]), call)
        result = None
        for target in given:
            result = self._one(b, target, b.keys_of(target), call)
        return result

    def _one(self, b, target, keys, call):
        f = b.f
        storage = b.storage(target)
        info = storage.info
        if info.scalar:
            if info.storage == "cpu":
                _send_map_action(b, call, "clear", target, lambda session, found: session.clear_map(found))
                return 1
            size = storage.kernel_map.value_size
            strings.zero(b, b.data_cell(storage), 0, size)
            return 1
        result = f.call("bpf_map_delete_elem", f.map(storage.kernel_map.name), b.key(storage, keys))
        return f.compare("==", result, 0)

    def statement(self, b, call):
        self.value(b, call)


def _keys(node):
    """The written parts of a key given as one argument: a tuple is its elements."""
    return node.elements if isinstance(node, ast.Tuple) else [node]


NEEDS_KEYS = "call to %s expects a map with explicit keys (non-scalar map)"


def _key_argument(r, call, what):
    """Types of `f(@x, key)`."""
    target, key = call.arguments
    var = r.map_variable(target, False, (NEEDS_KEYS % what, call))
    r.map_key(call, var, _keys(key))
    if isinstance(key, ast.Tuple):
        key.type = types.Tuple([e.type for e in key.elements])


@register
class _HasKey(Builtin):
    names = ("has_key",)
    pure = True
    arguments = (Argument("map", "map"), Argument("any", "key"))
    returns = BOOL

    def resolve(self, r, call):
        if len(call.arguments) != 2 or not isinstance(call.arguments[0], ast.Map):
            r.error(call, "has_key() expects a map and a key")
        _key_argument(r, call, "has_key()")
        return BOOL

    def value(self, b, call):
        target, key = call.arguments
        storage = b.storage(target)
        return b.f.compare("!=", b.lookup(storage, b.key(storage, _keys(key))), 0)


@register
class _Find(Builtin):
    """find(@x, key, $value): whether the key is there; then $value is its value, from the same lookup."""
    names = ("find",)
    arguments = (Argument("map", "map"), Argument("any", "key"), Argument("any", "value"))
    returns = BOOL

    def resolve(self, r, call):
        given = call.arguments
        if len(given) != 3 or not isinstance(given[0], ast.Map) or not isinstance(given[2], ast.Variable):
            r.error(call, "Call to find() has arguments that do not match any definition.",
                    ["find(@map, key, $variable)"])
        target, key, variable = given
        var = r.map_variable(target, scalar=False)
        keys = _keys(key)
        r.map_key(call, var, keys)
        if isinstance(key, ast.Tuple):
            key.type = types.Tuple([e.type for e in key.elements])
        if var.value is None:
            raise Unresolved()
        kind = var.value
        if kind.aggregate:
            if not kind.castable:
                r.error(call, "Map value '%s' cannot be read: it can only be printed" % kind)
            kind = kind.scalar_type
        r.assign_variable(call, variable, kind)
        return BOOL

    def value(self, b, call):
        f = b.f
        target, key, variable = call.arguments
        storage = b.storage(target)
        kind = storage.info.value_type
        address = b.key(storage, _keys(key))
        pointer = f.copy(b.lookup(storage, address))
        result = f.variable()
        f.set(result, 0)
        var = b._variable(variable, b._owner)
        missing, found = f.block(), f.block("found")
        f.branch("==", pointer, 0, missing, found)
        f.position(found)
        f.set(result, 1)
        if kind.aggregate:
            number = b.aggregate_of(call, storage, address, pointer)
            b._set(var, b.convert(number, kind.scalar_type, var.type))
        elif kind.scalar:
            place = Place(pointer, 0, kind)
            b._set(var, b.convert(b.load(place), kind, var.type))
        else:
            b.copy(Place(pointer, 0, kind), b._memory(var))
        f.jump(missing)
        f.position(missing)
        return result

    def statement(self, b, call):
        self.value(b, call)


@register
class _Len(Builtin):
    """len(@x): the number of keys, counted by walking the map; len(stack): its frames."""
    names = ("len",)
    pure = True
    arguments = (Argument("any", "map"),)
    returns = INT64

    def resolve(self, r, call):
        if len(call.arguments) == 1 and isinstance(call.arguments[0], ast.Map):
            if r.map_variable(call.arguments[0]).scalar:
                r.error(call, NEEDS_KEYS % "len()")
            return INT64
        r.arguments(self, call)
        kind = call.arguments[0].type
        if not isinstance(kind, types.KernelStack):
            r.error(call, "call to len() expects a map, ustack, or kstack")
        return INT64

    def value(self, b, call):
        argument = call.arguments[0]
        if not isinstance(argument, ast.Map):
            from .stacks import depth
            return depth(b, argument)
        storage = b.storage(argument)
        if storage.info.scalar:
            return 1
        if not b.script.machine.has_helper("bpf_for_each_map_elem", b.point.program_type):
            b.error(call, "len() of a map needs Linux 5.13 (bpf_for_each_map_elem)")
        from rawbpf.asm import ir
        b.callbacks += 1
        counter = ir.Function("%s_len%d" % (b.f.name, b.callbacks), 4)
        counter.ret(0)
        return b.f.call("bpf_for_each_map_elem", b.f.map(storage.kernel_map.name), b.f.func(counter), 0, 0)


def _send_map_action(b, call, name, target, act):
    """Tell user space to do something with a map."""
    info = b.storage(target).info
    b.send(b.event(call, name, [], lambda session, values: act(session, info)), lambda record: None)


class _MapAction(Builtin):
    """clear() and zero(): done by the reader."""
    arguments = (Argument("map", "map"),)

    def __init__(self, name, act):
        self.names, self.act = (name,), act

    def statement(self, b, call):
        _send_map_action(b, call, self.name, call.arguments[0], self.act)


register(_MapAction("clear", lambda session, info: session.clear_map(info)))
register(_MapAction("zero", lambda session, info: session.zero_map(info)))
