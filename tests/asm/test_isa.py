"""Every ALU and jump operation at the edge values: the kernel against an independent model of the ISA.

One program a group of operations: operands come from the map "data", so that nothing can be folded by
the verifier; results go to "out". The model is `machine.alu` and `machine.holds`, written after RFC 9669.
"""

import pytest

from rawbpf.asm import Instruction
from rawbpf.asm.builder import Builder, MapRef, Register, r0, r1, r2, r6, r7, u64

from .edges import EDGES, FEW_PAIRS, IMMEDIATES, PAIRS, groups, kernel_runner, model, release, value
from .machine import M64, alu, holds, signed, swap

OPERATIONS = {"+": 0x00, "-": 0x10, "*": 0x20, "/": 0x30, "|": 0x40, "&": 0x50, "<<": 0x60, ">>": 0x70, "%": 0x90,
              "^": 0xa0, "s>>": 0xc0}
SIGNED = {"s/": 0x30, "s%": 0x90}
JUMPS = {"==": 0x10, ">": 0x20, ">=": 0x30, "&": 0x40, "!=": 0x50, "s>": 0x60, "s>=": 0x70, "<": 0xa0, "<=": 0xb0,
         "s<": 0xc0, "s<=": 0xd0}


def alu_forms(v4):
    """(text of the operation, width, Instruction that does r1 op= r2 or an immediate, immediate or None)."""
    for bits, cls in ((64, 7), (32, 4)):
        for op, code in {**OPERATIONS, **(SIGNED if v4 else {})}.items():
            off = 1 if op in SIGNED else 0
            yield op, bits, Instruction(cls | code | 8, 1, 2, off), None
            for imm in IMMEDIATES:
                if op in ("/", "%", "s/", "s%") and imm == 0 or op in ("<<", ">>", "s>>") and not 0 <= imm < bits:
                    continue  # the verifier refuses those
                yield op, bits, Instruction(cls | code, 1, 0, off, imm), imm


def program(instructions):
    """Runs each of `instructions` on r1, r2 from data[0], data[8]; result i of r1 goes to out[8 * i]."""
    b = Builder()
    b.set(r6, MapRef("data", 0))
    b.set(r7, MapRef("out", 0))
    for i, instruction in enumerate(instructions):
        b.set(r1, u64[r6])
        b.set(r2, u64[r6 + 8])
        for each in instruction if isinstance(instruction, list) else [instruction]:
            b.raw(each)
        b.set(u64[r7 + 8 * i], r1)
    b.set(r0, 0)
    b.exit()
    return b.build()


def check_alu(runner, v4, pairs=PAIRS):
    for forms in groups(list(alu_forms(v4))):
        run = runner(program([form[2] for form in forms]))
        for a, b in pairs:
            out = run(a, b)
            for i, (op, bits, instruction, imm) in enumerate(forms):
                expected = alu(op, a, b if imm is None else imm & M64, bits)
                assert value(out, i) == expected, (op, bits, hex(a), hex(b), imm)


def jump_forms(jmp32):
    for bits, cls in ((64, 5), (32, 6)) if jmp32 else ((64, 5),):
        for op, code in JUMPS.items():
            yield op, bits, [Instruction(cls | code | 8, 1, 2, 2), Instruction(0xb7, 1), Instruction(0x05, 0, 0, 1),
                             Instruction(0xb7, 1, 0, 0, 1)], None
            for imm in IMMEDIATES:
                yield op, bits, [Instruction(cls | code, 1, 0, 2, imm), Instruction(0xb7, 1), Instruction(0x05, 0, 0, 1),
                                 Instruction(0xb7, 1, 0, 0, 1)], imm


def check_jumps(runner, pairs=PAIRS):
    for forms in groups(list(jump_forms(True)), 300):
        run = runner(program([form[2] for form in forms]))
        for a, b in pairs:
            out = run(a, b)
            for i, (op, bits, _, imm) in enumerate(forms):
                assert value(out, i) == holds(op, a, b if imm is None else imm & M64, bits), (op, bits, hex(a), hex(b), imm)


