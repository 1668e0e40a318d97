"""Split DWARF: debug information that the compiler left in .dwo files, or that was packed into a .dwp file.

Implements DWARF 5, chapters 3.1.2 and 7.3.5 (skeleton units, package files), and GNU's form of both for version 4
(-gsplit-dwarf, "DebugFission"). The program keeps a skeleton of each unit, with its addresses and lines; names and types
are in the file that the skeleton names.
"""

import os

from . import dwarf_info as d
from .dwarf_info import Info, checked
from .image import ElfError, Image

_SECTIONS_5 = {1: ".debug_info", 3: ".debug_abbrev", 4: ".debug_line", 6: ".debug_str_offsets", 8: ".debug_rnglists"}
_SECTIONS_2 = {1: ".debug_info", 2: ".debug_types", 3: ".debug_abbrev", 4: ".debug_line", 6: ".debug_str_offsets"}
_MOST = 1 << 20     # units in a package


class SplitInfo(Info):
    """The Info of a .dwo file, or of one unit's parts in a package (`parts`: section -> (offset, size))."""

    def __init__(self, image, parts=None, package=None):
        self._parts, self._package = parts, package
        super().__init__(image)

    def section(self, name):
        if name not in self._sections:
            data = _whole(self.image, name) if self._package is None else self._package.section(name)
            if self._parts is not None and name != ".debug_str":
                offset, size = self._parts.get(name, (0, 0))
                if offset + size > len(data):
                    raise ElfError(self.path, None, "a unit's part of %s.dwo lies outside of it" % name)
                data = data[offset:offset + size]
            self._sections[name] = data
        return self._sections[name]

    def type_unit(self, signature):
        try:
            return super().type_unit(signature)
        except ElfError:
            info = self._package.types(signature) if self._package is not None else None
            if info is None:
                raise
            return Info.type_unit(info, signature)


def _whole(image, name):
    """All sections of a name: a .dwo file is not linked, and has a section of its own for each type."""
    return b"".join(bytes(image.data(s)) for s in image.sections if s.name == name + ".dwo")


class Package:
    """A .dwp file, an Image of it."""

    def __init__(self, image):
        self.path = image.path
        self.image = image
        self._units = self._read(".debug_cu_index")
        self._types = self._read(".debug_tu_index")
        self._infos = {}
        self._sections = {}

    @classmethod
    def open(cls, path):
        return cls(Image.open(path))

    def section(self, name):
        if name not in self._sections:
            self._sections[name] = _whole(self.image, name)
        return self._sections[name]

    def type_infos(self):
        """The SplitInfo of every type unit."""
        return [self.types(signature) for signature in self._types]

    def unit(self, dwo_id):
        """The SplitInfo of a unit, or None."""
        return self._info(self._units, dwo_id)

    def types(self, signature):
        return self._info(self._types, signature)

    def _info(self, index, key):
        if key not in index:
            return None
        if key not in self._infos:
            self._infos[key] = SplitInfo(self.image, index[key], self)
        return self._infos[key]

    @checked
    def _read(self, name):
        """{id: {section: (offset, size)}} of an index section."""
        section = self.image.section(name)
        if section is None:
            return {}
        data, order = bytes(self.image.data(section)), "little" if self.image.order == "<" else "big"

        def word(at, size=4):
            if at + size > len(data):
                raise ElfError(self.path, section.offset, "%s is cut short" % name)
            return int.from_bytes(data[at:at + size], order)
        version = word(0, 2)
        if version not in (2, 5):
            raise ElfError(self.path, section.offset, "version %d of %s is not known" % (version, name))
        names = _SECTIONS_5 if version == 5 else _SECTIONS_2
        columns, units, slots = word(4), word(8), word(12)
        if units > _MOST or slots > 4 * _MOST or columns > 16:
            raise ElfError(self.path, section.offset, "%s makes no sense" % name)
        rows = 16 + 12 * slots
        kinds = [names.get(word(rows + 4 * n)) for n in range(columns)]
        offsets, sizes = rows + 4 * columns, rows + 4 * columns * (units + 1)
        found = {}
        for slot in range(slots):
            row = word(16 + 8 * slots + 4 * slot)
            if 0 < row <= units:
                at = 4 * columns * (row - 1)
                found[word(16 + 8 * slot, 8)] = {kind: (word(offsets + at + 4 * n), word(sizes + at + 4 * n))
                                                 for n, kind in enumerate(kinds) if kind}
        return found


class Splits:
    """Finds the full unit of each skeleton. `image`: the one with the skeletons; `program`: the one asked about. What
    was not there is in `missing` (paths)."""

    def __init__(self, image, program):
        self.image, self.program = image, program
        self.missing = []
        self._package = False
        self._full = {}

    def full(self, unit):
        """The unit with everything in it: the unit itself when it is no skeleton, or when the other one is not
        there."""
        if unit.start not in self._full:
            self._full[unit.start] = self._find(unit)
        return self._full[unit.start]

    def _find(self, unit):
        tag, attributes = unit.top()
        named = attributes.get(d.DWO_NAME) or attributes.get(d.GNU_DWO_NAME)
        if named is None or tag not in (d.COMPILE_UNIT, d.SKELETON):
            return unit
        dwo_id = attributes[d.GNU_DWO_ID].value if d.GNU_DWO_ID in attributes else unit.dwo_id
        name = unit.string(named)
        folder = unit.string(attributes[d.COMP_DIR]) if d.COMP_DIR in attributes else ""
        for info in self._infos(dwo_id, name, folder):
            for other in info.units:
                if other.kind in (2, 6):
                    continue
                found = other.top()[1]
                its_id = found[d.GNU_DWO_ID].value if d.GNU_DWO_ID in found else other.dwo_id
                if its_id == dwo_id:
                    for each in info.units:
                        each.skeleton = unit
                    return other
        self.missing.append(os.path.join(folder, name))
        return unit

    @property
    def package(self):
        """The .dwp file beside the program, or None."""
        if self._package is False:
            self._package = self._open_package()
        return self._package

    def _infos(self, dwo_id, name, folder):
        """Infos that may have the unit."""
        if self.package is not None:
            info = self.package.unit(dwo_id)
            if info is not None:
                yield info
        homes = {os.path.dirname(os.path.abspath(each.path)): None for each in (self.image, self.program)}
        places = [os.path.join(folder, name)] + [os.path.join(home, part) for home in homes
                                                 for part in (name, os.path.basename(name))]
        for path in dict.fromkeys(places):
            if os.path.isfile(path):
                try:
                    yield SplitInfo(Image.open(path))
                except ElfError:
                    continue

    def _open_package(self):
        path = self._find_package()
        try:
            return Package.open(path) if path is not None else None
        except ElfError:
            return None

    def _find_package(self):
        paths = [path + ".dwp" for image in (self.program, self.image) for path in (image.path, os.path.realpath(image.path))]
        return next((path for path in paths if os.path.isfile(path)), None)
