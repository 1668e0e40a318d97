"""Programs to load, out of whatever file they come in: assembly text, ELF objects, raw instructions, scripts.

`read(paths, type)` gives `Unit`s, each one program with all that `Program.load` wants; `Unit.load` makes its maps
and loads it.
"""

import os

from rawbpf.asm import AsmError, MapRef, slot_numbers

from .failure import Failure, read_bytes


class Unit:
    """One program. `lines`: (file, line number, text) for each instruction, or None; `maps`: MapDefinitions by name;
    `data`: asm.text.Data by name; `starts`: {function: index}; `options`: function () -> keywords of Program.load."""

    def __init__(self, file, name, type, instructions, lines=None, maps=None, data=None, license=None, starts=None,
                 options=dict, kernel_maps=None):
        self.file, self.name, self.type, self.instructions = file, name, type, instructions
        self.lines = lines or [None] * len(instructions)
        self.maps, self.data, self.license = maps or {}, data or {}, license or ""
        self.starts, self.options, self.kernel_maps = starts or {}, options, kernel_maps
        self._maps = None

    def make_maps(self):
        """The maps that the program refers to, by name; made once."""
        if self._maps is None:
            from rawbpf.loader.maps import Map
            if self.kernel_maps is not None:
                self._maps = {m.name: Map.create(m.map_type, m.key_size, m.value_size, m.max_entries, name=m.name,
                                                 flags=m.flags) for m in self.kernel_maps}
                return self._maps
            self._maps = {}
            for name in dict.fromkeys(i.ref.name for i in self.instructions if type(i.ref) is MapRef):
                self._make(name)
        return self._maps

    def _make(self, name):
        from rawbpf.loader.maps import Map
        from rawbpf.loader.uapi import F_RDONLY_PROG
        if name in self._maps:
            return self._maps[name]
        if name in self.data:
            data = self.data[name]
            constant = name.startswith(".rodata")
            made = Map.create("array", 4, max(len(data.content), 1), 1, name=name, flags=F_RDONLY_PROG if constant else 0)
            if data.content:
                made.update(bytes(4), bytes(data.content))
            if constant:
                made.freeze()
        else:
            m = self.maps.get(name)
            if m is None:
                raise Failure("%s: the program refers to the map %s, which is not defined" % (self.file, name))
            options = dict(m.options)
            inner = options.pop("inner", None)
            options.pop("pinning", None)
            made = Map.create(m.type, m.key_size, m.value_size, m.max_entries, name=name, flags=m.flags,
                              inner_map=self._make(inner) if inner else None, **options)
        self._maps[name] = made
        return made

    def load(self, log_level=0, **log):
        """The loaded Program. `log`: log_size and log_end of Program.load. VerifierError, KernelError."""
        from rawbpf.loader.program import Program
        options = self.options()
        if len(self.starts) > 1 and "btf" not in options:
            from rawbpf.loader.btf import BtfObject, function_types
            slots = slot_numbers(self.instructions)
            data, info = function_types([(name, slots[index]) for index, name in sorted(
                (index, name) for name, index in self.starts.items())])
            options.update(btf=BtfObject.load(data), func_info=info)
        return Program.load(self.type, self.instructions, name=self.name, license=self.license, maps=self.make_maps(),
                            log_level=log_level, **log, **options)

    def line_at(self, slot):
        """(file, line, text) of the instruction at a slot, or None."""
        from rawbpf.loader.verifier import slot_to_index
        index = slot_to_index(self.instructions, slot) if slot is not None else None
        line = self.lines[index] if index is not None else None
        return line if line and (line[1] or line[2]) else None

    def note_at(self, slot):
        """What is to be said of the instruction at a slot that stands for another, or ""."""
        return ""

    def close(self):
        for made in (self._maps or {}).values():
            made.close()
        self._maps = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def read(path, type=None):
    """The Units of a file. `type`: a program type, or what a section may be called; it goes before what the file says.
    Failure, AsmError, diagnostics.ScriptError."""
    return of_script(path) if path.endswith(".bt") else of_bytes(read_bytes(path), path, type)


def of_bytes(data, path, type=None):
    """The same of the content of a file that is no script."""
    shown = "stdin" if path == "-" else path
    if data.startswith(b"\x7fELF"):
        from .object_units import of_object
        return of_object(data, shown, type)
    if b"\0" in data:
        from rawbpf.asm import decode
        kind = kind_of(type, None, shown)
        try:
            return [Unit(shown, _base(shown), kind[0].program_type, decode(data), license="GPL", options=_options(kind))]
        except AsmError as error:
            raise Failure("%s: %s" % (shown, error)) from None
    from rawbpf.asm import assemble
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Failure("%s: byte %d is no UTF-8 text" % (shown, error.start)) from None
    return of_assembly(assemble(text, shown), shown, type)


