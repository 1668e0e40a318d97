"""Edge values, and programs that try instructions on them: in the kernel, and on the model `machine.Machine`.

Operands come from the map "data" (8 bytes each, at most 3), so that nothing can be folded by the verifier;
results go to the map "out".
"""

import platform
import re

from .machine import M64, Machine, World

EDGES = [0, 1, 2, -1, -2, 7, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 32767, 32768, 65535, (1 << 31) - 1, 1 << 31,
         -(1 << 31), (1 << 32) - 1, 1 << 32, (1 << 63) - 1, -(1 << 63), 0x123456789abcdef0, -0x123456789abcdef]
PAIRS = [(a & M64, b & M64) for a in EDGES for b in EDGES]
IMMEDIATES = [b for b in EDGES if -1 << 31 <= b < 1 << 31]
# the issue's own: 0, 1, -1, min and max of both widths, counts at and past the width
FEW = [x & M64 for x in (0, 1, -1, 31, 32, 33, 63, 64, 65, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, -(1 << 63),
                         0x123456789abcdef0)]
FEW_PAIRS = [(a, b) for a in FEW if not 31 <= a <= 65 for b in FEW]
SIZE = 8192


def release():
    return tuple(map(int, re.match(r"(\d+)\.(\d+)", platform.release()).groups()))


def model_run(code, *operands):
    maps = {"data": bytearray(b"".join(x.to_bytes(8, "little") for x in operands).ljust(24, b"\0")), "out": bytearray(SIZE)}
    Machine(code, World(maps, 24)).run([0])
    return maps["out"]


def model(code):
    """As `kernel_runner()`, on the model."""
    return lambda *operands: model_run(code, *operands)


def kernel_runner():
    """load(code) -> run(operand, ...) -> what "out" holds then."""
    from rawbpf.loader.maps import Map
    from rawbpf.loader.program import Program
    maps = {"data": Map.create("array", 4, 24, 1), "out": Map.create("array", 4, SIZE, 1)}

    def load(code):
        loaded = Program.load("sched_cls", code, maps=maps)

        def run(*operands):
            maps["data"].update(bytes(4), b"".join(x.to_bytes(8, "little") for x in operands).ljust(24, b"\0"))
            loaded.test_run(bytes(64))
            return maps["out"].lookup(bytes(4))
        return run
    return load


def groups(items, size=500):
    return [items[i:i + size] for i in range(0, len(items), size)]


def value(out, i):
    return int.from_bytes(out[8 * i:8 * i + 8], "little")
