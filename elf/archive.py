"""Libraries inside of zip archives: stored uncompressed on a page boundary, they are mapped from there ("app.apk!/lib/x.so").

PKWARE's APPNOTE.TXT, 4.3.7: a member's bytes follow its local header, whose name and extra field may differ in length
from those of the central directory.
"""

import mmap
import struct
import zipfile

from .image import ElfError, Image, open_regular

PAGE = 4096


class Archive:
    """A zip archive. ElfError when it is none."""

    def __init__(self, path):
        self.path = path
        self._symbols = {}
        try:
            with open_regular(path) as file, zipfile.ZipFile(file) as archive:
                self.entries = {entry.filename: entry for entry in archive.infolist()}
        except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError) as error:
            raise ElfError(path, None, str(error)) from None

    def place(self, name):
        """(offset, size) of a member's bytes in the file; KeyError when there is none; ElfError when they are not there as
        they are. Only what begins on a page boundary can be mapped, and run."""
        entry = self.entries[name]
        lengths = b""
        if entry.header_offset >= 0:
            with open_regular(self.path) as file:
                file.seek(entry.header_offset + 26)     # local file header: lengths of name and extra
                lengths = file.read(4)
        if len(lengths) < 4:
            raise ElfError(self.path, entry.header_offset, "%s lies outside the file" % name)
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ElfError(self._shown(name), None, "is compressed in its archive, so no process can run it from there")
        return entry.header_offset + 30 + sum(struct.unpack("<HH", lengths)), entry.file_size

    def _shown(self, name):
        return "%s!/%s" % (self.path, name)

    def image(self, name):
        """The member as an Image; its `file_base` is where it begins in the archive."""
        base, size = self.place(name)
        try:
            with open_regular(self.path) as file:
                if base % PAGE:
                    file.seek(base)
                    data = file.read(size)
                else:
                    data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, offset=base)
        except (OSError, ValueError, OverflowError) as error:
            raise ElfError(self._shown(name), None, str(error)) from None
        image = Image(data, self._shown(name))
        image.file_base = base
        return image

    def symbols_at(self, offset):
        """The Symbols of the member that a byte of the file belongs to, None when it is in none that can be run."""
        from .symbols import Symbols
        for name, entry in self.entries.items():
            # the two variable fields of a local header are at most 64 KiB each
            if entry.compress_type != zipfile.ZIP_STORED or not 0 < offset - entry.header_offset <= entry.file_size + (2 << 16):
                continue
            try:
                base, size = self.place(name)
                if base <= offset < base + size and base % PAGE == 0:
                    if name not in self._symbols:
                        self._symbols[name] = Symbols(self.image(name))
                    return self._symbols[name]
            except (ElfError, OSError):
                continue
        return None
