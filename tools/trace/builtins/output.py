"""What goes out: printf, print, join, system, cat, exit, errorf, warnf, debugf."""
from .. import ast, results, types
from ..compiled import EXITING
from ..format import Format, FormatError
from ..place import Place
from ..written import type_text
from ..types import Integer, Pointer, String
from . import Argument, Builtin, register


class _Formatted(Builtin):
    """A format and its arguments, sent as values; subclasses say what becomes of the text."""
    arguments = (Argument("literal string", "format"),)
    variadic = True

    def resolve(self, r, call):
        r.arguments(self, call)
        parsed = Format(r.constant(call.arguments[0]))
        try:
            parsed.check([r.aggregate_of(a) or a.type for a in call.arguments[1:]])
        except FormatError as error:
            r.error(call, str(error))
        return None

    def result(self, session, text, call, values):
        raise NotImplementedError

    def batch(self, b, parsed):
        """Function (size, fields) -> compiled.Batch, for what is only printed."""
        return None

    def statement(self, b, call):
        parsed = Format(b.constant(call.arguments[0]))
        values = call.arguments[1:]
        kinds = [parsed.field(i, v.type) for i, v in enumerate(values)]

        def action(session, got):
            self.result(session, parsed.apply(kinds, got), call, got)
        event = b.event(call, self.name, kinds, action, self.batch(b, parsed))
        b.send_values(call, event, values)


@register
class _Printf(_Formatted):
    names = ("printf",)

    def statement(self, b, call):
        from ..pinned import seq_printf, writes_there
        if writes_there(b.point):
            seq_printf(b, call, b.constant(call.arguments[0]), call.arguments[1:])
        else:
            super().statement(b, call)

    def result(self, session, text, call, values):
        session.emit(results.Printf(text, call.arguments[0].value if isinstance(call.arguments[0], ast.String)
                                    else None, values))

    def batch(self, b, parsed):
        return lambda size, fields: parsed.batch(size, fields, b.script.config.str_trunc_trailer)


class _Message(_Formatted):
    def __init__(self, name, severity):
        self.names, self.severity = (name,), severity

    def result(self, session, text, call, values):
        session.emit(results.Message(text, self.severity, call.span))

    def statement(self, b, call):
        if self.severity == "WARNING" and not b.script.options.warnings:
            for value in call.arguments[1:]:
                b.discard(value)
        else:
            super().statement(b, call)


register(_Message("errorf", "ERROR"))
register(_Message("warnf", "WARNING"))


@register
class _Debugf(_Formatted):
    """debugf(): text to the kernel's trace buffer (/sys/kernel/tracing/trace_pipe), by bpf_trace_printk."""
    names = ("debugf",)
    most = 3        # arguments that the helper takes

    def resolve(self, r, call):
        super().resolve(r, call)
        r.warn(call, "The debugf() builtin is not recommended for production use. For more information see "
               "bpf_trace_printk in bpf-helpers(7).")
        if len(call.arguments) - 1 > self.most:
            r.error(call, "cannot use more than %d conversion specifiers" % self.most)
        for argument in call.arguments[1:]:
            if not argument.type.scalar and not isinstance(argument.type, String):
                r.error(argument, "debugf() prints numbers and strings only (%s provided)" % type_text(argument.type))

    def statement(self, b, call):
        text = b.constant(call.arguments[0])
        form = b.temporary(String(len(text.encode("utf-8", "surrogateescape")) + 1))
        values = []
        for argument in call.arguments[1:]:
            if argument.type.scalar:
                values.append(b.f.copy(b.value(argument)))
            else:
                place = b.temporary(String(argument.type.size + 1))
                b.store(argument, place)
                values.append(b.address(place))
        from .. import strings
        strings.store_literal(b, text.encode("utf-8", "surrogateescape"), form, True)
        b.f.call("bpf_trace_printk", b.address(form), form.type.size, *values)


