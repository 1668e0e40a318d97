"""Any script is compiled or refused with a ScriptError, soon; what is compiled, the kernel loads. `RAWBPF_SCRIPTS=50000`
runs more than the 1500 scripts of CI, `RAWBPF_SCRIPTS_FROM` says the first; one that fails is found again by its number."""

import os
import random
import time

import pytest

from rawbpf.loader import VerifierError
from rawbpf.tools.trace.compiler import Compiler
from rawbpf.tools.trace.diagnostics import Diagnostics, ScriptError, Source
from rawbpf.tools.trace.machine import Machine
from rawbpf.tools.trace.parser import parse
from rawbpf.tools.trace.session import Session
from tests.tools import script_grammar

FIRST = int(os.environ.get("RAWBPF_SCRIPTS_FROM", 0))
COUNT = int(os.environ.get("RAWBPF_SCRIPTS", 1500))
PARTS = 5
SOON = 20.0     # seconds of processor time: the verifier may look at a million instructions


class _Nobody:
    """A renderer of nothing."""

    def emit(self, result):
        raise AssertionError(result)

    def batch(self, batch):
        return None


_machine = None


def _one_machine():
    """The kernel is asked once for all scripts."""
    global _machine
    _machine = _machine or Machine()
    return _machine


def run(script):
    """What became of a script: "refused" or "loaded". Anything else is raised."""
    try:
        diagnostics = Diagnostics()
        tree = parse(Source("stdin", script), ["one", "2"], diagnostics)
        compiled = Compiler(tree, None, ["one", "2"], machine=_one_machine(), diagnostics=diagnostics).compile()
    except ScriptError as error:
        assert error.format().endswith("\n")
        return "refused"
    with Session(compiled, _Nobody()) as session:
        try:
            session.load()
        except VerifierError as error:
            # loops in loops may be more than the verifier looks at: that is a refusal, with its reason
            assert "BPF program is too large. Processed 1000001 insn" in str(error)
            return "refused"
    return "loaded"


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_any_script_is_compiled_and_loaded_or_refused(part):
    outcomes = {"refused": 0, "loaded": 0}
    for number in range(FIRST + part, FIRST + COUNT, PARTS):
        source = random.Random(number)
        script = script_grammar.script(source) if number % 2 else script_grammar.any_script(source)
        start = time.process_time()
        try:
            outcomes[run(script)] += 1
        except Exception as error:
            raise AssertionError("script %d: %s" % (number, script)) from error
        assert time.process_time() - start < SOON, (number, script)
    # most of the grammar's own scripts are right: the test is not one of error messages
    assert outcomes["loaded"] > (COUNT // PARTS) // 8, outcomes
