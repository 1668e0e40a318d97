"""Beside LLVM 21 (Debian's): our disassembly says what llvm-objdump's does, and its text assembles to its bytes.

Every form of an instruction, what LLVM compiles random functions to, what clang compiles C to.
"""

import random
import re

import pytest

from rawbpf.asm import AsmError, Instruction, decode, encode, slot_numbers
from rawbpf.asm.disassembler import text
from rawbpf.asm.elfwriter import ALLOC, EXEC, FUNC, GLOBAL, PROGBITS, ElfWriter
from rawbpf.asm.llvm import compile_llvm, llvm_ir
from rawbpf.asm.text import assemble
from rawbpf.elf.image import Image
from tests.bpfcc import FIXTURES
from tests.llvm21 import llvm

from .forms import LLVMS, encoded
from .generate import program
from .llvm_text import listing, normal

pytestmark = pytest.mark.peer


def compare(path, names=None):
    """Compares the code sections of an object -> how many instructions."""
    image = Image.open(str(path))
    raw = listing(llvm("llvm-objdump", "-d", "--no-show-raw-insn", "--mcpu=v4", path).stdout)
    full = llvm("llvm-objdump", "-d", "--mcpu=v4", path).stdout
    seen, known = 0, set()
    for section in image.sections:
        if section.type != PROGBITS or not section.flags & EXEC or not section.size:
            continue
        data = bytes(image.data(section))
        made = decode(data, "little")
        slots = slot_numbers(made)[:-1]
        assert list(raw[section.name]) == slots
        for slot, instruction in zip(slots, made):
            line = raw[section.name][slot]
            seen += 1
            if (line, instruction) not in known:
                known.add((line, instruction))
                assert normal(text(instruction)) == normal(line), (names and names[slot], line, instruction)
                check_text(line, instruction)
        part = full[full.index("Disassembly of section %s:" % section.name):]
        part = re.split(r"\n(?=Disassembly of section )", part)[0]
        assert encode(assemble(part, strict=False).sections[section.name].instructions) == data
    return seen


def check_text(line, instruction):
    """LLVM's line assembles to its instruction where the text determines it."""
    code, _, src, _, imm, _ = instruction
    if code == 0x85 and src:                    # it prints calls of functions and of kfuncs as of helpers
        return
    if code in (0x40, 0x48, 0x50) and imm:      # nor the offset in skb[r1 + 5]
        return
    if code == 0x18 and src and imm >> 32:      # nor the upper half
        return
    assert assemble(line, strict=False).instructions() == [instruction], line


def object_of(data, path):
    file = ElfWriter()
    section = file.section(".text", PROGBITS, ALLOC | EXEC, data, 8)
    file.symbol("f", GLOBAL, FUNC, section, 0, len(data))
    path.write_bytes(file.bytes())
    return path


