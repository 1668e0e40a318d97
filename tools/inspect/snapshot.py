"""`rawbpf snapshot FILE`: everything the inspectors read, in a file that they read instead (`--snapshot FILE`).

The file is a zip archive: `snapshot.json` (format, time, kernel, descriptors, pins, and of each object what the
kernel says of it), `code/ID.xlated` and `.jited`, `btf/ID`, `btf/vmlinux`, `kallsyms`, and where they were asked for
`maps/ID.json` with the elements of the maps.
"""

import errno
import json
import os
import time
from types import SimpleNamespace

from rawbpf.loader.errors import KernelError

from ..failure import Failure
from .command import run_object
from .words import STATUS, fail

USAGE = """usage: rawbpf snapshot FILE [maps] [features]

Writes what there is of programs, maps, links and BTF, who holds them and where they are pinned to FILE, which
prog, map, link, btf, perf, net, cgroup, struct_ops, tree, who, batch and diff read with --snapshot FILE.
maps: the maps' elements too. features: what `feature probe` finds, too (as long as that takes).
"""
FORMAT = 1
KINDS = ("prog", "map", "link", "btf")
# What a program is asked besides its info(), and what it answers on a kernel that does not tell.
_FORMERLY = {"cgroup_root": "", "cgroup_folders": ()}       # what there is in snapshots of before it was recorded
_ASKED = {"func_info": [], "line_info": [], "jited_ksyms": [], "jited_functions": [], "jited_line_info": []}


# -- writing

def take(path, with_maps=False, progress=None, with_features=False):
    """Writes a snapshot; -> {kind: number of objects}."""
    import zipfile
    if os.path.exists(path) and not os.path.isfile(path):
        fail("%s is no regular file" % path)
    temporary = "%s.%d" % (path, os.getpid())
    try:
        fd, named = _unnamed(path, temporary)
        with open(fd, "w+b") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                counts = _Writer(archive, with_maps, progress or (lambda text: None)).write(with_features)
            file.flush()
            if not named:
                os.link("/proc/self/fd/%d" % fd, temporary, src_dir_fd=fd)      # linkat(AT_SYMLINK_FOLLOW): link() would not follow
        os.replace(temporary, path)
    except BaseException as error:
        if os.path.exists(temporary):
            os.unlink(temporary)
        if type(error) is OSError and not error.filename:       # write(2) does not name it
            fail("%s: %s" % (path, error.strerror))
        raise
    return counts


def _unnamed(path, temporary):
    """(descriptor, False) of a file that goes with this process, whatever ends it; where the file system of `path` has none
    such (overlayfs before 6.1, NFS), (descriptor, True) of `temporary`."""
    try:
        return os.open(os.path.dirname(path) or ".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600), False
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    return os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), True


