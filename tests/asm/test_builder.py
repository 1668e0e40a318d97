"""The Python builder, relocation, and the files that assemblies are written to."""

import json
import os
import subprocess

import pytest

from rawbpf.asm import Instruction, decode, encode
from rawbpf.asm.builder import (Builder, FuncRef, KsymRef, MapRef, r0, r1, r2, r3, r6, r7, r10, relocate, s16, u8, u32, u64,
                                s32, w1, w2, w3)
from rawbpf.asm.errors import AsmError
from rawbpf.asm.formats import c_array, from_dict, json_text, raw
from rawbpf.asm.text import assemble, instructions

from .machine import Machine, World


def text_of(fill):
    b = Builder()
    fill(b)
    return b.build()


def test_statements_are_those_of_the_text():
    def fill(b):
        b.set(u32[r10 - 4], 0)
        b.set(r2, r10 - 4)
        b.set(r1, MapRef("m"))
        b.call("bpf_map_lookup_elem")
        b.jump("out", r0 == 0)
        b.set(r1, u64[r0])
        b.set(w1, u8[r0 + 3])
        b.set(r3, s16[r0 + 6])
        b.add(r1, 1)
        b.arsh(w1, 3)
        b.smod(r1, r2)
        b.neg(r1)
        b.swap("be", r1, 16)
        b.atomic("+", u64[r0], r1)
        b.atomic("xchg", u32[r0 + 4], r1)
        b.set(r3, 1 << 40)
        b.jump("out", r1.sgt(-1))
        b.label("out")
        b.set(r0, 0)
        b.exit()
    assert text_of(fill) == instructions("""
        *(u32 *)(r10 -4) = 0
        r2 = r10
        r2 += -4
        r1 = map[m] ll
        call bpf_map_lookup_elem
        if r0 == 0 goto out
        r1 = *(u64 *)(r0 +0)
        w1 = *(u8 *)(r0 +3)
        r3 = *(s16 *)(r0 +6)
        r1 += 1
        w1 s>>= 3
        r1 s%= r2
        r1 = -r1
        r1 = be16 r1
        lock *(u64 *)(r0 +0) += r1
        r1 = atomic_xchg((u32 *)(r0 +4), r1)
        r3 = 0x10000000000 ll
        if r1 s> -1 goto out
    out:
        r0 = 0
        exit""")


def run(code, args=()):
    return Machine(code, World({})).run(args)


def test_loops_conditions_and_functions_run():
    b = Builder()
    b.set(r7, 0)
    with b.count(r6, 10):
        with b.when(r6 & 1):
            b.call(FuncRef("square"), r6)
            b.add(r7, r0)
        with b.unless(r6 < 8):
            b.add(r7, 1000)
    b.set(r0, r7)
    b.exit()
    b.function("square")
    b.set(r0, r1)
    b.mul(r0, r1)
    b.exit()
    assert run(b.build()) == 1 + 9 + 25 + 49 + 81 + 2000


def test_arguments_move_at_once():
    b = Builder()
    b.set(r1, 1)
    b.set(r2, 2)
    b.set(r3, 3)
    b.call(FuncRef("f"), r2, r3, r1, r10 - 8)
    b.exit()
    b.function("f")
    b.set(r0, r1)
    for more in (r2, r3):
        b.mul(r0, 10)
        b.add(r0, more)
    b.exit()
    assert run(b.build()) == 231


def test_what_is_for_with():
    b = Builder()
    b.set(r0, 0)
    b.set(r6, 0)
    with b.loop(r6 < 100) as loop:          # 0 to 9, without 3
        b.add(r6, 1)
        b.jump(loop.again, r6 == 4)
        b.jump(loop, r6 > 10)
        b.add(r0, r6)
        b.sub(r0, 1)
    with b.loop(r6 == 0, invert=True):      # 11 more
        b.sub(r6, 1)
        b.add(r0, 1)
    with b.count(r7, 5, 10, -2) as loop:    # 10, 8, 6: without 8
        b.jump(loop.again, r7 == 8)
        b.add(r0, r7)
    with b.count(r7, -1, -3):               # -3, -2
        b.add(r0, r7)
    with b.when(r0 == 1):
        b.set(r0, 0)
    with b.otherwise():
        with b.unless(r7 & 1):
            b.set(r0, 0)
        with b.otherwise():
            b.add(r0, 10000)
    b.exit()
    assert run(b.build()) == sum(range(10)) - 3 + 11 + 10 + 6 - 3 - 2 + 10000


