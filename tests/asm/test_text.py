"""The assembler and the disassembler: what other tools print assembles, and a round trip changes nothing.

Expected encodings are written out by hand from the instruction set document; texts are those that
llvm-objdump 21 and the verifier's log were seen to print.
"""

import random

import pytest

from rawbpf.asm import Instruction, compile_function, decode, disassemble, encode
from rawbpf.asm import directives
from rawbpf.asm.disassembler import text
from rawbpf.asm.errors import AsmError, AsmSyntaxError
from rawbpf.asm.instruction import FuncRef, KsymRef, MapRef
from rawbpf.asm.fast import fast
from rawbpf.asm.statement import Statement
from rawbpf.asm.text import assemble, assemble_files, instructions
from rawbpf.asm.tokens import Unexpected
from rawbpf.asm.verifierlog import instructions_of_log

from .forms import FORMS, encoded, random_program
from .generate import program

# bytes of one instruction, then every spelling of it (all but the last: ours) that must assemble to them
SPELLINGS = [
    ("04 00 00 00 fd ff ff ff", "w0 += -0x3", "w0 += -3"),
    ("07 02 00 00 fc ff ff ff", "r2 += -0x4", "r2 += -4", "r2+=-4"),
    ("72 01 00 00 ff ff ff ff", "*(u8 *)(r1 + 0x0) = -0x1", "*(u8 *)(r1 +0) = -1", "*(u8*)(r1)=-1"),
    ("15 00 03 00 ff ff ff ff", "if r0 == -0x1 goto +0x3 <LBB0_1>", "if r0 == 0xffffffff goto pc+3", "if r0 == -1, goto 3"),
    ("66 01 00 00 33 17 1d e2", "if w1 s> 0xe21d1733 goto pc+0"),
    ("05 00 03 00 00 00 00 00", "goto +0x3 <x>", "goto pc+3", "goto 3", "goto +3"),
    ("06 00 00 00 fd ff ff ff", "gotol -0x3", "gotol pc-3"),
    ("e5 00 01 00 00 00 00 00", "may_goto +0x1", "may_goto pc+1"),
    ("61 21 00 00 00 00 00 00", "w1 = *(u32 *)(r2 + 0x0)", "r1 = *(u32 *)(r2 +0)", "r1 = *(u32 *)(r2)"),
    ("73 21 00 00 00 00 00 00", "*(u8 *)(r1 + 0x0) = w2", "*(u8 *)(r1 +0) = r2"),
    ("7b 1a f8 ff 00 00 00 00", "*(u64 *)(r10 - 0x8) = r1", "*(u64 *)(r10 -8) = r1", "*(u64 *)(r10 + -8) = r1",
     "*(u64 *)(r10 - 4 * 2) = r1"),
    ("18 01 00 00 05 00 00 00 00 00 00 00 00 00 00 00", "r1 = 0x5 ll", "r1 = 5 ll"),
    ("18 01 00 00 ff ff ff ff 00 00 00 00 ff ff ff ff", "r1 = -0x1 ll", "r1 = 0xffffffffffffffff ll"),
    ("18 11 00 00 03 00 00 00 00 00 00 00 00 00 00 00", "ld_pseudo r1, 0x1, 0x3", "r1 = map_fd[3] ll"),
    ("18 21 00 00 03 00 00 00 00 00 00 00 08 00 00 00", "r1 = map_fd[3][0]+8 ll"),
    ("18 42 00 00 03 00 00 00 00 00 00 00 00 00 00 00", "ld_pseudo r2, 0x4, 0x3", "r2 = func[pc+3] ll", "r2 = subprog[+3]"),
    ("85 00 00 00 05 00 00 00", "call 0x5", "call bpf_ktime_get_ns#5", "call bpf_ktime_get_ns"),
    ("85 00 00 00 0f 27 00 00", "call unknown#9999", "call 9999"),
    ("85 00 00 00 00 00 00 00", "call bpf_unspec#0"),
    ("85 10 00 00 09 00 00 00", "call pc+9", "call pc+0x9"),
    ("85 20 00 00 c3 ff 00 00", "call bpf_rdonly_cast#65475", "call kfunc#65475"),
    ("c3 21 00 00 40 00 00 00", "lock *(u32 *)(r1 + 0x0) |= w2", "lock *(u32 *)(r1 +0) |= r2"),
    ("db 21 08 00 01 00 00 00", "r2 = atomic_fetch_add((u64 *)(r1 + 0x8), r2)", "r2 = atomic64_fetch_add((u64 *)(r1 +8), r2)"),
    ("c3 21 08 00 01 00 00 00", "w2 = atomic_fetch_add((u32 *)(r1 + 0x8), w2)", "r2 = atomic_fetch_add((u32 *)(r1 +8), r2)"),
    ("db 21 08 00 e1 00 00 00", "r2 = xchg_64(r1 + 0x8, r2)", "r2 = atomic64_xchg((u64 *)(r1 +8), r2)"),
    ("c3 21 08 00 e1 00 00 00", "w2 = xchg32_32(r1 + 0x8, w2)", "r2 = atomic_xchg((u32 *)(r1 +8), r2)"),
    ("db 21 08 00 f1 00 00 00", "r0 = cmpxchg_64(r1 + 0x8, r0, r2)", "r0 = atomic64_cmpxchg((u64 *)(r1 +8), r0, r2)"),
    ("c3 21 08 00 f1 00 00 00", "w0 = cmpxchg32_32(r1 + 0x8, w0, w2)", "r0 = atomic_cmpxchg((u32 *)(r1 +8), r0, r2)"),
    ("d3 10 00 00 00 01 00 00", "w0 = load_acquire((u8 *)(r1 + 0x0))", "r0 = load_acquire((u8 *)(r1 +0))"),
    ("d3 21 00 00 10 01 00 00", "store_release((u8 *)(r1 + 0x0), w2)", "store_release((u8 *)(r1 +0), r2)"),
    ("50 10 00 00 05 00 00 00", "r0 = *(u8 *)skb[r1 + 5]"),
    ("50 10 00 00 fb ff ff ff", "r0 = *(u8 *)skb[r1 + -5]"),
    ("50 10 00 00 00 00 00 00", "r0 = *(u8 *)skb[r1]", "r0 = *(u8 *)skb[r1 + 0]"),
    ("20 00 00 00 0c 00 00 00", "r0 = *(u32 *)skb[0xc]", "r0 = *(u32 *)skb[12]"),
    ("bf 12 01 00 01 00 00 00", "addr_space_cast", "r2 = addr_space_cast(r1, 0x0, 0x1)", "r2 = addr_space_cast(r1, 0, 1)"),
    ("bf 12 ff ff 00 00 00 00", "r2 = &(void __percpu *)(r1)"),
    ("87 01 00 00 00 00 00 00", "r1 = -r1"),
    ("dc 01 00 00 10 00 00 00", "r1 = be16 r1"),
    ("d7 01 00 00 40 00 00 00", "r1 = bswap64 r1"),
    ("bf 21 08 00 00 00 00 00", "r1 = (s8)r2", "r1 = ( s8 ) r2"),
    ("bc 21 10 00 00 00 00 00", "w1 = (s16)w2"),
    ("3f 21 01 00 00 00 00 00", "r1 s/= r2", "r1 s /= r2"),
    ("94 01 01 00 07 00 00 00", "w1 s%= 7"),
    ("c7 01 00 00 03 00 00 00", "r1 s>>= 0x3", "r1 s >>= 3"),
    ("81 21 04 00 00 00 00 00", "r1 = *(s32 *)(r2 + 0x4)", "r1 = *(s32 *)(r2 +4)"),
    ("4d 21 02 00 00 00 00 00", "if r1 & r2 goto +0x2", "if r1 & r2 goto pc+2"),
    ("8d 01 00 00 00 00 00 00", "callx r1", "call r1"),
    ("0d 01 00 00 00 00 00 00", "gotox r1"),
    ("95 00 00 00 00 00 00 00", "exit", "EXIT"),
    ("b7 01 00 00 08 00 00 00", "r1 = 010", "r1 = 4 + 4", "r1 = 0b1000", "R1 = 8", "r1 = 8"),
    ("b7 01 00 00 61 00 00 00", "r1 = 'a'", "r1 = 97"),
    ("b7 00 00 00 ff ff ff ff", "r0 = 0xffffffff", "r0 = -1"),
]


