"""Loads, stores, atomics, packet loads, calls and jumps: the kernel against what the documents say of them.

RFC 9669 for all but may_goto, load-acquire, store-release and address spaces (Documentation/bpf, uapi/linux/bpf.h)
and the offsets of packet loads (uapi/linux/filter.h: SKF_LL_OFF, SKF_NET_OFF).
"""

import mmap
import struct

import pytest

from rawbpf.asm import Instruction, KsymRef, MapRef, assemble
from rawbpf.asm.builder import Builder, r0, r1, r2, r6, r7, u64
from rawbpf.loader import VerifierError
from rawbpf.loader.maps import Map
from rawbpf.loader.program import Program

from .edges import EDGES, FEW, kernel_runner, model, release
from .machine import M64, alu, signed

pytestmark = pytest.mark.slow
SIZES = {1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18}
ATOMIC = {"+": 0x00, "|": 0x40, "&": 0x50, "^": 0xa0}
CELL = 24           # bytes in "out" for each form: r2, the memory, r0


def low(value, size):
    return value & (1 << 8 * size) - 1


def put(cell, value, size):
    """The 8 bytes of memory after a store of `size` bytes at their start (little-endian)."""
    return cell & ~((1 << 8 * size) - 1) | low(value, size)


def memory_forms(now):
    """(name, instruction with off 0 whose memory is at r7, model): model(cell, r2, r0) -> (cell, r2, r0)."""
    for size, code in SIZES.items():
        yield "ldx", Instruction(0x61 | code, 2, 7), lambda m, b, c, s=size: (m, low(m, s), c)
        yield "stx", Instruction(0x63 | code, 7, 2), lambda m, b, c, s=size: (put(m, b, s), b, c)
        for imm in (0, 1, -1, 0x7fffffff, -0x80000000, 0x12345678):
            yield "st", Instruction(0x62 | code, 7, 0, 0, imm), lambda m, b, c, s=size, i=imm: (put(m, i, s), b, c)
        if size < 8 and now >= (6, 6):
            yield "ldxs", Instruction(0x81 | code, 2, 7), lambda m, b, c, s=size: (m, signed(m, 8 * s) & M64, c)
        if now >= (6, 15):
            yield "load_acquire", Instruction(0xc3 | code, 2, 7, 0, 0x100), lambda m, b, c, s=size: (m, low(m, s), c)
            yield "store_release", Instruction(0xc3 | code, 7, 2, 0, 0x110), lambda m, b, c, s=size: (put(m, b, s), b, c)
    for size in (4, 8):
        code = 0xc3 | SIZES[size]
        for op, imm in ATOMIC.items():
            def changed(m, b, c, s=size, op=op):
                return put(m, alu(op, low(m, s), low(b, s), 8 * s), s), b, c
            if op == "+" or now >= (5, 12):
                yield "atomic " + op, Instruction(code, 7, 2, 0, imm), changed
            if now >= (5, 12):
                yield ("fetch " + op, Instruction(code, 7, 2, 0, imm | 1),
                       lambda m, b, c, s=size, changed=changed: (changed(m, b, c)[0], low(m, s), c))
        if now >= (5, 12):
            yield "xchg", Instruction(code, 7, 2, 0, 0xe1), lambda m, b, c, s=size: (put(m, b, s), low(m, s), c)
            yield "cmpxchg", Instruction(code, 7, 2, 0, 0xf1), lambda m, b, c, s=size: (
                put(m, b, s) if low(m, s) == low(c, s) else m, b, low(m, s))


def memory_program(instructions):
    """Each on memory that holds data[0], r2 = data[8], r0 = data[16]."""
    b = Builder()
    b.set(r6, MapRef("data", 0))
    b.set(r7, MapRef("out", 0))
    for i, instruction in enumerate(instructions):
        b.set(r1, u64[r6])
        b.set(u64[r7 + CELL * i + 8], r1)
        b.set(r2, u64[r6 + 8])
        b.set(r0, u64[r6 + 16])
        b.raw(instruction._replace(off=CELL * i + 8))
        b.set(u64[r7 + CELL * i], r2)
        b.set(u64[r7 + CELL * i + 16], r0)
    b.set(r0, 0)
    b.exit()
    return b.build()


def check_memory(runner, now, values):
    forms = list(memory_forms(now))
    run = runner(memory_program([form[1] for form in forms]))
    for a in values:
        for b in values:
            # cmpxchg: equal, equal in the low half only, different
            for c in (a, a ^ 1 << 40, a + 1 & M64):
                out = run(a, b, c)
                for i, (name, instruction, expected) in enumerate(forms):
                    got_r2, cell, got_r0 = struct.unpack_from("=QQQ", out, CELL * i)
                    assert (cell, got_r2, got_r0) == expected(a, b, c), (name, instruction, hex(a), hex(b), hex(c))


def test_the_model_agrees():
    check_memory(model, (7, 0), [x & M64 for x in EDGES[::6]])


@pytest.mark.kernel
def test_memory():
    check_memory(kernel_runner(), release(), FEW[::2])


@pytest.mark.kernel
def test_memory_at_all_values():
    check_memory(kernel_runner(), release(), FEW)


# packet loads

PACKET = bytes(range(0x80, 0xc0))
LL, NET = -0x200000, -0x100000      # SKF_LL_OFF: from the link layer's header; SKF_NET_OFF: from the network's


def packet_word(at, size):
    """What a packet load gives: big-endian, and the end of the program with 0 where there is no packet."""
    if at >= 0:
        start = at
    elif at >= NET:
        start = at - NET + 14
    else:
        start = at - LL
    return int.from_bytes(PACKET[start:start + size], "big") if 0 <= start and start + size <= len(PACKET) else 0


