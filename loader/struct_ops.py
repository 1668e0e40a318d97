"""struct_ops maps of objects: a struct of the kernel's whose functions are BPF programs.

    SEC(".struct_ops.link") struct tcp_congestion_ops mine = { .ssthresh = (void *)mine_ssthresh, .name = "mine" };

Variables of the sections `.struct_ops` and `.struct_ops.link` (with "?" in front: not created unless asked for)
are fitted to the kernel's struct of the same name, member by member: numbers and text are copied, functions become
descriptors of programs, which are loaded for that member (attach_btf_id: the struct, expected_attach_type: the
member's number). The map's value is the kernel's struct bpf_struct_ops_NAME, whose member of that struct is filled
in. 5.6+; with a link 6.4+. Documentation: libbpf's of struct_ops, Documentation/bpf/map_struct_ops.rst.
"""

import errno
from typing import NamedTuple

from rawbpf.elf import btf_raw as raw
from rawbpf.elf.bpf_maps import MapDefinition
from rawbpf.elf.bpf_object import STRUCT_OPS
from rawbpf.elf.image import TABLE_LIMIT

from . import ksyms
from .errors import KernelError, ObjectError
from .introduced import needs, since
from .kobject import KernelObject
from .maps import Map
from .object_maps import ObjectMap, value_codec
from .uapi import F_LINK, MAP_TYPES

_PREFIX = "bpf_struct_ops_"


class _Member(NamedTuple):
    """A member that object and kernel have: its number and place in the kernel's struct, its place here."""

    name: str
    number: int
    kernel_offset: int
    offset: int
    size: int
    function: bool


class _Kernel(NamedTuple):
    type_id: int            # the struct
    value_id: int           # struct bpf_struct_ops_NAME
    value_size: int
    data_offset: int        # of the struct in it
    module: object          # None for vmlinux
    members: dict


def read(owner):
    """The StructOpsMaps of an Object."""
    file = owner.file
    for section in file.sections:
        if section.name not in STRUCT_OPS or not section.size:
            continue
        if file.btf is None or not file.btf.find_id(section.name, "datasec"):
            raise file.error("has a section %s and no BTF that describes it: compile it with -g" % section.name,
                             section.offset)
        content = bytes(file.image.data(section, TABLE_LIMIT))
        for name, offset, size, type_id, _ in file.variables(section.name):
            kind = raw.skip(file.btf, type_id)
            if kind.kind != "struct" or not kind.name:
                raise file.error("%s in %s is no struct with a name" % (name, section.name), section.offset)
            if offset + kind.rest > len(content):
                raise file.error("%s lies outside %s" % (name, section.name), section.offset)
            yield StructOpsMap(owner, name, section, offset, kind, content[offset:offset + kind.rest])


