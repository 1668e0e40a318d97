"""Reading memory: str, buf, kptr, uptr, bswap, and addresses of symbols."""
from .. import strings, types
from ..written import base_text, type_text
from ..types import Integer, Pointer, String
from . import Argument, Builtin, register


@register
class _Str(Builtin):
    """str(address, length): up to `length` - 1 bytes and a NUL; without length up to max_strlen bytes, and a
    string that is longer counts as cut."""
    names = ("str",)
    pure = True
    prefix = True           # stores as much as fits: comparing with a literal reads no more than it needs
    arguments = (Argument("any", "address"), Argument("integer", "length", optional=True))

    def resolve(self, r, call):
        r.arguments(self, call)
        source = call.arguments[0].type
        text = self.constant(r, call)
        if text is not None:
            size = len(text.encode("utf-8", "surrogateescape"))
            if size >= r.config.max_strlen:
                r.error(call, "String is too long (over %d bytes): %s" % (r.config.max_strlen, text))
            return String(size + 1)
        if not isinstance(source, (Integer, Pointer, String, types.Array)):
            r.error(call, "str() expects an integer or a pointer type as first argument (%s provided)"
                    % type_text(source))
        size = r.config.max_strlen
        if len(call.arguments) == 2:
            length = r.constant(call.arguments[1])
            if isinstance(length, int):
                if length < 0:
                    r.error(call, "str cannot use negative length (%d)" % length)
                if length + 1 > size:
                    r.warn(call, "length param (%d) is too long and will be shortened to %d bytes "
                           "(see BPFTRACE_MAX_STRLEN)" % (length, size))
                size = min(size, length + 1)
        return String(size)

    def constant(self, r, call):
        """A literal's text; str($1), str($1 + 2): the positional parameter's."""
        from .. import ast
        node, skip = call.arguments[0], 0
        if isinstance(node, ast.String):
            length = r.constant(call.arguments[1]) if len(call.arguments) == 2 else None
            data = node.value.encode("utf-8", "surrogateescape")
            return data[:length if isinstance(length, int) and length >= 0 else None].decode("utf-8", "surrogateescape")
        if isinstance(node, (ast.Integer, ast.Unary, ast.Binary, ast.Ternary, ast.Sizeof, ast.Offsetof)):
            number = r.constant(node)
            if isinstance(number, int) and not isinstance(number, bool) and not any(
                    isinstance(n, (ast.Cast, ast.Identifier, ast.Call, ast.Positional)) for n in node.walk()):
                length = r.constant(call.arguments[1]) if len(call.arguments) == 2 else 64
                return str(number)[:length] if isinstance(length, int) and length >= 0 else None
        if isinstance(node, ast.Binary) and node.op == "+" and isinstance(node.left, ast.Positional):
            skip = r.constant(node.right)
            node = node.left
        if not isinstance(node, ast.Positional) or not isinstance(skip, int):
            return None
        words = r.options.positional
        text = words[node.index - 1] if node.index <= len(words) else ""
        if skip:
            text = text.encode("utf-8", "surrogateescape")[skip:].decode("utf-8", "surrogateescape")
        if len(call.arguments) == 2:
            length = r.constant(call.arguments[1])
            if isinstance(length, int):
                text = text.encode("utf-8", "surrogateescape")[:max(0, length - 1)].decode(
                    "utf-8", "surrogateescape")
        return text

    def store(self, b, call, dest):
        f = b.f
        source = call.arguments[0]
        length = b.constant(call.arguments[1]) if len(call.arguments) == 2 else None
        if isinstance(source.type, (String, types.Array)):
            place = b.place(source).typed(String(source.type.size))
            if isinstance(length, int) and length < source.type.size:
                place = place.typed(String(max(length - 1, 0)))     # the length counts the NUL
            if len(call.arguments) == 1 or isinstance(length, int):
                b.copy(place, dest)
                return
            place = b.direct(place) if place.space is None else place
            space, where = place.space or "kernel", b.address(place)
        else:
            space = "user" if b._space(source) else "kernel"
            where = b.value(source)
        room = dest.type.size
        if len(call.arguments) == 1:
            strings.read_string(b, where, dest, room, space, whole=room >= call.type.size)
            return
        if isinstance(length, int):
            if length == 0:
                f.store(dest.base, dest.off, 0, 1)
                return
            whole = length >= call.type.size        # more was asked for than fits
            strings.read_string(b, where, dest, min(room, length), space, whole)
            return
        where = f.copy(where) if not isinstance(where, int) else where
        length = f.copy(b.value(call.arguments[1]))
        some, small, done = f.block("length"), f.block(), f.block()
        f.store(dest.base, dest.off, 0, 1)
        f.branch("==", length, 0, done, some)
        f.position(some)
        limit = f.variable()
        f.set(limit, room)
        reading = f.block()
        f.branch("<", length, room, small, reading)
        f.position(small)
        f.set(limit, length)
        f.jump(reading)
        f.position(reading)
        f.call(b.read_helper(space, string=True), b.address(dest), limit, where)
        f.jump(done)
        f.position(done)


