"""The maps and the global data of an Object: what Python sees of them before and after loading."""

import os

from rawbpf.elf import btf_raw as raw
from rawbpf.elf.bpf_maps import PIN_BY_NAME

from . import kernel, syscalls
from .errors import KernelError, ObjectError
from .introduced import needs
from .kobject import Uncopied, fd_of
from .layout import packed
from .mapkinds import ObjectMap as KernelObjects
from .maps import STORAGE, Map
from .uapi import F_MMAPABLE, F_NUMA_NODE, F_RDONLY_PROG, MAP_TYPES, name_of
from .values import codec, of_type

BPFFS = "/sys/fs/bpf"
# kinds whose elements are the kernel's own, or that have none: they take no BTF
_NO_BTF = {"perf_event_array", "cgroup_array", "stack_trace", "array_of_maps", "hash_of_maps", "devmap",
           "devmap_hash", "cpumap", "xskmap", "sockmap", "sockhash", "queue", "stack", "arena", "ringbuf",
           "user_ringbuf", "bloom_filter"}
_RECORDS = {"ringbuf": (0, 0), "user_ringbuf": (0, 0), "perf_event_array": (4, 4)}      # key size, value size
_KEYLESS = ("queue", "stack", "bloom_filter")
_DIRECT_LIMIT = 1 << 29     # BPF_MAX_VAR_OFF: how far into a map's value an instruction may refer
_VALUES = 1 << 20           # of a variable, decoded at once: about a second, and a hundred MB
_TEXT = 1 << 24             # bytes of a variable, decoded at once
_PIECE = 1 << 20
_SHAPE = {"key_size": "=I", "value_size": "=I", "max_entries": "=I", "flags": "=I", "numa_node": "=I", "map_extra": "=Q",
          "ifindex": "=I"}      # what of a map is a number, as bpf(2) takes it
_SHOWN = ("type", "key_size", "value_size", "max_entries", "flags", "map_extra")


def value_codec(type, of):
    """The Codec of a type of the object's BTF, which may be damaged; ObjectError about `of`."""
    try:
        return of_type(type)
    except RecursionError:
        raise ObjectError("%s: its type has no end" % of) from None
    except TypeError as error:
        raise ObjectError("%s: %s" % (of, error)) from None


