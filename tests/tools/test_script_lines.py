"""The kernel knows a script's lines: `prog dump xlated linum`, ours and bpftool's, and the verifier's log say them."""

import re

import pytest

from rawbpf.loader import kernel
from tests.tools.forked import rawbpf

TEXT = """// Lines are counted from 1.
interval:s:10 {
  $x = nsecs;
  if ($x > 5) {
    @a = count();
  }
  for ($i : 0..@n) {
    @b[pid] = $x;
  }
}
profile:hz:1 { @n = 3; }
"""
if kernel.release() < (5, 17):  # such a loop needs bpf_loop
    TEXT = TEXT.replace("for ($i : 0..@n) {", "if (@n > 0) {")
# (file, line, column) of every statement that makes instructions, by program
LINES = {"interval_s_10_1": [(3, 3), (4, 3), (5, 5), (7, 3), (8, 5)], "profile_hz_1_2": [(11, 16)]}
SHOWN = re.compile(r"^; (.*) \[file:(\S+) line_num:(\d+) line_col:(\d+)\]$", re.M)


@pytest.fixture
def programs():
    """[(id, name of the function)] of the loaded script."""
    from rawbpf.tools.trace.engine import compile_script
    from rawbpf.tools.trace.session import Session
    session = Session(compile_script(TEXT, "lines.bt"), None)
    session.log_level = 2   # every instruction
    try:
        session.load()
        yield [(loaded.info().id, compiled.name, loaded) for compiled, loaded in session.programs]
    finally:
        session.close()


def check(listing, name):
    text = TEXT.splitlines()
    shown = SHOWN.findall(listing)
    assert {(file, words) for words, file, line, _ in shown} == {
        ("lines.bt", text[line - 1].strip()) for line, _ in LINES[name]}
    places = [(int(line), int(column)) for _, _, line, column in shown]
    assert sorted(set(places)) == LINES[name]
    # the first instruction of each function has a line
    assert re.search(r"^\S.*\b%s\(.*\):\n; " % name, listing, re.M)


@pytest.mark.kernel
def test_our_listing(programs):
    assert len(programs) == 2
    for number, name, _ in programs:
        done = rawbpf("prog", "dump", "xlated", "id", number, "linum")
        assert done.returncode == 0, done.stderr
        check(done.stdout.decode(), name)


@pytest.mark.root
@pytest.mark.peer
def test_bpftools_listing(programs):
    from tests.peers import bpftool
    for number, name, _ in programs:
        listing = bpftool("prog", "dump", "xlated", "id", str(number), "linum").stdout
        check(listing, name)
        assert listing == rawbpf("prog", "dump", "xlated", "id", number, "linum").stdout.decode() or "percpu" in listing


@pytest.mark.kernel
def test_the_verifiers_log(programs):
    for (_, name, loaded) in programs:
        for line, _ in LINES[name]:
            assert re.search(r"^; %s" % re.escape(TEXT.splitlines()[line - 1].strip()), loaded.log, re.M), name