@register
class _Buf(Builtin):
    names = ("buf",)
    pure = True
    arguments = (Argument("any", "data"), Argument("integer", "length", optional=True))

    def resolve(self, r, call):
        r.arguments(self, call)
        source = call.arguments[0].type
        most = r.config.max_strlen - 4
        if not isinstance(source, (Integer, Pointer, String, types.Array)):
            r.error(call, "buf() expects an integer, a pointer, a string or an array (%s provided)"
                    % type_text(source))
        if len(call.arguments) == 1:
            if not isinstance(source, (types.Array, String)):
                r.error(call, "buf() expects a length argument for non-array type %s" % type_text(source))
            return types.Buffer(min(most, source.size))
        length = r.constant(call.arguments[1])
        if isinstance(length, int):
            if length < 0:
                r.error(call, "buf cannot use negative length (%d)" % length)
            most = min(most, length)
        return types.Buffer(max(1, most))

    def store(self, b, call, dest):
        f = b.f
        source, capacity = call.arguments[0], dest.type.capacity
        data = dest.at(4, types.Array(types.UINT8, capacity))
        length = b.constant(call.arguments[1]) if len(call.arguments) == 2 else capacity
        if not isinstance(length, int):
            length = self._limited(b, f.copy(b.value(call.arguments[1])), capacity)
        else:
            length = min(length, capacity)
        f.store(dest.base, dest.off, length, 4)
        if isinstance(source.type, (String, types.Array)):
            place = b.place(source)
            if isinstance(length, int):
                strings.copy_bytes(b, place, data, min(length, source.type.size))
            else:
                strings.copy_bytes(b, place, data, min(capacity, source.type.size))
            return
        space = "user" if b._space(source) else "kernel"
        f.call(b.read_helper(space), b.address(data), length, b.value(source))

    def _limited(self, b, length, most):
        f = b.f
        limit = f.variable()
        big, done = f.block(), f.block()
        f.set(limit, length)
        f.branch(">", limit, most, big, done)
        f.position(big)
        f.set(limit, most)
        f.jump(done)
        f.position(done)
        return limit


class _Space(Builtin):
    """kptr() and uptr(): which memory an address means. The type stays what it was."""
    pure = True
    arguments = (Argument("any", "pointer"),)

    def __init__(self, name, user):
        self.names, self.user = (name,), user

    def resolve(self, r, call):
        r.arguments(self, call)
        kind = call.arguments[0].type
        if not isinstance(kind, (Integer, Pointer)):
            r.error(call, "%s() only supports integer or pointer arguments (%s provided)" % (self.name, base_text(kind)))
        return Pointer(kind.target, self.user) if isinstance(kind, Pointer) else kind

    def space(self, r):
        return self.user

    def value(self, b, call):
        return b.value(call.arguments[0])


register(_Space("kptr", False))
register(_Space("uptr", True))


@register
class _Bswap(Builtin):
    names = ("bswap",)
    pure = True
    arguments = (Argument("integer", "n"),)

    def resolve(self, r, call):
        r.arguments(self, call)
        kind = call.arguments[0].type
        if not isinstance(kind, Integer):
            r.error(call, "bswap() only supports integer arguments (%s provided)" % type_text(kind))
        return Integer(kind.size, False)

    def value(self, b, call):
        size = call.type.size
        operand = b.value(call.arguments[0])
        operand = b.f.const(operand) if isinstance(operand, int) else operand
        if size == 1:
            return b.f.extend(operand, 1, False)
        return b.f.swap("be", operand, 8 * size)


@register
class _IsErr(Builtin):
    names = ("is_err",)
    pure = True
    arguments = (Argument("integer", "pointer"),)
    returns = types.BOOL

    def value(self, b, call):
        operand = b.value(call.arguments[0])
        return b.f.compare(">=", b.f.const(operand) if isinstance(operand, int) else operand, -4095)


@register
class _Kaddr(Builtin):
    """kaddr(): the address of a kernel symbol, found when the script is compiled."""
    names = ("kaddr",)
    pure = True
    arguments = (Argument("literal string", "symbol"),)

    def resolve(self, r, call):
        r.arguments(self, call)
        name = r.constant(call.arguments[0])
        if r.script.machine.kernel_address(name) is None:
            r.error(call, "Failed to resolve kernel symbol: %s" % name)
        return Integer(8, False)

    def space(self, r):
        return False

    def constant(self, r, call):
        return r.script.machine.kernel_address(r.constant(call.arguments[0]))
