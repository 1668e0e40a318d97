"""rawbpf beside bpftrace: one table, both measured in this run, in turns.

    python -m tests.bench                  everything (about five minutes)
    python -m tests.bench start count      figures whose name holds one of the words
    python -m tests.bench --json           the same as one JSON object a line
    python -m tests.bench codegen          instructions of every test script beside LLVM's (see codegen.py)

A ratio is ours by bpftrace's; the budget is what docs/design.md allows.  Medians.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from typing import NamedTuple, Optional

from tests import peers
from tests.bench import process, tracing
from tests.bench.process import OURS, THEIRS, ToolError

# The scripts that are compared: name, what the traced process does, script.
ENTER, EXIT = "tracepoint:syscalls:sys_enter_getppid", "tracepoint:syscalls:sys_exit_getppid"
RMDIR = "tracepoint:syscalls:sys_enter_rmdir"
SCRIPTS = (
    ("false pid", "p", f"{ENTER} /pid == 1/ {{ @ = count(); }}"),
    ("false comm", "p", f"{ENTER} /comm == \"nobody\"/ {{ @ = count(); }}"),
    ("count", "p", f"{ENTER} /pid == PID/ {{ @ = count(); }}"),
    ("count by comm", "p", f"{ENTER} /pid == PID/ {{ @[comm] = count(); }}"),
    ("sum by pid, comm", "p", f"{EXIT} /pid == PID/ {{ @[pid, comm] = sum(args.ret); }}"),
    ("start, read, delete", "p", f"{ENTER} /pid == PID/ {{ @s[tid] = nsecs; }} "
                                 f"{EXIT} /@s[tid]/ {{ @ = nsecs - @s[tid]; delete(@s[tid]); }}"),
    ("hist", "p", f"{EXIT} /pid == PID/ {{ @ = hist(args.ret); }}"),
    ("printf ints", "p", f"{ENTER} /pid == PID/ {{ printf(\"event %d %d\\n\", pid, cpu); }}"),
    ("lhist", "p", f"{EXIT} /pid == PID/ {{ @ = lhist(args.ret, 0, 1000000, 50000); }}"),
    ("avg, min, max", "p", f"{EXIT} /pid == PID/ {{ @a = avg(args.ret); @b = min(args.ret); @c = max(args.ret); }}"),
    ("stats by comm", "p", f"{EXIT} /pid == PID/ {{ @[comm] = stats(args.ret); }}"),
    ("tuple", "p", f"{ENTER} /pid == PID/ {{ @ = (pid, nsecs, comm); }}"),
    ("numbers as key", "p", f"{ENTER} /pid == PID/ {{ @[uid, cpu, cgroup] = count(); }}"),
    ("loop", "p", f"{ENTER} /pid == PID/ {{ for ($i : 0..10) {{ @ += $i; }} }}"),
    ("printf string", "r", f"{RMDIR} /pid == PID/ {{ printf(\"event %s\\n\", str(args.pathname)); }}"),
    ("string compared", "r", f"{RMDIR} /pid == PID/ {{ if (str(args.pathname) == \"/nonexistent/other\") {{ @ = count(); }} }}"),
    ("string searched", "r", f"{RMDIR} /pid == PID/ {{ if (strcontains(str(args.pathname, 64), \"some\")) {{ @ = count(); }} }}"),
    ("kstack key", "p", f"{ENTER} /pid == PID/ {{ @[kstack] = count(); }}"),
    ("ustack key", "p", f"{ENTER} /pid == PID/ {{ @[ustack] = count(); }}"),
    ("uprobe, uretprobe hist", "f", "uprobe:LOAD:traced_function { @s[tid] = nsecs; } uretprobe:LOAD:traced_function "
                                    "/@s[tid]/ { @ = hist(nsecs - @s[tid]); delete(@s[tid]); }"),
)
PRINTING = f"{ENTER} /pid == PID/ {{ printf(\"event %d %d\\n\", pid, nsecs); }}"
RATES = (25000, 50000, 100000, 200000, 300000, 450000, 700000, 1000000)


class Row(NamedTuple):
    """One line of the table.  `budget` bounds ours/theirs (from below if `at_least`), or ours alone."""

    name: str
    unit: str
    ours: Optional[float]
    theirs: Optional[float]
    budget: Optional[float] = None
    at_least: bool = False
    absolute: bool = False
    remark: str = ""

    @property
    def ratio(self):
        return self.ours / self.theirs if self.ours is not None and self.theirs else None

    @property
    def met(self):
        """Whether the budget is met; None where there is none."""
        figure = self.ours if self.absolute else self.ratio
        if self.budget is None:
            return None
        if figure is None:
            return False
        return figure >= self.budget if self.at_least else figure <= self.budget


def in_turns(measure, repeat):
    """Results of `measure(tool)` for both tools, ours and theirs in turn; an error is its text."""
    found = {OURS: [], THEIRS: []}
    for _ in range(repeat):
        for tool, results in found.items():
            if isinstance(results, list):
                try:
                    results.append(measure(tool))
                except (ToolError, subprocess.TimeoutExpired) as error:
                    found[tool] = f"{tool.name}: {error}"
    return found[OURS], found[THEIRS]


def rows(name, fields, ours, theirs):
    """A row for each `(suffix, unit, budget, figure)` of both tools' results."""
    remark = "; ".join(side for side in (ours, theirs) if isinstance(side, str))
    for suffix, unit, budget, figure in fields:
        medians = [None if isinstance(side, str) else statistics.median(map(figure, side)) for side in (ours, theirs)]
        yield Row(f"{name}{suffix}", unit, *medians, budget, remark=remark)


