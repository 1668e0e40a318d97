"""What debug information says about a program: its functions' parameters, its types, its lines.

Turns DWARF (`dwarf_info.py`, `dwarf_line.py`) into the types of `types.py`. A name is searched as
bytes first, so that only the units that can have it are walked; units, functions and types are
decoded when they are asked for.
"""

import os
from bisect import bisect_right

from . import dwarf_info as d
from . import types
from .dwarf_info import Info, checked
from .image import ElfError, Image, SHT_NOBITS

_KINDS = {d.STRUCTURE: "struct", d.CLASS: "struct", d.UNION: "union", d.ENUMERATION: "enum", d.TYPEDEF: "typedef",
          d.BASE: "int"}
_QUALIFIERS = {d.CONST: "const", d.VOLATILE: "volatile", d.RESTRICT: "restrict", d.ATOMIC: "atomic"}
_POINTERS = frozenset((d.POINTER, d.REFERENCE, d.RVALUE))
_CHAIN = frozenset(_QUALIFIERS) | _POINTERS | {d.TYPEDEF, d.ARRAY}
_SCOPES = frozenset((d.NAMESPACE, d.STRUCTURE, d.CLASS, d.UNION))
# DW_ATE_*
_BOOLEAN, _COMPLEX, _FLOAT, _SIGNED, _SIGNED_CHAR, _UNSIGNED_CHAR, _UTF = 2, 3, 4, 5, 6, 8, 16


