"""Elements of maps: from the words of a command line, and as text and JSON, by BTF where the map has it."""

import errno
import os
import sys

from rawbpf.elf.image import ElfError
from rawbpf.loader.errors import KernelError

from ..failure import Failure
from .objects import by_id, one, vmlinux
from .output import JsonWriter, hex_lines, hex_list
from .words import fail, is_prefix

_OF_MAPS = ("array_of_maps", "hash_of_maps")
_NO_ENTRY_IS_NOTHING = _OF_MAPS + ("prog_array",)
_BATCHED = ("hash", "lru_hash", "percpu_hash", "lru_percpu_hash", "array", "percpu_array", "lpm_trie")
_FLAGS = {"any": 0, "noexist": 1, "exist": 2}


class Element:
    """`key DATA`, `value VALUE` and flags, in any order. value: is a value wanted; optional: may the key
    be left out. `.key` is None when it was."""

    def __init__(self, item, words, value, optional=False):
        self.item, self.flags = item, 0
        self.key = self.value = self._held = None
        seen = set()
        while words:
            name = words.need("key", *(("value", "any", "noexist", "exist") if value else ()))
            kind = name if name in ("key", "value") else "flags"
            if kind in seen:
                fail("duplicate " + kind)
            seen.add(kind)
            if kind == "flags":
                self.flags = _FLAGS[name]
            elif kind == "key" and not item.key_size:
                fail("unnecessary key")
            elif kind == "key":
                self.key = parse_bytes(words, "key", item.key_size)
            else:
                self.value = self._read_value(words)
        if value and self.value is None:
            fail("did not find value")
        if self.key is None and item.key_size and not optional:
            fail("did not find key")

    def _read_value(self, words):
        if self.item.type in _OF_MAPS:
            self._held = one("map", words)
        elif self.item.type == "prog_array":
            self._held = one("prog", words)
        else:
            return parse_bytes(words, "value", self.item.value_size)
        return self._held

    def write(self):
        """Updates the map -> whether its flags allowed it."""
        if not self.item.key_size and hasattr(self.item, "push"):
            self.item.push(self.value, self.flags)
            return True
        return self.item.update(self.key or b"", self.value, self.flags)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._held is not None:
            self._held.close()


def parse_bytes(words, what, count):
    """`[hex] BYTES`: exactly count of them."""
    base = 0
    if words and is_prefix(words.peek(), "hex"):
        words.next(what)
        base = 16
    data = bytearray()
    while len(data) < count and words:
        word = words.next(what)
        try:
            octal = base == 0 and len(word) > 1 and word[0] == "0" and word.isdigit()
            data.append(int(word, 8 if octal else base))
        except ValueError:
            fail("error parsing byte: %s" % word)
    if len(data) < count:
        fail("%s expected %d bytes got %d" % (what, count, len(data)))
    return bytes(data)


