"""Places in a script, and the errors and warnings that point at them.

The printed layout is bpftrace's, so that editors and scripts that read it keep working::

    stdin:1:14-20: ERROR: Unknown function: 'foo'
    BEGIN { foo(); }
            ~~~~~
    HINT: ...

A `Span` is a pair of offsets into a `Source`; lines and columns (in bytes, from 1) are worked out
only when something is printed.
"""

from bisect import bisect_right

MOST = 100      # diagnostics that are printed
WIDEST = 1000   # characters that are shown of a line

RED, YELLOW, RESET = "\033[31m", "\033[33m", "\033[0m"
COLORS = {"ERROR": RED, "WARNING": YELLOW}


class Source:
    """The text of one script, header or `-e` argument, with the name that messages use for it
    ("stdin" for `-e` and for a script read from standard input)."""

    __slots__ = ("name", "text", "_starts")

    def __init__(self, name, text):
        self.name = name
        self.text = text
        self._starts = None

    def __repr__(self):
        return "Source(%r)" % self.name

    @property
    def starts(self):
        """Offsets at which the lines start."""
        if self._starts is None:
            starts, at, text = [0], self.text.find("\n"), self.text
            while at >= 0:
                starts.append(at + 1)
                at = text.find("\n", at + 1)
            self._starts = starts
        return self._starts

    def position(self, offset):
        """(line, column) of an offset, both from 1, the column in bytes of UTF-8."""
        line = bisect_right(self.starts, offset)
        start = self.starts[line - 1]
        before = self.text[start:offset]
        if not before.isascii():
            before = before.encode("utf-8", "surrogateescape")
        return line, len(before) + 1

    def line(self, number):
        """The text of a line (from 1), without its line break."""
        starts = self.starts
        end = starts[number] - 1 if number < len(starts) else len(self.text)
        return self.text[starts[number - 1]:end]


