"""Instructions out of a verifier log: what stands in lines like `3: (15) if r0 == 0x7 goto pc+1  ; R0=5`.

The log walks the program: instructions come in the order of the walk, again for every state, and those
that it never reaches are missing. On 6.15 and later `Live regs before insn:` lists all of them.
"""

import re

from .errors import AsmError, AsmSyntaxError
from .text import assemble

_LINE = re.compile(r"([0-9]{1,9}): (?:[0-9.]{10} )?\(([0-9a-f]{2})\) ([^;\n]*)")


def instructions_of_log(log, filename="<log>"):
    """Sorted list of (slot, Instruction): every instruction that the log shows. AsmSyntaxError names its line."""
    shown = {}
    for found in _LINE.finditer(log):
        # "mark_precise: ... before 3: (15) ..." repeats what was shown; folded branches differ, the first is kept.
        shown.setdefault(int(found.group(1)), found)
    if not shown:
        raise AsmError("no line of this text is an instruction of a verifier log")
    out = []
    for slot in sorted(shown):
        _, opcode, text = shown[slot].groups()
        start = "0: (%s) " % opcode
        try:
            made = assemble(start + text.rstrip(), filename, strict=False).instructions()
        except AsmSyntaxError as error:
            raise _in_the_log(log, filename, shown[slot], error, len(start)) from None
        out.append((slot, made[0]))
    return out


def _in_the_log(log, filename, found, error, start):
    """An error about what was taken out of the log, at its place there."""
    at = found.start(3)
    begins = log.rfind("\n", 0, at) + 1
    ends = log.find("\n", at)
    line = log[begins:ends if ends >= 0 else len(log)].rstrip("\r")
    column = min(max(at - begins + error.column - start, 1), len(line) + 1)
    return AsmSyntaxError(filename, log.count("\n", 0, at) + 1, column, error.reason, line)


def program_of_log(log, filename="<log>"):
    """All instructions in order; AsmError says which slots the log does not show."""
    out, expected = [], 0
    for slot, instruction in instructions_of_log(log, filename):
        if slot != expected:
            raise AsmError("the log does not show slots %d to %d: the verifier did not walk there" % (expected, slot - 1)
                           if slot > expected else "slot %d of the log is inside an instruction of two slots" % slot)
        out.append(instruction)
        expected = slot + instruction.slots
    return out
