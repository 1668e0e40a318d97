"""Source lines of kernel addresses, where the kernel's debug information is installed.

`vmlinux` is looked for where distributions put it (the places of perf and libbpf), and belongs to this kernel when
its build id is the one in /sys/kernel/notes (a file of ELF notes). The kernel runs as far from where it was linked as
its symbol `_stext` is.
"""

import os

from .image import ElfError, Image
from .source_lines import SourceLines
from .symbols import Symbols

PLACES = ("/usr/lib/debug/boot/vmlinux-%s", "/usr/lib/debug/lib/modules/%s/vmlinux", "/usr/lib/debug/vmlinux-%s",
          "/lib/modules/%s/build/vmlinux", "/lib/modules/%s/vmlinux", "/boot/vmlinux-%s")
NOTES = "/sys/kernel/notes"


class KernelLines:
    """`at(address) -> [source_lines.Place]` of the kernel's own code (modules are linked when they are loaded, and
    have none). `symbols` are the running kernel's KernelSymbols."""

    def __init__(self, symbols, places=PLACES, notes=NOTES):
        self.slide = 0
        self.lines = None
        build_id = _build_id(notes)
        release = os.uname().release
        for place in places:
            path = place % release if "%s" in place else place
            if not os.path.isfile(path):
                continue
            try:
                image = Image.open(path)
                linked = Symbols(image).find("_stext")
            except ElfError:
                continue
            running = symbols.find("_stext")
            if image.build_id and build_id and image.build_id == build_id and linked is not None and running:
                self.slide = running[0].address - linked.value
                self.lines = SourceLines(image)
                return

    def at(self, address):
        return self.lines.at(address - self.slide) if self.lines is not None else []


def _build_id(path):
    """The build id in a file of notes, "" when there is none to read."""
    try:
        with open(path, "rb") as file:
            data = file.read(1 << 16)
    except OSError:
        return ""
    at, order = 0, "little" if memoryview(b"\1\0").cast("H")[0] == 1 else "big"
    while at + 12 <= len(data):
        name, desc, kind = (int.from_bytes(data[at + i:at + i + 4], order) for i in (0, 4, 8))
        body = at + 12 + (name + 3 & -4)
        if kind == 3 and data[at + 12:at + 12 + name] == b"GNU\0":
            return data[body:body + desc].hex()
        at = body + (desc + 3 & -4)
    return ""
