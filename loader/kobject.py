"""A kernel object that Python owns by its file descriptor.

The descriptor is closed by close(), at the end of a `with`, and when the object is collected. It is
close-on-exec, and a forked child does not keep it either: a copy that lives on in a child would keep
a program attached after its owner has gone. What a child needs it opens itself, by id or by pin.
"""

import errno
import mmap
import os
import sys
import weakref

from . import syscalls
from .errors import refused
from .introduced import needs
from .uapi import F_PATH_FD

_owned = weakref.WeakSet()
_LOST = -2          # the descriptor of an object that a forked child let go of


def _after_fork_in_child():
    for owner in list(_owned):
        try:
            owner._forget()
        except OSError:
            continue        # the others must be let go of all the same


os.register_at_fork(after_in_child=_after_fork_in_child)


def own(owner):
    """Has owner._forget() called in forked children, to let go of descriptors and mappings."""
    _owned.add(owner)


class _Memory(mmap.mmap):
    """Memory of a kernel object, which holds its descriptor as well."""

    def _forget(self):
        try:
            self.close()
        except BufferError:
            return      # somebody has a view of it, which a child then shares


def mapped(fd, size, writable=True):
    """The shared memory of a map as an mmap object; a forked child loses it, too. OSError as mmap(2) says."""
    found = _Memory(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
    own(found)
    return found


class Uncopied:
    """What holds descriptors or memory of this process: a second one would one day close what is another's by then."""

    __slots__ = ()

    def __reduce_ex__(self, protocol):
        raise TypeError("a %s is of this process, with its descriptors: it can be neither copied nor pickled%s" % (
            type(self).__name__, "; os.dup() and from_fd() make another" if isinstance(self, BpfObject) else ""))


class KernelObject(Uncopied):
    """`fd` is negative once closed."""

    __slots__ = ("fd", "__weakref__")

    def __init__(self, fd):
        self.fd = fd
        _owned.add(self)

    def fileno(self):
        if self.fd < 0:
            self.check(type(self).__name__)
        return self.fd

    def check(self, name):
        """ValueError when it is closed or the parent process's; `name`: what to call it."""
        if self.fd < 0:
            raise ValueError("this %s is closed" % name if self.fd != _LOST else
                             "this %s is the parent process's: a child opens what it needs by id or by pin" % name)

    @property
    def closed(self):
        return self.fd < 0

    @property
    def forgotten(self):
        """Is it the parent process's?"""
        return self.fd == _LOST

    def close(self):
        fd = self.fd
        if fd >= 0:
            self.fd = -1
            os.close(fd)

    def _forget(self):
        """In a forked child: lets go of the descriptor without undoing what it stands for."""
        if self.fd >= 0:
            KernelObject.close(self)
            self.fd = _LOST

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


class BpfObject(KernelObject):
    """A program, map, link or BTF: also has a number while it lives, and can be pinned to a path of a
    BPF file system, which keeps it alive without a process."""

    __slots__ = ()
    kind = ""             # "prog", "map", "link", "btf"

    @classmethod
    def from_id(cls, number):
        """The object with this id. Needs CAP_SYS_ADMIN. KernelError with ENOENT when it has gone."""
        try:
            fd = syscalls.bpf(cls.kind + "_get_fd_by_id", prog_id=number)
        except OSError as error:
            raise refused("open of %s %d" % (cls.kind, number), error, "admin", invalid=(
                "there is no such %s" % cls.kind if error.errno == errno.ENOENT else "")) from None
        return cls._adopt(fd)

    @classmethod
    def pinned(cls, path, dir_fd=None):
        """The object pinned at a path (relative to dir_fd: 6.6+)."""
        return cls._adopt(obj_get(path, dir_fd))

    @classmethod
    def from_fd(cls, fd):
        """The object of a descriptor, which it then owns; when it is of something else (ValueError) it stays the
        caller's."""
        fd = fd_of(fd)
        try:
            name = os.readlink("/proc/self/fd/%d" % fd)
        except FileNotFoundError:
            raise ValueError("%d is no open descriptor" % fd) from None
        found = _KINDS.get(name.rpartition(":")[2].strip("[]"))
        if found != cls.kind:
            raise ValueError("that is a %s, not a %s" % (found or "file", cls.kind))
        return cls._from_info(fd)

    @classmethod
    def _adopt(cls, fd):
        """from_fd() of a descriptor that nobody else has: closed when it is of another kind."""
        try:
            return cls.from_fd(fd)
        except BaseException:
            os.close(fd)
            raise

    def pin(self, path, dir_fd=None):
        """Pins it at a new path in a BPF file system (relative to dir_fd: 6.6+); os.unlink() unpins."""
        buffer = _path_buffer(path)
        try:
            syscalls.bpf("obj_pin", pathname=syscalls.address(buffer), bpf_fd=self.fileno(),
                         file_flags=0 if dir_fd is None else F_PATH_FD, path_fd=dir_fd or 0)
        except OSError as error:
            outside = outside_bpffs(path, dir_fd)
            raise refused("pin at %s" % path, error, "bpf", False, outside or _PIN_TEXTS.get(error.errno, ""),
                          permitted=outside or _dotted(path)) from None


class Token(KernelObject):
    """Permission that a BPF file system mounted with delegate_* options hands to a user namespace
    (6.9+): programs, maps and BTF may be made with it without capabilities in the initial one."""

    __slots__ = ()

    @classmethod
    def create(cls, bpffs):
        """bpffs: a descriptor of the root directory of such a file system."""
        try:
            return cls(syscalls.bpf("token_create", bpffs_fd=fd_of(bpffs)))
        except OSError as error:
            raise refused("creation of a BPF token", error, "bpf", invalid=needs(
                "command", "token_create", "a BPF token") or {
                    errno.EOPNOTSUPP: "tokens are for user namespaces, not for the initial one",
                    errno.ENOENT: "the file system was mounted without delegate_* options",
                    errno.EINVAL: "that is not the root of a BPF file system",
            }.get(error.errno, "")) from None


# what /proc/PID/fd/N shows after "anon_inode:"
_KINDS = {"bpf-prog": "prog", "bpf-map": "map", "bpf_link": "link", "bpf-link": "link", "btf": "btf"}

_BPF_FS_MAGIC = 0xcafe4a11
_NOT_BPFFS = "the path is not in a BPF file system (mount -t bpf bpf /sys/fs/bpf)"
_NO_DOTS = "such a name is not allowed in a BPF file system (no dots)"
_PIN_TEXTS = {errno.EEXIST: "something is pinned there already",
              errno.ENOENT: "the directory does not exist", errno.EINVAL: _NO_DOTS}


def _dotted(path):
    """The sentence that says so, if it is a name that a BPF file system does not take."""
    return _NO_DOTS if b"." in os.path.basename(os.fsencode(path).rstrip(b"/")) else ""


def outside_bpffs(path, dir_fd=None):
    """The sentence that says so, if the folder that a path is in (the nearest that is there) is not of a BPF file
    system, else ""."""
    import ctypes
    statfs = bytearray(256)                 # struct statfs begins with f_type, a long
    folder = os.path.dirname(os.fsdecode(path))
    while True:
        try:
            fd = os.open(folder or ".", os.O_PATH | os.O_CLOEXEC, dir_fd=dir_fd)
            break
        except FileNotFoundError:
            if not folder:
                return ""
            folder = os.path.dirname(folder)
        except OSError:
            return ""
    try:
        failed = ctypes.CDLL(None).fstatfs(fd, ctypes.c_void_p(syscalls.address(statfs)))
    finally:
        os.close(fd)
    return "" if failed or int.from_bytes(statfs[:8], sys.byteorder) == _BPF_FS_MAGIC else _NOT_BPFFS


def make_pin_folder(path, mode=0o777):
    """Makes a folder for pins. KernelError; FileExistsError where something has the name."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        raise
    except OSError as error:
        outside = outside_bpffs(path)
        raise refused("making of the folder %s" % path, error, "bpf", invalid=outside,
                      permitted=outside or _dotted(path)) from None


def _path_buffer(path):
    return text_buffer(os.fsencode(path), "a path")


def text_buffer(text, what):
    """Bytes as the kernel wants a text, NUL at the end; ValueError where it would end before."""
    if b"\0" in text:
        raise ValueError("%s cannot have a NUL in it: %r" % (what, text))
    return bytearray(text + b"\0")


def obj_get(path, dir_fd=None):
    """A descriptor of what is pinned at a path."""
    buffer = _path_buffer(path)
    try:
        return syscalls.bpf("obj_get", pathname=syscalls.address(buffer), path_fd=dir_fd or 0,
                            file_flags=0 if dir_fd is None else F_PATH_FD)
    except OSError as error:
        outside = outside_bpffs(path, dir_fd)
        raise refused("open of pin %s" % path, error, "bpf", invalid=outside or {
            errno.ENOENT: "nothing is pinned there",
            errno.EINVAL: "that is no pinned object",
        }.get(error.errno, ""), permitted=outside) from None


def fd_of(thing):
    """The descriptor of an object or the number itself; ValueError where there is none."""
    if isinstance(thing, int):
        if not 0 <= thing < 1 << 31:
            raise ValueError("%d is no descriptor" % thing)
        return thing
    try:
        fileno = thing.fileno
    except AttributeError:
        raise ValueError("%r is no descriptor, and has none" % (thing,)) from None
    return fileno()
