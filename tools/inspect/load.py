"""`prog load` and `loadall`: programs of an object file, pinned."""

import os
import sys

from rawbpf.loader.errors import KernelError, ObjectError, VerifierError

from .objects import one
from .words import fail


def load(session, words, every):
    """every: all programs below a directory, else the first one as a file."""
    path, place = words.next("object file"), words.next("path")
    kind, replaced, pinmaps, autoattach = None, [], None, False
    btf = None
    while words:
        name = words.need("type", "map", "pinmaps", "autoattach", "kernel_btf")
        if name == "type":
            kind = words.next("type")
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
        with Object.open(path, **options) as loaded:
            _prepare(loaded, kind, replaced, every)
            loaded.load(None if every else next(iter(loaded.select())), log_level=1 if session.options.get("debug") else 0)
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
    """Pins everything; what was pinned goes again when something cannot be."""
    done = []

    def pin(thing, path):
        thing.pin(path)
        done.append(path)
    try:
        if every:
            _make_folder(place)
        for name, program in loaded.programs.items():
            if program.program is None:
                continue
            thing = program.program
            if autoattach and program.attachable:
                thing = program.attach()
            pin(thing, os.path.join(place, name) if every else place)
        if pinmaps:
            _make_folder(pinmaps)
            for name, item in loaded.maps.items():
                if item.map is not None:
                    pin(item.map, os.path.join(pinmaps, name.replace(".", "_")))
    except BaseException:
        for path in done:
            os.unlink(path)
        raise


def _make_folder(path):
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
