"""The entries of .debug_info: units, abbreviations, attributes.

Implements chapters 2 and 7 of the DWARF standard, versions 2 to 5, with GNU's forms for debug files
that share a common part (dwz, `.gnu_debugaltlink`). Entries are walked in place: an abbreviation knows
how far its attributes reach, so that an entry nobody wants costs two or three additions (pyelftools,
which makes an object of each, takes twenty times as long). Everything else is decoded when asked.

Positions are offsets in .debug_info. Errors are `ElfError`s; see `checked`.
"""

import functools
import struct
from bisect import bisect_right
from typing import NamedTuple

from .image import ElfError

# tags
(ARRAY, CLASS, ENUMERATION, PARAMETER, MEMBER, POINTER, REFERENCE, COMPILE_UNIT, STRUCTURE, SUBROUTINE, TYPEDEF, UNION,
 UNSPECIFIED_PARAMETERS, INHERITANCE, SUBRANGE, BASE, CONST, ENUMERATOR, SUBPROGRAM, VARIABLE, VOLATILE, RESTRICT,
 NAMESPACE, UNSPECIFIED, PARTIAL_UNIT, RVALUE, ATOMIC, SKELETON) = (
    0x01, 0x02, 0x04, 0x05, 0x0d, 0x0f, 0x10, 0x11, 0x13, 0x15, 0x16, 0x17, 0x18, 0x1c, 0x21, 0x24, 0x26, 0x28, 0x2e,
    0x34, 0x35, 0x37, 0x39, 0x3b, 0x3c, 0x42, 0x47, 0x4a)
# attributes
(NAME, BYTE_SIZE, BIT_OFFSET, BIT_SIZE, STMT_LIST, LOW_PC, HIGH_PC, COMP_DIR, CONST_VALUE, UPPER_BOUND, ABSTRACT_ORIGIN,
 COUNT, MEMBER_LOCATION, DECLARATION, ENCODING, EXTERNAL, SPECIFICATION, TYPE, RANGES, DATA_BIT_OFFSET, LINKAGE_NAME,
 STR_OFFSETS_BASE, ADDR_BASE, RNGLISTS_BASE, DWO_NAME, SIGNATURE, PROTOTYPED, GNU_DWO_NAME, GNU_DWO_ID, GNU_RANGES_BASE,
 GNU_ADDR_BASE) = (
    0x03, 0x0b, 0x0c, 0x0d, 0x10, 0x11, 0x12, 0x1b, 0x1c, 0x2f, 0x31, 0x37, 0x38, 0x3c, 0x3e, 0x3f, 0x47, 0x49, 0x55,
    0x6b, 0x6e, 0x72, 0x73, 0x74, 0x76, 0x69, 0x27, 0x2130, 0x2131, 0x2132, 0x2133)

_FIXED = {0x05: 2, 0x06: 4, 0x07: 8, 0x0b: 1, 0x0c: 1, 0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8, 0x19: 0, 0x1c: 4, 0x1e: 16, 0x20: 8,
          0x21: 0, 0x24: 8, 0x25: 1, 0x26: 2, 0x27: 3, 0x28: 4, 0x29: 1, 0x2a: 2, 0x2b: 3, 0x2c: 4}
_OFFSETS = frozenset((0x0e, 0x17, 0x1d, 0x1f, 0x1f20, 0x1f21))
_ULEB, _STRING, _BLOCK1, _BLOCK2, _BLOCK4, _BLOCK, _INDIRECT = -1, -2, -3, -4, -5, -6, -7
_VARIABLE = {0x03: _BLOCK2, 0x04: _BLOCK4, 0x08: _STRING, 0x09: _BLOCK, 0x0a: _BLOCK1, 0x0d: _ULEB, 0x0f: _ULEB, 0x15: _ULEB,
             0x16: _INDIRECT, 0x18: _BLOCK, 0x1a: _ULEB, 0x1b: _ULEB, 0x22: _ULEB, 0x23: _ULEB, 0x1f01: _ULEB, 0x1f02: _ULEB}


def checked(method):
    """A method of an object with a `path`: what a damaged file makes Python raise becomes an ElfError."""
    @functools.wraps(method)
    def call(self, *arguments, **options):
        try:
            return method(self, *arguments, **options)
        except (struct.error, IndexError, KeyError, ValueError, TypeError, OverflowError, RecursionError) as error:
            # TypeError: a block where a number should be, and the like
            raise ElfError(self.path, None, "broken DWARF: %s" % error) from None
    return call


def uleb(data, at):
    """(value, next position) of an unsigned LEB128."""
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    value, shift = byte & 127, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + 1
        shift += 7
        if shift > 126:
            raise ValueError("a LEB128 of more than 18 bytes")


