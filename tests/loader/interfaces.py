"""Pairs of network interfaces for tests, made by rtnetlink(7) in the caller's network namespace: veth and netkit.

Attributes: linux/if_link.h (IFLA_*, VETH_INFO_PEER, IFLA_NETKIT_*)."""

import fcntl
import os
import socket
import struct
import subprocess

from rawbpf.loader.netlink import Socket, attribute

_NEWLINK, _CREATE = 16, 0x4 | 0x200 | 0x400        # ACK, EXCL, CREATE
_IFNAME, _LINKINFO, _KIND, _DATA = 3, 18, 1, 2
_VETH_PEER, _NETKIT_PEER, _NETKIT_MODE = 1, 1, 4
NESTED = 0x8000
TEST_TYPE = 0x88b5          # an Ethernet type for experiments (IEEE 802)


def pair(kind, one, two):
    """Makes a "veth" or "netkit" (Ethernet) pair, both ends up -> their indexes. KernelError when it cannot be."""
    def named(name):
        return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, 0, 0, 0) + attribute(_IFNAME, name.encode() + b"\0")
    try:
        with open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w") as file:
            file.write("1")     # no packets but the test's
    except OSError:
        pass
    if kind == "veth":
        insert("veth")
    data = attribute((_VETH_PEER if kind == "veth" else _NETKIT_PEER) | NESTED, named(two))
    if kind == "netkit":
        data += attribute(_NETKIT_MODE, struct.pack("=I", 0))
    info = attribute(_KIND, kind.encode() + b"\0") + attribute(_DATA | NESTED, data)
    with Socket() as netlink:
        for _ in netlink.ask("new %s" % kind, _NEWLINK, _CREATE, named(one) + attribute(_LINKINFO | NESTED, info)):
            continue
    for name in (one, two):
        up(name)
    return socket.if_nametoindex(one), socket.if_nametoindex(two)


def insert(*names):
    """Puts modules of the guests (tests/vm/kernels.py) into the kernel, where it has them not; elsewhere it asks for them itself."""
    for name in names if os.environ.get("RAWBPF_CC") else ():
        if not os.path.exists("/sys/module/" + name):
            subprocess.run(["insmod", "/modules/%s.ko" % name], check=True)


def up(name):
    """SIOCSIFFLAGS: IFF_UP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", name.encode(), 0x1))


def frames(sender, receiver, count=5):
    """Sends Ethernet frames of a type of its own out of one interface -> how many the other got."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(TEST_TYPE)) as get, \
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as put:
        get.bind((receiver, TEST_TYPE))
        get.settimeout(0.3)
        got = 0
        try:
            for _ in range(count):
                put.sendto(b"\xff" * 12 + struct.pack("!H", TEST_TYPE) + bytes(50), (sender, 0))
            for _ in range(count):
                get.recv(200)
                got += 1
        except OSError:
            return got
        return got
