"""`rawbpf trace`: the command line of the tracer.

Options, their meaning and the exit statuses are bpftrace's: 0 at the end of the script (however it
ended), the argument of exit(), 1 for a wrong command line or script, 2 for a wrong setting in the
environment, 255 when the kernel refuses to load or to attach.
"""

import gc
import os
import sys

from rawbpf.elf.image import ElfError

from ..options import Option, UnknownOption, UsageError, describe, parse
from .writer import ClosedPipe, OutputError

WATCHES_SIGNALS = True      # run.py sets handlers as soon as there is something to clear up

OPTIONS = (
    Option("program", "e", "", "PROGRAM", "run this text instead of a file"),
    Option("list", "l", "list", "", "list events: all, those that match a pattern,\nor those of a script (file or -e)"),
    Option("verbose", "v", "verbose", "", "say what is done; with -l, show the arguments of events"),
    Option("command", "c", "cmd", "COMMAND", "run COMMAND, trace it from its first instruction on,\n"
                                             "and end when it ends"),
    Option("pid", "p", "pid", "PID", "trace only process PID, and end when it ends"),
    Option("dwarf_pid", "", "dwarf-pid", "PID", "read the unwinding tables of process PID for dw_ustack(), too", True),
    Option("output", "o", "output", "FILE", "write the output to FILE"),
    Option("format", "f", "", "FORMAT", "of the output: text or json"),
    Option("quiet", "q", "quiet", "", "no message when the probes are attached"),
    Option("buffering", "B", "", "MODE", "write the output by line, full (buffers) or none"),
    Option("debug", "d", "debug", "STAGE", "show a stage of the compiler: ast, types, ir, asm,\nverifier or all (more than one: commas)"),
    Option("dry_run", "", "dry-run", "", "load and attach everything, and end"),
    Option("debuginfo", "", "debuginfo", "DIR[:DIR]", "look there for separate debug information, too", True),
    Option("traceable", "", "traceable-functions", "FILE", "a list of the kernel functions that can be traced, where\n"
           "/sys/kernel/tracing/available_filter_functions cannot be read"),
    Option("usdt_file", "", "usdt-file-activation", "", "arm guarded USDT probes in all processes that run the file\n"
           "(the kernel always does)"),
    Option("include_paths", "I", "", "FOLDER", "look there for the files of #include lines", True),
    Option("includes", "", "include", "FILE", "include FILE before the script", True),
    Option("unsafe", "", "unsafe", "", "allow what changes the traced system: system(), signal(), ..."),
    Option("codegen", "", "codegen", "NAME", "the code generator: rawbpf (the default), or llvm\n(needs llvmlite)"),
    Option("warnings", "k", "warnings", "", "warn when memory cannot be read or a map has no such key"),
    Option("no_warnings", "", "no-warnings", "", "no warnings"),
    Option("mode", "", "mode", "MODE", "test or bench: the same as --test and --bench"),
    Option("test", "", "test", "", "run the test: probes, once each, and say which pass"),
    Option("bench", "", "bench", "", "run the bench: probes, and say how long they take"),
    Option("probe_filter", "", "probe-filter", "REGEX", "only the probes whose names match (and begin and end)"),
    Option("info", "", "info", "", "what this kernel and rawbpf can do, as bpftrace --info shows it"),
    Option("help", "h", "help", "", "this text"),
    Option("version", "V", "version", "", "the version"),
)

USAGE = """USAGE:
    %(prog)s [OPTION...] FILE [ARGUMENT...]
    %(prog)s [OPTION...] -e PROGRAM [ARGUMENT...]
    %(prog)s [OPTION...] -              (the script is read from standard input)
    %(prog)s -l [-v] [PATTERN]
"""
ABOUT = """
Runs a script in bpftrace's language. The script's arguments are $1, $2, ...; put -- before those
that begin with a dash.

OPTIONS:
"""

LARGEST = 16 << 20      # bytes of a script
PID_MAX = 1 << 22       # the kernel's PID_MAX_LIMIT
STAGES = ("ast", "types", "ir", "asm", "verifier")


class Failure(Exception):
    """One line for people, and the exit status that goes with it."""

    def __init__(self, message, status=1):
        super().__init__(message)
        self.status = status


def run(argv, prog="rawbpf trace"):
    """Run with the arguments after `trace`; returns the exit status."""
    try:
        parsed = parse(OPTIONS, argv)
        if parsed.get("help"):
            sys.stdout.write(USAGE % {"prog": prog} + ABOUT + describe(OPTIONS))
            return 0
        if parsed.get("version"):
            from ..cli import VERSION
            print("rawbpf " + VERSION)
            return 0
        if parsed.get("info"):
            return info()
        check(parsed)
        check_color()
        use_debug_folders(parsed)
        use_traceable_functions(parsed)
        return (listing if parsed.get("list") else trace)(parsed)
    except (UsageError, Failure, OutputError, ElfError) as error:
        complain(str(error))        # ElfError: of a file whose types are asked for while the script is compiled
        if isinstance(error, UnknownOption):
            sys.stderr.write("\n" + USAGE % {"prog": prog})
        return getattr(error, "status", 1)
    except ClosedPipe:
        return 0     # the reader of a listing has seen enough


