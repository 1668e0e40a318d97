"""`rawbpf tree`: which process keeps what alive: process -> link -> program -> maps, and what only a pin holds.

    python(4711)
      link 12 raw_tracepoint sched_switch
        prog 34 raw_tracepoint count
          map 56 hash counts

Below the processes stand the pins and what neither holds (attached in a way that needs no descriptor). An
object is marked `*` where it would go with that process: nothing else holds it.
"""

from rawbpf.loader.errors import KernelError

from . import link as links, map as maps, prog as programs
from .command import run_object
from .objects import comm, descriptors, pins, records

USAGE = """usage: rawbpf tree

Which process holds which links, programs and maps, what is pinned where, and (marked *) what would go
if the process ended.
"""


class Graph:
    """All objects: `objects` {(kind, id): record}, `uses` {(kind, id): [(kind, id)]}, `roots` {name: set}."""

    def __init__(self):
        self.objects, self.uses, self.roots = {}, {}, {}
        for kind, module in (("map", maps), ("prog", programs), ("link", links)):
            try:
                for record in records(kind, module.record):
                    self._add(kind, record)
            except KernelError:
                if kind != "link":      # before 5.8 there are none to be listed
                    raise
        for pid, _, kind, number in descriptors():
            if (kind, number) in self.objects:
                self.roots.setdefault("%s(%d)" % (comm(pid), pid), set()).add((kind, number))
        for kind in ("link", "prog", "map"):
            for number, paths in pins(kind).items():
                for path in paths:
                    if (kind, number) in self.objects:
                        self.roots.setdefault("pinned " + path, set()).add((kind, number))
        held = set().union(*map(self.below, self.roots.values())) if self.roots else set()
        rest = {key for key in self.objects if key not in held}
        if rest:
            self.roots["attached, held by no process"] = rest

    def _add(self, kind, record):
        key = kind, record["id"]
        self.objects[key] = record
        used = [("prog", record["prog_id"])] if record.get("prog_id") else []
        used += [("map", number) for number in record.get("map_ids", ())]
        if kind == "link" and record.get("map_id"):
            used.append(("map", record["map_id"]))
        self.uses[key] = used

    def below(self, keys):
        """These objects and what they use, in turn."""
        seen, waiting = set(), list(keys)
        while waiting:
            key = waiting.pop()
            if key in self.objects and key not in seen:
                seen.add(key)
                waiting += self.uses[key]
        return seen

    def alone(self, name):
        """What would go if this root went."""
        others = [keys for other, keys in self.roots.items() if other != name]
        return self.below(self.roots[name]) - (set().union(*map(self.below, others)) if others else set())

    def tree(self, name):
        """What a root holds, as nested records; what is below another object of it is not repeated on top."""
        alone = self.alone(name) if "(" in name and not name.startswith("pinned ") else set()
        keys = self.roots[name]
        inner = set()
        for key in keys:
            inner |= self.below(self.uses[key])
        return [self._node(key, alone, ()) for key in sorted(keys, key=_rank) if key not in inner]

    def _node(self, key, alone, path):
        record = self.objects[key]
        fields = {"kind": key[0], "id": key[1], "type": record["type"]}
        what = next((record[name] for name in ("name", "tp_name", "path", "file", "tracepoint", "devname", "target_name",
                                               "func") if record.get(name)), "")
        if what:
            fields["name"] = what
        fields["only"] = key in alone
        used = [self._node(below, alone, path + (key,)) for below in self.uses[key]
                if below in self.objects and below not in path]
        if used:
            fields["uses"] = used
        return fields


def _rank(key):
    return ("link", "prog", "map").index(key[0]), key[1]


def _lines(nodes, depth):
    for node in nodes:
        words = [node["kind"], str(node["id"]), programs.type_text(node["type"]), node.get("name", "")]
        yield "%s%s%s\n" % ("  " * depth, " ".join(filter(None, words)), " *" if node["only"] else "")
        yield from _lines(node.get("uses", ()), depth + 1)


def show(session, words):
    words.end()
    graph = Graph()
    session.show(({"holder": name, "objects": graph.tree(name)} for name in graph.roots),
                 lambda fields: fields["holder"] + "\n" + "".join(_lines(fields["objects"], 1)))


def run(argv):
    return run_object("tree", {"show": show}, USAGE, argv)
