"""USDT probes that a Python program declares at run time.

    from rawbpf.elf.usdt_provider import Provider

    provider = Provider("shop")
    sold = provider.probe("sold", "uint64", "string")      # arguments: number, name
    provider.load()
    ...
    sold.fire(42, "tea")

`load` writes a small ELF shared object with a function for each probe (a nop and a return), its
semaphore and its note in `.note.stapsdt` (see `stapsdt.py`), and has the dynamic linker map it. The
object lives in a memfd, or in a file that the caller names. Any tracer sees the probes in the
process; while none listens, `fire` reads the semaphore and returns.

Linux on x86_64 and aarch64, and a C library with dlopen.
"""

import ctypes
import os
import struct

_SIZES = {"int8": -1, "int16": -2, "int32": -4, "int64": -8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
          "string": 8, int: -8, str: 8, bytes: 8}

# per machine: ELF machine, registers of the arguments by size, code of `nop; return` padded to 16 bytes
_X86 = {8: ("%rdi", "%rsi", "%rdx", "%rcx", "%r8", "%r9"), 4: ("%edi", "%esi", "%edx", "%ecx", "%r8d", "%r9d"),
        2: ("%di", "%si", "%dx", "%cx", "%r8w", "%r9w"), 1: ("%dil", "%sil", "%dl", "%cl", "%r8b", "%r9b")}
_ARM = {size: tuple("%s%d" % ("x" if size == 8 else "w", n) for n in range(8)) for size in (1, 2, 4, 8)}
_MACHINES = {"x86_64": (62, _X86, b"\x90\xc3" + b"\x90" * 14),
             "aarch64": (183, _ARM, bytes.fromhex("1f2003d5c0035fd61f2003d51f2003d5"))}
_PAGE = 0x10000     # the largest page that either machine has


class ProviderError(Exception):
    """The probes cannot be declared or loaded."""


class Probe:
    """One probe of a Provider.

    `fire(*arguments)` hits it: strings are passed as pointers to their UTF-8 bytes, numbers modulo
    their size. While no tracer listens, before `load` and after `unload`, it does nothing. It raises nothing: that
    somebody listens must not break a program, so arguments that do not fit are a RuntimeWarning and no hit."""

    def __init__(self, provider, name, types):
        self.provider = provider
        self.name = name
        self.types = types
        self._detach()

    @property
    def enabled(self):
        """Does any tracer listen?"""
        try:
            return self._semaphore[0] != 0
        except ValueError:
            return False        # released by another thread

    def _argument_text(self, registers):
        texts = []
        for number, kind in enumerate(self.types):
            size = _SIZES[kind]
            texts.append("%d@%s" % (size, registers[abs(size)][number]))
        return " ".join(texts)

    def _attach(self, mapped, call, address):
        call.argtypes = [ctypes.c_char_p if kind in ("string", str, bytes) else
                         ctypes.c_int64 if _SIZES[kind] < 0 else ctypes.c_uint64 for kind in self.types]
        call.restype = None
        semaphore = self._semaphore = memoryview(ctypes.c_uint16.from_address(address)).cast("B").cast("H")
        name, count = self.name, len(self.types)

        def fire(*arguments):
            try:
                if not semaphore[0]:
                    return
            except ValueError:
                return      # released by `unload`, in another thread or before
            if len(arguments) != count:
                return _warn("probe %s takes %d arguments, not %d" % (name, count, len(arguments)))
            try:
                arguments = [a.encode("utf-8", "surrogateescape") if isinstance(a, str) else a for a in arguments]
                mapped.call(call, arguments)
            except (TypeError, ValueError, ctypes.ArgumentError) as error:
                _warn("probe %s: %s" % (name, error))

        # a function of its own and no method: half the time of a call that finds nobody listening
        self.fire = fire

    def _detach(self):
        semaphore = self.__dict__.get("_semaphore")
        self._semaphore = (0,)
        self.fire = lambda *arguments: None
        if isinstance(semaphore, memoryview):
            semaphore.release()     # who has kept the function that was `fire` must not read what is unmapped


def _warn(text):
    import warnings
    warnings.warn(text, RuntimeWarning, stacklevel=3)


