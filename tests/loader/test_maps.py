"""Maps against a Python dict, operation by operation."""

import os
import random
import struct
import subprocess
import sys
from itertools import islice

import pytest

from rawbpf.loader import KernelError, Map, features
from rawbpf.loader.kernel import possible_cpus, release
from rawbpf.loader.mapkinds import lpm_key
from rawbpf.loader.uapi import EXIST, F_NO_PREALLOC, NOEXIST

pytestmark = pytest.mark.kernel


def key(number):
    return struct.pack("=I", number)


def value_for(map, rng):
    value = rng.getrandbits(8 * map.value_size).to_bytes(map.value_size, "little")
    if "percpu" in map.type:
        return [value[cpu:] + value[:cpu] for cpu in range(len(possible_cpus()))]
    return value


@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize("type, value_size", [
    ("hash", 8), ("hash", 1), ("hash", 300), ("percpu_hash", 8), ("percpu_hash", 5), ("lru_hash", 8),
    ("lru_percpu_hash", 12)])
def test_hash_maps_against_a_dict(type, value_size, batches):
    rng = random.Random(type + str(value_size))
    # LRU maps evict early: give them more room than is ever used
    map = Map.create(type, 4, value_size, 4096 if "lru" in type else 64, name="model")
    map._batches = batches
    model = {}
    for _ in range(600):
        name, operation = key(rng.randrange(60)), rng.randrange(10)
        if operation < 4:
            value = value_for(map, rng)
            assert map.update(name, value)
            model[name] = value
        elif operation == 4:
            value = value_for(map, rng)
            assert map.update(name, value, NOEXIST) == (name not in model)
            model.setdefault(name, value)
        elif operation == 5:
            value = value_for(map, rng)
            assert map.update(name, value, EXIST) == (name in model)
            if name in model:
                model[name] = value
        elif operation == 6:
            assert map.delete(name) == (model.pop(name, None) is not None)
        elif operation == 7:
            assert (name in map) == (name in model)
        else:
            assert map.lookup(name) == model.get(name)
        if not rng.randrange(50):
            assert dict(map.items()) == model
            assert sorted(map.keys()) == sorted(model)
        if not rng.randrange(100):
            pairs = [(key(number), value_for(map, rng)) for number in range(20)]
            map.update_batch(pairs)
            model.update(pairs)
            gone = [key(number) for number in range(10, 40)]
            map.delete_batch(gone)
            for name in gone:
                model.pop(name, None)
            assert dict(map.items()) == model
    map.clear()
    assert dict(map.items()) == {}


@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize("type, value_size", [("array", 8), ("array", 3), ("percpu_array", 8),
                                              ("percpu_array", 20)])
def test_array_maps_against_a_list(type, value_size, batches):
    rng = random.Random(type)
    map = Map.create(type, 4, value_size, 50)
    map._batches = batches
    zero = [bytes(value_size)] * len(possible_cpus()) if "percpu" in type else bytes(value_size)
    model = [zero] * 50
    for _ in range(200):
        index, value = rng.randrange(50), value_for(map, rng)
        map.update(key(index), value)
        model[index] = value
        assert map.lookup(key(index)) == value
    assert list(map.items()) == [(key(index), value) for index, value in enumerate(model)]
    assert map.lookup(key(50)) is None
    with pytest.raises(KernelError, match="out of range"):
        map.update(key(50), zero)
    with pytest.raises(KernelError):
        map.delete(key(0))
    map.clear()
    assert list(map.values()) == [zero] * 50


def test_more_elements_than_a_batch():
    map = Map.create("hash", 4, 8, 9000)
    model = {key(number): struct.pack("=Q", number * number) for number in range(9000)}
    map.update_batch(model)
    assert dict(map.items()) == model
    assert sorted(map.keys()) == sorted(model)
    with pytest.raises(KernelError, match="full"):
        map.update(key(9000), bytes(8))
    map.delete_batch(list(model)[::2])
    assert dict(map.items()) == dict(list(model.items())[1::2])
    taken = dict(map.drain())
    assert taken == dict(list(model.items())[1::2])
    assert dict(map.items()) == {}


def test_per_cpu_value_for_all():
    map = Map.create("percpu_hash", 4, 4, 4)
    map.update(key(1), b"same")
    assert map.lookup(key(1)) == [b"same"] * len(possible_cpus())


