"""What the running kernel can do, found out by trying; each question is asked of it once.

Nothing is left behind: what a probe makes is closed at once. A probe that fails for lack of
permission is a KernelError, not a "no".
"""

import errno
import functools
import struct

from . import kernel, syscalls
from .errors import KernelError, refused
from .kobject import KernelObject
from .maps import Map
from .program import Program
from .syscalls import address
from .uapi import ATTACH_TYPES, MAP_TYPES, PROG_TYPES, number


def _code(*instructions):
    return b"".join(struct.pack("=BBhi", code, src << 4 | dst, off, imm)
                    for code, dst, src, off, imm in instructions)


_RETURN_0 = _code((0xb7, 0, 0, 0, 0), (0x95, 0, 0, 0, 0))


def _permission(error):
    return error.errno == errno.EPERM


@functools.lru_cache(maxsize=None)
def has_map(type):
    """Does the kernel have this map type (a name of uapi.MAP_TYPES)?"""
    number(MAP_TYPES, type, "map type")
    key, value, entries, flags = _MAP_SHAPES.get(type, (4, 4, 1, 0))
    if type in ("ringbuf", "user_ringbuf"):
        entries = syscalls.PAGE_SIZE
    try:
        if type in ("array_of_maps", "hash_of_maps"):
            with Map.create("array", 4, 4, 1) as inner:
                Map.create(type, key, value, entries, inner_map=inner).close()
        else:
            Map.create(type, key, value, entries, flags=flags).close()
    except KernelError as error:
        if _permission(error):
            raise
        # Storage and struct_ops maps want BTF: that they say so (and not EINVAL for an unknown
        # type) cannot be told apart by errno, so these go by version.
        from .maps import SINCE
        if type in _NEED_BTF:
            return kernel.release()[:2] >= SINCE.get(type, (0, 0))
        return False
    return True


_MAP_SHAPES = {
    "stack_trace": (4, 8, 1, 0), "lpm_trie": (8, 4, 1, 1), "queue": (0, 4, 1, 0),
    "stack": (0, 4, 1, 0), "bloom_filter": (0, 4, 1, 0), "ringbuf": (0, 0, 0, 0),
    "user_ringbuf": (0, 0, 0, 0), "cgroup_storage": (8, 4, 0, 0),
    "percpu_cgroup_storage": (8, 4, 0, 0), "arena": (0, 0, 1, 1 << 10), "rhash": (4, 4, 1, 1),
    "reuseport_sockarray": (4, 8, 1, 0),
}
_NEED_BTF = {"sk_storage", "inode_storage", "task_storage", "cgrp_storage", "struct_ops"}


def _refusal(type, code, **options):
    """The verifier's log for a program, "" when it loads; None when it is refused without one."""
    try:
        Program.load(type, code, **options).close()
    except KernelError as error:
        if _permission(error):
            raise
        return getattr(error, "log", None)
    return ""


@functools.lru_cache(maxsize=None)
def has_helper(name, type):
    """May programs of this type call this helper ("bpf_ringbuf_reserve", "kprobe")?"""
    from rawbpf.asm.helpers import helper_number
    options = _LOAD_OPTIONS.get(type, {})
    log = _refusal(type, _code((0x85, 0, 0, 0, helper_number(name)), (0xb7, 0, 0, 0, 0),
                               (0x95, 0, 0, 0, 0)), **options)
    if log is None:
        return False
    return not any(text in log for text in (
        "invalid func ", "unknown func ", "program of this type cannot use helper"))


# What a program of the type must say besides to be loaded at all.
_LOAD_OPTIONS = {
    "cgroup_sock_addr": {"expected_attach_type": "cgroup_inet4_connect"},
    "cgroup_sockopt": {"expected_attach_type": "cgroup_getsockopt"},
    "sk_lookup": {"expected_attach_type": "sk_lookup"},
    "netfilter": {"expected_attach_type": "netfilter"},
}


@functools.lru_cache(maxsize=None)
def has_program(type, expected_attach_type=None):
    """Can a program of this type be loaded?"""
    number(PROG_TYPES, type, "program type")
    options = dict(_LOAD_OPTIONS.get(type, {}))
    if expected_attach_type:
        options["expected_attach_type"] = expected_attach_type
    return _refusal(type, _RETURN_0, **options) == ""


