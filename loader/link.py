"""Links: what holds a program attached. Closing one detaches, however the process ends.

bpf(2) BPF_LINK_CREATE and BPF_RAW_TRACEPOINT_OPEN, perf_event_open(2) PERF_EVENT_IOC_SET_BPF.
One function a kind of link.
"""

import errno

from . import syscalls
from .errors import KernelError, refused
from .introduced import since
from .kobject import BpfObject, KernelObject, Uncopied, fd_of, text_buffer
from .layout import packed
from .syscalls import address
from .uapi import (ATTACH_TYPES, F_KPROBE_MULTI_RETURN, F_REPLACE, F_UPROBE_MULTI_PATH_FD,
                   F_UPROBE_MULTI_RETURN)

_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, 524)


class Link(BpfObject):
    """One attachment. A pinned link stays when this object is closed."""

    __slots__ = ()
    kind = "link"

    @classmethod
    def _from_info(cls, fd):
        return Link(fd)

    def info(self):
        """What it attaches, see link_info (5.8+)."""
        from .link_info import link_info
        return link_info(self.fileno())

    def update(self, program, old=None):
        """Puts another program (or struct_ops map) in its place without a gap (5.7+; cgroup, netns,
        xdp, iter, tcx, netkit, netfilter, sockmap, struct_ops). old: only if this one is there now."""
        try:
            syscalls.bpf("link_update", link_fd=self.fileno(), new_prog_fd=fd_of(program),
                         flags=0 if old is None else F_REPLACE,
                         old_prog_fd=0 if old is None else fd_of(old))
        except OSError as error:
            raise refused("update of link", error, "bpf", invalid={
                errno.EPERM: "", errno.EINVAL: "the programs differ in type, or this kind of link "
                                               "cannot be updated",
                errno.EOPNOTSUPP: "this kind of link cannot be updated",
            }.get(error.errno, since((5, 7), "update of a link")),
                permitted="" if old is None else "another program is there than the `old` one") from None

    def detach(self):
        """Detaches, although others hold the link or it is pinned (5.9+). The link then is defunct."""
        try:
            syscalls.bpf("link_detach", link_fd=self.fileno())
        except OSError as error:
            raise refused("detach of link", error, "bpf", invalid=(
                since((5, 9), "detaching a link") or "this kind of link cannot be detached: close it"
            )) from None


class PerfLink(Link):
    """A program on a perf event, which it owns: by a BPF link, or (fd is the event's) by ioctl."""

    __slots__ = ("event",)

    def __init__(self, fd, event):
        super().__init__(fd)
        self.event = event

    def close(self):
        super().close()
        self.event.close()

    def _forget(self):
        KernelObject.close(self)
        KernelObject.close(self.event)


class IoctlLink(PerfLink):
    """Before 5.15: the event's own descriptor holds the program, and there is no link."""

    __slots__ = ()

    def __init__(self, event):
        super().__init__(-1, event)

    def fileno(self):
        return self.event.fileno()

    @property
    def closed(self):
        return self.event.closed

    def _no_link(self, *_):
        raise KernelError("use of a link", errno.EINVAL, since((5, 15), "a link of a perf event") or
                          "this program is attached without one")

    info = update = detach = pin = _no_link


class IterLink(Link):
    """A BPF iterator: each read() is one run of it."""

    __slots__ = ()

    def read(self):
        """What a whole run of it writes, as bytes."""
        import os
        fd, parts = iter_open(self), []
        try:
            while True:
                part = os.read(fd, 1 << 16)
                if not part:
                    return b"".join(parts)
                parts.append(part)
        except OSError as error:
            raise refused("run of iterator", error, "trace") from None
        finally:
            os.close(fd)


class LinkGroup(Uncopied):
    """Several links as one. They close in parallel: the kernel takes a tenth of a second and more to be
    rid of one perf event, because it waits until no CPU can be in its program."""

    __slots__ = ("links",)

    def __init__(self, links=()):
        self.links = list(links)

    def add(self, link):
        self.links.append(link)

    def __len__(self):
        return len(self.links)

    def close(self):
        links, self.links = self.links, []
        close_all(links)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def close_all(objects):
    """Closes objects, in threads when there are several. All are closed even when one fails; the
    first failure is raised then."""
    waiting, failures = list(objects), []

    def work():
        while waiting:
            try:
                waiting.pop().close()
            except IndexError:            # another thread took the last one
                return
            except Exception as error:
                failures.append(error)
    if len(waiting) < 4:
        work()
    else:
        try:
            import threading
            workers = [threading.Thread(target=work) for _ in range(min(len(waiting), 16))]
        except OSError:                   # no descriptor is left to read the module with
            workers = []
        started = []
        for worker in workers:
            try:
                worker.start()
            except RuntimeError:          # no memory for a thread, or a limit: this one does the rest
                break
            started.append(worker)
        work()
        for worker in started:
            worker.join()
    if failures:
        raise failures[0]


def _u64s(values):
    return bytearray(packed("=%dQ" % len(values), "numbers of 64 bits", *values)) if values else bytearray()


