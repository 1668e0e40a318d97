"""Object files as they are read: what our own assembler writes comes back, and tables agree with the ABI."""

import struct

import pytest

from rawbpf.asm import assemble, write_object
from rawbpf.elf import bpf_sections, btf_raw
from rawbpf.elf.bpf_object import BpfObjectFile
from rawbpf.elf.btf import Btf
from rawbpf.elf.image import ElfError
from rawbpf.loader.uapi import ATTACH_TYPES, MAP_TYPES, PROG_TYPES

SOURCE = """
.license "Dual BSD/GPL"
.map hits hash key=4 value=8 max_entries=64
.map calls percpu_array key=4 value=16 max_entries=3
.rodata
limit:
    .long 1000
.bss
seen:
    .zero 8
.section tracepoint/syscalls/sys_enter_openat
    r1 = map[hits] ll
    call helper
    exit
.section ?socket
    r1 = map[calls] ll
    r1 = limit ll
    r0 = 0
    exit
.text
helper:
    r0 = 7
    exit
"""


@pytest.fixture(scope="module")
def data():
    return write_object(assemble(SOURCE), MAP_TYPES)


@pytest.fixture(scope="module")
def file(data):
    return BpfObjectFile.parse(data, "own.o")


def test_programs_and_what_they_call(file):
    found = {(each.section, each.size // 8, each.program) for each in file.functions}
    assert found == {("tracepoint/syscalls/sys_enter_openat", 4, True), ("?socket", 6, True), (".text", 2, False)}
    assert file.license == "Dual BSD/GPL"


def test_maps(file):
    assert {name: (each.type, each.key_size, each.value_size, each.max_entries)
            for name, each in file.maps.items()} == {"hits": (1, 4, 8, 64), "calls": (6, 4, 16, 3)}


def test_data(file):
    assert file.data[".rodata"].content[:4] == struct.pack("=I", 1000)
    assert file.data[".bss"].content is None and file.data[".bss"].size == 8
    assert [variable[:3] for variable in file.variables(".bss")] == [("seen", 0, 8)]


def test_functions_have_their_places(file):
    assert {name: [offset for offset, _ in records] for name, records in file.btf_ext.functions.items()} == {
        "tracepoint/syscalls/sys_enter_openat": [0], "?socket": [0], ".text": [0]}


@pytest.mark.parametrize("change, reason", [
    (lambda data: data[:18] + b"\x3e\0" + data[20:], "machine x86_64"),
    (lambda data: data[:16] + b"\x02\0" + data[18:], "type EXEC"),
    (lambda data: b"", "not an ELF file"),
    (lambda data: data[:5] + b"\2" + data[6:], "."),
])
def test_what_is_no_object(data, change, reason):
    with pytest.raises(ElfError, match=reason):
        BpfObjectFile.parse(change(data))


def test_every_section_type_is_one_of_the_kernels():
    for row in bpf_sections.TABLE:
        assert row.program_type in PROG_TYPES
        assert row.attach_type is None or row.attach_type in ATTACH_TYPES


@pytest.mark.parametrize("name, program_type, attach_type, target, options", [
    ("kprobe/do_exit+4", "kprobe", None, "do_exit+4", set()),
    ("kprobe.multi/vfs_*", "kprobe", "trace_kprobe_multi", "vfs_*", set()),
    ("uretprobe//bin/bash:readline", "kprobe", None, "/bin/bash:readline", set()),
    ("?fentry.s/vfs_read", "tracing", "trace_fentry", "vfs_read", {"btf", "sleepable"}),
    ("lsm/file_open", "lsm", "lsm_mac", "file_open", {"btf"}),
    ("xdp.frags", "xdp", "xdp", "", {"frags"}),
    ("tc", "sched_cls", None, "", set()),
    ("tc/ingress", "sched_cls", "tcx_ingress", "", set()),
    ("cgroup/connect4", "cgroup_sock_addr", "cgroup_inet4_connect", "", set()),
    ("raw_tp", "raw_tracepoint", None, "", set()),
])
def test_section_names(name, program_type, attach_type, target, options):
    row, found = bpf_sections.classify(name)
    assert (row.program_type, row.attach_type, found, set(row.options)) == (program_type, attach_type, target, options)


@pytest.mark.parametrize("name", ["xdp_pass", "tcx", "kprobes/x", "socket/x", "", "maps"])
def test_names_that_say_nothing(name):
    assert bpf_sections.classify(name) == (None, "")


@pytest.mark.parametrize("name, essential", [
    ("task_struct", "task_struct"), ("task_struct___old", "task_struct"), ("a___b___c", "a___b"),
    ("___x", "___x"), ("x___", "x___"), ("a____b", "a____b"),
])
def test_flavours(name, essential):
    assert btf_raw.essential(name) == essential


def blob(types, strings=b"\0int\0loop\0"):
    return struct.pack("=HBBIIIII", 0xeb9f, 1, 0, 24, 0, len(types), len(types), len(strings)) + types + strings


def test_circular_types_end_in_an_error():
    # 1: typedef of 2, 2: typedef of 1, 3: an array of itself
    btf = Btf.parse(blob(struct.pack("=III", 5, 8 << 24, 2) + struct.pack("=III", 5, 8 << 24, 1) +
                         struct.pack("=IIIIII", 0, 3 << 24, 0, 3, 3, 2)))
    for ask in (lambda: btf_raw.skip(btf, 1), lambda: btf_raw.size(btf, 3), lambda: btf_raw.size(btf, 1)):
        with pytest.raises(ElfError, match="without end"):
            ask()
