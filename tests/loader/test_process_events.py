"""Process events: an exec, what it maps and its end are told, in order, though the process is gone."""

import os
import subprocess

import pytest

from rawbpf.loader.process_events import ProcessEvents

pytestmark = pytest.mark.kernel


def test_a_short_process_leaves_its_mappings():
    with ProcessEvents() as events:
        process = subprocess.Popen(["/bin/true"])
        process.wait()
        records = [record for record in events.consume() if record[1] == process.pid]
    kinds = [record[0] for record in records]
    assert kinds[-1] == "exit" and "exec" in kinds
    mapped = [record[2] for record in records[kinds.index("exec"):] if record[0] == "mmap"]
    path = os.path.realpath("/bin/true").encode()
    assert sum(line.endswith(b" " + path) for line in mapped) == 1
    for line in mapped:
        start, end = (int(part, 16) for part in line.split()[0].split(b"-"))
        assert start < end and line.split()[1] == b"r-xp"


def test_a_fork_is_told_with_its_parent_and_threads_are_not():
    with ProcessEvents() as events:
        done = subprocess.run(["sh", "-c", "echo $$; (exit 0) & wait"], capture_output=True, text=True, check=True)
        shell = int(done.stdout)
        forks = [record for record in events.consume() if record[0] == "fork"]
    assert [record for record in forks if record[2] == shell]
    assert [record for record in forks if record[1] == shell and record[2] == os.getpid()]


def test_the_ring_may_wrap():
    with ProcessEvents(pages=1) as events:
        seen = 0
        for _ in range(60):
            subprocess.run(["/bin/true"], check=True)
            seen += sum(record[0] == "exec" for record in events.consume())
    assert seen >= 60


def test_a_child_never_comes_before_its_fork():
    """CPU 0 is read, then the fork happens there and the exec on CPU 1, which is read next."""
    readings = [[(20, ("exec", 7))],                       # the fork came too late for this reading
                [(10, ("fork", 7, 1)), (30, ("exec", 8))],  # and the second one misses that of 8
                [(25, ("fork", 8, 1))], [], []]
    events = ProcessEvents.__new__(ProcessEvents)
    events._buffers, events._waiting = [], []
    events._read = lambda: readings.pop(0)
    assert events.consume() == [("fork", 7, 1), ("exec", 7)]
    assert events.consume() == [("fork", 8, 1), ("exec", 8)]
    assert events.consume() == []