def test_a_loop_without_an_end_of_its_own():
    b = Builder()
    b.set(r0, 0)
    with b.loop() as loop:
        b.add(r0, 3)
        b.jump(loop, r0.sge(10))
    b.exit()
    assert run(b.build()) == 12


def test_everything_else_that_the_text_says():
    def fill(b):
        b.packet(u8, 23)
        b.packet(u32, -4, r7)
        b.addr_space_cast(r1, r2, 0, 1)
        b.lddw(r1, 3, 5)
        b.lddw(r2, -1)
        b.sign_extend(r1, r2, 8)
        b.load_acquire(r1, u8[r2 + 1])
        b.store_release(u64[r2], r1)
        b.call(5)
        b.call(KsymRef("bpf_x"), r1)
        b.callx(r3)
        b.jump_to(r3)
        b.set(r3, KsymRef("v"))
        b.set(r3, MapRef("m", 8))
        b.label("again")
        b.may_jump("again")
        b.jump_far("again")
    assert text_of(fill) == assemble("""
        r0 = *(u8 *)skb[23]
        r0 = *(u32 *)skb[r7 - 4]
        r1 = addr_space_cast(r2, 0, 1)
        r1 = map_idx[3] ll
        r2 = -1 ll
        r1 = (s8)r2
        r1 = load_acquire((u8 *)(r2 +1))
        store_release((u64 *)(r2 +0), r1)
        call bpf_ktime_get_ns
        call kfunc[bpf_x]
        callx r3
        gotox r3
        r3 = ksym[v] ll
        r3 = map[m][0]+8 ll
    again: may_goto again
        gotol again
    """).instructions()


def test_builders_are_composed():
    part = Builder()
    with part.count(r6, 3):
        part.add(r7, 1)
    b = Builder()
    b.set(r7, 0)
    b.append(part).append(part).append("if r7 == 6 goto ok\nr7 = 0\nok: r0 = r7\nexit")
    assert run(b.build()) == 6


def test_functions_are_composed_and_called_by_name():
    square = Builder()
    square.function("square")
    square.set(r0, r1)
    square.mul(r0, r1)
    square.exit()
    b = Builder()
    b.set(r6, 0)
    with b.count(r7, 4):
        b.call(FuncRef("square"), r7)
        b.add(r6, r0)
    b.set(r0, r6)
    b.exit()
    b.append(square).append(Builder().append([Instruction(0x95)]))
    assert run(b.build()) == 0 + 1 + 4 + 9
    made = b.assembly("xdp", license="GPL")
    assert made.sections["xdp"].labels == {"square": 10} and made.license == "GPL"


def test_a_builder_becomes_an_object():
    from rawbpf.asm import write_object
    from rawbpf.asm.text import MapDefinition
    from rawbpf.elf.bpf_object import BpfObjectFile
    b = Builder()
    b.set(r1, MapRef("cells"))
    b.call(FuncRef("f"))
    b.exit()
    b.function("f")
    b.set(r0, 5)
    b.exit()
    made = b.assembly("tc", [MapDefinition("cells", "array", 4, 8, 2, 0, {})], "GPL")
    file = BpfObjectFile.parse(write_object(made, {"array": 2}))
    assert [(f.name, f.section) for f in file.functions] == [("f", ".text"), ("tc", "tc")]
    assert file.maps["cells"].max_entries == 2 and file.license == "GPL"


