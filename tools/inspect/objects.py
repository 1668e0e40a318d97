"""Objects of the kernel by id, name, tag or pin; who holds them; where they are pinned.

All of it comes from the running kernel, or after use() from a recording of one (snapshot.py).
/proc/PID/fdinfo (Documentation/filesystems/proc.rst) tells which descriptors are BPF objects and their ids.
"""

import errno
import os

from rawbpf.loader import ids
from rawbpf.loader.errors import KernelError

from ..failure import Failure
from .words import STATUS, fail

_LINKS = {"anon_inode:bpf-prog": ("prog", "prog_id"), "anon_inode:bpf-map": ("map", "map_id"),
          "anon_inode:bpf_link": ("link", "link_id"), "anon_inode:bpf-link": ("link", "link_id"),
          "anon_inode:btf": ("btf", "btf_id")}


_recording = None
_symbols = None
others = set()      # ids of maps that hold nothing that programs say of themselves (metadata.py), in one run


def use(recording):
    """What is asked from now on is answered by a snapshot.Recording (None: by the kernel)."""
    global _recording, _symbols
    _recording, _symbols = recording, None
    others.clear()


def snapshot_path():
    """The file that is read in the kernel's place, or None."""
    return None if _recording is None else _recording.path


def recorded(what):
    """The records of "perf", "net" or "cgroup" as -j has them, of a recording; None: ask the kernel."""
    return None if _recording is None else _recording.records(what)


def symbols():
    """The names of kernel addresses (elf.symbolizer.KernelSymbols)."""
    global _symbols
    if _symbols is None:
        from rawbpf.elf.symbolizer import KernelSymbols
        _symbols = KernelSymbols(None if _recording is None else _recording.kallsyms())
    return _symbols


def vmlinux():
    """The types of the kernel (elf.Btf)."""
    from rawbpf.elf.btf import Btf
    return Btf.open() if _recording is None else _recording.vmlinux()


def machine():
    """The processor, as uname -m has it."""
    return os.uname().machine if _recording is None else _recording.machine


def interface(ifindex):
    """The name of a network interface, or None."""
    if _recording is not None:
        return _recording.interface(ifindex)
    import socket
    try:
        return socket.if_indextoname(ifindex)
    except OSError:
        return None


def index_of(name):
    """The index of an interface."""
    import socket
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return fail("invalid devname %s" % name)


def classes():
    from rawbpf.loader import BtfObject, Link, Map, Program
    return {"prog": Program, "map": Map, "link": Link, "btf": BtfObject}


def each(kind):
    """Every object of a kind that can still be opened; each is closed when the next is asked for."""
    if _recording is not None:
        yield from _recording.each(kind)
        return
    make = classes()[kind]
    for number in ids.walk(kind):
        fd = ids.open_fd(kind, number)
        if fd is None:
            continue
        with make.from_fd(fd) as found:
            yield found


class Gone(Failure):
    """There is no object with this id, or no longer."""


def records(kind, make):
    """make(object) of each object of a kind; of what goes meanwhile there is none."""
    for item in each(kind):
        try:
            yield make(item)
        except Gone:
            continue


def by_id(kind, number):
    what = {"prog": "get by id (%d)", "map": "get map by id (%d)", "btf": "get BTF by id (%d)",
            "link": "get link by id (%d)"}[kind] % number
    if _recording is not None:
        found = _recording.get(kind, number)
        if found is None:
            raise Gone("%s: the snapshot has none" % what, STATUS)
        return found
    try:
        return classes()[kind].from_id(number)
    except KernelError as error:
        if error.errno in (errno.ENOENT, errno.EAGAIN):     # EAGAIN: a link that is still being made
            raise Gone("%s: No such file or directory" % what, STATUS) from None
        raise


def pinned(kind, path):
    if _recording is not None:
        for number, paths in _recording.pins(kind).items():
            if path in paths:
                return by_id(kind, number)
        fail("%s: nothing of the snapshot is pinned there" % path)
    try:
        return classes()[kind].pinned(path)
    except ValueError as error:
        fail("%s: %s" % (path, error))


def _matching(kind, test):
    make, found = classes()[kind], []
    for item in each(kind):
        if test(item.info()):
            found.append(item if _recording is not None else make.from_fd(os.dup(item.fileno())))
    return found


def select(kind, words):
    """The objects that the next words name, one or more: [object]. The caller closes them."""
    ways = {"prog": ("id", "tag", "name", "pinned"), "map": ("id", "name", "pinned"),
            "link": ("id", "pinned"), "btf": ("id",)}[kind]
    way = words.need(*ways)
    if way == "id":
        return [by_id(kind, words.number("ID"))]
    value = words.next({"tag": "tag", "name": "name", "pinned": "path"}[way])
    if way == "pinned":
        return [pinned(kind, value)]
    if way == "tag" and (len(value) != 16 or value.strip("0123456789abcdefABCDEF")):
        fail("can't parse tag")
    if way == "name" and len(value) > 15:
        if kind == "map":
            fail("can't parse name")
    if way == "tag":
        found = _matching(kind, lambda info: info.tag == value.lower())
    elif kind == "prog":
        found = _matching(kind, lambda info: value in (info.name, full_name(info)))
    else:
        found = _matching(kind, lambda info: info.name == value)
    if not found:
        fail("no %s with %s '%s'" % (kind, way, value))
    return found


