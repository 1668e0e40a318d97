"""How long the compiler takes for the tools that come with bpftrace, once its modules are imported: 100 ms is the aim for the
longest (70 to 95 measured on two busy cores of 2020); the limit leaves room for what else the machine does."""

import time

import pytest

from rawbpf.tools.trace.diagnostics import ScriptError
from rawbpf.tools.trace.engine import compile_script

pytestmark = [pytest.mark.root, pytest.mark.peer, pytest.mark.slow]

LIMIT = 0.2     # seconds of processor time


def test_the_longest_tool():
    from tests.peers import root
    taken = {}
    for path in sorted((root() / "usr/sbin").glob("*.bt")):
        text = path.read_text()
        best = None
        for _ in range(4):      # the first one also imports
            start = time.process_time()
            try:
                compile_script(text, path.name)
            except ScriptError:     # this kernel has not what it probes
                break
            now = time.process_time() - start
            best = now if best is None else min(best, now)
        if best is not None:
            taken[path.stem] = best
    assert len(taken) >= 15
    longest = max(taken, key=taken.get)
    assert taken[longest] < LIMIT, (longest, taken[longest])
