"""BTF types as their records say them: ids, kinds and words, for who relocates or rewrites BTF.

`elf.btf` decodes types for people; this is the form that CO-RE matching and the loader's changes to an
object's BTF need. Documentation/bpf/btf.rst. Everything is checked against the type section: what lies
outside is an ElfError.
"""

import struct
from typing import NamedTuple

from .btf import KINDS, _EACH, _FIXED
from .image import ElfError

MODIFIERS = frozenset(("typedef", "volatile", "const", "restrict", "type_tag"))
_DEEP = 64      # modifiers and arrays around a type; more is a loop


class Record(NamedTuple):
    """One type: `rest` is its size or the id it refers to, `words` what follows the three first."""

    id: int
    name: str
    kind: str
    vlen: int
    flag: int
    rest: int
    words: object


class Member(NamedTuple):
    """`bit_size` is 0 unless it is a bit field."""

    name: str
    type: int
    bit_offset: int
    bit_size: int


def record(btf, type_id):
    """The Record of a type id; ElfError when there is none."""
    if type_id == 0:
        return Record(0, "", "void", 0, 0, 0, ())
    cache = btf.__dict__.setdefault("_records", {})
    found = cache.get(type_id)
    if found is None:
        found = cache[type_id] = _read(btf._owner(type_id), type_id)
    return found


def _read(owner, type_id):
    at = owner._word(type_id)
    words = owner._words
    name, info, rest = words[at:at + 3]
    number, vlen = info >> 24 & 31, info & 0xffff
    if number >= len(KINDS):
        raise owner._error(at, "BTF kind %d is not known" % number)
    count = _FIXED.get(number, 0) + _EACH.get(number, 0) * vlen
    return Record(type_id, owner.string(name), KINDS[number], vlen, info >> 31, rest, words[at + 3:at + 3 + count])


def skip(btf, type_id):
    """The Record behind typedefs and qualifiers."""
    found = record(btf, type_id)
    for _ in range(_DEEP):
        if found.kind not in MODIFIERS:
            return found
        found = record(btf, found.rest)
    raise ElfError(btf.path, None, "BTF type %d: a chain of types without end" % type_id)


def members(btf, of):
    """The Members of a struct's or union's Record (the list is kept: do not change it)."""
    cache = btf.__dict__.setdefault("_members", {})
    result = cache.get(of.id)
    if result is not None:
        return result
    result = []
    for i in range(0, 3 * of.vlen, 3):
        name, type_id, offset = of.words[i:i + 3]
        bits = 0
        if of.flag:
            bits, offset = offset >> 24, offset & 0xffffff
        result.append(Member(btf.string(name), type_id, offset, bits))
    cache[of.id] = result
    return result


def enumerators(btf, of):
    """[(name, number)] of an enum's Record, 64-bit ones too."""
    result = []
    step = 2 if of.kind == "enum" else 3
    for i in range(0, step * of.vlen, step):
        value = of.words[i + 1]
        bits = 32
        if step == 3:
            value |= of.words[i + 2] << 32
            bits = 64
        if of.flag and value >> bits - 1:
            value -= 1 << bits
        result.append((btf.string(of.words[i]), value))
    return result


def parameters(of):
    """The type ids of a prototype's parameters."""
    return [of.words[i + 1] for i in range(0, 2 * of.vlen, 2)]


def size(btf, type_id):
    """Bytes of a type, arrays multiplied out; ElfError for what has none."""
    count = 1
    for _ in range(_DEEP):
        found = skip(btf, type_id)
        if found.kind in ("int", "struct", "union", "enum", "enum64", "float", "datasec"):
            return count * found.rest
        if found.kind == "ptr":
            return count * btf.pointer_size
        if found.kind == "var":
            type_id = found.rest
        elif found.kind == "array":
            count *= found.words[2]
            type_id = found.words[0]
        else:
            raise ElfError(btf.path, None, "BTF type %d (%s) has no size" % (type_id, found.kind))
    raise ElfError(btf.path, None, "BTF type %d: a chain of types without end" % type_id)


def essential(name):
    """A name without its flavour: "task_struct___old" -> "task_struct"."""
    at = name.rfind("___")
    while at > 0:
        # the flavour follows the last three underscores that stand between other characters
        if name[at - 1] != "_" and at + 3 < len(name) and name[at + 3] != "_":
            return name[:at]
        at = name.rfind("___", 0, at + 2)
    return name


def flavours(btf, name):
    """Every string of this BTF (not its base) that is `name` or `name` with a flavour."""
    result = {name}
    wanted = b"\0" + name.encode("utf-8", "surrogateescape") + b"___"
    at = btf._data.find(wanted, btf._string_start, btf._string_stop)
    while at >= 0:
        end = btf._data.find(b"\0", at + 1, btf._string_stop)
        text = btf._data[at + 1:end if end >= 0 else btf._string_stop].decode("utf-8", "surrogateescape")
        if essential(text) == name:
            result.add(text)
        at = btf._data.find(wanted, at + 1, btf._string_stop)
    return sorted(result)


def rewrite(btf, change, more=(), more_strings=b""):
    """The bytes of this BTF (no split one) with each Record passed through `change`, which gives
    (name offset or None to keep it, kind, vlen, flag, rest, words). Ids and strings stay; `more` types of the same
    form, with a name offset each, and strings go behind them."""
    numbers = {name: number for number, name in enumerate(KINDS)}
    out = []

    def pack(at, name, kind, vlen, flag, rest, words):
        try:
            out.append(struct.pack("=III%dI" % len(words), btf._words[at] if name is None else name,
                                   flag << 31 | numbers[kind] << 24 | vlen, rest, *words))
        except struct.error:
            raise btf._error(at, "the %s needs numbers of more than 32 bits" % kind) from None
    for type_id in range(1, btf.count):
        pack(btf._word(type_id), *change(record(btf, type_id)))
    for each in more:
        pack(None, *each)
    types = b"".join(out)
    strings = bytes(btf._data[btf._string_start:btf._string_stop]) + more_strings
    return struct.pack("=HBBIIIII", 0xeb9f, 1, 0, 24, 0, len(types), len(types), len(strings)) + types + strings
