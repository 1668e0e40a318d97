"""BPF maps as raw bytes: create, element and batch operations, iteration that ends.

bpf(2) BPF_MAP_*. `Map.create` returns the subclass that fits the kind; keys and values are bytes of
exactly key_size and value_size. A value of a per-CPU map is a list of bytes, one for each possible
CPU in its order. Where an element is a kernel object (perf_event_array, prog_array, map-in-map, ...)
values may be given as that object.
"""

import errno
import os
import struct
import sys
from types import SimpleNamespace

from . import introduced, kernel, syscalls
from .errors import KernelError, explain, refused
from .introduced import since
from .kobject import BpfObject, fd_of, mapped
from .program import object_name
from .syscalls import ATTR, address, bpf_raw
from .uapi import (ANY, EXIST, F_NO_PREALLOC, F_NUMA_NODE, F_RDONLY, F_TOKEN_FD, F_VTYPE_BTF_OBJ_FD, F_WRONLY, MAP_TYPES, NOEXIST,
                   name_of, number)

_NET = {"devmap", "devmap_hash", "sockmap", "sockhash", "cpumap", "xskmap", "reuseport_sockarray"}

# Values that belong to a kernel object, kept with it; the key is a descriptor of the object.
STORAGE = ("sk_storage", "inode_storage", "task_storage", "cgrp_storage")

_BATCH = 4096                 # elements a batch call
_BATCH_BYTES = 1 << 20        # of keys and values, at most, unless one bucket has more
_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, 524}

_ELEM = struct.Struct("=I4xQQQ")


