"""Parser of tracefs "format" files: what a tracepoint's record looks like.

Documentation/trace/events.rst, "Event formats". Offset, size and sign of a field are what the file
says, never what a C compiler would choose: the kernel puts 4-byte types into 8-byte slots (system
call arguments), leaves gaps on real-time kernels, and lays out records for its own pointer size.
"""

import re
from typing import NamedTuple

from .base import SourceError

_FIELD = re.compile(
    r"\tfield:(?P<text>[^;]*);\s*offset:(?P<offset>\d+);\s*size:(?P<size>\d+);"
    r"(?:\s*signed:(?P<signed>[01]);)?")
_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*(?P<array>(?:\[[^\]]*\])*)\s*(?::\s*(?P<bits>\d+))?\Z")

_SIZES = {"char": 1, "short": 2, "int": 4, "long": 0, "u8": 1, "s8": 1, "u16": 2, "s16": 2,
          "u32": 4, "s32": 4, "u64": 8, "s64": 8, "bool": 1, "_Bool": 1, "__be16": 2, "__be32": 4,
          "__le16": 2, "__le32": 4, "__be64": 8, "__le64": 8}


class FormatField(NamedTuple):
    text: str  #: the declaration as the file has it: "const char * filename"
    name: str
    type_text: str  #: "const char *", without the name, the array part and __data_loc
    count: int  #: elements of a fixed array, -1 for a scalar, 0 for loc fields
    loc: str  #: "", "data_loc", "rel_loc"
    offset: int
    size: int  #: bytes in the record (of the 32-bit location for loc fields)
    signed: bool
    bits: object  #: declared width of a bit field, else None

    @property
    def scalar(self):
        return (self.count < 0 and not self.loc and self.size in (1, 2, 4, 8)
                and not re.match(r"(const |volatile )*(struct|union) [^*]*\Z", self.type_text + " "))


class Format(NamedTuple):
    id: int
    common: list  #: the FormatFields every event has
    fields: list  #: its own
    size: int  #: bytes up to the end of the last field

    @property
    def layout(self):
        """What must be equal for one program to read two events' `args`."""
        return tuple((f.name, f.type_text, f.count, f.loc, f.offset, f.size, f.signed)
                     for f in self.fields)


def declarations(text):
    """The declarations of an event's own fields, as they stand in the file."""
    own = text.partition("\n\n")[2]
    return re.findall(r"^\tfield:([^;]*);", own, re.M)


def parse(text, name="format"):
    """A Format from a format file's text; SourceError if it is none."""
    number = re.search(r"^ID: (\d+)$", text, re.M)
    fields, common, own = [], [], False
    for line in text.splitlines():
        if line.startswith("\tfield"):
            match = _FIELD.match(line)
            if not match:
                raise SourceError("%s: field line not understood: %s" % (name, line.strip()))
            fields.append(_field(match, name))
        elif not line.strip() and fields and not own:
            common, fields, own = fields, [], True
        elif line.startswith("print fmt"):
            break
    if not own and fields and not fields[0].name.startswith("common_"):
        common, fields = [], fields
    if number is None:
        raise SourceError("%s: no event ID in the format" % name)
    size = max((f.offset + f.size for f in common + fields), default=0)
    return Format(int(number.group(1)), common, fields, size)


def _field(match, where):
    text = match.group("text").strip()
    rest, loc = text, ""
    for prefix in ("data_loc", "rel_loc"):
        if rest.startswith("__" + prefix + " "):
            rest, loc = rest[len(prefix) + 3:], prefix
    size, offset = int(match.group("size")), int(match.group("offset"))
    found = _NAME.search(rest)
    if not found:
        raise SourceError("%s: declaration not understood: %s" % (where, text))
    type_text = rest[:found.start()].strip()
    array = found.group("array")
    count = -1
    if loc:
        if type_text.endswith("[]"):
            type_text = type_text[:-2].strip()
        count = 0
    elif array:
        count = _count(array, type_text, size)
    bits = found.group("bits")
    return FormatField(text, found.group("name"), type_text, count, loc, offset, size,
                       match.group("signed") == "1", int(bits) if bits else None)


