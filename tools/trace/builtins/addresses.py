"""Addresses of symbols, and what can be done at one: percpu_kaddr, uaddr, path, write_user, unwatch."""
import os

from .. import strings, types
from ..types import BOOL, UINT64, Integer, Pointer, String
from ..written import base_text, to_c
from . import Argument, Builtin, register


@register
class _PercpuKaddr(Builtin):
    """percpu_kaddr(name, cpu): where this CPU's (or `cpu`'s) copy of a per-CPU variable of the kernel lies; 0 for a CPU
    that there is not. The verifier follows the address, so both outcomes leave here as plain numbers."""
    names = ("percpu_kaddr",)
    pure = True
    arguments = (Argument("literal string", "name"), Argument("integer", "cpu", optional=True))

    def resolve(self, r, call):
        r.arguments(self, call)
        name = r.constant(call.arguments[0])
        btf = r.script.machine.btf
        if btf is None or not btf.find_id(name, "var"):
            r.error(call, 'Could not resolve variable "%s" from BTF' % name)
        return UINT64

    def space(self, r):
        return False

    def value(self, b, call):
        f = b.f
        symbol = f.ksym(b.constant(call.arguments[0]))
        if len(call.arguments) == 1:
            return f.call("bpf_this_cpu_ptr", symbol)
        cpu = f.copy(b.value(call.arguments[1]))
        pointer = f.call("bpf_per_cpu_ptr", f.ksym(b.constant(call.arguments[0])), cpu)
        result = f.variable()
        found, done = f.block(), f.block()
        f.set(result, 0)
        f.branch("==", pointer, 0, done, found)
        f.position(found)
        f.set(result, pointer)
        f.jump(done)
        f.position(done)
        return result


@register
class _Uaddr(Builtin):
    """uaddr(name): where a symbol of the probed file lies in the process that hit the probe: the symbol's address in
    the file, moved by as much as the probed place was."""
    names = ("uaddr",)
    pure = True
    arguments = (Argument("literal string", "symbol"),)

    def resolve(self, r, call):
        point = r.point
        if not hasattr(point, "binary"):
            r.error(call, "uaddr can not be used with \"%s\" probes" % point.source.shown)
        r.arguments(self, call)
        symbol = self._symbol(r, call, point)
        size = symbol.size if symbol.size in (1, 2, 4) else 8
        return Pointer(to_c(Integer(size, False)), True)

    def _symbol(self, r, call, point):
        name = r.constant(call.arguments[0])
        symbol = point.binary.symbols.find(name)
        if symbol is None:
            r.error(call, "Could not resolve symbol: %s:%s" % (point.binary.path, name))
        return symbol

    def space(self, r):
        return True

    def value(self, b, call):
        f, point = b.f, b.point
        address = self._symbol(b.r, call, point).value
        if point.binary.image.type == "EXEC":
            return f.const(address)
        here = point.func_address(f, b.ctx)
        if here is not None:
            return f.alu("+", here, address - point.vaddr)
        if not b.script.machine.has_kfunc("bpf_iter_task_vma_new", point.program_type):
            b.error(call, "uaddr() in a uretprobe of a file that is loaded anywhere needs Linux 6.7 (bpf_iter_task_vma), or a "
                    "uprobe at the function's start that stores the address")
        first = min(segment.vaddr for segment in point.binary.image.segments if segment.type == 1) & -4096     # PT_LOAD
        return f.alu("+", self._mapped(b, os.stat(point.binary.path).st_ino), address - first)

    def _mapped(self, b, inode):
        """Where the process at hand has mapped the file with this inode: the start of its first mapping, 0 for none."""
        f = b.f
        iterator = f.slot(8)
        result = f.variable()
        f.set(result, 0)
        loop, mapped, done, following, leave = f.block("vma"), f.block(), f.block(), f.block(), f.block("found")
        task = f.call("bpf_get_current_task_btf")
        ready = f.call_kfunc("bpf_iter_task_vma_new", f.address(iterator), task, 0)
        f.branch("==", ready, 0, loop, leave)
        f.position(loop)
        area = f.copy(f.call_kfunc("bpf_iter_task_vma_next", f.address(iterator)))
        some = f.block()
        f.branch("==", area, 0, leave, some)
        f.position(some)
        file = f.load(area, self._offset(b, "vm_area_struct", "vm_file"), 8)
        f.branch("==", file, 0, following, mapped)
        f.position(mapped)
        number = f.load(f.load(file, self._offset(b, "file", "f_inode"), 8), self._offset(b, "inode", "i_ino"), 8)
        f.branch("==", number, inode, done, following)
        f.position(following)
        f.jump(loop)
        f.position(done)
        f.set(result, f.load(area, self._offset(b, "vm_area_struct", "vm_start"), 8))
        f.jump(leave)
        f.position(leave)
        f.call_kfunc("bpf_iter_task_vma_destroy", f.address(iterator))
        return result

    def _offset(self, b, struct, field):
        from rawbpf.elf import types as c
        return c.find_field(b.script.named_type("struct", struct), field).offset


