"""Where the script's maps live, and the code that reads and changes them.

Storage (see compiled.MapInfo):

- A scalar is one value in an array map, addressed directly: no lookup. Aggregates have one such value a
  CPU, side by side with `stride` bytes each.
- A keyed map is a hash map; aggregates use a per-CPU hash map unless their values are so large that one
  for every possible CPU would cost too much memory.

Exactness. `@x++`, `@x += n` and aggregates never lose an update: shared values change by atomic
instructions, and per-CPU values too wherever a program may be preempted or interrupted by another one
that changes the same map (`Storage.atomic`). A new key is inserted with zeros and BPF_NOEXIST and then
found again, so that two CPUs that meet a new key both count. What finds no room is counted ("map").
"""
from . import ast, types
from .compiled import KernelMap, Loss, MapInfo
from .place import Place
from .types import Aggregate, Integer

NOEXIST = 1
ZEROS = "zeros"
STACK_KEY = 128                    # keys up to this size are built on the BPF stack
PERCPU_MEMORY = 64 << 20           # per-CPU hash maps larger than this become shared ones
PERCPU_VALUE = 32 << 10            # largest value of a per-CPU map (PCPU_MIN_UNIT_SIZE)
DECLARED = {"hash": "hash", "lruhash": "lru_hash", "percpuhash": "percpu_hash", "percpulruhash": "lru_percpu_hash",
            "percpuarray": "percpu_array", "array": "array"}


class Storage:
    """How one script map is kept: its MapInfo, its kernel map, and whether updates of per-CPU values must be
    atomic."""

    __slots__ = ("info", "kernel_map", "atomic", "per_cpu")

    def __init__(self, info, kernel_map, atomic):
        self.info, self.kernel_map, self.atomic = info, kernel_map, atomic
        self.per_cpu = info.storage in ("cpu", "percpu")


def object_name(name):
    """A BPF object's name of a script map: "@x" is AT_x."""
    return "AT_" + name[1:]


