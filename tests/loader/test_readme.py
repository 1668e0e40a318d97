"""The README's programs that use the loader, as they stand there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loader import tool_objects

README = Path(__file__).resolve().parent.parent.parent / "README.md"


def program(start):
    """The indented block of the README that begins with this line."""
    text = README.read_text()
    block = re.search(r"((?:^    .*\n|^\n(?=    ))*?^    %s\n(?:^    .*\n|^\n(?=    ))*)" % re.escape(start), text, re.M)
    lines = [line[4:] for line in block.group(1).split("\n")]
    return "\n".join(lines[lines.index(start):])


@pytest.mark.peer
@pytest.mark.root
def test_events_of_execsnoop(tmp_path):
    """The object of libbpf-tools' execsnoop, told to look at user 1000 only."""
    found, = [path for path in tool_objects.libbpf_tools(tmp_path) if path.name.startswith("execsnoop")]
    shutil.copy(found, tmp_path / "execsnoop.bpf.o")
    text = program("from rawbpf.loader import Object")
    assert 'obj.rodata["targ_uid"] = 1000' in text
    with subprocess.Popen([sys.executable, "-u", "-c", text], cwd=tmp_path, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        try:
            line = None
            os.set_blocking(process.stdout.fileno(), False)
            for _ in range(200):
                subprocess.run(["/bin/true", "of-root"], check=True)
                subprocess.run(["/bin/true", "of-user-1000"], check=True, preexec_fn=lambda: os.setuid(1000))
                line = process.stdout.readline()
                if line:
                    break
                assert process.poll() is None, process.stderr.read()
        finally:
            process.kill()
    assert line.startswith("b'") and "of-user-1000" in line and "of-root" not in line


@pytest.mark.root
@pytest.mark.slow
def test_maps_and_features():
    done = subprocess.run([sys.executable, "-c", program("from rawbpf.loader import Map, features")],
                          capture_output=True, text=True)
    assert done.stdout == "[(1, 0), (7, 42)]\nTrue (6, 9)\n", done.stderr
