"""From records in the kernel's buffer to actions: the hot path of a trace.

A record begins with a u64, the number of its event. The buffer hands out runs of records of one
length; a run whose records are all of one event, and whose event has a `batch`, becomes text without a
Python object per record: one struct unpacks the run, one string format makes all of its lines.
"""

import itertools
import struct
import time

RECORDS_AT_ONCE = 1 << 16    # then losses, signals and the process are looked after
_GROUP = 64                  # records that one string format takes


def open_reader(compiled, maps):
    """The Reader of what `compiled`'s programs write into `maps`; None when they write nothing."""
    map = maps.get(compiled.output_map)
    if map is None:
        return None
    if compiled.output == "ringbuf":
        from rawbpf.loader.ringbuf import RingBuffer
        return Reader(compiled, RingBuffer(map))
    return Reader(compiled, _open_perf(map, getattr(compiled.config, "perf_rb_pages", 0)))


def _open_perf(map, pages):
    """A perf buffer of `pages` pages a CPU (0: a mebibyte, or what the limits allow)."""
    from rawbpf.loader.errors import KernelError
    from rawbpf.loader.perfbuf import PerfBuffer
    import mmap
    if pages:
        return PerfBuffer(map, pages, 0, pages * mmap.PAGESIZE >> 2)
    size = 1 << 20
    while True:
        try:
            return PerfBuffer(map, size // mmap.PAGESIZE, 0, size >> 2)
        except KernelError:
            if size <= 1 << 16:
                raise
            size >>= 2


class _Texts(dict):
    """Texts of strings' bytes, made once for each: few values make up most of a column."""

    def __init__(self, make):
        self.make = make

    def __missing__(self, data):
        text = self.make(data)
        if len(self) < 10000:
            self[data] = text
        return text


class _Batch:
    """An event's way from records to text for one stride and one renderer."""

    __slots__ = ("unpack", "template", "group", "texts")

    def __init__(self, batch, stride, template):
        layout = "=" + batch.layout
        self.unpack = struct.Struct("%s%dx" % (layout, stride - struct.calcsize(layout))).iter_unpack
        self.template = template = template.encode("utf-8", "surrogateescape")
        self.group = template * _GROUP
        self.texts = {index: _Texts(make).__getitem__ for index, make in batch.texts.items()}

    def text(self, data, count):
        """The text, as bytes, of the `count` records in `data`."""
        rows = self.unpack(data)
        if self.texts:
            columns = list(zip(*rows))
            for index, text in self.texts.items():
                columns[index] = map(text, columns[index])
            rows = zip(*columns)
        whole, rest = divmod(count, _GROUP)
        return (self.group * whole + self.template * rest) % tuple(itertools.chain.from_iterable(rows))


class Reader:
    """Reads one buffer: `consume(session)` handles what is there."""

    def __init__(self, compiled, buffer):
        self.events = compiled.events
        self.buffer = buffer
        self._batches = {}       # (event number, stride) -> _Batch or None
        self._session = None

    def fileno(self):
        return self.buffer.fileno()

    def consume(self, session):
        """Handle the records that are there now (a bounded number); returns how many there were."""
        self._session = session
        return self.buffer.consume(self._handle, RECORDS_AT_ONCE)

    def close(self):
        self._session = None
        self.buffer.close()

    def _handle(self, memory, runs):
        for offset, count, stride, length in runs:
            data = memory[offset:offset + count * stride]
            if count == 1:
                self._run(int.from_bytes(data[:8], "little"), data, 1, stride, length)
                continue
            numbers = data.cast("Q")[::stride >> 3].tolist()
            first = numbers[0]
            if numbers.count(first) == count:
                self._run(first, data, count, stride, length)
                continue
            at = 0
            for number, group in itertools.groupby(numbers):
                size = len(list(group))
                self._run(number, data[at * stride:(at + size) * stride], size, stride, length)
                at += size

    def _run(self, number, data, count, stride, length):
        """`count` records of one event."""
        session = self._session
        if session.exiting:
            session.passed_over += count
            return
        event = self.events[number]
        try:
            batch = self._batches[number, stride]
        except KeyError:
            batch = self._batches[number, stride] = self._batch(event, stride)
        if batch is not None:
            session.renderer.emit_batch(batch.text(data, count), count)
            return
        host = session.host
        for at in range(0, count * stride, stride):
            event.handle(session, event.decode(data[at:at + length], host))
            if session.until is not None and time.monotonic() > session.until:
                session.exiting = session.abandoned = True
            if session.exiting:
                session.passed_over += count - at // stride - 1
                return

    def _batch(self, event, stride):
        if event.batch is None:
            return None
        template = self._session.renderer.batch(event.batch)
        return None if template is None else _Batch(event.batch, stride, template)