@pytest.mark.parametrize("wrong", [
    lambda b: b.set(w1, r2), lambda b: b.set(u64[w1], 0), lambda b: b.set(r1, 1 << 64), lambda b: b.add(r1, 1 << 33),
    lambda b: b.set(u8[r1], 256), lambda b: b.set(u64[r1], 1 << 40), lambda b: b.set(r1, r2 == 5),
    lambda b: b.call("bpf_nothing"), lambda b: b.call("bpf_loop", 1, 2, 3, 4, 5, 6), lambda b: (b.jump("x"), b.build()),
    lambda b: (b.label("a"), b.label("a")), lambda b: bool(r1 == 2), lambda b: b.set(r1, u64[r2 + 40000]),
    lambda b: b.alu("**", r1, 2), lambda b: b.swap("be", r1, 8), lambda b: b.otherwise().__enter__(),
    lambda b: b.packet(u64), lambda b: b.packet(s16), lambda b: b.lddw(w1, 5), lambda b: b.lddw(r1, 1 << 64),
    lambda b: b.and_(r0, 0xFFFFFFFF), lambda b: b.add(r0, 1 << 31), lambda b: b.jump("x", r1 == 0xFFFFFFFF),
    lambda b: b.count(r1, 0xFFFFFFFF).__enter__(), lambda b: b.set(u64[r1], 0xFFFFFFFF), lambda b: b.set(r1, r2 + (1 << 31)),
    lambda b: b.atomic("+", u64[r1], w2), lambda b: b.atomic("+", s32[r1], r2), lambda b: b.load_acquire(w1, u64[r2]),
    lambda b: b.load_acquire(r1, s32[r2]), lambda b: b.store_release(s32[r1], r2), lambda b: b.swap("be", w1, 64),
    lambda b: b.callx(w3), lambda b: b.jump_to(w3), lambda b: b.addr_space_cast(r1, r2, 1 << 20, 1), lambda b: b.packet(u8, 1.5),
    lambda b: u64[r1 + 1.5], lambda b: b.call(1 << 40), lambda b: b.neg(5), lambda b: b.swap("be", 5, 16),
    lambda b: b.atomic("+", u64[r1], 5), lambda b: b.atomic("+", r1, r2), lambda b: b.atomic("cmpxchg", u64[r1], (r0, r2)),
    lambda b: b.load_acquire(5, u64[r1]), lambda b: b.store_release(u64[r1], 5), lambda b: b.callx(5),
    lambda b: b.packet(r1), lambda b: b.packet(u8, 0, 5), lambda b: b.addr_space_cast(r1, 5, 0, 1), lambda b: b.lddw(r1, "x"),
    lambda b: b.lddw(5, 5), lambda b: b.sign_extend(5, r1, 8), lambda b: b.add(5, r1), lambda b: b.add(u64[r1], 5),
    lambda b: b.alu([], r1, 1), lambda b: r1 - r2, lambda b: relocate([5], {}),
    lambda b: b.call(3.5), lambda b: b.call(None), lambda b: b.label(5), lambda b: b.append(5), lambda b: b.append([5]),
    lambda b: b.raw("exit"), lambda b: b.when(5).__enter__(), lambda b: b.jump("x", True),
    lambda b: b.addr_space_cast(w1, r2, 0, 1), lambda b: b.count(r1, 5, step=0).__enter__()])
def test_misuse_is_an_error(wrong):
    with pytest.raises(AsmError):
        wrong(Builder())


def test_relocate():
    code = [Instruction(0x18, 1, 1, ref=MapRef("m")), Instruction(0x18, 1, 2, ref=MapRef("d", 8)),
            Instruction(0x85, 0, 2, ref=KsymRef("k")), Instruction(0x18, 1, 3, ref=KsymRef("v"))]
    made = relocate(code, maps={"m": 5, "d": 6}, kfuncs={"k": (77, 1)}, values={"v": 9})
    assert encode(made, "little") == bytes.fromhex(
        "1811000005000000 0000000000000000 1821000006000000 0000000008000000 852001004d000000 1831000009000000"
        "0000000000000000".replace(" ", ""))


