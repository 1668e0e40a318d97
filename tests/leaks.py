"""What a test must not leave behind: BPF programs, mounts, processes.

Programs of other processes of the machine are not ours: a new program counts as left behind only
when no live process holds it (it is pinned, or attached to something that outlives its owner).
"""

import gc
import os
import time

from tests import bpf

MARK = "RAWBPF_TESTS"  # environment variable that this run's child processes carry


def mounts():
    """Set of the mounts in sight: `(place, type)`."""
    with open("/proc/self/mountinfo") as file:
        lines = [line.split() for line in file]
    return {(words[4], words[words.index("-") + 1]) for words in lines}


def _processes():
    return filter(str.isdigit, os.listdir("/proc"))


_STRUCT_OPS = 27        # enum bpf_prog_type


def _lingers(number):
    """Is it a program of a struct_ops map, which the kernel frees when every task of the machine has been off its CPU
    once? On a busy machine that is minutes."""
    try:
        return bpf.program_info(number).type == _STRUCT_OPS
    except OSError:
        return False


def orphaned_programs(before, patience=3.0):
    """Ids of programs that are not in `before` and that nobody holds, after up to `patience` s.

    The kernel frees a program some time after its last reference goes.
    """
    end = time.monotonic() + patience
    while True:
        new = bpf.program_ids() - before
        if not new:
            return new
        gc.collect()
        held = set().union(*map(bpf.held_by, _processes()))
        new = {number for number in (new - held) & bpf.program_ids() if not _lingers(number)}
        if not new or time.monotonic() > end:
            return new
        time.sleep(0.1)


def left_processes():
    """`(pid, command line)` of live processes that carry this run's mark."""
    found = []
    mark = f"{MARK}={os.getpid()}".encode()
    for pid in _processes():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                ours = mark in file.read().split(b"\0")
            if ours and int(pid) != os.getpid():
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    found.append((int(pid), file.read().replace(b"\0", b" ").decode(errors="replace")))
        except OSError:
            continue
    return found
