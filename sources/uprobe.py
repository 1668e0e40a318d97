"""uprobe and uretprobe: any instruction of a program or library, or a function's return.

    uprobe:BINARY:FUNCTION[+OFFSET]   uprobe:BINARY:0xADDRESS   uprobe:libc:mallo*   uprobe:FUNCTION (-p)
    uprobe:BINARY:cpp:"ns::f(int)"   uprobe:BINARY@FILE.c:LINE[:COLUMN]

BINARY is a path, a name that PATH or the dynamic linker's cache finds, or has wildcards. ADDRESS is a
virtual address of the file, as nm and objdump print it. Many places in one file are attached by one
uprobe_multi link (Linux 6.6+); else each by a perf event of the uprobe PMU (4.17+).
"""

import errno
import os
import re
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple

from rawbpf.elf.process import living_thread

from . import paths
from .attach import attach_groups, attach_perf, perf_cookies
from .base import (Listed, Source, SourceError, are_plain, has_wildcard, literal, literal_function, matcher,
                   nearest, number, split, try_number)
from .registers import RegistersPoint


LANGUAGES = ("cpp",)


class Spec(NamedTuple):
    binary: str  #: as written; "" means the traced process's own program
    function: str  #: "" with an address
    offset: int
    address: object  #: int or None
    text: str  #: the last part as written
    language: str = ""  #: "cpp": `function` is a demangled name
    source: str = ""  #: a source file, with `line`
    line: int = 0
    column: object = None  #: with `line`: of a statement, int or None


