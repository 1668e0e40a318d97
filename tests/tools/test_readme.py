"""README's examples of scripts from Python run and give what is said there."""

import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytestmark = [pytest.mark.root, pytest.mark.slow]

README = (Path(__file__).parents[2] / "README.md").read_text()


def example(start):
    """The indented block of README that begins with a line, without its indent."""
    lines = []
    for line in README[README.index("\n    " + start) + 1:].split("\n"):
        if line and not line.startswith("    "):
            break
        lines.append(line[4:])
    return "\n".join(lines)


def test_a_script_from_python():
    done = subprocess.run([sys.executable, "-c", example("from rawbpf.tools.trace import Script")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^{'ls': \d+}$", done.stdout, re.M)


def test_a_script_in_an_event_loop():
    ended = threading.Event()

    def opens():
        while not ended.wait(0.01):
            with open("/etc/passwd"):
                pass
    thread = threading.Thread(target=opens)
    thread.start()
    try:
        done = subprocess.run([sys.executable, "-c", example("import asyncio\n")], capture_output=True, text=True, timeout=60)
    finally:
        ended.set()
        thread.join()
    assert done.returncode == 0, done.stderr
    assert len(eval(done.stdout)) == 3


def test_the_functions_of_a_program(rawbpf, tmp_path):
    """With the program that is named there, as it is made there."""
    assert "`./fun`, from `gcc -o fun tests/fixtures/fun.c`" in README
    subprocess.run(["gcc", "-o", tmp_path / "fun", Path(__file__).parents[1] / "fixtures" / "fun.c"], check=True)
    command, _, shown = example("# rawbpf trace -q -c ./fun").partition("\n")
    done = rawbpf(*shlex.split(command)[2:], cwd=tmp_path)
    assert (done.stdout.split(), done.stderr) == (shown.split(), "")


def test_a_stage_with_and_without_the_run(rawbpf):
    """-d shows, and runs it as well; not with --dry-run."""
    for more, ran in ((), True), (("--dry-run",), False):
        done = rawbpf("trace", "-d", "asm", *more, "-e", 'BEGIN { printf("hi\\n"); exit() }')
        assert "lock *(u64 *)(r1 +0) += r2" in done.stdout and ("hi" in done.stdout.splitlines()) == ran
