"""What a test must not leave behind: BPF programs, mounts, processes.

Program ids are asked of the kernel with a `bpf()` call of this file's own, so that a mistake of
the loader cannot hide itself.  Programs of other processes of the machine are not ours: a new
program counts as left behind only when no live process holds it (it is pinned, or attached to
something that outlives its owner).
"""

import ctypes
import errno
import gc
import os
import platform
import re
import struct
import time

NR_BPF = {"x86_64": 321, "aarch64": 280}[platform.machine()]
BPF_PROG_GET_NEXT_ID, BPF_TASK_FD_QUERY = 11, 20
MARK = "RAWBPF_TESTS"  # environment variable that this run's child processes carry

_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command, attr):
    buffer = ctypes.create_string_buffer(attr, len(attr))
    if _libc.syscall(NR_BPF, command, buffer, len(attr)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return buffer.raw


def program_ids():
    """Set of the ids of every BPF program that the kernel has loaded."""
    ids, last = set(), 0
    while True:
        try:
            last = struct.unpack_from("=II", _bpf(BPF_PROG_GET_NEXT_ID, struct.pack("=II8x", last, 0)))[1]
        except OSError as error:
            if error.errno == errno.ENOENT:
                return ids
            raise
        ids.add(last)


def mounts():
    """Set of the mounts in sight: `(place, type)`."""
    with open("/proc/self/mountinfo") as file:
        lines = [line.split() for line in file]
    return {(words[4], words[words.index("-") + 1]) for words in lines}


def _held_ids():
    """Ids of the programs that live processes hold: by their fd, a link, or a perf event."""
    held = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            for fd in os.listdir(f"/proc/{pid}/fdinfo"):
                with open(f"/proc/{pid}/fdinfo/{fd}") as file:
                    text = file.read()
                held.update(map(int, re.findall(r"^prog_id:\s*(\d+)", text, re.M)))
                if os.readlink(f"/proc/{pid}/fd/{fd}") == "anon_inode:[perf_event]":
                    query = _bpf(BPF_TASK_FD_QUERY, struct.pack("=IIIIQII16x", int(pid), int(fd), 0, 0, 0, 0, 0))
                    held.add(struct.unpack_from("=I", query, 24)[0])
        except OSError:
            continue  # the process or the fd is gone, or nothing is attached to the event
    return held


def orphaned_programs(before, patience=3.0):
    """Ids of programs that are not in `before` and that nobody holds, after up to `patience` s.

    The kernel frees a program some time after its last reference goes.
    """
    end = time.monotonic() + patience
    while True:
        new = program_ids() - before
        if not new:
            return new
        gc.collect()
        new = (program_ids() - before) - _held_ids()
        new &= program_ids()
        if not new or time.monotonic() > end:
            return new
        time.sleep(0.1)


def left_processes():
    """`(pid, command line)` of live processes that carry this run's mark."""
    found = []
    mark = f"{MARK}={os.getpid()}".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                ours = mark in file.read().split(b"\0")
            if ours and int(pid) != os.getpid():
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    found.append((int(pid), file.read().replace(b"\0", b" ").decode(errors="replace")))
        except OSError:
            continue
    return found