@pytest.mark.parametrize("row", SPELLINGS, ids=lambda row: row[-1])
def test_every_spelling(row):
    data = bytes.fromhex(row[0])
    for spelling in row[1:]:
        if spelling != "addr_space_cast":
            assert encode(assemble(spelling, strict=False).instructions(), "little") == data, spelling
    made, = decode(data, "little")
    assert assemble(text(made), strict=False).instructions() == [made]


LOG = """
func#0 @0
0: R1=ctx() R10=fp0
; int x = 5; @ prog.c:3
0: (b7) r1 = 5                        ; R1_w=5
1: (18) r2 = 0x5                      ; R2_w=5
3: (85) call bpf_ktime_get_ns#5       ; R0_w=scalar()
4: (15) if r0 == 0x7 goto pc+1        ; R0=scalar()
5: (bf) r0 = r1
6: (95) exit
"""

OBJDUMP = """
prog.o:	file format elf64-bpf

Disassembly of section socket:

0000000000000000 <count>:
       0:	b7 01 00 00 05 00 00 00	r1 = 0x5
       1:	18 02 00 00 05 00 00 00 00 00 00 00 00 00 00 00	r2 = 0x5 ll
       3:	85 00 00 00 05 00 00 00	call 0x5
       4:	15 00 01 00 07 00 00 00	if r0 == 0x7 goto +0x1 <LBB0_2>
       5:	bf 10 00 00 00 00 00 00	r0 = r1

0000000000000030 <LBB0_2>:
       6:	95 00 00 00 00 00 00 00	exit
"""