@pytest.mark.parametrize("kind", ["percpu_array", "percpu_hash"])
def test_the_value_of_one_cpu(kind):
    cpus = possible_cpus()
    with Map.create(kind, 4, 8, 4) as map:
        map.update(1, [bytes([number]) * 8 for number in range(len(cpus))])
        assert [map.lookup_cpu(1, cpu) for cpu in cpus] == [bytes([number]) * 8 for number in range(len(cpus))]
        with pytest.raises(ValueError, match="there is no CPU 99999"):
            map.lookup_cpu(1, 99999)
        if release() < (7, 0):
            with pytest.raises(KernelError, match="setting the value of one CPU needs Linux 7.0"):
                map.update_cpu(1, cpus[-1], b"x" * 8)
            return
        map.update_cpu(1, cpus[-1], b"x" * 8)
        assert map[1] == [bytes([number]) * 8 for number in range(len(cpus) - 1)] + [b"x" * 8]
        map.update_cpu(2, cpus[-1], b"y" * 8)
        assert map[2] == [bytes(8)] * (len(cpus) - 1) + [b"y" * 8]


def test_hash_without_preallocation():
    map = Map.create("hash", 4, 8, 1 << 20, flags=F_NO_PREALLOC)
    map.update(key(5), bytes(8))
    assert list(map.keys()) == [key(5)]


def test_wrong_sizes_are_told():
    map = Map.create("hash", 4, 8, 4, name="sizes")
    with pytest.raises(ValueError, match="key of map sizes is 4 bytes, not 3"):
        map.lookup(b"abc")
    with pytest.raises(ValueError, match="value of map sizes is 8 bytes, not 1"):
        map.update(key(1), b"x")
    with pytest.raises(ValueError, match="did you mean percpu_hash"):
        Map.create("percpu_hsh", 4, 8, 4)
    with pytest.raises(KernelError, match="power of two"):
        Map.create("ringbuf", 0, 0, 1000)


def test_info_and_from_fd():
    map = Map.create("lru_hash", 4, 8, 100, name="a b/c%d_and_more_text")
    info = map.info()
    assert (info.type, info.key_size, info.value_size, info.max_entries) == ("lru_hash", 4, 8, 100)
    assert info.name == "a_b_c_d_and_mor"
    with Map.from_fd(os.dup(map.fd)) as again:
        again.update(key(3), bytes(8))
        assert type(again) is type(map)
    assert key(3) in map


@pytest.mark.parametrize("kind", ["queue", "stack"])
def test_queue_and_stack(kind):
    map = Map.create(kind, 0, 4, 3)
    assert map.pop() is None and map.peek() is None
    for number in range(3):
        map.push(key(number))
    with pytest.raises(KernelError):
        map.push(key(3))
    expected = [0, 1, 2] if kind == "queue" else [2, 1, 0]
    assert map.peek() == key(expected[0])
    assert [map.pop() for _ in range(4)] == [key(number) for number in expected] + [None]


_CHURN = """
import os, sys, struct, time
from rawbpf.loader import Map
# the map's descriptor comes as stdin
map = Map.from_fd(os.dup(0))
print("ready", flush=True)
end, number = time.monotonic() + float(sys.argv[1]), 1000
while time.monotonic() < end:
    for offset in range(400):
        map.delete(struct.pack("=I", number + offset))
        map.update(struct.pack("=I", number + offset + 400), bytes(8))
    number += 400
"""


@pytest.mark.parametrize("batches", [True, False])
def test_iteration_while_another_deletes(batches):
    """Keys 0..99 stay; others come and go. Each walk ends, sees what stayed, and nothing twice."""
    map = Map.create("hash", 4, 8, 4096)
    map._batches = batches
    stay = {key(number) for number in range(100)}
    for name in list(stay) + [key(number) for number in range(1000, 1400)]:
        map.update(name, bytes(8))
    churn = subprocess.Popen([sys.executable, "-c", _CHURN, "0.5"], stdin=map.fd,
                             stdout=subprocess.PIPE, cwd="/")
    try:
        churn.stdout.readline()
        walks = 0
        while churn.poll() is None or not walks:
            # a walk that never ends meets a key again
            seen = [name for name, _ in islice(map.items(), 1_000_000)]
            assert len(seen) == len(set(seen))
            assert stay <= set(seen)
            walks += 1
    finally:
        churn.kill()
        churn.wait()
        churn.stdout.close()
    assert walks


