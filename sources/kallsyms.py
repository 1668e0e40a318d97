"""Which kernel functions exist, where, and which of them can be traced.

/proc/kallsyms ("address type name [module]", proc(5)), tracefs' available_filter_functions
("name [module]": what ftrace, kprobe_multi and fentry can be attached to) and debugfs'
kprobes/blacklist ("first-last name").
"""

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


def addresses(wanted=None):
    """{(name, module or ""): [addresses]} of text symbols, of those names that are in `wanted`."""
    table = {}
    for match in re.finditer(rb"^([0-9a-f]+) [tTwW] (\S+)(?:\t\[([^\]]+)\])?$", _text(), re.M):
        name = match.group(2).decode()
        if wanted is None or name in wanted:
            key = (name, (match.group(3) or b"").decode())
            table.setdefault(key, []).append(int(match.group(1), 16))
    return table


def names():
    """Every text symbol as (name, module or "")."""
    return [(n.decode(), m.decode()) for n, m in
            re.findall(rb"^[0-9a-f]+ [tTwW] (\S+)(?:\t\[([^\]]+)\])?$", _text(), re.M)]


@functools.lru_cache(maxsize=1)
def traceable():
    """What ftrace can trace as a list of (name, module or ""), or None where that cannot be read
    (lockdown, or a kernel without dynamic ftrace)."""
    from .base import SourceError

    try:
        data = tracefs().read("available_filter_functions", 1 << 20)
    except (OSError, SourceError):
        return None
    names = []
    for line in data.decode().splitlines():
        name, _, module = line.partition(" ")
        if not name.startswith("__ftrace_invalid"):  # stands for a function that is gone
            names.append((name, module[1:-1]))
    return names


@functools.lru_cache(maxsize=1)
def blacklist():
    """Names of functions that kprobes may not be put on, as far as debugfs says (may be empty)."""
    for folder in ("/sys/kernel/debug/kprobes/blacklist",):
        try:
            with open(folder) as file:
                return frozenset(line.split("\t")[-1].strip() for line in file)
        except OSError:
            continue
    return frozenset()
