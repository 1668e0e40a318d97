"""The kernel's BPF objects: programs, maps, links, ring buffers, features. Names are imported when
first used, so that a short-lived command does not pay for what it does not touch."""

_HOMES = {
    "Program": "program", "TestRun": "program", "run_statistics": "program",
    "Map": "maps", "RingBuffer": "ringbuf", "PerfBuffer": "perfbuf", "PerfEvent": "perf",
    "UserRingBuffer": "userring", "BtfObject": "btf", "TypedMap": "typed", "Token": "kobject",
    "Link": "link", "LinkGroup": "link", "KernelError": "errors", "VerifierError": "errors",
    "Object": "collection", "ObjectError": "errors",
}
_MODULES = ("btf", "errors", "features", "ids", "introduced", "kernel", "ksyms", "link", "link_net",
            "mapkinds", "maps", "perf", "perfbuf", "program", "query", "ringbuf", "syscalls", "uapi",
            "userring", "values", "verifier")

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