class Span:
    """text[start:end] of a source. `origin` is None, or where a macro was used whose text this is
    part of."""

    __slots__ = ("source", "start", "end")
    origin = None

    def __init__(self, source, start, end):
        self.source = source
        self.start = start
        self.end = end

    def __repr__(self):
        return "Span(%s)" % self.location

    def __eq__(self, other):
        return (isinstance(other, Span) and self.source is other.source
                and self.start == other.start and self.end == other.end)

    def __hash__(self):
        return hash((id(self.source), self.start, self.end))

    def to(self, other):
        """The span from the start of this one to the end of a later one."""
        return Span(self.source, self.start, other.end)

    @property
    def text(self):
        return self.source.text[self.start:self.end]

    @property
    def line(self):
        return self.source.position(self.start)[0]

    @property
    def column(self):
        return self.source.position(self.start)[1]

    @property
    def location(self):
        """`name:line:column-column`, the second one past the end; `name:line-line` over several."""
        line, column = self.source.position(self.start)
        last, end = self.source.position(self.end)
        if line != last:
            return "%s:%d-%d" % (self.source.name, line, last)
        return "%s:%d:%d-%d" % (self.source.name, line, column, end)

    def context(self):
        """The lines that show the span: all of them when it has several, else the line and its
        underline, with tabs as four columns."""
        source = self.source
        line, column = source.position(self.start)
        last, end = source.position(self.end)
        if line != last:
            return [source.line(number).translate(_NO_TEXT) for number in range(line, last + 1)]
        text = source.line(line).translate(_NO_TEXT)
        start = source.starts[line - 1]
        if len(text) > WIDEST:          # the part around the span
            cut = max(0, self.start - start - WIDEST // 2)
            text, start = text[cut:cut + WIDEST], start + cut
        marks = []
        for at, char in enumerate(text[:self.end - start]):
            mark = "~" if at >= self.start - start else " "
            marks.append(mark * 4 if char == "\t" else mark)
        return [text.replace("\t", "    "), "".join(marks)]


_NO_TEXT = dict.fromkeys(range(0xdc80, 0xdd00), "\ufffd")        # bytes that are no UTF-8


class ExpandedSpan(Span):
    """A place in the text of a macro that was used at `origin`, itself a span."""

    __slots__ = ("origin",)

    def __init__(self, span, origin):
        super().__init__(span.source, span.start, span.end)
        self.origin = origin

    def to(self, other):
        return ExpandedSpan(super().to(other), self.origin)


def outermost(span):
    """Where the script itself uses the macros that a place comes from."""
    while isinstance(span, ExpandedSpan):
        span = span.origin
    return span


class Diagnostic:
    """One error or warning. `contexts` are (message, span) pairs that belong to it: where a macro
    came from, the earlier definition, ..."""

    __slots__ = ("severity", "span", "message", "hints", "contexts")

    def __init__(self, severity, span, message, hints=(), contexts=()):
        self.severity = severity
        self.span = span
        self.message = message
        self.hints = [hints] if isinstance(hints, str) else list(hints)
        self.contexts = list(contexts)

    def __repr__(self):
        where = self.span.location + ": " if self.span else ""
        return "<%s%s: %s>" % (where, self.severity, self.message)

    def lines(self, color=False):
        begin = COLORS.get(self.severity, "") if color else ""
        end = RESET if begin else ""
        lines = []

        def show(message, span):
            where = span.location + ": " if span else ""
            lines.append("%s%s%s: %s%s" % (begin, where, self.severity, message, end))
            if span:
                lines.extend(span.context())

        for message, span in [(self.message, self.span)] + self.contexts:
            show(message, span)
        lines += ["HINT: " + hint for hint in self.hints]
        span = self.span
        while span is not None and span.origin is not None:
            span = span.origin
            show("expanded from", span)
        return lines

    def format(self, color=False):
        return "\n".join(self.lines(color)) + "\n"


COLORED = "auto", "always", "never"


def colored(stream):
    """Whether messages to a stream are in colour: BPFTRACE_COLOR is one of COLORED, auto means on terminals."""
    import os
    wanted = os.environ.get("BPFTRACE_COLOR", "auto")
    return wanted == "always" or wanted != "never" and stream.isatty()


class ScriptError(Exception):
    """A script is wrong. `diagnostics` are all the errors (and warnings) found so far; `span`,
    `message` and `hints` are those of the first. `span` is None when there is no place to show; `status` is the exit
    status that it gives a command."""
    status = 1

    def __init__(self, span, message, hints=(), contexts=()):
        super().__init__(message)
        self.diagnostics = [Diagnostic("ERROR", span, message, hints, contexts)]

    @classmethod
    def of(cls, diagnostics):
        """The error of several diagnostics; the first must be an error."""
        first = diagnostics[0]
        error = cls(first.span, first.message)
        error.diagnostics = list(diagnostics)
        return error

    @property
    def span(self):
        return self.diagnostics[0].span

    @property
    def message(self):
        return self.diagnostics[0].message

    @property
    def hints(self):
        return self.diagnostics[0].hints

    def format(self, color=False):
        return format_all(self.diagnostics, color)

    def __str__(self):
        return self.format().rstrip("\n")


class Diagnostics:
    """Errors and warnings collected by one pass over the script."""

    def __init__(self):
        self.errors = []
        self.warnings = []

    def error(self, span, message, hints=(), contexts=()):
        self.errors.append(Diagnostic("ERROR", span, message, hints, contexts))
        return self.errors[-1]

    def warning(self, span, message, hints=(), contexts=()):
        self.warnings.append(Diagnostic("WARNING", span, message, hints, contexts))
        return self.warnings[-1]

    def add(self, error):
        """Takes over what a ScriptError carries."""
        for diagnostic in error.diagnostics:
            (self.errors if diagnostic.severity == "ERROR" else self.warnings).append(diagnostic)

    def check(self):
        """Raises a ScriptError with everything collected when there are errors."""
        if self.errors:
            raise ScriptError.of(self.errors + self.warnings)

    def format(self, color=False):
        """All of it as text, errors before warnings."""
        return format_all(self.errors + self.warnings, color)

    def emit(self, stream):
        """Writes all of it, in colour on a terminal."""
        stream.write(self.format(color=colored(stream)))


def format_all(diagnostics, color=False):
    """The text of many, cut where nobody would read on."""
    text = "".join(diagnostic.format(color) for diagnostic in diagnostics[:MOST])
    if len(diagnostics) > MOST:
        text += "... and %d more\n" % (len(diagnostics) - MOST)
    return text


def nearest(name, names, count=3):
    """Up to `count` of `names` that a misspelt `name` may have meant, best first."""
    from difflib import get_close_matches
    return get_close_matches(name, list(names), count, 0.7)
