"""Which program is behind a descriptor of a process: bpf(2) BPF_TASK_FD_QUERY (4.18+)."""

import errno
from types import SimpleNamespace

from . import syscalls
from .errors import refused
from .syscalls import address

# enum bpf_task_fd_type
FD_TYPES = ("raw_tracepoint", "tracepoint", "kprobe", "kretprobe", "uprobe", "uretprobe")


def task_fd_query(pid, fd):
    """What the descriptor `fd` of a process attaches -> namespace with fd_type (a name of FD_TYPES),
    prog_id, name (tracepoint, function or file), probe_offset, probe_addr; None when it is neither a
    perf event with a program nor a raw tracepoint. Needs CAP_SYS_ADMIN. Its event must be one that
    has a program: raw tracepoint links, tracepoints, kprobes, uprobes."""
    text = bytearray(4096)
    try:
        _, answer = syscalls.bpf_out("task_fd_query", pid=pid, fd=fd, buf=address(text),
                                     buf_len=len(text))
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EBADF, errno.EINVAL, 524):
            return None
        raise refused("query of descriptor %d of process %d" % (fd, pid), error, "admin", invalid=(
            "there is no such process or descriptor" if error.errno == errno.ENOENT else "")) from None
    kind = answer["fd_type"]
    return SimpleNamespace(
        fd_type=FD_TYPES[kind] if kind < len(FD_TYPES) else "type %d" % kind, prog_id=answer["prog_id"],
        name=text.split(b"\0")[0].decode("utf-8", "surrogateescape"),
        probe_offset=answer["probe_offset"], probe_addr=answer["probe_addr"])
