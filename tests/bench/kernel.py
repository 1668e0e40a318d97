"""In a guest with the reference bpftrace: `rawbpf` and bpftrace beside each other on what a host may forbid.

    python -m tests.vm --kernel 6.12 --peers --shell 'python3 -m tests.bench.kernel attach 10000'
    python -m tests.vm --kernel 6.12 --peers --shell 'python3 -m tests.bench.kernel list'

`attach N`: one wildcard of about N kernel functions, from the start of the command to its end.
`list`: listings of every kind, line by line (what differs is printed; exit status 1).
"""

import os
import subprocess
import sys
import time
from collections import Counter

RAWBPF = [sys.executable, "-m", "rawbpf.tools", "trace"]
BPFTRACE = ["bpftrace"]
LISTINGS = ("kprobe:*", "kprobe:*:vfs_*", "fentry:*", "rawtracepoint:*", "tracepoint:*", "iter:*", "software:*",
            "hardware:*", "interval:*", "profile:*", "struct task_struct", "enum *", "*sleep*", "self:*")
VERBOSE = ("kprobe:vfs_*", "fentry:vmlinux:vfs_*", "fentry:*:nbd_*", "rawtracepoint:*", "tracepoint:*", "iter:*",
           "struct task_struct", "enum pid_type", "kretprobe:vfs_*", "fexit:vfs_*")


def prefixes(wanted):
    """A probe list that matches about `wanted` traceable functions: names by their first letters."""
    with open("/sys/kernel/tracing/available_filter_functions") as file:
        counts = Counter(line[:1] for line in file if not line.startswith("__ftrace_invalid"))
    chosen, total = "", 0
    for letter, count in counts.most_common():
        if total + count <= wanted * 1.02 and letter.isalnum():
            chosen += letter
            total += count
    return "kprobe:[%s]*" % "".join(sorted(chosen)), total


def timed(command, env):
    started = time.monotonic()
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    return time.monotonic() - started, done


def attach(wanted):
    """Both attach to the same wildcard, count, and end; bpftrace has no character classes, so each gets
    the functions of one letter after the other in one probe."""
    pattern, total = prefixes(wanted)
    letters = pattern[len("kprobe:["):-len("]*")]
    probe = ",".join("kprobe:%s*" % letter for letter in letters)
    script = probe + " { @ = count(); } BEGIN { exit(); }"
    env = {**os.environ, "BPFTRACE_MAX_PROBES": "100000"}
    print("%d functions: %s" % (total, probe))
    for turn in range(2):
        for name, tool in (("bpftrace", BPFTRACE), ("rawbpf", RAWBPF)):
            empty, _ = timed([*tool, "-e", "BEGIN { exit(); }"], env)
            took, done = timed([*tool, "-e", script], env)
            said = (done.stderr + done.stdout).strip().replace("\n", " | ")[-150:]
            print("%-9s %6.2f s, of that %5.2f s for a script of one BEGIN (status %d: %s)"
                  % (name, took, empty, done.returncode, said), flush=True)
    return 0


def listing(tool, option, pattern):
    done = subprocess.run([*tool, option, pattern], capture_output=True, text=True)
    return done.stdout.splitlines()


def compare():
    different = 0
    for option, patterns in (("-l", LISTINGS), ("-lv", VERBOSE)):
        for pattern in patterns:
            theirs, ours = listing(BPFTRACE, option, pattern), listing(RAWBPF, option, pattern)
            less, more = Counter(theirs) - Counter(ours), Counter(ours) - Counter(theirs)
            moved = not less and not more and theirs != ours
            print("%s %s: %d lines of bpftrace, %d of rawbpf; %d missing, %d more%s" % (
                option, pattern, len(theirs), len(ours), sum(less.values()), sum(more.values()),
                ", in another order" if moved else ""), flush=True)
            for sign, lines in (("-", less), ("+", more)):
                for line in sorted(lines)[:12]:
                    print("   %s %s" % (sign, line))
            different += bool(less or more or moved)
    return 1 if different else 0


if __name__ == "__main__":
    what = sys.argv[1:]
    if what[:1] == ["attach"]:
        sys.exit(attach(int(what[1]) if len(what) > 1 else 10000))
    sys.exit(compare())
