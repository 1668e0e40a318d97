"""Errors and warnings of the compiler, in bpftrace's words (see messages.py)."""

import re

import pytest

from rawbpf.tools.trace.compiler import Compiler
from rawbpf.tools.trace.diagnostics import ScriptError, Source
from rawbpf.tools.trace.parser import parse
from tests.tools.messages import MESSAGES
from tests.tools.test_compiler import Box

LINE = re.compile(r"^(?:\S+?:[\d:-]+: )?((?:ERROR|WARNING): .*)$", re.M)


def said(text):
    """The messages about a script, errors first, as they are printed."""
    try:
        result = Compiler(parse(Source("stdin", text)), machine=Box(), environment={}).compile()
    except ScriptError as error:
        return error.format()
    return "".join(warning.format() for warning in result.warnings)


def test_what_is_said_about_scripts():
    for script, messages in MESSAGES:
        assert LINE.findall(said(script)) == messages, script


@pytest.mark.root
@pytest.mark.peer
@pytest.mark.parametrize("script, messages", MESSAGES, ids=range(len(MESSAGES)))
def test_it_is_what_bpftrace_says(script, messages):
    from tests.peers import bpftrace
    theirs = LINE.findall(bpftrace("--dry-run", "-e", script).stderr)
    assert set(messages) <= set(theirs)
