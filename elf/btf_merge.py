"""Several BTFs as one, each type in it once.

Types are equal when nothing tells them apart: the coarsest partition in which equal types have equal contents and
refer to equal types, found by refining (as automata are minimised), so that structs which refer to each other are
found equal too. A forward declaration is taken for the one struct of its name, where there is just one. Variables
and sections of data stay apart: two static variables of one name and type are still two.
"""

from rawbpf.asm.btfwriter import BtfWriter

from . import btf_raw as raw
from .btf import KINDS
from .image import ElfError

_NUMBER = {name: number for number, name in enumerate(KINDS)}
_REFER = frozenset(("ptr", "typedef", "volatile", "const", "restrict", "type_tag", "func", "var", "decl_tag"))


class Node:
    """A type: `own` is what it says itself, `refs` the ids (of all, 0: void) it refers to."""

    __slots__ = ("kind", "name", "own", "refs")

    def __init__(self, kind, name, own, refs):
        self.kind, self.name, self.own, self.refs = kind, name, own, refs

    def write(self, writer, refs):
        """Adds it to a BtfWriter, with these ids in the places of `refs`."""
        node = self
        kind, flag, own = _NUMBER[node.kind], node.own[0] if node.own else 0, node.own[1:]
        vlen, rest, words = 0, 0, ()
        if node.kind in _REFER:
            vlen, rest, words = own[0], refs[0], own[1:]
        elif node.kind == "array":
            words = (refs[0], refs[1], own[0])
        elif node.kind in ("struct", "union"):
            rest, vlen = own[0], len(own[1])
            words = [word for (name, offset), ref in zip(own[1], refs) for word in (writer.string(name), ref, offset)]
        elif node.kind in ("enum", "enum64"):
            rest, vlen = own[0], len(own[1])
            words = [word for value in own[1] for word in (writer.string(value[0]),) + value[1:]]
        elif node.kind == "func_proto":
            rest, vlen = refs[0], len(own)
            words = [word for name, ref in zip(own, refs[1:]) for word in (writer.string(name), ref)]
        else:
            rest, words = own[0], own[1:]
        writer.add(node.name, kind, vlen, rest, words, flag)


def node_of(btf, record, base=0):
    """The Node of a Record whose ids move by `base`."""
    def moved(type_id):
        return type_id + base if type_id else 0
    kind, words = record.kind, record.words
    own, refs = (), ()
    if kind in _REFER:
        refs = (moved(record.rest),)
        own = (record.vlen,) + tuple(words)
    elif kind == "array":
        own, refs = (words[2],), (moved(words[0]), moved(words[1]))
    elif kind in ("struct", "union"):
        members = [(btf.string(words[i]), words[i + 2]) for i in range(0, len(words), 3)]
        own, refs = (record.rest, tuple(members)), tuple(moved(words[i + 1]) for i in range(0, len(words), 3))
    elif kind in ("enum", "enum64"):
        step = 2 if kind == "enum" else 3
        own = (record.rest, tuple((btf.string(words[i]),) + tuple(words[i + 1:i + step])
                                  for i in range(0, len(words), step)))
    elif kind == "func_proto":
        own = tuple(btf.string(words[i]) for i in range(0, len(words), 2))
        refs = (moved(record.rest),) + tuple(moved(words[i + 1]) for i in range(0, len(words), 2))
    elif kind != "datasec":
        own = (record.rest,) + tuple(words)
    return Node(kind, record.name, (record.flag,) + own, refs)


class Merger:
    """add(btf) for each (none of them split); `write()` then gives the BtfWriter with the types and, for each, the
    list of new ids by old id. DATASECs are left out (their new id is 0): the caller adds its own."""

    def __init__(self):
        self._nodes = [Node("void", "", (), ())]
        self._starts = []       # (first of all ids - 1, count)
        self._same = {}

    def add(self, btf):
        base = len(self._nodes) - 1
        self._starts.append((base, btf.count))
        for type_id in range(1, btf.count):
            node = node_of(btf, raw.record(btf, type_id), base)
            if any(not 0 <= ref < base + btf.count or ref and btf.kind(ref - base) == "datasec" for ref in node.refs):
                raise ElfError(btf.path, None, "BTF type %d refers to what is no type" % type_id)
            self._nodes.append(node)

    def replace(self, which, old, other, new):
        """Type `old` of the BTF that was added as number `which` is to be type `new` of number `other`: a function or
        variable that is declared there and defined here."""
        self._same[self._starts[which][0] + old] = self._starts[other][0] + new

    def write(self):
        classes = self._partition()
        declared = self._declared(classes)
        declared.update(self._same)
        if declared:
            for node in self._nodes:
                node.refs = tuple(declared.get(ref, ref) for ref in node.refs)
            classes = self._partition()
        for place, target in declared.items():
            classes[place] = classes[target]
        writer, new = BtfWriter(), {classes[0]: 0}
        kept = []
        for number, (node, each) in enumerate(zip(self._nodes, classes)):
            if each not in new and node.kind != "datasec" and number not in declared:
                new[each] = len(kept) + 1
                kept.append(number)
        for number in kept:
            self._nodes[number].write(writer, [new[classes[ref]] for ref in self._nodes[number].refs])
        maps = [[0] + [new.get(classes[base + type_id], 0) for type_id in range(1, count)]
                for base, count in self._starts]
        return writer, maps

    def _partition(self):
        """The class of each type."""
        names = {}
        classes = [names.setdefault(self._key(number, node), len(names)) for number, node in enumerate(self._nodes)]
        while True:
            finer = {}
            following = [finer.setdefault((own, tuple([classes[ref] for ref in node.refs])), len(finer))
                         for own, node in zip(classes, self._nodes)]
            if len(finer) == len(names):
                return following
            classes, names = following, finer

    @staticmethod
    def _key(number, node):
        if node.kind in ("var", "datasec"):
            return number
        return node.kind, node.name, node.own

    def _declared(self, classes):
        """forward declaration -> the struct or union that it declares, if all of that name are one."""
        found = {}
        for number, node in enumerate(self._nodes):
            if node.kind in ("struct", "union") and node.name:
                found.setdefault((node.kind, node.name), {}).setdefault(classes[number], number)
        result = {}
        for number, node in enumerate(self._nodes):
            if node.kind == "fwd":
                same = found.get(("union" if node.own[0] else "struct", node.name), {})
                if len(same) == 1:
                    result[number], = same.values()
        return result


def merge(*btfs):
    """(bytes, [new ids by old id, a list for each]) of BTFs without sections of data."""
    merger = Merger()
    for btf in btfs:
        merger.add(btf)
    writer, maps = merger.write()
    return writer.bytes(), maps
