"""Ring and perf buffers: every record arrives whole and in order, or is counted as lost."""

import os
import random
import select
import struct

import pytest

from rawbpf.loader import Map, PerfBuffer, Program, RingBuffer
from rawbpf.loader.ringbuf import BUSY, DISCARD, run_length
from tests.loader.code import discarder, emitter, size_of

PACKET = bytes(64)


class Collector:
    """Takes runs apart the slow way: all (length, bytes)."""

    def __init__(self):
        self.records = []
        self.batches = self.runs = 0

    def __call__(self, memory, runs):
        self.batches += 1
        for offset, count, stride, length in runs:
            self.runs += 1
            # what handlers do: the whole run must lie inside the memory, stride by stride
            assert len(memory[offset:offset + count * stride]) == count * stride
            for at in range(offset, offset + count * stride, stride):
                self.records.append(bytes(memory[at:at + length]))

    def numbers(self):
        return [struct.unpack_from("=Q", record)[0] for record in self.records]


@pytest.fixture
def one_cpu():
    """Keeps this process on one CPU: a perf buffer has no order between CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def make(kind, size):
    """(map, reader of `size` bytes a buffer)"""
    if kind == "ring":
        ring = Map.create("ringbuf", 0, 0, size, name="ring")
        return ring, RingBuffer(ring)
    array = Map.create("perf_event_array", 4, 4, 0, name="perf")
    return array, PerfBuffer(array, size // 4096)


def state_map():
    return Map.create("array", 4, 2048, 1, name="state")


def counters(state):
    """(attempts, failures, records written) as the program counted them."""
    return struct.unpack_from("=QQQ", state.lookup(bytes(4)))


# -- no kernel needed: the recognition of runs --

def headers(lengths, flags):
    """Ring content for records of these lengths, and the position of each."""
    data, positions = bytearray(), []
    for length, flag in zip(lengths, flags):
        positions.append(len(data))
        data += struct.pack("=II", length | flag, 0) + b"\xa5" * (length + 7 & -8)
    return data, positions


def ring_over(data, size):
    """A RingBuffer on made-up content of a ring of `size` bytes (content as if mapped twice)."""
    ring = RingBuffer.__new__(RingBuffer)
    ring.size, ring._batch = size, size
    ring._memory = memoryview(bytes(data))
    ring._words = ring._memory.cast("I")
    return ring


@pytest.mark.parametrize("seed", range(40))
def test_runs_are_the_records(seed):
    rng = random.Random(seed)
    lengths = []
    while sum((length + 15 & -8) for length in lengths) < 6000:
        lengths += [rng.choice((0, 1, 8, 9, 16, 24, 40, 41, 255))] * rng.choice((1, 1, 2, 3, 17, 70))
    flags = [DISCARD if rng.random() < (0, 0.1, 0.5)[seed % 3] else 0 for _ in lengths]
    stop = len(lengths)
    if seed % 2:
        stop = rng.randrange(len(lengths))
        flags[stop] = BUSY
    data, positions = headers(lengths, flags)
    ring = ring_over(data + bytes(-len(data) % 8), 1 << 20)
    room = rng.choice((None, None, 1, 5, 100))
    _, runs, total, discarded, after = ring._runs(0, len(data), room)
    got = [(offset + index * stride, length & 0x3fffffff) for offset, count, stride, length in runs
           for index in range(count)]
    expected = [(positions[i] + 8, lengths[i]) for i in range(stop) if not flags[i]]
    if room is not None and len(expected) > room:
        assert got == expected[:room]
    else:
        assert got == expected
        assert after == (positions[stop] if stop < len(lengths) else len(data))
        assert discarded == sum(1 for flag in flags[:stop] if flag)
    assert total == len(got)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 18, 80, 81, 82, 337, 5000])
def test_run_length_stops_at_the_first_other(count):
    words = [7, 0, 7] * count + [8, 0, 7] * 3
    view = memoryview(struct.pack("=%dI" % len(words), *words)).cast("I")
    assert run_length(view, 0, 3, 7, count + 3) == count
    assert run_length(view, 0, 3, 7, count) == count


# -- with the kernel --

@pytest.mark.kernel
@pytest.mark.parametrize("kind", ["ring", "perf"])
@pytest.mark.parametrize("mixed", [False, True])
def test_all_records_in_order(kind, mixed, one_cpu):
    state, (output, reader) = state_map(), make(kind, 1 << 20)
    program = Program.load("socket_filter", emitter(state, output, kind == "perf", mixed, 40))
    take = Collector()
    with reader:
        for _ in range(10):
            program.test_run(PACKET, repeat=500)
            reader.consume(take)
    assert counters(state) == (5000, 0, 5000)
    assert take.numbers() == list(range(5000))
    # The perf buffer pads 4 + length to a multiple of 8.
    for number, record in enumerate(take.records):
        length = size_of(number) if mixed else 40
        assert len(record) == (length if kind == "ring" else (length + 4 + 7 & -8) - 4)
    if not mixed and kind == "ring":
        assert take.runs == take.batches    # one run a batch: nothing was taken record by record


@pytest.mark.kernel
@pytest.mark.parametrize("kind", ["ring", "perf"])
def test_full_buffer(kind, one_cpu):
    """What does not fit is counted: by the program, and by the perf buffer's reader alike."""
    state, (output, reader) = state_map(), make(kind, 1 << 14)
    program = Program.load("socket_filter", emitter(state, output, kind == "perf", True))
    take = Collector()
    with reader:
        for _ in range(20):
            program.test_run(PACKET, repeat=300)
            reader.consume(take)
            attempts, failures, written = counters(state)
            assert written == attempts - failures == len(take.records)
        assert failures > 500
        assert take.numbers() == list(range(written))
        if kind == "perf":
            # The kernel says what was lost with the next record that fits, on each CPU.
            told = reader.lost
            assert told <= failures
            program.test_run(PACKET, repeat=1)
            reader.consume(take)
            assert reader.lost == counters(state)[1] == failures


