"""`rawbpf trace`: bpftrace's language. `Script` (api.py) is the same engine for Python programs."""


def __getattr__(name):
    # The command line imports this package for every start: the engine comes when it is asked for.
    if name == "Script":
        from .api import Script
        return Script
    raise AttributeError("module %r has no attribute %r" % (__name__, name))
