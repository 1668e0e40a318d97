"""Library names to files, as the dynamic linker finds them.

Reads `/etc/ld.so.cache` in glibc's format "glibc-ld.so.cache1.1" (also where it follows the older
"ld.so-1.7.0" part), described in glibc's `dl-cache.h`, then the default folders of ld.so(8).
"""

import functools
import os
import struct
from typing import NamedTuple

from .image import ElfError, open_regular

CACHE = "/etc/ld.so.cache"
_OLD, _NEW = b"ld.so-1.7.0\0", b"glibc-ld.so.cache1.1"

# the architecture bits of an entry's flags (FLAG_REQUIRED_MASK), with FLAG_ELF_LIBC6 below
_FLAGS = {"x86_64": 0x0300, "aarch64": 0x0a00, "i386": 0, "ppc64": 0x0500, "s390x": 0x0400, "riscv": 0x1000}
_TRIPLES = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu", "riscv": "riscv64-linux-gnu"}


class Entry(NamedTuple):
    soname: str
    path: str
    flags: int
    hwcap: int


def read_cache(data):
    """The entries of a cache file's bytes; [] when it is not one. Entries whose strings lie outside
    are left out."""
    start = 0
    if data.startswith(_OLD) and len(data) >= 16:
        count, = struct.unpack_from("=I", data, 12)
        start = (16 + count * 12 + 7) & ~7
    if data[start:start + len(_NEW)] != _NEW or len(data) < start + 48:
        return []
    count, = struct.unpack_from("=I", data, start + 20)
    entries = []
    for index in range(min(count, (len(data) - start - 48) // 24)):
        flags, key, value, _, hwcap = struct.unpack_from("=iIIIQ", data, start + 48 + index * 24)
        names = []
        for offset in (start + key, start + value):
            end = data.find(b"\0", offset)
            names.append(os.fsdecode(data[offset:end]) if 0 <= offset <= end else "")
        if all(names):
            entries.append(Entry(names[0], names[1], flags, hwcap))
    return entries


@functools.lru_cache(maxsize=2)
def _usable(data, machine):
    """The entries for a machine in the order of preference; remembered, since many probes ask for few libraries."""
    wanted = _FLAGS.get(machine)
    entries = [e for e in read_cache(data) if wanted is None or e.flags & 0xff00 == wanted]
    # an entry for particular hardware is what the linker would take only where it fits
    return sorted(entries, key=lambda e: e.hwcap != 0)


def find_library(name, root="/", machine=None):
    """The path of the library that `name` means ("c", "libc", "libc.so" or "libc.so.6"), or None.
    `root` is the root folder of another mount namespace; the path that comes back is inside it."""
    machine = machine or os.uname().machine
    prefixes = [name] if ".so" in name else [name + ".so", "lib" + name + ".so"]
    cache = os.path.join(root, CACHE.lstrip("/"))
    try:
        with open_regular(cache) as file:
            entries = _usable(file.read(), machine)
    except (ElfError, OSError):
        entries = ()
    for prefix in prefixes:
        for entry in entries:
            if _matches(entry.soname, prefix) and os.path.exists(_under(root, entry.path)):
                return entry.path
    for folder in folders(machine):
        try:
            files = sorted(os.listdir(_under(root, folder)))
        except OSError:
            continue
        for prefix in prefixes:
            for file in files:
                if _matches(file, prefix):
                    return os.path.join(folder, file)
    return None


def folders(machine):
    """The default folders of the dynamic linker, the machine's own first."""
    triple = _TRIPLES.get(machine)
    own = ["/lib/" + triple, "/usr/lib/" + triple] if triple else []
    return own + ["/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"]


def _matches(soname, prefix):
    return soname == prefix or soname.startswith(prefix + ".")


def _under(root, path):
    return path if root == "/" else os.path.join(root, path.lstrip("/"))
