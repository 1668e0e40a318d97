"""Dynamic relocations: where a program keeps the address that a symbol was bound to.

Reads `.rela.dyn` and `.rela.plt` (gABI, chapter "Relocation"; x86_64 and aarch64 psABI). What they are
for here: an IFUNC's symbol is not the code that runs, the resolver chooses that when the program is
loaded, and the choice stands in the slots that these relocations name.
"""

import struct
from typing import NamedTuple

from .image import ElfError, SHT_DYNSYM
from .symbols import SymbolTable

# relocation types by machine: set to a symbol's address (data and PLT), base + addend, what a resolver returns
_TYPES = {"x86_64": ((1, 6, 7), 8, 37), "aarch64": ((257, 1025, 1026), 1027, 1032)}
_RELA = 4


class Relocation(NamedTuple):
    """`offset` is the slot's virtual address; `symbol` "" for one without; `kind` "symbol", "relative"
    or "irelative" (then `addend` is the resolver's address)."""

    offset: int
    kind: str
    symbol: str
    addend: int


def relocations(image):
    """The Relocations of an image that fill address slots, in the file's order."""
    if image.machine not in _TYPES or image.bits != 64:
        return
    symbolic, relative, chosen = _TYPES[image.machine]
    tables = {}
    for section in image.sections:
        if section.type != _RELA or not section.size or not section.flags & 2:
            continue
        if section.entsize not in (0, 24):
            raise ElfError(image.path, section.offset, "relocations of %d bytes in %s" % (section.entsize, section.name))
        view = image.view(section.offset, section.size // 24 * 24, "section %s" % section.name)
        for offset, info, addend in struct.iter_unpack(image.order + "QQq", view):
            kind, number = info & 0xffffffff, info >> 32
            if kind == chosen:
                yield Relocation(offset, "irelative", "", addend)
            elif kind == relative:
                yield Relocation(offset, "relative", "", addend)
            elif kind in symbolic and number:
                if section.link not in tables:
                    tables[section.link] = _table(image, section)
                table = tables[section.link]
                if number >= table.count:
                    raise ElfError(image.path, section.offset, "a relocation names symbol %d of %d" % (number, table.count))
                yield Relocation(offset, "symbol", table.symbol(number).name, addend)


def _table(image, section):
    if not 0 < section.link < len(image.sections) or image.sections[section.link].type != SHT_DYNSYM:
        raise ElfError(image.path, section.offset, "%s has no symbol table" % section.name)
    return SymbolTable(image, image.sections[section.link])


def slots(image, names, resolvers=()):
    """Virtual addresses of the slots in which an image keeps what the symbols `names` were bound to,
    or what the resolvers at the virtual addresses `resolvers` have chosen. Read from a process's
    memory, they hold run-time addresses of the code, or of the image's own PLT until the first call."""
    return [r.offset for r in relocations(image)
            if (r.kind == "symbol" and r.symbol in names and not r.addend)
            or (r.kind == "irelative" and r.addend in resolvers)]
