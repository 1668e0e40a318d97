"""Who is running: pid, tid, uid, comm, cpu, ..."""
from .. import results, strings, types
from ..types import INT64, UINT32, UINT64, BOOL, String
from . import Argument, Builtin, arguments_of, register, value


class _Pid(Builtin):
    """pid and tid; in the tracer's pid namespace unless `init` is asked for."""
    bare = pure = True
    arguments = (Argument("word", "namespace", optional=True),)
    returns = UINT32

    def __init__(self, name, process):
        self.names, self.process = (name,), process

    def resolve(self, r, call):
        r.arguments(self, call)
        for word in arguments_of(call):
            if word.name not in ("init", "curr_ns"):
                r.error(word, "Invalid PID namespace mode: %s (expects: curr_ns or init)" % word.name)
        return UINT32

    def value(self, b, call):
        return current(b, self.process, "init" in [word.name for word in arguments_of(call)])


def current(b, process=True, initial=False):
    """The number of the process or thread as this process's /proc shows it, 0 for one that it does not show; `initial`: as
    the first pid namespace has it."""
    f, namespace = b.f, b.script.machine.pid_namespace
    if namespace is not None and not initial:
        device, inode = namespace
        slot = f.slot(8)
        f.store(slot, 0, 0, 8)
        f.call("bpf_get_ns_current_pid_tgid", device, inode, f.address(slot), 8)
        return f.load(slot, 4 if process else 0, 4)
    both = f.call("bpf_get_current_pid_tgid")
    return f.alu(">>", both, 32) if process else f.extend(both, 4, False)


register(_Pid("pid", True))
register(_Pid("tid", False))


@value("uid", returns=UINT32)
def _uid(b):
    return b.f.extend(b.f.call("bpf_get_current_uid_gid"), 4, False)


@value("gid", returns=UINT32)
def _gid(b):
    return b.f.alu(">>", b.f.call("bpf_get_current_uid_gid"), 32)


@value("username", returns=types.UserName())
def _username(b):
    return _uid(b)


@value("cpu", returns=UINT32)
def _cpu(b):
    return b.f.call("bpf_get_smp_processor_id")


@value("numaid", returns=UINT32)
def _numaid(b):
    return b.f.call("bpf_get_numa_node_id")


@value("rand", returns=UINT32)
def _rand(b):
    return b.f.extend(b.f.call("bpf_get_prandom_u32"), 4, False)


@value("cgroup", returns=UINT64)
def _cgroup(b):
    return b.f.call("bpf_get_current_cgroup_id")


@register
class _Ncpus(Builtin):
    names = ("ncpus",)
    bare = pure = True
    returns = UINT64

    def value(self, b, call):
        return b.script.machine.cpus


@register
class _Comm(Builtin):
    """comm; comm(pid): the name of another process's first thread."""
    names = ("comm",)
    bare = pure = True
    returns = String(16)
    fills = 16
    arguments = (Argument("any", "pid", optional=True),)

    def resolve(self, r, call):
        r.arguments(self, call)
        for argument in arguments_of(call):
            from .kernel import kfunc_allowed
            from .probe import kind_of
            if not isinstance(argument.type, types.Integer):
                r.error(call, "Only integer supported for comm()'s pid")
            if not kfunc_allowed(r, "bpf_task_from_pid"):
                r.error(call, "Syntax comm(PID) is not supported in this probe type yet. Type: %s" % kind_of(r.point))
        return self.returns

    def store(self, b, call, dest):
        size = min(16, dest.type.size)
        if arguments_of(call):
            self._other(b, call, dest, size)
            return
        if b.script.machine.release < (6, 2):
            # Some kernels of 5.11 to 6.1 leave what follows the NUL as it was, so that keys would differ.
            strings.zero(b, dest, 0, size)
        b.f.call("bpf_get_current_comm", b.address(dest), size)

    def _other(self, b, call, dest, size):
        from rawbpf.elf import types as c
        f = b.f
        pid = f.variable()
        f.set(pid, f.extend(b.value(call.arguments[0]), 4, True))
        task = f.copy(f.call_kfunc("bpf_task_from_pid", pid))
        missing, found, done = f.block("no_process"), f.block(), f.block()
        f.branch("==", task, 0, missing, found)
        f.position(found)
        offset = c.find_field(b.script.named_type("struct", "task_struct"), "comm").offset
        b.probe_read(b.address(dest), size, f.alu("+", task, offset), "kernel")
        f.call_kfunc("bpf_task_release", task)
        f.jump(done)
        f.position(missing)
        strings.store_literal(b, b"N/A", dest, True)

        def action(session, values):
            session.emit(results.Message("No such process (pid=%d)" % values[0], "WARNING", call.span))
        event = b.event(call, "no process", [types.INT32], action)
        b.send(event, lambda record: f.store(record.base, record.off + event.fields[0][0], pid, 4))
        f.jump(done)
        f.position(done)


