"""Every BPF object has a number while it lives: walk them, and open one by its number.

bpf(2) BPF_*_GET_NEXT_ID, BPF_*_GET_FD_BY_ID. Needs CAP_SYS_ADMIN (programs, maps 4.13+, BTF 5.2+,
links 5.8+).
"""

import errno

from . import syscalls
from .errors import refused

KINDS = ("prog", "map", "btf", "link")


def walk(kind):
    """The ids of all objects of a kind of KINDS there are, in rising order. Objects that come or go
    meanwhile may or may not be among them."""
    last = 0
    while True:
        try:
            _, answer = syscalls.bpf_out(kind + "_get_next_id", start_id=last)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return
            raise refused("walk of %s ids" % kind, error, "admin") from None
        last = answer["next_id"]
        yield last


def open_fd(kind, number, flags=0):
    """A descriptor of the object with this id, or None when it has gone or is not there yet."""
    try:
        return syscalls.bpf(kind + "_get_fd_by_id", prog_id=number, open_flags=flags)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EAGAIN):     # EAGAIN: a link that is still being made
            return None
        raise refused("open of %s %d" % (kind, number), error, "admin") from None