BPFTOOL = """
int count(struct __sk_buff * skb):
; int x = 5;
   0: (b7) r1 = 5
   1: (18) r2 = 0x5
   3: (85) call bpf_ktime_get_ns#5
   4: (15) if r0 == 0x7 goto pc+1
   5: (bf) r0 = r1
   6: (95) exit
"""

SAME = bytes.fromhex("b701000005000000 18020000050000000000000000000000 8500000005000000 1500010007000000"
                     "bf10000000000000 9500000000000000")


@pytest.mark.parametrize("listing", [OBJDUMP, BPFTOOL, LOG.replace("func#0 @0\n0: R1=ctx() R10=fp0\n", "")],
                         ids=["objdump", "bpftool", "log"])
def test_whole_listings(listing):
    assert encode(instructions(listing), "little") == SAME


def test_file(tmp_path):
    (tmp_path / "key.inc").write_text(".equ KEY, -4\n")
    (tmp_path / "main.s").write_text("""
; count calls per CPU
.include "key.inc"
.license "GPL"
.map hits percpu_array key=4 value=8 max_entries=1
.rodata
hello: .string "hi\\n"
.section tracepoint/syscalls/sys_enter_openat
count:
    *(u32 *)(r10 + KEY) = 0     // the key
    r2 = r10                    # comment
    r2 += KEY                   /* and
                                   another */
    r1 = map[hits] ll
    call bpf_map_lookup_elem
    if r0 == 0 goto out
    r3 = hello + 1 ll
    call twice
out: r0 = 0
    exit
.text
twice: w0 = w1
    w0 <<= 1
    exit
""")
    made = assemble_files([str(tmp_path / "main.s")])
    assert made.license == "GPL"
    assert made.maps["hits"][:6] == ("hits", "percpu_array", 4, 8, 1, 0)
    assert bytes(made.data[".rodata"].content) == b"hi\n\0"
    code, lines, functions = made.link()
    assert functions == {"count": 0, "twice": 10}
    assert code == [
        Instruction(0x62, 10, 0, -4, 0), Instruction(0xbf, 2, 10), Instruction(0x07, 2, 0, 0, -4),
        Instruction(0x18, 1, 1, 0, 0, MapRef("hits")), Instruction(0x85, 0, 0, 0, 1), Instruction(0x15, 0, 0, 3),
        Instruction(0x18, 3, 2, 0, 0, MapRef(".rodata", 1)), Instruction(0x85, 0, 1, 0, 2), Instruction(0xb7),
        Instruction(0x95), Instruction(0xbc, 0, 1), Instruction(0x64, 0, 0, 0, 1), Instruction(0x95)]
    assert [line[1] for line in lines][:3] == [10, 11, 12]