_DELETER = """
import os, random, sys, time
from rawbpf.loader import KernelError, Map
map = Map.from_fd(os.dup(0))
keys = [bytes.fromhex(text) for text in sys.argv[2].split(",")]
value = {"bytes": bytes(map.value_size), "map": Map.create("array", 4, 8, 1), "interface": 1}[sys.argv[3]]
print("ready", flush=True)
end, number, rng = time.monotonic() + float(sys.argv[1]), 0, random.Random(1)
while time.monotonic() < end:
    for key in rng.sample(keys, len(keys)):
        map.delete(key)
    for key in rng.sample(keys, len(keys)):
        try:
            map.update(key, value)
        except KernelError as error:        # no memory at this moment: elements are freed after a grace period
            assert error.errno in (7, 12, 16), error
"""


@pytest.mark.slow
@pytest.mark.parametrize("shape", [
    ("hash", 4, 8, 512, 0, False), ("hash", 4, 8, 512, 1, True), ("percpu_hash", 4, 8, 512, 0, True),
    ("lru_hash", 4, 8, 4096, 0, True), ("lru_percpu_hash", 4, 8, 4096, 0, False), ("lpm_trie", 8, 8, 512, 1, True),
    ("devmap_hash", 4, 4, 512, 0, False), ("hash_of_maps", 4, 4, 512, 0, True), ("rhash", 4, 8, 512, 1, True)],
    ids=lambda shape: shape[0])
def test_walks_while_another_process_deletes(shape):
    """All there is of one map comes and goes; every way to walk over it ends, raises nothing and shows only what there
    ever was, no key twice."""
    type, key_size, value_size, entries, flags, batches = shape
    if not features.has_map(type):
        return
    inner = Map.create("array", 4, 8, 1)
    map = Map.create(type, key_size, value_size, entries, flags=flags, **({"inner_map": inner} if "of_maps" in type else {}))
    map._batches = batches
    keys = [lpm_key(32, key(number)) if type == "lpm_trie" else key(number) for number in range(20 if "of_maps" in type else 300)]
    given = {"devmap_hash": 1, "hash_of_maps": inner}.get(type, bytes(value_size))
    for name in keys:
        map.update(name, given)
    value = {"devmap_hash": "interface", "hash_of_maps": "map"}.get(type, "bytes")
    process = subprocess.Popen([sys.executable, "-c", _DELETER, "0.4", ",".join(name.hex() for name in keys), value],
                               stdin=map.fd, stdout=subprocess.PIPE, cwd="/")
    known, walks = set(keys), 0
    ways = [lambda: [name for name, _ in map.items()], lambda: list(map), lambda: list(map.keys()),
            lambda: [None for _ in map.values()], lambda: [name for name, _ in map.drain()] and [], lambda: map.clear() or [],
            lambda: [len(map)] and []]
    try:
        process.stdout.readline()
        while process.poll() is None or walks < len(ways):
            seen = list(islice(ways[walks % len(ways)](), 1_000_000))
            assert len(seen) <= 20 * len(keys)
            named = [name for name in seen if name is not None]
            assert len(named) == len(set(named)) and known.issuperset(named)
            walks += 1
    finally:
        process.stdout.close()
        assert process.wait(20) == 0
    assert walks >= len(ways)


@pytest.mark.root
def test_many_that_are_there_already():
    with Map.create("hash", 4, 8, 10) as map:
        assert map.update_batch({1: bytes(8), 2: bytes(8)}) == 2
        assert map.update_batch([(1, b"new....."), (3, b"new.....")], NOEXIST) == 1
        assert dict(map.items()) == {key: value for key, value in zip(
            (b"\1\0\0\0", b"\2\0\0\0", b"\3\0\0\0"), (bytes(8), bytes(8), b"new....."))}
        assert map._batches == (release() >= (5, 6))
    with Map.create("prog_array", 4, 4, 1) as programs, pytest.raises(ValueError, match="-1 is neither a descriptor"):
        programs.update(0, -1)


@pytest.mark.root
def test_batches_of_large_values():
    """As many elements at once as fit into about a megabyte."""
    with Map.create("hash", 4, 1 << 19, 4096, flags=1) as map:
        assert map._batch_size() == 1
        for number in range(3):
            map[number] = bytes([number]) * (1 << 19)
        assert {key[0]: value[0] for key, value in map.items()} == {0: 0, 1: 1, 2: 2}
        assert len(list(map.drain())) == 3 and len(map) == 0
