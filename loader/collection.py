"""BPF object files, loaded: programs, maps and global data by name.

    with Object.open("execsnoop.bpf.o") as obj:
        obj.rodata["targ_uid"] = 1000
        obj.load()
        with obj.attach():
            for event in obj.maps["events"]:
                print(event)

The file format is in rawbpf.elf.bpf_object; conventions (section names, `.maps`, `.kconfig`, `__ksym`, CO-RE)
are libbpf's. Nothing touches the kernel before load().
"""

import os
import re
import struct

from rawbpf.elf.bpf_maps import MapDefinition
from rawbpf.asm import Instruction, MapRef
from rawbpf.elf.bpf_object import ARENA, JUMP_TABLES, BpfObjectFile
from rawbpf.elf.bpf_sections import classify

from . import ksyms, struct_ops
from .btf_targets import btf_target, function_of
from .core_relo import CoreResolver
from .errors import KernelError, ObjectError, VerifierError
from .externs import KCONFIG, Externs
from .kobject import Uncopied, fd_of
from .maps import Map
from .object_maps import BPFFS, ArenaMap, DataMap, Globals, ObjectMap
from .program import Program, digest
from .relocate import MISSING_MAP, Linker
from .uapi import ATTACH_TYPES, F_SLEEPABLE, F_XDP_HAS_FRAGS, MAP_TYPES, name_of

_ARRAY, _ARENA = MAP_TYPES["array"], MAP_TYPES["arena"]