class ObjectMap(Uncopied):
    """One map. Until it is created, its shape may be changed: max_entries, value_size, key_size, flags,
    numa_node, map_extra, type, pin_path; `autocreate`: False for one that load() leaves out; `exclusive_program`:
    the name of the only program that may use it (6.18+); `ifindex`: the interface that runs its programs itself (offload). `map` is then the loader's Map, which has the raw operations.

    With BTF it is a mapping of Python values: m[key], m[key] = value, del, in, items(). A ring or perf
    buffer is iterated (`for`, `async for`) for its records without end (those not asked for stay), decoded by `record_type` (the name of a type of the
    object, "struct event", or its elf.types.Type) when that is set or the map says its value type, else
    as bytes, as are records that are shorter than their type.
    """

    def __init__(self, owner, definition):
        self._owner, self.definition = owner, definition
        self.name = definition.name
        self.type = name_of(MAP_TYPES, definition.type)
        self.key_size, self.value_size = definition.key_size, definition.value_size
        if self.type in _RECORDS:       # __type(value, ...) says what the records are; the kernel wants this
            self.key_size, self.value_size = _RECORDS[self.type]
        self.max_entries, self.flags = definition.max_entries, definition.flags
        self.numa_node, self.map_extra, self.ifindex = definition.numa_node, definition.map_extra, 0
        self.pin_path = None
        if definition.pinning == PIN_BY_NAME:
            self.pin_path = os.path.join(owner.pin_root, definition.name)
        self.autocreate = self.autoattach = True
        self.record_type = self.exclusive_program = None
        self.map = self._typed = self._reader = self._made_with = None
        self.reused = False         # was the map there before?

    def __setattr__(self, name, value):
        if name in _SHAPE and getattr(self, "map", None) is not None:
            raise ObjectError("map %s: is created: its %s is set before load()" % (self.name, name))
        super().__setattr__(name, value)

    def reuse(self, map):
        """Takes an existing Map (or what has a descriptor) in place of a new one, before load(); it stays the caller's, as
        do its elements: load() fills only maps that it makes (and program arrays)."""
        if self.map is not None:
            raise ObjectError("map %s: is created: reuse() comes before load()" % self.name)
        self._take(Map._adopt(os.dup(fd_of(map))))

    # -- creation --------------------------------------------------------------------------------------

    def create(self, btf):
        """Creates the map (or takes the one that is pinned); `btf` is the object's BtfObject or None."""
        if self.map is not None or not self.autocreate:
            return
        if self.definition.type not in MAP_TYPES.values():
            raise ObjectError("map %s: its type %d is newer than this loader" % (self.name, self.definition.type))
        if self.pin_path is not None and os.path.lexists(self.pin_path):
            self._take_pinned()
        else:
            self.map = self._make(btf)

    def pin(self):
        """Pins the map that create() made, if it asks for it -> was it? Another loader may have been faster: then
        its map is taken."""
        if self.pin_path is None or self.map is None or self.reused:
            return False
        try:
            self.map.pin(self.pin_path)
        except KernelError as error:
            import errno
            self.map.close()
            self.map = None
            if error.errno != errno.EEXIST:
                raise
            self._take_pinned()
            return False
        return True

    def _take_pinned(self):
        if os.path.isdir(self.pin_path):
            raise ObjectError("map %s: it is to be pinned at %s, which is a folder" % (self.name, self.pin_path))
        try:
            self._take(Map.pinned(self.pin_path))
        except ValueError as error:         # of another kind
            raise ObjectError("map %s: what is pinned at %s: %s" % (self.name, self.pin_path, error)) from None

    def _take(self, map):
        """Uses a Map that is there already; closes it when it does not fit."""
        try:
            self._check_same(map.info())
        except BaseException:
            map.close()
            raise
        self.map, self.reused = map, True

    def _check_same(self, found):
        """found: the kernel's information about a map."""
        mine = [getattr(self, name) for name in _SHOWN]
        if self.type in ("ringbuf", "user_ringbuf"):
            mine[3] = _ring_size(self.max_entries)
        if self.type == "perf_event_array" and not self.max_entries:
            mine[3] = found.max_entries
        # where its memory is makes no other map; the kernel itself adds the flag that programs only read these
        ignored = F_NUMA_NODE | (F_RDONLY_PROG if self.type in ("devmap", "devmap_hash") else 0)
        mine[4] &= ~ignored
        theirs = [getattr(found, name) for name in _SHOWN[:4]] + [found.map_flags & ~ignored,
                                                                 getattr(found, "map_extra", self.map_extra)]
        for name, own, other in zip(_SHOWN, mine, theirs):
            if own != other:
                raise ObjectError("map %s: the existing one has %s %s, this object wants %s" % (
                    self.name, name, other, own))

    def _make(self, btf):
        definition = self.definition
        for name, form in _SHAPE.items():
            value = getattr(self, name)
            if value is not None or name != "numa_node":        # None: any
                packed(form, "map %s: %s" % (self.name, name), value)
        options = dict(name=self.kernel_name(), flags=self.flags, numa_node=self.numa_node, map_extra=self.map_extra,
                       ifindex=self.ifindex, token=self._owner.token)
        if self.exclusive_program is not None:
            options["exclusive"] = self._owner.digest(self.exclusive_program)
        entries = self.max_entries
        if self.type in ("ringbuf", "user_ringbuf"):
            entries = _ring_size(entries)
        inner = None
        if self.type in ("array_of_maps", "hash_of_maps"):
            if definition.inner is None:
                raise ObjectError("map %s: says nothing about the maps it holds (values)" % self.name)
            inner = options["inner_map"] = ObjectMap(self._owner, definition.inner)._make(btf)
        typed = dict(btf=btf, btf_key_type_id=definition.key_type, btf_value_type_id=definition.value_type)
        try:
            if btf is not None and (definition.key_type or definition.value_type) and self.type not in _NO_BTF and \
                    self.value_size == definition.value_size:
                try:
                    return Map.create(self.type, self.key_size, self.value_size, entries, **options, **typed)
                except KernelError as error:
                    import errno
                    if error.errno != errno.EINVAL:
                        raise
            return Map.create(self.type, self.key_size, self.value_size, entries, **options)
        except KernelError as error:
            raise self._left_open(error) from None
        finally:
            if inner is not None:
                inner.close()

    def _left_open(self, error):
        """What a map lacks that the object's own user space would have set."""
        import errno
        wanted = ("max_entries", "value_size") if self.type == "stack_trace" else ("max_entries",)
        missing = [name for name in wanted if not getattr(self, name)]
        if error.errno != errno.EINVAL or not missing or self.type in STORAGE or needs("map", self.type):
            return error
        return KernelError(error.call, error.errno, "the object leaves its %s open: set obj.maps[%r].%s before load()" % (
            " and ".join(missing), self.name, missing[0]))

    def kernel_name(self):
        return self.name

    def close(self):
        for thing in (self._reader, self.map):
            if thing is not None:
                thing.close()
        self.map = self._typed = self._reader = None
        self.reused = False

    # -- as a mapping, or records ----------------------------------------------------------------------

    def _loaded(self):
        if self.map is None:
            raise ObjectError("map %s: is not loaded" % self.name)
        return self.map

    @property
    def typed(self):
        """The TypedMap; keys and values without BTF are bytes."""
        if self._typed is None:
            btf, definition = self._owner.file.btf, self.definition
            number = {4: "I", 8: "Q"}.get(self.value_size) if isinstance(self._loaded(), KernelObjects) else None
            self._typed = self.map.typed(
                *[value_codec(btf.type(type_id), "map " + self.name)
                  if type_id and raw.size(btf, type_id) == size else other
                  for type_id, size, other in ((definition.key_type, self.key_size, self.key_size),
                                               (definition.value_type, self.value_size, number or self.value_size))])
        return self._typed

    def fileno(self):
        """The map's descriptor: it can be given where a Map can."""
        return self._loaded().fileno()

    def push(self, value):
        """Adds a value to a queue, stack or bloom filter."""
        self._keyless().push(value)

    def pop(self):
        """Takes a value out of a queue or stack; None when it is empty."""
        return self._keyless().pop()

    def peek(self):
        """The value that pop() would take."""
        return self._keyless().peek()

    def _keyless(self):
        if self.type not in _KEYLESS:
            raise ObjectError("map %s: a %s map has keys or no elements" % (self.name, self.type))
        return self.typed

    def new_inner(self, **changes):
        """A new Map of the kind that this map of maps holds, the caller's to put into it and to close. changes:
        another max_entries, name, flags."""
        if self.definition.inner is None:
            raise ObjectError("map %s: holds no maps" % self.name)
        inner = ObjectMap(self._owner, self.definition.inner)
        for name, value in changes.items():
            if name not in ("max_entries", "name", "flags"):
                raise TypeError("%s is nothing that an inner map may change" % name)
            setattr(inner, name, value)
        return inner._make(self._owner.btf)

    def __getitem__(self, key):
        return self.typed[key]

    def __setitem__(self, key, value):
        self.typed[key] = value

    def __delitem__(self, key):
        del self.typed[key]

    def __contains__(self, key):
        return key in self.typed

    def __len__(self):
        if self.type in _RECORDS or self.type in _KEYLESS:     # list() goes on without it
            raise TypeError("map %s: a %s map has no keys to count" % (self.name, self.type))
        return len(self.typed)

    def __bool__(self):
        """True: counting would be a walk over all elements."""
        return True

    def get(self, key, default=None):
        return self.typed.get(key, default)

    def keys(self):
        return iter(self.typed)

    def items(self):
        return self.typed.items()

    def values(self):
        return self.typed.values()

    def __iter__(self):
        if self.type not in ("ringbuf", "perf_event_array"):
            return iter(self.typed)
        return map(self._record_decoder(), self.reader())

    async def __aiter__(self):
        """The records of a ring or perf buffer for `async for`, waited for in the running event loop."""
        decode = self._record_decoder()
        async for record in self.reader():
            yield decode(record)

    def reader(self, **options):
        """The RingBuffer or PerfBuffer of this map, made once (and again when that was closed); `options` are
        PerfBuffer's, for the first call: TypeError when there is one that was made with others."""
        if self._reader is not None and self._reader.closed:
            self._reader = self._made_with = None
        if self._reader is not None and options and options != self._made_with:
            raise TypeError("the reader of map %s is there already, made with %s: close() it to have another" % (
                self.name, self._made_with or "no options"))
        if self._reader is None or self.type == "user_ringbuf":
            if self.type == "ringbuf":
                from .ringbuf import RingBuffer as Reader
            elif self.type == "perf_event_array":
                from .perfbuf import PerfBuffer as Reader
            else:
                raise ObjectError("map %s: a %s map has no records to read" % (self.name, self.type))
            self._reader, self._made_with = Reader(self._loaded(), **options), options
        return self._reader

    def writer(self):
        """The UserRingBuffer of this map (6.1+), made once: its write(bytes) adds a record, which a program drains."""
        if self.type != "user_ringbuf":
            raise ObjectError("map %s: a %s map takes no records" % (self.name, self.type))
        if self._reader is None or self._reader.closed:
            from .userring import UserRingBuffer
            self._reader = UserRingBuffer(self._loaded())
        return self._reader

    def records(self, timeout=0):
        """The records that are there, as a list; waits up to `timeout` seconds for the first. One that is shorter
        than the type of the records is given as bytes."""
        reader, decode = self.reader(), self._record_decoder()
        if timeout:
            reader.wait(timeout)
        return list(map(decode, reader.records()))

    def _record_decoder(self):
        """What makes a value of a record; a short one has not all of its members, which nobody must invent."""
        decode, needed = self.record_codec().decode, _needed(self._record_type())
        return lambda data: decode(data) if len(data) >= needed else data

    def record_codec(self):
        wanted = self._record_type()
        return codec(0) if wanted is None else value_codec(wanted, "map " + self.name)

    def _record_type(self):
        """The elf.types.Type of the records, or None."""
        wanted = self.record_type
        if wanted is None and self.definition.value_type and self._says_records():
            return self._owner.file.btf.type(self.definition.value_type)
        if not isinstance(wanted, str):
            return wanted
        kind, _, name = wanted.rpartition(" ")
        btf = self._owner.file.btf
        found = btf.find(name, kind or None) if btf is not None else None
        if found is None:
            raise ObjectError("map %s: the object's BTF has no %s" % (self.name, wanted))
        return found

    def _says_records(self):
        """Is the value type that of the records? The u32 of a perf_event_array is a descriptor's."""
        return self.type == "ringbuf" or self.type == "perf_event_array" and \
            raw.skip(self._owner.file.btf, self.definition.value_type).kind in ("struct", "union")

    def __repr__(self):
        return "<ObjectMap %s %s key=%d value=%d max_entries=%d%s>" % (
            self.type, self.name, self.key_size, self.value_size, self.max_entries,
            "" if self.map is None else " fd=%d" % self.map.fd)