def start(repeat):
    """Start to finish: wall time and peak memory."""
    python = process.installed().python
    version = [*OURS.command()[:-1], "--version"]
    bare = statistics.median(process.measure([python, "-c", "pass"]).wall for _ in range(3 * repeat))
    ours = statistics.median(process.measure(version).wall for _ in range(3 * repeat))
    yield Row("start --version", "ms", ours * 1e3, None, bare * 1.5e3 + 30, absolute=True,
              remark=f"python3 -c pass: {bare * 1e3:.1f} ms")
    for name, arguments, budgets in (
            ("start BEGIN { exit() }", ("-e", "BEGIN { exit() }"), (1 / 3, 1 / 4)),
            ("start tracepoint, printf", ("-c", f"{tracing.load_path()} p 10 0", "-e",
                                          f"{ENTER} /pid == cpid/ {{ printf(\"%d\\n\", pid); }}"), (1 / 3, 1 / 4)),
            ("start -l 'tracepoint:*'", ("-l", "tracepoint:*"), (1, 1))):
        found = in_turns(lambda tool: process.measure_tool(tool, *arguments), repeat)
        yield from rows(name, ((", wall", "ms", budgets[0], lambda usage: usage.wall * 1e3),
                               (", CPU", "ms", None, lambda usage: usage.cpu * 1e3),
                               (", memory", "MiB", budgets[1], lambda usage: usage.rss / 1024)), *found)


def event(repeat):
    """BPF run time and translated instructions of each script, per event; time and memory until it is attached."""
    for name, mode, script in SCRIPTS:
        found = in_turns(lambda tool: tracing.cost(tool, mode, script), repeat)
        yield from rows("event " + name, ((", BPF time", "ns", 1, lambda cost: cost.nanoseconds),
                                          (", instructions", "", 1, lambda cost: cost.instructions),
                                          (", attached", "ms", 1 / 3, lambda cost: cost.attached * 1e3),
                                          (", memory", "MiB", 1 / 4, lambda cost: cost.memory / 1024)), *found)


def lossless(tool):
    """The highest of `RATES` at which every event was printed, and none later tried."""
    best = 0
    for rate in RATES:
        seen = tracing.flow(tool, "p", PRINTING, rate, rate)
        if seen.printed < seen.fired:
            break
        best = max(best, int(seen.fired / seen.seconds))
        if seen.seconds > 1.15:  # the machine makes no more events than this
            break
    return best


