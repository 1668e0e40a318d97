"""The reference tools run, see the host, and leave it as it was."""

import pytest

from tests.peers import bpftool, bpftrace, bpftrace_version

pytestmark = pytest.mark.peer


def test_bpftrace_traces(compile_c):
    program = compile_c("#include <unistd.h>\nint main(void) { return getppid() < 0; }", name="one-call")
    with open("/proc/self/mountinfo") as file:
        mounts = file.read()
    done = bpftrace("-q", "-c", program, "-e",
                    "tracepoint:syscalls:sys_enter_getppid /pid == cpid/ { @ = count(); }")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "@: 1", "")
    with open("/proc/self/mountinfo") as file:
        assert file.read() == mounts


def test_bpftrace_is_one_that_the_tests_know():
    """Expected outputs were written beside 0.27; a later one is welcome, an older one is not."""
    assert bpftrace_version() >= (0, 27, 1)


def test_bpftool_runs():
    assert bpftool("version").stdout.startswith("bpftool v")
