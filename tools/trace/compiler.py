"""From a parsed script to what the session runs: see compiled.py.

    Compiler(script, target).compile() -> Compiled

The steps: carry out the C lines and expand macros (preprocess), find the events of every probe and make
groups of those that one program can serve, resolve types over all programs until nothing changes
(resolve), decide how maps are kept (maps), make the code of every program (lower), and hand it to the
code generator.
"""
import os

from . import ast, builtins, maps, point_texts, scratch, types
from .attachpoints import of_kinds
from .compiled import EXITING, Compiled, CompiledProgram, KernelMap, Loss
from .config import Config, ConfigError
from .diagnostics import Diagnostics, ScriptError, format_all
from .machine import Machine
from .resolve import Resolver, Unit
from .types import Aggregate

MAX_PASSES = 20
RING_SIZE = 4 << 20         # bytes of the ring buffer unless perf_rb_pages says otherwise
GUARDED = ("kprobe", "tracepoint", "perf_event")


class NoProbes(ScriptError):
    """Nothing is left that could be attached; `warnings` say why."""

    def __init__(self, warnings):
        super().__init__(None, "No probes to attach")
        self.diagnostics += warnings

    def format(self, color=False):
        return format_all(self.diagnostics[1:], color) + "No probes to attach\n"


class Options:
    """What the command line says: `positional` ($1, ...), `cpid` (the process of -c), `unsafe`, `warnings` while the
    script runs: 0 none, 1 of what goes wrong, 2 also of reads that fail and keys that are not there (-k);
    `probe_filter`: a compiled pattern that names of probes must match, or None."""

    def __init__(self, positional=(), cpid=None, unsafe=False, warnings=1, probe_filter=None):
        self.positional, self.cpid, self.unsafe, self.warnings = list(positional), cpid, unsafe, warnings
        self.probe_filter = probe_filter

LARGEST_VALUE = 1 << 29     # bytes that the verifier lets a helper write (BPF_MAX_VAR_SIZ)


