"""From what people write to files: binaries by path, by name in PATH, libraries by name, and the
same inside another mount namespace.

A `Binary` keeps three things apart: `shown` (as it was written, for listings and probe names),
`path` (what this process can open) and the image.
"""

import functools
import os
import stat

from rawbpf.elf.process import ENDED, living_thread, state

from .base import SourceError, Target, has_wildcard, nearest


class Binary:
    """An ELF file that probes are put on. Its image is opened when first asked for. `base` is where
    it begins in the file at `path`: not 0 for a library in a zip archive."""

    base = 0
    warning = ""  #: what a person should know about probes on it
    dwarf_problem = ""  #: what is wrong with its debug information
    flat = False  #: bytes of code and nothing else: addresses are offsets

    def __init__(self, shown, path):
        self.shown = shown
        self.path = path
        self._image = self._symbols = None
        self._dwarf = False
        self._named_types = {}

    @property
    def image(self):
        if self._image is None:
            from rawbpf.elf.image import ElfError, Image

            try:
                self._image = Image.open(self.path)
            except ElfError as error:
                raise SourceError(str(error)) from None
        return self._image

    @property
    def symbols(self):
        if self._symbols is None:
            from rawbpf.elf.symbols import Symbols

            self._symbols = Symbols(self.image)
        return self._symbols

    @functools.cached_property
    def function_names(self):
        """All of them, for hints."""
        return self.symbols.function_names()

    @property
    def dwarf(self):
        """The file's elf.dwarf.Dwarf, None where neither it nor a debug file beside it has any."""
        if self.flat:
            return None
        if self._dwarf is False:
            from rawbpf.elf.dwarf import Dwarf
            from rawbpf.elf.image import ElfError

            try:
                self._dwarf = Dwarf.open(self.image)
            except ElfError as error:
                self._dwarf, self.dwarf_problem = None, str(error)
        return self._dwarf

    def described(self, look):
        """What `look(dwarf)` finds; None without debug information, and where that is damaged, which `dwarf_problem`
        says then: the program can be probed without it."""
        if self.dwarf is None:
            return None
        from rawbpf.elf.image import ElfError

        try:
            return look(self.dwarf)
        except ElfError as error:
            self.dwarf_problem = str(error)
            return None

    def named_type(self, kind, name):
        """The type that DWARF calls `name`, of a kind ("" for typedefs), or None."""
        key = kind or "typedef", name
        if key not in self._named_types:
            self._named_types[key] = self.described(lambda dwarf: dwarf.find(name, key[0]))
        return self._named_types[key]

    def is_elf(self):
        with open(self.path, "rb") as file:
            return file.read(4) == b"\x7fELF"

    def file_offset(self, vaddr):
        """Where the code at virtual address `vaddr` is in the file; SourceError lists the ranges
        that hold code when it is in none."""
        if self.flat:
            size = os.path.getsize(self.path)
            if vaddr >= size:
                raise SourceError("%s has only %d bytes" % (self.shown, size))
            return vaddr
        ranges = self.image.executable_ranges()
        if not any(first <= vaddr < end for first, end in ranges):
            raise SourceError("Could not resolve address: %s:0x%x\nThe code of this file is at %s (virtual addresses)" % (
                self.shown, vaddr, ", ".join("0x%x-0x%x" % r for r in ranges) or "no address"))
        return self.base + self.image.file_offset(vaddr)


class Archived(Binary):
    """A library that lies uncompressed and on a page boundary in a zip archive, from which the
    dynamic linker of some systems maps it: "app.apk!/lib/libx.so"."""

    def __init__(self, shown, archive, member):
        from rawbpf.elf.archive import PAGE, Archive
        from rawbpf.elf.image import ElfError

        super().__init__(shown, archive)
        try:
            self._image = Archive(archive).image(member)
        except KeyError:
            raise SourceError("%s has no member %s" % (self.path, member), missing=True) from None
        except (ElfError, OSError) as error:
            raise SourceError(str(error)) from None
        self.base = self._image.file_base
        if self.base % PAGE:
            self.warning = "%s does not begin on a page boundary of its archive: no process can run it from there" % shown


def resolve(name, target=Target()):
    """The Binaries that `name` means: a list of one, or of all that match where it has wildcards.
    SourceError when there is none."""
    root = root_of(target)
    archive, inside, member = name.partition("!/")
    if inside and not has_wildcard(name):
        return [Archived(name, under(root, archive), member)]
    # a file may be called "a[b]c"; one that is called "a*c" is among those that match
    if has_wildcard(name) and not ("/" in name and "*" not in name and "?" not in name and _is_binary(under(root, name))):
        found = _glob(name, target, root)
        if not found:
            raise SourceError("no executable or library matches %s" % name, missing=True)
        return found
    used = _of_process(name, target, root)
    if used is not None:
        return [used]
    path = _find(name, target, root)
    if path is None:
        raise SourceError("target file '%s' %s" % (name, why_not(under(root, name))), _near(name, root), missing=True)
    return [_shared(path if "/" not in name else name, under(root, path))]


