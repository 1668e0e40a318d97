"""usdt: the static probes that programs carry as .note.stapsdt notes.

    usdt:BINARY:PROVIDER:NAME   usdt:BINARY:NAME   usdt:*:NAME (-p)

A probe may stand in several places, each with its operands in other registers: places with equal
operands share a program. A semaphore that guards a probe is counted up by the kernel while the probe
is attached (ref_ctr_offset, Linux 4.20+), in processes that start later too.
"""

import functools
from typing import NamedTuple

from . import abi, memory, paths
from .base import (Listed, Source, SourceError, has_wildcard, matcher, literal, nearest, split)
from .uprobe import UprobePoint, has_multi, ignore, require_uprobes


class Spec(NamedTuple):
    binary: str  #: "": the files of the traced process
    provider: str  #: "*" when not given
    name: str


class Usdt(Source):
    names = ("usdt", "U")
    listed = "user"
    usage = "usdt:BINARY:[PROVIDER:]NAME"
    retprobe = False

    def parse(self, parts, target):
        if len(parts) == 1 and target.pid is not None:
            parts = ["", parts[0]]
        if len(parts) not in (2, 3) or not parts[-1]:
            raise self.count_error(2, 3)
        if not parts[0] and target.pid is None:
            raise SourceError("usdt probe must specify at least path or pid to probe. To target "
                              "all paths/pids set the path to '*'.")
        return Spec(parts[0], parts[1] if len(parts) == 3 else "*", parts[-1])

    def expand(self, spec, target):
        require_uprobes()
        binaries = self._binaries(spec.binary, target)
        in_provider, in_name = matcher(spec.provider or "*"), matcher(spec.name)
        points = []
        for binary in binaries:
            for note in notes(binary, target.tell or ignore if len(binaries) > 1 else None):
                if in_provider(note.provider) and in_name(note.name):
                    points.append(UsdtPoint(self, binary, note, target.pid))
        if not points:
            raise self._missing(binaries, spec)
        points.sort(key=lambda point: (point.name, point.vaddr))
        if len(points) > 1 and has_multi(target.pid):
            for point in points:
                point.multi = True
        return points

    def _binaries(self, name, target):
        if target.pid is not None and name in ("", "*"):
            return paths.mapped(target.pid)
        if name == "*":
            return _every_mapped()
        return paths.resolve(name, target)

    def _missing(self, binaries, spec):
        shown = spec.binary or "process"
        known = [(note.provider, note.name, binary) for binary in binaries
                 for note in notes(binary, ignore)]
        reason = "No matches for usdt %s:%s:%s." % (shown, spec.provider, spec.name)
        if not known:
            return SourceError(reason + " No file in question has USDT probes.", missing=True)
        near = nearest(spec.name, {name for _, name, _ in known})
        hints = sorted({"usdt:%s:%s:%s" % (literal(b.shown), literal(p), literal(n))
                        for p, n, b in known if n in near})
        return SourceError(reason, hints[:3], missing=True)

    def list(self, pattern, target):
        parts = split(pattern) if pattern else ["*"]
        if len(parts) == 1:
            binary, provider, name = "", "*", parts[0] or "*"
            binaries = paths.mapped(target.pid) if target.pid is not None else _every_program()
        else:
            binary = parts[0]
            provider, name = (parts[1], parts[2]) if len(parts) > 2 else ("*", parts[1])
            try:
                binaries = self._binaries(binary, target)
            except SourceError:
                return
        in_provider, in_name = matcher(provider or "*"), matcher(name or "*")
        lines = {}
        for each in binaries:
            shown = literal(each.shown if has_wildcard(binary) or not binary else binary)
            for note in notes(each, target.tell or ignore):
                if in_provider(note.provider) and in_name(note.name):
                    line = "usdt:%s:%s:%s" % (shown, literal(note.provider), literal(note.name))
                    lines.setdefault(line, []).append(note)
        for line in sorted(lines):
            yield Listed(line, functools.partial(_arguments, lines[line]))

    def nothing(self, pattern, target):
        parts = split(pattern) if pattern else ["*"]
        return paths.why_empty(parts[0] if len(parts) > 1 else "*", target, notes)


def notes(binary, tell=None):
    """The stapsdt notes of a Binary that have a place in the file. What is wrong with that is a SourceError, or told to
    `tell`."""
    from rawbpf.elf import stapsdt
    from rawbpf.elf.image import ElfError

    try:
        return [n for n in stapsdt.notes(binary.image) if n.location_offset is not None]
    except (ElfError, SourceError) as error:
        if tell is None:
            raise SourceError(str(error)) from None
        tell(str(error))
        return []


def _arguments(notes):
    """What the places of a probe have as arguments: type, name and the operands of the note, a line for each type."""
    found = {}
    for note in notes:
        for n, operand in enumerate(note.arguments):
            text = "".join(c if c.isprintable() else "?" for c in operand.text)
            found.setdefault((n, _type(operand).name), {})[text] = None
    return ["%s arg%d /* %s */" % (kind, n, ", ".join(texts)) for (n, kind), texts in sorted(found.items())]


def _type(operand):
    from rawbpf.elf import types

    if operand.floating:
        return types.Float("double" if operand.size == 8 else "float", operand.size)
    return types.Int("%sint%d_t" % ("" if operand.signed else "u", 8 * operand.size), operand.size, operand.signed)


