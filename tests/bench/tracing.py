"""What tracing costs the traced process, and how fast events come out.

The traced process is `load.c`: it makes syscalls (or function calls) that hardly anything else on
the machine makes, and the scripts filter by its pid.
"""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests import bpf
from tests.bench.process import ToolError, last_line
from tests.cc import compile_c

LOAD = (Path(__file__).parent / "load.c").read_text()
PATIENCE = 30  # seconds until a tool must have attached, or ended


class Cost(NamedTuple):
    """What a script costs: per event, and until it has attached."""

    nanoseconds: float
    instructions: int  # translated, of all its programs
    attached: float    # seconds
    memory: int        # KiB, the most that the tool had


class Flow(NamedTuple):
    """What came out of a script that prints every event."""

    fired: int      # events
    seconds: float  # that the traced process took to make them
    printed: int    # lines
    reported: int   # events that the tool says it lost
    drained: float  # seconds from the first event until the last line was out


class Load:
    """The traced process, started and waiting."""

    def __init__(self, mode, count, rate=0):
        self.path = load_path()
        self.count = count
        self.process = subprocess.Popen([self.path, mode, str(count), str(rate)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.process.pid

    def go(self):
        """Make the events; seconds that it took."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline().split()[1]) / 1e9

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def load_path():
    """Path of the compiled load generator."""
    return compile_c(LOAD, "-O1", "-fno-omit-frame-pointer", "-no-pie", name="load")


class Session:
    """A tool that runs a script: attached when made, detached by `finish`."""

    def __init__(self, tool, *arguments):
        self._errors = tempfile.TemporaryFile("w+")
        self.output = tempfile.NamedTemporaryFile("w+", dir="/dev/shm", prefix="rawbpf-bench-")
        command = tool.command(*arguments)      # makes an installation the first time
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command, preexec_fn=tool.enter,
            stdin=subprocess.DEVNULL, stdout=self.output, stderr=self._errors)
        try:
            self._wait_attached()
        except BaseException:
            self.process.kill()
            self.finish(signal.SIGKILL)
            raise

    def _wait_attached(self):
        while "Attached" not in self.said():
            if self.process.poll() is not None:
                raise ToolError(last_line(self.said()))
            if time.monotonic() - self.started > PATIENCE:
                raise ToolError(f"not attached within {PATIENCE} s")
            time.sleep(0.002)
        self.attached = time.monotonic() - self.started

    def said(self):
        """What the tool has written to stderr."""
        return os.pread(self._errors.fileno(), 1 << 20, 0).decode(errors="replace")

    def programs(self):
        """`ProgramInfo` of each program that the tool holds."""
        return [bpf.program_info(number) for number in bpf.held_by(self.process.pid)]

    def memory(self):
        """KiB that the tool has had resident at most."""
        return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/%d/status" % self.process.pid).read_text())[1])

    def finish(self, number=signal.SIGINT):
        """Stop the tool; seconds until it was gone."""
        began = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise ToolError(f"did not end within {PATIENCE} s")
        return time.monotonic() - began

    def close(self):
        """Free the files."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.output.close()
        self._errors.close()


@contextlib.contextmanager
def session(tool, *arguments):
    """A `Session`, stopped and closed at the end."""
    made = Session(tool, *arguments)
    try:
        yield made
    finally:
        made.close()


def cost(tool, mode, script, count=100000):
    """`Cost` of a script (with `PID` and `LOAD` for the traced process) under `count` events."""
    with Load(mode, count) as load, \
            session(tool, "-e", script.replace("PID", str(load.pid)).replace("LOAD", load.path)) as run:
        before = run.programs()
        stats = bpf.enable_stats()
        try:
            load.go()
            after = run.programs()
        finally:
            os.close(stats)
        memory = run.memory()
        run.finish()
    if not after:
        raise ToolError("no program of it is in sight")
    spent = sum(program.run_time_ns for program in after) - sum(program.run_time_ns for program in before)
    return Cost(spent / count, sum(program.translated for program in after), run.attached, memory)


def lost_events(text):
    """Events that a tool says it lost, in any of the wordings of the two tools."""
    return sum(int(number) for number in re.findall(r"[Ll]ost (\d+) events", text))


def flow(tool, mode, script, count, rate=0):
    """`Flow` of a script that prints one line an event, at `rate` events a second (0: unlimited)."""
    with Load(mode, count, rate) as load, session(tool, "-e", script.replace("PID", str(load.pid))) as run:
        path = run.output.name
        began = time.monotonic()
        seconds = load.go()
        size, changed = -1, time.monotonic()
        while time.monotonic() - changed < 0.5:  # until nothing comes any more
            now = os.stat(path).st_size
            if now != size:
                size, changed = now, time.monotonic()
            time.sleep(0.01)
        run.finish()
        with open(path, "rb") as file:
            text = file.read()
        reported = lost_events(run.said()) + lost_events(
            "\n".join(line.decode(errors="replace") for line in text.splitlines() if b"ost " in line))
        return Flow(count, seconds, text.count(b"event "), reported, changed - began)


def attach_and_detach(tool, functions):
    """Seconds until uprobes on `functions` functions were attached, and until they were gone."""
    source = "".join(f"int many_{n}(int a) {{ return a + {n}; }}\n" for n in range(functions))
    program = compile_c(source + "int main(void) { return many_0(0); }", "-O1", name="many")
    with session(tool, "-e", f"uprobe:{program}:many_* {{ @ = count(); }}") as run:
        return run.attached, run.finish()
