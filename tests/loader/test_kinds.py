"""Kinds of maps beyond hash and array, typed access, values by C type."""

import os
import struct

import pytest

from rawbpf.elf.types import Array, Enum, Field, Float, Int, Pointer, Struct, Typedef, Void
from rawbpf.loader import KernelError, Map, Program, features, values
from rawbpf.loader.kernel import possible_cpus
from rawbpf.loader.mapkinds import lpm_key
from rawbpf.loader.uapi import EXIST, F_MMAPABLE, F_NO_PREALLOC, F_RDONLY, F_RDONLY_PROG, F_WRONLY, NOEXIST
from tests.loader.code import (EXIT, RETURN_0, alu, call, insn, load, lookup, map_fd, mov, mov_reg)


def key(number):
    return struct.pack("=I", number)


# -- values: no kernel needed --

U8, U16, U32, U64 = (Int(name, size, False) for name, size in (("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8)))
S32 = Int("int", 4, True)
CHAR = Int("char", 1, True, "char")


@pytest.mark.parametrize("type, wrong, said", [
    ("I", "x", "'x' does not fit the format 'I'"), ("I", -1, "-1 does not fit the format 'I'"), ("I", None, "None does not fit"),
    ("HH", 1, "'HH', which takes a tuple of 2"), ("HH", (1, 2, 3), "which takes a tuple of 2"), (4, 4, "this takes 4 bytes, not 4"),
    (4, "abcd", "this takes 4 bytes, not 'abcd'"), (4, b"abc", "this takes 4 bytes, not 3"), (U32, "x", "'x' is no integer"),
    (U32, None, "None is no integer"), (U32, 1 << 32, "4294967296 does not fit into 4 bytes"), (S32, -(1 << 31) - 1, "does not fit"),
    (Float("double", 8), "x", "'x' is no double"), (Array(CHAR, 4), 5, r"takes text or bytes, not 5"),
    (Array(U8, 2), 5, "takes a list of its elements, not 5"), (Array(U8, 2), "ab", "takes a list of its elements")])
def test_wrong_values_are_one_clear_error(type, wrong, said):
    with pytest.raises(ValueError, match=said):
        values.codec(type).encode(wrong)


def test_a_format_that_is_none():
    with pytest.raises(ValueError, match="'Z' is no struct format"):
        values.codec("Z")
    assert values.codec(U32).encode(-1) == b"\xff\xff\xff\xff"        # as in C
    assert values.codec(S32).encode((1 << 32) - 2) == b"\xfe\xff\xff\xff"


@pytest.mark.parametrize("type, data, value", [
    (U32, b"\xff\xff\xff\xff", 4294967295),
    (S32, b"\xfe\xff\xff\xff", -2),
    (Int("_Bool", 1, False, "bool"), b"\x01", True),
    (Int("__int128", 16, True), b"\x01" + bytes(14) + b"\x80", -(1 << 127) + 1),
    (Float("double", 8), struct.pack("=d", 1.5), 1.5),
    (Float("float", 4), struct.pack("=f", -0.25), -0.25),
    (Pointer(Void()), struct.pack("=Q", 0xffff888000000000), 0xffff888000000000),
    (Enum("e", 4, True, {"A": -1}), b"\xff\xff\xff\xff", -1),
    (Array(CHAR, 8), b"abc\0\0\0\0\0", "abc"),
    (Array(CHAR, 4), b"\xd0\xb6\xd0\0", "\u0436\udcd0"),          # cut in the middle of a letter
    (Array(U16, 3), struct.pack("=3H", 1, 2, 3), [1, 2, 3]),
    (Array(Array(U8, 2), 2), b"\1\2\3\4", [[1, 2], [3, 4]]),
    (Typedef("pid_t", S32), b"\x07\0\0\0", 7),
    # packed {u16, u32}
    (Struct("struct", "p", 6, [Field("a", U16, 0), Field("b", U32, 2)]),
     struct.pack("=HI", 0x1234, 0x56789abc), {"a": 0x1234, "b": 0x56789abc}),
    # {char, 16-byte integer}
    (Struct("struct", "q", 32, [Field("c", CHAR, 0), Field("i", Int("u128", 16, False), 16)]),
     b"\x41" + bytes(15) + (1 << 100).to_bytes(16, "little"), {"c": 65, "i": 1 << 100}),
    # bit fields of 3, 5 and 24 bits in one u32: 5, 17, 0xabcdef
    (Struct("struct", "b", 4, [Field("x", U32, 0, 0, 3), Field("y", U32, 0, 3, 5),
                               Field("z", U32, 0, 8, 24)]),
     struct.pack("=I", 5 | 17 << 3 | 0xabcdef << 8), {"x": 5, "y": 17, "z": 0xabcdef}),
    # a signed bit field: 3 bits 0b101 is -3
    (Struct("struct", "s", 4, [Field("x", S32, 0, 0, 3)]), struct.pack("=I", 5), {"x": -3}),
    # members of an anonymous union stand beside the others
    (Struct("struct", "u", 8, [Field("kind", U32, 0), Field("", Struct("union", "", 4, [
        Field("number", U32, 0), Field("bytes", Array(U8, 4), 0)]), 4)]),
     struct.pack("=II", 1, 0x04030201), {"kind": 1, "number": 0x04030201, "bytes": [1, 2, 3, 4]}),
])
def test_values_by_type(type, data, value):
    made = values.codec(type)
    assert made.size == len(data)
    assert made.decode(data) == value
    assert made.decode(made.encode(value)) == value


def test_values_by_format():
    assert values.codec("IQ").size == 12 and values.codec("IQ").decode(bytes(12)) == (0, 0)
    assert values.codec("Q").decode(struct.pack("=Q", 9)) == 9
    assert values.codec("@IQ").size == 16
    assert values.codec(5).decode(b"abcde") == b"abcde"
    with pytest.raises(ValueError, match="takes 5 bytes, not 2"):
        values.codec(5).encode(b"ab")
    with pytest.raises(TypeError, match="no value"):
        values.codec(Void())
    with pytest.raises(ValueError, match="no member z"):
        values.codec(Struct("struct", "p", 2, [Field("a", U16, 0)])).encode({"z": 1})
    with pytest.raises(ValueError, match="does not fit"):
        values.codec(Array(CHAR, 4)).encode("12345")


# -- typed maps --

@pytest.mark.slow
def test_types_that_do_not_fit_together():
    """Damaged BTF: members outside their struct, members without end."""
    for type in (Struct("struct", "s", 8, [Field("a", Array(U32, 1 << 24), 0)]),
                 Struct("struct", "s", 8, [Field("a", U32, 5)])):
        with pytest.raises(TypeError, match="member a of struct s lies outside"):
            values.of_type(type)
    deep = U32
    for level in range(40):
        deep = Struct("union", "u%d" % level, 4, [Field(name, deep, 0) for name in "ab"])
    with pytest.raises(TypeError, match="has more than 65536 members"):
        values.of_type(deep)
    assert values.of_type(Array(Array(U32, 10), 20)).count == 1 + 20 * 11


@pytest.mark.kernel
def test_typed_map_is_a_mapping():
    record = Struct("struct", "r", 12, [Field("pid", U32, 0), Field("comm", Array(CHAR, 8), 4)])
    with Map.create("hash", 4, 12, 100, name="typed") as raw:
        map = raw.typed("I", record)
        assert dict(map) == {} and len(map) == 0
        map[7] = {"pid": 1234, "comm": "cat"}
        assert map[7] == {"pid": 1234, "comm": "cat"}
        assert raw.lookup(key(7)) == struct.pack("=I8s", 1234, b"cat")
        assert 7 in map and 8 not in map
        with pytest.raises(KeyError):
            map[8]
        with pytest.raises(KeyError):
            del map[8]
        assert map.get(8, "none") == "none"
        assert not map.add(7, {}) and map.add(8, {}) and map.replace(8, {"pid": 1})
        assert not map.replace(9, {})
        assert sorted(map) == [7, 8]
        map.update_many({number: {"pid": number} for number in range(50)})
        assert {number: value["pid"] for number, value in map.items()} == {n: n for n in range(50)}
        assert map.pop(3)["pid"] == 3 and 3 not in map
        del map[4]
        assert len(map) == 48
        map.clear()
        assert not list(map)
        with pytest.raises(ValueError, match="keys of map typed have 4 bytes, this type has 8"):
            raw.typed("Q", record)


@pytest.mark.kernel
def test_typed_per_cpu_map():
    cpus = len(possible_cpus())
    with Map.create("percpu_hash", 8, 8, 10) as raw:
        map = raw.typed("II", "Q")
        map[1, 2] = list(range(cpus))
        map[3, 4] = 5
        assert dict(map.items()) == {(1, 2): list(range(cpus)), (3, 4): [5] * cpus}


# -- kinds --

@pytest.mark.kernel
def test_map_in_map():
    with Map.create("array", 4, 8, 4, name="template") as template:
        for kind in ("array_of_maps", "hash_of_maps"):
            with Map.create(kind, 4, 4, 3, inner_map=template) as outer, \
                    Map.create("array", 4, 8, 4, name="inner") as inner:
                inner.update(key(1), b"inside!!")
                outer.update(2, inner)
                assert outer.number(2) == inner.info().id
                with outer.inner(2) as found:
                    assert found.name == "inner" and found.lookup(key(1)) == b"inside!!"
                assert outer.inner(1) is None
                # the program that looks into the outer map reads the inner one's element 1
                code = (lookup(outer, 1, 2) + insn(0x62, 10, 0, -4, 1) + mov_reg(2, 10) + alu(0, 2, -4) +
                        call(1) + insn(0x55, 0, 0, 1, 0) + EXIT + load(0, 0, 0, 4) + EXIT)
                with Program.load("socket_filter", code) as program:
                    assert program.test_run(bytes(14)).retval == struct.unpack("=I", b"insi")[0]
                    assert outer.delete(2)
                    assert program.test_run(bytes(14)).retval == 0
        with Map.create("hash", 4, 8, 4) as other, \
                Map.create("array_of_maps", 4, 4, 3, inner_map=template) as outer, \
                pytest.raises(KernelError):
            outer.update(0, other)         # not of the template's shape


@pytest.mark.kernel
def test_tail_call():
    with Map.create("prog_array", 4, 4, 2) as table:
        with Program.load("socket_filter", mov(0, 42) + EXIT) as target:
            table.update(1, target)
            assert table.number(1) == target.info().id
            # r1 = ctx, r2 = table, r3 = index; falls through when the slot is empty
            for index, expected in ((1, 42), (0, 5)):
                code = map_fd(2, table) + mov(3, index) + call(12) + mov(0, 5) + EXIT
                with Program.load("socket_filter", code) as program:
                    assert program.test_run(bytes(14)).retval == expected
        assert table.delete(1)
        with Program.load("kprobe", RETURN_0) as other, pytest.raises(KernelError):
            table.update(0, other)         # programs of one type only


@pytest.mark.kernel
def test_longest_prefix():
    with Map.create("lpm_trie", 8, 4, 10, flags=F_NO_PREALLOC) as trie:
        trie.update(lpm_key(8, bytes([10, 0, 0, 0])), b"8...")
        trie.update(lpm_key(24, bytes([10, 1, 2, 0])), b"24..")
        assert trie.lookup(lpm_key(32, bytes([10, 1, 2, 3]))) == b"24.."
        assert trie.lookup(lpm_key(32, bytes([10, 9, 9, 9]))) == b"8..."
        assert trie.lookup(lpm_key(32, bytes([11, 0, 0, 1]))) is None
        assert dict(trie.items()) == {lpm_key(8, bytes([10, 0, 0, 0])): b"8...",
                                      lpm_key(24, bytes([10, 1, 2, 0])): b"24.."}


@pytest.mark.kernel(since="5.16")
def test_bloom_filter():
    with Map.create("bloom_filter", 0, 8, 1000) as bloom:
        for number in range(0, 200, 2):
            bloom.push(struct.pack("=Q", number))
        assert all(struct.pack("=Q", number) in bloom for number in range(0, 200, 2))
        wrong = sum(struct.pack("=Q", number) in bloom for number in range(1, 2000, 2))
        assert wrong < 100      # of 1000; a filter ten times too large errs rarely


@pytest.mark.kernel(since="5.11")
def test_task_storage():
    with Map.create("task_storage", 4, 16, 0, name="per_task") as storage:
        mine = os.pidfd_open(os.getpid())
        assert storage.lookup(mine) is None
        assert storage.update(mine, b"0123456789abcdef", NOEXIST)
        assert not storage.update(mine, bytes(16), NOEXIST)
        assert storage.lookup(mine) == b"0123456789abcdef"
        assert storage.update(mine, bytes(16), EXIST) and storage.lookup(mine) == bytes(16)
        assert storage.delete(mine) and not storage.delete(mine)
        with pytest.raises(KernelError):
            list(storage.keys())
        os.close(mine)


@pytest.mark.kernel
def test_socket_storage():
    import socket
    with Map.create("sk_storage", 4, 4, 0) as storage, socket.socket() as sock:
        storage.update(sock, b"sock")
        assert storage.lookup(sock) == b"sock"
    if features.has_map("inode_storage"):
        with Map.create("inode_storage", 4, 4, 0) as storage, open("/proc/self/exe", "rb") as file:
            try:
                storage.update(file, b"file")
            except KernelError:
                return          # not every file system and configuration (CONFIG_BPF_LSM) has it
            assert storage.lookup(file) == b"file"


@pytest.mark.kernel
def test_values_as_shared_memory():
    with Map.create("array", 4, 12, 3, flags=F_MMAPABLE, name="shared") as array:
        area = array.mmap()
        struct.pack_into("=I", area, 16, 77)                # element 1: 12 rounded up to 16
        assert array.lookup(key(1)) == struct.pack("=III", 77, 0, 0)
        array.update(key(2), struct.pack("=III", 1, 2, 3))
        assert area[32:44] == struct.pack("=III", 1, 2, 3)
        with Program.load("socket_filter", lookup(array, 6, 1) + load(0, 6, 0, 4) + EXIT) as program:
            assert program.test_run(bytes(14)).retval == 77
            struct.pack_into("=I", area, 16, 78)
            assert program.test_run(bytes(14)).retval == 78
        area.close()
    with Map.create("array", 4, 8, 1, name="plain") as array:
        with pytest.raises(KernelError, match="without F_MMAPABLE"):
            array.mmap()


@pytest.mark.kernel
def test_maps_for_one_direction_say_so():
    with Map.create("hash", 4, 8, 1, flags=F_RDONLY) as read, Map.create("hash", 4, 8, 1, flags=F_WRONLY) as written:
        assert read.lookup(key(0)) is None
        for refused in (lambda: read.update(key(0), bytes(8)), lambda: read.delete(key(0))):
            with pytest.raises(KernelError, match="F_RDONLY: only programs write it"):
                refused()
        written.update(key(0), bytes(8))
        for refused in (lambda: written.lookup(key(0)), lambda: list(written.keys()), lambda: list(written.items())):
            with pytest.raises(KernelError, match="F_WRONLY: only programs read it"):
                refused()


@pytest.mark.kernel
def test_frozen_map():
    with Map.create("array", 4, 8, 1, flags=F_RDONLY_PROG | F_MMAPABLE) as array:
        array.update(key(0), b"constant")
        array.freeze()
        for write in (lambda: array.update(key(0), bytes(8)), lambda: array.update_batch([(key(0), bytes(8))]),
                      lambda: array.memory()):
            with pytest.raises(KernelError, match="the map is frozen"):
                write()
        with pytest.raises(KernelError):
            array.freeze()
        assert array.lookup(key(0)) == b"constant"
        with pytest.raises(KernelError, match="frozen"):
            array.mmap()
        area = array.mmap(writable=False)
        assert area[:8] == b"constant"
        area.close()


@pytest.mark.kernel(since="6.9")
def test_arena():
    with Map.create("arena", 0, 0, 4, flags=F_MMAPABLE) as arena:
        area = arena.mmap()
        area[4096] = 0x5a
        assert area[4096] == 0x5a and len(area) == 4 * 4096
        area.close()


@pytest.mark.kernel
def test_interface_and_cpu_maps():
    import socket
    lo = socket.if_nametoindex("lo")
    with Map.create("devmap", 4, 4, 4) as devices:
        devices.update(1, lo)
        assert devices.number(1) == lo and devices.number(0) is None
    with Map.create("devmap_hash", 4, 4, 4) as devices:
        devices.update(100, lo)
        assert list(devices.keys()) == [key(100)]
    with Map.create("cpumap", 4, 4, 4) as cpus:
        cpus.update(0, 192)
        assert cpus.number(0) == 192


@pytest.mark.kernel
def test_socket_map():
    import socket
    with Map.create("sockmap", 4, 8, 4) as sockets, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sockets.update(2, sock)
        cookie = struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, 57, 8))[0]     # SO_COOKIE
        assert sockets.number(2) == cookie
        assert sockets.delete(2)


@pytest.mark.kernel
def test_stack_traces():
    """bpf_get_stackid() of a user stack from a program on this process's page faults."""
    from rawbpf.loader import PerfEvent, link, perf
    with Map.create("stack_trace", 4, 8 * 20, 100) as stacks:
        code = map_fd(2, stacks) + mov(3, 1 << 8) + call(27) + RETURN_0        # BPF_F_USER_STACK
        with Program.load("perf_event", code) as program:
            event = PerfEvent.open(perf.software("page_faults", period=1), pid=os.getpid())
            with link.attach_perf_event(program, event):
                import mmap
                area = mmap.mmap(-1, 1 << 20)
                for at in range(0, 1 << 20, 4096):
                    area[at] = 1
                area.close()
        found = dict(stacks.items())
        assert found
        for name, frames in found.items():
            addresses = struct.unpack("=20Q", frames)
            assert addresses[0] != 0 and stacks.lookup(name) == frames


@pytest.mark.kernel(since="5.10")
def test_bound_map_lives_with_the_program():
    with Program.load("socket_filter", RETURN_0) as program:
        map = Map.create("array", 4, 4, 1)
        number = map.info().id
        map.bind(program)
        map.close()
        assert program.info().map_ids == [number]
        Map.from_id(number).close()


@pytest.mark.kernel(since="5.14")
def test_lookup_and_delete_of_a_hash():
    with Map.create("hash", 4, 8, 4) as map:
        map.update(key(1), b"value--1")
        assert map.lookup_and_delete(key(1)) == b"value--1"
        assert map.lookup_and_delete(key(1)) is None and map.lookup(key(1)) is None
