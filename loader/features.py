"""What the running kernel can do, found out by trying; each question is asked of it once.

Nothing is left behind: what a probe makes is closed at once. A probe that fails for lack of
permission is a KernelError, not a "no".
"""

import errno
import functools
import struct

from . import syscalls
from .errors import KernelError, missing_capabilities, refused
from .kobject import KernelObject
from .maps import Map
from .program import Program
from .syscalls import address
from .uapi import ATTACH_TYPES, F_SLEEPABLE, MAP_TYPES, PROG_TYPES, number


def _code(*instructions):
    return b"".join(struct.pack("=BBhi", code, src << 4 | dst, off, imm)
                    for code, dst, src, off, imm in instructions)


_RETURN_0 = _code((0xb7, 0, 0, 0, 0), (0x95, 0, 0, 0, 0))


def _permission(error):
    """Is it for lack of permission that the probe says nothing? Lockdown and program types that are
    forbidden although the capabilities are there count as "no"."""
    return error.errno == errno.EPERM and bool(missing_capabilities("trace"))


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
        elif type == "struct_ops":
            # type 1 of vmlinux is no struct: the kernel says so with its own ENOTSUPP
            Map.create(type, key, value, entries, btf_vmlinux_value_type_id=1).close()
        else:
            Map.create(type, key, value, entries, flags=flags).close()
    except KernelError as error:
        if _permission(error):
            raise
        return type == "struct_ops" and error.errno == 524
    return True


_MAP_SHAPES = {  # key size, value size, max_entries, flags
    "stack_trace": (4, 8, 1, 0), "lpm_trie": (8, 4, 1, 1), "queue": (0, 4, 1, 0),
    "stack": (0, 4, 1, 0), "bloom_filter": (0, 4, 1, 0), "ringbuf": (0, 0, 0, 0),
    "user_ringbuf": (0, 0, 0, 0), "cgroup_storage": (8, 4, 0, 0),
    "percpu_cgroup_storage": (8, 4, 0, 0), "arena": (0, 0, 1, 1 << 10), "rhash": (4, 4, 1, 1),
    "reuseport_sockarray": (4, 8, 1, 0), "insn_array": (4, 16, 1, 0),
    "sk_storage": (4, 4, 0, 0), "inode_storage": (4, 4, 0, 0), "task_storage": (4, 4, 0, 0),
    "cgrp_storage": (4, 4, 0, 0),
}


def _refusal(type, code, **options):
    """The verifier's log for a program, "" when it loads; None when it is refused without one."""
    try:
        Program.load(type, code, **options).close()
    except KernelError as error:
        if _permission(error):
            raise
        return getattr(error, "log", None)
    return ""


def _load_options(type):
    """What a program of the type must say besides to be loaded at all."""
    options = {
        "cgroup_sock_addr": {"expected_attach_type": "cgroup_inet4_connect"},
        "cgroup_sockopt": {"expected_attach_type": "cgroup_getsockopt"},
        "sk_lookup": {"expected_attach_type": "sk_lookup"},
        "netfilter": {"expected_attach_type": "netfilter"},
        "syscall": {"flags": F_SLEEPABLE},
        # not fentry, which a kernel may be locked down against or lack the ftrace for
        "tracing": {"expected_attach_type": "trace_iter"},
        "lsm": {"expected_attach_type": "lsm_mac"},
    }.get(type, {})
    function = {"tracing": "bpf_iter_task", "lsm": "bpf_lsm_file_open"}.get(type)
    if function:
        from . import ksyms
        found = ksyms.find(function, "func")
        options["attach_btf_id"] = found[0] if found else 0
    return options


