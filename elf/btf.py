"""BTF, the kernel's type format: read lazily.

Implements Documentation/bpf/btf.rst: the header, the string section and the type section with all
kinds to ENUM64, and split BTF (a module's, whose ids and strings continue those of vmlinux).
Opening costs nothing but the header's checks. The place of a type is known once the walk over the
type section has passed it, and the walk goes only as far as somebody asks; a name is searched as
bytes in the string section and then in the type section. A type is decoded when it is asked for, and
what it refers to when that is read.
"""

import os
import struct
from array import array
from bisect import bisect_right
from typing import NamedTuple

from . import types
from .image import ElfError, Image, read_input

MAGIC = 0xeb9f
VMLINUX = "/sys/kernel/btf/vmlinux"
LIMIT = 1 << 27             # bytes: the kernel's own have some ten millions

KINDS = ("void", "int", "ptr", "array", "struct", "union", "enum", "fwd", "typedef", "volatile", "const",
         "restrict", "func", "func_proto", "var", "datasec", "float", "decl_tag", "type_tag", "enum64")
_NUMBER = {name: number for number, name in enumerate(KINDS)}
(_VOID, _INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _FWD, _TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _FUNC,
 _PROTO, _VAR, _DATASEC, _FLOAT, _DECL_TAG, _TYPE_TAG, _ENUM64) = range(20)

# words (4 bytes) after the three that every type has: a fixed number, and one for each of `vlen`
_FIXED = {_INT: 1, _ARRAY: 3, _VAR: 1, _DECL_TAG: 1}
_EACH = {_STRUCT: 3, _UNION: 3, _ENUM: 2, _PROTO: 2, _DATASEC: 3, _ENUM64: 3}
_REFERENCES = frozenset((_PTR, _TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG, _FUNC, _VAR, _DECL_TAG))
_QUALIFIERS = {_VOLATILE: "volatile", _CONST: "const", _RESTRICT: "restrict", _TYPE_TAG: "type_tag"}
LINKAGES = ("static", "global", "extern")


class Variable(NamedTuple):
    """A BTF_KIND_VAR; `linkage` is "static", "global" or "extern"."""

    name: str
    type: object
    linkage: str


class SectionVariable(NamedTuple):
    """One entry of a BTF_KIND_DATASEC: the id of a variable (or function), its place and size."""

    id: int
    offset: int
    size: int


class DataSection(NamedTuple):
    name: str
    size: int
    variables: list


