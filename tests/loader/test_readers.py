"""Readers the convenient way (iteration, waiting, asyncio), the user ring buffer, and long runs."""

import asyncio
import itertools
import os
import struct
import subprocess
import sys
import threading
import time

import pytest

from rawbpf.loader import KernelError, Map, PerfBuffer, Program, RingBuffer
from rawbpf.loader.kernel import online_cpus
from rawbpf.loader.userring import UserRingBuffer
from tests.loader.code import discarder, emitter, size_of
from tests.loader.test_rings import PACKET, Collector, counters, make, state_map


def setup(kind, size=1 << 16, mixed=False):
    state, (output, reader) = state_map(), make(kind, size)
    return state, reader, Program.load("socket_filter", emitter(state, output, kind == "perf", mixed, 12))


@pytest.mark.kernel
@pytest.mark.parametrize("kind", ["ring", "perf"])
def test_wait_and_poll(kind):
    _, reader, program = setup(kind)
    take = Collector()
    with reader:
        start = time.monotonic()
        assert not reader.wait(0.05) and reader.poll(take, 0.05) == 0
        assert time.monotonic() - start >= 0.1
        later = threading.Timer(0.1, lambda: program.test_run(PACKET, repeat=3))
        later.start()
        got = 0
        while got < 3:
            count = reader.poll(take, 10)
            assert count
            got += count
        later.join()
    assert sorted(take.numbers()) == [0, 1, 2]


@pytest.mark.kernel
@pytest.mark.parametrize("kind", ["ring", "perf"])
def test_iteration(kind):
    _, reader, program = setup(kind)
    with reader:
        program.test_run(PACKET, repeat=4)
        later = threading.Timer(0.1, lambda: program.test_run(PACKET, repeat=3))
        later.start()
        got = list(itertools.islice(reader, 7))
        later.join()
    assert sorted(struct.unpack_from("=Q", record)[0] for record in got) == list(range(7))


@pytest.mark.kernel
@pytest.mark.parametrize("kind", ["ring", "perf"])
def test_asyncio(kind):
    _, reader, program = setup(kind)

    async def main():
        got = []

        async def produce():
            for _ in range(5):
                await asyncio.sleep(0.02)
                program.test_run(PACKET, repeat=2)

        async def read():
            async for record in reader:
                got.append(struct.unpack_from("=Q", record)[0])
                if len(got) == 10:
                    return
        await asyncio.wait_for(asyncio.gather(produce(), read()), 20)
        return got
    with reader:
        assert sorted(asyncio.run(main())) == list(range(10))


@pytest.mark.kernel
@pytest.mark.parametrize("kind", ["ring", "perf"])
def test_records_nobody_asked_for_stay(kind):
    """A loop that ends early, plain or asynchronous, takes what it was given and no more; a reader may be closed
    inside its loop, in the handler and while another thread waits."""
    _, reader, program = setup(kind)
    number = lambda record: struct.unpack_from("=Q", record)[0]       # noqa: E731
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {online_cpus()[0]})
    complaints = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async for record in reader:
            assert number(record) == 2
            break
        waiting = asyncio.ensure_future(reader.__aiter__().__anext__())
        await asyncio.sleep(0)
        assert number(await waiting) == 3
        with reader:
            async for record in reader:
                assert number(record) == 4
                break
        await asyncio.sleep(0.01)
    try:
        program.test_run(PACKET, repeat=10)
        walk = iter(reader)
        assert [number(next(walk)), number(next(walk))] == [0, 1]
        asyncio.run(main())
        assert not complaints
    finally:
        os.sched_setaffinity(0, before)
    for use in (reader.records, reader.available, reader.fileno, lambda: next(iter(reader))):
        with pytest.raises(ValueError, match="this (Ring|Perf)Buffer is closed"):
            use()


