"""What people reported about kernel events, as scripts: rows 31 and 49 of the reports."""

import os
import subprocess

import pytest

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


def started(rawbpf, script):
    tracer = rawbpf.start("trace", "-e", script)
    while "Attached" not in tracer.stderr.readline():
        assert tracer.poll() is None, tracer.stderr.read()
    return tracer


def test_four_bytes_in_a_slot_of_eight(rawbpf):
    """Row 31: args.pid of sys_enter_kill is the pid, not what a compiler's offset would give."""
    tracer = started(rawbpf, "tracepoint:syscalls:sys_enter_kill /pid == %d/ { printf(\"%%d %%d\\n\", args.pid, "
                             "args.sig); exit(); }" % os.getpid())
    os.kill(os.getpid(), 0)
    out, _ = tracer.communicate(timeout=60)
    assert out.split() == [str(os.getpid()), "0"]


def test_address_and_text_of_a_dynamic_field(rawbpf):
    """Row 49: the address of a __data_loc field is the record plus a number from the event."""
    tracer = started(rawbpf, "tracepoint:sched:sched_process_exec /comm == \"true\"/ { printf(\"%p %s\\n\", "
                             "args.filename, str(args.filename)); exit(); }")
    program = next(path for path in ("/usr/bin/true", "/bin/true") if os.path.exists(path))
    subprocess.run([program], check=True)
    out, _ = tracer.communicate(timeout=60)
    address, name = out.split()
    assert name == program and int(address, 16) >> 40  # an address of the kernel
