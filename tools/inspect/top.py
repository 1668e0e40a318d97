"""`rawbpf top`: programs by CPU time and runs a second, while it runs. The kernel counts only meanwhile (5.8+).

Counters can go round or programs end between two readings: what was not in both is not shown.
"""

import sys
import time

from rawbpf.loader.errors import KernelError

from .command import run_object
from .objects import each
from .words import fail

USAGE = """usage: rawbpf top [interval SECONDS] [count N] [plain]

CPU%, runs a second and nanoseconds a run of every program, the busiest first. On a terminal the screen is
redrawn, otherwise (or with `plain`) one table follows another. With -j: a list for each interval, a line each.
It ends after N tables (from 1), or else when it is interrupted.
"""
_CLEAR = "\033[H\033[J"


def readings():
    """{id: (run_time_ns, run_cnt, type, name)}."""
    found = {}
    for program in each("prog"):
        try:
            info = program.info()
        except KernelError:
            continue
        found[info.id] = (info.run_time_ns, info.run_cnt, info.type, info.name)
    return found


def difference(before, after, seconds):
    """Records of the programs that ran, the busiest first."""
    rows = []
    for number, (spent, runs, kind, name) in after.items():
        if number in before:
            spent, runs = spent - before[number][0], runs - before[number][1]
            if runs > 0 and spent >= 0:
                rows.append({"id": number, "type": kind, "name": name, "cpu_percent": round(spent / seconds / 1e7, 3),
                             "runs_per_second": round(runs / seconds, 1), "ns_per_run": spent // runs})
    return sorted(rows, key=lambda row: (-row["cpu_percent"], row["id"]))


def table(rows):
    lines = ["%9s %-22s %-16s %8s %12s %9s\n" % ("ID", "TYPE", "NAME", "CPU%", "RUNS/S", "NS/RUN")]
    lines += ["%9d %-22s %-16s %8.3f %12.1f %9d\n" % tuple(row.values()) for row in rows]
    return "".join(lines)


def show(session, words):
    from rawbpf.loader import run_statistics
    interval, count, plain = 1.0, 0, not sys.stdout.isatty()
    while words:
        option = words.need("interval", "count", "plain")
        if option == "plain":
            plain = True
        elif option == "count":
            count = words.number("count") or fail("count: from 1")
        else:
            interval = _seconds(words.next("interval"))
    with run_statistics():
        before, start, left = readings(), time.monotonic(), count
        while True:
            time.sleep(interval)
            after, now = readings(), time.monotonic()
            rows = difference(before, after, now - start)
            if session.json is not None:
                session.json.value(rows)
                session.json.end()
            else:
                session.write(("" if plain else _CLEAR) + table(rows) + ("\n" if plain and left != 1 else ""))
            sys.stdout.flush()
            before, start, left = after, now, left - 1
            if not left:
                break
    session.json = None


def _seconds(text):
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0.01 <= value <= 3600:
        fail("interval: from 0.01 to 3600 seconds, not '%s'" % text)
    return value


def run(argv):
    return run_object("top", {"show": show}, USAGE, ["show", *argv])
