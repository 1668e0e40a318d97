"""`rawbpf verify FILE...`: does the verifier take these programs, what does it cost, and if not, why not.

Each program and kernel gives one record, a dict (the lines of --json):

    kernel, release, file, program, type, instructions (slots), accepted,
    processed, states, peak_states, max_states_per_insn, stack_depth (list), time_us   (null where unknown)
    refusal: null, or message, kind, cause, fix, slot, instruction, registers, file, line, text, path
                      (slots), wide (slots of instructions that fill two)
    error: "" or why it did not come as far as the verifier;  log: with --log-level and --annotate
"""

import re
import sys

from .failure import Failure, command
from .options import Option, UsageError

OPTIONS = (
    Option("type", "t", "type", "TYPE", "the program type (xdp, kprobe, ...), or a section's name\n"
                                        "(fentry/do_nanosleep); default: what the section says"),
    Option("kernel", "k", "kernel", "KERNEL", "HOST (the default), or a kernel to boot in a virtual machine:\n"
                                              "5.10, 6.1, 6.12, sid, or all; may be repeated", True),
    Option("log_level", "l", "log-level", "LEVEL", "show the verifier's log: 1, 2 or stats"),
    Option("annotate", "a", "annotate", "", "show the program with the states of the registers"),
    Option("compare", "c", "compare", "OTHER", "what changed: OTHER is another version of the program,\n"
                                               "or another kernel"),
    Option("json", "j", "json", "", "a JSON object a line for each program and kernel"),
    Option("help", "h", "help", "", "this text"),
)
USAGE = """usage: rawbpf verify [OPTION...] FILE...      (- is the standard input)

Loads programs to hear what the kernel's verifier says; nothing is attached, and nothing stays.
A FILE is assembly text, an ELF object, raw instructions, or a tracing script (*.bt). The exit
status is 0 if every program was accepted.

options:
"""
LEVELS = {"1": 1, "2": 2, "stats": 4}
_LONG = 100000       # instructions walked
COUNTS = ("processed", "states", "peak_states", "max_states_per_insn", "time_us")


def run(argv):
    return command(OPTIONS, USAGE, work, argv)


def work(parsed):
    from . import verify_text
    level = parsed.get("log_level")
    if level is not None and level not in LEVELS:
        raise UsageError("--log-level takes 1, 2 or stats, not '%s'" % level)
    if not parsed.operands:
        raise UsageError("a file is needed; - is the standard input")
    kernels = chosen_kernels(parsed.get("kernel", ()))
    wanted = 2 if parsed.get("annotate") else LEVELS.get(level, 0)
    other = parsed.get("compare")
    if other is not None:
        records, others = compared(parsed, kernels, other, wanted)
        if parsed.get("json"):
            _dump(verify_text.differences(records, others))
        else:
            sys.stdout.write(verify_text.comparison(records, others))
        return 0
    failed = False
    for record in verified(parsed.operands, kernels, parsed.get("type"), wanted):
        failed = failed or not record["accepted"]
        if parsed.get("json"):
            _dump([record])
        else:
            sys.stdout.write(verify_text.report(record, bool(parsed.get("annotate")), level is not None))
        sys.stdout.flush()
    return 1 if failed else 0


def _dump(records):
    import json
    for record in records:
        sys.stdout.write(json.dumps(record) + "\n")


def chosen_kernels(names):
    """The kernels of --kernel, in order, each once."""
    from .vm import SUITES
    chosen = []
    for name in names or ("HOST",):
        if name == "all":
            chosen += ["HOST", *SUITES]
        elif name.upper() == "HOST":
            chosen.append("HOST")
        elif name in SUITES:
            chosen.append(name)
        else:
            raise UsageError("--kernel takes HOST, %s or all, not '%s'" % (", ".join(SUITES), name))
    return list(dict.fromkeys(chosen))


def verified(paths, kernels, type=None, level=0):
    """Yields the record of every program on every kernel."""
    for kernel in kernels:
        if kernel == "HOST":
            yield from here(paths, type, level)
        else:
            from .vm.verify import in_guest
            yield from in_guest(kernel, paths, type, level)


def compared(parsed, kernels, other, level):
    """(records, the others): of another kernel where `other` is one, else of another file."""
    from .vm import SUITES
    if other in SUITES or other.upper() == "HOST":
        others = verified(parsed.operands, chosen_kernels([other]), parsed.get("type"), level)
    else:
        if len(parsed.operands) > 1:
            raise UsageError("--compare compares one file with another")
        others = verified([other], kernels, parsed.get("type"), level)
    others = list(others)
    return list(verified(parsed.operands, kernels, parsed.get("type"), level)), others


