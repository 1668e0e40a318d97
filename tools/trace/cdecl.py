"""C declarations, as scripts and headers have them, to `elf.types` Types.

Takes definitions of structs, unions, enums and typedefs, skips everything else (prototypes, inline
functions, variables), and lays structs out as the System V ABI of the LP64 machines does: natural
alignment, bit fields packed into units of their declared type, `packed` and `aligned(n)` attributes.

Names that the text does not define are asked of a `find(kind, name)` function (BTF); a struct that
nobody knows is only declared, an unknown type name is an error.
"""

import re

from rawbpf.elf.types import (VOID, Array, Enum, Field, Float, Function, Int, Parameter, Pointer,
                              Qualified, Struct, Typedef, strip)

from .diagnostics import ScriptError, Span

TOKEN = re.compile(r"""(?:\s+|//[^\n]*|/\*(?s:.*?)(?:\*/|\Z)|\#[^\n]*)*
    (?: (?P<name>[A-Za-z_][A-Za-z0-9_]*) | (?P<int>[0-9][0-9A-Za-z_]*)
      | (?P<text>"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?) | (?P<op>\.\.\.|<<|>>|(?s:.)) | (?P<end>) )""",
                   re.X)

WORDS = frozenset("unsigned signed char short int long float double void _Bool bool __int128".split())
QUALIFIERS = {"const": "const", "volatile": "volatile", "restrict": "restrict",
              "__restrict": "restrict", "__const": "const", "__volatile__": "volatile",
              "_Atomic": "atomic"}
STORAGE = frozenset("static extern inline __inline __inline__ register _Noreturn __extension__ "
                    "auto __always_inline".split())
# Annotations of the kernel's headers that say nothing about the layout.
IGNORED = frozenset("__user __kernel __iomem __rcu __percpu __force __bitwise __must_check "
                    "__counted_by __private __nocast __safe".split())

INTEGERS = {}
for _size, _word in ((1, "8"), (2, "16"), (4, "32"), (8, "64")):
    for _name in ("s%s", "__s%s", "int%s", "int%s_t"):
        INTEGERS[_name % _word] = Int(_name % _word, _size, True)
    for _name in ("u%s", "__u%s", "uint%s", "uint%s_t", "__le%s", "__be%s"):
        INTEGERS[_name % _word] = Int(_name % _word, _size, False)
for _name, _size, _signed in (
        ("size_t", 8, False), ("ssize_t", 8, True), ("off_t", 8, True), ("loff_t", 8, True),
        ("pid_t", 4, True), ("uid_t", 4, False), ("gid_t", 4, False), ("mode_t", 4, False),
        ("umode_t", 2, False), ("dev_t", 4, False), ("ino_t", 8, False), ("time_t", 8, True),
        ("uintptr_t", 8, False), ("intptr_t", 8, True), ("ptrdiff_t", 8, True), ("gfp_t", 4, False),
        ("sector_t", 8, False), ("blkcnt_t", 8, False), ("socklen_t", 4, False),
        ("sa_family_t", 2, False), ("in_port_t", 2, False), ("in_addr_t", 4, False),
        ("uchar", 1, False), ("ushort", 2, False), ("uint", 4, False), ("ulong", 8, False),
        ("fmode_t", 4, False), ("dma_addr_t", 8, False), ("phys_addr_t", 8, False),
        ("ktime_t", 8, True), ("clockid_t", 4, True), ("key_t", 4, True)):
    INTEGERS[_name] = Int(_name, _size, _signed)
BOOL = Int("_Bool", 1, False)
MAX_DEPTH = 60
MAX_SIZE = 1 << 40


def word_type(words):
    """The type of a list of C's own type words, in any order; None if they make none."""
    words = sorted(words)
    if words in (["bool"], ["_Bool"]):
        return BOOL
    if words == ["void"]:
        return VOID
    if words == ["float"]:
        return Float("float", 4)
    if words in (["double"], ["double", "long"]):
        return Float(" ".join(sorted(words, reverse=True)), 8 * len(words))
    signed = "unsigned" not in words
    rest = [word for word in words if word not in ("unsigned", "signed", "int")]
    sign = "" if signed else "unsigned "
    if rest == ["char"]:
        return Int(sign + "char" if "signed" not in words else "signed char", 1, signed, "char")
    if rest == ["short"]:
        return Int("short" if signed else "unsigned short", 2, signed)
    if not rest:
        return Int("int" if signed else "unsigned int", 4, signed)
    if rest in (["long"], ["long", "long"]):
        return Int(("long " * len(rest) if signed else "unsigned " + "long " * len(rest)).strip(),
                   8, signed)
    if rest == ["__int128"]:
        return Int(sign + "__int128", 16, signed)
    return None


