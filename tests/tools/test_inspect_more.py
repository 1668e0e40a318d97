"""map event_pipe, prog attach and detach, version: beside what the test itself did."""

import array
import errno
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import time

import pytest

from rawbpf.asm import assemble
from rawbpf.loader import Map, Object, Program, ids
from tests.loader.code import EXIT, mov
from tests.tools.inspecting import OUTPUT, run, run_json


def peeked(pipe):
    """How much a pipe holds, as so many bytes."""
    size = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, size)
    return bytes(size[0])


@pytest.mark.kernel
@pytest.mark.parametrize("options", [(), ("-j",)])
def test_event_pipe(rawbpf, options):
    with Map.create("perf_event_array", 4, 4, os.cpu_count(), name="t_events") as events, \
            Program.load("sched_cls", assemble(OUTPUT).instructions(), maps={"events": events}) as program:
        # each record of ours is of this many bytes, padded by the kernel
        done = rawbpf.start("map", "event_pipe", "id", str(events.info().id), *options)
        data = bytes.fromhex("8877665544332211")
        for _ in range(500):
            program.test_run(bytes(14))
            # what it writes is looked at, not read: communicate() is to have all of it
            if select.select([done.stdout], [], [], 0.05)[0] and len(peeked(done.stdout)) > 60:
                break
        done.send_signal(signal.SIGINT)
        out = done.communicate(timeout=20)[0]
    if options:
        first = json.loads(out)[0]
        assert first["type"] == 9 and first["index"] == first["cpu"] < os.cpu_count()
        assert bytes(first["data"])[:8] == data and first["timestamp"] > 0
    else:
        head, text = out.split("\n")[:2]
        assert head.startswith("== @") and head.endswith(" =====") and " CPU: " in head and " index: " in head
        assert text.startswith("88 77 66 55 44 33 22 11")
    assert done.returncode == 0


@pytest.mark.root
def test_event_pipe_of_one_buffer_and_errors():
    with Map.create("perf_event_array", 4, 4, 2) as events, Map.create("array", 4, 4, 1) as array:
        for words, said in (((events, "cpu", "0"), "cpu and index must be specified together"),
                            ((events, "cpu", "0", "index", "9"), "index 9: the map has 2 entries"),
                            ((events, "colour", "0"), "expected 'cpu' or 'index', got: 'colour'"),
                            ((array,), "map is not a perf event array")):
            assert run("map", "event_pipe", "id", words[0].info().id, *words[1:])[::2] == (255, "Error: %s\n" % said)


@pytest.mark.kernel
def test_a_verdict_on_a_sockmap():
    with Map.create("sockmap", 4, 4, 2) as sockets, \
            Program.load("sk_skb", mov(0, 1) + EXIT, expected_attach_type="sk_skb_stream_verdict") as verdict:
        left, right = socket.socket(), socket.socket()
        words = "id", verdict.info().id, "sk_skb_stream_verdict", "id", sockets.info().id
        assert run("prog", "detach", *words)[0] == 255          # it is not there
        assert run("prog", "attach", *words) == (0, "", "")
        assert run_json("prog", "detach", *words) is None
        left.close(), right.close()
        assert run("prog", "attach", "id", verdict.info().id, "nonsense", "id", sockets.info().id)[2] == (
            "Error: invalid attach/detach type: nonsense\n")


def test_version():
    found = run_json("version")
    assert run("version")[1] == run("--version")[1] == "rawbpf %s\n" % found["version"]
    assert found["features"]["bootstrap"] is False and found["features"]["crypto"] is False


PROFILED = ".section socket\nprofiled:\n    r6 = 0\nagain:\n    r6 += 1\n    if r6 < 200 goto again\n    r0 = 0\n    exit\n"


