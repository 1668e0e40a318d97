"""`prog load` and `loadall`: programs of an object file, pinned."""

import os
import sys

from rawbpf.loader.errors import KernelError, ObjectError, VerifierError
from rawbpf.loader.kobject import make_pin_folder, outside_bpffs
from rawbpf.loader.uapi import F_XDP_DEV_BOUND_ONLY

from .objects import index_of, one
from .words import fail


def load(session, words, every):
    """every: all programs below a directory, else the first one as a file."""
    path, place = words.next("object file"), words.next("path")
    kind, replaced, pinmaps, autoattach = None, [], None, False
    btf = bound = None
    while words:
        name = words.need("type", "map", "dev", "offload_dev", "xdpmeta_dev", "pinmaps", "autoattach", "kernel_btf")
        if name == "type":
            if kind is not None:
                fail("program type already specified")
            kind = words.next("type")
        elif name.endswith("dev"):
            if bound is not None:
                fail("an interface is already specified")
            bound = name, index_of(words.next("name of an interface"))
        elif name == "map":
            how = words.need("idx", "name")
            key = words.number("idx") if how == "idx" else words.next("map name")
            replaced.append((key, one("map", words)))
        elif name == "pinmaps":
            pinmaps = words.next("directory")
        elif name == "kernel_btf":
            btf = words.next("file name")
        else:
            autoattach = True
    from rawbpf.loader import Object
    options = {"btf_path": btf} if btf else {}
    try:
        with Object.open(path, relaxed_maps=bool(session.options.get("mapcompat")), **options) as loaded:
            _prepare(loaded, kind, replaced, every)
            if bound is not None:
                _bind(loaded, *bound)
            load_object(session, loaded, None if every else next(iter(loaded.select())))
            _pin(loaded, place, pinmaps, autoattach, every)
    except VerifierError as error:
        sys.stderr.write(error.log)
        fail("failed to load object file: %s" % error)
    except (KernelError, ObjectError) as error:
        fail("failed to load object file: %s" % error)
    finally:
        for _, item in replaced:
            item.close()
    session.done()


def load_object(session, loaded, only=None):
    """Object.load(); with -d the verifier's log of each program follows on the error stream."""
    debug = session.options.get("debug")
    loaded.load(only, log_level=7 if debug else 0)      # each instruction, and statistics
    for program in loaded.programs.values() if debug else ():
        if program.log:
            sys.stderr.write("-- program %s:\n%s" % (program.name, program.log))


def _bind(loaded, how, ifindex):
    """To an interface that runs them itself, or (xdpmeta_dev) that tells XDP programs of its packets (6.3+)."""
    meta = how == "xdpmeta_dev"
    for program in loaded.programs.values():
        if not meta or program.type == "xdp":
            program.ifindex = ifindex
            program.flags |= F_XDP_DEV_BOUND_ONLY if meta else 0
    for item in loaded.maps.values() if not meta else ():
        if item.type != "perf_event_array":
            item.ifindex = ifindex


def _prepare(loaded, kind, replaced, every):
    if not loaded.select():
        fail("object file doesn't contain any bpf program")
    if kind is not None:
        from rawbpf.elf.bpf_sections import classify
        found, _ = classify(kind)
        if found is None:
            fail("unknown program type '%s'" % kind)
        for program in loaded.programs.values():
            program.type, program.expected_attach_type = found.program_type, found.attach_type
    names = list(loaded.maps)
    for key, item in replaced:
        if isinstance(key, int):
            if key >= len(names):
                fail("map idx %d: the object has %d maps" % (key, len(names)))
            key = names[key]
        if key not in loaded.maps:
            fail("map name %s not found in ELF file" % key)
        loaded.maps[key].reuse(item)


def _pin(loaded, place, pinmaps, autoattach, every):
    """Pins everything; what was pinned, and folders that were made for it, go again when something cannot be."""
    undo = []

    def pin(thing, path):
        thing.pin(path)
        undo.append((os.unlink, path))
    try:
        if every:
            _make_folder(place, undo)
        for name, program in loaded.programs.items():
            if program.program is None:
                continue
            thing = program.program
            if autoattach and program.attachable:
                thing = program.attach()
            pin(thing, os.path.join(place, name) if every else place)
        if pinmaps:
            _make_folder(pinmaps, undo)
            for name, item in loaded.maps.items():
                if item.map is not None:
                    pin(item.map, os.path.join(pinmaps, name.replace(".", "_")))
    except BaseException:
        for take_back, path in reversed(undo):
            take_back(path)
        raise


def _make_folder(path, undo):
    """A folder in a BPF file system; that it is there already is fine. Elsewhere none is made, also if nothing were pinned."""
    outside = outside_bpffs(os.path.join(path, "pin"))
    if outside:
        fail("%s: %s" % (path, outside))
    try:
        make_pin_folder(path, 0o700)
        undo.append((os.rmdir, path))
    except FileExistsError:
        if not os.path.isdir(path):
            fail("%s: Not a directory" % path)