def check_color():
    """Say what BPFTRACE_COLOR may be when it is something else."""
    wanted = os.environ.get("BPFTRACE_COLOR")
    if wanted is not None:
        from .diagnostics import COLORED
        if wanted not in COLORED:
            complain("Invalid env value! The valid values of `BPFTRACE_COLOR` are [%s]. The current value is %s!" % (
                "|".join(COLORED), wanted), "WARNING")


def use_debug_folders(parsed):
    """--debuginfo: folders to look for separate debug files in."""
    folders = [folder for text in parsed.get("debuginfo", ()) for folder in text.split(":") if folder]
    if folders:
        from rawbpf.elf import symbols
        symbols.DEBUG_FOLDERS[:] = folders


def use_traceable_functions(parsed):
    """--traceable-functions"""
    path = parsed.get("traceable")
    if path:
        from rawbpf.sources import kallsyms
        if not os.access(path, os.R_OK):
            raise Failure("cannot read '%s'" % path)
        kallsyms.TRACEABLE_FILE = path


def info():
    """--info: what the kernel can do."""
    from rawbpf.loader.errors import KernelError
    from .info import show
    try:
        show(sys.stdout)
    except KernelError as error:
        raise Failure(str(error))
    return 0


def complain(message, severity="ERROR"):
    """A line on the error stream, in colour on a terminal."""
    from .diagnostics import COLORS, RESET, colored
    begin, end = (COLORS.get(severity, ""), RESET) if colored(sys.stderr) else ("", "")
    sys.stdout.flush()
    sys.stderr.write("%s%s: %s%s\n" % (begin, severity, message, end))


def check(parsed):
    """What the option table cannot say."""
    if parsed.get("command") is not None and parsed.get("pid") is not None:
        raise UsageError("-c and -p exclude each other")
    if parsed.get("warnings") and parsed.get("no_warnings"):
        raise UsageError("-k, --warnings conflicts with --no-warnings")
    if parsed.get("format", "text") not in ("text", "json"):
        raise UsageError('Invalid output format "%s"' % parsed.get("format"))
    if parsed.get("codegen", "rawbpf") not in ("rawbpf", "llvm"):
        raise UsageError("--codegen takes rawbpf or llvm, not '%s'" % parsed.get("codegen"))
    if parsed.get("buffering", "line") not in ("line", "full", "none"):
        raise UsageError("-B takes line, full or none, not '%s'" % parsed.get("buffering"))
    if parsed.get("mode", "test") not in ("test", "bench"):
        raise UsageError("--mode takes test or bench, not '%s'" % parsed.get("mode"))
    if parsed.get("list"):
        for option in OPTIONS:
            if option.dest in parsed.values and option.dest not in ("list", "program", "pid", "verbose", "format",
                                                                      "no_warnings", "debuginfo", "traceable"):
                raise UsageError("-l does not go with '%s'" % ("--" + option.long if option.long else "-" + option.short))
    for stage in stages(parsed):
        if stage not in STAGES:
            raise UsageError("-d knows the stages %s and all, not '%s'" % (", ".join(STAGES), stage))


def stages(parsed):
    """The set of compiler stages that -d asks for."""
    asked = {stage for stage in (parsed.get("debug") or "").split(",") if stage}
    return set(STAGES) if "all" in asked else asked


def script_text(parsed):
    """(name for messages, text, positional arguments, named arguments) of the script."""
    words = parsed.operands + [word for word in parsed.rest if not word.startswith("--")]
    named = [word[2:] for word in parsed.rest if word.startswith("--")]
    text = parsed.get("program")
    if text:
        return "stdin", text, words, named
    if not words:
        raise UsageError("a script is needed: a file, - or -e PROGRAM")
    name, words = words[0], words[1:]
    try:
        if name == "-":
            name, data = "stdin", sys.stdin.buffer.read(LARGEST + 1)
        else:
            with open(name, "rb") as file:
                data = file.read(LARGEST + 1)
    except OSError as error:
        raise Failure("failed to open file '%s': %s" % (name, error.strerror))
    if len(data) > LARGEST:
        raise Failure("'%s' is no script: it is larger than %d MB" % (name, LARGEST >> 20))
    if b"\0" in data:
        raise Failure("'%s' is no script: it holds binary data" % name)
    return name, data.decode("utf-8", "surrogateescape"), words, named


def parse_pid(text):
    if not (text.isascii() and text.isdigit()):
        digits = text[:1].isascii() and text[:1].isdigit()
        raise UsageError("Failed to parse pid: invalid %s: %s" % ("trailing bytes" if digits else "integer", text))
    if not 0 < int(text) <= PID_MAX:
        raise Failure("Pid out of range: %s" % text)
    return int(text)