def _needed(type):
    """Bytes of a record that has all members of a type: padding at the end may be missing."""
    from rawbpf.elf import types
    type = types.strip(type) if type is not None else None
    if not isinstance(type, types.Struct):
        return 0 if type is None else type.size
    return max([field.offset + (field.type.size if field.bit_size is None else
                                field.bit_offset + field.bit_size + 7 >> 3) for field in type.fields], default=0)


def _ring_size(wanted):
    """A power of two and whole pages, as the kernel wants it."""
    size = syscalls.PAGE_SIZE
    while size < wanted and size < 1 << 31:
        size *= 2
    return size


def _zeros(size):
    """A buffer of zeros; a large one takes memory only where it is written to."""
    if size < 1 << 20:
        return bytearray(size)
    import mmap
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class DataMap(ObjectMap):
    """A data section, as a map with one value. `content` is what it starts with."""

    def __init__(self, owner, definition, size, content, read_only, shared):
        super().__init__(owner, definition)
        self.content = _zeros(size) if content is None else bytearray(content)
        self.read_only = read_only
        if read_only:
            self.flags |= F_RDONLY_PROG
        if shared and kernel.release() >= (5, 5):
            self.flags |= F_MMAPABLE
        self._memory, self._filled = None, False
        self.given = {}             # variables that were set: what goes before the kernel's configuration

    def kernel_name(self):
        return self._owner.name[:15 - len(self.name[:14])] + self.name[:14] if len(self.name) < 15 else self.name

    def fill(self):
        """Puts the content in, once; read-only data is frozen after that (5.2+)."""
        if self._filled:
            return
        self._filled = True
        if self.flags & F_MMAPABLE and not self.read_only and len(self.content) > _PIECE:
            memory, zeros = self.memory(), bytes(_PIECE)
            for at in range(0, len(self.content), _PIECE):     # the kernel's are zeros already
                piece = self.content[at:at + _PIECE]
                if piece != zeros[:len(piece)]:
                    memory[at:at + len(piece)] = piece
        else:
            self._loaded().update(bytes(4), bytes(self.content))
        if self.read_only:
            self.map.freeze()

    def read(self, offset, size):
        self._owner.usable()
        if self.map is None:
            return bytes(self.content[offset:offset + size])
        if not self.flags & F_MMAPABLE:
            return self.map.lookup(bytes(4))[offset:offset + size]
        return bytes(self.memory()[offset:offset + size])

    def write(self, offset, data):
        self._owner.usable()
        if self.map is None:
            self.content[offset:offset + len(data)] = data
        elif self.read_only:
            raise ObjectError("%s is read-only once it is loaded: set it before load()" % self.name)
        elif self.flags & F_MMAPABLE:
            self.memory()[offset:offset + len(data)] = data
        else:
            value = bytearray(self.map.lookup(bytes(4)))
            value[offset:offset + len(data)] = data
            self.map.update(bytes(4), bytes(value))

    def memory(self):
        """The data as an mmap object (5.5+)."""
        self.fileno()           # ValueError in a forked child, where somebody may have kept a view
        if self._memory is None or self._memory.closed:         # as in a forked child
            self._memory = self._loaded().mmap(writable=not self.read_only)
        return self._memory

    def close(self):
        if self._memory is not None:
            try:
                self._memory.close()
            except BufferError:
                self._memory = None     # somebody has a view: the mapping goes with it
            self._memory = None
        self._filled = False
        super().close()


