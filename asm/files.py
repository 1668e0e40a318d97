"""Files that are read whole, up to a size: /dev/zero has no end. Of a FIFO that nobody writes to none is waited for."""

import errno
import os
import stat

from .errors import AsmError

LARGEST = 1 << 28       # bytes


def read_whole(file, path):
    """All bytes of a binary file; AsmError where they are more than LARGEST."""
    parts, size = [], 0
    while True:
        part = file.read(1 << 20)       # for more, Python makes room before it knows whether there is more
        if part is None:                # nothing now, perhaps later
            raise AsmError("%s is no file that has an end" % path)
        size += len(part)
        if size > LARGEST:
            raise AsmError("%s: more than %d bytes" % (path, LARGEST))
        if not part:
            return b"".join(parts)
        parts.append(part)


def read_file(path):
    """All bytes of the file at a path: a regular one, a device, a pipe by /dev/fd, or a FIFO that has a writer. OSError
    as open(2) and read(2) say, and of a FIFO without one; AsmError where they are more than LARGEST."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        first = b""
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            try:
                first = os.read(fd, 1 << 16)
            except BlockingIOError:     # there is a writer, with nothing to say yet
                first = None
            if first == b"" and not os.readlink("/proc/self/fd/%d" % fd).startswith("pipe:"):
                raise OSError(errno.EINVAL, "no regular file but a FIFO that nothing writes to", path)
        os.set_blocking(fd, True)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    except BaseException:
        os.close(fd)
        raise
    with open(fd, "rb", buffering=0) as file:
        return (first or b"") + read_whole(file, path)
