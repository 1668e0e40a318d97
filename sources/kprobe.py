"""kprobe and kretprobe: any kernel function, at its entry, at an offset, or at its return.

    kprobe:FUNCTION  kprobe:FUNCTION+OFFSET  kprobe:MODULE:FUNCTION  kprobe:0xADDRESS  kprobe:vfs_*

Many functions are attached by one kprobe_multi link (Linux 5.18+); where the kernel has none, and
for offsets and addresses, each by a perf event of the kprobe PMU (4.17+).
"""

import errno
import os
import re
from typing import NamedTuple

from . import kallsyms
from .attach import attach_groups, attach_perf, perf_cookies
from .base import (Listed, Source, SourceError, has_wildcard, matcher, nearest, number, quote,
                   try_number)
from .registers import RegistersPoint


class Spec(NamedTuple):
    module: str  #: "" when not given
    function: str  #: "" with an address
    offset: int
    address: int


class Kprobe(Source):
    names = ("kprobe", "k")
    listed = "kernel"
    usage = "kprobe:[MODULE:]FUNCTION[+OFFSET] or kprobe:ADDRESS"
    retprobe = False
    session = False

    def parse(self, parts, target):
        if len(parts) not in (1, 2) or not parts[-1]:
            raise self.count_error(1, 2)
        module = parts[0] if len(parts) == 2 else ""
        text = parts[-1]
        address = try_number(text)
        if address is not None:
            if not target.unsafe:
                raise SourceError("Probing by address requires --unsafe")
            return Spec(module, "", 0, address)
        function, plus, offset = text.partition("+")
        if plus:
            if self.retprobe:
                raise SourceError("Offset not allowed")
            if "+" in offset:
                raise SourceError("Cannot take more than one offset")
            if has_wildcard(function):
                raise SourceError("Cannot use wildcards with an offset")
            return Spec(module, function, number(offset, "offset"), 0)
        return Spec(module, function, 0, 0)

    def require(self):
        require_kprobes()

    def expand(self, spec, target):
        try:
            points = self._expand(spec)
        except SourceError as error:
            if target.unsafe and error.missing and not has_wildcard(spec.function):
                error.reason = "Unable to attach probe: %s: there is no such function" % ":".join(
                    filter(None, (self.shown, spec.module, spec.function)))
            raise
        if kallsyms.TRACEABLE_FILE and spec.function and not any(spec.function == name for name, _ in kallsyms.traceable()
                                                                 or ()) and not has_wildcard(spec.function):
            if not target.unsafe:
                raise _missing(self, spec)
            for point in points:
                point.warning = NOT_TRACEABLE % spec.function
        try:
            require_kprobes()
        except SourceError as error:
            pattern = has_wildcard(spec.function)
            raise SourceError(error.reason if pattern else "Unable to attach probe: %s: %s" % (points[0].name, error.reason),
                              missing=pattern, pattern=pattern) from None
        return points

    def _expand(self, spec):
        if spec.address:
            return [KprobePoint(self, spec.module, "", 0, spec.address)]
        if has_wildcard(spec.function) or has_wildcard(spec.module):
            return self._expand_wildcard(spec)
        places = kallsyms.find(spec.function, spec.module or None)
        if not places:
            raise _missing(self, spec)
        if spec.function in kallsyms.blacklist():
            raise SourceError("%s is on the kernel's kprobe blacklist: a probe there could crash "
                              "the kernel" % spec.function)
        if len(places) == 1:
            return [KprobePoint(self, spec.module, spec.function, spec.offset, 0, self.session)]
        # Several functions have the name; the kernel takes the first or refuses. By address, all.
        if not all(address for address, _ in places):
            raise SourceError(_hidden(spec.function, [module for _, module in places]))
        return [KprobePoint(self, spec.module, spec.function, spec.offset, address, self.session)
                for address, _ in sorted(places)]

    def _expand_wildcard(self, spec):
        names = list(candidates(spec.module, spec.function))
        if not names:
            raise _missing(self, spec)
        multi = self.session or len(names) > 1 and has_multi()
        unclear = ambiguous({name for name, _ in names}, multi)
        table = kallsyms.traceable_addresses(unclear) if unclear else {}
        points, done = [], set()
        for name, module in names:
            shown = module if spec.module else ""
            if name not in unclear:
                points.append(KprobePoint(self, shown, name, 0, 0, multi))
            elif (name, module) not in done:
                done.add((name, module))
                places = sorted(table.get((name, module), ()))
                if places and not places[0]:
                    points.append(KprobePoint(self, shown, name, 0, 0, multi))
                    points[-1].refusal = _hidden(name, [module] * len(places))
                    continue
                points += [KprobePoint(self, shown, name, 0, address, multi) for address in places]
        if not points:
            raise _missing(self, spec)
        return points

    def list(self, pattern, target):
        if not has_kprobes():
            return
        module, _, function = pattern.rpartition(":")
        head, before = self.shown + ":", None

        def declarations(name, where):
            return lambda: KprobePoint(self, where, name, 0).declarations()

        for name, where in candidates(module, function or "*"):     # of which there are a hundred thousand
            key = (name, where) if module else name
            if key == before:
                continue
            before = key
            text = name if name.isidentifier() else quote(name)
            if module:
                text = "%s:%s" % (quote(where or "vmlinux"), text)
            yield Listed(head + text, declarations(name, where))