@pytest.mark.kernel
def test_packet_loads():
    places = [0, 1, 5, 13, *range(len(PACKET) - 5, len(PACKET) + 2), -1, NET, NET + 3, LL, LL + 9, LL + 62]
    for size in (1, 2, 4):
        # r6 is the context; r0 is the result, and 9 would be left by a load that did not end the program
        for at in places:
            absolute = [Instruction(0xbf, 6, 1), Instruction(0x20 | SIZES[size], 0, 0, 0, at), Instruction(0x95)]
            indirect = [Instruction(0xbf, 6, 1), Instruction(0xb7, 7, 0, 0, at - 3),
                        Instruction(0x40 | SIZES[size], 0, 7, 0, 3), Instruction(0x95)]
            for code in (absolute, indirect):
                with Program.load("sched_cls", code) as program:
                    assert program.test_run(PACKET).retval == packet_word(at, size), (size, at, code)


# control

def result(code, type="sched_cls", maps=None):
    code = assemble(code).instructions() if isinstance(code, str) else code
    with Program.load(type, code, maps=maps) as program:
        return program.test_run(bytes(64)).retval


@pytest.mark.kernel
def test_jumps_and_calls_of_functions():
    assert result("""
        r6 = 3
        r7 = 0
    again:
        r1 = r6
        call square
        r7 += r0
        r6 += -1
        if r6 != 0 goto again
        r0 = r7
        if r0 == 14 goto out
        r0 = 99
    out: exit
    square:
        r0 = r1
        r0 *= r1
        exit
    """) == 9 + 4 + 1


@pytest.mark.kernel(since="5.17")
def test_a_function_by_its_address():
    from rawbpf.loader.btf import BtfObject, function_types
    code = assemble("""
        *(u64 *)(r10 -8) = 0
        r1 = 5
        r2 = func[each] ll
        r3 = r10
        r3 += -8
        r4 = 0
        call bpf_loop
        r0 = *(u64 *)(r10 -8)
        exit
    each:
        r3 = *(u64 *)(r2 +0)
        r3 += r1
        *(u64 *)(r2 +0) = r3
        r0 = 0
        exit
    """).instructions()
    data, info = function_types([("main", 0), ("each", 10)])
    with BtfObject.load(data) as btf, Program.load("sched_cls", code, btf=btf, func_info=info) as program:
        assert program.test_run(bytes(64)).retval == 0 + 1 + 2 + 3 + 4


@pytest.mark.kernel(since="6.6")
def test_the_long_jump():
    far = [Instruction(0xb7, 0, 0, 0, 7), Instruction(0x06, 0, 0, 0, 40000), *[Instruction(0xb7, 0)] * 40000,
           Instruction(0x07, 0, 0, 0, 1), Instruction(0x95)]
    # the verifier refuses what cannot be reached: a jump that is never taken leads there
    far.insert(0, Instruction(0x61, 2, 1))
    far.insert(2, Instruction(0x15, 2, 0, 1, 0x12345))
    assert result(far) == 8


@pytest.mark.kernel(since="6.9")
def test_may_goto():
    loop = "r0 = 0\nr1 = %d\nagain: if r1 == 0 goto out\nmay_goto out\nr0 += 3\nr1 += -1\ngoto again\nout: exit"
    assert result(loop % 10) == 30
    # it leaves a loop that has no end of its own
    assert result("r0 = 0\nagain: may_goto out\nr0 += 1\ngoto again\nout: exit") > 1000


@pytest.mark.kernel
def test_callx_is_of_no_kernel():
    with pytest.raises(VerifierError, match="unknown opcode 8d"):
        Program.load("sched_cls", [Instruction(0xb7, 0), Instruction(0x8d, 0), Instruction(0x95)])


@pytest.mark.kernel(since="6.6")
def test_calls_of_kfuncs():
    assert result([Instruction(0x85, 0, 2, 0, 0, KsymRef("bpf_rcu_read_lock")), Instruction(0xb7, 6, 0, 0, 7),
                   Instruction(0x85, 0, 2, 0, 0, KsymRef("bpf_rcu_read_unlock")), Instruction(0xbf, 0, 6),
                   Instruction(0x95)]) == 7


@pytest.mark.kernel(since="6.9")
def test_address_space_casts():
    """A user-space address of an arena becomes one that the program can use, and comes out as it was."""
    with Map.create("arena", 0, 0, 1, flags=1 << 10) as arena, Map.create("array", 4, 24, 1) as data, \
            Map.create("array", 4, 24, 1) as out:
        memory = mmap.mmap(arena.fd, mmap.PAGESIZE)
        import ctypes
        view = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(view)
        memory[8:16] = struct.pack("=II", 0x11223344, 0)
        data.update(bytes(4), struct.pack("=QQQ", address, 0, 0))
        code = assemble("""
            r1 = map[arena] ll
            r6 = map[data][0] ll
            r7 = map[out][0] ll
            r2 = *(u64 *)(r6 +0)
            r2 = addr_space_cast(r2, 0, 1)
            r3 = *(u32 *)(r2 +8)
            *(u64 *)(r7 +0) = r3
            *(u32 *)(r2 +12) = 0x55667788
            r2 += 8
            r2 = addr_space_cast(r2, 1, 0)
            *(u64 *)(r7 +8) = r2
            r0 = 0
            exit
        """, strict=False).instructions()
        assert result(code, maps={"arena": arena, "data": data, "out": out}) == 0
        assert struct.unpack("=QQQ", out.lookup(bytes(4))) == (0x11223344, address + 8, 0)
        assert struct.unpack("=I", memory[12:16]) == (0x55667788,)
        del view
        memory.close()


