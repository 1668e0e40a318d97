"""iter: a program that runs once for each of the kernel's tasks, files, maps, ... (Linux 5.8+).

    iter:task   iter:task_file   iter:task:PIN   iter:bpf_map_elem:MAP

The context is `struct bpf_iter__NAME`; the program runs when the attachment is read. What is walked is
narrowed by union bpf_iter_link_info (uapi linux/bpf.h): one process's tasks (-p, 6.1+), one map's elements
(MAP is its id or pin), a tree of cgroups (all of them here).
"""

import functools
import os
import struct
from typing import NamedTuple

from . import kernel_btf
from .base import Attachment, Listed, Point, Source, SourceError, has_wildcard, matcher, nearest

_STRUCT = "bpf_iter__"
_OF_A_MAP = ("bpf_map_elem", "bpf_sk_storage_map", "sockmap")
_OF_TASKS = ("task", "task_file", "task_vma")
_DESCENDANTS_PRE = 2  # BPF_CGROUP_ITER_DESCENDANTS_PRE, of the root when no cgroup is named


class Spec(NamedTuple):
    iterator: str
    pin: str
    map: str = ""  #: id or path of the pin, for the iterators of a map's elements


class Iter(Source):
    names = ("iter", "it")
    listed = "kernel"
    usage = "iter:NAME[:PIN] or iter:NAME:MAP"

    def parse(self, parts, target):
        if len(parts) not in (1, 2):
            raise self.count_error(1, 2)
        if any(map(has_wildcard, parts)):
            raise SourceError("iter probe type does not support wildcards")
        if not parts[0]:
            raise SourceError("iter should specify a iterator's name")
        rest = parts[1] if len(parts) == 2 else ""
        return Spec(parts[0], "", rest) if parts[0] in _OF_A_MAP else Spec(parts[0], rest)

    def expand(self, spec, target):
        names = iterators()
        if spec.iterator not in names:
            raise SourceError("iter %s not available for your kernel version." % spec.iterator,
                              ["iter:" + name for name in nearest(spec.iterator, names)], missing=True)
        return [IterPoint(self, spec, target.pid)]

    def list(self, pattern, target):
        matches = matcher(pattern or "*")
        try:
            names = iterators()
        except SourceError:
            return
        for name in sorted(filter(matches, names)):
            if loads(name):
                yield Listed("iter:" + name, IterPoint(self, Spec(name, "")).declarations)


@functools.lru_cache(maxsize=1)
def iterators():
    """{name: module} of the iterators that BTF tells of."""
    found = {}
    for module in kernel_btf.modules():
        btf = kernel_btf.of(module)
        for name, _ in btf.names("struct") if btf is not None else ():
            if name.startswith(_STRUCT) and not name.endswith("__safe_trusted"):
                found.setdefault(name[len(_STRUCT):], module)
    return found


def loads(name):
    """Does the kernel load a program for this iterator?"""
    from rawbpf.asm import compile_function, ir
    from rawbpf.loader.program import Program

    options = IterPoint(None, Spec(name, "")).load_options
    if not options["attach_btf_id"]:
        return False
    f = ir.Function("probe")
    f.ret(0)
    try:
        Program.load("tracing", compile_function(f).instructions, expected_attach_type="trace_iter",
                     **options).close()
    except OSError:
        return False
    return True


