"""rawbpf top: rates of a program whose runs are counted here."""

import json

import pytest

from rawbpf.loader import Program
from rawbpf.tools.inspect.top import difference
from tests.loader import code


def test_rates_are_differences():
    before = {1: (100, 10, "xdp", "a"), 2: (0, 0, "kprobe", "b"), 3: (5, 5, "xdp", "gone")}
    after = {1: (100 + 2 * 10**7, 10 + 1000, "xdp", "a"), 2: (0, 0, "kprobe", "b"), 4: (9, 9, "xdp", "new")}
    assert difference(before, after, 2.0) == [{"id": 1, "type": "xdp", "name": "a", "cpu_percent": 1.0,
                                               "runs_per_second": 500.0, "ns_per_run": 20000}]


@pytest.mark.root
def test_top_counts_runs(rawbpf):
    with Program.load("raw_tracepoint", code.RETURN_0, name="t_top") as program:
        from rawbpf.loader.link import attach_raw_tracepoint
        with attach_raw_tracepoint(program, "sys_enter"):
            done = rawbpf("top", "-j", "interval", "0.3", "count", "2")
        number = program.info().id
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rounds) == 2 and not done.stderr
    mine = [row for row in rounds[1] if row["id"] == number]
    assert mine and mine[0]["runs_per_second"] > 1 and mine[0]["name"] == "t_top"


@pytest.mark.parametrize("words", [["interval", "x"], ["interval", "0"], ["count"], ["frobnicate"]])
def test_wrong_words(rawbpf, words):
    done = rawbpf("top", *words)
    assert done.returncode == 255 and done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
