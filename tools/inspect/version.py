"""`rawbpf version`: which this is, and under -j what bpftool's scripts ask of it."""

from .command import run_object

USAGE = """usage: rawbpf version
"""


def show(session, words):
    from ..cli import VERSION
    words.end()
    # the disassemblers that bpftool may be built with are our own; there are no skeletons, and no signatures
    features = {"libbfd": False, "llvm": False, "crypto": False, "skeletons": False, "bootstrap": False}
    session.show([{"version": VERSION, "features": features}], lambda fields: "rawbpf %s\n" % fields["version"], True)


VERBS = {"show": show}


def run(argv):
    return run_object("version", VERBS, USAGE, ["show", *argv])
