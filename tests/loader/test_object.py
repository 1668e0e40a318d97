"""Objects before they meet a kernel: linking, CO-RE between made-up types, BTF for older kernels, damage."""

import os
import random
import resource
import struct
import time

import pytest

from rawbpf.asm import Instruction, assemble, slot_numbers, write_object
from rawbpf.elf.btf import Btf
from rawbpf.elf.btf_ext import CoreRelocation
from rawbpf.elf.image import ElfError, Image
from rawbpf.loader import Object, ObjectError, core_relo
from rawbpf.loader.core_relo import CoreResolver, Result
from rawbpf.loader.object_btf import for_kernel
from rawbpf.loader.uapi import MAP_TYPES
from tests.elf.test_bpf_object import SOURCE


@pytest.fixture(scope="module")
def data():
    return write_object(assemble(SOURCE), MAP_TYPES)


def test_what_a_program_calls_is_put_behind_it(data):
    obj = Object.parse(data, "own.o")
    program, = [each for each in obj.programs.values() if each.type == "tracepoint"]
    linked = program.link()
    assert [instruction.code for instruction in linked.instructions] == [0x18, 0x85, 0x95, 0xb7, 0x95]
    # from the slot behind the call (3) to the first of the function (4)
    assert (linked.instructions[1].src, linked.instructions[1].imm) == (1, 1)
    assert linked.maps == {"hits"}
    size, records = linked.func_info
    assert [struct.unpack_from("=I", records, at)[0] for at in range(0, len(records), size)] == [0, 4]


def test_data_before_loading(data):
    obj = Object.parse(data, "own.o")
    assert set(obj.rodata) == {"limit"} and set(obj.bss) == {"seen"}
    obj.rodata["limit"] = b"\1\2\3\4"
    assert obj.maps[".rodata"].content[:4] == b"\1\2\3\4"
    with pytest.raises(KeyError, match="did you mean limit"):
        obj.rodata["limits"] = 1
    assert obj.select() == [name for name in obj.programs if obj.programs[name].section != "?socket"]


# -- CO-RE between two made-up BTFs ----------------------------------------------------------------------

def struct_btf(name, size, *fields, encoding=0):
    """(Btf, id) of one struct with members (name, offset in bytes, bytes of an int): the ints first."""
    strings = bytearray(b"\0")
    records = b""

    def text(word):
        strings.extend(word.encode() + b"\0")
        return len(strings) - len(word) - 1
    for _, _, width in fields:
        records += struct.pack("=IIII", text("int%d" % width), 1 << 24, width, encoding << 24 | 8 * width)
    records += struct.pack("=III", text(name), 4 << 24 | len(fields), size)
    for number, (field, offset, _) in enumerate(fields, 1):
        records += struct.pack("=III", text(field), number, 8 * offset)
    return Btf.parse(struct.pack("=HBBIIIII", 0xeb9f, 1, 0, 24, 0, len(records), len(records), len(strings)) +
                     records + bytes(strings)), len(fields) + 1


LOCAL = ("thing___mine", 16, ("first", 0, 4), ("second", 8, 8))


def resolve(target, kind, access="0:1", local=LOCAL, **options):
    btf, type_id = struct_btf(*local, **options)
    return CoreResolver(btf, target and target[0]).resolve(CoreRelocation(0, type_id, access, kind))


def test_a_member_that_moved():
    target = struct_btf("thing", 64, ("added", 0, 8), ("second", 40, 8), ("first", 48, 4))
    assert resolve(target, "byte_off")[:2] == (40, 8)
    assert resolve(target, "byte_off", "0:0")[:2] == (48, 0)
    # the second element of an array of them
    assert resolve(target, "byte_off", "1:1")[:2] == (64 + 40, 16 + 8)
    assert resolve(target, "type_size", "0")[:2] == (64, 16)
    assert resolve(target, "type_exists", "0").value == 1


def test_a_member_that_is_gone():
    target = struct_btf("thing", 8, ("first", 0, 4))
    found = resolve(target, "byte_off")
    assert "byte_off of struct thing___mine.second" in found.poison and "no member second" in found.poison
    assert resolve(target, "field_exists").value == 0
    assert "no struct thing" in resolve(struct_btf("other", 8, ("first", 0, 4)), "byte_off").poison
    assert "no BTF" in resolve(None, "byte_off").poison


