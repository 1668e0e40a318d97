"""Symbols of an ELF file: names to addresses and back.

Reads `.symtab`, `.dynsym` with its GNU versions (`.gnu.version*`, LSB "Symbol Versioning"), the
xz-compressed table that some distributions put into `.gnu_debugdata`, and the `.symtab` of a
separate debug file (`.gnu_debuglink`, build id; see "Separate Debug Files" in the GDB manual).
Tables are read as columns of the mapped bytes and a name is decoded only when it is asked for: a
table of 500,000 symbols is listed in about a second and searched in a few hundredths.
"""

import os
import struct
from array import array
from itertools import compress
from operator import mul
from typing import NamedTuple

from .image import (ElfError, Image, SHF_ALLOC, SHF_EXECINSTR, SHN_UNDEF, SHT_DYNSYM, SHT_NOBITS,
                    SHT_SYMTAB)

TYPES = {0: "NOTYPE", 1: "OBJECT", 2: "FUNC", 3: "SECTION", 4: "FILE", 5: "COMMON", 6: "TLS", 10: "IFUNC"}
BINDS = {0: "LOCAL", 1: "GLOBAL", 2: "WEAK", 10: "UNIQUE"}
_RANK = {"GLOBAL": 0, "UNIQUE": 0, "WEAK": 1, "LOCAL": 2}
FUNCTIONS = frozenset((2, 10))
NAMED = frozenset((0, 1, 2, 5, 6, 10))

UNPACK_LIMIT = 128 << 20        # bytes that .gnu_debugdata may unpack to, and how many times its own size
UNPACK_RATIO = 64               # (symbol tables: 3 to 10 times)
DEBUG_FOLDER = "/usr/lib/debug"
#: Further folders that are searched first (`rawbpf trace --debuginfo`), also for NAME.debug; relative ones from the
#: program's own folder on, and then from the working directory.
DEBUG_FOLDERS = []


_STEPS = 64                     # symbols before an address that are looked at for one that it is inside of
_LARGE, _FEW, _NEAR = 20000, 4, 1 << 20     # a table of so many symbols is not sorted for so few addresses, see `_near`


class Symbol(NamedTuple):
    """`value` is a virtual address (in a relocatable file an offset in `section`); `section` is the
    index of its section; `version` is the GNU version without its @, `default` is False for one
    that can only be had by naming the version (`memcpy@GLIBC_2.2.5`)."""

    name: str
    value: int
    size: int
    type: str
    bind: str
    section: int
    version: str = ""
    default: bool = True

    @property
    def is_function(self):
        return self.type == "FUNC" or self.type == "IFUNC"


