"""What the tests of the inspectors share: objects of the kernel, and the command in this process."""

import contextlib
import functools
import io
import json
import subprocess

from rawbpf.tools import cli
from tests import peers

# writes eight bytes into the perf buffer of this CPU
OUTPUT = """
r6 = 0x1122334455667788 ll
*(u64 *)(r10 - 8) = r6
r2 = map[events] ll
r3 = 0xffffffff ll
r4 = r10
r4 += -8
r5 = 8
call bpf_perf_event_output
r0 = 0
exit
"""


def run(*words):
    """(exit status, standard output, error stream) of a command line, run in this process."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        status = cli.main([str(word) for word in words])
    return status, out.getvalue(), error.getvalue()


def run_json(*words):
    """What a command that succeeds says under -j."""
    status, out, error = run(*words, "-j")
    assert (status, error) == (0, ""), out + error
    return json.loads(out)


def without_pids(value):
    """bpftool may be built without the code that finds holders (Debian's is)."""
    if isinstance(value, dict):
        return {name: without_pids(item) for name, item in value.items() if name != "pids"}
    return [without_pids(item) for item in value] if isinstance(value, list) else value


@functools.lru_cache(maxsize=None)
def bpftool_command():
    return peers.command("bpftool")


def bpftool(*words, **options):
    """What bpftool says: `.returncode`, `.stdout` and `.stderr`."""
    return subprocess.run([*bpftool_command(), *map(str, words)], universal_newlines=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=300, **options)
