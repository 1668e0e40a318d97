"""Stacks: kstack, ustack.

The frames go by bpf_get_stack into scratch memory; their hash is the stack's id, and the map `stacks` keeps
the frames of every id once. So a stack is a number in keys and records, different stacks never share
one slot (as they do in a kernel stack map), and a stack costs its memory once.
"""
from rawbpf.asm.ir import Slot

from .. import types
from ..compiled import KernelMap
from ..place import Place
from ..types import Integer
from . import Argument, Builtin, arguments_of, register
from .process import current

MAP, SEEN = "stacks", "seen_processes"
USER_STACK = 1 << 8
MODES = ("bpftrace", "perf", "raw", "build_id")
MOST = 127              # frames that the kernel gives (kernel.perf_event_max_stack)
LIMIT = 1024            # what a script may ask for
_SEED, _FACTOR = 0x9e3779b97f4a7c15, 0xff51afd7ed558ccd


class _Stack(Builtin):
    bare = pure = True
    variadic = True

    def __init__(self, name, user):
        self.names, self.user = (name,), user

    def resolve(self, r, call):
        mode, limit = r.config.stack_mode, MOST
        given = arguments_of(call)
        if len(given) > 2:
            r.error(call, "%s() takes up to 2 arguments (%d provided)" % (self.name, len(given)))
        for index, argument in enumerate(given):
            name = getattr(argument, "name", None)
            if index == 0 and name is not None:
                if name not in MODES:
                    r.error(argument, "Error parsing stack mode: %s: Invalid value for stack_mode: valid values are "
                            "bpftrace, raw, perf, and build_id." % self.name)
                mode = name
                continue
            r.expr(argument)
            limit = r.constant(argument)
            if not isinstance(limit, int):
                r.error(call, "%s: invalid limit value" % self.name)
            if not 0 < limit <= LIMIT:
                r.error(call, "%s([int limit]): limit shouldn't exceed %d, %d given" % (self.name, LIMIT, limit))
            limit = min(limit, MOST)
        if mode == "build_id" and not self.user:
            r.warn(call, "'build_id' stack mode can only be used for ustack. Falling back to 'raw' mode.")
            mode = "raw"
        return (types.UserStack if self.user else types.KernelStack)(limit, mode)

    def value(self, b, call):
        return self._id(b, call)

    def store(self, b, call, dest):
        """ustack: id, process, probe."""
        f = b.f
        number = self._id(b, call)
        f.store(dest.base, dest.off, number, 8)
        pid = current(b)
        f.store(dest.base, dest.off + 8, pid, 4)
        f.store(dest.base, dest.off + 12, 0, 4)
        remember(b, call, pid, dest.at(8, types.UINT32))

    def _id(self, b, call):
        """The id of the stack at hand; 0 when there is none (a user stack in a kernel thread, a kernel stack in
        user mode). One that finds no room is a counted loss."""
        f, kind = b.f, call.type
        self._map(b)
        scratch = b.scratch.place(types.Array(types.UINT64, MOST + 1), 8 * (MOST + 1))
        frames = scratch.at(8, scratch.type)
        result = f.variable()
        f.set(result, 0)
        done = f.block()
        count = self._take(b, call, kind, frames, done)
        f.store(scratch.base, scratch.off, count, 8)
        hash = self._hash(b, frames, count)
        f.set(result, hash)
        key = Place(f.slot(8), 0, types.UINT64)
        f.store(key.base, 0, hash, 8)
        known = f.call("bpf_map_lookup_elem", f.map(MAP), b.address(key))
        new, full = f.block("new_stack"), f.block()
        f.branch("==", known, 0, new, done)
        f.position(new)
        stored = f.call("bpf_map_update_elem", f.map(MAP), b.address(key), b.address(scratch), 0)
        f.branch("==", stored, 0, done, full)
        f.position(full)
        b.count_loss("stack")
        f.jump(done)
        f.position(done)
        return result

    def _take(self, b, call, kind, frames, done):
        """Put the frames at a place; their number. Control goes to `done` when there are none."""
        f = b.f
        got = f.call("bpf_get_stack", b.ctx, b.address(frames), kind.limit * 8, USER_STACK if self.user else 0)
        fine = f.block("stack")
        f.branch("s>", got, 0, fine, done)
        f.position(fine)
        return f.alu(">>", got, 3)

    def _map(self, b):
        """The map of stacks grows as it is filled, except where a perf event's program writes to it: those run in
        NMIs, where memory cannot be had at once."""
        script = b.script
        known = script.extra_maps.get(MAP)
        growing = script.machine.no_prealloc if b.point.program_type != "perf_event" else 0
        if known is not None and not known.flags:
            growing = 0
        entries = script.config.max_map_keys * (4 if growing else 2)
        script.add_kernel_map(KernelMap(MAP, "hash", 8, 8 * (MOST + 1), entries, growing))

    def _hash(self, b, frames, count):
        """64 bits that differ for different stacks: multiply and fold, frame by frame."""
        f = b.f
        hash, index = f.variable(), f.variable()
        f.set(hash, f.alu("+", count, _SEED))
        f.set(index, 0)
        base = b.address(frames)
        loop, done = f.block("hash"), f.block("hashed")
        f.jump(loop)
        f.position(loop)
        frame = f.load(f.alu("+", base, f.alu("<<", index, 3)), 0, 8)
        mixed = f.alu("*", f.alu("^", hash, frame), _FACTOR)
        f.set(hash, f.alu("^", mixed, f.alu(">>", mixed, 32)))
        f.set(index, f.alu("+", index, 1))
        f.branch(">", count, index, loop, done)
        f.position(done)
        return hash