class Kretprobe(Kprobe):
    names = ("kretprobe", "kr")
    listed = ""
    usage = "kretprobe:[MODULE:]FUNCTION"
    retprobe = True


class KprobeSession(Kprobe):
    """One program that runs at the entry and, unless it returned 1 there, at the return (6.10+).
    bpf_session_is_return() tells which. Of a script's kprobe and kretprobe, `joined` makes one."""

    names = ("kprobe_session",)
    listed = ""
    usage = "FUNCTION"
    session = True

    def parse(self, parts, target):
        spec = super().parse(parts, target)
        if spec.address or spec.offset:
            raise SourceError("a session is of a function, not of an address or offset")
        return spec

    def expand(self, spec, target):
        from rawbpf.loader import features, introduced

        if not features.has_link("kprobe_session"):
            raise SourceError("kprobe sessions: %s" % (introduced.needs("link", "kprobe_session") or
                                                       "this kernel has none (CONFIG_FPROBE is not set, or its "
                                                       "architecture came later)"))
        return super().expand(spec, target)


def candidates(module, function):
    """(name, module or "") of the traceable functions that match, sorted, one entry a function. Those on the
    kprobe blacklist and the harmful ones are left out."""
    in_function, bad = matcher(function), kallsyms.blacklist()
    names = kallsyms.beginning_with(re.match(r"[^*?\[]*", function).group())
    if names is None:
        names = [(n, m) for n, m in kallsyms.names() if m != "bpf"]
    found = [(n, m) for n, m in names if in_function(n) and ".part." not in n and n not in bad
             and not kallsyms.harmful(n)]
    if module:
        in_module = matcher(module)
        found = [(n, m) for n, m in found if in_module(m or "vmlinux")]
    if not module:
        return sorted(found)
    return sorted(found, key=lambda pair: (pair[1] or "vmlinux", pair[0]))


def _hidden(name, modules):
    return ("%d kernel functions are called %s (in %s), and their addresses are hidden: "
            "kernel.kptr_restrict or a missing CAP_SYSLOG"
            % (len(modules), name, ", ".join(sorted({module or "vmlinux" for module in modules}))))


def ambiguous(names, multi):
    """Those of `names` that must be attached by address, because the kernel knows several functions of
    that name: kprobe_multi looks at what can be traced only, a perf event at every symbol."""
    counts = kallsyms.traceable_counts()
    found = {name for name in names if counts.get(name, 0) > 1}
    if not multi:
        found |= {name for name, _ in kallsyms.repeated() if name in names}
    return found


def has_kprobes():
    return os.path.exists("/sys/bus/event_source/devices/kprobe")


def require_kprobes():
    if has_kprobes():
        return
    from rawbpf.loader import kernel

    if kernel.release() < (4, 17):
        raise SourceError("kprobes need Linux 4.17 or later, this is %s" % os.uname().release)
    option = "CONFIG_KPROBES"
    if kernel.config().get("CONFIG_KPROBES") == "y":
        option = "CONFIG_KPROBE_EVENTS"
    raise SourceError("this kernel has no kprobes (%s is not set)" % option)


def has_multi():
    from rawbpf.loader import features

    return kallsyms.traceable() is not None and features.has_link("kprobe_multi")


def _missing(source, spec):
    name = (spec.module + ":" if spec.module else "") + spec.function
    reason = "No matches for %s %s." % (source.shown, name)
    if has_wildcard(name):
        return SourceError(reason, missing=True)
    pairs = kallsyms.names()
    if spec.module not in ("", "vmlinux") and not any(m == spec.module for _, m in pairs):
        return SourceError("specified module %s in probe %s:%s is not loaded." % (spec.module, source.shown, name),
                           missing=True)
    modules = sorted({m or "vmlinux" for n, m in pairs if n == spec.function})
    if modules:
        hints = ["%s:%s:%s" % (source.shown, m, spec.function) for m in modules]
    else:
        start = spec.function + "."
        cloned = sorted({n for n, _ in pairs if n.startswith(start)})
        if cloned:
            reason += " The compiler left only variants of it."
        hints = ["%s:%s" % (source.shown, n)
                 for n in cloned or nearest(spec.function, {n for n, _ in pairs})]
    return SourceError(reason, hints[:3], missing=True, warning=NOT_TRACEABLE % spec.function)


NOT_TRACEABLE = ('%s is not traceable (either non-existing, inlined, or marked as "notrace"); attaching to it will '
                 "likely fail")


class _Joined(KprobeSession):
    names = ("kprobe",)


