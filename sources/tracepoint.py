"""tracepoint:GROUP:EVENT: the kernel's static tracepoints, as tracefs describes them.

A program's context is the event's record; where each field lies is read from the event's format
file (trace_format.py). Attached through a perf event of the tracepoint's id.
"""

from typing import NamedTuple

from . import trace_format
from .attach import attach_perf
from .base import Listed, Point, Source, SourceError, has_wildcard, matcher, nearest, quote
from .tracefs import tracefs


class Spec(NamedTuple):
    group: str
    event: str


class Tracepoint(Source):
    names = ("tracepoint", "t")
    listed = "kernel"
    usage = "tracepoint:GROUP:EVENT"

    def parse(self, parts, target):
        if len(parts) == 1 and has_wildcard(parts[0]):
            return Spec("*", parts[0])
        if len(parts) != 2 or not all(parts):
            raise self.count_error(2)
        for part in parts:
            if "/" in part or part.startswith("."):
                raise SourceError("invalid tracepoint name: %s" % part)
        return Spec(*parts)

    def expand(self, spec, target):
        group, event = spec
        if not has_wildcard(group) and not has_wildcard(event):
            if not tracefs().exists("events/%s/%s/id" % spec):
                raise _missing(group, event)
            return [TracepointPoint(self, group, event)]
        points = [TracepointPoint(self, *name) for name in _matching(group, event)]
        if not points:
            raise _missing(group, event)
        return points

    def list(self, pattern, target):
        group, colon, event = pattern.partition(":")
        if not colon:
            group, event = "*", pattern or "*"
        for point in (TracepointPoint(self, *name)
                      for name in _matching(group or "*", event or "*")):
            yield Listed("tracepoint:%s:%s" % (quote(point.group), quote(point.event)),
                         point.declarations)


def _matching(group, event):
    """(group, event) of every event that matches both patterns, sorted as "group:event"."""
    fs = tracefs()
    in_group, in_event = matcher(group), matcher(event)
    try:
        lines = fs.read("available_events").decode().split()
    except OSError:
        groups = filter(in_group, fs.folders("events"))
        lines = ["%s:%s" % (g, e) for g in groups if g != "ftrace"
                 for e in fs.folders("events/" + g)]
    lines.sort()
    names = (line.split(":", 1) for line in lines)
    return [(g, e) for g, e in names if in_group(g) and in_event(e)]


def _missing(group, event):
    fs = tracefs()
    reason = "No matches for tracepoint %s:%s." % (group, event)
    try:
        groups = fs.folders("events")
        if not has_wildcard(group) and group not in groups:
            hints = [g + ":" + event for g in nearest(group, groups)
                     if fs.exists("events/%s/%s" % (g, event))]
            if not hints and not has_wildcard(event):
                hints = [g + ":" + event for g in groups if fs.exists("events/%s/%s" % (g, event))]
            hints = hints or [g + ":*" for g in nearest(group, groups)]
        elif has_wildcard(group) or has_wildcard(event):
            hints = []
        else:
            hints = [group + ":" + e for e in nearest(event, fs.folders("events/" + group))]
    except OSError:
        hints = []
    return SourceError(reason, ["tracepoint:" + hint for hint in hints[:3]], missing=True)


class TracepointPoint(Point):
    program_type = "tracepoint"
    compares_pid = True
    once = True
    argument_count = 0

    def __init__(self, source, group, event):
        self.source = source
        self.group = group
        self.event = event
        self._format = None

    @property
    def name(self):
        return "tracepoint:%s:%s" % (self.group, self.event)

    @property
    def user_space(self):
        return self.group == "syscalls"  # pointers in system calls' arguments are the caller's

    @property
    def cookies(self):
        from .attach import perf_cookies

        return perf_cookies()

    @property
    def format(self):
        if self._format is None:
            self._format = trace_format.parse(self._format_text(), self.name)
        return self._format

    def _fields(self):
        """The event's own fields. __syscall_nr is one of them, common_* are not."""
        return self.format.fields

    def declarations(self):
        """The fields as C declarations, in the file's own words (all that a listing needs)."""
        return trace_format.declarations(self._format_text())

    def _format_text(self):
        return tracefs().read("events/%s/%s/format" % (self.group, self.event)).decode()

    def arguments(self):
        from rawbpf.elf import types

        fields = [types.Field(f.name, trace_format.field_type(f), f.offset, 0, f.bits, f.loc)
                  for f in self._fields()]
        return types.Struct("struct", "%s__%s" % (self.group, self.event), self.format.size, fields)

    def _raw(self, field):
        for each in self._fields():
            if each.name == field.name and each.offset == field.offset:
                return each
        raise SourceError("%s has no field %s" % (self.name, field.name))

    def field(self, f, ctx, field):
        raw = self._raw(field)
        if raw.bits is not None:
            raise SourceError("%s: the format of %s does not say which bits are %s"
                              % (self.name, self.event, raw.name))
        if not raw.scalar:
            raise SourceError("%s: %s is no number but %d bytes" % (self.name, raw.name, raw.size))
        return _load(f, ctx, raw.offset, raw.size, raw.signed)

    def field_address(self, f, ctx, field):
        raw = self._raw(field)
        if not raw.loc:
            return f.alu("+", ctx, raw.offset)
        where = f.alu("&", f.load(ctx, raw.offset, 4), 0xffff)
        if raw.loc == "rel_loc":  # from the end of the location itself
            where = f.alu("+", where, raw.offset + 4)
        return f.alu("+", ctx, where)

    def field_length(self, f, ctx, field):
        raw = self._raw(field)
        if not raw.loc:
            return f.const(raw.size)
        return f.alu(">>", f.load(ctx, raw.offset, 4), 16)

    def field_load(self, f, ctx, field, offset, size, signed=False):
        raw = self._raw(field)
        if raw.loc or offset + size > raw.size:
            return None
        return _load(f, ctx, raw.offset + offset, size, signed)

    def args_address(self, f, ctx):
        return f.copy(ctx)

    def group_key(self, args=True):
        return (self.program_type, self.user_space, self.format.layout if args else None)

    def attach(self, program, points, cookies=None):
        from rawbpf.loader import perf

        def open_event(point):
            number = tracefs().event_id(point.group, point.event)
            if number is None:
                raise SourceError("%s is gone: its module was unloaded" % point.name, missing=True)
            return perf.tracepoint(number), -1, 0

        return attach_perf(program, points, open_event, cookies)


def _load(f, ctx, offset, size, signed):
    """Loads from a tracepoint's context must be aligned to their size; what is not, in pieces."""
    if offset % size == 0:
        return f.load(ctx, offset, size, signed)
    step = offset & -offset
    value = f.load(ctx, offset, step)
    for at in range(step, size, step):
        value = f.alu("|", value, f.alu("<<", f.load(ctx, offset + at, step), 8 * at))
    return f.extend(value, size, True) if signed and size < 8 else value
