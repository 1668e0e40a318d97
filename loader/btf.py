"""BTF objects: type information that a program brings along.

The kernel wants it (BTF of functions and where each starts, `func_info`) of programs with callbacks: the
functions that bpf_loop, bpf_for_each_map_elem and the like call. Format: Documentation/bpf/btf.rst.
"""

import struct

from . import syscalls
from .errors import refused
from .kobject import KernelObject
from .syscalls import address

_INT, _FUNC, _FUNC_PROTO = 1, 12, 13


class BtfObject(KernelObject):
    """BTF that was loaded into the kernel."""

    __slots__ = ()

    @classmethod
    def load(cls, data):
        """Load raw BTF (bytes). KernelError when the kernel refuses it."""
        buffer = bytearray(data)
        try:
            return cls(syscalls.bpf("btf_load", btf=address(buffer), btf_size=len(buffer)))
        except OSError as error:
            raise refused("load of BTF", error, "bpf") from None


def function_types(starts):
    """BTF and func_info of a program's functions. `starts`: (name, number of 8-byte slot) in order, the main
    function first. Returns (BTF bytes, (record size, records)) as Program.load takes them; every function
    is `static long name(long, ...)` to the verifier, which does not look closer at static ones."""
    strings = bytearray(b"\0long\0")
    types = struct.pack("=IIII", 1, _INT << 24, 8, 1 << 24 | 64)            # 1: long, signed, 64 bits
    types += struct.pack("=III", 0, _FUNC_PROTO << 24, 1)                   # 2: long (*)()
    records = b""
    for number, (name, slot) in enumerate(starts):
        types += struct.pack("=III", len(strings), _FUNC << 24, 2)          # static linkage
        strings += name.encode() + b"\0"
        records += struct.pack("=II", slot, 3 + number)
    header = struct.pack("=HBBIIIII", 0xeb9f, 1, 0, 24, 0, len(types), len(types), len(strings))
    return header + types + bytes(strings), (8, records)
