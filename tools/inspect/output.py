"""JSON as bpftool writes it: compact, or with -p broken into lines where objects have names.

A value is written as soon as it is known, so that a long list needs no memory.
"""

import codecs
import json

ODD = "rawbpf-odd"      # how characters are written that have no bytes: those that stand for a byte as it, others as ?


def _odd(error):
    codes = map(ord, error.object[error.start:error.end])
    return bytes(code - 0xdc00 if 0xdc80 <= code <= 0xdcff else 63 for code in codes), error.end


codecs.register_error(ODD, _odd)
_INDENT = "    "


def legible(text):
    """Text that somebody else gave (names of processes, files, types; lines of source) for people: it makes no lines of its
    own, and tells a terminal nothing. A tab stays."""
    if text.isprintable():
        return text
    from rawbpf.elf.image import printable
    return "\t".join(map(printable, text.split("\t")))


class JsonWriter:
    """write: takes text."""

    def __init__(self, write, pretty=False):
        self._write, self._pretty = write, pretty
        self._open, self._separator, self._named = [], "", False

    def _line(self):
        if self._pretty:
            self._write("\n" + _INDENT * len(self._open))

    def _begin(self):
        self._write(self._separator)
        self._separator, self._named = ",", False

    def open(self, bracket):
        """bracket: "[" or "{"."""
        self._begin()
        self._write(bracket)
        self._open.append({"[": "]", "{": "}"}[bracket])
        self._separator = ""

    def close(self, bracket):
        self._open.pop()
        if self._separator:
            self._line()
        self._write(bracket)
        self._separator = ","

    def name(self, text):
        self._begin()
        self._line()
        self._separator, self._named = "", True
        self._write(_text(text) + (": " if self._pretty else ":"))

    def value(self, value):
        """Any value: dictionaries, lists and iterators are written with what is in them."""
        if isinstance(value, dict):
            self.open("{")
            for name, item in value.items():
                self.name(name)
                self.value(item)
            self.close("}")
        elif value is None or isinstance(value, (bool, int, float)):
            self._begin()
            self._write(json.dumps(value))
        elif isinstance(value, str):
            self._begin()
            self._write(_text(value))
        elif isinstance(value, Verbatim):
            self._begin()
            self._write(value.text)
        else:
            self.open("[")
            for item in value:
                self.value(item)
            self.close("]")

    def plain(self, record):
        """A value of nothing but dicts, lists, texts and numbers: the same as value(), faster."""
        if self._pretty:
            return self.value(record)
        text = json.dumps(record, separators=(",", ":"), ensure_ascii=False)
        self._begin()
        self._write(text.encode("utf-8", ODD).decode("utf-8", "replace"))
        return None

    def error(self, message):
        """An error where a value was to come; what is open is closed, so that it stays a document."""
        if self._open[-1:] == ["}"] and not self._named:
            self.name("error")
            self.value(message)
        else:
            self.value({"error": message})
        while self._open:
            self.close(self._open[-1])

    def end(self):
        """The end of a document."""
        self._write("\n")
        self._separator = ""


class Verbatim:
    """A value in the form in which it is to be written."""

    __slots__ = ("text",)

    def __init__(self, text):
        self.text = text


def _text(text):
    # bytes that are no UTF-8 would make the document unreadable
    return json.dumps(text.encode("utf-8", ODD).decode("utf-8", "replace"), ensure_ascii=False)


def hex_list(data):
    """Bytes as bpftool has them in JSON: ["0x01", ...]."""
    return ["0x%02x" % byte for byte in data]


def hex_lines(data):
    """Bytes as bpftool prints them: 16 a line, the halves set apart."""
    lines = []
    for at in range(0, len(data), 16):
        part = data[at:at + 16]
        lines.append("  ".join(filter(None, (part[:8].hex(" "), part[8:].hex(" ")))))
    return "\n".join(lines)