class Uprobe(Source):
    names = ("uprobe", "u")
    listed = "user"
    usage = "uprobe:BINARY:FUNCTION[+OFFSET] or uprobe:BINARY:ADDRESS"
    retprobe = False

    def parse(self, parts, target):
        if target.pid is not None and (len(parts) == 1 or len(parts) == 2 and parts[0] in LANGUAGES):
            parts = ["", *parts]
        if len(parts) not in (2, 3) or not parts[-1] or not (parts[0] or target.pid is not None):
            raise self.count_error(2, 3)
        if "@" in parts[0] and try_number(parts[1]) is not None and not os.path.exists(parts[0]):
            return self._source_place(parts)
        binary, text = parts[0], parts[-1]
        if len(parts) == 3:
            if parts[1] not in LANGUAGES:
                place = ["uprobe:%s@%s:%s" % (literal(binary), literal(parts[1]), text)] if try_number(text) is not None else []
                raise SourceError("unsupported language type: %s" % parts[1], place or nearest(parts[1], LANGUAGES))
            return Spec(binary, text, 0, None, text, parts[1])
        address = try_number(text)
        if address is not None:
            if has_wildcard(binary):
                raise SourceError("Cannot use wildcards with absolute address")
            return Spec(binary, "", 0, address, text)
        function, plus, offset = text.rpartition("+")
        if plus and try_number(offset) is not None:
            if self.retprobe:
                raise SourceError("uretprobes can not be attached to a function offset")
            if has_wildcard(function):
                raise SourceError("Cannot use wildcards with an offset")
            return Spec(binary, function, number(offset, "offset"), None, text)
        return Spec(binary, text, 0, None, text)

    def _source_place(self, parts):
        """uprobe:BINARY@FILE:LINE[:COLUMN]"""
        if self.retprobe:
            raise SourceError("Source code location not allowed")
        binary, _, file = parts[0].rpartition("@")
        if not binary or not file:
            raise SourceError("Invalid uprobe arguments, expected format: uprobe:TARGET@FILE:LINE[:COLUMN]")
        if has_wildcard(binary):
            raise SourceError("Cannot use wildcards with source code location")
        column = number(parts[2], "column number") if len(parts) == 3 else None
        return Spec(binary, "", 0, None, ":".join(parts[1:]), "", file, number(parts[1], "line number"), column)

    def binaries(self, spec, target):
        if not spec.binary:
            return [paths.exe(target.pid)]
        return paths.resolve(spec.binary, target)

    def expand(self, spec, target):
        require_uprobes()
        points = []
        binaries = self.binaries(spec, target)
        for binary in binaries:
            points += self._points(binary, spec, target, len(binaries) == 1)
        if not points:
            raise self._missing(binaries, spec)
        for point in points:
            point.warning = point.warning or point.binary.warning
        if (len(points) > 1 or not _perf_permitted()) and has_multi(target.pid):
            for point in points:
                point.multi = True
        return points

    def _points(self, binary, spec, target, only):
        if spec.address is not None:
            return [self._place(binary, "%d" % spec.address, spec.address, target)]
        if spec.source:
            return self._of_line(binary, spec, target)
        if spec.language:
            return self._matching(binary, spec.function, target, True, only)
        if has_wildcard(spec.function):
            return self._matching(binary, spec.function, target, only=only)
        symbol = _told(binary, None if only else target.tell or ignore, lambda: binary.symbols.find(spec.function))
        if not symbol:
            return []
        if spec.offset and symbol.size and spec.offset >= symbol.size:
            raise SourceError("Offset outside the function bounds ('%s' size is %d)"
                              % (symbol.name, symbol.size))
        refuse_go(self, binary, target)
        if spec.offset and not target.unsafe:
            check_boundary(binary, symbol.value, spec.offset, "%s:%s" % (binary.shown, spec.text))
        text = spec.text if not spec.offset else "%s+%d" % (spec.function, spec.offset)
        return [self._sized(self._point(binary, text, symbol, spec.offset, target), target)]

    def _sized(self, point, target):
        """The point, which is not attached when nothing says where its function ends: what has no size may be data."""
        symbol = point.symbol
        if symbol is not None and not symbol.size and not point.offset and not target.unsafe:
            point.refusal = ("Could not determine boundary for %s (symbol has size 0).\nUse --unsafe to force attachment. "
                             "WARNING: This option could lead to data corruption in the target process." % symbol.name)
        return point

    def _point(self, binary, text, symbol, offset, target):
        """A point at a symbol; of an indirect function, at the code it stands for."""
        point = UprobePoint(self, binary, text, symbol.value + offset, offset, target.pid, symbol)
        if symbol.type == "IFUNC":
            from . import ifunc

            vaddr = ifunc.chosen(binary, symbol, target.pid)
            if vaddr is not None:
                point.vaddr = vaddr + offset
            else:
                point.warning = (
                    "%s is an indirect function (IFUNC) of %s: its symbol is the resolver, which runs "
                    "once in each process, not the code that is called later; give a process that "
                    "runs (-p) to probe that" % (symbol.name, binary.shown))
        return point

    def _place(self, binary, text, vaddr, target):
        """A point at a virtual address, which may be the start of a function or in the middle. With --unsafe, a file that
        is no ELF file is code from its first byte on."""
        if target.unsafe and not binary.base and not binary.is_elf():
            binary.flat = True
            return UprobePoint(self, binary, text, vaddr, 0, target.pid, None)
        found = None
        try:
            found = binary.symbols.at(vaddr)
        except Exception as error:
            if type(error).__name__ != "ElfError":
                raise
        symbol, offset = found or (None, 0)
        if offset and not target.unsafe:
            check_boundary(binary, symbol.value, offset, "%s:%s" % (binary.shown, text))
        return self._sized(UprobePoint(self, binary, text, vaddr, offset, target.pid, symbol), target)

    def _of_line(self, binary, spec, target):
        found = binary.described(lambda dwarf: dwarf.addresses(spec.source, spec.line, spec.column))
        if not found and spec.column is not None:
            columns = binary.described(lambda dwarf: dwarf.columns(spec.source, spec.line))
        if binary.dwarf is None or not found and binary.dwarf_problem:
            raise SourceError("No DWARF debug info found for '%s', cannot attach by source code location.%s"
                              % (binary.shown, binary.dwarf_problem and " %s." % binary.dwarf_problem))
        if not found and spec.column is not None:
            raise SourceError("%s has no statement at line %d, column %d of %s" % (binary.shown, spec.line, spec.column, spec.source),
                              ["uprobe:%s@%s:%d:%d" % (literal(binary.shown), spec.source, spec.line, c) for c in columns], missing=True)
        if not found:
            raise SourceError("%s has no code of line %d of %s" % (binary.shown, spec.line, spec.source),
                              missing=True)
        line, places = found
        text = "%s:%d" % (spec.source, line) + ("" if spec.column is None else ":%d" % spec.column)
        points = [self._place(binary, text, place, target) for place in places]
        if line != spec.line:
            points[0].warning = "line %d of %s has no code: line %d is probed" % (spec.line, spec.source, line)
        for point in points:
            point.separator = "@"
        return points

    def _matching(self, binary, pattern, target, demangled=False, only=True):
        """Points of all functions whose names match, sorted by name; each place once. Not the `only` file: none where
        it is damaged, which target.tell is told."""
        chosen = {}
        for symbol in functions(binary, pattern, None if only else target.tell or ignore, demangled):
            known = chosen.get(symbol.value)
            if known is None or (symbol.name < known.name):
                chosen[symbol.value] = symbol
        points = [self._point(binary, symbol.name, symbol, 0, target)
                  for symbol in sorted(chosen.values(), key=lambda s: s.name)
                  if binary.image.file_offset(symbol.value) is not None]
        if points:
            refuse_go(self, binary, target)
        return points

    def _missing(self, binaries, spec):
        reason = "No matches for %s %s:%s." % (self.shown, spec.binary or binaries[0].shown, spec.text)
        hints = []
        if not has_wildcard(spec.function) and len(binaries) == 1:
            try:
                names = binaries[0].function_names
            except Exception as error:
                if type(error).__name__ not in ("ElfError", "SourceError"):
                    raise
                raise _source_error(error) from None
            hints = ["%s:%s:%s" % (self.shown, literal(binaries[0].shown), literal_function(name))
                     for name in nearest(spec.function, names)]
            problems = binaries[0].symbols.problems
            if problems:
                reason += " %s." % problems[0]
            elif not names:
                reason += " The file has no symbols (stripped?); an address can be given instead."
        return SourceError(reason, hints, missing=True)

    def list(self, pattern, target):
        binary, language, function = _cut(pattern)
        given = binary is not None
        if given or target.pid is None:
            try:
                binaries = paths.resolve(binary if given else "*", target)
            except SourceError:
                return
        else:
            binaries = paths.mapped(target.pid)
        listings = [self._listed(each, literal(binary if given and not has_wildcard(binary) else each.shown), language,
                                 function or "*", target.tell or ignore) for each in binaries]
        if len(listings) == 1:
            yield from listings[0]
        else:
            yield from sorted((line for lines in listings for line in lines), key=lambda line: line.text)

    def nothing(self, pattern, target):
        binary, _, function = _cut(pattern)
        try:
            spec = self.parse(split(pattern), target) if binary else None
            if spec and (spec.address is not None or spec.offset or spec.source):
                for point in self.expand(spec, target):
                    point.file_offset       # a SourceError where there is no code
                return "listings have the names of functions, not all places in them; this one can be probed"
        except SourceError as error:
            if len(split(pattern)) == 2:    # in more there may be a name with colons
                return error.reason
        return paths.why_empty(binary or "*", target, lambda each: functions(each, function or "*"))

    def _listed(self, binary, shown, language, pattern, tell):
        """The functions of one file, sorted by their lines."""
        prefix, plain = "%s:%s:" % (self.shown, shown), False
        if language:
            prefix = ""
            texts = {self._line(shown, language, s.name): s.name for s in functions(binary, pattern, tell, True)}
        else:
            texts = names(binary, pattern, tell)
            plain = are_plain(texts)        # mostly every name is
            if not plain:
                texts = {literal_function(name): name for name in texts}
        order = sorted(texts)
        yield from map(tuple.__new__, repeat(_ListedFunction), zip(
            map(prefix.__add__, order), order if plain else map(texts.get, order), repeat(self), repeat(binary)))

    def _line(self, shown, language, name):
        from rawbpf.elf.demangle import demangle

        readable = demangle(name)
        if readable != name:  # always in quotes: it has parameters
            name = '"%s"' % readable.replace("\\", "\\\\").replace('"', '\\"')
        return "%s:%s:%s:%s" % (self.shown, shown, language, name)


