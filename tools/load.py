"""`rawbpf load OBJ.o`: load the programs of a BPF object file, or of assembly text, attach or pin them, say what came
of it.

    rawbpf load execsnoop.bpf.o --attach          until Ctrl-C
    rawbpf load xdp.bpf.o --only pass --pin /sys/fs/bpf/demo
    rawbpf load prog.o --json

The exit status is 0 when everything asked for was done (with --attach: and something is attached). Programs that the kernel refuses do not keep the
others from being loaded; each is reported with the reason.
"""

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
USAGE = ("usage: rawbpf load OBJ.o [--attach] [--pin DIR] [--only NAME] [--json]\n"
         "       rawbpf load PROGRAM.s ...         (assembly text; - is the standard input)\n")


def run(argv):
    """Run with the arguments after `load`; returns the exit status."""
    try:
        parsed = parse(OPTIONS, argv)
        if parsed.get("help"):
            sys.stdout.write(USAGE + "\noptions:\n" + describe(OPTIONS))
            return 0
        operands = parsed.operands + parsed.rest
        if len(operands) != 1:
            raise UsageError("one object file is needed" if not operands else "one object file at a time")
    except UsageError as error:
        sys.stderr.write("ERROR: %s\n%s" % (error, USAGE))
        return 1
    from rawbpf.elf.image import ElfError
    from rawbpf.asm import AsmError
    from rawbpf.loader import KernelError, ObjectError
    from .failure import Failure
    try:
        options = {name: parsed.get(option) for name, option in (("btf_path", "btf"), ("pin_root", "pin_maps"))
                   if parsed.get(option)}
        with _opened(operands[0], options) as obj:
            return _load(obj, parsed)
    except (ElfError, ObjectError, KernelError, AsmError, Failure) as error:
        sys.stderr.write("ERROR: %s\n" % error)
        return 1


def _opened(path, options):
    """The Object of an object file, or of assembly text."""
    from rawbpf.loader import Object, ObjectError
    import os
    from .failure import read_bytes
    shown = "stdin" if path == "-" else path
    if os.path.isfile(path):
        with open(path, "rb") as file:
            if file.read(4) in (b"\x7fELF", b""):
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


def _load(obj, parsed):
    from rawbpf.loader import KernelError, LinkGroup, ObjectError
    if not obj.programs and not obj.maps:
        raise ObjectError("%s: there is no program in it: the name of a section, like xdp or kprobe/NAME, says that it "
                          "holds one" % obj.file.path)
    names = obj.select(parsed.get("only"))
    # Ctrl-C while this loads leaves nothing: all is held by descriptors until it is pinned.
    rows, failed, maps_refused = [], False, None
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
        attached = {}
        if parsed.get("attach"):
            failed |= _attach(obj, rows, links, attached)
        if parsed.get("pin"):
            _pin(obj, rows, attached, parsed.get("pin"))
        _report(obj, rows, attached, parsed)
        if parsed.get("attach") and not len(links) and not failed:
            sys.stderr.write("ERROR: nothing was attached\n")
            failed = True
        if parsed.get("attach") and not parsed.get("pin") and len(links):
            _wait()
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
    """Pins the programs under their names, links as NAME_link; takes all back when one cannot be."""
    import os
    import signal
    from rawbpf.loader.kobject import make_pin_folder
    made, ends = [], {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        if not os.path.isdir(folder):
            make_pin_folder(folder)
            made.append((os.rmdir, folder))
        things = [(name, obj.programs[name].program) for name in (row["name"] for row in rows if row["loaded"])]
        for name, link in attached.items():
            parts = getattr(link, "links", None)        # of a probe with several places
            things += [(name + "_link", link)] if parts is None else [
                ("%s_link%s" % (name, number or ""), part) for number, part in enumerate(parts)]
        for name, thing in things:
            path = os.path.join(folder, name)
            thing.pin(path)
            made.append((os.unlink, path))
        if signal.sigpending() & ends:
            raise KeyboardInterrupt
    except BaseException:
        for undo, path in reversed(made):
            undo(path)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for row in rows:
        if row["loaded"]:
            row["pinned"] = os.path.join(folder, row["name"])


def _report(obj, rows, attached, parsed):
    maps = [{"name": name, "type": each.type, "key_size": each.key_size, "value_size": each.value_size,
             "max_entries": each.map.max_entries} for name, each in obj.maps.items() if each.map is not None]
    for row in maps:
        if row["type"] == "struct_ops" and parsed.get("attach"):
            row["attached"] = row["name"] in attached
    if parsed.get("json"):
        import json
        print(json.dumps({"programs": rows, "maps": maps}), flush=True)
        return
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


def _wait():
    """Until SIGINT or SIGTERM."""
    import signal
    ends = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        signal.sigwait(ends)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