class ObjectProgram(Uncopied):
    """One program of an Object. Until it is loaded, these may be changed: `type`, `expected_attach_type`,
    `target` (what the section's name says after its kind), `flags`, `autoload`, `autoattach`,
    `attach_prog` (the loaded Program whose function an ext, fentry or fexit program is for), `ifindex`. `program` is then the loader's Program."""

    def __init__(self, owner, function):
        self._owner, self.function = owner, function
        self.name, self.section = function.name, function.section
        self.become(*classify(function.section))
        self.autoload = not function.section.startswith("?")
        self.autoattach = True
        self.attach_prog, self.ifindex = None, 0
        self.program = self.error = None

    def become(self, kind, target):
        """Takes type, attach type, target and flags of another section name: what bpf_sections.classify says of it."""
        self._kind, self.target = kind, target
        self.type = kind.program_type if kind else None
        self.expected_attach_type = kind.attach_type if kind else None
        self.flags = load_flags(kind) if kind else 0

    @property
    def log(self):
        """The verifier's log: of the program, or of why it was refused."""
        thing = self.program if self.program is not None else self.error
        return getattr(thing, "log", "") or ""

    def link(self):
        """The relocate.Linked instructions, as they are loaded but for the maps' descriptors."""
        return self._owner.linker.link(self.function)

    def load(self, log_level=0, **log):
        """Loads it alone; the object's maps must be there (Object.load() does all that). `log`: log_size and log_end
        of Program.load."""
        self._owner.usable()
        try:
            self.program = self._load(self.target, self.attach_prog, dict(log, log_level=log_level))
            self.error = None
        except (KernelError, ObjectError) as error:
            self.error = error
            raise

    def clone(self, target=None, attach_prog=None, **options):
        """Loads it once more -> Program, which the caller closes; the object, of which only the maps must be there (load()
        or prepare()), stays as it is. In place of what the object says: target (another function to trace, ...),
        attach_prog, maps (by name; those not named are the object's), and all other options of Program.load."""
        self._owner.usable()
        takes = self._kind is not None and ("btf" in self._kind.options or self._kind.attach == "tracing_multi")
        for name, given in (("target", target), ("attach_prog", attach_prog)):
            if given is not None and not takes:
                raise ObjectError("clone of program %s: a %s program takes no %s when it is loaded" % (
                    self.name, self.type, name))
        return self._load(self.target if target is None else target,
                          self.attach_prog if attach_prog is None else attach_prog, options)

    def _load(self, target, attach_prog, given):
        """`given`: options of Program.load that count more than the object's own."""
        if self.type is None:
            raise ObjectError("program %s: the section name %r says no program type" % (self.name, self.section))
        owner, linked = self._owner, self.link()
        instructions, maps = self._with_maps(linked)
        for name, each in dict(given.pop("maps", None) or {}).items():
            if name not in maps and name not in owner.maps:
                raise ObjectError("program %s: the object has no map %s%s" % (self.name, name, _near(name, owner.maps)))
            maps[name] = fd_of(each)
        options = dict(name=self.name, license=owner.file.license, flags=self.flags, ifindex=self.ifindex,
                       expected_attach_type=self.expected_attach_type, maps=maps, token=owner.token)
        options.update(given)
        if isinstance(options["expected_attach_type"], int):
            options["expected_attach_type"] = name_of(ATTACH_TYPES, options["expected_attach_type"])
        if self._kind and "usdt" in self._kind.options and options["expected_attach_type"] is None:
            from . import features
            if features.has_link("uprobe_multi"):       # all its places by one link
                options["expected_attach_type"] = "trace_uprobe_multi"
        if owner.btf is not None and linked.func_info[0] and "btf" not in given:
            for name, value in (("btf", owner.btf), ("func_info", owner.func_info(linked.func_info, self.type)),
                                ("line_info", linked.line_info)):
                options.setdefault(name, value)
        module = None
        if "attach_btf_id" in given or "attach_btf_obj" in given:
            options.setdefault("attach_prog", getattr(attach_prog, "program", attach_prog))
        elif self.type == "struct_ops":
            module = self._struct_ops(options)
        elif self._kind and "btf" in self._kind.options:
            module = self._attach_btf(options, target, attach_prog)
        elif self._kind and self._kind.attach == "tracing_multi" and ":" in target:
            module = options["attach_btf_obj"] = self._module(target.partition(":")[0])
        tables = {}
        try:
            for name, slots in linked.tables.items():
                tables[name] = insn_array(slots, owner.token)
            maps.update(tables)
            return Program.load(self.type, instructions, **options)
        except VerifierError as error:
            raise self._explained(error, linked) from None
        except ValueError as error:
            raise ObjectError("program %s: %s" % (self.name, error)) from None
        finally:
            for each in [*tables.values(), module]:
                if each is not None:
                    each.close()

    def _with_maps(self, linked):
        """(instructions, maps by name): globals of the arena at their place; what refers to a map that is not
        created (autocreate) must not be reached."""
        owner, maps = self._owner, {}
        missing = set()
        for name in linked.maps:
            each = owner.map_of(name)
            if each.map is None:
                if each.autocreate:
                    raise ObjectError("program %s: its map %s is not there: prepare() or load() the object first" % (
                        self.name, name))
                missing.add(name)
            maps[name] = each.map
        if not missing and ARENA not in maps:
            return linked.instructions, maps
        out, slot = [], 0
        for instruction in linked.instructions:
            ref = instruction.ref
            if isinstance(ref, MapRef) and ref.name in missing:
                for at in (slot, slot + 1):
                    out.append(Instruction(0x85, imm=MISSING_MAP))
                    linked.poisons[at] = "map %s, which was not created" % ref.name
            elif isinstance(ref, MapRef) and ref.name == ARENA:
                out.append(instruction._replace(ref=MapRef(ARENA, ref.offset + owner.map_of(ARENA).place)))
            else:
                out.append(instruction)
            slot += instruction.slots
        return out, maps

    def _struct_ops(self, options):
        """What says which function of which struct it is."""
        for each in self._owner.struct_ops:
            found = each.member_of(self.name)
            if found is not None:
                options.update(attach_btf_id=found[0], expected_attach_type=found[1])
                return None if found[2] is None else options.setdefault("attach_btf_obj", self._module(found[2]))
        members = [each for each in self._owner.struct_ops if self.name in each.functions.values()]
        raise ObjectError("program %s: %s" % (self.name, "the kernel's struct %s has no such function" %
                          members[0].struct.name if members else "no struct of .struct_ops refers to it"))

    @staticmethod
    def _module(name):
        from .btf import BtfObject
        return BtfObject.of_module(name)

    def _explained(self, error, linked):
        """A refusal because of a poisoned instruction says what that was."""
        why = linked.poisons.get(error.slot)
        if why is None and re.search(r"unknown#(?:195896080|2001000000|2002000000)\b", error.message or "") and linked.poisons:
            why = next(iter(linked.poisons.values()))
        if why is None:
            return error
        return VerifierError(error.call, error.errno, error.log, "it reaches %s" % why, error.slot,
                             error.instruction)

    def _attach_btf(self, options, target, attach_prog):
        if self.type == "ext" and attach_prog is None:
            raise ObjectError("program %s replaces a function of another: set its attach_prog" % self.name)
        if attach_prog is not None:        # ext, or fentry and fexit of a program's function
            extended = getattr(attach_prog, "program", attach_prog)       # of an ObjectProgram too
            options.update(attach_prog=extended, attach_btf_id=function_of(extended, target))
            return None
        try:
            options["attach_btf_id"], module = btf_target(options["expected_attach_type"], target)
        except ObjectError as error:
            raise ObjectError("program %s: %s" % (self.name, error)) from None
        if module is None:
            return None
        from .btf import BtfObject
        options["attach_btf_obj"] = BtfObject.of_module(module)
        return options["attach_btf_obj"]

    @property
    def attachable(self):
        """Does its section say what it attaches to, in a kind that is attached by that alone?"""
        return bool(self._kind and self._kind.attach and self.target) or bool(
            self._kind and self.type == "ext" and self.attach_prog is not None)

    def attach(self, **options):
        """Attaches it to what its section says (`target`, which may be set) -> Link. Options, where the kind takes
        them: cookie, what bpf_get_attach_cookie() or bpf_usdt_cookie() gives the program; pid, for one process."""
        if self.program is None:
            raise ObjectError("program %s: is not loaded" % self.name)
        if not isinstance(self.target, str):
            raise ObjectError("program %s: its target is a text, as in its section's name, not %r" % (self.name, self.target))
        if not self.attachable:
            raise ObjectError("program %s: the section %r does not say what it attaches to: see attach_to()"
                              % (self.name, self.section))
        from rawbpf.elf.image import ElfError

        from . import autoattach
        try:
            if self._kind.attach == "usdt":
                from . import object_usdt
                return object_usdt.attach(self._owner, self, self.target, **options)
            return autoattach.attach(self.program, self._kind.prefix, self._kind.attach, self.target, **options)
        except (ObjectError, ElfError) as error:
            raise ObjectError("program %s: %s" % (self.name, error)) from None
        except KernelError as error:
            if "program " + self.name not in error.call:
                error.call = "program %s: %s" % (self.name, error.call)
            raise

    def attach_to(self, target=None, **options):
        """Attaches it to a target that its section does not name: an interface, a cgroup, a network namespace, a socket,
        a map to iterate over, ...; autoattach.attach_to has the list -> Link, or what closes as one."""
        if self.program is None:
            raise ObjectError("program %s: is not loaded" % self.name)
        from . import autoattach
        attach_type = options.pop("attach_type", self.expected_attach_type)
        return autoattach.attach_to(self.program, self.type, attach_type, target, section=self.target, **options)

    def fileno(self):
        """The loaded program's descriptor: it can be given where a Program can."""
        if self.program is None:
            raise ObjectError("program %s: is not loaded" % self.name)
        return self.program.fileno()

    def close(self):
        if self.program is not None:
            self.program.close()
        self.program = None

    def __repr__(self):
        return "<ObjectProgram %s %r %s>" % (self.name, self.section, "loaded" if self.program else "not loaded")


