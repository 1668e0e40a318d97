"""The reader: records to events, in order, by batches and one by one. No kernel: the buffer is a fake."""

import itertools
import random
import struct

import pytest

from rawbpf.tools.trace import results, types
from rawbpf.tools.trace.compiled import Batch, Event
from rawbpf.tools.trace.reader import Reader


class Buffer:
    """Hands out records as RingBuffer does: runs of one length, 8 bytes of header between them."""

    def __init__(self, records):
        self.records = records

    def consume(self, handler, limit=None):
        memory, runs = bytearray(), []
        for length, group in itertools.groupby(self.records, len):
            group = list(group)
            stride = (length + 8 + 7) & -8
            runs.append((len(memory) + 8, len(group), stride, length))
            for record in group:
                memory += bytes(8) + record + bytes(stride - 8 - length)
        memory += bytes(8)
        handler(memoryview(bytes(memory)), runs)
        count, self.records = len(self.records), []
        return count


class Session:
    """What the reader needs of one."""

    exiting, until, passed_over = False, None, 0
    host = types.UNKNOWN

    def __init__(self, renderer):
        self.renderer = renderer

    def emit(self, result):
        self.renderer.emit(result)

    def exit(self, code):
        self.exiting = True


class Out:
    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data


def events(batches):
    def printf(form):
        return lambda session, values: session.emit(results.Printf(form % tuple(values)))
    words = types.String(5)
    return [
        Event(0, "printf", 24, [(8, types.Integer(8)), (16, types.Integer(4, False))], printf("%d %u\n"),
              Batch("8xqI4x", "%d %u\n") if batches else None),
        Event(1, "printf", 13, [(8, words)], printf("<%s>\n"),
              Batch("8x5s", "<%s>\n", {0: lambda data: data.split(b"\0")[0]}) if batches else None),
        Event(2, "exit", 24, [], lambda session, values: session.exit(0)),
    ]


def record(number, value):
    if number == 0:
        return struct.pack("=QqI4x", 0, value, abs(value))
    if number == 1:
        return struct.pack("=Q5s", 1, b"%d" % value)
    return struct.pack("=Q16x", 2)


def expected(number, value):
    return "%d %d\n" % (value, abs(value)) if number == 0 else "<%d>\n" % value


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_records_become_text_in_order(form, batches, seed):
    random.seed(seed)
    pieces = []
    for _ in range(20):
        number = random.randrange(2)
        pieces += [(number, random.randrange(-999, 1000)) for _ in range(random.choice([1, 2, 3, 63, 64, 65, 300]))]
    out = Out()
    compiled = type("Compiled", (), {"events": events(batches)})
    reader = Reader(compiled, Buffer([record(*piece) for piece in pieces]))
    assert reader.consume(Session(results.RENDERERS[form](out, out))) == len(pieces)
    texts = [expected(*piece) for piece in pieces]
    if form == "text":
        assert out.data.decode() == "".join(texts)
    else:
        assert out.data.decode() == "".join(results.Printf(text).json() for text in texts)


def test_nothing_is_handled_after_exit():
    out = Out()
    compiled = type("Compiled", (), {"events": events(True)})
    pieces = [(0, 1), (0, 2), (2, 0), (0, 3), (1, 4)]
    reader = Reader(compiled, Buffer([record(*piece) for piece in pieces]))
    reader.consume(Session(results.TextRenderer(out, out)))
    assert out.data == b"1 1\n2 2\n"
