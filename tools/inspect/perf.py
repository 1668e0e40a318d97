"""`rawbpf perf`: programs on perf events, tracepoints, kprobes and uprobes, and the descriptors that hold them."""

import os

from rawbpf.loader.errors import KernelError
from rawbpf.loader.query import task_fd_query

from .command import run_object
from .objects import recorded

USAGE = """usage: rawbpf perf { show | list }
"""
_PERF_LINKS = ("anon_inode:[perf_event]", "anon_inode:bpf-link", "anon_inode:bpf_link",
               "anon_inode:bpf-raw-tracepoint")


def records():
    """What is attached through each descriptor of each process, as -j has it."""
    # who may not ask does not see the descriptors of others either, and would be told of none: so one of our own first
    own = os.open("/", os.O_RDONLY | os.O_CLOEXEC)
    try:
        task_fd_query(os.getpid(), own)
    finally:
        os.close(own)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fds = os.listdir("/proc/%s/fd" % pid)
        except OSError:
            continue
        for fd in sorted(map(int, fds)):
            try:
                if os.readlink("/proc/%s/fd/%d" % (pid, fd)) not in _PERF_LINKS:
                    continue
                found = task_fd_query(int(pid), fd)
            except KernelError as error:
                if error.errno in (1, 13):
                    raise
                continue
            except OSError:
                continue
            if found is not None:
                yield record(int(pid), fd, found)


def record(pid, fd, found):
    fields = {"pid": pid, "fd": fd, "prog_id": found.prog_id, "fd_type": found.fd_type}
    if found.fd_type in ("raw_tracepoint", "tracepoint"):
        fields["tracepoint"] = found.name
    elif found.fd_type in ("uprobe", "uretprobe"):
        fields.update(filename=found.name, offset=found.probe_offset)
    elif found.name:
        fields.update(func=found.name, offset=found.probe_offset)
    else:
        fields["addr"] = found.probe_addr
    return fields


def text(fields):
    out = "pid %d  fd %d: prog_id %d  %s  " % (fields["pid"], fields["fd"], fields["prog_id"], fields["fd_type"])
    if "tracepoint" in fields:
        return out + fields["tracepoint"] + "\n"
    if "filename" in fields:
        return out + "filename %s  offset %d\n" % (fields["filename"], fields["offset"])
    if "func" in fields:
        return out + "func %s  offset %d\n" % (fields["func"], fields["offset"])
    return out + "addr %d\n" % fields["addr"]


def show(session, words):
    words.end()
    found = recorded("perf")
    session.show(records() if found is None else found, text)


VERBS = {"show": show, "list": show}


def run(argv):
    return run_object("perf", VERBS, USAGE, argv)