class Scope:
    """What C text has defined so far: `structs[(kind, name)]`, `enums[name]`, `typedefs[name]`, and
    `enumerators[name] = (value, Enum)`. `find(kind, name)` knows more types (kind "struct",
    "union", "enum", "typedef"; None if it does not)."""

    def __init__(self, find=None):
        self.find = find or (lambda kind, name: None)
        self.structs = {}
        self.enums = {}
        self.typedefs = {}
        self.enumerators = {}
        self._alignments = {}       # id of a struct -> (alignment, the struct, to keep its id)

    def tagged(self, kind, name):
        """`struct name` and the like: a Type, or None if only ever heard of."""
        table = self.enums.get(name) if kind == "enum" else self.structs.get((kind, name))
        if table is None or getattr(table, "forward", False):
            return self.find(kind, name) or table
        return table

    def named(self, name):
        """The type that is called `name` without a tag, or None."""
        found = self.typedefs.get(name) or self.find("typedef", name)
        return found or INTEGERS.get(name)

    def alignment(self, type):
        """In bytes."""
        type = strip(type)
        while isinstance(type, Array):
            type = strip(type.element)
        if isinstance(type, Struct):
            known = self._alignments.get(id(type))
            if known is None:
                most = max([self.alignment(field.type) for field in type.fields], default=1)
                known = self._alignments[id(type)] = (most, type)
            return known[0]
        return min(type.size, 16) or 1

    def lay_out(self, struct, members, attributes):
        """Gives a Struct its fields and size; members are (name, type, bits or None, attributes).
        Bit fields: little endian, as on all machines that are traced here."""
        packed = attributes.get("packed", False)
        fields, bit, most, largest = [], 0, 1, 0
        for name, type, bits, own in members:
            tight = packed or own.get("packed")
            align = own.get("aligned") or (1 if tight else self.alignment(type))
            unit = 8 * type.size
            if struct.kind == "union":
                bit = 0
            if bits is None:
                bit = -(-bit // (8 * align)) * 8 * align
                fields.append(Field(name, type, bit // 8))
                bit += unit
            elif bits == 0:
                bit = -(-bit // unit) * unit
                align = 1
            else:
                split = bit // unit != (bit + bits - 1) // unit
                if split and not tight:
                    bit = -(-bit // unit) * unit
                storage = bit // 8 if split and tight else bit // unit * type.size
                if name:
                    fields.append(Field(name, type, storage, bit - 8 * storage, bits))
                else:
                    align = 1
                bit += bits
            most = max(most, align)
            largest = max(largest, bit)
        most = max(most, attributes.get("aligned", 1))
        struct.size = -(-(-(-largest // 8)) // most) * most
        struct._fields = tuple(fields)
        struct.forward = False
        self._alignments[id(struct)] = (most, struct)


class Parser:
    """One piece of C text. `evaluate(source, start, end)` is the value of the constant expression
    that is text[start:end] of the source."""

    def __init__(self, source, scope, evaluate, start=0, end=None):
        self.source = source
        self.text = source.text
        self.end = len(source.text) if end is None else end
        self.scope = scope
        self.evaluate = evaluate
        self.depth = 0
        self.pos = start
        self.seek(start)

    def seek(self, pos):
        self.pos = pos
        match = TOKEN.match(self.text, pos, self.end)
        self.kind = match.lastgroup
        self.value = match.group(self.kind)
        self.start, self.stop = match.span(self.kind)

    def next(self):
        value = self.value
        self.seek(self.stop)
        return value

    def match(self, value):
        if self.value != value:
            return False
        self.next()
        return True

    def error(self, message, start=None):
        """Raises at the current token, or at all from `start` to the last consumed one."""
        start, end = (self.start, self.stop) if start is None else (start, self.pos)
        raise ScriptError(Span(self.source, start, end), message)

    def expect(self, value):
        if not self.match(value):
            self.error("expected '%s' in a C declaration" % value)

    # ---- declarations ----

    def run(self):
        while self.kind != "end":
            self.declaration()

    def declaration(self):
        """One declaration at the top level."""
        if self.match(";"):
            return
        start = self.start
        if self.value in ("_Static_assert", "static_assert", "__asm__", "asm"):
            return self.skip()
        typedef = False
        while self.value in STORAGE or self.value == "typedef" or self.value == "__attribute__":
            typedef = typedef or self.value == "typedef"
            if not self.attribute(None):
                self.next()
        attributes = {}
        base = self.specifiers(attributes, known=typedef)
        if base is None:
            self.seek(start)
            return self.skip()
        if not typedef:
            return self.skip()
        while self.value != ";":
            name, type = self.declarator(base)
            if not name:
                self.error("expected a name in typedef")
            self.scope.typedefs[name] = Typedef(name, type)
            self.attribute({})
            if not self.match(","):
                break
        if self.value != "}":           # the last member may lack its semicolon
            self.expect(";")

    def skip(self):
        """Past the end of a declaration that defines no type: `;`, or a function's body."""
        depth = 0
        while self.kind != "end":
            value = self.next()
            if value in ("(", "[", "{"):
                depth += 1
            elif value in (")", "]", "}"):
                depth -= 1
                if value == "}" and not depth and self.value not in (";", ",", "=", "__attribute__"):
                    return
            elif value == ";" and depth <= 0:
                return

    def specifiers(self, attributes, known=True):
        """The type in front of the declarators. None if it is no type and need not be one."""
        qualifiers, words, type = [], [], None
        start = self.start
        while True:
            value = self.value
            if value in QUALIFIERS:
                qualifiers.append(QUALIFIERS[self.next()])
            elif value in WORDS and type is None:
                words.append(self.next())
            elif value in STORAGE or value in IGNORED:
                self.next()
                if self.value == "(" and value == "__counted_by":
                    self.parentheses()
            elif value in ("__attribute__", "_Alignas"):
                self.attribute(attributes)
            elif value in ("struct", "union") and type is None and not words:
                type = self.struct()
            elif value == "enum" and type is None and not words:
                type = self.enum()
            elif self.kind == "name" and type is None and not words:
                if value in ("typeof", "__typeof__"):
                    self.error("typeof is not understood in C definitions")
                type = self.scope.named(value)
                if type is None:
                    if known:
                        self.error("unknown type name '%s'" % value)
                    return None
                self.next()
            else:
                break
        if words:
            type = word_type(words)
            if type is None:
                self.error("'%s' is no type" % " ".join(words), start)
        if type is None:
            if known:
                self.error("expected a type")
            return None
        for qualifier in qualifiers:
            type = Qualified(qualifier, type)
        return type

    def attribute(self, attributes):
        """`__attribute__((...))`; notes packed and aligned(n). False if there is none."""
        if self.value == "_Alignas":
            self.next()
            start, end = self.parentheses()
            if attributes is not None:
                attributes["aligned"] = self.constant(start, end)
            return True
        if self.value != "__attribute__":
            return False
        self.next()
        start, end = self.parentheses()
        if attributes is not None:
            text = self.text[start:end]
            if re.search(r"\b(__)?packed(__)?\b", text):
                attributes["packed"] = True
            match = re.search(r"\b(?:__)?aligned(?:__)?\b\s*(\()?", text)
            if match:
                if match.group(1):
                    inner = start + match.end()
                    attributes["aligned"] = self.constant(inner, self.closing(inner - 1) - 1)
                else:
                    attributes["aligned"] = 16
        return True

    def closing(self, pos):
        """The offset after the parenthesis that closes the one at `pos`."""
        depth = 0
        for at in range(pos, self.end):
            depth += (self.text[at] == "(") - (self.text[at] == ")")
            if not depth:
                return at + 1
        return self.error("missing ')'")

    def parentheses(self):
        """Consumes (...): where its inside starts and ends."""
        if self.value != "(":
            self.error("expected '('")
        start, end = self.start + 1, self.closing(self.start)
        self.seek(end)
        return start, end - 1

    def constant(self, start, end):
        return self.evaluate(self.source, start, end)

    def until(self, *ends):
        """Consumes up to one of `ends` outside brackets: the value of the expression there."""
        start, depth = self.start, 0
        while self.kind != "end" and (depth or self.value not in ends):
            depth += (self.value in "([") - (self.value in ")]") if self.kind == "op" else 0
            self.next()
        return self.constant(start, self.pos)

    # ---- declarators ----

    def declarator(self, type):
        """(name or "", type) of `*name[3]`, `(*name)(int)`, ..."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.error("declaration nested too deeply")
        while True:
            if self.match("*"):
                type = Pointer(type)
            elif self.value in QUALIFIERS:
                type = Qualified(QUALIFIERS[self.next()], type)
            elif self.value in IGNORED:
                self.next()
            elif not self.attribute(None):
                break
        inner = None
        name = ""
        if self.value == "(" and self.is_nested():
            inner = self.stop
            self.seek(self.closing(self.start))
        elif self.kind == "name":
            name = self.next()
        type = self.suffixes(type)
        if inner is not None:
            after = self.pos
            self.seek(inner)
            name, type = self.declarator(type)
            self.expect(")")
            self.seek(after)
        self.depth -= 1
        return name, type

    def is_nested(self):
        """Whether the `(` at hand groups a declarator (and does not start parameters)."""
        match = TOKEN.match(self.text, self.stop, self.end)
        value = match.group(match.lastgroup)
        return value in ("*", "(", "__attribute__") or (
            match.lastgroup == "name" and value not in WORDS and value not in QUALIFIERS
            and value not in ("struct", "union", "enum", "void") and self.scope.named(value) is None)

    def suffixes(self, type):
        counts = []
        while self.value == "[":
            self.next()
            if self.match("]"):
                counts.append(0)
                continue
            count = self.until("]")
            if not 0 <= count < MAX_SIZE:
                self.error("an array of %d elements" % count)
            counts.append(count)
            self.expect("]")
        if not counts and self.value == "(":
            return self.parameters(type)
        for count in reversed(counts):
            type = Array(type, count)
            if type.size >= MAX_SIZE:
                self.error("an array of %d bytes" % type.size)
        return type

    def parameters(self, returns):
        end = self.closing(self.start)
        self.next()
        parameters, variadic = [], False
        while self.start < end - 1:
            if self.match("..."):
                variadic = True
                break
            base = self.specifiers({})
            name, type = self.declarator(base)
            parameters.append(Parameter(name, type))
            if not self.match(","):
                break
        self.seek(end)
        if len(parameters) == 1 and parameters[0].type is VOID:
            parameters = []
        return Function("", parameters, returns, variadic)

    # ---- enums, structs and unions ----

    def enum(self):
        self.next()
        self.attribute(None)
        name = self.next() if self.kind == "name" else ""
        size = None
        if self.match(":"):
            size = strip(self.specifiers({}))
        if self.value != "{":
            return self.scope.tagged("enum", name) or Enum(name, 4, False, {})
        self.next()
        values, value = {}, -1
        while self.value != "}":
            if self.kind != "name":
                self.error("expected the name of an enumerator")
            enumerator = self.next()
            self.attribute(None)
            value += 1
            if self.match("="):
                value = self.until(",", "}")
            values[enumerator] = value
            self.scope.enumerators[enumerator] = (value, None)
            if not self.match(","):
                break
        self.expect("}")
        attributes = {}
        while self.attribute(attributes):
            continue
        signed = any(value < 0 for value in values.values())
        wide = any(not -(1 << 31) <= value < (1 << 31 if signed else 1 << 32)
                   for value in values.values())
        enum = Enum(name, size.size if size else 8 if wide else 4, signed, values)
        for enumerator, value in values.items():
            self.scope.enumerators[enumerator] = (value, enum)
        if name:
            self.scope.enums[name] = enum
        return enum

    def struct(self):
        kind = self.next()
        attributes = {}
        while self.attribute(attributes):
            continue
        name = self.next() if self.kind == "name" else ""
        while self.attribute(attributes):
            continue
        if self.value != "{":
            if not name:
                self.error("expected '{' or a name after '%s'" % kind)
            return self.tagged(kind, name)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.error("structs nested too deeply")
        struct = self.scope.structs.get((kind, name)) if name else None
        if struct is None or not struct.forward:
            struct = Struct(kind, name, 0, (), True)
            if name:
                self.scope.structs[kind, name] = struct
        self.next()
        members = []
        while self.value != "}":
            if self.kind == "end":
                self.error("expected '}'")
            self.members(members)
        self.next()
        while self.attribute(attributes):
            continue
        self.scope.lay_out(struct, members, attributes)
        self.depth -= 1
        return struct

    def tagged(self, kind, name):
        """A struct that is used by name: one that may yet be defined counts as declared."""
        found = self.scope.tagged(kind, name)
        if found is None:
            found = self.scope.structs[kind, name] = Struct(kind, name, 0, (), True)
        return found

    def members(self, members):
        """Appends the members of one declaration: (name, type, bits or None, attributes)."""
        if self.match(";"):
            return
        attributes = {}
        base = self.specifiers(attributes)
        if self.value == ";":
            if isinstance(strip(base), Struct):
                members.append(("", base, None, attributes))
            self.next()
            return
        while True:
            name, type = ("", base) if self.value == ":" else self.declarator(base)
            bits, own = None, dict(attributes)
            if self.match(":"):
                bits = self.until(",", ";", "}", "__attribute__")
                if not isinstance(strip(type), (Int, Enum)) or not 0 <= bits <= type.size * 8:
                    self.error("a bit field of %d bits" % bits)
            while self.attribute(own):
                continue
            bare = strip(type)
            if isinstance(bare, Struct) and bare.forward:
                self.error("the member '%s' has the incomplete type %s %s"
                           % (name, bare.kind, bare.name))
            members.append((name, type, bits, own))
            if not self.match(","):
                break
        if self.value != "}":           # the last member may lack its semicolon
            self.expect(";")