@pytest.mark.slow
@pytest.mark.vm
def test_profile(rawbpf, tmp_path):
    """The runs are counted exactly; the clock goes on in them, and not beyond the time that passed."""
    (tmp_path / "p.s").write_text(PROFILED)
    assert rawbpf("asm", "-f", "elf", "-o", tmp_path / "p.o", tmp_path / "p.s").returncode == 0
    with Object.open(tmp_path / "p.o") as obj:
        obj.load()
        program = obj.programs["profiled"].program
        number = str(program.info().id)
        before = {one["id"] for one in json.loads(rawbpf("-j", "prog", "show").stdout)}
        done = rawbpf.start("-j", "prog", "profile", "id", number, "cpu_clock")
        # both programs of it are there when the second link is
        until = time.monotonic() + 30
        while time.monotonic() < until and sum(
                one["type"] == "tracing" for one in json.loads(rawbpf("-j", "link", "show").stdout)) < 2:
            assert done.poll() is None, done.stderr.read()
        start = time.monotonic_ns()
        for _ in range(100):
            program.test_run(bytes(14))
        passed = time.monotonic_ns() - start
        done.send_signal(signal.SIGINT)
        out, error = done.communicate(timeout=30)
        assert (done.returncode, error) == (0, "")
        (found,) = json.loads(out)
        assert (found["metric"], found["run_cnt"]) == ("cpu_clock", 100)
        assert 0 < found["value"] < passed and found["running"] <= found["enabled"]
        text = rawbpf("prog", "profile", "id", number, "duration", "1", "cpu_clock").stdout
        assert text.startswith("\n%18d run_cnt" % 0) and "%18d cpu_clock" % 0 in text
        assert {one["id"] for one in json.loads(rawbpf("-j", "prog", "show").stdout)} == before


@pytest.mark.root
def test_profile_errors():
    with Program.load("socket_filter", mov(0, 0) + EXIT) as program:
        number = program.info().id
        for words, said in (((), "no metric: there are cycles"), (("colour",), "unknown metric colour: there are cycles"),
                            (("cycles",), "program %d has no BTF, which fentry needs" % number),
                            (("cycles", "instructions", "l1d_loads", "llc_misses", "cpu_clock"), "too many metrics: 4 at most")):
            status, out, error = run("prog", "profile", "id", number, *words)
            assert (status, out) == (255, "") and error.startswith("Error: " + said) and error.count("\n") == 1


@pytest.mark.root
def test_links_that_are_being_made_are_passed_over(monkeypatch):
    """The kernel gives a link its number before anybody may open it: EAGAIN."""
    def again(*_, **__):
        raise OSError(errno.EAGAIN, "")
    monkeypatch.setattr("rawbpf.loader.syscalls.bpf", again)
    assert ids.open_fd("link", 1) is None
    assert run("link", "show", "id", 1)[2] == "Error: get link by id (1): No such file or directory\n"


CHURN = """
import sys
from rawbpf.loader import Map, Program, link
from tests.loader import code
print("ready", flush=True)
while True:
    with Map.create("hash", 4, 4, 1, name="churn") as item, Program.load(
            "raw_tracepoint", code.map_fd(1, item) + code.RETURN_0, name="churn") as program, \\
            link.attach_raw_tracepoint(program, "sched_process_exit"):
        item.update(bytes(4), bytes(4))
"""


@pytest.mark.slow
@pytest.mark.root
def test_what_comes_and_goes_while_it_is_listed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", CHURN], stdout=subprocess.PIPE, text=True) as churn:
        try:
            assert churn.stdout.readline() == "ready\n"
            until = time.monotonic() + 3
            while time.monotonic() < until:
                for words in (["prog"], ["map"], ["link"], ["btf"], ["perf"], ["tree"], ["snapshot", tmp_path / "s"],
                              ["diff", tmp_path / "s"], ["who", "bpf_map*"]):
                    status, out, error = run(*words, "-j")
                    json.loads(out)
                    assert (status, error) == (words[0] == "who" and out == "[]\n", ""), words    # 1: it found none
        finally:
            churn.kill()