class SymbolTable:
    """One table of one file. `dynamic` says which of the two kinds it is."""

    def __init__(self, image, section):
        self.image = image
        self.dynamic = section.type == SHT_DYNSYM
        path = image.path
        self.form = image.order + ("IBBHQQ" if image.bits == 64 else "IIIBBH")
        self.entsize = struct.calcsize(self.form)
        if section.entsize not in (0, self.entsize):
            raise ElfError(path, section.offset, "symbols of %d bytes in %s, not %d"
                           % (section.entsize, section.name, self.entsize))
        self.count = section.size // self.entsize
        self.view = image.view(section.offset, self.count * self.entsize, "section %s" % section.name)
        if not 0 < section.link < len(image.sections):
            raise ElfError(path, section.offset, "%s names no string table" % section.name)
        strings = image.sections[section.link]
        if strings.type == SHT_NOBITS:
            raise ElfError(path, section.offset, "the string table of %s is not in the file" % section.name)
        image.view(strings.offset, strings.size, "the string table of %s" % section.name)
        self.strings = strings.offset
        self.strings_end = strings.offset + strings.size
        self._versions = None
        self._orders = {}
        self._asked = 0

    # -- columns: one attribute of every symbol ----------------------------------------------------

    def _column(self, which):
        """All values of one attribute: "name", "info", "section", "value" or "size"."""
        at64 = {"name": ("I", 0), "info": ("B", 4), "section": ("H", 6), "value": ("Q", 8), "size": ("Q", 16)}
        at32 = {"name": ("I", 0), "value": ("I", 4), "size": ("I", 8), "info": ("B", 12), "section": ("H", 14)}
        code, offset = (at64 if self.image.bits == 64 else at32)[which]
        width = struct.calcsize("=" + code)
        column = self.view.cast(code)[offset // width::self.entsize // width]
        if code == "B":
            return column.tobytes()
        values = array(code, column.tobytes())
        if (self.image.order == "<") != (struct.pack("=H", 1) == b"\1\0"):
            values.byteswap()
        return values

    def _are(self, types):
        """For every symbol: not 0 if it is defined and has one of these types."""
        mask = bytes(i & 15 in types for i in range(256))
        # a section of 0 (SHN_UNDEF) makes the product 0
        return map(mul, self._column("info").translate(mask), self._column("section"))

    def indexes_of(self, types):
        """Indexes of the defined symbols with these types."""
        return compress(range(self.count), self._are(types))

    # -- single symbols ----------------------------------------------------------------------------

    def name(self, offset):
        start = self.strings + offset
        end = self.image.buffer.find(b"\0", start, self.strings_end) if start < self.strings_end else -1
        if end < 0:
            raise ElfError(self.image.path, start, "a symbol's name lies outside its string table")
        return self.image.buffer[start:end].decode("utf-8", "surrogateescape")

    def symbol(self, index):
        row = struct.unpack_from(self.form, self.view, index * self.entsize)
        if self.image.bits == 64:
            name, info, _, section, value, size = row
        else:
            name, value, size, info, _, section = row
        return self._make(self.name(name), value, size, info, section, index)

    def _make(self, name, value, size, info, section, index):
        version, default = "", True
        if self.dynamic:
            version, default = self.version(index)
        elif "@" in name:       # the static linker writes versions into the name
            name, _, version = name.partition("@")
            default = version.startswith("@")
            version = version.lstrip("@")
        return Symbol(name, value, size, TYPES.get(info & 15, "type %d" % (info & 15)),
                      BINDS.get(info >> 4, "bind %d" % (info >> 4)), section, version, default)

    def each(self, types, known=()):
        """Every defined, named symbol of these types, in the table's order, less those whose
        (value, name) is `known`."""
        strings = bytes(self.image.buffer[self.strings:self.strings_end])
        versions = self.dynamic or b"@" in strings
        decode = None
        if strings.isascii():       # then slices of one text need no decoding
            strings, zero = strings.decode("ascii"), "\0"
        else:
            zero = b"\0"
            decode = bytes.decode
        find, new, make = strings.find, tuple.__new__, self._make
        type_names = {i: TYPES.get(i & 15) for i in range(256) if i & 15 in types}
        binds = [BINDS.get(i >> 4, "bind %d" % (i >> 4)) for i in range(256)]
        index = -1
        for name, info, section, value, size in self._rows():
            index += 1
            if not section or not name or info not in type_names:
                continue
            end = find(zero, name)
            if end < 0:
                raise ElfError(self.image.path, self.strings + name, "a symbol's name lies outside its string table")
            text = strings[name:end]
            if decode:
                text = decode(text, "utf-8", "surrogateescape")
            if versions and (self.dynamic or "@" in text):
                if text.endswith("@plt"):
                    continue
                symbol = make(text, value, size, info, section, index)
            else:
                symbol = new(Symbol, (text, value, size, type_names[info], binds[info], section, "", True))
            if known and (value, symbol[0]) in known:
                continue
            yield symbol

    def names(self, types):
        """The names of these symbols, without versions, as the keys of a dict: much quicker than `each`."""
        strings = bytes(self.image.buffer[self.strings:self.strings_end])
        if self.dynamic or b"@" in strings or not strings.isascii() or strings[-1:] != b"\0":
            return dict.fromkeys(symbol.name for symbol in self.each(types))
        text = strings.decode("ascii")
        find = text.find
        found = {text[at:find("\0", at)]: None for at in compress(self._column("name"), self._are(types)) if at}
        if "" in found:         # of those that begin at the end or behind it, each says so
            return dict.fromkeys(symbol.name for symbol in self.each(types))
        return found

    def _rows(self):
        """(name, info, section, value, size) of every symbol."""
        rows = struct.iter_unpack(self.form, self.view)
        if self.image.bits == 64:
            return ((name, info, section, value, size) for name, info, _, section, value, size in rows)
        return ((name, info, section, value, size) for name, value, size, info, _, section in rows)

    def find(self, name):
        """All defined symbols called `name`, without regard to their versions."""
        wanted = name.encode("utf-8", "surrogateescape")
        if not wanted:
            return []
        offsets = self._name_offsets(wanted)
        if offsets is not None and not offsets:
            return []
        names = self._column("name")
        if offsets is None:
            ends = (wanted + b"\0", wanted + b"@")
            strings = bytes(self.image.buffer[self.strings:self.strings_end])
            found = [i for i, offset in enumerate(names) if strings.startswith(ends, offset)]
        else:
            found = [i for i, offset in enumerate(names) if offset in offsets]
        symbols = []
        info, sections = self._column("info"), self._column("section")
        for index in found:
            if sections[index] != SHN_UNDEF and info[index] & 15 in NAMED:
                symbol = self.symbol(index)
                if symbol.name == name:
                    symbols.append(symbol)
        return symbols

    def _name_offsets(self, name):
        """Where in the string table `name` ends at a NUL, or, in a static table, at an @ version:
        linkers store a name that another one ends with only once. None when there are too many."""
        find = self.image.buffer.find
        offsets = set()
        for text in (name + b"\0",) if self.dynamic else (name + b"\0", name + b"@"):
            at = find(text, self.strings, self.strings_end)
            while at >= 0:
                offsets.add(at - self.strings)
                if len(offsets) > 5000:
                    return None
                at = find(text, at + 1, self.strings_end)
        return offsets

    # -- addresses -----------------------------------------------------------------------------------

    def by_address(self, types):
        """(values, order): the table's addresses, and the indexes of the symbols of these types
        sorted by them."""
        if types not in self._orders:
            values = self._column("value")
            self._orders[types] = values, array("I", sorted(self.indexes_of(types), key=values.__getitem__))
        return self._orders[types]

    def _near(self, vaddr, types):
        """As `by_address`, of the symbols that start in the mebibyte before the address: to find a first few in a
        table of half a million takes a tenth of the time that sorting it takes."""
        values, info, section = self._column("value"), self._column("info"), self._column("section")
        last = vaddr - _NEAR
        return values, sorted([index for index, value in enumerate(values) if last < value <= vaddr
                               and info[index] & 15 in types and section[index]], key=values.__getitem__)

    def covering(self, vaddr, types):
        """The best symbol that `vaddr` is inside of, or None: the nearest start wins, a symbol
        without a size reaches to the next one, of aliases the most global."""
        self._asked += 1
        if types not in self._orders and self._asked <= _FEW and self.count > _LARGE:
            values, order = self._near(vaddr, types)
            found = self._best(vaddr, values, order)
            if found is not None and vaddr < found.value + found.size or len(order) > _STEPS:
                return found
        return self._best(vaddr, *self.by_address(types))

    def _best(self, vaddr, values, order):
        low, high = 0, len(order)
        while low < high:       # bisect_right, through the order
            middle = (low + high) // 2
            if vaddr < values[order[middle]]:
                high = middle
            else:
                low = middle + 1
        best = open_ended = None
        nearest = values[order[low - 1]] if low else None
        for step in range(low - 1, max(low - 1 - _STEPS, -1), -1):
            if best is not None and values[order[step]] != best.value:
                break
            symbol = self.symbol(order[step])
            if not symbol.name or symbol.name[0] == "$":      # aarch64 marks code and data with $x and $d
                continue
            if vaddr < symbol.value + symbol.size:
                if best is None or _better(symbol, best):
                    best = symbol
            elif symbol.size == 0 and symbol.value == nearest:
                if open_ended is None or _better(symbol, open_ended):
                    open_ended = symbol
        return best or open_ended

    # -- versions ------------------------------------------------------------------------------------

    def version(self, index):
        """(version, is it the default) of a dynamic symbol."""
        if self._versions is None:
            self._versions = _Versions(self.image)
        return self._versions.of(index)


def _better(one, other):
    return (_RANK.get(one.bind, 3), one.name.count("_"), len(one.name), one.name) < \
        (_RANK.get(other.bind, 3), other.name.count("_"), len(other.name), other.name)


class _Versions:
    """`.gnu.version` (an index for each dynamic symbol) and the names in `.gnu.version_d`."""

    def __init__(self, image):
        self.image = image
        section = image.section(".gnu.version")
        self.table = image.data(section) if section else b""
        self.names = self._definitions() if section else {}

    def _definitions(self):
        names = {}
        image, section = self.image, self.image.section(".gnu.version_d")
        if section is None or not 0 < section.link < len(image.sections):
            return names
        strings = image.sections[section.link]
        at = section.offset
        # each entry must lie after the one before it, so a loop in the file ends
        while section.offset <= at and at + 20 <= section.offset + section.size:
            _, flags, number, _, _, aux, following = image.unpack(image.order + "HHHHIII", at, "a version definition")
            name, = image.unpack(image.order + "I", at + aux, "a version name")
            start = strings.offset + name
            end = image.buffer.find(b"\0", start, strings.offset + strings.size)
            if end < 0:
                raise ElfError(image.path, start, "a version's name lies outside its string table")
            if not flags & 1:       # VER_FLG_BASE names the file itself
                names[number & 0x7fff] = image.buffer[start:end].decode("utf-8", "surrogateescape")
            if following <= 0:
                break
            at += following
        return names

    def of(self, index):
        if index * 2 + 2 > len(self.table):
            return "", True
        number, = struct.unpack_from(self.image.order + "H", self.table, index * 2)
        return self.names.get(number & 0x7fff, ""), not number & 0x8000


class Symbols:
    """The symbols of an image from all places that have some: its own tables, and when it is
    stripped of `.symtab`, `.gnu_debugdata`, the separate debug file, looked for under `root` (the root
    folder of a process in another mount namespace), and a Go program's own table of functions. What is wrong with one of these
    other places does not spoil the rest; it is kept in `problems`."""

    def __init__(self, image, root="/"):
        self.image = image
        self.root = root
        self.problems = []
        self.tables = _own_tables(image)
        self._more = any(not table.dynamic for table in self.tables)
        self.debug_image = None
        self._lines = None

    @property
    def lines(self):
        """The image's source_lines.SourceLines."""
        if self._lines is None:
            from .source_lines import SourceLines
            self._lines = SourceLines(self.image, self.root)
        return self._lines

    def _all_tables(self):
        if not self._more:
            self._more = True
            for source in (self._from_mini_debug_info, self._from_debug_file, self._from_go):
                try:
                    self.tables += source()
                except ElfError as error:
                    self.problems.append(error)
        return self.tables

    def _from_mini_debug_info(self):
        other = mini_debug_image(self.image)
        return [t for t in _own_tables(other) if not t.dynamic] if other is not None else []

    def _from_debug_file(self):
        self.debug_image = debug_file(self.image, self.root)
        return [t for t in _own_tables(self.debug_image) if not t.dynamic] if self.debug_image is not None else []

    def _from_go(self):
        if any(not table.dynamic for table in self.tables):
            return []
        from .golang import go_table
        table = go_table(self.image)
        return [table] if table is not None else []

    def __iter__(self):
        return self.functions()

    def functions(self):
        """Every function (IFUNCs too) once, with each of its names and versions."""
        return self.each(FUNCTIONS)

    def function_names(self):
        """The names of all functions, without versions, as the keys of a dict: much quicker than `functions`."""
        found = {}
        for table in self._all_tables():
            names = getattr(table, "names", None)
            each = names(FUNCTIONS) if names else dict.fromkeys(symbol.name for symbol in table.each(FUNCTIONS))
            found = {**found, **each} if found else each
        return found

    def each(self, types=NAMED):
        """Every symbol of these ELF types once, with each of its names and versions."""
        # the dynamic table first: it knows the versions
        tables = sorted(self._all_tables(), key=lambda table: not table.dynamic)
        known = set()
        for number, table in enumerate(tables, 1):
            for symbol in table.each(types, known if not table.dynamic else ()):
                if number < len(tables):
                    known.add((symbol.value, symbol.name))
                yield symbol

    def find_all(self, name):
        """All symbols called `name`, the best first: functions, then the most global, then the
        default version. `name@VERSION` asks for one version."""
        name, _, version = name.partition("@")
        version = version.lstrip("@")
        found, values = {}, set()
        for table in sorted(self._all_tables(), key=lambda table: not table.dynamic):
            for symbol in table.find(name):
                # a static table repeats the dynamic one's symbols, without their versions
                if symbol.version or symbol.value not in values:
                    found.setdefault((symbol.value, symbol.version), symbol)
                    values.add(symbol.value)
        symbols = [s for s in found.values() if not version or s.version == version]
        symbols.sort(key=lambda s: (not s.is_function, _RANK.get(s.bind, 3), not s.default))
        return symbols

    def find(self, name):
        """The best symbol called `name` (or `name@VERSION`), or None."""
        symbols = self.find_all(name)
        return symbols[0] if symbols else None

    def at(self, vaddr):
        """(symbol, offset in it) of the function, else of the object or label, that the virtual
        address lies in; None when there is none."""
        for types in (FUNCTIONS, _OTHERS):
            best = None
            for table in self._all_tables():
                symbol = table.covering(vaddr, types)
                if symbol is not None and (best is None or (symbol.size > 0, symbol.value) > (best.size > 0, best.value)):
                    best = symbol
            if best is not None and (best.size or self._together(best.value, vaddr, types is _OTHERS)):
                return best, vaddr - best.value
        return None

    def _together(self, value, vaddr, code_only):
        """Are two addresses in one section? A symbol without a size ends there at the latest."""
        for section in self.image.sections:
            if section.flags & SHF_ALLOC and section.addr <= value <= vaddr < section.addr + section.size:
                return bool(section.flags & SHF_EXECINSTR) or not code_only
        return False


_OTHERS = frozenset((0, 1))


def _own_tables(image):
    return [SymbolTable(image, s) for s in image.sections
            if s.type in (SHT_SYMTAB, SHT_DYNSYM) and s.size]


def mini_debug_image(image):
    """The image inside `.gnu_debugdata`, or None. Its sections are there for their symbols only."""
    section = image.section(".gnu_debugdata")
    if section is None:
        return None
    import lzma
    where = "%s(.gnu_debugdata)" % image.path
    try:
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=256 << 20)
        packed = bytes(image.data(section))
        limit = min(UNPACK_LIMIT, (1 << 20) + UNPACK_RATIO * len(packed))
        data = unpacker.decompress(packed, limit + 1)
    except (lzma.LZMAError, MemoryError, EOFError) as error:
        raise ElfError(where, None, "cannot be unpacked: %s" % error) from None
    if len(data) > limit:
        raise ElfError(where, None, "unpacks to more than %d MB, from %d bytes" % (limit >> 20, len(packed)))
    if not unpacker.eof:
        raise ElfError(where, None, "is cut short")
    return Image(data, where)


