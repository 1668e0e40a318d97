"""Runs compiled code in the kernel with BPF_PROG_TEST_RUN, over the maps of `generate`."""

import platform
import re

from rawbpf.loader.maps import Map
from rawbpf.loader.program import Program

from .generate import ENTRIES, MAPS, VALUE_SIZE
from .machine import PACKET


def level():
    """The newest instruction set, 1 to 4, that this kernel runs (3 here means with atomics that fetch)."""
    release = tuple(map(int, re.match(r"(\d+)\.(\d+)", platform.release()).groups()))
    return 4 if release >= (6, 6) else 3 if release >= (5, 12) else 2


class Kernel:
    """One set of maps for many programs."""

    def __init__(self):
        self.maps = {name: Map.create("array", 4, VALUE_SIZE, ENTRIES, name=name) for name in MAPS}

    def run(self, code, contents, tables=()):
        """(result, what the maps hold then); `contents` is dict name -> bytes of all values; `tables`: of maps that
        only this program reads."""
        own = {name: Map.create("array", 4, len(tables[name]), 1, name="table") for name in tables}
        for name, made in own.items():
            made.update(bytes(4), tables[name])
        for name, data in contents.items():
            for i in range(ENTRIES):
                self.maps[name].update(i.to_bytes(4, "little"), bytes(data[i * VALUE_SIZE:(i + 1) * VALUE_SIZE]))
        with Program.load("sched_cls", code.instructions, maps={**self.maps, **own}) as program:
            result = program.test_run(PACKET).retval
        for made in own.values():
            made.close()
        return result, {name: bytearray(b"".join(self.maps[name].lookup(i.to_bytes(4, "little"))
                                                 for i in range(ENTRIES))) for name in MAPS}

    def close(self):
        for made in self.maps.values():
            made.close()
