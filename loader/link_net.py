"""Attaching to cgroups, network namespaces, interfaces, sockets and packet filters.

bpf(2) BPF_LINK_CREATE with a target, and, for what came before links, BPF_PROG_ATTACH, _DETACH and
_QUERY. Targets: a cgroup or namespace is a descriptor (open_path), an interface its index.
"""

import errno
import os
import struct
import weakref
from types import SimpleNamespace

from . import syscalls
from .errors import KernelError, refused
from .introduced import since
from .kobject import KernelObject, Uncopied, fd_of, own
from .link import Link
from .syscalls import address
from .uapi import ATTACH_TYPES, F_ID, F_LINK, number

# NFPROTO_* and NF_INET_* of include/uapi/linux/netfilter.h
NFPROTO = {"ipv4": 2, "ipv6": 10}
HOOKS = {"pre_routing": 0, "local_in": 1, "forward": 2, "local_out": 3, "post_routing": 4}
_SOL_SOCKET, _SO_ATTACH_BPF, _SO_DETACH_BPF = 1, 50, 27
_SO_ATTACH_REUSEPORT_EBPF, _SO_DETACH_REUSEPORT_BPF = 52, 68
XDP_FLAGS = {"": 0, "skb": 2, "drv": 4, "hw": 8}


def open_path(path):
    """A descriptor of a cgroup directory or a namespace file."""
    return KernelObject(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _create(what, program, layout, introduced, attach_type, permission="net", **fields):
    try:
        fd = syscalls.link_create(layout, prog_fd=fd_of(program),
                                  attach_type=number(ATTACH_TYPES, attach_type, "attach type"),
                                  **fields)
    except OSError as error:
        name = getattr(program, "name", "")
        raise refused("attach of program%s to %s" % (" " + name if name else "", what), error,
                      permission, invalid=since(introduced, "a link of this kind") or
                      _texts(error.errno, "target_ifindex" in fields), permitted=_allowed(attach_type)) from None
    return Link(fd)


def _chosen(table, name, what):
    """Of one of the tables above; ValueError where there is no such name."""
    if not isinstance(name, str) or name not in table:
        raise ValueError("no %s is called %r: they are %s" % (what, name, ", ".join(filter(None, table))))
    return table[name]


def _allowed(attach_type):
    """What EPERM means for who has the capabilities."""
    return ("a program on this cgroup or on one above it was attached without F_ALLOW_MULTI, or with other flags than "
            "these" if attach_type.startswith("cgroup_") else "")


def _texts(code, interface=False):
    return {errno.EINVAL: "there is no such interface, or the program does not fit it" if interface else "",
            errno.ENODEV: "there is no such interface", errno.EBUSY: "another program is there",
            errno.EEXIST: "another program is there", errno.EOPNOTSUPP: "the target cannot do that",
            errno.EBADF: "the target is no cgroup, namespace or map",
            errno.ERANGE: "the lowest and the highest priority are the kernel's"}.get(code, "")


def attach_cgroup(program, cgroup, attach_type, flags=0, relative=None, expected_revision=0):
    """A program on a cgroup v2 directory (5.7+). flags: uapi.F_BEFORE, F_AFTER (6.16+) place it beside
    `relative`, a Link there."""
    if isinstance(relative, Link):
        flags |= F_LINK
    return _create("a cgroup", program, "relative", (5, 7), attach_type, target_fd=fd_of(cgroup),
                   flags=flags, relative_fd=0 if relative is None else fd_of(relative),
                   expected_revision=expected_revision)


def attach_netns(program, netns, attach_type):
    """A flow_dissector or sk_lookup program on a network namespace (5.8+)."""
    return _create("a network namespace", program, "plain", (5, 8), attach_type,
                   target_fd=fd_of(netns))


def attach_xdp(program, ifindex, mode=""):
    """An xdp program on an interface (5.9+). mode: "skb" (generic), "drv" (native), "hw", "" either."""
    return _create("interface %s" % ifindex, program, "plain", (5, 9), "xdp", target_ifindex=ifindex,
                   flags=_chosen(XDP_FLAGS, mode, "mode"))


def _relative(kind, introduced):
    def attach(program, ifindex, attach_type, flags=0, relative=None, expected_revision=0):
        at = 0
        if relative is not None:
            at = relative if flags & F_ID else fd_of(relative)
            if isinstance(relative, Link):
                flags |= F_LINK
        return _create("interface %s" % ifindex, program, "relative", introduced, attach_type,
                       target_ifindex=ifindex, flags=flags, relative_fd=at,
                       expected_revision=expected_revision)
    attach.__name__ = "attach_" + kind
    attach.__doc__ = """A sched_cls program on an interface by %s (%d.%d+). flags: uapi.F_BEFORE or F_AFTER place it
    beside `relative` (a program or Link, or with F_ID an id, a link's with F_LINK).""" % ((kind,) + introduced)
    return attach


attach_tcx = _relative("tcx", (6, 6))
attach_netkit = _relative("netkit", (6, 7))


class TcFilter(Uncopied):
    """A program in a filter of traffic control. No link holds it: it stays until close(), whatever becomes of this
    process (the interface's clsact qdisc stays). A forked child lets go of it: its close() does nothing."""

    def __init__(self, ifindex, parent, priority, handle):
        self.ifindex, self.parent, self.priority, self.handle = ifindex, parent, priority, handle
        own(self)

    def _forget(self):
        self.handle = None

    def close(self):
        from .netlink import Socket
        handle, self.handle = self.handle, None
        if handle is None:
            return
        try:
            with Socket() as netlink:
                netlink.remove_filter(self.ifindex, self.parent, self.priority, handle)
        except KernelError as error:        # gone, by itself or with its interface or qdisc
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.EINVAL):
                raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def attach_tc(program, ifindex, direction="ingress", priority=0, handle=0):
    """A sched_cls program on an interface by a filter of traffic control, as `tc filter add ... bpf direct-action`:
    for kernels without tcx (before 6.6). direction: "ingress" or "egress". -> TcFilter"""
    from .netlink import EGRESS, INGRESS, Socket
    parent = _chosen({"ingress": INGRESS, "egress": EGRESS}, direction, "direction")
    with Socket() as netlink:
        return TcFilter(ifindex, parent, *netlink.add_filter(ifindex, parent, fd_of(program), program.name,
                                                             priority, handle))


