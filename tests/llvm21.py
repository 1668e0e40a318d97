"""LLVM 21 of Debian sid (clang, opt, llc, llvm-mc, llvm-objdump), as files below the cache: see tests/debian.py.

It knows all of the instruction set's version 4, and load-acquire, store-release and address spaces beyond it.
"""

import functools
import subprocess

from tests.debian import Suite


@functools.lru_cache(maxsize=None)
def root():
    return Suite("sid").root("llvm-21", ["clang-21", "llvm-21"])


def llvm(tool, *arguments, **options):
    """Runs a tool ("llc", "clang", ...) to its end, which must be a good one: CompletedProcess with text."""
    home = root()
    options.setdefault("stdin", subprocess.DEVNULL if "input" not in options else None)
    done = subprocess.run(
        [str(home / "lib64/ld-linux-x86-64.so.2"), "--library-path",
         ":".join(map(str, (home / "usr/lib/x86_64-linux-gnu", home / "usr/lib/llvm-21/lib"))),
         str(home / "usr/lib/llvm-21/bin" / tool), *map(str, arguments)],
        capture_output=True, text=True, **{k: v for k, v in options.items() if v is not None})
    assert done.returncode == 0, done.stderr
    return done
