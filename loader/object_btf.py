"""An object's BTF as the running kernel takes it.

What a compiler writes is not what the kernel loads: sizes and offsets of data sections are filled in, what
is extern has no place in it, hidden functions count as static; and kinds newer than the kernel are replaced
by older ones of the same size (Documentation/bpf/btf.rst says which kernel has which). Ids and strings
stay, so that everything that refers to them stays right.
"""

import functools
import struct

from rawbpf.elf import btf_raw as raw

from .btf import BtfObject
from .errors import KernelError

# kinds that not every kernel has: records for a probe (name offset 1 is "x"), after type 1, an int
_INT = struct.pack("=IIII", 1, 1 << 24, 4, 1 << 24 | 32)
_PROBES = {
    "datasec": struct.pack("=IIII", 1, 14 << 24, 1, 1) + struct.pack("=IIIIII", 3, 15 << 24 | 1, 4, 2, 0, 4),
    "func": struct.pack("=III", 0, 13 << 24, 0) + struct.pack("=III", 1, 12 << 24, 2),
    "global": struct.pack("=III", 0, 13 << 24, 0) + struct.pack("=III", 1, 12 << 24 | 1, 2),
    "float": struct.pack("=III", 1, 16 << 24, 4),
    "decl_tag": struct.pack("=IIII", 1, 14 << 24, 1, 1) + struct.pack("=IIII", 1, 17 << 24, 2, 0xffffffff),
    "type_tag": struct.pack("=III", 1, 18 << 24, 1) + struct.pack("=III", 0, 2 << 24, 2),
    "enum64": struct.pack("=III", 1, 19 << 24 | 1, 8) + struct.pack("=III", 1, 0, 0),
}


@functools.lru_cache(maxsize=None)
def has_kind(name, token=None):
    """Does the kernel take this kind of BTF type? token: a kobject.Token that delegates the permission to load BTF."""
    strings = b"\0x\0.x\0"
    types = _INT + _PROBES[name]
    try:
        BtfObject.load(struct.pack("=HBBIIIII", 0xeb9f, 1, 0, 24, 0, len(types), len(types), len(strings)) +
                       types + strings, token).close()
    except KernelError:
        return False
    return True


def for_kernel(file, externs, has=has_kind, clones=None):
    """The bytes of the object's BTF, changed as said above; `externs` is the Externs of the file, `clones` the
    arg_ctx.Clones that are added to it."""
    more = (clones.records, clones.strings) if clones is not None else ()
    return raw.rewrite(file.btf, _Changes(file, externs, has).change, *more)


class _Changes:
    def __init__(self, file, externs, has):
        self.file, self.btf, self.externs, self.has = file, file.btf, externs, has
        self.hidden = {function.name for function in file.functions if function.hidden and not function.program}
        self.gone = set()       # ids that are no variable or function any more
        self.kconfig = set()
        for type_id in range(1, self.btf.count):
            record = raw.record(self.btf, type_id)
            if record.kind == "datasec" and record.name == ".kconfig":
                self.kconfig.update(record.words[i] for i in range(0, len(record.words), 3))
        for type_id in range(1, self.btf.count):
            record = raw.record(self.btf, type_id)
            if record.kind == "func" and record.vlen == 2 or record.kind == "var" and record.words[0] == 2 and \
                    type_id not in self.kconfig or record.kind == "var" and not has("datasec"):
                self.gone.add(type_id)

    def change(self, record):
        handler = getattr(self, "_" + record.kind, None)
        changed = handler(record) if handler is not None else None
        return changed or (None, record.kind, record.vlen, record.flag, record.rest, record.words)

    def _pointer(self, to=0):
        return 0, "ptr", 0, 0, to, ()

    def _func(self, record):
        if record.id in self.gone or not self.has("func"):
            return self._pointer(record.rest if self.has("func") else 0)
        linkage = record.vlen
        if linkage == 1 and (record.name in self.hidden or not self.has("global")):
            linkage = 0
        return None, "func", linkage, 0, record.rest, ()

    def _func_proto(self, record):
        return None if self.has("func") else self._pointer()

    def _var(self, record):
        if record.id in self.gone:
            return self._pointer()
        return None, "var", 0, 0, record.rest, (1 if record.words[0] == 2 else record.words[0],)

    def _datasec(self, record):
        if record.name == ".ksyms" or record.name[:1] == "?" or not self.has("datasec"):     # "?": a name since 6.12
            return 0, "struct", 0, 0, 0, ()
        words = record.words
        if record.name == ".kconfig":
            entries = []
            for i in range(0, len(words), 3):
                name = raw.record(self.btf, words[i]).name
                if name in self.externs.offsets:
                    entries.append((words[i], self.externs.offsets[name], self.externs.sizes[name]))
            size = self.externs.size
        else:
            section = self.file.image.section(record.name)
            entries = [(words[i], self.file.variable_place(record.name, raw.record(self.btf, words[i]), words[i + 1]),
                        words[i + 2]) for i in range(0, len(words), 3)]
            size = section.size if section is not None else record.rest
        entries.sort(key=lambda entry: entry[1])
        return None, "datasec", len(entries), 0, size, tuple(word for entry in entries for word in entry)

    def _float(self, record):
        # a float is a struct of the same size to kernels that know none
        return None if self.has("float") else (0, "struct", 0, 0, record.rest, ())

    def _decl_tag(self, record):
        if record.rest in self.gone or not self.has("decl_tag") or \
                raw.record(self.btf, record.rest).kind in ("func", "var") and not self.has("func"):
            return self._pointer()
        return None

    def _type_tag(self, record):
        return None if self.has("type_tag") else (0, "const", 0, 0, record.rest, ())

    def _enum64(self, record):
        if self.has("enum64"):
            return None
        # a union of as many members; their values are lost, which only readers of C would miss
        return None, "union", 0, 0, record.rest, ()

    def _enum(self, record):
        # the flag says "signed" since enum64 came; before, it had to be 0
        return None if self.has("enum64") else (None, "enum", record.vlen, 0, record.rest, record.words)