_latest = weakref.WeakValueDictionary()     # (inode of a socket, option that detaches): SocketProgram


class SocketProgram(Uncopied):
    """A program that a socket has; closing this takes it away from there, unless another has taken its place. A forked
    child, which shares the socket, lets go of it: its close() does nothing."""

    def __init__(self, sock, detach):
        self.socket, self._detach = sock, detach
        place = os.fstat(sock.fileno()).st_ino, detach
        if place in _latest:
            _latest[place]._forget()        # the kernel has put this one in its place
        _latest[place] = self
        own(self)

    def _forget(self):
        self._detach = None

    def close(self):
        detach, self._detach = self._detach, None
        if detach is None or self.socket.fileno() < 0:
            return
        try:
            self.socket.setsockopt(_SOL_SOCKET, detach, 0)
        except FileNotFoundError:
            return              # somebody else took it away

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def attach_socket(program, sock):
    """A socket_filter program on a socket, or an sk_reuseport one on the group of sockets that share its port
    (socket(7): SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_EBPF) -> SocketProgram."""
    reuseport = program.type == "sk_reuseport"
    if not hasattr(sock, "setsockopt"):
        raise ValueError("program %s goes on a socket, not on %r" % (program.name, sock))
    try:
        sock.setsockopt(_SOL_SOCKET, _SO_ATTACH_REUSEPORT_EBPF if reuseport else _SO_ATTACH_BPF, fd_of(program))
    except OSError as error:
        raise refused("attach of program %s to a socket" % program.name, error, "net", invalid={
            errno.EINVAL: "the socket does not share its port (SO_REUSEPORT)" if reuseport else ""}.get(error.errno, "")
        ) from None
    return SocketProgram(sock, _SO_DETACH_REUSEPORT_BPF if reuseport else _SO_DETACH_BPF)


