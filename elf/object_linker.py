"""Several BPF objects linked into one, as `bpftool gen object` does with libbpf's linker.

Sections of one name are put behind each other; a symbol that one object declares extern is what another defines,
a strong definition goes before a weak one, and two strong ones are an error; .BTF is merged (each type once, see
btf_merge), the DATASECs made anew, and .BTF.ext moved along. What no object defines (kernel symbols, configuration)
stays extern. Static symbols stay each object's own.
"""

import struct

from rawbpf.asm.elfwriter import FUNC, GLOBAL, LOCAL, NOBITS, PROGBITS, SECTION, WEAK, ElfWriter

from . import btf_raw as raw
from .bpf_object import JUMP_TABLES, R_BPF_64_32, R_BPF_64_64, R_BPF_64_ABS32, R_BPF_64_ABS64, BpfObjectFile
from .btf_ext import CORE_KINDS
from .btf_merge import Merger
from .image import SHN_ABS, SHN_LORESERVE, SHN_UNDEF, ElfError
from .object_linker_types import differ, shared

_ONCE = ("license", "version")
_ALLOC, _EXEC = 2, 4
_STT_FILE = 4
_HIDDEN = 2
_EXTERN = 2         # linkage of a FUNC or VAR
_LIMIT = 1 << 30


def link(files):
    """The bytes of the one object. files: BpfObjectFiles (or paths). ElfError names the object and what does not fit
    together."""
    files = [each if isinstance(each, BpfObjectFile) else BpfObjectFile.open(each) for each in files]
    if not files:
        raise ValueError("there is nothing to link")
    return _Linker(files).bytes()


class _Out:
    """A section of the result."""

    def __init__(self, name, kind, flags):
        self.name, self.kind, self.flags = name, kind, flags
        self.content, self.size, self.align = bytearray(), 0, 1
        self.index = 0
        self.relocations = []       # (offset, (file, symbol), type)
        self.variables = []         # (file, VAR or FUNC id, offset, size)

    def append(self, content, size, align):
        """Adds content (None: zeros) -> where it is."""
        align = max(align, 1)
        start = self.size + align - 1 & -align
        if start + size > _LIMIT:
            raise ValueError("section %s would have more than %d bytes" % (self.name, _LIMIT))
        if content is not None and self.kind == NOBITS:
            self.kind, self.content = PROGBITS, bytearray(self.size)
        if self.kind != NOBITS:
            self.content += bytes(start - self.size) + (bytes(size) if content is None else content)
        self.align, self.size = max(self.align, align), start + size
        return start


