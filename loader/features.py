"""What the running kernel can do, found out by trying; each question is asked of it once.

Nothing is left behind: what a probe makes is closed at once. A probe that fails for lack of
permission is a KernelError, not a "no".
"""

import errno
import functools
import struct
from typing import NamedTuple

from . import introduced, syscalls
from .errors import KernelError, missing_capabilities, refused
from .kobject import KernelObject
from .maps import Map
from .program import Program
from .syscalls import address
from .uapi import ATTACH_TYPES, F_SLEEPABLE, MAP_TYPES, PROG_TYPES, number


def _code(*instructions):
    return b"".join(struct.pack("=BBhi", code, src << 4 | dst, off, imm)
                    for code, dst, src, off, imm in instructions)


_RETURN_1 = _code((0xb7, 0, 0, 0, 1), (0x95, 0, 0, 0, 0))
_RETURN_0 = _code((0xb7, 0, 0, 0, 0), (0x95, 0, 0, 0, 0))


def _permission(error):
    """Is it for lack of permission that the probe says nothing? Lockdown and program types that are
    forbidden although the capabilities are there count as "no"."""
    return error.errno == errno.EPERM and bool(missing_capabilities("trace"))


@functools.lru_cache(maxsize=None)
def has_syscall():
    """Is there bpf(2) at all (CONFIG_BPF_SYSCALL)?"""
    try:
        syscalls.bpf("prog_load")
    except OSError as error:
        return error.errno != errno.ENOSYS
    return True


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


_NO_HELPER = ("invalid func ", "unknown func ", "program of this type cannot use helper")


@functools.lru_cache(maxsize=None)
def has_helper(name, type):
    """May programs of this type call this helper ("bpf_ringbuf_reserve", "kprobe")?

    "tracing" is asked as an iterator: fentry programs lack bpf_seq_*, and have bpf_get_func_* besides.
    ValueError for struct_ops and ext, whose helpers are those of what they implement or replace.
    """
    from rawbpf.asm.helpers import helper_number
    if type in ("struct_ops", "ext"):
        raise ValueError("the helpers of a %s program depend on what it is for" % type)
    return _helper_probe(type).ask(helper_number(name))


@functools.lru_cache(maxsize=None)
def _helper_probe(type):
    number(PROG_TYPES, type, "program type")
    return _HelperProbe(type)


class _HelperProbe:
    """A program that calls a helper, loaded with one number after another: there are thousands of pairs, so that
    nothing is made anew for each. ifindex: for a device."""

    def __init__(self, type, ifindex=0):
        self.type, self.ifindex = type, ifindex
        self.options = _load_options(type) if not ifindex else {}
        self.code = bytearray(_code((0x85, 0, 0, 0, 0), (0xb7, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)))
        self.log, self.license = bytearray(4096), bytearray(b"GPL\0")
        attach_type = self.options.get("expected_attach_type")
        self.attr = syscalls.ATTR["prog_load"].pack(
            prog_type=PROG_TYPES[type], insn_cnt=3, insns=address(self.code), license=address(self.license), log_level=1,
            log_size=len(self.log), log_buf=address(self.log), prog_flags=self.options.get("flags", 0), prog_ifindex=ifindex,
            expected_attach_type=ATTACH_TYPES[attach_type] if attach_type else 0,
            attach_btf_id=self.options.get("attach_btf_id", 0))

    def ask(self, helper, none=_NO_HELPER):
        """Is the program refused for something else than its helper, or not at all?"""
        struct.pack_into("=i", self.code, 4, helper)
        self.log[0] = 0
        try:
            KernelObject(syscalls.bpf_raw("prog_load", bytearray(self.attr))).close()
            return True
        except OSError as error:
            log = self.log[:self.log.find(0)].decode("utf-8", "replace")
            if error.errno in (errno.EPERM, errno.ENOMEM, errno.ENOSPC) or not log:
                # with memory that may be locked, a larger buffer, the version that old kernels want of kprobes
                log = _refusal(self.type, bytes(self.code), ifindex=self.ifindex, **self.options)
        return log is not None and not any(text in log for text in none)


