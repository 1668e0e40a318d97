import os
import re
import struct
import zlib
from pathlib import Path

import pytest

from rawbpf.elf.image import ElfError, Image
from tests.cc import compile_c
from tests.elf.files import TARGET, run


@pytest.fixture(scope="module")
def target():
    return compile_c(TARGET, "-O1", "-Wl,--build-id=0x0123456789abcdef", name="m")


def test_sections_and_segments_are_what_readelf_prints(target):
    image = Image.open(target)
    printed = [(name, int(addr, 16), int(offset, 16), int(size, 16)) for name, addr, offset, size in
               re.findall(r"\[ *\d+\] (\.\S+) +\S+ +([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+)", run("readelf", "-SW", target))]
    assert len(printed) > 20
    assert [(s.name, s.addr, s.offset, s.size) for s in image.sections[1:]] == printed
    loads = [tuple(int(x, 16) for x in row) for row in
             re.findall(r"LOAD +0x(\w+) 0x(\w+) 0x\w+ 0x(\w+) 0x(\w+)", run("readelf", "-lW", target))]
    assert [(s.offset, s.vaddr, s.filesz, s.memsz) for s in image.segments if s.type == 1] == loads
    assert (image.type, image.machine, image.bits) == ("DYN", os.uname().machine, 64)
    assert "0x%x" % image.entry in run("readelf", "-hW", target)


def test_build_id(target):
    assert Image.open(target).build_id == "0123456789abcdef"
    assert Image.open(compile_c(TARGET, "-Wl,--build-id=none")).build_id == ""


def test_file_offset_is_value_less_p_vaddr_plus_p_offset():
    # Linked at a high address, a symbol's value lies far beyond the end of the file.
    path = compile_c("int only(void) { return 1; }", "-shared", "-fPIC", "-Wl,-Ttext-segment=0x3400000000", name="hi.so")
    image = Image.open(path)
    value = int(re.search(r"([0-9a-f]+) T only", run("nm", path)).group(1), 16)
    offset, vaddr = re.search(r"LOAD +(0x\w+) (0x\w+) 0x\w+ 0x\w+ 0x\w+ R E", run("readelf", "-lW", path)).groups()
    assert value > os.path.getsize(path)
    assert image.file_offset(value) == value - int(vaddr, 16) + int(offset, 16)
    assert image.vaddr(image.file_offset(value)) == value
    assert image.file_offset(0x3300000000) is None
    first, end = image.executable_ranges()[0]
    assert first <= value < end


def test_an_address_beyond_the_file_part_of_a_segment_has_no_offset():
    image = Image.open(compile_c("char room[1000000]; int main(void) { return room[0]; }"))
    bss = image.section(".bss")
    assert image.file_offset(bss.addr + bss.size - 1) is None


def test_compressed_section(tmp_path):
    source = "#include <stdio.h>\n" + "".join("int f%d(int x) { return x; }\n" % i for i in range(100)) + "int main(void) { return 0; }"
    plain = compile_c(source, name="plain")
    run("objcopy", "--compress-debug-sections=zlib", plain, tmp_path / "packed")
    image = Image.open(tmp_path / "packed")
    section = image.section(".debug_info")
    assert section.flags & 0x800 and section.size < len(image.data(section))
    assert bytes(image.data(section)) == bytes(Image.open(plain).data(Image.open(plain).section(".debug_info")))


def test_debug_link(tmp_path, target):
    (tmp_path / "m.dbg").write_bytes(b"some debug file")
    run("objcopy", "--add-gnu-debuglink=%s" % (tmp_path / "m.dbg"), target, tmp_path / "m")
    assert Image.open(tmp_path / "m").debug_link == ("m.dbg", zlib.crc32(b"some debug file"))
    assert Image.open(target).debug_link is None


@pytest.mark.parametrize("content, reason", [
    (b"", "empty"), (b"\x7fEL", "not an ELF"), (b"#!/bin/sh\n" * 10, "not an ELF"),
    (b"\x7fELF\x03\x01" + bytes(60), "class 3"), (b"\x7fELF\x02\x01" + bytes(20), "header lies outside"),
])
def test_what_is_not_elf_says_so(tmp_path, content, reason):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(ElfError, match=reason) as caught:
        Image.open(path)
    assert str(path) in str(caught.value)


def test_what_is_not_a_file_says_so(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path, reason in ((tmp_path, "not a regular"), (tmp_path / "fifo", "not a regular"),
                         (tmp_path / "none", "No such file"), ("a\0b", "null")):
        with pytest.raises(ElfError, match=reason):
            Image.open(path)


def test_a_broken_section_table_leaves_the_segments(target):
    data = bytearray(Path(target).read_bytes())
    struct.pack_into("<Q", data, 40, len(data) + 4096)      # e_shoff
    image = Image(bytes(data), "broken")
    with pytest.raises(ElfError, match="section header table .* outside"):
        image.sections
    assert image.executable_ranges() == Image.open(target).executable_ranges()


def test_big_endian_and_32_bit_headers():
    # e_ident, then ET_EXEC, EM_PPC64, version, entry, no tables
    big = b"\x7fELF\x02\x02\x01" + bytes(9) + struct.pack(">HHIQQQIHHHHHH", 2, 21, 1, 0x1234, 0, 0, 0, 64, 0, 0, 0, 0, 0)
    image = Image(big)
    assert (image.order, image.bits, image.machine, image.type, image.entry) == (">", 64, "ppc64", "EXEC", 0x1234)
    little = b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HHIIIIIHHHHHH", 3, 40, 1, 0x99, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    little += struct.pack("<8I", 1, 0x1000, 0x20000, 0, 0x500, 0x600, 5, 0x1000)
    image = Image(little)
    assert (image.bits, image.machine) == (32, "arm")
    assert image.file_offset(0x20010) == 0x1010
    assert image.executable_ranges() == [(0x20000, 0x20500)]
