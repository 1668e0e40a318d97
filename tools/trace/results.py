"""What a running script produces, and its two forms: text and JSON lines, both as bpftrace 0.27 writes
them.

Every kind of result is one class with `text()` and `json()`; the session only makes results and hands
them to a renderer, which decides the form and the stream. In the text form the script's own output
goes to the output stream and what rawbpf has to say about it to the error stream; in JSON every
result is one line of the output stream.

A byte of the traced system that is no UTF-8 is a surrogate escape in Python strings: the text form
writes the byte itself, JSON the escape (0xff: "\\udcff"), which
`json.loads(line)["data"].encode("utf-8", "surrogateescape")` turns back into the byte.
"""

from .types import Stats, json_keys, json_string, key_text


class Result:
    """Base of all. `to_err`: the text form is for the error stream."""

    __slots__ = ()
    to_err = False

    def text(self):
        raise NotImplementedError

    def json(self):
        raise NotImplementedError

    def __repr__(self):
        return "<%s %s>" % (type(self).__name__, self.text().rstrip("\n"))


def _record(kind, data):
    return '{"type": "%s", "data": %s}\n' % (kind, data)


class _Text(Result):
    """A piece of text; `kind` is its JSON type, `end` what the text form adds."""

    __slots__ = ("value",)
    kind = end = ""

    def __init__(self, value):
        self.value = value

    def text(self):
        return self.value + self.end

    def json(self):
        return _record(self.kind, json_string(self.value))


class Time(_Text):
    """time()"""
    __slots__ = ()
    kind = "time"


class Cat(_Text):
    """cat(): what the file holds."""
    __slots__ = ()
    kind = "cat"


class Join(_Text):
    """join()"""
    __slots__ = ()
    kind, end = "join", "\n"


class Syscall(_Text):
    """system(): what the command printed."""
    __slots__ = ()
    kind, end = "syscall", "\n"


class Printf(_Text):
    """printf(): `value` is the finished text, `format` and `arguments` what it was made of."""

    __slots__ = ("format", "arguments")
    kind = "printf"

    def __init__(self, value, format=None, arguments=()):
        self.value, self.format, self.arguments = value, format, arguments


class Message(Result):
    """errorf(), warnf() and debugf() (`severity` "ERROR", "WARNING", "DEBUG"), at the place `span` of the
    script."""

    __slots__ = ("value", "severity", "span")
    to_err = True

    def __init__(self, value, severity, span):
        self.value, self.severity, self.span = value, severity, span

    def text(self):
        value = self.value[:-1] if self.value.endswith("\n") else self.value
        return "%s: %s: %s\n" % (self.span.location, self.severity, value) + _expansions(self.span, self.severity)

    def json(self):
        kind = {"ERROR": "errorf", "WARNING": "warnf"}.get(self.severity, "debugf")
        return '{"type": "%s", "msg": %s, %s}\n' % (kind, json_string(self.value), _place(self.span))


def _place(span):
    return '"filename": %s, "line": %d, "col": %d' % (json_string(span.source.name), span.line, span.column)


def _expansions(span, severity):
    """Where the macros were used that a place came from."""
    lines = []
    while span.origin is not None:
        span = span.origin
        lines += ["%s: %s: expanded from" % (span.location, severity), *span.context()]
    return "".join(line + "\n" for line in lines)


class Pinned(Result):
    """An iterator that is read at a path of the BPF file system from now on."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def text(self):
        return "Program pinned to %s\n" % self.value

    def json(self):
        return '{"type": "pinned", "data": %s}\n' % json_string(self.value)


class Notice(Result):
    """Something about the machine that makes the output less than it could be."""

    __slots__ = ("value",)
    to_err = True

    def __init__(self, value):
        self.value = value

    def text(self):
        return "WARNING: %s\n" % self.value

    def json(self):
        return '{"type": "warning", "msg": %s}\n' % json_string(self.value)


class Value(Result):
    """print() of a value that is no map: a Python `value` of the script type `type`."""

    __slots__ = ("type", "value")

    def __init__(self, type, value):
        self.type, self.value = type, value

    def text(self):
        return self.type.text(self.value) + "\n"

    def json(self):
        return _record("value", self.type.json(self.value))


class MapResult(Result):
    """A map: `rows` are (key, value) in the order of printing, with key None for a scalar."""

    __slots__ = ("name", "key_type", "value_type", "rows")

    def __init__(self, name, key_type, value_type, rows):
        self.name, self.key_type, self.value_type, self.rows = name, key_type, value_type, rows

    @property
    def value(self):
        """The map as Python values: a dict, or a scalar's value (None when it was never set)."""
        if self.key_type is None:
            return self.rows[0][1] if self.rows else None
        return dict(self.rows)

    def text(self):
        kind = self.value_type
        lines = []
        for key, value in self.rows:
            name = self.name if key is None else "%s[%s]" % (self.name, key_text(self.key_type, key))
            lines.append("%s:%s%s\n" % (name, "\n" if kind.multiline else " ", kind.text(value)))
        return "".join(lines)

    def json(self):
        kind = self.value_type
        if not self.rows and kind.json_kind != "stats":
            return ""
        if self.key_type is None and self.rows:
            data = kind.json(self.rows[0][1])
        else:
            names = json_keys(self.key_type, [key for key, _ in self.rows]) if self.rows else []
            data = "{" + ", ".join(["%s: %s" % (name, kind.json(row[1]))
                                    for name, row in zip(names, self.rows)]) + "}"
        return _record(kind.json_kind, "{%s: %s}" % (json_string(self.name), data))