# one program on this kernel

def here(paths, type=None, level=0):
    """Yields the record of every program of the files on the running kernel."""
    from . import units
    for path in paths:
        for unit in units.read(path, type):
            with unit:
                yield verify(unit, level)


def verify(unit, level=0):
    """The record of one Unit. level: 1 and 2 keep the log, 4 its statistics."""
    import platform
    from rawbpf.asm import slot_numbers
    from rawbpf.loader.errors import KernelError, ObjectError, VerifierError
    record = {"kernel": "HOST", "release": platform.release(), "file": unit.file, "program": unit.name, "type": unit.type,
              "instructions": slot_numbers(unit.instructions)[-1], "accepted": False, "stack_depth": [],
              **dict.fromkeys(COUNTS), "refusal": None, "error": ""}
    try:
        with unit.load(4) as program:
            record["accepted"], log = True, program.log
    except VerifierError as error:
        log = error.log
    except (KernelError, ObjectError, ValueError, OSError) as error:
        record["error"] = str(error)
        return record
    _count(record, log)
    shown = _log(unit, level) if level else ""
    if not record["accepted"]:
        record["refusal"] = _refusal(unit, record, log, shown)
    if level:
        record["log"] = shown
    return record


def _log(unit, level):
    """The log of a level; of the next lower one where it does not fit any buffer."""
    from rawbpf.loader.errors import KernelError, VerifierError
    while True:
        try:
            with unit.load(level | 4) as program:
                return program.log
        except VerifierError as error:
            if error.errno != 28 or level == 4:     # ENOSPC
                return error.log
        except KernelError:
            if level == 4:
                return ""
        level = {2: 1, 1: 4}[level]


def _count(record, log):
    from rawbpf.loader.explain import statistics
    counted = statistics(log)
    if counted is not None:
        record.update(processed=counted.insns, states=counted.total_states, peak_states=counted.peak_states,
                      max_states_per_insn=counted.max_states_per_insn, time_us=counted.time_us,
                      stack_depth=list(counted.stack_depth))


def _refusal(unit, record, short, log=""):
    """What explain.explain says, with the unit's own line of source."""
    from rawbpf.asm import slot_numbers
    from rawbpf.asm.disassembler import text
    from rawbpf.loader import kernel
    from rawbpf.loader.explain import explain
    from rawbpf.loader.refusals import kind_of
    from rawbpf.loader.verifier import reason, slot_to_index
    if (record["processed"] or 0) > _LONG and kind_of(reason(short)) == "too-complex":
        log = short      # no one instruction is to blame, and no log holds the walk
    elif "\n" not in log or reason(log) != reason(short):
        # Before 5.18 the states of registers are in the log of level 2 only.
        log = _log(unit, 1 if kernel.release() >= (5, 18) else 2)
    if reason(log) != reason(short):
        log = short      # a log that is too long loses its end
    found = explain(log)
    if found.slot is None:
        found = found._replace(slot=_place(unit, found))
    index = slot_to_index(unit.instructions, found.slot) if found.slot is not None else None
    line = unit.line_at(found.slot) or ("", 0, "")
    note = unit.note_at(found.slot)
    return {"message": "%s (%s)" % (found.message, note) if note else found.message, "kind": found.kind, "cause": found.cause, "fix": found.fix, "slot": found.slot,
            "instruction": found.instruction or (text(unit.instructions[index]) if index is not None else ""),
            "registers": found.registers, "file": line[0], "line": line[1], "text": line[2].strip() or found.source,
            "path": list(found.path), "wide": sorted(s for s, i in zip(slot_numbers(unit.instructions), unit.instructions)
                                                     if i.slots == 2)}


def _place(unit, found):
    """The slot of an instruction that was refused before the walk, in words that do not say which; or None."""
    from rawbpf.asm import slot_numbers
    number = re.search(r"fd (\d+) is not|unknown opcode ([0-9a-f]+)", found.message)
    slots = slot_numbers(unit.instructions)
    ends = {index - 1 for index in unit.starts.values()} | {len(unit.instructions) - 1}
    for index, i in enumerate(unit.instructions):
        if found.kind == "fall-through":
            if index in ends and not (i.code in (0x95, 0x05, 0x06)):
                return slots[index]
        elif number and (i.code == 0x18 and str(i.imm & 0xffffffff) == number.group(1)
                         or number.group(2) and i.code == int(number.group(2), 16)):
            return slots[index]
    return None