class _Writer:
    def __init__(self, archive, with_maps, progress):
        self.archive, self.with_maps, self.progress = archive, with_maps, progress

    def write(self, with_features=False):
        from . import cgroup, net, perf
        from .objects import comm, descriptors, pins
        from .cgroup import mounted
        uname = os.uname()
        said = {"format": FORMAT, "time": time.time(), "kernel": uname.release, "machine": uname.machine,
                "host": uname.nodename, "objects": {}, "interfaces": {}}
        for kind in KINDS:
            self.progress(kind)
            said["objects"][kind] = self._objects(kind)
        self.progress("holders")
        said["descriptors"] = list(descriptors())
        said["comm"] = {str(pid): comm(pid) for pid in {one[0] for one in said["descriptors"]}}
        said["pins"] = {kind: {str(number): paths for number, paths in pins(kind).items()} for kind in KINDS[:3]}
        said["perf"] = _or_none(lambda: list(perf.records()))
        said["net"] = _or_none(lambda: [net.records()])
        root = said["cgroup_root"] = mounted()
        try:
            said["cgroup_folders"] = list(cgroup.folders(root)) if root else []
        except OSError:         # something else is mounted over it
            root, said["cgroup_folders"] = "", []
        said["cgroup"] = _or_none(lambda: list(cgroup.branches(root, False))) if root else []
        if with_features:
            self.progress("features")
            from .feature import answers
            said["features"] = answers()
        import socket
        said["interfaces"] = {str(index): name for index, name in socket.if_nameindex()}
        for name, path in (("kallsyms", "/proc/kallsyms"), ("btf/vmlinux", "/sys/kernel/btf/vmlinux")):
            self.progress(name)
            try:
                with open(path, "rb") as file:
                    self.archive.writestr(name, file.read())
            except OSError:
                continue
        self.archive.writestr("snapshot.json", json.dumps(said, default=_plain))
        return {kind: len(found) for kind, found in said["objects"].items()}

    def _objects(self, kind):
        from .metadata import is_table
        from .objects import details, each
        found = []
        try:
            for item in each(kind):
                try:
                    info = vars(item.info())
                except KernelError:
                    continue        # it has gone meanwhile
                record = {"info": info, "details": details(item)}
                if kind == "prog":
                    record.update(self._program(item, info["id"]))
                elif kind == "map":
                    record.update(key_size=item.key_size, value_size=item.value_size)
                    # what programs say of themselves and structs of functions are always there
                    if self.with_maps or item.type == "struct_ops" or is_table(item.info()):
                        self._elements(item, info["id"])
                elif kind == "btf" and not (info.get("kernel_btf") and info["name"] == "vmlinux"):
                    self._blob("btf/%d" % info["id"], item.data)
                found.append(record)
        except KernelError as error:
            if kind != "link" or error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise           # before 5.8 links cannot be listed
        return found

    def _blob(self, name, read):
        try:
            self.archive.writestr(name, read())
        except KernelError:
            return      # not told here: the reader says so

    def _program(self, program, number):
        self._blob("code/%d.xlated" % number, program.xlated)
        self._blob("code/%d.jited" % number, program.jited)
        return {name: _or_none(getattr(program, name)) or default for name, default in _ASKED.items()}

    def _elements(self, item, number):
        from .entries import elements
        rows = []
        try:
            for key, value, code in elements(item):
                shown = [one.hex() for one in value] if isinstance(value, list) else value.hex() if value is not None else None
                rows.append([key.hex(), shown, code])
        except KernelError:
            return
        self.archive.writestr("maps/%d.json" % number, json.dumps(rows))


def _or_none(ask):
    try:
        return ask()
    except KernelError:
        return None


def _plain(value):
    """What json cannot write: bytes."""
    if isinstance(value, (bytes, bytearray)):
        return {"hex": bytes(value).hex()}
    return list(value)


# -- reading

class Recording:
    """A snapshot that answers in the kernel's place (objects.use)."""

    def __init__(self, path):
        import zipfile
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
            self._said = json.loads(self._archive.read("snapshot.json"), object_hook=_back)
            if self._said["format"] != FORMAT:
                fail("%s: a snapshot of format %s; this rawbpf reads format %d" % (path, self._said["format"], FORMAT))
            self._objects = {kind: {one["info"]["id"]: one for one in self._said["objects"][kind]} for kind in KINDS}
        except (zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError, RuntimeError, NotImplementedError) as error:
            fail("%s is no snapshot, or is damaged: %s" % (path, error))
        self.machine = self._said.get("machine", "")

    @property
    def time(self):
        return self._said.get("time", 0)

    def read(self, name):
        """A member of the archive, or None."""
        import zipfile
        import zlib
        try:
            return self._archive.read(name)
        except KeyError:
            return None
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            return fail("%s is damaged: %s: %s" % (self.path, name, error))

    def each(self, kind):
        for number in sorted(self._objects[kind]):
            yield self.get(kind, number)

    def get(self, kind, number):
        record = self._objects[kind].get(number)
        return None if record is None else _CLASSES[kind](self, record)

    def descriptors(self):
        return [tuple(one) for one in self._said["descriptors"]]

    def comm(self, pid):
        return self._said["comm"].get(str(pid), "")

    def pins(self, kind):
        return {int(number): paths for number, paths in self._said["pins"].get(kind, {}).items()}

    def interface(self, ifindex):
        return self._said["interfaces"].get(str(ifindex))

    def records(self, what):
        found = self._said.get(what, _FORMERLY.get(what))
        if found is None:
            fail("the snapshot has no %s: %s" % (what, "it was taken without 'features'" if what == "features" else
                                                 "the kernel did not tell"))
        return found

    def kallsyms(self):
        return self.read("kallsyms") or b""

    def vmlinux(self):
        from rawbpf.elf.btf import Btf
        data = self.read("btf/vmlinux")
        if data is None:
            fail("the snapshot has no BTF of the kernel")
        return Btf.parse(data, None, self.path + ": vmlinux")


