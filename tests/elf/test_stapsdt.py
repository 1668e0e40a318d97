"""USDT notes. The operand texts are those that compilers print (AT&T and GNU as syntax); the places
that they must mean are read off the processors' manuals."""

import re
import struct
from pathlib import Path

import pytest

from rawbpf.elf.image import ElfError, Image
from rawbpf.elf.stapsdt import Operands, notes, split
from tests.cc import compile_c
from tests.elf.files import SDT, run

SYMBOLS = {"foo": 0x4000, "_ZN1a1bE": 0x5000, "tab.0": 0x6008}


def x86(text):
    return Operands(machine="x86_64", lookup=SYMBOLS.get).one(text)


def arm(text):
    return Operands(machine="aarch64", lookup=SYMBOLS.get).one(text)


def differs(operand, **expected):
    return {k: getattr(operand, k) for k in expected if getattr(operand, k) != expected[k]}


@pytest.mark.parametrize("text, register, size, shift", [
    ("8@%rax", "ax", 8, 0), ("4@%eax", "ax", 4, 0), ("2@%ax", "ax", 2, 0), ("1@%al", "ax", 1, 0), ("1@%ah", "ax", 1, 8),
    ("8@%rbx", "bx", 8, 0), ("1@%bh", "bx", 1, 8), ("4@%ecx", "cx", 4, 0), ("1@%dh", "dx", 1, 8),
    ("8@%rsi", "si", 8, 0), ("4@%esi", "si", 4, 0), ("2@%si", "si", 2, 0), ("1@%sil", "si", 1, 0),
    ("8@%rdi", "di", 8, 0), ("1@%dil", "di", 1, 0), ("8@%rbp", "bp", 8, 0), ("1@%bpl", "bp", 1, 0), ("8@%rsp", "sp", 8, 0),
    ("8@%r8", "r8", 8, 0), ("4@%r9d", "r9", 4, 0), ("2@%r10w", "r10", 2, 0), ("1@%r15b", "r15", 1, 0),
])
def test_x86_registers(text, register, size, shift):
    for sign in ("", "-"):
        operand = x86(sign + text)
        assert not differs(operand, kind="register", register=register, register_size=size, register_shift=shift,
                           size=int(text[0]), signed=bool(sign), width=min(size, int(text[0])))


@pytest.mark.parametrize("text, base, index, shift, displacement", [
    ("8@(%rdi,%rsi,8)", "di", "si", 3, 0),
    ("8@-8(%rdi,%rsi,8)", "di", "si", 3, -8),
    ("-4@-20(%rbp)", "bp", "", 0, -20),
    ("4@0x10(%rsp)", "sp", "", 0, 16),
    ("8@-0x10(%rsp)", "sp", "", 0, -16),
    ("1@(%rax)", "ax", "", 0, 0),
    ("2@(%r12,%r13)", "r12", "r13", 0, 0),
    ("2@(%r12,%r13,1)", "r12", "r13", 0, 0),
    ("8@24(,%rcx,4)", "", "cx", 2, 24),
    ("8@16+-8(%rbp)", "bp", "", 0, 8),
    ("8@( %rdi , %rsi , 2 )", "di", "si", 1, 0),
])
def test_x86_memory(text, base, index, shift, displacement):
    assert not differs(x86(text), kind="memory", register=base, index=index, index_shift=shift,
                       displacement=displacement, symbol="", relative=False)


@pytest.mark.parametrize("text, address, symbol", [
    ("8@foo(%rip)", 0x4000, "foo"), ("8@foo+4(%rip)", 0x4004, "foo"), ("4@4+foo(%rip)", 0x4004, "foo"),
    ("4@-8+foo(%rip)", 0x3ff8, "foo"), ("4@foo-8(%rip)", 0x3ff8, "foo"), ("8@_ZN1a1bE+16(%rip)", 0x5010, "_ZN1a1bE"),
    ("-4@tab.0(%rip)", 0x6008, "tab.0"), ("8@foo", 0x4000, "foo"), ("8@foo+8", 0x4008, "foo"),
])
def test_x86_symbols(text, address, symbol):
    assert not differs(x86(text), kind="memory", displacement=address, symbol=symbol, relative=True, register="", index="")


