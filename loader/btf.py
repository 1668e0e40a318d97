"""BTF objects: type information that a program or map brings along, or that the kernel has.

The kernel wants it (BTF of functions and where each starts, `func_info`) of programs with callbacks: the
functions that bpf_loop, bpf_for_each_map_elem and the like call. Format: Documentation/bpf/btf.rst.
"""

import errno
from types import SimpleNamespace

from . import syscalls
from .errors import KernelError, refused
from .introduced import since
from .kobject import BpfObject, fd_of
from .syscalls import address
from .uapi import F_TOKEN_FD

_LOG_SIZE = 1 << 20


class BtfObject(BpfObject):
    """BTF in the kernel (4.18+). `name` is a module's ("vmlinux" too), "" for what was loaded."""

    __slots__ = ("name",)
    kind = "btf"

    def __init__(self, fd, name=""):
        super().__init__(fd)
        self.name = name

    @classmethod
    def load(cls, data, token=None):
        """Loads raw BTF (bytes). KernelError, with what the kernel's log says, when it is refused. token: a
        kobject.Token that delegates the permission (6.9+)."""
        buffer = bytearray(data)
        fields = dict(btf=address(buffer), btf_size=len(buffer))
        if token is not None:
            fields.update(btf_flags=F_TOKEN_FD, btf_token_fd=fd_of(token))
        try:
            return cls(syscalls.bpf("btf_load", **fields))
        except OSError as error:
            code = error.errno
        log = bytearray(_LOG_SIZE)
        try:
            return cls(syscalls.bpf("btf_load", btf_log_buf=address(log), btf_log_size=len(log), btf_log_level=1,
                                    **fields))
        except OSError as error:
            lines = log.split(b"\0")[0].decode("utf-8", "replace").strip().split("\n")
            text = since((4, 18), "BTF") or lines[-1].strip()
            if error.errno == errno.EPERM:
                code, text = error.errno, ""
            raise refused("load of BTF", OSError(code, ""), "bpf", True, text) from None

    @classmethod
    def _from_info(cls, fd):
        return cls(fd, _info(fd).name)

    @classmethod
    def of_module(cls, module):
        """The kernel's BTF of a module, or "vmlinux" (5.11+). Needs CAP_SYS_ADMIN."""
        from . import ids
        for number in ids.walk("btf"):
            fd = ids.open_fd("btf", number)
            if fd is None:
                continue
            found = cls._adopt(fd)
            if found.name == module:
                return found
            found.close()
        raise KernelError("BTF of module %s" % module, errno.ENOENT,
                          since((5, 11), "BTF of modules") or "the kernel has none of that name")

    def info(self):
        """struct bpf_btf_info as a namespace: id, name, btf_size, kernel_btf (5.11+)."""
        return _info(self.fileno())

    def data(self):
        """The raw BTF (bytes); a module's continues that of vmlinux."""
        buffer = bytearray(_info(self.fileno()).btf_size)
        try:
            syscalls.obj_info(self.fileno(), syscalls.BTF_INFO, btf=address(buffer),
                              btf_size=len(buffer))
        except OSError as error:
            raise refused("info of BTF", error, "admin") from None
        return bytes(buffer)

    def parse(self, base=None):
        """Its types: an elf Btf. base: the Btf that a module's continues (default: the running kernel's)."""
        from rawbpf.elf.btf import Btf
        info = self.info()
        if base is None and info.kernel_btf and info.name != "vmlinux":
            base = Btf.open()
        return Btf.parse(self.data(), base, "BTF %d" % info.id)


def _info(fd):
    name = bytearray(64)
    try:
        try:
            info = syscalls.obj_info(fd, syscalls.BTF_INFO, name=address(name), name_len=len(name))
        except OSError as error:
            if error.errno != errno.E2BIG:      # before 5.11 BTF has no name
                raise
            info = syscalls.obj_info(fd, syscalls.BTF_INFO)
        fields = syscalls.BTF_INFO.unpack(info)
    except OSError as error:
        raise refused("info of BTF", error, "bpf") from None
    fields["name"] = name.split(b"\0")[0].decode("ascii", "replace")
    fields["kernel_btf"] = bool(fields.get("kernel_btf"))
    return SimpleNamespace(**fields)


def storage_types(value_size):
    """BTF for a map with an int key (type 1) and value_size plain bytes (type 4: a struct)."""
    from rawbpf.asm.btfwriter import BtfWriter
    writer = BtfWriter()
    writer.integer("int", 4)
    data = writer.array(writer.integer("char", 1, False), value_size)
    writer.struct("value", value_size, [("data", data, 0)])
    return writer.bytes()


def function_types(starts):
    """BTF and func_info of a program's functions. `starts`: (name, number of 8-byte slot) in order, the main
    function first. Returns (BTF bytes, (record size, records)) as Program.load takes them; every function
    is `static long name(long)` to the verifier, which does not look closer at static ones."""
    from rawbpf.asm.btfwriter import debug_info
    return debug_info(starts)[:2]
