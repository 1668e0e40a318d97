"""C++ and Rust names as their programmers wrote them.

C++ (Itanium ABI) is left to the C++ library's `__cxa_demangle`, through ctypes, where there is one. Rust
is done here: the legacy scheme (C++'s nested names with a hash at the end) and v0 (RFC 2603).
"""

import ctypes
import re

_LEGACY = re.compile(r"_ZN(.+)17h[0-9a-f]{16}E(?:\.llvm\.[0-9A-F]+|\.\w+)*")
_ESCAPES = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}

_library = None


def demangle(name, parameters=True):
    """The readable form of a symbol's name, or the name itself when it is not a mangled one.
    `parameters` False leaves out a C++ function's parameter list."""
    if name.startswith("_ZN"):
        rust = legacy_rust(name)
        if rust is not None:
            return rust
    if name.startswith("_R") and len(name) > 2 and (name[2].isupper() or name[2].isdigit()):
        rust = rust_v0(name)
        if rust is not None:
            return rust
    if name.startswith("_Z"):
        text = cplusplus(name)
        if text is not None:
            return text if parameters else without_parameters(text)
    return name


def cplusplus(name):
    """What `__cxa_demangle` makes of a name, None if nothing or when there is no C++ library."""
    functions = _cplusplus_library()
    if functions is None:
        return None
    call, free = functions
    status = ctypes.c_int()
    text = call(name.encode("utf-8", "surrogateescape"), None, None, ctypes.byref(status))
    if not text:
        return None
    try:
        return ctypes.string_at(text).decode("utf-8", "surrogateescape") if status.value == 0 else None
    finally:
        free(text)


def _cplusplus_library():
    """(__cxa_demangle, free) or None, looked for once."""
    global _library
    if _library is None:
        _library = ()
        for soname in ("libstdc++.so.6", "libc++abi.so.1"):
            try:
                call = ctypes.CDLL(soname)["__cxa_demangle"]
                free = ctypes.CDLL(None)["free"]
            except (OSError, AttributeError):
                continue
            call.restype = ctypes.c_void_p
            call.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
            free.restype, free.argtypes = None, [ctypes.c_void_p]
            _library = (call, free)
            break
    return _library or None


def without_parameters(text):
    """`ns::f<int (*)(char)>(int) const` -> `ns::f<int (*)(char)>`."""
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        if text[at] == ")":
            depth += 1
        elif text[at] == "(":
            depth -= 1
            if depth == 0:
                head = text[:at]
                # `operator()` and what stands in anonymous namespaces keep their parentheses
                return head if head and not head.endswith(("operator", "::")) and _balanced(head) else text
    return text


def _balanced(text):
    plain = re.sub(r"operator(<=>|->\*?|<<=?|>>=?|<=?|>=?)", "operator", text)
    return plain.count("<") == plain.count(">")


def legacy_rust(name):
    """`_ZN3app3run17h0123456789abcdefE` -> `app::run`; None if it is not of this scheme."""
    match = _LEGACY.fullmatch(name)
    if match is None:
        return None
    rest, parts = match.group(1), []
    while rest:
        size = re.match(r"[1-9]\d*", rest)
        if size is None:
            return None
        start, end = size.end(), size.end() + int(size.group())
        if end > len(rest):
            return None
        parts.append(_unescape(rest[start:end]))
        rest = rest[end:]
    return "::".join(parts)


def _unescape(part):
    if part.startswith("_$"):
        part = part[1:]

    def replace(match):
        code = match.group(1)
        if code in _ESCAPES:
            return _ESCAPES[code]
        if re.fullmatch(r"u[0-9a-f]{1,6}", code) and int(code[1:], 16) < 0x110000:
            return chr(int(code[1:], 16))
        return match.group()

    return re.sub(r"\$(\w+)\$", replace, part).replace("..", "::")


def rust_v0(name):
    """The readable form of a Rust v0 name (`_RNvC3app3run` -> `app::run`); None if it is none."""
    try:
        parser = _V0(name[2:].split(".", 1)[0])
        text = parser.path(True)
        if parser.at < len(parser.text):
            parser.path(False)          # the crate that made the instance
        return text if parser.at == len(parser.text) else None
    except (_Wrong, IndexError, ValueError, RecursionError, UnicodeError):
        return None


class _Wrong(Exception):
    """Not a v0 name."""


