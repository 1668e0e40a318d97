"""Messages that name no instruction, beside programs whose wrong instruction is known."""

import pytest

from rawbpf.asm import assemble
from rawbpf.loader.explain import explain
from rawbpf.tools.suspects import place
from rawbpf.tools.units import Unit


@pytest.mark.parametrize("message, text, slot", [
    ("BPF_MOV uses reserved fields", "r1 = 7 ll\nr2 = r1\nr2 = (s8)r1\n.insn 0xb7, 6, 0, 4, 0\nexit", 4),
    ("BPF_ALU uses reserved fields", "r0 = 0\nr0 += 1\nr0 s/= r1\n.insn 0x0f, 1, 2, 0, 5\nexit", 3),
    ("BPF_NEG uses reserved fields", "r3 = -r3\n.insn 0x87, 3, 1, 0, 0\nexit", 1),
    ("BPF_END uses reserved fields", "r3 = be16 r3\n.insn 0xd4, 0, 0, 0, 12\nexit", 1),
    ("BPF_JA uses reserved fields", "goto pc+0\n.insn 0x05, 0, 0, 0, 1\nexit", 1),
    ("BPF_JMP/JMP32 uses reserved fields", "if r1 == 5 goto pc+0\nif w1 == w2 goto pc+0\n.insn 0x15, 0, 1, 0, 0\nexit", 2),
    ("BPF_CALL uses reserved fields", "call 7\n.insn 0x85, 1, 0, 0, 7\nexit", 1),
    ("BPF_EXIT uses reserved fields", "exit\n.insn 0x95, 0, 0, 0, 1", 1),
    ("BPF_LDX uses reserved fields", "r0 = *(u8 *)(r1 + 0)\n.insn 0x61, 0, 1, 0, 9\nexit", 1),
    ("BPF_STX uses reserved fields", "*(u8 *)(r10 - 8) = r1\n.insn 0xdb, 10, 0, -8, 0x22\nexit", 1),
    ("BPF_ST uses reserved fields", "*(u8 *)(r10 - 8) = 1\n.insn 0x72, 10, 4, -8, 1\nexit", 1),
    ("R12 is invalid", "r0 = 0\n.insn 0xbf, 0, 12, 0, 0\nexit", 1),
    ("unknown opcode 8d", "r0 = 0\n.insn 0x8d, 1, 0, 0, 0\nexit", 1),
    ("fd 99 is not pointing to valid bpf_map", "r1 = map_fd[98] ll\nr1 = map_fd[99] ll\nexit", 2),
    ("call to invalid destination", "call pc+1\nexit\n.insn 0x85, 0, 1, 0, 100\nexit", 2),
    ("something else", "exit", None),
])
def test_the_instruction_that_is_meant(message, text, slot):
    unit = Unit("a.s", "a", "xdp", assemble(text, "a.s", strict=False).instructions())
    assert place(unit, explain(message + "\n")) == slot
