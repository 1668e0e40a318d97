"""Where a C function's parameters are when it is entered: registers, then the stack.

System V AMD64 psABI 3.2.3 and AAPCS64 6.8.2 for integers, pointers and enumerations of up to 8 bytes.
Floating-point values travel in registers that BPF cannot read, and take no place among the others until those
are used up (long double of x86-64: always). Integers of 16 bytes and structs passed by value are told apart
only as far as needed to place what follows them.
"""

from typing import NamedTuple

from . import abi


class Place(NamedTuple):
    register: str  #: "" when on the stack or unreadable
    stack: int  #: number of the 8-byte slot above abi.stack_offset, -1 otherwise
    size: int
    signed: bool
    reason: str  #: why it cannot be read, "" if it can


def places(function):
    """[Place] of the parameters of an elf.types.Function."""
    from rawbpf.elf import types

    registers, floats, arm = list(abi.host().arguments), 8, abi.host().machine == "aarch64"
    slot = 0
    found = []
    for parameter in function.parameters:
        bare = types.strip(parameter.type)
        if isinstance(bare, types.Float):
            found.append(Place("", -1, bare.size, True, "floating-point arguments are in registers that "
                                                        "BPF cannot read"))
            is_complex = "omplex" in bare.name
            needed = 9 if "long double" in bare.name and not arm else 2 if is_complex and (arm or bare.size > 8) else 1
            if needed <= floats:
                floats -= needed
            else:
                slot += slot & 1 if bare.size >= 16 and (needed == 9 or not is_complex) else 0
                slot += (bare.size + 7) // 8
            continue
        if isinstance(bare, (types.Struct, types.Array)) and not _is_word(bare):
            count = (bare.size + 7) // 8
            if count <= 2 and len(registers) >= count and not _has_float(bare, types):
                del registers[:count]
            elif bare.size > 16 and arm:
                slot += not registers
                del registers[:1]  # by reference
            elif count > 2 or not _has_float(bare, types):
                slot += count
            found.append(Place("", -1, bare.size, False, "it is a struct passed by value"))
            continue
        if isinstance(bare, types.Int) and bare.size in (0, 16):
            found.append(Place("", -1, bare.size, bare.signed, "it has %d bytes" % bare.size))
            if arm and bare.size and len(registers) & 1:
                del registers[:1]       # a pair begins at an even register
            if bare.size and len(registers) >= 2:
                del registers[:2]
            elif bare.size:
                slot += 2 + (slot & 1)
                registers = [] if arm else registers        # AAPCS64 C.13; the psABI gives the last one to a later argument
            continue
        size = bare.size if bare.size in (1, 2, 4, 8) else 8
        signed = isinstance(bare, (types.Int, types.Enum)) and bare.signed
        if registers:
            found.append(Place(registers.pop(0), -1, size, signed, ""))
        else:
            found.append(Place("", slot, size, signed, ""))
            slot += 1
    return found


def _is_word(type):
    return type.size in (1, 2, 4, 8) and getattr(type, "kind", "") == "union"


def _has_float(struct, types):
    return any(isinstance(types.strip(field.type), types.Float) for field in getattr(struct, "fields", ()))
