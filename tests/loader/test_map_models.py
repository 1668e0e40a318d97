"""Every kind of map against a Python model of it, by random sequences of all operations that a map has.

What the model says of flags and errors is bpf(2)'s and the documentation's (Documentation/bpf/map_*.rst). An
operation that a kind does not have is a KernelError, and changes nothing.
"""

import ast
import os
import random
import socket
import struct
import subprocess
import sys

import pytest

from rawbpf.loader import KernelError, Map, PerfEvent, Program, features, kernel, perf
from rawbpf.loader.detached import mount
from rawbpf.loader.kernel import possible_cpus
from rawbpf.loader.mapkinds import lpm_key
from rawbpf.loader.uapi import ANY, EXIST, F_MMAPABLE, F_NO_PREALLOC, MAP_TYPES, NOEXIST
from tests.loader.code import RETURN_0
from tests.loader.test_object_vm import bpf_lsm

pytestmark = [pytest.mark.kernel, pytest.mark.slow]
STEPS = int(os.environ.get("RAWBPF_STEPS", "400"))


def u32(number):
    return struct.pack("=I", number)


class Kind:
    """A kind of map: how it is made, keys and values to use, and what of the operations it has.

    `values` are (value to give, what lookup gives) or None where it cannot be looked up. `flags`: does it heed
    NOEXIST and EXIST; "array": every element exists; "any": only ANY is taken; "old", "devmap_hash", "once", "lpm": see Model and step().
    """

    def __init__(self, make, keys, values, flags="hash", delete=True, lookup=True, walk=True, take=False, batch=True):
        self.make, self.keys, self.values, self.flags = make, keys, values, flags
        self.delete, self.lookup, self.walk, self.take, self.batch = delete, lookup, walk, take, batch


def numbers(size, count=8):
    rng = random.Random(size)
    return [(data, data) for data in (rng.getrandbits(8 * size).to_bytes(size, "little") for _ in range(count))]


def per_cpu(size):
    cpus = len(possible_cpus())
    return [([given[cpu:] + given[:cpu] for cpu in range(cpus)],) * 2 for given, _ in numbers(size)]


KEYS = [u32(number) for number in range(12)]
SLOTS = KEYS[:8]


def plain(type, entries=64, **options):
    """Hash maps by one recipe."""
    def make(stack, size=8):
        return Map.create(type, 4, size, entries, **options)
    return make


def objects(kind):
    """[(object, id that lookup gives)] of programs, maps, ... kept by the test's own list."""
    if kind == "program":
        programs = [Program.load("socket_filter", RETURN_0) for _ in range(3)]
        return [(program, u32(program.info().id)) for program in programs]
    if kind == "map":
        maps = [Map.create("array", 4, 8, 4) for _ in range(3)]
        return [(each, u32(each.info().id)) for each in maps]
    if kind == "event":
        events = [PerfEvent.open(perf.software("dummy", period=1)) for _ in range(2)]
        return [(event, None) for event in events]
    if kind == "cgroup":
        root = mount("cgroup2")
        return [(root, None)]
    if kind == "socket":
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [(each, each.getsockopt(socket.SOL_SOCKET, 57, 8)) for each in sockets]      # SO_COOKIE
    raise AssertionError(kind)


def reuseport_sockets():
    found = []
    for _ in range(3):
        each = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        each.bind(("127.0.0.1", 0))
        found.append((each, each.getsockopt(socket.SOL_SOCKET, 57, 8)))
    return found


def outer(type):
    def make(stack):
        with Map.create("array", 4, 8, 4) as template:
            return Map.create(type, 4, 4, 8, inner_map=template)
    return make