@pytest.mark.kernel
@pytest.mark.parametrize("kind", ["ring", "perf"])
@pytest.mark.parametrize("size", [8, 12, 13, 16, 20, 24, 100, 1000])
def test_wrap_around(kind, size, one_cpu):
    """Fixed sizes walk over the end of a small ring at every offset they can reach."""
    state, (output, reader) = state_map(), make(kind, 1 << 12)
    program = Program.load("socket_filter", emitter(state, output, kind == "perf", False, size))
    stride = size + 15 & -8 if kind == "ring" else 8 + (size + 4 + 7 & -8)
    part = max(1, 3000 // stride)
    take = Collector()
    with reader:
        rounds = 3 * 4096 // (part * stride) + 40
        for _ in range(rounds):
            program.test_run(PACKET, repeat=part)
            assert reader.consume(take) == part
    assert take.numbers() == list(range(part * rounds))


@pytest.mark.kernel
def test_discarded_records_are_passed_over():
    state, ring = state_map(), Map.create("ringbuf", 0, 0, 1 << 12)
    program = Program.load("socket_filter", discarder(state, ring))
    take = Collector()
    with RingBuffer(ring) as reader:
        for _ in range(20):
            program.test_run(PACKET, repeat=100)
            reader.consume(take)
        assert reader.discarded == 500
        assert reader.available() == 0
    assert take.numbers() == [number for number in range(2000) if number & 3 != 3]


@pytest.mark.kernel
@pytest.mark.parametrize("kind", ["ring", "perf"])
def test_limit_and_readiness(kind, one_cpu):
    state, (output, reader) = state_map(), make(kind, 1 << 16)
    program = Program.load("socket_filter", emitter(state, output, kind == "perf", False, 16))
    take = Collector()
    with reader:
        assert select.select([reader], [], [], 0)[0] == []
        assert reader.consume(take) == 0
        program.test_run(PACKET, repeat=100)
        assert select.select([reader], [], [], 5)[0] == [reader]
        counts = []
        while True:
            count = reader.consume(take, limit=30)
            if not count:
                break
            counts.append(count)
        assert sum(counts) == 100 and max(counts) <= 30
        assert take.numbers() == sorted(take.numbers()) == list(range(100))
        assert reader.available() == 0


@pytest.mark.kernel
@pytest.mark.parametrize("kind", ["ring", "perf"])
def test_handler_that_raises_leaves_the_batch(kind):
    state, (output, reader) = state_map(), make(kind, 1 << 16)
    program = Program.load("socket_filter", emitter(state, output, kind == "perf", False, 16))

    def broken(memory, runs):
        raise ZeroDivisionError
    take = Collector()
    with reader:
        program.test_run(PACKET, repeat=10)
        with pytest.raises(ZeroDivisionError):
            reader.consume(broken)
        reader.consume(take)
    assert sorted(take.numbers()) == list(range(10))


@pytest.mark.kernel
def test_consumer_that_starts_again():
    """A second reader of the same ring goes on where the first stopped."""
    state, ring = state_map(), Map.create("ringbuf", 0, 0, 1 << 16)
    program = Program.load("socket_filter", emitter(state, ring, False, True))
    first, second = Collector(), Collector()
    program.test_run(PACKET, repeat=50)
    with RingBuffer(ring) as reader:
        reader.consume(first, limit=20)
    program.test_run(PACKET, repeat=10)
    with RingBuffer(ring) as reader:
        reader.consume(second)
    assert first.numbers() == list(range(20))
    assert second.numbers() == list(range(20, 60))


@pytest.mark.kernel
def test_records_as_bytes():
    state, ring = state_map(), Map.create("ringbuf", 0, 0, 1 << 12)
    program = Program.load("socket_filter", emitter(state, ring, False, False, 8))
    with RingBuffer(ring) as reader:
        program.test_run(PACKET, repeat=3)
        assert reader.records() == [struct.pack("=Q", number) for number in range(3)]
