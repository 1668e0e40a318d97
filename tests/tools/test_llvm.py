"""`rawbpf trace --codegen llvm` prints what our own code generator's programs print, for every script whose output is
determined. Needs the package llvmlite (extra `llvm`)."""

import pytest

from tests.tools import corpus
from tests.tools.forked import rawbpf

pytestmark = [pytest.mark.root, pytest.mark.slow]

SCRIPTS = [script for script in corpus.scripts() if not (script.live or script.later)]


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