def _base(path):
    return os.path.basename(path).partition(".")[0] or "prog"


def kind_of(type, section, path):
    """(SectionType, target) of --type, or else of a section's name. Failure."""
    from .sections import of_section, of_type
    if type is not None:
        kind = of_type(type)
        if kind is None:
            from difflib import get_close_matches
            from rawbpf.loader.uapi import PROG_TYPES
            near = get_close_matches(type, list(PROG_TYPES), 2)
            raise Failure("no program type '%s'%s" % (type, near and "; did you mean %s?" % " or ".join(near) or ""))
        return kind
    kind = of_section(section) if section else None
    if kind is None:
        raise Failure("%s: of which type is the program%s? Say --type TYPE (xdp, kprobe, ...), or name its section "
                      "after what it attaches to" % (path, " in %s" % section if section else ""))
    return kind


def _options(kind):
    from .sections import load_options
    return lambda: load_options(*kind)


def of_assembly(assembly, path, type=None):
    """A Unit for each program of an Assembly."""
    units = []
    named = [s for s in assembly.sections.values() if s.instructions and s.name != ".text"]
    for section in named or [s for s in assembly.sections.values() if s.instructions]:
        kind = kind_of(type, section.name, path)
        for name, part in _programs(assembly, section):
            code, lines, starts = part.link(section.name)
            main = min(starts, key=starts.get) if starts and not min(starts.values()) else name
            starts = {main: 0, **{n: i for n, i in starts.items() if i}}
            units.append(Unit(path, name, kind[0].program_type, code, lines, assembly.maps, assembly.data, assembly.license,
                              starts, _options(kind)))
    if not units:
        raise Failure("%s: there are no instructions" % path)
    return units


def _programs(assembly, section):
    """(name, Assembly with that program alone) of each program in a section: of each global label that is not called
    in it; a section without is one program."""
    from rawbpf.asm.text import Assembly, Section
    slots = slot_numbers(section.instructions)
    called = {slots[index] + 1 + i.imm for index, i in enumerate(section.instructions)
              if i.code == 0x85 and i.src == 1 and i.ref is None}
    heads = {index: name for name, index in section.labels.items()
             if name in assembly.globals and slots[index] not in called}
    first = next((name for name, index in section.labels.items() if not index), None)
    heads.setdefault(0, first or "".join(c if c.isalnum() else "_" for c in section.name.split("/")[-1]).strip("_"))
    if len(heads) == 1:
        return [(heads[0], assembly)]
    out, starts = [], sorted(heads)
    for start, end in zip(starts, [*starts[1:], len(section.instructions)]):
        part = Section(section.name)
        part.instructions, part.lines = section.instructions[start:end], section.lines[start:end]
        part.labels = {n: i - start for n, i in section.labels.items() if start <= i < end}
        part.entries = {n for n in section.entries if start <= section.labels.get(n, -1) < end}
        alone = Assembly()
        alone.sections = {**assembly.sections, section.name: part}
        out.append((heads[start], alone))
    return out


def of_script(path):
    """A Unit for each program that a tracing script becomes."""
    from .trace.diagnostics import ScriptError
    from .trace.engine import compile_script
    text = read_bytes(path).decode("utf-8", "surrogateescape")
    try:
        compiled = compile_script(text, path, unsafe=True)
    except ScriptError as error:
        raise Failure(error.format(color=False).rstrip("\n").replace("ERROR: ", "", 1)) from None
    units = []
    for p in compiled.programs:
        units.append(Unit(path, p.name, p.program_type, p.code.instructions, _script_lines(p.code.spans, path),
                          license=compiled.config.license, starts=dict(p.code.functions), options=_script_options(p),
                          kernel_maps=list(compiled.kernel_maps.values())))
    return units


def _script_options(program):
    return lambda: {"expected_attach_type": program.expected_attach_type, **program.load_options()}


def _script_lines(spans, path):
    lines, known = [], {}
    for span in spans:
        if span is None or span.source is None:
            lines.append(None)
            continue
        key = (id(span.source), span.start)
        if key not in known:
            text = span.source.text
            start = text.rfind("\n", 0, span.start) + 1
            end = text.find("\n", span.start)
            known[key] = (span.source.name, text.count("\n", 0, span.start) + 1, text[start:end if end >= 0 else None])
        lines.append(known[key])
    return lines
