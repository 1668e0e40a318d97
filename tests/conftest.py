"""What every test of rawbpf may use: C programs, the command, and the rules about privilege.

`root`, `kernel` and `vm` tests need root.  A person who is not root sees them skipped; where `CI`
is set a skip of any kind fails, so that nothing is missing unnoticed.  `kernel(since="5.15")` and
`vm(since=...)` name the first kernel a test is for; older ones do not run it.

After each of these tests no BPF program may be left that nobody holds, and after the run no
mount and no process that the run started.
"""

import os
import platform
import re
import signal
import subprocess
import sys
import tempfile

import pytest

from tests import bpf, cc, leaks

PRIVILEGED = ("root", "kernel", "vm")
CI = bool(os.environ.get("CI"))
ROOT = os.geteuid() == 0


def _release(text):
    return tuple(map(int, re.match(r"(\d+)\.(\d+)", text).groups()))


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs so; the programs under test would not see the tests' Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    running = _release(platform.release())
    kept, dropped = [], []
    for item in items:
        since = [mark.kwargs["since"] for mark in item.iter_markers() if "since" in mark.kwargs]
        (kept if all(_release(text) <= running for text in since) else dropped).append(item)
        if not ROOT and any(item.get_closest_marker(name) for name in PRIVILEGED):
            item.add_marker(pytest.mark.skip(reason="needs root"))
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def _skip_is_failure(report):
    if CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which counts as a failure where CI is set: {report.longrepr}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    _skip_is_failure(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    outcome = yield
    _skip_is_failure(outcome.get_result())


@pytest.fixture(autouse=True)
def no_program_left(request):
    """Fails a privileged test that leaves a BPF program which no process holds."""
    if not (ROOT and any(request.node.get_closest_marker(name) for name in PRIVILEGED)):
        yield
        return
    before = bpf.program_ids()
    yield
    left = leaks.orphaned_programs(before)
    assert not left, f"BPF programs left behind, held by no process: ids {sorted(left)}"


@pytest.fixture(scope="session", autouse=True)
def nothing_left():
    """Fails the run if a mount or a process of it is left."""
    os.environ[leaks.MARK] = str(os.getpid())
    before = leaks.mounts()
    yield
    left = leaks.left_processes()
    for pid, _ in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left behind: {left}"
    new = leaks.mounts() - before
    assert not new, f"mounts left behind: {sorted(new)}"


@pytest.fixture(scope="session")
def compile_c():
    """`compile_c(source, *flags, name="a.out") -> path`: a C program, compiled once per content.

    `flags` are gcc's (`-O2`, `-lpthread`, `-shared`, ...).  `name` is the file's base name (and so
    the program's `comm`); the same source under another name is another file.  Inside a virtual
    machine of the kernel matrix, which has no compiler, the host compiles.
    """
    return cc.compile_c


@pytest.fixture(scope="session")
def scratch():
    """A folder that any user may read and enter, gone after the run."""
    with tempfile.TemporaryDirectory(prefix="rawbpf-") as folder:
        os.chmod(folder, 0o755)
        yield folder


class Rawbpf:
    """Runs the `rawbpf` command of this checkout with this Python."""

    def __init__(self):
        self.started = []

    def command(self, *arguments):
        return [sys.executable, "-m", "rawbpf.tools", *map(str, arguments)]

    def __call__(self, *arguments, timeout=60, **options):
        """Run to the end: `CompletedProcess` with text `stdout`, `stderr` and `returncode`.

        Options are `subprocess.run`'s; stdin is empty unless `input` or `stdin` is given.
        """
        options.setdefault("text", True)
        options.setdefault("capture_output", "stdout" not in options and "stderr" not in options)
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(self.command(*arguments), timeout=timeout, **options)

    def start(self, *arguments, **options):
        """Start and return the `Popen` (text, pipes); still running at the test's end: killed."""
        options.setdefault("text", True)
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        process = subprocess.Popen(self.command(*arguments), **options)
        self.started.append(process)
        return process

    def stop(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def rawbpf(no_program_left):
    """The `rawbpf` command: `rawbpf("trace", "-e", ...)`, `rawbpf.start(...)`; see `Rawbpf`."""
    runner = Rawbpf()
    yield runner
    runner.stop()