LPM = [lpm_key(bits, bytes([10, 1, 2, 0])[:(bits + 7) // 8].ljust(4, b"\0")) for bits in (8, 16, 24)]
LO = socket.if_nametoindex("lo")

KINDS = {
    "hash": lambda: Kind(plain("hash"), KEYS, numbers(8), take="5.14"),
    "hash of large values": lambda: Kind(lambda s: Map.create("hash", 12, 5000, 32), [k * 3 for k in KEYS],
                                         numbers(5000), take="5.14"),
    "hash without preallocation": lambda: Kind(plain("hash", flags=F_NO_PREALLOC), KEYS, numbers(8), take="5.14"),
    "lru_hash": lambda: Kind(plain("lru_hash", 4096), KEYS, numbers(8), take="5.14"),
    "percpu_hash": lambda: Kind(plain("percpu_hash"), KEYS, per_cpu(8), take="5.14"),
    "percpu_hash of odd values": lambda: Kind(lambda s: Map.create("percpu_hash", 4, 5, 32), KEYS, per_cpu(5),
                                              take="5.14"),
    "lru_percpu_hash": lambda: Kind(plain("lru_percpu_hash", 4096), KEYS, per_cpu(8), take="5.14"),
    "array": lambda: Kind(lambda s: Map.create("array", 4, 8, 8), SLOTS, numbers(8), "array", delete=False),
    "mmapable array": lambda: Kind(lambda s: Map.create("array", 4, 8, 8, flags=F_MMAPABLE), SLOTS, numbers(8), "array",
                                   delete=False),
    "percpu_array": lambda: Kind(lambda s: Map.create("percpu_array", 4, 8, 8), SLOTS, per_cpu(8), "array",
                                 delete=False),
    "lpm_trie": lambda: Kind(lambda s: Map.create("lpm_trie", 8, 8, 16, flags=F_NO_PREALLOC), LPM, numbers(8),
                             "lpm"),
    "array_of_maps": lambda: Kind(outer("array_of_maps"), SLOTS, objects("map"), "any"),
    "hash_of_maps": lambda: Kind(outer("hash_of_maps"), SLOTS, objects("map")),
    "prog_array": lambda: Kind(lambda s: Map.create("prog_array", 4, 4, 8), SLOTS, objects("program"), "any"),
    "perf_event_array": lambda: Kind(lambda s: Map.create("perf_event_array", 4, 4, 8), SLOTS, objects("event"), "any",
                                     lookup=False),
    "cgroup_array": lambda: Kind(lambda s: Map.create("cgroup_array", 4, 4, 8), SLOTS, objects("cgroup"), "any",
                                 lookup=False),
    "devmap": lambda: Kind(lambda s: Map.create("devmap", 4, 4, 8), SLOTS, [(LO, u32(LO))], "old"),
    "devmap_hash": lambda: Kind(lambda s: Map.create("devmap_hash", 4, 4, 16), KEYS, [(LO, u32(LO))], "devmap_hash"),
    "cpumap": lambda: Kind(lambda s: Map.create("cpumap", 4, 4, 4), [u32(0)], [(size, u32(size)) for size in (64, 192)],
                           "old"),
    "sockmap": lambda: Kind(lambda s: Map.create("sockmap", 4, 8, 8), SLOTS, objects("socket")),
    "sockhash": lambda: Kind(lambda s: Map.create("sockhash", 4, 8, 16), KEYS, objects("socket")),
    "reuseport_sockarray": lambda: Kind(lambda s: Map.create("reuseport_sockarray", 4, 8, 8), SLOTS,
                                        reuseport_sockets(), "once"),
    "rhash": lambda: Kind(lambda s: Map.create("rhash", 4, 8, 64, flags=F_NO_PREALLOC), KEYS, numbers(8), take="7.2"),
}
# whose elements are of other shapes: tested below and in test_kinds.py
OTHERS = {"queue", "stack", "bloom_filter", "ringbuf", "user_ringbuf", "arena", "struct_ops", "stack_trace",
          "cgroup_storage", "percpu_cgroup_storage", "sk_storage", "inode_storage", "task_storage", "cgrp_storage",
          "xskmap", "insn_array", "unspec"}


def test_every_kind_is_tested():
    assert {name.split()[-1] if name.startswith("mmapable") else name.split()[0] for name in KINDS} | OTHERS == \
        set(MAP_TYPES)


class Model:
    """What the map should hold; `failed(...)` says which error an operation should have."""

    def __init__(self, kind):
        self.kind, self.elements = kind, {}

    def update(self, key, value, flags):
        """(does the map take it: True, False for "not with these flags", None for an error)"""
        there, how = key in self.elements, self.kind.flags
        if how == "any" and flags != ANY:
            return None
        if how == "array":
            return flags != NOEXIST
        if how == "old":        # EXIST is not asked, and NOEXIST never right
            return flags != NOEXIST
        if how == "devmap_hash" and flags == EXIST and not there:
            return True         # it does not ask
        if flags == NOEXIST and there or flags == EXIST and not there:
            return False
        return True


def available(name):
    type = name.split()[-1] if name.startswith("mmapable") else name.split()[0]
    return features.has_map(type)


@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize("name", list(KINDS))
def test_random_operations(name, batches):
    if not available(name):
        return
    kind = KINDS[name]()
    rng = random.Random(name)
    map = kind.make(None)
    map._batches = batches
    model = Model(kind)
    if kind.flags == "array":
        zero = [bytes(map.value_size)] * len(possible_cpus()) if "percpu" in name else bytes(map.value_size)
        model.elements = dict.fromkeys(kind.keys, zero)
    used = {}           # of sockets: one place each
    # the kernel waits for all CPUs after each change of these
    for _ in range(STEPS // 8 if name in ("hash_of_maps", "array_of_maps", "cpumap", "devmap") else STEPS):
        step(rng, map, kind, model, used)
    if kind.walk and kind.lookup:
        assert dict(map.items()) == model.elements
    if kind.walk and kind.delete:
        map.clear()
        model.elements.clear()
        check_whole(map, kind, model)


def step(rng, map, kind, model, used):
    key = rng.choice(kind.keys)
    given, shown = rng.choice(kind.values)
    choice = rng.randrange(12)
    if choice < 5:
        flags = rng.choice((ANY, ANY, NOEXIST, EXIST))
        if kind.flags == "lpm" and kernel.release() < (6, 12):      # which did not look at them
            flags = ANY
        if kind.flags == "once":        # a socket is in one place of one such map
            if shown in model.elements.values() or key in model.elements and flags == ANY:
                return
        expected = model.update(key, given, flags)
        if expected is None:
            with pytest.raises(KernelError):
                map.update(key, given, flags)
        else:
            assert map.update(key, given, flags) is expected, (key, flags)
            if expected:
                model.elements[key] = shown
    elif choice < 7:
        if not kind.delete:
            with pytest.raises(KernelError):
                map.delete(key)
        else:
            assert map.delete(key) == (key in model.elements) or map.type in ("devmap", "cpumap", "cgroup_array")
            model.elements.pop(key, None)
    elif choice < 10:
        if not kind.lookup:
            with pytest.raises(KernelError):
                map.lookup(key)
            return
        # the longest prefix answers for a trie: of itself, here, because keys are of other lengths
        assert map.lookup(key) == longest(kind, model, key)
    elif choice == 10 and kind.take:
        since = tuple(int(part) for part in kind.take.split("."))
        if kernel.release()[:2] >= since:
            assert map.lookup_and_delete(key) == model.elements.pop(key, None)
        else:
            with pytest.raises(KernelError):
                map.lookup_and_delete(key)
    elif not rng.randrange(5):
        check_whole(map, kind, model)


def longest(kind, model, key):
    if kind.flags != "lpm":
        return model.elements.get(key)
    bits = int.from_bytes(key[:4], "little")
    fitting = [other for other in model.elements if int.from_bytes(other[:4], "little") <= bits]
    return model.elements[max(fitting, key=lambda other: int.from_bytes(other[:4], "little"))] if fitting else None


def check_whole(map, kind, model):
    """Iteration, length and membership against the model."""
    if not kind.walk:
        return
    keys = list(map.keys())
    assert len(keys) == len(set(keys))
    if not kind.lookup:
        return
    present = {key: map.lookup(key) for key in keys}
    present = {key: value for key, value in present.items() if value is not None}
    assert present == model.elements if kind.flags != "lpm" else set(present) == set(model.elements)
    if kind.batch:
        assert dict(map.items()) == model.elements


def test_queues_and_stacks():
    rng = random.Random(1)
    for type in ("queue", "stack"):
        with Map.create(type, 0, 8, 10) as map:
            model = []
            for number in range(STEPS):
                value, choice = struct.pack("=Q", number), rng.randrange(6)
                if choice < 3:
                    if len(model) < 10:
                        map.push(value)
                        model.append(value)
                    else:
                        with pytest.raises(KernelError):
                            map.push(value)
                        if rng.randrange(2):
                            map.push(value, EXIST)          # makes room: the oldest goes
                            model.pop(0)
                            model.append(value)
                else:
                    end = 0 if type == "queue" else -1
                    expected = model[end] if model else None
                    if choice == 3:
                        assert map.peek() == expected
                    else:
                        assert map.pop() == expected
                        if model:
                            model.pop(end)


def test_bloom_filters():
    if not features.has_map("bloom_filter"):
        return
    rng = random.Random(2)
    with Map.create("bloom_filter", 0, 8, 1000, map_extra=5) as map:
        added = set()
        wrong = asked = 0
        for number in range(1000):
            value = rng.getrandbits(64).to_bytes(8, "little")
            map.push(value)
            added.add(value)
            other = rng.getrandbits(64).to_bytes(8, "little")
            asked += 1
            wrong += other in map and other not in added
        assert all(value in map for value in added)
        assert wrong / asked < 0.1
        with pytest.raises(KernelError):
            map.pop()


@pytest.mark.parametrize("type, since", [("sk_storage", (5, 8)), ("inode_storage", (5, 10)), ("task_storage", (5, 11)),
                                         ("cgrp_storage", (6, 2))])
def test_storage(type, since):
    """Values that belong to sockets, files, processes, cgroups: by descriptor."""
    if not features.has_map(type):
        return
    rng = random.Random(type)
    owners, close = _owners(type)
    try:
        with Map.create(type, 4, 16, 0) as map:
            if type == "inode_storage" and not bpf_lsm():
                with pytest.raises(KernelError, match="the BPF LSM is not active"):
                    map.update(owners[0], bytes(16))
                return
            model = {}
            for _ in range(STEPS // 3):
                number = rng.randrange(len(owners))
                choice, value = rng.randrange(8), rng.getrandbits(128).to_bytes(16, "little")
                if choice < 4:
                    flags = rng.choice((ANY, NOEXIST, EXIST))
                    expected = not (flags == NOEXIST and number in model or flags == EXIST and number not in model)
                    assert map.update(owners[number], value, flags) is expected
                    if expected:
                        model[number] = value
                elif choice < 6:
                    assert map.lookup(owners[number]) == model.get(number)
                else:
                    assert map.delete(owners[number]) == (model.pop(number, None) is not None)
    finally:
        close()


def _owners(type):
    if type == "sk_storage":
        found = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(4)]
        return found, lambda: [each.close() for each in found]
    if type == "inode_storage":
        import tempfile
        found = [tempfile.TemporaryFile() for _ in range(4)]
        return found, lambda: [each.close() for each in found]
    if type == "task_storage":
        found = [os.pidfd_open(os.getpid())]
        return found, lambda: [os.close(fd) for fd in found]
    root = mount("cgroup2")
    names = ["rawbpf-model-%d-%d" % (os.getpid(), number) for number in range(3)]
    for name in names:
        os.mkdir(name, dir_fd=root)
    found = [os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root) for name in names]

    def close():
        for fd, name in zip(found, names):
            os.close(fd)
            os.rmdir(name, dir_fd=root)
        os.close(root)
    return found, close


WRITER = """
import os, random, struct, sys
from rawbpf.loader import Map
first, steps = int(sys.argv[1]), int(sys.argv[2])
map, rng, model = Map.from_fd(os.dup(0)), random.Random(first), {}
for step in range(steps):
    key = struct.pack("=I", first + rng.randrange(50))
    value = struct.pack("=Q", step << 32 | first)
    choice = rng.randrange(8)
    if choice < 4:
        map.update(key, value)
        model[key] = value
    elif choice < 6:
        assert map.delete(key) == (model.pop(key, None) is not None)
    elif choice == 6:
        assert map.lookup(key) == model.get(key)
    else:
        several = [(struct.pack("=I", first + number), value) for number in range(10)]
        map.update_batch(several)
        model.update(several)
print(sorted(model.items()))
"""


@pytest.mark.parametrize("type", ["hash", "lru_hash"])
def test_writers_at_once(type):
    """Several processes write to one map, each to keys of its own; this one looks on. What is left is the sum."""
    with Map.create(type, 4, 8, 4096) as map:
        writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(first), str(STEPS * 2)], stdin=map.fd,
                                    stdout=subprocess.PIPE, text=True) for first in (1000, 2000, 3000, 4000)]
        looks = 0
        while any(writer.poll() is None for writer in writers):
            seen = list(map.items())
            assert len(seen) == len({key for key, _ in seen})
            # a value was written by the owner of its key, whole
            for key, value in seen:
                assert struct.unpack("=I", key)[0] // 1000 * 1000 == struct.unpack("=Q", value)[0] & 0xffffffff
            looks += 1
        expected = {}
        for writer in writers:
            assert writer.returncode == 0
            expected.update(ast.literal_eval(writer.communicate()[0]))
        assert dict(map.items()) == expected and looks


def test_as_a_mapping():
    with Map.create("hash", 4, 8, 64) as map:
        model = {}
        rng = random.Random(3)
        for _ in range(STEPS):
            number = rng.randrange(10)
            key, value = u32(number), rng.getrandbits(64).to_bytes(8, "little")
            choice = rng.randrange(6)
            if choice < 2:
                map[key if choice else number] = value
                model[key] = value
            elif choice == 2:
                try:
                    del map[key]
                    gone = True
                except KeyError:
                    gone = False
                assert gone == (model.pop(key, None) is not None)
            elif choice == 3:
                try:
                    assert map[number] == model[key]
                except KeyError:
                    assert key not in model
            elif choice == 4:
                assert map.get(key, b"?") == model.get(key, b"?") and (key in map) == (key in model)
            else:
                assert dict(map) == model and len(map) == len(model) and bool(map)
    with Map.create("percpu_hash", 2, 1, 4) as map:
        map[b"ab"] = b"x"
        assert map[b"ab"] == [b"x"] * len(possible_cpus())
        with pytest.raises(ValueError, match="70000 does not fit into the 2 bytes"):
            map[70000] = b"x"
