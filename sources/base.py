"""What every kind of event is to the rest of the project: `Source`, `Point`, `Target`, `Listed`.

A *source* is a kind of event ("kprobe"); a *spec* is the parsed rest of a probe's text
("vfs_read+4"); a *point* is one event that a program can be attached to. Adding a kind of event
is one file with one `Source` and its `Point`; nobody else asks which kind it is.

    source = find("kprobe")
    points = source.expand(source.parse(["vfs_*"], target), target)
    program = Program.load(points[0].program_type, code, ...)
    link = points[0].attach(program, points)

Probe text is split here too (`split`), because its quoting is needed both to read what people
write and to print listings that can be pasted back (`quote`).
"""

import os
import re
from typing import NamedTuple, Optional


class SourceError(Exception):
    """A probe that cannot be: `reason` is one sentence for people, `hints` are the nearest names.

    `missing` tells "well formed, but this kernel or file has no such event" (the script option
    missing_probes may turn that into a warning) from "this text is wrong"; `pattern` that no single
    event was named. `warning`: what else to tell.
    """

    def __init__(self, reason, hints=(), missing=False, pattern=False, warning=""):
        super().__init__(reason)
        self.reason = reason
        self.hints = list(hints)
        self.missing = missing
        self.pattern = pattern
        self.warning = warning


class Target(NamedTuple):
    """Whom to trace: what the command line says about all probes together.

    `pid` limits events to one process: uprobe, usdt and perf events when they are attached; of others
    (Point.compares_pid) the kernel tells all, and the program compares the number of the current process,
    which a script's does and the code that a Python program brings has to. `unsafe` allows what can hurt the traced
    system. `root` is the folder that paths are looked up under (`/proc/PID/root` of a container). `tell` is called with
    a sentence for each of several files that is passed over, wholly or in part, because it is damaged.
    """

    pid: Optional[int] = None
    unsafe: bool = False
    root: str = ""
    tell: object = None


class Listed:
    """One line of a listing. `text` can be pasted as a probe; `arguments` is its `args` as a list
    of C declarations without semicolons, found out when asked for (it may open files)."""

    __slots__ = ("text", "_arguments")

    def __init__(self, text, arguments=None):
        self.text = text
        self._arguments = arguments

    @property
    def arguments(self):
        return self._arguments() if self._arguments else []

    def verbose(self):
        """The lines of a verbose listing."""
        return [self.text, *("    " + argument for argument in self.arguments)]

    def __repr__(self):
        return "Listed(%r)" % self.text


class Source:
    """A kind of event. Stateless: caches belong to functions that name what they cache."""

    names = ()  #: ("kprobe", "k"): the first is the one that listings print
    listed = ""  #: "kernel" or "user": part of `-l` without a kind, or with `-p`/a path; "": not
    usage = ""  #: "kprobe:[MODULE:]FUNCTION[+OFFSET]", for messages and help

    @property
    def shown(self):
        return self.names[0]

    def require(self):
        """SourceError where the kernel has no events of this kind."""

    def parse(self, parts, target):
        """`parts`: what stands after the kind, split at ":" and unquoted (see `split`).

        Returns a Spec, an immutable value only this source understands. No file is opened;
        wrong forms are a SourceError.
        """
        raise NotImplementedError

    def expand(self, spec, target):
        """All points that match, in listing order, never empty: SourceError(missing=True) then."""
        raise NotImplementedError

    def list(self, pattern, target):
        """Iterator of Listed for `pattern`: the text after "kind:", wildcards allowed, "" for
        all. Sorted by text. Nothing that matches is no error: an empty iterator."""
        raise NotImplementedError

    def nothing(self, pattern, target):
        """Why a listing of `pattern` is empty, where that is not because nothing matches; ""."""
        return ""

    def points(self, text, target=Target()):
        """`parse` and `expand` of the text after the kind, for Python callers."""
        return self.expand(self.parse(split(text) if text else [], target), target)

    def count_error(self, *counts):
        expected = " or ".join(str(n) for n in counts)
        return SourceError("%s probe type requires %s arguments: %s"
                           % (self.shown, expected, self.usage))