class IterPoint(Point):
    program_type = "tracing"
    expected_attach_type = "trace_iter"
    when = "iter"

    def __init__(self, source, spec, pid=None):
        self.source = source
        self.spec = spec
        self.pid = pid
        self.map = None  #: the Map to walk, for Python programs; else the spec names it

    @property
    def name(self):
        return ":".join(filter(None, ("iter", self.spec.iterator, self.spec.map)))

    @property
    def btf(self):
        return kernel_btf.of(iterators()[self.spec.iterator])

    @property
    def load_options(self):
        return {"attach_btf_id": self.btf.find_id("bpf_iter_" + self.spec.iterator, "func")}

    def context(self):
        """The type of `ctx`: struct bpf_iter__NAME."""
        return self.btf.find(_STRUCT + self.spec.iterator, "struct")

    def arguments(self):
        """The members without `meta`, which stand in anonymous unions of 8 bytes."""
        from rawbpf.elf import types

        fields = []
        for member in self.context().fields:
            inner = types.strip(member.type)
            if not member.name and isinstance(inner, types.Struct) and inner.fields:
                member = inner.fields[0]._replace(offset=member.offset)
            if member.name != "meta":
                fields.append(member)
        return types.Struct("struct", _STRUCT + self.spec.iterator, self.context().size, fields)

    def guard(self, f, ctx):
        """The object itself: the run at the end has none. The elements of a map come with the map,
        which is there always; of a kernel symbol, the one before stays there."""
        from rawbpf.elf import types

        if self.spec.iterator == "ksym":
            return self._symbol_guard(f, ctx)
        for field in self.arguments().fields:
            if isinstance(types.strip(field.type), types.Pointer):
                if field.name != "map" or self.spec.iterator not in _OF_A_MAP:
                    return f.load(ctx, field.offset, 8)
        return None

    def _symbol_guard(self, f, ctx):
        """At the end, kallsym_iter is past the modules' symbols (pos_mod_end is set) and at a position that no
        event was made for; vmlinux' symbols leave `pos` one further on, too."""
        from rawbpf.elf.types import find_field, strip

        def load(base, struct, name):
            field = find_field(struct, name)
            return f.load(base, field.offset, 8), strip(field.type).target

        value, there, end = f.variable(), f.block("symbol"), f.block("guarded")
        meta, meta_type = load(ctx, self.context(), "meta")
        symbol, symbol_type = load(ctx, self.context(), "ksym")
        f.set(value, 0)
        f.branch("==", symbol, 0, end, there)
        f.position(there)
        sequence = f.load(meta, find_field(strip(meta_type), "seq_num").offset, 8)
        symbol_type, past = strip(symbol_type), f.block("past")
        f.set(value, f.compare("==", f.load(symbol, find_field(symbol_type, "pos").offset, 8), sequence))
        f.branch("==", f.load(symbol, find_field(symbol_type, "pos_mod_end").offset, 8), 0, past, end)
        f.position(past)
        f.set(value, 1)
        f.jump(end)
        f.position(end)
        return value

    def field(self, f, ctx, field):
        from rawbpf.elf import types

        bare = types.strip(field.type)
        if isinstance(bare, (types.Int, types.Enum)):
            return f.load(ctx, field.offset, bare.size, bare.signed)
        # The verifier allows nothing with a pointer that may be null before it has been compared.
        pointer, value = f.load(ctx, field.offset, 8), f.variable()
        there, end = f.block("there"), f.block("end")
        f.set(value, 0)
        f.branch("==", pointer, 0, end, there)
        f.position(there)
        f.set(value, pointer)
        f.jump(end)
        f.position(end)
        return value

    def args_address(self, f, ctx):
        return f.copy(ctx)

    def declarations(self):
        return [kernel_btf.declaration(field.type, field.name) for field in self.arguments().fields]

    def group_key(self, args=True):
        return ("iter", self.spec)

    def fire(self, program):
        """Run the iterator once; what the program writes for readers of the iterator is dropped: a script's output goes its
        own way. One that is pinned runs for whoever reads the file: its path is returned."""
        with self.attach(program, [self]) as attachment:
            if self.spec.pin:
                return self.pin_path
            attachment.read()

    @property
    def pin_path(self):
        return self.spec.pin if self.spec.pin.startswith("/") else "/sys/fs/bpf/" + self.spec.pin

    def attach(self, program, points, cookies=None):
        from rawbpf.loader.link import attach_iter

        with self._walked() as walked:
            try:
                link = attach_iter(program, walked.info)
            except OSError as error:
                raise SourceError("%s: %s" % (self.name, error)) from error
        if self.spec.pin:
            try:
                link.pin(self.pin_path)
            except BaseException:
                link.close()
                raise
        return IterAttachment(link)

    def _walked(self):
        """What is walked, open as long as the link needs it to be made."""
        kind = self.spec.iterator
        if kind in _OF_A_MAP:
            return _OneMap(self)
        if kind == "cgroup":
            return _Walked(struct.pack("=IIQ", _DESCENDANTS_PRE, 0, 0))
        if kind in _OF_TASKS and self.pid is not None:
            from rawbpf.loader import introduced

            if introduced.since((6, 1), ""):
                raise SourceError("%s: %s" % (self.name, introduced.since((6, 1), "an iterator of one process")))
            return _Walked(struct.pack("=III4x", 0, self.pid, 0))
        return _Walked(b"")


class _Walked:
    """A union bpf_iter_link_info."""

    def __init__(self, info):
        self.info = info

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None


class _OneMap(_Walked):
    def __init__(self, point):
        from rawbpf.loader.maps import Map

        self._opened, text = None, point.spec.map
        if point.map is None:
            if not text:
                raise SourceError("%s walks one map: name it by id or pin, as in iter:%s:17"
                                  % (point.name, point.spec.iterator))
            try:
                self._opened = (Map.from_id(int(text)) if text.isdigit() else
                                Map.pinned(text if text.startswith("/") else "/sys/fs/bpf/" + text))
            except OSError as error:
                raise SourceError("%s: %s" % (point.name, error)) from error
        super().__init__(struct.pack("=I12x", (point.map or self._opened).fileno()))

    def __exit__(self, *exc):
        if self._opened is not None:
            self._opened.close()


class IterAttachment(Attachment):
    def __init__(self, link):
        super().__init__([link])
        self.link = link

    def read(self):
        """Run the iterator once from beginning to end; the bytes that the program wrote with
        bpf_seq_write or bpf_seq_printf."""
        from rawbpf.loader.link import iter_open

        fd = iter_open(self.link)
        chunks = []
        try:
            while True:
                chunk = os.read(fd, 1 << 16)
                if not chunk:
                    return b"".join(chunks)
                chunks.append(chunk)
        finally:
            os.close(fd)
