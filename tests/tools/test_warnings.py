"""What is said while a script runs: -k, --no-warnings. The texts are bpftrace 0.27.1's."""

import os
import re
import signal
import subprocess
import sys
import time

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


@pytest.mark.slow
def test_the_end_comes_though_records_take_long_to_handle(rawbpf):
    """What was not handled within a second of Ctrl-C is counted."""
    script = 'i:us:200 { system("sleep 0.05; echo foo"); } end { print("end"); }'
    run = rawbpf.start("trace", "--unsafe", "-e", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "foo\n"
    time.sleep(0.5)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=20)
    assert out.endswith("end\n\n\n") and run.returncode == 0
    lost = int(re.search(r"^Lost (\d+) events$", err, re.M).group(1))
    assert lost > 100 and "WARNING: Total lost event count: %d\n" % lost in err


def test_an_index_outside_of_an_array(rawbpf):
    done = rawbpf("trace", "-q", "-e", "begin { $b = (int16[4])(uint64)5; $i = (uint64)1; print($b[$i]); "
                  '$i = (uint64)9; printf("%d\\n", $b[$i]); }')
    assert done.stdout.startswith("0\n")
    assert done.stderr.startswith("stdin:1:97-103: WARNING: Array access out of bounds. This can lead to unexpected results.\n")


def test_scratch_memory_larger_than_a_per_cpu_value(rawbpf):
    script = ('config = { max_strlen = 9000 } t:syscalls:sys_enter_dup3 /pid == cpid/ { '
              '@m[str(args.oldfd + (int64)0)] = str(0); @a = str(0, 8000); @b = (str(0), str(0), str(0), str(0)); print("hit"); }')
    done = rawbpf("trace", "-q", "-e", script, "-c", sys.executable + " -c 'import os; os.dup2(1, 50, False)'")
    assert done.stdout.startswith("hit\n"), done.stderr


def test_listing_nothing(rawbpf):
    done = rawbpf("trace", "-l", "uprobe:%s:no_such_function" % sys.executable)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "WARNING: no event matches uprobe:%s:no_such_function\n" % sys.executable


def test_the_clock_of_tests(rawbpf):
    """BPFTRACE_DUMMY_TS_MAP, as bpftrace's own tests of tseries() use it."""
    env = dict(os.environ, BPFTRACE_DUMMY_TS_MAP="@ts", TZ="UTC")
    script = "begin { @ts = (uint64)500ms; @a = tseries(5, 100ms, 5); @ts += 100ms; @a = tseries(7, 100ms, 5); clear(@ts); }"
    done = rawbpf("trace", "-q", "-e", "config = { unstable_tseries = enable } " + script, env=env)
    assert [line.split() for line in done.stdout.splitlines() if line.startswith("00:")] == [
        ["00:00:00.500", "*", "|", "5"], ["00:00:00.600", "|", "*", "7"]]


def test_arrays_of_characters_may_be_full(rawbpf):
    """A member that has no NUL was not cut."""
    done = rawbpf("trace", "-q", "-e", "struct F { char s[4]; char t[8]; } t:syscalls:sys_enter_write /pid == cpid/ "
                  '{ $f = (struct F *)args.buf; $s = $f->s; printf("%s|%s\\n", $s, $f->s); print($s); exit(); }',
                  "-c", sys.executable + " -c 'import os; os.write(2, b\"abcdefgh\\0\")'")
    assert done.stdout.startswith("abcd|abcd\nabcd\n"), done.stderr


def test_probes_that_match_nothing(rawbpf):
    script = "config = { missing_probes = warn } t:syscalls:nonsense { } uprobe:/bin/sh:nonsense* { }"
    done = rawbpf("trace", "-e", script)
    said = [line for line in lines_of(done.stderr) if not line.startswith(("config", "HINT"))]
    assert (done.returncode, said) == (1, [
        "stdin:1:36-55: WARNING: No matches for tracepoint syscalls:nonsense. Skipping.",
        "stdin:1:36-55: WARNING: Probe has no valid attach points. It is being removed which may cause issues with program "
        "behavior.",
        "stdin:1:60-84: WARNING: Probe has no valid attach points. It is being removed which may cause issues with program "
        "behavior.",
        "No probes to attach"])
    done = rawbpf("trace", "-e", "uprobe:/bin/sh:nonsense* { } begin { }")
    assert done.returncode == 1 and done.stderr.startswith(
        "stdin:1:1-25: ERROR: Probe has no valid attach points. If this is expected, set the 'missing_probes' config variable "
        "to 'warn'.\n")
    done = rawbpf("trace", "-e", "config = { missing_probes = ignore } t:syscalls:nonsense { }")
    assert (done.returncode, done.stderr) == (1, "No probes to attach\n")