class Map(BpfObject):
    """Any map. Errors are KernelErrors; to the methods a key that is not there is None or False, not an error.
    It is a mapping of bytes as well: map[key], map[key] = value, del, in, len, iteration, get, items."""

    __slots__ = ("type", "key_size", "value_size", "max_entries", "name", "flags", "_batches")
    kind = "map"

    def __init__(self, fd, type, key_size, value_size, max_entries, name="", flags=0):
        super().__init__(fd)
        self.type, self.key_size, self.value_size = type, key_size, value_size
        self.max_entries, self.name, self.flags = max_entries, name, flags
        self._batches = True      # until the kernel says otherwise

    @staticmethod
    def create(type, key_size, value_size, max_entries, *, name="", flags=0, inner_map=None,
               numa_node=None, btf=None, btf_key_type_id=0, btf_value_type_id=0,
               btf_vmlinux_value_type_id=0, value_type_btf_obj=None, map_extra=0, ifindex=0, token=None,
               exclusive=b""):
        """Makes a map -> Map of the class that fits the type (a name of MAP_TYPES).

        Sizes in bytes, max_entries in elements (ring buffers: bytes, a power of two and pages).
        A perf_event_array with max_entries 0 gets one element for each possible CPU. Local storage
        (sk, inode, task, cgrp) has max_entries 0 and wants BTF: without one, its value is plain bytes.
        map_extra: hash functions of a bloom_filter (5.16+), the address of an arena. token: a
        kobject.Token that delegates the permission (6.9+). value_type_btf_obj: a module's BtfObject that
        btf_vmlinux_value_type_id (of a struct_ops map) lies in (6.9+). exclusive: program.digest() of the one
        program that may use the map (6.18+).
        """
        type_number = number(MAP_TYPES, type, "map type")
        if type == "perf_event_array" and not max_entries:
            max_entries = max(kernel.possible_cpus()) + 1
        if type in STORAGE and btf is None:
            from .btf import BtfObject, storage_types
            btf, btf_key_type_id, btf_value_type_id = BtfObject.load(storage_types(value_size)), 1, 4
            flags |= F_NO_PREALLOC
        if numa_node is not None:
            flags |= F_NUMA_NODE
        fields = dict(
            map_type=type_number, key_size=key_size, value_size=value_size, max_entries=max_entries,
            map_flags=flags, map_name=object_name(name), numa_node=numa_node or 0,
            inner_map_fd=fd_of(inner_map) if inner_map is not None else 0, map_ifindex=ifindex,
            btf_fd=fd_of(btf) if btf is not None else 0, btf_key_type_id=btf_key_type_id,
            btf_value_type_id=btf_value_type_id, map_extra=map_extra,
            btf_vmlinux_value_type_id=btf_vmlinux_value_type_id)
        if value_type_btf_obj is not None:
            fields.update(map_flags=flags | F_VTYPE_BTF_OBJ_FD, value_type_btf_obj_fd=fd_of(value_type_btf_obj))
        if token is not None:
            fields.update(map_flags=fields["map_flags"] | F_TOKEN_FD, map_token_fd=fd_of(token))
        digest = bytearray(exclusive)
        fields.update(excl_prog_hash=address(digest), excl_prog_hash_size=len(digest))
        call = "creation of %s map%s" % (type, " " + name if name else "")
        try:
            fd = _create(fields)
        except OSError as error:
            if exclusive and since((6, 18), ""):
                raise refused(call, error, "bpf", True, since((6, 18), "a map for one program")) from None
            raise _creation_refused(call, error, type, fields) from None
        return _class_of(type)(fd, type, key_size, value_size, max_entries, name, flags)

    @classmethod
    def _from_info(cls, fd):
        info = _info(fd)
        return _class_of(info.type)(fd, info.type, info.key_size, info.value_size, info.max_entries,
                                    info.name, info.map_flags)

    def info(self):
        """struct bpf_map_info as a namespace (id, type, name, ...)."""
        return _info(self.fileno())

    def bind(self, program):
        """Keeps the map alive as long as the program, which need not refer to it (5.10+)."""
        try:
            syscalls.bpf("prog_bind_map", prog_fd=program.fileno(), map_fd=self.fileno())
        except OSError as error:
            raise refused("binding of map %s to a program" % self.name, error,
                          invalid=since((5, 10), "binding a map")) from None

    def __repr__(self):
        return "<%s %s %s fd=%d>" % (type(self).__name__, self.type, self.name, self.fd)

    def memory(self):
        """The values of an array made with F_MMAPABLE (5.5+) as an mmap object, writable; each value takes
        value_size rounded up to 8. Reading it is no system call: while a task is in one that touches a map,
        the kernel passes over tracing programs on its CPU."""
        size = (self.value_size + 7 & -8) * self.max_entries
        try:
            return mapped(self.fileno(), size + syscalls.PAGE_SIZE - 1 & -syscalls.PAGE_SIZE)
        except OSError as error:
            raise self._refused("mapping", error) from None

    # -- elements --

    def _elem(self, command, key=0, value=0, flags=0):
        try:
            attr = bytearray(_ELEM.pack(self.fileno(), key, value, flags))
        except struct.error:
            raise ValueError("flags: %r does not fit into 64 bits" % (flags,)) from None
        return bpf_raw(command, attr)

    def _refused(self, what, error):
        return refused("%s in %s map %s" % (what, self.type, self.name), error, "bpf", invalid={
            errno.E2BIG: "the map is full (max_entries %d) or the key is out of range"
                         % self.max_entries,
            errno.ENOMEM: "no memory for the element",
        }.get(error.errno, "this kind of map has no such operation"
              if error.errno in (errno.ENOTSUP, 524) else ""),
            permitted=self._forbidden(what) if error.errno == errno.EPERM else "")

    def _forbidden(self, what):
        """What of the map itself forbids an operation, or ""."""
        reads = what.startswith(("lookup", "get next key")) and "delete" not in what
        if self.flags & F_RDONLY and not reads:
            return "the map was made with F_RDONLY: only programs write it"
        if self.flags & F_WRONLY and (reads or "lookup" in what or what == "pop"):
            return "the map was made with F_WRONLY: only programs read it"
        if reads or not self._frozen():
            return ""
        return "it is frozen already" if what == "freeze" else "the map is frozen: only programs may still write it"

    def _frozen(self):
        try:
            with open("/proc/self/fdinfo/%d" % self.fileno()) as file:
                return "\nfrozen:\t1\n" in file.read()
        except OSError:
            return False

    def _key(self, key):
        if isinstance(key, int):
            return bytearray(_number(key, self.key_size, "key of map " + self.name))
        if len(key) != self.key_size:
            raise ValueError("a key of map %s is %d bytes, not %d" %
                             (self.name, self.key_size, len(key)))
        return bytearray(key)

    def _wire_size(self):
        """Bytes of one value as the system call has it."""
        return self.value_size

    def _decode(self, data):
        return bytes(data)

    def _encode(self, value):
        if len(value) != self.value_size:
            raise ValueError("a value of map %s is %d bytes, not %d" %
                             (self.name, self.value_size, len(value)))
        return bytearray(value)

    def lookup(self, key, flags=0):
        """The value, or None when the key is not there."""
        return self._lookup("map_lookup_elem", key, flags)

    def _lookup(self, command, key, flags):
        key, value = self._key(key), bytearray(self._wire_size())
        try:
            self._elem(command, address(key), address(value), flags)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise self._refused(command[4:-5].replace("_", " "), error) from None
        return self._decode(value)

    def lookup_and_delete(self, key, flags=0):
        """Takes an element out (hash maps: 5.14+); None when it is not there."""
        return self._lookup("map_lookup_and_delete_elem", key, flags)

    def update(self, key, value, flags=ANY):
        """Sets an element. flags: uapi.ANY, NOEXIST (False when it exists), EXIST (False when not)."""
        key, value = self._key(key), self._encode(value)
        try:
            self._elem("map_update_elem", address(key), address(value), flags)
        except OSError as error:
            if flags & 3 and error.errno in (errno.EEXIST, errno.ENOENT):
                return False
            raise self._refused("update", error) from None
        return True

    def delete(self, key):
        """Removes an element; False when it was not there."""
        key = self._key(key)
        try:
            self._elem("map_delete_elem", address(key))
        except OSError as error:
            # a sockmap says EINVAL of a place that is empty
            if error.errno == errno.ENOENT or error.errno == errno.EINVAL and self.type == "sockmap" and \
                    int.from_bytes(key, sys.byteorder) < self.max_entries:
                return False
            raise self._refused("delete", error) from None
        return True

    # -- as a mapping --

    def __getitem__(self, key):
        """map[key]: the value (bytes; per-CPU: a list of them); KeyError when it is not there. A key may be
        an integer, which stands for its key_size bytes."""
        value = self.lookup(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key, value):
        self.update(key, value)

    def __delitem__(self, key):
        if not self.delete(key):
            raise KeyError(key)

    def get(self, key, default=None):
        value = self.lookup(key)
        return default if value is None else value

    def __len__(self):
        """How many elements there are now; the kernel does not count them, so it walks over them."""
        return sum(1 for _ in self.keys())

    def __bool__(self):
        """True: an empty map is a map, too (and asking must not walk over it)."""
        return True

    # -- iteration --

    def next_key(self, key=None):
        """The key after this one (the first, when None or when the key is gone); None at the end."""
        following = bytearray(self.key_size)
        before = bytearray(0) if key is None else self._key(key)
        try:
            self._elem("map_get_next_key", address(before), address(following))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise self._refused("get next key", error) from None
        return bytes(following)

    def keys(self):
        """Each key once, without ever going round for ever.

        When another deletes the key that the walk stands on, the kernel starts again at the first
        one. Keys already seen are then passed over, and the number of steps is bounded, so that
        a writer that keeps inserting and deleting cannot hold the walk.
        """
        seen = set()
        key = self.next_key()
        steps = 4 * self.max_entries + 1024
        while key is not None and steps:
            steps -= 1
            following = self.next_key(key)   # before the caller may delete this key
            if key not in seen:
                seen.add(key)
                yield key
            key = following

    def items(self):
        """(key, value) of every element. Elements that come or go meanwhile may or may not be seen;
        no key is given twice."""
        if self._batches:
            done = False
            for pair in self._batch_items("map_lookup_batch"):
                done = True
                yield pair
            if done or self._batches:
                return
        for key in self.keys():
            value = self.lookup(key)
            if value is not None:
                yield key, value

    def values(self):
        for _, value in self.items():
            yield value

    def __iter__(self):
        return self.keys()

    def __contains__(self, key):
        return self.lookup(key) is not None

    def drain(self):
        """(key, value) of every element, each taken out of the map as it is read (hash maps)."""
        if self._batches:
            done = False
            for pair in self._batch_items("map_lookup_and_delete_batch"):
                done = True
                yield pair
            if done or self._batches:
                return
        for key in list(self.keys()):
            value = self.lookup(key)
            if value is not None and self.delete(key):
                yield key, value

    def _batch_items(self, command):
        """Elements by batches (5.6+); sets _batches to False when the kernel has none for this map."""
        count = min(self.max_entries, self._batch_size()) or 1
        layout = ATTR["batch"]
        # The cursor is a u32 for hash and array maps and a key for others.
        cursor, following = bytearray(max(self.key_size, 8)), bytearray(max(self.key_size, 8))
        wire, first = self._wire_size(), True
        key_size, decode = self.key_size, self._decode
        while True:
            keys, values = bytearray(count * key_size), bytearray(count * wire)
            attr = layout.pack(in_batch=0 if first else address(cursor), out_batch=address(following),
                               keys=address(keys), values=address(values), count=count,
                               map_fd=self.fileno())
            code = 0
            try:
                bpf_raw(command, attr)
            except OSError as error:
                code = error.errno
            got = layout.get(attr, "count")
            if code == errno.ENOSPC:      # a bucket holds more than count elements
                count *= 2
                continue
            if code and code != errno.ENOENT:
                if first and code in _UNSUPPORTED:
                    self._batches = False
                    return
                raise self._refused(command[4:].replace("_", " "), OSError(code, ""))
            if code == errno.ENOENT and got > count:
                got = 0
            for index in range(got):
                yield (bytes(keys[index * key_size:(index + 1) * key_size]),
                       decode(values[index * wire:(index + 1) * wire]))
            if code == errno.ENOENT:
                return
            cursor, following, first = following, cursor, False

    def _batch_size(self):
        """Elements of a batch call."""
        return max(1, min(_BATCH, _BATCH_BYTES // (self.key_size + self._wire_size() or 1)))

    def update_batch(self, items, flags=ANY):
        """Sets many elements (pairs of key and value), by batches where the kernel can -> how many were set: with
        NOEXIST or EXIST, which no batch takes, those are passed over for which update() says False."""
        items = list(items.items() if isinstance(items, dict) else items)
        start, size = 0, self._batch_size()
        while self._batches and not flags & (NOEXIST | EXIST) and start < len(items):
            part = items[start:start + size]
            keys = bytearray(b"".join([self._key(key) for key, _ in part]))
            values = bytearray(b"".join([self._encode(value) for _, value in part]))
            if self._batch("map_update_batch", len(part), keys, values, flags) is False:
                break
            start += len(part)
        return start + sum([self.update(key, value, flags) for key, value in items[start:]])

    def delete_batch(self, keys):
        """Removes many elements; those that are not there are passed over."""
        keys = list(keys)
        start = 0
        while self._batches and start < len(keys):
            part = keys[start:start + _BATCH]
            buffer = bytearray(b"".join([self._key(key) for key in part]))
            done = self._batch("map_delete_batch", len(part), buffer, None, 0)
            if done is False:
                break
            # It stops at the first key that is not there.
            start += len(part) if done == len(part) else done + 1
        for key in keys[start:]:
            self.delete(key)

    def _batch(self, command, count, keys, values, flags):
        """Elements done, or False when the kernel cannot batch on this map."""
        layout = ATTR["batch"]
        attr = layout.pack(keys=address(keys), values=address(values) if values else 0, count=count,
                           map_fd=self.fileno(), elem_flags=flags)
        try:
            bpf_raw(command, attr)
        except OSError as error:
            done = layout.get(attr, "count")
            if error.errno in _UNSUPPORTED and done in (0, count):
                self._batches = False
                return False
            if error.errno == errno.ENOENT and command == "map_delete_batch":
                return done
            raise self._refused(command[4:].replace("_", " "), error) from None
        return layout.get(attr, "count")

    def clear(self):
        """Removes every element (array maps: sets all to zero)."""
        for _ in range(8):     # others may insert meanwhile: as good as once, but try
            keys = list(self.keys())
            if not keys:
                return
            self.delete_batch(keys)

    def freeze(self):
        """No more writes by system call (5.2+); programs may still write unless the map has
        F_RDONLY_PROG."""
        try:
            self._elem("map_freeze")
        except OSError as error:
            raise self._refused("freeze", error) from None

    def typed(self, key, value):
        """This map as a mutable mapping of Python values, see typed.TypedMap."""
        from .typed import TypedMap
        return TypedMap(self, key, value)


def _number(value, size, what):
    try:
        return value.to_bytes(size, sys.byteorder, signed=value < 0)
    except OverflowError:
        raise ValueError("%d does not fit into the %d bytes of a %s" % (value, size, what)) from None


def _class_of(type):
    from .mapkinds import CLASSES
    return CLASSES.get(type, Map)


def _create(fields):
    try:
        return syscalls.bpf("map_create", **fields)
    except OSError as error:
        if error.errno == 524 and fields["map_type"] == MAP_TYPES["struct_ops"]:
            # older kernels (5.10) know their structs only once they have read their own BTF, for the first program
            from .program import Program
            Program.load("socket_filter", bytes.fromhex("b700000000000000" "9500000000000000")).close()
        elif error.errno != errno.EPERM or not kernel.charges_memlock() or not kernel.raise_memlock():
            raise
    return syscalls.bpf("map_create", **fields)


def _creation_refused(call, error, type, fields):
    text = introduced.needs("map", type)
    sizes = fields["key_size"], fields["value_size"]
    log = _creation_log(error, fields)
    if error.errno == errno.ENOMEM:
        text = "no memory for %d elements of %d + %d bytes" % (fields["max_entries"], *sizes)
    elif error.errno == errno.E2BIG and not text:
        text = "%d elements of %d + %d bytes are more than it may hold" % (fields["max_entries"], *sizes)
    elif error.errno == errno.EINVAL and not text and type in ("ringbuf", "user_ringbuf"):
        text = "its size must be a power of two and a multiple of the page size"
    elif error.errno == errno.EINVAL and not text and not log:
        text = "the kernel does not take this type with key size %d, value size %d, max_entries %d " \
               "and these flags" % (*sizes, fields["max_entries"])
    found = refused(call, error, "net" if type in _NET else "bpf", True, text)
    if log:
        found.log, said = log, "the kernel says: " + log.splitlines()[-1]
        found.needs = "%s; %s" % (found.needs, said) if found.needs else said
    return found


def _creation_log(error, fields):
    """What the kernel writes of why it makes no such map (7.2+), or None."""
    if error.errno in (errno.ENOMEM, errno.EPERM) or kernel.release() < (7, 2):
        return None
    fd, log = syscalls.bpf_logged("map_create", **fields)
    if fd is not None:      # now it does
        os.close(fd)
    return log or None


def _info(fd):
    try:
        fields = syscalls.MAP_INFO.unpack(syscalls.obj_info(fd, syscalls.MAP_INFO))
    except OSError as error:
        raise KernelError("info of map", error.errno, explain(error.errno)) from None
    fields["type"] = name_of(MAP_TYPES, fields["type"])
    fields["name"] = fields["name"].split(b"\0")[0].decode("ascii", "replace")
    return SimpleNamespace(**fields)