# text, line, column of the caret, what the message must say
ERRORS = [
    ("r1 = *(u24 *)(r10 - 8)", 1, 8, "u8, u16, u32, u64"),
    ("r0 = 0\n  r11 = 5\nexit", 2, 3, "r0 to r10"),
    ("w1 = r2", 1, 6, "w0 to w10"),
    ("r1 += 0x1ffffffff", 1, 7, "must be -2147483648 to 4294967295"),
    ("r1 = 0xffff888182932400", 1, 6, "` ll`"),
    ("lock *(u8 *)(r1+0) += r2", 1, 8, "u32 or u64"),
    ("r1 = *(u64 *)(r2 + 40000)", 1, 18, "must be -32768 to 32767"),
    ("if r1 = 5 goto pc+1", 1, 7, "expected one of"),
    ("if r1 == 5 goto nowhere\nexit", 1, 17, "no label nowhere"),
    ("call bpf_map_lokup_elem", 1, 6, "did you mean bpf_map_lookup_elem"),
    ("goto pc+5\nexit", 1, 1, "outside the section's 2 slots"),
    ("goto pc+1\nr1 = 5 ll\nexit", 1, 1, "second half"),
    ("call pc+1\nr1 = 5 ll\nexit", 1, 1, "second half"),
    ("gotol pc-2\nr1 = 5 ll\nexit", 1, 1, "outside the section's 4 slots"),
    ("may_goto pc+1\nr1 = 5 ll\nexit", 1, 1, "second half"),
    ("r1 = func[pc+0] ll\nexit", 1, 1, "second half"),
    ("if w1 s> 3 goto pc+1\nr1 = 5 ll\nexit", 1, 1, "second half"),
    ("a:\nr0 = 0\na:\nexit", 3, 1, "already defined"),
    ("r1 = ", 1, 6, "the line ends"),
    ("exit exit", 1, 6, "nothing more"),
    ("foo r1", 1, 1, "expected an instruction"),
    (".mpa x hash", 1, 1, "did you mean .map"),
    (".map x hash key=4 value=8 max=1", 1, 27, "expected key, value"),
    (".data\nr1 = 5", 2, 1, "data section"),
    ("r0 = r1 $", 1, 9, "nothing more"),
    ("3: (b7) r0 = 0\n5: (95) exit", 2, 1, "missing"),
    ("0: (18) r0 = r1", 1, 9, "opcode in parentheses"),
    ("r1 = -r2", 1, 7, "one register"),
    ("r1 = be16 r2", 1, 11, "one register"),
    ("r2 = atomic64_xchg((u64 *)(r1 +8), r3)", 1, 36, "one register"),
    ("/* never\nclosed", 2, 1, "never closed"),
    ("r0 = 0\ngoto end\nend:", 2, 6, "end of the section"),
    ("call f\nexit\nf:", 1, 6, "end of the section, where nothing is"),
    ("r1 = f ll\nexit\n.section x\nexit\nf:", 1, 6, "end of the section, where nothing is"),
    (".section a\ncall f\nexit\n.section b\nf: exit", 2, 1, "not part of this program"),
    ("lock *(s32 *)(r1 +0) += r2", 1, 8, "lock: expected u32 or u64"),
    ("w2 = atomic_fetch_add((u64 *)(r1 +0), w2)", 1, 1, "64 bits do not fit a w register"),
    ("r2 = atomic64_xchg((u32 *)(r1 +0), r2)", 1, 21, "expected u64"),
    ("w1 = be16 w1", 1, 6, "byte swaps are of an r register: r1 = be16 r1"),
    ("w1 = 5 ll", 1, 6, "needs an r register"),
    (".equ r1, 5", 1, 6, "has a meaning of its own"),
    ("r1 = nothing + 1", 1, 17, "behind the address of a symbol"),
    ("r1 += nothing", 1, 7, "no .equ says what nothing is"),
    ('.rodata\n.string "abc', 2, 9, "opened and not closed"),
    ("r1 = 'ab'", 1, 6, "one character"),
    ("r1 = " + "(" * 40, 1, 38, "more than 32 signs and parentheses"),
    ("r1 = 1" + " << 60" * 3, 1, 23, "more than 128 bits"),
    ("r1 = " + "9" * 300, 1, 6, "a number of 300 digits"),
    ("exit" + " " * 70000 + "x", 1, 65537, "a line of more than 65536 characters"),
    ('.rodata\n.string "\\q"', 2, 1, "unknown escape"),
    (".rodata\n.zero 1 << 29", 2, 7, "must be 0 to 268435456"),
    ("r1 = map_fd[3][1] ll", 1, 16, "only the first value has an address"),
    (".license", 1, 9, "expected the name of a license"),
    ("0: (18) r1 = 0x5\n1: (95) exit", 2, 1, "slot 1 comes again"),
]