def output(repeat):
    """Events printed a second, with and without loss, and what is said of the lost ones."""
    found = in_turns(lossless, max(1, repeat // 2))
    for row in rows("output without loss", (("", "/s", 0.5, float),), *found):
        yield row._replace(at_least=True)
    ours, theirs = in_turns(lambda tool: tracing.flow(tool, "p", PRINTING, 2000000), max(1, repeat // 2))
    for row in rows("output unlimited", ((", printed", "/s", 0.5, lambda seen: seen.printed / seen.drained),),
                    ours, theirs):
        yield row._replace(at_least=True)
    yield from rows("output unlimited", (
        (", fired", "/s", None, lambda seen: seen.fired / seen.seconds),
        (", printed of 2M", "", None, lambda seen: seen.printed),
        (", reported lost", "", None, lambda seen: seen.reported)), ours, theirs)
    for row in rows("output unlimited", ((", lost unsaid", "", 0, lambda seen: seen.fired - seen.printed
                                          - seen.reported),), ours, theirs):
        yield row._replace(absolute=True)


def uprobes(repeat):
    """Uprobes on many functions by a wildcard: until attached, and until gone."""
    for functions in (1, 100, 5000):
        found = in_turns(lambda tool: tracing.attach_and_detach(tool, functions), max(1, repeat // 2))
        yield from rows(f"uprobes {functions}", ((" attached", "ms", 1, lambda seen: seen[0] * 1e3),
                                                 (" gone", "ms", 1, lambda seen: seen[1] * 1e3)), *found)


def size(_):
    """Installed size, compiled files included."""
    yield Row("size installed", "MB", process.installed().size() / 1e6, None, 5, absolute=True)


def codegen(_):
    """Instructions of every test script, beside LLVM -O2's: only when asked for."""
    from tests.bench import codegen as bench
    found = list(bench.measure())
    for one in sorted(found, key=lambda one: one.ratio):
        yield Row("codegen " + one.name, "", one.ours, one.llvm, bench.LIMIT)
    for name, ratios in (("codegen, geometric mean", [one.ratio for one in found]),
                         ("codegen, LLVM's loops not unrolled", [one.ours / one.rolled for one in found])):
        yield Row(name, "", bench.mean(ratios), 1, bench.AIM)


GROUPS = (size, start, event, output, uprobes)
EXTRA = (codegen,)


def number(value):
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def line(row):
    """A row of the table as text."""
    budget = "" if row.budget is None else ("" if row.absolute else ">= " if row.at_least else "<= ") + \
        ("%.2f" % row.budget if row.budget < 10 else number(row.budget))
    verdict = {True: "ok", False: "MISSED", None: ""}[row.met]
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return (f"{row.name + (f' ({row.unit})' if row.unit else ''):44} {number(row.ours):>12} {number(row.theirs):>12} "
            f"{ratio:>7} {budget:>8} {verdict:6} {row.remark}").rstrip()


def main(argv):
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="words of the figures to measure: " +
                        ", ".join(group.__name__ for group in GROUPS + EXTRA) + ", or a script's name")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--repeat", type=int, default=5, help="measurements of each figure (default: 5)")
    options = parser.parse_args(argv)
    if os.geteuid() != 0:
        sys.exit("tests.bench needs root: it loads BPF programs")
    global SCRIPTS
    groups = GROUPS
    if options.names:
        groups = [group for group in GROUPS + EXTRA if group.__name__ in options.names]
        scripts = [script for script in SCRIPTS if script[0] in options.names]
        if scripts and event not in groups:
            SCRIPTS = scripts
            groups.append(event)
        if not groups:
            parser.error("no figure has such a name")
    if not options.json:
        print(f"Linux {platform.release()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
              f"bpftrace {'.'.join(map(str, peers.bpftrace_version()))}\n")
        print(f"{'':44} {'rawbpf':>12} {'LLVM -O2' if groups == [codegen] else 'bpftrace':>12} {'ratio':>7} {'budget':>8}")
    missed = 0
    for group in groups:
        for row in group(options.repeat):
            missed += row.met is False
            print(json.dumps({**row._asdict(), "ratio": row.ratio, "met": row.met}) if options.json else line(row),
                  flush=True)
    if not options.json:
        print(f"\n{missed} over budget" if missed else "\nwithin budget")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