class _V0:
    """Recursive descent over RFC 2603's grammar. `budget` bounds what back references can unfold."""

    BASIC = {"a": "i8", "b": "bool", "c": "char", "d": "f64", "e": "str", "f": "f32", "h": "u8", "i": "isize", "j": "usize",
             "l": "i32", "m": "u32", "n": "i128", "o": "u128", "p": "_", "s": "i16", "t": "u16", "u": "()", "v": "...",
             "x": "i64", "y": "u64", "z": "!"}

    def __init__(self, text):
        self.text = text
        self.at = 0
        self.depth = 0
        self.budget = 20000
        self.lifetimes = 0

    def take(self):
        char = self.text[self.at]
        self.at += 1
        self.budget -= 1
        if self.budget < 0:
            raise _Wrong
        return char

    def accept(self, char):
        if self.at < len(self.text) and self.text[self.at] == char:
            self.at += 1
            return True
        return False

    def base62(self):
        """`_` is 0, `0_` is 1, ..."""
        if self.accept("_"):
            return 0
        value = 0
        while True:
            char = self.take()
            if char == "_":
                return value + 1
            digit = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ".index(char)
            value = value * 62 + digit
            if value >> 64:
                raise _Wrong

    def optional(self, tag):
        return self.base62() + 1 if self.accept(tag) else 0

    def back(self, parse, *arguments):
        """A back reference: parse again what stands at an earlier place."""
        start = self.at - 1
        place = self.base62()
        if place >= start:
            raise _Wrong
        saved, self.at = self.at, place
        try:
            return self.nested(parse, *arguments)
        finally:
            self.at = saved

    def nested(self, parse, *arguments):
        self.depth += 1
        if self.depth > 200:
            raise _Wrong
        try:
            return parse(*arguments)
        finally:
            self.depth -= 1

    def identifier(self):
        """(disambiguator, text)."""
        disambiguator = self.optional("s")
        puny = self.accept("u")
        size = ""
        while self.at < len(self.text) and self.text[self.at].isdigit() and size != "0":
            size += self.take()
        if not size:
            raise _Wrong
        self.accept("_")
        text = self.text[self.at:self.at + int(size)]
        if len(text) < int(size):
            raise _Wrong
        self.at += len(text)
        self.budget -= len(text)
        if puny:
            text = text.rpartition("_")
            text = (text[0] + "-" + text[2]).lstrip("-") if text[1] else text[2]
            text = text.encode("ascii").decode("punycode")
        return disambiguator, text

    def path(self, value):
        return self.nested(self._path, value)

    def _path(self, value):
        tag = self.take()
        if tag == "C":
            return self.identifier()[1]
        if tag == "M":
            self.optional("s")
            self.path(False)
            return "<%s>" % self.type()
        if tag == "X":
            self.optional("s")
            self.path(False)
            kind = self.type()
            return "<%s as %s>" % (kind, self.path(False))
        if tag == "Y":
            kind = self.type()
            return "<%s as %s>" % (kind, self.path(False))
        if tag == "N":
            space = self.take()
            parent = self.path(value)
            number, name = self.identifier()
            if space.isupper():
                what = {"C": "closure", "S": "shim"}.get(space, space)
                return "%s::{%s%s#%d}" % (parent, what, ":" + name if name else "", number)
            return "%s::%s" % (parent, name) if name else parent
        if tag == "I":
            head = self.path(value)
            arguments = []
            while not self.accept("E"):
                arguments.append(self.generic())
            return "%s%s<%s>" % (head, "::" if value else "", ", ".join(arguments))
        if tag == "B":
            return self.back(self.path, value)
        raise _Wrong

    def generic(self):
        if self.accept("L"):
            return self.lifetime(self.base62())
        if self.accept("K"):
            return self.constant()
        return self.type()

    def lifetime(self, number):
        if not number:
            return "'_"
        index = self.lifetimes - number
        if index < 0:
            raise _Wrong
        return "'" + (chr(ord("a") + index) if index < 26 else "_%d" % index)

    def type(self):
        return self.nested(self._type)

    def _type(self):
        tag = self.take()
        if tag in self.BASIC:
            return self.BASIC[tag]
        if tag == "A":
            element = self.type()
            return "[%s; %s]" % (element, self.constant())
        if tag == "S":
            return "[%s]" % self.type()
        if tag == "T":
            parts = []
            while not self.accept("E"):
                parts.append(self.type())
            return "(%s%s)" % (", ".join(parts), "," if len(parts) == 1 else "")
        if tag in "RQ":
            lifetime = ""
            if self.accept("L"):
                number = self.base62()
                lifetime = self.lifetime(number) + " " if number else ""
            return "&%s%s%s" % (lifetime, "mut " if tag == "Q" else "", self.type())
        if tag in "PO":
            return "*%s %s" % ("const" if tag == "P" else "mut", self.type())
        if tag == "F":
            return self.function()
        if tag == "D":
            return self.dynamic()
        if tag == "B":
            return self.back(self.type)
        self.at -= 1
        return self.path(False)

    def binder(self):
        count = self.optional("G")
        if count > 1000:
            raise _Wrong
        names = []
        for _ in range(count):
            self.lifetimes += 1
            names.append(self.lifetime(1))
        return count, "for<%s> " % ", ".join(names) if names else ""

    def function(self):
        count, text = self.binder()
        if self.accept("U"):
            text += "unsafe "
        if self.accept("K"):
            abi = "C" if self.accept("C") else self.identifier()[1].replace("_", "-")
            text += 'extern "%s" ' % abi
        arguments = []
        while not self.accept("E"):
            arguments.append(self.type())
        text += "fn(%s)" % ", ".join(arguments)
        result = self.type()
        self.lifetimes -= count
        return text if result == "()" else "%s -> %s" % (text, result)

    def dynamic(self):
        count, head = self.binder()
        traits = []
        while not self.accept("E"):
            trait = self.path(False)
            bound = []
            while self.accept("p"):
                name = self.identifier()[1]
                bound.append("%s = %s" % (name, self.type()))
            if bound and trait.endswith(">"):
                trait = trait[:-1] + ", " + ", ".join(bound) + ">"
            elif bound:
                trait += "<%s>" % ", ".join(bound)
            traits.append(trait)
        self.lifetimes -= count
        text = "dyn " + head + " + ".join(traits)
        if not self.accept("L"):
            raise _Wrong
        number = self.base62()
        return text + (" + " + self.lifetime(number) if number else "")

    def constant(self):
        return self.nested(self._constant)

    def _constant(self):
        if self.accept("B"):
            return self.back(self.constant)
        tag = self.take()
        if tag == "p":
            return "_"
        if tag not in self.BASIC:
            raise _Wrong
        negative = self.accept("n")
        digits = ""
        while True:
            char = self.take()
            if char == "_":
                break
            digits += char
        value = int(digits or "0", 16)
        if tag == "b":
            return {0: "false", 1: "true"}[value] if value < 2 else str(value)
        if tag == "c":
            return repr(chr(value))
        return "%s%d" % ("-" if negative else "", value)
