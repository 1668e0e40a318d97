"""Unwinding tables against readelf's, and whole stacks against glibc's own unwinder."""

import os
import re
import struct
import subprocess

import pytest

from rawbpf.elf.image import Image
from rawbpf.elf.unwind import Row, Rule, Unwind, evaluate, step
from rawbpf.elf.symbolizer import read_maps
from tests.cc import compile_c
from tests.elf.files import TARGET, run, version

X86 = {"rax": 0, "rdx": 1, "rcx": 2, "rbx": 3, "rsi": 4, "rdi": 5, "rbp": 6, "rsp": 7, "ra": 16,
       **{"r%d" % n: n for n in range(8, 16)}}
ARM = {"sp": 31, "ra": 30, **{"x%d" % n: n for n in range(31)}, **{"v%d" % n: 64 + n for n in range(32)}}


def readelf_rows(path):
    """{(low, high): [(address, CFA, {register: rule})]} as readelf -wF prints."""
    table, columns, current = {}, None, None
    # with N: a separate debug file, where one is installed, has no tables of its own (binutils 2.35 knows no N)
    for line in run("readelf", "-wFN" if version("readelf") >= (2, 36) else "-wF", path).splitlines():
        head = re.match(r"[0-9a-f]+ [0-9a-f]+ [0-9a-f]+ FDE cie=\w+ pc=([0-9a-f]+)\.\.([0-9a-f]+)", line)
        if head:
            current, columns = (int(head[1], 16), int(head[2], 16)), None
            table[current] = []
        elif " CIE " in line:
            current = None
        elif current is not None and line.strip().startswith("LOC"):
            columns = line.split()[2:]
        elif current is not None and columns is not None and re.match("[0-9a-f]{16} ", line):
            words = re.sub(r" (r\d+) \(\w+\)", r" \1", line).split()    # "r9 (r9)" is one rule
            table[current].append((int(words[0], 16), words[1], dict(zip(columns, words[2:]))))
    return table


def as_readelf(row, names):
    def rule(r):
        if r is None:
            return "u"
        return {"offset": "c%+d" % r.offset, "val_offset": "v%+d" % r.offset, "undefined": "u", "same": "s",
                "expression": "exp", "val_expression": "vexp", "register": "r%d" % r.register}[r.kind]
    registers = {v: k for k, v in names.items()}
    cfa = "exp" if row.cfa.kind == "expression" else "%s%+d" % (registers[row.cfa.register], row.cfa.offset)
    return row.low, cfa, {n: rule(row.registers.get(number)) for n, number in names.items()}


def compare(path):
    """Number of rows compared with readelf's; the first that differs fails."""
    unwind = Unwind(Image.open(path))
    names = X86 if unwind.image.machine == "x86_64" else ARM
    expected, count = readelf_rows(path), 0
    for low, high, place in unwind.fdes():
        rows = unwind.rows(place)
        wanted = expected.pop((low, high))
        if not wanted:          # readelf leaves out tables without instructions of their own
            assert len(rows) == 1
            continue
        columns = set(wanted[0][2])
        got = [(at, cfa, {n: r for n, r in rules.items() if n in columns}) for at, cfa, rules in
               (as_readelf(row, names) for row in rows)]
        assert got == wanted, (path, hex(low))
        assert [r.high for r in rows] == [r.low for r in rows[1:]] + [high]
        count += len(rows)
    assert not {k for k in expected if k[0] < k[1]}
    return count


DEEP = r"""
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void report(void)
{
    void *frames[64];
    int count = backtrace(frames, 64);
#if defined(__x86_64__)
    unsigned long registers[3];
    __asm__ volatile("lea 0(%%rip), %0\n\tmov %%rsp, %1\n\tmov %%rbp, %2" : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]));
#else
    unsigned long registers[3];
    __asm__ volatile("adr %0, .\n\tmov %1, sp\n\tmov %2, x29" : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]));
#endif
    printf("%lx %lx %lx", registers[0], registers[1], registers[2]);
    for (int i = 0; i < count; i++)
        printf(" %lx", (unsigned long)frames[i]);
    printf("\n");
    fflush(stdout);
    getchar();
}
__attribute__((noipa)) static int leaf(int n) { char room[n + 1]; room[n] = n; report(); return room[n]; }
__attribute__((noipa)) static int middle(int a, int b, int c, int d, int e, int f, int g) { return leaf(a + g) + b + c + d + e + f; }
static int order(const void *a, const void *b) { static int once; if (!once++) middle(1, 2, 3, 4, 5, 6, 7); return *(int *)a - *(int *)b; }
int main(void) { int v[3] = {3, 1, 2}; qsort(v, 3, sizeof(int), order); return v[0] - 1; }
"""