class Btf:
    """The types of one BTF blob. `base` is the Btf that a split one continues. `pointer_size` is 8
    unless the types say that `long` has 4 bytes; `path` is what errors name."""

    def __init__(self, buffer, base=None, path="<BTF>"):
        self.path = path
        self.base = base
        if len(buffer) > LIMIT:
            raise ElfError(path, None, "BTF of %d bytes is more than any has" % len(buffer))
        data = buffer if isinstance(buffer, bytes) else bytes(buffer)
        if len(data) < 24:
            raise ElfError(path, 0, "BTF of %d bytes is too short for its header" % len(data))
        magic, = struct.unpack_from("<H", data)
        if magic not in (MAGIC, 0x9feb):
            raise ElfError(path, 0, "not BTF (magic 0x%04x)" % magic)
        self.order = "<" if magic == MAGIC else ">"
        version, self.flags, header, type_off, type_len, str_off, str_len = struct.unpack_from(
            self.order + "BBIIIII", data, 2)
        if version != 1:
            raise ElfError(path, 2, "BTF version %d is not known" % version)
        for what, start, size in (("types", type_off, type_len), ("strings", str_off, str_len)):
            if header < 24 or header + start + size > len(data):
                raise ElfError(path, 4, "the BTF %s lie outside the data" % what)
        if type_off % 4 or type_len % 4:
            raise ElfError(path, 8, "the BTF types are not aligned to 4 bytes")
        self._data = data
        self._type_start = header + type_off
        self._type_end = self._type_start + type_len
        self._string_start = header + str_off
        self._string_stop = header + str_off + str_len
        self.first_id = base.count if base is not None else 1
        self.first_string = base.string_end if base is not None else 0
        self.string_end = self.first_string + str_len
        self._words = memoryview(data)[self._type_start:self._type_end]
        if (self.order == "<") == (struct.pack("=H", 1) == b"\1\0"):
            self._words = self._words.cast("I")
        else:
            self._words = array("I", self._words.tobytes())
            self._words.byteswap()
        self._layout = self._read_layout(data, header)
        self._index = array("I")        # word offset of each type that the walk has passed
        self._walked = 0                # word offset that it has reached
        self._cache = {}
        self._found = {}                # what find_ids found: a search reads all types
        self._pointer_size = None

    @classmethod
    def parse(cls, buffer, base=None, path="<BTF>"):
        """Read BTF from bytes; `ElfError` when it is none."""
        return cls(buffer, base, path)

    @classmethod
    def open(cls, path=VMLINUX, base=None):
        """Read a file that is BTF (/sys/kernel/btf/*) or an ELF file with a `.BTF` section."""
        try:
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    start = file.read(4)
                    if start != b"\x7fELF":
                        return cls(start + file.read(LIMIT), base, path)
                image = Image.open(path)
            else:
                data = read_input(path)
                if data[:4] != b"\x7fELF":
                    return cls(data, base, path)
                image = Image(data, path)
        except (OSError, ValueError) as error:
            raise ElfError(path, None, getattr(error, "strerror", None) or str(error)) from None
        section = image.section(".BTF")
        if section is None:
            raise ElfError(path, None, "has no .BTF section")
        return cls(image.data(section), base, path)

    # -- where types are -----------------------------------------------------------------------------

    def _read_layout(self, data, header):
        """Words per kind, from the header's own description of kinds where it has one (a later
        addition: per kind u8 fixed size, u8 size of each element, u16 flags)."""
        table = {kind: (_FIXED.get(kind, 0), _EACH.get(kind, 0)) for kind in range(1, len(KINDS))}
        if header >= 32:
            offset, size = struct.unpack_from(self.order + "II", data, 24) if len(data) >= 32 else (0, 0)
            if size and header + offset + size <= len(data):
                for kind in range(len(KINDS), min(size // 4, 32)):
                    fixed, each = struct.unpack_from("BB", data, header + offset + kind * 4)
                    table[kind] = ((fixed + 3) // 4, (each + 3) // 4)
        fixed = [-1] * 32
        each = [0] * 32
        for kind, (one, many) in table.items():
            fixed[kind], each[kind] = one + 3, many
        return fixed, each

    def _walk(self, word=None, number=None):
        """Note where types start until past `word`, or until there are `number`; to the end if neither."""
        words, at, end = self._words, self._walked, len(self._words)
        if word is None and number is None:
            word = end
        fixed, each = self._layout
        starts = []
        add = starts.append
        limit = end if word is None else min(word + 1, end)
        room = -1 if number is None else number - len(self._index)
        while at < limit and room:
            add(at)
            room -= 1
            try:
                info = words[at + 1]
            except IndexError:
                raise self._error(at, "the last BTF type is cut short") from None
            kind = info >> 24 & 31
            size = fixed[kind]
            if size < 0:
                raise self._error(at, "BTF kind %d is not known" % kind)
            at += size + each[kind] * (info & 0xffff)
        if at > end:
            raise self._error(starts[-1], "the last BTF type is cut short")
        self._index.extend(starts)
        self._walked = at

    def _error(self, word, reason):
        return ElfError(self.path, self._type_start + word * 4, reason)

    @property
    def count(self):
        """One more than the highest type id, the base's included (void is id 0)."""
        self._walk()
        return self.first_id + len(self._index)

    def _word(self, type_id):
        """Where this blob's own type with that id starts."""
        number = type_id - self.first_id
        if number >= len(self._index):
            self._walk(number=number + 1)
            if number >= len(self._index):
                raise ElfError(self.path, None, "no BTF type %d" % type_id)
        return self._index[number]

    def _owner(self, type_id):
        owner = self
        while owner.base is not None and type_id < owner.first_id:
            owner = owner.base
        return owner

    def kind(self, type_id):
        """The kind's name of a type id."""
        if type_id == 0:
            return "void"
        owner = self._owner(type_id)
        number = owner._words[owner._word(type_id) + 1] >> 24 & 31
        return KINDS[number] if number < len(KINDS) else "kind %d" % number

    def name(self, type_id):
        """The name of a type id, "" for void and for those without one."""
        if type_id == 0:
            return ""
        owner = self._owner(type_id)
        return owner.string(owner._words[owner._word(type_id)])

    # -- strings -----------------------------------------------------------------------------------------

    def string(self, offset):
        if offset < self.first_string:
            return self.base.string(offset)
        start = self._string_start + offset - self.first_string
        end = self._data.find(b"\0", start, self._string_stop)
        if end < 0:
            raise ElfError(self.path, None, "BTF string %d lies outside the strings" % offset)
        return self._data[start:end].decode("utf-8", "surrogateescape")

    def _offsets_of(self, name):
        """Every offset at which the string section has exactly this string."""
        wanted = b"\0" + name.encode("utf-8", "surrogateescape") + b"\0"
        if self.base is not None:
            yield from self.base._offsets_of(name)
        start, stop = self._string_start, self._string_stop
        if self._data.startswith(wanted[1:], start, stop):
            yield self.first_string
        at = self._data.find(wanted, start, stop)
        while at >= 0:
            yield self.first_string + at + 1 - start
            at = self._data.find(wanted, at + len(wanted) - 1, stop)

    def _words_equal_to(self, value):
        """Every place in the type section where this word stands."""
        pattern = struct.pack(self.order + "I", value)
        at = self._data.find(pattern, self._type_start, self._type_end)
        while at >= 0:
            if (at - self._type_start) % 4 == 0:
                yield (at - self._type_start) // 4
            at = self._data.find(pattern, at + 1, self._type_end)

    # -- lookups -----------------------------------------------------------------------------------------

    def find_ids(self, name, kind=None):
        """The ids of the types called `name`, of one kind ("struct", "func", "typedef", ...; "enum"
        means 64-bit ones too) or of any."""
        known = self._found.get((name, kind))
        if known is None:
            known = self._found[name, kind] = self._search(name, kind)
        return list(known)

    def _search(self, name, kind):
        kinds = None if kind is None else {_NUMBER[kind]} | ({_ENUM64} if kind == "enum" else set())
        found = self.base.find_ids(name, kind) if self.base is not None else []
        if not name:
            return found
        for offset in self._offsets_of(name):
            for word in self._words_equal_to(offset):
                if word + 3 <= len(self._words):
                    number = self._words[word + 1] >> 24 & 31
                    if number in kinds if kinds is not None else number:
                        type_id = self._id_at(word)
                        if type_id:
                            found.append(type_id)
        return found

    def _id_at(self, word):
        """The id of the type that starts at `word`, 0 when none does."""
        if self._walked <= word:
            self._walk(word=word)
        number = bisect_right(self._index, word) - 1
        return self.first_id + number if self._index[number] == word else 0

    def find_id(self, name, kind=None):
        """The id of the first type of that name and kind, 0 if there is none: what attach_btf_id
        takes."""
        ids = self.find_ids(name, kind)
        return ids[0] if ids else 0

    def find(self, name, kind=None):
        """The type of that name and kind, or None."""
        type_id = self.find_id(name, kind)
        return self.type(type_id) if type_id else None

    def enumerator(self, name):
        """The number of the enumeration constant `name`, or None."""
        found = self._enumerator(name)
        return found and found[1]

    def enumeration(self, name):
        """(number, Enum) of the enumeration constant `name`, or None."""
        found = self._enumerator(name)
        return found and (found[1], self.type(found[0]))

    def _enumerator(self, name):
        """(id of the enum, number)"""
        found = self.base._enumerator(name) if self.base is not None else None
        if found is not None or not name:
            return found
        for offset in self._offsets_of(name):
            for word in self._words_equal_to(offset):
                if self._walked <= word:
                    self._walk(word=word)
                place = bisect_right(self._index, word) - 1
                start = self._index[place]
                kind = self._words[start + 1] >> 24 & 31
                if word >= start + 3 and kind in (_ENUM, _ENUM64) and (word - start - 3) % _EACH[kind] == 0:
                    return self.first_id + place, self._number(word, kind, self._words[start + 1] >> 31)
        return None

    def _number(self, word, kind, signed):
        value = self._words[word + 1]
        bits = 32
        if kind == _ENUM64:
            value |= self._words[word + 2] << 32
            bits = 64
        return value - (1 << bits) if signed and value >> bits - 1 else value

    def names(self, *kinds):
        """(name, id) of every type of these kinds that this blob itself has, in their order."""
        self._walk()
        wanted = {_NUMBER[kind] for kind in kinds}
        words, data, first, stop = self._words, self._data, self.first_string, self._string_stop
        find, strings = data.find, self._string_start
        type_id = self.first_id - 1
        for at in self._index:
            type_id += 1
            if words[at + 1] >> 24 & 31 in wanted:
                start = words[at] - first
                if start < 0:
                    yield self.string(words[at]), type_id
                    continue
                start += strings
                end = find(b"\0", start, stop)
                if end < 0:
                    raise self._error(at, "BTF string %d lies outside the strings" % words[at])
                yield data[start:end].decode("utf-8", "surrogateescape"), type_id

    def signature(self, type_id):
        """(number of parameters, whether more may follow) of a function, without the types that `type` would make."""
        owner = self._owner(type_id)
        prototype = owner._words[owner._word(type_id) + 2]
        owner = owner._owner(prototype)
        at, words = owner._word(prototype), owner._words
        count = words[at + 1] & 0xffff
        variadic = bool(count) and not words[at + 1 + 2 * count] and not words[at + 2 + 2 * count]
        return count - variadic, variadic

    def functions(self):
        """(name, id) of every function that this blob itself has."""
        return self.names("func")

    def tags(self, type_id):
        """The declaration tags of a type: [(component, text)], component -1 for the type itself."""
        self._walk()
        result = []
        for number, at in enumerate(self._index):
            if self._words[at + 1] >> 24 & 31 == _DECL_TAG and self._words[at + 2] == type_id:
                component = self._words[at + 3]
                result.append((component - (1 << 32) if component >> 31 else component, self.string(self._words[at])))
        return result

    # -- decoding ------------------------------------------------------------------------------------------

    def type(self, type_id):
        """The `Type` of an id, or a `Variable`, `DataSection` for those kinds."""
        if type_id == 0:
            return types.VOID
        owner = self._owner(type_id)
        # a base's type refers to the base only, so the base can keep it
        found = owner._cache.get(type_id)
        if found is None:
            found = owner._cache[type_id] = owner._decode(type_id)
        return found

    def _lazy(self, type_id):
        """A function that gives the C type of an id when called."""
        def get():
            found = self.type(type_id)
            if not isinstance(found, types.Type):
                raise ElfError(self.path, None, "BTF type %d is a %s, not a C type" % (type_id, self.kind(type_id)))
            return found
        return get

    def _check_chain(self, type_id):
        """Pointers, typedefs, qualifiers and arrays must lead to something else in the end."""
        for _ in range(64):
            if type_id == 0:
                return
            owner = self._owner(type_id)
            at = owner._word(type_id)
            kind = owner._words[at + 1] >> 24 & 31
            if kind == _ARRAY:
                type_id = owner._words[at + 3]
            elif kind in _REFERENCES:
                type_id = owner._words[at + 2]
            else:
                return
        raise ElfError(self.path, None, "BTF type %d: a chain of types without end" % type_id)

    @property
    def pointer_size(self):
        """Size of a pointer: that of `long` if there is one, else 8."""
        if self._pointer_size is None:
            self._pointer_size = 8
            if self.base is not None:
                self._pointer_size = self.base.pointer_size
            else:
                for name in ("long unsigned int", "unsigned long", "long", "long int"):
                    type_id = self.find_id(name, "int")
                    if type_id:
                        size = self._words[self._word(type_id) + 2]
                        self._pointer_size = 4 if size == 4 else 8
                        break
        return self._pointer_size

    def _decode(self, type_id):
        at = self._word(type_id)
        words = self._words
        info = words[at + 1]
        kind, vlen, flag = info >> 24 & 31, info & 0xffff, info >> 31
        rest = words[at + 2]
        if kind in _REFERENCES or kind == _ARRAY:
            self._check_chain(type_id)
        name = self.string(words[at])
        if kind == _INT:
            encoding = words[at + 3] >> 24 & 15
            # pahole gave "signed char" no sign for long (kernels to 5.10)
            return types.Int(name, rest, bool(encoding & 1) or name == "signed char",
                             "bool" if encoding & 4 else "char" if encoding & 2 or name == "char" else "")
        if kind == _PTR:
            return types.Pointer(self._lazy(rest), self.pointer_size)
        if kind == _ARRAY:
            return types.Array(self._lazy(words[at + 3]), words[at + 5])
        if kind in (_STRUCT, _UNION):
            return types.Struct(KINDS[kind], name, rest, lambda: self._fields(at, vlen, flag))
        if kind in (_ENUM, _ENUM64):
            return types.Enum(name, rest, bool(flag), lambda: self._enumerators(at, kind, vlen, flag))
        if kind == _FWD:
            return self._forward("union" if flag else "struct", name)
        if kind == _TYPEDEF:
            return types.Typedef(name, self._lazy(rest))
        if kind in _QUALIFIERS:
            return types.Qualified(_QUALIFIERS[kind], self._lazy(rest), name if kind == _TYPE_TAG else "")
        if kind == _FUNC:
            proto = self.type(rest)
            if not isinstance(proto, types.Function) or proto.name:
                raise self._error(at, "the function %s has no prototype" % name)
            return types.Function(name, lambda: proto.parameters, lambda: proto.returns, proto.variadic)
        if kind == _PROTO:
            return self._prototype(at, vlen, rest)
        if kind == _VAR:
            linkage = words[at + 3]
            return Variable(name, self._lazy(rest)(), LINKAGES[linkage] if linkage < 3 else "linkage %d" % linkage)
        if kind == _DATASEC:
            return DataSection(name, rest, [SectionVariable(*words[i:i + 3])
                                            for i in range(at + 3, at + 3 + 3 * vlen, 3)])
        if kind == _FLOAT:
            return types.Float(name, rest)
        raise self._error(at, "BTF kind %d cannot be used as a type" % kind)

    def _forward(self, kind, name):
        """A type that is only declared: its definition where this BTF has one."""
        for type_id in self.find_ids(name, kind):
            return self.type(type_id)
        return types.Struct(kind, name, 0, (), True)

    def _fields(self, at, vlen, flag):
        fields = []
        for word in range(at + 3, at + 3 + 3 * vlen, 3):
            name, type_id, offset = self._words[word:word + 3]
            size = 0
            if flag:
                size, offset = offset >> 24, offset & 0xffffff
            field_type = self._lazy(type_id)()
            if not size and offset % 8:
                size = self._old_bit_field(type_id) or 8 * field_type.size
            elif not size:
                old = self._old_bit_field(type_id)
                size = old if old and old != 8 * field_type.size else 0
            if not size:
                fields.append(types.Field(self.string(name), field_type, offset // 8))
                continue
            # the storage is the unit of the declared type that holds the first bit, as C lays it out
            unit = 8 * field_type.size or 8
            start = offset // unit * unit if offset % unit + size <= unit else offset // 8 * 8
            fields.append(types.Field(self.string(name), field_type, start // 8, offset - start, size))
        return fields

    def _old_bit_field(self, type_id):
        """Before the kind flag, the integer type itself told how many bits it has."""
        for _ in range(64):
            if not type_id:
                return 0
            owner = self._owner(type_id)
            at = owner._word(type_id)
            kind = owner._words[at + 1] >> 24 & 31
            if kind == _INT:
                return owner._words[at + 3] & 0xff
            if kind not in (_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG):
                return 0
            type_id = owner._words[at + 2]
        return 0

    def _enumerators(self, at, kind, vlen, flag):
        step = _EACH[kind]
        return {self.string(self._words[word]): self._number(word, kind, flag)
                for word in range(at + 3, at + 3 + step * vlen, step)}

    def _prototype(self, at, vlen, returns):
        words = self._words
        rows = [(words[i], words[i + 1]) for i in range(at + 3, at + 3 + 2 * vlen, 2)]
        variadic = bool(rows) and rows[-1] == (0, 0)
        if variadic:
            rows.pop()
        return types.Function(
            "", lambda: [types.Parameter(self.string(name), self._lazy(type_id)()) for name, type_id in rows],
            self._lazy(returns), variadic)