def test_a_member_of_another_size():
    target = struct_btf("thing", 16, ("first", 0, 8), ("second", 8, 4))
    found = resolve(target, "byte_off", "0:0")
    load = Instruction(0x61, 1, 2, 0)       # r1 = *(u32 *)(r2 + 0)
    assert core_relo.patch(load, found, "x") == Instruction(0x79, 1, 2, 0)
    # a signed one would have to be sign-extended
    signed = resolve(struct_btf("thing", 16, ("first", 0, 8), encoding=1), "byte_off", "0:0", encoding=1)
    assert core_relo.patch(load, signed, "x").imm == 0xbad2310


def test_candidates_that_disagree():
    one, _ = struct_btf("thing", 16, ("second", 0, 8))
    strings = b"\0thing\0second\0u64\0"
    records = struct.pack("=IIII", 14, 1 << 24, 8, 64)
    for offset in (0, 64):
        records += struct.pack("=IIIIII", 1, 4 << 24 | 1, 16, 7, 1, offset)
    two = Btf.parse(struct.pack("=HBBIIIII", 0xeb9f, 1, 0, 24, 0, len(records), len(records), len(strings)) +
                    records + strings)
    assert resolve((one, 0), "byte_off").value == 0
    with pytest.raises(ObjectError, match="disagree: 0 and 8"):
        resolve((two, 0), "byte_off")


def test_types_that_match():
    same = struct_btf("thing", 64, ("second", 40, 8), ("first", 0, 4), ("added", 8, 1))
    assert resolve(same, "type_matches", "0").value == 1
    for other in (struct_btf("thing", 16, ("first", 0, 4)),
                  struct_btf("thing", 16, ("first", 0, 4), ("second", 4, 4))):
        assert resolve(other, "type_matches", "0").value == 0
        assert resolve(other, "type_exists", "0").value == 1


@pytest.mark.parametrize("access", ["", "0:7", "x", "0:1:0", ":", "0:" * 70 + "0", "-1"])
def test_accesses_that_lead_nowhere(access):
    with pytest.raises(ObjectError):
        resolve(struct_btf("thing", 8, ("first", 0, 4)), "byte_off", access)


@pytest.mark.parametrize("instruction, result, wanted", [
    (Instruction(0xb7, 1, imm=8), Result(24, 8), Instruction(0xb7, 1, imm=24)),
    (Instruction(0x07, 1, imm=8), Result(-1, 8), Instruction(0x07, 1, imm=-1)),
    (Instruction(0x79, 1, 2, 8), Result(24, 8), Instruction(0x79, 1, 2, 24)),
    (Instruction(0x7a, 1, 0, 8, 5), Result(24, 8), Instruction(0x7a, 1, 0, 24, 5)),
    (Instruction(0x18, 1, imm=8), Result(1 << 40, 8), Instruction(0x18, 1, imm=1 << 40)),
])
def test_instructions_that_can_be_relocated(instruction, result, wanted):
    assert core_relo.patch(instruction, result, "x") == wanted


@pytest.mark.parametrize("instruction, result, reason", [
    (Instruction(0xb7, 1, imm=9), Result(24, 8), "has 9 where its types say 8"),
    (Instruction(0x79, 1, 2, 8), Result(40000, 8), "does not fit"),
    (Instruction(0xbf, 1, 2), Result(24, 8), "without an immediate"),
    (Instruction(0x95), Result(24, 8), "cannot be relocated"),
])
def test_instructions_that_cannot(instruction, result, reason):
    with pytest.raises(ObjectError, match=reason):
        core_relo.patch(instruction, result, "x")


# -- BTF for older kernels -------------------------------------------------------------------------------

def test_btf_keeps_ids_and_strings_whatever_the_kernel_lacks(data):
    obj = Object.parse(data, "own.o")
    before = obj.file.btf
    for lacking in ((), ("datasec",), ("func", "global"), ("float", "decl_tag", "type_tag", "enum64")):
        after = Btf.parse(for_kernel(obj.file, obj.externs, lambda name: name not in lacking))
        assert after.count == before.count
        kinds = {after.kind(number) for number in range(1, after.count)}
        assert not kinds & set(lacking)
        for number in range(1, after.count):
            if after.kind(number) == before.kind(number):
                assert after.name(number) == before.name(number)
    assert {"datasec", "var", "func"} <= {before.kind(number) for number in range(1, before.count)}


# -- damage ----------------------------------------------------------------------------------------------

