"""Maps as Python mappings of Python values."""

from collections.abc import MutableMapping

from .mapkinds import BloomFilterMap, ObjectMap, QueueMap
from .kobject import Uncopied
from .uapi import EXIST, NOEXIST
from .values import codec


class TypedMap(Uncopied, MutableMapping):
    """m[key], m[key] = value, del, in, len, iteration, items() of a Map, with keys and values decoded.

    key, value: what values.codec() takes: a struct format ("IQ"), a C type of BTF, a number of plain
    bytes. A value of a per-CPU map is a list with one entry for each possible CPU; setting one value
    sets it on all. Where elements are kernel objects (maps, programs, sockets) a value may be given as that object.
    `map` is the raw Map, which stays the caller's to close.
    """

    def __init__(self, map, key, value):
        self.map, self._key, self._value = map, codec(key), codec(value)
        for what, own, wanted in (("key", self._key.size, map.key_size),
                                  ("value", self._value.size, map.value_size)):
            if own != wanted:
                raise ValueError("the %ss of map %s have %d bytes, this type has %d" % (
                    what, map.name, wanted, own))
        self._per_cpu = "percpu" in map.type
        self._objects = isinstance(map, ObjectMap)

    def _decode(self, data):
        if self._per_cpu:
            return [self._value.decode(item) for item in data]
        return self._value.decode(data)

    def _encode(self, value):
        if self._per_cpu and isinstance(value, list):
            return [self._value.encode(item) for item in value]
        if self._objects and hasattr(value, "fileno"):
            return value
        return self._value.encode(value)

    def __getitem__(self, key):
        data = self.map.lookup(self._key.encode(key))
        if data is None:
            raise KeyError(key)
        return self._decode(data)

    def __setitem__(self, key, value):
        self.map.update(self._key.encode(key), self._encode(value))

    def __delitem__(self, key):
        if not self.map.delete(self._key.encode(key)):
            raise KeyError(key)

    def __contains__(self, key):
        if isinstance(self.map, BloomFilterMap):
            return self._encode(key) in self.map
        return self.map.lookup(self._key.encode(key)) is not None

    def __iter__(self):
        return map(self._key.decode, self.map.keys())

    def __len__(self):
        return sum(1 for _ in self.map.keys())

    def items(self):
        """Pairs, read by batches where the kernel can (an iterator)."""
        for key, value in self.map.items():
            yield self._key.decode(key), self._decode(value)

    def values(self):
        for _, value in self.items():
            yield value

    def add(self, key, value):
        """Sets it unless the key exists -> whether it did (atomic)."""
        return self.map.update(self._key.encode(key), self._encode(value), NOEXIST)

    def replace(self, key, value):
        """Sets it only if the key exists -> whether it did (atomic)."""
        return self.map.update(self._key.encode(key), self._encode(value), EXIST)

    def update_many(self, items):
        """Sets many elements by batches."""
        self.map.update_batch([(self._key.encode(key), self._encode(value))
                               for key, value in dict(items).items()])

    def clear(self):
        self.map.clear()

    # -- queue, stack, bloom_filter: no keys

    def push(self, value):
        """Adds a value."""
        self.map.push(self._encode(value))

    def pop(self, *key):
        """Of a queue or stack: takes a value out; None when there is none. Of others as a dict's: pop(key[, default])."""
        if key or not isinstance(self.map, QueueMap):
            return MutableMapping.pop(self, *key)
        return self._taken(self.map.pop())

    def peek(self):
        """The value that pop() would take."""
        return self._taken(self.map.peek())

    def _taken(self, data):
        return None if data is None else self._decode(data)

    def __repr__(self):
        return "<TypedMap of %r>" % self.map
