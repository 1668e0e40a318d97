"""What the event at hand says: args, argN, retval, probe, func, registers."""
from .. import ast, types
from ..place import Place
from ..types import UINT64, String
from . import Argument, Builtin, ContextRecord, register


class Arguments(types.CRecord, ContextRecord):
    """The type of `args`: its fields are read by the point's own code."""

    def __init__(self, struct, point):
        super().__init__(struct)
        self.point, self.user = point, point.user_space
        self.title = "struct %s_args" % point.name

    def _identity(self):
        return self.title, self.size

    @property
    def fields(self):
        """What a copy has: not the fields of every tracepoint, which programs may not read, nor data elsewhere."""
        if self._fields is None:
            hidden = {field.name for field in self.c_type.fields
                      if field.loc or self.point.program_type == "tracepoint" and field.offset < 8}
            self._fields = [field for field in super().fields if field.name not in hidden]
        return self._fields

    def value(self, b, node):
        from rawbpf.sources import SourceError
        field = b.r.field(node, self.c_type, node.name)
        try:
            if field.loc:
                return self.point.field_address(b.f, b.ctx, field)
            return self.point.field(b.f, b.ctx, field)
        except SourceError as error:
            b.error(node, error.reason, error.hints)

    def place(self, b, node):
        from rawbpf.sources import SourceError
        try:
            return self._place(b, node)
        except SourceError as error:
            b.error(node, error.reason, error.hints)

    def _place(self, b, node):
        field = b.r.field(node, self.c_type, node.name)
        point, f, ctx = self.point, b.f, b.ctx
        if point.field_load(f, ctx, field, 0, 1) is not None:
            return Place(None, 0, node.type, "kernel",
                         lambda offset, size, signed=False: point.field_load(f, ctx, field, offset, size, signed))
        return Place(point.field_address(f, ctx, field), 0, node.type, "kernel")


@register
class _Args(Builtin):
    names = ("args",)
    bare = pure = reads_args = True

    def resolve(self, r, call):
        from rawbpf.sources import SourceError
        try:
            struct = r.point.arguments()
        except SourceError as error:
            r.error(call, error.reason, error.hints)
        if struct is None:
            r.error(call, "The args builtin can only be used with tracepoint, rawtracepoint, fentry/fexit, and uprobe "
                    "probes (%s used here)" % kind_of(r.point), list(filter(None, [r.point.no_arguments])))
        return Arguments(struct, r.point)

    def store(self, b, call, dest):
        for field in dest.type.fields:
            node = ast.FieldAccess(call.span, call, field.name)
            node.type = field.type
            to = dest.at(field.offset, field.type)
            if field.type.scalar:
                b.f.store(to.base, to.off, call.type.value(b, node), field.type.size)
            else:
                b.copy(call.type.place(b, node), to)

    def statement(self, b, call):
        pass        # reading it does nothing

    def space(self, r):
        return r.point.user_space


class _Arg(Builtin):
    """argN"""
    bare = pure = True

    def __init__(self, number):
        self.names, self.number = ("arg%d" % number,), number

    def resolve(self, r, call):
        point = r.point
        if self.number >= point.argument_count:
            if not point.argument_count:
                r.error(call, "The %s builtin can only be used with 'kprobes', 'uprobes' and 'usdt' probes"
                        % self.name)
            r.error(call, "%s has only %d argument%s" % (point.name, point.argument_count,
                                                        "" if point.argument_count == 1 else "s"))
        return UINT64

    def space(self, r):
        return r.point.user_space

    def value(self, b, call):
        from rawbpf.sources import SourceError
        try:
            return b.point.argument(b.f, b.ctx, self.number)
        except SourceError as error:
            b.error(call, error.reason, error.hints)


for _n in range(12):
    register(_Arg(_n))


class _StackArg(_Arg):
    """sargN: arguments passed on the stack."""

    def __init__(self, number):
        self.names, self.number = ("sarg%d" % number,), number

    def resolve(self, r, call):
        return UINT64

    def value(self, b, call):
        from rawbpf.sources import SourceError
        try:
            return b.point.stack_argument(b.f, b.ctx, self.number)
        except SourceError as error:
            b.error(call, error.reason, error.hints)


for _n in range(12):
    register(_StackArg(_n))


@register
class _Retval(Builtin):
    names = ("retval",)
    bare = pure = True

    def resolve(self, r, call):
        point = r.point
        if not point.has_retval:
            r.error(call, "The retval builtin can only be used with 'kretprobe' and 'uretprobe' and 'fentry' probes")
        known = point.retval_type()
        return types.from_c(known, point.user_space) if known is not None else UINT64

    def space(self, r):
        return r.point.user_space

    def value(self, b, call):
        raw = b.point.retval(b.f, b.ctx)
        kind = call.type
        return b.f.extend(raw, kind.size, kind.signed) if isinstance(kind, types.Integer) and kind.size < 8 else raw


@register
class _Reg(Builtin):
    names = ("reg",)
    pure = True
    arguments = (Argument("literal string", "name"),)
    returns = UINT64

    def value(self, b, call):
        from rawbpf.sources import SourceError
        try:
            return b.point.register(b.f, b.ctx, b.constant(call.arguments[0]))
        except SourceError as error:
            b.error(call, error.reason, error.hints)


class _PerPoint(Builtin):
    """A string that differs by point: a constant where a program has one point, else found by the cookie."""
    bare = pure = per_point = True

    def resolve(self, r, call):
        return String(max(len(_bytes(self.text(point, r.config))) for point in r.unit.points) + 1)

    def constant(self, r, call):
        return self.text(r.point, r.config) if len(r.unit.points) == 1 else None

    def store(self, b, call, dest):
        texts = [_bytes(self.text(point, b.script.config)) for point in b.unit.points]
        if len(set(texts)) == 1:
            from .. import strings
            strings.store_literal(b, texts[0], dest, True)
        else:
            b.script.point_texts.store(b, self.name, texts, call.type, dest)


def _bytes(text):
    return text.encode("utf-8", "surrogateescape")


@register
class _Probe(_PerPoint):
    names = ("probe",)

    def text(self, point, config):
        return point.name


@register
class _ProbeType(_PerPoint):
    names = ("probetype",)
    per_point = False       # points of different kinds share no program

    def text(self, point, config):
        return kind_of(point)

    def constant(self, r, call):
        return self.text(r.point, r.config)


def kind_of(point):
    """The name of a point's kind in `probetype` and messages."""
    return "special" if point.when in ("begin", "end") else point.source.shown


@register
class _Func(_PerPoint):
    """The probed function; C++ and Rust names as their programmers wrote them (config cpp_demangle)."""
    names = ("func",)

    def resolve(self, r, call):
        point = r.point
        if point.func is None and point.func_address.__func__ is _no_address():
            r.error(call, "The func builtin can not be used with '%s' probes" % point.source.shown)
        return super().resolve(r, call)

    def text(self, point, config):
        name = point.func or ""
        if point.user_space and config.cpp_demangle and name.startswith("_"):
            from rawbpf.elf.demangle import demangle
            return demangle(name)
        return name


def _no_address():
    from rawbpf.sources.base import Point
    return Point.func_address
