"""watchpoint: reads, writes or execution of memory, by the processor's debug registers.

    watchpoint:0xADDRESS:LENGTH:MODE   watchpoint:SYMBOL[+OFFSET]:LENGTH:MODE (-p)

LENGTH is 1, 2, 4 or 8; MODE a combination of r, w and x that the machine has. With -p the address is
one of that process and a symbol one of its program's data; without, it is the kernel's.
"""

from typing import NamedTuple

from . import abi, paths
from .base import Source, SourceError, nearest, number, try_number
from .timers import TimerPoint

_MODES = {"r": 1, "w": 2, "x": 4}  # HW_BREAKPOINT_R, _W, _X


class Spec(NamedTuple):
    address: int  #: 0 with a symbol
    symbol: str
    offset: int
    length: int
    mode: str
    text: str


class Watchpoint(Source):
    names = ("watchpoint", "w")
    usage = "watchpoint:ADDRESS:LENGTH:MODE"

    def parse(self, parts, target):
        if len(parts) != 3:
            raise self.count_error(3)
        place, length, mode = parts
        address, symbol, offset = try_number(place), "", 0
        if address is None:
            symbol, plus, text = place.partition("+")
            if not symbol or target.pid is None:
                raise SourceError("watchpoint must be attached to a non-zero address, or with -p to a "
                                  "symbol of that process")
            offset = number(text, "offset") if plus else 0
        elif not address:
            raise SourceError("watchpoint must be attached to a non-zero address")
        length = number(length, "length argument")
        if length not in (1, 2, 4, 8):
            raise SourceError("watchpoint length must be one of (1,2,4,8)")
        if not mode or set(mode) - set("rwx"):
            raise SourceError("watchpoint mode must be combination of (r,w,x)")
        if len(set(mode)) != len(mode):
            raise SourceError("watchpoint modes may not be duplicated")
        mode = "".join(sorted(mode))
        modes = abi.host().watch_modes
        if mode not in modes:
            raise SourceError("invalid watchpoint mode: %s" % mode,
                              ["supported modes: " + ",".join(modes)])
        return Spec(address or 0, symbol, offset, length, mode, place)

    def expand(self, spec, target):
        address = spec.address
        if spec.symbol:
            address = symbol_address(target.pid, spec.symbol) + spec.offset
        if address % spec.length and spec.mode != "x":     # an instruction begins anywhere
            raise SourceError("watchpoint address 0x%x is not a multiple of its length %d"
                              % (address, spec.length))
        return [WatchPoint(self, spec, address, target.pid)]

    def list(self, pattern, target):
        return iter(())


def symbol_address(pid, name):
    """Where a symbol of a process's program lies in its memory."""
    binary = paths.exe(pid)
    if pid in paths.held and binary.image.type != "EXEC":
        raise SourceError("where %s will lie is not known before the command runs: %s can be loaded anywhere; start it "
                          "first and use -p" % (name, binary.shown))
    symbol = binary.symbols.find(name)
    if symbol is None:
        names = {each.name for each in binary.symbols.each()}
        raise SourceError("%s has no symbol %s" % (binary.shown, name), nearest(name, names), missing=True)
    return symbol.value + (0 if pid in paths.held else paths.load_bias(pid, binary))


class WatchPoint(TimerPoint):
    def __init__(self, source, spec, address, pid):
        self.source = source
        self.spec = spec
        self.address = address
        self.pid = pid

    user_space = property(lambda self: self.pid is not None)

    @property
    def name(self):
        return "watchpoint:%s:%d:%s" % (self.spec.text if self.spec.symbol else self.address, self.spec.length, self.spec.mode)

    def attr(self):
        from rawbpf.loader import perf

        mode = sum(_MODES[letter] for letter in self.spec.mode)
        length = self.spec.length if mode != 4 else 8  # x86 wants sizeof(long) of an instruction
        return perf.breakpoint(self.address, length, mode)
