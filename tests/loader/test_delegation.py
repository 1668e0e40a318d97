"""BPF tokens: a user namespace without capabilities in the initial one makes maps and programs, by what a BPF file
system delegates to it (Linux 6.9+)."""

import ctypes
import os
import socket
import traceback

import pytest

from rawbpf.asm import assemble, write_object
from rawbpf.loader import KernelError, Map, Object, Program
from rawbpf.loader.btf import BtfObject, storage_types
from rawbpf.loader.kobject import Token
from rawbpf.loader.uapi import MAP_TYPES
from tests.loader.code import RETURN_0

pytestmark = pytest.mark.kernel(since="6.9")
OBJECT = write_object(assemble("""
.license "GPL"
.map counts hash key=4 value=8 max_entries=16
.section xdp
count:
    r1 = map[counts] ll
    r0 = 2
    exit
"""), MAP_TYPES)
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
FSOPEN, FSCONFIG, FSMOUNT = 430, 431, 432          # the same on x86_64 and aarch64
SET_STRING, CMD_CREATE = 1, 6


def call(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(*[ctypes.c_long(each) if isinstance(each, int) else each for each in (number,) + arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), "system call %d" % number)
    return result


def delegate(channel):
    """The privileged side: says what the file system that the other opened delegates."""
    _, (fd,), _, _ = socket.recv_fds(channel, 1, 1)
    for name in (b"delegate_cmds", b"delegate_maps", b"delegate_progs", b"delegate_attachs"):
        call(FSCONFIG, fd, SET_STRING, name, b"any", 0)
    call(FSCONFIG, fd, CMD_CREATE, None, None, 0)
    os.close(fd)
    channel.send(b"x")


def unprivileged(channel):
    """The other side, in a user namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    with pytest.raises(KernelError):
        Program.load("socket_filter", RETURN_0)
    fd = call(FSOPEN, b"bpf", 1)
    socket.send_fds(channel, [b"x"], [fd])
    channel.recv(1)
    root = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=call(FSMOUNT, fd, 1, 0))
    with Token.create(root) as token:
        with Map.create("hash", 4, 8, 16, token=token) as map:
            map.update(1, b"12345678")
            assert map[1] == b"12345678"
        with Program.load("xdp", RETURN_0, token=token) as program:
            assert program.fileno() > 0
        with BtfObject.load(storage_types(8), token=token) as btf:
            assert btf.fileno() > 0
        with Object.parse(OBJECT, token=token) as obj:
            obj.load()
            obj.maps["counts"].map[5] = b"12345678"
            assert obj.btf is not None and obj.programs["count"].program.fileno() > 0
    with pytest.raises(KernelError):
        Program.load("xdp", RETURN_0)


def test_a_token_stands_for_capabilities():
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        status = 1
        try:
            ours.close()
            unprivileged(theirs)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    theirs.close()
    try:
        delegate(ours)
    finally:
        ours.close()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0