@register
class _System(_Formatted):
    """system(): what the command writes, to either stream; that it failed is said beside it (bpftrace says that only)."""
    names = ("system",)
    unsafe = True

    def result(self, session, text, call, values):
        import subprocess
        done = subprocess.run(text, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.stdout or not done.returncode:
            session.emit(results.Syscall(done.stdout.decode("utf-8", "surrogateescape")))
        if done.returncode:
            session.emit(results.Complaint("command exited with code %d" % done.returncode if done.returncode > 0 else
                                           "command ended by signal %d" % -done.returncode))


@register
class _Cat(_Formatted):
    names = ("cat",)

    def result(self, session, text, call, values):
        limit = session.compiled.config.max_cat_bytes
        try:
            with open(text, "rb") as file:
                data = file.read(limit)
        except OSError as error:
            session.emit(results.Complaint("failed to open file '%s' (%s)" % (text, error.strerror)))
            return
        session.emit(results.Cat(data.decode("utf-8", "surrogateescape")))


@register
class _Fail(_Formatted):
    """fail(): stops the compilation where it is reached."""
    names = ("fail",)

    def resolve(self, r, call):
        super().resolve(r, call)
        values = [r.constant(a) for a in call.arguments[1:]]
        if None in values:
            r.error(call, "fail() arguments need to be literals")
        parsed = Format(r.constant(call.arguments[0]))
        r.error(call, parsed.apply([a.type for a in call.arguments[1:]], values))


@register
class _Exit(Builtin):
    names = ("exit",)
    ends = True
    arguments = (Argument("integer", "code", optional=True),)

    def statement(self, b, call):
        def action(session, values):
            session.exit(values[0])
        event = b.event(call, "exit", [types.INT32], action)
        f = b.f
        if b.script.ending:
            f.store(f.map_value(EXITING, 0), 0, 1, 8)
        code = f.copy(b.convert(b.value(call.arguments[0]), call.arguments[0].type, types.INT32)) if call.arguments else 0

        def no_room():
            """The end must come even so: the session looks here."""
            state = f.map_value(EXITING, 0)
            f.store(state, 12, code, 4)
            f.store(state, 8, 1, 4)
        b.send(event, lambda record: f.store(record.base, record.off + event.fields[0][0], code, 4), True, no_room)
        b.f.jump(b.leave)


@register
class _Print(Builtin):
    """print(@map, top, div), print(value)"""
    names = ("print",)
    arguments = (Argument("any", "value"), Argument("literal integer", "top", optional=True),
                 Argument("literal integer", "div", optional=True))

    def resolve(self, r, call):
        first = call.arguments[0] if call.arguments else None
        if isinstance(first, ast.Map):
            rest = call.arguments[1:]
            if len(rest) > 2:
                r.error(call, "print() takes up to 3 arguments (%d provided)" % len(call.arguments))
            kind = r.map_variable(first).value
            if r.loops > r.unrolling:        # what is unrolled is no loop
                r.warn(call, "Due to it's asynchronous nature using 'print()' in a loop can lead to unexpected behavior. The "
                       "map will likely be updated before the runtime can 'print' it.")
            if rest and isinstance(kind, types.Statistics):
                r.warn(call, "print()'s top and div arguments are ignored when used on stats() maps.")
            for argument in rest:
                r._argument(call, "literal integer", argument)
            return None
        if isinstance(first, ast.MapAccess) and len(call.arguments) == 1:
            kind = r.map_target(first).value
            if kind is not None and kind.aggregate and not kind.castable:
                first.type = kind
                return None
        r.arguments(self, call)
        if len(call.arguments) > 1:
            r.error(call, "Non-map print() only takes 1 argument, %d found" % len(call.arguments))
        kind = first.type
        if isinstance(kind, types.NoneType):
            r.error(call, "%s type passed to print() is not printable" % type_text(kind))
        return None

    def statement(self, b, call):
        first = call.arguments[0]
        if isinstance(first, ast.Map):
            info = b.storage(first).info
            top, div = ([b.constant(a) for a in call.arguments[1:]] + [0, 0])[:2]

            def show(session, values):
                session.print_map(info, top, div)
            b.send(b.event(call, "print", [], show), lambda record: None)
            return
        kind = first.type
        if kind.aggregate:
            self._print_cell(b, call, first)
            return

        def action(session, values):
            session.emit(results.Value(kind, values[0]))
        b.send_values(call, b.event(call, "print", [kind], action), [first])


    def _print_cell(self, b, call, target):
        """One value of a map of aggregates that cannot be read in the program: the reader looks it up."""
        info = b.storage(target).info

        def action(session, values):
            cells = dict(info.raw(session.maps)).get(values[0])
            size = info.value_type.size
            kind = info.value_type
            value = kind.together([kind.reduce(cells or [bytes(size)])], session.host)[0]
            session.emit(results.Value(kind, value))
        event = b.event(call, "print", [types.Raw(info.key_type.size)], action)
        offset, kind = event.fields[0]

        def write(record):
            from .. import strings
            key = Place(b.key(b.storage(target), target.keys), 0, kind)
            strings.copy_bytes(b, key, record.at(offset, kind), kind.size)
        b.send(event, write)


@register
class _Join(Builtin):
    """join(argv, separator): the strings that an array of pointers points at, up to 16 of them."""
    names = ("join",)
    arguments = (Argument("integer", "array"), Argument("literal string", "separator", optional=True))
    count = 16

    def statement(self, b, call):
        from .. import strings
        f = b.f
        source = call.arguments[0]
        separator = b.constant(call.arguments[1]) if len(call.arguments) == 2 else " "
        size = b.script.config.max_strlen
        kinds = [types.UINT64] + [String(size)] * self.count

        def action(session, values):
            session.emit(results.Join(separator.join(values[1:1 + values[0]])))
        event = b.event(call, "join", kinds, action)
        user = source.type.user if isinstance(source.type, Pointer) else b.r.space(source)
        space = "user" if (b.point.user_space if user is None else user) else "kernel"
        array = f.copy(b.value(source))

        def write(record):
            number = f.variable()
            f.set(number, 0)
            done = f.block("joined")
            pointer = Place(f.slot(8), 0, types.UINT64)
            for index in range(self.count):
                b.probe_read(b.address(pointer), 8, f.alu("+", array, 8 * index) if index else array, space)
                where = f.load(pointer.base, 0, 8)
                some = f.block()
                f.branch("==", where, 0, done, some)
                f.position(some)
                offset, kind = event.fields[1 + index]
                strings.read_string(b, where, record.at(offset, kind), size, space, whole=True)
                f.set(number, index + 1)
            f.jump(done)
            f.position(done)
            f.store(record.base, record.off + event.fields[0][0], number, 8)
        b.send(event, write)


__all__ = ["Integer"]