class ArenaMap(ObjectMap):
    """Memory that programs and user space share (6.9+), with the globals of the section .addr_space.1 at its end."""

    def __init__(self, owner, definition):
        super().__init__(owner, definition)
        data = owner.file.arena
        self.content = bytearray() if data is None else bytearray(data.content or data.size)
        self._memory, self.given = None, {}

    @property
    def place(self):
        """Where in the arena the globals are: in its last pages, if instructions can refer to them there."""
        page = syscalls.PAGE_SIZE
        at = self.max_entries * page - (len(self.content) + page - 1 & -page)
        if at < 0:
            raise ObjectError("map %s: %d pages are too few for %d bytes of globals" % (
                self.name, self.max_entries, len(self.content)))
        return at if at + len(self.content) < _DIRECT_LIMIT else 0

    def create(self, btf):
        place = self.place
        super().create(btf)
        if self.map is not None and self._memory is None:
            # programs see an address only once it is mapped
            self._memory = self.map.mmap()
            if self.content:
                self._memory[place:place + len(self.content)] = bytes(self.content)

    def memory(self):
        """The whole arena as an mmap object."""
        self.fileno()
        return self._memory

    def read(self, offset, size):
        self._owner.usable()
        if self._memory is None:
            return bytes(self.content[offset:offset + size])
        return self.memory()[self.place + offset:self.place + offset + size]

    def write(self, offset, data):
        self._owner.usable()
        if self._memory is None:
            self.content[offset:offset + len(data)] = data
        else:
            self.memory()[self.place + offset:self.place + offset + len(data)] = data

    def close(self):
        memory, self._memory = self._memory, None
        if memory is not None:
            try:
                memory.close()
            except BufferError:
                memory = None           # somebody has a view: the mapping goes with it
        super().close()


