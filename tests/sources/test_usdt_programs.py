"""The USDT probes that installed programs carry: Debian's Python, the C++ library, Ruby. What they say is known from what
the program does."""

import re
import shutil
import subprocess
import sys

import pytest

from rawbpf.elf import Image
from rawbpf.elf.stapsdt import notes
from tests.elf.files import run

pytestmark = [pytest.mark.root, pytest.mark.slow]

PYTHON = "/usr/bin/python3"

SCRIPT = """
import gc, sys
def work(n):
    return n + 1
for number in range(5):
    work(number)
gc.disable()
for _ in range(3):
    gc.collect(1)
sys.audit("rawbpf.test")
import this_module_is_not_there_ever_no
"""


def test_python(rawbpf, tmp_path):
    """Its probes have semaphores: none of these would fire without them."""
    (tmp_path / "script.py").write_text(SCRIPT.replace("import this", "try: import this").rstrip() + "\nexcept ImportError: pass\n")
    names = {n.name for n in notes(Image.open(PYTHON))}
    assert {"gc__start", "gc__done", "import__find__load__start", "audit"} <= names
    done = rawbpf("trace", "-q", "-c", PYTHON + " -S script.py", "-e", """
        usdt:%s:python:gc__start { @gc[arg0] = count(); }
        usdt:%s:python:audit /str(arg0) == "rawbpf.test"/ { @audit = count(); }
        usdt:%s:python:import__find__load__start /str(arg0) == "this_module_is_not_there_ever_no"/ { @import = count(); }
        usdt:%s:python:import__find__load__done /str(arg0) == "this_module_is_not_there_ever_no"/ { @found[arg1] = count(); }
        """ % ((PYTHON,) * 4), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "@gc[1]: 3\n" in done.stdout
    assert "@audit: 1\n" in done.stdout and "@import: 1\n" in done.stdout and "@found[0]: 1\n" in done.stdout


def test_python_by_process_and_without_a_path(rawbpf, tmp_path):
    (tmp_path / "gc.py").write_text("import gc, sys\nprint('up', flush=True)\nfor line in sys.stdin: gc.collect(2)\n")
    target = subprocess.Popen([PYTHON, "-S", tmp_path / "gc.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        target.stdout.readline()
        listed = rawbpf("list", "-p", target.pid, "usdt:*:gc__*").stdout.splitlines()
        path = shutil.os.path.realpath(PYTHON)
        assert {line.split(":")[1:4][0] for line in listed} == {path} and len(listed) == 2
        trace = rawbpf.start("trace", "-p", str(target.pid), "-e", "usdt:*:gc__start { @[probe, arg0] = count(); }")
        assert trace.stderr.readline() == "Attached 1 probe\n"
        target.communicate("x\n" * 7)
        counted = re.search(r"@\[usdt:%s:python:gc__start, 2\]: (\d+)\n" % path, trace.communicate(timeout=30)[0])
        assert int(counted.group(1)) >= 7       # and some more at its end
    finally:
        target.kill()
        target.wait()


def test_whole_host(rawbpf, tmp_path):
    """usdt:*: of every running process."""
    target = subprocess.Popen([PYTHON, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        deadline = 200
        while deadline and "gc__start" not in rawbpf("list", "usdt:*:python:gc__start").stdout:
            deadline -= 1
        (line,) = [line for line in rawbpf("list", "usdt:*:python:gc__start").stdout.splitlines()
                   if line.split(":")[1] == shutil.os.path.realpath(PYTHON)]
        assert line.endswith(":python:gc__start")
    finally:
        target.kill()
        target.wait()


THROWS = """
#include <cstdio>
struct Wrong { int n; };
int main() {
    for (int i = 0; i < 4; i++) try { throw Wrong{i}; } catch (const Wrong &w) { printf("%d\\n", w.n); }
}
"""


def test_the_cplusplus_library(rawbpf, tmp_path):
    (tmp_path / "throws.cc").write_text(THROWS)
    run("g++", "-g0", "-o", "throws", "throws.cc", cwd=tmp_path)
    library = re.search(r"libstdc\+\+\.so\.6 => (\S+)", run("ldd", tmp_path / "throws")).group(1)
    # the operands are the object and its type: the type's name is behind it
    done = rawbpf("trace", "-q", "-c", "./throws", "-e",
                  'usdt:"%s":libstdcxx:throw { @throw[str(*(uint64*)(arg1 + 8)), *(int32*)arg0] = count(); } '
                  'usdt:"%s":libstdcxx:catch { @catch[str(*(uint64*)(arg1 + 8))] = count(); }' % (library, library), cwd=tmp_path)
    assert done.returncode == 0
    for number in range(1, 4):      # at the first one the name's page may not be there
        assert "@throw[5Wrong, %d]: 1\n" % number in done.stdout
    assert "@catch[5Wrong]: 4\n" in done.stdout


@pytest.mark.demand
def test_ruby(rawbpf, tmp_path):
    from tests.debian import Suite
    root = Suite("bookworm").root("ruby", ["ruby3.1"])
    library = next((root / "usr/lib/x86_64-linux-gnu").glob("libruby-3.1.so.3.1"))
    found = {n.name for n in notes(Image.open(library))}
    assert {"method__entry", "gc__mark__begin", "object__create"} <= found
    (tmp_path / "s.rb").write_text("class A; end\nA.new\n6.times { |n|\n A.new }\n")
    (tmp_path / "run").write_text('#!/bin/sh\nexec "%s/lib64/ld-linux-x86-64.so.2" --library-path "%s" "%s/usr/bin/ruby3.1" '
                                  '--disable-gems s.rb\n' % (root, ":".join(str(root / p) for p in (
                                      "usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")), root))
    (tmp_path / "run").chmod(0o755)
    done = rawbpf("trace", "-q", "-c", "./run", "-e", 'usdt:%s:ruby:object__create /str(arg0) == "A"/ '
                  '{ @[str(arg0), str(arg1), arg2] = count(); }' % library, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "@[A, s.rb, 2]: 1\n" in done.stdout and "@[A, s.rb, 4]: 6\n" in done.stdout


def test_a_file_of_two_mount_namespaces_is_one(rawbpf):
    """Both processes are found, and their probes count once."""
    from rawbpf import sources
    from tests.sources.test_usdt import gated
    path = gated()
    children = [subprocess.Popen(["unshare", "-m", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) for _ in range(2)]
    try:
        for child in children:
            child.stdin.write(b"x")
            assert child.stdout.read(1) == b"x"
        assert len(sources.expand("usdt:*:demo:gate")) == 2       # the two places of the program
    finally:
        for child in children:
            child.stdin.close()
            child.wait()
            child.stdout.close()


PROVIDER = """
import sys, time
from rawbpf.elf import Provider
provider = Provider("wholehost")
sold = provider.probe("sold", "uint64", "string")
provider.load()
print("up", flush=True)
for number in range(3000):
    sold.fire(number, "tea")
    time.sleep(0.01)
"""


def test_a_listed_probe_of_the_whole_host_can_be_pasted(rawbpf):
    """Of a file without a path: the provider's is in memory."""
    child = subprocess.Popen([sys.executable, "-c", PROVIDER], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "up\n"
        (line,) = rawbpf("list", "usdt:*:wholehost:*").stdout.splitlines()
        for probe in (line, "usdt:*:wholehost:sold"):
            done = rawbpf("trace", "-q", "-e", probe + " { @[str(arg1)] = count(); if (++@n == 3) { exit(); } }")
            assert re.search(r"@\[tea\]: [3-9]", done.stdout), done
    finally:
        child.kill()
        child.communicate()