def sleb(data, at):
    value, end = uleb(data, at)
    bits = 7 * (end - at)
    return (value - (1 << bits) if data[end - 1] & 64 else value), end


class Abbreviation(NamedTuple):
    tag: int
    children: bool
    attributes: list    # (attribute, form, implicit constant)
    steps: list         # bytes to skip, or one of the negative kinds above


class Value(NamedTuple):
    """An attribute's value. References are positions in .debug_info; `alt` says that the value is in
    the common file; a reference to a type unit is its 8-byte signature with form 0x20."""

    form: int
    value: object
    alt: bool = False


class Unit:
    """One unit: `start` (of its header), `first` (its first entry), `end`. `skeleton`: of a unit in a .dwo file, the
    one in the program."""

    __slots__ = ("info", "start", "end", "first", "version", "address_size", "offset_size", "abbreviations_at", "kind",
                 "signature", "type_offset", "dwo_id", "skeleton", "_abbreviations", "_bases", "_top")

    def entries(self, start=None, end=None):
        """(position, abbreviation, depth) of every entry from `start` on, in order: a plain walk."""
        data = self.info.data
        at, end, depth = start or self.first, end or self.end, 0
        abbreviations = self.abbreviations()
        while at < end:
            position = at
            code = data[at]
            if code < 128:
                at += 1
            else:
                code, at = uleb(data, at)
            if not code:
                depth -= 1
                if depth <= 0:
                    return
                continue
            abbreviation = abbreviations.get(code) or self._abbreviation(code)
            yield position, abbreviation, depth
            for step in abbreviation.steps:
                at = at + step if step >= 0 else self._skip(step, data, at)
            if abbreviation.children:
                depth += 1
            elif not depth:
                return

    def _skip(self, step, data, at):
        if step == _ULEB:
            while data[at] >= 128:
                at += 1
            return at + 1
        if step == _STRING:
            return data.index(b"\0", at) + 1
        if step == _BLOCK1:
            return at + 1 + data[at]
        if step == _BLOCK2:
            return at + 2 + self.info.number(data, at, 2)
        if step == _BLOCK4:
            return at + 4 + self.info.number(data, at, 4)
        if step == _BLOCK:
            size, at = uleb(data, at)
            return at + size
        form, at = uleb(data, at)
        if form == 0x16:
            raise ValueError("an indirect form of an indirect form")
        step = self._step(form)
        return at + step if step >= 0 else self._skip(step, data, at)

    def _step(self, form):
        if form in _FIXED:
            return _FIXED[form]
        if form in _OFFSETS:
            return self.offset_size
        if form == 0x01:
            return self.address_size
        if form == 0x10:
            return self.address_size if self.version == 2 else self.offset_size
        if form in _VARIABLE:
            return _VARIABLE[form]
        raise ElfError(self.info.path, self.start, "DWARF form 0x%x is not known" % form)

    def abbreviations(self):
        if self._abbreviations is None:
            self._abbreviations = self.info.abbreviations(self)
        return self._abbreviations

    def _abbreviation(self, code):
        raise ElfError(self.info.path, self.start, "a DWARF entry uses abbreviation %d, which is not there" % code)

    def make_abbreviation(self, tag, children, attributes):
        steps = []
        for _, form, _ in attributes:
            step = self._step(form)
            if step >= 0 and steps and steps[-1] >= 0:
                steps[-1] += step
            elif step:
                steps.append(step)
        return Abbreviation(tag, children, attributes, steps)

    # -- attributes ------------------------------------------------------------------------------

    def top(self):
        """(tag, attributes) of the unit's first entry, for which the unit's table of abbreviations is
        read no further than needed."""
        if self._top is None:
            code, _ = uleb(self.info.data, self.first)
            if self._abbreviations is None:
                found = next((a for c, a in self.info.read_abbreviations(self) if c == code), None)
                self._top = self._attributes(self.first, found or self._abbreviation(code))
            else:
                self._top = self.attributes(self.first)
        return self._top

    def attributes(self, position):
        """(tag, {attribute: Value}) of the entry at a position."""
        code, _ = uleb(self.info.data, position)
        return self._attributes(position, self.abbreviations().get(code) or self._abbreviation(code))

    def _attributes(self, position, abbreviation):
        data, found = self.info.data, {}
        _, at = uleb(data, position)
        for attribute, form, constant in abbreviation.attributes:
            if form == 0x21:
                found[attribute] = Value(form, constant)
                continue
            value, at = self._value(data, at, form)
            found[attribute] = value
        return abbreviation.tag, found

    def children(self, position):
        """(position, tag, attributes) of the entries directly inside of one."""
        for child, _, depth in self.entries(position):
            if depth == 1:
                tag, attributes = self.attributes(child)
                yield child, tag, attributes

    def _value(self, data, at, form):
        number = self.info.number
        step = self._step(form)
        if form == 0x19:
            return Value(form, 1), at
        if form == 0x0d:
            value, at = sleb(data, at)
            return Value(form, value), at
        if step == _STRING:
            end = data.index(b"\0", at)
            return Value(form, data[at:end].decode("utf-8", "surrogateescape")), end + 1
        if step in (_BLOCK1, _BLOCK2, _BLOCK4, _BLOCK):
            end = self._skip(step, data, at)
            head = {_BLOCK1: 1, _BLOCK2: 2, _BLOCK4: 4}.get(step)
            start = at + head if head else uleb(data, at)[1]
            return Value(form, data[start:end]), end
        if step == _INDIRECT:
            form, at = uleb(data, at)
            if form in (0x16, 0x21):
                raise ValueError("an indirect form of an indirect form")
            return self._value(data, at, form)
        if step == _ULEB:
            value, at = uleb(data, at)
        else:
            value, at = number(data, at, step), at + step
        if form in (0x11, 0x12, 0x13, 0x14, 0x15):
            value += self.start
        return Value(form, value, form in (0x1c, 0x1d, 0x24, 0x1f20, 0x1f21)), at

    # -- values that stand elsewhere ------------------------------------------------------------------

    def bases(self):
        """(str_offsets, addr, rnglists): where the unit's own parts of those sections begin."""
        if self._bases is None:
            _, found = self.top()
            head = 0 if self.version < 5 else 8 if self.offset_size == 4 else 16
            lists = 0 if self.version < 5 else 12 if self.offset_size == 4 else 20
            self._bases = tuple(next((found[a].value for a in attributes if a in found), default) for attributes, default in (
                ((STR_OFFSETS_BASE,), head), ((ADDR_BASE, GNU_ADDR_BASE), head), ((RNGLISTS_BASE,), lists)))
        return self._bases

    def string(self, value):
        """The text of a string attribute."""
        info, form = self.info, value.form
        if form == 0x08:
            return value.value
        if value.alt:
            return info.alt().text(".debug_str", value.value)
        if form == 0x0e:
            return info.text(".debug_str", value.value)
        if form == 0x1f:
            return info.text(".debug_line_str", value.value)
        if form in (0x1a, 0x25, 0x26, 0x27, 0x28, 0x1f02):
            at = self.bases()[0] + value.value * self.offset_size
            return info.text(".debug_str", info.number(info.section(".debug_str_offsets"), at, self.offset_size))
        raise ElfError(info.path, self.start, "DWARF form 0x%x is no string" % form)

    def address(self, value):
        """The number of an address attribute."""
        if value.form in (0x1b, 0x29, 0x2a, 0x2b, 0x2c, 0x1f01):
            return self.indexed_address(value.value)
        return value.value

    def indexed_address(self, index):
        """An entry of .debug_addr, which is in the program."""
        unit = self.skeleton or self
        at = unit.bases()[1] + index * self.address_size
        return unit.info.number(unit.info.section(".debug_addr"), at, self.address_size)

    def name(self, attributes):
        return self.string(attributes[NAME]) if NAME in attributes else ""


