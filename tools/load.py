"""`rawbpf load OBJ.o`: load the programs of a BPF object file, or of assembly text, attach or pin them, say what came
of it.

    rawbpf load execsnoop.bpf.o --attach          until Ctrl-C
    rawbpf load xdp.bpf.o --only pass --pin /sys/fs/bpf/demo
    rawbpf load prog.o --json

The exit status is 0 when everything asked for was done (with --attach: and something is attached). Programs that the kernel refuses do not keep the
others from being loaded; each is reported with the reason. With --json there is always one object on the standard
output: {"programs": [...], "maps": [...]} and, where that is not all, "error", which the error stream has as well.
"""

import signal
import sys

from .options import Option, UsageError, describe, parse

OPTIONS = (
    Option("attach", "a", "attach", "", "attach what its section says, until Ctrl-C or SIGTERM (with --pin:\n"
           "pin the links too, and end)"),
    Option("pin", "p", "pin", "DIR", "pin the programs in this folder of a BPF file system"),
    Option("pin_maps", "", "pin-maps", "DIR", "folder for maps that ask to be pinned by name [/sys/fs/bpf]"),
    Option("only", "o", "only", "NAME", "load only this program (may be given again)", True),
    Option("btf", "", "btf", "FILE", "relocate against these types instead of the kernel's"),
    Option("json", "j", "json", "", "print the result as JSON"),
    Option("verbose", "v", "verbose", "", "print the verifier's log of what was refused"),
    Option("help", "h", "help", "", "print this"),
)
WATCHES_SIGNALS = True          # until all is imported nothing is held, and Ctrl-C simply ends it
_ENDS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
USAGE = ("usage: rawbpf load OBJ.o [--attach] [--pin DIR] [--only NAME] [--json]\n"
         "       rawbpf load PROGRAM.s ...         (assembly text; - is the standard input)\n")


class _Ended(BaseException):
    """A signal that ends this process; what is undone first is what its end would not undo: pins."""


def _ends(number, frame):
    for each in _ENDS:
        signal.signal(each, signal.SIG_IGN)         # another one must not disturb that
    raise _Ended(number)


class _Unwritten(Exception):
    """The standard output took no more: its argument, an OSError, says why."""


def _enough(error, parsed):
    """Has all been pinned that was to be, and only the reader of what is printed gone?"""
    return bool(parsed.get("pin")) and isinstance(error, _Unwritten) and isinstance(error.args[0], BrokenPipeError)


def run(argv):
    """Run with the arguments after `load`; returns the exit status."""
    watched = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for each in watched:
        signal.signal(each, _ends)
    try:
        return _run(argv)
    except _Ended as end:
        import os
        signal.signal(end.args[0], signal.SIG_DFL)
        os.kill(os.getpid(), end.args[0])
        return 128 + end.args[0]
    except _Unwritten as error:
        raise error.args[0] from None
    finally:
        for each in watched:
            signal.signal(each, signal.SIG_DFL)


