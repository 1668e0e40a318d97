"""Jumps that do not fit 16 bits."""

import pytest

from rawbpf.asm import Instruction, compile_function, ir
from rawbpf.asm.instruction import slot_numbers


def follow(instructions, take):
    """The instructions executed, jumps left out; a conditional jump is taken if `take(instruction)`."""
    index = dict(zip(slot_numbers(instructions), range(len(instructions))))
    slots = slot_numbers(instructions)
    i, seen = 0, []
    while True:
        x = instructions[i]
        if x.code == 0x95:
            return seen
        if x.code & 7 in (5, 6):
            off = x.imm if x.code == 0x06 else x.off
            if x.code in (0x05, 0x06) or take(x):
                i = index[slots[i] + 1 + off]
                continue
        else:
            seen.append(x)
        i += 1


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["v3", "v4"])
def test_far_jumps(cpu):
    n, few = 33000, 50
    f = ir.Function("main")
    base = f.map_value("m")
    near, far, end = f.block("near"), f.block("far"), f.block("end")
    x, y = f.load(base, 0, 8), f.load(base, 8, 8)
    f.branch("==", x, 7, far, near)
    f.position(near)
    for i in range(n):
        f.store(base, 32 + 4 * (i % 4000), i, 4)
        f.call("bpf_trace_printk", 0, 0) if i % 4000 == 3999 else None     # it may read what was stored
    f.branch("==", y, 8, end, far)
    f.position(far)
    for i in range(few):
        f.store(base, 20000 + 4 * i, i, 4)
    f.jump(end)
    f.position(end)
    f.ret(0)
    code = compile_function(f, cpu).instructions
    stores = [x for x in code if x.code == 0x62]
    first, second = [x for x in stores if x.off < 20000], [x for x in stores if x.off >= 20000]
    assert [x.imm for x in first] == list(range(n)) and [x.imm for x in second] == list(range(few))
    assert all(-0x8000 <= x.off < 0x8000 for x in code)

    def run(*holding):
        seen = follow(code, lambda x: (x.imm in holding) == (x.code == 0x15))
        return [x for x in seen if x.code == 0x62]

    assert run() == first + second
    assert run(7) == second
    assert run(8) == first


@pytest.mark.parametrize("level, count, size", [(3, 1200, 40), (4, 4000, 12)])
def test_many_far_jumps_are_mended_together(monkeypatch, level, count, size):
    """Thousands of tests, each of which goes to a place of its own behind all and back: the jumps are looked through a few times, and
    not once for each of them."""
    from types import SimpleNamespace

    from rawbpf.asm import emit
    from rawbpf.asm.opcodes import BPF_JMP, JA
    code, starts = [], {}
    for i in range(count):
        code.append(emit.Jump(BPF_JMP | 0x10, 1, 0, i, ("away", i)))
        code += [Instruction(0xb7, 2, 0, 0, i)] * size
        starts["back", i] = len(code)
    code.append(Instruction(0x95))
    for i in range(count):
        starts["away", i] = len(code)
        code += [Instruction(0xb7, 3, 0, 0, i), emit.Jump(JA, 0, 0, 0, ("back", i))]
    rounds, slots = [], emit._slots
    monkeypatch.setattr(emit, "_slots", lambda code: rounds.append(1) or slots(code))
    made, spans, first = emit.link({"main": SimpleNamespace(code=code, spans=[None] * len(code), starts=starts)}, level)
    assert len(rounds) <= 10 and len(made) == len(spans) < 3 * len(code) and first == {"main": 0}
    assert all(-0x8000 <= x.off < 0x8000 for x in made)
    taken = {0, 1, 7, count // 2, count - 1}
    seen = follow(made, lambda x: x.imm in taken)
    assert [x.imm for x in seen if x.dst == 3] == sorted(taken)
    assert [x.imm for x in seen if x.dst == 2] == [i for i in range(count) if i not in taken for _ in range(size)]