def exercise(data):
    """All that needs no kernel. Returns the error, or None."""
    try:
        obj = Object.parse(data, "damaged.o")
        if obj.file.btf is not None:
            for_kernel(obj.file, obj.externs, lambda name: True)
        dict(obj.rodata.items()), dict(obj.bss.items()), dict(obj.data.items())
        for program in obj.programs.values():
            linked = program.link()
            assert slot_numbers(linked.instructions)[-1] < 1 << 21
    except (ElfError, ObjectError) as error:
        assert "\n" not in str(error)
        return error
    return None


def test_an_object_that_ends_anywhere(data):
    start = time.monotonic()
    assert exercise(data) is None
    for end in range(len(data)):
        # the section headers are at its end
        assert exercise(data[:end]) is not None, end
    assert time.monotonic() - start < 30


@pytest.mark.slow
def test_random_damage(data):
    rng = random.Random(6)
    refused = 0
    for _ in range(800):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        start = time.monotonic()
        refused += exercise(bytes(damaged)) is not None
        assert time.monotonic() - start < 5
    assert refused > 50


def test_sections_of_four_gigabytes(data):
    shoff, = struct.unpack_from("=Q", data, 40)
    count, = struct.unpack_from("=H", data, 60)
    for number in range(1, count):
        damaged = bytearray(data)
        struct.pack_into("=Q", damaged, shoff + 64 * number + 32, 1 << 32)
        error = exercise(bytes(damaged))
        kind, = struct.unpack_from("=I", damaged, shoff + 64 * number + 4)
        if kind == 8:
            assert "more than a map can hold" in str(error)


def spent(function):
    """(what a forked child says of function(), its seconds, its memory in MB)"""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        begin = time.monotonic()
        try:
            said = "%s" % function()
        except (ElfError, ObjectError) as error:
            said = "refused: %s" % error
        except BaseException as error:
            said = repr(error)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        os.write(writing, ("%s\n%f\n%d" % (said, time.monotonic() - begin, used)).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        said, seconds, memory = file.read().split("\n")
    os.waitpid(child, 0)
    return said, float(seconds), int(memory)


@pytest.mark.slow
def test_files_of_gigabytes(data, tmp_path):
    """Sparse files whose sections really have 4 GB, or tables and functions of 100 MB: neither time nor memory."""
    path = str(tmp_path / "large.o")
    image, (shoff,) = Image(data, "own.o"), struct.unpack_from("=Q", data, 40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

    def opened(changed, size, use=Object.open):
        with open(path, "wb") as file:
            file.write(changed)
        os.truncate(path, size)
        said, seconds, memory = spent(lambda: use(path))
        assert seconds < 10 and memory < before + 450, (said, seconds, memory)
        assert "Error" not in said
        return said
    tables = {".BTF", ".BTF.ext", ".relsocket", ".symtab", ".strtab"}
    for section in image.sections[1:]:
        for length, size in ((4 << 30, 5 << 30), (100 << 20, 101 << 20)):
            changed = bytearray(data)
            struct.pack_into("=Q", changed, shoff + 64 * section.index + 32, length)
            said = opened(changed, size)
            if length > size >> 1 and size > 1 << 30:
                assert "more than any object of BPF programs" in said
            elif section.name in tables:
                assert "section %s has %d bytes, more than any has" % (section.name, length) in said, said
    table, = [section for section in image.sections if section.type == 2]
    changed = bytearray(data)
    for section in image.sections:
        if section.flags & 4:           # SHF_EXECINSTR
            struct.pack_into("=Q", changed, shoff + 64 * section.index + 32, 100 << 20)
    refused = 0
    for number in range(1, table.size // 24):
        other = bytearray(changed)
        struct.pack_into("=Q", other, table.offset + 24 * number + 16, 80 << 20)
        refused += "has %d instructions, more than the kernel takes" % (10 << 20) in opened(other, 101 << 20)
    assert refused >= 2
    # types by themselves, and in a file like a kernel's
    assert "BTF of 134217732 bytes is more than any has" in opened(b"\x9f\xeb\1\0" + bytes(96), 5 << 30, Btf.open)
    section, = [section for section in image.sections if section.name == ".BTF"]
    changed = bytearray(data)
    struct.pack_into("=Q", changed, shoff + 64 * section.index + 32, 4 << 30)
    assert "BTF of 4294967296 bytes is more than any has" in opened(changed, 5 << 30, Btf.open)
