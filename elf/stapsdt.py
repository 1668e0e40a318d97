"""USDT probes: the `.note.stapsdt` notes and their operands.

Implements SystemTap's "User Space Probe Implementation" note format, version 3: per probe the
addresses of its nop, of `.stapsdt.base` as linked and of its semaphore, then provider, name and
argument string. An argument reads `SIZE@OPERAND` where OPERAND is what the compiler printed in
the target's assembly syntax; operands of x86_64 and aarch64 are understood here. One that is
not is `Operand(kind="unknown")` with its text, and costs nobody else anything.
"""

import re
from typing import NamedTuple

from .image import ElfError, PT_LOAD


PAGE = 4096     # the smallest


class Operand(NamedTuple):
    """Where an argument is. By `kind`:

    - "constant": `value`.
    - "register": the low `register_size` bytes above `register_shift` bits of `register`, which is
      named as in the kernel's pt_regs ("ax", "r8", "sp", "ip"; aarch64 "x0".., "sp", "pc"). With
      `symbol` at hand nothing changes; `displacement` is 0.
    - "memory": at register + displacement + (index << index_shift), where `register` and `index`
      may be "". `index_size` is 4 when only the low half of the index counts, sign-extended if
      `index_signed`. When `symbol` is not "", `displacement` already contains its virtual address,
      to which the process's load bias has to be added (`relative` is True).
    - "address": the virtual address `value` itself (of `symbol`), plus the load bias.
    - "vector": a floating-point or vector `register` ("xmm0", "v0"), which no BPF program can read.
    - "unknown": not understood; `reason` says why.

    `size` is the argument's size in bytes, `signed` and `floating` its nature; `text` is the
    operand as it stands in the note.
    """

    kind: str
    size: int
    signed: bool
    floating: bool
    text: str
    register: str = ""
    register_size: int = 8
    register_shift: int = 0
    displacement: int = 0
    index: str = ""
    index_shift: int = 0
    index_size: int = 8
    index_signed: bool = False
    value: int = 0
    symbol: str = ""
    relative: bool = False
    reason: str = ""

    @property
    def width(self):
        """How many bytes to read: a wider argument in a narrower register has no more."""
        return min(self.size, self.register_size) if self.kind == "register" else self.size


class Note(NamedTuple):
    """One place of a probe. `location`, `base` and `semaphore` (0: none) are virtual addresses,
    adjusted for prelinking; `location_offset` and `semaphore_offset` are file offsets, None when no
    loaded segment holds them. A semaphore may lie behind the end of what the file has of its segment, in the
    rest of that page (.bss)."""

    provider: str
    name: str
    location: int
    base: int
    semaphore: int
    arguments: list
    location_offset: object
    semaphore_offset: object
    text: str


def notes(image):
    """All probes of an image, in their order; a probe with several places has a note for each."""
    if image.section(".note.stapsdt") is None:
        return []
    base_section = image.section(".stapsdt.base")
    parse = Operands(image)
    result = []
    for note in image.notes(".note.stapsdt"):
        if note.owner != b"stapsdt" or note.type != 3:
            continue
        width = image.bits // 8
        location, base, semaphore = (image.unpack(image.word, note.offset + i * width, "a probe's address")[0]
                                     for i in range(3))
        strings = note.desc[3 * width:].split(b"\0")
        if len(note.desc) < 3 * width or len(strings) < 3:
            raise ElfError(image.path, note.offset, "a probe's note is cut short")
        provider, name, text = (s.decode("utf-8", "surrogateescape") for s in strings[:3])
        if base_section is not None and base:
            moved = base_section.addr - base
            location = (location + moved) % (1 << image.bits)
            if semaphore:
                semaphore = (semaphore + moved) % (1 << image.bits)
        result.append(Note(provider, name, location, base, semaphore, parse(text), image.file_offset(location),
                           _mapped_offset(image, semaphore) if semaphore else None, text))
    return result