def _back(value):
    return bytes.fromhex(value["hex"]) if set(value) == {"hex"} else value


class _Recorded:
    """One object of a recording. What would change it, or ask the kernel more, is refused."""

    def __init__(self, recording, record):
        self._recording, self._record = recording, record
        self.details = record["details"]
        info = record["info"]
        self.type, self.name = info.get("type", ""), info.get("name", "")

    def info(self):
        return SimpleNamespace(**self._record["info"])

    def close(self):
        """Nothing is held."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getattr__(self, name):
        raise Failure("a snapshot can be looked at only: %s is not possible" % name.replace("_", " ").strip(), STATUS)


class _Program(_Recorded):
    def _code(self, what):
        number = self._record["info"]["id"]
        code = self._recording.read("code/%d.%s" % (number, what))
        if code is None:
            raise KernelError("dump of program %d" % number, errno.EPERM, "the snapshot has no %s code of it" % what)
        return code

    def xlated(self):
        return self._code("xlated")

    def jited(self):
        return self._code("jited")

    def _asked(self, name):
        return [tuple(one) if isinstance(one, list) else one for one in self._record[name]]

    def func_info(self):
        return self._asked("func_info")

    def line_info(self):
        return self._asked("line_info")

    def jited_ksyms(self):
        return self._asked("jited_ksyms")

    def jited_functions(self):
        return self._asked("jited_functions")

    def jited_line_info(self):
        return self._asked("jited_line_info")


class _Map(_Recorded):
    def __init__(self, recording, record):
        super().__init__(recording, record)
        self.key_size, self.value_size = record["key_size"], record["value_size"]

    def _rows(self):
        number = self._record["info"]["id"]
        data = self._recording.read("maps/%d.json" % number)
        if data is None:
            raise Failure("the snapshot has no elements of map %d: it was taken without 'maps'" % number, STATUS)
        for key, value, code in json.loads(data):
            shown = [bytes.fromhex(one) for one in value] if isinstance(value, list) else value and bytes.fromhex(value)
            yield bytes.fromhex(key), shown, code

    def recorded_elements(self):
        """(key, value, errno), as entries.elements() gives them."""
        return self._rows()

    def lookup(self, key):
        return next((value for known, value, _ in self._rows() if known == key), None)


class _Btf(_Recorded):
    def parse(self, base=None):
        from rawbpf.elf.btf import Btf
        info = self._record["info"]
        if info.get("kernel_btf") and info["name"] == "vmlinux":
            return self._recording.vmlinux()
        data = self._recording.read("btf/%d" % info["id"])
        if data is None:
            raise Failure("the snapshot has not the types of BTF %d" % info["id"], STATUS)
        if base is None and info.get("kernel_btf"):
            base = self._recording.vmlinux()
        return Btf.parse(data, base, "BTF %d of %s" % (info["id"], self._recording.path))


_CLASSES = {"prog": _Program, "map": _Map, "link": _Recorded, "btf": _Btf}


# -- the command

def show(session, words):
    path = words.next("file name")
    wanted = set()
    while words:
        wanted.add(words.need("maps", "features"))
    from ..progress import Progress
    with Progress("snapshot") as progress:
        counts = take(path, "maps" in wanted, progress, "features" in wanted)
    session.show([{"file": path, "bytes": os.path.getsize(path), **counts}], lambda fields: (
        "%s: %d programs, %d maps, %d links, %d BTF objects, %d bytes\n" % (
            path, counts["prog"], counts["map"], counts["link"], counts["btf"], fields["bytes"])), True)


def run(argv):
    return run_object("snapshot", {"show": show}, USAGE, ["show", *argv])
