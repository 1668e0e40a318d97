"""rawtracepoint: a tracepoint's own arguments, before they are made into a record.

    rawtracepoint:[MODULE:]EVENT

The context is the tracepoint's arguments as 64-bit values. Their types are those of the kernel function
that runs the tracepoint's callbacks: __probestub_EVENT (6.4+), __traceiter_EVENT (5.10+) or the typedef
btf_trace_EVENT, whose first parameter is the callback's own data.
"""

from typing import NamedTuple

from . import kernel_btf
from .attach import attach_each
from .base import Listed, Source, SourceError, has_wildcard, matcher, nearest, quote
from .btf_args import BtfArgsPoint

_PREFIXES = ("__probestub_", "__traceiter_")
_TYPEDEF = "btf_trace_"


class Spec(NamedTuple):
    module: str  #: "*" when not given
    event: str


class RawTracepoint(Source):
    names = ("rawtracepoint", "rt")
    listed = "kernel"
    usage = "rawtracepoint:[MODULE:]EVENT"

    def parse(self, parts, target):
        if len(parts) not in (1, 2) or not parts[-1]:
            raise self.count_error(1, 2)
        return Spec(parts[0] if len(parts) == 2 else "*", parts[-1])

    def expand(self, spec, target):
        try:
            found = events(spec.module, spec.event)
        except SourceError:
            if has_wildcard(spec.event):
                raise
            return [RawTracepointPoint(self, "", spec.event)]  # without BTF there is argN
        if not found:
            parts = [spec.event] if spec.module == "*" else [spec.module, spec.event]
            names = {name for _, name in events("*", "*")}
            hints = [] if has_wildcard(spec.event) else nearest(spec.event, names)
            raise SourceError("No matches for rawtracepoint %s." % ":".join(parts),
                              ["rawtracepoint:" + hint for hint in hints], missing=True, pattern=spec.module == "*")
        return [RawTracepointPoint(self, *each) for each in found]

    def list(self, pattern, target):
        module, _, event = pattern.rpartition(":")
        try:
            found = events(module or "*", event or "*")
        except SourceError:
            return
        for where, name in found:
            yield Listed("rawtracepoint:%s:%s" % (quote(where), quote(name)),
                         RawTracepointPoint(self, where, name).declarations)


def events(module, event):
    """(module, name) of the raw tracepoints that match, sorted."""
    in_module, in_event = matcher(module), matcher(event)
    found = set()
    for where in filter(in_module, kernel_btf.modules()):
        btf = kernel_btf.of(where)
        if btf is None:
            continue
        if not has_wildcard(event):
            if callback(btf, event) is not None:
                return [(where, event)]  # a tracepoint's name is there once
            continue
        for name, number in btf.functions():
            for prefix in _PREFIXES:
                if name.startswith(prefix) and in_event(name[len(prefix):]):
                    found.add((where, name[len(prefix):]))
                    _callbacks.setdefault((where, name[len(prefix):]), {})[prefix] = number
        if not found:  # before 5.10
            found |= {(where, name[len(_TYPEDEF):]) for name, _ in btf.names("typedef")
                      if name.startswith(_TYPEDEF) and in_event(name[len(_TYPEDEF):])}
    return sorted(found)


#: {(module, event): {prefix: BTF id}} of functions that a look at all of them has found
_callbacks = {}


def _callback_of(module, event):
    btf, known = kernel_btf.of(module), _callbacks.get((module, event), {})
    for prefix in _PREFIXES:
        if prefix in known:
            return btf.type(known[prefix])
    return callback(btf, event)


def callback(btf, event):
    """The elf.types.Function that a tracepoint calls, or None."""
    from rawbpf.elf import types

    for prefix in _PREFIXES:
        number = btf.find_id(prefix + event, "func")
        if number:
            return btf.type(number)
    number = btf.find_id(_TYPEDEF + event, "typedef")
    if number:
        target = types.strip(btf.type(number))
        return target.target if isinstance(target, types.Pointer) else None
    return None


class RawTracepointPoint(BtfArgsPoint):
    program_type = "raw_tracepoint"
    compares_pid = True

    def __init__(self, source, module, event):
        self.source = source
        self.module = module
        self.event = event
        self._parameters = None

    @property
    def parameters(self):
        if self._parameters is None and self.module:
            from rawbpf.elf.types import Parameter

            function = _callback_of(self.module, self.event)
            if function is not None:
                self._parameters = [Parameter(p.name or "arg%d" % n, p.type)
                                    for n, p in enumerate(function.parameters[1:])]
        return self._parameters

    @property
    def name(self):
        return ":".join(filter(None, (self.source.shown, self.module, self.event)))

    @property
    def cookies(self):
        from rawbpf.loader import kernel

        return kernel.release() >= (6, 10)

    def group_key(self, args=True):
        layout = None
        if args and self.parameters is not None:
            layout = tuple((p.name, str(p.type)) for p in self.parameters)
        return ("raw_tracepoint", layout)

    def attach(self, program, points, cookies=None):
        from rawbpf.loader.link import attach_raw_tracepoint

        return attach_each(points, lambda point, cookie: attach_raw_tracepoint(program, point.event, cookie),
                           cookies)

    def followable(self):
        btf = kernel_btf.of(self.module) if self.module else None
        number = btf.find_id(_TYPEDEF + self.event, "typedef") if btf is not None else 0
        return TypedRawTracepointPoint(self.source, self.module, self.event, number) if number else self


class TypedRawTracepointPoint(RawTracepointPoint):
    """The same event for a program of type tracing (Linux 5.5), which is bound to it when it is loaded: the verifier
    knows the types of the arguments, by the typedef btf_trace_EVENT."""

    program_type = "tracing"
    expected_attach_type = "trace_raw_tp"
    cookies = False

    def __init__(self, source, module, event, type_id):
        super().__init__(source, module, event)
        self.type_id = type_id

    @property
    def load_options(self):
        options = {"attach_btf_id": self.type_id}
        if self.module != "vmlinux":
            from rawbpf.loader.btf import BtfObject

            options["attach_btf_obj"] = BtfObject.of_module(self.module)
        return options

    def group_key(self, args=True):
        return ("tracing", self.expected_attach_type, self.module, self.type_id)

    def attach(self, program, points, cookies=None):
        from rawbpf.loader.link import attach_tracing

        return attach_each(points, lambda point, cookie: attach_tracing(program))
