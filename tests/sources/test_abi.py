"""Register tables against the kernel's own headers, and where the calling convention puts arguments."""

import platform
import subprocess

import pytest

from rawbpf.asm import ir
from rawbpf.elf import types
from rawbpf.sources import SourceError, abi, convention
from rawbpf.sources.kprobe import KprobePoint, Kprobe
from tests.cc import compile_c

# struct pt_regs of <asm/ptrace.h> calls them by their 64-bit names
HEADER = {"bp": "rbp", "bx": "rbx", "ax": "rax", "cx": "rcx", "dx": "rdx", "si": "rsi", "di": "rdi",
          "orig_ax": "orig_rax", "ip": "rip", "flags": "eflags", "sp": "rsp"}


def test_registers_of_this_machine_against_the_header():
    if platform.machine() != "x86_64":
        return  # aarch64's header has one array: the next test says all there is
    names = abi.ABIS["x86_64"].registers
    lines = "".join('printf("%s %%d\\n", (int)offsetof(struct pt_regs, %s));' % (name, HEADER.get(name, name))
                    for name in names)
    program = compile_c("#include <stddef.h>\n#include <stdio.h>\n#include <asm/ptrace.h>\n"
                        "int main(void) { %s return 0; }" % lines, name="offsets")
    out = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert dict((line.split()[0], int(line.split()[1])) for line in out.splitlines()) == names


def test_aarch64_registers():
    """struct user_pt_regs { u64 regs[31]; u64 sp; u64 pc; u64 pstate; }"""
    registers = abi.ABIS["aarch64"].registers
    assert [registers["r%d" % n] for n in range(31)] == [8 * n for n in range(31)]
    assert registers["x29"] == 232
    assert (registers["sp"], registers["pc"], registers["pstate"]) == (248, 256, 264)


@pytest.mark.vm
def test_aarch64_registers_against_the_header():
    """In the arm64 guest, whose compiler has <asm/ptrace.h>."""
    if platform.machine() != "aarch64":
        return
    names = ["regs[%d]" % n for n in range(31)] + ["sp", "pc", "pstate"]
    lines = "".join('printf("%%d\\n", (int)offsetof(struct user_pt_regs, %s));' % name for name in names)
    program = compile_c("#include <stddef.h>\n#include <stdio.h>\n#include <asm/ptrace.h>\n"
                        "int main(void) { %s return 0; }" % lines, name="offsets")
    out = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    registers = abi.ABIS["aarch64"].registers
    ours = [registers["r%d" % n] for n in range(31)] + [registers[name] for name in ("sp", "pc", "pstate")]
    assert [int(line) for line in out.split()] == ours
    assert [registers["x%d" % n] for n in range(31)] == ours[:31]


def loads(machine, n, monkeypatch):
    monkeypatch.setattr(abi, "host", lambda: abi.ABIS[machine])
    monkeypatch.setattr("rawbpf.sources.memory.helper", lambda user, string=False: "bpf_probe_read_kernel")
    point = KprobePoint(Kprobe(), "", "f", 0)
    f = ir.Function("f")
    point.argument(f, f.params[0], n)
    load = [op.info[:2] for op in f.current.ops if op.kind == "load"][0]
    added = [op.args[1] for op in f.current.ops if op.kind == "alu" and op.info[0] == "+"]
    return load, added


@pytest.mark.parametrize("machine, n, expected", [
    ("x86_64", 0, ((112, 8), [])),  # rdi
    ("x86_64", 5, ((64, 8), [])),  # r9
    ("x86_64", 6, ((152, 8), [8])),  # above the return address
    ("x86_64", 8, ((152, 8), [24])),
    ("aarch64", 0, ((0, 8), [])),
    ("aarch64", 7, ((56, 8), [])),
    ("aarch64", 8, ((248, 8), [])),  # at the stack pointer itself
    ("aarch64", 9, ((248, 8), [8])),
])
def test_where_arguments_are(machine, n, expected, monkeypatch):
    assert loads(machine, n, monkeypatch) == expected


def test_unknown_machine_is_refused_by_name(monkeypatch):
    class Uname:
        machine = "armv7l"

    monkeypatch.setattr("os.uname", lambda: Uname)
    with pytest.raises(SourceError, match="armv7l"):
        abi.host()


LONG = types.Int("long", 8, True)
INT = types.Int("int", 4, True)
DOUBLE = types.Float("double", 8)
PAIR = types.Struct("struct", "pair", 16, [types.Field("a", LONG, 0), types.Field("b", LONG, 8)])
BIG = types.Struct("struct", "big", 24, [types.Field("a", types.Array(LONG, 3), 0)])


def test_convention(monkeypatch):
    """psABI 3.2.3: a pair takes two registers, a large struct the stack, a double no integer register."""
    monkeypatch.setattr(abi, "host", lambda: abi.ABIS["x86_64"])
    parameters = [types.Parameter("", t) for t in (INT, DOUBLE, PAIR, LONG, BIG, INT, INT, LONG)]
    places = convention.places(types.Function("f", parameters, INT))
    assert [(p.register, p.stack) for p in places] == [
        ("di", -1), ("", -1), ("", -1), ("cx", -1), ("", -1), ("r8", -1), ("r9", -1), ("", 3)]
    assert [bool(p.reason) for p in places] == [False, True, True, False, True, False, False, False]
    assert (places[0].size, places[0].signed) == (4, True)


WIDE = types.Int("__int128", 16, True)
LONG_DOUBLE = types.Float("long double", 16)


@pytest.mark.parametrize("machine, parameters, expected", [
    ("x86_64", (WIDE, INT), ["", "dx"]),
    ("x86_64", (LONG,) * 5 + (WIDE, INT, INT), ["di", "si", "dx", "cx", "r8", "", "r9", 2]),
    ("x86_64", (LONG,) * 7 + (WIDE, INT), ["di", "si", "dx", "cx", "r8", "r9", 0, "", 4]),
    ("x86_64", (types.Int("()", 0, False), INT), ["", "di"]),
    ("x86_64", (LONG_DOUBLE,) + (LONG,) * 7, ["", "di", "si", "dx", "cx", "r8", "r9", 2]),
    ("x86_64", (DOUBLE,) * 9 + (LONG,) * 7, [""] * 9 + ["di", "si", "dx", "cx", "r8", "r9", 1]),
    ("aarch64", (INT, WIDE, INT), ["0", "", "4"]),
    ("aarch64", (LONG,) * 7 + (WIDE, INT), ["0", "1", "2", "3", "4", "5", "6", "", 2]),
])
def test_wide_arguments(machine, parameters, expected, monkeypatch):
    """psABI 3.2.3 and AAPCS64 6.8.2: 16 bytes take two registers, or two slots from an even one."""
    monkeypatch.setattr(abi, "host", lambda: abi.ABIS[machine])
    places = convention.places(types.Function("f", [types.Parameter("", t) for t in parameters], INT))
    names = [p.register.lstrip("rx") if machine == "aarch64" else p.register for p in places]
    assert [p.stack if p.stack >= 0 else name for p, name in zip(places, names)] == expected