def test_x86_symbol_with_index():
    assert not differs(x86("8@foo(,%rax,8)"), kind="memory", displacement=0x4000, relative=True, index="ax", index_shift=3, register="")


@pytest.mark.parametrize("text, value, size, signed", [
    ("-4@$-9", -9, 4, True), ("4@$7", 7, 4, False), ("8@$0x10", 16, 8, False), ("-8@$-9223372036854775808", -1 << 63, 8, True),
    ("-1@$-1", -1, 1, True), ("4@$0", 0, 4, False),
])
def test_x86_constants(text, value, size, signed):
    assert not differs(x86(text), kind="constant", value=value, size=size, signed=signed, floating=False)


def test_x86_address_of_a_symbol():
    assert not differs(x86("8@$foo+8"), kind="address", value=0x4008, symbol="foo", relative=True)


def test_floating_point():
    assert not differs(x86("8f@%rax"), kind="register", register="ax", floating=True, size=8)
    assert not differs(x86("8f@%xmm0"), kind="vector", register="xmm0", floating=True)
    assert not differs(x86("4f@8(%rsp)"), kind="memory", register="sp", floating=True, displacement=8)
    assert x86("8f@%xmm15").kind == x86("8@%ymm3").kind == x86("8f@%st(1)").kind == "vector"
    assert not differs(arm("8f@d0"), kind="vector", register="d0")
    assert arm("4f@s7").kind == arm("8f@v3.d[0]").kind == "vector"


@pytest.mark.parametrize("text, reason", [
    ("8@%zz", "no register %zz"), ("8@bar(%rip)", "no symbol bar"), ("8@(%rdi", "not understood"), ("8@", "not understood"),
    ("3@%rax", "3 bytes"), ("16@%rax", "16 bytes"), ("8@%fs:40", "segment %fs"), ("8@(%rdi,%rsi,3)", "not understood"),
    ("8@foo@GOTPCREL(%rip)", "dynamic linker"), ("8@$", "not understood"), ("8@foo+foo(%rip)", "not understood"),
    ("8@(%xmm0)", "address in %xmm0"), ("8@8(%rip)", "without a symbol"), ("@@@", "not understood|known to"), ("8@()", "not understood"),
    ("8@-foo(%rip)", "not understood"), ("8@4 4(%rax)", "not understood"),
])
def test_x86_not_understood(text, reason):
    operand = x86(text)
    assert operand.kind == "unknown" and operand.text == text
    assert any(word in operand.reason for word in reason.split("|")), operand.reason


