"""Malformed input of any kind: one error that says where, no traceback, no hang.

RAWBPF_FUZZ is how many cases are tried (3,000 where it is not set), RAWBPF_SEED where they start. Each case is made by
one of `KINDS`, by its number alone; a failure names both.
"""

import os
import random
import signal

import pytest

from rawbpf.asm import AsmError, AsmSyntaxError, assemble, decode, disassemble, encode, write_object
from rawbpf.asm.formats import c_array, json_text, raw
from rawbpf.asm.verifierlog import instructions_of_log, program_of_log
from rawbpf.loader.uapi import MAP_TYPES
from rawbpf.tools.disasm import of_assembly
from rawbpf.tools.objects import read_object

from .forms import FORMS, encoded, junk, random_program
from .test_text import BPFTOOL, LOG, OBJDUMP, SPELLINGS

CASES = int(os.environ.get("RAWBPF_FUZZ", 3000))
SEED = int(os.environ.get("RAWBPF_SEED", 1))
LIMIT = 30          # seconds after which a case hangs

WORDS = """r0 r1 r10 r11 w2 R3 = += -= *= /= %= |= &= ^= <<= >>= s>>= s/= s%= == != < > <= >= s< s> & | * ( ) (u8 (u32 *)
 (s16 (u64 u32 u64 s8 [ ] , : # @ < > goto gotol may_goto if ll 0x5 5 -1 0xffffffffffffffffff 99999999999999999999 010
 09 0b1 1f 1b pc+3 pc-1 pc call callx exit lock skb skb[ map map[ map_fd[ func[ ksym[ kfunc[ ] [0]+8 atomic64_fetch_add(
 xchg_64( cmpxchg32_32( load_acquire( store_release( addr_space_cast( ld_pseudo be16 bswap64 le32 .map .equ .set .section
 .text .data .rodata .bss .license .include .kfunc .ksym .globl .weak .byte .quad .string .ascii .zero .align .insn .foo
 .p2align .BTF license .maps maps "a" "\\x" "unclosed 'a' '\\n' 'ab' ' // /* */ ; struct int void const * ... u64 hash array
 array_of_maps key= value= max_entries= flags= inner= = 4 8 a b c a: b: 1: 2: foo foo: é \u0661 \x00 \x1b \u2028 \t \\ $
 ` ~ - + % ^ ! ? { } 0: 3: (b7) (18) subprog#1: R_BPF_64_64 0000000000000000: b7 00 95""".split(" ")

PROGRAM = """.license "GPL"
.equ SIZE, 8 * (4 - 2) | 1 << 3
.map hits percpu_array key=4 value=8 max_entries=1
.map outer array_of_maps key=4, value=4, max_entries=2, inner=hits
.kfunc struct task_struct *bpf_task_acquire(struct task_struct *p)
.ksym int bpf_prog_active
.rodata
text: .asciz "hi \\x41\\n"
numbers: .short 1, SIZE, 'a' // comment
.align 8
.section tracepoint/syscalls/sys_enter_openat /* two
lines */
.globl main
main:
    *(u32 *)(r10 - 4) = 0
    r2 = r10 ; comment
    r2 += -4
    r1 = map[hits] ll
    r3 = text + 1 ll
1:  call bpf_map_lookup_elem
    if r0 == 0 goto out
    lock *(u64 *)(r0 +0) += r6
    r0 = cmpxchg_64(r1 + 0x8, r0, r2)
    w3 = atomic_fetch_or((u32 *)(r1 +8), w3)
    r1 = 0x123456789abcdef0 ll
    if w1 s> SIZE goto 1b
    call bpf_task_acquire
    r4 = ksym[bpf_prog_active] ll
    call f
    r2 = f ll
    may_goto out
    r1 = be16 r1
    r2 = (s8)r2
    r7 = addr_space_cast(r1, 0, 1)
out:
    exit
.text
f:  gotol done
    .insn 0xff, 1, 2, -3, 0x4
done: exit
"""