@functools.lru_cache(maxsize=None)
def has_kfunc(name, type):
    """May programs of this type call this kernel function (5.13+; needs the kernel's BTF)?"""
    from rawbpf.asm import Instruction, KsymRef
    number(PROG_TYPES, type, "program type")
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
    """Does the kernel have links of this kind: a name of uapi.LINK_TYPES, "kprobe_session", "uprobe_session"?

    Asked by a request that cannot succeed, whose errno says whether it was understood; of kinds that answer alike
    either way, by looking for the function that makes them in the kernel's BTF.
    """
    if kind in _LINK_FUNCTIONS:
        from . import ksyms
        return ksyms.vmlinux() is not None and bool(ksyms.vmlinux().find_id(_LINK_FUNCTIONS[kind], "func"))
    try:
        type, attach_type, layout, understood, fields = _LINK_PROBES[kind]
    except KeyError:
        raise ValueError("no probe for links of kind %r: %s" % (
            kind, ", ".join(sorted(set(_LINK_PROBES) | set(_LINK_FUNCTIONS))))) from None
    options = dict(_load_options(type))
    if attach_type != "perf_event" and not attach_type.startswith(("tcx", "netkit")):
        options["expected_attach_type"] = attach_type
    try:
        program = Program.load(type, _RETURN_1 if type.startswith("cgroup") else _RETURN_0, **options)
    except KernelError as error:
        if _permission(error):
            raise
        return False
    kept = [bytearray(b"/\0"), bytearray(8)]
    given = {"path": address(kept[0]), "offsets": address(kept[1])}
    fields = {name: given.get(name, value) for name, value in fields.items()}
    with program:
        try:
            fd = syscalls.link_create(layout, prog_fd=program.fd, attach_type=ATTACH_TYPES[attach_type], **fields)
        except OSError as error:
            if error.errno == errno.EPERM:
                raise refused("probe for %s links" % kind, error, "trace") from None
            return error.errno in understood
        KernelObject(fd).close()
        return True


_NOWHERE = 0xffffffff       # a descriptor that is none
_UPROBE = {"path": 0, "cnt": 1, "offsets": 0}
_LINK_PROBES = {    # program type, attach type, layout of the request, errnos of a kernel that knows it, its fields
    "perf_event": ("kprobe", "perf_event", "plain", (errno.EBADF,), {"target_fd": _NOWHERE}),
    # a name at an address that is none: to answer for a name, the kernel would unpack all that it has
    "kprobe_multi": ("kprobe", "trace_kprobe_multi", "kprobe_multi", (errno.EFAULT,), {"syms": 1, "cnt": 1}),
    "kprobe_session": ("kprobe", "trace_kprobe_session", "kprobe_multi", (errno.EFAULT,), {"syms": 1, "cnt": 1}),
    "uprobe_multi": ("kprobe", "trace_uprobe_multi", "uprobe_multi", (errno.EBADF,), _UPROBE),
    "uprobe_session": ("kprobe", "trace_uprobe_session", "uprobe_multi", (errno.EBADF,), _UPROBE),
    "cgroup": ("cgroup_skb", "cgroup_inet_ingress", "plain", (errno.EBADF,), {"target_fd": _NOWHERE}),
    "netns": ("sk_lookup", "sk_lookup", "plain", (errno.EBADF,), {"target_fd": _NOWHERE}),
    "tcx": ("sched_cls", "tcx_ingress", "relative", (errno.ENODEV,), {}),
    "netkit": ("sched_cls", "netkit_primary", "relative", (errno.ENODEV,), {}),
    "netfilter": ("netfilter", "netfilter", "netfilter", (errno.EAFNOSUPPORT, errno.EPFNOSUPPORT), {"pf": 255}),
    "sockmap": ("sk_msg", "sk_msg_verdict", "plain", (errno.EBADF,), {"target_fd": _NOWHERE}),
    "iter": ("tracing", "trace_iter", "iter", (), {}),
}
_LINK_FUNCTIONS = {
    "raw_tracepoint": "bpf_raw_tp_link_release", "tracing": "bpf_tracing_link_release",
    "xdp": "bpf_xdp_link_release", "struct_ops": "bpf_struct_ops_link_create",
    "tracing_multi": "bpf_tracing_multi_attach",
}


