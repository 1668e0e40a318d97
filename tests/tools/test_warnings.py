"""What is said while a script runs: -k, --no-warnings. The texts are bpftrace 0.27.1's."""

import pytest

pytestmark = pytest.mark.root

SCRIPT = ('begin { @[1] = 1; printf("%d\\n", @[2]); print(*uptr((int32*)16)); print(str(uptr((int8*)16))); '
          'warnf("w"); }')


def lines_of(stderr):
    return [line for line in stderr.splitlines() if line and not line.startswith("begin ") and set(line) - set("~ ")]


FAILED = [
    "Attached 1 probe",
    "stdin:1:34-38: WARNING: Can't lookup map element because it does not exist.",
    "Additional Info - helper: map_lookup_elem, retcode: 0",
    "stdin:1:47-64: WARNING: Bad address",
    "Additional Info - helper: probe_read_user, retcode: -14",
    "stdin:1:73-93: WARNING: Bad address",
    "Additional Info - helper: probe_read_user_str, retcode: -14",
    "stdin:1:96-106: WARNING: w",
]


@pytest.mark.kernel(since="5.8")
def test_reads_that_fail_are_told_with_k(rawbpf):
    done = rawbpf("trace", "-k", "-e", SCRIPT)
    assert lines_of(done.stderr) == FAILED
    assert done.stdout == "0\n0\n\n\n\n@[1]: 1\n"


def test_and_in_json(rawbpf):
    done = rawbpf("trace", "-k", "-q", "-f", "json", "-e", "begin { print(*uptr((int32*)16)); }")
    assert done.stdout == ('{"type": "helper_error", "msg": "Bad address", "helper": "probe_read_user", "retcode": -14, '
                           '"filename": "stdin", "line": 1, "col": 15}\n{"type": "value", "data": 0}\n')


def test_no_warnings(rawbpf):
    done = rawbpf("trace", "--no-warnings", "-e", SCRIPT)
    assert (done.stderr, done.stdout) == ("Attached 1 probe\n", "0\n0\n\n\n\n@[1]: 1\n")
    done = rawbpf("trace", "--no-warnings", "-k", "-e", SCRIPT)
    assert (done.returncode, done.stderr) == (1, "ERROR: -k, --warnings conflicts with --no-warnings\n")


def test_programs_without_maps_are_loaded_once(rawbpf):
    assert rawbpf("trace", "-e", "begin { }").stderr == "Attached 1 probe\n"


@pytest.mark.peer
def test_it_is_bpftraces():
    from tests.peers import bpftrace
    theirs = [line for line in lines_of(bpftrace("-k", "-e", SCRIPT).stderr) if "Addrspace" not in line]
    assert theirs == FAILED