def one(kind, words):
    """As select(), for what works on a single object."""
    found = select(kind, words)
    if len(found) > 1:
        for item in found:
            item.close()
        fail("several %ss match this handle" % {"prog": "program"}.get(kind, kind))
    return found[0]


def full_name(info):
    """A program's name, which the kernel cuts to 15 characters, in full where its BTF knows it."""
    if len(info.name) < 15 or not getattr(info, "btf_id", 0) or not getattr(info, "nr_func_info", 0):
        return info.name
    from rawbpf.elf.image import ElfError
    try:
        with by_id("prog", info.id) as program:
            functions = program.func_info()
        with by_id("btf", info.btf_id) as blob:
            name = blob.parse().name(functions[0][1])
    except (KernelError, ElfError, IndexError, Failure):
        return info.name
    return name if name.startswith(info.name) else info.name


def fdinfo(fd, pid="self"):
    """{field: value} of /proc/PID/fdinfo/FD, both as text; {} when it has gone."""
    try:
        file = os.open("/proc/%s/fdinfo/%d" % (pid, fd), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        text = os.read(file, 1 << 16).decode("utf-8", "surrogateescape")
    except OSError:
        return {}
    finally:
        os.close(file)
    return dict(line.split(":\t", 1) for line in text.split("\n") if ":\t" in line)


def details(item):
    """As fdinfo(), of an object."""
    return fdinfo(item.fileno()) if _recording is None else item.details


def descriptors():
    """(pid, fd, kind, id) of every descriptor of a BPF object of the processes in sight, but our own."""
    if _recording is not None:
        yield from _recording.descriptors()
        return
    own = os.getpid()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == own:
            continue
        try:
            fds = os.listdir("/proc/%s/fd" % pid)
        except OSError:
            continue
        for fd in fds:
            try:
                known = _LINKS.get(os.readlink("/proc/%s/fd/%s" % (pid, fd)))
            except OSError:
                continue
            if known:
                number = fdinfo(int(fd), pid).get(known[1], "")
                if number.isdigit():
                    yield int(pid), int(fd), known[0], int(number)


def comm(pid):
    if _recording is not None:
        return _recording.comm(pid)
    try:
        with open("/proc/%d/comm" % pid, errors="surrogateescape") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""


def holders(kind):
    """{id: [{"pid", "comm"}]}: the processes that have a descriptor of an object."""
    found = {}
    for pid, _, of, number in descriptors():
        if of == kind:
            found.setdefault(number, set()).add(pid)
    return {number: [{"pid": pid, "comm": comm(pid)} for pid in sorted(pids)] for number, pids in found.items()}


def unescaped(word):
    """A path of /proc/mounts or mountinfo, which have \\040 for a blank."""
    import re
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), word)


def bpffs_mounts(path="/proc/self/mountinfo"):
    places = []
    try:
        with open(path, errors="surrogateescape", newline="\n") as file:
            for line in file:
                words = line.split(" ")
                if words[words.index("-") + 1] == "bpf":
                    places.append(unescaped(words[4]))
    except (OSError, ValueError, IndexError):
        pass
    return places


def pins(kind):
    """{id: [path]} of everything pinned in the BPF file systems that are mounted."""
    if _recording is not None:
        return _recording.pins(kind)
    found = {}
    make = classes()[kind]
    for place in bpffs_mounts():
        for folder, _, names in os.walk(place):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    with make.pinned(path) as item:
                        found.setdefault(item.info().id, []).append(path)
                except (KernelError, ValueError, OSError):
                    continue        # of another kind, or gone
    return found


class Around:
    """What surrounds objects of a kind: who holds them and, with -f, where they are pinned."""

    def __init__(self, session, kind):
        self.holders = holders(kind)
        self.pins = pins(kind) if session.options.get("bpffs") else {}

    def fields(self, number):
        """To be added to the object's record."""
        fields = {}
        if self.pins:
            fields["pinned"] = self.pins.get(number, [])
        if number in self.holders:
            fields["pids"] = self.holders[number]
        return fields


def around_text(record):
    """The lines of `pinned` and `pids` in a record, each after a newline and tab."""
    lines = ["\n\tpinned " + path for path in record.get("pinned", ())]
    if record.get("pids"):
        lines.append("\n\tpids " + ", ".join("%s(%d)" % (one["comm"], one["pid"]) for one in record["pids"]))
    return "".join(lines)


# -- verbs that are the same of each kind

def show_verb(kind, record, text):
    """`show [OBJECT]`: record(object, around) as JSON, or through text(record)."""
    def show(session, words):
        found = select(kind, words) if words else None
        words.end()
        around = Around(session, kind)
        if found is None:
            session.show(records(kind, lambda item: record(item, around)), text)
            return
        try:
            session.show([record(item, around) for item in found], text, len(found) == 1)
        finally:
            for item in found:
                item.close()
    return show


def pin_verb(kind):
    """`pin OBJECT FILE`."""
    def pin(session, words):
        with one(kind, words) as item:
            path = words.next("path")
            words.end()
            item.pin(path)
        session.done()
    return pin
