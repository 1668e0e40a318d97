"""Indirect functions: symbols of type GNU_IFUNC are choosers that run once, at load time.

The code that was chosen is found where the dynamic linker wrote its address: the slot of an IRELATIVE
relocation whose addend is the chooser, or of a JUMP_SLOT or GLOB_DAT relocation with the symbol's name
in another file of the process. See "STT_GNU_IFUNC" in the x86 and AArch64 psABI supplements.
"""

import os

from . import paths
from .base import SourceError

SHT_RELA = 4
# r_info types: (IRELATIVE, those that hold a symbol's address)
_RELOCATIONS = {"x86_64": (37, (1, 6, 7)), "aarch64": (1032, (257, 1025, 1026))}


def chosen(binary, symbol, pid):
    """Virtual address in `binary` of the code that its IFUNC `symbol` stands for in process `pid`, or
    with pid None in this process if it uses the same file (the choice depends on the machine alone).
    None where it cannot be told."""
    pid = os.getpid() if pid is None else pid
    try:
        bias = paths.load_bias(pid, binary)
        with open("/proc/%d/mem" % pid, "rb", buffering=0) as memory:
            for address in _slots(binary, symbol, pid, bias):
                value = _word(memory, address)
                if value is None:
                    continue
                vaddr = value - bias
                if vaddr != symbol.value and _is_code(binary, vaddr):
                    return vaddr
    except (OSError, SourceError):
        return None
    return None


def _slots(binary, symbol, pid, bias):
    """Addresses in the process that may hold the chosen address."""
    for offset, kind, _, addend in relocations(binary.image):
        if kind == "irelative" and addend == symbol.value:
            yield offset + bias
    for other in paths.mapped(pid):
        try:
            moved = paths.load_bias(pid, other)
            wanted = [offset for offset, kind, name, _ in relocations(other.image)
                      if kind == "symbol" and name == symbol.name]
        except SourceError:
            continue
        for offset in wanted:
            yield offset + moved


def relocations(image):
    """(offset, "irelative" or "symbol", symbol's name, addend) of the relocations that matter."""
    import struct

    irelative, named = _RELOCATIONS.get(image.machine, (None, ()))
    for section in image.sections:
        if section.type != SHT_RELA or image.bits != 64:
            continue
        names = None
        for offset, info, addend in struct.iter_unpack(image.order + "QQq", image.data(section)):
            kind = info & 0xffffffff
            if kind == irelative:
                yield offset, "irelative", "", addend
            elif kind in named and info >> 32:
                if names is None:
                    names = _names(image, section.link)
                if names is not None:
                    yield offset, "symbol", names(info >> 32), addend


def _names(image, index):
    """A function from a symbol's number in a table to its name."""
    from rawbpf.elf.symbols import SymbolTable

    if not 0 < index < len(image.sections):
        return None
    table = SymbolTable(image, image.sections[index])
    return lambda number: table.symbol(number).name


def _word(memory, address):
    try:
        memory.seek(address)
        data = memory.read(8)
    except (OSError, OverflowError, ValueError):
        return None
    return int.from_bytes(data, "little") if len(data) == 8 else None


def _is_code(binary, vaddr):
    return any(first <= vaddr < end for first, end in binary.image.executable_ranges())
