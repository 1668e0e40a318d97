"""Which kernel functions exist, where, and which of them can be traced.

/proc/kallsyms ("address type name [module]", proc(5)), tracefs' available_filter_functions
("name [module]": what ftrace, kprobe_multi and fentry can be attached to) and debugfs'
kprobes/blacklist ("first-last name").
"""

import collections
import functools
import re

from .tracefs import tracefs

_TEXT = b"tTwW"
_NOT_MODULES = ("bpf", "__builtin__ftrace", "__builtin__kprobes")  # code made at run time


@functools.lru_cache(maxsize=1)
def _text():
    with open("/proc/kallsyms", "rb") as file:
        return file.read()


def find(name, module=None):
    """[(address, module or "")] of every text symbol called `name`; `module` "vmlinux" means the
    kernel itself. Addresses are 0 where the kernel hides them (kernel.kptr_restrict)."""
    text, wanted, found = _text(), b" " + name.encode(), []
    at = text.find(wanted)
    while at >= 0:
        end = at + len(wanted)
        if text[end:end + 1] in (b"\n", b"\t"):
            start = text.rfind(b"\n", 0, at) + 1
            address, kind = text[start:at].split()
            line = text[end:text.find(b"\n", end)]
            where = line.strip(b"\t[]").decode()
            if kind in _TEXT and where not in _NOT_MODULES and module in (None, where or "vmlinux"):
                found.append((int(address, 16), where))
        at = text.find(wanted, end)
    return found


_LINE = re.compile(rb"^([0-9a-f]+) [tTwW] (\S+)(?:\t\[([^\]]+)\])?$", re.M)


def addresses(wanted=None):
    """{(name, module or ""): [addresses]} of text symbols, of those names that are in `wanted`."""
    text, table = _text(), {}
    if wanted is not None:
        text = _lines_of(text, {name.encode() for name in wanted})
    for address, name, module in _LINE.findall(text):
        table.setdefault((name.decode(), module.decode()), []).append(int(address, 16))
    return table


def _lines_of(text, names):
    """The lines of kallsyms with these names. The kernel's own are compared as they are, which takes a tenth of
    the time that taking them apart does."""
    own = _own_part(text)
    before = text.find(b" ") + 3        # address, type
    chosen = [line for line in text[:own].split(b"\n") if line[before:] in names]
    chosen += [line for line in text[own:].split(b"\n") if line[before:].partition(b"\t")[0] in names]
    return b"\n".join(chosen)


def _own_part(text):
    """Where the lines of modules begin."""
    bracket = text.find(b"\t[")
    return len(text) if bracket < 0 else text.rfind(b"\n", 0, bracket) + 1


def names():
    """Every text symbol as (name, module or "")."""
    return [(n.decode(), m.decode()) for n, m in
            re.findall(rb"^[0-9a-f]+ [tTwW] (\S+)(?:\t\[([^\]]+)\])?$", _text(), re.M)]


#: A file to read in place of available_filter_functions (`rawbpf trace --traceable-functions`).
TRACEABLE_FILE = ""


@functools.lru_cache(maxsize=1)
def traceable():
    """What ftrace can trace as a list of (name, module or ""), or None where that cannot be read
    (lockdown, or a kernel without dynamic ftrace)."""
    data, names = _traced()[0], []
    if data is None:
        return None
    for line in data.decode().splitlines():
        name, _, module = line.partition(" ")
        if not name.startswith("__ftrace_invalid"):  # stands for a function that is gone
            names.append((name, module[1:-1]))
    return names


@functools.lru_cache(maxsize=1)
def _traced():
    """(available_filter_functions, the addresses before its lines or None). Since 6.5 one file has both; the kernel
    looks up the name of every place for each reading, so the other is not read then."""
    from .base import SourceError

    try:
        if TRACEABLE_FILE:
            with open(TRACEABLE_FILE, "rb") as file:
                return file.read(), None
        try:
            data = tracefs().read("available_filter_functions_addrs", 1 << 20)
        except FileNotFoundError:
            return tracefs().read("available_filter_functions", 1 << 20), None
    except (OSError, SourceError):
        return None, None
    lines = [line.partition(b" ") for line in data.splitlines()]
    return b"\n".join([line for _, _, line in lines]), [address for address, _, _ in lines]


