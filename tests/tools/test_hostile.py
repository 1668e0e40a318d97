"""Scripts, targets, streams, limits and signals that nobody wishes for: one clear error each, never a traceback,
never a wait without end, nothing left behind, no event lost without being counted."""

import os
import re
import signal
import subprocess
import time

import pytest

FUN = r"""
__attribute__((noinline)) int foo(int a) { asm volatile(""); return a; }
__attribute__((noinline)) int bar(int a) { asm volatile(""); return a; }
int main(void) { for (int i = 0; i < 10; i++) foo(i); return bar(0); }
"""


def clean(done, status):
    """The error text of a command that ended as it should."""
    text = done.stderr if isinstance(done.stderr, str) else done.stderr.decode(errors="replace")
    assert "Traceback" not in text and "Exception ignored" not in text, text
    assert done.returncode == status, text
    return text


def shell(rawbpf, command, **options):
    """`command` in bash, where "$RAWBPF" is the command."""
    return subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "RAWBPF": " ".join(map(str, rawbpf.command()))}, **options)


# --- scripts ---------------------------------------------------------------------------------------------

def test_a_script_without_end_is_no_script(rawbpf):
    text = clean(rawbpf("trace", "/dev/zero"), 1)
    assert text == "ERROR: '/dev/zero' is no script: it is larger than 16 MB\n"


@pytest.mark.slow
@pytest.mark.parametrize("body", ["@++", "1"])
@pytest.mark.root
def test_macros_that_grow_without_end(rawbpf, body):
    macros = "macro a0() { %s } " % body + "".join("macro a%d() { a%d(); a%d() } " % (i, i - 1, i - 1)
                                                  for i in range(1, 25))
    text = clean(rawbpf("trace", "-e", macros + "BEGIN { a24(); exit() }"), 1)
    assert "ERROR" in text and len(text) < 10_000_000


def test_only_the_part_of_a_long_line_around_an_error_is_shown():
    from rawbpf.tools.trace.diagnostics import Source, Span
    text = "BEGIN { " + "x" * 5000 + "OOPS" + "y" * 5000
    at = text.index("OOPS")
    line, marks = Span(Source("stdin", text), at, at + 4).context()
    assert len(line) == 1000
    assert line[marks.index("~"):] == "OOPS" + "y" * 496 and marks.count("~") == 4


def test_many_diagnostics_are_cut():
    from rawbpf.tools.trace.diagnostics import Diagnostics
    diagnostics = Diagnostics()
    for number in range(1234):
        diagnostics.error(None, "wrong %d" % number)
    assert diagnostics.format().splitlines()[-1] == "... and 1134 more"


# --- targets ---------------------------------------------------------------------------------------------

@pytest.mark.root
def test_fifos_and_damaged_files(rawbpf, compile_c, tmp_path):
    program, scratch = compile_c(FUN), tmp_path
    os.mkfifo(scratch / "fifo")
    good, cut = scratch / "good", scratch / "cut"
    data = open(program, "rb").read()
    for path, content in ((good, data), (cut, data[:1000])):
        path.write_bytes(content)
        path.chmod(0o755)
    text = clean(rawbpf("trace", "-e", "uprobe:%s/fifo:main { @++ }" % scratch), 1)
    assert "fifo' is a FIFO, no program or library" in text and "HINT" not in text
    assert "lies outside the file" in clean(rawbpf("trace", "-e", "uprobe:%s:main { @++ }" % cut), 1)
    for function in ("foo", "fo*"):
        done = rawbpf("trace", "-q", "-c", good, "-e", "uprobe:%s/*:%s { @[probe]++ }" % (scratch, function))
        clean(done, 0)
        assert done.stdout == "\n\n@[uprobe:%s:foo]: 10\n" % good


@pytest.mark.parametrize("pid", ["0", "", "-1", "1.5", "\uff11", "9" * 30, "4194305"])
@pytest.mark.parametrize("options", [("-e", "BEGIN { exit() }"), ("-l", "uprobe:/bin/sh:*")])
def test_process_ids(rawbpf, pid, options):
    text = clean(rawbpf("trace", "-p", pid, *options), 1)
    assert re.fullmatch("ERROR: (Pid out of range|Failed to parse pid: invalid (integer|trailing bytes)): .*\n", text)


