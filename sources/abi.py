"""What depends on the machine: pt_regs, calling convention, register names. One table each.

pt_regs is what a kprobe's, uprobe's or perf event's context starts with: rawbpf.elf.pt_regs.
Calling conventions: System V AMD64 psABI 3.2.3, AAPCS64 6.8.
"""

import os
from typing import NamedTuple

from rawbpf.elf.pt_regs import PT_REGS

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


ABIS = {
    "x86_64": Abi(
        machine="x86_64", pointer_size=8,
        registers=PT_REGS["x86_64"],
        arguments=("di", "si", "dx", "cx", "r8", "r9"),
        stack_offset=8,  # above the return address
        result="ax", pc="ip", sp="sp", return_code=b"\x90\xc3", watch_modes=("rw", "w", "x")),
    "aarch64": Abi(
        machine="aarch64", pointer_size=8, registers=PT_REGS["aarch64"],
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
