"""--test, --bench and --probe-filter. The layout is bpftrace 0.27.1's."""

import json
import os
import re

import pytest

from rawbpf.tools.trace import diagnostics
from rawbpf.tools.trace.writer import Writer

pytestmark = pytest.mark.root

TESTS = ('test:a { print("hidden"); } test:b { print("shown"); if (1) { return 1; } } begin { printf("before\\n"); } '
         'test:c { @x = 1; exit(3); } test:d { if (pid) { return 0; } return 2; } end { print("after"); }')
SHOWN = """\
before
\033[32m[==========]\033[0m Running 4 tests.
\033[32m[ RUN      ]\033[0m a
\033[32m[       OK ]\033[0m a
\033[32m[ RUN      ]\033[0m b
shown
\033[31m[  FAILED  ]\033[0m b
\033[32m[ RUN      ]\033[0m c
\033[31m[  FAILED  ]\033[0m c
\033[32m[ RUN      ]\033[0m d
\033[32m[       OK ]\033[0m d
\033[32m[==========]\033[0m 4 tests ran.
\033[32m[  PASSED  ]\033[0m 2 tests.
\033[31m[  FAILED  ]\033[0m 2 tests, listed below:
\033[31m[  FAILED  ]\033[0m b
\033[31m[  FAILED  ]\033[0m c
after


"""


def test_on_a_terminal(monkeypatch):
    from rawbpf.tools.trace.results import TestResult
    monkeypatch.delenv("BPFTRACE_COLOR", raising=False)
    ours, theirs = os.openpty()
    try:
        assert diagnostics.colored(Writer(theirs))
    finally:
        os.close(ours)
        os.close(theirs)
    with open(os.devnull, "w") as nowhere:
        assert os.isatty(nowhere.fileno()) or not diagnostics.colored(Writer(nowhere.fileno()))
    assert "\033[32m[       OK ]\033[0m a (7 ns)\n" in TestResult(["a"], 0, [True], 7, "", True).text()
    assert "\033" not in TestResult(["a"], 0, [False], 7, "").text()


def untimed(text):
    return re.sub(r" \(\d+ (ns|μs|ms|s)\)", "", text)


@pytest.mark.kernel(since="5.10")
@pytest.mark.slow
def test_tests(rawbpf, monkeypatch, tmp_path):
    """In colour on terminals only, unless BPFTRACE_COLOR says otherwise."""
    plain = re.sub("\033[^m]*m", "", SHOWN)
    done = rawbpf("trace", "--test", "-o", "out", "-e", TESTS, cwd=tmp_path)
    assert (untimed((tmp_path / "out").read_text()), done.stdout, done.returncode) == (plain, "", 1)
    shown = {}
    for wanted in ("auto", "always"):
        monkeypatch.setenv("BPFTRACE_COLOR", wanted)
        done = rawbpf("trace", "--test", "-e", TESTS)
        shown[wanted] = untimed(done.stdout)
        assert (done.returncode, done.stderr) == (1, "")
    assert shown == {"auto": plain, "always": SHOWN}
    assert rawbpf("trace", "--mode", "test", "-e", "test:a { }").returncode == 0


@pytest.mark.peer
def test_they_look_like_bpftraces():
    from tests.peers import bpftrace
    theirs = untimed(bpftrace("--test", "-e", TESTS).stdout)        # BEGIN's output comes later there
    assert theirs.splitlines()[:6] == SHOWN.splitlines()[1:7]


def test_an_error_of_a_test_fails_it(rawbpf):
    done = rawbpf("trace", "--test", "-f", "json", "-e", 'test:a { errorf("no"); }')
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert (result["type"], result["data"]["a"]["passed"]) == ("test_result", False)
    assert result["data"]["a"]["output"].startswith("stdin:1:10-22: ERROR: no\n")


@pytest.mark.slow
def test_benchmarks(rawbpf):
    done = rawbpf("trace", "--bench", "-e", "bench:a { @a++ } bench:passed_over { return 1; } bench:b { print(1); }")
    lines = done.stdout.splitlines()
    assert lines[0] == "Benchmark".ljust(41) + "Time(ns)".ljust(15) + "Iterations"
    assert lines[1] == "-" * 66
    for line, name in zip(lines[2:4], "ab"):
        average, repeat = map(int, re.fullmatch(name + r" {40}(\d+) +(\d+)", line).groups())
        assert 0 < average < 100000 and average * repeat >= 1000000
    assert lines[4:] == ["", ""]
    done = rawbpf("trace", "--bench", "-q", "-f", "json", "-e", "bench:a { @a++ }")
    assert sorted(json.loads(done.stdout)["data"]["a"]) == ["average", "iters"]


@pytest.mark.slow
def test_what_they_need(rawbpf):
    done = rawbpf("trace", "-e", "test:a { }")
    assert (done.returncode, done.stderr) == (255, "ERROR: No probes attached; use --test to run test probes.\n")
    done = rawbpf("trace", "--bench", "-e", "begin { }")
    assert (done.returncode, done.stderr) == (1, "ERROR: No probes attached: the script has no bench probes.\n")
    done = rawbpf("trace", "-e", "test:a { print(1); } begin { print(2); }")
    assert (done.stdout, done.stderr) == ("2\n\n\n", "Attached 1 probe\n")


def test_probe_filter(rawbpf):
    script = ('BEGIN { print("begin"); } i:ms:1 { print("bad"); } interval:ms:20 { print("hit"); exit(); } '
              'kprobe:nowhere { } end { print("end"); }')
    done = rawbpf("trace", "--probe-filter", "interval:ms:20$", "-e", script)
    assert (done.stdout, done.stderr) == ("begin\nhit\nend\n\n\n", "Attached 3 probes\n")
    done = rawbpf("trace", "--probe-filter", "other", "-e", "i:ms:1 { }")
    assert (done.returncode, done.stderr) == (1, "No probes to attach\n")
    done = rawbpf("trace", "--probe-filter", "[", "-e", "begin { }")
    assert done.stderr.startswith("ERROR: Invalid --probe-filter regex '[': ")
