"""The inspectors on a machine with much on it, beside bpftool: `python -m tests.bench.inspectors`.

Seconds of the processor and of the clock, and the most memory, of a process each. "list": 2,000 programs and their maps;
"dump": a hash table and a per-CPU array of a million elements; "feature probe".
"""

import os
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager

from rawbpf.loader import Map, Program
from tests import peers
from tests.loader import code

OURS = [sys.executable, "-m", "rawbpf.tools"]


def run(argv):
    """(seconds of the processor, of the clock, megabytes at most, bytes of output) of a command."""
    with tempfile.TemporaryFile() as out:
        began = time.monotonic()
        process = subprocess.Popen(argv, stdout=out, stdin=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        passed = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, argv
        return usage.ru_utime + usage.ru_stime, passed, usage.ru_maxrss / 1024, os.fstat(out.fileno()).st_size


@contextmanager
def programs(count):
    """So many programs are loaded, each with a map."""
    with ExitStack() as stack:
        item = stack.enter_context(Map.create("array", 4, 8, 1))
        for number in range(count):
            stack.enter_context(Program.load("socket_filter", code.map_fd(1, item) + code.mov(0, number) + code.EXIT,
                                             name="bench_%d" % number))
        yield


@contextmanager
def elements(kind, count, size=8):
    """A map of so many elements -> its id."""
    with Map.create(kind, 4, size, count) as item:
        if kind == "hash":
            for start in range(0, count, 4096):
                item.update_batch((struct.pack("=I", number), struct.pack("=Q", number))
                                  for number in range(start, min(start + 4096, count)))
        yield str(item.info().id)


def figures(number=2000, count=1000000):
    """(what, ours, bpftool's) of each measurement."""
    with programs(number):
        for words in (["prog", "show"], ["-j", "prog", "show"], ["prog", "show", "name", "bench_7"]):
            yield _both("%s, %d programs" % (" ".join(words), number), words)
    for kind in ("hash", "percpu_array"):
        with elements(kind, count) as item:
            for words in (["map", "dump", "id", item], ["-j", "map", "dump", "id", item]):
                yield _both("%s%s, %s of %d" % (words[0] + " " if words[0] == "-j" else "", "map dump", kind, count), words)
    yield _both("feature probe", ["feature", "probe"])


def _both(what, words):
    return what, run([*OURS, *words]), run(peers.command("bpftool", *words))


def main():
    print("| | rawbpf: CPU s | clock s | MB | bpftool: CPU s | clock s | MB | output MB |\n|---|---|---|---|---|---|---|---|")
    for what, ours, theirs in figures():
        print("| %s | %.2f | %.2f | %.0f | %.2f | %.2f | %.0f | %.1f |" % (
            what, *ours[:3], *theirs[:3], ours[3] / 1e6), flush=True)


if __name__ == "__main__":
    main()