# --- streams ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("arguments", ["--version", "trace --help", "trace -l 'interval:*'"])
def test_output_that_cannot_be_written(rawbpf, arguments):
    assert "No space left on device" in clean(shell(rawbpf, "$RAWBPF %s > /dev/full" % arguments), 1)
    assert "Bad file descriptor" in clean(shell(rawbpf, "$RAWBPF %s >&-" % arguments), 1)


@pytest.mark.root
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(rawbpf, compile_c, closed):
    script = "$RAWBPF trace -c %s -e 'uprobe:%s:foo { printf(\"%%d\\n\", arg0) }' %s" % (
        (compile_c(FUN),) * 2 + (closed,))
    done = shell(rawbpf, script)
    if ">&-" in closed.replace("2>&-", ""):
        text = clean(done, 1)
        assert "2>&-" in closed or "ERROR: cannot write the output: Bad file descriptor" in text
    else:
        clean(done, 0)
        assert done.stdout.split() == [str(number) for number in range(10)]


# --- limits ----------------------------------------------------------------------------------------------

@pytest.mark.root
@pytest.mark.parametrize("limit", ["-n 6", "-n 8", "-n 11", "-n 16", "-n 20", "-n 24", "-v 40000", "-v 20000"])
def test_limits(rawbpf, limit):
    done = shell(rawbpf, "ulimit %s; $RAWBPF trace -e 'BEGIN { printf(\"x\\n\") } "
                         "tracepoint:syscalls:sys_enter_n* { @[probe]++ } interval:ms:100 { exit() }'" % limit)
    text = clean(done, done.returncode)
    assert done.returncode in (0, 1, 255) and (done.returncode == 0) == ("ERROR" not in text)


def test_closing_many_without_threads(monkeypatch):
    import threading

    from rawbpf.loader.link import close_all

    class Thing:
        closed = False

        def close(self):
            self.closed = True

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    things = [Thing() for _ in range(20)]
    close_all(things)
    assert all(thing.closed for thing in things)


# --- one program for many points -------------------------------------------------------------------------

@pytest.mark.root
@pytest.mark.kernel
def test_points_of_one_program_know_their_names(rawbpf, compile_c):
    path = compile_c(FUN)
    done = rawbpf("trace", "-q", "-c", path, "-e", """
        uprobe:{0}:foo, uprobe:{0}:bar {{ @[probe, func]++; if (func == "bar") {{ @b = func }} }}
        uretprobe:{0}:* /probe == "uretprobe:{0}:foo"/ {{ @r++ }}""".format(path))
    clean(done, 0)
    assert done.stdout == ("\n\n@[uprobe:{0}:bar, bar]: 1\n@[uprobe:{0}:foo, foo]: 10\n@b: bar\n@r: 10\n"
                           .format(path))


@pytest.mark.root
def test_thousands_of_points_that_read_their_names_are_one_program(rawbpf, compile_c):
    count = 3000
    path = compile_c("".join("__attribute__((noinline)) int fn_%d(int a) { asm volatile(\"\"); return a; }\n" % n
                             for n in range(count))
                     + "int main(void) { return %s; }\n" % "".join("fn_%d(0) + " % n for n in range(0, count, 10))
                     .rstrip("+ "), "-O0")
    done = rawbpf("trace", "-q", "-v", "-c", path, "-e", "uprobe:%s:fn_* { @[func]++; @p = probe }" % path)
    assert "and %d more" % (count - 2) in clean(done, 0)
    rows = re.findall(r"^@\[(fn_\d+)\]: 1$", done.stdout, re.M)
    assert sorted(rows) == sorted("fn_%d" % n for n in range(0, count, 10))


@pytest.mark.root
@pytest.mark.kernel
def test_an_event_that_is_named_twice_counts_twice(rawbpf, compile_c):
    done = rawbpf("trace", "-q", "-c", compile_c(FUN), "-e", """
        tracepoint:syscalls:sys_enter_exit_group, tracepoint:syscalls:sys_enter_exit_group /pid == cpid/ { @n++ }
        tracepoint:syscalls:sys_enter_exit_g*, tracepoint:syscalls:sys_enter_*t_group /pid == cpid/ { @[probe]++ }""")
    clean(done, 0)
    assert done.stdout == "\n\n@[tracepoint:syscalls:sys_enter_exit_group]: 2\n@n: 2\n"