class Point:
    """One event. Code-making methods take the ir.Function `f` and its context Value `ctx`.

    Class attributes say what the compiler must know before it makes code:

    - `program_type`, `expected_attach_type`: as `Program.load` takes them (may be properties that
      ask the running kernel)
    - `user_space`: an address in argN, retval or a scalar field means memory of the traced
      process (read it with the _user helpers); else kernel memory. Fields that are inline arrays
      or `loc` "data_loc"/"rel_loc" lie in the context: kernel memory either way.
    - `when`: None for events the kernel raises; "begin", "end", "signal" for those that the
      session raises itself with `fire(program)`; "iter" for an iterator, which runs from beginning
      to end in `fire`
    - `argument_count`: argN exists for N below it (0: the kind has no argN)
    - `has_retval`: retval exists
    - `cookies`: whether `attach` can give each point a 64-bit number that the program reads with
      bpf_get_attach_cookie(ctx). Without, points whose names must be told apart get a program each.
    """

    source = None
    program_type = "kprobe"
    expected_attach_type = None
    load_options = {}  #: further keywords of Program.load (attach_btf_id, attach_prog, flags, ...)
    user_space = False
    when = None
    argument_count = 0
    has_retval = False
    cookies = False
    once = False  #: the kernel runs a program at most once an event: to count it twice takes two programs
    compares_pid = False  #: with Target.pid the program ends at once in other processes: attaching does not see to it (alone)
    own = False  #: an event that the session itself makes happen, on one CPU: there are none after exit()
    signal = 0  #: with when == "signal": the signal's number
    last_first = False  #: of several programs on one event, the kernel runs the last attached first
    func = None  #: name of the probed function, where there is one
    warning = ""  #: what a person should know about this point before relying on it
    no_arguments = ""  #: where `arguments()` is None though the kind can have them: why, and what there is instead

    @property
    def name(self):
        """The `probe` built-in: "kprobe:do_nanosleep"."""
        raise NotImplementedError

    @property
    def listed(self):
        """The name as a listing has it, which can be pasted as a probe."""
        return self.name

    # -- what a program can read, and the code that reads it

    def guard(self, f, ctx):
        """A Value that is 0 when this run of the program is no event (an iterator's last one): the
        program must end at once then. None for kinds that have no such runs."""
        return None

    def arguments(self):
        """Type of `args`: an elf.types.Struct, or None where the event has no named arguments."""
        return None

    def named_type(self, kind, name):
        """The elf.types Type of a kind ("struct", ...; "" for a typedef) that the probed program's own debug
        information calls so, or None."""
        return None

    def argument_type(self, n):
        """elf.types Type of argN where debug information says it, else None (a 64-bit number)."""
        return None

    def retval_type(self):
        """Type of retval where debug information says it, else None."""
        return None

    def argument(self, f, ctx, n):
        """argN as an ir.Value of 64 bits. SourceError if there is none."""
        raise SourceError("%s probes have no arg%d" % (self.source.shown, n))

    def stack_argument(self, f, ctx, n):
        """sargN: the n-th 8-byte slot of arguments passed on the stack, at the function's entry."""
        raise SourceError("%s probes have no sarg%d" % (self.source.shown, n))

    def field(self, f, ctx, field):
        """Value of one scalar Field of `arguments()`, extended to 64 bits by its type's sign."""
        raise SourceError("%s probes have no args" % self.source.shown)

    def field_address(self, f, ctx, field):
        """Address of an aggregate Field's bytes (array, struct, data_loc/rel_loc text), to be
        read with the kernel-memory helpers."""
        raise SourceError("%s probes have no args" % self.source.shown)

    def field_load(self, f, ctx, field, offset, size, signed=False):
        """Value of `size` bytes at `offset` within an aggregate field by direct loads, which need
        no helper (faster, and possible where kernel reads are locked down); None where that
        cannot be: then read from `field_address`."""
        return None

    def field_length(self, f, ctx, field):
        """Length in bytes of a data_loc/rel_loc field as a Value."""
        raise SourceError("this field has no length of its own")

    def args_address(self, f, ctx):
        """Address of the whole of `args`, for kinds where it is one piece of memory."""
        raise SourceError("%s probes have no args" % self.source.shown)

    def retval(self, f, ctx):
        raise SourceError("%s probes have no retval" % self.source.shown)

    def register(self, f, ctx, name):
        """reg("name"): a machine register at the event; SourceError lists the known names."""
        raise SourceError("reg can not be used with \"%s\" probes" % self.source.shown)

    def func_address(self, f, ctx):
        """Address of the probed function (kernel or user, see `user_space`), for the `func`
        built-in to be made a name in user space; None where only `func` is known."""
        return None

    # -- programs and attaching

    def group_key(self, args=True):
        """Points with equal keys (any hashable) can share one program: the same program type, and
        every value above read by the same code. With `args` False the program reads no `args`, so
        their layout does not count (and is not looked up). Names may differ, see `cookies`."""
        raise NotImplementedError

    def groups_with(self, other, args=True):
        """Whether one program serves both."""
        return self.group_key(args) == other.group_key(args)

    def attach(self, program, points, cookies=None):
        """Attach `program` to every one of `points` (mutually `groups_with`) and return an
        `Attachment`. `cookies`: one integer a point, where `cookies` is supported.

        A point that the kernel refuses while others succeed is in `Attachment.refused`; if all
        are refused, SourceError with the reason.
        """
        raise NotImplementedError

    def followable(self):
        """This point for a program that hands pointers from its arguments to helpers that ask for objects of the kernel:
        itself, or another Point for the same event whose program type lets the verifier know what they point at."""
        return self

    def fire(self, program):
        """Run the program now (`when` is not None)."""
        raise SourceError("%s probes cannot be fired" % self.source.shown)

    def __repr__(self):
        return "<%s %s>" % (type(self).__name__, self.name)


