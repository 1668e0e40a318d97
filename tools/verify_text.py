"""What `rawbpf verify` prints of its records: reports, annotated programs, comparisons."""


def heading(record):
    named = "%s: %s (%s)" % (record["file"], record["program"], record["type"]) if record["program"] else record["file"]
    return "%s on %s" % (named, record["release"])


def report(record, annotate=False, with_log=False):
    """The text of one record."""
    lines = []
    if record["error"]:
        lines.append("%s: not loaded" % heading(record))
        lines.append("  %s" % record["error"])
    elif record["accepted"]:
        lines.append("%s: accepted" % heading(record))
        lines.append("  %s" % counts(record))
    else:
        lines += refusal(record)
    if (annotate or with_log) and record.get("log"):
        log = annotated(record["log"]) if annotate else record["log"].rstrip("\n").split("\n")
        if record["log_cut"]:
            end = "\nprocessed " in record["log"][-300:]
            log.insert(0 if end else len(log), "... (the log is larger than 16 MiB; this is its %s)" % ("end" if end else "beginning"))
        lines += ["", *log, ""]
    return "\n".join(lines) + "\n"


def counts(record):
    """The statistics in a line; what the kernel does not tell is left out."""
    parts = ["%d instructions" % record["instructions"]]
    if record["processed"] is not None:
        parts += ["%d processed" % record["processed"], "%d states (%d at the peak, %d for one instruction)" % (
            record["states"], record["peak_states"], record["max_states_per_insn"])]
    if record["stack_depth"]:
        parts.append("stack %s" % "+".join(map(str, record["stack_depth"])))
    if record["time_us"] is not None:
        parts.append("%d us" % record["time_us"])
    return ", ".join(parts)


def refusal(record):
    why = record["refusal"]
    where = "" if why["slot"] is None else " at %d: %s" % (why["slot"], why["instruction"])
    lines = ["%s: refused%s" % (heading(record), where)]
    if why["line"]:
        lines.append("  source:    %s:%d: %s" % (why["file"], why["line"], why["text"]))
    elif why["text"]:
        lines.append("  source:    %s" % why["text"])
    lines.append("  verifier:  %s" % why["message"])
    lines.append("  cause:     %s (%s)" % (why["cause"], why["kind"]))
    lines.append("  fix:       %s" % why["fix"])
    if why["registers"]:
        lines.append("  registers: %s" % "  ".join("%s=%s" % item for item in sorted(why["registers"].items(), key=_order)))
    if why["path"]:
        lines.append("  path:      %s" % ranges(why["path"], why["wide"]))
    lines.append("  counted:   %s" % counts(record))
    return lines


def _order(item):
    name = item[0]
    return (0, int(name[1:])) if name[0] == "R" else (1, -int(name[2:]))


def ranges(slots, wide=()):
    """0, 1, 2, 5, 6 as "0-2, 5-6"; `wide`: slots of instructions that fill two. A long way is shown by its end."""
    runs = []
    for slot in slots:
        if runs and slot == runs[-1][1] + 1 + (runs[-1][1] in wide):
            runs[-1][1] = slot
        else:
            runs.append([slot, slot])
    text, seen = [], 0
    for at, run in enumerate(runs):
        seen += 1
        if at + 1 == len(runs) or runs[at + 1] != run:
            text.append(("%d" if run[0] == run[1] else "%d-%d") % tuple(dict.fromkeys(run)) + (" (%d times)" % seen if seen > 1 else ""))
            seen = 0
    return ", ".join(text) if len(text) <= 24 else "... (%d jumps), %s" % (len(text) - 24, ", ".join(text[-24:]))


def annotated(log):
    """The walk with the state that the verifier had before each instruction, and the source lines."""
    from rawbpf.loader.explain import steps
    lines, source = [], ""
    for step in steps(log):
        if step.jumped_from is not None:
            lines.append("; from %d to %d" % (step.jumped_from, step.slot))
        if step.source and step.source != source:
            lines.append("; %s" % step.source)
            source = step.source
        if step.before:
            lines.append("             %s" % step.before)
        text = "%5d: %s" % (step.slot, step.text)
        lines.append("%-46s ; %s" % (text, step.after) if step.after else text)
    return lines


# comparison

def differences(records, others):
    """[{program, before, after}] by program (those whose names have changed by their order); before and after are
    records, null where there is none."""
    left, out, new = {}, [], []
    for record in others:
        left.setdefault(record["program"], []).append(record)
    for record in records:
        same = left.get(record["program"])
        if same:
            out.append((same.pop(0), record))
        else:
            new.append(record)
    old = [record for rest in left.values() for record in rest]
    if len(old) == len(new) and all(record["program"] for record in old + new):
        out += zip(old, new)
    else:
        out += [(None, record) for record in new] + [(record, None) for record in old]
    return [{"program": (after or before)["program"], "before": before, "after": after} for before, after in out]


def comparison(pairs):
    """Text of what `differences` found."""
    lines = []
    for pair in pairs:
        before, after = pair["before"], pair["after"]
        if before is None or after is None:
            lines.append("only %s: %s" % (heading(after or before), _verdict(after or before)))
            continue
        what = [name for name in ("file", "program", "release") if before[name] != after[name]]
        lines.append("%s: %s" % (pair["program"], ", ".join("%s -> %s" % (before[n], after[n]) for n in what)
                                 or "the same file and kernel"))
        lines += ["  " + line for line in _changes(before, after)]
    return "\n".join(lines) + "\n"


def _verdict(record):
    if record["error"]:
        return "not loaded: " + record["error"]
    if record["accepted"]:
        return "accepted"
    return "refused at %s: %s (%s)" % (record["refusal"]["slot"], record["refusal"]["message"], record["refusal"]["kind"])


def _changes(before, after):
    if _verdict(before) != _verdict(after):
        yield "%s -> %s" % (_verdict(before), _verdict(after))
    else:
        yield _verdict(after)
    for name in ("instructions", "processed", "states", "peak_states", "max_states_per_insn", "time_us"):
        a, b = before[name], after[name]
        if a is not None and b is not None and (a != b or name == "processed"):
            change = " (%+.0f%%)" % (100.0 * (b - a) / a) if a and a != b else ""
            yield "%-20s %d -> %d%s" % (name, a, b, change) if a != b else "%-20s %d" % (name, a)
    if before["stack_depth"] != after["stack_depth"]:
        yield "%-20s %s -> %s" % ("stack_depth", *("+".join(map(str, r["stack_depth"])) or "?" for r in (before, after)))
