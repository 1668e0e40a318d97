"""`rawbpf trace --codegen llvm` prints what our own code generator's programs print, for every script whose output is
determined. Needs the package llvmlite (extra `llvm`)."""

import os

import pytest

from tests.tools import corpus
from tests.tools.forked import rawbpf

pytestmark = [pytest.mark.root, pytest.mark.slow]

SCRIPTS = [script for script in corpus.scripts() if not (script.live or script.later)]
EVERY = 1 if os.environ.get("RAWBPF_LLVM_SCRIPTS") == "all" else 6      # CI has time for some
SCRIPTS = SCRIPTS[::EVERY]


@pytest.fixture(scope="module")
def programs(tmp_path_factory, compile_c):
    import llvmlite.binding  # noqa: F401  once, not in every fork
    folder = tmp_path_factory.mktemp("programs")
    corpus.build(folder, compile_c)
    return folder


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_output(script, programs, monkeypatch):
    monkeypatch.chdir(programs)
    done = rawbpf("trace", "--codegen", "llvm", *script.command("text"))
    assert done.stdout == script.expected("text"), done.stderr.decode()


@pytest.mark.demand
def test_our_code_is_about_as_short_as_llvms():
    """Issue: a geometric mean of at most 1.10 of -O2's instructions, at most 1.30 for any script."""
    from tests.bench.codegen import AIM, LIMIT, mean, measure
    found = list(measure("*", EVERY))
    assert len(found) > 300 / EVERY
    assert mean(one.ratio for one in found) <= AIM
    assert not [one for one in found if one.ratio > LIMIT]