class AttachedProbes(Result):
    """All probes are attached; from here on events arrive."""

    __slots__ = ("count",)
    to_err = True

    def __init__(self, count):
        self.count = count

    def text(self):
        return "Attached %d probe%s\n" % (self.count, "" if self.count == 1 else "s")

    def json(self):
        return '{"type": "attached_probes", "count": %d, "data": {"probes": %d}}\n' % (self.count, self.count)


class LostEvents(Result):
    """`count` more records of events found no room in the buffer."""

    __slots__ = ("count",)
    to_err = True

    def __init__(self, count):
        self.count = count

    def text(self):
        return "Lost %d events\n" % self.count

    def json(self):
        return ('{"type": "lost_events", "count": %d, "data": {"events": %d}}\n' % (self.count, self.count))


class Failures(Result):
    """`count` more things that programs could not do: see `compiled.Loss` for `kind` and `name`."""

    __slots__ = ("kind", "name", "count", "limit")
    to_err = True

    def __init__(self, kind, name, count, limit=0):
        self.kind, self.name, self.count, self.limit = kind, name, count, limit

    def _message(self):
        many = "" if self.count == 1 else "s"
        if self.kind == "map":
            return ("Map full; can't update element. %s has room for %d key%s, %d update%s of new keys failed. Try "
                    "increasing max_map_keys config or manually setting the max entries in a map declaration e.g. "
                    "`let %s = hash(%d)`" % (self.name, self.limit, "" if self.limit == 1 else "s", self.count, many,
                                             self.name, max(1, self.limit) * 4))
        if self.kind == "stack":
            return "%d stack%s could not be stored" % (self.count, many)
        why = ("the kernel was in another BPF program or in a map operation on the CPU" if self.kind == "missed"
               else "no scratch memory was free on the CPU")
        return "%d event%s not handled: %s" % (self.count, " was" if self.count == 1 else "s were", why)

    def text(self):
        return "WARNING: %s\n" % self._message()

    def json(self):
        data = '{"count": %d' % self.count
        if self.kind == "map":
            data += ', "map": %s, "max_entries": %d' % (json_string(self.name), self.limit)
        kind = {"map": "map_full", "stack": "lost_stacks"}.get(self.kind, "lost_hits")
        return '{"type": "%s", "msg": %s, "data": %s}}\n' % (kind, json_string(self._message()), data)


class HelperError(Result):
    """A helper function failed in a program: `helper` by name, `code` its negative result, at `span`."""

    __slots__ = ("helper", "code", "span")
    to_err = True

    def __init__(self, helper, code, span):
        self.helper, self.code, self.span = helper, code, span

    def _reason(self):
        import os
        return (os.strerror(-self.code) if self.code < 0
                else "Can't lookup map element because it does not exist.")

    def text(self):
        lines = ["%s: WARNING: %s" % (self.span.location, self._reason()),
                 "Additional Info - helper: %s, retcode: %d" % (self.helper, self.code)]
        return "\n".join(lines + self.span.context()) + "\n"

    def json(self):
        return ('{"type": "helper_error", "msg": %s, "helper": %s, "retcode": %d, %s}\n'
                % (json_string(self._reason()), json_string(self.helper), self.code, _place(self.span)))


class Trouble(Result):
    """Something went wrong in a program while it ran, at the place `span` of the script."""

    __slots__ = ("value", "span")
    to_err = True

    def __init__(self, value, span):
        self.value, self.span = value, span

    def text(self):
        return "\n".join(["%s: WARNING: %s" % (self.span.location, self.value)] + self.span.context()) + "\n" \
            + _expansions(self.span, "WARNING")

    def json(self):
        return '{"type": "runtime_error", "msg": %s, %s}\n' % (json_string(self.value), _place(self.span))


GREEN, RED, PLAIN = "\033[32m", "\033[31m", "\033[0m"


