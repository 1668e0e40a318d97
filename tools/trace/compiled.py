"""What the compiler hands to the session: programs to load and attach, maps to create, events to read.

The session (or any other caller) does this and needs to know nothing else of the compiler:

    maps = {m.name: Map.create(m.map_type, m.key_size, m.value_size, m.max_entries, flags=m.flags)
            for m in compiled.kernel_maps.values()}
    for p in compiled.programs:
        program = Program.load(p.program_type, p.code.instructions, maps=maps, ...)
        p.points[0].attach(program, p.points, p.cookies)      # or .fire(program) when p.points[0].when
    records of maps[compiled.output_map]: each starts with a u64, the index of its Event
        event = compiled.events[number]; event.handle(session, event.decode(record, host))
    at the end: for info in compiled.maps.values(): info.rows(maps, host)

A *kernel map* is a BPF map; a *script map* (`MapInfo`) is what the script calls @x. They are not the
same: a scalar @x lives in an array of one value, stacks and losses have maps of their own.

What handlers of events call on the session:

    session.host                     a types.Host
    session.emit(result)             an object of results.py
    session.print_map(info, top, div), session.clear_map(info), session.zero_map(info)
    session.exit(code)
"""
import struct
from typing import NamedTuple, Optional

from . import types


# The kernel map of a script with an exit(): u64, not 0 from the first one on; u32, not 0 when its record found no room; then
# its code.
EXITING = "exiting"


class KernelMap(NamedTuple):
    """A BPF map to create; `name` is what the programs' MapRefs say. `max_entries` 0: one a possible
    CPU (perf_event_array). `content`: the values of an array's first elements, set before programs run; a callable is
    asked for its value when the trace starts."""
    name: str
    map_type: str
    key_size: int
    value_size: int
    max_entries: int
    flags: int = 0
    content: tuple = ()


class CompiledProgram(NamedTuple):
    """One program. `points` are mutually `groups_with`: attach with
    `points[0].attach(program, points, cookies)`; those with `when` are fired by the session. `cookies`: the
    numbers by which the program tells its points apart (see point_texts.py), None when it need not.
    `code` is an asm Code; `function` the IR it was made from (for -d)."""
    name: str                       # valid as a BPF object name: [A-Za-z0-9_.]{1,15}
    code: object
    points: list
    cookies: Optional[list] = None
    function: object = None
    probe: object = None            # the ast.Probe

    @property
    def program_type(self):
        return self.points[0].program_type

    @property
    def expected_attach_type(self):
        return self.points[0].expected_attach_type

    @property
    def when(self):
        return self.points[0].when

    def load_options(self):
        """Further keywords of Program.load: what the point needs, and BTF, which says where functions and the script's
        lines begin."""
        options = dict(self.points[0].load_options)
        from rawbpf.asm import code_info
        from rawbpf.loader.btf import BtfObject
        from rawbpf.loader.errors import KernelError
        data, functions, lines = code_info(self.code, _place)
        try:
            options.update(btf=BtfObject.load(data), func_info=functions, line_info=lines)
        except KernelError:
            if len(self.code.functions) > 1:    # it has callbacks: the kernel does not take it without
                raise
        return options


def _place(span):
    """(file, line, column, the line) of a Span, as bpf_line_info has them."""
    if span.origin is not None:
        span = span.origin
    line, column = span.source.position(span.start)
    return span.source.name, line, column, span.source.line(line)[:_LONGEST_LINE]


_LONGEST_LINE = 200     # a script on one line is not repeated for each of its statements


class Batch(NamedTuple):
    """How a run of equal records becomes text without a decode per field: `layout` is a struct format of
    the record from its event number on (without byte order, "=" is meant; `size` bytes in all), and
    `template % values` the text. `texts`: index of a string -> function that cuts its bytes to the text's: widths
    count bytes."""
    layout: str
    template: str
    texts: dict = {}


class Event:
    """One kind of record that programs send. `fields` are (offset, ValueType) in the record; `size` is the
    whole record with the u64 event number at its start; `action(session, values)` is what happens."""

    __slots__ = ("number", "name", "size", "fields", "action", "batch", "span")

    def __init__(self, number, name, size, fields, action, batch=None, span=None):
        self.number, self.name, self.size, self.fields = number, name, size, fields
        self.action, self.batch, self.span = action, batch, span

    def decode(self, record, host=types.UNKNOWN):
        """The record's fields as Python values."""
        return [t.decode(record[offset:offset + t.size], host) for offset, t in self.fields]

    def handle(self, session, values):
        self.action(session, values)

    def __repr__(self):
        return "<Event %d %s>" % (self.number, self.name)


