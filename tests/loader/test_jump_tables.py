"""Objects with jump tables (`.jumptables`, `gotox`), as LLVM 22 makes them of a switch: an ELF file by hand.

A table is an array of 64-bit offsets of instructions in the function's section (Documentation/bpf/llvm_reloc.rst);
the function loads its address and goes to what it reads there.
"""

import struct

import pytest

from rawbpf.asm import elfwriter as elf
from rawbpf.elf.bpf_object import BpfObjectFile
from rawbpf.elf.object_linker import link
from rawbpf.loader import KernelError, Object, ObjectError, kernel
from tests.loader.code import EXIT, alu, insn, load, mov, mov_reg

R_BPF_64_64, R_BPF_64_32 = 1, 10
LDDW, GOTOX = insn(0x18, 0) + insn(0), insn(0x0d, 0)


def switch(register, answers):
    """Code that returns one of some answers by the two low bits of a register, and the slots of those cases; the
    address of the table goes into its first instruction."""
    head = LDDW + alu(0x50, register, 3) + alu(0x60, register, 3) + insn(0x0f, 0, register) + load(0, 0, 0) + GOTOX
    code, slots = head, []
    for answer in answers:
        slots.append(len(code) // 8)
        code += mov(0, answer) + EXIT
    return code, slots


def made(first_case=None, size=32, name=""):
    """An object: `main` goes by the length of the packet and, for a multiple of four, by a called function on."""
    one, first = switch(2, (1001, 1002, 1003))
    lead = load(7, 1, 0, 4) + mov_reg(2, 7)
    main = lead + one
    place = len(main) // 8
    main += mov_reg(1, 7) + alu(0x70, 1, 2) + insn(0x85, 0, 1, 0, -1) + EXIT
    first = [place if first_case is None else first_case] + [slot + 2 for slot in first]
    other, second = switch(1, (2000, 2001, 2002, 2003))
    file = elf.ElfWriter()
    text = file.section(".text", elf.PROGBITS, elf.ALLOC | elf.EXEC, mov(0, 0) + EXIT + other, 8)
    code = file.section("socket", elf.PROGBITS, elf.ALLOC | elf.EXEC, main, 8)
    tables = file.section(".jumptables", elf.PROGBITS, 0, struct.pack(
        "=8Q", *[8 * slot for slot in first], *[8 * (slot + 2) for slot in second]), 1)
    table = [file.symbol("BPF.JT.0.%d" % number, elf.LOCAL, elf.OBJECT, tables, 32 * number, size)
             for number in range(2)]
    file.symbol(name + "main", elf.GLOBAL, elf.FUNC, code, 0, len(main))
    file.symbol(name + "aside", elf.GLOBAL, elf.FUNC, text, 0, 16)
    called = file.symbol(name + "called", elf.GLOBAL, elf.FUNC, text, 16, len(other))
    file.relocate(code, [(16, table[0], R_BPF_64_64), ((place + 2) * 8, called, R_BPF_64_32)])
    file.relocate(text, [(16, table[1], R_BPF_64_64)])
    return file.bytes()


def linked():
    """Two of them in one object: the code of the second has moved, and the places in its tables with it."""
    return link([BpfObjectFile.parse(made(name=name)) for name in ("", "other_")])


@pytest.mark.kernel
@pytest.mark.parametrize("make, names", [(made, ["main"]), (linked, ["main", "other_main"])])
def test_a_switch_by_jump_tables(make, names):
    with Object.parse(make()) as obj:
        if kernel.release() < (6, 19):
            with pytest.raises(KernelError, match="needs Linux 6.19"):
                obj.load()
            return
        obj.load()
        for name in names:
            program = obj.programs[name].program
            for length in range(40):
                wanted = 1000 + length % 4 if length % 4 else 2000 + length // 4 % 4
                assert program.test_run(bytes(14 + length)).retval == wanted
            assert len(program.info().map_ids) == 2


def test_tables_of_linked_objects():
    with Object.parse(made()) as alone, Object.parse(linked()) as both:
        wanted = sorted(alone.programs["main"].link().tables.values())
        for name in ("main", "other_main"):
            assert sorted(both.programs[name].link().tables.values()) == wanted


@pytest.mark.parametrize("options, reason", [
    (dict(first_case=1000), "leads to byte 8000 of section socket, where no instruction"),
    (dict(first_case=3), "leads to byte 24 of section socket, where no instruction"),   # the second half of a lddw
    (dict(size=33), r"bytes 0 to 33 of \.jumptables are no jump table"),
    (dict(size=72), r"bytes 0 to 72 of \.jumptables are no jump table"),
    (dict(size=0), r"bytes 0 to 0 of \.jumptables are no jump table"),
])
def test_tables_that_cannot_be(options, reason):
    with Object.parse(made(**options)) as obj:
        with pytest.raises(ObjectError, match=reason):
            obj.programs["main"].link()
