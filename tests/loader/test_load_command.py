"""`rawbpf load` that is ended, or whose output nobody takes: what was pinned stays or goes as a whole; what its errors say."""

import os
import signal
import subprocess
import sys

import pytest

from rawbpf.asm import assemble, write_object
from rawbpf.loader.detached import mount
from rawbpf.loader.uapi import MAP_TYPES
from rawbpf.tools.cli import main

pytestmark = [pytest.mark.root, pytest.mark.slow]
OBJECT = write_object(assemble("""
.license "GPL"
.map kept array key=4 value=8 max_entries=1 pinning=1
.section socket
    r1 = map[kept] ll
    r0 = 0
    exit
"""), MAP_TYPES)
# ends itself when the maps are pinned and the programs are loaded
ENDED = """
import os, signal, sys
from rawbpf.loader import Object
from rawbpf.tools.cli import main
Object.fill_program_arrays = lambda self: [os.kill(os.getpid(), getattr(signal, each)) for each in sys.argv[1].split()]
sys.exit(main(["load", *sys.argv[2:]]))
"""


@pytest.fixture
def pins():
    fd = mount("bpf")
    yield "/proc/%d/fd/%d" % (os.getpid(), fd)
    os.close(fd)


def listed(folder):
    """What is in it besides the kernel's own iterators."""
    return [name for name in os.listdir(folder) if not name.endswith(".debug")]


@pytest.fixture
def path(tmp_path):
    (tmp_path / "some.o").write_bytes(OBJECT)
    return str(tmp_path / "some.o")


@pytest.mark.parametrize("names", ["SIGTERM", "SIGHUP", "SIGINT", "SIGTERM SIGTERM SIGHUP"])
def test_ended_when_maps_are_pinned(names, path, pins):
    done = subprocess.run([sys.executable, "-c", ENDED, names, path, "--pin-maps", pins], capture_output=True, timeout=20)
    assert done.returncode == (130 if names == "SIGINT" else -getattr(signal, names.split()[0])), done.stderr
    assert (done.stdout, done.stderr) == (b"", b"") and listed(pins) == []


def test_output_that_nobody_takes(path, pins):
    """All is taken back, the map's pin too; not when all was told that its reader wanted to hear."""
    command = [sys.executable, "-m", "rawbpf.tools", "load", path, "--pin-maps", pins, "--pin", pins + "/folder"]
    for name, text in (("full", b"ERROR: No space left on device\n"), (None, b"ERROR: Bad file descriptor\n")):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(command, stdout=full if name else None, stderr=subprocess.PIPE, timeout=20,
                                  preexec_fn=None if name else lambda: os.close(1))
        assert (done.returncode, done.stderr, listed(pins)) == (1, text, [])
    reader, writer = os.pipe()
    os.close(reader)
    assert subprocess.run(command, stdout=writer, timeout=20).returncode == 0
    os.close(writer)
    assert sorted(listed(pins)) == ["folder", "kept"] and os.listdir(pins + "/folder") == ["socket"]


def test_what_errors_say(path, pins, tmp_path, capfd):
    for words, said in (([path, "--pin-maps", pins, "--pin", "/dev/null"], "/dev/null is no folder to pin in"),
                        ([path, "--btf", "/dev/zero"], None), (["/proc/self/mem"], "/proc/self/mem: Input/output error"),
                        ([str(tmp_path / "a\nb\x1b[1m")], r"%s/a\x0ab\x1b[1m: No such file or directory" % tmp_path)):
        assert main(["load", *words]) == 1
        error = capfd.readouterr()[1]
        if said is None:
            assert error.count("/dev/zero") == 1 and error.count("\n") == 1
        else:
            assert error == "ERROR: %s\n" % said
    assert listed(pins) == []