@functools.lru_cache(maxsize=None)
def has_link(kind):
    """Does the kernel have "perf_event" links (5.15+), "kprobe_multi" (5.18+), "kprobe_session"
    (6.10+), "uprobe_multi" (6.6+), "uprobe_session" (6.13+)?

    Asked by a request that cannot succeed: the errno says whether it was understood.
    """
    try:
        attach_type, understood = _LINK_PROBES[kind]
    except KeyError:
        raise ValueError("no probe for links of kind %r: %s" % (kind, ", ".join(_LINK_PROBES))
                         ) from None
    try:
        program = Program.load("kprobe", _RETURN_0,
                               expected_attach_type=None if kind == "perf_event" else attach_type)
    except KernelError as error:
        if _permission(error):
            raise
        return False
    with program:
        fields = dict(prog_fd=program.fd, attach_type=ATTACH_TYPES[attach_type])
        kept = [bytearray(b"/\0"), bytearray(8), bytearray(b"no such function\0")]
        pointers = bytearray(struct.pack("=Q", address(kept[2])))
        try:
            if kind == "perf_event":
                fd = syscalls.link_create("plain", target_fd=0xffffffff, **fields)
            elif kind.startswith("uprobe"):
                fd = syscalls.link_create("uprobe_multi", path=address(kept[0]), cnt=1,
                                          offsets=address(kept[1]), **fields)
            else:
                fd = syscalls.link_create("kprobe_multi", syms=address(pointers), cnt=1, **fields)
        except OSError as error:
            if error.errno == errno.EPERM:
                raise refused("probe for %s links" % kind, error, "trace") from None
            return error.errno in understood
        KernelObject(fd).close()
        return True


_LINK_PROBES = {
    "perf_event": ("perf_event", (errno.EBADF,)),
    "kprobe_multi": ("trace_kprobe_multi", (errno.ESRCH, errno.ENOENT)),
    "kprobe_session": ("trace_kprobe_session", (errno.ESRCH, errno.ENOENT)),
    "uprobe_multi": ("trace_uprobe_multi", (errno.EBADF,)),
    "uprobe_session": ("trace_uprobe_session", (errno.EBADF,)),
}

_INSTRUCTIONS = {
    "jmp_lt": _code((0xb7, 0, 0, 0, 0), (0xa5, 0, 0, 0, 1), (0x95, 0, 0, 0, 0)),            # 4.14
    "jmp32": _code((0xb7, 0, 0, 0, 0), (0x16, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)),             # 5.1
    # *(u64 *)(r10 - 8) = 0; r0 = 1; r0 = atomic_fetch_add((u64 *)(r10 - 8), r0)             5.12
    "atomic_fetch": _code((0x7a, 10, 0, -8, 0), (0xb7, 0, 0, 0, 1), (0xdb, 10, 0, -8, 1),
                          (0x95, 0, 0, 0, 0)),
    "sign_extend": _code((0xb7, 0, 0, 0, 0), (0xbf, 0, 0, 8, 0), (0x95, 0, 0, 0, 0)),       # 6.6
    "may_goto": _code((0xb7, 0, 0, 0, 0), (0xe5, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)),          # 6.9
    # r0 = load_acquire((u64 *)(r10 - 8))                                                    6.15
    "load_acquire": _code((0x7a, 10, 0, -8, 0), (0xdb, 0, 10, -8, 0x100), (0xb7, 0, 0, 0, 0),
                          (0x95, 0, 0, 0, 0)),
}


@functools.lru_cache(maxsize=None)
def has_instruction(name):
    """Is a family of instructions there? Names: jmp_lt (ISA v2), jmp32 (v3), atomic_fetch (counted to
    v3 by compilers, but 5.12+), sign_extend (v4), may_goto, load_acquire."""
    return _refusal("socket_filter", _INSTRUCTIONS[name]) == ""


def cpu_level():
    """ISA level for asm.compile_function: "v1" to "v4". Below 5.12, v3 lacks fetching atomics: see
    has_instruction("atomic_fetch")."""
    for level, name in (("v4", "sign_extend"), ("v3", "jmp32"), ("v2", "jmp_lt")):
        if has_instruction(name):
            return level
    return "v1"
