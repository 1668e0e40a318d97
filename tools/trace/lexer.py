"""Tokens of a script, one at a time by one compiled regular expression.

Attach points, `#` lines and C definitions are not made of these tokens; the parser reads them from
the text itself and then goes on here (`seek`). Which integer literals there are, and what their
suffixes mean, is in `docs/language.md` of bpftrace.
"""

import re

from .diagnostics import Span

LAYOUT = r"(?:[ \t\r\n\f\v]+|//[^\n]*|/\*(?s:.*?)(?:\*/|\Z))*"

TOKEN = re.compile(LAYOUT + r"""(?:
      (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<op>\.\.|[(){},;?:[\]~.]|->|\+\+|--|&&|\|\||<<=|>>=|<<|>>|[-+*/%&|^=!<>]=?)
    | (?P<variable>\$[A-Za-z_][A-Za-z0-9_]*)
    | (?P<map>@(?:[A-Za-z_][A-Za-z0-9_]*)?)
    | (?P<int>[0-9][0-9A-Za-z_]*)
    | (?P<string>"[^"\\\n]*(?:\\(?s:.)[^"\\\n]*)*")
    | (?P<open>"[^"\\\n]*(?:\\(?s:.)?[^"\\\n]*)*)
    | (?P<param>\$[0-9]+)
    | (?P<count>\$\#)
    | (?P<char>'(?:[^'\\\n]|\\[^\n]){1,8}')
    | (?P<junk>(?s:.))
    | (?P<end>)
    )""", re.X).match

SKIP = re.compile(LAYOUT).match

# What an error about "the next token" underlines.
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9][0-9A-Za-z.]*|[@$][A-Za-z0-9_]*|(?s:.)|").match

DECIMAL = re.compile(r"(?:0|[1-9][0-9]*)\Z").match
DIGITS = tuple("0123456789")
ESCAPES = {"n": 10, "t": 9, "r": 13, '"': 34, "\\": 92, "'": 39}
ESCAPED = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{0,2})|(?s:(.)))").match

MAX = (1 << 64) - 1
SUFFIXES = {
    "": (MAX, 1), "u": (0xFFFFFFFF, 1), "ul": (MAX, 1), "ull": (MAX, 1),
    "l": (MAX >> 1, 1), "ll": (MAX >> 1, 1), "ns": (MAX, 1), "us": (MAX, 10**3),
    "ms": (MAX, 10**6), "s": (MAX, 10**9), "m": (MAX, 60 * 10**9), "h": (MAX, 3600 * 10**9),
    "d": (MAX, 86400 * 10**9),
}
# The longest beginning of a number that is a number with a suffix.
NUMBER = re.compile(r"(0[xX][0-9a-fA-F_]*|0[bB][01_]+|[0-9][0-9_]*)((?:[eE][0-9_]*)?)"
                    r"((?:[num]s|[smhd]|[uU][lL]{0,2}|[lL]{1,2})?)").match


def number(text):
    """(value, suffix) of an integer as it is written in scripts, probes and arguments: decimal,
    hexadecimal (0x), octal (0), binary (0b), `1e6`, `1_000`, with a suffix. ValueError says what is
    wrong with it."""
    digits = text.replace("_", "")
    if len(digits) < 20 and DECIMAL(digits):
        value, rest = int(digits), ""
    else:
        base, prefix = 10, 0
        if digits[:2] in ("0x", "0X"):
            base, prefix = 16, 2
        elif digits[:2] in ("0b", "0B"):
            base, prefix = 2, 2
        elif digits[:1] == "0" and digits[1:2] in tuple("01234567"):
            base, prefix = 8, 1
        digits = digits[prefix:]
        end = 0
        while end < len(digits) and digits[end] in "0123456789abcdefABCDEF" \
                and int(digits[end], 16) < base:
            end += 1
        if not end:
            raise ValueError("invalid integer: " + text)
        if end > 64 and digits[:end].strip("0"):
            raise ValueError("overflow error, maximum value is %d: %s" % (MAX, text))
        value, rest = int(digits[:end], base), digits[end:]
        if base == 10 and digits[0] == "0" and end > 1:
            raise ValueError("invalid trailing bytes: " + text)
    if rest[:1] in ("e", "E") and rest[1:2] in tuple("123456789"):
        if not 0 < value < 10:
            raise ValueError("coefficient part of scientific literal must be 1-9: " + text)
        end = 1
        while rest[end:end + 1] in DIGITS:
            end += 1
        value, rest = value * 10 ** (int(rest[1:end]) if end < 4 else 99), rest[end:]
    if value > MAX:
        raise ValueError("overflow error, maximum value is %d: %s" % (MAX, text))
    suffix = rest if rest in SUFFIXES else rest.lower() if rest.lower().strip("ul") == "" else None
    if suffix not in SUFFIXES:
        raise ValueError("invalid trailing bytes: " + (digits if rest and base == 8 else text))
    most, factor = SUFFIXES[suffix]
    if value > most // factor:
        raise ValueError("overflow error, maximum value is %d: %s" % (most, text))
    return value * factor, suffix


def signed_number(text):
    """Like `number()[0]`, with a leading minus sign allowed (down to -2**63)."""
    if not text.startswith("-"):
        return number(text)[0]
    value = number(text[1:])[0]
    if value > 1 << 63:
        raise ValueError("overflow error, maximum value is %d: %s" % (MAX >> 1, text))
    return -value


