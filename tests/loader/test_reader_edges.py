"""Readers where it is narrow: records around the end of the buffer at every place, and wake-ups that programs and
readers choose."""

import select
import struct
import threading
import time

import pytest

from rawbpf.loader import Map, PerfBuffer, Program, RingBuffer
from tests.loader.code import (RETURN_0, RING_OUTPUT, alu, call, emitter, map_fd, mov, mov_reg, size_of, store)
from tests.loader.test_rings import PACKET, Collector, counters, make, one_cpu, state_map      # noqa: F401 (a fixture)

SIZE = 4096


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ring", "perf"])
def test_around_the_end_at_every_offset(kind, one_cpu):       # noqa: F811
    """Records of mixed lengths until one has begun at each of the 512 places of a buffer of one page, and one has
    reached over its end by each number of bytes up to 800; all of them are whole and in order."""
    state, (output, reader) = state_map(), make(kind, SIZE)
    program = Program.load("socket_filter", emitter(state, output, kind == "perf", True))
    starts, over, at, number = set(), set(), 0, 0
    # lengths are those of the emitter; around them stand 8 bytes and, in a perf buffer, a size of 4
    whole = [(size_of(each) + 15 & -8) if kind == "ring" else 8 + (size_of(each) + 4 + 7 & -8) for each in range(200000)]
    everywhere = set(range(8, 800, 8))
    take = Collector()
    with reader:
        while len(starts) < SIZE // 8 or not everywhere <= over:
            assert number < 150000, (len(starts), len(over), len(everywhere))
            part = 1
            while sum(whole[number:number + part + 1]) < SIZE:
                part += 1
            program.test_run(PACKET, repeat=part)
            assert reader.consume(take) == part
            for each in range(number, number + part):
                starts.add(at)
                if at + whole[each] > SIZE:
                    over.add(at + whole[each] - SIZE)
                at = (at + whole[each]) % SIZE
            number += part
    assert counters(state) == (number, 0, number)
    assert take.numbers() == list(range(number))
    assert [len(record) for record in take.records] == [
        size_of(each) if kind == "ring" else whole[each] - 12 for each in range(number)]


def waker(ring, flags):
    """Writes 8 bytes into the ring with these flags."""
    return (mov(1, 7) + store(10, -8, 1) + map_fd(1, ring) + mov_reg(2, 10) + alu(0, 2, -8) + mov(3, 8) + mov(4, flags) +
            call(RING_OUTPUT) + RETURN_0)


@pytest.mark.slow
@pytest.mark.kernel(since="5.8")
def test_records_that_wake_nobody():
    """BPF_RB_NO_WAKEUP leaves a sleeping reader asleep; the convenient ones look again after a tenth of a second.
    BPF_RB_FORCE_WAKEUP wakes at once, though the reader has not read what came before."""
    no_wakeup, force_wakeup = 1, 2
    ring = Map.create("ringbuf", 0, 0, 1 << 16)
    quiet, loud = (Program.load("socket_filter", waker(ring, flags)) for flags in (no_wakeup, force_wakeup))
    with RingBuffer(ring) as reader:
        for program, sleeps in ((quiet, True), (loud, False)):
            poll = select.epoll()
            poll.register(reader.fileno(), select.EPOLLIN | select.EPOLLET)     # told by wake-ups alone
            assert poll.poll(0) == ([] if sleeps else [(reader.fileno(), select.EPOLLIN)])
            later = threading.Timer(0.05, program.test_run, [PACKET])
            later.start()
            start = time.monotonic()
            woken = poll.poll(0.3 if sleeps else 20)
            later.join()
            poll.close()
            assert bool(woken) == (not sleeps) and time.monotonic() - start < 15
        assert len(reader.records()) == 2
        later = threading.Timer(0.05, quiet.test_run, [PACKET])
        later.start()
        assert reader.wait(20)
        later.join()
        assert [struct.unpack("=Q", record) for record in reader.records()] == [(7,)]


@pytest.mark.kernel
@pytest.mark.parametrize("options, runs", [({"wakeup_events": 5}, 5), ({"wakeup_events": 1}, 1),
                                           ({"wakeup_events": 0, "wakeup_watermark": 239}, 10)])
def test_wake_ups_of_a_perf_buffer(options, runs, one_cpu):       # noqa: F811
    """After so many records, or when there are more than so many bytes: of 24 each, here."""
    state, array = state_map(), Map.create("perf_event_array", 4, 4, 0)
    program = Program.load("socket_filter", emitter(state, array, True, False, 8))
    with PerfBuffer(array, 1, **options) as reader:
        for _ in range(2):
            for number in range(1, runs + 1):
                assert not select.select([reader], [], [], 0)[0], number
                program.test_run(PACKET)
            assert select.select([reader], [], [], 10)[0] == [reader]
            assert len(reader.records()) == runs


@pytest.mark.kernel
def test_ready_for_epoll_and_select_alike():
    state, (output, reader) = state_map(), make("ring", 1 << 12)
    program = Program.load("socket_filter", emitter(state, output, False, False, 8))
    with reader, select.epoll() as poll:
        poll.register(reader, select.EPOLLIN)
        assert poll.poll(0) == [] and not select.select([reader], [], [], 0)[0]
        program.test_run(PACKET)
        assert poll.poll(10) and select.select([reader], [], [], 10)[0]
        assert len(reader.records()) == 1
        assert poll.poll(0) == []
