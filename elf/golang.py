"""Functions of Go programs from their own table, which stripping leaves in place.

Reads `.gopclntab` in the layouts of Go 1.2, 1.16, 1.18 and 1.20 (debug/gosym and runtime/symtab.go in
Go's sources) and the Go version from `.go.buildinfo` (debug/buildinfo). From 1.18 on the table counts
from the start of Go's text. That is not the start of the `.text` section when C code was linked in;
until 1.25 the header says it, since then only the runtime's `moduledata` does, and a program where it is
not found there is refused.
"""

import struct
from bisect import bisect_right

from .image import ElfError
from .relocations import relocations

_MAGICS = {0xfffffffb: 2, 0xfffffffa: 16, 0xfffffff0: 18, 0xfffffff1: 20}
_SECTIONS = (".gopclntab", ".data.rel.ro.gopclntab")
_MODULE_SECTIONS = (".go.module", ".noptrdata", ".data", ".data.rel.ro")


def version(image):
    """The Go version that made a program ("go1.26.1"), "" when it is unknown, None for no Go program."""
    section = image.section(".go.buildinfo")
    if section is None:
        return "" if any(image.section(name) for name in _SECTIONS) else None
    data = bytes(image.data(section))
    at = data.find(b"\xff Go buildinf:")
    if at < 0 or len(data) < at + 34 or not data[at + 15] & 2:     # before 1.18: a pointer to a pointer
        return ""
    size = data[at + 32]
    return data[at + 33:at + 33 + size].decode("utf-8", "replace") if size < 128 else ""


def go_table(image):
    """The GoTable of a Go program, None for another. ElfError when its functions cannot be placed."""
    for name in _SECTIONS:
        section = image.section(name)
        if section is not None and section.size:
            return GoTable(image, section)
    if image.section(".go.buildinfo") is None:
        return None
    # the C linker joins it with other read-only data: the first that is one, by all that is checked
    problem = None
    for name in (".data.rel.ro", ".rodata"):
        section = image.section(name)
        data = bytes(image.data(section)) if section is not None else b""
        for magic in _MAGICS:
            pattern = struct.pack(image.order + "IH", magic, 0)
            at = data.find(pattern)
            while at >= 0:
                if (section.addr + at) % 8 == 0 and data[at + 6:at + 8] in (b"\x01\x08", b"\x04\x08"):
                    try:
                        return GoTable(image, section._replace(
                            addr=section.addr + at, offset=section.offset + at, size=section.size - at))
                    except ElfError as error:
                        problem = error
                at = data.find(pattern, at + 1)
    if problem is not None:
        raise problem
    return None


class GoTable:
    """The functions of a Go program, as a symbol table (see `symbols.SymbolTable`)."""

    dynamic = False

    def __init__(self, image, section):
        self.image = image
        self.section = section
        self.data = bytes(image.data(section))
        try:
            self._read()
        except (struct.error, IndexError):
            raise self._error("the table is cut short") from None

    def _error(self, reason):
        return ElfError(self.image.path, self.section.offset, "Go's function table (%s): %s" % (
            version(self.image) or "unknown version", reason))

    def _read(self):
        data, order = self.data, self.image.order
        magic, pad, _, pointer = struct.unpack_from(order + "IHBB", data)
        if magic not in _MAGICS or pad or pointer not in (4, 8):
            raise self._error("its layout 0x%08x is not known" % magic)
        layout = _MAGICS[magic]
        word = "Q" if pointer == 8 else "I"
        if layout == 2:
            count, = struct.unpack_from(order + word, data, 8)
            self._names, functions, form = 0, 8 + pointer, order + word * 2
        elif layout == 16:
            count, _, self._names, _, _, _, functions = struct.unpack_from(order + word * 7, data, 8)
            form = order + word * 2
        else:
            count, _, start, self._names, _, _, _, functions = struct.unpack_from(order + word * 8, data, 8)
            form = order + "II"
        size = struct.calcsize(form)
        if functions + count * size + size // 2 > len(data):
            raise self._error("it says that it has %d functions" % count)
        rows = list(struct.iter_unpack(form, memoryview(data)[functions:functions + count * size]))
        last, = struct.unpack_from(form[:2], data, functions + count * size)
        base = 0
        if layout >= 18:
            base = start or self._text_start(rows[0][0] if rows else 0, last)
            # a function is code, or all of this is not what we take it for
            ranges = self.image.executable_ranges()
            if rows and not any(low <= base + rows[0][0] and base + last <= high for low, high in ranges):
                raise self._error("it does not lie in the program's code")
        self._entries = [base + row[0] for row in rows]
        if any(a > b for a, b in zip(self._entries, self._entries[1:])):
            raise self._error("it is not sorted")
        self._end = base + last
        # where a function's record has its name: after its entry
        self._records = [(functions if layout != 2 else 0) + row[1] for row in rows]
        self._name_at = pointer if layout < 18 else 4
        self._index = next((s.index for s in self.image.sections if s.flags & 4 and s.addr <= self._end < s.addr + s.size + 1), 0)

    def _text_start(self, first, last):
        """moduledata.text, found by its first word, the address of this table, and believed when its
        minpc and maxpc are those of this table."""
        image, order = self.image, self.image.order
        if image.bits != 64:
            raise self._error("its text start is only looked for in 64-bit programs")
        words = {r.offset: r.addend for r in relocations(image) if r.kind == "relative"}
        places = [slot for slot, value in words.items() if value == self.section.addr]
        pattern = struct.pack(order + "Q", self.section.addr)
        for name in _MODULE_SECTIONS:
            section = image.section(name)
            data = bytes(image.data(section)) if section is not None else b""
            at = data.find(pattern)
            while at >= 0 and len(places) < 1000:
                places.append(section.addr + at)
                at = data.find(pattern, at + 1)

        def word(address):
            if address in words:
                return words[address]
            offset = image.file_offset(address)
            return image.unpack(order + "Q", offset, "Go's moduledata")[0] if offset is not None else 0

        for place in places:
            text = word(place + 8 * 22)
            if text and word(place + 8 * 20) == text + first and word(place + 8 * 21) == text + last:
                return text
        raise self._error("where its text starts is not found")

    def _name(self, number):
        at = self._records[number] + self._name_at
        if at + 4 > len(self.data):
            raise self._error("a function's record lies outside")
        offset, = struct.unpack_from(self.image.order + "I", self.data, at)
        start = self._names + offset
        end = self.data.find(b"\0", start)
        if end < 0:
            raise self._error("a function's name lies outside")
        return self.data[start:end].decode("utf-8", "surrogateescape")

    def _symbol(self, number):
        from .symbols import Symbol
        start = self._entries[number]
        end = self._entries[number + 1] if number + 1 < len(self._entries) else self._end
        return Symbol(self._name(number), start, end - start, "FUNC", "LOCAL", self._index)

    def each(self, types, known=()):
        """Every function; see `SymbolTable.each`."""
        if 2 in types:
            for number in range(len(self._entries)):
                symbol = self._symbol(number)
                if symbol.name and (symbol.value, symbol.name) not in known:
                    yield symbol

    def find(self, name):
        """All functions called `name`."""
        if self.data.find(name.encode("utf-8", "surrogateescape") + b"\0") < 0:
            return []
        return [symbol for symbol in self.each((2,)) if symbol.name == name]

    def covering(self, vaddr, types):
        """The function that an address lies in, or None."""
        number = bisect_right(self._entries, vaddr) - 1
        if 2 not in types or number < 0 or vaddr >= self._end:
            return None
        return self._symbol(number)
