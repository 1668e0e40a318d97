"""ELF files for the tests: the recipes that reports about tracers boil down to, and what binutils
says about a file."""

import re
import subprocess
from pathlib import Path

from tests.cc import compile_c

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
SDT = (FIXTURES / "sdt.h").read_text()

TARGET = r"""
#include <unistd.h>
__attribute__((noinline)) static int hidden(int x) { return x * 3 + 1; }
__attribute__((noinline)) int work(int x) { return hidden(x) + 1; }
int main(void) { int s = 0; for (int i = 0; i < 200; i++) { s = work(s); usleep(10000); } return s == 0; }
"""


def run(*command, cwd=None):
    """stdout of a command that must succeed."""
    return subprocess.run([str(part) for part in command], cwd=cwd, check=True, text=True,
                          capture_output=True).stdout


def version(tool):
    """Version of a GNU tool as a tuple of ints: gcc's, readelf's."""
    text = run(tool, "-dumpfullversion") if tool == "gcc" else run(tool, "--version").splitlines()[0]
    return tuple(map(int, re.findall(r"\d+", text.split()[-1])))


def readelf_symbols(path):
    """{(name with version, value, size, type, bind)} of the defined symbols, as readelf -sW prints."""
    found = set()
    for line in run("readelf", "-sW", path).splitlines():
        match = re.match(r"\s*\d+: ([0-9a-f]+)\s+(\d+|0x[0-9a-f]+) (\w+)\s+(\w+)\s+\w+\s+(?:\[.*\])?\s*(\w+) (\S+)", line)
        if match and match.group(5) != "UND" and match.group(3) not in ("SECTION", "FILE"):
            value, size, kind, bind, _, name = match.groups()
            found.add((name, int(value, 16), int(size, 0), kind, bind))
    return found


def debug_split(folder, name="md"):
    """Recipe C's program: all but its dynamic symbols only in an xz-compressed .gnu_debugdata."""
    folder = Path(folder)
    source = compile_c(TARGET, "-O1", "-rdynamic", name=name)
    target = folder / name
    target.write_bytes(Path(source).read_bytes())
    target.chmod(0o755)
    dynamic = set(re.findall(r" (\w+)(?:@\S+)?$", run("nm", "-D", target), re.M))
    functions = {m for m in re.findall(r" [tT] (\w+)$", run("nm", target), re.M)}
    (folder / "keep").write_text("\n".join(sorted(functions - dynamic)) + "\n")
    run("objcopy", "--only-keep-debug", target, folder / "md.dbg")
    run("objcopy", "-S", "--keep-symbols=%s" % (folder / "keep"), folder / "md.dbg", folder / "mini")
    run("strip", "--strip-all", target)
    import lzma
    (folder / "mini.xz").write_bytes(lzma.compress((folder / "mini").read_bytes()))
    run("objcopy", "--add-section", ".gnu_debugdata=%s" % (folder / "mini.xz"), target)
    return target