def debug_file(image, root="/"):
    """The separate debug file of an image as an `Image`, or None: by build id, then by
    `.gnu_debuglink` (beside the file, in `.debug`, under the global folder). A file with another
    build id or checksum is not it."""
    found = _in_named_folders(image)
    if found is not None:
        return found
    folder = os.path.join(root, DEBUG_FOLDER.lstrip("/"))
    build_id = image.build_id
    if len(build_id) > 2:
        path = os.path.join(folder, ".build-id", build_id[:2], build_id[2:] + ".debug")
        if os.path.isfile(path):
            other = Image.open(path)
            if other.build_id in ("", build_id):
                return other
    link = image.debug_link
    if link is None:
        return None
    name, crc = link
    homes = {os.path.dirname(os.path.abspath(image.path)): None,
             os.path.dirname(os.path.realpath(image.path)): None}
    for home in homes:
        inside = os.path.relpath(home, root) if root != "/" else home.lstrip("/")
        for path in (os.path.join(home, name), os.path.join(home, ".debug", name),
                     os.path.join(folder, inside, name)):
            if os.path.isfile(path):
                other = Image.open(path)
                if _belongs(image, other, crc):
                    return other
    return None


def _in_named_folders(image):
    build_id, link = image.build_id, image.debug_link
    names = [os.path.join(".build-id", build_id[:2], build_id[2:] + ".debug")] if len(build_id) > 2 else []
    names += [link[0]] if link is not None else []
    names.append(os.path.basename(image.path) + ".debug")
    home = os.path.dirname(image.path)
    for folder in dict.fromkeys(path for given in DEBUG_FOLDERS for path in (os.path.join(home, given), given)):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                other = Image.open(path)
                if _belongs(image, other, link and link[1]):
                    return other
    return None


def _belongs(image, other, crc):
    if other.identity == image.identity:
        return False
    if image.build_id and other.build_id:
        return image.build_id == other.build_id
    if crc is None:
        return True             # a name is all there is to go by
    import zlib
    return zlib.crc32(other.buffer) == crc
