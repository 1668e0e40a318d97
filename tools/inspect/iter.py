"""`rawbpf iter`: iterators of an object file, pinned so that reading the pin runs them."""

import errno

from rawbpf.loader.errors import KernelError, ObjectError

from .command import run_object
from .objects import one
from .words import fail

USAGE = """usage: rawbpf iter pin OBJ PATH [map MAP]

OBJ: an object file, the first iterator of which (SEC("iter/...")) is pinned; MAP: the map whose elements it walks.
"""


def pin(session, words):
    import struct
    from rawbpf.loader import Object
    from rawbpf.loader.link import attach_iter
    from .load import load_object
    path, place = words.next("object file"), words.next("path")
    walked = None
    if words:
        words.need("map")
        walked = one("map", words)
        words.end()
    try:
        with Object.open(path) as loaded:
            load_object(session, loaded)
            found = [program.program for program in loaded.programs.values()
                     if program.program is not None and program.expected_attach_type == "trace_iter"]
            if not found:
                fail("the object has no iterator")
            info = b"" if walked is None else struct.pack("=I12x", walked.fileno())
            with attach_iter(found[0], info) as link:
                link.pin(place)
    except (KernelError, ObjectError) as error:
        fail("can't pin the iterator: %s" % error, -(getattr(error, "errno", None) or errno.EINVAL) & 255)
    finally:
        if walked is not None:
            walked.close()
    session.done()


def run(argv):
    return run_object("iter", {"pin": pin}, USAGE, argv)
