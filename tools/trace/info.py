"""`rawbpf trace --info`: what the running kernel and this build can do, in the layout of `bpftrace --info`.

People paste it into reports and scripts look for its lines, so the names of what both have are bpftrace's.
"""

import os
import sys

HELPERS = (("dpath", "bpf_d_path", "tracing"), ("get_tai_ns", "bpf_ktime_get_tai_ns", "kprobe"),
           ("get_func_ip", "bpf_get_func_ip", "kprobe"),
           ("lookup_percpu_elem", "bpf_map_lookup_percpu_elem", "kprobe"), ("loop", "bpf_loop", "kprobe"),
           ("ringbuf", "bpf_ringbuf_reserve", "kprobe"), ("probe_read_kernel", "bpf_probe_read_kernel", "kprobe"),
           ("send_signal", "bpf_send_signal", "kprobe"), ("skboutput", "bpf_skb_output", "tracing"),
           ("jiffies64", "bpf_jiffies64", "kprobe"))
COLUMN = 35
LANGUAGE = "0.27"


def yes(flag):
    return "yes" if flag else "no"


def table(title, pairs):
    """Two columns of "name: value" below a heading."""
    cells = ["  %s: %s" % pair for pair in pairs]
    lines = [title]
    for at in range(0, len(cells), 2):
        lines.append((cells[at].ljust(COLUMN) + "".join(cells[at + 1:at + 2])).rstrip())
    return "\n".join(lines) + "\n"


def sections():
    """The text, section by section. A question that the kernel does not let us ask raises KernelError."""
    from rawbpf.loader import features, kernel
    from ..cli import VERSION
    from rawbpf.sources import iterators
    fentry = _fentry()
    system = os.uname()
    yield ("System\n  OS: %s %s %s\n  Arch: %s\n" % (system.sysname, system.release, system.version, system.machine))
    yield ("Build\n  version: v%s (rawbpf; the language of bpftrace v%s)\n  Python: %s\n  LLVM: %s\n"
           "  libdw (DWARF support): yes (own reader)\n  dwunwind (DWARF stack unwinding): yes (own unwinder)\n"
           "  blazesym (advanced symbolization): no\n" % (
               VERSION, LANGUAGE, sys.version.split()[0], _llvm()))
    yield table("Kernel helpers", [
        (name, yes(features.has_helper(helper, type) and (type != "tracing" or fentry)))
        for name, helper, type in HELPERS])
    yield table("Kernel features", [
        ("Instruction limit", "1000000" if features.has_large_programs() else "4096"),
        ("btf", yes(kernel.vmlinux_btf())), ("module btf", yes(_module_btf())),
        ("bounded loops", yes(features.has_loops())), ("ring buffer", yes(features.has_map("ringbuf"))),
        ("instruction set", features.cpu_level())])
    yield table("Probe types", [
        ("kprobe", yes(_perf_type("kprobe"))), ("uprobe", yes(_perf_type("uprobe"))),
        ("kprobe_multi", yes(features.has_link("kprobe_multi"))),
        ("uprobe_multi", yes(features.has_link("uprobe_multi"))),
        ("kprobe_session", yes(features.has_link("kprobe_session"))), ("fentry", yes(fentry)),
        ("iter", yes(iterators.loads("task")))])


def _llvm():
    import importlib.util
    return "llvmlite" if importlib.util.find_spec("llvmlite") else "not installed, not needed"


def _module_btf():
    try:
        return len(os.listdir("/sys/kernel/btf")) > 1
    except OSError:
        return False


def _perf_type(name):
    return os.path.exists("/sys/bus/event_source/devices/%s/type" % name)


def _fentry():
    """Can a program for the entry of a kernel function be loaded?"""
    from rawbpf.sources import SourceError, find
    try:
        find("fentry").require()
    except SourceError:
        return False
    return True


def show(stream):
    """Write the whole to a text stream."""
    stream.write("\n".join(sections()))