@pytest.mark.parametrize("wrong,line,column,words", ERRORS, ids=[e[0][:40] for e in ERRORS])
def test_errors(wrong, line, column, words):
    with pytest.raises(AsmSyntaxError) as caught:
        made = assemble(wrong, "f.s")
        made.link(next(iter(made.sections)))
    error = caught.value
    assert (error.line, error.column) == (line, column), str(error)
    assert words in error.reason, error.reason
    first, shown, caret = str(error).split("\n")
    assert first.startswith("f.s:%d:%d: " % (line, column))
    assert caret.index("^") == column - 1 - (max(column - 121, 0) if len(wrong) > 240 else 0)


def test_includes_that_include_themselves(tmp_path):
    (tmp_path / "a.s").write_text('.include "b.s"\n')
    (tmp_path / "b.s").write_text('r0 = 0\n.include "a.s"\n')
    with pytest.raises(AsmError, match="includes itself"):
        assemble_files([str(tmp_path / "a.s")])
    with pytest.raises(AsmError, match="nothere.s: No such file"):
        assemble('.include "nothere.s"', str(tmp_path / "c.s"))


def test_includes_without_bounds(tmp_path, monkeypatch):
    """Files within each other, files that are none, and a few that become very many."""
    for n in range(30):
        (tmp_path / ("d%d.s" % n)).write_text('.include "d%d.s"\n' % (n + 1))
        (tmp_path / ("e%d.s" % n)).write_text(('.include "e%d.s"\n' % (n + 1)) * 2 if n < 15 else ";" + "x" * 60000)
    with pytest.raises(AsmError, match=r"d20.s:1:10: more than 20 files within each other"):
        assemble_files([str(tmp_path / "d0.s")])
    monkeypatch.setattr(directives, "_INCLUDE_LIMIT", 1 << 18)
    with pytest.raises(AsmError, match=r"what is included is more than 262144 characters by now"):
        assemble_files([str(tmp_path / "e0.s")])
    for name in ("/dev/zero", "/", "/proc/self/fd/0\\0"):
        with pytest.raises(AsmSyntaxError, match="is no file"):
            assemble('.include "%s"' % name)


