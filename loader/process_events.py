"""What processes do to their memory maps: records that the kernel writes beside the samples of perf events.

perf_event_open(2): PERF_RECORD_MMAP2 (a file mapped executable), COMM with MISC_COMM_EXEC (an exec), FORK
and EXIT, asked for with a dummy event on each CPU. A process that has ended has no /proc/PID/maps; who has read
these records still knows where its code was. Needs CAP_PERFMON.
"""

import mmap
import select
import struct

from . import kernel, syscalls
from .kobject import own
from .perf import SOFTWARE, TYPE_SOFTWARE, Attr, PerfEvent
from .reader import load_barrier

RECORD_LOST, RECORD_COMM, RECORD_EXIT, RECORD_FORK, RECORD_MMAP2 = 2, 3, 4, 7, 10
MISC_COMM_EXEC = 1 << 13
_MMAP, _COMM, _TASK, _WATERMARK, _MMAP2, _COMM_EXEC = 1 << 8, 1 << 9, 1 << 13, 1 << 14, 1 << 23, 1 << 24
_SAMPLE_ID_ALL, _SAMPLE_TIME = 1 << 18, 1 << 2  # each record ends with its time, a u64
_HEADER = struct.Struct("=IHH")                 # type, misc, size
_TASK_IDS = struct.Struct("=IIII")              # pid, ppid, tid, ptid
_MAPPED = struct.Struct("=IIQQQIIQQII")         # pid, tid, addr, len, pgoff, maj, min, ino, generation, prot, flags
_HEAD, _TAIL = 1024 // 8, 1032 // 8             # of struct perf_event_mmap_page, in u64s


class ProcessEvents:
    """Reads the records of all processes. `consume()` gives those since the last time as tuples:

    ("mmap", pid, line)    line: as in /proc/PID/maps, of an executable mapping
    ("exec", pid)          what was mapped before is gone
    ("fork", pid, parent)  a new process (not a thread), with its parent's mappings
    ("exit", pid)          its main thread has ended
    ("lost", 0)            some records found no room

    They are in the order of time. KernelError when the events cannot be opened.
    """

    def __init__(self, pages=32):
        self._buffers = []
        self._waiting = []      # (time, record): read, but not handed out yet
        attr = Attr("process event", type=TYPE_SOFTWARE, config=SOFTWARE["dummy"],
                    sample_type=_SAMPLE_TIME,
                    flags=_MMAP | _COMM | _TASK | _WATERMARK | _MMAP2 | _COMM_EXEC | _SAMPLE_ID_ALL,
                    wakeup_events=pages * syscalls.PAGE_SIZE // 2)
        try:
            for cpu in kernel.online_cpus():
                event = PerfEvent.open(attr, -1, cpu)
                self._buffers.append((event, mmap.mmap(event.fileno(), (pages + 1) * syscalls.PAGE_SIZE,
                                                       mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)))
        except BaseException:
            self.close()
            raise
        self._poll = select.epoll()
        own(self)
        for event, _ in self._buffers:
            self._poll.register(event.fd, select.EPOLLIN)

    def fileno(self):
        """Readable when a buffer is half full."""
        return self._poll.fileno()

    def consume(self):
        """The records that are there, as a list of tuples.

        The buffers of the CPUs are read one after the other, meanwhile a process may fork on one that was read
        and its child exec on one that was not. What a record follows from is in its buffer before it: so they
        are read a second time, and of that only what is older than the first reading's last record counts now.
        """
        found = self._waiting + self._read()
        if not found:
            return []
        last = max(time for time, _ in found)
        more = self._read()
        found += [each for each in more if each[0] <= last]
        self._waiting = [each for each in more if each[0] > last]
        found.sort(key=lambda record: record[0])
        return [record for _, record in found]

    def _read(self):
        """[(time, record)] of all buffers, which are empty then."""
        found = []
        for _, area in self._buffers:
            meta = memoryview(area)[:syscalls.PAGE_SIZE].cast("Q")
            head, tail = meta[_HEAD], meta[_TAIL]
            if head != tail:
                load_barrier()
                found += _records(_copy(area, tail, head))
                meta[_TAIL] = head
            meta.release()
        return found

    def close(self):
        buffers, self._buffers = self._buffers, []
        for event, area in buffers:
            area.close()
            event.close()
        if buffers and hasattr(self, "_poll"):
            self._poll.close()

    _forget = close         # in a forked child: the mappings hold the events, too

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _copy(area, tail, head):
    """The bytes between two positions of a ring."""
    page = syscalls.PAGE_SIZE
    size = len(area) - page
    start, length = tail % size, head - tail
    first = min(length, size - start)
    return area[page + start:page + start + first] + area[page:page + length - first]


def _records(data):
    """(time, record) of each record in these bytes."""
    at = 0
    while at + _HEADER.size <= len(data):
        kind, misc, size = _HEADER.unpack_from(data, at)
        if size < _HEADER.size + 8:
            return
        record = _record(kind, misc, data[at + _HEADER.size:at + size - 8])
        if record is not None:
            yield int.from_bytes(data[at + size - 8:at + size], "little"), record
        at += size


def _record(kind, misc, body):
    if kind == RECORD_MMAP2:
        pid, _, start, length, offset, major, minor, inode, _, prot, _ = _MAPPED.unpack_from(body)
        if prot & mmap.PROT_EXEC:
            name = body[_MAPPED.size:].split(b"\0", 1)[0].replace(b"\n", b"\\012")
            return "mmap", pid, b"%x-%x r-xp %08x %02x:%02x %d %s" % (
                start, start + length, offset, major, minor, inode, name)
    elif kind == RECORD_COMM:
        if misc & MISC_COMM_EXEC:
            return "exec", int.from_bytes(body[:4], "little")
    elif kind in (RECORD_FORK, RECORD_EXIT):
        pid, parent, tid, _ = _TASK_IDS.unpack_from(body)
        if pid == tid:
            return ("fork", pid, parent) if kind == RECORD_FORK else ("exit", pid)
    elif kind == RECORD_LOST:
        return "lost", 0
    return None
