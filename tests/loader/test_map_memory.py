"""The values of an array in this process's memory: what a system call writes is seen there, and the reverse."""

import struct

import pytest

from rawbpf.loader.errors import KernelError
from rawbpf.loader.maps import Map
from rawbpf.loader.uapi import F_MMAPABLE

pytestmark = pytest.mark.kernel(since="5.5")


def test_values_are_shared():
    with Map.create("array", 4, 12, 3, flags=F_MMAPABLE) as array:
        memory = array.memory()
        array.update(struct.pack("=I", 2), b"twelve bytes")
        assert memory[32:44] == b"twelve bytes"
        memory[16:28] = b"other bytes."
        assert array.lookup(struct.pack("=I", 1)) == b"other bytes."
        memory.close()


def test_an_array_made_without_the_flag_cannot_be_mapped():
    with Map.create("array", 4, 8, 1) as array, pytest.raises(KernelError):
        array.memory()
