"""`btf dump format c`: the types of a BTF as C that compiles and gives every type its size and offsets.

A type is written after those that it holds by value; what it only points to is declared before. BTF says
offsets, C derives them: where the two differ a struct is packed, or unnamed bit fields fill the gap. Names
that C cannot have twice get libbpf's suffix ___2, ___3, ...
"""

import re

from rawbpf.elf import btf_raw
from rawbpf.elf.btf_raw import record
from rawbpf.elf.image import ElfError

HEAD = """#ifndef __VMLINUX_H__
#define __VMLINUX_H__

#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#if defined(__clang__)
#pragma clang attribute push (__attribute__((preserve_access_index)), apply_to = record)
#endif
#endif

#ifndef __ksym
#define __ksym __attribute__((section(".ksyms")))
#endif

#ifndef __weak
#define __weak __attribute__((weak))
#endif

"""
TAIL = """#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif

#endif /* __VMLINUX_H__ */
"""

_QUALIFIERS = ("const", "volatile", "restrict")
_TRANSPARENT = _QUALIFIERS + ("type_tag",)
_WORDS = frozenset("char short int long signed unsigned _Bool __int128 float double _Float16 _Float128".split())
_PLAIN = {1: "char", 2: "short", 4: "int", 8: "long long", 16: "__int128"}
_WORD_BITS = 64
_MODES = {1: "byte", 2: "HI", 8: "word"}


def reachable(btf, roots):
    """The ids of these types and of all that they refer to."""
    seen, waiting = set(), list(roots)
    while waiting:
        number = waiting.pop()
        if not number or number in seen:
            continue
        seen.add(number)
        of = record(btf, number)
        if of.kind in ("struct", "union"):
            waiting += [member.type for member in btf_raw.members(btf, of)]
        elif of.kind == "array":
            waiting += of.words[:2]
        elif of.kind == "func_proto":
            waiting += [of.rest] + btf_raw.parameters(of)
        elif of.kind == "datasec":
            waiting += of.words[::3]
        elif of.kind in ("ptr", "typedef", "func", "var", "decl_tag") + _TRANSPARENT:
            waiting.append(of.rest)
    return seen


def definitions(btf, roots=None, ordered=True):
    """The text, in parts. roots: only these types and what they need. ordered: by kind and name."""
    try:
        yield from Writer(btf).write(roots, ordered)
    except RecursionError:
        raise ElfError(btf.path, None, "its types are nested too deep") from None


