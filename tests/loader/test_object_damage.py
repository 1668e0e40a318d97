"""A slice of tests.loader.damage: objects that are cut short, and 5,000 that are damaged, in bounded time and memory;
BTF that goes in circles, relocations that lead outside, sections of 4 GB."""

import resource
import struct
import time

import pytest

from rawbpf.asm.btfwriter import CONST, BtfWriter
from rawbpf.elf.btf import Btf
from rawbpf.elf.btf_merge import merge
from rawbpf.elf.image import ElfError, Image
from rawbpf.loader import Object, ObjectError
from rawbpf.loader.core_relo import CoreResolver
from rawbpf.elf.btf_ext import CoreRelocation
from tests.loader import damage

pytestmark = [pytest.mark.peer, pytest.mark.root]       # addresses of kernel symbols are for root


@pytest.fixture(scope="module")
def objects():
    found = damage.fixtures()
    for _, data in found:
        assert damage.exercise(data) is None
    return found


def test_objects_cut_short(objects):
    assert damage.truncated(objects, 7) > 9000


def test_damaged_objects(objects):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = damage.flips(objects, 5000, "5,000")
    assert 1000 < refused < 5000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50000       # KiB


def test_sections_of_four_gigabytes(objects):
    for _, data in objects:
        shoff, = struct.unpack_from("=Q", data, 40)
        count, = struct.unpack_from("=H", data, 60)
        for number in range(1, count):
            damaged = bytearray(data)
            struct.pack_into("=Q", damaged, shoff + 64 * number + 32, 1 << 32)
            kind, = struct.unpack_from("=I", damaged, shoff + 64 * number + 4)
            error = damage.exercise(bytes(damaged))
            # what is in no section of the file's needs no room in it (.llvm_addrsig is not read)
            assert error is not None or kind not in (1, 2, 3, 8, 9) or b"addrsig" in data, number


def test_relocations_that_lead_outside(objects):
    """Each relocation in turn at an offset outside its section, and to a symbol that is not there."""
    seen = 0
    for name, data in objects:
        image = Image(data, name)
        for section in image.sections:
            if section.type != 9 or section.name.startswith((".rel.BTF", ".rel.debug")):
                continue
            for at in range(section.offset, section.offset + section.size, 16):
                for offset, value in ((0, struct.pack("=Q", 1 << 40)), (12, struct.pack("=I", 0xffffff))):
                    damaged = bytearray(data)
                    damaged[at + offset:at + offset + len(value)] = value
                    error = damage.exercise(bytes(damaged))
                    assert error is not None and section.name.replace(".rel", "") in str(error), (name, error)
                    seen += 1
    assert seen > 100


def circles():
    """BTFs that refer to themselves in every way that is none of C's."""
    writer = BtfWriter()                            # const of const of ...
    writer.add("", CONST, 0, 2)
    writer.add("", CONST, 0, 1)
    writer.struct("thing", 4, [("member", 1, 0)])
    yield writer
    writer = BtfWriter()                            # a struct that contains itself
    writer.struct("thing", 8, [("inner", 1, 0)])
    yield writer
    writer = BtfWriter()                            # a struct whose nameless member is itself
    writer.struct("thing", 8, [("", 1, 0)])
    yield writer
    writer = BtfWriter()                            # an array of itself
    writer.add("", 3, 0, 0, (1, 1, 1000))
    writer.struct("thing", 8, [("member", 1, 0)])
    yield writer
    writer = BtfWriter()                            # a typedef of itself, named as what is looked for
    writer.add("thing", 8, 0, 1)
    yield writer
    writer = BtfWriter()                            # a function of itself
    writer.add("", 13, 1, 1, (0, 1))
    writer.add("thing", 8, 0, 1)
    yield writer


@pytest.mark.parametrize("number", range(6))
def test_circular_types(number):
    data = list(circles())[number].bytes()
    btf = Btf.parse(data)
    start = time.monotonic()
    for kind in ("struct", "typedef"):
        type_id = btf.find_id("thing", kind)
        for relocation in ("byte_off", "byte_sz", "field_exists", "type_exists", "type_size", "type_matches",
                           "target_type_id"):
            for access in ("0", "0:0", "0:0:0:0"):
                try:
                    CoreResolver(btf, btf).resolve(CoreRelocation(0, type_id, access, relocation))
                except ObjectError as error:
                    assert "\n" not in str(error)
    again, _ = merge(btf)
    assert Btf.parse(again).count <= btf.count
    assert time.monotonic() - start < 5


def test_the_first_error_names_the_file_and_the_place():
    with pytest.raises(ElfError, match=r"damaged.o.*symbol 3 lies in section 4000 of \d+"):
        _, data = damage.fixtures()[0]
        image = Image(data, "x")
        table, = [section for section in image.sections if section.type == 2]
        damaged = bytearray(data)
        struct.pack_into("=H", damaged, table.offset + 3 * 24 + 6, 4000)
        Object.parse(bytes(damaged), "damaged.o")
