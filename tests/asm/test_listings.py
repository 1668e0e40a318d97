"""What the kernel and bpftool print of programs assembles to those programs.

Every form of instruction that this kernel runs: the log of its verifier, and bpftool's dump of what it made of them.
"""

import pytest

from rawbpf.asm import AsmError, Instruction, assemble, decode, disassemble, encode
from rawbpf.asm.disassembler import text
from rawbpf.asm.instruction import slot_numbers
from rawbpf.asm.verifierlog import instructions_of_log
from rawbpf.loader import Map
from rawbpf.loader.program import Program
from tests import peers

from .edges import SIZE, groups, release
from .test_isa import alu_forms, jump_forms, program, unary_forms
from .test_isa_memory import memory_forms, memory_program

pytestmark = pytest.mark.slow


def programs(now):
    """Instruction lists with every form, each taking its operands from maps."""
    v4 = now >= (6, 6)
    alu = [instruction for *_, instruction, imm in alu_forms(v4)] + [form[1] for form in unary_forms(v4)]
    yield from map(program, groups(alu, 400))
    yield from map(program, groups([code for _, _, code, _ in jump_forms(True)], 200))
    yield memory_program([form[1] for form in memory_forms(now)])
    control = "r6 = r1\nr0 = *(u16 *)skb[12]\nr7 = r0\nr0 = *(u8 *)skb[r7 - 4]\nr1 = r0\ncall f\nif r0 != 5 goto out\n"
    control += "gotol out\nr0 = 1\n" if v4 else ""
    control += "may_goto out\nr0 = 2\n" if now >= (6, 9) else ""
    # what follows gotol is reached by its jump
    control = control.replace("gotol out\n", "if r0 == 6 goto pc+1\ngotol out\n")
    yield assemble(control + "out: r0 = 0\nexit\nf: call bpf_ktime_get_ns\nexit").instructions()


@pytest.fixture
def maps():
    with Map.create("array", 4, 24, 1, name="data") as data, Map.create("array", 4, SIZE, 1, name="out") as out:
        yield {"data": data, "out": out}


@pytest.mark.root
def test_the_verifiers_log(maps):
    seen = set()
    for code in programs(release()):
        loaded = dict(zip(slot_numbers(code), code))
        with Program.load("sched_cls", code, maps=maps, log_level=2) as made:
            shown = instructions_of_log(made.log)
        for slot, instruction in shown:
            if loaded[slot].ref is None:            # the log has addresses of maps
                assert instruction == loaded[slot], slot
                seen.add((instruction.code, instruction.off if instruction.code & 7 in (4, 7) else 0))
    # 4 and 7: 13 operations of 2 operands and widths, jumps, memory, ...
    assert len(seen) > (120 if release() >= (6, 6) else 95)


@pytest.mark.root
@pytest.mark.peer
def test_bpftools_dump(maps):
    for code in programs(release()):
        with Program.load("sched_cls", code, maps=maps, name="t_listing") as made:
            done = peers.bpftool("prog", "dump", "xlated", "id", made.info().id)
            assert done.returncode == 0, done.stderr
            expected = decode(made.xlated())
        shown = assemble(done.stdout, strict=False).instructions()
        assert len(shown) == len(expected)
        for ours, theirs in zip(shown, expected):
            if theirs.code == 0x18 and theirs.src:  # map[id:7][0]+8
                assert ours.ref is not None and ours[:2] == theirs[:2]
            elif theirs.code == 0x85 and theirs.src == 0:
                assert ours.code == 0x85
            elif theirs.code == 0x85 and theirs.src == 1:   # the kernel keeps the distance in off, a number in imm
                assert ours[:3] == theirs[:3] and ours.imm == theirs.off
            elif theirs.code == 0xbc and theirs.imm == 1:   # the kernel's mark on an extension to 64 bits
                assert ours == theirs._replace(imm=0)
            else:
                assert encode([ours]) == encode([theirs]), (ours, theirs)


def test_the_kernels_own_register():
    """r11 is in listings of what the kernel made of a program (its BPF_REG_AX), and nowhere else."""
    instruction = Instruction(0xbf, 11, 2)
    assert disassemble([instruction]) == "   0: (bf) r11 = r2" and text(instruction) == ".insn 0xbf, 11, 2, 0, 0"
    assert assemble("   0: (bf) r11 = r2").instructions() == [instruction]
    for wrong in ("r11 = r2", "0: (bf) r11 = r2\nr11 = r2", "0: (bf) r12 = r2"):
        with pytest.raises(AsmError, match="registers go from r0 to r10"):
            assemble(wrong)


def test_a_call_by_bpftool():
    assert assemble("call pc+2#bpf_prog_1f4c_f\nexit\nexit", strict=False).instructions()[0] == Instruction(0x85, 0, 1, 0, 2)
