"""Programs read back from the verifier's log."""

import pytest

from rawbpf.asm import AsmError, decode
from rawbpf.asm.verifierlog import instructions_of_log, program_of_log

from .generate import program
from .test_text import LOG, SAME


def test_the_log_of_the_other_tests():
    assert program_of_log(LOG) == decode(SAME, "little")


def test_what_was_not_walked_is_said():
    log = "0: (05) goto pc+1\n2: (95) exit\n"
    assert [slot for slot, _ in instructions_of_log(log)] == [0, 2]
    with pytest.raises(AsmError, match="slots 1 to 1"):
        program_of_log(log)
    with pytest.raises(AsmError, match="no line"):
        program_of_log("processed 0 insns\n")


@pytest.mark.root
def test_logs_of_this_kernel():
    """What the kernel walked is what was loaded."""
    from rawbpf.asm import compile_function
    from rawbpf.asm.instruction import slot_numbers
    from rawbpf.loader.program import Program
    from .kernel import Kernel
    kernel = Kernel()
    for seed in range(6):
        code = compile_function(program(seed, 8)).instructions
        loaded = dict(zip(slot_numbers(code), code))
        with Program.load("sched_cls", code, maps=kernel.maps, log_level=2) as made:
            shown = instructions_of_log(made.log)
        assert len(shown) > 5
        for slot, instruction in shown:
            # map addresses are not in the log, only where the kernel put them
            if loaded[slot].ref is None:
                assert instruction == loaded[slot], (seed, slot)
    kernel.close()
