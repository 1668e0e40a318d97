"""Why the verifier refused a program, out of its log: where, in what state, on which path, and what mends it.

The log (kernel/bpf/log.c; level 1, 2, and 4 for statistics) is a walk: a line for each instruction, the registers
that it changed behind it or on a line before the next, "from A to B:" with the whole state where a branch that
was put aside is taken up. Level 1 keeps only the walk that led to the end, level 2 all of them (5.7+).
"""

import re
from typing import NamedTuple, Optional

from .refusals import KINDS, kind_of_all
from .verifier import failing_slot, messages

_STEP = re.compile(r"^\s*(\d+): (?:\([0-9a-f]{2}\) (.*?)|(BUG_[0-9a-f]{2}))(?:\s+; (.*))?$")
_STATE = re.compile(r"^\s*(?:\d+: )?((?:frame\d+: ?)?(?:R\d+|fp-\d+)(?:_\w+)?=.*)$")
_FROM = re.compile(r"^from (\d+) to (\d+)(?: \(speculative execution\))?:\s*(.*)$")
_LINE = re.compile(r"^; (.*)$")
_FRAME = re.compile(r"^frame(\d+):")
# Parentheses within a state nest: scalar(umax=7,var_off=(0x0; 0x7)), and once more within those.
_NESTED = r"\([^()]*\)"
for _ in range(3):
    _NESTED = r"\((?:[^()]|%s)*\)" % _NESTED
_REGISTER = re.compile(r"\b(R\d+|fp-\d+)(?:_[rwlD]+)?=((?:[^\s()]|%s)*)" % _NESTED)
_CHANGES = re.compile(r"^[rw](\d+) (?:s?[-+*/%|&^<>]+)?= ")
_STATS = re.compile(r"processed (\d+) insns.*?max_states_per_insn (\d+) total_states (\d+) peak_states (\d+)")
_TIME = re.compile(r"verification time (\d+) usec")
_DEPTH = re.compile(r"^stack depth (.*)$", re.M)


class Step(NamedTuple):
    """One instruction as the verifier walked it: `before` is the state printed above it, `after` the one behind it
    ("" where none is), `source` the line of source above it, `whole` whether `before` is the whole state (else: what
    changed), `jumped_from` the slot of the jump whose other side this begins, if it does, `walk` the number of the
    walk (global functions and callbacks have their own)."""
    slot: int
    text: str
    before: str
    after: str
    source: str
    whole: bool
    jumped_from: Optional[int]
    walk: int


class Statistics(NamedTuple):
    """What the verifier counted: instructions processed, states in all and at the peak, microseconds and the stack
    depth of each function in bytes (log level 4)."""
    insns: int
    max_states_per_insn: int
    total_states: int
    peak_states: int
    time_us: Optional[int]
    stack_depth: tuple


class Explanation(NamedTuple):
    """Why a program was refused. `message`: the verifier's words; `slot` counts 8-byte slots; `registers` is
    {"R0" or "fp-8": state} before the instruction; `path` the slots that were walked to get there."""
    message: str
    kind: str
    cause: str
    fix: str
    slot: Optional[int]
    instruction: str
    registers: dict
    source: str
    path: tuple


def steps(log):
    """The walk that a log of level 1 or 2 shows, as a list of Step."""
    walked, before, source, whole, jumped, walk = [], "", "", False, None, 0
    for line in log.split("\n"):
        found = _STEP.match(line)
        if found:
            slot, text, unprintable, after = found.groups()
            walked.append(Step(int(slot), (text or unprintable).strip(), before, after or "", source, whole, jumped, walk))
            before, whole, jumped = "", False, None
            continue
        found = _FROM.match(line)
        if found:
            jumped, before, whole = int(found.group(1)), found.group(3), True
            continue
        found = _STATE.match(line)
        if found:
            before = found.group(1)
            whole = whole or not walked or line.startswith(" ")      # after calls and returns all is printed
            continue
        found = _LINE.match(line)
        if found:
            source = found.group(1)
        elif line.startswith("Validating "):
            walk, whole = walk + 1, True
    return walked


def registers(text):
    """{"R0" or "fp-8": state} in one printed state."""
    return dict(_REGISTER.findall(text))


def statistics(log):
    """The Statistics at the log's end; None where there are none (a check before the walk refused)."""
    found = _STATS.search(log)
    if not found:
        return None
    time, depth = _TIME.search(log), _DEPTH.search(log)
    depths = tuple(map(int, re.findall(r"\d+", depth.group(1)))) if depth else ()
    return Statistics(*map(int, found.groups()), int(time.group(1)) if time else None, depths)


def path(walked):
    """Slots of the way to the last step. Where a branch is taken up again, what was walked since the jump that put
    it aside is cut off; the verifier takes up the latest one first, so each jump's last one still open is it."""
    way, open_jump, walk = [], [], 0
    for step in walked:
        if step.walk != walk:
            way, open_jump, walk = [], [], step.walk
        if step.jumped_from is not None:
            at = len(way) - 1
            while at >= 0 and not (way[at] == step.jumped_from and open_jump[at]):
                at -= 1
            if at >= 0:
                open_jump[at] = False
                del way[at + 1:], open_jump[at + 1:]
        way.append(step.slot)
        open_jump.append(True)
    return tuple(way)


def _known(walked):
    """The registers before the last step."""
    frames, frame = {0: {}}, 0
    for step in walked[:-1]:
        frame = _take(frames, frame, step.before, step.whole)
        _forget(frames[frame], step.text)
        frame = _take(frames, frame, step.after, False)
    return frames[_take(frames, frame, walked[-1].before, walked[-1].whole)]


def _take(frames, frame, text, whole):
    """Puts a printed state into `frames`; returns the frame it is of. The main function's has no number."""
    if not text:
        return frame
    found = _FRAME.match(text)
    frame = int(found.group(1)) if found else 0
    if whole or frame not in frames:
        frames[frame] = {}
    frames[frame].update(registers(text))
    return frame


def _forget(known, text):
    """What an instruction overwrites is not known any more, until the log says what it is now."""
    found = _CHANGES.match(text)
    if found:
        known.pop("R" + found.group(1), None)
    elif text.startswith("call "):
        for number in range(6):
            known.pop("R%d" % number, None)


def explain(log):
    """An Explanation of the verifier's `log` (level 1 or 2 tells most)."""
    lines = messages(log)
    kind = kind_of_all(lines)
    cause, fix = KINDS[kind]
    slot, walked = failing_slot(log), steps(log)
    if slot is None and walked:
        slot = walked[-1].slot
    while walked and walked[-1].slot != slot:
        walked.pop()
    if not walked:
        return Explanation("; ".join(lines), kind, cause, fix, slot, "", {}, "", ())
    last = walked[-1]
    if kind == "uninitialised-register" and last.text == "exit":
        kind = "no-return-value"
    elif lines and "subsystem misconfigured" in lines[-1] and last.text.startswith("call bpf_tail_call"):
        kind = "wrong-map-type"     # 5.10's words for a map that is no program array
    cause, fix = KINDS[kind]
    return Explanation("; ".join(lines), kind, cause, fix, slot, last.text, _known(walked), last.source, path(walked))
