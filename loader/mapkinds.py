"""What is particular to a kind of map: its values, its keys, its operations.

Documentation/bpf/map_*.rst. CLASSES says which class `Map.create` makes for a type.
"""

import errno
import mmap
import struct

from . import kernel, syscalls
from .errors import refused
from .introduced import since
from .kobject import fd_of, mapped
from .layout import packed
from .maps import STORAGE, Map
from .syscalls import address
from .uapi import ANY, F_CPU, F_MMAPABLE


class PerCpuValues:
    """A value is a list of bytes, one for each possible CPU, each padded to 8 bytes on the wire."""

    __slots__ = ()

    def _wire_size(self):
        return (self.value_size + 7 & -8) * len(kernel._possible())

    def _decode(self, data):
        step = self.value_size + 7 & -8
        size = self.value_size
        return [bytes(data[at:at + size]) for at in range(0, len(data), step)]

    def _encode(self, value):
        """A list with one entry a CPU, or bytes that every CPU gets."""
        cpus = len(kernel._possible())
        if isinstance(value, (bytes, bytearray)):
            value = [value] * cpus
        if len(value) != cpus:
            raise ValueError("map %s takes %d values, one a CPU, not %d" %
                             (self.name, cpus, len(value)))
        pad = bytes((self.value_size + 7 & -8) - self.value_size)
        return bytearray(b"".join([bytes(Map._encode(self, item)) + pad for item in value]))

    def lookup_cpu(self, key, cpu):
        """The value of one CPU; None when the key is not there."""
        values = self.lookup(key)
        return None if values is None else values[self._place(cpu)]

    def update_cpu(self, key, cpu, value):
        """Sets the value of one CPU; those of others stay, and are zero in a new element (7.0+)."""
        self._place(cpu)
        key, value = self._key(key), Map._encode(self, value)
        try:
            self._elem("map_update_elem", address(key), address(value), F_CPU | cpu << 32)
        except OSError as error:
            raise refused("update in %s map %s" % (self.type, self.name), error, "bpf",
                          invalid=since((7, 0), "setting the value of one CPU"),
                          permitted=self._forbidden("update") if error.errno == errno.EPERM else "") from None

    @staticmethod
    def _place(cpu):
        try:
            return kernel._possible().index(cpu)
        except ValueError:
            raise ValueError("there is no CPU %r" % (cpu,)) from None


class ArrayMap(Map):
    """Keys are u32 indexes; every element exists and none can be deleted."""

    __slots__ = ()

    def keys(self):
        for index in range(self.max_entries):
            yield struct.pack("=I", index)

    def clear(self):
        zero = bytes(self.value_size)
        self.update_batch([(key, zero) for key in self.keys()])

    def mmap(self, writable=True):
        """The values as shared memory: an mmap object, element i at i * (value_size rounded up to 8).
        The map needs F_MMAPABLE (5.5+; not per-CPU); a frozen one is read-only."""
        size = (self.value_size + 7 & -8) * self.max_entries
        return _mmap(self, size + syscalls.PAGE_SIZE - 1 & -syscalls.PAGE_SIZE, writable)


class HashMap(Map):
    __slots__ = ()


class PerCpuArrayMap(PerCpuValues, ArrayMap):
    __slots__ = ()


class PerCpuHashMap(PerCpuValues, HashMap):
    __slots__ = ()


class ObjectMap(Map):
    """Values are kernel objects or numbers (programs, maps, perf events, sockets; an interface's index,
    a CPU's queue length), given as objects, descriptors or numbers. What the system call reads back is
    the id of a program or map, or the cookie of a socket."""

    __slots__ = ()

    def _encode(self, value):
        if isinstance(value, (bytes, bytearray)):
            return Map._encode(self, value)
        try:
            number = value if isinstance(value, int) else fd_of(value)
            return bytearray(number.to_bytes(self.value_size, "little"))
        except OverflowError:
            raise ValueError("%d is neither a descriptor nor a number of %d bytes" % (value, self.value_size)) from None

    def number(self, key):
        """The element as an integer, None when there is none."""
        value = self.lookup(key)
        return None if value is None else int.from_bytes(value, "little")


class MapOfMaps(ObjectMap):
    __slots__ = ()

    def inner(self, key):
        """The inner map (a Map of its own descriptor), None when there is none. Needs CAP_SYS_ADMIN."""
        number = self.number(key)
        return None if number is None else Map.from_id(number)


