"""Packs files of this host into an initramfs: a cpio archive in the kernel's "newc" format.

The format is the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

SITE = "/usr/lib/site"  # the guest's PYTHONPATH

# Parts of the standard library that nothing in a guest needs, and that only make the archive larger.
NOT_PACKED = {"test", "tests", "idlelib", "lib2to3", "ensurepip", "tkinter", "turtledemo", "pydoc_data",
              "site-packages", "dist-packages", ".git", ".venv", ".pytest_cache", "build"}
# Its extension modules that load large libraries, or are for its own tests.
NOT_LOADED = re.compile(r"(_tkinter|_test|_xxtest|xxlimited|_curses|_sqlite3|_codecs_|_dbm|_gdbm|nis|readline|_ctypes_test|ossaudiodev)")


def shared_objects(*binaries):
    """Absolute paths of the shared objects that binaries load."""
    out = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True).stdout
    return sorted(set(re.findall(r"(/\S+) \(0x", out)))


class Image:
    """An initramfs that is being written to the open binary file `out`."""

    def __init__(self, out):
        self._out = out
        self._seen = {""}
        self._count = 0

    def _entry(self, name, mode, data=b"", mtime=0):
        self._count += 1
        encoded = name.encode() + b"\0"
        fields = (self._count, mode, 0, 0, 1, int(mtime), len(data), 0, 0, 0, 0, len(encoded), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
        self._out.write(header + b"\0" * (-len(header) % 4))
        self._out.write(data)
        self._out.write(b"\0" * (-len(data) % 4))

    def folder(self, name):
        """A folder, and those above it."""
        name = str(name).strip("/")
        if name not in self._seen:
            self.folder(name.rpartition("/")[0])
            self._seen.add(name)
            self._entry(name, stat.S_IFDIR | 0o755)

    def _place(self, name):
        """The name to write under, once its folder is there; None if it is taken."""
        name = str(name).strip("/")
        self.folder(name.rpartition("/")[0])
        if name in self._seen:
            return None
        self._seen.add(name)
        return name

    def write(self, name, data, executable=False):
        """A file with the given bytes."""
        name = self._place(name)
        if name:
            self._entry(name, stat.S_IFREG | (0o755 if executable else 0o644), data)

    def link(self, name, target):
        """A symbolic link."""
        name = self._place(name)
        if name:
            self._entry(name, stat.S_IFLNK | 0o777, str(target).encode())

    def add(self, source, target=None):
        """A file (links followed) or a folder (links kept), at its own path or at `target`."""
        source = Path(source)
        target = str(target or source)
        if not source.is_dir():
            name = self._place(target)
            if name:
                info = source.stat()
                self._entry(name, stat.S_IFREG | (info.st_mode & 0o777), source.read_bytes(), info.st_mtime)
            return
        self.folder(target)
        with os.scandir(source) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.endswith(".so") and NOT_LOADED.match(entry.name):
                    continue
                if entry.name in NOT_PACKED and not (entry.name == "tests" and target == "/project"):
                    continue
                if entry.name.endswith((".a", ".opt-1.pyc", ".opt-2.pyc")) or entry.name.startswith("config-"):
                    continue
                place = f"{target}/{entry.name}"
                if entry.is_symlink() and Path(entry.path).exists() and entry.is_file():
                    self.add(Path(entry.path).resolve(), place)
                elif entry.is_symlink():
                    self.link(place, os.readlink(entry.path))
                elif entry.is_dir() or entry.is_file():
                    self.add(entry.path, place)

    def binary(self, path, target=None):
        """A program, with the shared objects that it loads."""
        found = Path(shutil.which(str(path)) or path)
        self.add(found.resolve(), target or found)
        for library in shared_objects(found):
            self.add(Path(library).resolve(), library)

    def python(self, modules):
        """The running interpreter, its standard library, and third-party modules by name."""
        interpreter = Path(sys.executable).resolve()
        self.binary(interpreter)
        self.link("/usr/bin/python3", interpreter)
        self.link("/usr/bin/python", interpreter)
        library = Path(sysconfig.get_paths()["stdlib"])
        self.add(library.resolve(), library)
        modules_of_c = [path for path in (library / "lib-dynload").glob("*.so") if not NOT_LOADED.match(path.name)]
        for name in shared_objects(*modules_of_c):
            self.add(Path(name).resolve(), name)
        self.modules(modules)

    def modules(self, modules):
        """Third-party modules of the running interpreter, by name."""
        for module in modules:
            spec = importlib.util.find_spec(module)
            if spec is None:
                continue  # what modules depend on differs by version
            if spec.submodule_search_locations:
                self.add(next(iter(spec.submodule_search_locations)), f"{SITE}/{module}")
            else:
                self.add(spec.origin, f"{SITE}/{Path(spec.origin).name}")
            self._metadata(module)

    def _metadata(self, module):
        """The installed distribution's own description: some modules ask for their version."""
        try:
            folder = Path(importlib.metadata.distribution(module)._path)
        except importlib.metadata.PackageNotFoundError:
            return
        self.add(folder, f"{SITE}/{folder.name}")

    def close(self):
        """Write the end of the archive."""
        self._entry("TRAILER!!!", 0)
