"""Machine code that this kernel's JIT makes: decoded as objdump decodes it, and shown with its meanings."""

import os
import platform
import re

import pytest

from rawbpf.asm import Instruction, assemble, compile_function
from rawbpf.asm.machinecode import decode
from rawbpf.loader import Map, Object, Program, kernel
from rawbpf.loader.errors import KernelError
from tests.asm import test_isa as isa
from tests.asm.generate import MAPS, VALUE_SIZE, program as random_function
from tests.asm.kernel import level
from tests.asm.objdump import lines
from tests.tools.inspecting import run, run_json

pytestmark = pytest.mark.root

MACHINE = platform.machine()
X86 = MACHINE == "x86_64"

COUNT = int(os.environ.get("RAWBPF_JIT_PROGRAMS", 500))

# What random functions do not reach: each is a program of a type whose verifier takes it.
FORMS = {
    "loads and stores": ("socket_filter", "\n".join(
        ["*(u64 *)(r10 - 8) = 1", "*(u64 *)(r10 - 256) = 1", "r6 = r10", "r1 = r10", "r2 = 5", "r5 = 7", "r7 = 9"]
        + ["*(u%d *)(%s %d) = -3" % (bits, base, off) for bits in (8, 16, 32, 64) for base in ("r10", "r6")
           for off in (-8, -256)]
        + ["*(u%d *)(%s %d) = %s" % (bits, base, off, source) for bits in (8, 16, 32, 64) for base in ("r10", "r1")
           for off in (-8, -256) for source in ("r2", "r5", "r7")]
        + ["r%d = *(u%d *)(%s %d)" % (into, bits, base, off) for bits in (8, 16, 32, 64) for base in ("r10", "r6")
           for off in (-8, -256) for into in (0, 2, 9)]) + "\nr0 = 0\nexit"),
    "sign extension": ("socket_filter", "*(u64 *)(r10 - 8) = -1\n" + "\n".join(
        ["r%d = *(s%d *)(r10 - 8)" % (into, bits) for bits in (8, 16, 32) for into in (0, 3, 9)]
        + ["r%d = (s%d)r3" % (into, bits) for bits in (8, 16, 32) for into in (0, 3, 9)]
        + ["w%d = (s%d)w3" % (into, bits) for bits in (8, 16) for into in (0, 3, 9)]) + "\nr0 = 0\nexit"),
    "byte order": ("socket_filter", "r1 = 1\nr9 = 2\n" + "\n".join(
        "r%d = %s%d r%d" % (n, what, bits, n) for n in (1, 9) for what in ("be", "le", "bswap") for bits in (16, 32, 64))
        + "\nr0 = 0\nexit"),
    "atomics": ("socket_filter", "*(u64 *)(r10 - 8) = 1\nr1 = 1\nr8 = 1\nr0 = 0\nr6 = r10\n" + "\n".join(
        [".insn 0x%x, %d, %d, -8, 0x%x" % (code, base, source, imm) for code in (0xdb, 0xc3) for base in (10, 6)
         for imm in (0, 0x40, 0x50, 0xa0, 1, 0x41, 0x51, 0xa1, 0xe1, 0xf1) for source in (1, 8)]) + "\nr0 = 0\nexit"),
    "calls": ("socket_filter", """
        main: r6 = r1
        call bpf_get_prandom_u32
        call bpf_get_smp_processor_id
        call bpf_ktime_get_ns
        r1 = r0
        call inner
        r1 = r6
        r2 = map[tails] ll
        r3 = 1
        call bpf_tail_call
        call bpf_get_prandom_u32
        r3 = r0
        r1 = r6
        r2 = map[tails] ll
        call bpf_tail_call
        r0 = 0
        exit
        inner: r0 = r1
        r0 *= 3
        exit"""),
    "maps": ("socket_filter", """
        *(u32 *)(r10 - 4) = 0
        r1 = map[data] ll
        r2 = r10
        r2 += -4
        call bpf_map_lookup_elem
        if r0 == 0 goto out
        r1 = *(u64 *)(r0 + 0)
        out: r1 = map[per_cpu] ll
        r2 = r10
        r2 += -4
        call bpf_map_lookup_elem
        if r0 == 0 goto end
        r1 = *(u64 *)(r0 + 0)
        end: r1 = map[table] ll
        r2 = r10
        r2 += -4
        call bpf_map_lookup_elem
        r1 = map[data][0] + 8 ll
        r2 = *(u64 *)(r1 + 0)
        r0 = 0
        exit"""),
    "packets": ("sched_cls", """
        r6 = r1
        r0 = *(u32 *)skb[4]
        r0 = *(u16 *)skb[2]
        r0 = *(u8 *)skb[1]
        r7 = 2
        r0 = *(u8 *)skb[r7 + 1]
        r2 = *(u32 *)(r6 + 76)
        r3 = *(u32 *)(r6 + 80)
        r4 = r2
        r4 += 14
        if r4 > r3 goto out
        r0 = *(u16 *)(r2 + 12)
        out: r0 = 0
        exit"""),
    "constants": ("socket_filter", "\n".join(
        "r%d = 0x%x ll" % (n, value) for n in (0, 5, 9) for value in (0, 1, 0x7fffffff, 0x80000000, 0xffffffff80000000,
                                                                    0x123456789a)) + "\nr0 = 0\nexit"),
}


