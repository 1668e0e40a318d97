"""Attaching a program to what its section's name says, as libbpf does for those kinds that name it.

    kprobe/FUNCTION[+OFFSET]   uprobe/PATH:FUNCTION[+OFFSET]   tracepoint/GROUP/NAME   raw_tp/NAME
    kprobe.multi/PATTERN       uprobe.multi/PATH:PATTERN       ksyscall/NAME           iter, fentry, lsm, ...
"""

import errno
import fnmatch
import os
import re

from . import kernel, link, perf
from .errors import KernelError, ObjectError
from .tracefs import tracefs
from .uapi import ATTACH_TYPES, name_of

_FUNCTION = re.compile(r"([A-Za-z0-9_.$]+)(?:\+(0x[0-9a-fA-F]+|\d+))?\Z")


def attach(program, prefix, kind, target, **options):
    """The Link of a loaded Program. `prefix` and `kind` are those of elf.bpf_sections.SectionType. Options: cookie
    (what bpf_get_attach_cookie() gives), and for user-space probes pid (one process only)."""
    for name in options:
        if name not in ("cookie", "pid") or kind == "iter" or name == "pid" and not kind.startswith("uprobe"):
            raise ObjectError("%s takes no %s" % (prefix.rstrip("+"), name))
    return _KINDS[kind](program, prefix, target, **options)


def attach_to(program, type, attach_type, target, section="", **options):
    """The Link of a loaded Program on a target that no section names (section: what it names all the same, the kind of an
    iterator). By the program's type:

        xdp, tcx, netkit      an interface (its index or name)
        tc, classifier        an interface, direction="ingress" or "egress": a TcFilter, not a link
        cgroup*, sockops      a cgroup (a descriptor or its path)
        sk_lookup, flow_dissector   a network namespace (a descriptor or its path)
        netfilter             a hook: "local_in", ...
        sk_skb, sk_msg        a sockmap or sockhash
        socket, sk_reuseport  a socket
        perf_event, kprobe, tracepoint   a PerfEvent
        iter                  a map (bpf_map_elem, bpf_sk_storage_map, sockmap), else None; pid= or tid= (task, task_file,
                              task_vma), cgroup= and order= (cgroup) narrow it
        freplace              a program, function=NAME: another than it was loaded for

    attach_type=: where the section leaves it open (cgroup/skb, classifier, sk_skb). Other options: those of the
    function in link_net."""
    from . import link_net
    if isinstance(attach_type, int):
        attach_type = name_of(ATTACH_TYPES, attach_type)
    kind = attach_type or ""
    taken = {"what": "%s program" % type, "options": options}
    if kind.startswith("cgroup") or kind == "lsm_cgroup":
        with _opened(target) as cgroup:
            return _called(link_net.attach_cgroup, program, cgroup, attach_type, **taken)
    if type == "sched_cls":
        by = link_net.attach_tcx if kind.startswith("tcx") else link_net.attach_netkit
        if not kind:
            return _called(link_net.attach_tc, program, _interface(target), **taken)
        return _called(by, program, _interface(target), attach_type, **taken)
    if type == "xdp":
        return _called(link_net.attach_xdp, program, _interface(target), **taken)
    if type in ("sk_lookup", "flow_dissector"):
        with _opened(target) as namespace:
            return _called(link_net.attach_netns, program, namespace, attach_type, **taken)
    if type in ("sk_skb", "sk_msg"):
        return _called(link_net.attach_sockmap, program, target, attach_type, **taken)
    if type == "netfilter":
        return _called(_netfilter, program, target, **taken)
    if type in ("socket_filter", "sk_reuseport"):
        return _called(link_net.attach_socket, program, target, **taken)
    if type in ("perf_event", "kprobe", "tracepoint"):
        return _called(link.attach_perf_event, program, target, **taken)
    if kind == "trace_iter":
        _check_iterator(section, target, options)
        return link.attach_iter(program, _called(link.iter_info, target, **taken))
    if type == "ext":
        from .btf_targets import function_of
        target = getattr(target, "program", target)
        if not hasattr(target, "info"):
            raise ObjectError("program %s replaces a function of a program, not of %r" % (program.name, target))
        if not isinstance(options.get("function"), str):
            raise ObjectError("program %s: which function does it replace? function=NAME says" % program.name)
        return link_net.attach_freplace(program, target, _called(function_of, target, **taken))
    raise ObjectError("a %s program is not attached to a target like that: see rawbpf.loader.link and link_net" % type)


def _netfilter(program, hook, pf="ipv4", priority=0, defragment=False):
    from .link_net import attach_netfilter
    return attach_netfilter(program, pf, hook, priority, defragment)


def _called(function, *given, what, options):
    """function(*given, **options); ObjectError about options that it does not take."""
    code = function.__code__
    names = code.co_varnames[len(given):code.co_argcount]
    for name in options:
        if name not in names:
            raise ObjectError("attach_to() of a %s takes no %s%s" % (what, name, names and ": it takes " + ", ".join(names) or ""))
    return function(*given, **options)