class Writer:
    def __init__(self, btf):
        self.btf = btf
        self._out = []
        self._done, self._busy, self._declared = set(), set(), set()
        self._tags, self._tag_owner = {}, {}        # id -> name; name -> (kind, times)
        self._idents = {}                           # ordinary identifiers: name -> times
        self._aligns, self._packed = {}, {}
        self._typedefs = {}

    def write(self, roots, ordered):
        yield HEAD
        numbers = range(1, self.btf.count) if roots is None else roots
        if ordered and roots is None:
            numbers = sorted(numbers, key=self._rank)
        for number in numbers:
            of = record(self.btf, number)
            if of.kind in ("struct", "union", "enum", "enum64", "typedef", "fwd") and (
                    of.name or of.kind in ("enum", "enum64") and not self._inlined(number)):
                self.need(number, True)
            elif roots is not None:
                self.need(number, True)
            yield from self._drain()
        if roots is None:
            yield from self._kernel_functions()
        yield TAIL

    def _drain(self):
        parts, self._out = self._out, []
        return parts

    def _rank(self, number):
        of = record(self.btf, number)
        kind = {"enum": 0, "enum64": 0, "int": 1, "float": 1, "typedef": 3, "fwd": 5}.get(of.kind, 4)
        if kind == 0 and not of.name:
            kind = 2
        return kind, of.name, number

    def _inlined(self, number):
        """Is an anonymous enum written where something has its type?"""
        if "used" not in self.__dict__:
            self.used = used = set()
            for other in range(1, self.btf.count):
                of = record(self.btf, other)
                if of.kind in ("struct", "union"):
                    used.update(self._core(member.type) for member in btf_raw.members(self.btf, of))
                elif of.kind == "typedef":
                    used.add(self._core(of.rest))
        return number in self.used

    def _core(self, number):
        for _ in range(64):
            of = record(self.btf, number)
            if of.kind == "array":
                number = of.words[0]
            elif of.kind in _TRANSPARENT or of.kind == "ptr":
                number = of.rest
            else:
                break
        return number

    # -- names ---------------------------------------------------------------------------------------

    @staticmethod
    def _clean(name):
        return re.sub(r"\W", "_", name, flags=re.A)

    def _ident(self, name):
        name = self._clean(name)
        times = self._idents[name] = self._idents.get(name, 0) + 1
        return name if times == 1 else "%s___%d" % (name, times)

    def _tag(self, number, of, kind):
        found = self._tags.get(number)
        if found is None:
            name = self._clean(of.name)
            owner = self._tag_owner.get(name)
            if owner is None:
                self._tag_owner[name] = [kind, 1, of.kind == "fwd"]
            elif owner[0] == kind and (owner[2] or of.kind == "fwd"):
                owner[2] = owner[2] and of.kind == "fwd"        # a declaration and its definition
            else:
                owner[1] += 1
                name = "%s___%d" % (name, owner[1])
            found = self._tags[number] = name
        return found

    # -- order ---------------------------------------------------------------------------------------

    def need(self, number, strong, depth=0):
        """Writes what must stand before a use of the type: strong: its definition, else a declaration."""
        if not number:
            return
        of = record(self.btf, number)
        kind = of.kind
        if kind in ("struct", "union"):
            self._need_struct(number, of, strong)
        elif kind in ("enum", "enum64"):
            if (of.name or not self._inlined(number)) and number not in self._done:
                self._done.add(number)
                self._out.append(self._enum(number, of) + ";\n\n")
        elif kind == "fwd":
            self._declare(number, of, "union" if of.flag else "struct")
        elif kind == "typedef":
            self._need_typedef(number, of, strong)
        elif kind == "array":
            self.need(of.words[0], True)
        elif kind == "ptr":
            self.need(of.rest, False)
        elif kind == "func_proto":
            for used in [of.rest] + btf_raw.parameters(of):
                self.need(used, False)
        elif kind in _TRANSPARENT + ("func", "var"):
            self.need(of.rest, strong)
        elif kind == "int" and number not in self._done:
            self._done.add(number)
            if not _WORDS.issuperset(of.name.split()) and of.rest in _PLAIN:
                sign = "" if of.words[0] >> 24 & 1 else "unsigned "
                self._out.append("typedef %s%s %s;\n\n" % (sign, _PLAIN[of.rest], self._clean(of.name)))

    def _declare(self, number, of, kind):
        name = self._tag(number, of, kind)
        if (kind, name) not in self._declared and number not in self._done:
            self._declared.add((kind, name))
            self._out.append("%s %s;\n\n" % (kind, name))

    def _need_struct(self, number, of, strong):
        if strong and number in self._busy:
            raise ElfError(self.btf.path, None, "BTF type %d: %s %s contains itself" % (number, of.kind, of.name))
        if of.name and not strong:
            return self._declare(number, of, of.kind)
        if number in self._done or number in self._busy:
            return None
        self._busy.add(number)
        for member in btf_raw.members(self.btf, of):
            self.need(member.type, True)
        self._busy.discard(number)
        if of.name:
            self._done.add(number)
            self._out.append(self._struct(number, of, 0) + ";\n\n")
        return None

    def _need_typedef(self, number, of, strong):
        if number not in self._done:
            self._done.add(number)
            target = record(self.btf, of.rest)
            self.need(of.rest, not (target.kind in ("struct", "union") and target.name))
            if of.name != "__builtin_va_list":
                name = self._typedefs[number] = self._ident(of.name)
                self._out.append("typedef %s;\n\n" % self._declaration(of.rest, name, 0))
        if strong:
            self.need(of.rest, True)

    # -- text ----------------------------------------------------------------------------------------

    def _declaration(self, number, name, level):
        """C that declares `name`; a pointer's stars and an array's brackets go around it from inside out."""
        quals = []
        for _ in range(64):
            of = record(self.btf, number)
            kind = of.kind
            if kind in _TRANSPARENT:
                if kind != "type_tag" and kind not in quals:     # of an array and of its elements: once
                    quals.append(kind)
                number = of.rest
            elif kind == "ptr":
                name = "*" + "".join(q + " " for q in quals) + name
                quals, number = [], of.rest
                if record(self.btf, self._unqualified(number)).kind in ("array", "func_proto"):
                    name = "(" + name + ")"
            elif kind == "array":
                name += "[%d]" % of.words[2]
                number = of.words[0]
            elif kind == "func_proto":
                name += "(%s)" % self._parameters(of)
                number = of.rest
            else:
                break
        base = " ".join([q for q in quals if q != "restrict"] + [self._base(number, level)])
        return (base + " " + name).rstrip(" ")

    def _unqualified(self, number):
        for _ in range(64):
            of = record(self.btf, number)
            if of.kind not in _TRANSPARENT:
                break
            number = of.rest
        return number

    def _parameters(self, of):
        texts = []
        for at in range(0, 2 * of.vlen, 2):
            name, number = self.btf.string(of.words[at]), of.words[at + 1]
            if not number and at == 2 * of.vlen - 2 and not name:
                texts.append("..." if texts else "")
            else:
                texts.append(self._declaration(number, self._clean(name), 1))
        return ", ".join(texts) if of.vlen else "void"

    def _base(self, number, level):
        if not number:
            return "void"
        of = record(self.btf, number)
        if of.kind in ("struct", "union"):
            return "%s %s" % (of.kind, self._tag(number, of, of.kind)) if of.name else self._struct(number, of, level)
        if of.kind in ("enum", "enum64"):
            return "enum " + self._tag(number, of, "enum") if of.name else self._enum(number, of, level)
        if of.kind == "fwd":
            kind = "union" if of.flag else "struct"
            return "%s %s" % (kind, self._tag(number, of, kind))
        if of.kind == "typedef":
            return self._typedefs.get(number, self._clean(of.name))
        return of.name if _WORDS.issuperset(of.name.split()) else self._clean(of.name)

    def _enum(self, number, of, level=0):
        pad = "\t" * level
        head = "enum" + (" " + self._tag(number, of, "enum") if of.name else "")
        wide = ("LL" if of.flag else "ULL") if of.kind == "enum64" else ""
        if not of.vlen:
            return head if of.name else "int"
        lines = ["%s\t%s = %d%s,\n" % (pad, self._ident(name), value, wide)
                 for name, value in btf_raw.enumerators(self.btf, of)]
        mode = _MODES.get(of.rest)
        small = all(-1 << 31 <= value < 1 << 32 for _, value in btf_raw.enumerators(self.btf, of))
        after = " __attribute__((mode(%s)))" % mode if mode and (of.rest < 4 or small) else ""
        return "%s {\n%s%s}%s" % (head, "".join(lines), pad, after)

    def _struct(self, number, of, level):
        pad = "\t" * level
        head = of.kind + (" " + self._tag(number, of, of.kind) if of.name else "")
        packed = self._is_packed(number, of)
        lines = []
        at = 0
        for member in btf_raw.members(self.btf, of):
            bits, size, align = self._extent(member)
            if of.kind == "struct":
                natural = self._natural(at, bits, size, align, packed)
                if natural != member.bit_offset:
                    lines += self._filling(at, member.bit_offset, pad)
            whole = btf_raw.skip(self.btf, member.type) if not member.name and not bits else None
            if whole is not None and whole.name and whole.kind in ("struct", "union"):
                # "struct named;" declares its members with -fms-extensions only (the kernel is built so since 7.0)
                text = self._struct(whole.id, whole._replace(name=""), level + 1)
            else:
                text = self._declaration(member.type, self._clean(member.name), level + 1)
            lines.append("%s\t%s%s;\n" % (pad, text, ": %d" % bits if bits else ""))
            end = member.bit_offset + (bits or 8 * size)
            at = end if of.kind == "struct" else max(at, end)
        unit = 8 if packed else 8 * self._align(number)
        if (at + unit - 1) // unit * unit < 8 * of.rest:
            filling = self._filling(at if of.kind == "struct" else 0, 8 * of.rest, pad)
            if of.kind == "union":
                filling = ["%s\tstruct {\n" % pad] + ["\t" + part for part in filling] + ["%s\t};\n" % pad]
            lines += filling
        body = "{\n%s%s}" % ("".join(lines), pad) if lines else "{}"
        return "%s %s%s" % (head, body, " __attribute__((packed))" if packed else "")

    @staticmethod
    def _filling(at, end, pad):
        lines = []
        while at < end:
            bits = min(end, (at // _WORD_BITS + 1) * _WORD_BITS) - at
            lines.append("%s\tlong: %d;\n" % (pad, bits))
            at += bits
        return lines

    # -- layout --------------------------------------------------------------------------------------

    def _extent(self, member):
        """(bits of a bit field or 0, size, alignment) of a member's type."""
        bits, size = member.bit_size, btf_raw.size(self.btf, member.type)
        core = btf_raw.skip(self.btf, member.type)
        if core.kind == "int" and not bits and (core.words[0] & 255) != 8 * core.rest:
            bits = core.words[0] & 255        # the old form of bit fields
        return bits, size, self._align(member.type)

    @staticmethod
    def _natural(at, bits, size, align, packed):
        """Where C puts the next member."""
        if bits:
            unit = 8 * size
            return at if packed or at % unit + bits <= unit else (at + unit - 1) // unit * unit
        unit = 8 if packed else 8 * align
        return (at + unit - 1) // unit * unit

    def _align(self, number):
        found = self._aligns.get(number)
        if found is None:
            of = btf_raw.skip(self.btf, number)
            if of.kind == "array":
                found = self._align(of.words[0])
            elif of.kind == "ptr":
                found = self.btf.pointer_size
            elif of.kind in ("struct", "union"):
                found = 1 if self._is_packed(of.id, of) else self._widest(of)
            else:
                found = max(1, min(of.rest if of.kind in ("int", "enum", "enum64", "float") else 1, 16))
            self._aligns[number] = found
        return found

    def _widest(self, of):
        return max([self._align(member.type) for member in btf_raw.members(self.btf, of)], default=1)

    def _is_packed(self, number, of):
        found = self._packed.get(number)
        if found is None:
            self._packed[number] = False        # while its members are asked
            widest = self._widest(of)
            found = bool(of.vlen) and of.rest % widest != 0
            for member in btf_raw.members(self.btf, of):
                bits, size, align = self._extent(member)
                if bits:
                    found = found or member.bit_offset % (8 * size) + bits > 8 * size
                else:
                    found = found or member.bit_offset % (8 * align) != 0
            self._packed[number] = found
        return found

    # -- functions that programs may call -------------------------------------------------------------

    def _kernel_functions(self):
        btf, functions = self.btf, []
        for number in range(btf.first_id, btf.count):
            of = record(btf, number)
            if of.kind == "decl_tag" and of.name == "bpf_kfunc" and of.words[0] == 0xffffffff:
                functions.append(of.rest)
        if not functions:
            return
        yield "#ifndef BPF_NO_KFUNC_PROTOTYPES\n"
        for number in functions:
            of = record(btf, number)
            if of.kind != "func":
                continue
            self.need(of.rest, False)
            yield from self._drain()
            yield "extern %s __weak __ksym;\n" % self._declaration(of.rest, self._clean(of.name), 0)
        yield "#endif\n\n"
