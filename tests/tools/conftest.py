"""What several tests of the commands need."""

import os

import pytest

from rawbpf.loader.detached import mount


@pytest.fixture
def bpffs():
    """Path of a BPF file system that nobody else sees."""
    fd = mount("bpf")
    yield "/proc/%d/fd/%d" % (os.getpid(), fd)
    os.close(fd)
