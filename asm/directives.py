"""The directives of the assembler: what a line that begins with a point says. text.py lists them.

Each is a function (assembler, statement), `statement` standing behind the directive's name. Directives that
compilers emit for other tools (.file, .type, .size, .p2align, .cfi_*, .loc, ...) are read over.
"""

import os
import re
import sys

from .assembly import Data, MapDefinition
from .errors import AsmError
from .files import read_whole
from .prototypes import VOID, declaration
from .statement import RESERVED
from .tokens import REGISTER, Unexpected, unescape

IGNORED = re.compile(r"\.(file|type|size|p2align|balign|cfi_\w+|loc|addrsig\w*|ident|hidden|local)(?!\w)")
_SIZES = {".byte": 1, ".2byte": 2, ".short": 2, ".half": 2, ".hword": 2, ".4byte": 4, ".long": 4, ".int": 4,
          ".word": 4, ".8byte": 8, ".quad": 8}
_MAP_OPTIONS = ("pinning", "numa_node", "map_extra", "inner")
_SECTIONS = (".text", ".data", ".rodata", ".bss")
_DATA_LIMIT = 1 << 28        # bytes of one section
_INCLUDE_DEPTH, _INCLUDE_LIMIT = 20, 1 << 26    # files within each other; characters of all


def directive(assembler, word, code, rest):
    """The directive `word`, whose arguments start at `rest` in `code`."""
    if IGNORED.match(word):
        return None
    if word in _SECTIONS:
        return assembler.open_section(word)
    if word == ".section":
        found = re.match(r'\s*("[^"]+"|[^\s,"]+)', code[rest:])
        if not found:
            raise Unexpected(rest, len(code), "expected the name of a section")
        behind = rest + found.end()
        if code[behind:].strip() and not re.match(r"\s*,", code[behind:]):      # , "ax", @progbits
            raise Unexpected(behind, len(code), "expected the end of the line behind the section's name")
        return assembler.open_section(found.group(1).strip('"'))
    if assembler.current == "ignored":
        return None
    handler = _DIRECTIVES.get(word)
    if handler is None:
        from difflib import get_close_matches
        near = get_close_matches(word, [*_DIRECTIVES, *_SECTIONS, ".section", ".insn"], 2)
        raise Unexpected(rest - len(word), rest, "no directive %s%s" % (
            word, near and "; did you mean %s?" % " or ".join(near) or ""))
    return handler(assembler, assembler.statement(code, rest))


def equ(assembler, s, separator=","):
    """`.equ NAME, EXPRESSION`, `NAME = EXPRESSION`"""
    column = s.tokens[s.at][2]
    name = _name(s, "a constant")
    if REGISTER.match(name) or name in RESERVED:
        s.fail("%s has a meaning of its own and cannot be a constant" % name, 1)
    s.expect(separator)
    value = s.number()
    s.end()
    if assembler.symbols.get(name) != value:
        assembler.define(name, column)
        assembler.symbols[name] = value
        assembler.known.clear()


def _name(s, what):
    if s.kind() != "name":
        s.fail("expected the name of %s" % what)
    return s.next()


def _map(assembler, s):
    column = s.tokens[s.at][2]
    name = _name(s, "a map")
    kind = _name(s, "a map type (hash, array, percpu_array, ringbuf, ...)")
    fields, options = {"key": 0, "value": 0, "max_entries": 0, "flags": 0}, {}
    while s.kind() != "end":
        option = _name(s, "an option (key=, value=, max_entries=, flags=, ...)")
        if option not in fields and option not in _MAP_OPTIONS:
            s.fail("expected key, value, max_entries, flags, pinning, numa_node, map_extra or inner", 1)
        s.expect("=")
        if option == "inner":
            options[option] = _name(s, "the map that says what the values are like")
        elif option in fields:
            fields[option] = s.number(0, (1 << 32) - 1, option)
        else:
            options[option] = s.number(0, (1 << 64) - 1 if option == "map_extra" else (1 << 32) - 1, option)
        s.take(",")
    assembler.define(name, column)
    assembler.result.maps[name] = MapDefinition(name, kind.lower(), *fields.values(), options)


def _license(assembler, s):
    if s.kind() == "string":
        assembler.result.license = unescape(s.next()).decode("utf-8", "replace")
    else:
        assembler.result.license = _name(s, "a license")
    if "\0" in assembler.result.license:
        s.fail("a license ends at \\0", 1)
    s.end()


