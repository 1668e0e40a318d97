"""`rawbpf token`: the BPF file systems that delegate something to user namespaces (6.9+), and what (/proc/mounts)."""

from .command import run_object
from .objects import unescaped

USAGE = """usage: rawbpf token { show | list }
"""
_SETS = (("allowed_cmds", "delegate_cmds"), ("allowed_maps", "delegate_maps"), ("allowed_progs", "delegate_progs"),
         ("allowed_attachs", "delegate_attachs"))
_A_LINE = 4     # names in plain text


def records(path="/proc/mounts"):
    """What -j has of each."""
    with open(path, errors="surrogateescape", newline="\n") as mounts:
        for line in mounts:
            _, place, kind, options = line.split(" ")[:4]
            if kind != "bpf" or "delegate_" not in options:
                continue
            said = dict(option.partition("=")[::2] for option in options.split(","))
            yield {"token_info": unescaped(place),
                   **{name: list(filter(None, said.get(key, "").split(":"))) for name, key in _SETS}}


def text(fields):
    out = "token_info  " + fields["token_info"]
    for name, _ in _SETS:
        out += "\n\t%s:" % name
        for at, one in enumerate(fields[name]):
            out += ("" if at % _A_LINE else "\n\t  ") + "%-20s" % one
    return out + "\n"


def show(session, words):
    words.end()
    session.show(records(), text)


def run(argv):
    return run_object("token", {"show": show, "list": show}, USAGE, argv)
