"""Network interfaces, queueing disciplines and filters: what rtnetlink(7) says of programs on them.

Formats: rtnetlink(7), netlink(7); the attributes are those of linux/if_link.h, linux/rtnetlink.h,
linux/pkt_cls.h and linux/tc_act/tc_bpf.h. They are of the network namespace of the thread that asks.
"""

import errno
import os
import socket
import struct
from typing import NamedTuple

from .errors import refused
from .kobject import text_buffer
from .layout import packed

_RTM_NEWLINK, _RTM_GETLINK, _RTM_SETLINK = 16, 18, 19
_RTM_NEWQDISC, _RTM_GETQDISC, _RTM_GETTCLASS, _RTM_NEWTFILTER, _RTM_DELTFILTER, _RTM_GETTFILTER = 36, 38, 42, 44, 45, 46
_REQUEST, _ACK, _DUMP, _EXCL, _CREATE, _ECHO = 1, 4, 0x300, 0x200, 0x400, 8
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")           # struct nlmsghdr
_IFINFO = struct.Struct("=BxHiII")          # struct ifinfomsg
_TCMSG = struct.Struct("=BxxxiIII")         # struct tcmsg
_IFLA_IFNAME, _IFLA_XDP = 3, 43
_XDP_FD, _XDP_ATTACHED, _XDP_FLAGS, _XDP_PROG_ID, _XDP_DRV_ID, _XDP_SKB_ID, _XDP_HW_ID = 1, 2, 3, 4, 5, 6, 7
_TCA_KIND, _TCA_OPTIONS = 1, 2
_BPF_ACT, _BPF_FD, _BPF_NAME, _BPF_FLAGS, _BPF_ID = 1, 6, 7, 8, 11     # TCA_BPF_*
_ACT_KIND, _ACT_OPTIONS, _ACT_BPF_NAME, _ACT_BPF_ID = 1, 2, 6, 9
_MODES = {1: "driver", 2: "generic", 3: "offload"}
XDP_MODES = {"xdp": 0, "xdpgeneric": 2, "xdpdrv": 4, "xdpoffload": 8}
_IF_NO_EXIST = 1
ROOT, INGRESS, EGRESS = 0xffffffff, 0xfffffff2, 0xfffffff3
_CLSACT = 0xfffffff1            # TC_H_CLSACT, the parent of ingress and egress
_ETH_P_ALL = 0x0300             # in network byte order


class Interface(NamedTuple):
    """`xdp`: [(mode, program id)] of the programs on it."""
    ifindex: int
    name: str
    xdp: list


class Filter(NamedTuple):
    """A `bpf` filter of tc. `actions`: [(name, program id)] of its bpf actions; ids are None where not said."""
    kind: str
    name: str
    prog_id: int
    actions: list


