"""The `rawbpf` command: finds a subcommand and runs it.

A subcommand is a module with `run(argv) -> exit status`, imported only when it is asked for, so
that `rawbpf --version` costs little more than starting Python. Adding one is a file and a line in
`COMMANDS`.
"""

import sys

VERSION = "0.1.0"

# name: (module under rawbpf.tools, one line for the help)
COMMANDS = {
    "trace": ("trace.command", "run a tracing script (bpftrace's language)"),
    "list": ("list", "list the events that can be traced"),
    "load": ("load", "load and attach the programs of a BPF object file"),
    "asm": ("asm", "assemble programs: raw instructions, an ELF object, a C array or JSON"),
    "disasm": ("disasm", "disassemble files, objects, loaded programs and verifier logs"),
    "verify": ("verify", "ask the verifier of this kernel or others: cost, or why it refuses"),
    "run": ("testrun", "run a program in the kernel on a packet or a context, and time it"),
    "prog": ("inspect.prog", "the BPF programs that are loaded: show, dump, pin, load, run (as bpftool prog)"),
    "map": ("inspect.map", "the maps: show, dump, look up, update, create, pin (as bpftool map)"),
    "link": ("inspect.link", "what programs are attached to: show, pin, detach (as bpftool link)"),
    "btf": ("inspect.btf", "types of the kernel, programs, maps and files: as they are, or as C (as bpftool btf)"),
    "feature": ("inspect.feature", "what this kernel can do: program and map types, helpers (as bpftool feature)"),
    "perf": ("inspect.perf", "programs on perf events, tracepoints and probes, and who holds them (as bpftool perf)"),
    "batch": ("inspect.batch", "several of these commands from a file (as bpftool batch)"),
    "cgroup": ("inspect.cgroup", "programs attached to control groups: show, tree, attach, detach (as bpftool cgroup)"),
    "net": ("inspect.net", "programs on interfaces, tc, netfilter hooks: show, attach, detach (as bpftool net)"),
    "struct_ops": ("inspect.struct_ops", "structs of functions: show, dump, register, unregister (as bpftool struct_ops)"),
    "gen": ("inspect.gen", "link objects into one, cut a BTF down to what objects need (as bpftool gen)"),
    "iter": ("inspect.iter", "pin an iterator of an object file (as bpftool iter)"),
    "tree": ("inspect.tree", "which process keeps which links, programs and maps alive"),
    "who": ("inspect.who", "which programs are attached to a kernel function, or call it"),
    "snapshot": ("inspect.snapshot", "write all that the inspectors read to a file, for --snapshot FILE"),
    "diff": ("inspect.diff", "what changed between two snapshots, or since one"),
    "top": ("inspect.top", "programs by CPU time and runs a second, live"),
    "token": ("inspect.token", "what the BPF file systems that are mounted delegate (as bpftool token)"),
    "version": ("inspect.version", "the version (as bpftool version)"),
    "compile": ("llvm", "compile LLVM IR to a BPF object (needs llvmlite)"),
}

# bpftool's options, which it has before the object, `-j prog show`, and the inspectors' own --snapshot
_FLAGS, _WITH_VALUE = "jpfmndVlLS", "Bki"
_LONG_FLAGS = ("json", "pretty", "bpffs", "mapcompat", "nomount", "debug", "version", "legacy", "use-loader", "sign")
_LONG_WITH_VALUE = ("base-btf", "snapshot")


# bpftool's objects in its order: it takes the first that begins with the word
_OBJECTS = ("batch", "prog", "map", "link", "cgroup", "perf", "net", "feature", "btf", "gen", "struct_ops", "iter", "token", "version")


def _whole(name):
    """The name that a word stands for: bpftool's objects may be cut short, where no command of our own begins so."""
    if name and name not in COMMANDS and not any(own.startswith(name) for own in COMMANDS if own not in _OBJECTS):
        return next((known for known in _OBJECTS if known.startswith(name)), name)
    return name


def _width(word):
    """How many words an inspector's option has that begins with this one; 0: it is none."""
    name, equals, _ = word[2:].partition("=")
    if word[:1] != "-":
        return 0
    if word[:2] == "--":
        if name and any(known.startswith(name) for known in _LONG_WITH_VALUE):
            return 1 if equals else 2
        return int(bool(name) and not equals and any(known.startswith(name) for known in _LONG_FLAGS))
    for at, letter in enumerate(word[1:], 2):
        if letter in _WITH_VALUE:
            return 1 if word[at:] else 2
        if letter not in _FLAGS:
            return 0
    return int(len(word) > 1)