class Shower:
    """Prints elements of one map in the form of the session."""

    def __init__(self, session, item):
        self.session, self.item = session, item
        self.info = item.info()
        self.per_cpu = "percpu" in item.type
        self.types = self._types()

    def _types(self):
        """(key type or None, value type), or None without (sound) BTF."""
        info = self.info
        kernel_type = getattr(info, "btf_vmlinux_value_type_id", 0)
        number = getattr(info, "btf_id", 0)
        if not number and not kernel_type:
            return None
        try:
            if kernel_type:
                return None, vmlinux().type(kernel_type)
            with by_id("btf", number) as blob:
                btf = blob.parse()
            if not info.btf_value_type_id:
                return None
            key = btf.type(info.btf_key_type_id) if info.btf_key_type_id else None
            self.btf = btf
            return key, btf.type(info.btf_value_type_id)
        except (KernelError, ElfError, Failure):
            return None

    def formatted(self, key, value, plain):
        """The element decoded by its BTF: a JSON value."""
        from .typed_json import render
        fields = {}
        btf = getattr(self, "btf", None)
        if self.types[0] is not None:
            fields["key"] = render(self.types[0], key, plain, btf)
        if self.per_cpu:
            fields["values"] = [{"cpu": cpu, "value": render(self.types[1], one_, plain, btf)}
                                for cpu, one_ in enumerate(value)]
        else:
            fields["value"] = render(self.types[1], value, plain, btf)
        return fields

    def record(self, key, value):
        fields = {"key": hex_list(key)}
        if self.per_cpu:
            fields["values"] = [{"cpu": cpu, "value": hex_list(one_)} for cpu, one_ in enumerate(value)]
        else:
            fields["value"] = hex_list(value)
            if self.item.type in _OF_MAPS:
                fields["inner_map_id"] = int.from_bytes(value[:4], _order())
        if self.types is not None:
            try:
                fields["formatted"] = self.formatted(key, value, False)
            except (ElfError, TypeError, ValueError, IndexError):
                pass
        return fields

    def lookup(self, key, value):
        """One element on its own."""
        if self.session.json is not None:
            self.session.json.value(self.record(key, value))
        elif self.types is not None:
            writer = JsonWriter(self.session.write, True)
            writer.value(self.formatted(key, value, True))
            writer.end()
        else:
            self.session.write(self.plain(key, value))

    def plain(self, key, value):
        if self.per_cpu:
            text = "key:\n%s\n" % hex_lines(key) if key else ""
            glue = "\n" if self.item.value_size > 16 else " "
            return text + "".join("value (CPU %02d):%s%s\n" % (cpu, glue, hex_lines(one_))
                                  for cpu, one_ in enumerate(value))
        if self.item.type in _OF_MAPS and len(key) <= 16:
            return "key: %s  inner_map_id: %d \n" % (hex_lines(key), int.from_bytes(value[:4], _order()))
        return _line(key, hex_lines(value), len(value))

    def error(self, key, code):
        """An element that cannot be read."""
        if code == errno.ENOENT and self.item.type in _NO_ENTRY_IS_NOTHING:
            return None
        message = "Unknown error 524" if code == 524 else os.strerror(code)
        if self.session.json is not None:
            return {"key": hex_list(key), "value": {"error": message}}
        if code == errno.ENOENT:
            message = "<no entry>"
        elif code == errno.ENOSPC and self.item.type == "reuseport_sockarray":
            message = "<cannot read>"
        return _line(key, message, len(message))


def _order():
    return sys.byteorder


def _line(key, shown, size):
    broken = len(key) > 16 or size > 16
    glue = "\n" if broken else " "
    text = ""
    if key:
        text = "key:%s%s%s" % (glue, hex_lines(key), "  " if len(key) + size <= 24 and not broken else "\n")
    if size:
        text += "value:%s%s" % (glue, shown)
    return text + "\n"


def elements(item):
    """(key, value, 0) or (key, None, errno) of every element."""
    recorded = getattr(type(item), "recorded_elements", None)
    if recorded is not None:
        yield from recorded(item)
        return
    if item.type in _BATCHED:
        for key, value in item.items():
            yield key, value, 0
        return
    if not item.key_size:
        item.next_key()         # the kernel says that there are none to walk over
        return
    for key in item.keys():
        try:
            value = item.lookup(key)
        except KernelError as error:
            yield key, None, error.errno
            continue
        yield key, value, errno.ENOENT if value is None else 0


class _Walk:
    """elements(), which end where the kernel refuses to go on: `.error` is what it said then, or None."""

    def __init__(self, item):
        self.item, self.error = item, None

    def __iter__(self):
        try:
            yield from elements(self.item)
        except KernelError as error:
            self.error = error


def dump_map(session, item):
    """All elements, one by one as they are read -> exit status, as bpftool's (what went wrong is its errno)."""
    shower, walk = Shower(session, item), _Walk(item)
    if session.json is not None:
        session.json.value(_records(shower, walk))
    elif shower.types is not None:
        writer = JsonWriter(session.write, True)
        writer.value(shower.formatted(key, value, True) for key, value, code in walk if not code)
        writer.end()
    else:
        _plain(session, shower, walk)
    if walk.error is None:
        return 0
    sys.stderr.write("Error: %s\n" % walk.error)       # beside the document
    return -walk.error.errno & 255


def _plain(session, shower, walk):
    count = 0
    for key, value, code in walk:
        if code:
            session.write(shower.error(key, code) or "")
        else:
            count += 1
            session.write(shower.plain(key, value))
    session.write("Found %d element%s\n" % (count, "" if count == 1 else "s"))


def _records(shower, walk):
    for key, value, code in walk:
        fields = shower.error(key, code) if code else shower.record(key, value)
        if fields is not None:
            yield fields