def attach_perf_event(program, event, cookie=None):
    """A kprobe, tracepoint or perf_event program on an open PerfEvent, which the Link then owns.

    By a BPF link on 5.15+, else by ioctl. A cookie (bpf_get_attach_cookie) needs the link.
    """
    from .perf import PerfEvent
    if not isinstance(event, PerfEvent):
        raise ValueError("program %s goes on a PerfEvent, not on %r" % (program.name, event))
    try:
        fd = syscalls.link_create("plain", prog_fd=program.fileno(), target_fd=event.fileno(),
                                  attach_type=ATTACH_TYPES["perf_event"], bpf_cookie=cookie or 0)
    except OSError as error:
        if error.errno not in _UNSUPPORTED or not since((5, 15), ""):
            from .perf import _set_bpf_text
            raise KernelError("attach to %s" % event.what, error.errno, _set_bpf_text(error.errno)
                              ) from None
        if cookie:
            raise KernelError("attach to %s" % event.what, error.errno,
                              since((5, 15), "an attach cookie")) from None
        event.set_bpf(program)
        event.enable()
        return IoctlLink(event)
    return PerfLink(fd, event)


def attach_raw_tracepoint(program, name="", cookie=None):
    """A raw_tracepoint program on the tracepoint with this name (no group). A cookie needs 6.10+."""
    text = text_buffer(name.encode(), "the name of a tracepoint") if name else bytearray()
    try:
        fd = syscalls.bpf("raw_tracepoint_open", name=address(text), prog_fd=program.fileno(),
                          cookie=cookie or 0)
    except OSError as error:
        raise refused("attach to raw tracepoint %s" % name, error, "trace", invalid={
            errno.ENOENT: "the kernel has no tracepoint of that name",
            errno.EINVAL: since((6, 10), "a cookie") if cookie else "",
        }.get(error.errno, "")) from None
    return Link(fd)


def attach_tracing(program, cookie=None):
    """A tracing, lsm or ext program to what it was loaded for (fentry, fexit, fmod_ret, tp_btf, lsm).
    A cookie needs 5.19+."""
    if not cookie:
        try:
            return Link(syscalls.bpf("raw_tracepoint_open", prog_fd=program.fileno()))
        except OSError as error:
            raise refused("attach of program %s" % program.name, error, "trace", invalid=(
                "what replaces a function is attached once by itself: name the program and its function (attach_freplace, "
                "attach_to) to do it again" if program.type == "ext" and error.errno in (errno.EINVAL, errno.ENOENT) else
                since((5, 13), "attaching it once more") if error.errno == errno.ENOENT else "")) from None
    try:
        fd = syscalls.link_create("tracing", prog_fd=program.fileno(), cookie=cookie)
    except OSError as error:
        raise refused("attach of program %s" % program.name, error, "trace",
                      invalid=since((5, 19), "a cookie of a tracing program")) from None
    return Link(fd)


def attach_tracing_multi(program, attach_type, ids, cookies=None):
    """One tracing program on many functions of the kernel (or of one module, whose BTF it was loaded for), by
    their BTF ids, with one cookie each if given (7.2+). attach_type: "trace_fentry_multi", "trace_fexit_multi",
    "trace_fsession_multi", which the program was loaded with."""
    if cookies is not None and len(cookies) != len(ids):
        raise ValueError("one cookie for each function, please")
    buffers = [bytearray(packed("=%dI" % len(ids), "BTF ids of 32 bits", *ids)), _u64s(cookies or ())]
    try:
        fd = syscalls.link_create("tracing_multi", prog_fd=program.fileno(), attach_type=ATTACH_TYPES[attach_type],
                                  ids=address(buffers[0]), cookies=address(buffers[1]), cnt=len(ids))
    except OSError as error:
        raise refused("attach of program %s to %d functions" % (program.name, len(ids)), error, "trace",
                      invalid=since((7, 2), "a tracing_multi link") or {
                          errno.EINVAL: "one of them cannot be traced, or is twice there"}.get(error.errno, "")
                      ) from None
    return Link(fd)


def attach_iter(program, info=b"", flags=0):
    """A tracing/iter program to its iterator (5.8+); `info` is a union bpf_iter_link_info. Each
    iter_open() of the link is one run of it."""
    buffer = bytearray(info)
    try:
        fd = syscalls.link_create("iter", prog_fd=program.fileno(), flags=flags,
                                  attach_type=ATTACH_TYPES["trace_iter"], iter_info=address(buffer),
                                  iter_info_len=len(info))
    except OSError as error:
        raise refused("attach of iterator %s" % program.name, error, "trace",
                      invalid=since((5, 8), "a BPF iterator")) from None
    return IterLink(fd)


