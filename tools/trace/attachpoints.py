"""The text of an attach point, taken apart: `uprobe:"./a b":$1` -> ["uprobe", "./a b", "main"]."""

import re

from .ast_node import clone
from .lexer import number

PARAMETER = re.compile(r"\$([1-9][0-9]*)").match


def split_attach_point(text, positional):
    """(parts between colons, message or None): quotes removed, `$1` filled in."""
    parts, part, at, quoted = [], [], 0, False
    while at < len(text):
        char = text[at]
        if char == ":" and not quoted:
            parts.append("".join(part))
            part = []
        elif char == '"':
            quoted = not quoted
        elif quoted and char == "\\" and at + 1 < len(text):
            at += 1
            part.append(text[at])
        elif char == "$" and not quoted:
            match = PARAMETER(text, at)
            if not match:
                after = text[at + 1:at + 2]
                return None, ("invalid trailing character for positional param: %s. Try quoting "
                              "this entire part if this is intentional e.g. \"$%s\"."
                              % (after, after))
            try:
                index = number(match.group(1))[0]
            except ValueError as error:
                return None, "positional parameter is not valid: %s" % error
            value = positional[index - 1] if index <= len(positional) else ""
            text = text[:at] + value + text[match.end():]
            continue
        else:
            part.append(char)
        at += 1
    parts.append("".join(part))
    return parts, None


def attach_points(script, positional, diagnostics):
    """Fills in the parts of all attach points; empty ones (`,` and `::k:f`) are left out."""
    for probe in script.probes:
        points = []
        for point in probe.attach_points:
            point.parts, message = split_attach_point(point.text, positional)
            if message:
                diagnostics.error(point.span, message)
                continue
            label, equals, kind = point.parts[0].partition("=")
            if equals and kind:
                point.label, point.parts[0] = label, kind
            if point.parts[0]:
                points.append(point)
        probe.attach_points[:] = points
        if not points:
            diagnostics.error(probe.span, "No attach points for probe")


def of_kinds(point, target):
    """The attach points that one stands for whose kind is a wildcard (`*tracepoint:sched_*`), one a kind: of the
    kinds of user space where a process or a file is meant, else of the kernel's. SourceError when there is none."""
    from rawbpf.sources import ALL, SourceError, find, has_wildcard, matcher
    if not has_wildcard(point.kind):
        return [point]
    rest = point.parts[1:] or point.parts       # alone it is a pattern for the events of every kind
    where = "user" if target.pid is not None or point.parts[1:] and "/" in rest[0] else "kernel"
    matches = matcher(point.kind if point.parts[1:] else "*")
    found = []
    for kind in ALL:
        if find(kind).listed == where and matches(kind):
            found.append(clone(point))
            found[-1].parts = [kind, *rest]
    if not found:
        raise SourceError("No probe type matched for %s" % point.kind)
    return found