def attach_netfilter(program, pf="ipv4", hook="local_in", priority=0, defragment=False):
    """A netfilter program on a hook of this network namespace (6.4+). priority: lower runs earlier;
    the two extremes are not allowed."""
    return _create("netfilter hook %s" % hook, program, "netfilter", (6, 4), "netfilter",
                   pf=_chosen(NFPROTO, pf, "protocol family"), hooknum=_chosen(HOOKS, hook, "hook"), priority=priority,
                   netfilter_flags=int(defragment))


def attach_sockmap(program, map, attach_type):
    """An sk_skb or sk_msg program on a sockmap or sockhash (6.10+; before: prog_attach)."""
    return _create("a sockmap", program, "plain", (6, 10), attach_type, target_fd=fd_of(map))


def attach_struct_ops(map):
    """Registers a struct_ops map made with uapi.F_LINK (6.4+)."""
    return _create("struct_ops", map, "plain", (6, 4), "struct_ops", "admin")


def attach_freplace(program, target, btf_id):
    """An ext program in place of a function (a BTF id of its own BTF) of a loaded program (5.10+)."""
    try:
        return Link(syscalls.link_create("tracing", prog_fd=program.fileno(), target_fd=fd_of(target),
                                         target_btf_id=btf_id))
    except OSError as error:
        raise refused("replacing a function by program %s" % program.name, error, "trace",
                      invalid=since((5, 10), "replacing functions by link")) from None


def prog_attach(program, target, attach_type, flags=0, replace=None):
    """Attaches without a link: it stays until prog_detach or the target goes, whatever becomes of this
    process."""
    try:
        syscalls.bpf("prog_attach", target_fd=fd_of(target), attach_bpf_fd=program.fileno(),
                     attach_type=number(ATTACH_TYPES, attach_type, "attach type"), attach_flags=flags,
                     replace_bpf_fd=0 if replace is None else fd_of(replace))
    except OSError as error:
        raise refused("attach of program %s as %s" % (program.name, attach_type), error, "net",
                      invalid=_texts(error.errno), permitted=_allowed(attach_type)) from None


def prog_detach(program, target, attach_type):
    """Undoes prog_attach."""
    try:
        syscalls.bpf("prog_detach", target_fd=fd_of(target), attach_bpf_fd=fd_of(program),
                     attach_type=number(ATTACH_TYPES, attach_type, "attach type"))
    except OSError as error:
        raise refused("detach of %s" % attach_type, error, "net", invalid={
            errno.ENOENT: "that program is not attached there"}.get(error.errno, "")) from None


def prog_query(target, attach_type, effective=False):
    """What is attached to a cgroup, namespace, interface (tcx, netkit) or sockmap: a namespace with
    prog_ids, and where the kernel says them link_ids, prog_flags and link_flags (one each a program,
    6.6+; of cgroups prog_flags since 6.0), revision, attach_flags. effective: what runs there, inherited ones included."""
    kind = number(ATTACH_TYPES, attach_type, "attach type")
    count = 64
    flags_too = not effective and "cgroup" in attach_type and not since((6, 0), "")
    while True:
        programs, links, prog_flags, link_flags = (bytearray(4 * count) for _ in range(4))
        fields = dict(target_fd=fd_of(target), attach_type=kind, query_flags=int(effective),
                      prog_ids=address(programs), prog_cnt=count)
        if kind >= ATTACH_TYPES["tcx_ingress"]:
            fields.update(link_ids=address(links), prog_attach_flags=address(prog_flags),
                          link_attach_flags=address(link_flags))
        elif flags_too:
            fields.update(prog_attach_flags=address(prog_flags))
        try:
            _, answer = syscalls.bpf_out("prog_query", **fields)
            break
        except OSError as error:
            if error.errno == errno.ENOSPC and count < 1 << 16:
                count *= 4
                continue
            raise refused("query of %s" % attach_type, error, "net", invalid=_texts(error.errno)
                          ) from None
    got = answer["prog_cnt"]

    def numbers(buffer):
        return [item[0] for item in struct.iter_unpack("=I", buffer[:4 * got])]
    return SimpleNamespace(prog_ids=numbers(programs), link_ids=numbers(links),
                           prog_flags=numbers(prog_flags), link_flags=numbers(link_flags),
                           revision=answer["revision"], attach_flags=answer["attach_flags"])