_OF_MAPS = {"bpf_map_elem", "bpf_sk_storage_map", "sockmap"}
_NARROWED = {"task": ("pid", "tid"), "task_file": ("pid", "tid"), "task_vma": ("pid", "tid"), "cgroup": ("cgroup", "order")}


def _check_iterator(kind, target, options):
    """The kernel reads what an iterator is given as what its kind takes: a map's descriptor may be a thread's number."""
    if not kind:
        return
    if (kind in _OF_MAPS) != (target is not None):
        raise ObjectError("an iterator iter/%s takes %s" % (kind, "a map: attach_to(map)" if kind in _OF_MAPS else
                                                            "no target: attach_to()"))
    for name in options:
        if name not in _NARROWED.get(kind, ()):
            raise ObjectError("an iterator iter/%s takes no %s" % (kind, name))


def _interface(target):
    if isinstance(target, int):
        if not 0 <= target < 1 << 31:
            raise ValueError("%d is no interface's index: those fit into 31 bits" % target)
        return target
    if not isinstance(target, (str, bytes)):
        raise ValueError("%r is no interface: its index or name, please" % (target,))
    import socket
    try:
        return socket.if_nametoindex(target)
    except OSError:
        raise ObjectError("there is no interface %s" % target) from None


def _opened(target):
    """A context manager that gives the descriptor of a path; what is no path stays the caller's."""
    from contextlib import nullcontext

    from .link_net import open_path
    if not isinstance(target, (str, bytes, os.PathLike)):
        return nullcontext(target)
    try:
        return open_path(target)
    except OSError as error:
        raise ObjectError("%s: %s" % (os.fspath(target), error.strerror)) from None


def tracepoint_id(group, name):
    """The number of a tracepoint, as perf events want it."""
    number = tracefs().event_id(group, name)
    if number is None:
        raise KernelError("tracepoint %s/%s" % (group, name), errno.ENOENT, "the kernel has no such tracepoint")
    return number


def _function(target):
    found = _FUNCTION.match(target)
    if not found:
        raise ObjectError("%r is no function with an offset" % target)
    return found.group(1), int(found.group(2) or "0", 0)


def _perf(program, attr, cookie=None, pid=-1):
    event = perf.PerfEvent.open(attr, pid=pid)
    try:
        return link.attach_perf_event(program, event, cookie)
    except BaseException:
        event.close()
        raise


def _tracepoint(program, prefix, target, cookie=None):
    group, slash, name = target.partition("/")
    if not slash:
        raise ObjectError("%r is no GROUP/NAME of a tracepoint" % target)
    return _perf(program, perf.tracepoint(tracepoint_id(group, name)), cookie)


def _kprobe(program, prefix, target, cookie=None):
    name, offset = _function(target)
    retprobe = prefix.startswith("kret")
    if retprobe and offset:
        raise ObjectError("a return probe has no offset: %s" % target)
    return _perf(program, perf.kprobe(name, offset, retprobe=retprobe), cookie)


def _ksyscall(program, prefix, target, cookie=None):
    from .externs import syscall_wrapper
    name = target
    if syscall_wrapper():
        name = "__%s_sys_%s" % ({"x86_64": "x64", "aarch64": "arm64"}.get(kernel.arch(), kernel.arch()), target)
    else:
        name = "__se_sys_" + target
    return _perf(program, perf.kprobe(name, retprobe=prefix.startswith("kret")), cookie)


def _binary(path):
    """A path as libbpf looks it up: what has no slash is a library or a command."""
    if "/" in path:
        return path
    if ".so" in path or path.startswith("lib"):
        from rawbpf.elf.ldcache import find_library
        found = find_library(path)
        if found:
            return found
    import shutil
    found = shutil.which(path)
    if not found:
        raise ObjectError("no library or command is called %s" % path)
    return found


class Binary:
    """A file that probes go into, by its path as libbpf takes it ("ARCHIVE!/MEMBER" for a library in a zip archive).
    `image`; `path` and `base`: the file that it is mapped from, and where it begins there."""

    def __init__(self, path):
        from rawbpf.elf.image import Image
        archive, inside, member = path.partition("!/")
        if not inside:
            self.image = Image.open(_binary(path))
            self.path, self.base = self.image.path, 0
            return
        from rawbpf.elf.archive import PAGE, Archive
        try:
            self.image = Archive(archive).image(member)
        except KeyError:
            raise ObjectError("%s has no member %s" % (archive, member)) from None
        self.path, self.base = archive, self.image.file_base
        if self.base % PAGE:
            raise ObjectError("%s does not begin on a page boundary of its archive: no process can run it from there" % path)

    def offset(self, symbol, extra=0):
        """Where a symbol is in the file at `path`."""
        offset = self.image.file_offset(symbol.value)
        if offset is None:
            raise ObjectError("%s: %s is not in the file" % (self.image.path, symbol.name))
        return self.base + offset + extra


def _places(target):
    # as libbpf: what follows the first colon is the function
    path, colon, name = target.partition(":")
    if not colon or not path or not name:
        raise ObjectError("%r is no PATH:FUNCTION" % target)
    return Binary(path), name


