"""Output streams of a trace: bytes out, with bpftrace's -B modes.

Python's own streams flush by newline or by size; a tracer flushes when it has nothing more to read, so
that a burst of a thousand lines is one write(2).
"""

import os

LIMIT = 1 << 16    # bytes held back at most


class ClosedPipe(Exception):
    """The reader of the output has gone."""


class OutputError(Exception):
    """The output cannot be written; the text says why."""


class Writer:
    """A file descriptor that is written in pieces. `mode`:

    "line"  what holds a newline is written at the next `settle()`: the end of a batch of events
    "none"  everything is written at once
    "full"  written when much has gathered, and at the end
    """

    def __init__(self, fd, mode="line", before=None):
        self.fd = fd
        self.mode = mode
        self.before = before      # a Writer whose bytes come first when both go to one terminal
        self._pieces = []
        self._size = 0
        self._newline = False

    def isatty(self):
        return os.isatty(self.fd)

    def write(self, data):
        self._pieces.append(data)
        self._size += len(data)
        self._newline = self._newline or b"\n" in data
        if self.mode == "none" or self._size >= LIMIT:
            self.flush()

    def settle(self):
        """There is nothing more to write for the moment."""
        if self.mode == "line" and self._newline:
            self.flush()

    def flush(self):
        """Write everything out; ClosedPipe when nobody reads any more, OutputError when it cannot be."""
        if self.before is not None:
            self.before.flush()
        if not self._pieces:
            return
        data = memoryview(b"".join(self._pieces))
        self.discard()
        while data:
            try:
                data = data[os.write(self.fd, data):]
            except BlockingIOError:      # somebody who shares it has made it non-blocking
                import select
                select.select([], [self.fd], [])
            except BrokenPipeError:
                raise ClosedPipe() from None
            except OSError as error:
                raise OutputError("cannot write the output: %s" % error.strerror) from None

    def discard(self):
        self._pieces, self._size, self._newline = [], 0, False
