"""How one program that serves many points knows the text that differs between them (`probe`, `func`).

Each of its points is attached with a cookie, a number of its own in the whole script. The program reads it
(bpf_get_attach_cookie: perf events since Linux 5.15, kprobe_multi 5.18, uprobe_multi 6.6) and finds the text
in an array, one array for each such built-in. So a wildcard of ten thousand functions is one program. Where
the kernel has no cookies every point gets a program of its own, with its text as a constant.
"""
from . import strings
from .compiled import KernelMap
from .place import Place


class PointTexts:
    """The texts of one script."""

    def __init__(self):
        self.first = {}             # number of a unit -> cookie of its first point
        self.count = 0              # of cookies that were given
        self.tables = {}            # built-in -> {cookie: bytes}

    def cookies(self, unit):
        """The cookies of a unit's points, None where its program asks for none."""
        first = self.first.get(unit.number)
        return None if first is None else list(range(first, first + len(unit.points)))

    def store(self, b, builtin, texts, type, dest):
        """Code that copies the text of the point that was hit to a place; `texts` of the unit's points, `type` the
        String that holds each."""
        f, unit = b.f, b.unit
        if unit.number not in self.first:
            self.first[unit.number] = self.count
            self.count += len(unit.points)
        first = self.first[unit.number]
        self.tables.setdefault(builtin, {}).update(enumerate(texts, first))
        key = f.slot(4, 4)
        f.store(key, 0, f.call("bpf_get_attach_cookie", b.ctx), 4)
        found, known, unknown, done = f.variable(), f.block("text"), f.block("no_text"), f.block()
        f.set(found, f.call("bpf_map_lookup_elem", f.map(_map_name(builtin)), f.address(key)))
        f.branch("==", found, 0, unknown, known)
        f.position(known)
        strings.copy_string(b, Place(found, 0, type), dest, True)
        f.jump(done)
        f.position(unknown)         # not reached: every cookie is an index
        strings.zero(b, dest, 0, dest.type.size)
        f.jump(done)
        f.position(done)

    def kernel_maps(self):
        """The tables. Those of two built-ins have the same indices, and gaps where only one is used."""
        for builtin, texts in self.tables.items():
            size = -(-max(len(text) + 1 for text in texts.values()) // 8) * 8
            content = tuple(texts.get(number, b"").ljust(size, b"\0") for number in range(self.count))
            yield KernelMap(_map_name(builtin), "array", 4, size, self.count, content=content)


def _map_name(builtin):
    return builtin + "_texts"