@pytest.mark.kernel
def test_what_was_not_read_is_there_for_the_next():
    state, ring = state_map(), Map.create("ringbuf", 0, 0, 1 << 12)
    program = Program.load("socket_filter", discarder(state, ring))
    program.test_run(PACKET, repeat=12)          # each fourth is given up
    with RingBuffer(ring) as reader:
        for _, record in zip(range(4), reader):
            last = record
        assert (struct.unpack_from("=Q", last)[0], reader.discarded) == (4, 1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                reader.consume(lambda memory, runs: 1 // 0)
        assert reader.discarded == 1
        assert [struct.unpack_from("=Q", record)[0] for record in reader.records()] == [5, 6, 8, 9, 10]
        assert (reader.discarded, reader.available()) == (3, 0)
        program.test_run(PACKET, repeat=2)
        assert reader.consume(lambda memory, runs: reader.close()) == 2


@pytest.mark.kernel
def test_a_loss_is_counted_once():
    state, (output, reader) = state_map(), make("perf", 1 << 12)
    program = Program.load("socket_filter", emitter(state, output, True, False, 100))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {online_cpus()[0]})
    try:
        with reader:
            program.test_run(PACKET, repeat=100)
            got = len(reader.records())
            program.test_run(PACKET, repeat=1)
            for _ in range(3):
                with pytest.raises(ZeroDivisionError):
                    reader.consume(lambda memory, runs: 1 // 0)
            got += len(list(zip(range(1), reader)))
            assert 0 < got < 101 and got + reader.lost == 101
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.root
@pytest.mark.parametrize("reader", [RingBuffer, PerfBuffer, UserRingBuffer])
def test_readers_of_other_maps(reader):
    with Map.create("hash", 4, 8, 1) as map, pytest.raises(ValueError, match="Buffer is of a .* map, not of a hash"):
        reader(map)


@pytest.mark.root
def test_descriptors_are_not_copied():
    import copy
    import pickle
    with Map.create("array", 4, 8, 1) as map:
        for make_another in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="can be neither copied nor pickled"):
                make_another(map)


# -- the user ring buffer --

def adder(ring, sums):
    """A program that drains the user ring buffer: for each record it adds the u64 at its start to
    element 0 of `sums` and 1 to element 1."""
    from rawbpf.asm import compile_function, ir, slot_numbers
    from rawbpf.loader.btf import BtfObject, function_types
    each = ir.Function("each", params=2)
    word = each.slot(8)
    each.store(word, 0, 0, 8)
    each.call("bpf_dynptr_read", each.address(word), 8, each.params[0], 0, 0)
    each.atomic("+", each.map_value("sums", 0), 0, each.load(word, 0, 8))
    each.atomic("+", each.map_value("sums", 8), 0, 1)
    each.ret(0)
    main = ir.Function("main")
    main.ret(main.call("bpf_user_ringbuf_drain", main.map("ring"), main.func(each), 0, 0))
    code = compile_function(main)
    slots = slot_numbers(code.instructions)
    data, info = function_types(sorted(((name, slots[index]) for name, index in code.functions.items()),
                                       key=lambda item: item[1]))
    return Program.load("raw_tracepoint", code.instructions, maps={"ring": ring, "sums": sums},
                        btf=BtfObject.load(data), func_info=info)


@pytest.mark.kernel(since="6.1")
@pytest.mark.parametrize("size", [8, 9, 100, 1000])
def test_user_ring_buffer(size):
    with Map.create("user_ringbuf", 0, 0, 4096) as ring, Map.create("array", 4, 16, 1) as sums, \
            UserRingBuffer(ring) as writer:
        program = adder(ring, sums)
        total = written = 0
        for number in range(300):
            record = struct.pack("=Q", number) + bytes(size - 8)
            while not writer.write(record):
                program.test_run(ctx=bytes(16))       # full: let the program drain it
            total += number
            written += 1
        program.test_run(ctx=bytes(16))
        assert struct.unpack("=QQ", sums.lookup(bytes(4))) == (total, written)
        assert writer.free() == 4096
        with pytest.raises(ValueError, match="does not fit"):
            writer.write(bytes(4096))


# -- long runs --

_PRODUCER = """
import os, sys
from rawbpf.loader import Program
cpu, program, repeat, rounds = int(sys.argv[1]), Program.from_fd(os.dup(0)), int(sys.argv[2]), int(sys.argv[3])
os.sched_setaffinity(0, {cpu})
print("ready", flush=True)
for _ in range(rounds):
    program.test_run(bytes(64), repeat=repeat)
"""


def test_lengths_are_mixed():
    """size_of() makes what the tests want: many lengths, of which few follow each other."""
    lengths = [size_of(number) for number in range(2000)]
    assert len(set(lengths)) > 400 and min(lengths) >= 8 and max(lengths) <= 1031


@pytest.mark.kernel
def test_several_cpus_at_once():
    """Producers on all CPUs, one state each, one ring: what each wrote arrives in its order, or it
    counted it as failed."""
    cpus = online_cpus()
    ring = Map.create("ringbuf", 0, 0, 1 << 19)
    parts = []
    for cpu in cpus:
        state = state_map()
        # the record's bytes 8.. are the state's own: write the CPU there
        value = bytearray(2048)
        struct.pack_into("=Q", value, 72, cpu)
        state.update(bytes(4), bytes(value))
        parts.append((cpu, state, Program.load("socket_filter", emitter(state, ring, False, True))))
    seen = {cpu: [] for cpu in cpus}
    whole = True

    def take(memory, runs):
        nonlocal whole
        for offset, count, stride, length in runs:
            for at in range(offset, offset + count * stride, stride):
                number, = struct.unpack_from("=Q", memory, at)
                # records of 8 bytes have no room for the CPU; they are those that size_of() makes so
                cpu = struct.unpack_from("=Q", memory, at + 8)[0] if length >= 16 else None
                if cpu is None:
                    continue
                whole = whole and length == size_of(number)
                seen[cpu].append(number)
    with RingBuffer(ring) as reader:
        producers = [subprocess.Popen([sys.executable, "-c", _PRODUCER, str(cpu), "1000", "20"],
                                      stdin=program.fd, stdout=subprocess.DEVNULL)
                     for cpu, _, program in parts]
        while any(producer.poll() is None for producer in producers):
            reader.poll(take, 0.05)
        reader.consume(take)
        assert reader.available() == 0
    assert all(producer.wait() == 0 for producer in producers)
    assert whole
    for cpu, state, _ in parts:
        attempts, failures, written = counters(state)
        assert attempts == 20000 and written == attempts - failures
        expected = [number for number in range(written) if size_of(number) >= 16]
        assert seen[cpu] == expected
        assert len(expected) > 100


@pytest.mark.kernel
def test_perf_buffer_tells_every_loss():
    """On one CPU: arrived + told as lost = attempts, once a record has followed the last loss."""
    state, (output, reader) = state_map(), make("perf", 1 << 13)
    program = Program.load("socket_filter", emitter(state, output, True, False, 100))
    take = Collector()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {online_cpus()[0]})
    try:
        with reader:
            for _ in range(30):
                program.test_run(PACKET, repeat=200)
                reader.consume(take)
            program.test_run(PACKET, repeat=1)
            reader.consume(take)
            attempts, failures, written = counters(state)
            assert attempts == 6001 and failures > 1000
            assert len(take.records) + reader.lost == attempts
            assert reader.lost_by_cpu()[online_cpus()[0]] == reader.lost == failures
    finally:
        os.sched_setaffinity(0, before)
    assert take.numbers() == list(range(written))


