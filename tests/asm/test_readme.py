"""README's examples of assembly and of the builder do what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.root, pytest.mark.slow]
README = (Path(__file__).parents[2] / "README.md").read_text()


def block(start):
    """The indented block of README that begins with a line, without its indent."""
    at = README.index("\n    " + start)
    lines = []
    for line in README[at + 1:].split("\n"):
        if line and not line.startswith("    "):
            break
        lines.append(line[4:])
    return "\n".join(lines)


def test_the_builders_example_prints_what_it_says():
    source = block("from rawbpf.asm.builder import *")
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.split() == re.findall(r"print\(.*# (\S+)$", source, re.M) != []


def test_the_program_that_is_run(tmp_path):
    shown = block("# cat first-word.s")
    source, command, output = re.match(r"# cat first-word\.s\n(.*?)# rawbpf (run [^\n]*)\n(.*)", shown, re.S).groups()
    (tmp_path / "first-word.s").write_text(source)
    done = subprocess.run([sys.executable, "-m", "rawbpf.tools", *command.split()], capture_output=True, text=True, cwd=tmp_path)

    def steady(text):
        return re.sub(r"\d+ ns", "N ns", text).strip()
    assert steady(done.stdout) == steady(output)