@functools.lru_cache(maxsize=None)
def has_attach(attach_type):
    """Does the kernel know this way to attach (a name of uapi.ATTACH_TYPES)?"""
    number(ATTACH_TYPES, attach_type, "attach type")
    by_link = {"perf_event": "perf_event", "trace_kprobe_multi": "kprobe_multi", "struct_ops": "struct_ops",
               "trace_kprobe_session": "kprobe_session", "trace_uprobe_multi": "uprobe_multi",
               "trace_uprobe_session": "uprobe_session", "netfilter": "netfilter"}.get(attach_type)
    if by_link:
        return has_link(by_link)
    if attach_type.startswith(("trace_", "modify_return")):
        if attach_type.endswith("_multi"):
            return has_link("tracing_multi")
        return has_program("tracing", attach_type)
    if attach_type.startswith("lsm_"):
        return has_program("lsm", attach_type)
    if attach_type in ("xdp_devmap", "xdp_cpumap", "sk_reuseport_select", "sk_reuseport_select_or_migrate"):
        # said when the program is loaded; before, the kernel did not look
        return has_program("xdp" if attach_type.startswith("xdp") else "sk_reuseport", attach_type) and \
            not introduced.needs("attach", attach_type)
    # the attach type is looked at before the program, which is none
    try:
        syscalls.bpf("prog_attach", target_fd=_NOWHERE, attach_bpf_fd=_NOWHERE, attach_type=ATTACH_TYPES[attach_type])
    except OSError as error:
        if error.errno == errno.EPERM:
            raise refused("probe for attach type %s" % attach_type, error, "net") from None
        return error.errno == errno.EBADF
    return True


@functools.lru_cache(maxsize=None)
def kfunc_names():
    """Names of the kernel functions that programs of some type may call, as the kernel's BTF tags them (6.9+).
    Before, which ones those are stands nowhere: all whose names begin with "bpf_", to be asked with has_kfunc()."""
    from . import ksyms
    btf = ksyms.vmlinux()
    if btf is None:
        return ()
    from rawbpf.elf import btf_raw as raw
    tagged = set()
    for number_ in btf.find_ids("bpf_kfunc", "decl_tag"):
        tagged.add(raw.record(btf, raw.record(btf, number_).rest).name)
    if not tagged:
        tagged = {name for name, _ in btf.functions() if name.startswith("bpf_")}
    return tuple(sorted(tagged))


def kfuncs(type):
    """Names of the kernel functions that programs of this type may call (5.13+). Each is asked of the verifier, which
    takes a second or two for all."""
    number(PROG_TYPES, type, "program type")
    return [name for name in kfunc_names() if has_kfunc(name, type)]


def limits():
    """What bounds programs and maps here, None where there is no bound: `instructions` of one program, `processed` by
    the verifier on all paths, `stack` bytes, `tail_calls` in a row, `stack_frames` (of kernel and user stacks),
    `jit` bytes for programs of unprivileged users, `memlock` bytes that maps may take (before 5.11)."""
    from . import kernel

    def sysctl(name):
        text = kernel.sysctl(name)
        return int(text) if text is not None and text.lstrip("-").isdigit() else None
    large = has_large_programs()
    return {"instructions": 1000000 if large else 4096, "processed": 1000000 if large else 131072, "stack": 512,
            "tail_calls": 33, "stack_frames": sysctl("kernel.perf_event_max_stack"),
            "jit": sysctl("net.core.bpf_jit_limit"),
            "memlock": kernel.memlock_limit() if kernel.charges_memlock() else None}


class Feature(NamedTuple):
    """`there`: does this kernel have it; `since`: (major, minor) of the first Linux that did, None if not known;
    `needs`: the sentence for an error, "" where the version is no reason."""

    kind: str
    name: str
    there: bool
    since: object
    needs: str


def feature(kind, name, type=None):
    """The Feature of a kind: "map", "program", "attach", "link", "helper" or "kfunc" (the last two for programs of a
    type)."""
    ask = {"map": has_map, "program": has_program, "attach": has_attach, "link": has_link,
           "helper": lambda each: has_helper(each, type), "kfunc": lambda each: has_kfunc(each, type)}.get(kind)
    if ask is None:
        raise ValueError("no kind of feature is called %r" % kind)
    if kind in ("helper", "kfunc"):
        number(PROG_TYPES, type, "program type")
    there = ask(name)
    return Feature(kind, name, there, introduced.version(kind, name), "" if there else introduced.needs(kind, name))