ROWS = [("-O2",), ("-O2", "-fno-omit-frame-pointer"), ("-O0",), ("-O2", "-no-pie")]
if version("readelf") >= (2, 40):       # 2.35 prints "u" for a return address that the CIE puts in memory
    ROWS.append(("-O1", "-static"))


@pytest.mark.parametrize("flags", ROWS)
def test_rows_are_readelfs(flags):
    assert compare(compile_c(DEEP, *flags, name="deep")) > 20


def test_lookup_with_and_without_the_sorted_index(tmp_path):
    path = compile_c(DEEP, "-O2", name="deep")
    run("objcopy", "--remove-section", ".eh_frame_hdr", path, tmp_path / "unsorted")
    quick, slow = Unwind(Image.open(path)), Unwind(Image.open(tmp_path / "unsorted"))
    assert slow.image.section(".eh_frame_hdr") is None
    for low, high, _ in quick.fdes():
        for pc in (low, (low + high) // 2, high - 1):
            assert quick.row(pc) == slow.row(pc) is not None
            assert quick.row(pc).low <= pc < quick.row(pc).high
    assert quick.row(0) is quick.row(1 << 40) is None


@pytest.mark.parametrize("flags", [("-O2",), ("-O0",), ("-O2", "-static"), ("-O2", "-fno-omit-frame-pointer")])
def test_a_stack_is_glibcs(flags):
    # four frames of our own, three of libc's qsort, then the program's start
    process = subprocess.Popen([compile_c(DEEP, *flags, name="deep")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        pc, sp, fp, *expected = (int(word, 16) for word in process.stdout.readline().split())
        with open("/proc/%d/maps" % process.pid, "rb") as file:
            maps = [m for m in read_maps(file.read()) if m.is_file and "x" in m.permissions]
        with open("/proc/%d/mem" % process.pid, "rb", buffering=0) as memory:
            found = walk(maps, memory, pc, sp, fp)
    finally:
        process.communicate("\n")
    # glibc's list begins behind the call of backtrace, ours where the registers were read
    assert len(expected) >= 6
    assert found[1:] == expected[1:1 + len(found[1:])] and len(found) >= len(expected) - 1


def walk(maps, memory, pc, sp, fp):
    machine = os.uname().machine
    registers = {7: sp, 6: fp} if machine == "x86_64" else {31: sp, 29: fp}
    images = {}

    def read(address):
        memory.seek(address)
        return struct.unpack("<Q", memory.read(8))[0]

    found, first = [], True
    while pc and len(found) < 64:
        mapping = next((m for m in maps if m.start <= pc < m.end), None)
        if mapping is None:
            break
        if mapping.path not in images:
            image = Image.open(mapping.path)
            images[mapping.path] = image, Unwind(image)
        image, unwind = images[mapping.path]
        found.append(pc)
        vaddr = image.vaddr(pc - mapping.start + mapping.offset)
        row = unwind.row(vaddr if first else vaddr - 1)     # a return address is behind the call
        first = False
        registers = step(row, registers, read, machine) if row is not None else None
        if registers is None:
            break
        pc = registers[row.return_register]
    return found


def test_expressions():
    # DW_OP_breg7 8, breg16 0, lit15, and, lit11, ge, lit3, shl, plus: what linkers write for the PLT
    plt = bytes.fromhex("7708800 03f1a3b2a332422".replace(" ", ""))
    assert evaluate(plt, {7: 0x1000, 16: 0x400b}, None, []) == 0x1010
    assert evaluate(plt, {7: 0x1000, 16: 0x400a}, None, []) == 0x1008
    memory = {0x20: 7}
    assert evaluate(b"\x08\x18\x23\x08\x06", {}, memory.__getitem__, []) == 7        # const1u 24, plus_uconst 8, deref
    assert evaluate(b"\x09\xff\x1f", {}, None, []) == 1                               # const1s -1, neg
    with pytest.raises(ValueError, match="0xf3"):
        evaluate(b"\xf3", {}, None, [])


def test_the_outermost_frame_has_no_caller():
    row = Row(0, 16, Rule("register", 8, 7), {16: Rule("undefined")}, 16, False)
    assert step(row, {7: 0x1000, 16: 5}, None) is None
    assert step(row._replace(cfa=Rule("undefined")), {7: 0}, None) is None


@pytest.mark.peer
def test_the_c_library_and_others():
    total = sum(compare(path) for path in ("/usr/lib/x86_64-linux-gnu/libc.so.6", "/bin/bash", "/usr/lib/x86_64-linux-gnu/libcrypto.so.3"))
    print("%d rows" % total)
    assert total > 100000
