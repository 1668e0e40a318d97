"""Addresses to names: the kernel's, and those of processes.

Kernel: the text of /proc/kallsyms (proc(5)). Processes: the text of /proc/PID/maps and the files
it names, opened under the process's own root folder; perf's map files of just-in-time compilers
(/tmp/perf-PID.map, tools/perf/Documentation/jit-interface.txt in the kernel) and the vdso.
"""

import mmap
import os
import re
import stat
import time
from array import array
from bisect import bisect_right
from typing import NamedTuple

from .image import ElfError, Image, open_regular
from .process import living_thread
from .symbols import Symbols

_FAR = 1 << 20      # no function is larger: an address further from a symbol is not inside of it


class Resolved(NamedTuple):
    """`name`+`offset`; `module` is the kernel module ("" for the kernel itself) or the mapped file."""

    name: str
    offset: int
    module: str


class Frame(NamedTuple):
    """A function in a stack: `name`+`offset` as in Resolved, with the source `file` (None: not known) and `line`. A
    call that was inlined has no offset (None) and no module of its own ("")."""

    name: str
    offset: object
    module: str
    file: object
    line: int


class KernelSymbol(NamedTuple):
    name: str
    address: int
    type: str
    module: str


class KernelSymbols:
    """Names of kernel addresses. `text` is the content of /proc/kallsyms, read from there when not
    given. The kernel's own part of it is sorted by address and is searched as it is; only the
    modules' part is parsed. Without the right to see addresses (`readable` is False) nothing is
    found."""

    def __init__(self, text=None, path="/proc/kallsyms"):
        if text is None:
            with open(path, "rb") as file:
                text = file.read()
        self.text = text if isinstance(text, bytes) else text.encode()
        if self.text and not self.text.endswith(b"\n"):
            self.text += b"\n"
        # the first module's line ends the kernel's own part; BPF programs and ftrace come after
        bracket = self.text.find(b"\t[")
        self._end = len(self.text) if bracket < 0 else self.text.rfind(b"\n", 0, bracket) + 1
        self._modules = None
        self._lines = None
        self._known = {}
        self.readable = self._address_at(self.text.rfind(b"\n", 0, max(self._end - 1, 0)) + 1) != 0

    def _address_at(self, start):
        return _number(self.text[start:start + 16])

    def _line(self, start):
        return _symbol(self.text[start:self.text.index(b"\n", start)])

    def _own(self, address):
        """The kernel's own symbol at or before an address: of aliases the first, as the kernel
        itself prints."""
        low, high = 0, self._end        # a line that starts before `high` starts at or after `low`
        while low < high:
            middle = self.text.rfind(b"\n", 0, (low + high) // 2) + 1
            if middle < low:
                middle = low
            if self._address_at(middle) < address + 1:
                low = self.text.find(b"\n", middle) + 1
            else:
                high = middle
        if low == 0:
            return None
        found = self.text.rfind(b"\n", 0, low - 1) + 1
        value = self._address_at(found)
        while found > 0:
            before = self.text.rfind(b"\n", 0, found - 1) + 1
            if self._address_at(before) != value:
                break
            found = before
        return self._line(found)

    def _of_modules(self):
        if self._modules is None:
            lines = self.text[self._end:].split(b"\n")[:-1]
            rows = []
            at = self._end
            for line in lines:
                rows.append((_number(line[:16]), at))
                at += len(line) + 1
            rows.sort()
            self._modules = array("Q", [r[0] for r in rows]), array("Q", [r[1] for r in rows])
        return self._modules

    def resolve(self, address):
        """`Resolved` for a kernel address, None when no symbol is near."""
        if address in self._known:
            return self._known[address]
        best = self._own(address) if self.readable else None
        addresses, places = self._of_modules()
        at = bisect_right(addresses, address) - 1
        if self.readable and at >= 0 and (best is None or addresses[at] > best.address):
            while at > 0 and addresses[at - 1] == addresses[at]:
                at -= 1
            best = self._line(places[at])
        found = None
        if best is not None and best.address and address - best.address < _FAR:
            found = Resolved(best.name, address - best.address, best.module)
        if len(self._known) > 50000:
            self._known.clear()
        self._known[address] = found
        return found

    def frames(self, address, called=False):
        """[Frame] of a kernel address, see `ProcessSymbols.frames`; lines need the kernel's debug information."""
        found = self.resolve(address)
        if found is None:
            return []
        if found.module:
            return _frames(found, [])
        if self._lines is None:
            from .kernel_lines import KernelLines
            self._lines = KernelLines(self)
        return _frames(found, self._lines.at(address - called))

    def find(self, name):
        """Every `KernelSymbol` of that name: static functions of the same name exist many times."""
        found = []
        word = b" " + name.encode("utf-8", "surrogateescape")
        at = self.text.find(word)
        while at >= 0:
            after = self.text[at + len(word):at + len(word) + 1]
            if after in (b"\n", b"\t"):
                found.append(self._line(self.text.rfind(b"\n", 0, at) + 1))
            at = self.text.find(word, at + 1)
        return [s for s in found if s.name == name]

    def __iter__(self):
        """Every `KernelSymbol`, in the file's order."""
        at = 0
        while at < len(self.text):
            end = self.text.index(b"\n", at)
            yield _symbol(self.text[at:end])
            at = end + 1


def _number(text):
    """A hexadecimal number of 64 bits; 0 for what is none."""
    try:
        return int(text, 16) & (1 << 64) - 1
    except ValueError:
        return 0


def _symbol(line):
    fields = line.decode("utf-8", "surrogateescape").split(None, 3)
    if len(fields) < 3:
        return KernelSymbol("", 0, "", "")
    return KernelSymbol(fields[2], _number(fields[0]), fields[1], fields[3].strip("[]") if len(fields) > 3 else "")


class Mapping(NamedTuple):
    start: int
    end: int
    permissions: str
    offset: int
    device: int
    inode: int
    path: str
    deleted: bool

    @property
    def is_file(self):
        return self.inode != 0 and self.path.startswith("/")


def read_maps(text):
    """The `Mapping`s in the text of /proc/PID/maps."""
    result = []
    if isinstance(text, str):
        text = os.fsencode(text)
    for line in text.split(b"\n"):
        fields = line.split(None, 5)
        if len(fields) < 5:
            continue
        try:
            start, end = (_number(part) for part in fields[0].split(b"-"))
            major, minor = (int(part, 16) for part in fields[3].split(b":"))
            offset, inode = int(fields[2], 16), int(fields[4])
            device = os.makedev(major, minor)
        except (ValueError, OverflowError):
            continue
        path = os.fsdecode(fields[5]).replace("\\012", "\n") if len(fields) > 5 else ""
        deleted = path.endswith(" (deleted)")
        result.append(Mapping(start, end, fields[1].decode("ascii", "replace"), offset, device, inode,
                              path[:-10] if deleted else path, deleted))
    return result


class SymbolCache:
    """The symbols of files, shared by the processes that map them. `limit` files are kept."""

    def __init__(self, limit=256):
        self.limit = limit
        self._files = {}

    def get(self, key, opener):
        """`Symbols` for a file; `opener()` gives its Image (or None) when it is not known yet."""
        if key in self._files:
            found = self._files.pop(key)
            if not isinstance(found, Symbols) or not _is_cut(found.image.buffer):
                self._files[key] = found        # the last used is the last to go
                return found
        try:
            image = opener()
            found = Symbols(image) if isinstance(image, Image) else image
        except ElfError:
            found = None
        while len(self._files) >= self.limit:
            del self._files[next(iter(self._files))]
        self._files[key] = found
        return found


def _is_cut(buffer):
    """Has the mapped file become shorter? To read what is gone would be a SIGBUS."""
    try:
        return isinstance(buffer, mmap.mmap) and buffer.size() < len(buffer)
    except (OSError, ValueError):
        return True


class ProcessSymbols:
    """Names of one process's addresses, from the text of its maps file as it was when the process
    lived. `root` is its root folder as we reach it ("/" or "/proc/PID/root"); `pid` is needed for
    deleted files and for perf's map files. `cache` may be shared between processes."""

    def __init__(self, maps, root="/", pid=None, cache=None):
        self.root = root
        self.pid = pid
        self.cache = cache if cache is not None else SymbolCache()
        self.mappings = sorted(m for m in read_maps(maps) if "x" in m.permissions or m.is_file)
        self._starts = array("Q", [m.start for m in self.mappings])
        self._known = {}
        self._root_fd = None
        self._perf_map = None
        self._inner_pid = pid
        self._owner = None

    @classmethod
    def of(cls, pid, cache=None):
        """Remember a living process: its maps and its root folder. The files of its code are opened now: when it has
        ended, they may be deleted or replaced. OSError when there is no such process or no permission."""
        number, text = pid, _maps(pid)
        if not text:
            pid = living_thread(pid)
            text = _maps(pid)
        self = cls(text, pid=pid, cache=cache)
        self._inner_pid = inner_pid(number)
        self._owner = os.stat("/proc/%d" % number).st_uid
        if not same_root(pid):
            try:
                self._root_fd = os.open("/proc/%d/root" % pid, os.O_PATH | os.O_CLOEXEC)
                self.root = "/proc/self/fd/%d" % self._root_fd
            except OSError:
                pass
        for mapping in self.mappings:
            if mapping.is_file and "x" in mapping.permissions:
                self._symbols(mapping)
        return self

    def close(self):
        if self._root_fd is not None:
            os.close(self._root_fd)
            self._root_fd = None

    __del__ = close

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def build_id(self, address):
        """(build id in hexadecimal, offset in the file) of an address; None when its file has no build id."""
        mapping = self.mapping(address)
        image = self.image(mapping) if mapping is not None else None
        try:
            build_id = image.build_id if image is not None else ""
        except ElfError:
            build_id = ""
        return (build_id, address - mapping.start + mapping.offset - image.file_base) if build_id else None

    def image(self, mapping):
        """The Image of the file behind a mapping, None when there is none."""
        symbols = self._symbols(mapping)
        return symbols.image if symbols is not None else None

    def mapping(self, address):
        """The mapping that an address lies in, or None."""
        at = bisect_right(self._starts, address) - 1
        if at >= 0 and address < self.mappings[at].end:
            return self.mappings[at]
        return None

    def resolve(self, address):
        """`Resolved` for an address, None when it has no name."""
        if address in self._known:
            return self._known[address]
        mapping = self.mapping(address)
        found = None
        if mapping is not None:
            found = self._in_file(mapping, address)
        if found is None and (mapping is None or not mapping.is_file or mapping.deleted):
            found = self._in_perf_map(address)
        if len(self._known) > 50000:
            self._known.clear()
        if found is not None:
            self._known[address] = found
        return found

    def frames(self, address, called=False):
        """[Frame] of an address by debug information: the calls that were inlined there, the innermost first, and the
        function itself. `called`: it is a return address, whose call is the instruction before. [] when it has no
        name."""
        found = self.resolve(address)
        if found is None:
            return []
        mapping = self.mapping(address)
        symbols = self._symbols(mapping) if mapping is not None else None
        places = []
        if symbols is not None and found.module == mapping.path:
            try:
                vaddr = _vaddr(symbols.image, mapping, address)
            except ElfError:
                vaddr = None
            if vaddr is not None:
                places = symbols.lines.at(vaddr - called)
        return _frames(found, places)

    def _in_file(self, mapping, address):
        symbols = self._symbols(mapping)
        if symbols is None:
            return None
        try:
            vaddr = _vaddr(symbols.image, mapping, address)
            found = symbols.at(vaddr) if vaddr is not None else None
        except ElfError:
            return None
        return Resolved(_shown(found[0].name), found[1], mapping.path) if found else None

    def _symbols(self, mapping):
        if mapping.path == "[vdso]":
            return self.cache.get("[vdso]", own_vdso)
        if not mapping.is_file:
            return None
        key = (mapping.device, mapping.inode, mapping.path, mapping.deleted)
        found = self.cache.get(key, lambda: self._open(mapping))
        return found.symbols_at(mapping.offset) if hasattr(found, "symbols_at") else found

    def _open(self, mapping):
        if not mapping.deleted:
            path = mapping.path if self.root == "/" else self.root + mapping.path
            try:
                status = os.stat(path)
            except (OSError, ValueError):
                status = None
            # another inode on the same device: the file was replaced since it was mapped
            if status is not None and (status.st_ino == mapping.inode or status.st_dev != mapping.device):
                return _opened(path, self.root)
        if self.pid is None:
            return None
        return Image.open("/proc/%d/map_files/%x-%x" % (self.pid, mapping.start, mapping.end))

    def _in_perf_map(self, address):
        if self._inner_pid is None:
            return None
        if self._perf_map is None:
            root = "" if self.root == "/" else self.root
            self._perf_map = PerfMap("%s/tmp/perf-%d.map" % (root, self._inner_pid), self._owner)
        return self._perf_map.resolve(address)


def _opened(path, root):
    """Symbols of a file, or the archive.Archive that it is."""
    try:
        return Symbols(Image.open(path), root)
    except ElfError:
        with open_regular(path) as file:
            if file.read(4) != b"PK\3\4":
                raise
        from .archive import Archive
        return Archive(path)


def _vaddr(image, mapping, address):
    """The virtual address of a process's address in the image that is mapped there."""
    return image.vaddr(address - mapping.start + mapping.offset - image.file_base)


def _frames(found, places):
    """[Frame] of what a symbol and the debug information say of one address."""
    frames = [Frame(place.name, None, "", place.file, place.line) for place in places[:-1]]
    file, line = places[-1][1:] if places else (None, 0)
    return frames + [Frame(*found, file, line)]


_LINE = re.compile(rb"^(?:0[xX])?([0-9a-fA-F]{1,16})[ \t]+(?:0[xX])?([0-9a-fA-F]{1,16})[ \t]+(?=[^\n])", re.M)
_NAME_LIMIT = 1024


class PerfMap:
    """A just-in-time compiler's list of its functions: lines of `START SIZE NAME`, in hexadecimal.
    Code that was written over other code comes later in the file. Read again when it has changed. Anybody can put
    something there: nothing but a regular file is read, of root or of the `owner` of the process (a user's number; None:
    this process's user), of that no more than `limit` bytes, and of a name no more than 1024."""

    def __init__(self, path, owner=None, limit=64 << 20):
        self.path = path
        self.owners = {0, os.geteuid() if owner is None else owner}
        self.limit = limit
        self._stamp = None
        self._next = 0.0
        self._text = b""
        self._starts = self._sizes = self._names = ()

    def _refresh(self):
        begun = time.monotonic()
        try:
            status = os.stat(self.path)
            if (status.st_mtime_ns, status.st_size, status.st_ino) == self._stamp or begun < self._next:
                return
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb", buffering=0) as file:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode) or status.st_uid not in self.owners:
                    return
                text = file.read(min(self.limit, status.st_size)) or b""
        except OSError:
            return
        self._stamp = status.st_mtime_ns, status.st_size, status.st_ino
        self._take(text)
        now = time.monotonic()
        if now - begun > 0.05:
            self._next = now + 10 * (now - begun)       # a file that grows all the time must not be all that we do

    def _take(self, text):
        starts, sizes, names = array("Q"), array("Q"), array("Q")
        for line in _LINE.finditer(text):
            starts.append(int(line[1], 16))
            sizes.append(int(line[2], 16))
            names.append(line.end())
        # of equal addresses the last line is the last here, too
        order = array("L", sorted(range(len(starts)), key=starts.__getitem__))
        self._text = text
        self._starts, self._sizes, self._names = (array("Q", map(column.__getitem__, order)) for column in (starts, sizes, names))

    def resolve(self, address):
        self._refresh()
        return self._find(address)

    def _find(self, address):
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._starts[at] + self._sizes[at]:
            return None
        begin = self._names[at]
        name = self._text[begin:begin + _NAME_LIMIT].partition(b"\n")[0]
        return Resolved(_shown(name.decode("utf-8", "replace").strip()), address - self._starts[at], self.path)


def _shown(name):
    """A name without what a terminal would take for a command."""
    if name.isprintable():
        return name
    return "".join("\\x%02x" % ord(c) if c < " " or "\x7f" <= c < "\xa0" else c for c in name)


def _maps(pid):
    with open("/proc/%d/maps" % pid, "rb") as file:
        return file.read()


def same_root(pid):
    """Does a process see the same files under the same names as we do?"""
    try:
        ours, theirs = os.stat("/proc/self/ns/mnt"), os.stat("/proc/%d/ns/mnt" % pid)
        if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
            return False
        ours, theirs = os.stat("/proc/self/root"), os.stat("/proc/%d/root" % pid)
        return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)
    except OSError:
        return True     # not allowed to look: ours is the best guess


def inner_pid(pid):
    """A process's number in its own pid namespace, by which its perf map file is called."""
    try:
        with open("/proc/%d/status" % pid, "rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    return int(line.split()[-1])
    except (OSError, ValueError):
        pass
    return pid


def own_vdso():
    """The vdso as an Image: every process of our word size has the same one."""
    with open("/proc/self/maps", "rb") as file:
        found = [m for m in read_maps(file.read()) if m.path == "[vdso]"]
    if not found:
        return None
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            memory.seek(found[0].start)
            return Image(memory.read(found[0].end - found[0].start), "[vdso]")
    except OSError:
        return None
