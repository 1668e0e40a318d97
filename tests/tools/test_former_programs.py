"""Names in stacks of a program that its process has left by executing another one."""

import os
import subprocess
import time

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