def _count(array, type_text, size):
    """Elements of "[16]", "[4][2]", "[TASK_COMM_LEN]" (a kernel constant whose value the file
    does not say), "[]": from the size in the record where the text has no number."""
    numbers = re.findall(r"\[\s*(\d+)\s*\]", array)
    if len(numbers) == array.count("["):
        count = 1
        for each in numbers:
            count *= int(each)
        return count
    return size // (_element_size(type_text) or 1)


def _element_size(type_text):
    if "*" in type_text:
        return 8
    words = [w for w in type_text.split() if w not in ("const", "volatile", "unsigned", "signed")]
    if words and words[-1].lstrip("_") in _SIZES:
        return _SIZES[words[-1].lstrip("_")] or (8 if words[-1] == "long" else 4)
    return _SIZES.get(words[-1], 0) if words else 4


def field_type(field):
    """The elf.types Type of a FormatField, with size and sign as the record has them."""
    from rawbpf.elf import types

    if field.loc:
        return types.Array(_type(types, field.type_text, _element_size(field.type_text) or 1,
                                 field.signed), 0)
    if field.count >= 0:
        size = field.size // field.count if field.count else _element_size(field.type_text) or 1
        return types.Array(_type(types, field.type_text, size, field.signed), field.count)
    return _type(types, field.type_text, field.size, field.signed)


def _enumerators(name):
    """{name: number} of a kernel enum, as BTF knows it."""
    from . import kernel_btf
    from .base import SourceError

    try:
        found = kernel_btf.vmlinux().find(name, "enum")
    except SourceError:
        found = None
    return found.values if found is not None else {}


def _type(types, text, size, signed):
    text = text.strip()
    if text.endswith("*"):
        return types.Pointer(lambda: _pointed(types, text[:-1].strip()), size)
    for qualifier in ("const", "volatile"):
        if text.startswith(qualifier + " "):
            return types.Qualified(qualifier, _type(types, text[len(qualifier) + 1:], size, signed))
        if text.endswith(" " + qualifier):
            return _type(types, text[:-len(qualifier) - 1], size, signed)
    kind, _, name = text.partition(" ")
    if kind == "enum":
        return types.Enum(name.strip(), size, signed, lambda: _enumerators(name.strip()))
    if kind in ("struct", "union"):
        return types.Struct(kind, name.strip(), size, forward=True)
    if size not in (1, 2, 4, 8):  # a typedef of a struct or an array ("cpumask_var_t")
        return types.Array(types.Int("unsigned char", 1, False, "char"), size)
    encoding = {"char": "char", "signed char": "char", "unsigned char": "char", "bool": "bool",
                "_Bool": "bool"}.get(text, "") if size == 1 else ""
    return types.Int(text, size, signed, encoding)


_COMMON_SIZES = {"size_t": 8, "ssize_t": 8, "loff_t": 8, "off_t": 8, "pid_t": 4, "uid_t": 4,
                 "gid_t": 4, "umode_t": 2, "mode_t": 4, "dev_t": 4, "sector_t": 8, "sigset_t": 8}


def _pointed(types, text):
    """What a pointer points to: here the C type's own size counts, not the record's."""
    words = [w for w in text.split() if w != "volatile" and not w.startswith("__seg")]
    bare = " ".join(w for w in words if w != "const")
    if bare.endswith("*"):
        return types.Pointer(lambda: _pointed(types, " ".join(words)[:-1].strip()))
    kind, _, name = bare.partition(" ")
    size = _element_size(bare) or _COMMON_SIZES.get(bare)
    if bare == "void" or not bare:
        target = types.VOID
    elif kind in ("struct", "union"):
        target = types.Struct(kind, name.strip(), 0, forward=True)
    elif kind == "enum":
        target = types.Enum(name.strip(), 4, False, {})
    elif size:
        unsigned = bare.startswith(("unsigned", "u", "__u", "__be", "__le")) or bare in (
            "bool", "_Bool", "size_t", "mode_t", "dev_t", "gid_t", "sector_t", "sigset_t")
        target = _type(types, bare, size, not unsigned)
    else:
        target = types.Typedef(bare, types.Struct("struct", bare, 0, forward=True))
    return types.Qualified("const", target) if "const" in words else target
