"""`rawbpf trace -l`: the events that can be traced, as bpftrace prints them or as a JSON object a line:

    {"probe": "kprobe:vfs_read", "arguments": ["struct file * arg0", ...]}       arguments: with -v
    {"type": "struct iovec", "module": "vmlinux", "definition": "struct iovec {..."}
"""

import re
import sys
from itertools import islice, repeat
from operator import attrgetter, methodcaller

from .writer import Writer


_PARTS = re.compile(r'(?:"(?:\\.|[^"\\])*"|[^,"]|"[^"]*\Z)+').findall     # at commas, but not those in quotes


def list_pattern(pattern, pid, verbose, json=False):
    """Print the events that match; returns the exit status."""
    from rawbpf.sources import SourceError, Target, list_events
    from .command import Failure, complain
    problems = {}
    target = Target(pid=pid, tell=lambda text: problems.setdefault(text))
    try:
        for part in _PARTS(pattern) or [""]:
            if not _print(list_events(part.strip() or "*", target), verbose, json):
                problems.pop(_nothing(part.strip(), target), None)
    except (SourceError, OSError) as error:
        raise Failure(_sentence(error))
    finally:
        for text in problems:
            complain(text, "WARNING")
    return 0


def _nothing(pattern, target):
    """Say that a pattern matches no event, and why (which it returns) where that is not just its names."""
    from .command import complain
    from rawbpf.sources.type_list import is_type_pattern
    why = _why_nothing(pattern, target)
    complain("no %s matches %s%s" % ("type" if is_type_pattern(pattern) else "event", pattern, why and ": " + why), "WARNING")
    return why


def _why_nothing(pattern, target):
    from rawbpf.sources import ALL, SourceError, find_kinds, matcher, type_list
    if type_list.is_type_pattern(pattern):
        return type_list.nothing(pattern)
    try:
        kinds, rest = find_kinds(pattern, target)
    except SourceError as error:
        return error.reason
    reasons = {}
    for source in kinds:
        try:
            source.require()
            why = source.nothing(rest, target)
        except SourceError as error:
            why = error.reason
        if why:
            reasons.setdefault(why, []).append(source.shown)
    if len(kinds) == 1:
        return next(iter(reasons), "")
    texts = ["%s: %s" % (", ".join(shown), why) for why, shown in reasons.items()]
    named = ["%s:*" % name for name in filter(matcher(pattern), ALL)] if ":" not in pattern else []
    if named:
        texts.insert(0, "that is a pattern of names; the events of a kind are %s" % ", ".join(named))
    return "; ".join(texts)


def list_program(path, pid, verbose, json=False):
    """Print what can be probed in an ELF file."""
    from rawbpf.sources import literal
    list_pattern("uprobe:%s:*" % literal(path), pid, verbose, json)
    return list_pattern("usdt:%s:*" % literal(path), pid, verbose, json)


def list_script(name, text, positional, pid, verbose, json=False):
    """Print the events that a script would attach to; returns the exit status."""
    from rawbpf.sources import SourceError, Target, find
    from .attachpoints import of_kinds
    from .command import complain
    from .diagnostics import ScriptError, Source, colored
    from .parser import parse
    problems = {}
    target = Target(pid=pid, tell=lambda text: problems.setdefault(text))
    try:
        script = parse(Source(name, text), positional=positional)
        for probe in script.probes:
            for written in probe.attach_points:
                failed, listed = [], 0
                try:
                    meant = of_kinds(written, target)
                except SourceError as error:
                    raise ScriptError(written.span, error.reason, error.hints)
                for attach_point in meant:
                    try:
                        source = find(attach_point.kind)
                        points = source.expand(source.parse(attach_point.parts[1:], target), target)
                    except SourceError as error:
                        failed.append(error)
                        continue
                    listed += 1
                    if points[0].when in (None, "iter"):
                        _print(_listed(source, attach_point, points, target), verbose, json)
                if not listed:      # of several kinds, all others may make no sense
                    raise ScriptError(written.span, failed[0].reason, failed[0].hints)
    except ScriptError as error:
        sys.stdout.flush()
        sys.stderr.write(error.format(color=colored(sys.stderr)))
        return 1
    finally:
        for text in problems:
            complain(text, "WARNING")
    return 0


def _listed(source, attach_point, points, target):
    """The lines of a listing for the events of one attach point: those that a listing of everything has (an
    interval or a counter without its number), else their names."""
    from rawbpf.sources import Listed, quote
    parts = attach_point.parts[1:]
    lengths = {len(parts)} if hasattr(points[0], "binary") else {1, len(parts)}  # the functions of all programs are many
    known = {listed.text: listed for length in lengths
             for listed in source.list(":".join(map(quote, parts[:length])), target)}
    found = {}
    for name in sorted({point.listed for point in points}):
        short = name[:name.rfind(":") + 1]
        listed = known.get(name) or known.get(short) or Listed(name)
        found[listed.text] = listed
    return list(found.values())


def _print(listed, verbose, json):
    """Print events; returns how many there were."""
    out, count, listed = Writer(1, "full"), 0, iter(listed)
    if json:
        texts = map(_json, listed, repeat(verbose))
    elif verbose:
        texts = map("\n".join, map(methodcaller("verbose"), listed))
    else:
        texts = map(attrgetter("text"), listed)
    while True:
        lines = []
        try:
            lines.extend(islice(texts, 500))
        finally:        # what was found before something cannot be listed
            if lines:
                out.write(("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))
            if len(lines) < 500:
                out.flush()
        count += len(lines)
        if len(lines) < 500:
            return count


def _json(item, verbose):
    import json
    from rawbpf.sources.type_list import ListedType
    if isinstance(item, ListedType):
        record = {"type": item.text, "module": item.module}
        if verbose:
            record["definition"] = item.definition()
    else:
        record = {"probe": item.text}
        if verbose:
            record["arguments"] = item.arguments
    return json.dumps(record)


def _sentence(error):
    hints = getattr(error, "hints", ())
    text = getattr(error, "reason", None) or str(error)
    return text + "".join("\nHINT: " + hint for hint in hints)
