"""Names in stacks of a program that its process has left by executing another one."""

import os
import re
import subprocess
import time

import pytest

from rawbpf.elf.image import Image
from rawbpf.elf.symbols import Symbols
from rawbpf.tools.trace.processes import Processes
from tests.cc import compile_c

BEFORE = """
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) int before(int x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
int main(int argc, char **argv)
{
	printf("%d %p\\n", getpid(), (void *)before);
	fflush(stdout);
	before(getchar());
	execl("/bin/sleep", "sleep", "30", (char *)0);
	return 1;
}
"""


class Records:
    def __init__(self):
        self.waiting = []

    def consume(self):
        found, self.waiting = self.waiting, []
        return found

    def close(self):
        self.waiting = []


def test_former_programs():

    for looked in (True, False):
        processes = Processes()
        records = processes._events = Records()
        child = subprocess.Popen([compile_c(BEFORE, "-O1", "-fno-pie", "-no-pie", name="before")], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE)
        try:
            pid, address = child.stdout.readline().split()
            pid, address = int(pid), int(address, 16)
            with open("/proc/%d/maps" % pid, "rb") as file:
                lines = [line.rstrip() for line in file if b" r-xp " in line]
            if looked:
                assert processes.resolve(address, pid).name == "before"
            else:
                records.waiting += [("mmap", pid, line) for line in lines]      # it was not looked at in time
            child.stdin.write(b"x")
            child.stdin.close()
            deadline = time.monotonic() + 10
            while "sleep" not in os.readlink("/proc/%d/exe" % pid) and time.monotonic() < deadline:
                time.sleep(0.005)
            records.waiting.append(("exec", pid))
            assert processes.resolve(address, pid)[:2] == ("before", 0)
            assert [frame.name for frame in processes.frames(address, pid, False)] == ["before"]
            # a process that has got its number since is another one
            records.waiting.append(("fork", pid, 1))
            processes.settle()
            assert processes.resolve(address, pid) is None
        finally:
            child.kill()
            child.wait()
            processes.close()


FIRST = """
#include <unistd.h>
__attribute__((noinline)) int first(int x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
int main(int argc, char **argv) { int x = first(1); return argc > x || execl(argv[1], argv[1], (char *)0); }
"""
# of the same size, at the same addresses
SECOND = FIRST.replace("first", "later").replace("argv[1], (char *)0", "argv[1], \"\", (char *)0").replace(
    "return argc", "if (!argv[1]) { later(2); return 0; } return argc")
FLAGS = ("-O1", "-fno-pie", "-no-pie", "-fno-omit-frame-pointer")


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("printed", ("at once", "at the end"))
def test_another_program_at_the_same_addresses(rawbpf, printed):
    """Whose stack it is is told by the libraries, which are elsewhere."""
    first, second = (compile_c(text, *FLAGS, name=name) for text, name in ((FIRST, "first"), (SECOND, "second")))
    ours, other = (Symbols(Image.open(path)) for path in (first, second))
    assert other.at(ours.find("first").value)[0].name in ("later", "main")
    action = "printf(\"%s;\", ustack);" if printed == "at once" else "@[ustack] = count();"
    done = rawbpf("trace", "-q", "-e", "uprobe:%s:first { %s }" % (first, action), "-c", "%s %s" % (first, second))
    assert done.returncode == 0 and done.stderr == ""
    names = re.findall(r"^ +(\w+)\+", done.stdout, re.M)
    assert names[0] == "first" and "later" not in done.stdout, done.stdout
