"""`rawbpf trace -l`: the events that can be traced."""

import sys

from .writer import Writer


def list_pattern(pattern, pid, verbose):
    """Print the events that match; returns the exit status."""
    from rawbpf.sources import SourceError, Target, list_events
    from .command import Failure
    target = Target(pid=pid)
    try:
        for part in pattern.split(","):
            _print(list_events(part.strip() or "*", target), verbose)
    except (SourceError, OSError) as error:
        raise Failure(_sentence(error))
    return 0


def list_script(name, text, positional, pid, verbose):
    """Print the events that a script would attach to; returns the exit status."""
    from rawbpf.sources import Listed, SourceError, Target, expand, split
    from .diagnostics import ScriptError, Source
    from .parser import parse
    target = Target(pid=pid)
    try:
        script = parse(Source(name, text), positional=positional)
        for probe in script.probes:
            for attach_point in probe.attach_points:
                try:
                    points = expand(attach_point.text, target)
                except SourceError as error:
                    raise ScriptError(attach_point.span, error.reason, error.hints)
                _print((Listed(point.name, lambda point=point: _declarations(point)) for point in points), verbose)
    except ScriptError as error:
        sys.stdout.flush()
        sys.stderr.write(error.format(color=sys.stderr.isatty()))
        return 1
    return 0


def _declarations(point):
    from rawbpf.elf.types import declaration
    arguments = point.arguments()
    return [declaration(field.type, field.name) for field in arguments.fields] if arguments else []


def _print(listed, verbose):
    out = Writer(1, "full")
    for item in listed:
        lines = [item.text]
        if verbose:
            lines += ["    " + argument for argument in item.arguments]
        out.write(("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))
    out.flush()


def _sentence(error):
    hints = getattr(error, "hints", ())
    text = getattr(error, "reason", None) or str(error)
    return text + "".join("\nHINT: " + hint for hint in hints)