def insn_array(slots, token=None):
    """A map of places of a program, by their slots before it is loaded, for `gotox` (6.19+)."""
    made = Map.create("insn_array", 4, 16, len(slots), name=JUMP_TABLES, token=token)
    try:
        for number, slot in enumerate(slots):
            made.update(number, struct.pack("=IIII", slot, 0, 0, 0))      # struct bpf_insn_array_value
        made.freeze()
    except BaseException:
        made.close()
        raise
    return made


def _near(name, names):
    """A sentence's end: the nearest of the names, or all."""
    from difflib import get_close_matches
    near = get_close_matches(name, names, 1) if isinstance(name, str) else ()
    return "; did you mean %s?" % near[0] if near else "; it has " + (", ".join(names) or "none")


def load_flags(kind):
    """The prog_flags that a bpf_sections.SectionType asks for."""
    return (F_SLEEPABLE if "sleepable" in kind.options else 0) | (F_XDP_HAS_FRAGS if "frags" in kind.options else 0)


def _given(path):
    """The Btf to relocate against that the caller names, or None. ElfError at once, not at each relocation."""
    if path is None:
        return None
    from rawbpf.elf.btf import Btf
    return Btf.open(path)


class Object(Uncopied):
    """An object file and, after load(), what was made of it. Attributes: `programs`, `maps` (dicts by name),
    `rodata`, `data`, `bss`, `kconfig`, `arena` (variables by name), `struct_ops` (those of the maps), `license`, `name`, `file` (BpfObjectFile), `btf`
    (BtfObject or None). Errors: ElfError and ObjectError about the file, KernelError about the kernel."""

    def __init__(self, file, name=None, pin_root=BPFFS, btf_path=None, kconfig=None, token=None):
        self.file, self.pin_root, self.btf, self._clones = file, os.fsdecode(pin_root), None, None
        self._pins, self.closed, self._prepared = [], False, False
        if kconfig is not None and not hasattr(kconfig, "get"):
            raise ValueError("kconfig is a dict, as {'CONFIG_X': 'y'}, not %r" % (kconfig,))
        if token is not None:
            fd_of(token)
        self.name = name if name is not None else re.sub(r"\..*", "", os.path.basename(file.path))
        self._given_btf, self._options, self.token = _given(btf_path), kconfig, token
        self.externs = Externs(file)
        self.linker = Linker(file, CoreResolver(file.btf, None) if file.btf is None else self._core(),
                             self.externs.resolve)
        self.programs = {}
        for function in file.functions:
            if function.program:
                if function.name in self.programs:
                    raise ObjectError("two programs are called %s" % function.name)
                self.programs[function.name] = ObjectProgram(self, function)
        self.maps = self._maps()
        self.struct_ops = [each for each in self.maps.values() if isinstance(each, struct_ops.StructOpsMap)]
        self.rodata, self.data, self.bss = (Globals(self, kind) for kind in (".rodata", ".data", ".bss"))
        self.kconfig, self.arena = Globals(self, KCONFIG), Globals(self, ARENA)
        self.btf_error = None

    @classmethod
    def open(cls, path, relaxed_maps=False, **options):
        """Reads an object file. Options: name (the file's, for names of data maps); pin_root: where maps that
        ask for it are pinned; btf_path: the BTF to relocate against in place of the kernel's; kconfig:
        {"CONFIG_X": "y"} in place of the kernel's configuration (obj.kconfig[...] = value sets one variable); token: a kobject.Token that delegates the permission
        to load (6.9+); relaxed_maps: members of map definitions that are not known are passed over."""
        return cls(BpfObjectFile.open(os.fsdecode(path), relaxed_maps), **options)

    @classmethod
    def parse(cls, data, path="<memory>", relaxed_maps=False, **options):
        """The same from bytes."""
        return cls(BpfObjectFile.parse(data, path, relaxed_maps), **options)

    def _core(self):
        object_ = self

        class Late(CoreResolver):
            """Opens the kernel's BTF at the first relocation."""

            def _resolve(self, relocation):
                if self.vmlinux is None:
                    self.vmlinux = object_._kernel_btf()
                return super()._resolve(relocation)
        return Late(self.file.btf, None, _module_types)

    def _kernel_btf(self):
        return ksyms.vmlinux() if self._given_btf is None else self._given_btf

    def _maps(self):
        result = {}
        for name, definition in self.file.maps.items():
            result[name] = (ArenaMap if definition.type == _ARENA else ObjectMap)(self, definition)
        arenas = [each for each in result.values() if isinstance(each, ArenaMap)]
        if self.file.arena is not None and len(arenas) != 1:
            raise ObjectError("it has globals in an arena and %s" % (
                "several maps that are arenas" if arenas else "no map that is an arena"))
        self._arena = arenas[0] if self.file.arena is not None else None
        for each in struct_ops.read(self):
            if each.name in result:
                raise ObjectError("two maps are called %s" % each.name)
            result[each.name] = each
        for name, data in self.file.data.items():
            if data.size:
                variables = self.file.variables(name)
                # one without variables that others may see needs no memory in common
                shared = any(not static for _, _, _, _, static in variables)
                definition = MapDefinition(name, _ARRAY, 4, data.size, 1, value_type=data.btf_id)
                result[name] = DataMap(self, definition, data.size, data.content, data.kind == ".rodata", shared)
        if self.externs.size:
            definition = MapDefinition(KCONFIG, _ARRAY, 4, self.externs.size, 1,
                                       value_type=self.file.btf.find_id(KCONFIG, "datasec"))
            result[KCONFIG] = DataMap(self, definition, self.externs.size, None, True, True)
        return result

    def map_of(self, name):
        """The map of a map's name or, ARENA, the one that holds the arena's globals."""
        return self._arena if name == ARENA else self.maps[name]

    def data_maps(self):
        """[(section, what holds its data)] of all global data."""
        found = [(name, each) for name, each in self.maps.items() if isinstance(each, DataMap)]
        return found + ([(ARENA, self._arena)] if self._arena is not None else [])

    def data_variables(self, section):
        """[(name, offset, size, BTF type id)] of the variables of a data map."""
        if section == KCONFIG:
            return [(name, offset, self.externs.sizes[name], self.file.externs[name].type)
                    for name, offset in self.externs.offsets.items()]
        return [variable[:4] for variable in self.file.variables(section)]

    @property
    def license(self):
        return self.file.license

    # -- loading ---------------------------------------------------------------------------------------

    def select(self, only=None):
        """Names of the programs to load: those asked for, or all but those of a section with "?"."""
        if only is None:
            return [name for name, program in self.programs.items() if program.autoload and (
                program.type != "struct_ops" or self._wanted_by_struct(name))]
        names = [only] if isinstance(only, str) else list(dict.fromkeys(only))
        for name in names:
            if name not in self.programs:
                raise ObjectError("%s has no program %s%s" % (self.file.path, name, _near(name, self.programs)))
        return names

    def _wanted_by_struct(self, name):
        """Is a struct_ops program to be loaded? Not when the structs that refer to it are not created, or when
        this kernel's have no such function; one that nothing refers to is an error, later."""
        users = [each for each in self.struct_ops if name in each.functions.values()]
        return not users or any(each.autocreate and each.member_of(name) for each in users)

    def load(self, only=None, log_level=0):
        """Creates the maps and loads the programs, those named in `only` or all, that are not loaded yet. When
        something is refused, nothing stays. -> self"""
        try:
            names = self.select(only)
            self.prepare(names if only is not None else None)
            for name in names:
                if self.programs[name].program is None:
                    self.programs[name].load(log_level)
            self.fill_program_arrays()
        except BaseException:
            self.unpin()
            self._unload()
            raise
        self._pins = []
        return self

    def unpin(self):
        """Takes back the pins of maps that this loading made, which has failed (maps that were pinned before stay)."""
        pins, self._pins = self._pins, []
        for path in pins:
            try:
                os.unlink(path)
            except OSError:
                continue            # somebody else's by now, or gone

    def prepare(self, only=None):
        """BTF and maps: all of them, or those that the programs named in `only` refer to."""
        self.closed = False
        wanted = set(self.maps)
        if only is not None:
            wanted = set()
            for name in only:
                wanted |= {self.map_of(used).name for used in self.programs[name].link().maps}
            # a struct of which all functions are loaded
            wanted |= {each.name for each in self.struct_ops if each.functions and
                       set(each.functions.values()) <= set(only)}
            for name in list(wanted):
                wanted.update(inner for _, inner in self.maps[name].definition.values if inner in self.maps)
        self._load_btf()
        if KCONFIG in wanted:
            self.maps[KCONFIG].content[:] = self.externs.kconfig(self._options, self.maps[KCONFIG].given)
        for name in self.maps:
            if name in wanted:
                self.maps[name].create(self.btf)
        self._prepared = True
        maps = [each for name, each in self.maps.items() if name in wanted]
        try:
            self._pin([each for each in maps if not each.definition.values])
            for each in maps:
                self._fill(each)
            # those that others find pinned have their elements already
            self._pin([each for each in maps if each.definition.values])
        except BaseException:
            self.unpin()
            raise

    def _pin(self, maps):
        for each in maps:
            if each.pin():
                self._pins.append(each.pin_path)

    def _load_btf(self):
        if self.file.btf is None or self.btf is not None:
            return
        from . import arg_ctx
        from .btf import BtfObject
        from .object_btf import for_kernel, has_kind
        def has(kind):
            return has_kind(kind, self.token)
        if not has("func"):
            return
        clones = arg_ctx.Clones(self.file, {program.type for program in self.programs.values()})
        # kernels with tokens know the tag
        self._clones = clones if clones.ids and self.token is None and not arg_ctx.known() else None
        try:
            self.btf = BtfObject.load(for_kernel(self.file, self.externs, has, self._clones), self.token)
        except KernelError as error:
            # programs and most maps do without; what cannot says so itself
            self.btf_error = error

    def func_info(self, info, type):
        """func_info of a program of this type, (record size, records), as the kernel takes it with `btf`."""
        return info if self._clones is None else self._clones.func_info(info, type)

    def _fill(self, target):
        if target.map is None or target.reused:
            return
        if isinstance(target, DataMap):
            target.fill()
        elif target.type in ("array_of_maps", "hash_of_maps"):
            for index, name in target.definition.values:
                if name not in self.maps or self.maps[name].map is None:
                    raise ObjectError("map %s: its element %d is %s, which is no map" % (target.name, index, name))
                target.map.update(index.to_bytes(4, "little"), self.maps[name].map)

    def fill_program_arrays(self):
        """Puts the loaded programs into the program arrays that name them (tail calls)."""
        self._loaded()
        for target in self.maps.values():
            if target.type != "prog_array" or target.map is None:
                continue
            for index, name in target.definition.values:
                if name not in self.programs:
                    raise ObjectError("map %s: its element %d is %s, which is no program" % (target.name, index, name))
                if self.programs[name].program is not None:
                    try:
                        target.map.update(index, self.programs[name].program)
                    except KernelError as error:
                        import errno
                        raise KernelError("map %s: its element %d, program %s" % (target.name, index, name), error.errno,
                                          "programs of one array are of one type, and use it alike" if error.errno ==
                                          errno.EINVAL else error.needs) from None

    def digest(self, name):
        """The SHA-256 by which the kernel knows the program of that name (see Map.create, exclusive)."""
        return digest(self.programs[self.select(name)[0]].link().instructions)

    # -- attaching, pinning, closing -------------------------------------------------------------------

    def attach(self):
        """Attaches every loaded program whose section says to what, and registers the struct_ops maps ->
        LinkGroup. All or none."""
        from .link import LinkGroup
        self._loaded()
        group = LinkGroup()
        try:
            for program in self.programs.values():
                if program.program is not None and program.autoattach and program.attachable:
                    group.add(program.attach())
            for each in self.struct_ops:
                if each.map is not None and each.autoattach:
                    group.add(each.attach())
        except BaseException:
            group.close()
            raise
        return group

    def _unload(self):
        for program in self.programs.values():
            program.close()
        for each in self.maps.values():
            each.close()
        if self.btf is not None:
            self.btf.close()
        self.btf, self._prepared = None, False

    def close(self):
        """Closes all that was loaded; load() would begin anew, and until then there are no variables."""
        self._unload()
        self.closed = True

    def _loaded(self):
        self.usable()
        if not self._prepared:
            raise ObjectError("%s is not loaded" % self.file.path)

    def usable(self):
        """ObjectError after close()."""
        if self.closed:
            raise ObjectError("%s is closed" % self.file.path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return "<Object %s: %d programs, %d maps>" % (self.name, len(self.programs), len(self.maps))


def _module_types():
    """The BTF of the kernel's modules."""
    from rawbpf.elf.btf import Btf
    from . import kernel
    base, path = ksyms.vmlinux(), kernel.vmlinux_btf()
    if path is None:
        return
    folder = os.path.dirname(path)
    for module in sorted(os.listdir(folder)):
        if module != "vmlinux":
            yield Btf.open(os.path.join(folder, module), base)