class _Mapped:
    """A shared object that is mapped. It stays until nobody runs in it: another thread may be at a probe, or the very
    thread that unloads it, in a signal handler."""

    def __init__(self, path, fd):
        self.library = ctypes.CDLL(path)
        self.fd = fd
        self.live = True
        self._running = []      # appending to a list, taking from one and looking at it are each one step for Python
        self._handle = [self.library._handle]

    def call(self, function, arguments):
        self._running.append(None)
        try:
            if self.live:
                function(*arguments)
        finally:
            self._running.pop()
            if not self.live:
                self.close()

    def close(self):
        self.live = False
        if not self._running:
            try:
                handle = self._handle.pop()
            except IndexError:
                return      # another thread was the last, too
            import _ctypes
            _ctypes.dlclose(handle)
            # not before: the dynamic linker knows a library by its path, and that has the descriptor's number in it
            os.close(self.fd)


class Provider:
    """A set of probes. `file` names the shared object to write (it stays until `unload`); without it
    a memfd is used. A context manager that loads and unloads."""

    def __init__(self, name, file=None):
        self.name = _checked_name(name)
        self.file = file
        self.probes = {}
        self._mapped = None

    def probe(self, name, *types):
        """Declare a probe. Types: "int8" to "int64", "uint8" to "uint64", "string"; or Python's int,
        str, bytes."""
        if self._mapped is not None:
            raise ProviderError("provider %s is loaded already: declare its probes before" % self.name)
        if _checked_name(name) in self.probes:
            raise ProviderError("provider %s has a probe %s already" % (self.name, name))
        unknown = [t for t in types if not isinstance(t, (str, type)) or t not in _SIZES]
        if unknown:
            raise ProviderError("probe %s: no type %r; there are %s" % (
                name, unknown[0], ", ".join(sorted(t for t in _SIZES if isinstance(t, str)))))
        most = len(self._machine()[1][8])
        if len(types) > most:
            raise ProviderError("probe %s has %d arguments, %d fit into registers" % (name, len(types), most))
        self.probes[name] = probe = Probe(self, name, types)
        return probe

    @staticmethod
    def _machine():
        machine = os.uname().machine
        if machine not in _MACHINES:
            raise ProviderError("probes at run time are not supported on %s" % machine)
        return _MACHINES[machine]

    def image(self):
        """The shared object's bytes."""
        return _write(self.name, list(self.probes.values()), *self._machine())[0]

    def load(self):
        """Map the probes into this process. ProviderError when that cannot be done."""
        if self._mapped is not None:
            return self
        data, semaphores = _write(self.name, list(self.probes.values()), *self._machine())
        fd = None
        try:
            if self.file is None:
                fd = os.memfd_create("usdt-" + self.name, os.MFD_CLOEXEC)
            else:
                fd = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view):]
            self._mapped = _Mapped("/proc/self/fd/%d" % fd, fd)
        except OSError as error:
            if fd is not None:
                os.close(fd)
                self._unlink()
            raise ProviderError("provider %s cannot be loaded: %s" % (self.name, error)) from None
        for number, probe in enumerate(self.probes.values()):
            call = self._mapped.library["probe_%d" % number]
            address = ctypes.cast(call, ctypes.c_void_p).value
            probe._attach(self._mapped, call, address + semaphores[number])
        return self

    def unload(self):
        """Unmap the probes; firing them does nothing from now on. Where another thread is just firing one, they are
        unmapped as soon as it has."""
        for probe in self.probes.values():
            probe._detach()
        mapped, self._mapped = self._mapped, None
        if mapped is not None:
            mapped.close()
            self._unlink()

    def _unlink(self):
        if self.file is not None:
            try:
                os.unlink(self.file)
            except FileNotFoundError:
                pass        # somebody else has cleaned up

    def __enter__(self):
        return self.load()

    def __exit__(self, *exception):
        self.unload()


def _checked_name(name):
    if not isinstance(name, str) or not name or any(c.isspace() or c in ":\"'\0" or "\ud800" <= c <= "\udfff" for c in name):
        raise ProviderError("%r cannot be the name of a provider or probe" % (name,))
    return name


# -- the shared object ------------------------------------------------------------------------------

def _align(data, alignment):
    return data + bytes(-len(data) % alignment)


