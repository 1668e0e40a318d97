"""`rawbpf list [PATTERN]` is `rawbpf trace -l [PATTERN]`."""

from .trace import command


def run(argv):
    """Run with the arguments after `list`; returns the exit status."""
    return command.run(["-l"] + argv, prog="rawbpf list")
