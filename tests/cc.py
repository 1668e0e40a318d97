"""Compiles the tests' C programs with gcc, once per content.

Inside a virtual machine of the kernel matrix there is no compiler: `RAWBPF_CC` names a serial
port there, and the compiler at its other end is the host's (`tests/vm/guest.py`).  The guest has
the host's shared objects, so what the host makes runs there.
"""

import base64
import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import tty
from pathlib import Path


class CompileError(Exception):
    """gcc is missing or refused a program; the text is what it said."""


@functools.lru_cache(maxsize=None)
def _folder():
    """Where compiled programs are kept: shared by runs of one user, and readable by all."""
    place = Path(tempfile.gettempdir()) / f"rawbpf-cc-{os.geteuid()}"
    place.mkdir(mode=0o755, exist_ok=True)
    if place.stat().st_uid != os.geteuid():
        raise CompileError(f"{place} belongs to somebody else")
    return place


def compile_c(source, *flags, name="a.out"):
    """Path of `source` compiled with gcc and `flags`, in a folder of its own, named `name`."""
    key = hashlib.sha256("\0".join((source, *flags, name)).encode()).hexdigest()[:24]
    target = _folder() / key / name
    if not target.exists():
        made = _remote(source, flags, name) if os.environ.get("RAWBPF_CC") else build(source, flags, name)
        target.parent.mkdir(exist_ok=True)
        fresh = target.with_name(f".{name}.{os.getpid()}")
        fresh.write_bytes(made)
        fresh.chmod(0o755)
        fresh.rename(target)
    return str(target)


def build(source, flags, name):
    """The bytes of the program that gcc makes of `source`; of a `.bpf.o`, clang (see tests/bpfcc.py)."""
    if name.endswith(".bpf.o"):
        from tests import bpfcc
        return bpfcc.build(source, flags, name)
    if not shutil.which("gcc"):
        raise CompileError("the tests need gcc and the C library's headers: "
                           "apt-get install g++")
    with tempfile.TemporaryDirectory() as folder:
        suffix = ".S" if "-xassembler-with-cpp" in flags else ".c"
        stem = name.split(".")[0] or "a"
        (Path(folder) / (stem + suffix)).write_text(source)
        done = subprocess.run(["gcc", "-g", "-o", name, stem + suffix, *flags], cwd=folder,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise CompileError(f"gcc {' '.join(flags)}:\n{done.stderr}")
        return (Path(folder) / name).read_bytes()


def _remote(source, flags, name):
    """`build` at the other end of the serial port that `RAWBPF_CC` names."""
    with open(os.environ["RAWBPF_CC"], "r+b", buffering=0) as port:
        fcntl.flock(port, fcntl.LOCK_EX)
        tty.setraw(port)
        request = json.dumps({"source": source, "flags": flags, "name": name}).encode()
        data = memoryview(request + b"\n")
        while data:
            data = data[port.write(data):]
        answer = bytearray()
        while not answer.endswith(b"\n"):
            answer += port.read(65536)
    answer = json.loads(answer)
    if "error" in answer:
        raise CompileError(answer["error"])
    return base64.b64decode(answer["binary"])