@register
class _Path(Builtin):
    """path(struct path, size): the full name that bpf_d_path makes of it; the kernel must be shown where the address
    came from, so that it is followed from the event's arguments without a copy."""
    names = ("path",)
    pure = True
    arguments = (Argument("any", "path"), Argument("literal integer", "size", optional=True))

    def resolve(self, r, call):
        if r.point.source.shown not in ("fentry", "fexit", "iter"):
            r.error(call, "The path function can only be used with 'fentry', 'fexit', 'iter' probes")
        r.arguments(self, call)
        kind = call.arguments[0].type
        if not isinstance(kind, (types.CRecord, Pointer)):
            r.error(call, "path() only supports pointer or C type argument (%s provided)" % base_text(kind))
        size = r.config.max_strlen
        if len(call.arguments) == 2:
            wanted = r.constant(call.arguments[1])
            if wanted < 0:
                r.error(call, "path: invalid size value, need non-negative literal")
            size = min(size, max(1, wanted))
        return String(size)

    def store(self, b, call, dest):
        f = b.f
        if not b.script.machine.has_helper("bpf_d_path", b.point.program_type):
            b.error(call, "BPF_FUNC_d_path not available for your kernel version")
        # 5.10 and 5.11 have it, but only for a list of functions; the probe for the helper does not tell
        if b.point.source.shown == "iter" and b.script.machine.release < (5, 12):
            b.error(call, "path() in an iterator needs Linux 5.12 (bpf_d_path)")
        node = call.arguments[0]
        place = b.temporary(call.type) if dest.type.size < call.type.size else dest
        failed, wrong, done = f.block("no_path"), f.block(), f.block()
        strings.zero(b, place, 0, min(8, call.type.size))
        where = (b.followed if isinstance(node.type, Pointer) else b.followed_place)(node, wrong)
        statement, f.span = f.span, call.span       # where the kernel does not allow it, the call itself is shown
        got = f.call("bpf_d_path", where, b.address(place), call.type.size)
        f.span = statement
        f.branch("s<=", got, 0, failed, done)
        f.position(failed)
        # of a name that is too long, the kernel leaves the end that fits (5.14 and later; before, nothing)
        f.branch("==", got, -36, done, wrong)
        f.position(wrong)
        strings.zero(b, place, 0, min(8, call.type.size))
        f.jump(done)
        f.position(done)
        if place is not dest:
            strings.copy_string(b, place, dest, False)


@register
class _WriteUser(Builtin):
    """write_user(to, from, length): bpf_probe_write_user; true when it worked."""
    names = ("write_user",)
    arguments = (Argument("integer", "to"), Argument("any", "from"), Argument("literal integer", "length"))
    returns = BOOL

    def resolve(self, r, call):
        if not r.options.unsafe:
            r.error(call, "write_user() is unsafe. To use you need the --unsafe flag")
        r.arguments(self, call)
        if not r.script.machine.has_helper("bpf_probe_write_user", r.point.program_type):
            r.error(call, "write_user() is not possible here: this kernel does not let programs write to user memory "
                    "(bpf_probe_write_user; lockdown forbids it)")
        source, length = call.arguments[1].type, r.constant(call.arguments[2])
        if length < 0 or not isinstance(source, Pointer) and length > source.size:
            r.error(call.arguments[2], "write_user(): %d bytes of a value of %d bytes" % (length, source.size))
        return BOOL

    def value(self, b, call):
        f = b.f
        to, node, length = call.arguments
        size = b.constant(length)
        place = b.temporary(types.Array(types.UINT8, max(size, 1)))
        if isinstance(node.type, Pointer):
            space = "user" if b._space(node) else "kernel"
            b.probe_read(b.address(place), size, b.value(node), space)
        else:
            whole = b.temporary(node.type)
            b.store(node, whole, clean=True)
            place = whole
        return f.compare("==", f.call("bpf_probe_write_user", b.value(to), b.address(place), size), 0)

    def statement(self, b, call):
        self.value(b, call)


@register
class _Unwatch(Builtin):
    """unwatch(address): the watchpoint at an address is removed."""
    names = ("unwatch",)
    arguments = (Argument("integer", "address"),)

    def statement(self, b, call):
        def action(session, values):
            session.unwatch(values[0])
        b.send_values(call, b.event(call, "unwatch", [UINT64], action), call.arguments, urgent=True)
