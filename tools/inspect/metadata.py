"""What a program says of itself: the variables bpf_metadata_* of its read-only data (`prog show`)."""

from rawbpf.elf.image import ElfError
from rawbpf.loader.errors import KernelError

from ..failure import Failure
from .objects import by_id, others

PREFIX = "bpf_metadata_"


def is_table(info):
    """May this map (its info) be one that holds them? The first of a program is."""
    return info.type == "array" and info.key_size == 4 and info.max_entries == 1 and \
        getattr(info, "btf_value_type_id", 0) and ".rodata" in info.name


def variables(map_ids):
    """[(name, type, bytes)] of a program that uses these maps."""
    try:
        for number in map_ids:
            if number in others:
                continue
            with by_id("map", number) as item:
                info = item.info()
                if not is_table(info):
                    others.add(number)
                    continue
                from rawbpf.elf.btf import DataSection
                data = item.lookup(bytes(4))
                with by_id("btf", info.btf_id) as blob:
                    btf = blob.parse()
                section = btf.type(info.btf_value_type_id)
                if not isinstance(section, DataSection):
                    return []
                return [(btf.name(entry.id)[len(PREFIX):], btf.type(entry.id).type,
                         data[entry.offset:entry.offset + entry.size]) for entry in section.variables
                        if btf.name(entry.id).startswith(PREFIX)]
    except (KernelError, ElfError, Failure, AttributeError, TypeError, IndexError):
        return []       # gone, or its types are damaged: nothing is said of it
    return []


def shown(found, plain):
    """{name: value} of variables(), as bpftool forms values."""
    from .typed_json import render
    fields = {}
    for name, kind, data in found:
        try:
            fields[name] = render(kind, data, plain)
        except (ElfError, TypeError, ValueError, IndexError):
            continue
    return fields


class Metadata(dict):
    """shown() for JSON; `.text()` for people."""

    def __init__(self, found):
        super().__init__(shown(found, False))
        self._found = found

    def text(self):
        from .output import JsonWriter
        parts = ["\tmetadata:"]
        for name, value in shown(self._found, True).items():
            parts.append("\n\t\t%s = " % name)
            JsonWriter(parts.append).value(value)
        return "".join(parts) + "\n"
