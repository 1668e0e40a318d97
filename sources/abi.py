"""What depends on the machine: pt_regs, calling convention, register names. One table each.

pt_regs is what a kprobe's, uprobe's or perf event's context starts with: x86
arch/x86/include/asm/ptrace.h, arm64 arch/arm64/include/uapi/asm/ptrace.h (struct user_pt_regs).
Calling conventions: System V AMD64 psABI 3.2.3, AAPCS64 6.8.
"""

import os
from typing import NamedTuple

from .base import SourceError


class Abi(NamedTuple):
    machine: str  #: as uname names it
    pointer_size: int
    registers: dict  #: names in reg("...") and USDT operands -> offset in pt_regs
    arguments: tuple  #: registers of arg0..
    stack_offset: int  #: from sp at a function's entry to the first argument on the stack
    result: str  #: register of a return value
    pc: str
    sp: str
    return_code: bytes  #: machine code of "nop; return", a function of our own to put a probe on
    watch_modes: tuple  #: what the debug registers can watch for


def _slots(names):
    return {name: 8 * index for index, name in enumerate(names.split())}


_ARM64 = _slots(" ".join("r%d" % n for n in range(31)) + " sp pc pstate")
_ARM64.update({"x%d" % n: 8 * n for n in range(31)})

ABIS = {
    "x86_64": Abi(
        machine="x86_64", pointer_size=8,
        registers=_slots(
            "r15 r14 r13 r12 bp bx r11 r10 r9 r8 ax cx dx si di orig_ax ip cs flags sp ss"),
        arguments=("di", "si", "dx", "cx", "r8", "r9"),
        stack_offset=8,  # above the return address
        result="ax", pc="ip", sp="sp", return_code=b"\x90\xc3", watch_modes=("rw", "w", "x")),
    "aarch64": Abi(
        machine="aarch64", pointer_size=8, registers=_ARM64,
        arguments=tuple("r%d" % n for n in range(8)),
        stack_offset=0,
        result="r0", pc="pc", sp="sp", return_code=b"\x1f\x20\x03\xd5\xc0\x03\x5f\xd6",
        watch_modes=("r", "rw", "w", "x")),
}


def host():
    """The Abi of this machine; SourceError names a machine that is not supported."""
    machine = os.uname().machine
    try:
        return ABIS[machine]
    except KeyError:
        raise SourceError("reading registers is not supported on %s: only on %s"
                          % (machine, " and ".join(sorted(ABIS)))) from None
