"""Compiles the tests' BPF programs with Debian's clang, once per content; see tests/debian.py."""

import hashlib
import subprocess
from pathlib import Path

from tests.cc import _folder
from tests.debian import Suite

FIXTURES = Path(__file__).parent / "fixtures" / "bpf"


def compile_bpf(name, *flags):
    """Path of the object that clang makes of a file of fixtures/bpf."""
    source = FIXTURES / name
    text = source.read_bytes() + (FIXTURES / "bpf.h").read_bytes()
    key = hashlib.sha256(b"\0".join([text, *map(str.encode, flags)])).hexdigest()[:24]
    target = Path(_folder()) / key / (source.stem + ".bpf.o")
    if not target.exists():
        root = Suite("bookworm").root("clang", ["clang-14"])
        target.parent.mkdir(exist_ok=True)
        fresh = target.with_name(".fresh.o")
        done = subprocess.run(
            [str(root / "lib64/ld-linux-x86-64.so.2"), "--library-path",
             ":".join(map(str, (root / "usr/lib/x86_64-linux-gnu", root / "usr/lib/llvm-14/lib"))),
             str(root / "usr/lib/llvm-14/bin/clang"), "-target", "bpf", "-g", "-O2", "-nostdinc", "-Wall",
             "-I", str(FIXTURES), "-c", str(source), "-o", str(fresh), *flags],
            capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        fresh.rename(target)
    return str(target)
