"""Reader of BPF ring buffers (BPF_MAP_TYPE_RINGBUF, 5.8+).

Documentation/bpf/ringbuf.rst. The map's file maps as: one page whose first u64 is the consumer
position (writable), one page whose first u64 is the producer position, then the data twice in a row,
so that no record is ever broken in two. A record is a u32 length (bit 31: still being written, bit
30: discarded), a u32 for the kernel, and the data, padded to 8 bytes.

What makes it fast in Python: records are not visited one by one. A run of records of one length is
recognised by one comparison of every stride-th word of the ring with the expected header, and handed
out as a whole, to be taken apart by struct.iter_unpack().
"""

import errno
import mmap
import sys

from . import syscalls
from .errors import KernelError, refused
from .kobject import own
from .reader import Reader, Stream
from .uapi import F_RB_OVERWRITE

BUSY, DISCARD = 1 << 31, 1 << 30
_LENGTH = DISCARD - 1
_HEADER = 8
_FIRST_GUESS, _LAST_GUESS = 16, 8192    # records compared at once, growing


def run_length(words, first, stride, header, limit):
    """How many of `limit` consecutive records, each `stride` words after the one before, have this
    header word; the first, at words[first], is known to. words: a memoryview of "I" or "Q"."""
    count, guess = 1, _FIRST_GUESS
    size = words.itemsize
    pattern = header.to_bytes(size, sys.byteorder)
    while count < limit:
        guess = min(guess, limit - count)
        start = first + count * stride
        if words[start] != header:
            return count
        seen = words[start:start + (guess - 1) * stride + 1:stride].tobytes()
        expected = pattern * guess
        if seen != expected:
            # index of the first word that differs: the lowest bit that does
            difference = int.from_bytes(seen, "little") ^ int.from_bytes(expected, "little")
            return count + ((difference & -difference).bit_length() - 1) // (8 * size)
        count += guess
        guess = min(guess * 4, _LAST_GUESS)
    return count


class RingBuffer(Stream, Reader):
    """The consumer of one ring buffer map. There can be only one at a time.

    `consume(handler)` calls handler(memory, runs) for what is there now. `memory` is a memoryview of
    bytes, `runs` a list of (offset, count, stride, length): `count` records of `length` bytes, the
    i-th at memory[offset + i * stride:][:length]. With a struct format padded to `stride` bytes

        for fields in layout.iter_unpack(memory[offset:offset + count * stride]): ...

    takes a whole run apart. The memory is the ring itself: what a handler keeps it must copy. Records
    come in the order of their reservation. Their room is given back to the kernel when the handler
    has returned; if it raises, the batch stays and comes again.

    `fileno()` is readable when there are records (for select, epoll); `for record in ring` and
    `async for record in ring` give bytes, see Reader.
    """

    KINDS, _LEAD = ("ringbuf",), _HEADER

    def __init__(self, map):
        self._own(map)
        self.size = size = map.max_entries
        if map.flags & F_RB_OVERWRITE:
            raise KernelError("mapping of ring buffer %s" % map.name, errno.EOPNOTSUPP, "not supported: one that is "
                              "overwritten when it is full (BPF_F_RB_OVERWRITE), which has no reader's position")
        page = syscalls.PAGE_SIZE
        fd = self._object.fd
        try:
            self._consumer_map = mmap.mmap(fd, page, mmap.MAP_SHARED,
                                           mmap.PROT_READ | mmap.PROT_WRITE)
            self._data_map = mmap.mmap(fd, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ,
                                       offset=page)
        except OSError as error:
            self._object.close()
            raise refused("mapping of ring buffer %s" % map.name, error) from None
        self._tail = memoryview(self._consumer_map).cast("Q")
        whole = memoryview(self._data_map)
        self._head = whole[:page].cast("Q")
        self._memory = whole[page:]
        self._words = self._memory.cast("I")
        # Room is given back after this many bytes, so that the kernel can write while we read.
        self._batch = max(size >> 3, 1 << 16)
        own(self)
        self.discarded = 0        # records that the program gave up, passed over so far

    def fileno(self):
        fd = self._object.fd
        if fd < 0:
            self._usable()
        return fd

    def available(self):
        """Bytes written and not yet consumed, headers included."""
        try:
            return self._head[0] - self._tail[0]
        except ValueError:          # released
            self._usable()
            raise

    def consume(self, handler, limit=None):
        """Hands over what is in the ring at this moment, at most about `limit` records; how many."""
        self._usable()
        return Stream.consume(self, handler, limit)

    def _count(self, passed):
        self.discarded += passed

    def _between(self, position, end):
        count = 0
        while position < end:
            position += (self._words[position % self.size >> 2] & _LENGTH) + _HEADER + 7 & -8
            count += 1
        return count

    def _runs(self, position, end, room):
        """Runs of complete records from position on: see Stream."""
        words, mask = self._words, self.size - 1
        runs, total, discarded = [], 0, 0
        end = min(end, position + self._batch)
        while position < end:
            at = position & mask
            header = words[at >> 2]
            stride = (header & _LENGTH) + _HEADER + 7 & -8
            if header >= DISCARD:
                if header & BUSY:
                    break
                position += stride
                discarded += 1
                continue
            count = 1
            if position + stride < end and words[at + stride >> 2] == header:
                count = (end - position + stride - 1) // stride   # the last may begin before `end`
                if room is not None and count > room - total:
                    count = room - total
                if count > 1:
                    count = run_length(words, at >> 2, stride >> 2, header, count)
            runs.append((at + _HEADER, count, stride, header))
            total += count
            position += count * stride
            if total == room:
                break
        return self._memory, runs, total, discarded, position

    def close(self):
        self._object.close()
        try:
            for view in (self._words, self._memory, self._head, self._tail):
                view.release()
            self._data_map.close()
            self._consumer_map.close()
        except BufferError:
            return                # a handler kept a view: the mapping goes with it
