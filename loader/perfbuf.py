"""Reader of perf buffers: what bpf_perf_event_output() writes, one buffer a CPU.

perf_event_open(2), "MMAP layout": a page of metadata (struct perf_event_mmap_page: data_head at byte
1024, data_tail at 1032), then a power of two of data pages. Records of interest: PERF_RECORD_SAMPLE
(9) with PERF_SAMPLE_RAW: header, u32 size, data; PERF_RECORD_LOST (2): header, u64 id, u64 lost.

The handler is that of RingBuffer. The kernel pads a sample so that 4 + size is a multiple of 8, and
`size` includes the padding: a record of 12 bytes has length 12, one of 13 has 20.
"""

import mmap
import select
import struct

from . import kernel, syscalls
from .errors import KernelError, refused
from .kobject import own
from .perf import PerfEvent, bpf_output
from .reader import Reader, Stream, load_barrier
from .ringbuf import run_length

RECORD_LOST, RECORD_SAMPLE = 2, 9
_DATA = 12                      # bytes before the data of a sample
_HEAD, _TAIL = 1024 // 8, 1032 // 8


class _CpuBuffer(Stream):
    """The buffer of one CPU."""

    _LEAD = _DATA

    def __init__(self, event, cpu, pages):
        self.event, self.cpu = event, cpu
        page = syscalls.PAGE_SIZE
        self.size = pages * page
        self._map = mmap.mmap(event.fileno(), page + self.size, mmap.MAP_SHARED,
                              mmap.PROT_READ | mmap.PROT_WRITE)
        whole = memoryview(self._map)
        meta = whole[:page].cast("Q")
        self._head, self._tail = meta[_HEAD:_HEAD + 1], meta[_TAIL:_TAIL + 1]
        self._memory = whole[page:].toreadonly()
        self._words = self._memory.cast("Q")
        self.lost = 0

    @property
    def closed(self):
        return self.event.fd < 0

    def _count(self, passed):
        self.lost += passed

    def _between(self, position, end):
        lost = 0
        while position < end:
            at = position % self.size >> 3
            if self._words[at] & 0xffffffff == RECORD_LOST:
                lost += self._words[at + 2]
            position += self._words[at] >> 48
        return lost

    def _runs(self, position, end, room):
        """See Stream: either the records up to the end of the ring or one record that wraps around it, copied
        together."""
        words, size = self._words, self.size
        base = position & -size
        # A record that reaches over the end, or so near it that a whole stride from its data on
        # would, is copied: `last` is where the others must end.
        stop, last = min(end, base + size), base + size - _DATA
        batch = min(stop, position + max(size >> 2, 1 << 16))
        runs, total, lost = [], 0, 0
        while position < batch:
            header = words[position - base >> 3]
            kind, stride = header & 0xffffffff, header >> 48
            if position + stride > last:
                if runs or lost:
                    break
                return self._copied(position, stride, kind)
            if kind == RECORD_SAMPLE:
                count = 1
                if position + 2 * stride <= min(stop, last) and \
                        words[position - base + stride >> 3] == header:
                    count = (min(stop, last) - position) // stride
                    if room is not None and count > room - total:
                        count = room - total
                    if count > 1:
                        count = run_length(words, position - base >> 3, stride >> 3, header, count)
                runs.append((position - base + _DATA, count, stride, stride - _DATA))
                total += count
                position += count * stride
                if total == room:
                    break
            else:
                if kind == RECORD_LOST:
                    lost += words[(position - base >> 3) + 2]
                position += stride
        return self._memory, runs, total, lost, position

    def _copied(self, position, stride, kind):
        at = position % self.size
        first = min(stride, self.size - at)
        copy = (bytes(self._memory[at:at + first]) + bytes(self._memory[:stride - first]) +
                bytes(_DATA))
        lost = struct.unpack_from("=Q", copy, 16)[0] if kind == RECORD_LOST else 0
        if kind != RECORD_SAMPLE:
            return self._memory, [], 0, lost, position + stride
        return memoryview(copy), [(_DATA, 1, stride, stride - _DATA)], 1, 0, position + stride

    def headed(self):
        """(type, body) of each record that is there now, copied: what follows the 8 bytes of its header."""
        end, position = self._head[0], self._tail[0]
        load_barrier()
        while position < end:
            at = position % self.size
            header = self._words[at >> 3]
            stride = header >> 48
            first = min(stride, self.size - at)
            copy = bytes(self._memory[at:at + first]) + bytes(self._memory[:stride - first])
            position = self._tail[0] = position + stride
            yield header & 0xffffffff, copy[8:]
            if self.closed:
                return

    def available(self):
        return self._head[0] - self._tail[0]

    def close(self):
        self.event.close()
        try:
            for view in (self._words, self._memory, self._head, self._tail):
                view.release()
            self._map.close()
        except BufferError:
            return                # a handler kept a view: the mapping goes with it


