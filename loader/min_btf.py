"""The BTF that objects need, cut out of a kernel's: `rawbpf gen min_core_btf`.

Kept is what the CO-RE relocations of the objects look at: of structs the members that are accessed, of those the types;
types that only a pointer leads to are void. An object relocates against it as against the whole.
"""

from rawbpf.asm.btfwriter import BtfWriter
from rawbpf.elf import btf_raw as raw
from rawbpf.elf.bpf_object import BpfObjectFile
from rawbpf.elf.btf_merge import Node, node_of

from .core_relo import ENUM, TYPE, CoreResolver
from .errors import ObjectError

_ALL = None


def minimal(btf, objects):
    """The bytes of the BTF. btf: elf Btf that is not split; objects: paths or BpfObjectFiles. ObjectError when one
    has no BTF."""
    cut = _Cut(btf)
    for each in objects:
        file = each if isinstance(each, BpfObjectFile) else BpfObjectFile.open(each)
        if file.btf is None:
            raise ObjectError("%s has no BTF: compile it with -g" % file.image.path)
        resolver = CoreResolver(file.btf, btf)
        for relocation in relocations(file):
            cut.add(resolver, relocation)
    return cut.bytes()


def relocations(file):
    """Every CoreRelocation of an object."""
    return [] if file.btf_ext is None else [
        relocation for found in file.btf_ext.relocations.values() for relocation in found]


class _Cut:
    def __init__(self, btf):
        self.btf = btf
        self.kept = {}      # type id -> None, or of a struct the set of its members' numbers

    def add(self, resolver, relocation):
        if relocation.kind == "local_type_id":
            return
        for btf, type_id in resolver.candidates(relocation.type_id):
            match, _ = resolver.match(relocation.kind, resolver.parse(relocation), btf, type_id)
            if match is None:
                self.keep(type_id)      # so that it is found, and does not fit, there too
            elif relocation.kind in TYPE:
                self.keep_whole(type_id, False, set())
            elif relocation.kind in ENUM:
                self.keep(type_id)
            else:
                self.keep(type_id)
                self._access(match)

    def _access(self, match):
        """The members on the way of an access, anonymous ones in between too."""
        target = raw.skip(self.btf, match.type)
        for number, step in enumerate(match.steps):
            if step.name:
                target = raw.skip(self.btf, target.id)
                for owner, index in self._way(target, step):
                    self.keep(owner)
                    self.kept[owner].add(index)
                    member = raw.members(self.btf, raw.record(self.btf, owner))[index]
                    self.keep(member.type)
                target = raw.skip(self.btf, member.type)
            elif number:
                target = raw.skip(self.btf, target.words[0])

    def _way(self, target, step):
        """[(struct, member's number)] from a struct down to the member of a step."""
        if target.id == step.type:
            return [(target.id, step.index)]
        for index, member in enumerate(raw.members(self.btf, target)):
            inner = raw.skip(self.btf, member.type)
            if not member.name and inner.kind in ("struct", "union"):
                below = self._way(inner, step)
                if below:
                    return [(target.id, index)] + below
        return []

    def keep(self, type_id):
        """A type, and what it is an array or another name of."""
        while type_id:
            found = raw.record(self.btf, type_id)
            known = type_id in self.kept
            self.kept.setdefault(type_id, set() if found.kind in ("struct", "union") else _ALL)
            if known:
                return
            if found.kind == "array":
                self.keep(found.words[1])
                type_id = found.words[0]
            elif found.kind in raw.MODIFIERS:
                type_id = found.rest
            elif found.kind == "func_proto":
                for parameter in raw.parameters(found):
                    self.keep(parameter)
                type_id = found.rest
            else:
                return

    def keep_whole(self, type_id, behind_pointer, seen):
        """A type with all that a comparison of types looks at."""
        if not type_id or (type_id, behind_pointer) in seen:
            return
        seen.add((type_id, behind_pointer))
        self.keep(type_id)
        found = raw.skip(self.btf, type_id)
        if found.kind == "ptr":
            self.keep(found.id)
            self.keep_whole(found.rest, True, seen)
        elif found.kind == "array":
            self.keep_whole(found.words[0], behind_pointer, seen)
        elif found.kind == "func_proto":
            for parameter in raw.parameters(found):
                self.keep_whole(parameter, behind_pointer, seen)
            self.keep_whole(found.rest, behind_pointer, seen)
        elif found.kind in ("struct", "union") and not behind_pointer:
            members = raw.members(self.btf, found)
            self.kept[found.id].update(range(len(members)))
            for member in members:
                self.keep_whole(member.type, False, seen)

    def bytes(self):
        order = sorted(self.kept)
        new = {old: number for number, old in enumerate(order, 1)}
        writer = BtfWriter()
        for old in order:
            record = raw.record(self.btf, old)
            node = node_of(self.btf, record)
            chosen = self.kept[old]
            if chosen is not _ALL:
                numbers = sorted(chosen)
                size, members = node.own[1], node.own[2]
                node = Node(node.kind, node.name, (node.own[0], size, tuple(members[i] for i in numbers)),
                            tuple(node.refs[i] for i in numbers))
            node.write(writer, [new.get(ref, 0) for ref in node.refs])
        return writer.bytes()