@functools.lru_cache(maxsize=1)
def traceable_counts():
    """{name: how many functions called that can be traced}; {} where that cannot be read."""
    counts = {}
    for name, _ in traceable() or ():
        counts[name] = counts.get(name, 0) + 1
    return counts


def untraceable(name):
    """Is `name` known to be a function that ftrace, and so (without CONFIG_KPROBE_EVENTS_ON_NOTRACE)
    kprobes cannot trace? What the compiler split off ("name.cold") counts as the function itself."""
    counts = traceable_counts()
    return bool(counts) and name not in counts and name.partition(".")[0] not in counts


@functools.lru_cache(maxsize=1)
def _traced_places():
    """Addresses of all places that ftrace can change (6.5+), or None."""
    found = _traced()[1]
    return None if found is None else {int(address, 16) for address in found}


_memo = {}  # what was made of a text or list, as long as that is the current one


def _made_of(source, what, make):
    known = _memo.get(what)
    if known is None or known[0] is not source:
        known = _memo[what] = (source, make(source))
    return known[1]


def repeated():
    """{(name, module or ""): [addresses]} of the text symbols whose name occurs more than once."""
    return _made_of(_text(), "repeated", _repeated)


def _repeated(text):
    own, before = _own_part(text), text.find(b" ") + 3
    names = [line[before:] for line in text[:own].split(b"\n")]
    names += [line[before:].partition(b"\t")[0] for line in text[own:].split(b"\n")]
    table = addresses({name.decode() for name, count in collections.Counter(names).items() if count > 1 and name})
    count = collections.Counter()
    for (name, _), found in table.items():
        count[name] += len(found)
    return {key: found for key, found in table.items() if count[key[0]] > 1}


def beginning_with(head):
    """Those of `traceable()` that begin with `head`, sorted; None where that is None."""
    import bisect

    every = traceable()
    if every is None:
        return None
    every = _made_of(every, "sorted", sorted)
    return every[bisect.bisect_left(every, (head,)):bisect.bisect_left(every, (head + chr(0x10ffff),))]


def traceable_addresses(wanted):
    """{(name, module or ""): [addresses]} of the functions in `wanted`, names that are `repeated`. Those that
    cannot be traced are left out where the kernel tells one address from another (6.5+)."""
    several = _made_of(_text(), "several", lambda _: addresses({n for n, c in traceable_counts().items() if c > 1}))
    table, places = {key: found for key, found in several.items() if key[0] in wanted}, _traced_places()
    rest = wanted - {name for name, _ in table}
    if rest:
        table.update({key: found for key, found in repeated().items() if key[0] in rest})
    if places is None:
        return table
    # the place is the call at a function's start, behind a landing pad of up to two instructions
    return {key: [each for each in found if not each or any(each + step in places for step in range(0, 20, 4))]
            for key, found in table.items()}


#: Functions that a pattern does not mean though ftrace takes them: a probe in all of what runs when a CPU idles or leaves a
#: critical section makes the system stand still (the kernel's own tests of kprobe_multi leave them out, and so does bpftrace).
harmful = re.compile(r"rcu_|(?:arch_cpu_idle|default_idle|bpf_dispatcher_xdp_func)\Z").match


@functools.lru_cache(maxsize=1)
def blacklist():
    """Names of functions that kprobes may not be put on, as far as debugfs says (may be empty)."""
    from rawbpf.loader.tracefs import debugfs

    try:
        text = debugfs("kprobes/blacklist").decode()
    except OSError:
        return frozenset()
    return frozenset(line.split("\t")[-1].strip() for line in text.splitlines())