@functools.lru_cache(maxsize=None)
def has_helper(name, type):
    """May programs of this type call this helper ("bpf_ringbuf_reserve", "kprobe")?

    "tracing" is asked as an iterator: fentry programs lack bpf_seq_*, and have bpf_get_func_* besides.
    ValueError for struct_ops and ext, whose helpers are those of what they implement or replace.
    """
    from rawbpf.asm.helpers import helper_number
    if type in ("struct_ops", "ext"):
        raise ValueError("the helpers of a %s program depend on what it is for" % type)
    log = _refusal(type, _code((0x85, 0, 0, 0, helper_number(name)), (0xb7, 0, 0, 0, 0),
                               (0x95, 0, 0, 0, 0)), **_load_options(type))
    if log is None:
        return False
    return not any(text in log for text in (
        "invalid func ", "unknown func ", "program of this type cannot use helper"))


@functools.lru_cache(maxsize=None)
def has_kfunc(name, type):
    """May programs of this type call this kernel function (5.13+; needs the kernel's BTF)?"""
    from rawbpf.asm import Instruction, KsymRef
    code = [Instruction(0x85, 0, 2, 0, 0, KsymRef(name)), Instruction(0xb7), Instruction(0x95)]
    try:
        log = _refusal(type, code, **_load_options(type))
    except ValueError:          # no such function
        return False
    if log is None:
        return False
    return not any(text in log for text in ("is not allowed", "not supported", "invalid kernel function"))


@functools.lru_cache(maxsize=None)
def has_program(type, expected_attach_type=None):
    """Can a program of this type (with this attach type) be loaded?

    For those that attach to a function or struct of the kernel: does the kernel know the type.
    """
    number(PROG_TYPES, type, "program type")
    answer = {"tracing": "attach_btf_id 1 is not a function", "lsm": "attach_btf_id 1 is not a function",
              "struct_ops": "attach_btf_id 1 is not supported", "ext": "Cannot replace kernel functions"}
    options = _load_options(type)
    if expected_attach_type:
        options["expected_attach_type"] = expected_attach_type
    if type in answer:
        # A type id that cannot do: the verifier's words tell that it got as far as to look at it.
        options["attach_btf_id"] = 1
        log = _refusal(type, _RETURN_0, **options)
        return bool(log) and (answer[type] in log or "attach_btf_id" in log)
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
    "may_goto": _code((0xb7, 0, 0, 0, 0), (0xe5, 0, 0, 1, 0), (0x05, 0, 0, -2, 0),          # 6.9
                      (0x95, 0, 0, 0, 0)),
    # r0 = load_acquire((u64 *)(r10 - 8))                                                    6.15
    "load_acquire": _code((0x7a, 10, 0, -8, 0), (0xdb, 0, 10, -8, 0x100), (0xb7, 0, 0, 0, 0),
                          (0x95, 0, 0, 0, 0)),
}


@functools.lru_cache(maxsize=None)
def has_instruction(name):
    """Is a family of instructions there? Names: jmp_lt (ISA v2), jmp32 (v3), atomic_fetch (counted to
    v3 by compilers, but 5.12+), sign_extend (v4), may_goto, load_acquire."""
    return _refusal("socket_filter", _INSTRUCTIONS[name]) == ""


@functools.lru_cache(maxsize=None)
def has_large_programs():
    """May a program have more than 4096 instructions (5.2+, with CAP_BPF)?"""
    return _refusal("socket_filter", _code((0xb7, 0, 0, 0, 0)) * 4097 + _code((0x95, 0, 0, 0, 0))) == ""


@functools.lru_cache(maxsize=None)
def has_loops():
    """Are loops that the verifier can follow to their end allowed (5.3+)?"""
    # r0 = 3; do r0 -= 1 while r0 != 0
    return _refusal("socket_filter", _code((0xb7, 0, 0, 0, 3), (0x17, 0, 0, 0, 1), (0x55, 0, 0, -2, 0),
                                           (0x95, 0, 0, 0, 0))) == ""


def cpu_level():
    """ISA level for asm.compile_function: "v1" to "v4". Below 5.12, v3 lacks fetching atomics: see
    has_instruction("atomic_fetch")."""
    for level, name in (("v4", "sign_extend"), ("v3", "jmp32"), ("v2", "jmp_lt")):
        if has_instruction(name):
            return level
    return "v1"