@pytest.mark.parametrize("line", [" " * 65000 + "x", "0: " + " " * 65000 + "x", "r0" + " " * 65000 + "x", "1" * 65000,
                                  "a" + " *" * 32000 + "f(", "x:" * 32000, "'" * 65000, '"' + '\\"' * 32000,
                                  "0000000000000000: R_BPF_64_64 x" + "+0x1" * 16000], ids=lambda line: line[:10])
def test_long_lines_are_read_once(line):
    """Expressions that would try a line again from each of its places take minutes for one of these."""
    with pytest.raises(AsmError):
        assemble(line)
    with pytest.raises(AsmError):
        instructions_of_log(line)


def test_lines_that_end_as_on_windows():
    assert instructions("r0 = 5 \r\nexit // done\r\n") == instructions("r0 = 5\nexit")


def test_names_of_sections():
    for line, name in ((".section uprobe//bin/bash:readline // comment", "uprobe//bin/bash:readline"),
                       ('.section "uprobe//bin/my bash:readline"; comment', "uprobe//bin/my bash:readline"),
                       (".section xdp // comment", "xdp"), (".section xdp,\"ax\",@progbits", "xdp"),
                       (".section usdt//proc/self/exe:a:b", "usdt//proc/self/exe:a:b")):
        assert list(assemble(line + "\nexit").sections) == [name]
    for line in ('.section', '.section ""', '.section \x01', 'Disassembly of section a"b:'):
        with pytest.raises(AsmSyntaxError):
            assemble(line)


def test_text_that_no_file_holds():
    for text in ("exit ; \udcff", '.license "\ud800"', ".section a\udfff\nexit"):
        with pytest.raises(AsmError, match="half of a surrogate pair"):
            assemble(text)


def test_numeric_labels():
    assert encode(instructions("1: r0 = 0\nif r0 == 0 goto 1f\ngoto 1b\n1: exit"), "little") == bytes.fromhex(
        "b700000000000000 1500010000000000 0500fdff00000000 9500000000000000")


def test_symbolic_instructions_read_back():
    for ref, code, src in ((MapRef("m"), 0x18, 1), (MapRef("m", 8), 0x18, 2), (KsymRef("k"), 0x18, 3), (KsymRef("k"), 0x85, 2)):
        made = Instruction(code, 0, src, 0, 0, ref)
        assert assemble(text(made), strict=False).instructions() == [made]
    assert text(Instruction(0x85, 0, 1, 0, 0, FuncRef("f"))) == "call f"


@pytest.mark.slow
def test_the_fast_reader_agrees_with_the_grammar():
    rng = random.Random(7)
    lines = [text(i) for form in FORMS for _ in range(3) for i in decode(encoded(rng, form), "little")]
    lines += [text(i) for i in decode(random_program(rng, 1000), "little")]
    lines += [text(i) for i in compile_function(program(3, 40)).instructions]
    # and what is nearly one of them
    for line in list(lines):
        at = rng.randrange(len(line))
        lines.append(line[:at] + rng.choice("0129rwus+-x (),*=>") + line[at + rng.randrange(2):])
    read = refused = 0
    for line in lines:
        made = fast(line)
        try:
            expected = Statement(line).instruction()
        except Unexpected:
            refused += 1
            assert made is None, line
            continue
        read += made is not None
        assert made in (None, expected), line
    assert read > 1500 and refused > 500


@pytest.mark.parametrize("junk", [b"\x18" + bytes(7), b"\x95", bytes(7), bytes(9)])
def test_cut_off(junk):
    with pytest.raises(AsmError):
        decode(junk)


def test_junk_is_an_error_and_nothing_else():
    rng = random.Random(3)
    words = ["r1", "w2", "=", "+=", "*", "(", ")", "u32", "goto", "if", "ll", "0x5", "-", "[", "]", "call", "#", "'", '"',
             ".map", ".equ", ",", "map", "lock", "s>", "$", "\\", ":", "1", "/*", "\x00", "é", ".insn", "exit", "<", "skb"]
    for _ in range(300):
        line = " ".join(rng.choice(words) for _ in range(rng.randrange(1, 9)))
        try:
            assemble(line).link()
        except AsmError:
            continue
