"""Machine code that the kernel's BPF JITs emit, decoded: `decode(code, "x86_64")`.

The text is that of GNU objdump (AT&T syntax on x86_64), so what one shows can be looked up with the other.
"""

from typing import NamedTuple, Optional, Tuple


class MachineInstruction(NamedTuple):
    """One machine instruction. `offset`: bytes from the start of the code; `target`: where a jump or a call
    goes, or what a pc-relative operand addresses, counted like `offset` (it may be negative or lie beyond
    the code); `known`: False for bytes that are outside of what the decoder knows."""
    offset: int
    size: int
    mnemonic: str
    operands: Tuple[str, ...] = ()
    target: Optional[int] = None
    known: bool = True
    form: str = "%-6s %s"       # of the mnemonic and the operands
    separator: str = ","

    @property
    def text(self):
        """`mov    %rdi,%rbp`: as objdump prints it."""
        return (self.form % (self.mnemonic, self.separator.join(self.operands))).rstrip()


MACHINES = ("x86_64", "aarch64")


def decode(code, machine):
    """Yields a MachineInstruction for every instruction of `code` (bytes); machine: as uname -m has it.

    Whatever the decoder does not know comes as `.byte` (x86_64, one byte) or `.inst` (aarch64, one word),
    with known=False. ValueError for another machine.
    """
    if machine == "x86_64":
        from .x86 import decode_one
    elif machine == "aarch64":
        from .aarch64 import decode_one
    else:
        raise ValueError("machine code of %s is not supported: %s are" % (machine, " and ".join(MACHINES)))
    code = bytes(code)
    offset = 0
    while offset < len(code):
        instruction = decode_one(code, offset)
        yield instruction
        offset += instruction.size