def joined(entries, returns):
    """The points of one session for two programs' points: `entries` kprobes, `returns` kretprobes of the same functions. None
    where they are not, or this kernel has no sessions (6.10), or a function is not one that ftrace knows by its name."""
    from rawbpf.loader import features

    if [point.function for point in entries] != [point.function for point in returns]:
        return None
    if any(point.source.shown != kind or point.module or point.offset or point.address or point.refusal or point.warning
           for kind, points in (("kprobe", entries), ("kretprobe", returns)) for point in points):
        return None
    if not has_multi() or not features.has_link("kprobe_session"):
        return None
    counts = kallsyms.traceable_counts()
    if any(counts.get(point.function) != 1 for point in entries):
        return None
    return [KprobePoint(_Joined(), "", point.function, 0, 0, True) for point in entries]


class KprobePoint(RegistersPoint):
    """One place in the kernel. `address` is 0 when the name says it all; `multi`: attached by
    kprobe_multi together with others."""

    program_type = "kprobe"
    compares_pid = True
    refusal = ""  #: why it cannot be attached, known beforehand

    @property
    def last_first(self):
        return not self.source.retprobe

    def __init__(self, source, module, function, offset, address=0, multi=False):
        self.source = source
        self.module = module
        self.function = function
        self.offset = offset
        self.address = address
        self.multi = multi

    @property
    def at_entry(self):
        return not self.source.retprobe and not self.offset and bool(self.function)

    @property
    def at_return(self):
        return self.source.retprobe or self.source.session

    @property
    def inside(self):
        return not self.source.retprobe and not self.at_entry

    def prototype(self):
        from . import kernel_btf

        return kernel_btf.prototype(self.function, self.module) if self.function else None

    @property
    def expected_attach_type(self):
        if self.source.session:
            return "trace_kprobe_session"
        return "trace_kprobe_multi" if self.multi else None

    @property
    def func(self):
        return self.function or None

    @property
    def name(self):
        text = self.function or "%d" % self.address
        if self.offset:
            text += "+%d" % self.offset
        return ":".join(filter(None, (self.source.shown, self.module, text)))

    @property
    def cookies(self):
        return self.multi or perf_cookies()

    def func_address(self, f, ctx):
        from rawbpf.loader import features

        if features.has_helper("bpf_get_func_ip", "kprobe") and not self.offset and self.function:
            return f.call("bpf_get_func_ip", ctx)
        return None if self.at_return else self.pc(f, ctx)

    def declarations(self):
        from . import kernel_btf

        function = self.prototype()
        if function is None:
            return []
        if self.source.retprobe:
            text = kernel_btf.declaration(function.returns, "retval")
            return ["void" if text == "void retval" else text]
        return [kernel_btf.declaration(p.type, "arg%d" % n) for n, p in enumerate(function.parameters)]

    def group_key(self, args=True):
        key = ("kprobe", self.expected_attach_type, self.at_entry, self.at_return, bool(self.offset))
        return key + (self.args_key(),) if args else key

    def attach(self, program, points, cookies=None):
        hidden = [(point, point.refusal) for point in points if point.refusal]
        if hidden:
            if len(hidden) == len(points):
                raise SourceError("%s: %s" % (hidden[0][0].name, hidden[0][1]))
            chosen = [n for n, point in enumerate(points) if not point.refusal]
            attachment = self.attach(program, [points[n] for n in chosen], cookies and [cookies[n] for n in chosen])
            attachment.refused += hidden
            return attachment
        if self.multi:
            return attach_multi(program, points, cookies, self.source)
        from rawbpf.loader import perf

        def open_event(point):
            if point.address:
                return perf.kprobe(address=point.address + point.offset,
                                   retprobe=self.source.retprobe), -1, -1
            name = point.function
            if point.module and point.module != "vmlinux":
                name = point.module + ":" + name
            return perf.kprobe(name, point.offset, retprobe=self.source.retprobe), -1, -1

        return attach_perf(program, points, open_event, cookies, _explain)


def attach_multi(program, points, cookies, source):
    """kprobe_multi links for all points: of those with names, and of those with addresses."""
    from rawbpf.loader.link import attach_kprobe_multi

    given = list(zip(points, cookies or [None] * len(points)))
    groups = [group for group in ([each for each in given if not each[0].address],
                                  [each for each in given if each[0].address]) if group]

    def link_of(group):
        targets = {"addresses": [p.address for p, _ in group]} if group[0][0].address else {
            "symbols": [p.function for p, _ in group]}
        return attach_kprobe_multi(program, cookies=None if group[0][1] is None else [c for _, c in group],
                                   retprobe=source.retprobe, session=source.session, **targets)

    return attach_groups(groups, link_of, _explain)


def _explain(point, error):
    """A refusal in words: what the kernel knew when it said EINVAL and the like."""
    code, name = error.errno, point.function
    if not name:
        return str(error)
    if code == errno.EINVAL and name in kallsyms.blacklist():
        return "%s is on the kernel's kprobe blacklist" % name
    if code in (errno.EINVAL, errno.ENOENT, errno.ESRCH) and kallsyms.untraceable(name):
        return ("%s cannot be traced: it is marked notrace, or the compiler left no place for a tracer "
                "at its start" % name)
    if code in (errno.EINVAL, errno.EILSEQ) and point.offset:
        return ("offset %d of %s is not the start of an instruction, or beyond the function's end"
                % (point.offset, name))
    return str(error)
