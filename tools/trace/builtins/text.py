"""Functions on strings: strlen, strcap, strncmp, strcontains, strstr, str_concat, memcmp, is_literal."""
from .. import strings, types
from ..types import BOOL, INT64, UINT64, Integer, Pointer, String
from . import Argument, Builtin, register


def check_text(r, node):
    """Error unless the node is a string, or an array of or a pointer to bytes of one."""
    kind = node.type
    if isinstance(kind, String):
        return
    if isinstance(kind, types.Array):
        if kind.element != types.INT8:
            r.error(node, "string-like arrays must contain a char-like type")
    elif isinstance(kind, Pointer) and kind.target is not None:
        if types.from_c(kind.target) != types.INT8:
            r.error(node, "string-like pointers must point to a char-like type")
    else:
        r.error(node, "string-like values must be either strings, arrays or pointers")


def text_place(b, node):
    """The Place of a string-like value as a String that the program can load from."""
    kind = node.type
    if isinstance(kind, Pointer):
        place = b.temporary(String(b.script.config.max_strlen))
        space = "user" if b._space(node) else "kernel"
        strings.read_string(b, b.value(node), place, place.type.size, space, whole=True)
        return place
    constant = b.constant(node)
    if isinstance(constant, str):
        place = b.temporary(kind)
        b.store(node, place)
        return place
    return b.direct(b.place(node).typed(String(kind.size)))


class _OfTexts(Builtin):
    """A function of one or two string-like values."""
    pure = True

    def resolve(self, r, call):
        r.arguments(self, call)
        for node in call.arguments:
            check_text(r, node)
        return self.returns


@register
class _Strlen(_OfTexts):
    names = ("strlen",)
    arguments = (Argument("any", "text"),)
    returns = UINT64

    def constant(self, r, call):
        text = r.constant(call.arguments[0])
        return len(text.encode("utf-8", "surrogateescape")) if isinstance(text, str) else None

    def value(self, b, call):
        return strings.length(b, text_place(b, call.arguments[0]))


@register
class _Strcap(_OfTexts):
    """strcap(x): the bytes that a string or array has room for; a pointer's text is measured."""
    names = ("strcap",)
    arguments = (Argument("any", "text"),)
    returns = INT64

    def constant(self, r, call):
        kind = getattr(call.arguments[0], "type", None)
        return kind.size if isinstance(kind, (String, types.Array)) else None

    def value(self, b, call):
        return strings.length(b, text_place(b, call.arguments[0]))


