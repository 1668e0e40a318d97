"""Files that are read whole, up to a size: /dev/zero has no end."""

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