@pytest.mark.parametrize("text, expected", [
    ("8@x0", dict(kind="register", register="x0", register_size=8)),
    ("-4@w21", dict(kind="register", register="x21", register_size=4, signed=True)),
    ("1@w3", dict(kind="register", register="x3", width=1)),
    ("8@sp", dict(kind="register", register="sp")),
    ("8@xzr", dict(kind="constant", value=0)), ("4@wzr", dict(kind="constant", value=0)),
    ("8@x30", dict(kind="register", register="x30")),
    ("-4@-9", dict(kind="constant", value=-9)), ("4@7", dict(kind="constant", value=7)), ("8@#16", dict(kind="constant", value=16)),
    ("-4@[sp, 12]", dict(kind="memory", register="sp", displacement=12)),
    ("8@[x29, -24]", dict(kind="memory", register="x29", displacement=-24)),
    ("8@[x19,#16]", dict(kind="memory", register="x19", displacement=16)),
    ("4@[x0]", dict(kind="memory", register="x0", displacement=0, index="")),
    ("8@[x0, x1]", dict(kind="memory", register="x0", index="x1", index_shift=0, index_size=8)),
    ("8@[x0, x1, lsl 3]", dict(kind="memory", index="x1", index_shift=3)),
    ("8@[x0, x1, lsl #3]", dict(kind="memory", index="x1", index_shift=3)),
    ("4@[x0, w1, sxtw 2]", dict(kind="memory", index="x1", index_size=4, index_signed=True, index_shift=2)),
    ("4@[x0, w1, sxtw]", dict(kind="memory", index="x1", index_size=4, index_signed=True, index_shift=0)),
    ("4@[x0, w1, uxtw 2]", dict(kind="memory", index="x1", index_size=4, index_signed=False, index_shift=2)),
    ("8@[x0, :lo12:foo]", dict(kind="memory", register="x0", displacement=0)),
    ("8@[x0, #:lo12:tab.0]", dict(kind="memory", register="x0", displacement=8)),
    ("8@foo", dict(kind="memory", displacement=0x4000, relative=True)),
    ("8@x31", dict(kind="unknown")), ("8@[x0", dict(kind="unknown")), ("8@[x0, x1, lsl 9]", dict(kind="unknown")),
    ("8@[x0, w1]", dict(kind="unknown")), ("8@[x0, bar]", dict(kind="unknown")), ("8@", dict(kind="unknown")),
])
def test_aarch64(text, expected):
    assert not differs(arm(text), **expected)


def test_operands_without_a_size_are_words():
    # the first version of the notes had no sizes
    assert not differs(x86("%rdi"), kind="register", register="di", size=8, signed=False)


def test_split_keeps_brackets_together():
    assert split("8@(%rdi, %rsi, 8) -4@$-9  4@%edi ") == ["8@(%rdi, %rsi, 8)", "-4@$-9", "4@%edi"]
    assert split("-4@[sp, 12] 8@[x0, x1, lsl 3] 8@x2") == ["-4@[sp, 12]", "8@[x0, x1, lsl 3]", "8@x2"]
    assert split("") == [] and split("4@) 8@%rax") == ["4@)", "8@%rax"]


def test_other_machines_say_so():
    assert Operands(machine="riscv").one("8@a0").reason == "operands of riscv are not known"


# -- notes in files ------------------------------------------------------------------------------

TWO_SITES = SDT + """
volatile unsigned short sem_a __attribute__((section(".probes"), used, visibility("hidden")));
volatile unsigned short sem_b __attribute__((section(".probes"), used, visibility("hidden")));
static volatile long table[4] = {11, 22, 33, 44};
int main(int argc, char **argv) {
    if (sem_a) SDT("demo", "gate", "sem_a", "4@$1 8@table+8(%%rip)");
    if (sem_b) SDT("demo", "gate", "sem_b", "4@$2");
    SDT("web-shop", "cart__add", "0", "8@?? -4@$-9");
    return table[argc];
}
"""

GDB_NAMES = re.compile(r"Provider: (\S+)\n\s+Name: (\S+)\n\s+Location: 0x(\w+), Base: 0x(\w+), Semaphore: 0x(\w+)\n\s+Arguments: ?(.*)")


def readelf_probes(path):
    return [(provider, name, int(location, 16), int(base, 16), int(semaphore, 16), text.strip())
            for provider, name, location, base, semaphore, text in GDB_NAMES.findall(run("readelf", "-nW", path))]


