"""A file system opened without a mount point: fsopen(2), fsconfig(2), fsmount(2), Linux 5.2.

The mount is attached to no path: no other process sees it, and it ends with its descriptors.
"""

import ctypes
import os

# asm-generic/unistd.h; these numbers are the same on every architecture (they are above 424)
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC = 1  # FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC
_CMD_CREATE = 6  # FSCONFIG_CMD_CREATE


def _syscall(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))
    return result


def mount(fstype):
    """A directory descriptor of the root of a fresh `fstype` mount ("tracefs"). Needs
    CAP_SYS_ADMIN. OSError: ENODEV no such file system, ENOSYS kernel before 5.2."""
    context = _syscall(_FSOPEN, fstype.encode(), ctypes.c_uint(_CLOEXEC))
    try:
        _syscall(_FSCONFIG, ctypes.c_int(context), ctypes.c_uint(_CMD_CREATE), None, None,
                 ctypes.c_int(0))
        root = _syscall(_FSMOUNT, ctypes.c_int(context), ctypes.c_uint(_CLOEXEC), ctypes.c_uint(0))
    finally:
        os.close(context)
    try:  # fsmount's descriptor is O_PATH: it can be looked up from, not listed
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    finally:
        os.close(root)
