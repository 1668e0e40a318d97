"""A kernel object that Python owns by its file descriptor.

The descriptor is closed by close(), at the end of a `with`, and when the object is collected. It is
close-on-exec, and a forked child does not keep it either: a copy that lives on in a child would keep
a program attached after its owner has gone. What a child needs it opens itself, by id or by pin.
"""

import os
import weakref

_owned = weakref.WeakSet()


def _after_fork_in_child():
    for owner in list(_owned):
        owner._forget()


os.register_at_fork(after_in_child=_after_fork_in_child)


def own(owner):
    """Has owner._forget() called in forked children, to let go of descriptors and mappings."""
    _owned.add(owner)


class KernelObject:
    """`fd` is -1 once closed."""

    __slots__ = ("fd", "__weakref__")

    def __init__(self, fd):
        self.fd = fd
        _owned.add(self)

    def fileno(self):
        if self.fd < 0:
            raise ValueError("this %s is closed" % type(self).__name__)
        return self.fd

    @property
    def closed(self):
        return self.fd < 0

    def close(self):
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _forget(self):
        """In a forked child: lets go of the descriptor without undoing what it stands for."""
        KernelObject.close(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        # At interpreter exit os may be half gone; the kernel closes the rest.
        try:
            self.close()
        except (AttributeError, TypeError, OSError):
            pass

    def __repr__(self):
        return "<%s fd=%d>" % (type(self).__name__, self.fd)


def fd_of(thing):
    """The descriptor of an object or the number itself."""
    return thing if isinstance(thing, int) else thing.fileno()