@pytest.mark.root
def test_a_place_that_the_kernel_refuses_does_not_end_the_others(monkeypatch):
    """ENOEXEC of one place in a list: the rest is attached, that one is told."""
    import errno

    from rawbpf.sources import uprobe

    class FakeBinary:
        path = shown = "a"

    class FakePoint:
        binary, pid, ref_ctr_offset = FakeBinary, None, 0

        def __init__(self, offset):
            self.file_offset = self.vaddr = offset
            self.name = "uprobe:a:%d" % offset

    class Link:
        def close(self):
            return None

    def attach(program, path, offsets, references, cookies, pid, retprobe):
        if 13 in offsets:
            raise OSError(errno.ENOEXEC, "Exec format error")
        return Link()

    import rawbpf.loader.link
    monkeypatch.setattr(rawbpf.loader.link, "attach_uprobe_multi", attach)
    attachment = uprobe.attach_multi(None, [FakePoint(n) for n in range(20)], None, False)
    assert [point.vaddr for point, _ in attachment.refused] == [13]


# --- signals ---------------------------------------------------------------------------------------------

@pytest.mark.root
def test_a_signal_before_anything_runs_is_not_forgotten():
    """stop() that comes while probes are attached ends the trace as soon as it has begun."""
    from rawbpf.tools.trace.engine import compile_script
    from rawbpf.tools.trace.session import Session

    class Renderer:
        def emit(self, result):
            return None

        def settle(self):
            return None

    compiled = compile_script("interval:s:100 { @++ }", "stdin", [], [])
    with Session(compiled, Renderer()) as session:
        session.load()
        session.stop()
        session.start()
        assert not session.running and session.attachments == []
        session.finish()


@pytest.mark.slow
@pytest.mark.root
def test_interrupted_at_any_time(rawbpf, compile_c):
    path = compile_c(FUN)
    for step in range(10):
        process = rawbpf.start("trace", "-c", "/bin/sleep 60", "-e",
                               "BEGIN { @b = 1 } uprobe:%s:* { @[probe]++ } tracepoint:syscalls:sys_enter_n* { @n++ } "
                               "END { @e = 1 }" % path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(0.3 + step * 0.05)
        process.send_signal(signal.SIGINT if step % 2 else signal.SIGTERM)
        _, error = process.communicate(timeout=30)
        text = error if isinstance(error, str) else error.decode()
        assert process.returncode in (0, 130, -signal.SIGTERM, -signal.SIGINT) or "site" in text, text


@pytest.mark.slow
@pytest.mark.root
def test_a_second_interrupt_while_a_stubborn_command_is_ended(rawbpf):
    """The command ignores SIGTERM: it is killed all the same, and the second Ctrl-C makes no traceback."""
    process = rawbpf.start("trace", "-c", "/bin/sh -c 'trap \"\" TERM INT; echo ready; while :; do sleep 0.1; done'",
                           "-e", "interval:s:100 { @++ }", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           start_new_session=True)
    while True:
        line = process.stdout.readline()
        if line.strip() in (b"ready", "ready"):
            break
        assert line, process.stderr.read()
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    _, error = process.communicate(timeout=30)
    text = error if isinstance(error, str) else error.decode()
    assert "Traceback" not in text and process.returncode in (0, 130)
    session = subprocess.run(["pgrep", "-s", str(process.pid), "sh"], capture_output=True, text=True).stdout
    assert session == ""


# --- losses ----------------------------------------------------------------------------------------------

@pytest.mark.root
@pytest.mark.parametrize("format", ["text", "json"])
def test_printed_and_lost_are_all_that_fired(rawbpf, compile_c, format):
    import json
    path = compile_c(FUN.replace("i < 10", "i < 100000"))
    done = rawbpf("trace", "-f", format, "-c", path, "-e",
                  "config = { perf_rb_pages = 1 } uprobe:%s:foo { printf(\"%%d\\n\", arg0) }" % path)
    clean(done, 0)
    if format == "text":
        printed = len(re.findall(r"^\d+$", done.stdout, re.M))
        lost = sum(map(int, re.findall(r"^Lost (\d+) events", done.stderr, re.M)))
    else:
        results = [json.loads(line) for line in done.stdout.splitlines() if line]
        printed = sum(result["type"] == "printf" for result in results)
        lost = sum(result["data"]["events"] for result in results if result["type"] == "lost_events")
    assert lost > 0 and printed + lost == 100000
