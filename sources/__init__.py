"""sources: where programs attach. One file per kind of event, all behind `base.Source`.

A kind's module is imported when somebody asks for that kind: a script with one tracepoint never
loads the uprobe machinery.
"""

from .base import (Attachment, Listed, Point, Source, SourceError, Target, has_wildcard, literal,
                   matcher, nearest, quote, split)

# every name and alias a script may use -> (module, class)
_KINDS = {
    "kprobe": ("kprobe", "Kprobe"), "k": ("kprobe", "Kprobe"),
    "kretprobe": ("kprobe", "Kretprobe"), "kr": ("kprobe", "Kretprobe"),
    "uprobe": ("uprobe", "Uprobe"), "u": ("uprobe", "Uprobe"),
    "uretprobe": ("uprobe", "Uretprobe"), "ur": ("uprobe", "Uretprobe"),
    "usdt": ("usdt", "Usdt"), "U": ("usdt", "Usdt"),
    "tracepoint": ("tracepoint", "Tracepoint"), "t": ("tracepoint", "Tracepoint"),
    "profile": ("timers", "Profile"), "p": ("timers", "Profile"),
    "interval": ("timers", "Interval"), "i": ("timers", "Interval"),
    "begin": ("special", "Begin"), "end": ("special", "End"),
    "BEGIN": ("special", "Begin"), "END": ("special", "End"),
    "test": ("special", "Test"), "bench": ("special", "Bench"),
    "self": ("special", "Self"),
    "fentry": ("fentry", "Fentry"), "f": ("fentry", "Fentry"), "kfunc": ("fentry", "Fentry"),
    "fexit": ("fentry", "Fexit"), "fr": ("fentry", "Fexit"), "kretfunc": ("fentry", "Fexit"),
    "rawtracepoint": ("raw_tracepoint", "RawTracepoint"), "rt": ("raw_tracepoint", "RawTracepoint"),
    "iter": ("iterators", "Iter"), "it": ("iterators", "Iter"),
    "software": ("perf_event", "Software"), "s": ("perf_event", "Software"),
    "hardware": ("perf_event", "Hardware"), "h": ("perf_event", "Hardware"),
    "cache": ("perf_event", "Cache"), "pmu": ("perf_event", "Pmu"),
    "watchpoint": ("watchpoint", "Watchpoint"), "w": ("watchpoint", "Watchpoint"),
}

# names as listings print them, in listing order
ALL = ("begin", "cache", "end", "fentry", "fexit", "hardware", "interval", "iter", "kprobe",
       "kretprobe", "pmu", "profile", "rawtracepoint", "self", "software", "tracepoint", "uprobe",
       "uretprobe", "usdt", "watchpoint")

_PROBES = frozenset((
    "Probe", "Kprobe", "Kretprobe", "KprobeSession", "Uprobe", "Uretprobe", "Usdt", "Tracepoint", "RawTracepoint",
    "Fentry", "Fexit", "Iter", "Profile", "Interval", "Software", "Hardware", "Cache", "Pmu", "Watchpoint"))

_found = {}


def __getattr__(name):
    """The classes of probes.py, imported when used."""
    if name in _PROBES:
        from . import probes

        return getattr(probes, name)
    raise AttributeError("module %r has no attribute %r" % (__name__, name))


def find(kind):
    """The Source called `kind` ("kprobe", "k", "BEGIN"); SourceError with the nearest names."""
    module, name = _KINDS.get(kind) or _KINDS.get(kind.lower(), (None, None))
    if module is None:
        raise SourceError("Invalid probe type: %s" % kind, nearest(kind.lower(), ALL))
    source = _found.get(name)
    if source is None:
        import importlib

        source = _found[name] = getattr(importlib.import_module("." + module, __name__), name)()
    return source


def find_all(pattern, target=Target(), path=None):
    """The Sources whose shown name matches the wildcard `pattern`, of those that make sense
    without more being said: kernel events; user-space ones if there is a pid or a `path`."""
    if not has_wildcard(pattern):
        return [find(pattern)]
    wanted = {"kernel"}
    if target.pid is not None or path:
        wanted.add("user")
    matches = matcher(pattern)
    return [source for source in map(find, ALL) if source.listed in wanted and matches(source.shown)]


def expand(text, target=Target()):
    """All points of one probe text ("kprobe:vfs_*"), as the script compiler gets them."""
    kind, *parts = split(text)
    source = find(kind)
    return source.expand(source.parse(parts, target), target)


def find_kinds(pattern, target=Target()):
    """([Source], rest): the kinds that the pattern of a listing is for and what stands after it, the pattern itself
    where it names no kind. SourceError when there is no such kind."""
    import os

    kind, colon, rest = pattern.partition(":")
    if not colon and kind.lower() not in _KINDS and kind not in _KINDS:
        # "-l '*sleep*'": a pattern for the events of every kind that the kernel has
        return find_all("*", target), pattern if has_wildcard(pattern) else "*%s*" % pattern
    first = rest.split(":")[0]
    path = first if first and not has_wildcard(first) and (os.path.exists(first) or "/" in first) else None
    found = find_all(kind or "*", target, path)
    if not found:       # of the others there is no list
        raise SourceError("No probe type matched for %s" % kind, ["%s:" % name for name in filter(matcher(kind), ALL)])
    return found, rest


def list_events(pattern="*", target=Target()):
    """Iterator of Listed over every kind that `pattern` names ("tracepoint:sched:*", "*sched*",
    "uprobe:./a.out:*"), in bpftrace's order; of ListedType for "struct task_*", "enum *"."""
    from .type_list import is_type_pattern, list_types

    if is_type_pattern(pattern):
        yield from list_types(pattern)
        return
    yield from _listed(*find_kinds(pattern, target), target)


def _listed(found, pattern, target):
    """What all of these kinds have. What keeps one of them from being listed is told when the others were."""
    failed = []
    for source in found:
        try:
            yield from source.list(pattern, target)
        except (SourceError, OSError) as error:
            failed.append((source, error))
    if len(found) == 1 and failed:
        raise failed[0][1]
    if failed:
        texts = {}
        for source, error in failed:
            texts.setdefault(str(error), []).append(source.shown)
        raise SourceError("; ".join("%s: %s" % (", ".join(kinds), text) for text, kinds in texts.items()))
