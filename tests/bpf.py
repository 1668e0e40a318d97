"""The few `bpf()` commands that tests ask the kernel themselves, so that a mistake of the loader
cannot hide itself: which programs are loaded, who holds them, what they cost.

Layouts are those of the kernel's include/uapi/linux/bpf.h.
"""

import ctypes
import errno
import os
import platform
import re
import struct
from typing import NamedTuple

NR_BPF = {"x86_64": 321, "aarch64": 280}[platform.machine()]
PROG_GET_NEXT_ID, PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD, TASK_FD_QUERY, ENABLE_STATS = 11, 13, 15, 20, 32
PROG_INFO_SIZE = 232

_libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attr):
    """bpf(2): `(result, attr as the kernel left it)`; OSError."""
    buffer = ctypes.create_string_buffer(attr, len(attr))
    result = _libc.syscall(NR_BPF, command, buffer, len(attr))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result, buffer.raw


def program_ids():
    """Set of the ids of every BPF program that the kernel has loaded."""
    ids, last = set(), 0
    while True:
        try:
            last = struct.unpack_from("=II", bpf(PROG_GET_NEXT_ID, struct.pack("=II8x", last, 0))[1])[1]
        except OSError as error:
            if error.errno == errno.ENOENT:
                return ids
            raise
        ids.add(last)


def held_by(pid):
    """Set of the ids of the programs that a process holds: by an fd, a link, or a perf event."""
    held = set()
    try:
        fds = os.listdir(f"/proc/{pid}/fdinfo")
    except OSError:
        return held
    for fd in fds:
        try:
            with open(f"/proc/{pid}/fdinfo/{fd}", errors="replace") as file:      # paths of uprobes, too
                held.update(map(int, re.findall(r"^prog_id:\s*(\d+)", file.read(), re.M)))
            if os.readlink(f"/proc/{pid}/fd/{fd}") == "anon_inode:[perf_event]":
                query = struct.pack("=IIIIQII16x", int(pid), int(fd), 0, 0, 0, 0, 0)
                held.add(struct.unpack_from("=I", bpf(TASK_FD_QUERY, query)[1], 24)[0])
        except OSError:
            continue  # the fd is gone, or nothing is attached to the event
    return held


class ProgramInfo(NamedTuple):
    """What `bpf_prog_info` says of one program."""

    name: str
    translated: int  # instructions after the verifier's rewriting
    jited: int       # bytes of machine code
    run_time_ns: int
    run_cnt: int
    type: int        # enum bpf_prog_type


def program_info(number):
    """`ProgramInfo` of the program with this id."""
    fd = bpf(PROG_GET_FD_BY_ID, struct.pack("=III4x", number, 0, 0))[0]
    try:
        info = ctypes.create_string_buffer(PROG_INFO_SIZE)
        bpf(OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, PROG_INFO_SIZE, ctypes.addressof(info)))
    finally:
        os.close(fd)
    jited, translated = struct.unpack_from("=II", info, 16)
    return ProgramInfo(info.raw[64:80].split(b"\0")[0].decode(), translated // 8, jited,
                       *struct.unpack_from("=QQ", info, 192), struct.unpack_from("=I", info)[0])


def enable_stats():
    """An fd: while it is open, the kernel measures the run time of every program (5.8)."""
    return bpf(ENABLE_STATS, struct.pack("=I12x", 0))[0]