def probe_filter(parsed):
    """The pattern of --probe-filter, compiled, or None."""
    import re
    if parsed.get("probe_filter") is None:
        return None
    try:
        return re.compile(parsed.get("probe_filter"))
    except re.error as error:
        raise UsageError("Invalid --probe-filter regex '%s': %s" % (parsed.get("probe_filter"), error))


def the_process(parsed):
    """The Child of -c, the Process of -p, or None."""
    from . import child
    try:
        if parsed.get("command") is not None:
            return child.Child(parsed.get("command"))
        if parsed.get("pid") is not None:
            return child.Process(parse_pid(parsed.get("pid")))
    except child.ChildError as error:
        raise Failure(str(error))
    return None


def check_privileges():
    """Say in one line what every script needs and this process has not."""
    from rawbpf.loader.errors import missing_capabilities
    missing = missing_capabilities("trace")
    if missing:
        purpose = {"CAP_BPF": "to create maps and load programs", "CAP_PERFMON": "to trace with them",
                   "CAP_SYS_ADMIN": "to load programs and trace"}
        raise Failure("missing %s: run as root, or grant %s (CAP_SYS_ADMIN stands for all)" % (
            " and ".join("%s (%s)" % (name, purpose[name]) for name in missing),
            "it" if len(missing) == 1 else "them"))


def trace(parsed):
    """Compile and run a script."""
    gc.disable()       # a compiler makes many objects and no garbage worth collecting
    name, text, positional, named = script_text(parsed)
    process = the_process(parsed)
    try:
        check_privileges()
        return _trace(parsed, name, text, positional, named, process)
    finally:
        if process is not None:
            process.close()


def _trace(parsed, name, text, positional, named, process):
    from rawbpf.loader.errors import KernelError
    from .diagnostics import ScriptError, colored
    from .engine import compile_script
    try:
        pid = process.pid if process is not None else None
        compiled = compile_script(text, name, positional, named, pid=pid, unsafe=bool(parsed.get("unsafe")),
                                  cpid=pid if parsed.get("command") is not None else None,
                                  include_paths=parsed.get("include_paths", ()), includes=parsed.get("includes", ()),
                                  warnings=0 if parsed.get("no_warnings") else 2 if parsed.get("warnings") else 1,
                                  probe_filter=probe_filter(parsed))
    except ScriptError as error:
        sys.stdout.flush()
        sys.stderr.write(error.format(color=colored(sys.stderr)))
        return error.status
    except KernelError as error:
        raise Failure(str(error), 1)
    if not parsed.get("no_warnings"):
        for warning in compiled.warnings:
            sys.stderr.write(warning.format(color=colored(sys.stderr)))
    if parsed.get("codegen") == "llvm":
        from rawbpf.asm import AsmError
        from .llvm import recompile
        try:
            recompile(compiled)
        except ImportError:
            raise Failure("--codegen llvm needs the package llvmlite: pip install llvmlite")
        except AsmError as error:
            raise Failure("LLVM does not compile this script: %s" % error)
    from . import debug
    debug.show(compiled, stages(parsed), sys.stdout)
    sys.stdout.flush()
    from .run import run_session
    return run_session(compiled, process, parsed)


def listing(parsed):
    """-l: events that match a pattern, or those of a script."""
    json = parsed.get("format") == "json"
    gc.disable()       # a line each of half a million functions is no garbage
    from .listing import list_pattern, list_program, list_script
    pid = parse_pid(parsed.get("pid")) if parsed.get("pid") is not None else None
    if pid is not None and not os.path.exists("/proc/%d" % pid):
        raise Failure("there is no process %d" % pid)
    verbose = bool(parsed.get("verbose"))
    file = parsed.operands[0] if len(parsed.operands) == 1 and os.path.isfile(parsed.operands[0]) else None
    if file is not None and not parsed.get("program") and _is_elf(file):
        return list_program(file, pid, verbose, json)
    if file is not None or parsed.get("program"):
        name, text, positional, _ = script_text(parsed)
        return list_script(name, text, positional, pid, verbose, json)
    if len(parsed.operands) == 1 and "/" in parsed.operands[0] and os.path.exists(parsed.operands[0]):
        from rawbpf.sources.paths import why_not
        raise Failure("'%s' %s" % (parsed.operands[0], why_not(parsed.operands[0])))
    if len(parsed.operands) == 1 and file is None and _looks_like_a_file(parsed.operands[0]):
        complain("It appears that '%s' is a filename but the file does not exist. Treating '%s' as a search pattern."
                 % (parsed.operands[0], parsed.operands[0]), "WARNING")
    if len(parsed.operands) > 1:
        raise UsageError("-l takes one pattern, got %s" % " ".join(parsed.operands))
    return list_pattern(parsed.operands[0] if parsed.operands else "*:*", pid, verbose, json)


def _looks_like_a_file(word):
    return "." in word and not any(char in ":*" for char in word)


def _is_elf(path):
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False
