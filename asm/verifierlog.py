"""Instructions out of a verifier log: what stands in lines like `3: (15) if r0 == 0x7 goto pc+1  ; R0=5`.

The log walks the program: instructions come in the order of the walk, again for every state, and those
that it never reaches are missing. On 6.15 and later `Live regs before insn:` lists all of them.
"""

import re

from .errors import AsmError
from .text import assemble

_LINE = re.compile(r"\s*(\d+): (?:[0-9.]{10} )?\(([0-9a-f]{2})\) ([^;\n]*)", re.M)


def instructions_of_log(log):
    """Sorted list of (slot, Instruction): every instruction that the log shows."""
    shown = {}
    for slot, opcode, text in _LINE.findall(log):
        slot, text = int(slot), text.strip()
        # "mark_precise: ... before 3: (15) ..." repeats what was shown; folded branches differ, the first is kept.
        shown.setdefault(slot, (opcode, text))
    if not shown:
        raise AsmError("no line of this text is an instruction of a verifier log")
    out = []
    for slot in sorted(shown):
        opcode, text = shown[slot]
        made = assemble("0: (%s) %s" % (opcode, text), "<log, slot %d>" % slot, strict=False).instructions()
        out.append((slot, made[0]))
    return out


def program_of_log(log):
    """All instructions in order; AsmError says which slots the log does not show."""
    out, expected = [], 0
    for slot, instruction in instructions_of_log(log):
        if slot != expected:
            raise AsmError("the log does not show slots %d to %d: the verifier did not walk there" % (expected, slot - 1))
        out.append(instruction)
        expected = slot + instruction.slots
    return out
