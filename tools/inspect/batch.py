"""`rawbpf batch file FILE`: the commands of a file, one a line, `#` beginning a comment; it stops at the first
that fails. With -j the result is a list of {"command": [...], "output": ...}."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout

from .command import run_object
from .words import fail, is_prefix

USAGE = """usage: rawbpf batch file FILE      (- is the standard input)
"""
# In bpftool's order: the first that begins with the word is meant.
OBJECTS = ("prog", "map", "link", "cgroup", "perf", "net", "feature", "btf", "gen", "struct_ops", "iter", "token", "version")


def commands(lines):
    """(line number, words) of each command; a backslash at the end of a line continues it."""
    import shlex
    start, text = 0, ""
    for number, line in enumerate(lines, 1):
        start = start or number
        text += line.rstrip("\n")
        if text.endswith("\\"):
            text = text[:-1] + " "
            continue
        try:
            words = shlex.split(text, comments=True)
        except ValueError as error:
            fail("line %d: %s" % (start, error))
        if words:
            yield start, words
        start, text = 0, ""
    if text.strip():
        fail("line %d: the last line is cut short" % start)


def file(session, words):
    path = words.next("file name")
    words.end()
    if path == "-":
        return _work(session, commands(sys.stdin))
    with open(path, errors="surrogateescape") as lines:
        return _work(session, commands(lines))


def _work(session, found):
    from importlib import import_module
    count = status = 0
    if session.json is not None:
        session.json.open("[")
    for number, words in found:
        module = next((known for known in OBJECTS if is_prefix(words[0], known)), None)
        if module is None:
            fail("line %d: unknown object '%s': there are %s" % (number, words[0], ", ".join(OBJECTS)))
        run = import_module("rawbpf.tools.inspect." + module).run
        source = ["--snapshot", session.options["snapshot"]] if session.options.get("snapshot") else []
        if session.json is None:
            status = run(words[1:] + source)
        else:
            out = io.StringIO()
            with redirect_stdout(out), redirect_stderr(out):
                status = run(words[1:] + source + ["-j"])
            session.json.value({"command": words, "output": _parsed(out.getvalue())})
        count += 1
        if status:
            break
    if session.json is not None:
        session.json.close("]")
    elif not status:
        session.write("processed %d commands\n" % count)
    return status


def _parsed(text):
    """JSON as it is; of commands that write text all the same, the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


VERBS = {"file": file}


def run(argv):
    return run_object("batch", VERBS, USAGE, argv)
