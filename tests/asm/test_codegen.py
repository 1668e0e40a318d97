"""The code generator, checked by running: the IR's reference evaluator against what was compiled."""

import os
import random

import pytest

from rawbpf.asm import compile_function

from .evaluate import Evaluator
from .generate import ENTRIES, MAPS, VALUE_SIZE, program
from .machine import CONTEXT, Machine, World


def world(seed):
    rng = random.Random(seed ^ 0x5eed)
    maps = {name: bytearray(rng.randbytes(VALUE_SIZE * ENTRIES) if name == "data" else VALUE_SIZE * ENTRIES)
            for name in MAPS}
    made = World(maps, VALUE_SIZE)
    made.memory.add(CONTEXT, bytearray(256))
    return made, maps


def expected(seed, function):
    made, maps = world(seed)
    return Evaluator(made).run(function, [CONTEXT]), maps


def level_of(instruction):
    """The first instruction set, 1 to 4, that has it (RFC 9669 and the kernel's history)."""
    code, dst, src, off, imm, ref = instruction
    cls, op = code & 7, code & 0xf0
    if code == 0x06 or cls in (4, 7) and off or cls == 1 and code & 0xe0 == 0x80 or code == 0xd7:
        return 4
    if cls == 6 or cls == 3 and code & 0xe0 == 0xc0 and imm != 0:
        return 3
    return 2 if cls == 5 and op in (0xa0, 0xb0, 0xc0, 0xd0) else 1


def check(seed, cpu):
    function = program(seed, size=4 + seed % 16, atomics=cpu in ("v3", "v4"))
    before = str(function)
    result, memory = expected(seed, function)
    code = compile_function(function, cpu)
    assert str(function) == before
    assert max(map(level_of, code.instructions)) <= int(cpu[1])
    made, maps = world(seed)
    assert (Machine(code.instructions, made).run([CONTEXT]), maps) == (result, memory), (seed, cpu)
    return code


@pytest.mark.parametrize("cpu", ["v1", "v2", "v3", "v4"])
def test_random_functions(cpu):
    for seed in range(60):
        check(seed, cpu)


def check_in_kernel(seeds, llvm=False):
    """Evaluator, our back end and, if asked, LLVM's: all three say the same."""
    from rawbpf.loader import VerifierError
    from .kernel import Kernel, level
    if llvm:
        from rawbpf.tools.trace.llvm import code_of
    kernel, passed_over = Kernel(), 0
    for seed in seeds:
        cpu = ("v1", "v2", "v3", "v4")[seed % level()]
        function = program(seed, size=4 + seed % 16, atomics=cpu in ("v3", "v4") and level() >= 3,
                           aliases=level() >= 4)
        result, memory = expected(seed, function)
        _, maps = world(seed)
        assert kernel.run(compile_function(function, cpu), maps) == (result, memory), (seed, cpu)
        if llvm:
            code, tables = code_of(function, cpu, apart=False)
            try:
                seen = kernel.run(code, maps, tables)
            except VerifierError as error:      # of all the ways through what LLVM made of a loop
                assert "too complex" in str(error), (seed, cpu, "LLVM", str(error))
                passed_over += 1
                continue
            assert seen == (result, memory), (seed, cpu, "LLVM")
    kernel.close()
    assert passed_over <= 1 + len(seeds) // 1000


def seeds(otherwise):
    """RAWBPF_RANDOM_FUNCTIONS=FIRST+COUNT: those instead of the slice that is usual here."""
    first, count = map(int, os.environ.get("RAWBPF_RANDOM_FUNCTIONS", otherwise).split("+"))
    return range(first, first + count)


@pytest.mark.kernel
def test_random_functions_on_every_kernel():
    check_in_kernel(seeds("1000+40"))


@pytest.mark.root
def test_random_functions_in_the_kernel():
    check_in_kernel(range(2000, 2100))


@pytest.mark.root
@pytest.mark.slow
def test_random_functions_by_both_back_ends_in_the_kernel():
    check_in_kernel(seeds("3000+1000"), llvm=True)