@pytest.fixture(scope="module")
def maps():
    made = {name: Map.create("array", 4, VALUE_SIZE, 1, name=name) for name in MAPS}
    made["tails"] = Map.create("prog_array", 4, 4, 3, name="tails")
    made["per_cpu"] = Map.create("percpu_array", 4, 8, 1, name="per_cpu")
    made["table"] = Map.create("hash", 4, 8, 1, name="table")
    yield made
    for one in made.values():
        one.close()


def image(kind, instructions, maps):
    with Program.load(kind, instructions, maps=maps) as program:
        return program.jited()


def compare(images, path):
    """Of all at once: a call of objdump takes longer than what it does."""
    code = b"".join(images)
    found = list(decode(code, MACHINE))
    unknown = [code[one.offset:one.offset + 12].hex() for one in found if not one.known]
    assert unknown == []
    # guests have no objdump: there it must be known at least; tests/asm compares the decoder for the other machine
    if X86 and "RAWBPF_CC" not in os.environ:
        assert [(one.offset, one.text) for one in found] == lines(code, path)
    return {one.mnemonic for one in found}, len(found)


@pytest.mark.kernel
def test_every_form(maps, tmp_path):
    images = []
    for kind, text in FORMS.values():
        try:
            images.append(image(kind, assemble(text).instructions(), maps))
        except KernelError as error:        # the older the kernel, the fewer forms
            assert level() < 4, error
    names, count = compare(images, tmp_path / "code")
    assert count > 200
    if X86:
        assert {"lock add", "bswap", "movzbq", "movsbq", "movabs", "jmp", "call", "cmp", "leave"} <= names | (
            set() if level() == 4 else {"lock add", "movsbq", "bswap"})


@pytest.mark.slow
def test_arithmetic_and_jumps(maps, tmp_path):
    """Every operation with every operand that tests/asm checks the values of."""
    forms = [instruction for _, _, instruction, _ in isa.alu_forms(level() == 4)]
    jumps = [form[2] for form in isa.jump_forms(level() >= 2)]
    images = []
    with Map.create("array", 4, 16, 1, name="data") as data, Map.create("array", 4, 8192, 1, name="out") as out:
        for group in (forms, jumps):
            for at in range(0, len(group), 400):
                images.append(image("socket_filter", isa.program(group[at:at + 400]), {"data": data, "out": out}))
    names, count = compare(images, tmp_path / "code")
    assert not X86 or {"idiv", "div", "imul", "sar", "shr", "shl", "jl", "jb", "jle", "jbe", "jne", "test"} - names <= (
        set() if level() == 4 else {"idiv"})


@pytest.mark.slow
def test_random_functions(maps, tmp_path):
    """`RAWBPF_JIT_PROGRAMS=5000` for more."""
    cpus = ["v1", "v2", "v3", "v4"][:level()]
    images = []
    for seed in range(COUNT):
        cpu = cpus[seed % len(cpus)]
        function = random_function(seed, size=4 + seed % 24, atomics=cpu in ("v3", "v4"))
        images.append(image("sched_cls", compile_function(function, cpu).instructions, maps))
    _, count = compare(images, tmp_path / "code")
    assert count > 50 * COUNT