def mutated(rng, text):
    """A few characters or lines of a text changed."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        how = rng.randrange(7)
        if how == 0:
            text = text[:at] + text[at + rng.randrange(1, 6):]
        elif how == 1:
            text = text[:at] + rng.choice(WORDS) + text[at:]
        elif how == 2:
            text = text[:at] + chr(rng.choice((rng.randrange(128), rng.randrange(0x2100)))) + text[at + 1:]
        elif how == 3:
            lines = text.split("\n")
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            text = "\n".join(lines)
        elif how == 4:
            lines = text.split("\n")
            del lines[rng.randrange(len(lines))]
            text = "\n".join(lines)
        elif how == 5:
            text = text[:at]
        else:
            there = rng.randrange(len(text) + 1)
            text = text[:at] + text[there:there + rng.randrange(40)] + text[at:]
        text = text or "exit"
    return text


def words(rng):
    return "\n".join(" ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 10))) for _ in range(rng.randrange(1, 4)))


def source(rng):
    return mutated(rng, PROGRAM)


def spelling(rng):
    return mutated(rng, rng.choice(rng.choice(SPELLINGS)[1:]))


def listing(rng):
    return mutated(rng, rng.choice((LOG, OBJDUMP, BPFTOOL)))


def expression(rng):
    """Numbers, signs and parentheses, deep and long."""
    out = ".equ a, 1 << 62\n.equ b, a * a\nr1 = " if rng.random() < 0.2 else "r1 = "
    for _ in range(rng.choice((3, 10, 200, 3000))):
        out += rng.choice(("(", "(", ")", "-", "~", "+", "1", "a", "<<", "*", " ", "9" * rng.choice((1, 5, 50)), "/ 0",
                           "%", "'x'", "0x" + "f" * rng.choice((1, 20)), "|", "&", "^", ">>"))
    return out


def long(rng):
    """What is large: lines, numbers, names, one thing again and again."""
    count = rng.choice((100, 5000, 66000))
    return rng.choice(("r1 = " + "1" * count, "r1 = 0x" + "1" * count, "a" * count + ": exit", "goto " + "a" * count,
                       '.string "' + "a" * count, '.license "' + '\\"' * (count // 2), "'" * count, "(" * count,
                       "r1 = " + "-" * count, "a:" * (count // 2), "1:" * (count // 2), "1" * count + ": r1 = 5",
                       "/*" * (count // 2), "r1 = map[" + "x" * count + "] ll", ".insn " + "0, " * count, " " * count + "x",
                       "0000000000000000 <" + "x" * count + ">:", "int " + "a " * (count // 2) + "f(x):",
                       ".kfunc int " + "*" * count + "f(void)", ".kfunc int f(" + "int (*x)(" * (count // 9),
                       ".byte " + "1, " * (count // 3), ".zero 268435456\n" * 3, ".equ a, 1\n" + ".equ a, a + a\n" * 3,
                       ".ksym int v" + "[2]" * (count // 3), "0: (b7) " * (count // 8), "exit\n" * (count // 50) + "r1 = "))


def binary(rng):
    return rng.choice((b"".join(junk(rng) for _ in range(rng.randrange(1, 5))) + bytes(rng.randrange(9)),
                       bytes(rng.randrange(256) for _ in range(rng.randrange(60))),
                       random_program(rng, 4)[:rng.randrange(1, 40)], encoded(rng, rng.choice(list(FORMS)), True)))


GOOD = []


def damaged_object(rng):
    if not GOOD:
        GOOD.append(write_object(assemble(PROGRAM), MAP_TYPES))
    data = bytearray(GOOD[0])
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(4, len(data))] = rng.choice((0, 1, 0x7f, 0x80, 0xff, rng.randrange(256)))
    if rng.random() < 0.1:
        del data[rng.randrange(16, len(data)):]
    return bytes(data)


def all_of(text):
    """Everything that is done with a text."""
    for strict in (True, False):
        made = assemble(text, "f.s", strict=strict)
    for name in made.sections:
        made.link(name)
    json_text(made)
    again = assemble(of_assembly(made), strict=False)
    for name, section in made.sections.items():
        if section.instructions:
            assert again.sections[name].instructions == section.instructions
    code = write_object(made, MAP_TYPES, lambda name, kind: None)
    read_object(code, "f.o", show=True)
    c_array(made.instructions())
    raw(made.instructions())


def of_bytes(data):
    made = decode(data)
    assert encode(made) == data
    assert assemble(disassemble(made), strict=False).instructions() == made
    all_of(disassemble(made))


def of_log(text):
    instructions_of_log(text, "f.s")
    program_of_log(text, "f.s")


def of_object(data):
    of_assembly(read_object(data, "f.o", show=True))
    read_object(data, "f.o")


# how it is made, and what is done with it
KINDS = ((words, all_of), (source, all_of), (spelling, all_of), (listing, all_of), (listing, of_log), (expression, all_of),
         (long, all_of), (binary, of_bytes), (damaged_object, of_object))


class Hang(BaseException):
    pass


def hangs(*_):
    raise Hang


def one_error(error, given):
    """A line that says what is wrong; of a text also where, with the place below it."""
    message = str(error)
    if isinstance(error, AsmSyntaxError):
        first, shown, caret = message.split("\n")
        assert first == "f.s:%d:%d: %s" % (error.line, error.column, first.split(": ", 1)[1])
        lines = given.split("\n") if isinstance(given, str) else []
        assert not lines or 1 <= error.line <= len(lines) and error.column <= len(lines[error.line - 1]) + 1
        assert caret.strip().strip("~") == "^" and len(caret) <= len(shown) + 1
    else:
        assert message and "\n" not in message


@pytest.mark.slow
def test_malformed_input():
    before = signal.signal(signal.SIGALRM, hangs)
    refused = dict.fromkeys(range(len(KINDS)), 0)
    try:
        for seed in range(SEED, SEED + CASES):
            kind = seed % len(KINDS)
            make, use = KINDS[kind]
            given = make(random.Random(seed))
            signal.alarm(LIMIT)
            try:
                try:
                    use(given)
                except AsmError as error:
                    refused[kind] += 1
                    one_error(error, given)
            except BaseException as error:
                raise AssertionError("case %d of %s, %r: %r" % (seed, make.__name__, given[:300], error)) from error
            finally:
                signal.alarm(0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert all(refused.values())