@register
class _Curtask(Builtin):
    names = ("curtask",)
    bare = pure = True

    def resolve(self, r, call):
        struct = r.script.named_type("struct", "task_struct")
        return types.Pointer(struct, user=False) if struct is not None else UINT64

    def value(self, b, call):
        return b.f.call("bpf_get_current_task")


@register
class _Cpid(Builtin):
    names = ("cpid",)
    bare = pure = True
    returns = UINT64

    def resolve(self, r, call):
        r.arguments(self, call)
        if r.options.cpid is None:
            r.warn(call, "No child command (`-c`); cpid is zero")
        return self.returns

    def value(self, b, call):
        return b.script.options.cpid or 0


@register
class _HasCpid(Builtin):
    names = ("has_cpid",)
    bare = pure = True
    returns = BOOL

    def constant(self, r, call):
        return r.options.cpid is not None


class _Identity(Builtin):
    """is_integer(x) and the like: known at compile time."""
    arguments = (Argument(),)
    returns = BOOL
    pure = True

    def __init__(self, name, test):
        self.names, self.test = (name,), test

    def resolve(self, r, call):
        r.arguments(self, call)
        return BOOL

    def constant(self, r, call):
        argument = call.arguments[0]
        kind = r.expr(argument) if getattr(argument, "type", None) is None else argument.type
        return self.test(kind)


register(_Identity("is_integer", lambda kind: isinstance(kind, types.Integer)))
register(_Identity("is_unsigned_integer", lambda kind: isinstance(kind, types.Integer) and not kind.signed))
register(_Identity("is_ptr", lambda kind: isinstance(kind, types.Pointer)))
register(_Identity("is_str", lambda kind: isinstance(kind, String)))
register(_Identity("is_array", lambda kind: isinstance(kind, types.Array)))


class _Signal(Builtin):
    """signal(): to the traced process, signal_thread(): to the traced thread."""
    arguments = (Argument("any", "signal"),)
    probes = "kprobe kretprobe uprobe uretprobe usdt tracepoint profile fentry fexit rawtracepoint".split()

    def __init__(self, name, helper):
        self.names, self.helper = (name,), helper

    def resolve(self, r, call):
        from .probe import kind_of
        if kind_of(r.point) not in self.probes:
            r.error(call, "%s() can not be used for this probetype %s" % (self.name, kind_of(r.point)))
        if not r.options.unsafe:
            r.error(call, "%s() is unsafe. To use you need the --unsafe flag" % self.name)
        r.arguments(self, call)
        argument = call.arguments[0]
        constant = r.constant(argument)
        if isinstance(constant, str):
            if _signal_number(constant) is None:
                r.error(argument, "Invalid string for signal: %s" % constant)
        elif not isinstance(argument.type, types.Integer):
            r.error(argument, "%s() accepts a string literal or %s" % (self.name, "an integer" if constant is None and not isinstance(
                argument.type, types.Tuple) else "a positive integer"))
        elif isinstance(constant, int) and not 0 < constant < 65:
            r.error(argument, "%s() accepts a string literal or an integer between 1 and 64 (inclusive)" % self.name)
        return None

    def statement(self, b, call):
        f = b.f
        argument = call.arguments[0]
        constant = b.constant(argument)
        done = f.block("signalled")
        if isinstance(constant, (int, str)):
            number = constant if isinstance(constant, int) else _signal_number(constant)
        else:
            number = f.copy(f.extend(b.value(argument), 4, False))
            inside, outside = f.block(), f.block("no_signal")
            f.branch("<=", f.alu("-", number, 1), 63, inside, outside)
            f.position(outside)
            self._tell(b, call, "no signal", number, "ERROR",
                       "%s() expects an integer between 1 and 64 (inclusive). Got %%d" % self.name)
            f.jump(done)
            f.position(inside)
        result = f.copy(f.call(self.helper, number))
        failed = f.block("failed")
        f.branch("==", result, 0, done, failed)
        f.position(failed)
        self._tell(b, call, "signal failed", result, "WARNING", "signal call failed with error %d")
        f.jump(done)
        f.position(done)

    def _tell(self, b, call, name, number, severity, text):
        """A message with a number, when it happens."""
        def action(session, values):
            session.emit(results.Message(text % values[0], severity, call.span))
        event = b.event(call, name, [types.INT64], action)
        b.send(event, lambda record: b.f.store(record.base, record.off + event.fields[0][0], number, 8))


def _signal_number(name):
    import signal
    name = name.upper()
    return getattr(signal, name if name.startswith("SIG") else "SIG" + name, None)


register(_Signal("signal", "bpf_send_signal"))
register(_Signal("signal_thread", "bpf_send_signal_thread"))

__all__ = ["INT64"]
