"""The examples of docs/sources.md run as they stand and print what their remarks say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "sources.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
EXPECTED = [r"[2-9]\d*\n\Z", r"True\n\Z", r"DYN 40\nFUNC \(Symbol\(name='getppid', .*\), 2\)\n\d+ (None|<.*)\n\Z",
            r"tracepoint:syscalls:sys_enter_kill \['__syscall_nr', 'pid', 'sig'\]\n0\n\Z", r"True\n\Z",
            r"False True\n\Z",
            r"tracepoint:sched:sched_process_exec \['__data_loc char\[\] filename', 'pid_t pid'\]\n"
            r"(.*\n)*No matches for tracepoint sched:sched_swich. tracepoint:sched:sched_switch\n\Z"]


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("number", range(7))
def test_example(number):
    assert len(EXAMPLES) == len(EXPECTED)
    done = subprocess.run([sys.executable, "-c", EXAMPLES[number]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.match(EXPECTED[number], done.stdout), done.stdout


def test_every_class_is_named():
    from rawbpf import sources

    named = set(re.findall(r"`(\w+)`", TEXT))
    assert sources._PROBES - {"Probe"} <= named