@pytest.mark.parametrize("flags", [("-pie",), ("-no-pie",), ("-static",)])
def test_notes_are_readelfs(flags):
    path = compile_c(TWO_SITES, "-O1", *flags, name="dp")
    image = Image.open(path)
    found = notes(image)
    assert [(n.provider, n.name, n.location, n.base, n.semaphore, n.text) for n in found] == readelf_probes(path)
    assert [n.name for n in found] == ["gate", "gate", "cart__add"]
    nop = b"\x90" if image.machine == "x86_64" else b"\x1f\x20\x03\xd5"
    symbols = dict((name, int(value, 16)) for value, name in re.findall(r"(\w+) \w (\w+)$", run("nm", path), re.M))
    data = Path(path).read_bytes()
    for note in found:
        assert data[note.location_offset:].startswith(nop)
    assert (found[0].semaphore, found[1].semaphore) == (symbols["sem_a"], symbols["sem_b"])
    assert found[0].semaphore_offset == image.file_offset(symbols["sem_a"]) and found[2].semaphore_offset is None


@pytest.mark.skipif("__import__('os').uname().machine != 'x86_64'")
def test_an_unknown_operand_costs_one_argument():
    path = compile_c(TWO_SITES, "-O1", name="dp")
    gate, _, cart = notes(Image.open(path))
    table = int(re.search(r"(\w+) . table$", run("nm", path), re.M).group(1), 16)
    assert [o.kind for o in cart.arguments] == ["unknown", "constant"] and cart.arguments[1].value == -9
    assert gate.arguments[1].displacement == table + 8 and gate.arguments[1].relative


def make_note(image_word, location, base, semaphore, strings):
    desc = struct.pack("<" + image_word[1] * 3, location, base, semaphore) + strings
    return struct.pack("<III", 8, len(desc), 3) + b"stapsdt\0" + desc + bytes(-len(desc) % 4)


def with_note(content, base_addr=None):
    """An ELF64 file of aarch64: .note.stapsdt, and .stapsdt.base at an address if given."""
    names = b"\0.note.stapsdt\0.stapsdt.base\0.shstrtab\0"
    head = 64 + 56
    sections = [(0,) * 10, (1, 7, 0, 0, head, len(content), 0, 0, 4, 0),
                (15, 1, 2, base_addr or 0, head, 1, 0, 0, 1, 0), (29, 3, 0, 0, head + len(content), len(names), 0, 0, 1, 0)]
    if base_addr is None:
        sections[2] = (0,) * 10
    table = b"".join(struct.pack("<IIQQQQIIQQ", *s) for s in sections)
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", 3, 183, 1, 0, 64, head + len(content) + len(names), 0, 64, 56, 1, 64, 4, 3)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x10000, 0, 0x100, 0x100, 0x1000)
    return Image(header + load + content + names + table)


def test_aarch64_note_by_hand():
    strings = b"app\0begin\0-4@[sp, 12] 8@x1\0"
    note, = notes(with_note(make_note("<Q", 0x10040, 0, 0x10080, strings)))
    assert (note.provider, note.name, note.location_offset, note.semaphore_offset) == ("app", "begin", 0x40, 0x80)
    assert [(o.kind, o.register, o.displacement) for o in note.arguments] == [("memory", "sp", 12), ("register", "x1", 0)]


def test_prelinked_addresses_move_with_the_base():
    # .stapsdt.base was linked at 0x9000 and is now at 0x1a000: all has moved by 0x11000
    content = make_note("<Q", 0x8040, 0x9000, 0x8080, b"p\0n\0\0") + make_note("<Q", 0x8050, 0x9000, 0, b"p\0m\0\0")
    first, second = notes(with_note(content, 0x1a000))
    assert (first.location, first.semaphore, first.arguments) == (0x19040, 0x19080, [])
    assert (second.location, second.semaphore) == (0x19050, 0)


@pytest.mark.parametrize("strings", [b"p\0n", b"p", b""])
def test_short_notes(strings):
    with pytest.raises(ElfError, match="cut short"):
        notes(with_note(make_note("<Q", 1, 2, 3, strings)))


def test_a_note_beyond_its_section():
    with pytest.raises(ElfError, match="beyond its section"):
        notes(with_note(struct.pack("<III", 8, 1 << 31, 3) + b"stapsdt\0"))