_INSTRUCTIONS = {
    "jmp_lt": _code((0xb7, 0, 0, 0, 0), (0xa5, 0, 0, 0, 1), (0x95, 0, 0, 0, 0)),            # 4.14
    "jmp32": _code((0xb7, 0, 0, 0, 0), (0x16, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)),             # 5.1
    # *(u64 *)(r10 - 8) = 0; r0 = 1; r0 = atomic_fetch_add((u64 *)(r10 - 8), r0)             5.12
    "atomic_fetch": _code((0x7a, 10, 0, -8, 0), (0xb7, 0, 0, 0, 1), (0xdb, 10, 0, -8, 1),
                          (0x95, 0, 0, 0, 0)),
    "sign_extend": _code((0xb7, 0, 0, 0, 0), (0xbf, 0, 0, 8, 0), (0x95, 0, 0, 0, 0)),       # 6.6
    # jumps of 32 bits; 6.1 has them without the rest of v4                                  6.6
    "gotol": _code((0xb7, 0, 0, 0, 0), (0x16, 0, 0, 1, 1), (0x06, 0, 0, 0, 1), (0xb7, 0, 0, 0, 1), (0x95, 0, 0, 0, 0)),
    "may_goto": _code((0xb7, 0, 0, 0, 0), (0xe5, 0, 0, 1, 0), (0x05, 0, 0, -2, 0),          # 6.9
                      (0x95, 0, 0, 0, 0)),
    # r0 = load_acquire((u64 *)(r10 - 8))                                                    6.15
    "load_acquire": _code((0x7a, 10, 0, -8, 0), (0xdb, 0, 10, -8, 0x100), (0xb7, 0, 0, 0, 0),
                          (0x95, 0, 0, 0, 0)),
}


_LARGE = _code((0xb7, 0, 0, 0, 0)) * 4097 + _code((0x95, 0, 0, 0, 0))
# r0 = 3; do r0 -= 1 while r0 != 0
_LOOP = _code((0xb7, 0, 0, 0, 3), (0x17, 0, 0, 0, 1), (0x55, 0, 0, -2, 0), (0x95, 0, 0, 0, 0))


def _instructions(name):
    try:
        return _INSTRUCTIONS[name]
    except KeyError:
        raise ValueError("no family of instructions is called %r: they are %s" % (name, ", ".join(_INSTRUCTIONS))) from None


@functools.lru_cache(maxsize=None)
def has_instruction(name):
    """Is a family of instructions there? Names: jmp_lt (ISA v2), jmp32 (v3), atomic_fetch (counted to
    v3 by compilers, but 5.12+), sign_extend and gotol (v4), may_goto, load_acquire."""
    return _refusal("socket_filter", _instructions(name)) == ""


@functools.lru_cache(maxsize=None)
def has_large_programs():
    """May a program have more than 4096 instructions (5.2+, with CAP_BPF)?"""
    return _refusal("socket_filter", _LARGE) == ""


@functools.lru_cache(maxsize=None)
def has_loops():
    """Are loops that the verifier can follow to their end allowed (5.3+)?"""
    return _refusal("socket_filter", _LOOP) == ""


class Device:
    """The same questions of the network interface with an index: what does it run itself (prog_ifindex,
    map_ifindex: "offload")? Most can nothing."""

    PROGRAMS, MAPS = ("sched_cls", "xdp"), ("hash", "array")       # what a kernel hands to a driver at all

    def __init__(self, ifindex):
        self.ifindex = ifindex

    def has_map(self, type):
        try:
            Map.create(type, 4, 4, 1, ifindex=self.ifindex).close()
        except KernelError as error:
            if _permission(error):
                raise
            return False
        return True

    def has_program(self, type):
        # 2: a driver may refuse a result of 0
        return self._loads(type, _code((0xb7, 0, 0, 0, 2), (0x95, 0, 0, 0, 0)))

    def _loads(self, type, code):
        return _refusal(type, code, ifindex=self.ifindex) == ""

    def has_helper(self, name, type):
        from rawbpf.asm.helpers import helper_number
        # the last two: Netronome's driver
        return _HelperProbe(type, self.ifindex).ask(
            helper_number(name), _NO_HELPER + ("not supported by FW", "unsupported function id"))

    def has_instruction(self, name):
        return self._loads("socket_filter", _instructions(name))

    def has_large_programs(self):
        return self._loads("socket_filter", _LARGE)

    def has_loops(self):
        return self._loads("socket_filter", _LOOP)


def cpu_level():
    """ISA level for asm.compile_function: "v1" to "v4". Below 5.12, v3 lacks fetching atomics: see
    has_instruction("atomic_fetch")."""
    for level, name in (("v4", "sign_extend"), ("v3", "jmp32"), ("v2", "jmp_lt")):
        if has_instruction(name):
            return level
    return "v1"
