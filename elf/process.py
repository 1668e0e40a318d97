"""What proc(5) says of a process: the letter of its state, and which of its threads lives."""

import os

ENDED = (b"Z", b"X")


def state(pid):
    """The letter of the state of a process or thread, b"" where there is none."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rpartition(b") ")[2][:1]
    except OSError:
        return b""


def living_thread(pid):
    """The process's number, or that of a thread which lives on when its first one has ended: /proc/THREAD still tells what
    /proc/PID does not any more."""
    if state(pid) == b"Z":
        try:
            for thread in map(int, os.listdir("/proc/%d/task" % pid)):
                if state(thread) not in (*ENDED, b""):
                    return thread
        except OSError:
            return pid
    return pid