def _every_mapped():
    """The Binaries mapped by all running processes, each once, by paths that lead to them from here: of files that are
    deleted or in another mount namespace those below /proc."""
    import os

    found, seen = {}, set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                for binary in paths.mapped(int(name)):
                    if binary.path not in seen:
                        seen.add(binary.path)
                        status = os.stat(binary.path)
                        # containers have the same file under paths of their own
                        found.setdefault((status.st_dev, status.st_ino), paths.Binary(binary.path, binary.path))
            except (SourceError, OSError):
                continue  # it ended, or belongs to somebody else
    return list(found.values())


def _every_program():
    """The Binaries in PATH, for a listing that names none."""
    return paths.resolve("*")


class UsdtPoint(UprobePoint):
    """One place of a probe."""

    def __init__(self, source, binary, note, pid, multi=False):
        super().__init__(source, binary, note.name, note.location, 0, pid, None, multi)
        self.note = note
        self.ref_ctr_offset = binary.base + note.semaphore_offset if note.semaphore_offset else 0
        self.warning = _doubt(binary, note)

    at_entry = False
    at_return = False

    @property
    def name(self):
        return "usdt:%s:%s:%s" % (self.binary.shown, self.note.provider, self.note.name)

    @property
    def listed(self):
        return "usdt:" + ":".join(map(literal, (self.binary.shown, self.note.provider, self.note.name)))

    @property
    def func(self):
        return self.note.name

    @property
    def argument_count(self):
        return len(self.note.arguments)

    @property
    def file_offset(self):
        return self.binary.base + self.note.location_offset

    def argument_type(self, n):
        return _type(self.note.arguments[n]) if n < len(self.note.arguments) else None

    def argument(self, f, ctx, n):
        operands = self.note.arguments
        if n >= len(operands):
            raise SourceError("usdt probe %s:%s has %d argument%s: there is no arg%d" % (
                self.note.provider, self.note.name, len(operands),
                "" if len(operands) == 1 else "s", n))
        operand = operands[n]
        if operand.kind in ("unknown", "vector") or operand.floating:
            raise SourceError("arg%d of usdt probe %s:%s (%s) cannot be read: %s" % (
                n, self.note.provider, self.note.name, operand.text,
                operand.reason or "floating-point registers are not in reach of BPF"
                if operand.kind != "memory" else "it is a floating-point number"))
        return read_operand(f, ctx, operand, self)

    def group_key(self, args=True):
        key = ("usdt", self.multi, tuple(self.note.arguments))
        if any(o.relative for o in self.note.arguments):
            key += (self.note.location,)
        return key + ((self.binary.path, self.pid) if self.multi else ())

    def func_address(self, f, ctx):
        return self.pc(f, ctx)


def _doubt(binary, note):
    """What a person should know about a probe with a semaphore that the kernel cannot count up; ""."""
    from rawbpf.elf.image import PF_W, PT_LOAD

    if not note.semaphore:
        return ""
    within = [s for s in binary.image.segments if s.type == PT_LOAD and s.vaddr <= note.semaphore < s.vaddr + s.memsz]
    end = "the kernel cannot count it up, and a program that asks it first does not fire the probe"
    if not note.semaphore_offset:
        where = "is not mapped from the file"
    elif not any(s.flags & PF_W for s in within):
        where = "is in memory that cannot be written"
    elif not any(note.semaphore < s.vaddr + s.filesz for s in within):
        where, end = "is cleared when the program starts", "the kernel counts it up in processes that run already only"
    else:
        return ""
    return "the semaphore of usdt:%s:%s:%s at 0x%x %s: %s" % (
        binary.shown, note.provider, note.name, note.semaphore, where, end)


def read_operand(f, ctx, operand, point):
    """Value of an elf.stapsdt.Operand at `point`, extended to 64 bits by the operand's sign."""
    if operand.kind == "constant":
        bits = 8 * operand.size
        value = operand.value & ((1 << bits) - 1)
        if operand.signed and value >> (bits - 1):
            value -= 1 << bits
        return f.const(value)
    if operand.kind == "register":
        offset = abi.host().registers[operand.register] + operand.register_shift // 8
        return f.load(ctx, offset, operand.width, operand.signed)  # little endian: low bytes first
    if operand.kind == "address":
        return f.alu("+", load_bias(f, ctx, point), operand.value)
    address = None
    if operand.register:
        address = f.load(ctx, abi.host().registers[operand.register], 8)
    if operand.index:
        index = f.load(ctx, abi.host().registers[operand.index], 8)
        if operand.index_size == 4:
            index = f.extend(index, 4, operand.index_signed)
        if operand.index_shift:
            index = f.alu("<<", index, operand.index_shift)
        address = index if address is None else f.alu("+", address, index)
    if operand.relative:
        bias = load_bias(f, ctx, point)
        address = bias if address is None else f.alu("+", address, bias)
    if address is None:
        address = f.const(operand.displacement)
    elif operand.displacement:
        address = f.alu("+", address, operand.displacement)
    return memory.read(f, address, operand.size, operand.signed, True)


def load_bias(f, ctx, point):
    """How far the process has the file from where it was linked: the instruction pointer at the
    probe minus the probe's virtual address."""
    return f.alu("-", point.pc(f, ctx), point.vaddr)
