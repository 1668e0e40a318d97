"""What the readers of ring and perf buffers have in common: waiting, records one by one, asyncio.

The fast way to read is consume() with a handler that takes runs of records; this is the convenient one.
"""

import os
import select
import time

from . import kernel
from .errors import refused
from .kobject import KernelObject, Uncopied

# A program may leave out the wake-up (BPF_RB_NO_WAKEUP) and leave it to us to look now and then.
_LOOK_AGAIN = 0.1
_BUSY = 0.0005          # until a record that is being written is complete


if kernel.arch() == "x86_64":           # loads are not reordered with loads
    def load_barrier():
        """Loads after it see what was written before what the loads before it saw."""
else:
    import _thread
    _fence = _thread.allocate_lock()

    def load_barrier():
        """Loads after it see what was written before what the loads before it saw: POSIX has lock
        operations synchronise memory."""
        with _fence:
            pass
        with _fence:
            pass


class Stream:
    """Records in a ring of memory, from the position at _tail[0] (ours to advance) to that at _head[0].

    Needs `size`; _memory, the ring; _LEAD, the bytes of a record before its data; `closed`; _runs(position, end,
    room) -> (memory, runs, records in them, what was passed over between them, position after them), where runs of
    records that must be copied have a memory of their own; _between(position, end), what is passed over there;
    _count(number of what was passed over)."""

    def consume(self, handler, limit=None):
        """Hands over what is in the ring at this moment, at most about `limit` records; how many. What was passed
        over counts once the handler has returned: a batch that comes again is not counted again."""
        total, handling = 0, False
        try:
            # Each position is one aligned 8-byte load or store.
            end, position = self._head[0], self._tail[0]
            while position < end and (limit is None or total < limit):
                load_barrier()
                memory, runs, count, passed, following = self._runs(position, end,
                                                                    None if limit is None else limit - total)
                if following == position:     # the next record is still being written
                    break
                if runs:
                    load_barrier()
                    handling = True
                    handler(memory, runs)
                    handling = False
                    if self.closed:           # by the handler: there is no position to advance
                        return total + count
                position = self._tail[0] = following
                if passed:
                    self._count(passed)
                total += count
        except ValueError:      # of memory that another thread has released: what was handed over is all
            if handling or not self.closed:
                raise
        return total

    def each(self):
        """Each record that is there now as bytes; its room is given back when it is handed out and not before, so
        that those which nobody asks for stay."""
        try:
            yield from self._each()
        except ValueError:      # closed by another thread
            if not self.closed:
                raise

    def _each(self):
        end, position = self._head[0], self._tail[0]
        while position < end:
            load_barrier()
            memory, runs, _, passed, following = self._runs(position, end, None)
            if following == position:
                return
            load_barrier()
            base = position - self._LEAD - (position % self.size if memory is self._memory else 0)
            for offset, count, stride, length in runs:
                for at in range(offset, offset + count * stride, stride):
                    if base + at != position:
                        gone = self._between(position, base + at)
                        self._count(gone)
                        passed -= gone
                    record = bytes(memory[at:at + length])
                    position = self._tail[0] = base + at + stride
                    yield record
                    if self.closed or self._tail[0] != position:        # somebody else read on
                        return
            self._count(passed)
            position = self._tail[0] = following


class Buffer(Uncopied):
    """What uses the memory of a buffer's map; `_object` has its own descriptor: it may outlive the Map."""

    KINDS = ()

    def _own(self, map):
        """Takes a map (or what has its descriptor) of one of the KINDS."""
        kind = getattr(map, "type", None)
        if kind not in self.KINDS:
            raise ValueError("a %s is of a %s map, not of a %s map" % (type(self).__name__, self.KINDS[0], kind))
        try:
            self._object = KernelObject(os.dup(map.fileno()))
        except OSError as error:
            raise refused("%s of map %s" % (type(self).__name__, map.name), error) from None

    @property
    def closed(self):
        return self._object.fd < 0

    def _usable(self):
        """ValueError when it has been closed, or is the parent process's."""
        self._object.check(type(self).__name__)

    def _ended(self):
        """Has it been closed? A loop over it then ends; ValueError when it is the parent process's."""
        if self.closed and not self._object.forgotten:
            return True
        self._usable()
        return False

    def _forget(self):
        """In a forked child."""
        self._object._forget()
        self.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Reader(Buffer):
    """Needs fileno(), consume(handler, limit), each() and available()."""

    def wait(self, timeout=None):
        """Waits until there are records, at most `timeout` seconds -> whether there are."""
        end = None if timeout is None else time.monotonic() + timeout
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        while not self.available():
            left = _LOOK_AGAIN if end is None else min(_LOOK_AGAIN, end - time.monotonic())
            if left <= 0:
                return False
            poll.poll(left * 1000)
        return True

    def poll(self, handler, timeout=None):
        """Waits for records and hands them to handler(memory, runs) -> how many, 0 after timeout."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.wait(None if end is None else max(0, end - time.monotonic())):
            count = self.consume(handler)
            if count:
                return count
            time.sleep(_BUSY)
            if end is not None and time.monotonic() >= end:
                break
        return 0

    def records(self):
        """The records that are there now, as a list of bytes."""
        kept = []

        def keep(memory, runs):
            for offset, count, stride, length in runs:
                kept.extend([bytes(memory[at:at + length])
                             for at in range(offset, offset + count * stride, stride)])
        try:
            self.consume(keep)
        except ValueError:          # closed by another thread
            if not kept:
                self._usable()
                raise
        return kept

    def __iter__(self):
        """Each record as bytes, waiting for more until it is closed. What is not asked for stays in the buffer."""
        self._usable()
        while not self._ended():
            record = None
            try:
                self.wait()
                for record in self.each():
                    yield record
            except ValueError:          # closed by another thread
                if not self._ended():
                    raise
                return
            if record is None:
                time.sleep(_BUSY)

    async def __aiter__(self):
        """As __iter__, for `async for`: waits in the running event loop."""
        import asyncio
        self._usable()
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        # A descriptor of its own: event loops know one reader for each, and this may end after the close.
        try:
            waiting = KernelObject(os.dup(self.fileno()))
        except OSError as error:
            raise refused("wait for records", error) from None
        with waiting:
            loop.add_reader(waiting.fd, ready.set)
            try:
                while not self._ended():
                    record = None
                    for record in self.each():
                        yield record
                    if record is not None:
                        await asyncio.sleep(0)
                        continue
                    # level-triggered: set as long as there are records
                    ready.clear()
                    try:
                        await asyncio.wait_for(ready.wait(), _LOOK_AGAIN)
                    except asyncio.TimeoutError:
                        continue
            finally:
                if waiting.fd >= 0:
                    loop.remove_reader(waiting.fd)
