"""A trace on the command line: signals, streams, and what is said when it cannot be."""

import errno
import gc
import os
import signal
import stat
import sys

from . import debug
from .command import Failure, complain, parse_pid, stages
from .results import RENDERERS
from .session import Session
from .writer import ClosedPipe, OutputError, Writer


class _Quit(Exception):
    """A second Ctrl-C: leave at once."""


def open_streams(path, mode):
    """(output Writer, error Writer): the output to `path` or stdout, with -B `mode`."""
    sys.stdout.flush()
    fd = 1
    if path:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise Failure("failed to open output file '%s': %s" % (path, error.strerror))
    out = Writer(fd, mode)
    return out, Writer(2, "none", before=out if mode != "full" else None)


def run_session(compiled, process, parsed):
    """Run a Compiled to its end; returns the exit status."""
    out, err = open_streams(parsed.get("output"), parsed.get("buffering", "line"))
    renderer = RENDERERS[parsed.get("format", "text")](out, err)
    dwarf_pids = [parse_pid(text) for text in parsed.get("dwarf_pid", ())]
    for pid in dwarf_pids:
        if not os.path.exists("/proc/%d" % pid):
            raise Failure("there is no process %d" % pid)
    try:
        with Session(compiled, renderer, process) as session:
            session.dwarf_pids = dwarf_pids
            try:
                return _run(session, parsed, out)
            except ClosedPipe:
                out.discard()
                return 0
            except OutputError as error:
                raise Failure(str(error))
            finally:
                ignore_signals()
    except _Quit:
        return 130


def _run(session, parsed, out):
    from rawbpf.loader.errors import KernelError, VerifierError
    from rawbpf.sources import SourceError
    from .child import ChildError
    watch_signals(session)
    try:
        show_log = "verifier" in stages(parsed)
        session.log_level = 1 if show_log or parsed.get("verbose") else 0
        session.mode = the_mode(session, parsed)
        session.load()
        if show_log:
            for program, loaded in session.programs:
                debug.verifier_log(program, loaded.log, sys.stdout)
            sys.stdout.flush()
        session.start()
        if parsed.get("verbose"):
            describe(session)
        if parsed.get("dry_run"):
            return 0
        watch_script_signals(session)
        report_refused(session)
        if not session.interrupted:
            session.release()
    except VerifierError as error:
        if parsed.get("verbose"):
            _show_refusal_log(session.compiled.config, error)
        told = not_allowed(session.compiled, error)
        if told is not None:
            from .diagnostics import colored
            sys.stdout.flush()
            sys.stderr.write(told.format(color=colored(sys.stderr)))
            return 255
        raise Failure(refusal(session.compiled, error), 255)
    except (KernelError, SourceError, ChildError) as error:
        probe = getattr(error, "probe", None)
        raise Failure((getattr(error, "reason", None) or str(error)) + (
            "\nERROR: Unable to attach probe: %s. If this is expected, set the 'missing_probes' config variable to 'warn'."
            % probe if probe else ""), 255)
    if session.mode:
        return _try_out(session, out)
    if not parsed.get("quiet"):
        from .results import AttachedProbes
        session.emit(AttachedProbes(session.attached))
        out.settle()
    if "__BPFTRACE_NOTIFY_PROBES_ATTACHED" in os.environ:      # what bpftrace's own test suite waits for
        sys.stdout.write("__BPFTRACE_NOTIFY_PROBES_ATTACHED\n")
        sys.stdout.flush()
    if _is_pipe(out.fd):
        session.watch_output(out.fd)
    # What the compiler has made lives as long as the trace: the collector need not look at it.
    gc.freeze()
    gc.enable()
    while session.running:
        session.poll()
    session.finish()
    out.flush()
    if session.lost_events and not parsed.get("no_warnings"):
        complain("Total lost event count: %d" % session.lost_events, "WARNING")
    return session.exit_code