class MapInfo:
    """A map of the script. `key_type` is None for a scalar; `value_type` a types.ValueType (an aggregate's
    `value_type.aggregate` is true). `declared` is the kernel map type of `let @x = TYPE(N)`, or None.

    storage: "data"   one value, in the one element of array `kernel_map`; the last u64 of the element says that
                      it was set (so that a zero can be told from nothing)
             "cpu"    the same per CPU: the element is `stride` bytes for every CPU
             "hash"   keyed, one value for all CPUs
             "percpu" keyed, one value a CPU
    """

    __slots__ = ("name", "kernel_map", "storage", "key_type", "value_type", "stride", "declared",
                 "max_entries")

    def __init__(self, name, kernel_map, storage, key_type, value_type, stride=0, declared=None,
                 max_entries=1):
        self.name, self.kernel_map, self.storage = name, kernel_map, storage
        self.key_type, self.value_type = key_type, value_type
        self.stride, self.declared, self.max_entries = stride, declared, max_entries

    @property
    def scalar(self):
        return self.key_type is None

    # -- reading

    def raw(self, maps):
        """List of (key bytes or None, [value bytes, one or one a CPU]) of everything that was set."""
        map = maps[self.kernel_map]
        if self.storage in ("data", "cpu"):
            data = map.lookup(bytes(4))
            size = self.value_type.size
            step = self.stride or len(data)
            cells = [data[i:i + step] for i in range(0, len(data) - step + 1, step)]
            cells = [c[:size] for c in cells if any(c)]
            return [(None, cells)] if cells else []
        if self.storage == "percpu":
            return list(map.items())
        return [(key, [value]) for key, value in map.items()]

    def rows(self, maps, host=types.UNKNOWN, top=0, div=0):
        """[(key, value)] in the order of printing: by value for numbers and aggregates, else by key; the
        last `top` of them (0: all), divided by `div`. For a scalar: [(None, value)] or []."""
        kind = self.value_type
        rows = []
        for key, cells in self.raw(maps):
            if kind.aggregate:
                value = kind.reduce(cells)
            else:
                value = kind.decode(cells[0], host)
            rows.append((key if key is None else self.key_type.decode(key, host), value, key))
        if kind.aggregate:
            values = kind.together([value for _, value, _ in rows], host)
            rows = [(key, value, raw) for (key, _, raw), value in zip(rows, values)]
        if not self.scalar:
            rows.sort(key=self._order)
            if top and len(rows) > top:
                rows = rows[-top:]
        if div > 1:
            if kind.aggregate:
                return [(key, kind.scaled(value, div)) for key, value, _ in rows]
            if isinstance(kind, types.Integer) and kind.enum is None:
                return [(key, types.divide(value, div)) for key, value, _ in rows]
        return [(key, value) for key, value, _ in rows]

    def _order(self, row):
        key, value, _ = row
        kind = self.value_type
        if kind.aggregate:
            return kind.order(value), self.key_type.sort_key(key)
        if isinstance(kind, types.Integer):
            return value, self.key_type.sort_key(key)
        return 0, self.key_type.sort_key(key)

    def value(self, maps, host=types.UNKNOWN):
        """The map as a Python object: a dict, or a scalar's value (None when it was never set)."""
        rows = self.rows(maps, host)
        if self.scalar:
            return rows[0][1] if rows else None
        return dict(rows)

    # -- changing

    def clear(self, maps):
        """Remove everything."""
        map = maps[self.kernel_map]
        if self.storage in ("data", "cpu"):
            map.update(bytes(4), bytes(len(map.lookup(bytes(4)))))
        else:
            map.clear()

    def zero(self, maps):
        """Set every value that exists to zero."""
        map = maps[self.kernel_map]
        if self.storage == "data" or self.storage == "cpu":
            data = map.lookup(bytes(4))
            step = self.stride or len(data)
            if any(data):
                map.update(bytes(4), (bytes(step - 8) + (1).to_bytes(8, "little")) * (len(data) // step))
        else:
            for key, cells in self.raw(maps):
                zeros = [bytes(len(c)) for c in cells]
                map.update(key, zeros if self.storage == "percpu" else zeros[0])

    def __repr__(self):
        return "<MapInfo %s[%s] %s in %s>" % (self.name, self.key_type, self.value_type, self.storage)


class Loss(NamedTuple):
    """A counter of things that programs could not do, by `kind`: "output" (a record found no room), "map"
    (a new key found no room in map `name`), "stack" (a stack could not be taken or stored), "scratch" (no
    scratch memory was free, so a whole probe hit was skipped). The session adds "missed": hits that the kernel passed
    over."""
    kind: str
    name: str = ""


class Compiled:
    """All that is needed to run a script. `kernel_maps` by name; `maps` are the script's, by name, in
    the order of printing (by name); `events` by number; `output`: "ringbuf" or "perf" (the type of
    `output_map`); `warnings` a list of diagnostics; `config` a config.Config."""

    def __init__(self, programs, kernel_maps, maps, events, config, output, output_map="events",
                 losses=(), warnings=(), script=None):
        self.programs, self.kernel_maps, self.maps = programs, kernel_maps, maps
        self.events, self.config = events, config
        self.output, self.output_map = output, output_map
        self.losses, self.warnings, self.script = list(losses), list(warnings), script

    def stack_frames(self, maps, stack_id):
        """The addresses of a stack, innermost first; [] for one that was not stored."""
        from .builtins.stacks import MAP, frames
        data = maps[MAP].lookup(stack_id.to_bytes(8, "little")) if MAP in maps else None
        return frames(data) if data is not None else []

    def read_losses(self, data):
        """[(Loss, count since the start)] of those that happened; `data`: the value of kernel map `lost`."""
        if not self.losses:
            return []
        counts = struct.unpack_from("=%dQ" % len(self.losses), data)
        return [(loss, n) for loss, n in zip(self.losses, counts) if n]
