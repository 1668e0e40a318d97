"""What the readers of ring and perf buffers have in common: waiting, records one by one, asyncio.

The fast way to read is consume() with a handler that takes runs of records; this is the convenient one.
"""

import select
import time

# A program may leave out the wake-up (BPF_RB_NO_WAKEUP) and leave it to us to look now and then.
_LOOK_AGAIN = 0.1
_BUSY = 0.0005          # until a record that is being written is complete


class Reader:
    """Needs fileno(), consume(handler, limit) and available()."""

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
        self.consume(keep)
        return kept

    def __iter__(self):
        """Each record as bytes, waiting for more without end."""
        while True:
            self.wait()
            batch = self.records()
            if not batch:
                time.sleep(_BUSY)
            yield from batch

    async def __aiter__(self):
        """As __iter__, for `async for`: waits in the running event loop."""
        import asyncio
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self.fileno(), ready.set)
        try:
            while True:
                batch = self.records()
                for record in batch:
                    yield record
                if not batch:
                    # level-triggered: set as long as there are records
                    ready.clear()
                    try:
                        await asyncio.wait_for(ready.wait(), _LOOK_AGAIN)
                    except asyncio.TimeoutError:
                        continue
        finally:
            loop.remove_reader(self.fileno())