class Globals(Uncopied):
    """The variables of data sections by name: obj.rodata["targ_uid"] = 1000, obj.bss["hits"]."""

    def __init__(self, owner, kind):
        self._owner, self._kind, self._table = owner, kind, None

    def _variables(self):
        if self._table is None:
            self._table = {}
            for name, data in self._owner.data_maps():
                if name == self._kind or name.startswith(self._kind + "."):
                    for variable, offset, size, type_id in self._owner.data_variables(name):
                        if offset + size <= len(data.content):
                            self._table.setdefault(variable, (data, offset, size, type_id))
        return self._table

    def _find(self, name):
        self._owner.usable()
        try:
            return self._variables()[name]
        except KeyError:
            from difflib import get_close_matches
            near = get_close_matches(name, self._variables(), 1)
            raise KeyError("%s has no variable %s%s" % (
                self._kind, name, "; did you mean %s?" % near[0] if near else "")) from None

    def _codec(self, name, size, type_id):
        found = value_codec(self._owner.file.btf.type(type_id), "variable " + name)
        if found.size != size:
            raise ObjectError("variable %s: it has %d bytes, its type %d" % (name, size, found.size))
        if found.count > _VALUES or size > _TEXT:
            raise ObjectError("variable %s: %d values of %d bytes in all are too many to be Python's: use memory(%r)" % (
                name, found.count, size, name))
        return found

    def __getitem__(self, name):
        data, offset, size, type_id = self._find(name)
        return self._codec(name, size, type_id).decode(data.read(offset, size))

    def __setitem__(self, name, value):
        data, offset, size, type_id = self._find(name)
        encoded = self._codec(name, size, type_id).encode(value)
        data.write(offset, encoded)
        data.given[name] = encoded

    def memory(self, name):
        """The bytes of a variable, a memoryview: once loaded, of what programs see (5.5+), read-only for read-only
        data. It is no longer valid when the object is closed."""
        data, offset, size, _ = self._find(name)
        if data.map is None:
            memory = data.content
        elif data.flags & F_MMAPABLE or isinstance(data, ArenaMap):
            memory = data.memory()
            offset += getattr(data, "place", 0)
        else:
            memory, offset = data.read(offset, size), 0
        return memoryview(memory)[offset:offset + size]

    def __contains__(self, name):
        return name in self._variables()

    def __iter__(self):
        return iter(self._variables())

    def __len__(self):
        return len(self._variables())

    def keys(self):
        return self._variables().keys()

    def items(self):
        return [(name, self[name]) for name in self]

    def update(self, values):
        for name, value in values.items():
            self[name] = value
