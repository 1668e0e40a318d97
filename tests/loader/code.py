"""BPF programs for the loader's tests, written as 8-byte instructions (RFC 9669) so that they stand
on nothing but the ABI: struct bpf_insn is u8 code, u4 dst, u4 src, s16 off, s32 imm."""

import struct


def insn(code, dst=0, src=0, off=0, imm=0):
    return struct.pack("<BBhi", code, src << 4 | dst, off, imm)


def mov(dst, imm):
    return insn(0xb7, dst, 0, 0, imm)


def mov_reg(dst, src):
    return insn(0xbf, dst, src)


def alu(op, dst, imm):
    """op: the upper half of the opcode, e.g. 0x00 add, 0x20 mul, 0x50 and, 0x70 rsh."""
    return insn(op | 0x07, dst, 0, 0, imm)


def load(dst, src, off, size=8):
    return insn({1: 0x71, 2: 0x69, 4: 0x61, 8: 0x79}[size], dst, src, off)


def store(dst, off, src, size=8):
    return insn({1: 0x73, 2: 0x6b, 4: 0x63, 8: 0x7b}[size], dst, src, off)


def store_imm(dst, off, imm, size=8):
    return insn({1: 0x72, 2: 0x6a, 4: 0x62, 8: 0x7a}[size], dst, 0, off, imm)


def atomic_add(dst, off, src):
    return insn(0xdb, dst, src, off, 0)


def map_fd(dst, map):
    return insn(0x18, dst, 1, 0, map.fd) + insn(0)


def call(helper):
    return insn(0x85, 0, 0, 0, helper)


def jeq(reg, imm, off):
    return insn(0x15, reg, 0, off, imm)


def jne(reg, imm, off):
    return insn(0x55, reg, 0, off, imm)


EXIT = insn(0x95)
RETURN_0 = mov(0, 0) + EXIT

LOOKUP, UPDATE, DELETE, TIME, TRACE, CPU = 1, 2, 3, 5, 6, 8
PERF_OUTPUT, RING_OUTPUT, RESERVE, SUBMIT, DISCARD = 25, 130, 131, 132, 133


def slots(code):
    return len(code) // 8


def lookup(map, out, key=0):
    """`out` = address of the element with this u32 key; returns 0 from the program when there is
    none. Uses the stack at -4 and r0-r5."""
    return (store_imm(10, -4, key, 4) + map_fd(1, map) + mov_reg(2, 10) + alu(0x00, 2, -4) +
            call(LOOKUP) + jne(0, 0, 1) + EXIT + mov_reg(out, 0))


def size_of(sequence):
    """Length of record `sequence` of `emitter`: 8 to 1031 bytes, mixed."""
    return (((sequence * 40503) & 0xffffffffffffffff) >> 7 & 1023) + 8


def emitter(state, output, perf=False, mixed=True, size=8):
    """One record: u64 sequence number and what the state's buffer holds after it, of size_of(sequence)
    or of `size` bytes. `state` is an array of one element of 2048 bytes: u64 attempts, u64 failed
    attempts, u64 sequence number of the next record, then from 64 on the record's own bytes.
    """
    if mixed:
        length = mov_reg(7, 8) + alu(0x20, 7, 40503) + alu(0x70, 7, 7) + alu(0x50, 7, 1023) + alu(0, 7, 8)
    else:
        length = mov(7, size)
    code = (mov_reg(9, 1) + lookup(state, 6) +
            mov(1, 1) + atomic_add(6, 0, 1) +
            load(8, 6, 16) + store(6, 64, 8) + length)
    if perf:
        code += (mov_reg(1, 9) + map_fd(2, output) + insn(0x18, 3, 0, 0, -1) + insn(0) +
                 mov_reg(4, 6) + alu(0, 4, 64) + mov_reg(5, 7) + call(PERF_OUTPUT))
    else:
        code += (map_fd(1, output) + mov_reg(2, 6) + alu(0, 2, 64) + mov_reg(3, 7) + mov(4, 0) +
                 call(RING_OUTPUT))
    # failed: count it; else: the next number
    return code + (jeq(0, 0, 3) + mov(1, 1) + atomic_add(6, 8, 1) + insn(0x05, off=2) +
                   mov(1, 1) + atomic_add(6, 16, 1) + RETURN_0)


def discarder(state, ring):
    """Reserves 16 bytes, writes the sequence number, gives up every fourth record (number & 3 == 3)
    and submits the others."""
    return (lookup(state, 6) + load(8, 6, 16) + mov(1, 1) + atomic_add(6, 16, 1) +
            map_fd(1, ring) + mov(2, 16) + mov(3, 0) + call(RESERVE) + jne(0, 0, 1) + EXIT +
            store(0, 0, 8) + store(0, 8, 8) + mov_reg(1, 0) + mov(2, 0) +
            alu(0x50, 8, 3) + jeq(8, 3, 2) +
            call(SUBMIT) + insn(0x05, off=1) + call(DISCARD) + RETURN_0)
