"""Every script of tests/tools/scripts prints what is recorded beside it, in text and JSON; the records
are bpftrace's output (see corpus.py)."""

import os

import pytest

from tests.tools import corpus
from tests.tools.forked import rawbpf

SCRIPTS = corpus.scripts()
# JSON of what is compared with bpftrace itself anyway (below) is left to that: the tests that a person
# runs first are to take less than three minutes.
RECORDED = [pytest.param(script, form, marks=[pytest.mark.peer] if form == "json" and not script.differs else
                         [pytest.mark.slow] if script.slow else [])
            for script in SCRIPTS for form in corpus.FORMS if not (script.live or script.later)]
COMPARED = [script for script in SCRIPTS if not (script.differs or script.later)]
if os.environ.get("RAWBPF_PEER_SCRIPTS") != "all":      # CI has time for some: the records are bpftrace's too
    COMPARED = COMPARED[::3]


@pytest.fixture(scope="session")
def programs(tmp_path_factory, compile_c):
    folder = tmp_path_factory.mktemp("programs")
    corpus.build(folder, compile_c)
    return folder


@pytest.mark.root
@pytest.mark.parametrize("script, form", RECORDED, ids=str)
def test_output(script, form, programs, monkeypatch):
    monkeypatch.chdir(programs)
    done = rawbpf("trace", *script.command(form))
    assert done.stdout == script.expected(form), done.stderr.decode()


@pytest.mark.root
@pytest.mark.peer
@pytest.mark.parametrize("script", COMPARED, ids=str)
def test_output_is_bpftraces(script, programs, monkeypatch):
    """As text: the records are bpftrace's of today (`python -m tests.tools.corpus` compares both forms)."""
    from tests.peers import bpftrace
    monkeypatch.chdir(programs)
    theirs = bpftrace(*script.command("text"), text=False, timeout=300)
    ours = rawbpf("trace", *script.command("text"))
    assert ours.stdout == theirs.stdout
    assert ours.returncode == theirs.returncode


def test_scripts_are_parsed():
    """As any user: the front end takes all of them, and each says what it is about."""
    from rawbpf.tools.trace.diagnostics import Source
    from rawbpf.tools.trace.parser import parse
    assert len(SCRIPTS) >= 300
    for script in SCRIPTS:
        text = script.path.read_text(encoding="utf-8")
        assert text.startswith("// "), script
        parse(Source(script.name, text), script.args)
