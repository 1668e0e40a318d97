"""Measures one process: start to finish, and the most memory it had."""

import compileall
import functools
import json
import shutil
import subprocess
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

from tests import peers
from tests.cc import compile_c

PROJECT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("asm", "elf", "loader", "sources", "tools")

# A small parent: what a forked child has had of its parent's memory counts into its ru_maxrss.
LAUNCH = r"""
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* launch RESULT COMMAND...: run the command; its status, wall seconds, user and system seconds and
 * peak resident KiB go to the file RESULT as JSON */
int main(int argc, char **argv)
{
    double begun = now();
    pid_t child = vfork();
    if (child == 0) {
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    int status;
    struct rusage used;
    if (argc < 3 || wait4(child, &status, 0, &used) != child)
        return 1;
    double wall = now() - begun;
    FILE *out = fopen(argv[1], "w");
    fprintf(out, "{\"status\": %d, \"wall\": %.6f, \"cpu\": %.6f, \"rss\": %ld}\n", status, wall,
            used.ru_utime.tv_sec + used.ru_stime.tv_sec
            + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6, used.ru_maxrss);
    return fclose(out);
}
"""


class ToolError(Exception):
    """A measured command failed; the text is what it said."""


class Usage(NamedTuple):
    """What one run of a process took."""

    wall: float  # seconds
    cpu: float   # seconds, user and system
    rss: int     # KiB


class Installation:
    """A virtual environment with rawbpf, as README's command makes it.

    The tests run from an editable installation, which costs every start some milliseconds.
    """

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="rawbpf-bench-")
        home = Path(self._folder.name)
        venv.create(home, with_pip=False, symlinks=True)
        self.python = str(home / "bin/python")
        self._site = next(home.glob("lib/python*/site-packages"))
        ignore = shutil.ignore_patterns("__pycache__")
        for room in ROOMS:
            shutil.copytree(PROJECT / room, self._site / "rawbpf" / room, ignore=ignore)
        compileall.compile_dir(str(self._site), quiet=2)
        self.command = str(home / "bin/rawbpf")
        Path(self.command).write_text("import sys\nfrom rawbpf.tools.cli import main\nsys.exit(main())\n")

    def size(self):
        """Bytes, compiled files included."""
        return sum(path.stat().st_size for path in self._site.rglob("*") if path.is_file())


@functools.lru_cache(maxsize=None)
def installed():
    """The one `Installation` of this run."""
    return Installation()


class Tool(NamedTuple):
    """One of the two tools: how to start it."""

    name: str

    def command(self, *arguments):
        if self.name == "bpftrace":
            return peers.command("bpftrace", *arguments)
        return [installed().python, installed().command, "trace", *arguments]

    def enter(self):
        """To be called in the child before exec: bpftrace needs a tracefs, rawbpf does not."""
        if self.name == "bpftrace":
            peers.enter_tracefs()


OURS, THEIRS = Tool("rawbpf"), Tool("bpftrace")


def measure(command, enter=None, timeout=120):
    """Run `command` to its end: `Usage`.  `ToolError` if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        launcher = compile_c(LAUNCH, "-O2", name="launch")
        done = subprocess.run([launcher, str(result), *command], preexec_fn=enter, timeout=timeout,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        measured = json.loads(result.read_text()) if result.exists() else {"status": -1}
    if measured["status"] != 0:
        raise ToolError(last_line(done.stderr.decode(errors="replace")))
    return Usage(measured["wall"], measured["cpu"], measured["rss"])


def measure_tool(tool, *arguments):
    """`measure` of one of the two tools."""
    return measure(tool.command(*arguments), tool.enter)


def last_line(text):
    """The line of an error output that says most: its first error, or its last line."""
    lines = [line for line in text.splitlines() if line.strip()] or ["no output"]
    return next((line for line in lines if "ERROR" in line or "Error:" in line), lines[-1])
