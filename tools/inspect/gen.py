"""`rawbpf gen`: BPF objects linked into one, and the BTF that objects need cut out of a kernel's."""

from ..failure import write_file
from .command import run_object
from .words import fail

USAGE = """usage: rawbpf gen object OUTPUT INPUT...
       rawbpf gen min_core_btf INPUT OUTPUT OBJECT...

object: links object files of clang (or rawbpf asm) into OUTPUT, which loads like one of them.
min_core_btf: of the BTF in INPUT, writes to OUTPUT the types that the CO-RE relocations of the objects look at.
"""


def _files(words, what):
    found = []
    while words:
        found.append(words.next(what))
    if not found:
        fail("%s is missing" % what)
    return found


def link(session, words):
    from rawbpf.elf.object_linker import link as work
    output = words.next("output file")
    write_file(output, work(_files(words, "input file")))
    session.done()


def min_core_btf(session, words):
    from rawbpf.elf.btf import Btf
    from rawbpf.loader.min_btf import minimal
    source, output = words.next("input file"), words.next("output file")
    write_file(output, minimal(Btf.open(source), _files(words, "object file")))
    session.done()


VERBS = {"object": link, "min_core_btf": min_core_btf}


def run(argv):
    return run_object("gen", VERBS, USAGE, argv)
