"""What people ran into with the language and its output (rows 31-61 of the list that tests/README.md explains), each from
the command line to the output: the smallest input that shows it, and the outcome given there."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.kernel
def test_31_tracepoint_layout(rawbpf):
    """A four-byte field in an eight-byte slot: the pid that was signalled, and signal 0."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        done = rawbpf("trace", "-q", "-e", 'tracepoint:syscalls:sys_enter_kill /args.pid == %d/ { printf("%%d %%d\\n", args.pid, args.sig); }'
                      % child.pid, "-c", "%s -c 'import os; os.kill(%d, 0)'" % (sys.executable, child.pid))
    finally:
        child.kill()
        child.wait()
    assert "%d 0\n" % child.pid in done.stdout, done.stderr


@pytest.mark.kernel
@pytest.mark.parametrize("setting", ["", "config = { max_strlen = 1000 } "])
def test_35_string_equality(rawbpf, setting):
    done = rawbpf("trace", "-q", "-e", setting + 'BEGIN { $x = "abcd"; if ($x == "ab" || $x == "" || "ab" == "abcd") { printf("bad\\n"); } '
                  'if ($x == "abcd") { printf("ok\\n"); } $y = "abcdefgh"; if ($x == $y || $y == $x || $x != "abcd") { printf("bad\\n"); } exit(); } '
                  'END /comm == "" || comm == "raw"/ { printf("bad\\n"); }')
    assert done.stdout.split() == ["ok"], done.stderr


@pytest.mark.kernel
def test_39_histograms_of_negative_numbers_and_zero(rawbpf):
    done = rawbpf("trace", "-q", "-e", "BEGIN { @h = hist(-3); @h = hist(0); @h = hist(1); @h = hist(9); @l = lhist(-7, -10, 10, 5); exit(); }")
    assert re.findall(r"^([\[(].*?)  +(\d+) \|", done.stdout, re.M) == [
        ("(..., 0)", "1"), ("[0]", "1"), ("[1]", "1"), ("[2, 4)", "0"), ("[4, 8)", "0"), ("[8, 16)", "1"), ("[-10, -5)", "1")]


@pytest.mark.kernel
@pytest.mark.parametrize("form", ["text", "json"])
def test_41_a_full_map(rawbpf, form):
    """How many updates of which map failed, and how the limit is raised."""
    done = rawbpf("trace", "-q", "-f", form, "-e", 'config = { max_map_keys = 8 } BEGIN { $i = 0; while ($i < 12) { @[$i] = $i + 1; $i++; } '
                  'printf("%d\\n", @[11]); exit(); }')
    told = done.stdout + done.stderr
    assert re.search(r"\b4\b", told) and "max_map_keys" in told, told
    if form == "json":
        for line in done.stdout.splitlines():
            json.loads(line)


@pytest.mark.kernel
def test_47_large_values_are_never_on_the_stack(rawbpf):
    """Four strings of 200 bytes as one key; a literal of 90 characters."""
    text = "x" * 90
    done = rawbpf("trace", "-q", "-e", "config = { max_strlen = 200 } tracepoint:syscalls:sys_enter_openat { @[str(args.filename), str(args.filename), "
                  'str(args.filename), comm] = count(); } BEGIN { printf("%s\\n"); }' % text, "-c", "%s -c 'file = open(\"/etc/passwd\")'" % sys.executable)
    assert done.returncode == 0 and text in done.stdout, done.stderr
    assert "@[/etc/passwd, /etc/passwd, /etc/passwd, %s]: " % os.path.basename(sys.executable)[:15] in done.stdout


@pytest.mark.kernel
def test_49_the_address_of_a_dynamic_field(rawbpf):
    """Context pointer plus a number from the event."""
    done = rawbpf("trace", "-q", "-e", 'tracepoint:sched:sched_process_exec { printf("%p %s\\n", args.filename, str(args.filename)); }',
                  "-c", "/bin/true")
    assert re.search("^0x[0-9a-f]+ /\\S+$", done.stdout, re.M), done.stderr


@pytest.mark.root
def test_59_every_line_of_json_parses(rawbpf):
    done = rawbpf("trace", "-f", "json", "-e", r'BEGIN { print((1, strerror(2))); @["a,b", "c"] = 1; @["a", "b,c"] = 2; '
                  r'printf("%s", "q\"\\\n\x01\xff"); exit(); }')
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = {line["type"]: line["data"] for line in lines if "data" in line}
    assert kinds["value"] == [1, "No such file or directory"]
    assert sorted(kinds["map"]["@"].values()) == [1, 2] and len(kinds["map"]["@"]) == 2
    assert kinds["printf"].encode("utf-8", "surrogateescape") == b'q"\\\n\x01\xff'


@pytest.mark.root
def test_61_text_cut_in_a_letter_is_kept(rawbpf, tmp_path):
    """comm is cut at 15 bytes, in the middle of a two-byte letter: what is printed can be turned back."""
    name = tmp_path / ("я" * 10)
    name.symlink_to(sys.executable)
    done = rawbpf("trace", "-q", "-f", "json", "-c", "%s -c pass" % name, "-e", "tracepoint:sched:sched_process_exit /pid == cpid/ { print(comm); }")
    value = json.loads(done.stdout.splitlines()[0])["data"]
    assert value.encode("utf-8", "surrogateescape") == ("я" * 10).encode()[:15]


@pytest.mark.root
def test_61_an_exception_leaves_the_loop():
    """With everything detached (conftest looks for programs that are left)."""
    from rawbpf.tools.trace import Script
    script = Script("interval:ms:1 { @n++; print(@n); }")
    seen = []
    with pytest.raises(ZeroDivisionError):
        for event in script:
            seen.append(event)
            if len(seen) == 3:
                1 / 0
    assert len(seen) == 3 and not script.running and script.attached == 0


@pytest.mark.root
def test_61_a_closed_pipe_is_a_quiet_end(rawbpf):
    process = subprocess.Popen([*rawbpf.command("trace", "-q", "-e", "interval:ms:1 { print(1); }")], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    assert [process.stdout.readline() for _ in range(2)] == ["1\n", "1\n"]
    process.stdout.close()
    try:
        error = process.stderr.read()
        status = process.wait(30)
    finally:
        process.kill()
        process.stderr.close()
    assert error == "" and status in (0, -signal.SIGPIPE)