# -- the command

CALLS = """
main: r1 = map[table] ll
*(u32 *)(r10 - 4) = 0
r2 = r10
r2 += -4
call bpf_map_delete_elem
r1 = 3
call inner
r0 = 0
exit
inner: r0 = r1
exit
"""


@pytest.fixture
def loaded(maps):
    with Program.load("socket_filter", assemble(CALLS).instructions(), maps=maps, name="calls") as program:
        yield program


@pytest.mark.kernel
def test_functions_and_meanings(loaded, maps):
    status, out, error = run("prog", "dump", "jited", "id", loaded.info().id)
    assert (status, error) == (0, "")
    functions = re.findall(r"^(bpf_prog_[0-9a-f]{16}\S*):\n", out, re.M)
    # older kernels name the functions of programs without BTF F
    assert len(functions) == 2 and (functions[0] == "bpf_prog_%s_calls" % loaded.info().tag or
                                    kernel.release() < (6, 12) and functions[0].endswith("_F"))
    table = maps["table"].info().id
    if not X86:
        assert "  <map[id:%d]>\n" % table in out and re.search(r"^ +[0-9a-f]+:\t\S+\t.*  <\w*map_delete_elem>$", out, re.M)
        return
    assert re.search(r"^ +[0-9a-f]+:\tmovabs \$0xff[0-9a-f]{14},%%rdi  <map\[id:%d\]>$" % table, out, re.M)
    # a hash table's delete is called directly
    assert re.search(r"^ +[0-9a-f]+:\tcall   0xffffffff[0-9a-f]{8}  <\w*(htab_map_delete_elem|map_delete_elem)>$", out, re.M)
    assert re.search(r"call   0xffffffff[0-9a-f]{8}  <%s>" % functions[1], out)


@pytest.mark.kernel
def test_json(loaded):
    first, second = run_json("prog", "dump", "jited", "id", loaded.info().id, "opcodes")
    assert [sorted(one) for one in (first, second)] == [["insns", "name"]] * 2
    code = bytes(int(byte, 16) for one in (first, second) for insn in one["insns"] for byte in insn["opcodes"])
    assert code == loaded.jited()
    assert [insn["pc"] for insn in first["insns"]][0] == "0x0"
    assert {"pc", "operation", "operands", "opcodes"} <= set(first["insns"][0])
    assert [insn["operands"] for insn in second["insns"] if insn["operation"] in ("leave", "ret")][:1] == [[None]]


@pytest.mark.kernel
def test_file(loaded, tmp_path):
    assert run("prog", "dump", "jited", "id", loaded.info().id, "file", tmp_path / "code") == (0, "", "")
    assert (tmp_path / "code").read_bytes() == loaded.jited()


@pytest.mark.kernel
def test_source_lines(rawbpf, tmp_path):
    """The lines of an assembly file stand before the code that was made of them."""
    source, path = tmp_path / "lines.s", tmp_path / "lines.o"
    source.write_text(".section socket\nlines:\n    r0 = 7\n    exit\n")
    assert rawbpf("asm", "-f", "elf", "-o", path, source).returncode == 0
    with Object.open(path) as obj:
        obj.load()
        number = obj.programs["lines"].program.info().id
        out = run("prog", "dump", "jited", "id", number, "linum")[1]
        # the first line's code begins with the function's own
        assert re.search(r"^; r0 = 7 \[file:\S*lines.s line_num:3 line_col:0\]\n +0:\t", out, re.M)
        assert re.search(r"^; exit \[file:\S*lines.s line_num:4 line_col:0\]\n +[0-9a-f]+:\t%s" % ("leave$" if X86 else ""), out,
                         re.M)
        (function,) = run_json("prog", "dump", "jited", "id", number, "linum")
        (line,) = [one for one in function["insns"] if one.get("src") == "exit"]
        assert line["line_num"] == 4 and (not X86 or (line["operation"], line["operands"]) == ("leave", [None]))
        assert function["proto"] == "long lines(long a0)"