def _mapped_offset(image, vaddr):
    """The file offset that is mapped at a virtual address: the last page of a segment is mapped as a whole."""
    for segment in image.segments:
        if segment.type == PT_LOAD and segment.vaddr <= vaddr < segment.vaddr + segment.memsz:
            if vaddr < segment.vaddr + segment.filesz or segment.filesz and vaddr < -(-(segment.vaddr + segment.filesz) // PAGE) * PAGE:
                return vaddr - segment.vaddr + segment.offset
    return None


# -- operands -------------------------------------------------------------------------------------

_NUMBER = r"(?:0[xX][0-9a-fA-F]+|[0-9]+)"
_ARGUMENT = re.compile(r"(?:(-?)(\d+)(f?)@)?(.*)", re.S)
_SUM = re.compile(r"\s*([-+]*)\s*(%s|[A-Za-z_.$][\w.$@]*)" % _NUMBER)


class _Unknown(Exception):
    """Why an operand is not understood."""


class Operands:
    """Parses argument strings of one image; symbols are looked up when an operand names one."""

    def __init__(self, image=None, machine=None, lookup=None):
        self.image = image
        self.machine = machine or image.machine
        self.word = image.bits // 8 if image is not None else 8
        self._lookup = lookup
        self.parsers = {"x86_64": self._x86, "aarch64": self._arm}

    def __call__(self, text):
        """The operands of an argument string."""
        return [self.one(part) for part in split(text)]

    def one(self, text):
        sign, size, floating, operand = _ARGUMENT.fullmatch(text).groups()
        size = int(size) if size else self.word
        common = dict(size=size, signed=bool(sign), floating=bool(floating), text=text)
        try:
            if size not in (1, 2, 4, 8):
                raise _Unknown("an argument of %d bytes" % size)
            parser = self.parsers.get(self.machine)
            if parser is None:
                raise _Unknown("operands of %s are not known" % self.machine)
            return Operand(**common, **parser(operand.strip()))
        except _Unknown as unknown:
            return Operand(kind="unknown", reason=str(unknown), **common)

    def address(self, symbol):
        """The virtual address of a symbol."""
        if self._lookup is None:
            from .symbols import Symbols
            if self.image is None:
                raise _Unknown("no file to look up %s in" % symbol)
            try:
                symbols = Symbols(self.image)
            except ElfError as error:
                raise _Unknown(error.reason) from None
            self._lookup = lambda name: getattr(symbols.find(name), "value", None)
        if "@" in symbol:
            raise _Unknown("the address of %s is known to the dynamic linker only" % symbol)
        try:
            value = self._lookup(symbol)
        except ElfError as error:
            raise _Unknown(error.reason) from None
        if value is None:
            raise _Unknown("no symbol %s in the file" % symbol)
        return value

    def sum(self, text):
        """(number, symbol): the value of `8`, `-0x10`, `foo`, `foo+4`, `4+foo`, `16+-8`; the
        symbol's address is already in the number."""
        if not text:
            raise _Unknown("not understood: a constant without digits")
        total, symbol, at = 0, "", 0
        while at < len(text):
            term = _SUM.match(text, at)
            if term is None or (at and not term.group(1)):
                raise _Unknown("not understood: %s" % text)
            negative = term.group(1).count("-") % 2
            word = term.group(2)
            if word[0].isdigit():
                value = int(word, 16) if word[:2] in ("0x", "0X") else int(word)
            else:
                if negative or symbol:
                    raise _Unknown("not understood: %s" % text)
                symbol, value = word, self.address(word)
            total += -value if negative else value
            at = term.end()
        return total, symbol

    # -- x86_64 (AT&T syntax) ----------------------------------------------------------------------

    _X86_MEMORY = re.compile(r"([^()%]*)\(\s*(%\w+)?\s*(?:,\s*(%\w+)?\s*(?:,\s*([1248])\s*)?)?\)")

    def _x86(self, text):
        if text.startswith("%"):
            if ":" in text:
                raise _Unknown("memory in segment %s" % text.partition(":")[0])
            return self._x86_register(text)
        if text.startswith("$"):
            value, symbol = self.sum(text[1:])
            if symbol:
                return dict(kind="address", value=value, symbol=symbol, relative=True)
            return dict(kind="constant", value=value)
        memory = self._X86_MEMORY.fullmatch(text)
        if memory is None:
            if not text or "(" in text or "%" in text:
                raise _Unknown("not understood: %s" % text)
            value, symbol = self.sum(text)
            return dict(kind="memory", displacement=value, symbol=symbol, relative=bool(symbol))
        offset, base, index, scale = memory.groups()
        displacement, symbol = self.sum(offset.strip()) if offset.strip() else (0, "")
        if base in ("%rip", "%eip"):
            if not symbol or index:
                raise _Unknown("relative to the instruction pointer without a symbol")
            return dict(kind="memory", displacement=displacement, symbol=symbol, relative=True)
        if not base and not index:
            raise _Unknown("not understood: %s" % text)
        place = dict(kind="memory", displacement=displacement, symbol=symbol, relative=bool(symbol))
        for key, name in (("register", base), ("index", index)):
            if name:
                register = self._x86_register(name)
                if register["kind"] != "register" or register["register_size"] != 8:
                    raise _Unknown("an address in %s" % name)
                place[key] = register["register"]
        if index and scale:
            place["index_shift"] = int(scale).bit_length() - 1
        return place

    def _x86_register(self, text):
        name = text[1:]
        if name in X86_REGISTERS:
            register, size, shift = X86_REGISTERS[name]
            return dict(kind="register", register=register, register_size=size, register_shift=shift)
        if re.fullmatch(r"[xyz]?mm\d+|st(\(\d\))?", name):
            return dict(kind="vector", register=name)
        raise _Unknown("no register %s" % text)

    # -- aarch64 (GNU as syntax) ---------------------------------------------------------------------

    _ARM_MEMORY = re.compile(
        r"\[\s*(x\d+|sp)\s*(?:,\s*(?:(?P<index>[xw]\d+)\s*(?:,\s*(?P<extend>lsl|sxtw|uxtw|sxtx)\s*(?:#?(?P<shift>\d+))?)?"
        r"|#?(?P<offset>[^\],]+)))?\s*\]")

    def _arm(self, text):
        register = _arm_register(text)
        if register:
            return register
        if text.startswith("["):
            return self._arm_memory(text)
        number = text[1:] if text.startswith("#") else text
        value, symbol = self.sum(number) if number else self._bad(text)
        if symbol:
            return dict(kind="memory" if text == number else "address", symbol=symbol, relative=True,
                        **({"displacement": value} if text == number else {"value": value}))
        return dict(kind="constant", value=value)

    def _bad(self, text):
        raise _Unknown("not understood: %s" % text)

    def _arm_memory(self, text):
        memory = self._ARM_MEMORY.fullmatch(text)
        if memory is None:
            raise _Unknown("not understood: %s" % text)
        base = _arm_register(memory.group(1))
        index, offset = memory.group("index"), memory.group("offset")
        if base is None:
            raise _Unknown("no register %s" % memory.group(1))
        place = dict(kind="memory", register=base["register"])
        if index:
            register = _arm_register(index)
            if register is None or register["kind"] != "register":
                raise _Unknown("no register %s" % index)
            extend = memory.group("extend")
            place.update(index=register["register"], index_size=register["register_size"],
                         index_signed=extend == "sxtw", index_shift=int(memory.group("shift") or 0))
            if (index[0] == "w") != (extend in ("sxtw", "uxtw")) or place["index_shift"] > 4:
                raise _Unknown("not understood: %s" % text)
        elif offset:
            low = offset.startswith(":lo12:")
            value, symbol = self.sum(offset[6:] if low else offset)
            if bool(symbol) != low:
                raise _Unknown("not understood: %s" % text)
            # the page that the base register holds moves with the load bias, the low bits do not
            place.update(displacement=value & 0xfff if low else value)
        return place


def _x86_table():
    table = {}
    for letter in "abcd":
        for name, size, shift in (("r%sx", 8, 0), ("e%sx", 4, 0), ("%sx", 2, 0), ("%sl", 1, 0), ("%sh", 1, 8)):
            table[name % letter] = (letter + "x", size, shift)
    for name in ("si", "di", "bp", "sp"):
        for text, size in (("r" + name, 8), ("e" + name, 4), (name, 2), (name + "l", 1)):
            table[text] = (name, size, 0)
    for number in range(8, 16):
        for suffix, size in (("", 8), ("d", 4), ("w", 2), ("b", 1)):
            table["r%d%s" % (number, suffix)] = ("r%d" % number, size, 0)
    table["rip"] = ("ip", 8, 0)
    return table


X86_REGISTERS = _x86_table()


def _arm_register(text):
    if text in ("sp", "wsp"):
        return dict(kind="register", register="sp", register_size=4 if text == "wsp" else 8)
    if text in ("xzr", "wzr"):
        return dict(kind="constant", value=0)
    aliases = {"fp": "x29", "lr": "x30"}
    match = re.fullmatch(r"([xwbhsdqv])(\d{1,2})(?:\.\w+(?:\[\d+\])?)?", aliases.get(text, text))
    if match is None or int(match.group(2)) > (30 if match.group(1) in "xw" else 31):
        return None
    letter, number = match.groups()
    if letter in "xw":
        return dict(kind="register", register="x" + number, register_size=8 if letter == "x" else 4)
    return dict(kind="vector", register=text)


def split(text):
    """The arguments of an argument string: they are separated by blanks, except in brackets."""
    parts, depth, word = [], 0, ""
    for char in text:
        depth += (char in "([") - (char in ")]")
        if char.isspace() and depth <= 0:
            if word:
                parts.append(word)
            word, depth = "", 0
        else:
            word += char
    return parts + [word] if word else parts
