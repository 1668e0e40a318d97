"""Machine code of x86-64 against objdump: random bytes, and what a compiler makes."""

import platform
import random
import subprocess

import pytest

from rawbpf.asm.machinecode import decode
from rawbpf.asm.x86 import decode_one

from .objdump import aarch64_lines, lines

_LIKELY = bytes.fromhex("48 4c 41 49 66 f0 0f 44 65 c4 83 f7")


@pytest.mark.slow      # with the objdump of today: older ones word some things otherwise
def test_random_bytes(tmp_path):
    """What is decoded at all is decoded as objdump does, prefixes, ModRM, SIB and displacements included."""
    rng = random.Random(9)
    code = b"".join((bytes([rng.choice(_LIKELY)]) if rng.random() < 0.6 else b"") + rng.randbytes(rng.choice((3, 5, 7)))
                    for _ in range(20000))
    known = 0
    for offset, text in lines(code, tmp_path / "code"):
        found = decode_one(code, offset)
        if found.known:
            assert found.text == text, code[offset:offset + found.size].hex()
            known += 1
    assert known > 15000


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the compiler makes other machine code")
def test_compiled_code(tmp_path, compile_c):
    """All that gcc makes of integer code."""
    binary = compile_c(r"""
        #include <stdint.h>
        volatile uint64_t sink; uint64_t table[64]; _Atomic uint64_t shared; _Atomic uint32_t shared4;
        int64_t div(int64_t a, int64_t b) { return a / b + a % b; }
        uint32_t udiv(uint32_t a, uint32_t b) { return a / b * 7 + a % b; }
        uint64_t shifts(uint64_t a, int n) { return a << n ^ a >> (n + 3) ^ (int64_t)a >> n ^ (uint32_t)a << 5; }
        int narrow(int8_t *a, int16_t *b, uint8_t *c, uint16_t *d, int32_t *e) { *a = -1; *d = 0xabcd; *e = 70000;
            return *a + *b * *c - *d + *e; }
        uint64_t swaps(uint64_t a, uint32_t b) { return __builtin_bswap64(a) ^ __builtin_bswap32(b) ^ __builtin_bswap16(b); }
        uint64_t atomics(uint64_t v) { uint64_t old = shared += v; shared4 |= v; shared4--; 
            __atomic_exchange_n(&table[1], v, 5); __atomic_compare_exchange_n(&table[2], &old, v, 0, 5, 5); return old; }
        void walk(int n) { for (int i = 0; i < n; i++) { table[i & 63] += sink > 5 ? table[(i * 3) & 63] : i; sink = i; } }
        int main(int argc, char **argv) { walk(argc); return div(argc, 3) + udiv(argc, 9) + shifts(argc, argc) + swaps(1, 2)
            + atomics(argc); }
    """, "-O2", "-fcf-protection", name="integers")
    code = tmp_path / "text"
    subprocess.run(["objcopy", "-O", "binary", "--only-section=.text", binary, code], check=True)
    code = code.read_bytes()
    expected = lines(code, tmp_path / "code")
    found = {instruction.offset: instruction for instruction in decode(code, "x86_64")}
    assert len(expected) > 150
    for offset, text in expected:
        assert found[offset].known and found[offset].text == text


@pytest.mark.parametrize("hexed", ["", "48", "0f", "48 b8 01 02", "c4 e2", "f0"])
def test_the_end_of_the_code(hexed):
    code = bytes.fromhex(hexed)
    found = list(decode(code, "x86_64"))
    assert sum(instruction.size for instruction in found) == len(code)
    assert found == [] or not found[0].known


@pytest.mark.peer
def test_aarch64(tmp_path):
    """Random words, and all integer code of a large library: as objdump reads them."""
    from rawbpf.asm.aarch64 import decode_one as decode_word
    from rawbpf.elf.image import Image
    from tests.debian import Suite
    root = Suite("bookworm").root("arm64-gcc", ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"])
    rng = random.Random(3)
    classes = bytes.fromhex("1191d2f28bcbaa9b9ad35393f8f9b83878b939a9c8880854b43536d51ad692b2d4")
    words = b"".join(rng.randbytes(3) + bytes([rng.choice(classes)]) for _ in range(30000))
    library = Image.open(root / "usr/aarch64-linux-gnu/lib/libc.so.6")
    compiled = bytes(library.data(library.section(".text")))
    for code, least in ((words, 0.4), (compiled, 0.85)):
        known = 0
        for offset, expected in aarch64_lines(code, tmp_path / "code", root):
            found = decode_word(code, offset)
            if found.known:
                assert found.text == expected, code[offset:offset + 4].hex()
                known += 1
        assert known > least * len(code) / 4


def test_targets():
    code = bytes.fromhex("eb 02 90 90 e8 f7 ff ff ff 48 8b 05 04 00 00 00")
    found = list(decode(code, "x86_64"))
    assert [(i.mnemonic, i.target) for i in found] == [("jmp", 4), ("nop", None), ("nop", None), ("call", 0), ("mov", 20)]


def test_another_machine():
    with pytest.raises(ValueError, match="machine code of riscv64 is not supported"):
        list(decode(b"", "riscv64"))