_READER = """
import os, struct, sys, time
from rawbpf.loader import Map, RingBuffer
ring = RingBuffer(Map.from_fd(os.dup(0)))
def take(memory, runs):
    numbers = []
    for offset, count, stride, length in runs:
        numbers += [struct.unpack_from("=Q", memory, at)[0] for at in range(offset, offset + count * stride, stride)]
    os.write(1, struct.pack("=%dQ" % len(numbers), *numbers))
print("ready", file=sys.stderr, flush=True)
while True:
    ring.poll(take, 10)
"""


@pytest.mark.kernel
def test_consumer_killed_and_started_again():
    """A batch whose reader was killed before it gave the room back comes again: nothing is missing,
    and what comes twice is at most one batch."""
    state, ring = state_map(), Map.create("ringbuf", 0, 0, 1 << 18)
    program = Program.load("socket_filter", emitter(state, ring, False, False, 24))
    got = []
    for round in range(3):
        reader = subprocess.Popen([sys.executable, "-c", _READER], stdin=ring.fd, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE)
        reader.stderr.readline()
        program.test_run(PACKET, repeat=1000)
        data = reader.stdout.read1(1 << 16)
        reader.kill()
        data += reader.stdout.read()
        reader.communicate()
        got.append([item[0] for item in struct.iter_unpack("=Q", data)])
        program.test_run(PACKET, repeat=10)         # while nobody reads
    take = Collector()
    with RingBuffer(ring) as last:
        last.consume(take)
    got.append(take.numbers())
    attempts, failures, written = counters(state)
    assert failures == 0 and written == 3030
    assert all(part == sorted(set(part)) for part in got)
    assert sorted(set(sum(got, []))) == list(range(3030))


@pytest.mark.root
@pytest.mark.slow
def test_many_loads_leave_nothing():
    """Programs, maps, whole objects, refusals and forked children come and go (RAWBPF_CYCLES, 10,000 in all before a
    release): neither descriptors nor memory grow."""
    import gc
    import resource
    from rawbpf.asm import assemble, write_object
    from rawbpf.loader import KernelError, Object, VerifierError
    from rawbpf.loader.uapi import MAP_TYPES
    from tests.loader.code import EXIT, RETURN_0
    from tests.loader.test_object_kernel import SOURCE
    data = write_object(assemble(SOURCE), MAP_TYPES)

    def cycle(count):
        for number in range(count):
            with Map.create("array", 4, 8, 16) as map, Program.load("socket_filter", RETURN_0):
                map.update(bytes(4), bytes(8))
                map.lookup(bytes(4))
                if number % 10 == 0:
                    with pytest.raises(VerifierError):
                        Program.load("socket_filter", EXIT)
                if number % 20 == 1:
                    with Object.parse(data) as obj:
                        obj.load()
                        with pytest.raises(KernelError):
                            obj.maps[".rodata"].map.update(bytes(4), bytes(8))
                if number % 100 == 2 and not os.fork():
                    links = [os.readlink("/proc/self/fd/%s" % fd) for fd in os.listdir("/proc/self/fd")
                             if os.path.exists("/proc/self/fd/%s" % fd)]
                    os._exit(any("bpf" in link for link in links))
                if number % 100 == 2:
                    assert os.wait()[1] == 0
    cycle(200)
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cycle(int(os.environ.get("RAWBPF_CYCLES", "800")))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == files
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 1500      # KiB