def test_formats(compile_c):
    made = assemble(".map m array key=4 value=8 max_entries=1\n.license \"GPL\"\nr1 = m ll\nr0 = -2147483648\nr2 = -1 ll\nexit")
    with pytest.raises(AsmError, match="the map m"):
        raw(made.instructions())
    plain = [i for i in made.instructions() if i.ref is None]
    assert raw(plain, "little") == encode(plain, "little")
    fields = json.loads(json_text(made))
    assert fields["license"] == "GPL" and fields["maps"][0]["name"] == "m"
    assert [from_dict(f) for f in fields["sections"][0]["instructions"]] == made.instructions()
    with pytest.raises(AsmError):
        from_dict({"code": 1})
    source = "#include <linux/bpf.h>\n#include <unistd.h>\n%s\nint main(void) { return write(1, insns, sizeof insns) < 0; }\n"
    program = compile_c(source % c_array(plain))
    assert decode(subprocess.run([program], capture_output=True, check=True).stdout) == plain


OBJECT = """
.map hits percpu_array key=4 value=8 max_entries=1
.license "GPL"
.rodata
msg: .asciz "hi %d"
.data
counter: .quad 5
.section socket
prog:
    *(u32 *)(r10 - 4) = 0
    r2 = r10
    r2 += -4
    r1 = hits ll
    call bpf_map_lookup_elem
    if r0 == 0 goto out
    r3 = counter ll
    r1 = *(u64 *)(r3 +0)
    r2 = msg ll
    r6 = *(u8 *)(r2 +1)
    call double
    r0 += r6
    r6 = r0
    call g
    r0 += r6
out:
    exit
double: r0 = r1
    r0 += r1
    exit
.text
g: w0 = 7
   exit
"""


def test_object_has_what_readelf_expects(tmp_path):
    from elftools.elf.elffile import ELFFile
    from rawbpf.asm.objectfile import write_object
    path = tmp_path / "t.o"
    path.write_bytes(write_object(assemble(OBJECT), {"percpu_array": 6}))
    with open(path, "rb") as file:
        elf = ELFFile(file)
        assert elf["e_machine"] == "EM_BPF" and elf["e_type"] == "ET_REL"
        names = [s.name for s in elf.iter_sections()]
        assert {".text", "socket", ".relsocket", ".maps", ".rodata", ".data", "license", ".BTF", ".BTF.ext"} <= set(names)
        symbols = {s.name: s for s in elf.get_section_by_name(".symtab").iter_symbols()}
        assert symbols["prog"]["st_info"]["type"] == "STT_FUNC" and symbols["prog"]["st_info"]["bind"] == "STB_GLOBAL"
        assert symbols["double"]["st_size"] == 24
        assert elf.get_section_by_name("license").data() == b"GPL\0"
        types = [r["r_info_type"] for r in elf.get_section_by_name(".relsocket").iter_relocations()]
        assert types == [1, 1, 1, 10, 10]


@pytest.mark.root
@pytest.mark.peer
def test_libbpf_loads_the_object(tmp_path):
    import ctypes
    from rawbpf.asm.objectfile import write_object
    from rawbpf.loader.program import Program
    from rawbpf.loader.uapi import MAP_TYPES
    path = tmp_path / "t.o"
    types = MAP_TYPES if isinstance(MAP_TYPES, dict) else {name: n for n, name in enumerate(MAP_TYPES)}
    path.write_bytes(write_object(assemble(OBJECT), types))
    lib = ctypes.CDLL("libbpf.so.1")
    pointer = ctypes.c_void_p
    lib.bpf_object__open_file.restype = lib.bpf_object__next_program.restype = pointer
    lib.bpf_object__load.argtypes = lib.bpf_program__fd.argtypes = lib.bpf_object__close.argtypes = [pointer]
    lib.bpf_object__next_program.argtypes = [pointer, pointer]
    opened = lib.bpf_object__open_file(str(path).encode(), None)
    try:
        assert lib.bpf_object__load(opened) == 0
        fd = lib.bpf_program__fd(lib.bpf_object__next_program(opened, None))
        with Program.from_fd(os.dup(fd)) as program:
            assert program.test_run(bytes(64)).retval == 5 + 5 + ord("i") + 7
    finally:
        lib.bpf_object__close(opened)