def the_mode(session, parsed):
    """"test", "bench", or "" for what is traced; the script must have probes for it."""
    kinds = {program.when for program in session.compiled.programs}
    mode = "test" if parsed.get("test") else "bench" if parsed.get("bench") else parsed.get("mode", "")
    if mode and mode not in kinds:
        raise Failure("No probes attached: the script has no %s probes." % mode)
    for other in ("test", "bench"):
        if not mode and kinds <= {"test", "bench"} and other in kinds:
            raise Failure("No probes attached; use --%s to run %s probes."
                          % (other, other if other == "test" else "benchmark"), 255)
    return mode


def _try_out(session, out):
    """--test, --bench: run the probes of that kind, and end."""
    from . import trials
    session.drain()
    try:
        status = trials.run(session, session.mode)
    except OSError as error:
        raise Failure(str(error), 255)
    session.finish(maps=False)
    out.flush()
    return status


def describe(session):
    """-v: what was loaded and attached, a line a program."""
    for program, loaded in session.programs:
        names = [point.name for point in program.points]
        more = "" if len(names) <= 2 else " and %d more" % (len(names) - 2)
        sys.stderr.write("program %s: %s, %d instructions, on %s%s\n" % (
            program.name, program.program_type, loaded.info().xlated_prog_len // 8, ", ".join(names[:2]), more))


def report_refused(session):
    """Say which probes of wildcards the kernel did not take, a line for each reason."""
    if session.compiled.config.missing_probes == "ignore":
        return
    reasons = {}
    for point, reason in session.refused:
        reasons.setdefault(str(reason), []).append(point.name)
    for reason, names in reasons.items():
        more = "" if len(names) == 1 else " and %d more" % (len(names) - 1)
        complain("%s%s could not be attached: %s" % (names[0], more, reason), "WARNING")


def _is_pipe(fd):
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def watch_signals(session):
    """SIGINT and SIGTERM end the trace in order; a second one ends it at once."""
    def ask(number, frame):
        if session.interrupted:
            ignore_signals()
            raise _Quit
        session.stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)


def ignore_signals():
    """Nothing interrupts the clearing up, which is soon done."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def watch_script_signals(session):
    """Signals that the script has probes for run them."""
    for number in session.signals:
        signal.signal(number, lambda number, frame: session.signal(number))


def _show_refusal_log(config, error):
    """-v: the verifier's log of a program that it refused."""
    complain("Kernel error log:\n%s" % error.log.rstrip("\n"), "NOTE")
    if error.errno == errno.ENOSPC:
        complain("Kernel log seems to be trimmed. This may be due to buffer not being big enough, try increasing the "
                 "BPFTRACE_LOG_SIZE environment variable beyond the current value of %d bytes. Or, add the configuration "
                 "`config = { log_size = N; }` to the script." % config.log_size, "WARNING")


def not_allowed(compiled, error):
    """The ScriptError of a helper that the kernel does not let this program call, or None when it is another refusal."""
    from rawbpf.asm.helpers import helper_name
    from .diagnostics import ScriptError
    if "helper call is not allowed in probe" not in error.message and "program of this type cannot use helper" not in error.message:
        return None
    for program in compiled.programs:
        if error.instruction is not None and error.call.endswith(" " + program.name):
            span = program.code.spans[error.instruction]
            return span and ScriptError(span, "helper %s not allowed in probe" % helper_name(program.code.instructions[
                error.instruction].imm))
    return None


def refusal(compiled, error):
    """What to say about a program that the verifier refused, with the place in the script."""
    if error.errno == errno.ENOSPC:
        return "Error loading BPF program for %s. Error code: -%d (%s)." % (
            error.call.rpartition(" ")[2], errno.ENOSPC, os.strerror(errno.ENOSPC))
    for program in compiled.programs:
        if error.instruction is not None and program.name in error.call:
            spans = program.code.spans
            span = spans[error.instruction] if error.instruction < len(spans) else None
            if span is not None and hasattr(span, "context"):
                return "\n".join(["%s\n%s" % (error, span.location)] + span.context())
    return str(error)