class TestResult(Result):
    """One test: probe has run: the `index`-th of `names`; `passed` says which of those up to it did. `color`: for a
    terminal."""

    __slots__ = ("names", "index", "passed", "duration", "output", "color")

    def __init__(self, names, index, passed, duration, output, color=False):
        self.names, self.index, self.passed, self.duration, self.output = names, index, list(passed), duration, output
        self.color = color

    def _took(self):
        for unit, scale in (("s", 1000000000), ("ms", 1000000), ("μs", 1000)):
            if self.duration >= scale:
                return "%d %s" % (self.duration // scale, unit)
        return "%d ns" % self.duration

    def _mark(self, text, color=GREEN):
        return color + text + PLAIN if self.color else text

    def text(self):
        name, lines = self.names[self.index], []
        if not self.index:
            lines.append(self._mark("[==========]") + " Running %d tests." % len(self.names))
        lines.append(self._mark("[ RUN      ]") + " " + name)
        if self.passed[-1]:
            lines.append(self._mark("[       OK ]") + " %s (%s)" % (name, self._took()))
        else:
            lines += [line for line in self.output.split("\n") if line]
            lines.append(self._mark("[  FAILED  ]", RED) + " %s (%s)" % (name, self._took()))
        if self.index == len(self.names) - 1:
            lines += self._summary()
        return "\n".join(lines) + "\n"

    def _summary(self):
        def tests(count):
            return "%d %s" % (count, "test" if count == 1 else "tests")
        failed = [name for name, passed in zip(self.names, self.passed) if not passed]
        lines = [self._mark("[==========]") + " %s ran." % tests(len(self.names)),
                 self._mark("[  PASSED  ]") + " %s." % tests(len(self.names) - len(failed))]
        if failed:
            lines.append(self._mark("[  FAILED  ]", RED) + " %s, listed below:" % tests(len(failed)))
            lines += [self._mark("[  FAILED  ]", RED) + " " + name for name in failed]
        return lines

    def json(self):
        return '{"type": "test_result", "data": {%s: {"duration": %d, "passed": %s, "output": %s}}}\n' % (
            json_string(self.names[self.index]), self.duration, str(self.passed[-1]).lower(), json_string(self.output))


class BenchmarkResult(Result):
    """Nanoseconds of one run of a bench: probe, the average of `repeat`."""

    __slots__ = ("names", "name", "first", "average", "repeat")

    def __init__(self, names, name, first, average, repeat):
        self.names, self.name, self.first, self.average, self.repeat = names, name, first, average, repeat

    def text(self):
        width = max([40, *map(len, self.names)]) + 1
        head = ""
        if self.first:
            head = "%s%-15s%s\n" % ("Benchmark".ljust(width), "Time(ns)", "Iterations")
            head += "-" * (width + 15 + len("Iterations")) + "\n"
        return "%s%s%-15d%d\n" % (head, self.name.ljust(width), self.average, self.repeat)

    def json(self):
        return '{"type": "benchmark_result", "data": {%s: {"average": %d, "iters": %d}}}\n' % (
            json_string(self.name), self.average, self.repeat)


class Complaint(Result):
    """Something could not be done for a script, whatever place of it."""

    __slots__ = ("message",)
    to_err = True

    def __init__(self, message):
        self.message = message

    def text(self):
        return "ERROR: %s\n" % self.message

    def json(self):
        return '{"type": "error", "msg": %s}\n' % json_string(self.message)


class End(Result):
    """Nothing more happens; what follows are the maps."""

    __slots__ = ()

    def text(self):
        return "\n\n"

    def json(self):
        return ""


class TextRenderer:
    """Writes results as text: `out` and `err` are `writer.Writer`s."""

    def __init__(self, out, err):
        self.out, self.err = out, err

    def emit(self, result):
        """Write a Result."""
        (self.err if result.to_err else self.out).write(result.text().encode("utf-8", "surrogateescape"))

    def batch(self, batch):
        """How many printf records become text at once: the template for a compiled.Batch, None when they
        have to be Results one by one."""
        return batch.template

    def emit_batch(self, data, count):
        """Write the bytes that `batch` has made of `count` records."""
        self.out.write(data)

    def settle(self):
        """Nothing more comes for the moment."""
        self.out.settle()


class JsonRenderer:
    """Writes results as JSON, one object a line, in UTF-8."""

    def __init__(self, out, err):
        self.out = out

    def emit(self, result):
        self.out.write(result.json().encode())

    def batch(self, batch):
        # Text values would need their escapes before the template pads or cuts them.
        return None if batch.texts else _record("printf", json_string(batch.template))

    def emit_batch(self, data, count):
        self.out.write(data)

    def settle(self):
        self.out.settle()


RENDERERS = {"text": TextRenderer, "json": JsonRenderer}

__all__ = ["AttachedProbes", "Cat", "End", "Failures", "HelperError", "Join", "JsonRenderer", "LostEvents",
           "MapResult", "Message", "Notice", "Printf", "RENDERERS", "Result", "Stats", "Syscall", "TextRenderer", "Time",
           "Trouble", "Value"]