class Lexer:
    """`kind`, `value` (its text), `start` and `stop` are the current token; `pos` is where the last
    consumed one ended. The value of a string keeps its quotes, so a value alone says which operator
    or keyword it is."""

    def __init__(self, source, diagnostics):
        self.source = source
        self.text = source.text
        self.diagnostics = diagnostics
        self.errors = diagnostics.errors
        self.seek(0)

    def seek(self, pos):
        """Makes the first token at or after `pos` the current one."""
        self.pos = pos
        match = TOKEN(self.text, pos)
        self.kind = kind = match.lastgroup
        self.value = match.group(kind)
        self.start, self.stop = match.span(kind)

    def next(self):
        """Consumes the current token."""
        self.pos = pos = self.stop
        match = TOKEN(self.text, pos)
        self.kind = kind = match.lastgroup
        self.value = match.group(kind)
        self.start, self.stop = match.span(kind)

    def peek(self):
        """The text of the token after the current one."""
        match = TOKEN(self.text, self.stop)
        return match.group(match.lastgroup)

    def match(self, value):
        """Consumes the current token if it is `value`."""
        if self.value != value:
            return False
        self.next()
        return True

    def expect(self, value):
        if self.value == value:
            self.next()
            return True
        if value == "/" and self.value == "/=":     # "/x/=..." never means "divide by"
            self.seek(self.start + 1)
            return True
        self.error("expected '%s'" % value)
        return False

    def name(self, message):
        """Consumes an identifier and returns it; otherwise an error and None."""
        if self.kind == "name":
            value = self.value
            self.next()
            return value
        if message:
            self.error(message)
        return None

    # ---- spans and errors ----

    def span(self, start):
        """From `start` to the end of the last consumed token."""
        return Span(self.source, start, self.pos)

    def error(self, message, start=None, end=None):
        """A syntax error at the current token, or at text[start:end]."""
        hints = ()
        if start is None:
            start = self.start
            end = WORD(self.text, start).end()
            if self.kind == "end" and not self.errors and not message.startswith("unterminated"):
                hints = (self._what_is_open(),)
        self.diagnostics.error(Span(self.source, start, end), "syntax: " + message, hints)

    def _what_is_open(self):
        """What to say where the text ends too early."""
        open_, reader = [], Lexer(self.source, self.diagnostics)
        while reader.kind != "end":
            if reader.value in ("{", "(", "["):
                open_.append((reader.value, reader.start))
            elif reader.value in ("}", ")", "]"):
                if not open_:
                    return "the '%s' at %d:%d closes nothing" % ((reader.value,) + self.source.position(reader.start))
                open_.pop()
            reader.next()
        if not open_:
            return "the script ends here"
        value, at = open_[-1]
        return "the script ends here, and the '%s' at %d:%d is not closed" % ((value,) + self.source.position(at))

    # ---- literals ----

    def integer(self):
        """Consumes an integer: (value, text, suffix); (0, text, "") after an error."""
        text, start = self.value, self.start
        self.next()
        if len(text) < 20 and DECIMAL(text):
            return int(text), text, ""
        match = NUMBER(text)
        for at, group in ((match.end(1), match.group(1)), (match.end(2), match.group(2))):
            if group.endswith("_"):
                self.error("trailing underscore in integer literal", start + at - 1, start + at)
                if not match.group(2):
                    break
        if match.end() < len(text):
            self.error("invalid integer suffix '%s'" % text[match.end():],
                       start + match.end(), start + len(text))
            text = match.group()
        try:
            value, suffix = number(text)
        except ValueError as error:
            self.error(str(error), start, self.pos)
            return 0, text, ""
        return value, text, suffix

    def string(self):
        """Consumes a string literal (and literals that follow it: they are joined, as in C): its
        value as str."""
        value = self._one_string()
        while self.kind == "string":
            value += self._one_string()
        return value

    def _one_string(self):
        if self.kind == "open":
            self.next()
            self.error("unterminated string")
            return ""
        text, start = self.value[1:-1], self.start + 1
        self.next()
        return self.unescape(text, start) if "\\" in text else text

    def character(self):
        """Consumes 'a': the value of its byte."""
        text, start = self.value[1:-1], self.start
        self.next()
        value = self.unescape(text, start + 1).encode("utf-8", "surrogateescape")
        if len(value) != 1:
            self.error("a character literal is one byte", start, self.pos)
            return 0
        return value[0]

    def unescape(self, text, start):
        """The value of a literal's inside; `start` is its place in the source."""
        out, at = bytearray(), 0
        while True:
            slash = text.find("\\", at)
            if slash < 0:
                out += text[at:].encode("utf-8", "surrogateescape")
                return out.decode("utf-8", "surrogateescape")
            out += text[at:slash].encode("utf-8", "surrogateescape")
            match = ESCAPED(text, slash)
            octal, hexadecimal, char = match.groups()
            at, where = match.end(), (start + slash, start + match.end())
            if octal:
                if int(octal, 8) > 255:
                    self.error("octal escape sequence out of range '\\%s'" % octal, *where)
                out.append(int(octal, 8) & 255)
            elif hexadecimal:
                out.append(int(hexadecimal, 16))
            elif hexadecimal is not None:
                self.error("invalid hex escape sequence", *where)
            elif char in ESCAPES:
                out.append(ESCAPES[char])
            elif char == "\n":                      # a line continued inside the literal
                continue
            else:
                self.error("invalid escape character '\\%s'" % char,
                           start + slash + 1, start + slash + 2)