class Compiler:
    """Compiles one ast.Script. `target`: a sources.Target; `output`: "ringbuf" or "perf" to force one; `machine`:
    what it is compiled for; `names`: a preprocess.Names when the C lines were carried out already."""

    def __init__(self, script, target=None, positional=(), cpid=None, machine=None, output=None, environment=None,
                 names=None, include_paths=(), includes=(), diagnostics=None, named=(), warnings=1, probe_filter=None):
        from rawbpf.sources import Target
        self.script = script
        self.target = target or Target()
        self.options = Options(positional, cpid, self.target.unsafe, warnings, probe_filter)
        self.machine = machine or Machine()
        self.diagnostics = diagnostics or Diagnostics()
        try:
            self.config = Config(os.environ if environment is None else environment)
        except ConfigError as error:
            wrong = ScriptError(None, str(error))
            wrong.status = 2
            raise wrong from None
        self.names, self.named = names, named
        self.include_paths, self.includes = include_paths, includes
        self._output = output
        self.maps = {}                  # name -> resolve.MapVariable
        self.storage = {}               # name -> maps.Storage
        self.events, self.event_numbers = [], {}
        self.losses = []
        self.zeros = 0
        self.scratch_size = {}
        self.extra_maps = {}
        self.ending = False             # intervals look at the map EXITING, which exit() sets
        self.point_texts = point_texts.PointTexts()
        self.defaults = False           # a map of which nothing else is known holds integers
        self._warned = set()
        self._constants = {}

    # -- the whole

    def compile(self):
        """The Compiled; ScriptError with everything that is wrong."""
        from .parser import deep_recursion
        self._settings()
        if self.names is None:
            from .frontend import run
            self.names = run(self.script, self._find_type, self.options.positional, self.named, self.include_paths,
                             self.includes, self.diagnostics)
        self._declared_maps()
        with deep_recursion():
            units = self._units()
            self._resolve(units)
            self._plan_maps(units)
            self._plan_exit(units)
            programs = self._programs(units)
        self.diagnostics.check()
        return self._compiled(programs)

    def _settings(self):
        block = self.script.config
        for setting in block.settings if block is not None else ():
            try:
                doubt = self.config.set(setting.name, setting.value)
                if doubt:
                    self.diagnostics.warning(setting.span, doubt)
            except ConfigError as error:
                raise ScriptError(setting.span, str(error))

    def _declared_maps(self):
        from .resolve import MapVariable
        for declaration in self.script.map_declarations:
            if declaration.type not in maps.DECLARED:
                self.diagnostics.error(declaration.span, "Invalid bpf map type: %s" % declaration.type,
                                       ["Valid map types: " + ", ".join(sorted(maps.DECLARED))])
                continue
            var = self.maps[declaration.name] = MapVariable(declaration.name, declaration.span)
            var.declared = declaration
            if not any(isinstance(node, ast.Map) and node.name == declaration.name for node in self.script.walk()):
                self.diagnostics.warning(declaration.span, "Unused map: %s" % declaration.name)
        self.diagnostics.check()

    # -- probes

    def _units(self):
        """A Unit for every program that must be made."""
        units = []
        for probe in self.script.probes:
            if not probe.attach_points:
                continue
            points, vain = [], []
            for written in probe.attach_points:
                meant = self._of_kinds(written)
                for attach_point in filter(self._passes, meant):
                    points += self._expand(attach_point, vain, len(meant) > 1)
            if not points:
                self._nothing_left(probe, vain)
                continue
            reads_args, per_point, follows = self._needs(probe)
            points = [point.followable() for point in points] if follows else points
            for group in _group(points, reads_args, per_point):
                units.append(Unit(probe, group, len(units)))
            if len(units) > self.config.max_bpf_progs:
                raise ScriptError(probe.span, "Your program is trying to generate more than %d BPF programs, "
                                  "which exceeds the current limit" % self.config.max_bpf_progs,
                                  ["You can increase the limit through the BPFTRACE_MAX_BPF_PROGS environment "
                                   "variable."])
        self.diagnostics.check()
        if not units:
            raise NoProbes(self.diagnostics.warnings)
        self._join_sessions(units)
        count = sum(1 if "_multi" in (unit.point.expected_attach_type or "") else len(unit.points) for unit in units)
        if count > self.config.max_probes:
            raise ScriptError(units[-1].probe.span, "Can't attach to %d probes because it exceeds the current limit "
                              "of %d probes." % (count, self.config.max_probes),
                              ["You can increase the limit through the BPFTRACE_MAX_PROBES environment variable, "
                               "but BE CAREFUL since a high number of probes attached can cause your system to "
                               "crash."])
        return units

    def _join_sessions(self, units):
        """A kprobe and the kretprobe of the same functions are one program with one link where the kernel has sessions and
        nothing else is at these places: it costs the function that is traced less."""
        by_place = {}
        for probe in self.script.probes:
            for attach_point in probe.attach_points:
                if attach_point.kind in SESSION_KINDS:
                    by_place.setdefault(tuple(attach_point.parts[1:]), []).append((SESSION_KINDS[attach_point.kind], probe))
        of_probe = {}
        for unit in units:
            of_probe.setdefault(id(unit.probe), []).append(unit)
        for found in by_place.values():
            if sorted(kind for kind, _ in found) != ["kprobe", "kretprobe"]:
                continue
            probes = [probe for _, probe in sorted(found, key=lambda pair: pair[0])]
            pair = [of_probe.get(id(probe), ()) for probe in probes]
            if all(len(probe.attach_points) == 1 and not self._needs(probe)[1] for probe in probes) and all(
                    len(each) == 1 for each in pair):
                (entry,), (returning,) = pair
                points = self.machine.joined(entry.points, returning.points)
                if points:
                    entry.returning, entry.session = returning, points

    def _of_kinds(self, attach_point):
        from rawbpf.sources import SourceError
        try:
            return of_kinds(attach_point, self.target)
        except SourceError as error:
            self.diagnostics.error(attach_point.span, error.reason)
            return []

    def _passes(self, attach_point):
        """Whether --probe-filter lets an attach point through."""
        from rawbpf import sources
        wanted = self.options.probe_filter
        if wanted is None:
            return True
        try:
            shown = sources.find(attach_point.kind).shown
        except sources.SourceError:
            return True         # what is wrong with it is said later
        return shown in ("begin", "end") or bool(wanted.search(":".join([shown, *attach_point.parts[1:]])))

    def _nothing_left(self, probe, vain):
        """A probe that has no points. `vain`: (attach point, SourceError) of its patterns that match nothing."""
        hints = []
        for _, error in vain:
            hints += [error.reason] + (["Did you mean %s?" % " or ".join(error.hints)] if error.hints else [])
        hints = list(dict.fromkeys(hints))
        text, span = "Probe has no valid attach points. ", probe.attach_points[0].span
        if self.config.missing_probes == "warn" and any(map(self._passes, probe.attach_points)):
            self.diagnostics.warning(span, text + "It is being removed which may cause issues with program behavior.",
                                     hints)
        elif vain and self.config.missing_probes == "error":
            self.diagnostics.error(span, text + "If this is expected, set the 'missing_probes' config variable to 'warn'.",
                                   hints)

    def _expand(self, attach_point, vain, one_of_kinds=False):
        """The points of an attach point; a pattern that matches nothing goes to the list `vain`. `one_of_kinds`: it may
        make no sense, or have no such event, for others do."""
        from rawbpf import sources
        told = []       # of damaged files among others
        target = self.target._replace(tell=told.append)
        try:
            source = sources.find(attach_point.kind)
            try:
                spec = source.parse(attach_point.parts[1:], target)
            except sources.SourceError:
                if one_of_kinds:
                    return []
                raise
            points = source.expand(spec, target)
            for text in told + [point.warning for point in points if point.warning]:
                self.warn(attach_point.span, text)
            return points
        except sources.SourceError as error:
            for text in told:
                self.warn(attach_point.span, text)
            hints = ["Did you mean %s?" % " or ".join(error.hints)] if error.hints else []
            if error.warning and not one_of_kinds:
                self.diagnostics.warning(attach_point.span, error.warning, [])
            if one_of_kinds or error.missing and (error.pattern or any(map(sources.has_wildcard, attach_point.parts[1:]))):
                vain.append((attach_point, error))
                return []
            if error.missing and self.config.missing_probes != "error":
                if self.config.missing_probes == "warn":
                    self.diagnostics.warning(attach_point.span, error.reason + " Skipping.", hints)
                return []
            self.diagnostics.error(attach_point.span, error.reason, hints)
            return []

    def _needs(self, probe):
        """(reads args, differs by point, follows pointers for a helper) of a probe's body."""
        reads_args = per_point = follows = False
        for part in (probe.predicate, probe.block):
            for node in part.walk() if part is not None else ():
                if isinstance(node, (ast.Identifier, ast.Call)):
                    entry = builtins.lookup(node.name)
                    if entry is not None:
                        reads_args |= entry.reads_args
                        per_point |= entry.per_point
                        follows |= entry.follows
        return reads_args, per_point, follows

    # -- types

    def _resolve(self, units):
        for self.defaults in (False, True):
            for _ in range(MAX_PASSES):
                if not any([self._pass(unit, False).changed for unit in units]):
                    break
            before = {name: (var.key, var.value) for name, var in self.maps.items()}
            if not self.defaults and all(value is not None for _, value in before.values()):
                self.defaults = True
                break
        for unit in units:
            self._pass(unit, True)
        self._settle_maps()
        self.diagnostics.check()

    def _pass(self, unit, final):
        resolver = Resolver(self, unit, final)
        resolver.run()
        return resolver

    def _settle_maps(self):
        """What is still unknown of maps: one that is only printed, or has no key."""
        for var in list(self.maps.values()):
            if var.value is None or (var.scalar is False and var.key is None):
                if var.declared is None and var.value is None:
                    if self.diagnostics.errors:
                        continue            # whatever sets it is wrong already
                    self.diagnostics.error(var.span, "Undefined map: %s" % var.name)
                else:
                    self.maps.pop(var.name)

    def warn(self, span, message, hints=(), contexts=()):
        """A warning, once for its place."""
        if (span, message) not in self._warned:
            self._warned.add((span, message))
            self.diagnostics.warning(span, message, hints, contexts)

    # -- names of C: what Resolver asks

    def _find_type(self, kind, name):
        btf = self.machine.btf
        return btf.find(name, kind or "typedef") if btf is not None else None

    def named_type(self, kind, name):
        """The elf.types Type called so by the script's C text, the kernel's BTF or C itself, or None."""
        found = self.names.type(kind, name)
        if found is None and kind == "":
            btf = self.machine.btf
            for kind in ("struct", "union", "enum"):
                found = btf.find(name, kind) if btf is not None else None
                if found is not None:
                    break
        return found

    def complete(self, c_type):
        """A C type without typedefs; a struct that is only declared here, as BTF defines it."""
        from rawbpf.elf import types as c
        bare = c.strip(c_type)
        if isinstance(bare, c.Struct) and getattr(bare, "forward", False):
            return self.named_type(bare.kind, bare.name) or bare
        return bare

    def constant(self, name):
        """(value, type) of an enumerator or a C constant, or None."""
        if name not in self._constants:
            self._constants[name] = self._find_constant(name)
        return self._constants[name]

    def _find_constant(self, name):
        found = self.names.enumerator(name)
        if found is not None:
            value, enum = found
            return value, types.Integer(8, enum.signed, enum)
        value = self.names.constant(name)
        if value is None and self.machine.btf is not None:
            found = self.machine.btf.enumeration(name)
            if found is not None:
                value, enum = found
                return value, types.Integer(8, enum.signed, enum)
        if value is None:
            return None
        return value, types.String(len(value) + 1) if isinstance(value, str) else types.literal(value)

    # -- maps, events, losses: what Lowering asks

    @property
    def output(self):
        if self._output is None:
            self._output = "ringbuf" if self.machine.ringbuf else "perf"
        return self._output

    def need_perf_buffer(self):
        """Something in the script writes to perf buffers only."""
        self._output = "perf"

    def interruptible(self, point):
        """Whether another program may run on the CPU in the middle of one on this point."""
        if point.when in ("begin", "end", "signal"):
            return False
        if point.program_type == "kprobe" and point.user_space:
            return self.machine.preemptible_uprobes
        return point.program_type not in GUARDED

    def _plan_maps(self, units):
        used = {name: False for name in self.maps}
        for unit in units:
            if self.interruptible(unit.point):
                for part in (unit.probe.predicate, unit.probe.block):
                    for node in part.walk() if part is not None else ():
                        if isinstance(node, ast.Map) and node.name in used:
                            used[node.name] = True
        for name, var in sorted(self.maps.items()):
            self.storage[name] = maps.plan(self, var, used[name])

    def _plan_exit(self, units):
        """After exit() no interval comes: until the session has heard of it, its programs end at once."""
        exits = any(getattr(builtins.lookup(node.name), "ends", False) for unit in units
                    for part in (unit.probe.predicate, unit.probe.block) if part is not None
                    for node in part.walk() if isinstance(node, ast.Call))
        self.ending = exits and any(unit.point.own for unit in units)
        if exits:
            self.add_kernel_map(KernelMap(EXITING, "array", 4, 16, 1, self.machine.mmapable))

    def add_kernel_map(self, map):
        self.extra_maps[map.name] = map

    def need_zeros(self, size):
        self.zeros = max(self.zeros, size, 8)

    def loss(self, kind, name=""):
        """The number of the counter of a loss."""
        loss = Loss(kind, name)
        if loss not in self.losses:
            self.losses.append(loss)
        return self.losses.index(loss)

    # -- code

    def _programs(self, units):
        programs = []
        returning = {unit.returning for unit in units}
        for unit in units:
            if unit in returning:
                continue
            name, function_name = _program_names(unit)
            try:
                function, code = self._program(unit, function_name)
            except ScriptError as error:
                self.diagnostics.add(error)
                continue
            programs.append(CompiledProgram(name, code, unit.session or unit.points, self.point_texts.cookies(unit), function,
                                            unit.probe))
        return programs

    def _program(self, unit, name):
        """(ir.Function, Code) of a unit. Where the stack is too small for it, all but single numbers go to scratch memory,
        which is slower."""
        from rawbpf.asm import AsmError, compile_function
        from .same_calls import merge_calls
        for frugal in (False, True):
            function = self._function(unit, name, frugal)
            merge_calls(function)
            try:
                return function, compile_function(function, self.machine.cpu_level)
            except AsmError as error:
                if "stack" not in str(error):
                    raise
                reason = error
        raise ScriptError(unit.probe.span, "This probe needs more stack than a BPF program has: %s" % reason,
                          ["use fewer variables across loops, or several probes"])

    def _function(self, unit, name, frugal):
        """The ir.Function of a unit, and of the kretprobe that is one session with it."""
        from rawbpf.asm import ir
        from .lower import Lowering
        f, callbacks = ir.Function(name), 0
        if unit.returning is not None:
            entry, returning = f.block("entry"), f.block("return")
            # a bool: the other bits of the register are the kernel's own
            f.branch("!=", f.alu("&", f.call_kfunc("bpf_session_is_return", f.params[0]), 1), 0, returning, entry)
            f.position(returning)
            lowering = Lowering(self, unit.returning, self._pass(unit.returning, True), f, frugal)
            lowering.run()
            callbacks = lowering.callbacks
            f.position(entry)
        Lowering(self, unit, self._pass(unit, True), f, frugal, callbacks).run()
        return f

    def _compiled(self, programs):
        kernel_maps = {}
        infos = {}
        for name, storage in self.storage.items():
            infos[name] = storage.info
            kernel_maps[storage.kernel_map.name] = storage.kernel_map
        if self.events:
            kernel_maps["events"] = self._event_map()
        for map in [*self.extra_maps.values(), *self.point_texts.kernel_maps(), *scratch.kernel_maps(self),
                    *maps.internal_maps(self)]:
            kernel_maps[map.name] = map
        for map in kernel_maps.values():
            if max(map.key_size, map.value_size) > LARGEST_VALUE or map.max_entries >> 32:
                raise ScriptError(None, "map %s does not fit a BPF map: %d entries of %d + %d bytes, where values have up to 512 MiB "
                                  "and entries 32 bits" % (map.name, map.max_entries, map.key_size, map.value_size))
        return Compiled(programs, kernel_maps, infos, self.events, self.config, self.output, "events", self.losses,
                        self.diagnostics.warnings, self.script)

    def _event_map(self):
        if self.output == "ringbuf":
            import mmap
            pages = self.config.perf_rb_pages
            size = max(4096, 1 << (pages * mmap.PAGESIZE - 1).bit_length()) if pages else RING_SIZE
            return KernelMap("events", "ringbuf", 0, 0, size)
        return KernelMap("events", "perf_event_array", 4, 4, 0)