def plan(script, var, atomic):
    """The Storage of a resolve.MapVariable."""
    cpus, config = script.machine.cpus, script.config
    kind, name = var.value, object_name(var.name)
    declared = var.declared
    size = kind.size if not kind.scalar else 8
    size = -(-size // 8) * 8
    if var.scalar is not False and var.key is None:
        if kind.aggregate:
            stride = -(-(size + 8) // 64) * 64
            map = KernelMap(name, "array", 4, stride * _power_of_two(cpus), 1)
            return Storage(MapInfo(var.name, name, "cpu", None, kind, stride), map, atomic)
        map = KernelMap(name, "array", 4, size + 8, 1)
        return Storage(MapInfo(var.name, name, "data", None, kind), map, True)
    entries = declared.max_entries if declared else config.max_map_keys
    key = var.key
    map_type, storage = "hash", "hash"
    if kind.aggregate and size <= PERCPU_VALUE and size * cpus * entries <= PERCPU_MEMORY:
        map_type, storage = "percpu_hash", "percpu"
    if declared:
        map_type = DECLARED[declared.type]
        if map_type in ("hash", "lru_hash", "array"):
            storage = "hash"
        elif kind.aggregate:
            storage = "percpu"
        else:
            map_type = {"percpu_hash": "hash", "lru_percpu_hash": "lru_hash", "percpu_array": "array"}[map_type]
            storage = "hash"
    # many large values: memory is taken for those that there are
    flags = script.machine.no_prealloc if map_type == "hash" and size * entries > PERCPU_MEMORY else 0
    map = KernelMap(name, map_type, key.size, size, entries, flags)
    info = MapInfo(var.name, name, storage, key, kind, declared=declared and declared.type, max_entries=entries)
    return Storage(info, map, atomic or storage == "hash")


def _power_of_two(n):
    return 1 << (n - 1).bit_length()


class MapCode:
    """The part of lower.Lowering that deals with maps."""

    # -- keys

    def key(self, storage, keys):
        """The address of a key built from written expressions."""
        kind = storage.info.key_type
        place = self.key_place(kind)
        if len(keys) == 1:
            self.store(keys[0], place, clean=True)
        else:
            for element, offset, key in zip(kind.elements, kind.offsets, keys):
                self.store(key, place.at(offset, element), clean=True)
        self.clear_gaps(kind, place)
        return self.address(place)

    def key_place(self, kind):
        if kind.size <= self.stack_key:
            return Place(self.f.slot(kind.size, 8), 0, kind)
        return self.scratch.place(kind)

    def clear_gaps(self, kind, place):
        """Zero what lies between the elements of tuples."""
        if not isinstance(kind, types.Tuple):
            return
        end = 0
        for element, offset in zip(kind.elements, kind.offsets):
            for at in range(end, offset):
                self.f.store(place.base, place.off + at, 0, 1)
            self.clear_gaps(element, place.at(offset, element))
            end = offset + element.size
        for at in range(end, kind.size):
            self.f.store(place.base, place.off + at, 0, 1)

    # -- cells: where a map's value is

    def storage(self, node):
        return self.script.storage[node.name]

    def keys_of(self, node):
        return node.keys if isinstance(node, ast.MapAccess) else ()

    def lookup(self, storage, key):
        """Address of the value of a key (an address), 0 when there is none."""
        return self.f.call("bpf_map_lookup_elem", self.f.map(storage.kernel_map.name), key)

    def data_cell(self, storage):
        """The Place of a scalar's value; of this CPU's, when it is an aggregate."""
        f, info = self.f, storage.info
        base = f.map_value(storage.kernel_map.name)
        if info.storage == "cpu":
            cpu = f.call("bpf_get_smp_processor_id")
            cpus = storage.kernel_map.value_size // info.stride
            if cpus > 1:
                cpu = f.alu("&", cpu, cpus - 1)
                base = f.alu("+", base, f.alu("*", cpu, info.stride))
        return Place(base, 0, info.value_type)

    def with_cell(self, node, work):
        """Code of work(cell) for the value of a Map or MapAccess, which is made, with zeros, if need be."""
        f = self.f
        storage = self.storage(node)
        if storage.info.scalar:
            work(self.data_cell(storage))
            return
        key = self.key(storage, self.keys_of(node))
        cell = f.variable()
        f.set(cell, self.lookup(storage, key))
        missing, found, full, done = f.block("new_key"), f.block("found"), f.block("full"), f.block()
        f.branch("==", cell, 0, missing, found)
        f.position(missing)
        self.script.need_zeros(storage.kernel_map.value_size)
        f.call("bpf_map_update_elem", f.map(storage.kernel_map.name), key, f.map_value(ZEROS), NOEXIST)
        f.set(cell, self.lookup(storage, key))
        f.branch("==", cell, 0, full, found)
        f.position(found)
        work(Place(cell, 0, storage.info.value_type))
        f.jump(done)
        f.position(full)
        self.count_loss("map", storage.info.name)
        f.jump(done)
        f.position(done)

    def mark_set(self, storage, cell):
        """A scalar was set; aggregates whose cell cannot be all zero then need no mark."""
        info = storage.info
        if not info.scalar:
            return
        end = info.stride or storage.kernel_map.value_size
        if not info.value_type.aggregate or info.value_type.zero_when_set:
            self.f.store(cell.base, cell.off + end - 8, 1, 8)

    def add(self, cell, offset, operand, atomic, size=8):
        """cell[offset] += operand."""
        f = self.f
        if atomic:
            f.atomic("+", cell.base, cell.off + offset, operand, size)
        else:
            f.store(cell.base, cell.off + offset,
                    f.alu("+", f.load(cell.base, cell.off + offset, size), operand), size)

    # -- reading

    def read_map(self, node):
        """The operand or Place of a map's value; zero, or empty, where there is none."""
        f = self.f
        storage = self.storage(node)
        info = storage.info
        kind = info.value_type
        if isinstance(kind, Aggregate):
            return self._read_aggregate(node, storage)
        if info.scalar:
            cell = self.data_cell(storage)
            return f.load(cell.base, 0, kind.size, getattr(kind, "signed", False)) if kind.scalar else cell
        key = self.key(storage, self.keys_of(node))
        pointer = self.lookup(storage, key)
        if kind.scalar:
            result = f.variable()
            found, done = f.block(), f.block()
            f.set(result, 0)
            f.branch("==", pointer, 0, self._missing_key(done), found)
            f.position(found)
            f.set(result, f.load(pointer, 0, kind.size, getattr(kind, "signed", False)))
            f.jump(done)
            f.position(done)
            return result
        result = f.variable()
        missing, done = f.block(), f.block()
        f.set(result, pointer)
        f.branch("==", result, 0, self._missing_key(missing), done)
        f.position(missing)
        self.script.need_zeros(kind.size)
        f.set(result, f.map_value(ZEROS))
        f.jump(done)
        f.position(done)
        return Place(result, 0, kind)

    def _missing_key(self, block):
        """The block to go to where a key is missing: with -k one that says so and goes on to `block`."""
        if self.script.options.warnings < 2:
            return block
        f = self.f
        say, here = f.block("missing"), f.current
        f.position(say)
        self.helper_error("bpf_map_lookup_elem", 0)
        f.jump(block)
        f.position(here)
        return say

    def _read_aggregate(self, node, storage):
        """One number made of all CPUs' values."""
        f = self.f
        info = storage.info
        kind = info.value_type
        if info.storage == "cpu":
            state = kind.start(f)
            for cpu in range(self.script.machine.cpus):
                kind.combine(f, state, f.map_value(storage.kernel_map.name, cpu * info.stride))
            return kind.finish(f, state)
        key = self.key(storage, self.keys_of(node))
        return self.aggregate_of(node, storage, key,
                                 self.lookup(storage, key) if info.storage == "hash" else None)

    def aggregate_of(self, node, storage, key, pointer):
        """The number of one key of a map of aggregates. `key`: its address; `pointer`: the address of its value, or
        0, where all CPUs share one."""
        f = self.f
        kind = storage.info.value_type
        state = kind.start(f)
        if storage.info.storage == "hash":
            found, done = f.block(), f.block()
            f.branch("==", pointer, 0, done, found)
            f.position(found)
            kind.combine(f, state, pointer)
            f.jump(done)
            f.position(done)
            return kind.finish(f, state)
        if not self.script.machine.has_helper("bpf_map_lookup_percpu_elem", self.point.program_type):
            name = storage.info.name
            self.error(node, "Reading %s in the script needs Linux 5.19 (bpf_map_lookup_percpu_elem); print(%s) works"
                       % (name, name))
        cpu = f.variable()
        f.set(cpu, 0)
        loop, found, following, done = f.block("cpus"), f.block(), f.block(), f.block()
        f.jump(loop)
        f.position(loop)
        pointer = f.call("bpf_map_lookup_percpu_elem", f.map(storage.kernel_map.name), key, cpu)
        f.branch("==", pointer, 0, done, found)
        f.position(found)
        kind.combine(f, state, pointer)
        f.jump(following)
        f.position(following)
        f.set(cpu, f.alu("+", cpu, 1))
        f.branch("<", cpu, self.script.machine.cpus, loop, done)
        f.position(done)
        return kind.finish(f, state)

    # -- changing

    def assign_map(self, node):
        """`@x[...] = value`, `@x[...] op= value`."""
        target, value = node.target, node.value
        entry = self.entry(value)
        if entry is not None and entry.aggregate:
            storage = self.storage(target)
            arguments = entry.prepare(self, value)

            def work(cell):
                entry.update(self, value, cell, arguments, storage.atomic)
                self.mark_set(storage, cell)

            self.with_cell(target, work)
            return
        if node.op:
            self._change(target, node.op, value, node)
            return
        storage = self.storage(target)
        kind = storage.info.value_type
        if storage.info.scalar:
            if kind.scalar:
                operand = self.convert(self.value(value), value.type, kind)
                cell = self.data_cell(storage)
                self.f.store(cell.base, 0, operand, 8)
            else:
                place = self._separate(value, kind)
                cell = self.data_cell(storage)
                if place is None:
                    self.store(value, cell)
                else:
                    self.copy(place, cell)
            self.mark_set(storage, cell)
            return
        # The value comes first: it may hold other lookups, and the key should not be spilled around them.
        if kind.scalar:
            operand = self.convert(self.value(value), value.type, kind)
            place = Place(self.f.slot(8), 0, types.INT64)
            self.f.store(place.base, 0, operand, 8)
        else:
            place = self.temporary(kind, storage.kernel_map.value_size)
            self.store(value, place, clean=True)
            self.clear_gaps(kind, place)
            for at in range(kind.size, storage.kernel_map.value_size):
                self.f.store(place.base, place.off + at, 0, 1)
        self.update(storage, self.key(storage, target.keys), self.address(place))

    def _separate(self, node, kind):
        """A temporary with the value of an expression that reads maps (maybe the one being assigned)."""
        if any(isinstance(n, (ast.Map, ast.MapAccess)) for n in node.walk()):
            place = self.temporary(kind)
            self.store(node, place)
            return place
        return None

    def update(self, storage, key, value):
        """bpf_map_update_elem, a failure counted."""
        f = self.f
        result = f.call("bpf_map_update_elem", f.map(storage.kernel_map.name), key, value, 0)
        full, done = f.block("full"), f.block()
        f.branch("==", result, 0, done, full)
        f.position(full)
        self.count_loss("map", storage.info.name)
        f.jump(done)
        f.position(done)

    def _change(self, target, op, value, node, want=None):
        """`@x op= value`; returns the new value (or the old, with want="old") when `want` is set."""
        f = self.f
        storage = self.storage(target)
        kind = storage.info.value_type
        operand = self._widened(value) if not isinstance(value, int) else value
        result = f.variable() if want else None
        if want:
            f.set(result, 0)
        atomic = op in ("+", "-") or (op in ("&", "|", "^") and self.script.machine.fetch)
        if isinstance(kind, types.Pointer):
            operand = f.alu("*", operand, kind_step(self, kind))

        def work(cell):
            self._change_cell(cell, kind, op, operand, atomic, want, result, node, value)
            self.mark_set(storage, cell)

        self.with_cell(target, work)
        return result

    def _change_cell(self, cell, kind, op, operand, atomic, want, result, node, value):
        f = self.f
        signed = getattr(kind, "signed", False)
        if atomic:
            if op == "-":
                op, operand = "+", (-operand if isinstance(operand, int) else f.neg(operand))
            fetch = bool(want) and self.script.machine.fetch
            old = f.atomic(op, cell.base, cell.off, operand, 8, fetch)
            if not want:
                return
            if fetch:
                new = f.alu(op, old, operand) if want == "new" else old
            else:       # before Linux 5.12: the value as it is now
                new = f.load(cell.base, cell.off, 8)
                if want == "old":
                    new = f.alu("-", new, operand)
            f.set(result, f.extend(new, kind.size, signed) if kind.size < 8 else new)
            return
        old = f.load(cell.base, cell.off, kind.size, signed)
        value_type = types.INT64 if isinstance(value, int) else value.type
        new = self.convert(self.arithmetic(op, old, operand, kind, value_type, node), types.INT64, kind)
        f.store(cell.base, cell.off, new, 8)
        if want:
            f.set(result, new)

    def increment_map(self, node, want):
        """`@x++` and the like; the value is only made when `want` is set."""
        return self._change(node.target, node.op[0], 1, node,
                            ("new" if node.prefix else "old") if want else None)


def kind_step(b, pointer):
    """What adding 1 to a pointer adds to the address."""
    return max(1, b.script.complete(pointer.target).size) if pointer.target is not None else 1


def internal_maps(script):
    """Kernel maps that are not the script's: zeros, lost counters."""
    if script.zeros:
        yield KernelMap(ZEROS, "array", 4, -(-script.zeros // 8) * 8, 1)
    if script.losses:
        yield KernelMap("lost", "array", 4, 8 * len(script.losses), 1, script.machine.mmapable)


__all__ = ["Integer", "Loss", "MapCode", "Storage", "internal_maps", "kind_step", "object_name", "plan"]
