"""debugf() writes to the kernel's trace buffer."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.root

# tracefs is mounted where nobody else sees it
READ = """
import os, sys
from tests.peers import enter_tracefs, TRACEFS
enter_tracefs()
fd = os.open(TRACEFS + "/trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
sys.stdout.write("ready\\n"); sys.stdout.flush()
sys.stdin.read()
data = b""
try:
    while True:
        data += os.read(fd, 65536)
except BlockingIOError:
    pass
sys.stdout.write(data.decode())
"""


@pytest.mark.slow
def test_debugf(rawbpf):
    reader = subprocess.Popen([sys.executable, "-c", READ], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              cwd=os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    assert reader.stdout.readline() == "ready\n"
    word = "mark%d" % os.getpid()
    done = rawbpf("trace", "-q", "-e", 'begin { debugf("%s\\n", "' + word + '"); $s = "text"; debugf("' + word
                  + ' %s %d %x", $s, -5, 255); }')
    assert "WARNING: The debugf() builtin" in done.stderr
    out = reader.communicate(timeout=20)[0]
    found = [line.partition("bpf_trace_printk: ")[2] for line in out.splitlines() if word in line]
    assert found == [word, word + " text -5 ff"]
