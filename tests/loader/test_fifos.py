"""Files that are given and are FIFOs: one that nobody writes to is an error at once, a pipe is read to its end."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from rawbpf.asm import assemble, write_object
from rawbpf.asm.btfwriter import BtfWriter
from rawbpf.asm.files import read_file
from rawbpf.elf.bpf_object import BpfObjectFile
from rawbpf.elf.btf import Btf
from rawbpf.elf.image import ElfError
from rawbpf.loader import Object
from rawbpf.loader.uapi import MAP_TYPES
from rawbpf.tools.cli import main

OBJECT = write_object(assemble('.license "GPL"\n.section socket\nr0 = 0\nexit\n'), MAP_TYPES)


@pytest.fixture
def fifo(tmp_path):
    """Path of a FIFO; whoever waits for it is killed."""
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    signal.alarm(20)
    yield path
    signal.alarm(0)


def types():
    writer = BtfWriter()
    writer.integer("int", 4)
    return writer.bytes()


@pytest.mark.parametrize("use", [read_file, BpfObjectFile.open, Object.open, Btf.open,
                                 lambda path: Object.parse(OBJECT, btf_path=path)])
def test_nobody_writes(fifo, use):
    with pytest.raises((OSError, ElfError)) as caught:
        use(fifo)
    assert "no regular file but a FIFO that nothing writes to" in str(caught.value)


@pytest.mark.parametrize("command", [
    ["load", "FIFO"], ["load", "OBJECT", "--btf", "FIFO"], ["disasm", "FIFO"], ["verify", "FIFO"], ["asm", "FIFO"],
    ["run", "FIFO"], ["run", "OBJECT", "--data-in", "FIFO"], ["btf", "dump", "file", "FIFO"],
    ["prog", "load", "FIFO", "/sys/fs/bpf/none"], ["prog", "load", "OBJECT", "/sys/fs/bpf/none", "kernel_btf", "FIFO"],
    ["gen", "object", "OUT", "FIFO"], ["gen", "min_core_btf", "FIFO", "OUT", "OBJECT"], ["struct_ops", "register", "FIFO"],
    ["iter", "pin", "FIFO", "/sys/fs/bpf/none"]], ids=" ".join)
def test_commands(fifo, command, tmp_path, capfd):
    (tmp_path / "some.o").write_bytes(OBJECT)
    names = {"FIFO": fifo, "OBJECT": str(tmp_path / "some.o"), "OUT": str(tmp_path / "out")}
    assert main([names.get(word, word) for word in command]) not in (0, None)
    out, error = capfd.readouterr()
    assert "FIFO that nothing writes to" in error or "not a regular file" in error, (out, error)
    assert not os.path.exists(names["OUT"])


@pytest.mark.parametrize("data, use", [
    (OBJECT, lambda path: list(Object.open(path).programs)), (OBJECT, lambda path: len(BpfObjectFile.open(path).functions)),
    (types(), lambda path: Btf.open(path).find("int", "int").size), (bytes(range(256)) * 1000, read_file)],
    ids=["Object", "BpfObjectFile", "Btf", "bytes"])
def test_what_somebody_writes_is_read(fifo, data, use, tmp_path):
    """Also what waits for a reader, and what comes in parts."""
    plain = tmp_path / "plain"
    plain.write_bytes(data)

    def write():
        with open(fifo, "wb", buffering=0) as file:
            for part in (data[:5], data[5:100], data[100:]):
                file.write(part)
    writer = threading.Thread(target=write)
    keeps = os.open(fifo, os.O_RDWR)        # so that it is written to from the beginning
    writer.start()
    try:
        read = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        os.close(read)
        threading.Timer(0.02, os.close, [keeps]).start()
        assert use(fifo) == use(str(plain))
    finally:
        writer.join()


@pytest.mark.slow
def test_a_pipe_of_the_shell(tmp_path):
    path = tmp_path / "some.o"
    path.write_bytes(OBJECT)
    done = subprocess.run(["bash", "-c", '"$0" -m rawbpf.tools disasm <(sleep 0.1; cat "$1")', sys.executable, str(path)],
                          capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and "r0 = 0" in done.stdout, done.stderr
    reading, writing = os.pipe()
    os.close(writing)                       # a pipe that is empty is an empty file
    assert read_file("/dev/fd/%d" % reading) == b""
    os.close(reading)


def test_folders_and_nothing(tmp_path):
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "absent", "No such file"), ("a\0b", "null")):
        for use in (BpfObjectFile.open, Btf.open):
            with pytest.raises(ElfError, match=reason):
                use(str(path))