def _run(argv):
    try:
        parsed = parse(OPTIONS, argv)
        if parsed.get("help"):
            sys.stdout.write(USAGE + "\noptions:\n" + describe(OPTIONS))
            return 0
        operands = parsed.operands + parsed.rest
        if len(operands) != 1:
            raise UsageError("one object file is needed" if not operands else "one object file at a time")
        for option in OPTIONS:
            if option.metavar and "" in (parsed.get(option.dest), *(parsed.get(option.dest, []) if option.many else ())):
                raise UsageError("option '--%s' takes a %s, not an empty text" % (option.long, option.metavar))
    except UsageError as error:
        sys.stderr.write("ERROR: %s\n%s" % (error, USAGE))
        return 1
    if parsed.get("json"):
        import json                     # while there are descriptors left
    from rawbpf.elf.image import ElfError, printable
    from rawbpf.asm import AsmError
    from rawbpf.loader import KernelError, ObjectError
    from .failure import Failure
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:       # see WATCHES_SIGNALS
        signal.signal(signal.SIGINT, signal.default_int_handler)
    result = {"programs": [], "maps": []}
    try:
        options = {name: parsed.get(option) for name, option in (("btf_path", "btf"), ("pin_root", "pin_maps"))
                   if parsed.get(option)}
        with _opened(operands[0], options) as obj:
            try:
                return _load(obj, parsed, result)
            except BaseException as error:
                if not _enough(error, parsed):
                    obj.unpin()
                raise
    except (ElfError, ObjectError, KernelError, AsmError, Failure) as error:
        text = printable(str(error)) if isinstance(error, Failure) else str(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        text = printable("%s: %s" % (error.filename, error.strerror) if error.filename else error.strerror or str(error))
    sys.stderr.write("ERROR: %s\n" % text)
    if parsed.get("json"):
        print(json.dumps(dict(result, error=text)), flush=True)
    return 1


def _opened(path, options):
    """The Object of an object file, or of assembly text."""
    from rawbpf.loader import Object, ObjectError
    import os
    from .failure import read_bytes
    shown = "stdin" if path == "-" else path
    if os.path.isfile(path):
        with open(path, "rb") as file:
            try:
                start = file.read(4)
            except OSError as error:
                raise ObjectError("%s: %s" % (path, error.strerror)) from None
        if start in (b"\x7fELF", b""):
            return Object.open(path, **options)
    data = read_bytes(path)
    if data.startswith(b"\x7fELF"):
        return Object.parse(data, shown, **options)
    if b"\0" in data:
        raise ObjectError("%s: neither an ELF object nor assembly text" % shown)
    from rawbpf.asm import write_object
    from rawbpf.loader.uapi import MAP_TYPES
    from .asm import assembled
    from .kernel_symbols import kernel_type
    return Object.parse(write_object(assembled([(path, data)]), MAP_TYPES, kernel_type), shown, **options)


def _load(obj, parsed, result):
    """Fills `result`, which --json prints -> exit status."""
    from rawbpf.loader import KernelError, LinkGroup, ObjectError
    if not obj.programs and not obj.maps:
        raise ObjectError("%s: there is no program in it: the name of a section, like xdp or kprobe/NAME, says that it "
                          "holds one" % obj.file.path)
    names = obj.select(parsed.get("only"))
    # Ctrl-C while this loads leaves nothing: all is held by descriptors until it is pinned.
    rows, failed, maps_refused = result["programs"], False, None
    try:
        obj.prepare(names if parsed.get("only") else None)
    except (KernelError, ObjectError) as error:
        maps_refused = error
    for name in names:
        program = obj.programs[name]
        row = {"name": name, "section": program.section, "type": program.type, "loaded": True, "errno": 0, "log": ""}
        try:
            if maps_refused is not None:
                raise maps_refused
            program.load()
        except (KernelError, ObjectError) as error:
            row.update(loaded=False, errno=getattr(error, "errno", None) or 0, log=program.log, error=str(error))
            failed = True
        rows.append(row)
    if maps_refused is None:
        obj.fill_program_arrays()
    elif not names:
        raise maps_refused
    with LinkGroup() as links:
        attached, pins = {}, []
        if parsed.get("attach"):
            failed |= _attach(obj, rows, links, attached)
        if parsed.get("pin"):
            pins = _pin(obj, rows, attached, parsed.get("pin"))
        try:
            failed |= _report(obj, attached, parsed, result, links)
            if failed and not parsed.get("pin") and not len(links):
                obj.unpin()                 # there is nothing that uses the maps
            if parsed.get("attach") and not parsed.get("pin") and len(links):
                _wait()
        except BaseException as error:
            pinned = bool(pins)
            if not _enough(error, parsed):
                _take_back(pins)
            if pinned or not isinstance(error, KeyboardInterrupt) or not len(links):
                raise                       # else it has told us to end, a moment before we waited for it
    return 1 if failed else 0


def _attach(obj, rows, links, attached):
    """Attaches what can be; puts "attached" into the rows, the links by name into `attached`. -> did one fail"""
    from rawbpf.loader import KernelError, ObjectError
    failed = False
    for row in rows:
        program = obj.programs[row["name"]]
        row["attached"] = False
        if row["loaded"] and program.attachable:
            try:
                attached[program.name] = program.attach()
                links.add(attached[program.name])
                row["attached"] = True
            except (KernelError, ObjectError) as error:
                row["error"], failed = str(error), True
    for each in obj.struct_ops:
        if each.map is not None:
            try:
                attached[each.name] = each.attach()
                links.add(attached[each.name])
            except (KernelError, ObjectError) as error:
                sys.stderr.write("ERROR: %s\n" % error)
                failed = True
    return failed


def _pin(obj, rows, attached, folder):
    """Pins the programs under their names, links as NAME_link; takes all back when one cannot be -> what _take_back()
    takes."""
    import os
    from rawbpf.loader import ObjectError
    from rawbpf.loader.kobject import make_pin_folder
    things = _things(obj, rows, attached)
    made = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        if things and not os.path.isdir(folder):
            if os.path.lexists(folder):
                raise ObjectError("%s is no folder to pin in" % folder)
            make_pin_folder(folder)
            made.append((os.rmdir, folder))
        for name, thing in things:
            path = os.path.join(folder, name)
            thing.pin(path)
            made.append((os.unlink, path))
        if signal.sigpending() & _ENDS:
            raise KeyboardInterrupt
    except BaseException:
        _take_back(made)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for row in rows:
        if row["loaded"]:
            row["pinned"] = os.path.join(folder, row["name"])
    return made


def _take_back(made):
    """Undoes what is in a list of (function, path), the last first."""
    while made:
        undo, path = made.pop()
        try:
            undo(path)
        except OSError:
            continue            # gone already, or a folder that others have used


def _things(obj, rows, attached):
    """[(name, what is pinned by it)]"""
    from rawbpf.loader import ObjectError
    things = [(row["name"], obj.programs[row["name"]].program) for row in rows if row["loaded"]]
    for name, link in attached.items():
        parts = getattr(link, "links", None)        # of a probe with several places
        things += [(name + "_link", link)] if parts is None else [
            ("%s_link%s" % (name, number or ""), part) for number, part in enumerate(parts)]
    names = [name for name, _ in things]
    for name in names:
        if names.count(name) > 1:
            raise ObjectError("a program and the link of another, %s, would both be pinned as %s: use --only" % (
                name.rpartition("_link")[0], name))
    return things


def _report(obj, attached, parsed, result, links):
    """Prints what came of it -> was there nothing of what was asked for? _Unwritten where that cannot be told."""
    try:
        return _told(obj, attached, parsed, result, links)
    except OSError as error:
        raise _Unwritten(error) from None


def _told(obj, attached, parsed, result, links):
    rows = result["programs"]
    nothing = ""
    if parsed.get("attach") and not len(links):
        nothing = "nothing was attached"
    elif parsed.get("pin") and not any(row.get("pinned") for row in rows) and not len(links):
        nothing = "nothing was pinned"
    maps = result["maps"] = [
        {"name": name, "type": each.type, "key_size": each.key_size, "value_size": each.value_size,
         "max_entries": each.map.max_entries} for name, each in obj.maps.items() if each.map is not None]
    if nothing and not any(row.get("error") for row in rows):
        result["error"] = nothing
        sys.stderr.write("ERROR: %s\n" % nothing)
    for row in maps:
        if row["type"] == "struct_ops" and parsed.get("attach"):
            row["attached"] = row["name"] in attached
    if parsed.get("json"):
        import json
        print(json.dumps(result), flush=True)
        return bool(nothing)
    for row in rows:
        state = "attached" if row.get("attached") else "loaded" if row["loaded"] else "refused"
        print("%-8s  %s  (%s, section %s)" % (state, row["name"], row["type"] or "no type", row["section"]))
        if row.get("attached") is False and row["loaded"] and not row.get("error") and row["type"] != "struct_ops":
            print("          not attached: its section does not say to what; in Python, attach_to() does")
        if row.get("error"):
            print("          " + row["error"])
        if parsed.get("verbose") and row["log"]:
            print("          " + row["log"].rstrip().replace("\n", "\n          "))
    for each in maps:
        print("registered" if each.get("attached") else "map      ", end="")
        print(" %(name)s  (%(type)s, key %(key_size)d, value %(value_size)d, %(max_entries)d entries)" % each)
    sys.stdout.flush()
    return bool(nothing)


def _wait():
    """Until SIGINT or SIGTERM; SIGHUP, unless that is ignored, ends the process as ever."""
    ends = {signal.SIGINT, signal.SIGTERM}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ends.add(signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        if signal.sigwait(ends) == signal.SIGHUP:
            raise _Ended(signal.SIGHUP)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