@register
class _StrConcat(_OfTexts):
    """str_concat(one, two): a new string."""
    names = ("str_concat",)
    arguments = (Argument("any", "first"), Argument("any", "second"))
    longest = 1024

    def resolve(self, r, call):
        super().resolve(r, call)
        sizes = [r.config.max_strlen if isinstance(node.type, Pointer) else node.type.size for node in call.arguments]
        return String(min(sum(sizes), self.longest))

    def constant(self, r, call):
        texts = [r.constant(node) for node in call.arguments]
        return "".join(texts) if all(isinstance(text, str) for text in texts) else None

    def store(self, b, call, dest):
        """Both are read one behind the other: the first one's length is what the helper returns."""
        f = b.f
        one, two = [text_place(b, node) for node in call.arguments]
        room = one.type.size + two.type.size
        joined = b.temporary(String(room), room + 8)
        if room + 8 <= b.stack_value:       # what the second one does not reach must not be left from something else
            strings.zero(b, joined, 0, -(-(room + 8) // 8) * 8)
        helper = b.read_helper("kernel", string=True)
        length = f.variable()
        f.set(length, f.call(helper, b.address(joined), one.type.size, b.address(one)))
        empty, some, cut, ready = f.block(), f.block(), f.block(), f.block()
        f.branch("s<", length, 1, empty, some)
        f.position(empty)
        f.set(length, 1)
        f.jump(ready)
        f.position(some)
        f.branch(">", length, one.type.size, cut, ready)
        f.position(cut)
        f.set(length, one.type.size)
        f.jump(ready)
        f.position(ready)
        end = f.alu("+", b.address(joined), f.alu("-", length, 1))
        f.call(helper, end, two.type.size, b.address(two))
        strings.copy_string(b, joined, dest, False)


@register
class _Memcmp(Builtin):
    """memcmp(one, two, n): 0, or the difference of the first bytes that differ."""
    names = ("memcmp",)
    pure = True
    arguments = (Argument("any", "one"), Argument("any", "two"), Argument("literal integer", "count"))
    returns = types.INT32

    def resolve(self, r, call):
        r.arguments(self, call)
        count = r.constant(call.arguments[2])
        for node in call.arguments[:2]:
            if not 0 <= count <= node.type.size:
                r.error(node, "memcmp() of %d bytes of a value of %d bytes" % (count, node.type.size))
        return self.returns

    def value(self, b, call):
        f = b.f
        count = b.constant(call.arguments[2])
        places = []
        for node in call.arguments[:2]:
            place = b.temporary(node.type)
            if not node.type.scalar:
                strings.zero(b, place, 0, node.type.size)
            b.store(node, place, clean=True)
            places.append(b.address(place))
        result, index = f.variable(), f.variable()
        f.set(result, 0)
        if not count:
            return result
        f.set(index, 0)
        loop, differ, following, done = f.block("memcmp"), f.block(), f.block(), f.block()
        f.jump(loop)
        f.position(loop)
        one, two = [f.load(f.alu("+", place, index), 0, 1, True) for place in places]
        f.branch("==", one, two, following, differ)
        f.position(differ)
        f.set(result, f.alu("-", one, two))
        f.jump(done)
        f.position(following)
        f.set(index, f.alu("+", index, 1))
        f.branch("<", index, count, loop, done)
        f.position(done)
        return result


@register
class _IsLiteral(Builtin):
    """is_literal(x): is it known without running anything."""
    names = ("is_literal",)
    pure = True
    arguments = (Argument("any", "expression"),)
    returns = BOOL

    def constant(self, r, call):
        from .. import ast
        node = call.arguments[0]
        if isinstance(node, ast.Block) and not node.statements:
            node = node.value
        if isinstance(node, ast.Tuple):
            return all(r.constant(element) is not None for element in node.elements)
        return not isinstance(node, ast.Identifier) and r.constant(node) is not None


@register
class _Strncmp(Builtin):
    names = ("strncmp",)
    pure = True
    arguments = (Argument("string", "left"), Argument("string", "right"), Argument("literal integer", "n"))
    returns = UINT64

    def value(self, b, call):
        """0 when the first n bytes are equal."""
        f = b.f
        left, right, limit = call.arguments
        n = b.constant(limit)
        result = f.variable()
        f.set(result, 1)
        same, done = f.block("same"), f.block()
        if n <= 0:
            return 0
        places = [b.direct(b.place(left)), b.direct(b.place(right))]
        size = min(n, places[0].type.size, places[1].type.size)
        index = f.variable()
        f.set(index, 0)
        one, two = b.address(places[0]), b.address(places[1])
        loop, equal, more = f.block("strncmp"), f.block(), f.block()
        f.jump(loop)
        f.position(loop)
        byte = f.load(f.alu("+", one, index), 0, 1)
        f.branch("==", byte, f.load(f.alu("+", two, index), 0, 1), equal, done)
        f.position(equal)
        f.branch("==", byte, 0, same, more)
        f.position(more)
        f.set(index, f.alu("+", index, 1))
        f.branch("<", index, size, loop, same)
        f.position(same)
        f.set(result, 0)
        f.jump(done)
        f.position(done)
        return result


class _Search(_OfTexts):
    """NAME(text, part): a literal part is compared byte by byte with the text; another one is looked for by the
    kernel's own function where there is one (6.17), else by a loop of our own."""
    arguments = (Argument("any", "text"), Argument("any", "part"))

    def of_index(self, index):
        """The result, given the index (operand or int) of the first place, -1 for none."""
        raise NotImplementedError(self.name)

    def constant(self, r, call):
        text, part = [r.constant(a) for a in call.arguments]
        if not isinstance(text, str) or not isinstance(part, str):
            return None
        return self.of_index(text.encode("utf-8", "surrogateescape").find(part.encode("utf-8", "surrogateescape")))

    def value(self, b, call):
        f = b.f
        part = b.constant(call.arguments[1])
        place = text_place(b, call.arguments[0])
        result = f.variable()
        f.set(result, int(self.of_index(-1)))
        done = f.block()
        machine, kind = b.script.machine, b.point.program_type
        if isinstance(part, str) and (place.type.size <= 1024 or not machine.has_helper("bpf_loop", kind)):
            self._literal(b, place, part.encode("utf-8", "surrogateescape"), result, done)
        else:
            self._other(b, call, place, text_place(b, call.arguments[1]), result, done)
        f.position(done)
        return result

    def _literal(self, b, place, part, result, done):
        f, size = b.f, place.type.size
        if not part or len(part) > size:
            if not part:
                f.set(result, int(self.of_index(0)))
            f.jump(done)
            return
        base, index = b.address(place), f.variable()
        f.set(index, 0)
        loop, following, found = f.block("search"), f.block(), f.block()
        f.jump(loop)
        f.position(loop)
        at = f.alu("+", base, index)
        first = f.load(at, 0, 1)
        nonzero = f.block()
        f.branch("==", first, 0, done, nonzero)
        f.position(nonzero)
        for offset, wanted in enumerate(part):
            match = f.block()
            value = f.load(at, offset, 1) if offset else first
            f.branch("==", value, wanted, match, following)
            f.position(match)
        f.jump(found)
        f.position(following)
        f.set(index, f.alu("+", index, 1))
        f.branch("<=", index, size - len(part), loop, done)
        f.position(found)
        f.set(result, self.of_index(index))
        f.jump(done)

    def _other(self, b, call, place, part, result, done):
        f, machine = b.f, b.script.machine
        size, most = place.type.size, part.type.size
        text, wanted = b.address(place), b.address(part)
        if machine.has_kfunc("bpf_strnstr", b.point.program_type):
            index = f.extend(f.call_kfunc("bpf_strnstr", text, wanted, size), 4, True)
        elif machine.has_helper("bpf_loop", b.point.program_type):
            index = self._by_callback(b, text, size, wanted, most)
        else:
            b.error(call, "%s() with a part that is no literal needs Linux 5.17 (bpf_loop)" % self.name)
        index = f.copy(index)
        found = f.block()
        f.branch("s<", index, 0, done, found)
        f.position(found)
        f.set(result, self.of_index(index))
        f.jump(done)

    def _by_callback(self, b, text, size, wanted, most):
        """One step a turn: the next byte of both agrees, or the search starts again one further. On the stack the
        addresses of both and of the numbers; the numbers (where in the text this attempt began, how many bytes agree, the
        result) in scratch memory, whose contents the verifier does not follow: else it would walk every turn."""
        from rawbpf.asm import ir
        f = b.f
        numbers = b.scratch.place(types.Array(UINT64, 3))
        for offset, value in ((0, 0), (8, 0), (16, -1)):
            f.store(numbers.base, numbers.off + offset, value, 8)
        state = f.slot(24)
        for offset, value in ((0, text), (8, wanted), (16, b.address(numbers))):
            f.store(state, offset, value, 8)
        b.callbacks += 1
        g = ir.Function("%s_find%d" % (f.name, b.callbacks), 2)
        own = g.params[1]
        at_hand = g.load(own, 16, 8)
        start, same = g.load(at_hand, 0, 8), g.load(at_hand, 8, 8)
        stop, check, here, inside, look, agree, differ = [g.block() for _ in range(7)]
        g.branch("<", same, most, check, here)
        g.position(check)
        need = g.load(g.alu("+", g.load(own, 8, 8), same), 0, 1)
        g.branch("==", need, 0, here, inside)
        g.position(here)                # the whole part agrees
        g.store(at_hand, 16, start, 8)
        g.jump(stop)
        g.position(inside)
        at = g.copy(g.alu("+", start, same))
        g.branch("<", at, size, look, stop)
        g.position(look)
        have = g.load(g.alu("+", g.load(own, 0, 8), at), 0, 1)
        g.branch("==", have, need, agree, differ)
        g.position(agree)
        g.store(at_hand, 8, g.alu("+", same, 1), 8)
        g.ret(0)
        g.position(differ)
        more = g.block()
        g.branch("==", have, 0, stop, more)
        g.position(more)
        g.store(at_hand, 0, g.alu("+", start, 1), 8)
        g.store(at_hand, 8, 0, 8)
        g.ret(0)
        g.position(stop)
        g.ret(1)
        f.call("bpf_loop", min(size * most, 1 << 23), f.func(g), f.address(state), 0)
        return f.load(numbers.base, numbers.off + 16, 8)


@register
class _Strcontains(_Search):
    names = ("strcontains",)
    returns = BOOL

    def of_index(self, index):
        return index >= 0 if isinstance(index, int) else 1


@register
class _Strstr(_Search):
    """The index of the first place, or -1."""
    names = ("strstr",)
    returns = INT64

    def of_index(self, index):
        return index


__all__ = ["INT64", "Integer", "types"]