def _uprobe(program, prefix, target, cookie=None, pid=0):
    from rawbpf.elf.symbols import Symbols
    binary, name = _places(target)
    retprobe = prefix.startswith("uret")
    if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", name):
        offset = binary.base + int(name, 0)
    else:
        plain, extra = name, 0
        found = re.fullmatch(r"(.+)\+(0x[0-9a-fA-F]+|\d+)", name)
        if found:
            plain, extra = found.group(1), int(found.group(2), 0)
        if retprobe and extra:
            raise ObjectError("a return probe has no offset: %s" % name)
        symbol = Symbols(binary.image).find(plain)
        if symbol is None:
            raise ObjectError("%s has no function %s" % (binary.image.path, plain))
        offset = binary.offset(symbol, extra)
    return _perf(program, perf.uprobe(binary.path, offset, retprobe=retprobe), cookie, pid or -1)


def _uprobe_multi(program, prefix, target, cookie=None, pid=0):
    from rawbpf.elf.symbols import Symbols
    binary, pattern = _places(target)
    offsets = sorted({binary.offset(symbol) for symbol in Symbols(binary.image)
                      if fnmatch.fnmatchcase(symbol.name, pattern)})
    if not offsets:
        raise ObjectError("%s has no function %s" % (binary.image.path, pattern))
    return link.attach_uprobe_multi(program, binary.path, offsets, retprobe=prefix.startswith("uret"),
                                    session="session" in prefix, pid=pid, cookies=_each(cookie, offsets))


def _each(cookie, places):
    return None if cookie is None else [cookie] * len(places)


def _kprobe_multi(program, prefix, target, cookie=None):
    options = dict(retprobe=prefix.startswith("kret"), session="session" in prefix)
    if not set(target) & set("*?["):
        return link.attach_kprobe_multi(program, [target], cookies=_each(cookie, [target]), **options)
    names, addresses = _traceable_functions(target)
    if not names:
        raise ObjectError("no function that can be traced matches %s" % target)
    if addresses:
        return link.attach_kprobe_multi(program, addresses=addresses, cookies=_each(cookie, addresses), **options)
    return link.attach_kprobe_multi(program, names, cookies=_each(cookie, names), **options)


def _traceable_functions(pattern):
    """(names, addresses) of the functions that ftrace knows and a pattern matches. A name may occur several times, so
    addresses are better; they are [] where the kernel does not tell them (before 6.5)."""
    try:
        text = tracefs().read("available_filter_functions_addrs", 1 << 20).decode()
        lines = [line.split() for line in text.splitlines()]
        lines = [line for line in lines if len(line) > 1 and int(line[0], 16)]
        if lines:
            found = [line for line in lines if fnmatch.fnmatchcase(line[1], pattern)]
            return [line[1] for line in found], [int(line[0], 16) for line in found]
    except (OSError, ValueError):
        pass
    try:
        text = tracefs().read("available_filter_functions", 1 << 20).decode()
    except OSError as error:
        raise KernelError("attach of %s" % pattern, error.errno,
                          "which functions can be traced cannot be read (available_filter_functions)") from None
    # "__ftrace_invalid_address___N": code that is gone
    return sorted({line.split()[0] for line in text.splitlines() if line and line[:9] != "__ftrace_" and
                   fnmatch.fnmatchcase(line.split()[0], pattern)}), []


def _tracing_multi(program, prefix, target, cookie=None):
    from . import ksyms
    module, colon, pattern = target.rpartition(":")
    btf = ksyms.types_of(module if colon and module != "vmlinux" else None)
    ids = [number for name, number in btf.functions() if fnmatch.fnmatchcase(name, pattern) and _traceable(btf, number)]
    if not ids:
        raise ObjectError("the kernel has no function that can be traced and matches %s" % target)
    return link.attach_tracing_multi(program, "trace_%s_multi" % prefix.split(".")[0], ids, _each(cookie, ids))


def _traceable(btf, number):
    """Has the function up to 12 arguments of up to 16 bytes, and a result that is no struct?"""
    from rawbpf.elf import btf_raw as raw
    from rawbpf.elf.image import ElfError
    prototype = raw.record(btf, raw.record(btf, number).rest)
    arguments = raw.parameters(prototype)
    try:
        return prototype.kind == "func_proto" and len(arguments) <= 12 and all(
            argument and raw.size(btf, argument) <= 16 for argument in arguments) and not (
            prototype.rest and raw.skip(btf, prototype.rest).kind in ("struct", "union"))
    except ElfError:        # an argument without a size
        return False


_KINDS = {
    "tracepoint": _tracepoint, "kprobe": _kprobe, "ksyscall": _ksyscall, "uprobe": _uprobe,
    "uprobe_multi": _uprobe_multi, "kprobe_multi": _kprobe_multi,
    "raw_tracepoint": lambda program, prefix, target, cookie=None: link.attach_raw_tracepoint(program, target, cookie),
    "tracing": lambda program, prefix, target, cookie=None: link.attach_tracing(program, cookie),
    "tracing_multi": _tracing_multi,
    "iter": lambda program, prefix, target: link.attach_iter(program),
}
