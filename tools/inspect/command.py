"""Runs one command line of an inspector: options, verb, errors in the form that was asked for."""

import os
import sys

from ..failure import Failure
from ..options import Option, UsageError, describe, parse
from .output import ODD, JsonWriter
from .words import STATUS, Words, fail, is_prefix

OPTIONS = (
    Option("json", "j", "json", "", "JSON"),
    Option("pretty", "p", "pretty", "", "JSON that people can read"),
    Option("bpffs", "f", "bpffs", "", "show where objects are pinned"),
    Option("nomount", "n", "nomount", "", "mount nothing (rawbpf never does)"),
    Option("mapcompat", "m", "mapcompat", "", "load objects whose maps are described by members that are not known"),
    Option("debug", "d", "debug", "", "show the verifier's log of programs that are loaded"),
    Option("base_btf", "B", "base-btf", "FILE", "the BTF that a module's BTF continues"),
    Option("snapshot", "", "snapshot", "FILE", "look at what `rawbpf snapshot` wrote instead of this kernel"),
    Option("version", "V", "version", "", "the version"),
    Option("help", "h", "help", "", "this text"),
)
# What bpftool has, or had, and why it is not here.
REFUSED = (
    (Option("legacy", "l", "legacy", "", ""), "bpftool has it no longer: old definitions of maps are read without it"),
    (Option("use_loader", "L", "use-loader", "", ""), "programs are loaded by this process, not by a program"),
    (Option("sign", "S", "sign", "", ""), "programs are not signed"), (Option("key", "k", "", "FILE", ""), "programs are not signed"),
    (Option("certificate", "i", "", "FILE", ""), "programs are not signed"),
)


# What may be done with a snapshot.
_RECORDED = {"prog": ("show", "list", "dump"), "map": ("show", "list", "dump", "lookup"), "link": ("show", "list"),
             "btf": ("show", "list", "dump"), "perf": ("show", "list"), "net": ("show", "list"),
             "cgroup": ("show", "list", "tree"), "tree": ("show",), "who": ("show",), "struct_ops": ("show", "list", "dump"),
             "feature": ("probe", "list_builtins"), "batch": ("file",)}


def refusal(option, why):
    return "not supported: -%s, because %s" % (option.short, why)


class Session:
    """One run: `.json` (a JsonWriter, or None for plain text), `.write(text)`, `.options`."""

    def __init__(self, options, write=None):
        self.options = options
        self.write = write or sys.stdout.write
        wanted = options.get("json") or options.get("pretty")
        self.json = JsonWriter(self.write, bool(options.get("pretty"))) if wanted else None

    def show(self, records, text, single=False):
        """Records one by one: as JSON, or through text(record). single: an object, not a list of them."""
        if self.json is None:
            for record in records:
                self.write(text(_shown(record)))
            return
        if not single:
            self.json.open("[")
        for record in records:
            write = self.json.value if "metadata" in record else self.json.plain     # whose values are of any form
            write(record)
        if not single:
            self.json.close("]")

    def done(self):
        """What a command without output says."""
        if self.json is not None:
            self.json.value(None)


def _shown(value):
    """A record for people: output.legible() of each text in it, without tabs."""
    if isinstance(value, str):
        return value if value.isprintable() else _printable(value)
    if type(value) is dict:     # metadata is one of its own, with its text
        return {name: _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list) else value


def _printable(text):
    from rawbpf.elf.image import printable
    return printable(text)


def run_object(name, verbs, usage, argv):
    """`rawbpf NAME ARGV`: -> exit status."""
    from rawbpf.loader.errors import KernelError
    from rawbpf.elf.image import ElfError
    session = None
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ODD)
    try:
        as_json = any(word in ("-j", "-p", "--json", "--pretty") for word in argv)
        session = Session({"json": as_json})
        parsed = parse(OPTIONS + tuple(option for option, _ in REFUSED), argv)
        session = Session(parsed.values)
        for option, why in REFUSED:
            if option.dest in parsed.values:
                raise Failure(refusal(option, why), STATUS)
        if parsed.get("version"):
            from .version import VERBS
            name, verbs, parsed.operands, parsed.rest = "version", VERBS, [], []
        words = parsed.operands + parsed.rest
        if parsed.get("help") or words[:1] and is_prefix(words[0], "help"):
            if session.json is None or parsed.get("help"):
                sys.stdout.write(usage + "\noptions:\n" + describe(OPTIONS))
            else:
                sys.stdout.write("null\n")      # as bpftool's scripts have it
            sys.stdout.flush()
            return 0
        _choose_source(parsed.get("snapshot"), name, verbs, words)
        if "base_btf" in parsed.values:
            # the file is wrong for any command, also for those that ask nothing of it
            from rawbpf.elf.btf import Btf
            parsed.values["base_btf"] = session.options["base_btf"] = Btf.open(parsed.get("base_btf"))
        status = dispatch(session, name, verbs, words) or 0
        if session.json is not None:
            session.json.end()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Failure as error:
        return _failed(session, str(error), STATUS if error.status == 1 else error.status)      # 1: the project's
    except (UsageError, ValueError) as error:
        return _failed(session, _printable(str(error)))
    except (KernelError, ElfError) as error:
        return _failed(session, str(error))
    except OSError as error:
        said = error.strerror or str(error)
        return _failed(session, _printable("%s: %s" % (error.filename, said) if error.filename else said))
    except Exception as error:
        if type(error).__module__.startswith("rawbpf."):        # of a room that few commands need: what it raises is for people
            return _failed(session, _printable(str(error)))
        from . import objects
        path = objects.snapshot_path()
        if path is None:
            raise
        # a snapshot's records are read where they are shown; that they are of another form shows there, in any way
        return _failed(session, "%s is damaged: %s: %s" % (path, type(error).__name__, error))


def _choose_source(path, name, verbs, words):
    """The kernel, or a snapshot of one."""
    from . import objects
    objects.use(None)
    if path is None:
        return
    allowed = _RECORDED.get(name, ())
    verb = next((known for known in verbs if is_prefix(words[0], known)), None) if words else next(iter(verbs))
    if verb is not None and verb not in allowed:
        raise Failure("not supported: rawbpf %s%s on a snapshot, because %s" % (
            name, " " + verb if allowed else "", "it would change something" if allowed else "it asks the running kernel"), STATUS)
    from .snapshot import Recording
    objects.use(Recording(path))


def dispatch(session, name, verbs, words):
    words = Words(words)
    if not words:
        return next(iter(verbs.values()))(session, words)
    verb = words.next("command")
    for known, function in verbs.items():
        if is_prefix(verb, known):
            return function(session, words)
    from difflib import get_close_matches
    near = get_close_matches(verb, verbs, 1)
    return fail("unknown command '%s': %s" % (verb, "did you mean '%s'?" % near[0] if near else
                                              "rawbpf %s has %s" % (name, ", ".join(verbs))))


def _failed(session, message, status=STATUS):
    try:
        sys.stdout.flush()
        if session is not None and session.json is not None:
            if message:
                session.json.error(message)
            session.json.end()
            sys.stdout.flush()
            return status
    except BrokenPipeError:
        raise
    except OSError as error:
        # the output takes nothing, not even what went wrong: that is what is said, and Python must not try again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        message = error.strerror
    if message:
        sys.stderr.write("Error: %s\n" % message)
    return status
