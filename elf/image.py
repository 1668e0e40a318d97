"""One ELF file: headers, sections, segments, notes, addresses.

Implements the System V gABI's object file format (elf(5), gabi chapters 4 and 5) for 32 and 64
bits and both byte orders, reading the headers with `struct`. The file is mapped, not read.
Nothing in it is trusted: every table and every string is checked to lie inside the file before
it is used, and what does not fit is an `ElfError`. Tables are parsed when first asked for, so a
file whose section headers are broken still answers about its segments.
"""

import mmap
import os
import stat
import struct
from typing import NamedTuple

MACHINES = {3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64",
            183: "aarch64", 243: "riscv", 247: "bpf", 258: "loongarch"}
TYPES = {1: "REL", 2: "EXEC", 3: "DYN", 4: "CORE"}

PT_LOAD, PT_DYNAMIC, PT_NOTE = 1, 2, 4
PF_X, PF_W, PF_R = 1, 2, 4
SHT_SYMTAB, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 2, 7, 8, 11
SHF_ALLOC, SHF_EXECINSTR, SHF_COMPRESSED = 2, 4, 0x800
SHN_UNDEF, SHN_LORESERVE, SHN_ABS, SHN_XINDEX = 0, 0xff00, 0xfff1, 0xffff
NT_GNU_BUILD_ID = 3

UNPACK_LIMIT = 1 << 30      # bytes that a compressed section may unpack to
TABLE_LIMIT = 1 << 25       # bytes of an object's symbols, names, types, relocations, ...: data(section, TABLE_LIMIT)


def printable(text):
    """The text on one line: names in a damaged file may hold anything."""
    if text.isprintable():
        return text
    # what stands for a byte that is no UTF-8 is shown as that byte
    return "".join(c if c.isprintable() else "\\x%02x" % (ord(c) & 0xff if "\udc80" <= c <= "\udcff" else ord(c)) for c in text)


class ElfError(Exception):
    """What is wrong with a file: `path`, the file `offset` of the wrong part (None when it has
    no place) and the `reason`."""

    def __init__(self, path, offset, reason):
        super().__init__(path, offset, reason)
        self.path = path
        self.offset = offset
        self.reason = reason

    def __str__(self):
        place = "" if self.offset is None else " at offset 0x%x" % self.offset
        return printable("%s%s: %s" % (self.path, place, self.reason))


def read_input(path):
    """The bytes of what is no regular file (a pipe by /dev/fd, a FIFO that somebody writes to), or ElfError."""
    from rawbpf.asm import AsmError
    from rawbpf.asm.files import read_file
    try:
        return read_file(path)
    except (OSError, ValueError, AsmError) as error:
        said = getattr(error, "strerror", None) or str(error)
        place = os.fspath(path) + ": "          # as some of them say themselves
        raise ElfError(os.fspath(path), None, said[len(place):] if said.startswith(place) else said) from None