def _write(name, probes, machine, registers, code):
    """(bytes of the shared object, [distance from each probe's function to its semaphore]).

    One segment to read and execute: headers, notes, symbols, code. One to write: the dynamic section
    and the semaphores. Both hold their part of the file at the same offsets."""
    strings, names = b"\0", []
    for text in ["probe_%d" % n for n in range(len(probes))] + ["lib%s.so" % name]:
        names.append(len(strings))
        strings += text.encode() + b"\0"
    headers = 64 + 56 * 4
    hashes = headers
    count = len(probes) + 1
    # a hash table of one bucket: a chain of all symbols
    table = struct.pack("<%dI" % (3 + count), 1, count, count - 1, *([0] + list(range(0, count - 1))))
    symbols_at = len(_align(bytes(hashes) + table, 8))
    strings_at = symbols_at + 24 * count
    notes_at = (strings_at + len(strings) + 3) & -4
    notes_size = len(_notes(name, probes, registers, 0, 0, 0))
    base_at = notes_at + notes_size
    code_at = (base_at + 1 + 15) & -16
    code_end = code_at + len(code) * len(probes)
    data_at = (code_end + _PAGE - 1) & -_PAGE      # address; in the file right behind the code
    data_offset = (code_end + 15) & -16
    data_at += data_offset % _PAGE
    entries = [(14, names[-1]), (4, hashes), (5, strings_at), (6, symbols_at), (10, len(strings)), (11, 24), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", tag, value) for tag, value in entries)
    semaphores_at = data_at + len(dynamic)
    data = dynamic + bytes(2 * len(probes))
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", names[n], 0x12, 0, 6, code_at + n * len(code), len(code)) for n in range(len(probes)))
    notes = _notes(name, probes, registers, code_at, base_at, semaphores_at)

    body = bytearray(data_offset)
    for at, part in ((hashes, table), (symbols_at, symbols), (strings_at, strings), (notes_at, notes),
                     (code_at, code * len(probes))):
        body[at:at + len(part)] = part
    body += data
    section_names = b"\0.hash\0.dynsym\0.dynstr\0.note.stapsdt\0.stapsdt.base\0.text\0.dynamic\0.probes\0.shstrtab\0"
    place = lambda text: section_names.index(b"\0" + text + b"\0") + 1
    rows = [(0,) * 10,
            (place(b".hash"), 5, 2, hashes, hashes, len(table), 2, 0, 8, 4),
            (place(b".dynsym"), 11, 2, symbols_at, symbols_at, 24 * count, 3, 1, 8, 24),
            (place(b".dynstr"), 3, 2, strings_at, strings_at, len(strings), 0, 0, 1, 0),
            (place(b".note.stapsdt"), 7, 0, 0, notes_at, len(notes), 0, 0, 4, 0),
            (place(b".stapsdt.base"), 1, 2, base_at, base_at, 1, 0, 0, 1, 0),
            (place(b".text"), 1, 6, code_at, code_at, code_end - code_at, 0, 0, 16, 0),
            (place(b".dynamic"), 6, 3, data_at, data_offset, len(dynamic), 3, 0, 8, 16),
            (place(b".probes"), 1, 3, semaphores_at, data_offset + len(dynamic), 2 * len(probes), 0, 0, 2, 0),
            (place(b".shstrtab"), 3, 0, 0, len(body), len(section_names), 0, 0, 1, 0)]
    body += section_names
    body = bytearray(_align(bytes(body), 8))
    section_headers = len(body)
    body += b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in rows)
    segments = [(1, 5, 0, 0, 0, code_end, code_end, _PAGE), (1, 6, data_offset, data_at, data_at, len(data), len(data), _PAGE),
                (2, 6, data_offset, data_at, data_at, len(dynamic), len(dynamic), 8), (0x6474e551, 6, 0, 0, 0, 0, 0, 16)]
    body[64:headers] = b"".join(struct.pack("<IIQQQQQQ", *segment) for segment in segments)
    body[:64] = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, section_headers, 0, 64, 56, 4, 64, len(rows), len(rows) - 1)
    distances = [semaphores_at + 2 * n - (code_at + n * len(code)) for n in range(len(probes))]
    return bytes(body), distances


def _notes(provider, probes, registers, code_at, base_at, semaphores_at):
    notes = b""
    for number, probe in enumerate(probes):
        desc = struct.pack("<QQQ", code_at + 16 * number, base_at, semaphores_at + 2 * number)
        for text in (provider, probe.name, probe._argument_text(registers)):
            desc += text.encode("utf-8", "surrogateescape") + b"\0"
        notes += struct.pack("<III", 8, len(desc), 3) + b"stapsdt\0" + _align(desc, 4)
    return notes
