"""tracefs: where the kernel says which tracepoints and traceable functions it has.

Uses the mounted one (/sys/kernel/tracing, or debugfs' tracing folder); where the host has none
mounted, mounts one that is attached to no path and belongs to this process alone (detached.py).
Layout: Documentation/trace/events.rst.
"""

import errno
import os

from .errors import KernelError

MOUNTS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")

_open = {}


class TraceFs:
    """Reading access below one directory descriptor. Paths are relative: "events/sched"."""

    def __init__(self, dir_fd, where):
        self.dir_fd = dir_fd
        self.where = where

    def read(self, path, size=1 << 16):
        """The bytes of one file (OSError as open(2) and read(2) say)."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.dir_fd)
        try:
            chunks = []
            while True:
                chunk = os.read(fd, size)
                if not chunk:
                    return b"".join(chunks)
                chunks.append(chunk)
        finally:
            os.close(fd)

    def folders(self, path):
        """Names of the folders in `path`, sorted."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.dir_fd)
        try:
            with os.scandir(fd) as entries:
                return sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
        finally:
            os.close(fd)

    def exists(self, path):
        try:
            os.stat(path, dir_fd=self.dir_fd)
        except OSError:
            return False
        return True

    def event_id(self, group, event):
        """The number of a tracepoint, as perf events want it; None where there is no such event."""
        if "/" in group + event or ".." in (group, event):
            return None
        try:
            return int(self.read("events/%s/%s/id" % (group, event)))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None


def tracefs():
    """The TraceFs of this host, opened once. KernelError: `needs` is a sentence of what would give
    access."""
    fs = _open.get(os.getpid())  # a forked child opens its own
    if fs is None:
        fs = _open[os.getpid()] = _find()
    return fs


def debugfs(path):
    """The bytes of one file of debugfs ("kprobes/blacklist"), mounted or not; OSError."""
    return _mounted_or_not("debugfs", "/sys/kernel/debug/", path)


def securityfs(path):
    """The same of securityfs ("lockdown")."""
    return _mounted_or_not("securityfs", "/sys/kernel/security/", path)


def _mounted_or_not(fstype, folder, path):
    try:
        return TraceFs(-1, "").read(folder + path)
    except OSError:
        from .detached import mount

        fd = mount(fstype)
        try:
            return TraceFs(fd, fstype).read(path)
        finally:
            os.close(fd)


def _find():
    denied = None
    for path in MOUNTS:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            denied = denied or path
            continue
        except OSError:
            continue
        try:
            os.stat("events", dir_fd=fd)
        except OSError as error:
            os.close(fd)
            if isinstance(error, PermissionError):
                denied = denied or path
            continue
        return TraceFs(fd, path)
    from .detached import mount

    try:
        return TraceFs(mount("tracefs"), "tracefs")
    except OSError as error:
        raise KernelError("opening of tracefs", error.errno, _needs(error, denied)) from None


def _needs(error, denied):
    """Why there is no tracefs: `denied` is the folder of one that may not be read, `error` what a
    mount of our own met."""
    from . import kernel

    if isinstance(error, PermissionError) and denied:
        return ("reading tracefs at %s is not permitted: it needs CAP_DAC_READ_SEARCH, or tracefs "
                "mounted for this user (mount -o remount,mode=755 %s)" % (denied, denied))
    if isinstance(error, PermissionError):
        # A detached mount takes CAP_SYS_ADMIN; its root belongs to root, mode 700.
        missing = [name for name in ("CAP_SYS_ADMIN", "CAP_DAC_READ_SEARCH")
                   if not kernel.has_capability(name) and (name == "CAP_SYS_ADMIN" or os.geteuid())]
        return ("tracefs is not mounted, and opening it without a mount needs %s (or: mount -t tracefs -o "
                "mode=755 tracefs %s)" % (" and ".join(missing) or "CAP_SYS_ADMIN", MOUNTS[0]))
    if error.errno == errno.ENODEV:
        return "this kernel has no tracefs (CONFIG_TRACING is not set)"
    return ("tracefs is not mounted and cannot be opened without a mount (fsopen, Linux 5.2): %s; mount it "
            "with: mount -t tracefs tracefs %s" % (error.strerror, MOUNTS[0]))
