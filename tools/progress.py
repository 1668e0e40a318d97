"""What a long command is doing: one line on the error stream, on a terminal, once it has taken a second."""

import sys
import time


class Progress:
    """While open, progress(text) shows what is being done; the line is gone at the end."""

    def __init__(self, name, after=1.0):
        self._name, self._shown = name, False
        self._from = time.monotonic() + after if sys.stderr.isatty() else float("inf")

    def __call__(self, text):
        if time.monotonic() >= self._from:
            sys.stderr.write("\r\033[K%s: %s" % (self._name, text))
            sys.stderr.flush()
            self._shown = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