def iter_info(map=None, cgroup=None, order=0, pid=0, tid=0):
    """A union bpf_iter_link_info for attach_iter: a map (of bpf_map_elem and the like), a cgroup (its descriptor and an
    order: 1 itself, 2 and 3 with those below it, pre- or post-order, 4 those above it; 6.1+), a process or thread
    (6.1+)."""
    if (map is not None) + (cgroup is not None) + bool(pid or tid) > 1 or order and cgroup is None:
        raise ValueError("an iterator has a map, or a cgroup with an order, or a pid and tid")
    if map is not None:
        return packed("=I12x", "map", fd_of(map))
    if cgroup is not None:
        return packed("=I", "order", order or 1) + packed("=I", "cgroup", fd_of(cgroup)) + bytes(8)
    return packed("=I", "tid", tid) + packed("=I", "pid", pid) + bytes(8) if pid or tid else b""


def iter_open(link):
    """A descriptor to read the output of an iterator from (the caller closes it)."""
    try:
        return syscalls.bpf("iter_create", link_fd=link.fileno())
    except OSError as error:
        raise refused("start of iterator", error, "trace") from None


def attach_kprobe_multi(program, symbols=None, addresses=None, cookies=None, retprobe=False,
                        session=False):
    """One kprobe program on many kernel functions (5.18+, x86_64 and arm64), by names or addresses,
    with one cookie each if given. The program's expected_attach_type must be trace_kprobe_multi, or
    trace_kprobe_session for session=True (6.10+; runs on entry and return)."""
    targets = symbols if addresses is None else addresses
    call = "attach of kprobe program to %d functions" % len(targets)
    if cookies is not None and len(cookies) != len(targets):
        raise ValueError("one cookie for each function, please")
    buffers, symbols_at, addresses_at, cookies_at = [], 0, 0, 0
    if addresses is not None:
        buffers.append(_u64s(addresses))
        addresses_at = address(buffers[-1])
    else:
        names = [bytes(text_buffer(name.encode(), "a symbol")) for name in symbols]
        text, at, where = bytearray(b"".join(names)), 0, []
        base = address(text)
        for name in names:
            where.append(base + at)
            at += len(name)
        buffers += [text, _u64s(where)]
        symbols_at = address(buffers[-1])
    if cookies is not None:
        buffers.append(_u64s(cookies))
        cookies_at = address(buffers[-1])
    attach_type = "trace_kprobe_session" if session else "trace_kprobe_multi"
    try:
        fd = syscalls.link_create(
            "kprobe_multi", prog_fd=program.fileno(), attach_type=ATTACH_TYPES[attach_type],
            multi_flags=F_KPROBE_MULTI_RETURN if retprobe else 0, cnt=len(targets), syms=symbols_at,
            addrs=addresses_at, cookies=cookies_at)
    except OSError as error:
        raise refused(call, error, "trace", invalid={
            errno.ESRCH: "one of them is not a function that can be traced, or is ambiguous",
            errno.EOPNOTSUPP: "the kernel is built without CONFIG_FPROBE",
        }.get(error.errno, since((6, 10) if session else (5, 18), "a %s link" % (
            "kprobe session" if session else "kprobe_multi")))) from None
    return Link(fd)


def attach_uprobe_multi(program, path, offsets, ref_ctr_offsets=None, cookies=None, pid=0,
                        retprobe=False, session=False, path_fd=None):
    """One kprobe program at many file offsets of one binary (6.6+), for one process or (pid 0) all.

    ref_ctr_offsets: file offsets of USDT semaphores (0: none), cookies: u64s; one for each offset if
    given. path_fd: a descriptor of the binary's file instead of its path (6.13+). The program's
    expected_attach_type must be trace_uprobe_multi, or trace_uprobe_session for session=True (6.13+).
    """
    name = text_buffer(path if isinstance(path, bytes) else str(path).encode("utf-8", "surrogateescape"), "a path")
    call = "attach of uprobe program to %d places in %s" % (len(offsets), path)
    buffers = [_u64s(offsets)]
    where = []
    for values in (ref_ctr_offsets, cookies):
        if values is None:
            where.append(0)
            continue
        if len(values) != len(offsets):
            raise ValueError("one ref_ctr_offset and cookie for each offset, please")
        buffers.append(_u64s(values))
        where.append(address(buffers[-1]))
    flags = (F_UPROBE_MULTI_RETURN if retprobe else 0) | (
        F_UPROBE_MULTI_PATH_FD if path_fd is not None else 0)
    attach_type = "trace_uprobe_session" if session else "trace_uprobe_multi"
    try:
        fd = syscalls.link_create(
            "uprobe_multi", prog_fd=program.fileno(), attach_type=ATTACH_TYPES[attach_type],
            path=0 if path_fd is not None else address(name), offsets=address(buffers[0]),
            ref_ctr_offsets=where[0], cookies=where[1], cnt=len(offsets), multi_flags=flags, pid=pid,
            path_fd=path_fd if path_fd is not None else 0)
    except OSError as error:
        raise refused(call, error, "trace", invalid={
            errno.ENOENT: "there is no such file",
            errno.ESRCH: "there is no process %d" % pid,
            errno.EBADF: "that is no regular file",
        }.get(error.errno, since((6, 13) if session or path_fd is not None else (6, 6),
                                 "such a uprobe_multi link"))) from None
    return Link(fd)
