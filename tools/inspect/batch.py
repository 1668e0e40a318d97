"""`rawbpf batch file FILE`: the commands of a file, one a line, `#` beginning a comment; it stops at the first
that fails. With -j the result is a list of {"command": [...], "output": ...}."""

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout

from .command import run_object
from .words import STATUS, fail, is_prefix

USAGE = """usage: rawbpf batch file FILE      (- is the standard input)
"""
# In bpftool's order: the first that begins with the word is meant.
OBJECTS = ("prog", "map", "link", "cgroup", "perf", "net", "feature", "btf", "gen", "struct_ops", "iter", "token", "version")

_LONGEST = 1 << 16      # characters of a command: /dev/zero has one without end


def commands(lines):
    """(line number, words) of each command of a file; a backslash at the end of a line continues it."""
    import shlex
    start, text = 0, ""
    for number, line in enumerate(iter(lambda: lines.readline(_LONGEST + 1), ""), 1):
        start = start or number
        text += line.rstrip("\n")
        if len(text) > _LONGEST:
            fail("line %d: more than %d characters" % (start, _LONGEST))
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
        if hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(errors="surrogateescape")
        return _work(session, commands(sys.stdin))
    if os.path.isdir(path) and session.json is not None:
        session.json.open("[")      # bpftool sees it when it reads
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
            said = "line %d: unknown object '%s': there are %s" % (number, words[0], ", ".join(OBJECTS))
            if session.json is None:
                fail(said)
            session.json.value({"command": words, "output": {"error": said}})
            status = STATUS
            break
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