def _include(assembler, s):
    if s.kind() != "string":
        s.fail('expected the "name" of a file')
    _, quoted, start, end = s.tokens[s.at]
    name = unescape(s.next()).decode("utf-8", "replace")
    s.end()
    files = assembler.files
    path = os.path.join(os.path.dirname(files[-1]), name)
    real = os.path.realpath(path) if "\0" not in path else path
    if any(os.path.realpath(f) == real for f in files):
        raise Unexpected(start, end, "%s includes itself: %s" % (name, " -> ".join([*files, path])))
    if len(files) > _INCLUDE_DEPTH:
        raise Unexpected(start, end, "more than %d files within each other" % _INCLUDE_DEPTH)
    if "\0" in path or os.path.exists(path) and not os.path.isfile(path):
        raise Unexpected(start, end, "%s is no file" % path.replace("\0", "\\0"))
    try:
        text = read_text(path)
    except AsmError as error:
        raise Unexpected(start, end, str(error)) from None
    assembler.included += len(text) + 1
    if assembler.included > _INCLUDE_LIMIT:
        raise Unexpected(start, end, "what is included is more than %d characters by now" % _INCLUDE_LIMIT)
    line = assembler.line
    assembler.file(path, text)
    assembler.line = line


def read_text(path):
    """The text of a file, or AsmError."""
    try:
        # /proc has files that wait for something to come
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            return read_whole(file, path).decode("utf-8")
    except OSError as error:
        raise AsmError("%s: %s" % (path, error.strerror)) from None
    except UnicodeDecodeError as error:
        raise AsmError("%s: byte %d is no UTF-8 text" % (path, error.start)) from None
    except ValueError:          # a path with a null byte
        raise AsmError("%r is no path" % path) from None


# data

def _data(assembler, s):
    if type(assembler.current) is not Data:
        s.fail("data belongs in .data, .rodata or .bss; this is %s" % (
            assembler.current.name if assembler.current else "no section yet"))
    return assembler.current


def _more(s, data, content):
    if len(data.content) + len(content) > _DATA_LIMIT:
        s.fail("the section %s has more than %d bytes" % (data.name, _DATA_LIMIT), 1)
    data.content += content


def _string(terminated):
    def handler(assembler, s):
        data = _data(assembler, s)
        while True:
            if s.kind() != "string":
                s.fail('expected a "string"')
            _more(s, data, unescape(s.next()) + (b"\0" if terminated else b""))
            if not s.take(","):
                return s.end()
    return handler


def _numbers(size):
    def handler(assembler, s):
        data = _data(assembler, s)
        while True:
            value = s.number(-1 << 8 * size - 1, (1 << 8 * size) - 1)
            _more(s, data, (value & (1 << 8 * size) - 1).to_bytes(size, sys.byteorder))
            if not s.take(","):
                return s.end()
    return handler


def _zero(assembler, s):
    data = _data(assembler, s)
    size = s.number(0, _DATA_LIMIT, "size")
    s.end()
    _more(s, data, bytes(min(size, _DATA_LIMIT - len(data.content) + 1)))


def _align(assembler, s):
    size = s.number(1, 4096, "alignment")
    s.end()
    if size & size - 1:
        s.fail("expected a power of two", 1)
    data = assembler.current
    if type(data) is Data:
        data.align = max(data.align, size)
        _more(s, data, bytes(-len(data.content) % size))


def _names(attribute, what):
    def handler(assembler, s):
        while True:
            getattr(assembler.result, attribute).add(_name(s, what))
            if not s.take(","):
                return s.end()
    return handler


def _external(attribute, what):
    """Names, or one C declaration."""
    def handler(assembler, s):
        known = getattr(assembler.result, attribute)
        if s.kind() == "name" and s.kind(1) == "end" or s.peek(1) == ",":
            while True:
                known.setdefault(_name(s, what), None)
                if not s.take(","):
                    return s.end()
        start = s.tokens[s.at][2]
        name, kind = declaration(s)
        if (kind[0] == "function") != (attribute == "kfuncs") or kind == VOID:
            raise Unexpected(start, len(s.text), "this declares no %s" % (
                "function" if attribute == "kfuncs" else "variable with a type"))
        known[name] = kind
        return None
    return handler


_DIRECTIVES = {
    ".map": _map, ".license": _license, ".equ": equ, ".set": equ, ".include": _include,
    ".kfunc": _external("kfuncs", "a kfunc"), ".ksym": _external("ksyms", "a kernel symbol"),
    ".globl": _names("globals", "a function"), ".global": _names("globals", "a function"),
    ".weak": _names("weak", "a symbol"),
    ".zero": _zero, ".skip": _zero, ".space": _zero, ".align": _align,
    ".string": _string(True), ".asciz": _string(True), ".ascii": _string(False),
    **{name: _numbers(size) for name, size in _SIZES.items()},
}