class _ListedFunction(tuple):
    """A Listed of a function of a file, of which half a million must be cheap: (text, name, Uprobe, Binary)."""

    __slots__ = ()
    text = property(itemgetter(0))
    verbose, __repr__ = Listed.verbose, Listed.__repr__

    @property
    def arguments(self):
        _, name, source, binary = self
        symbol = next(s for s in binary.symbols.find_all(name) if s.is_function)
        return UprobePoint(source, binary, symbol.name, symbol.value, 0, None, symbol).declarations()


class Uretprobe(Uprobe):
    names = ("uretprobe", "ur")
    listed = ""
    usage = "uretprobe:BINARY:FUNCTION"
    retprobe = True


def _cut(pattern):
    """Binary, language and function of a listing pattern (None when not given); quotes keep ":" in
    each."""
    parts = split(pattern)
    if len(parts) == 1:
        return None, "", parts[0]
    if parts[1] in LANGUAGES and len(parts) > 2:
        return parts[0], parts[1], ":".join(parts[2:])
    return parts[0], "", ":".join(parts[1:])


def functions(binary, pattern, tell=None, demangled=False):
    """The Symbols of functions with code in the file whose names match; with `demangled`, those whose
    C++ or Rust names do (without the parameters, unless the pattern has some). What is wrong with the file is a
    SourceError, or told to `tell`."""
    return _told(binary, tell, lambda: _named(binary, pattern, demangled))


