"""Compiles the tests' BPF programs with Debian's clang, once per content; see tests/debian.py. Inside a virtual
machine the host compiles, as tests/cc.py says."""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from tests.cc import CompileError, _folder, _remote

FIXTURES = Path(__file__).parent / "fixtures" / "bpf"


def compile_bpf(name, *flags):
    """Path of the object that clang makes of a file of fixtures/bpf."""
    source = (FIXTURES / name).read_text()
    return compile_bpf_text(source, *flags, name=name.replace(".c", ".bpf.o"))


def compile_bpf_text(source, *flags, name="text.bpf.o"):
    """The same of source text, which may include "bpf.h"."""
    key = hashlib.sha256("\0".join([source, (FIXTURES / "bpf.h").read_text(), name, *flags]).encode()).hexdigest()[:24]
    target = Path(_folder()) / key / name
    if not target.exists():
        made = _remote(source, flags, name) if os.environ.get("RAWBPF_CC") else build(source, flags, name)
        target.parent.mkdir(exist_ok=True)
        fresh = target.with_name(".%s.%d" % (name, os.getpid()))
        fresh.write_bytes(made)
        fresh.rename(target)
    return str(target)


def clang():
    """The command of Debian's clang, fetched at first use."""
    from tests.debian import Suite
    root = Suite("bookworm").root("clang-19", ["clang-19"])
    return [str(root / "lib64/ld-linux-x86-64.so.2"), "--library-path",
            ":".join(map(str, (root / "usr/lib/x86_64-linux-gnu", root / "usr/lib/llvm-19/lib"))),
            str(root / "usr/lib/llvm-19/bin/clang")]


def build(source, flags, name):
    """The bytes of the object."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name.replace(".bpf.o", ".c")).write_text(source)
        done = subprocess.run(
            [*clang(), "-target", "bpf", "-g", "-O2", "-nostdinc", "-Wall", "-Wno-unused-function",
             "-I", str(FIXTURES), "-c", name.replace(".bpf.o", ".c"), "-o", name, *flags],
            cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise CompileError("clang:\n" + done.stderr)
        return (Path(folder) / name).read_bytes()
