"""The verifier's log: which instruction it stopped at and why.

The log names instructions by 8-byte slot ("12: (85) call ..."); a wide lddw takes two.
"""

import re

_INSTRUCTION = re.compile(r"^(\d+): (?:\([0-9a-f]{2}\) |BUG_)", re.M)
# Some messages lack the end of their line.
_JOINED = re.compile(r"(?<=.)(?:verification time \d+ usec|processed \d+ insns \().*$", re.M)
_STATE = re.compile(r"^\s*(?:\d+: )?(?:frame\d+:|R\d+(?:_\w+)?=|;|from \d+ to \d+|\d+: \([0-9a-f]{2}\)|\d+: BUG_|"
                    r"processed \d+ insns|verification time|stack depth|last_idx|regs=|parent |"
                    r"mark_precise|caller:|callee:|returning from|func#|Live regs|insns\s|"
                    r"max_states|to caller at|\d+: (?:R\d+|frame\d+)|cur state|old state|force_precise|"
                    r"Validating |Func#\d+ |fp-\d+|subprog#\d+:)")
# A message on the line of its instruction, when the state that stands there otherwise is left out.
_BEHIND = re.compile(r"^\d+: \([0-9a-f]{2}\) .* (infinite loop detected at insn \d+)")
_NAMED = (
    re.compile(r"\binsn (?:idx )?(\d+)"),
    re.compile(r"^(\d+): "),
)


def failing_slot(log):
    """Slot number of the instruction that was refused, or None."""
    message = reason(log)
    for pattern in _NAMED:
        found = pattern.search(message)
        if found:
            return int(found.group(1))
    last = None
    for last in _INSTRUCTION.finditer(log):
        continue
    return int(last.group(1)) if last else None


def reason(log):
    """The line of the log that says why: the last that is not state or statistics."""
    for line in reversed(log.rstrip("\0\n").split("\n")):
        behind = _BEHIND.match(line)
        if behind:
            return behind.group(1)
        if line.strip() and not _STATE.match(line):
            return _JOINED.sub("", line).strip()
    return ""


def messages(log):
    """All lines that say why: some refusals have two, the general one before the particular one."""
    said = []
    for line in reversed(log.rstrip("\0\n").split("\n")):
        behind = _BEHIND.match(line)
        if behind:
            said.append(behind.group(1))
        if _INSTRUCTION.match(line):
            break
        if line.strip() and not _STATE.match(line):
            said.append(_JOINED.sub("", line).strip())
    return said[::-1]


def slot_to_index(instructions, slot):
    """Index into a list of Instructions of the one at this slot; None if there is none."""
    at = 0
    for index, instruction in enumerate(instructions):
        if at == slot:
            return index
        at += 2 if instruction.code == 0x18 else 1
    return None