def names(binary, pattern, tell):
    """The names of these functions as the keys of a dict: quicker, for there may be half a million."""
    def look():
        if not has_wildcard(pattern) or "*" not in pattern and "?" not in pattern:      # of one called "a[b]c", too
            return dict.fromkeys(symbol.name for symbol in _named(binary, pattern, False))
        found = binary.symbols.function_names()
        return dict.fromkeys(filter(matcher(pattern), found)) if pattern.strip("*") else found
    return _told(binary, tell, look)


def _told(binary, tell, look):
    from rawbpf.elf.image import ElfError

    try:
        found = look()
    except (ElfError, SourceError) as error:
        if tell is None:
            raise _source_error(error) from None
        tell(str(error))
        return {}
    for problem in binary.symbols.problems if tell else ():
        tell(str(problem))
    return found


def ignore(problem):
    """Of a damaged file among others nobody wants to know."""


def _named(binary, pattern, demangled):
    matches = matcher(pattern)
    if demangled:
        from rawbpf.elf.demangle import demangle

        whole = "(" in pattern
        return [s for s in binary.symbols.functions()
                if matches(s.name) or any(map(matches, _spellings(demangle(s.name, whole))))]
    if not has_wildcard(pattern):
        return [s for s in binary.symbols.find_all(pattern) if s.is_function and "@" not in pattern]
    if not pattern.strip("*"):
        return list(binary.symbols.functions())
    if "*" not in pattern and "?" not in pattern and "@" not in pattern:
        exactly = [s for s in binary.symbols.find_all(pattern) if s.is_function]
        if exactly:
            return exactly      # a function that is called "a[b]c"
    return [s for s in binary.symbols.functions() if matches(s.name)]


def _spellings(name):
    """A demangled name as it is, and without the return type, which only instances of templates have."""
    yield name
    depth = space = 0
    for at, letter in enumerate(name):
        if letter in "<(":
            depth += 1
            if letter == "(" and depth == 1 and at:
                break
        elif letter in ">)":
            depth -= 1
        elif letter == " " and not depth:
            space = at + 1
    if space and not name[:space].endswith("operator "):
        yield name[space:]


