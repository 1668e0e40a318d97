"""Addresses of networks: ntop, pton, macaddr; and cgroup names."""
from .. import strings, types
from ..place import Place
from ..written import type_text
from ..types import Integer, Pointer, String
from . import Argument, Builtin, register


@register
class _Ntop(Builtin):
    """ntop([family,] address): IPv4 from a number or 4 bytes, IPv6 from 16 bytes."""
    names = ("ntop",)
    pure = True
    arguments = (Argument("any", "family or address"), Argument("any", "address", optional=True))
    returns = types.Inet()

    def resolve(self, r, call):
        r.arguments(self, call)
        source = call.arguments[-1].type
        if len(call.arguments) == 2 and not isinstance(call.arguments[0].type, Integer):
            r.error(call, "ntop() expects an integer argument for the address family (%s provided)"
                    % type_text(call.arguments[0].type))
        if not isinstance(source, (Integer, String, types.Array)):
            r.error(call, "ntop() expects an integer or array argument, got %s" % type_text(source))
        if not isinstance(source, Integer) and source.size not in (4, 16):
            r.error(call, "ntop() argument must be 4 or 16 bytes in size (%d provided)" % source.size)
        return self.returns

    def store(self, b, call, dest):
        import socket
        f = b.f
        source = call.arguments[-1]
        if len(call.arguments) == 2:
            family = b.value(call.arguments[0])
        else:
            family = socket.AF_INET6 if source.type.size == 16 and not isinstance(source.type, Integer) \
                else socket.AF_INET
        f.store(dest.base, dest.off, family, 8)
        data = dest.at(8, types.Array(types.UINT8, 16))
        if isinstance(source.type, Integer):
            f.store(data.base, data.off, b.value(source), 4)
            strings.zero(b, data, 4, 16)
            return
        strings.copy_bytes(b, b.place(source), data, source.type.size)
        strings.zero(b, data, source.type.size, 16)


@register
class _Pton(Builtin):
    names = ("pton",)
    pure = True
    arguments = (Argument("literal string", "address"),)

    def _bytes(self, r, call):
        import socket
        text = r.constant(call.arguments[0])
        family = socket.AF_INET6 if ":" in text else socket.AF_INET
        try:
            return socket.inet_pton(family, text)
        except OSError:
            r.error(call, "pton() expects a valid IPv4/IPv6 address, got %s" % text)

    def resolve(self, r, call):
        r.arguments(self, call)
        return types.Array(types.UINT8, len(self._bytes(r, call)))

    def store(self, b, call, dest):
        data = self._bytes(b.r, call)
        for at in range(len(data)):
            b.f.store(dest.base, dest.off + at, data[at], 1)


@register
class _Macaddr(Builtin):
    names = ("macaddr",)
    pure = True
    arguments = (Argument("any", "address"),)
    returns = types.MacAddress()

    def resolve(self, r, call):
        r.arguments(self, call)
        kind = call.arguments[0].type
        if not isinstance(kind, (Pointer, Integer)) and kind.size < 6:
            r.error(call, "macaddr() argument must be 6 bytes in size")
        return self.returns

    def store(self, b, call, dest):
        source = call.arguments[0]
        if isinstance(source.type, (Pointer, Integer)):
            space = "user" if b._space(source) else "kernel"
            b.probe_read(b.address(dest), 6, b.value(source), space)
            return
        strings.copy_bytes(b, b.place(source), dest, 6)


@register
class _CgroupPath(Builtin):
    names = ("cgroup_path",)
    pure = True
    arguments = (Argument("integer", "id"), Argument("literal string", "filter", optional=True))

    def resolve(self, r, call):
        r.arguments(self, call)
        return types.CgroupPath(r.constant(call.arguments[1]) if len(call.arguments) == 2 else "")

    def value(self, b, call):
        return b.value(call.arguments[0])


@register
class _Cgroupid(Builtin):
    """cgroupid(path): the inode of a cgroup's folder, looked up when the script is compiled."""
    names = ("cgroupid",)
    pure = True
    arguments = (Argument("literal string", "path"),)
    returns = types.UINT64

    def constant(self, r, call):
        import os
        try:
            return os.stat(r.constant(call.arguments[0])).st_ino
        except OSError as error:
            r.error(call, "Failed to get `cgroupid` for path: \"%s\": %s" % (r.constant(call.arguments[0]), getattr(error, "strerror", error)))


__all__ = ["Place"]