class Attachment:
    """What `attach` returns: links (anything with close()) closed together, and what was refused:
    a list of (point, reason)."""

    def __init__(self, links, refused=()):
        self.links = list(links)
        self.refused = list(refused)

    def close(self):
        """Detach. Many links close in parallel: each uprobe's perf event waits for a grace period
        of the kernel, and those overlap."""
        from rawbpf.loader.link import close_all

        links, self.links = self.links, []
        close_all(links)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


# -- the text of probes

_PLAIN = re.compile(r"[A-Za-z0-9_./*?\[\]+~^-]+\Z")


def split(text):
    """Split probe text at ":" outside double quotes; quotes and backslashes in them are removed.

    >>> split('usdt:./a:"web-shop":x')
    ['usdt', './a', 'web-shop', 'x']
    """
    parts, part, quoted, index = [], [], False, 0
    while index < len(text):
        char = text[index]
        if char == '"':
            quoted = not quoted
        elif quoted and char == "\\" and index + 1 < len(text):
            index += 1
            part.append(text[index])
        elif char == ":" and not quoted:
            parts.append("".join(part))
            part = []
        else:
            part.append(char)
        index += 1
    if quoted:
        raise SourceError("unterminated quote in probe: %s" % text)
    parts.append("".join(part))
    return parts


def quote(part):
    """One part as it must be written in a probe: quoted if it holds anything but the characters
    of names, paths and wildcards."""
    if _PLAIN.match(part):
        return part
    return '"%s"' % part.replace("\\", "\\\\").replace('"', '\\"')


_LITERAL = re.compile(r"[A-Za-z0-9_./+~^-]+\Z")
_FUNCTION = re.compile(r"[A-Za-z_.][A-Za-z0-9_.~^-]*(?:\n[A-Za-z_.][A-Za-z0-9_.~^-]*)*\Z")


def literal(name):
    """A name, not a pattern, as it must be written in a probe to mean itself: what would be a wildcard stands in
    brackets, and `?` for a character that no terminal should get."""
    if _LITERAL.match(name):
        return name
    return quote("".join("[%s]" % c if c in "*?[" else "?" if not c.isprintable() and not "\udca0" <= c <= "\udcff" else c
                         for c in name))


def literal_function(name):
    """The same of a function's name, which must not be read as an address or an offset, nor begin a comment."""
    if _FUNCTION.match(name) and "\n" not in name:
        return name
    head, plus, offset = name.rpartition("+")
    if plus and try_number(offset) is not None:
        text = literal(head) if head else ""
        return '"%s[+]%s"' % (text[1:-1] if text.startswith('"') else text, offset)
    if try_number(name) is not None:
        return '"[%s]%s"' % (name[0], name[1:])
    text = literal(name)
    return text if text.startswith('"') or "/" not in text else '"%s"' % text


def are_plain(names):
    """Are all of these, of which there may be half a million, as `literal_function` writes them?"""
    text = "\n".join(names)
    return _FUNCTION.match(text or "x") is not None and text.count("\n") == max(len(names) - 1, 0)


def has_wildcard(text):
    return "*" in text or "?" in text or ("[" in text and "]" in text)


def matcher(pattern):
    """A function name -> bool for a shell-like pattern (`*`, `?`, `[a-z]`). `*` also crosses ":"
    and "/"."""
    if not has_wildcard(pattern):
        return pattern.__eq__
    if "?" not in pattern and "[" not in pattern:
        if pattern.strip("*") == "":
            return lambda name: True
        if pattern.count("*") == 1:
            head, tail = pattern.split("*")
            size = len(head) + len(tail)
            return lambda name: (name.startswith(head) and name.endswith(tail)
                                 and len(name) >= size)
    import fnmatch

    match = re.compile(fnmatch.translate(pattern)).match
    # "operator[](int)" and "a[b]c" are names, too
    return (lambda name: name == pattern or match(name)) if "[" in pattern else match


def nearest(name, names, count=3):
    """The names most like `name`, best first, for hints."""
    import difflib

    names = list(names)
    if len(names) > 3000:  # difflib is slow: look only at those that begin alike
        names = sorted((each for each in names if each[:2] == name[:2]),
                       key=lambda each: abs(len(each) - len(name)))[:3000]
    return difflib.get_close_matches(name, names, count, 0.6)


def number(text, what="number"):
    """A C-like unsigned integer (decimal, 0x, 0 octal) or SourceError."""
    value = try_number(text)
    if value is None:
        raise SourceError("invalid %s: %s" % (what, text))
    return value


def try_number(text):
    if not re.match(r"(0[xX][0-9a-fA-F]+|[0-9]+)\Z", text):
        return None
    try:
        value = int(text, 16 if text[:2] in ("0x", "0X") else 8 if text[0] == "0" else 10)
    except ValueError:
        return None
    return value if value < 1 << 64 else None


def process_exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