def unary_forms(v4):
    yield "neg", Instruction(0x87, 1), lambda a: -a & M64
    yield "neg32", Instruction(0x84, 1), lambda a: -a & 0xffffffff
    yield "mov", Instruction(0xbf, 1, 1), lambda a: a
    yield "mov32", Instruction(0xbc, 1, 1), lambda a: a & 0xffffffff
    for imm in IMMEDIATES:
        yield "mov k", Instruction(0xb7, 1, 0, 0, imm), lambda a, imm=imm: imm & M64
        yield "mov32 k", Instruction(0xb4, 1, 0, 0, imm), lambda a, imm=imm: imm & 0xffffffff
    for imm in EDGES:
        yield "lddw", Instruction(0x18, 1, 0, 0, imm & M64), lambda a, imm=imm: imm & M64
    for bits in (16, 32, 64):
        yield "le", Instruction(0xd4, 1, 0, 0, bits), lambda a, bits=bits: swap("le", a, bits)
        yield "be", Instruction(0xdc, 1, 0, 0, bits), lambda a, bits=bits: swap("be", a, bits)
        if v4:
            yield "bswap", Instruction(0xd7, 1, 0, 0, bits), lambda a, bits=bits: swap("be", a, bits)
    if v4:
        for bits in (8, 16, 32):
            yield "movsx", Instruction(0xbf, 1, 1, bits), lambda a, bits=bits: signed(a, bits) & M64
        for bits in (8, 16):
            yield "movsx32", Instruction(0xbc, 1, 1, bits), lambda a, bits=bits: signed(a, bits) & 0xffffffff


def check_unary(runner, v4):
    forms = list(unary_forms(v4))
    run = runner(program([form[1] for form in forms]))
    for a in EDGES:
        out = run(a & M64, 0)
        for i, (name, _, model) in enumerate(forms):
            assert value(out, i) == model(a & M64), (name, hex(a))


def test_the_models_agree():
    """The machine, which runs instructions, with the formulas that say what they are."""
    some = PAIRS[::37]
    check_alu(model, True, some)
    check_jumps(model, some)
    check_unary(model, True)


def test_known_results():
    """Results given by the document itself."""
    assert alu("/", 5, 0, 64) == 0 and alu("%", 5, 0, 64) == 5
    assert alu("s/", -13 & M64, 3, 64) == -4 & M64 and alu("s%", -13 & M64, 3, 64) == -1 & M64
    assert alu("s/", 1 << 63, M64, 64) == 1 << 63 and alu("s%", 1 << 63, M64, 64) == 0
    assert alu("s/", 1 << 31, M64, 32) == 1 << 31
    assert alu("<<", 1, 65, 64) == 2 and alu("s>>", 1 << 31, 31, 32) == 0xffffffff
    assert holds("s<", M64, 0, 64) and not holds("<", M64, 0, 64)


def check_everything(pairs):
    check_alu(kernel_runner(), release() >= (6, 6), pairs)
    check_jumps(kernel_runner(), pairs)
    check_unary(kernel_runner(), release() >= (6, 6))


@pytest.mark.root
def test_this_kernel():
    check_everything(FEW_PAIRS[::17])


@pytest.mark.kernel
@pytest.mark.slow
def test_every_kernel():
    check_everything(FEW_PAIRS)


@pytest.mark.root
@pytest.mark.slow
def test_all_pairs():
    check_everything(PAIRS)


@pytest.mark.kernel
def test_what_the_verifier_takes_for_no_operation():
    """Immediates that it refuses, which is why no value is compared: division by 0, counts past the width."""
    from rawbpf.loader import VerifierError
    from rawbpf.loader.program import Program
    for code, imm, words in ((0x37, 0, "div by zero"), (0x94, 0, "div by zero"), (0x67, 64, "invalid shift"),
                             (0x64, 32, "invalid shift"), (0xc7, -1, "invalid shift")):
        with pytest.raises(VerifierError, match=words):
            Program.load("socket_filter", [Instruction(0xb7), Instruction(code, 0, 0, 0, imm), Instruction(0x95)])
