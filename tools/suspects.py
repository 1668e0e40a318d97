"""Which instruction the verifier means where its message names none: it checks encodings before it walks.

Kernels check different things in that way; 7.x nearly all of the encoding, 5.10 only loads, stores and calls.
"""

import re

_NUMBER = re.compile(r"fd (\d+) is not|unknown opcode ([0-9a-f]+)|R(\d+) is invalid|BPF_([A-Z/0-9_]+) uses reserved")
_MOV, _END, _NEG, _JA, _CALL, _EXIT = 0xb0, 0xd0, 0x80, 0x00, 0x80, 0x90


def place(unit, found):
    """Slot of the first instruction of a unit that an Explanation can mean, or None."""
    from rawbpf.asm import slot_numbers
    slots = slot_numbers(unit.instructions)
    meant = _meant(unit, found, slots)
    return next((slots[index] for index, i in enumerate(unit.instructions) if meant(index, i)), None)


def _meant(unit, found, slots):
    """Function (index, instruction) -> can the message mean it?"""
    if found.kind == "fall-through":
        ends = {index - 1 for index in unit.starts.values()} | {len(unit.instructions) - 1}
        return lambda index, i: index in ends and i.code not in (0x95, 0x05, 0x06)
    if "invalid destination" in found.message:
        return lambda index, i: i.code == 0x85 and i.src == 1 and not 0 <= slots[index] + 1 + i.imm < slots[-1]
    said = _NUMBER.search(found.message)
    if not said:
        return lambda index, i: False
    fd, code, register, name = said.groups()
    if name:
        return lambda index, i: _class_of(i) == name and _reserved(i, name)
    if register:
        return lambda index, i: int(register) in (i.dst, i.src)
    if code:
        return lambda index, i: i.code == int(code, 16)
    return lambda index, i: i.code == 0x18 and str(i.imm & 0xffffffff) == fd


def _class_of(i):
    """The name that the verifier's messages have for an instruction's class."""
    kind, operation = i.code & 7, i.code & 0xf0
    if kind in (4, 7):
        return {_MOV: "MOV", _END: "END", _NEG: "NEG"}.get(operation, "ALU")
    if kind in (5, 6):
        named = {_JA: "JA"} if kind == 6 else {_JA: "JA", _CALL: "CALL", _EXIT: "EXIT"}
        return named.get(operation, "JMP/JMP32")
    return {0: "LD_IMM64", 1: "LDX", 2: "ST", 3: "STX"}[kind]


def _reserved(i, name):
    """Has a field that must be zero (or one of a few values) another value?"""
    by_register = i.code & 8
    if name in ("LDX", "STX", "ST"):
        # 5.10 and before: plain ones, and of the atomics only addition
        plain = i.code >> 5 in ((3, 6) if name == "STX" else (3,))
        return not plain or (i.src != 0 if name == "ST" else i.imm != 0)
    if name == "MOV":
        return (i.imm != 0 or i.off not in (0, 8, 16, 32)) if by_register else (i.src != 0 or i.off != 0)
    if name == "ALU":
        return i.off not in (0, 1) or (i.imm if by_register else i.src) != 0
    if name == "END":
        return i.imm not in (16, 32, 64) or i.off != 0 or i.src != 0
    if name == "JMP/JMP32":
        return (i.imm if by_register else i.src) != 0
    if name == "CALL":
        return bool(by_register) or i.dst != 0 or i.src not in (0, 1, 2) or i.src != 2 and i.off != 0
    if name == "JA":
        return bool(by_register) or i.dst != 0 or i.src != 0 or (i.imm if i.code == 0x05 else i.off) != 0
    rest = bool(by_register) or i.src != 0 or i.off != 0 or i.imm != 0
    return rest or name == "EXIT" and i.dst != 0