class Socket:
    """A netlink socket for routes and traffic control."""

    def __init__(self):
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))
        self._sequence = 0

    def close(self):
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def ask(self, what, kind, flags, body):
        """(type, payload) of each message of the answer. KernelError when it is an error."""
        self._sequence += 1
        self._socket.send(_HEADER.pack(_HEADER.size + len(body), kind, flags | _REQUEST, self._sequence, 0) + body)
        while True:
            data = self._socket.recv(1 << 18)
            at = 0
            while at + _HEADER.size <= len(data):
                size, found, _, sequence, _ = _HEADER.unpack_from(data, at)
                payload = data[at + _HEADER.size:at + size]
                at += size + 3 & ~3
                if size < _HEADER.size or sequence != self._sequence:
                    continue
                if found == _ERROR:
                    code = -struct.unpack_from("=i", payload)[0]
                    if code:
                        raise refused(what, OSError(code, os.strerror(code)), "net")
                    return
                if found == _DONE:
                    return
                yield found, payload

    def interfaces(self):
        """Every Interface, in the kernel's order."""
        body = _IFINFO.pack(socket.AF_PACKET, 0, 0, 0, 0)
        for kind, payload in self.ask("list of interfaces", _RTM_GETLINK, _DUMP, body):
            if kind != _RTM_NEWLINK or len(payload) < _IFINFO.size:
                continue
            ifindex = _IFINFO.unpack_from(payload)[2]
            attributes = dict(parse(payload, _IFINFO.size))
            yield Interface(ifindex, text(attributes.get(_IFLA_IFNAME, b"")), _xdp(attributes.get(_IFLA_XDP, b"")))

    def _tc(self, kind, ifindex, parent=0):
        body = _tcmsg(ifindex, 0, parent)
        for _, payload in self.ask("traffic control of interface %d" % ifindex, kind, _DUMP, body):
            if len(payload) >= _TCMSG.size:
                _, index, handle, _, _ = _TCMSG.unpack_from(payload)
                if index == ifindex:
                    yield handle, dict(parse(payload, _TCMSG.size))

    def filters(self, ifindex):
        """The Filter of every qdisc and class, of the root, of ingress and of egress."""
        parents = [(text(found.get(_TCA_KIND, b"")), handle) for handle, found in self._tc(_RTM_GETTCLASS, ifindex)]
        parents += [(text(found.get(_TCA_KIND, b"")), handle) for handle, found in self._tc(_RTM_GETQDISC, ifindex)
                    if handle and text(found.get(_TCA_KIND, b"")) != "clsact"]
        parents += [("root", ROOT), ("clsact/ingress", INGRESS), ("clsact/egress", EGRESS)]
        for kind, parent in parents:
            for _, found in self._tc(_RTM_GETTFILTER, ifindex, parent):
                if text(found.get(_TCA_KIND, b"")) == "bpf" and _TCA_OPTIONS in found:
                    yield _filter(kind, dict(parse(found[_TCA_OPTIONS])))

    def add_filter(self, ifindex, parent, fd, name, priority=0, handle=0):
        """Puts a sched_cls program (its descriptor), which says itself what becomes of a packet, on INGRESS or EGRESS
        of an interface, and a clsact qdisc where there is none -> (priority, handle) that it got."""
        options = attribute(_BPF_FD, struct.pack("=I", fd)) + attribute(_BPF_NAME, bytes(text_buffer(name.encode(), "a name"))) + \
            attribute(_BPF_FLAGS, struct.pack("=I", 1))        # TCA_BPF_FLAG_ACT_DIRECT
        body = _tcmsg(ifindex, handle, parent, priority) + attribute(_TCA_KIND, b"bpf\0") + \
            attribute(_TCA_OPTIONS | 0x8000, options)
        qdisc = _tcmsg(ifindex, 0xffff0000, _CLSACT) + attribute(_TCA_KIND, b"clsact\0")
        try:
            for _ in self.ask("clsact on interface %d" % ifindex, _RTM_NEWQDISC, _ACK | _CREATE | _EXCL, qdisc):
                continue
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
        found = priority, handle
        for kind, payload in self.ask("filter on interface %d" % ifindex, _RTM_NEWTFILTER,
                                      _ACK | _ECHO | _CREATE | _EXCL, body):
            if kind == _RTM_NEWTFILTER and len(payload) >= _TCMSG.size:
                _, _, handle, _, info = _TCMSG.unpack_from(payload)
                found = info >> 16, handle
        return found

    def remove_filter(self, ifindex, parent, priority, handle):
        """Takes away what add_filter() put there."""
        body = _tcmsg(ifindex, handle, parent, priority) + attribute(_TCA_KIND, b"bpf\0")
        for _ in self.ask("filter on interface %d" % ifindex, _RTM_DELTFILTER, _ACK, body):
            continue

    def set_xdp(self, ifindex, fd, mode="xdp", overwrite=False):
        """Puts a program (its descriptor; -1: none) on an interface without a link: it stays when this process
        ends. mode: one of XDP_MODES. EBUSY where one is and overwrite is false."""
        packed("=i", "interface", ifindex)
        flags = XDP_MODES[mode] | (0 if overwrite or fd < 0 else _IF_NO_EXIST)
        nested = attribute(_XDP_FD, struct.pack("=i", fd)) + attribute(_XDP_FLAGS, packed("=I", "flags", flags))
        body = _IFINFO.pack(socket.AF_UNSPEC, 0, ifindex, 0, 0) + attribute(_IFLA_XDP | 0x8000, nested)
        for _ in self.ask("XDP program on interface %d" % ifindex, _RTM_SETLINK, _ACK, body):
            continue


def _tcmsg(ifindex, handle, parent, priority=None):
    """A struct tcmsg; with a priority that of a filter of all protocols."""
    packed("=H", "priority", priority or 0)
    packed("=i", "interface", ifindex)
    packed("=I", "handle", handle)
    return _TCMSG.pack(0, ifindex, handle, parent, 0 if priority is None else priority << 16 | _ETH_P_ALL)


def attribute(kind, data):
    """One struct nlattr with its padding."""
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def parse(data, at=0):
    """(type without flags, payload) of each attribute from an offset on."""
    while at + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        if size < 4:
            return
        yield kind & 0x3fff, data[at + 4:at + size]
        at += size + 3 & ~3


def text(data):
    return data.split(b"\0")[0].decode("utf-8", "surrogateescape")


def _u32(data):
    return struct.unpack_from("=I", data)[0] if len(data) >= 4 else None


def _xdp(data):
    found = dict(parse(data))
    attached = found.get(_XDP_ATTACHED, b"\0")[:1] or b"\0"
    if attached[0] == 4:        # several, one a mode
        return [(mode, _u32(found[kind])) for mode, kind in (("generic", _XDP_SKB_ID), ("driver", _XDP_DRV_ID),
                                                             ("offload", _XDP_HW_ID)) if kind in found]
    mode = _MODES.get(attached[0])
    return [(mode, _u32(found.get(_XDP_PROG_ID, b"")))] if mode else []


def _filter(kind, options):
    actions = []
    for _, action in parse(options.get(_BPF_ACT, b"")):
        inside = dict(parse(action))
        if text(inside.get(_ACT_KIND, b"")) == "bpf":
            said = dict(parse(inside.get(_ACT_OPTIONS, b"")))
            actions.append((text(said.get(_ACT_BPF_NAME, b"")), _u32(said.get(_ACT_BPF_ID, b""))))
    return Filter(kind, text(options.get(_BPF_NAME, b"")), _u32(options.get(_BPF_ID, b"")), actions)
