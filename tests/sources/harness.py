"""Traces a probe with a program of a few instructions and gives the values it saw."""

import contextlib
import struct

from rawbpf import sources
from rawbpf.asm import compile_function, ir
from rawbpf.loader.maps import Map
from rawbpf.loader.program import Program

ROWS = 1024


class Seen:
    """What the program saw: `hits`, and `rows`, a tuple of signed numbers a hit (the first 1024)."""

    def __init__(self, counters, width, points, attachment):
        self._map, self.width, self.points = counters, width, points
        self.refused = attachment.refused

    @property
    def hits(self):
        return struct.unpack_from("<q", self._map.lookup(b"\0" * 4))[0]

    @property
    def rows(self):
        data = self._map.lookup(b"\0" * 4)
        count = min(self.hits, ROWS)
        if not self.width:
            return [()] * count
        return [struct.unpack_from("<%dq" % self.width, data, 8 + 8 * self.width * i)
                for i in range(count)]

    @property
    def last(self):
        """The map's last number: of width 1, the last row's place."""
        return struct.unpack_from("<q", self._map.lookup(b"\0" * 4), 8 * ROWS)[0]


def program_for(point, values, width):
    """(program, map): counts hits and stores what `values(f, ctx, point)` gives (a list of ir
    Values) a hit. Hits on several CPUs at once may overwrite each other's row, not the count."""
    f = ir.Function("seen")
    ctx = f.params[0]
    row = list(values(f, ctx, point))
    assert len(row) == width
    base = f.map_value("seen")
    index = f.load(base, 0, 8)
    f.atomic("+", base, 0, 1)
    if width:
        store, end = f.block("store"), f.block("end")
        f.branch(">=", index, ROWS, end, store)
        f.position(store)
        index = f.alu("&", index, ROWS - 1)
        place = f.alu("+", f.alu("*", index, 8 * width), base)
        for number, value in enumerate(row):
            f.store(place, 8 + 8 * number, value, 8)
        f.jump(end)
        f.position(end)
    f.ret(0)
    counters = Map.create("array", 4, 8 + 8 * width * ROWS, 1)
    options = dict(point.load_options)
    if point.expected_attach_type:
        options["expected_attach_type"] = point.expected_attach_type
    code = compile_function(f).instructions
    return Program.load(point.program_type, code, name="seen", maps={"seen": counters},
                        **options), counters


@contextlib.contextmanager
def tracing(text, values=lambda f, ctx, point: (), width=0, target=sources.Target(), cookies=None,
            args=True):
    """Attach one program to every point of the probe text while the block runs."""
    points = sources.expand(text, target)
    assert all(points[0].groups_with(point, args=args and width > 0) for point in points)
    program, counters = program_for(points[0], values, width)
    with program:  # the map stays readable after it
        given = [cookies(point) for point in points] if cookies else None
        with points[0].attach(program, points, given) as attachment:
            yield Seen(counters, width, points, attachment)


def field(*names):
    """For `values`: scalar fields of args by name."""
    from rawbpf.elf.types import find_field

    return lambda f, ctx, point: [point.field(f, ctx, find_field(point.arguments(), name))
                                  for name in names]


def argument(*numbers):
    return lambda f, ctx, point: [point.argument(f, ctx, n) for n in numbers]


def cookie(f, ctx, point):
    return [f.call("bpf_get_attach_cookie", ctx)]