class StructOpsMap(ObjectMap):
    """One of them. As long as it is not attached, it is a mapping of its members: functions are the names of
    programs (or None), others Python values: m["flags"] = 1. `autocreate`: is it made by load()."""

    def __init__(self, owner, name, section, offset, struct, content):
        definition = MapDefinition(name, MAP_TYPES["struct_ops"], 4, struct.rest, 1, offset=offset,
                                   section=section.index)
        super().__init__(owner, definition)
        self.autocreate = not section.name.startswith("?")
        self.flags = F_LINK if section.name.endswith(".link") else 0
        self.struct, self.content = struct, bytearray(content)
        self._btf = owner.file.btf
        self._kernel_types = None
        self._members = {member.name: member for member in raw.members(self._btf, struct) if member.name}
        self.functions = self._functions(section, offset)

    def _functions(self, section, offset):
        """member name -> program name, from the section's relocations."""
        file, found = self._owner.file, {}
        places = {offset + member.bit_offset // 8: member.name for member in self._members.values()}
        for at, relocation in file.relocations.get(section.index, {}).items():
            if not offset <= at < offset + self.struct.rest:
                continue
            member, symbol = places.get(at), relocation.symbol
            if member is None or not self._is_function(self._members[member].type):
                raise ObjectError("map %s: byte %d of it refers to %s and is no pointer to a function" % (
                    self.name, at - offset, symbol.name))
            start = symbol.value
            if symbol.type == 3:        # a section's symbol: the place in it is in the content
                start += int.from_bytes(self.content[at - offset:at - offset + 8], "little")
            function = file.function_at(symbol.section, start)
            if function is None:
                raise ObjectError("map %s: member %s refers to %s, which is no program" % (
                    self.name, member, symbol.name))
            found[member] = function.name
            self.content[at - offset:at - offset + 8] = bytes(8)
        return found

    def _is_function(self, type_id):
        found = raw.skip(self._btf, type_id)
        return found.kind == "ptr" and raw.skip(self._btf, found.rest).kind == "func_proto"

    # -- as a mapping of members ----------------------------------------------------------------------

    def _member(self, name):
        try:
            member = self._members[name]
        except KeyError:
            raise KeyError("struct %s has no member %s" % (self.struct.name, name)) from None
        return member, member.bit_offset // 8

    def __getitem__(self, name):
        member, at = self._member(name)
        if self._is_function(member.type):
            return self.functions.get(name)
        codec = value_codec(self._btf.type(member.type), "map %s: member %s" % (self.name, name))
        return codec.decode(bytes(self.content[at:at + codec.size]))

    def __setitem__(self, name, value):
        member, at = self._member(name)
        if not self._is_function(member.type):
            codec = value_codec(self._btf.type(member.type), "map %s: member %s" % (self.name, name))
            self.content[at:at + codec.size] = codec.encode(value)
        elif value is None:
            self.functions.pop(name, None)
        else:
            value = getattr(value, "name", value)
            if value not in self._owner.programs:
                raise ObjectError("map %s: member %s: the object has no program %s" % (self.name, name, value))
            self.functions[name] = value

    def __delitem__(self, name):
        raise TypeError("members of a struct cannot be deleted: set a function to None")

    def __contains__(self, name):
        return name in self._members

    def __iter__(self):
        return iter(self._members)

    def __len__(self):
        return len(self._members)

    def keys(self):
        return iter(self._members)

    def values(self):
        return (self[name] for name in self._members)

    def items(self):
        return ((name, self[name]) for name in self._members)

    # -- the kernel's side -----------------------------------------------------------------------------

    @property
    def kernel(self):
        """The _Kernel types that it is fitted to; ObjectError when it does not fit."""
        if self._kernel_types is None:
            self._kernel_types = self._fit()
        return self._kernel_types

    def _fit(self):
        name = raw.essential(self.struct.name)
        if ksyms.vmlinux() is None:
            raise ObjectError("map %s: needs the kernel's BTF (CONFIG_DEBUG_INFO_BTF)" % self.name)
        value = ksyms.find(_PREFIX + name, "struct")
        if value is None:
            raise ObjectError("map %s: the kernel has no struct %s that programs may implement%s" % (
                self.name, name, "" if ksyms.find(name, "struct") is None else
                " (it has one that they may not)"))
        btf = ksyms.types_of(value[1])
        for place in raw.members(btf, raw.record(btf, value[0])):
            struct = raw.skip(btf, place.type)
            if struct.kind == "struct" and struct.name == name:
                break
        else:
            raise ObjectError("map %s: the kernel's struct %s has no member of struct %s" % (
                self.name, _PREFIX + name, name))
        theirs = {member.name: (number, member) for number, member in enumerate(raw.members(btf, struct))}
        members = {}
        for member in self._members.values():
            fitted = self._fitted(member, theirs.get(member.name), btf)
            if fitted is not None:
                members[member.name] = fitted
        return _Kernel(struct.id, value[0], raw.size(btf, value[0]), place.bit_offset // 8, value[1], members)

    def _fitted(self, member, found, btf):
        def wrong(reason):
            return ObjectError("map %s: member %s of struct %s %s" % (self.name, member.name, self.struct.name, reason))
        size, at = raw.size(self._btf, member.type), member.bit_offset // 8
        if found is None:
            # of another kernel: as good as absent while it is zero; its program is not loaded
            if any(self.content[at:at + size]):
                raise wrong("is set, and this kernel does not have it")
            return None
        number, theirs = found
        if member.bit_size or theirs.bit_size:
            raise wrong("is a bit field, which struct_ops cannot have")
        mine, other = raw.skip(self._btf, member.type), raw.skip(btf, theirs.type)
        function = self._is_function(member.type)
        if mine.kind != other.kind or function and raw.skip(btf, other.rest).kind != "func_proto":
            raise wrong("is a %s here and a %s in the kernel" % (mine.kind, other.kind))
        if size != raw.size(btf, theirs.type):
            raise wrong("has %d bytes here and %d in the kernel" % (size, raw.size(btf, theirs.type)))
        return _Member(member.name, number, theirs.bit_offset // 8, at, size, function)

    def member_of(self, program):
        """(struct's BTF id, number of the member, module) that a program is for, None for none of this map's."""
        for member, name in self.functions.items():
            if name == program and member in self.kernel.members:
                kernel = self.kernel
                return kernel.type_id, kernel.members[member].number, kernel.module
        return None

    def create(self, btf):
        if self.map is not None or not self.autocreate:
            return
        if btf is None:
            raise ObjectError("map %s: a struct_ops map needs the object's BTF, which the kernel did not take%s" % (
                self.name, ": %s" % self._owner.btf_error if self._owner.btf_error else ""))
        kernel = self.kernel
        if self.flags & F_LINK and since((6, 4), ""):
            raise KernelError("creation of struct_ops map %s" % self.name, errno.EINVAL,
                              since((6, 4), "a struct_ops map with a link (.struct_ops.link)"))
        options = {}
        if kernel.module is not None:
            from .btf import BtfObject
            options["value_type_btf_obj"] = BtfObject.of_module(kernel.module)
        try:
            self.map = Map.create("struct_ops", 4, kernel.value_size, 1, name=self.name, flags=self.flags, btf=btf,
                                  btf_vmlinux_value_type_id=kernel.value_id, token=self._owner.token, **options)
        finally:
            for module in options.values():
                module.close()

    def value(self):
        """The map's value (bytes), with the descriptors of the programs that are loaded."""
        kernel, programs = self.kernel, self._owner.programs
        value = bytearray(kernel.value_size)
        for member in kernel.members.values():
            at = kernel.data_offset + member.kernel_offset
            if not member.function:
                value[at:at + member.size] = self.content[member.offset:member.offset + member.size]
            elif member.name in self.functions:
                program = programs[self.functions[member.name]].program
                if program is None:
                    raise ObjectError("map %s: its program %s is not loaded" % (self.name,
                                                                                self.functions[member.name]))
                value[at:at + 8] = program.fileno().to_bytes(8, "little")
        return bytes(value)

    def attach(self):
        """Registers it with the kernel -> Link. Without a link (section .struct_ops) it stays registered when this
        process is killed; closing what this returns undoes it."""
        loaded = self._loaded()
        try:
            loaded.update(0, self.value())
        except KernelError as error:
            raise KernelError("registration of struct_ops %s (struct %s)" % (self.name, self.struct.name), error.errno, {
                errno.EEXIST: "the kernel has one of that name", errno.EBUSY: "it is or was registered, which can be done once: load the object again",
                errno.EINVAL: "the kernel does not take it: a function or name that it wants may be missing",
            }.get(error.errno, needs("map", "struct_ops"))) from None
        if self.flags & F_LINK:
            from .link_net import attach_struct_ops
            return attach_struct_ops(loaded)
        return Registration(loaded)


class Registration(KernelObject):
    """A struct_ops map that is registered without a link; close() takes it out."""

    __slots__ = ()

    def __init__(self, map):
        import os
        super().__init__(os.dup(map.fileno()))

    def close(self):
        if not self.closed:
            from .syscalls import address, bpf
            key = bytearray(4)
            try:
                bpf("map_delete_elem", map_fd=self.fd, key=address(key))
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise KernelError("unregistration of struct_ops", error.errno, "") from None
            finally:
                super().close()

    def leave(self):
        """Lets go of it without taking it out: it stays registered until its map's element is deleted."""
        super().close()

    def pin(self, path, dir_fd=None):
        raise KernelError("pin at %s" % path, errno.EINVAL,
                          "this struct_ops is registered without a link: use the section .struct_ops.link (6.4+)")

