"""How a command ends that could not do what it was asked for: one error on the error stream, no traceback."""

import os
import sys


class Failure(Exception):
    """What is wrong, for people, and the exit status that goes with it."""

    def __init__(self, message, status=1):
        super().__init__(message)
        self.status = status


def report(message):
    """One error on the error stream."""
    sys.stdout.flush()
    sys.stderr.write("ERROR: %s\n" % message)


def command(table, usage, work, argv):
    """Parse `argv` by the option table and run work(parsed) -> exit status; every kind of bad input is one error."""
    from rawbpf.asm import AsmError
    from rawbpf.loader.errors import KernelError
    from .options import UsageError, describe, parse
    try:
        parsed = parse(table, argv)
        if parsed.get("help"):
            sys.stdout.write(usage + describe(table))
            return 0
        parsed.operands += parsed.rest
        status = work(parsed)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader has seen enough; Python flushes again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Failure as error:
        report(error)
        return error.status
    except (UsageError, AsmError, KernelError, ValueError) as error:
        report(error)
    except OSError as error:
        said = error.strerror or str(error)
        report("%s: %s" % (error.filename, said) if error.filename else said)
    return 1


def number(text, largest, option, what="number"):
    """The value of an option that takes a whole number from 1 to `largest`."""
    from .options import UsageError
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) <= largest):
        raise UsageError("%s takes a %s from 1 to %d, not '%.40s'" % (option, what, largest, text))
    return int(text)


def output_path(path, *inputs):
    """Where a command writes: not what it reads."""
    import os
    if not path:
        raise Failure("-o takes the name of a file")
    for read in inputs:
        if read != "-" and os.path.exists(path) and os.path.exists(read) and os.path.samefile(path, read):
            raise Failure("%s is what is read: it would be overwritten" % path)
    return path


def write_file(path, data):
    """Writes what a command made; an error names the file.

    A regular file is replaced as a whole: of two that write it at once one wins, and whoever reads it meanwhile, or
    after a failure, sees all of one or of the other. Anything else (a pipe, a device, a link) is written into.
    """
    import os
    import stat
    try:
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            mode = None
        if mode is not None and not stat.S_ISREG(mode) or not os.access(os.path.dirname(path) or ".", os.W_OK):
            with open(path, "wb") as file:
                file.write(data)
            return
        _replace(path, data, mode)
    except OSError as error:
        raise Failure("%s: %s" % (path, error.strerror)) from None


def _replace(path, data, mode):
    """A new file in the same folder takes the name; `mode`: of the file there was, or None."""
    import os
    import stat
    if mode is not None:
        with open(path, "ab"):
            pass                    # whoever may not write it may not replace it
    made = "%s.%d.new" % (path, os.getpid())
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            if mode is not None:
                os.fchmod(fd, stat.S_IMODE(mode))
        os.rename(made, path)
    except BaseException:
        os.unlink(made)
        raise


_standard_input = []        # (the stream, its content): it can be read once


def read_bytes(path):
    """The content of a file, or of the standard input for "-" (however often it is asked for)."""
    from rawbpf.asm.files import read_file, read_whole
    if path == "-":
        if not _standard_input or _standard_input[0][0] is not sys.stdin:
            _standard_input[:] = [(sys.stdin, read_whole(sys.stdin.buffer, "stdin"))]
        return _standard_input[0][1]
    try:
        return read_file(path)
    except OSError as error:
        raise Failure("%s: %s" % (path, error.strerror)) from None
