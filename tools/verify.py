"""`rawbpf verify FILE...`: does the verifier take these programs, what does it cost, and if not, why not.

Each program and kernel gives one record, a dict (the lines of --json):

    kernel, release, file, program, type, instructions (slots), accepted,
    processed, states, peak_states, max_states_per_insn, stack_depth (list), time_us   (null where unknown)
    refusal: null, or message, kind, cause, fix, slot, instruction, registers, file, line, text, path
                      (slots; the end of it where it is long), wide (slots of instructions that fill two)
    error: "" or why it did not come as far as the verifier
    log, log_cut: with --log-level and --annotate; is a part of it missing, because it is larger than 16 MiB?
"""

import sys
from typing import NamedTuple, Optional

from .failure import Failure, command, number, read_bytes
from .options import Option, UsageError

OPTIONS = (
    Option("type", "t", "type", "TYPE", "the program type (xdp, kprobe, ...), or a section's name\n"
                                        "(fentry/do_nanosleep); default: what the section says"),
    Option("kernel", "k", "kernel", "KERNEL", "HOST (the default), or a kernel to boot in a virtual machine:\n"
                                              "5.10, 6.1, 6.12, sid, all of them, or the path of an image\n"
                                              "(vmlinuz); may be repeated", True),
    Option("timeout", "", "timeout", "SECONDS", "how long each of these kernels may take (default: 600)"),
    Option("program", "p", "program", "NAME", "only this program of the files; may be repeated", True),
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
status is 0 if every program was accepted (with --compare: every program of FILE).

options:
"""
LEVELS = {"1": 1, "2": 2, "stats": 4}
_END = 1 << 20       # bytes of a log that say enough of where it ended
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
    seconds = number(parsed.get("timeout", "600"), (1 << 31) - 1, "--timeout", "number of seconds")
    annotate, other = bool(parsed.get("annotate")), parsed.get("compare")
    if other is not None and (annotate or level is not None):
        raise UsageError("--compare shows numbers, not what --%s shows" % ("annotate" if annotate else "log-level"))
    ask = Question(parsed.operands, chosen_kernels(parsed.get("kernel", ())), parsed.get("type"),
                   2 if annotate else LEVELS.get(level, 0), seconds, parsed.get("program", ()))
    if other is not None:
        pairs = list(compared(ask, other))
        if parsed.get("json"):
            _dump(pairs)
        else:
            sys.stdout.write(verify_text.comparison(pairs))
        return 0 if all(pair["after"]["accepted"] for pair in pairs if pair["after"]) else 1
    failed = False
    for record in verified(ask):
        failed = failed or not record["accepted"]
        if parsed.get("json"):
            _dump([record])
        else:
            sys.stdout.write(verify_text.report(record, annotate, level is not None))
        sys.stdout.flush()
    return 1 if failed else 0


def _dump(records):
    import json
    for record in records:
        sys.stdout.write(json.dumps(record) + "\n")


def chosen_kernels(names):
    """The kernels of --kernel, in order, each once."""
    import os
    from .vm import SUITES, why_no_image
    chosen = []
    for name in names or ("HOST",):
        if name == "all":
            chosen += ["HOST", *SUITES]
        elif name.upper() == "HOST":
            chosen.append("HOST")
        elif name in SUITES:
            chosen.append(name)
        elif os.path.isfile(name):
            wrong = why_no_image(name)
            if wrong:
                raise UsageError("--kernel %s: %s" % (name, wrong))
            chosen.append(name)
        else:
            raise UsageError("--kernel takes HOST, %s, all, or the path of a kernel's image, not '%s'" % (
                ", ".join(SUITES), name))
    return list(dict.fromkeys(chosen))


class Question(NamedTuple):
    """What is asked: every program of `paths` (those in `only`, if any) on every kernel. `level`: of the log; `timeout`:
    seconds that each other kernel may take."""
    paths: list
    kernels: list
    type: Optional[str] = None
    level: int = 0
    timeout: int = 600
    only: tuple = ()


def verified(ask):
    """Yields the record of every program on every kernel of a Question."""
    found = set()
    for record in _verified(ask):
        found.add(record["program"])
        if not ask.only or record["program"] in ask.only or not record["program"]:
            yield record
    missing = [name for name in ask.only if name not in found]
    if missing and "" not in found:
        raise Failure("no program %s; there are %s" % (missing[0], ", ".join(sorted(found))))


def _verified(ask):
    if ask.kernels == ["HOST"]:
        yield from here(ask)
        return
    from .vm.verify import Guests
    _read_once(ask.paths, ask.type)
    with Guests([kernel for kernel in ask.kernels if kernel != "HOST"], ask.paths, ask.type, ask.level, ask.timeout) as guests:
        guests.start()
        for kernel in ask.kernels:
            yield from here(ask) if kernel == "HOST" else guests.records(kernel)


def _read_once(paths, type):
    """What is wrong with the files whatever the kernel is said before any machine boots."""
    from . import units
    for path in paths:
        data = read_bytes(path)
        if not path.endswith(".bt"):
            units.of_bytes(data, path, type)


def compared(ask, other):
    """Yields {"program", "before", "after"}: `other` (before) is another kernel, or else another file."""
    import os
    from .verify_text import differences
    from .vm import SUITES
    if other in SUITES or other.upper() == "HOST":
        before, = chosen_kernels([other])
        records = list(verified(ask._replace(kernels=list(dict.fromkeys([before, *ask.kernels])))))
        for kernel in ask.kernels:
            for path in ask.paths:
                yield from differences(*([r for r in records if r["kernel"] == k and r["file"] == _shown(path)]
                                         for k in (kernel, before)))
        return
    if len(ask.paths) > 1:
        raise UsageError("--compare compares one file with another")
    if not os.path.exists(other):
        raise UsageError("--compare takes another file, or a kernel (HOST, %s), not '%s'" % (", ".join(SUITES), other))
    records = list(verified(ask._replace(paths=list(dict.fromkeys([other, *ask.paths])))))
    for kernel in ask.kernels:
        yield from differences(*([r for r in records if r["kernel"] == kernel and r["file"] == path]
                                 for path in (_shown(ask.paths[0]), other)))


def _shown(path):
    return "stdin" if path == "-" else path


# one program on this kernel

def here(ask):
    """Yields the record of every program of the files on the running kernel."""
    from . import units
    for path in ask.paths:
        for unit in units.read(path, ask.type):
            with unit:
                yield verify(unit, ask.level)


def record_of(file, program, type, instructions=0):
    """A record of which nothing more is known."""
    import platform
    return {"kernel": "HOST", "release": platform.release(), "file": file, "program": program, "type": type,
            "instructions": instructions, "accepted": False, "stack_depth": [], **dict.fromkeys(COUNTS),
            "refusal": None, "error": "", "log_cut": False}


def verify(unit, level=0):
    """The record of one Unit. level: 1 and 2 keep the log, 4 its statistics."""
    from rawbpf.asm import slot_numbers
    from rawbpf.loader.errors import KernelError, ObjectError, VerifierError
    record = record_of(unit.file, unit.name, unit.type, slot_numbers(unit.instructions)[-1])
    try:
        with unit.load(4) as program:
            record["accepted"], log = True, program.log
    except VerifierError as error:
        log = error.log
    except (KernelError, ObjectError, ValueError, OSError) as error:
        record["error"] = str(error)
        return record
    _count(record, log)
    shown, record["log_cut"] = _log(unit, level) if level else ("", False)
    if not record["accepted"]:
        record["refusal"] = _refusal(unit, log, shown)
    if level:
        record["log"] = shown
    return record


def _log(unit, level, **options):
    """(the log of a level, is it cut). 6.4 and later keep its end, the others its beginning."""
    from rawbpf.loader.errors import KernelError, VerifierError
    from rawbpf.loader.program import LOG_MAX
    try:
        # In one attempt: walking a large program again for each size of buffer takes long.
        with unit.load(level | 4, **{"log_size": LOG_MAX, **options}) as program:
            return program.log, False
    except VerifierError as error:
        return error.log, error.errno == 28      # ENOSPC
    except KernelError:
        return "", False


def _count(record, log):
    from rawbpf.loader.explain import statistics
    counted = statistics(log)
    if counted is not None:
        record.update(processed=counted.insns, states=counted.total_states, peak_states=counted.peak_states,
                      max_states_per_insn=counted.max_states_per_insn, time_us=counted.time_us,
                      stack_depth=list(counted.stack_depth))


def _refusal(unit, short, log=""):
    """What explain.explain says, with the unit's own line of source."""
    from rawbpf.asm import slot_numbers
    from rawbpf.asm.disassembler import text
    from rawbpf.loader import kernel
    from rawbpf.loader.explain import explain
    from rawbpf.loader.verifier import reason, slot_to_index
    if "\n" not in log or reason(log) != reason(short):
        # Before 5.18 the states of registers are in the log of level 2 only; from 6.4 on the end of a log will do.
        ends = {"log_size": _END, "log_end": True} if kernel.release() >= (6, 4) else {}
        log, _ = _log(unit, 1 if kernel.release() >= (5, 18) else 2, **ends)
    if reason(log) != reason(short):
        log = short      # a log that is too long has lost its end
    found = explain(log)
    if found.slot is None:
        from .suspects import place
        found = found._replace(slot=place(unit, found))
    index = slot_to_index(unit.instructions, found.slot) if found.slot is not None else None
    line = unit.line_at(found.slot) or ("", 0, "")
    note = unit.note_at(found.slot)
    return {"message": "%s (%s)" % (found.message, note) if note else found.message, "kind": found.kind, "cause": found.cause, "fix": found.fix, "slot": found.slot,
            "instruction": found.instruction or (text(unit.instructions[index]) if index is not None else ""),
            "registers": found.registers, "file": line[0], "line": line[1], "text": line[2].strip() or found.source,
            "path": list(found.path), "wide": sorted(s for s, i in zip(slot_numbers(unit.instructions), unit.instructions)
                                                     if i.slots == 2)}