def open_regular(path, dir_fd=None):
    """The file at `path` (relative to `dir_fd` if given), open for reading; ElfError where it cannot be opened or is no
    regular file: a FIFO in the way must not hang us."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=dir_fd)
    except (OSError, ValueError) as error:
        raise ElfError(os.fspath(path), None, getattr(error, "strerror", None) or str(error)) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ElfError(os.fspath(path), None, "not a regular file")
    return open(fd, "rb")


class Section(NamedTuple):
    name: str
    type: int
    flags: int
    addr: int
    offset: int
    size: int
    link: int
    info: int
    addralign: int
    entsize: int
    index: int


class Segment(NamedTuple):
    type: int
    flags: int
    offset: int
    vaddr: int
    filesz: int
    memsz: int
    align: int


class ElfNote(NamedTuple):
    """An entry of a note section: `offset` is that of its descriptor in the file."""

    owner: bytes
    type: int
    desc: bytes
    offset: int


class Image:
    """An ELF file, or one in memory: `Image(buffer, path)` with a bytes-like `buffer` that has
    `find` (bytes, mmap). Attributes: `path`, `buffer`, `bits` (32/64), `order` ("<" or ">"),
    `type` ("EXEC", "DYN", "REL", "CORE"), `machine` ("x86_64", "aarch64", ...), `entry`."""

    file_base = 0       #: where the image begins in its file: not 0 for a library in an archive

    def __init__(self, buffer, path="<memory>"):
        self.path = path
        self.buffer = buffer
        self.size = len(buffer)
        self._sections = self._segments = self._build_id = None
        self._by_name = {}
        self.identity = None
        ident = bytes(buffer[:16])
        if len(ident) < 16 or ident[:4] != b"\x7fELF":
            raise ElfError(path, 0, "not an ELF file")
        if ident[4] not in (1, 2) or ident[5] not in (1, 2):
            raise ElfError(path, 4, "unknown ELF class %d or byte order %d" % (ident[4], ident[5]))
        self.bits = 32 * ident[4]
        self.order = "<" if ident[5] == 1 else ">"
        self.word = self.order + ("Q" if self.bits == 64 else "I")
        header = self.order + ("HHIQQQIHHHHHH" if self.bits == 64 else "HHIIIIIHHHHHH")
        fields = self.unpack(header, 16, "the ELF header")
        self.type = TYPES.get(fields[0], "type %d" % fields[0])
        self.machine = MACHINES.get(fields[1], "machine %d" % fields[1])
        self.entry = fields[3]
        (self._phoff, self._shoff, self.flags, _, self._phentsize, self._phnum,
         self._shentsize, self._shnum, self._shstrndx) = fields[4:]

    @classmethod
    def open(cls, path, dir_fd=None):
        """Map the file at `path` (relative to `dir_fd` if given); `ElfError` when it cannot be
        opened, is not a regular file or has no ELF header."""
        with open_regular(path, dir_fd) as file:
            return cls.from_fd(file.fileno(), os.fspath(path))

    @classmethod
    def from_fd(cls, fd, path):
        """Map an open file; the descriptor stays the caller's."""
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ElfError(path, None, "not a regular file")
        if status.st_size == 0:
            raise ElfError(path, 0, "the file is empty")
        try:
            buffer = mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ)
        except (OSError, ValueError, OverflowError) as error:
            raise ElfError(path, None, "cannot be mapped: %s" % error) from None
        image = cls(buffer, path)
        image.identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return image

    # -- checked access to the bytes ---------------------------------------------------------

    def unpack(self, form, offset, what):
        size = struct.calcsize(form)
        if offset < 0 or offset + size > self.size:
            raise ElfError(self.path, offset, "%s lies outside the file" % what)
        return struct.unpack_from(form, self.buffer, offset)

    def read(self, offset, size, what):
        """`size` bytes of the file at `offset`."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ElfError(self.path, offset, "%s (%d bytes) lies outside the file" % (what, size))
        return bytes(self.buffer[offset:offset + size])

    def view(self, offset, size, what):
        """The same bytes as a memoryview, not copied."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ElfError(self.path, offset, "%s (%d bytes) lies outside the file" % (what, size))
        return memoryview(self.buffer)[offset:offset + size]

    # -- tables ---------------------------------------------------------------------------------

    def _rows(self, form, offset, entsize, count, what):
        size = struct.calcsize(form)
        if entsize < size:
            raise ElfError(self.path, offset, "%s has entries of %d bytes, %d are needed" % (what, entsize, size))
        table = self.view(offset, entsize * count, what)
        if entsize == size:
            return list(struct.iter_unpack(form, table))
        return [struct.unpack_from(form, table, i * entsize) for i in range(count)]

    @property
    def sections(self):
        """All section headers in their order, the empty one at 0 included."""
        if self._sections is None:
            self._sections = self._read_sections()
            self._by_name = {}
            for section in self._sections[1:]:
                self._by_name.setdefault(section.name, section)
        return self._sections

    def _read_sections(self):
        if not self._shoff:
            return []
        form = self.order + ("IIQQQQIIQQ" if self.bits == 64 else "IIIIIIIIII")
        count, names = self._shnum, self._shstrndx
        if count == 0 or names == SHN_XINDEX:       # numbers too large for the header: gABI, section 0
            first = self.unpack(form, self._shoff, "the section header table")
            count = count or first[5]
            names = first[6] if names == SHN_XINDEX else names
        rows = self._rows(form, self._shoff, self._shentsize, count, "the section header table")
        if not rows:
            return []
        strings = b""
        if names:
            if names >= len(rows):
                raise ElfError(self.path, self._shoff, "the section of section names is number %d of %d"
                               % (names, len(rows)))
            strings = self.read(rows[names][4], rows[names][5], "the section names")
        result = []
        for index, row in enumerate(rows):
            start = row[0]
            end = strings.find(b"\0", start) if start < len(strings) else start
            name = strings[start:end if end >= 0 else None].decode("utf-8", "surrogateescape")
            result.append(Section(name, *row[1:], index))
        return result

    def section(self, name):
        """The first section called `name`, or None."""
        self.sections
        return self._by_name.get(name)

    @property
    def segments(self):
        """All program headers."""
        if self._segments is None:
            self._segments = self._read_segments()
        return self._segments

    def _read_segments(self):
        if not self._phoff or not self._phnum:
            return []
        count = self._phnum
        if count == 0xffff and self.sections:       # PN_XNUM
            count = self.sections[0].info
        form = self.order + ("IIQQQQQQ" if self.bits == 64 else "IIIIIIII")
        rows = self._rows(form, self._phoff, self._phentsize, count, "the program header table")
        if self.bits == 64:
            return [Segment(r[0], r[1], r[2], r[3], r[5], r[6], r[7]) for r in rows]
        return [Segment(r[0], r[6], r[1], r[2], r[4], r[5], r[7]) for r in rows]

    def data(self, section, limit=None):
        """A section's bytes as a memoryview, unpacked when it is compressed (SHF_COMPRESSED). limit: for what is copied or
        taken apart, which more bytes are too many of."""
        if section.type == SHT_NOBITS:
            return memoryview(b"")
        if limit is not None and section.size > limit:
            raise ElfError(self.path, section.offset, "section %s has %d bytes, more than any has" % (
                section.name, section.size))
        view = self.view(section.offset, section.size, "section %s" % section.name)
        if section.flags & SHF_COMPRESSED:
            return memoryview(self._unpacked(section, view, limit or UNPACK_LIMIT))
        return view

    def _unpacked(self, section, view, limit):
        form = self.order + ("IIQQ" if self.bits == 64 else "III")
        head = struct.calcsize(form)
        if len(view) < head:
            raise ElfError(self.path, section.offset, "compressed section %s has no header" % section.name)
        fields = struct.unpack_from(form, view)
        kind, size = fields[0], fields[-2]
        if size > limit:
            raise ElfError(self.path, section.offset, "section %s unpacks to %d bytes" % (section.name, size))
        from .unpack import UnpackError, unpack
        try:
            return unpack(kind, view[head:], size)
        except UnpackError as error:
            raise ElfError(self.path, section.offset, "section %s %s" % (section.name, error)) from None

    # -- addresses --------------------------------------------------------------------------------

    def file_offset(self, vaddr):
        """Where the byte at virtual address `vaddr` is in the file (vaddr - p_vaddr + p_offset of
        the loaded segment that holds it), None when no segment has it in the file."""
        for segment in self.segments:
            if segment.type == PT_LOAD and segment.vaddr <= vaddr < segment.vaddr + segment.filesz:
                return vaddr - segment.vaddr + segment.offset
        return None

    def vaddr(self, offset):
        """The inverse: the virtual address of a file offset. A byte that is mapped twice counts as
        code first."""
        found = None
        for segment in self.segments:
            if segment.type == PT_LOAD and segment.offset <= offset < segment.offset + segment.filesz:
                if segment.flags & PF_X:
                    return offset - segment.offset + segment.vaddr
                if found is None:
                    found = offset - segment.offset + segment.vaddr
        return found

    def executable_ranges(self):
        """[(first, end)] of the virtual addresses that the program headers make executable."""
        return [(s.vaddr, s.vaddr + s.filesz) for s in self.segments
                if s.type == PT_LOAD and s.flags & PF_X]

    # -- notes ------------------------------------------------------------------------------------

    def notes(self, name=None):
        """The `ElfNote`s of all note sections, or of those called `name`; of the note segments when
        the file has no sections."""
        if self.sections:
            for section in self.sections:
                if section.type == SHT_NOTE and (name is None or section.name == name):
                    yield from self._notes(section.offset, section.size, section.addralign)
        elif name is None:
            for segment in self.segments:
                if segment.type == PT_NOTE:
                    yield from self._notes(segment.offset, segment.filesz, segment.align)

    def _notes(self, offset, size, alignment):
        align = 8 if alignment == 8 else 4
        data = self.view(offset, size, "a note section")
        at = 0
        while at + 12 <= size:
            namesz, descsz, kind = struct.unpack_from(self.order + "III", data, at)
            desc = (at + 12 + namesz + align - 1) & -align
            if desc + descsz > size:
                raise ElfError(self.path, offset + at, "a note reaches beyond its section")
            yield ElfNote(bytes(data[at + 12:at + 12 + namesz]).rstrip(b"\0"), kind,
                          bytes(data[desc:desc + descsz]), offset + desc)
            at = (desc + descsz + align - 1) & -align

    @property
    def build_id(self):
        """The GNU build id in hexadecimal, "" when there is none."""
        if self._build_id is None:
            self._build_id = ""
            for note in self.notes():
                if note.owner == b"GNU" and note.type == NT_GNU_BUILD_ID:
                    self._build_id = note.desc.hex()
                    break
        return self._build_id

    @property
    def debug_link(self):
        """(file name, CRC-32) of `.gnu_debuglink`, or None."""
        section = self.section(".gnu_debuglink")
        if section is None:
            return None
        data = bytes(self.data(section))
        end = data.find(b"\0")
        crc = (end + 4) & -4
        if end < 0 or crc + 4 > len(data):
            raise ElfError(self.path, section.offset, ".gnu_debuglink is cut short")
        return os.fsdecode(data[:end]), struct.unpack_from(self.order + "I", data, crc)[0]