_recent = {}        # (shown, path, what stat says) -> Binary, of the last few


def _shared(shown, path):
    """The Binary of a file, the same for all probes on it as long as the file does not change: opening it and reading
    its symbols is most of what a probe costs."""
    try:
        found = os.stat(path)
    except OSError:
        return Binary(shown, path)
    key = shown, path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
    binary = _recent.pop(key, None) or Binary(shown, path)
    _recent[key] = binary
    while len(_recent) > 4:
        del _recent[next(iter(_recent))]
    return binary


def root_of(target):
    """Where the traced process's paths begin: "" for this process's own root."""
    if target.root:
        return target.root
    if target.pid is None:
        return ""
    thread = living_thread(target.pid)
    try:
        own, other = (os.readlink("/proc/%s/%s" % (pid, "ns/mnt")) for pid in ("self", thread))
        same_root = os.stat("/proc/%d/root" % thread)
        here = os.stat("/")
    except OSError:
        return ""
    if own == other and (same_root.st_dev, same_root.st_ino) == (here.st_dev, here.st_ino):
        return ""
    return "/proc/%d/root" % thread


def under(root, path):
    return root + os.path.abspath(path) if root else path


#: {pid: path of the program that it will execute} of the processes that wait for that, for a trace from their start.
held = {}


def exe(pid):
    """The Binary that process `pid` runs, deleted or replaced files included: they are opened
    through /proc. SourceError when it is not there."""
    program = held.get(pid)
    if program is not None:
        return Binary(program, program)
    pid = living_thread(pid)
    try:
        shown = os.readlink("/proc/%d/exe" % pid)
    except OSError as error:
        raise _not_told("program", pid, error) from None
    return _used(pid, shown, "/proc/%d/exe" % pid)


def _not_told(what, pid, error):
    """The SourceError for what of a process could not be read."""
    letter = state(pid)
    if not letter:
        return SourceError("there is no process %d" % pid)
    if letter in ENDED:
        return SourceError("process %d has ended" % pid)
    return SourceError("the %s of process %d cannot be told: %s" % (what, pid, error.strerror))


def mapped(pid):
    """The Binaries that process `pid` has mapped as code, in address order, each once."""
    if pid in held:
        return [exe(pid)]       # what that will load is not known yet
    pid = living_thread(pid)
    try:
        with open("/proc/%d/maps" % pid, "rb") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise _not_told("files", pid, error) from None
    if not lines and state(pid) in ENDED:
        raise SourceError("process %d has ended" % pid)
    found = {}      # by name and file: a library that was replaced can be there twice
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) == 6 and b"x" in fields[1] and fields[5].startswith(b"/"):
            shown = os.fsdecode(fields[5].replace(b"\\012", b"\n"))
            key = shown, fields[3], fields[4]
            if key not in found:
                found[key] = _used(pid, shown, "/proc/%d/map_files/%s" % (pid, fields[0].decode()))
    return list(found.values())


def load_bias(pid, binary):
    """What to add to a file's virtual addresses to get those in process `pid`."""
    pid = living_thread(pid)
    with open("/proc/%d/maps" % pid, "rb") as file:
        lines = file.read().splitlines()
    wanted = os.stat(binary.path)
    for line in lines:
        fields = line.split(None, 5)
        # mapped as code: a tracer that reads the file has it mapped otherwise
        if len(fields) == 6 and b"x" in fields[1] and int(fields[4]) == wanted.st_ino:
            start, offset = int(fields[0].split(b"-")[0], 16), int(fields[2], 16)
            for segment in binary.image.segments:
                if segment.type == 1 and segment.offset & -4096 == offset:
                    return start - (segment.vaddr & -4096)
    raise SourceError("process %d has not mapped %s" % (pid, binary.shown))


def _used(pid, shown, handle):
    """The Binary of a file that a process really uses. It is opened by its own path, seen from the process's root, while
    that is still the same file; else by the kernel's `handle` of it under /proc. The kernel shows paths from our root,
    also those of a process that has another one (chroot)."""
    try:
        folder = os.readlink("/proc/%d/root" % pid)
    except OSError:
        folder = "/"
    inside = shown[len(folder):] if folder != "/" and shown.startswith(folder + "/") else shown
    path = under(root_of(Target(pid)), inside)
    try:
        if os.path.samefile(path, handle):
            return Binary(inside, path)
    except OSError:
        if not shown.endswith(_DELETED) and not os.path.exists(handle):
            return Binary(inside, path)     # the handles are for the privileged
    return Binary(inside[:-len(_DELETED)] if inside.endswith(_DELETED) else inside, handle)


_DELETED = " (deleted)"


