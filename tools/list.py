"""`rawbpf list [PATTERN]` is `rawbpf trace -l [PATTERN]`."""

import sys

from .options import describe
from .trace import command

WATCHES_SIGNALS = True

USAGE = """usage: rawbpf list [-v] [-p PID] [--json] [PATTERN]     (uprobe:/bin/bash:read*, struct task_struct)
       rawbpf list [-v] [--json] { FILE | -e PROGRAM }     (the events of a script)

Lists events that can be traced: the same as rawbpf trace -l. --json (or -f json) prints an object a line.

options:
"""
SAYS = {"program": "the events of this text", "verbose": "their arguments too",
        "format": "json: an object a line", "pid": "of this process: its files for uprobe and usdt", "no_warnings": "no warnings", "help": "this text"}


def run(argv):
    """Run with the arguments after `list`; returns the exit status."""
    if argv[:1] in (["-h"], ["--help"]):
        sys.stdout.write(USAGE + describe([option._replace(help=SAYS[option.dest]) for option in command.OPTIONS
                                             if option.dest in SAYS]))
        return 0
    end = argv.index("--") if "--" in argv else len(argv)
    argv = [part for word in argv[:end] for part in (("-f", "json") if word == "--json" else (word,))] + argv[end:]
    return command.run(["-l"] + argv, prog="rawbpf list")