def check_boundary(binary, start, offset, where):
    """SourceError when no instruction begins at `offset` of the function at `start`."""
    from .instruction_length import is_boundary

    image = binary.image
    place = image.file_offset(start)
    if place is None:
        return
    code = bytes(image.buffer[place:place + offset + 16])
    if is_boundary(image.machine, code, offset) is False:
        raise SourceError("Could not add uprobe into middle of instruction: %s (--unsafe does it all the "
                          "same, and corrupts the program)" % where)


def refuse_go(source, binary, target):
    """Go moves stacks and finds its way by return addresses; a uretprobe replaces one."""
    if source.retprobe and not target.unsafe and (
            binary.image.section(".go.buildinfo") or binary.image.section(".note.go.buildid")):
        raise SourceError("%s is a Go program: a uretprobe changes a return address on a stack that Go "
                          "walks and moves, which crashes the program; --unsafe does it all the same"
                          % binary.shown)


def _source_error(error):
    return error if isinstance(error, SourceError) else SourceError(str(error))


def require_uprobes():
    if os.path.exists("/sys/bus/event_source/devices/uprobe"):
        return
    from rawbpf.loader import kernel

    if kernel.release() < (4, 17):
        raise SourceError("uprobes need Linux 4.17 or later, this is %s" % os.uname().release)
    raise SourceError("this kernel has no uprobes (CONFIG_UPROBE_EVENTS is not set)")


def _perf_permitted():
    """May this process open uprobe events? New kernels want CAP_SYS_ADMIN for it, and CAP_PERFMON for a link."""
    from rawbpf.loader import kernel

    return kernel.has_capability("CAP_SYS_ADMIN")


def has_multi(pid=None):
    """Is there a uprobe_multi link that does it? Limited to a process it left out the process's other
    threads before 6.10."""
    from rawbpf.loader import features, kernel

    return features.has_link("uprobe_multi") and (pid is None or kernel.release() >= (6, 10) and living_thread(pid) == pid)


