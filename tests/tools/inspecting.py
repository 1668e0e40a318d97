"""What the tests of the inspectors share: objects of the kernel, and the command in this process."""

import contextlib
import io
import json

from rawbpf.tools import cli


def run(*words):
    """(exit status, standard output, error stream) of a command line, run in this process."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        status = cli.main([str(word) for word in words])
    return status, out.getvalue(), error.getvalue()


def run_json(*words):
    """What a command that succeeds says under -j."""
    status, out, error = run(*words, "-j")
    assert (status, error) == (0, ""), out + error
    return json.loads(out)


def without_pids(value):
    """bpftool may be built without the code that finds holders (Debian's is)."""
    if isinstance(value, dict):
        return {name: without_pids(item) for name, item in value.items() if name != "pids"}
    return [without_pids(item) for item in value] if isinstance(value, list) else value
