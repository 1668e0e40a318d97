"""Damaged objects: `python -m tests.loader.damage [flips]`, by default 100,000, and every length of each object.

The objects are those that clang makes of the fixtures, which have a part of every kind. Each damaged one is read,
its relocations (CO-RE ones against this kernel's types) are applied, its BTF is made ready for a kernel, its structs
are fitted, it is linked with itself: that is an ElfError or ObjectError of one line, or none, in bounded time and
memory.
"""

import random
import resource
import struct
import sys
import time

from rawbpf.elf.bpf_object import BpfObjectFile
from rawbpf.elf.image import ElfError
from rawbpf.elf.object_linker import link
from rawbpf.loader import Object, ObjectError, ksyms
from rawbpf.loader.arg_ctx import Clones
from rawbpf.loader.object_btf import for_kernel
from tests.bpfcc import compile_bpf
from tests.loader.test_jump_tables import made

SECONDS = 5.0           # of CPU time that one object may take
FIXTURES = ("core.c", "features.c", "struct_ops.c", "arena.c", "usdt.c", "arg_ctx.c")


def fixtures():
    objects = []
    for name in FIXTURES:
        with open(compile_bpf(name), "rb") as file:
            objects.append((name, file.read()))
    linked = link([compile_bpf("link_one.c"), compile_bpf("link_two.c")])
    return objects + [("linked", linked), ("jump tables", made())]


def _errors(work):
    """The error of work(), checked to be one line; None without one."""
    try:
        work()
    except (ElfError, ObjectError) as error:
        assert "\n" not in str(error), str(error)
        return error
    return None


def exercise(data):
    """All that is done with an object before the kernel is asked -> the first error, or None."""
    start, found = time.process_time(), []
    parsed = []
    found.append(_errors(lambda: parsed.append(Object.parse(data, "damaged.o"))))
    if parsed:
        obj = parsed[0]
        if obj.file.btf is not None:
            types = {program.type for program in obj.programs.values()}
            found.append(_errors(lambda: for_kernel(obj.file, obj.externs, lambda name: name != "enum64",
                                                    Clones(obj.file, types))))
        for variables in (obj.rodata, obj.bss, obj.data, obj.arena):
            found.append(_errors(lambda: list(variables.items())))
        for program in obj.programs.values():
            found.append(_errors(program.link))
        for each in obj.struct_ops[:1]:
            found.append(_errors(lambda: each.kernel))
        found.append(_errors(lambda: BpfObjectFile.parse(link([obj.file]), "linked")))
    assert time.process_time() - start < SECONDS, "%.1f s" % (time.process_time() - start)
    return next((error for error in found if error is not None), None)


def flips(objects, count, seed):
    """`count` objects of which some bits, bytes or words are others -> how many were refused."""
    rng, refused = random.Random(seed), 0
    for number in range(count):
        name, data = objects[number % len(objects)]
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(damaged))
            how = rng.randrange(4)
            if how == 0:
                damaged[at] = rng.randrange(256)
            elif how == 1 and at + 4 <= len(damaged):
                struct.pack_into("=I", damaged, at & -4, rng.choice((0, 1, 0xffffffff, 0x7fffffff, 1 << 20)))
            else:
                damaged[at] ^= 1 << rng.randrange(8)
        try:
            refused += exercise(bytes(damaged)) is not None
        except Exception:
            with open("damaged.o", "wb") as file:
                file.write(damaged)
            print("%s, number %d of seed %r: kept as damaged.o" % (name, number, seed), file=sys.stderr)
            raise
    return refused


def truncated(objects, step=1):
    """Every object of which the end is missing is refused -> how many there were."""
    count = 0
    for name, data in objects:
        for end in range(0, len(data), step):
            assert exercise(data[:end]) is not None, (name, end)
            count += 1
    return count


if __name__ == "__main__":
    ksyms.vmlinux()
    objects, wanted = fixtures(), int(sys.argv[1]) if len(sys.argv) > 1 else 100000
    for _, each in objects:
        assert exercise(each) is None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.monotonic()
    print("%d truncated objects: each refused, %.0f s" % (truncated(objects), time.monotonic() - begin), flush=True)
    begin = time.monotonic()
    print("%d damaged objects: %d refused, the others as good as whole, %.0f s" % (
        wanted, flips(objects, wanted, "100,000"), time.monotonic() - begin), flush=True)
    print("memory: %d KiB more at the most" % (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