def _options_last(argv):
    """With the options that stand before a command behind it: bpftool's, and of our own commands -j and -p."""
    at = 0
    while at < len(argv):
        width = _width(argv[at])
        if not width:
            break
        at += width
    name = _whole(argv[at]) if at < len(argv) else ""
    ours = name in COMMANDS and not COMMANDS[name][0].startswith("inspect.")
    if at and name in COMMANDS and not (ours and set("".join(argv[:at])) - set("-jp")):
        return argv[at:] + argv[:at]
    if at and not name and any(word in ("-V", "--version") or word[:2] != "--" and "V" in word for word in argv):
        return ["version", *(word for word in argv if word not in ("-V", "--version"))]
    return argv


def _option_alone(argv):
    """What is said of inspectors' options that no inspector follows."""
    from rawbpf.elf.image import printable
    from .inspect.command import OPTIONS, REFUSED, refusal
    from .options import UsageError, parse
    try:
        values = parse(OPTIONS + tuple(option for option, _ in REFUSED), argv).values
    except UsageError as error:
        sys.stderr.write("ERROR: %s\n" % printable(str(error)))
        return 1
    said = [refusal(option, why) for option, why in REFUSED if option.dest in values]
    alone = "%s goes with an inspector, as in: rawbpf %s prog show" % (argv[0], " ".join(argv))
    sys.stderr.write("ERROR: %s\n" % printable(said[0] if said else alone))
    return 1


def usage():
    lines = ["usage: rawbpf COMMAND [ARGUMENT...]", "       rawbpf --version | --help", "", "commands:"]
    width = max(map(len, COMMANDS))
    lines += ["  %-*s  %s" % (width, name, text) for name, (_, text) in COMMANDS.items()]
    lines += ["", "rawbpf COMMAND --help describes a command.", ""]
    return "\n".join(lines)


def main(argv=None):
    """Run the command line `argv` (without the program's name); returns the exit status."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _open_standard_streams()
    try:
        status = _run(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _leave("", 0)     # the reader has seen enough
    except OSError as error:
        from rawbpf.elf.image import printable
        what = error.strerror or str(error)
        return _leave("ERROR: %s\n" % printable(what if error.filename is None else "%s: %s" % (error.filename, what)))
    except MemoryError:
        return _leave("ERROR: out of memory\n")


def _run(argv):
    if not argv:
        sys.stderr.write(usage())
        return 1
    if argv[0][:1] == "-" and argv != ["--version"]:
        argv = _options_last(argv)
    name = _whole(argv[0])
    if name in ("--version", "-V"):
        print("rawbpf " + VERSION)
        return 0
    if name == "help" and argv[1:] and argv[1] in COMMANDS:
        argv, name = [argv[1], "--help"], argv[1]
    if name in ("--help", "-h", "help"):
        sys.stdout.write(usage())
        return 0
    if name not in COMMANDS:
        from difflib import get_close_matches
        near = get_close_matches(name, COMMANDS, 1)
        hint = "did you mean '%s'?" % near[0] if near else "the commands are " + ", ".join(COMMANDS)
        if name in ("-e", "-l", "-c", "-d"):      # bpftrace's habit
            hint = "did you mean 'rawbpf trace %s'?" % name
        what = "option" if name.startswith("-") else "command"
        if _width(name) and "rawbpf trace" not in hint:
            return _option_alone(argv)
        from rawbpf.elf.image import printable
        sys.stderr.write("ERROR: unknown %s '%s': %s\n" % (what, printable(name), printable(hint)))
        return 1
    import signal
    from importlib import import_module
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        # A KeyboardInterrupt in an import can come in a callback of the interpreter's, which drops it:
        # until a command is ready for it, Ctrl-C simply ends the process, which holds nothing yet.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        module = import_module("rawbpf.tools." + COMMANDS[name][0])
        if not getattr(module, "WATCHES_SIGNALS", False) and before is not None:
            signal.signal(signal.SIGINT, before)
        return module.run(argv[1:])
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _leave(message, status=1):
    """Say why the command ends; what stdout could not take must not be tried again at exit."""
    import os
    try:
        sys.stderr.write(message)
        sys.stderr.flush()
    except OSError:
        status = 1
    os.close(1)
    os.open(os.devnull, os.O_WRONLY)      # gets the number that is free now
    return status


def _open_standard_streams():
    """Closed standard streams get a descriptor each, lest a map or an image gets theirs. Writing to stdout
    still fails, as it must; an error has nobody to be told to."""
    import os
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_WRONLY if fd == 2 else os.O_RDONLY), True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)
