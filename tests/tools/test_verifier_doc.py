"""The examples of docs/verifier.md print what stands there, numbers aside."""

import re
import shlex
from pathlib import Path

import pytest

DOC = Path(__file__).resolve().parents[2] / "docs" / "verifier.md"
# The wording of registers is that of the kernel in the example.
pytestmark = [pytest.mark.slow, pytest.mark.root]


def examples():
    """[(command, lines that follow it)] of the indented blocks, in order."""
    found = []
    for line in DOC.read_text().split("\n"):
        if line.startswith("    # "):
            found.append((line[6:], []))
        elif found and (line.startswith("    ") or not line):
            found[-1][1].append(line[4:])
        elif line and found:
            found.append(("", []))
    return [(command, "\n".join(lines).rstrip("\n").split("\n")) for command, lines in found if command]


def plain(line):
    line = re.sub(r"0x[0-9a-f]+", "N", re.sub(r"on [0-9]\S+?(:|$)", r"on R\1", line))
    line = re.sub(r'"release": "[^"]*"', '"release": ""', line)
    line = re.sub(r"(R\d+|fp-\d+)(_\w+)?=\S+", r"\1=", line)
    return re.sub(r"\s+", " ", re.sub(r"\(([+-]\d+%)\)", "", re.sub(r'(?<![Rrfp\w])[+-]?\d+', "N", line))).strip()


def test_the_examples(rawbpf, tmp_path):
    ran = 0
    for command, lines in examples():
        words = shlex.split(command)
        if words[0] == "cat":
            (tmp_path / words[1]).write_text("\n".join(lines) + "\n")
            continue
        done = rawbpf(*words[1:], cwd=tmp_path)
        got = (done.stdout + done.stderr).rstrip("\n").split("\n")
        assert [plain(line) for line in got][:len(lines)] == [plain(line) for line in lines], command
        ran += 1
    assert ran == 6