def test_every_form(tmp_path):
    rng, data, names = random.Random(21), b"", {}
    for form in LLVMS:
        for _ in range(20):
            names[len(data) // 8] = form
            data += encoded(rng, form)
    assert compare(object_of(data, tmp_path / "x.o"), names) == 20 * len(LLVMS)


@pytest.mark.parametrize("cpu", ["v1", "v2", "v3", "v4"])
def test_random_functions(tmp_path, cpu):
    source, made, seen = tmp_path / "p.ll", tmp_path / "p.o", 0
    for seed in range(16 if cpu in ("v3", "v4") else 40):
        function = program(seed, size=20, atomics=cpu in ("v3", "v4"))
        source.write_text(llvm_ir(function, cpu))
        llvm("opt", "-O2", source, "-o", source.with_suffix(".bc"))
        llvm("llc", "-O2", "-march=bpf", "-mcpu=" + cpu, "-filetype=obj", source.with_suffix(".bc"), "-o", made)
        seen += compare(made)
    assert seen > 300


C = r"""
typedef signed char s8; typedef short s16; typedef int s32; typedef long long s64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
#define noinline __attribute__((noinline))
s64 divide(s64 a, s64 b) { return a / b + (a % b) * 3; }
s32 divide32(s32 a, s32 b) { return a / b - a % b; }
s64 extend(s8 *a, s16 *b, s32 *c) { return *a + *b + (s64)*c; }
s64 narrow(s64 a) { return (s64)(s8)a ^ (s64)(s16)(a >> 8) ^ (s64)(s32)(a >> 16); }
s32 narrow32(s32 a) { return (s8)a * (s16)(a >> 3); }
u64 swaps(u64 a, u32 b, u16 c) { return __builtin_bswap64(a) + __builtin_bswap32(b) + __builtin_bswap16(c); }
u64 order(u64 *a) { return __atomic_load_n(a, __ATOMIC_ACQUIRE); }
u8 order8(u8 *a, u8 b) { u8 x = __atomic_load_n(a, __ATOMIC_ACQUIRE); __atomic_store_n(a, b, __ATOMIC_RELEASE); return x; }
void order16(u16 *a, u32 *c, u64 *d) {
    __atomic_store_n(a, 1, __ATOMIC_RELEASE); __atomic_store_n(c, 2, __ATOMIC_RELEASE);
    __atomic_store_n(d, 3, __ATOMIC_RELEASE); }
u64 atomics(u64 *a, u32 *b, u64 c) {
    __sync_fetch_and_add(a, 5); __sync_fetch_and_or(b, c);
    c += __sync_fetch_and_and(a, c) + __sync_fetch_and_xor(b, 7) + __sync_fetch_and_or(a, 1) + __sync_fetch_and_add(b, c);
    c ^= __sync_lock_test_and_set(a, c) ^ __sync_lock_test_and_set(b, 3);
    return c + __sync_val_compare_and_swap(a, 5, c) + __sync_val_compare_and_swap(b, 9, 2); }
int compares(s64 a, u64 b, s32 c, u32 d) {
    int n = 0;
    if (a < -5) n += 1; if (b > 0xfffffff0) n += 2; if (c <= (s32)d) n *= 3; if (d >= 0x80000001) n ^= 9;
    if (a & 0x7000) n -= 5; if (c == -1) n += 7; if (b < (u64)a) n <<= 3; return n; }
u64 arena(u64 __attribute__((address_space(1))) *p, u64 __attribute__((address_space(1))) **out) {
    *out = p + 1; return *p + 7; }
extern long far(long);
long wide(long a) { return far(a) + 0x123456789abcdefLL; }
static noinline int helper(int x) { return x * 37; }
int calls(int x) { return helper(x) + ((long (*)(void))5)() + ((long (*)(void *))6)(&x); }
u32 immediate(u8 *p) { p[0] = 0xff; *(u16 *)(p + 2) = 0x8000; *(u32 *)(p + 4) = 0x80000000; *(u64 *)(p + 8) = -7; return 0; }
"""


@pytest.mark.parametrize("flags", ["-O2 -mcpu=v4", "-O1 -mcpu=v4", "-O2 -mcpu=v3", "-O2 -mcpu=v1"])
def test_c(tmp_path, flags):
    words = flags.split()
    source, made = tmp_path / "p.c", tmp_path / "p.o"
    # before v3 there are no atomics that fetch, before v4 no ordered ones and no signed division
    wanted = C if "v4" in flags else re.sub(r"(?ms)^(s64|s32|u64|u8|void) (divide|divide32|order\w*|atomics|arena)\(.*?\}\n", "", C)
    source.write_text(wanted)
    llvm("clang", "-target", "bpf", "-w", "-c", *words, source, "-o", made)
    assert compare(made) > 80


@pytest.mark.parametrize("name", ["core.c", "features.c", "symbols.c"])
@pytest.mark.parametrize("cpu", ["v2", "v3", "v4"])
def test_fixtures(tmp_path, name, cpu):
    made = tmp_path / "p.o"
    llvm("clang", "-target", "bpf", "-mcpu=" + cpu, "-g", "-O2", "-nostdinc", "-w", "-I", FIXTURES, "-c",
         FIXTURES / name, "-o", made)
    assert compare(made) > 10


def test_the_long_jump(tmp_path):
    source, made = tmp_path / "p.s", tmp_path / "p.o"
    source.write_text("if r1 == 0 goto near\nnear: gotol far\n" + "r0 = 0\n" * 40000 + "far: exit\n")
    llvm("llvm-mc", "-triple=bpfel", "-mcpu=v4", "-filetype=obj", source, "-o", made)
    assert compare(made) == 40003
    assert assemble(source.read_text()).instructions()[1] == Instruction(0x06, 0, 0, 0, 40000)


def test_what_llvms_assembler_makes_of_our_text(tmp_path):
    """Where both take a line, they mean the same by it."""
    source, made = tmp_path / "p.s", tmp_path / "p.o"
    rng, expected, lines = random.Random(5), b"", []
    theirs = re.compile(r"call|atomic|acquire|release|\[|goto pc|gotol|lock \*\(u32|ld_pseudo")
    for form in LLVMS:
        for _ in range(10):
            data = encoded(rng, form)
            instruction = decode(data, "little")[0]
            if not theirs.search(text(instruction)):
                lines.append(text(instruction))
                expected += data
    source.write_text("\n".join(lines) + "\n")
    llvm("llvm-mc", "-triple=bpfel", "-mcpu=v4", "-filetype=obj", source, "-o", made)
    image = Image.open(str(made))
    assert bytes(image.data(image.section(".text"))) == expected


@pytest.mark.parametrize("cpu", ["v2", "v3", "v4"])
def test_llvmlite(tmp_path, cpu):
    """The LLVM of the package llvmlite: its objects beside llvm-objdump, its assembly text beside llvm-mc."""
    seen = 0
    for seed in range(12):
        function = program(seed, size=16, atomics=cpu != "v2")
        try:
            data, theirs = compile_llvm(llvm_ir(function, cpu), cpu)
        except AsmError as error:
            assert "stack limit" in str(error)
            continue
        (tmp_path / "p.o").write_bytes(data)
        seen += compare(tmp_path / "p.o")
        (tmp_path / "p.s").write_text(theirs)
        llvm("llvm-mc", "-triple=bpfel", "-mcpu=" + cpu, "-filetype=obj", tmp_path / "p.s", "-o", tmp_path / "q.o")
        image = Image.open(str(tmp_path / "q.o"))
        code = decode(bytes(image.data(image.section(".text"))), "little")
        maps = "".join(".ksym %s\n" % name for name in sorted(set(re.findall(r"= ([a-z]\w*\.[\w.]+) ll", theirs))))
        made = assemble(maps + theirs, strict=False).sections[".text"].instructions
        assert len(made) == len(code)
        for ours, instruction in zip(made, code):
            # calls and addresses of symbols are relocations in the object
            assert ours == instruction or instruction.code in (0x18, 0x85) and ours[:2] == instruction[:2]
    assert seen > 300