class UprobePoint(RegistersPoint):
    """One place in one file. `text` is its name there, a number for an address; `vaddr` its virtual address."""

    program_type = "kprobe"
    refusal = ""  #: why it is not attached, known beforehand
    user_space = True
    last_first = True
    ref_ctr_offset = 0
    separator = ":"

    def __init__(self, source, binary, text, vaddr, offset, pid, symbol=None, multi=False):
        self.source = source
        self.binary = binary
        self.text = text
        self.vaddr = vaddr
        self.offset = offset
        self.pid = pid
        self.symbol = symbol
        self.multi = multi

    @property
    def at_entry(self):
        return not self.source.retprobe and not self.offset

    @property
    def at_return(self):
        return self.source.retprobe

    @property
    def inside(self):
        return bool(self.offset)

    def named_type(self, kind, name):
        return self.binary.named_type(kind, name)

    def prototype(self):
        from rawbpf.elf import types

        def look(dwarf):
            function = dwarf.function(self.vaddr - self.offset)
            if function is not None:        # its types are read when asked for: what is damaged is to show here
                for each in [function.returns, *(parameter.type for parameter in function.parameters)]:
                    str(types.strip(each)), types.declaration(each)
            return function
        return self.binary.described(look)

    @property
    def no_arguments(self):
        if self.at_return:
            return "at a return the arguments are gone: keep them in a map by tid at the uprobe"
        if self.offset:
            return "inside a function only registers are known: reg(\"di\"), arg0, ..."
        where = self.binary.shown
        if self.binary.dwarf_problem:
            return "%s (else arg0, arg1, ...)" % self.binary.dwarf_problem
        return "%s (else arg0, arg1, ...)" % ("the debug information of %s does not describe this function" % where
                                             if self.binary.dwarf is not None else "%s has no debug information" % where)

    @property
    def expected_attach_type(self):
        return "trace_uprobe_multi" if self.multi else None

    @property
    def func(self):
        return self.symbol.name if self.symbol else None

    @property
    def name(self):
        return "%s:%s%s%s" % (self.source.shown, self.binary.shown, self.separator, self.text)

    @property
    def listed(self):
        function, plus, offset = self.text.rpartition("+")
        if self.separator == "@" or self.symbol is None:
            text = self.text
        elif self.offset and plus:
            text = "%s+%s" % (literal_function(function), offset)
        else:
            text = literal_function(self.text) if try_number(self.text) != self.vaddr else self.text
        return "%s:%s%s%s" % (self.source.shown, literal(self.binary.shown), self.separator, text)

    @property
    def cookies(self):
        return self.multi or perf_cookies()

    @property
    def file_offset(self):
        return self.binary.file_offset(self.vaddr)

    def func_address(self, f, ctx):
        from rawbpf.loader import features

        if not self.at_return:
            return self.pc(f, ctx)
        if self.multi and features.has_helper("bpf_get_func_ip", "kprobe"):
            return f.call("bpf_get_func_ip", ctx)
        return None

    def declarations(self):
        """The parameters by DWARF, with the stars at the types as bpftrace writes those."""
        from rawbpf.elf.types import declaration

        function = None if self.at_return else self.prototype()
        if function is None:
            return []
        texts = [declaration(p.type).replace(" *", "*") for p in function.parameters]
        return ["%s %s" % (re.sub(r"\*(?=[a-z])", "* ", text), p.name)
                for text, p in zip(texts, function.parameters)]

    def group_key(self, args=True):
        key = ("uprobe", self.multi, self.at_entry, self.at_return)
        if self.multi:
            key += (self.binary.path, self.pid)
        return key + (self.args_key(),) if args else key

    def attach(self, program, points, cookies=None):
        for point in points:
            if point.refusal:
                raise SourceError(point.refusal)
        if self.multi:
            return attach_multi(program, points, cookies, self.at_return)
        from rawbpf.loader import perf

        def open_event(point):
            attr = perf.uprobe(point.binary.path, point.file_offset, point.ref_ctr_offset,
                               point.at_return)
            return attr, -1 if point.pid is None else living_thread(point.pid), -1

        return attach_perf(program, points, open_event, cookies, _explain)


def attach_multi(program, points, cookies, retprobe):
    """One uprobe_multi link a file."""
    from rawbpf.loader.link import attach_uprobe_multi

    groups = {}
    for index, point in enumerate(points):
        cookie = cookies[index] if cookies else None
        groups.setdefault((point.binary.path, point.pid), []).append((point, cookie))

    def link_of(group):
        first, cookie = group[0]
        references = [p.ref_ctr_offset for p, _ in group]
        return attach_uprobe_multi(
            program, first.binary.path, [p.file_offset for p, _ in group], references if any(references) else None,
            None if cookie is None else [c for _, c in group], first.pid or 0, retprobe)

    return attach_groups(list(groups.values()), link_of, _explain)


def _explain(point, error):
    if error.errno in (errno.ENOTSUP, errno.EOPNOTSUPP, 524):
        return "the kernel cannot put a probe on the instruction at 0x%x" % point.vaddr
    if error.errno == errno.EINVAL:
        why = _why_invalid(point)
        return "%s: %s" % (str(error).partition(":")[0], why) if why else str(error)
    return str(error)


def _why_invalid(point):
    """What is wrong with a semaphore; ""."""
    from .usdt import notes

    if point.ref_ctr_offset % 2:
        return "its semaphore is at an odd address, where the kernel cannot count it up"
    if point.ref_ctr_offset:
        other = "a uprobe"
    else:
        note = next((n for n in notes(point.binary, ignore) if n.semaphore_offset and n.location == point.vaddr), None)
        if note is None:
            return ""
        other = "the USDT probe %s:%s" % (note.provider, note.name)
    return ("%s is perhaps traced at the same place: the kernel counts a semaphore for all probes of a place or for none"
            % other)