SESSION_KINDS = {"kprobe": "kprobe", "k": "kprobe", "kretprobe": "kretprobe", "kr": "kretprobe"}
LONGEST_NAME = 100      # the kernel's KSYM_NAME_LEN was 128


def _group(points, reads_args, per_point):
    """Lists of points that one program each can serve, in order of appearance. One that is the same text of
    `per_point` built-ins apart serves many where the kernel can tell it which point was hit."""
    groups, by_key, times = [], {}, {}
    for point in points:
        if per_point and not (point.cookies and point.when is None):
            groups.append([point])
            continue
        key = point.group_key(reads_args)
        if point.once:
            times[point.name] = times.get(point.name, 0) + 1
            key = key, times[point.name]
        if key in by_key:
            by_key[key].append(point)
        else:
            by_key[key] = [point]
            groups.append(by_key[key])
    return groups


def _program_names(unit):
    """Of the program, which has 15 characters, and of its function in BTF, by which fentry:bpf finds it."""
    import re
    point = unit.point
    base = point.when or point.func or point.name.rsplit(":", 1)[-1]
    if base[:1].isdigit():
        base = point.name           # BTF takes names only: of an interval, all of its parts
    base = re.sub("[^A-Za-z0-9_]", "_", base)
    number = "_%d" % (unit.number + 1)
    return base[:15 - len(number)] + number, base[:LONGEST_NAME] + number


__all__ = ["Aggregate", "Compiler", "Options"]
