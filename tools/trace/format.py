r"""printf's formats: parsing, checking, and making text from values as bpftrace 0.27 does.

It differs from C in places, and so does this: without a length modifier integers are cut to 32 bits; `0`
pads with zeros on either side and in front of a sign; precision is ignored for integers; %s takes any value;
%r, %rx and %rh print buffers, %gr is page-allocation flags.
"""
import re
from typing import NamedTuple

from . import types
from .types import Boolean, Buffer, Integer, Pointer, String

_SPEC = re.compile(r"%(-?)(\+?)( ?)(#?)(0?)(\*|\d+)?(?:\.(\*|\d+))?([hlLjzt]*)([diouxXeEfFGaAcspn%]|gr|g|rh|rx|r)")
_WIDEST = 65535         # characters that a field is filled up to
_BITS = {"": 32, "hh": 8, "h": 16, "l": 64, "ll": 64, "j": 64, "z": 64, "t": 64}
_NUMBERS = (Integer, Boolean, Pointer)


class FormatError(Exception):
    """What is wrong with a format, in bpftrace's words."""


class Spec(NamedTuple):
    left: bool
    plus: bool
    alternate: bool
    zeros: bool
    width: int
    bits: int               # that an integer is cut to
    letter: str

    def integer(self, number):
        """The digits of a number."""
        number = int(number)
        bits, letter = (8 if self.letter == "c" else self.bits), self.letter
        number &= (1 << bits) - 1
        if letter in "dic" and number >> bits - 1:
            number -= 1 << bits
        if letter in "di":
            return "%+d" % number if self.plus else "%d" % number
        if letter == "u":
            return "%d" % number
        if letter == "c":
            return bytes([number & 0xff]).decode("utf-8", "surrogateescape")
        if letter == "o":
            return "0%o" % number if self.alternate and number else "%o" % number
        text = ("%x" if letter == "x" else "%X") % number
        return ("0" + letter + text) if self.alternate and number else text

    def pad(self, text):
        """Filled up to the width, which counts bytes as C does."""
        missing = self.width - (len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape")))
        if missing <= 0:
            return text
        fill = ("0" if self.zeros else " ") * missing
        return text + fill if self.left else fill + text

    def text(self, kind, value):
        """The text of a `value` of type `kind`."""
        letter = self.letter
        if letter in "diuoxXc":
            return self.pad(self.integer(value))
        if letter == "p":
            number = int(value) & (1 << 64) - 1
            return self.pad("0x%x" % number if number else "0")
        if letter[0] == "r":
            return self.pad(types.hex_buffer(value, letter == "r", letter != "rh"))
        if letter == "gr":
            return self.pad(gfp_flags(int(value)))
        return self.pad(kind.text(value))

    def template(self, kind):
        """(struct format, Python % format) that print a field of type `kind` alike, or None."""
        letter = self.letter
        if self.zeros or letter == "c" or self.width and self.alternate:
            return None
        flags = "%" + ("-" if self.left else "") + ("+" if self.plus and letter in "di" else "")
        width = str(self.width) if self.width else ""
        if letter in "diuxX" and isinstance(kind, Integer) and self.bits >= 32 and not self.alternate:
            signed = letter in "di"
            if kind.size == 4:
                code = "i" if signed else "I"
            else:
                code = ("q" if signed else "Q") if self.bits == 64 else ("i4x" if signed else "I4x")
            return code, flags + width + ("d" if letter in "diu" else letter)
        if letter == "s" and isinstance(kind, Integer) and kind.enum is None:
            return kind.format, flags.replace("+", "") + width + "d"
        if letter == "s" and isinstance(kind, String):
            return "%ds" % kind.size, flags.replace("+", "") + width + "s"
        return None


def _width(digits):
    """The number that a width is; of one with very many digits, one that is too large."""
    return int(digits[:10]) if digits and digits != "*" else 0


class Format:
    """A parsed format: `fragments` of fixed text with `specs` between them."""

    def __init__(self, text):
        self.source = text
        self.fragments, self.specs = [], []
        fragment, end = [], 0
        for match in _SPEC.finditer(text):
            fragment.append(text[end:match.start()])
            end = match.end()
            left, plus, _, alternate, zeros, width, _, length, letter = match.groups()
            if letter == "%":
                fragment.append("%")
                continue
            self.fragments.append("".join(fragment))
            fragment = []
            self.specs.append(Spec(bool(left), bool(plus), bool(alternate), bool(zeros),
                                   _width(width), _BITS.get(length, 32), letter))
        self.fragments.append("".join(fragment) + text[end:])

    def check(self, kinds):
        """FormatError when values of these types cannot be printed with it."""
        if len(kinds) != len(self.specs):
            raise FormatError("%s arguments for format string (%d supplied, %d expected)" % (
                "not enough" if len(kinds) < len(self.specs) else "too many", len(kinds), len(self.specs)))
        for spec, kind in zip(self.specs, kinds):
            letter = spec.letter
            if spec.width > _WIDEST:
                raise FormatError("field width is over %d: %s" % (_WIDEST, letter))
            if kind is None or isinstance(kind, types.NoneType):
                raise FormatError("unable to print none type for specifier: %s" % letter)
            if letter in ("d", "i", "u", "o", "x", "X", "c", "p", "gr"):
                fine = isinstance(kind, _NUMBERS)
            elif letter in ("r", "rx", "rh"):
                fine = isinstance(kind, Buffer)
            elif letter == "s":
                fine = True
            else:
                raise FormatError("unsupported format specifier: %s" % letter)
            if not fine:
                from .written import type_text
                raise FormatError("unsupported format specifier for type '%s': %s" % (type_text(kind), letter))

    def field(self, index, kind):
        """The type with which argument `index` travels in the record: wide enough for its conversion."""
        if isinstance(kind, Integer) and kind.enum is None:
            wide = self.specs[index].bits == 64 or self.specs[index].letter == "p"
            size = 8 if wide or kind.size == 8 else 4
            return Integer(size, kind.signed)
        return kind

    def apply(self, kinds, values):
        """The finished text."""
        out = [self.fragments[0]]
        for spec, kind, value, fragment in zip(self.specs, kinds, values, self.fragments[1:]):
            out.append(spec.text(kind, value))
            out.append(fragment)
        return "".join(out)

    def batch(self, size, fields, trailer):
        """A compiled.Batch for records of `size` bytes with these (offset, type) fields, or None."""
        from .compiled import Batch
        layout, template, end, texts = ["8x"], [self.fragments[0].replace("%", "%%")], 8, {}
        for index, (offset, kind) in enumerate(fields):
            made = self.specs[index].template(kind)
            if made is None:
                return None
            layout.append("%dx" % (offset - end) if offset > end else "")
            layout.append(made[0])
            template.append(made[1])
            template.append(self.fragments[index + 1].replace("%", "%%"))
            if isinstance(kind, String):
                texts[index] = _text_of("" if kind.whole else trailer)
            end = offset + kind.size
        layout.append("%dx" % (size - end) if size > end else "")
        return Batch("".join(layout), "".join(template), texts)


def _text_of(trailer):
    """Function from a string's bytes in a record to those of its text."""
    trailer = trailer.encode("utf-8", "surrogateescape")

    def text(data):
        at = data.find(b"\0")
        return data[:at] if at >= 0 else data + trailer
    return text


def gfp_flags(number):
    """Page-allocation flags by name, as the kernel's %pGg prints them on recent kernels (include/linux/
    gfp_types.h): the composite names first."""
    if not number:
        return "0"
    bits = {name: 1 << index for index, name in enumerate(_GFP_BITS)}
    groups = [(name, sum(bits[part] for part in parts.split("|"))) for name, parts in _GFP_GROUPS]
    out = []
    for name, mask in groups + [(name, mask) for name, mask in bits.items() if name not in _GFP_UNNAMED]:
        if number & mask == mask:
            out.append(name)
            number &= ~mask
    if number:
        out.append("0x%x" % number)
    return "|".join(out)


_GFP_UNNAMED = ("__GFP_MOVABLE", "__GFP_RECLAIMABLE", "__GFP_UNUSED", "GFP_DMA")     # bpftrace shows the bits, or has it earlier
_GFP_BITS = ("GFP_DMA", "__GFP_HIGHMEM", "GFP_DMA32", "__GFP_MOVABLE", "__GFP_RECLAIMABLE", "__GFP_HIGH",
             "__GFP_IO", "__GFP_FS", "__GFP_ZERO", "__GFP_UNUSED", "__GFP_DIRECT_RECLAIM", "__GFP_KSWAPD_RECLAIM",
             "__GFP_WRITE", "__GFP_NOWARN", "__GFP_RETRY_MAYFAIL", "__GFP_NOFAIL", "__GFP_NORETRY", "__GFP_MEMALLOC",
             "__GFP_COMP", "__GFP_NOMEMALLOC", "__GFP_HARDWALL", "__GFP_THISNODE", "__GFP_ACCOUNT",
             "__GFP_ZEROTAGS", "__GFP_SKIP_ZERO", "__GFP_SKIP_KASAN", "__GFP_NO_OBJ_EXT")
_RECLAIM = "__GFP_DIRECT_RECLAIM|__GFP_KSWAPD_RECLAIM"
_TRANSHUGE = "__GFP_IO|__GFP_FS|__GFP_HARDWALL|__GFP_HIGHMEM|__GFP_MOVABLE|__GFP_COMP|__GFP_NOMEMALLOC|__GFP_NOWARN"
_GFP_GROUPS = (
    ("GFP_TRANSHUGE", _TRANSHUGE + "|__GFP_DIRECT_RECLAIM"),
    ("GFP_TRANSHUGE_LIGHT", _TRANSHUGE),
    ("GFP_HIGHUSER_MOVABLE", _RECLAIM + "|__GFP_IO|__GFP_FS|__GFP_HARDWALL|__GFP_HIGHMEM|__GFP_MOVABLE"),
    ("GFP_HIGHUSER", _RECLAIM + "|__GFP_IO|__GFP_FS|__GFP_HARDWALL|__GFP_HIGHMEM"),
    ("GFP_USER", _RECLAIM + "|__GFP_IO|__GFP_FS|__GFP_HARDWALL"),
    ("GFP_KERNEL_ACCOUNT", _RECLAIM + "|__GFP_IO|__GFP_FS|__GFP_ACCOUNT"),
    ("GFP_KERNEL", _RECLAIM + "|__GFP_IO|__GFP_FS"),
    ("GFP_NOFS", _RECLAIM + "|__GFP_IO"),
    ("GFP_ATOMIC", "__GFP_HIGH|__GFP_KSWAPD_RECLAIM"),
    ("GFP_NOIO", _RECLAIM),
    ("GFP_NOWAIT", "__GFP_KSWAPD_RECLAIM|__GFP_NOWARN"),
    ("GFP_DMA", "GFP_DMA"),
)