class Info:
    """.debug_info (and .debug_types) of one image, and the sections that it refers to."""

    def __init__(self, image, open_alt=None):
        self.image = image
        self.path = image.path
        self.order = "little" if image.order == "<" else "big"
        self._sections = {}
        self._open_alt = open_alt
        self._alt = None
        # version 4's type units have a section of their own: both are one run of positions here
        self.data = self.section(".debug_info") + self.section(".debug_types")
        self.types_at = len(self.section(".debug_info"))
        self._sections.pop(".debug_info"), self._sections.pop(".debug_types")
        self._tables = {}
        self._budget = 1000000 + 8 * len(self.section(".debug_abbrev"))
        self.units = self._read_units()
        self._starts = [unit.start for unit in self.units]
        self._signatures = None

    def section(self, name):
        """A section's bytes, b"" when it is not there."""
        if name not in self._sections:
            section = self.image.section(name)
            self._sections[name] = bytes(self.image.data(section)) if section is not None else b""
        return self._sections[name]

    def number(self, data, at, size):
        if at < 0 or at + size > len(data):
            raise ElfError(self.path, None, "a DWARF value lies outside its section")
        return int.from_bytes(data[at:at + size], self.order)

    def text(self, section, at):
        data = self.section(section)
        end = data.find(b"\0", at) if 0 <= at < len(data) else -1
        if end < 0:
            raise ElfError(self.path, None, "a DWARF string lies outside of %s" % section)
        return data[at:end].decode("utf-8", "surrogateescape")

    def alt(self):
        """The Info of the common debug file that this one refers to."""
        if self._alt is None:
            self._alt = self._open_alt() if self._open_alt else None
            if self._alt is None:
                raise ElfError(self.path, None, "the common debug file of .gnu_debugaltlink is not there")
        return self._alt

    def _read_units(self):
        units, at, data = [], 0, self.data
        while at + 11 <= len(data):
            unit = Unit()
            unit.info, unit.start, unit.kind = self, at, 1
            unit.signature = unit.type_offset = unit._abbreviations = unit._bases = unit._top = None
            unit.dwo_id = unit.skeleton = None
            size, body, unit.offset_size = self.number(data, at, 4), at + 4, 4
            if size == 0xffffffff:
                size, body, unit.offset_size = self.number(data, at + 4, 8), at + 12, 8
            unit.end = body + size
            if unit.end > len(data) or size < 7:
                raise ElfError(self.path, None, "the DWARF unit at 0x%x lies outside its section" % at)
            unit.version, body = self.number(data, body, 2), body + 2
            if not 2 <= unit.version <= 5:
                raise ElfError(self.path, None, "DWARF version %d at 0x%x is not known" % (unit.version, at))
            if unit.version == 5:
                unit.kind, unit.address_size, body = data[body], data[body + 1], body + 2
                unit.abbreviations_at, body = self.number(data, body, unit.offset_size), body + unit.offset_size
                if unit.kind in (4, 5):     # skeleton, split compile: an id
                    unit.dwo_id, body = self.number(data, body, 8), body + 8
            else:
                unit.abbreviations_at, body = self.number(data, body, unit.offset_size), body + unit.offset_size
                unit.address_size, body = data[body], body + 1
                if at >= self.types_at:
                    unit.kind = 2
            if unit.kind in (2, 6):
                unit.signature, body = self.number(data, body, 8), body + 8
                unit.type_offset, body = self.number(data, body, unit.offset_size), body + unit.offset_size
            if unit.address_size not in (4, 8):
                raise ElfError(self.path, None, "DWARF addresses of %d bytes" % unit.address_size)
            unit.first = body
            units.append(unit)
            at = unit.end
        return units

    def unit_at(self, position):
        """The unit that a position lies in."""
        at = bisect_right(self._starts, position) - 1
        if at < 0 or not self.units[at].first <= position < self.units[at].end:
            raise ElfError(self.path, None, "a DWARF reference to 0x%x leads to no unit" % position)
        return self.units[at]

    def type_unit(self, signature):
        """(unit, position) of the type with that signature."""
        if self._signatures is None:
            self._signatures = {u.signature: u for u in self.units if u.signature is not None}
        unit = self._signatures.get(signature)
        if unit is None:
            raise ElfError(self.path, None, "no DWARF type unit has the signature %016x" % signature)
        return unit, unit.start + unit.type_offset

    def abbreviations(self, unit):
        """The table of abbreviations that a unit uses: {code: Abbreviation}."""
        key = (unit.abbreviations_at, unit.version, unit.address_size, unit.offset_size)
        if key not in self._tables:
            self._tables[key] = dict(self.read_abbreviations(unit))
        return self._tables[key]

    def read_abbreviations(self, unit):
        """(code, Abbreviation) of a unit's table, in its order."""
        data, at = self.section(".debug_abbrev"), unit.abbreviations_at
        while True:
            start = at
            code, at = uleb(data, at)
            if not code:
                return
            tag, at = uleb(data, at)
            children, at = data[at], at + 1
            attributes = []
            while True:
                attribute, at = uleb(data, at)
                form, at = uleb(data, at)
                constant = None
                if form == 0x21:
                    constant, at = sleb(data, at)
                if not attribute and not form:
                    break
                attributes.append((attribute, form, constant))
            # tables that overlap could make a small file cost hours
            self._budget -= at - start
            if self._budget < 0:
                raise ElfError(self.path, None, "the DWARF abbreviations overlap")
            yield code, unit.make_abbreviation(tag, bool(children), attributes)

    def follow(self, unit, value):
        """(info, unit, position) that a reference leads to."""
        if value.form == 0x20:
            found, position = self.type_unit(value.value)
            return found.info, found, position
        info = self.alt() if value.alt else self
        return info, info.unit_at(value.value), value.value
