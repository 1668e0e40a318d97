"""User ring buffers (BPF_MAP_TYPE_USER_RINGBUF, 6.1+): user space writes, a program drains.

The same mapping as a ring buffer with the roles exchanged: the consumer page is read-only, the
producer page and the data (mapped twice) are ours. The program reads with bpf_user_ringbuf_drain().
"""

import mmap

from . import kernel, syscalls
from .errors import refused
from .kobject import own
from .reader import Buffer


class UserRingBuffer(Buffer):
    """The producer of one user ring buffer map. There can be only one at a time."""

    KINDS = ("user_ringbuf",)

    def __init__(self, map):
        self._own(map)
        self.size = size = map.max_entries
        page = syscalls.PAGE_SIZE
        fd = self._object.fd
        try:
            self._consumer_map = mmap.mmap(fd, page, mmap.MAP_SHARED, mmap.PROT_READ)
            self._data_map = mmap.mmap(fd, page + 2 * size, mmap.MAP_SHARED,
                                       mmap.PROT_READ | mmap.PROT_WRITE, offset=page)
        except OSError as error:
            self._object.close()
            raise refused("mapping of user ring buffer %s" % map.name, error) from None
        own(self)
        self._consumer = memoryview(self._consumer_map).cast("Q")
        whole = memoryview(self._data_map)
        self._producer = whole[:page].cast("Q")
        self._memory = whole[page:]
        self._words = self._memory.cast("I")

    def fileno(self):
        """Writable (select) when there is room."""
        fd = self._object.fd
        if fd < 0:
            self._usable()
        return fd

    def free(self):
        """Bytes that are free, headers included."""
        self._usable()
        return self.size - (self._producer[0] - self._consumer[0])

    def write(self, record):
        """Adds a record (bytes); False when there is no room for it now.

        The length word is stored last, and the producer position after it: a program that drains at
        this moment sees all of the record or none.
        """
        length = len(record)
        need = length + 8 + 7 & -8
        if need > self.size:
            raise ValueError("a record of %d bytes does not fit into a ring of %d" % (length, self.size))
        if need > self.free():
            return False
        position = self._producer[0]
        at = position & self.size - 1
        self._memory[at + 8:at + 8 + length] = record
        self._words[at + 4 >> 2] = 0
        _store_barrier()
        self._words[at >> 2] = length
        _store_barrier()
        self._producer[0] = position + need
        return True

    def close(self):
        self._object.close()
        for view in (self._words, self._memory, self._producer, self._consumer):
            view.release()
        self._data_map.close()
        self._consumer_map.close()


if kernel.arch() == "x86_64":             # stores are not reordered with stores
    def _store_barrier():
        """What was stored before it is seen before what is stored after it."""
else:
    from .reader import load_barrier as _store_barrier
