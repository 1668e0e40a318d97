"""Relocatable ELF files for BPF (EM_BPF), written: sections, symbols and relocations become bytes.

System V gABI, 64 bits, in this machine's byte order, as `clang -target bpf` writes them.
"""

import struct
import sys

ET_REL, EM_BPF = 1, 247
PROGBITS, SYMTAB, STRTAB, NOBITS, REL = 1, 2, 3, 8, 9
WRITE, ALLOC, EXEC = 1, 2, 4
LOCAL, GLOBAL, WEAK = 0, 1, 2
NOTYPE, OBJECT, FUNC, SECTION = range(4)


class ElfWriter:
    """Collects what a file consists of. Sections are referred to by their index, from 1; symbols by the number
    that `symbol` gives, which is not the one in the file, where local symbols come first."""

    def __init__(self):
        self._sections = []     # [name, type, flags, content, size, link, info, align, entry size]
        self._symbols = []      # (name, bind, type, other, section index, value, size)
        self._relocations = []  # (section index, [(offset, symbol, type)])
        self._names, self._name_table = {"": 0}, bytearray(b"\0")

    def section(self, name, kind, flags, content, align=1, size=None, entry=0):
        """Adds a section -> its index. NOBITS: `size` bytes, else content's."""
        self._sections.append([name, kind, flags, content, len(content) if size is None else size, 0, 0, align, entry])
        return len(self._sections)

    def symbol(self, name, bind, kind, section, value, size, other=0):
        """Adds a symbol in a section (0: undefined elsewhere) -> its number. other: the visibility."""
        self._symbols.append((name, bind, kind, other, section, value, size))
        return len(self._symbols) - 1

    def relocate(self, section, relocations):
        """Adds the relocations of a section: (offset, symbol, type)."""
        if relocations:
            self._relocations.append((section, list(relocations)))

    def _name(self, name):
        if name not in self._names:
            self._names[name] = len(self._name_table)
            self._name_table += name.encode("utf-8", "surrogateescape") + b"\0"
        return self._names[name]

    def bytes(self):
        """The file. Nothing may be added afterwards."""
        order = sorted(range(len(self._symbols)), key=lambda number: self._symbols[number][1] != LOCAL)
        final = {number: place for place, number in enumerate(order, 1)}
        tables = len(self._sections) + len(self._relocations)
        for section, relocations in self._relocations:
            content = b"".join(struct.pack("=QQ", at, final[symbol] << 32 | kind) for at, symbol, kind in relocations)
            index = self.section(".rel" + self._sections[section - 1][0], REL, 0, content, 8, entry=16)
            self._sections[index - 1][5:7] = tables + 1, section
        table = bytearray(24)
        for number in order:
            name, bind, kind, other, section, value, size = self._symbols[number]
            table += struct.pack("=IBBHQQ", self._name("" if kind == SECTION else name), bind << 4 | kind, other,
                                 section, value, size)
        local = 1 + sum(symbol[1] == LOCAL for symbol in self._symbols)
        index = self.section(".symtab", SYMTAB, 0, bytes(table), 8, entry=24)
        self._sections[index - 1][5:7] = index + 1, local
        self.section(".strtab", STRTAB, 0, b"")
        for section in self._sections:
            self._name(section[0])
        self._sections[-1][3:5] = bytes(self._name_table), len(self._name_table)
        return self._layout()

    def _layout(self):
        out, headers = bytearray(64), [bytes(64)]
        for name, kind, flags, content, size, link, info, align, entry in self._sections:
            out += bytes(-len(out) % (align or 1))
            headers.append(struct.pack("=IIQQQQIIQQ", self._names[name], kind, flags, 0, len(out), size, link, info,
                                       align, entry))
            if kind != NOBITS:
                out += content
        out += bytes(-len(out) % 8)
        ident = b"\x7fELF\x02" + (b"\x01" if sys.byteorder == "little" else b"\x02") + b"\x01" + bytes(9)
        out[:64] = ident + struct.pack("=HHIQQQIHHHHHH", ET_REL, EM_BPF, 1, 0, 0, len(out), 0, 64, 0, 0, 64,
                                       len(headers), len(headers) - 1)
        return bytes(out) + b"".join(headers)