class Dwarf:
    """The debug information of one image. `image` is the file that has it: the one asked about or its
    separate debug file."""

    def __init__(self, image, root="/", program=None):
        self.image = image
        self._program = program or image
        self._splits = None
        self.path = image.path
        self.root = root
        self.info = self._make_info(image)
        self._types = {}
        self._functions = {}
        self._ranges = {}
        self._lines = {}

    @classmethod
    def open(cls, image, root="/"):
        """The Dwarf of an image, from itself or from its separate debug file under `root`; None when
        neither has any."""
        program = image
        if not _has_info(image):
            from .symbols import debug_file
            image = debug_file(image, root)
            if image is None or not _has_info(image):
                return None
        return cls(image, root, program)

    def full(self, unit):
        """The unit with all of its entries, where those of `unit` are in a .dwo file: see dwarf_split.Splits."""
        return self._all_splits().full(unit)

    @property
    def missing(self):
        """Paths of the .dwo files that were looked for in vain."""
        return self._all_splits().missing

    def _all_splits(self):
        if self._splits is None:
            from .dwarf_split import Splits
            self._splits = Splits(self.image, self._program)
        return self._splits

    def _full_units(self):
        """Every unit with its entries, those of .dwo files too, and in them their type units."""
        infos = {}
        for unit in self.info.units:
            full = self.full(unit)
            infos[id(full.info)] = full.info
        infos.setdefault(id(self.info), self.info)
        package = self._all_splits().package if len(infos) > 1 else None
        return list(infos.values()) + (package.type_infos() if package is not None else [])

    @checked
    def _make_info(self, image):
        return Info(image, self._common_file)

    def _common_file(self):
        """The Info of the file that `.gnu_debugaltlink` names: a path, its end, a build id."""
        section = self.image.section(".gnu_debugaltlink")
        if section is None:
            return None
        data = bytes(self.image.data(section))
        name, _, build_id = data.partition(b"\0")
        path = os.path.join(os.path.dirname(os.path.realpath(self.path)), os.fsdecode(name))
        image = Image.open(path)
        if image.build_id != build_id.hex():
            raise ElfError(path, None, "is not the common debug file that %s means" % self.path)
        return Info(image)

    # -- functions -----------------------------------------------------------------------------------

    def unit_of(self, vaddr):
        """The unit with the code at an address, or None."""
        # .debug_aranges is quick to read, but need not know every unit
        for source in (self._listed_ranges, self._unit_ranges):
            if source not in self._ranges:
                self._ranges[source] = sorted(source())
            ranges = self._ranges[source]
            at = bisect_right(ranges, (vaddr, 1 << 64, 0)) - 1
            if at >= 0 and ranges[at][0] <= vaddr < ranges[at][1]:
                return self.info.units[ranges[at][2]]
        return None

    @checked
    def _listed_ranges(self):
        """[(low, high, number of the unit)] that .debug_aranges has."""
        data, number = self.info.section(".debug_aranges"), self.info.number
        numbers = {unit.start: n for n, unit in enumerate(self.info.units)}
        found, at = [], 0
        while at + 12 <= len(data):
            start, size, body, width = at, number(data, at, 4), at + 4, 4
            if size == 0xffffffff:
                size, body, width = number(data, at + 4, 8), at + 12, 8
            at = body + size
            unit = numbers.get(number(data, body + 2, width))
            address = data[body + 2 + width]
            if address not in (4, 8):
                continue
            head = body + 4 + width - start     # the pairs are aligned to their size
            place = start + -(-head // (2 * address)) * 2 * address
            while unit is not None and place + 2 * address <= min(at, len(data)):
                low, length = number(data, place, address), number(data, place + address, address)
                place += 2 * address
                if length:
                    found.append((low, low + length, unit))
        return found

    @checked
    def _unit_ranges(self):
        found = []
        for number, unit in enumerate(self.info.units):
            if unit.kind in (2, 6):
                continue
            tag, attributes = unit.top()
            if tag in (d.COMPILE_UNIT, d.SKELETON):
                found += [(low, high, number) for low, high in self._ranges_of(unit, attributes) if low < high]
        return found

    def _ranges_of(self, unit, attributes):
        """[(low, high)] of an entry with code."""
        if d.RANGES in attributes:
            return self._range_list(unit, attributes)
        if d.LOW_PC not in attributes or d.HIGH_PC not in attributes:
            return []
        low, high = unit.address(attributes[d.LOW_PC]), attributes[d.HIGH_PC]
        return [(low, unit.address(high) if high.form == 0x01 or high.form in (0x1b, 0x29, 0x2a, 0x2b, 0x2c, 0x1f01)
                 else low + high.value)]

    def _range_list(self, unit, attributes):
        info, owner = unit.info, unit.skeleton or unit
        tops = [u.top()[1] for u in (unit, owner)]
        base = next((u.address(top[d.LOW_PC]) for u, top in zip((unit, owner), tops) if d.LOW_PC in top), 0)
        value, size, number = attributes[d.RANGES], unit.address_size, info.number
        found = []
        if unit.version < 5:
            data, at, last = owner.info.section(".debug_ranges"), value.value, (1 << 8 * size) - 1
            if unit.skeleton is not None and d.GNU_RANGES_BASE in tops[1]:
                at += tops[1][d.GNU_RANGES_BASE].value
            while True:
                low, high = number(data, at, size), number(data, at + size, size)
                at += 2 * size
                if low == high == 0:
                    return found
                if low == last:
                    base = high
                else:
                    found.append((base + low, base + high))
        # gcc 10 leaves the lists of a .dwo file's entries in the program
        lists = unit if info.section(".debug_rnglists") else owner
        data, at = lists.info.section(".debug_rnglists"), value.value
        if value.form == 0x23:
            start = lists.bases()[2]
            at = start + number(data, start + at * unit.offset_size, unit.offset_size)
        indexed = unit.indexed_address
        while True:
            kind, at = data[at], at + 1
            if kind == 0:                       # DW_RLE_end_of_list
                return found
            if kind in (5, 6, 7):               # base_address, start_end, start_length
                low, at = number(data, at, size), at + size
                if kind == 5:
                    base = low
                    continue
                high, at = (number(data, at, size), at + size) if kind == 6 else d.uleb(data, at)
                found.append((low, high if kind == 6 else low + high))
                continue
            first, at = d.uleb(data, at)
            if kind == 1:                       # base_addressx
                base = indexed(first)
                continue
            second, at = d.uleb(data, at)
            if kind == 2:                       # startx_endx
                found.append((indexed(first), indexed(second)))
            elif kind == 3:                     # startx_length
                found.append((indexed(first), indexed(first) + second))
            elif kind == 4:                     # offset_pair
                found.append((base + first, base + second))
            else:
                raise ElfError(self.path, None, "range list entry %d is not known" % kind)

    @checked
    def function(self, vaddr):
        """The `types.Function` whose code starts at a virtual address, None when there is none."""
        skeleton = self.unit_of(vaddr)
        if skeleton is None:
            return None
        unit = self.full(skeleton)
        if skeleton.start not in self._functions:
            self._functions[skeleton.start] = self._function_places(unit)
        position = self._functions[skeleton.start].get(vaddr)
        return self._function(unit, position) if position is not None else None

    def _function_places(self, unit):
        """{first address: position} of the functions of a unit."""
        places = {}
        for position, abbreviation, _ in unit.entries():
            if abbreviation.tag == d.SUBPROGRAM and any(a[0] in (d.LOW_PC, d.RANGES) for a in abbreviation.attributes):
                ranges = self._ranges_of(unit, unit.attributes(position)[1])
                if ranges:
                    places.setdefault(ranges[0][0], position)
        return places

    def _inherited(self, info, unit, attributes):
        """An entry's attributes with those of what it is an instance or a definition of."""
        merged = dict(attributes)
        owners = {attribute: (info, unit) for attribute in attributes}
        origin = (info, unit, attributes)
        places = []
        for _ in range(16):
            info, unit, attributes = origin
            reference = attributes.get(d.ABSTRACT_ORIGIN) or attributes.get(d.SPECIFICATION)
            if reference is None:
                return merged, owners, places
            info, unit, position = info.follow(unit, reference)
            places.append((info, unit, position))
            _, attributes = unit.attributes(position)
            for attribute, value in attributes.items():
                if attribute not in merged:
                    merged[attribute], owners[attribute] = value, (info, unit)
            origin = info, unit, attributes
        raise ElfError(self.path, None, "a chain of DWARF references without end")

    def _function(self, unit, position):
        _, attributes = unit.attributes(position)
        merged, owners, places = self._inherited(unit.info, unit, attributes)
        name = owners[d.NAME][1].string(merged[d.NAME]) if d.NAME in merged else ""
        # the abstract instance has all parameters, a concrete one may have lost some
        candidates = places[:1] if d.ABSTRACT_ORIGIN in attributes else []
        parameters, variadic = [], False
        for owner, its_unit, place in candidates + [(unit.info, unit, position)]:
            parameters, variadic = self._parameters(owner, its_unit, place)
            if parameters:
                break
        returns = self._lazy(owners.get(d.TYPE), merged.get(d.TYPE))
        return types.Function(name, parameters, returns, variadic)

    def _parameters(self, info, unit, position):
        parameters, variadic = [], False
        for _, tag, attributes in unit.children(position):
            if tag == d.UNSPECIFIED_PARAMETERS:
                variadic = True
            elif tag == d.PARAMETER:
                merged, owners, _ = self._inherited(info, unit, attributes)
                name = owners[d.NAME][1].string(merged[d.NAME]) if d.NAME in merged else ""
                parameters.append(types.Parameter(name, self._lazy(owners.get(d.TYPE), merged.get(d.TYPE))()))
        return parameters, variadic

    # -- types ----------------------------------------------------------------------------------------

    @checked
    def find(self, name, kind=None):
        """The type called `name` ("node", or "outer::node" for one in a C++ scope), of one kind
        ("struct", "union", "enum", "typedef", "int") or of any; None when there is none. A definition
        is preferred to a declaration."""
        *scopes, last = name.split("::")
        for unit in self._units_with(last):
            stack = []
            for position, abbreviation, depth in unit.entries():
                del stack[depth:]
                stack.append((position, abbreviation.tag))
                found = _KINDS.get(abbreviation.tag)
                if found is None or (kind is not None and kind != found):
                    continue
                _, attributes = unit.attributes(position)
                if d.NAME not in attributes or d.DECLARATION in attributes or unit.name(attributes) != last:
                    continue
                if scopes and scopes != self._scopes(unit, stack[:-1])[-len(scopes):]:
                    continue
                return self._type(unit.info, unit, position)
        return None

    def _scopes(self, unit, stack):
        return [unit.name(unit.attributes(position)[1]) for position, tag in stack if tag in _SCOPES]

    def _units_with(self, name):
        """The units in which that name can be: it stands in them, or the place of it does."""
        return [unit for info in self._full_units() for unit in self._units_of_info(info, name)]

    def _units_of_info(self, info, name):
        text = name.encode("utf-8", "surrogateescape") + b"\0"
        patterns = [text]
        for section in (".debug_str", ".debug_line_str"):
            data = info.section(section)
            at = data.find(text)
            while at >= 0 and len(patterns) < 1000:
                patterns.append(at.to_bytes(4, info.order))
                at = data.find(text, at + 1)
        if len(patterns) >= 1000 or info.section(".debug_str_offsets") or self.image.section(".gnu_debugaltlink"):
            return info.units       # indirect names cannot be searched for
        found = set()
        for pattern in patterns:
            at = info.data.find(pattern)
            while at >= 0 and len(found) < len(info.units):
                number = bisect_right(info._starts, at) - 1
                found.add(number)
                following = info.units[number].end
                at = info.data.find(pattern, max(following, at + 1))
        return [info.units[number] for number in sorted(found)]

    def _lazy(self, owner, reference):
        """A function that gives the type that an attribute refers to, void without one."""
        if reference is None:
            return lambda: types.VOID
        info, unit = owner
        return lambda: self._referred(info, unit, reference)

    @checked
    def _referred(self, info, unit, reference):
        return self._type(*info.follow(unit, reference))

    def _type(self, info, unit, position):
        key = (id(info), position)
        if key not in self._types:
            tag, attributes = unit.attributes(position)
            if tag in _CHAIN:
                self._check_chain(info, unit, position)
            self._types[key] = self._decode(info, unit, position, tag, attributes)
        return self._types[key]

    def _check_chain(self, info, unit, position):
        """Pointers, typedefs, qualifiers and arrays must lead to something else in the end."""
        for _ in range(64):
            tag, attributes = unit.attributes(position)
            if tag not in _CHAIN or d.TYPE not in attributes:
                return
            info, unit, position = info.follow(unit, attributes[d.TYPE])
        raise ElfError(self.path, None, "a chain of DWARF types without end")

    def _decode(self, info, unit, position, tag, attributes):
        target = self._lazy((info, unit), attributes.get(d.TYPE))
        name = unit.name(attributes)
        size = attributes[d.BYTE_SIZE].value if d.BYTE_SIZE in attributes else 0
        size = size if isinstance(size, int) else 0
        if tag == d.BASE:
            return _base(name, size, attributes)
        if tag in _POINTERS:
            return types.Pointer(target, size or unit.address_size)
        if tag in _QUALIFIERS:
            return types.Qualified(_QUALIFIERS[tag], target)
        if tag == d.TYPEDEF:
            return types.Typedef(name, target)
        if tag in (d.STRUCTURE, d.CLASS, d.UNION):
            kind = "union" if tag == d.UNION else "struct"
            if d.SIGNATURE in attributes:
                return self._referred(info, unit, attributes[d.SIGNATURE])
            if d.DECLARATION in attributes:
                return self._complete(name, kind) or types.Struct(kind, name, 0, (), True)
            return types.Struct(kind, name, size, lambda: self._fields(info, unit, position))
        if tag == d.ENUMERATION:
            return self._enum(info, unit, position, name, size, attributes)
        if tag == d.ARRAY:
            return self._array(unit, position, target)
        if tag in (d.SUBROUTINE, d.SUBPROGRAM):
            parameters = lambda: self._prototype(info, unit, position)
            variadic = any(t == d.UNSPECIFIED_PARAMETERS for _, t, _ in unit.children(position))
            return types.Function("", parameters, target, variadic)
        if tag == d.UNSPECIFIED or tag == d.NAMESPACE:
            return types.VOID
        raise ElfError(self.path, None, "DWARF entry 0x%x (tag 0x%x) is no type" % (position, tag))

    @checked
    def _prototype(self, info, unit, position):
        return self._parameters(info, unit, position)[0]

    def _complete(self, name, kind):
        """The definition of a declared type, when it has one."""
        return self.find(name, kind) if name else None

    def _array(self, unit, position, element):
        counts = []
        for _, tag, attributes in unit.children(position):
            if tag == d.SUBRANGE:
                count = attributes.get(d.COUNT)
                upper = attributes.get(d.UPPER_BOUND)
                if count is not None and isinstance(count.value, int) and count.form not in (0x11, 0x12, 0x13, 0x14, 0x15):
                    counts.append(max(count.value, 0))
                elif upper is not None and isinstance(upper.value, int) and upper.form not in (0x11, 0x12, 0x13, 0x14, 0x15):
                    # an array of no elements has the bound -1, in as many bytes as it takes
                    last = (1 << 8 * d._FIXED.get(upper.form, 8)) - 1
                    counts.append(0 if upper.value == last else max(upper.value + 1, 0))
                else:
                    counts.append(0)        # `[]`, or a length known only at run time
        result = types.Array(element, counts[-1] if counts else 0)
        for count in counts[-2::-1]:
            result = types.Array(result, count)
        return result

    @checked
    def _enum(self, info, unit, position, name, size, attributes):
        signed = False
        if d.ENCODING in attributes:
            signed = attributes[d.ENCODING].value in (_SIGNED, _SIGNED_CHAR)
        values = {}
        for _, tag, found in unit.children(position):
            if tag == d.ENUMERATOR and d.CONST_VALUE in found and isinstance(found[d.CONST_VALUE].value, int):
                values[unit.name(found)] = found[d.CONST_VALUE].value
        if d.TYPE in attributes:
            base = types.strip(self._referred(info, unit, attributes[d.TYPE]))
            size, signed = size or base.size, getattr(base, "signed", False)
        signed = signed or any(value < 0 for value in values.values())
        if signed and size:
            half = 1 << 8 * size - 1
            values = {n: v - 2 * half if v >= half else v for n, v in values.items()}
        return types.Enum(name, size, signed, values)

    @checked
    def _fields(self, info, unit, position):
        fields = []
        for _, tag, attributes in unit.children(position):
            if tag not in (d.MEMBER, d.INHERITANCE):
                continue
            if tag == d.MEMBER and (d.EXTERNAL in attributes or d.DECLARATION in attributes):
                continue        # a static member
            name = unit.name(attributes) if tag == d.MEMBER else ""
            field_type = self._lazy((info, unit), attributes.get(d.TYPE))()
            offset = _member_offset(attributes)
            if offset is None:
                continue        # a virtual base class: its place is known at run time only
            if d.BIT_SIZE not in attributes:
                fields.append(types.Field(name, field_type, offset))
                continue
            size = attributes[d.BIT_SIZE].value
            unit_size = attributes[d.BYTE_SIZE].value if d.BYTE_SIZE in attributes else field_type.size
            if d.DATA_BIT_OFFSET in attributes:
                first = attributes[d.DATA_BIT_OFFSET].value
            else:               # version 2 and 3 count from the most significant bit of the storage
                skipped = attributes[d.BIT_OFFSET].value if d.BIT_OFFSET in attributes else 0
                first = offset * 8 + (unit_size * 8 - skipped - size if info.order == "little" else skipped)
            bits = 8 * unit_size or 8
            start = first // bits * bits if first % bits + size <= bits else first // 8 * 8
            fields.append(types.Field(name, field_type, start // 8, first - start, size))
        return fields

    # -- lines ------------------------------------------------------------------------------------------

    def _line_table(self, unit):
        from .dwarf_line import LineTable
        if unit.start not in self._lines:
            _, attributes = unit.top()
            if d.STMT_LIST not in attributes:
                self._lines[unit.start] = None
            else:
                folder = unit.string(attributes[d.COMP_DIR]) if d.COMP_DIR in attributes else ""
                self._lines[unit.start] = LineTable(self.info, attributes[d.STMT_LIST].value, unit.address_size,
                                                    folder, unit.name(attributes))
        return self._lines[unit.start]

    @checked
    def line(self, vaddr):
        """(file, line) of the code at a virtual address, None when it is not known."""
        unit = self.unit_of(vaddr)
        table = self._line_table(unit) if unit is not None else None
        return table.line(vaddr) if table is not None else None

    @checked
    def addresses(self, file, line, column=None):
        """(line, [addresses]): where the code of a source line begins, once for each copy of it, and
        which line that is: the next one with code when the line itself has none. With a `column`, where the
        statements begin that begin there. `file` is a path or the end of one. None when no unit was made from that
        file or nothing follows the line."""
        best = None
        for table in self._line_tables():
            found = table.addresses(file, line, column)
            if found and (best is None or found[0] < best[0]):
                best = found[0], list(found[1])
            elif found and found[0] == best[0]:
                best[1].extend(found[1])
        return (best[0], sorted(set(best[1]))) if best else None

    @checked
    def columns(self, file, line):
        """The columns at which statements of a line begin."""
        return sorted({column for table in self._line_tables() for column in table.columns(file, line)})

    def _line_tables(self):
        """The line table of every unit that has one."""
        for unit in self.info.units:
            if unit.kind not in (2, 6) and unit.top()[0] in (d.COMPILE_UNIT, d.SKELETON):
                table = self._line_table(unit)
                if table is not None:
                    yield table

    @checked
    def files(self):
        """The source files that code comes from, each once."""
        found = {}
        for table in self._line_tables():
            found.update(dict.fromkeys(table.files))
        return list(found)


def _has_info(image):
    section = image.section(".debug_info")
    return section is not None and section.type != SHT_NOBITS and section.size > 0


def _base(name, size, attributes):
    encoding = attributes[d.ENCODING].value if d.ENCODING in attributes else 0
    if encoding in (_COMPLEX, _FLOAT):
        return types.Float(name, size)
    kind = {_BOOLEAN: "bool", _SIGNED_CHAR: "char", _UNSIGNED_CHAR: "char", _UTF: "char"}.get(encoding, "")
    return types.Int(name, size, encoding in (_SIGNED, _SIGNED_CHAR), kind)


def _member_offset(attributes):
    """Offset of a member: a number, or in version 2 an expression that adds one; 0 without any."""
    if d.MEMBER_LOCATION not in attributes:
        return 0
    value = attributes[d.MEMBER_LOCATION].value
    if isinstance(value, int):
        return value
    if value[:1] == b"\x23":        # DW_OP_plus_uconst
        return d.uleb(value, 1)[0]
    return None