def _of_process(name, target, root):
    """The Binary that a name means in the traced process, None where that has mapped no such file: of a file that was
    deleted or replaced since, the one that it runs."""
    if target.pid is None:
        return None
    if "/" in name:
        wanted = {os.path.abspath(name), os.path.abspath(name) if root else os.path.realpath(name)}
    if target.pid in held:
        return None
    for binary in _mapped_quietly(target.pid):
        if "/" in name:
            if binary.shown in wanted:
                return _shared(name, binary.path)
            continue
        base = os.path.basename(binary.shown)
        if base == name or base.startswith((name + ".so", name + "-")) and name.startswith("lib"):
            return _shared(binary.shown, binary.path)
    return None


def _find(name, target, root):
    if "/" in name:
        return name if _is_binary(under(root, name)) or (
            target.unsafe and os.path.isfile(under(root, name))) else None
    if name.startswith("lib") or ".so" in name:
        from rawbpf.elf.ldcache import find_library

        path = find_library(name, root or "/")
        if path:
            return _resolved(root, path)
    if _is_binary(under(root, name)):
        return "./" + name if root else name
    for folder in _path_variable(target).split(":"):
        path = os.path.join(folder or ".", name)
        if _is_binary(under(root, path)):
            return path
    from rawbpf.elf.ldcache import find_library

    path = find_library(name, root or "/")
    return _resolved(root, path) if path else None


def _resolved(root, path):
    """A library's path without the symbolic links in its folders: "/lib" is mostly one."""
    full = under(root, path)
    folder = os.path.realpath(os.path.dirname(full))
    if root and not folder.startswith(os.path.realpath(root)):
        return path
    return os.path.join(folder[len(os.path.realpath(root)) if root else 0:], os.path.basename(path))


def _mapped_quietly(pid):
    try:
        return mapped(pid)
    except SourceError:
        return []


def _path_variable(target):
    if target.pid is not None and root_of(target):
        try:
            with open("/proc/%d/environ" % target.pid, "rb") as file:
                for entry in file.read().split(b"\0"):
                    if entry.startswith(b"PATH="):
                        return os.fsdecode(entry[5:])
        except OSError:
            return os.environ.get("PATH", "")
    return os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")


def _is_binary(path):
    """An ELF executable (with permission to execute) or shared object?"""
    try:
        # a FIFO, a device or a network file system's file must neither block nor act
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            return False
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return False
    try:
        head = os.read(fd, 18)
    except OSError:
        return False
    finally:
        os.close(fd)
    if head[:4] != b"\x7fELF" or len(head) < 18:
        return False
    kind = int.from_bytes(head[16:18], "little" if head[5] == 1 else "big")
    return kind == 3 or (kind == 2 and bool(mode & 0o111))


_NO_FILE = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
            stat.S_IFBLK: "a device"}
_NOT_RUN = {1: "an object file, which no process runs before it is linked", 4: "a core dump, which no process runs"}


def why_not(path):
    """Why a file is no binary that probes can be put on."""
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            return "is %s, no program or library" % _NO_FILE.get(stat.S_IFMT(mode), "no regular file")
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0) as file:
            head = file.read(18)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        if os.path.islink(path):
            return "is a symbolic link to what does not exist"
        return "does not exist or is not executable"
    except OSError as error:
        return "cannot be read: %s" % error.strerror
    if not head:
        return "is empty"
    if head[:4] != b"\x7fELF":
        return "is a script, no ELF file: probes go on the program that runs it" if head[:2] == b"#!" else "is no ELF file"
    if len(head) < 18:
        return "is no ELF file: it ends in the header"
    kind = int.from_bytes(head[16:18], "little" if head[5] == 1 else "big")
    return "is not executable" if kind == 2 else "is %s" % _NOT_RUN.get(kind, "an ELF file of type %d" % kind)


def why_empty(name, target, look):
    """Why `look(binary)` finds nothing in the file that is called so: "" where it is just that nothing matches."""
    from rawbpf.elf.image import ElfError

    if has_wildcard(name) and name != "*":
        return ""
    try:
        if name == "*":
            if target.pid is not None:
                mapped(target.pid)
            return ""
        for binary in resolve(name, target):
            look(binary)
            if binary.symbols.problems:
                return str(binary.symbols.problems[0])
    except (SourceError, ElfError) as error:
        return str(error)
    return ""


def _glob(pattern, target, root):
    import glob

    if target.pid is not None and pattern == "*":
        return mapped(target.pid)
    patterns = [pattern]
    if "/" not in pattern:
        patterns += [os.path.join(folder, pattern)
                     for folder in _path_variable(target).split(":") if folder]
    found, seen = [], set()
    for each in patterns:
        base = under(root, each)
        for path in sorted(glob.glob(base)):
            if path not in seen and _is_binary(path):
                seen.add(path)
                shown = path[len(root):] if root else path
                found.append(Binary(shown, path))
    return found


def _near(name, root):
    folder, base = os.path.split(name)
    try:
        names = os.listdir(under(root, folder or "."))
    except OSError:
        return []
    return [os.path.join(folder, each) for each in nearest(base, names) if each != base]
