"""What is in a file: ELF images, symbols, notes, DWARF, BTF, and addresses to names. Names are imported when first
used: `from rawbpf.elf import Image, Btf`."""

_HOMES = {
    "Image": "image", "ElfError": "image", "Symbols": "symbols", "Symbol": "symbols", "Dwarf": "dwarf", "Btf": "btf",
    "Unwind": "unwind", "BpfObjectFile": "bpf_object", "KernelSymbols": "symbolizer", "ProcessSymbols": "symbolizer",
    "SymbolCache": "symbolizer", "Provider": "usdt_provider", "ProviderError": "usdt_provider", "find_library": "ldcache",
}
_MODULES = ("bpf_object", "btf", "btf_merge", "demangle", "dwarf", "golang", "image", "ldcache", "object_linker",
            "pt_regs", "relocations", "stapsdt", "symbolizer", "symbols", "types", "unwind", "usdt_provider")

__all__ = sorted(_HOMES) + list(_MODULES)


def __getattr__(name):
    import importlib
    home = _HOMES.get(name)
    if home is not None:
        value = getattr(importlib.import_module("." + home, __name__), name)
    elif name in _MODULES:
        value = importlib.import_module("." + name, __name__)
    else:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    globals()[name] = value
    return value