class _UnwoundStack(_Stack):
    """The user stack of a program without frame pointers, by the tables of its `.eh_frame` (see unwind_code.py). Of a
    process whose tables are not there yet, it is the one by frame pointers, and the reader is told."""

    def resolve(self, r, call):
        r.unstable(call, "dw_ustack")
        return super().resolve(r, call)

    def _take(self, b, call, kind, frames, done):
        from ..unwind_code import Unwinding, kernel_maps
        f = b.f
        for map in kernel_maps():
            b.script.add_kernel_map(map)
        count, missing, taken, some = f.variable(), f.block("no_tables"), f.block("unwound"), f.block()
        Unwinding(b, frames, kind.limit, count, missing).run(current(b))
        f.jump(taken)
        f.position(missing)
        f.set(count, super()._take(b, call, kind, frames, done))
        f.jump(taken)
        f.position(taken)
        f.branch("==", count, 0, done, some)
        f.position(some)
        return f.alu("&", count, MOST)      # the mask tells the verifier what we know


register(_Stack("kstack", False))
register(_Stack("ustack", True))
register(_UnwoundStack("dw_ustack", True))


def remember(b, call, pid, stored):
    """Tell the reader of a process whose user addresses are stored for the first time: it looks at the process's
    memory map while the process lives. `stored`: where the number was stored."""
    f = b.f
    b.script.add_kernel_map(KernelMap(SEEN, "lru_hash", 4, 4, 4096))
    key = stored
    if not isinstance(stored.base, Slot):       # helpers do not take every memory as a key
        key = Place(f.slot(4, 4), 0, types.UINT32)
        f.store(key.base, 0, pid, 4)
    known = f.call("bpf_map_lookup_elem", f.map(SEEN), b.address(key))
    new, done = f.block("new_process"), f.block()
    f.branch("==", known, 0, new, done)
    f.position(new)
    f.call("bpf_map_update_elem", f.map(SEEN), b.address(key), b.address(key), 0)
    event = b.event(call, "process", [types.UINT32], lambda session, values: session.host.remember(values[0]))
    b.send(event, lambda record: f.store(record.base, record.off + event.fields[0][0], f.load(key.base, key.off, 4), 4),
           urgent=True)
    f.jump(done)
    f.position(done)


def depth(b, node):
    """The number of frames of a stack value."""
    f = b.f
    if node.type.size == 8:
        number = b.value(node)
    else:
        place = b.place(node)
        number = f.load(place.base, place.off, 8)
    key = f.slot(8)
    f.store(key, 0, number, 8)
    found = f.call("bpf_map_lookup_elem", f.map(MAP), f.address(key))
    result = f.variable()
    f.set(result, 0)
    some, done = f.block(), f.block()
    f.branch("==", found, 0, done, some)
    f.position(some)
    f.set(result, f.load(found, 0, 8))
    f.jump(done)
    f.position(done)
    return result


def frames(data):
    """The addresses in a value of the stacks map."""
    import struct
    count = min(int.from_bytes(data[:8], "little"), MOST)
    return list(struct.unpack_from("=%dQ" % count, data, 8))


@register
class _Ksym(Builtin):
    names = ("ksym",)
    pure = True
    arguments = (Argument("integer", "address"),)
    returns = types.KernelSymbol()

    def value(self, b, call):
        return b.value(call.arguments[0])


@register
class _Usym(Builtin):
    names = ("usym",)
    pure = True
    arguments = (Argument("integer", "address"),)
    returns = types.UserSymbol()

    def store(self, b, call, dest):
        f = b.f
        f.store(dest.base, dest.off, b.value(call.arguments[0]), 8)
        pid = current(b)
        f.store(dest.base, dest.off + 8, pid, 4)
        f.store(dest.base, dest.off + 12, 0, 4)
        remember(b, call, pid, dest.at(8, types.UINT32))


__all__ = ["Integer"]