class PerfBuffer(Reader):
    """The consumer of a perf_event_array map: opens a buffer of `pages` pages (a power of two) on
    every online CPU and puts them into the map.

    consume() is RingBuffer's. Order is kept within a CPU. `lost` counts the records that the kernel
    had no room for, as far as it has said so: it does with the next record that fits. wakeup_events:
    records after which fileno() becomes readable; wakeup_watermark: bytes instead.
    """

    KINDS = ("perf_event_array",)

    def __init__(self, map, pages=64, wakeup_events=1, wakeup_watermark=0, places=None, time=False):
        """places: {CPU: index in the map} where not all CPUs have their own; time: for events()."""
        if pages < 1 or pages & pages - 1:
            raise ValueError("the size of a perf buffer is a power of two of pages, not %d" % pages)
        self._buffers, self._told = [], {}
        # The kernel empties the map when no process has it open any more.
        self._own(map)
        try:
            self._poll = select.epoll()       # close-on-exec
        except OSError as error:
            self._object.close()
            raise refused("PerfBuffer of map %s" % map.name, error, "perf") from None
        own(self)
        try:
            if places is None:
                places = {cpu: cpu for cpu in kernel.online_cpus() if cpu < map.max_entries}
            for cpu, index in places.items():
                self._add(map, cpu, index, pages, bpf_output(wakeup_events, wakeup_watermark, time))
        except BaseException:
            self.close()
            raise

    def _add(self, map, cpu, index, pages, attr):
        event = PerfEvent.open(attr, -1, cpu)
        try:
            buffer = _CpuBuffer(event, cpu, pages)
        except OSError as error:
            event.close()
            raise _mapping_refused(error, pages) from None
        self._buffers.append(buffer)
        map.update(index, event)
        event.enable()
        self._poll.register(event.fd, select.EPOLLIN)

    def fileno(self):
        try:
            return self._poll.fileno()
        except ValueError:
            self._usable()
            raise

    @property
    def lost(self):
        return sum(self.lost_by_cpu().values())

    def lost_by_cpu(self):
        """{CPU: records}; it stays when this is closed."""
        return {buffer.cpu: buffer.lost for buffer in self._buffers} or dict(self._told)

    def available(self):
        """Bytes written and not yet consumed on all CPUs, headers included."""
        self._usable()
        try:
            return sum(buffer.available() for buffer in self._buffers)
        except ValueError:          # released
            self._usable()
            raise

    def consume(self, handler, limit=None):
        """Hands over what is in the buffers at this moment, CPU by CPU; how many records."""
        self._usable()
        total = 0
        for buffer in self._buffers:
            if limit is not None and total >= limit or buffer.closed:       # by the handler
                break
            total += buffer.consume(handler, None if limit is None else limit - total)
        return total

    def each(self):
        """Each record that is there now as bytes; see Stream."""
        for buffer in self._buffers:
            if not buffer.closed:       # between two records
                yield from buffer.each()

    def events(self):
        """Of a buffer with time=True: (CPU, nanoseconds of the kernel's clock, data) of each record that is
        there now, and (CPU, None, number) of lost ones."""
        for buffer in self._buffers:
            for kind, body in buffer.headed() if not buffer.closed else ():
                if kind == RECORD_SAMPLE:
                    time, size = struct.unpack_from("=QI", body)
                    yield buffer.cpu, time, body[12:12 + size]
                elif kind == RECORD_LOST:
                    count = struct.unpack_from("=Q", body, 8)[0]
                    buffer.lost += count
                    yield buffer.cpu, None, count

    def close(self):
        self._told = self.lost_by_cpu()
        self._object.close()        # first: who finds memory released in another thread finds it closed
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            buffer.close()
        self._poll.close()


def _mapping_refused(error, pages):
    import errno
    call = "mapping of a perf buffer of %d pages" % pages
    if error.errno == errno.EPERM:
        limit = kernel.sysctl("kernel.perf_event_mlock_kb")
        return KernelError(call, error.errno, "larger than kernel.perf_event_mlock_kb (%s) and the "
                           "locked-memory limit allow: give CAP_IPC_LOCK, raise `ulimit -l`, or use "
                           "smaller buffers" % limit)
    return refused(call, error, "perf")