class _Linker:
    def __init__(self, files):
        self.files = files
        self.sections = {}          # name -> _Out
        self.places = [{} for _ in files]       # of each file: section index -> (_Out, offset)
        self.writer = ElfWriter()
        self.types = [{} if file.btf is None else shared(file.btf) for file in files]
        self.globals = {}           # name -> (file number, ObjectSymbol) of the definition or, without one, a reference

    def bytes(self):
        for number, file in enumerate(self.files):
            if file.btf is None and any(each.btf is not None for each in self.files):
                raise file.error("has no BTF, which says what its names are: compile it with -g")
            for section in file.sections[1:]:
                self._section(number, file, section)
        for number, file in enumerate(self.files):
            for symbol in file.symbols[1:]:
                if self._is_global(number, symbol):
                    self._global(number, symbol)
        self._btf()
        self._jump_tables()
        for out in self.sections.values():
            self._relocations(out)
        if self.btf is not None:
            self.ext = self._ext()
        for out in self.sections.values():
            out.index = self.writer.section(out.name, out.kind, out.flags, bytes(out.content), out.align, out.size)
        if self.btf is not None:
            self.writer.section(".BTF", PROGBITS, 0, self.btf.bytes(), 8)
            if self.ext:
                self.writer.section(".BTF.ext", PROGBITS, 0, self.ext, 8)
        self._symbols()
        return self.writer.bytes()

    # -- sections and symbols --------------------------------------------------------------------------

    def _section(self, number, file, section):
        if section.type not in (PROGBITS, NOBITS) or section.name.startswith((".BTF", ".debug", ".comment")) or \
                not section.flags & (_ALLOC | _EXEC) and section.name != JUMP_TABLES:
            return
        out = self.sections.get(section.name)
        content = None if section.type == NOBITS else bytes(file.image.data(section))
        if section.name in _ONCE and out is not None:
            if bytes(out.content) != content:
                raise file.error("its %s is %s, that of %s is %s" % (section.name, _text(content), self.files[0].path,
                                                                    _text(bytes(out.content))))
            self.places[number][section.index] = out, 0
            return
        if out is None:
            out = self.sections[section.name] = _Out(section.name, section.type, section.flags)
        elif out.flags != section.flags:
            raise file.error("section %s has the flags %#x, in another object %#x" % (section.name, section.flags,
                                                                                     out.flags))
        align = section.addralign or 1
        if align & align - 1 or align > 1 << 20:
            raise file.error("section %s is aligned to %d" % (section.name, align), section.offset)
        try:
            self.places[number][section.index] = out, out.append(content, section.size, align)
        except ValueError as error:
            raise file.error(str(error), section.offset) from None

    def _is_global(self, number, symbol):
        """Is it one that all objects share? Names of jump tables are not, whatever they are bound as."""
        return symbol.bind in (GLOBAL, WEAK) and not self._is_table(number, symbol)

    def _is_table(self, number, symbol):
        return 0 < symbol.section < SHN_LORESERVE and self.files[number].sections[symbol.section].name == JUMP_TABLES

    def _jump_tables(self):
        """Jump tables hold places in the section of the code that uses them: those have moved with it."""
        for number, file in enumerate(self.files):
            out, moved = None, {}       # (place of the table, size) -> by how much
            for index, (_, start) in self.places[number].items():
                for relocation in file.relocations.get(index, {}).values():
                    symbol = relocation.symbol
                    if not self._is_table(number, symbol):
                        continue
                    out, at = self._place(number, symbol)
                    if symbol.size % 8 or at + symbol.size > len(out.content):
                        raise file.error("%s is no jump table of 64-bit places" % (symbol.name or "a symbol"))
                    if moved.setdefault((at, symbol.size), start) != start:
                        raise file.error("%s is the jump table of two sections" % symbol.name)
            for (at, size), start in moved.items():
                for each in range(at, at + size, 8):
                    value = int.from_bytes(out.content[each:each + 8], "little") + start
                    out.content[each:each + 8] = (value & (1 << 64) - 1).to_bytes(8, "little")

    def _global(self, number, symbol):
        found = self.globals.get(symbol.name)
        if found is None:
            self.globals[symbol.name] = number, symbol
            return
        other, before = found
        if symbol.section < SHN_LORESERVE and self.files[number].sections[symbol.section].name in _ONCE:
            return
        defined, was = symbol.section != SHN_UNDEF, before.section != SHN_UNDEF
        if defined and was:
            if symbol.bind == GLOBAL and before.bind == GLOBAL:
                raise self.files[number].error("%s is defined in %s as well" % (symbol.name, self.files[other].path))
            if (symbol.type == FUNC) != (before.type == FUNC):
                raise self.files[number].error("%s is a function here or in %s, and not in the other" % (
                    symbol.name, self.files[other].path))
        self._check_types(number, symbol, other, before)
        hidden = symbol.hidden or before.hidden
        # a strong definition before a weak one, any definition before none, a strong reference before a weak one
        if (defined, symbol.bind == GLOBAL) > (was, before.bind == GLOBAL):
            other, before = number, symbol
        self.globals[symbol.name] = other, before._replace(hidden=hidden)

    def _check_types(self, number, symbol, other, before):
        """Do two objects take a name for the same?"""
        name, files = symbol.name, (self.files[other], self.files[number])
        records = [self.types[each].get(name) for each in (other, number)]
        for file, record in zip(files, records):
            if record is None:
                raise file.error("its BTF does not say what %s is" % name)
        is_map = any(0 < each.section < SHN_LORESERVE and file.sections[each.section].name == ".maps"
                     for file, each in zip(files, (before, symbol)))
        why = differ(files[0], records[0], files[1], records[1], is_map)
        if why:
            raise files[1].error("%s is something else in %s: %s" % (name, files[0].path, why))

    def _resolved(self, number, symbol):
        """(file number, symbol) that a reference of a file means."""
        if self._is_global(number, symbol):
            return self.globals[symbol.name]
        return number, symbol

    def _place(self, number, symbol):
        """(_Out, offset) of a symbol; (None, 0) of an undefined one."""
        if symbol.section == SHN_UNDEF or symbol.section >= SHN_LORESERVE:
            return None, 0
        place = self.places[number].get(symbol.section)
        if place is None:
            raise self.files[number].error("symbol %s lies in the section %s, which is none of BPF's" % (
                symbol.name, self.files[number].sections[symbol.section].name))
        return place[0], place[1] + symbol.value

    def _symbols(self):
        numbers = {}
        for out in self.sections.values():
            numbers["section", out.name] = self.writer.symbol(out.name, LOCAL, SECTION, out.index, 0, 0)
        for number, file in enumerate(self.files):
            for symbol in file.symbols[1:]:
                if self._is_global(number, symbol) or symbol.type in (SECTION, _STT_FILE) or symbol.section in (
                        SHN_UNDEF, SHN_ABS) or self.places[number].get(symbol.section) is None:
                    continue
                out, at = self._place(number, symbol)
                numbers[number, symbol] = self.writer.symbol(symbol.name, LOCAL, symbol.type, out.index, at, symbol.size)
        for name, (number, symbol) in self.globals.items():
            out, at = self._place(number, symbol)
            numbers[number, symbol] = self.writer.symbol(
                name, symbol.bind, symbol.type, out.index if out else 0, at, symbol.size, _HIDDEN if symbol.hidden else 0)
        for out in self.sections.values():
            for _, target, _ in out.relocations:
                if target not in numbers:
                    raise self.files[target[0]].error("a relocation of %s refers to %s, which is no symbol of its "
                                                      "sections" % (out.name, target[1].name or "no symbol"))
            self.writer.relocate(out.index, [(at, numbers[target], kind) for at, target, kind in out.relocations])

    # -- relocations -----------------------------------------------------------------------------------

    def _relocations(self, out):
        for number, file in enumerate(self.files):
            for index, (section, start) in self.places[number].items():
                if section is not out or out.name in _ONCE:
                    continue
                for offset, relocation in sorted(file.relocations.get(index, {}).items()):
                    self._relocation(out, number, start + offset, relocation)

    def _relocation(self, out, number, at, relocation):
        file, symbol = self.files[number], relocation.symbol
        if symbol.type == SECTION:
            place = self.places[number].get(symbol.section)
            if place is None:
                raise file.error("a relocation of %s refers to the section %s" % (out.name, symbol.name))
            self._addend(file, out, at, relocation.type, place[1])
            out.relocations.append((at, ("section", place[0].name), relocation.type))
            return
        owner, target = self._resolved(number, symbol)
        self._place(owner, target)
        out.relocations.append((at, (owner, target), relocation.type))

    @staticmethod
    def _addend(file, out, at, kind, moved):
        """What is relocated by a section's symbol says where in the section: that has moved."""
        def word(offset, size, change):
            if offset + size > len(out.content):
                raise file.error("a relocation at byte %d of %s leads outside" % (at, out.name))
            value = int.from_bytes(out.content[offset:offset + size], "little") + change
            out.content[offset:offset + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        if kind == R_BPF_64_64:
            word(at + 4, 4, moved)
        elif kind == R_BPF_64_32:       # of a call: in instructions
            word(at + 4, 4, moved // 8)
        elif kind == R_BPF_64_ABS64:
            word(at, 8, moved)
        elif kind == R_BPF_64_ABS32:
            word(at, 4, moved)
        else:
            raise file.error("relocation type %d in %s is not known" % (kind, out.name))

    # -- BTF -------------------------------------------------------------------------------------------

    def _btf(self):
        self.btf, self.maps = None, [None] * len(self.files)
        typed = [number for number, file in enumerate(self.files) if file.btf is not None]
        if not typed:
            return
        merger = Merger()
        for number in typed:
            merger.add(self.files[number].btf)
        self._definitions(merger, typed)
        self.btf, maps = merger.write()
        for number, table in zip(typed, maps):
            self.maps[number] = table
        sections, known = {}, set()
        for number in typed:
            self._datasecs(number, sections, known)
        for name, variables in sections.items():
            out = self.sections.get(name)
            self.btf.section(name, out.size if out else 0, sorted(variables, key=lambda entry: entry[1]))

    def _definitions(self, merger, typed):
        """FUNCs and VARs that are declared extern become those that define them, or the first such declaration."""
        defined, extern = {}, []
        for which, number in enumerate(typed):
            btf = self.files[number].btf
            for type_id in range(1, btf.count):
                if btf.kind(type_id) not in ("func", "var"):
                    continue
                record = raw.record(btf, type_id)
                linkage = record.vlen if record.kind == "func" else record.words[0]
                if linkage == _EXTERN:
                    extern.append((which, record))
                elif self.globals.get(record.name, (None,))[0] == number and linkage:
                    defined[record.kind, record.name] = which, type_id
        for which, record in extern:
            target = defined.setdefault((record.kind, record.name), (which, record.id))
            if target != (which, record.id):
                merger.replace(which, record.id, *target)

    def _datasecs(self, number, sections, known):
        """Adds a file's entries of DATASECs: what it defines, and what stays extern, once."""
        file, table = self.files[number], self.maps[number]
        by_name = {section.name: section for section in file.sections}
        for type_id in range(1, file.btf.count):
            record = raw.record(file.btf, type_id)
            if record.kind != "datasec":
                continue
            entries = sections.setdefault(record.name, [])
            section = by_name.get(record.name)
            out, start = self.places[number].get(section.index, (None, 0)) if section is not None else (None, 0)
            for i in range(0, len(record.words), 3):
                variable = raw.record(file.btf, record.words[i])
                linkage = variable.vlen if variable.kind == "func" else variable.words[0] if variable.words else 0
                offset = file.variable_place(record.name, variable, record.words[i + 1])
                if linkage == _EXTERN:
                    _, target = self.globals.get(variable.name, (0, None))
                    if (record.name, variable.name) in known or target is not None and target.section != SHN_UNDEF:
                        continue
                    known.add((record.name, variable.name))
                elif variable.name in self.globals and linkage:
                    owner, _ = self.globals[variable.name]
                    if owner != number:         # a weak one that another goes before: its memory stays, unnamed
                        continue
                entries.append((table[record.words[i]], (start if out else 0) + offset, record.words[i + 2]))

    def _ext(self):
        """The bytes of .BTF.ext."""
        tables = {"functions": {}, "lines": {}, "relocations": {}}
        sizes = {"functions": 8, "lines": 16, "relocations": 16}
        for number, file in enumerate(self.files):
            ext = file.btf_ext
            if ext is None:
                continue
            sizes["functions"] = max(sizes["functions"], ext.function_size)
            sizes["lines"] = max(sizes["lines"], ext.line_size)
            named = {section.name: self.places[number].get(section.index) for section in file.sections}
            for what, table in tables.items():
                for name, records in getattr(ext, what).items():
                    place = named.get(name)
                    if place is None:
                        raise file.error(".BTF.ext speaks of the section %s, which is not there" % name)
                    table.setdefault(name, []).extend(self._records(number, what, place[1], records))
        if not any(tables.values()):
            return b""
        parts = []
        for what in ("functions", "lines", "relocations"):
            body = bytearray()
            for name, records in tables[what].items():
                body += struct.pack("=II", self.btf.string(name), len(records))
                body += b"".join(record.ljust(sizes[what], b"\0") for record in records)
            parts.append(struct.pack("=I", sizes[what]) + bytes(body) if body else b"")
        starts = [sum(map(len, parts[:i])) for i in range(3)]
        header = struct.pack("=HBBIIIIIII", 0xeb9f, 1, 0, 32, starts[0], len(parts[0]), starts[1], len(parts[1]),
                             starts[2], len(parts[2]))
        return header + b"".join(parts)

    def _records(self, number, what, start, records):
        file, table = self.files[number], self.maps[number]

        def type_of(old):
            if old >= len(table):
                raise ElfError(file.path, None, ".BTF.ext refers to BTF type %d of %d" % (old, len(table)))
            return table[old]
        for record in records:
            if what == "relocations":
                kind = CORE_KINDS.index(record.kind) if record.kind in CORE_KINDS else int(record.kind.split()[1])
                yield struct.pack("=IIII", start + record.offset, type_of(record.type_id),
                                  self.btf.string(record.access), kind)
                continue
            offset, rest = record
            if what == "functions":
                yield struct.pack("=II", start + offset, type_of(struct.unpack_from("=I", rest)[0])) + rest[4:]
            else:
                name, text = struct.unpack_from("=II", rest)
                yield struct.pack("=III", start + offset, self.btf.string(file.btf.string(name)),
                                  self.btf.string(file.btf.string(text))) + rest[8:]


def _text(data):
    return repr(data.split(b"\0")[0].decode("utf-8", "replace"))