class StorageMap(Map):
    """Local storage: the key is an object of the kernel by a descriptor or what has one: a socket, a
    file, a process (os.pidfd_open), a cgroup directory. Its elements cannot be walked."""

    __slots__ = ()

    def _key(self, key):
        if isinstance(key, (bytes, bytearray)):
            return Map._key(self, key)
        return bytearray(packed("=i", "key", fd_of(key)))

    def _refused(self, what, error):
        if error.errno == errno.EBADF and self.type == "inode_storage":
            return refused("%s in %s map %s" % (what, self.type, self.name), error, "bpf", invalid=(
                "that is no open file, or the BPF LSM is not active (it is not in /sys/kernel/security/lsm)"))
        return Map._refused(self, what, error)


class ArenaMap(Map):
    """Memory that programs and user space share (6.9+); max_entries are pages."""

    __slots__ = ()

    def mmap(self):
        """The arena as an mmap object. The first mapping settles the address that programs see."""
        return _mmap(self, self.max_entries * syscalls.PAGE_SIZE, True)


class StackTraceMap(Map):
    """lookup(id) -> bytes of up to value_size / 8 u64 addresses, zero-padded."""

    __slots__ = ()


class RingMap(Map):
    """A ring buffer: it has no elements; read it with RingBuffer."""

    __slots__ = ()


class QueueMap(Map):
    """queue and stack: no keys. push() adds; peek() and pop() give None when empty."""

    __slots__ = ()

    def push(self, value, flags=ANY):
        value = self._encode(value)
        try:
            self._elem("map_update_elem", 0, address(value), flags)
        except OSError as error:
            raise self._refused("push", error) from None

    def _take(self, command):
        value = bytearray(self.value_size)
        try:
            self._elem(command, 0, address(value))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise self._refused("pop", error) from None
        return bytes(value)

    def peek(self):
        return self._take("map_lookup_elem")

    def pop(self):
        return self._take("map_lookup_and_delete_elem")


class BloomFilterMap(QueueMap):
    """push() adds a value; `in` may say yes to one that was never added, never no to one that was."""

    __slots__ = ()

    def __contains__(self, value):
        value = self._encode(value)
        try:
            self._elem("map_lookup_elem", 0, address(value))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            raise self._refused("lookup", error) from None
        return True


CLASSES = {
    "array": ArrayMap, "percpu_array": PerCpuArrayMap, "percpu_hash": PerCpuHashMap,
    "lru_percpu_hash": PerCpuHashMap, "hash": HashMap, "lru_hash": HashMap, "lpm_trie": HashMap,
    "rhash": HashMap, "percpu_cgroup_storage": PerCpuHashMap, "stack_trace": StackTraceMap,
    "ringbuf": RingMap, "user_ringbuf": RingMap, "queue": QueueMap, "stack": QueueMap,
    "bloom_filter": BloomFilterMap, "arena": ArenaMap,
    "array_of_maps": MapOfMaps, "hash_of_maps": MapOfMaps,
}
CLASSES.update(dict.fromkeys(STORAGE, StorageMap))
CLASSES.update(dict.fromkeys(("perf_event_array", "prog_array", "cgroup_array", "devmap", "devmap_hash",
                              "cpumap", "xskmap", "sockmap", "sockhash", "reuseport_sockarray"), ObjectMap))


def lpm_key(prefix, data=None):
    """The key of an lpm_trie map, struct bpf_lpm_trie_key: of a number of bits and the data, most significant byte
    first, or of a network as text ("10.0.0.0/8", "fe80::/10"; a bare address has all its bits)."""
    if data is None:
        import ipaddress
        network = ipaddress.ip_network(prefix)
        prefix, data = network.prefixlen, network.network_address.packed
    return packed("=I", "prefix", prefix) + data


def _mmap(map, size, writable):
    try:
        return mapped(map.fileno(), size, writable)
    except OSError as error:
        raise refused("mapping of %s map %s" % (map.type, map.name), error, "bpf", False,
                      "" if map.flags & F_MMAPABLE else "the map was made without F_MMAPABLE",
                      permitted="the map is frozen: map it read-only" if writable and map._frozen() else
                      map._forbidden("mapping") if writable else "") from None
