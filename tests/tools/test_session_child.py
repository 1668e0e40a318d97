"""The traced process: held before its first instruction, ended with the tracer, watched to its end."""

import os
import select
import signal
import subprocess
import sys
import time

import pytest

from rawbpf.tools.trace.child import Child, ChildError, Process, find_command, split_command


def state(pid):
    try:
        return open("/proc/%d/stat" % pid).read().rpartition(") ")[2][0]
    except OSError:
        return None


def _ignores(pid, number):
    status = open("/proc/%d/status" % pid).read()
    return bool(int(status.partition("SigIgn:")[2].split()[0], 16) >> (number - 1) & 1)


def test_a_command_waits_and_then_runs(tmp_path):
    child = Child("sh -c 'echo ran > %s/out'" % tmp_path)
    assert not select.select([child.pidfd], [], [], 0.1)[0]
    assert child.alive() and not (tmp_path / "out").exists()
    # it has not become the command: no other program has been executed in it
    assert os.readlink("/proc/%d/exe" % child.pid) == os.readlink("/proc/self/exe")
    child.release()
    assert select.select([child.pidfd], [], [], 5)[0]
    assert not child.alive() and child.status == 0
    assert (tmp_path / "out").read_text() == "ran\n"
    child.close()


def test_words_are_split_at_spaces_unless_quotes_hold_them_together():
    """Quotes around no space are part of the word, as with bpftrace."""
    assert split_command("a 'b c'  \"d'e\" f\\ g 'h' it's \"i j\"k") == ["a", "b c", "\"d'e\"", "f g", "'h'", "it's", "i jk"]
    assert split_command("a 'b c") == ["a", "'b", "c"]
    with pytest.raises(ChildError):
        split_command("  ")


def test_commands_are_looked_up_as_a_shell_does(tmp_path, monkeypatch):
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ChildError, match="is not executable"):
        find_command("tool")
    tool.chmod(0o755)
    assert find_command("tool") == str(tool)
    with pytest.raises(ChildError, match="is a directory"):
        find_command(str(tmp_path))


def test_a_command_that_cannot_be_executed_says_why(tmp_path):
    (tmp_path / "data").write_bytes(b"\x7fELF but not really")
    (tmp_path / "data").chmod(0o755)
    child = Child(str(tmp_path / "data"))
    with pytest.raises(ChildError, match="cannot run"):
        child.release()
    child.close()
    assert state(child.pid) is None


def test_closing_ends_a_command_that_was_held_and_one_that_runs():
    for release in (False, True):
        child = Child("sleep 60")
        if release:
            child.release()
        child.close()
        assert state(child.pid) is None
        child.close()


@pytest.mark.slow
def test_closing_ends_a_command_that_ignores_the_request():
    child = Child("%s -c 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)'" % sys.executable)
    child.release()
    deadline = time.monotonic() + 10
    while not _ignores(child.pid, signal.SIGTERM) and time.monotonic() < deadline:
        time.sleep(0.01)
    begin = time.monotonic()
    child.close()
    assert state(child.pid) is None and time.monotonic() - begin < 5


@pytest.mark.parametrize("released", [False, True])
def test_a_command_ends_when_its_tracer_is_killed(released):
    code = ("import sys, time; from rawbpf.tools.trace.child import Child; c = Child('sleep 60'); "
            "c.release() if %r else None; print(c.pid, flush=True); time.sleep(60)" % released)
    tracer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(tracer.stdout.readline())
    assert state(pid) is not None
    tracer.kill()
    tracer.communicate()
    deadline = time.monotonic() + 5
    while state(pid) not in (None, "Z") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert state(pid) in (None, "Z")


def test_signals_reach_a_command_as_if_a_shell_had_started_it():
    child = Child("sleep 60")
    child.release()
    os.kill(child.pid, signal.SIGINT)
    assert select.select([child.pidfd], [], [], 5)[0]
    assert not child.alive() and os.WTERMSIG(child.status) == signal.SIGINT
    child.close()


def test_a_process_is_watched_to_its_end():
    target = subprocess.Popen(["sleep", "60"])
    process = Process(target.pid)
    assert process.alive()
    target.kill()
    assert select.select([process.pidfd], [], [], 5)[0]
    assert not process.alive()     # ended, though its parent has not asked yet
    target.wait()
    assert not process.alive()
    process.close()
    with pytest.raises(ChildError, match="there is no process"):
        Process(target.pid)
