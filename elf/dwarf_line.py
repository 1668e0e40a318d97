"""Line number programs: addresses to source lines and back.

Implements DWARF 2 to 5, chapter 6.2. A program is run once, when its unit's lines are first asked
for, into three arrays.
"""

import os
from array import array
from bisect import bisect_right

from .dwarf_info import sleb, uleb
from .image import ElfError


class LineTable:
    """The line table of one unit, at `at` in .debug_line. `files` are paths, made absolute with the
    folder that the unit was compiled in."""

    def __init__(self, info, at, address_size, folder, name):
        self.info = info
        self.path = info.path
        self.address_size = address_size
        self.folder = folder
        data = info.section(".debug_line")
        number = info.number
        size, body, self.offset_size = number(data, at, 4), at + 4, 4
        if size == 0xffffffff:
            size, body, self.offset_size = number(data, at + 4, 8), at + 12, 8
        self.end = body + size
        if self.end > len(data):
            raise ElfError(self.path, None, "the line table at 0x%x lies outside .debug_line" % at)
        self.version, body = number(data, body, 2), body + 2
        if not 2 <= self.version <= 5:
            raise ElfError(self.path, None, "line table version %d is not known" % self.version)
        if self.version == 5:
            self.address_size, body = data[body], body + 2
        length, body = number(data, body, self.offset_size), body + self.offset_size
        self.start = body + length
        self.minimum, body = data[body], body + 1
        if self.version >= 4:
            body += 1           # operations per instruction: VLIW machines, where no BPF runs
        self.default_statement = data[body]
        self.line_base = data[body + 1] - 256 if data[body + 1] > 127 else data[body + 1]
        self.line_range, self.opcode_base = data[body + 2], data[body + 3]
        if not self.line_range or not self.opcode_base or self.start > self.end:
            raise ElfError(self.path, None, "the line table at 0x%x makes no sense" % at)
        self.operands = data[body + 4:body + 3 + self.opcode_base]
        body += 3 + self.opcode_base
        read = self._files_5 if self.version == 5 else self._files_4
        self.files = read(data, body, name)
        self._rows = None

    # -- the table of files -----------------------------------------------------------------------

    def _join(self, folder, name):
        return os.path.normpath(os.path.join(self.folder, folder, name))

    def _files_4(self, data, at, name):
        folders = [""]
        while data[at]:
            end = data.index(b"\0", at)
            folders.append(os.fsdecode(data[at:end]))
            at = end + 1
        at += 1
        files = [self._join("", name)]      # numbers begin at 1; 0 is the unit itself
        while data[at]:
            end = data.index(b"\0", at)
            folder, at_next = uleb(data, end + 1)
            files.append(self._join(folders[folder], os.fsdecode(data[at:end])))
            _, at = uleb(data, at_next)
            _, at = uleb(data, at)
        return files

    def _files_5(self, data, at, name):
        folders, at = self._entries_5(data, at)
        folders = [folder for folder, _ in folders]
        files, _ = self._entries_5(data, at)
        # the first folder is the one that the unit was compiled in
        first = folders[0] if folders else self.folder
        return [os.path.normpath(os.path.join(first, folders[index] if index < len(folders) else "", file))
                if index else os.path.normpath(os.path.join(first, file)) for file, index in files]

    def _entries_5(self, data, at):
        """[(path, folder)] of one of version 5's tables, which describe their own columns."""
        columns, at = data[at], at + 1
        forms = []
        for _ in range(columns):
            content, at = uleb(data, at)
            form, at = uleb(data, at)
            forms.append((content, form))
        count, at = uleb(data, at)
        if count > len(data) or (count and not forms):
            raise ElfError(self.path, None, "a line table with %d files" % count)
        rows = []
        for _ in range(count):
            path, folder = "", 0
            for content, form in forms:
                value, at = self._value(data, at, form)
                if content == 1:            # DW_LNCT_path
                    path = value if isinstance(value, str) else ""
                elif content == 2 and isinstance(value, int):
                    folder = value
            rows.append((path, folder))
        return rows, at

    def _value(self, data, at, form):
        info = self.info
        if form == 0x08:
            end = data.index(b"\0", at)
            return os.fsdecode(data[at:end]), end + 1
        if form in (0x0e, 0x1f):
            place = info.number(data, at, self.offset_size)
            return info.text(".debug_str" if form == 0x0e else ".debug_line_str", place), at + self.offset_size
        if form == 0x0f:
            return uleb(data, at)
        sizes = {0x0b: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x1e: 16}
        if form in sizes:
            return info.number(data, at, sizes[form]), at + sizes[form]
        if form == 0x09:
            size, at = uleb(data, at)
            return None, at + size
        raise ElfError(self.path, None, "form 0x%x in a line table is not known" % form)

    # -- the program ---------------------------------------------------------------------------------

    def rows(self):
        """(addresses, lines, files): parallel arrays sorted by address. A line of 0 ends a sequence;
        lines at which no statement begins are negative."""
        if self._rows is None:
            found = self._run()
            found.sort()
            self._rows = (array("Q", [r[0] for r in found]), array("q", [r[2] for r in found]),
                          array("I", [r[3] for r in found]))
            self._columns = array("I", [r[4] for r in found])
        return self._rows

    def _run(self):
        data, at, end = self.info.section(".debug_line"), self.start, self.end
        number, size, order = self.info.number, self.address_size, self.info.order
        base, span, first, minimum = self.line_base, self.line_range, self.opcode_base, self.minimum
        jump = (255 - first) // span * minimum
        rows, add = [], None
        add = rows.append
        address, file, line, column, statement, count = 0, 1, 1, 0, self.default_statement, 0
        mask = (1 << 64) - 1
        while at < end:
            opcode = data[at]
            at += 1
            if opcode >= first:                 # a special opcode: both advance, one row
                opcode -= first
                address += opcode // span * minimum
                line += base + opcode % span
                count += 1
                add((address & mask, count, line if statement else -line, file, column))
            elif opcode == 1:                   # copy
                count += 1
                add((address & mask, count, line if statement else -line, file, column))
            elif opcode == 2:
                step, at = uleb(data, at)
                address += step * minimum
            elif opcode == 3:
                step, at = sleb(data, at)
                line += step
            elif opcode == 4:
                file, at = uleb(data, at)
            elif opcode == 5:
                column, at = uleb(data, at)
            elif opcode == 6:
                statement = not statement
            elif opcode == 8:                   # const_add_pc
                address += jump
            elif opcode == 9:
                address += int.from_bytes(data[at:at + 2], order)
                at += 2
            elif opcode == 0:                   # extended
                length, at = uleb(data, at)
                code = data[at] if length else 0
                if code == 1:                   # end_sequence
                    add((address & mask, 0, 0, 0, 0))
                    address, file, line, column, statement = 0, 1, 1, 0, self.default_statement
                elif code == 2:
                    address = number(data, at + 1, min(length - 1, size) if length > 1 else 0)
                at += length
            elif opcode not in (7, 10, 11):
                # set_isa, and those that a later version may add
                for _ in range(self.operands[opcode - 1]):
                    _, at = uleb(data, at)
            if not 0 <= line < 1 << 31 or file >= 1 << 31 or column >= 1 << 31:
                raise ElfError(self.path, None, "a line program leaves all bounds")
        return rows

    def line(self, address):
        """(file, line) at an address, or None."""
        addresses, lines, files = self.rows()
        at = bisect_right(addresses, address) - 1
        while at >= 0 and lines[at] and addresses[at] == addresses[at - 1] and at and lines[at - 1] == 0:
            break
        if at < 0 or not lines[at]:
            return None
        file = files[at]
        return (self.files[file] if file < len(self.files) else "?", abs(lines[at]))

    def columns(self, file, line):
        """The columns at which statements of a line begin, sorted."""
        wanted = {n for n, path in enumerate(self.files) if _same(path, file)}
        _, lines, files = self.rows()
        return sorted({c for l, f, c in zip(lines, files, self._columns) if l == line and f in wanted and c})

    def addresses(self, file, line, column=None):
        """(line, addresses) of a line's statements or those of the next line that has some; with a column, of the
        statements that begin there. None: there are none."""
        wanted = {n for n, path in enumerate(self.files) if _same(path, file)}
        if not wanted:
            return None
        addresses, lines, files = self.rows()
        if column is not None:
            found = [addresses[at] for at, (l, f, c) in enumerate(zip(lines, files, self._columns))
                     if l == line and f in wanted and c == column
                     and not (at and lines[at - 1] == l and files[at - 1] == f and self._columns[at - 1] == c)]
            return (line, found) if found else None
        nearest = min((l for l, f in zip(lines, files) if l >= line and f in wanted), default=None)
        if nearest is None:
            return None
        found = []
        for at, (l, f) in enumerate(zip(lines, files)):
            # the first of the rows that follow each other for one line
            if l == nearest and f in wanted and not (at and lines[at - 1] == l and files[at - 1] == f):
                found.append(addresses[at])
        return nearest, found


def _same(path, wanted):
    """Is `path` the file that somebody means by `wanted`, a path or the end of one?"""
    return path == wanted or path.endswith("/" + wanted.lstrip("./")) or os.path.normpath(wanted) == path
