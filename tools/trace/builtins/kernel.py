"""Questions to the kernel and acts on it: ctx, usermode, kfunc_exist, kfunc_allowed, override, socket_cookie, config."""
from .. import ast, types
from ..types import BOOL, UINT64, Integer, Pointer
from ..written import base_text
from . import Argument, Builtin, register
from .probe import kind_of

USER_MODE = 3       # the privilege level in the low bits of cs


@register
class _Ctx(Builtin):
    """ctx: the program's context as the kernel hands it over."""
    names = ("ctx",)
    bare = pure = True

    def resolve(self, r, call):
        point = r.point
        if point.when == "iter":
            return Pointer(point.context(), False, context=True)
        name = {"kprobe": "pt_regs", "perf_event": "bpf_perf_event_data"}.get(point.program_type)
        struct = r.script.named_type("struct", name) if name is not None else None
        return Pointer(struct, False, context=struct is not None)

    def space(self, r):
        return False

    def value(self, b, call):
        return b.f.copy(b.ctx)


@register
class _Usermode(Builtin):
    """usermode: 1 where the event interrupted user code, else 0."""
    names = ("usermode",)
    bare = pure = True
    returns = Integer(1, False)

    def resolve(self, r, call):
        import platform
        r.arguments(self, call)
        if platform.machine() != "x86_64":
            r.error(call, "'usermode' builtin is only supported on x86_64")
        return self.returns

    def constant(self, r, call):
        """Where there are no registers: 1 in the tracer's own process, else what runs is the kernel."""
        if r.point.when is not None:
            return int(r.point.when in ("begin", "end", "signal"))
        return None if r.point.program_type in ("kprobe", "perf_event") else 0

    def value(self, b, call):
        f = b.f
        return f.compare("==", f.alu("&", b.point.register(f, b.ctx, "cs"), USER_MODE), USER_MODE)


class _Kfunc(Builtin):
    """kfunc_exist(name): does BTF know the function; kfunc_allowed(name): may this probe's program call it."""
    pure = True
    arguments = (Argument("any", "name"),)
    returns = BOOL

    def __init__(self, name, test):
        self.names, self.test = (name,), test

    def resolve(self, r, call):
        r.arguments(self, call)
        if not isinstance(r.constant(call.arguments[0]), str):
            r.error(call, "%s() accepts a string literal only" % self.name)
        return BOOL

    def constant(self, r, call):
        name = r.constant(call.arguments[0])
        return self.test(r, name) if isinstance(name, str) else None


def kfunc_exists(r, name):
    btf = r.script.machine.btf
    return btf is not None and bool(btf.find_id(name, "func"))


def kfunc_allowed(r, name):
    return kfunc_exists(r, name) and r.script.machine.has_kfunc(name, r.point.program_type)


register(_Kfunc("kfunc_exist", kfunc_exists))
register(_Kfunc("kfunc_allowed", kfunc_allowed))


@register
class _Override(Builtin):
    """override(value): the probed function is not run and returns this."""
    names = ("override",)
    arguments = (Argument("any", "value"),)

    def resolve(self, r, call):
        if kind_of(r.point) != "kprobe":
            r.error(call, "override() can only be used inside kprobes")
        if not r.options.unsafe:
            r.error(call, "override() is unsafe. To use you need the --unsafe flag")
        r.arguments(self, call)
        kind = call.arguments[0].type
        if not isinstance(kind, Integer):
            r.error(call, "override() only supports int arguments (%s provided)" % base_text(kind))
        if not r.script.machine.has_helper("bpf_override_return", "kprobe"):
            r.error(call, "override() is not supported by this kernel (CONFIG_BPF_KPROBE_OVERRIDE is not set)")
        return None

    def statement(self, b, call):
        value = b.value(call.arguments[0])
        b.f.call("bpf_override_return", b.ctx, value)


@register
class _SocketCookie(Builtin):
    """socket_cookie(struct sock *): the number that the kernel gave the socket, 0 for none."""
    names = ("socket_cookie",)
    follows = True
    pure = True
    arguments = (Argument("any", "socket"),)
    returns = UINT64

    def resolve(self, r, call):
        from rawbpf.elf import types as c
        if r.point.program_type != "tracing":
            r.error(call, 'socket_cookie can not be used with "%s" probes' % r.point.source.shown)
        r.arguments(self, call)
        kind = call.arguments[0].type
        target = c.strip(kind.target) if isinstance(kind, Pointer) and kind.target is not None else None
        if not isinstance(target, c.Struct) or target.name != "sock":
            r.error(call, "socket_cookie() only supports 'struct sock *' as the argument (%s provided)" % (
                base_text(kind) if target is None else "'%s'" % kind.name))
        return UINT64

    def value(self, b, call):
        f, done = b.f, b.f.block()
        result = f.variable()
        f.set(result, 0)
        f.set(result, f.call("bpf_get_socket_cookie", b.followed(call.arguments[0], done)))
        f.jump(done)
        f.position(done)
        return result


@register
class _Config(Builtin):
    """config: the settings in force, as a record of literals."""
    names = ("config",)
    bare = pure = True
    settings = ("cpp_demangle lazy_symbolication print_maps_on_exit use_blazesym show_debug_info log_size max_bpf_progs "
                "max_cat_bytes max_map_keys max_probes max_strlen on_stack_limit perf_rb_pages str_trunc_trailer "
                "unstable_import_statement unstable_tseries unstable_typeinfo unstable_dw_ustack missing_probes stack_mode "
                "license").split()

    def resolve(self, r, call):
        r.arguments(self, call)
        info = ast.Record(call.span, [])
        for name in self.settings:
            value = getattr(r.config, name)
            kind = ast.Bool if isinstance(value, bool) else ast.Integer if isinstance(value, int) else ast.String
            info.elements.append(ast.Named(call.span, name, kind(call.span, value)))
        r.unit.infos[id(call)] = info
        return r.expr(info)

    def store(self, b, call, dest):
        b.store(b.unit.infos[id(call)], dest)


__all__ = ["types"]
