"""decode and encode, disassemble and assemble undo each other, for every form and for what is none.

RAWBPF_ROUND_TRIPS is how many random programs are tried: 20,000 where it is not set; a million take a quarter of
an hour. RAWBPF_SEED starts elsewhere.
"""

import os
import random

import pytest

from rawbpf.asm import Instruction, decode, disassemble, encode
from rawbpf.asm.disassembler import text
from rawbpf.asm.text import assemble

from .forms import FORMS, encoded, random_program

PROGRAMS = int(os.environ.get("RAWBPF_ROUND_TRIPS", 20000))
SEED = int(os.environ.get("RAWBPF_SEED", 1))


def check(data):
    made = decode(data, "little")
    assert encode(made, "little") == data
    big = encode(made, "big")
    assert decode(big, "big") == made and len(big) == len(data)
    return made


@pytest.mark.slow
def test_random_programs():
    used = set()
    for seed in range(SEED, SEED + PROGRAMS):
        rng = random.Random(seed)
        made = check(random_program(rng, rng.randrange(1, 9), used))
        listing = disassemble(made) if seed % 2 else "\n".join(map(text, made))
        assert assemble(listing, strict=False).instructions() == made, seed
    assert PROGRAMS < 20000 or used == {(form, mistake) for form in FORMS for mistake in (False, True)}


@pytest.mark.parametrize("mistake", [False, True], ids=["valid", "reserved fields"])
def test_every_form(mistake):
    for form in FORMS:
        for seed in range(3):
            data = encoded(random.Random(seed), form, mistake)
            made = check(data + bytes(8))
            lines = list(map(text, made))
            assert assemble("\n".join(lines), strict=False).instructions() == made, form
            if not mistake:
                assert not lines[0].startswith(".insn"), (form, lines[0])
                assert made[0].slots * 8 == len(data)


def test_no_text_says_two_things():
    """Two instructions with one text would be one that a listing does not determine."""
    seen = {}
    for form in FORMS:
        for seed in range(8):
            instruction = decode(encoded(random.Random(seed), form), "little")[0]
            assert seen.setdefault(text(instruction), instruction) == instruction


def test_what_has_no_form_is_spelled_out():
    assert text(Instruction(0xff, 15, 12, -1, -1)) == ".insn 0xff, 15, 12, -1, -1"
    assert text(Instruction(0x95, 0, 0, 5)) == ".insn 0x95, 0, 0, 5, 0"
    assert text(Instruction(0x18, 1, 7, 0, 5 << 32 | 6)) == ".insn 0x18, 1, 7, 0, 0x6, 0x5"
    assert text(Instruction(0xc3, 1, 2, 0, 0x20)) == ".insn 0xc3, 1, 2, 0, 32"
