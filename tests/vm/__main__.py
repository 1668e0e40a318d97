"""Run the tests marked `kernel` or `vm` on each kernel of the matrix.

    python -m tests.vm                               every kernel, two at a time
    python -m tests.vm --fast --again                the same without what is marked slow, and what failed
                                                     once more, as CI does
    python -m tests.vm --kernel 6.12 -k uprobe tests/sources
    python -m tests.vm --kernel 5.10 --shell 'rawbpf trace -l "kprobe:do_nano*"'
    python -m tests.vm --kernel arm64 tests/sources  the other architecture, on demand only
    python -m tests.vm --fetch                       download the newest kernel of each series

Exit status: 0 if every kernel passed.  Consoles are kept in ~/.cache/rawbpf/vm/KERNEL.log.
"""

import argparse
import concurrent.futures
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import peers
from tests.debian import CACHE, DebianError
from tests.vm import guest
from tests.vm.kernels import ARM64, SUITES, arm64, kernel, modules

MARKS = "kernel or vm"
NEEDS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "gcc": "g++"}


def parse(argv):
    parser = argparse.ArgumentParser(prog="python -m tests.vm", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", action="append", choices=[*SUITES, "all", ARM64],
                        help="series to boot (may be repeated; default: all, which is without arm64)")
    parser.add_argument("-k", metavar="EXPR", help="only tests that match, as in pytest")
    parser.add_argument("--shell", metavar="COMMAND", help="run a command instead of the tests")
    parser.add_argument("--add", action="append", default=[], metavar="PATH[=PLACE]",
                        help="another file or folder of this host for the guest")
    parser.add_argument("--peer", action="append", default=[], choices=peers.PACKAGES,
                        help="a reference tool that is a command in the guest; tests marked peer run too")
    parser.add_argument("--peers", action="store_const", dest="peer", const=peers.PACKAGES, help="each of them")
    parser.add_argument("--fast", action="store_true", help="without the tests that are marked slow")
    parser.add_argument("--again", action="store_true", help="give the tests that failed a second run, and name them")
    parser.add_argument("--fetch", action="store_true", help="download the newest kernels, and stop")
    parser.add_argument("--jobs", type=int, default=2, help="guests at a time (default: 2)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a guest may take")
    parser.add_argument("paths", nargs="*", help="test files or folders (default: all)")
    options = parser.parse_args(argv)
    chosen = options.kernel or ["all"]
    marks = f"{MARKS} or (root and peer)" if options.peer else MARKS
    options.marks = f"({marks}) and not slow" if options.fast else marks
    options.kernel = list(SUITES) if "all" in chosen else list(dict.fromkeys(chosen))
    return options


def test_files(options):
    """Test files that have a test for the guests, relative to the project."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-m", options.marks, "--no-header"]
    command += ["-k", options.k] if options.k else []
    done = subprocess.run([*command, *options.paths], cwd=guest.PROJECT, text=True, capture_output=True)
    if done.returncode not in (0, 5):
        sys.exit(f"tests.vm: the tests cannot be collected:\n{done.stdout}{done.stderr}")
    return sorted(set(re.findall(r"^(\S+\.py)(?:::|: \d)", done.stdout, re.M)))


def guest_command(options):
    """The shell command for the guests."""
    if options.shell:
        return options.shell
    files = test_files(options)
    if not files:
        sys.exit("tests.vm: no test marked kernel or vm matches")
    chosen = ["-k", options.k] if options.k else []
    run = shlex.join(["python3", "-m", "pytest", "-m", options.marks, "--color=no", "--no-header", "-rf", *chosen, *files])
    first = f"{run} --durations=25"
    if not options.again:
        return first
    return f"{first} || {{ echo '#### second run of what failed'; {run} --last-failed --last-failed-no-failures none; }}"


def boot(series, initrd, command, options):
    """Run in one guest; returns its exit status.  Its console is beside `initrd` until it ends."""
    alone = len(options.kernel) == 1
    lines = []

    def show(line):
        lines.append(line)
        if alone:
            sys.stdout.write(line)
            sys.stdout.flush()

    log = CACHE / "vm" / f"{series}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    writing = initrd.with_name(log.name)  # another run may be in the same kernel
    started = time.monotonic()
    name = series
    try:
        image = arm64() if series == ARM64 else kernel(series)
        own = initrd.with_name("initrd-" + series)
        guest.with_files(initrd, [(path, "/modules/" + path.name) for path in modules(image)], own)
        name = f"{series} ({image.name[len('vmlinuz-'):]})"
        with guest.slot():
            started = time.monotonic()
            try:
                status = guest.run(image, own, command, writing, show, timeout=options.timeout, series=series)
            finally:
                own.unlink()
                if writing.exists():
                    shutil.copy(writing, log)
        # a run in which nothing was left to run (all for newer kernels) is no failure
        status = 0 if status == 5 and not options.shell else status
        verdict = "passed" if status == 0 else f"failed, status {status}; console: {log}"
    except (guest.GuestError, DebianError) as error:
        status, verdict = 1, f"failed: {error}; console: {log}"
    if not options.shell or not alone:
        text = "" if alone else "".join(lines)
        print(f"{text}== kernel {name}: {verdict} ({time.monotonic() - started:.0f} s)", flush=True)
    return status


def main(argv):
    options = parse(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception, so that files are removed
    if options.fetch:
        for series in options.kernel:
            image = arm64() if series == ARM64 else kernel(series, refresh=True)
            modules(image)
            print(series, image.name, flush=True)
        return 0
    missing = [package for tool, package in NEEDS.items() if not shutil.which(tool)]
    if missing:
        sys.exit(f"tests.vm needs: apt-get install {' '.join(missing)}")
    command = guest_command(options)
    with tempfile.TemporaryDirectory(prefix="rawbpf-vm-") as folder:
        extra = [tuple(pair.partition("=")[::2]) if "=" in pair else (pair, None) for pair in options.add]
        extra += guest.reference(options.peer)
        extra += guest.bpftrace_tools() if "test_bpftrace_tools" in command else []
        initrds = {}
        for series in options.kernel:
            kind = ARM64 if series == ARM64 else "initrd"
            initrds[series] = Path(folder) / kind
            if not initrds[series].exists():
                guest.pack(initrds[series], extra, series)
        with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
            waiting = [pool.submit(boot, series, initrds[series], command, options) for series in options.kernel]
            try:
                results = [future.result() for future in waiting]
            except BaseException:
                for future in waiting:
                    future.cancel()
                guest.stop_all()
                raise
    return next((status for status in results if status), 0)


try:
    sys.exit(main(sys.argv[1:]))
except DebianError as error:
    sys.exit(f"tests.vm: {error}")
