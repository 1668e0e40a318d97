"""`rawbpf` in a forked copy of the test process: the whole command without Python's start and imports.

For tests that run it hundreds of times; the others use the `rawbpf` fixture."""

import io
import os
import sys
import tempfile
from typing import NamedTuple


class Done(NamedTuple):
    stdout: bytes
    stderr: bytes
    returncode: int


def _child(arguments, out, err):
    """Run the command; never returns."""
    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdin = open(0, closefd=False)
        sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), encoding="utf-8", errors="surrogateescape")
        sys.stderr = io.TextIOWrapper(open(2, "wb", closefd=False), encoding="utf-8", errors="surrogateescape",
                                      line_buffering=True)
        from rawbpf.tools.cli import main
        code = main([str(argument) for argument in arguments])
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code or 0)


def rawbpf(*arguments):
    """Run `rawbpf ARGUMENTS...` to its end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if not pid:
            _child(arguments, out.fileno(), err.fileno())
        _, status = os.waitpid(pid, 0)
        out.seek(0)
        err.seek(0)
        return Done(out.read(), err.read(), os.waitstatus_to_exitcode(status))
