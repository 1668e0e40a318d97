"""`prog tracelog`: what programs print: the kernel's trace_pipe, or the streams of one program (6.18+)."""

import contextlib
import os
import signal
import sys

from .words import fail


def trace_pipe(session):
    """Lines of the trace pipe as they come, until interrupted."""
    from rawbpf.sources.tracefs import tracefs
    found = tracefs()
    try:
        fd = os.open("trace_pipe", os.O_RDONLY | os.O_CLOEXEC, dir_fd=found.dir_fd)
    except (OSError, TypeError) as error:
        fail("trace_pipe cannot be opened: %s" % (getattr(error, "strerror", None) or error))
    with open(fd, errors="surrogateescape", newline="\n") as lines:
        if session.json is not None:
            session.json.open("[")
        try:
            with _interrupted():
                for line in lines:
                    if session.json is None:
                        session.write(line)
                    else:
                        session.json.value(line)
                    _flush(session)
        except KeyboardInterrupt:
            _flush(session)         # that is how it ends
        if session.json is not None:
            session.json.close("]")


@contextlib.contextmanager
def _interrupted():
    """SIGTERM and SIGHUP end it as Ctrl-C does."""
    before = [(number, signal.signal(number, signal.default_int_handler))
              for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _flush(session):
    if session.write == sys.stdout.write:
        sys.stdout.flush()


def streams(session, program, name):
    """What is in a stream of a program now."""
    number = {"stdout": 1, "stderr": 2}[name]
    parts = []
    while True:
        data = program.read_stream(number)
        if not data:
            break
        text = data.decode("utf-8", "surrogateescape")
        if session.json is None:
            (sys.stderr.write if name == "stderr" else session.write)(text)
        else:
            parts.append(text)
    if session.json is not None:
        session.json.value(parts)
