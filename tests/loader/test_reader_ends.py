"""Readers that are closed while they are used: in their handlers and loops, by another thread."""

import asyncio
import os
import struct
import threading

import pytest

from rawbpf.loader import Program
from rawbpf.loader.kernel import online_cpus
from tests.loader.code import emitter
from tests.loader.test_readers import setup
from tests.loader.test_rings import PACKET, make, state_map

KINDS = pytest.mark.parametrize("kind", ["ring", "perf"])


def on_each_cpu(program, repeat):
    """Runs it twice, on two CPUs where there are two, so that a perf buffer has records in two places."""
    before = os.sched_getaffinity(0)
    try:
        for cpu in (online_cpus() * 2)[:2]:
            os.sched_setaffinity(0, {cpu})
            program.test_run(PACKET, repeat=repeat)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.kernel
@KINDS
def test_closed_by_its_handler(kind):
    """The call that the handler belongs to ends with what it has handed over; later ones say that it is closed."""
    for use in ("consume", "poll"):
        _, reader, program = setup(kind)
        on_each_cpu(program, 3)
        seen = []

        def handler(memory, runs):
            seen.extend(struct.unpack_from("=Q", memory, offset + at * stride)[0]
                        for offset, count, stride, _ in runs for at in range(count))
            del memory
            reader.close()
        got = reader.consume(handler) if use == "consume" else reader.poll(handler, 10)
        assert got == len(seen) and seen == list(range(got)) and got in (3, 6)
        assert reader.closed
        for again in (lambda: reader.consume(handler), lambda: reader.poll(handler, 1), reader.records):
            with pytest.raises(ValueError, match="this (Ring|Perf)Buffer is closed"):
                again()
        reader.close()


@pytest.mark.kernel
@KINDS
def test_closed_in_its_loop(kind):
    """A loop whose body closes the reader ends, waiting or not; a new one says that it is closed."""
    number = lambda record: struct.unpack_from("=Q", record)[0]       # noqa: E731

    async def awaited(reader, seen, last):
        async for record in reader:
            seen.append(number(record))
            if len(seen) == last:
                reader.close()
    for last in (1, 3, 4, 6):
        for use in ("for", "async for"):
            _, reader, program = setup(kind)
            on_each_cpu(program, 3)
            seen = []
            if use == "for":
                for record in reader:
                    seen.append(number(record))
                    if len(seen) == last:
                        reader.close()
            else:
                asyncio.run(asyncio.wait_for(awaited(reader, seen, last), 10))
            assert seen == list(range(last))
            with pytest.raises(ValueError, match="is closed"):
                next(iter(reader))


@pytest.mark.kernel
@KINDS
def test_closed_while_another_thread_waits(kind):
    _, reader, _ = setup(kind)
    later = threading.Timer(0.05, reader.close)
    later.start()
    assert list(reader) == []
    later.join()

    async def main(reader):
        asyncio.get_running_loop().call_later(0.05, reader.close)
        return [record async for record in reader]
    _, reader, _ = setup(kind)
    assert asyncio.run(asyncio.wait_for(main(reader), 10)) == []


@pytest.mark.kernel
def test_losses_are_known_after_the_end():
    state, (output, reader) = state_map(), make("perf", 1 << 12)
    program = Program.load("socket_filter", emitter(state, output, True, False, 100))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {online_cpus()[0]})
    try:
        with reader:
            program.test_run(PACKET, repeat=100)
            got = len(reader.records())
            program.test_run(PACKET, repeat=1)
            got += len(reader.records())
        assert got + reader.lost == 101 and reader.lost > 0
        assert reader.lost_by_cpu()[online_cpus()[0]] == reader.lost
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.kernel
@KINDS
def test_closed_by_another_thread_at_the_worst_moment(kind):
    """Just when the reader is about to look at the ring: its memory is gone then. What asks says that it is closed, loops
    end."""
    async def awaited(reader):
        return [record async for record in reader]
    for use in ("records", "poll", "available", "fileno", "loop", "async", "each"):
        _, reader, program = setup(kind)
        on_each_cpu(program, 1)
        streams, order = [reader] if kind == "ring" else reader._buffers, []
        for each in streams:
            if each is not reader:
                def close(_close=each.close):
                    order.append(reader.closed)
                    _close()
                each.close = close
            def runs(*given, _runs=each._runs):
                reader.close()
                return _runs(*given)
            each._runs = runs
        if use in ("loop", "async", "each"):
            assert (list(reader) if use == "loop" else list(reader.each()) if use == "each" else
                    asyncio.run(awaited(reader))) == []
            continue
        if use == "records":
            assert reader.records() == []
        else:
            with pytest.raises(ValueError, match="this (Ring|Perf)Buffer is closed"):
                if use == "poll":
                    reader.poll(lambda *_: None, 1)
                else:
                    reader.close()
                    getattr(reader, use)()
        assert reader.closed and all(order)     # it says so before any of its memory goes
