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
    "compile": ("llvm", "compile LLVM IR to a BPF object (needs llvmlite)"),
}


def usage():
    lines = ["usage: rawbpf COMMAND [ARGUMENT...]", "       rawbpf --version | --help", "", "commands:"]
    width = max(map(len, COMMANDS))
    lines += ["  %-*s  %s" % (width, name, text) for name, (_, text) in COMMANDS.items()]
    lines += ["", "rawbpf COMMAND --help describes a command.", ""]
    return "\n".join(lines)


def main(argv=None):
    """Run the command line `argv` (without the program's name); returns the exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if not argv:
        sys.stderr.write(usage())
        return 1
    name = argv[0]
    if name in ("--version", "-V", "version"):
        print("rawbpf " + VERSION)
        return 0
    if name in ("--help", "-h", "help"):
        sys.stdout.write(usage())
        return 0
    if name not in COMMANDS:
        from difflib import get_close_matches
        near = get_close_matches(name, COMMANDS, 1)
        hint = "did you mean '%s'?" % near[0] if near else "the commands are " + ", ".join(COMMANDS)
        what = "option" if name.startswith("-") else "command"
        sys.stderr.write("ERROR: unknown %s '%s': %s\n" % (what, name, hint))
        return 1
    from importlib import import_module
    try:
        return import_module("rawbpf.tools." + COMMANDS[name][0]).run(argv[1:])
    except KeyboardInterrupt:
        return 130
