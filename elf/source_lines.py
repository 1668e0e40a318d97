"""Which source lines an instruction comes from: its own, and those of the calls that were inlined there.

Reads DWARF's line tables and DW_TAG_inlined_subroutine entries (DWARF 5, chapters 3.3.8 and 6.2) through
`dwarf.py`. A unit's functions are found once, when the first address in it is asked about.
"""

from bisect import bisect_right
from typing import NamedTuple

from . import dwarf_info as d
from .dwarf import Dwarf
from .image import ElfError

INLINED, CALL_FILE, CALL_LINE = 0x1d, 0x58, 0x59
DEEPEST = 256       # calls inlined into each other


class Place(NamedTuple):
    """One function that an address belongs to: its name ("" when the debug information has none; a mangled one
    where there is), and the source file (None: not known) and line of it that runs."""

    name: str
    file: object
    line: int


class SourceLines:
    """The lines of one image; without any where neither the image nor its debug file has some."""

    def __init__(self, image, root="/"):
        self.image, self.root = image, root
        self._dwarf = False
        self._units = {}
        self._known = {}

    @property
    def dwarf(self):
        """The elf.dwarf.Dwarf, or None."""
        if self._dwarf is False:
            self._dwarf = None
            try:
                self._dwarf = Dwarf.open(self.image, self.root)
            except ElfError:
                pass        # names are worth more than an error about the lines of a stack
        return self._dwarf

    def at(self, vaddr):
        """[Place], the innermost inlined call first and the function that was compiled last; [] when nothing is
        known."""
        if vaddr not in self._known:
            if len(self._known) > 50000:
                self._known.clear()
            try:
                self._known[vaddr] = self._at(vaddr) if self.dwarf is not None else []
            except ElfError:
                self._known[vaddr] = []
        return self._known[vaddr]

    @d.checked
    def _at(self, vaddr):
        dwarf = self.dwarf
        unit = dwarf.unit_of(vaddr)
        if unit is None:
            return []
        table = dwarf._line_table(unit)
        file, line = (table.line(vaddr) if table is not None else None) or (None, 0)
        if unit.start not in self._units:
            self._units[unit.start] = None      # a unit that cannot be read is tried once
            self._units[unit.start] = _Functions(dwarf, dwarf.full(unit))
        functions = self._units[unit.start]
        if functions is None:
            return []
        places = []
        for position in functions.calls(vaddr):
            places.append(Place(functions.name(position), file, line))
            number, line = functions.call_place(position)
            file = table.files[number] if table is not None and 0 <= number < len(table.files) else None
        position = functions.function(vaddr)
        places.append(Place(functions.name(position) if position is not None else "", file, line))
        return places

    @property
    def path(self):
        return self.image.path


class _Functions:
    """The code of one unit: its functions, and in each the calls that were inlined."""

    def __init__(self, dwarf, unit):
        self.dwarf, self.unit = dwarf, unit
        self._names, self._places = {}, {}
        functions = []          # (low, high, position)
        self._inlined = {}      # position of a function -> [(depth, low, high, position)]
        open_functions = []     # (depth, position): one may be written inside of another
        for position, abbreviation, depth in unit.entries():
            tag = abbreviation.tag
            if tag not in (d.SUBPROGRAM, INLINED):
                continue
            while open_functions and depth <= open_functions[-1][0]:
                open_functions.pop()
            if not any(a[0] in (d.LOW_PC, d.RANGES) for a in abbreviation.attributes):
                continue
            ranges = [r for r in dwarf._ranges_of(unit, unit.attributes(position)[1]) if r[0] < r[1]]
            if tag == d.SUBPROGRAM:
                functions += [(low, high, position) for low, high in ranges]
                open_functions.append((depth, position))
            elif open_functions:
                self._inlined.setdefault(open_functions[-1][1], []).extend(
                    (depth, low, high, position) for low, high in ranges)
        self._functions = sorted(functions)

    def function(self, vaddr):
        """Position of the function with the code at an address, or None."""
        at = bisect_right(self._functions, (vaddr, 1 << 64, 0)) - 1
        if at >= 0 and vaddr < self._functions[at][1]:
            return self._functions[at][2]
        return None

    def calls(self, vaddr):
        """Positions of the calls that were inlined around an address, innermost first."""
        inlined = self._inlined.get(self.function(vaddr), ())
        found = sorted({(depth, position) for depth, low, high, position in inlined if low <= vaddr < high}, reverse=True)
        return [position for _, position in found[:DEEPEST]]

    def call_place(self, position):
        """(number of the file or -1, line or 0) of the call that was inlined at a position."""
        if position not in self._places:
            attributes = self.unit.attributes(position)[1]
            self._places[position] = (attributes[CALL_FILE].value if CALL_FILE in attributes else -1,
                                      attributes[CALL_LINE].value if CALL_LINE in attributes else 0)
        return self._places[position]

    def name(self, position):
        if position not in self._names:
            self._names[position] = self._name(position)
        return self._names[position]

    def _name(self, position):
        dwarf, unit = self.dwarf, self.unit
        merged, owners, _ = dwarf._inherited(unit.info, unit, unit.attributes(position)[1])
        for attribute in (d.LINKAGE_NAME, d.NAME):
            if attribute in merged:
                return owners[attribute][1].string(merged[attribute])
        return ""
