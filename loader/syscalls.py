"""bpf(2), perf_event_open(2) and the ioctls of perf events, through libc's syscall().

The only file that knows system call numbers, the layouts of union bpf_attr, of the bpf_*_info
structures and of struct perf_event_attr: include/uapi/linux/bpf.h and perf_event.h, bpf(2),
perf_event_open(2). Everything here raises a plain OSError; the callers make it a KernelError
that says what is missing.

Descriptors: the kernel makes all that bpf() returns close-on-exec; perf events get the flag here.
"""

import ctypes
import errno
import os

from .layout import Layout, packed
from .uapi import COMMANDS

_MACHINE = os.uname().machine
_NUMBERS = {  # bpf, perf_event_open
    "x86_64": (321, 298),
    "aarch64": (280, 241),
}

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long] * 6

PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


def _number(index):
    try:
        return _NUMBERS[_MACHINE][index]
    except KeyError:
        raise OSError(errno.ENOSYS, "no system call numbers for %s are known" % _MACHINE) from None


def address(buffer):
    """Address of a writable buffer (bytearray, mmap); it must outlive the call that uses it."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer)) if len(buffer) else 0


ATTR = {
    "map_create": Layout(
        "u32 map_type, u32 key_size, u32 value_size, u32 max_entries, u32 map_flags,"
        "u32 inner_map_fd, u32 numa_node, char[16] map_name, u32 map_ifindex, u32 btf_fd,"
        "u32 btf_key_type_id, u32 btf_value_type_id, u32 btf_vmlinux_value_type_id, u64 map_extra,"
        "s32 value_type_btf_obj_fd, s32 map_token_fd, u64 excl_prog_hash, u32 excl_prog_hash_size"),
    "elem": Layout("u32 map_fd, u64 key, u64 value|next_key, u64 flags"),
    "batch": Layout(
        "u64 in_batch, u64 out_batch, u64 keys, u64 values, u32 count, u32 map_fd,"
        "u64 elem_flags, u64 flags"),
    "prog_load": Layout(
        "u32 prog_type, u32 insn_cnt, u64 insns, u64 license, u32 log_level, u32 log_size,"
        "u64 log_buf, u32 kern_version, u32 prog_flags, char[16] prog_name, u32 prog_ifindex,"
        "u32 expected_attach_type, u32 prog_btf_fd, u32 func_info_rec_size, u64 func_info,"
        "u32 func_info_cnt, u32 line_info_rec_size, u64 line_info, u32 line_info_cnt,"
        "u32 attach_btf_id, u32 attach_prog_fd|attach_btf_obj_fd, u32 core_relo_cnt, u64 fd_array,"
        "u64 core_relos, u32 core_relo_rec_size, u32 log_true_size, s32 prog_token_fd,"
        "u32 fd_array_cnt, u64 signature, u32 signature_size, s32 keyring_id"),
    "obj": Layout("u64 pathname, u32 bpf_fd, u32 file_flags, s32 path_fd"),
    "prog_attach": Layout(
        "u32 target_fd|target_ifindex, u32 attach_bpf_fd, u32 attach_type, u32 attach_flags,"
        "u32 replace_bpf_fd, u32 relative_fd|relative_id, u64 expected_revision"),
    "prog_test_run": Layout(
        "u32 prog_fd, u32 retval, u32 data_size_in, u32 data_size_out, u64 data_in, u64 data_out,"
        "u32 repeat, u32 duration, u32 ctx_size_in, u32 ctx_size_out, u64 ctx_in, u64 ctx_out,"
        "u32 flags, u32 cpu, u32 batch_size"),
    "id": Layout(
        "u32 start_id|prog_id|map_id|btf_id|link_id, u32 next_id, u32 open_flags,"
        "s32 fd_by_id_token_fd"),
    "obj_get_info_by_fd": Layout("u32 bpf_fd, u32 info_len, u64 info"),
    "prog_query": Layout(
        "u32 target_fd|target_ifindex, u32 attach_type, u32 query_flags, u32 attach_flags,"
        "u64 prog_ids, u32 prog_cnt, u64 prog_attach_flags, u64 link_ids, u64 link_attach_flags,"
        "u64 revision"),
    "raw_tracepoint_open": Layout("u64 name, u32 prog_fd, u64 cookie"),
    "btf_load": Layout(
        "u64 btf, u64 btf_log_buf, u32 btf_size, u32 btf_log_size, u32 btf_log_level,"
        "u32 btf_log_true_size, u32 btf_flags, s32 btf_token_fd"),
    "task_fd_query": Layout(
        "u32 pid, u32 fd, u32 flags, u32 buf_len, u64 buf, u32 prog_id, u32 fd_type,"
        "u64 probe_offset, u64 probe_addr"),
    "link_update": Layout(
        "u32 link_fd, u32 new_prog_fd|new_map_fd, u32 flags, u32 old_prog_fd|old_map_fd"),
    "link_detach": Layout("u32 link_fd"),
    "enable_stats": Layout("u32 type"),
    "iter_create": Layout("u32 link_fd, u32 flags"),
    "prog_bind_map": Layout("u32 prog_fd, u32 map_fd, u32 flags"),
    "token_create": Layout("u32 flags, u32 bpffs_fd"),
    "prog_stream_read_by_fd": Layout("u64 stream_buf, u32 stream_buf_len, u32 stream_id, u32 prog_fd"),
    "prog_assoc_struct_ops": Layout("u32 map_fd, u32 prog_fd, u32 flags"),
}
for _name in ("map_lookup_elem", "map_update_elem", "map_delete_elem", "map_get_next_key",
              "map_lookup_and_delete_elem", "map_freeze"):
    ATTR[_name] = ATTR["elem"]
for _name in ("map_lookup_batch", "map_lookup_and_delete_batch", "map_update_batch",
              "map_delete_batch"):
    ATTR[_name] = ATTR["batch"]
for _name in ("obj_pin", "obj_get"):
    ATTR[_name] = ATTR["obj"]
for _name in ("prog_get_next_id", "map_get_next_id", "btf_get_next_id", "link_get_next_id",
              "prog_get_fd_by_id", "map_get_fd_by_id", "btf_get_fd_by_id", "link_get_fd_by_id"):
    ATTR[_name] = ATTR["id"]
ATTR["prog_detach"] = ATTR["prog_attach"]

# link_create: 16 common bytes, then a union by kind of link
_LINK = "u32 prog_fd|map_fd, u32 target_fd|target_ifindex, u32 attach_type, u32 flags,"
LINK_CREATE = {
    "plain": Layout(_LINK + "u64 bpf_cookie"),  # perf_event; with no cookie also xdp, netns, ...
    "tracing": Layout(_LINK + "u32 target_btf_id, u64 cookie"),
    "iter": Layout(_LINK + "u64 iter_info, u32 iter_info_len"),
    "kprobe_multi": Layout(_LINK + "u32 multi_flags, u32 cnt, u64 syms, u64 addrs, u64 cookies"),
    "uprobe_multi": Layout(
        _LINK + "u64 path, u64 offsets, u64 ref_ctr_offsets, u64 cookies, u32 cnt,"
        "u32 multi_flags, u32 pid, u32 path_fd"),
    "netfilter": Layout(_LINK + "u32 pf, u32 hooknum, s32 priority, u32 netfilter_flags"),
    "relative": Layout(_LINK + "u32 relative_fd|relative_id, u64 expected_revision"),  # tcx, ...
    "tracing_multi": Layout(_LINK + "u64 ids, u64 cookies, u32 cnt"),
}

PROG_INFO = Layout(
    "u32 type, u32 id, char[8] tag, u32 jited_prog_len, u32 xlated_prog_len, u64 jited_prog_insns,"
    "u64 xlated_prog_insns, u64 load_time, u32 created_by_uid, u32 nr_map_ids, u64 map_ids,"
    "char[16] name, u32 ifindex, u32 gpl_compatible, u64 netns_dev, u64 netns_ino,"
    "u32 nr_jited_ksyms, u32 nr_jited_func_lens, u64 jited_ksyms, u64 jited_func_lens, u32 btf_id,"
    "u32 func_info_rec_size, u64 func_info, u32 nr_func_info, u32 nr_line_info, u64 line_info,"
    "u64 jited_line_info, u32 nr_jited_line_info, u32 line_info_rec_size,"
    "u32 jited_line_info_rec_size, u32 nr_prog_tags, u64 prog_tags, u64 run_time_ns, u64 run_cnt,"
    "u64 recursion_misses, u32 verified_insns, u32 attach_btf_obj_id, u32 attach_btf_id")
MAP_INFO = Layout(
    "u32 type, u32 id, u32 key_size, u32 value_size, u32 max_entries, u32 map_flags,"
    "char[16] name, u32 ifindex, u32 btf_vmlinux_value_type_id, u64 netns_dev, u64 netns_ino,"
    "u32 btf_id, u32 btf_key_type_id, u32 btf_value_type_id, u32 btf_vmlinux_id, u64 map_extra,"
    "u64 hash, u32 hash_size")
LINK_INFO_HEAD = Layout("u32 type, u32 id, u32 prog_id")
_HEAD = "u32 type, u32 id, u32 prog_id, u64 "
_REST = "u32 type, u32 id, u32 prog_id, u32 pad_, "
_PERF = _REST + "u32 perf_type, u32 pad2_, "
LINK_INFO = {   # by link type; perf_event by enum bpf_perf_event_type
    "raw_tracepoint": Layout(_HEAD + "tp_name, u32 tp_name_len, u64 cookie"),
    "tracing": Layout(_REST + "u32 attach_type, u32 target_obj_id, u32 target_btf_id, u64 cookie"),
    "cgroup": Layout(_HEAD + "cgroup_id, u32 attach_type"),
    "iter": Layout(_HEAD + "target_name, u32 target_name_len, u32 map_id, u32 tid, u32 pid, u32 order"),
    "netns": Layout(_REST + "u32 netns_ino, u32 attach_type"),
    "xdp": Layout(_REST + "u32 ifindex"),
    "struct_ops": Layout(_REST + "u32 map_id"),
    "netfilter": Layout(_REST + "u32 pf, u32 hooknum, s32 priority, u32 flags"),
    "tcx": Layout(_REST + "u32 ifindex, u32 attach_type"),
    "netkit": Layout(_REST + "u32 ifindex, u32 attach_type"),
    "sockmap": Layout(_REST + "u32 map_id, u32 attach_type"),
    "kprobe_multi": Layout(_HEAD + "addrs, u32 count, u32 flags, u64 missed, u64 cookies"),
    "uprobe_multi": Layout(_HEAD + "path, u64 offsets, u64 ref_ctr_offsets, u64 cookies,"
                           "u32 path_size, u32 count, u32 flags, u32 pid"),
    "tracing_multi": Layout(_REST + "u32 attach_type, u32 count, u32 btf_obj_id, u64 ids, u64 addrs,"
                            "u64 cookies"),
    "perf_event": Layout(_REST + "u32 perf_type"),
    "perf_event uprobe": Layout(_PERF + "u64 name_at, u32 name_len, u32 offset, u64 cookie,"
                                "u64 ref_ctr_offset"),
    "perf_event kprobe": Layout(_PERF + "u64 name_at, u32 name_len, u32 offset, u64 addr, u64 missed,"
                                "u64 cookie"),
    "perf_event tracepoint": Layout(_PERF + "u64 name_at, u32 name_len, u64 cookie"),
    "perf_event event": Layout(_PERF + "u64 config, u32 event_type, u64 cookie"),
}
BTF_INFO = Layout("u64 btf, u32 btf_size, u32 id, u64 name, u32 name_len, u32 kernel_btf")

PERF_EVENT_ATTR = Layout(
    "u32 type, u32 size, u64 config, u64 sample_period|sample_freq, u64 sample_type,"
    "u64 read_format, u64 flags, u32 wakeup_events|wakeup_watermark, u32 bp_type,"
    "u64 bp_addr|kprobe_func|uprobe_path|config1, u64 bp_len|kprobe_addr|probe_offset|config2,"
    "u64 branch_sample_type, u64 sample_regs_user, u32 sample_stack_user, s32 clockid,"
    "u64 sample_regs_intr, u32 aux_watermark, u16 sample_max_stack, u16 reserved_2,"
    "u32 aux_sample_size, u32 reserved_3, u64 sig_data, u64 config3, u64 config4")
PERF_ATTR_SIZE_VER5 = 112   # up to reserved_2; config3 came with 6.3 (136), config4 with 6.19 (144)

# bits of perf_event_attr.flags
ATTR_DISABLED, ATTR_INHERIT, ATTR_EXCLUDE_USER, ATTR_EXCLUDE_KERNEL = 1 << 0, 1 << 1, 1 << 4, 1 << 5
ATTR_EXCLUDE_HV, ATTR_FREQ, ATTR_WATERMARK = 1 << 6, 1 << 10, 1 << 14

PERF_FLAG_FD_CLOEXEC = 1 << 3
PERF_IOC_ENABLE, PERF_IOC_DISABLE, PERF_IOC_RESET = 0x2400, 0x2401, 0x2403
PERF_IOC_PERIOD, PERF_IOC_SET_BPF, PERF_IOC_PAUSE_OUTPUT = 0x40082404, 0x40042408, 0x40042409

_RETRIES = 5
_COMMON_LOG = 4096      # bytes: it is a line or two


def _invoke(number, *arguments):
    """One system call. EINTR is repeated: pending Python signal handlers have run by then."""
    arguments += (0,) * (5 - len(arguments))
    while True:
        result = _syscall(number, *arguments)
        if result >= 0:
            return result
        code = ctypes.get_errno()
        if code != errno.EINTR or arguments[0] == _TEST_RUN:
            raise OSError(code, os.strerror(code))


_TEST_RUN = COMMANDS["prog_test_run"]


# of any command: the fourth argument is a struct bpf_common_attr (7.2+)
_COMMON_ATTRS = 1 << 16
_COMMON_ATTR = Layout("u64 log_buf, u32 log_size, u32 log_level, u32 log_true_size")


def bpf_raw(command, attr, common=None):
    """bpf(command, attr): command by name, attr a bytearray that the kernel may write to; common: one of _COMMON_ATTR."""
    number = _number(0)
    command = COMMANDS[command]
    arguments = (command, address(attr), len(attr)) if common is None else (
        command | _COMMON_ATTRS, address(attr), len(attr), address(common), len(common))
    for _ in range(_RETRIES):
        try:
            return _invoke(number, *arguments)
        except OSError as error:
            # The verifier gives up with EAGAIN, a test run with EINTR, when a signal is pending.
            # Handlers have run by now; what they raise has left this function.
            if error.errno not in (errno.EAGAIN, errno.EINTR):
                raise
            if error.errno == errno.EINTR:
                break      # a test run has effects: repeated once, undisturbed
    import signal
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        return _invoke(number, *arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def bpf(command, **fields):
    """bpf() with the attr's fields by name; what the call returns (mostly a descriptor)."""
    return bpf_raw(command, ATTR[command].pack(**fields))


def bpf_logged(command, **fields):
    """bpf() with a log, for commands without one of their own that say there why they refuse (7.2+: map_create; before,
    all are refused): (what the call returns or None, the log)."""
    log = bytearray(_COMMON_LOG)
    common = _COMMON_ATTR.pack(log_buf=address(log), log_size=len(log), log_level=1)
    try:
        result = bpf_raw(command, ATTR[command].pack(**fields), common)
    except OSError:
        result = None
    return result, log.split(b"\0")[0].decode("utf-8", "replace").strip()


def bpf_out(command, **fields):
    """bpf() whose answer is in the attr: (what the call returns, {field: value})."""
    layout = ATTR[command]
    attr = layout.pack(**fields)
    return bpf_raw(command, attr), layout.unpack(attr)


def link_create(kind, **fields):
    """BPF_LINK_CREATE with the layout of `kind` (a key of LINK_CREATE)."""
    return bpf_raw("link_create", LINK_CREATE[kind].pack(**fields))


def obj_info(fd, layout, **buffers):
    """BPF_OBJ_GET_INFO_BY_FD: the info as a bytearray, cut to what the kernel filled in."""
    info = layout.pack(**buffers)
    _, answer = bpf_out("obj_get_info_by_fd", bpf_fd=fd, info_len=len(info), info=address(info))
    del info[answer["info_len"]:]
    return info


def perf_event_open(attr, pid, cpu, group_fd=-1, flags=0):
    """perf_event_open(2); attr is a bytearray of PERF_EVENT_ATTR. Later fields are given only where they say something."""
    size = len(attr)
    while size > PERF_ATTR_SIZE_VER5 and not any(attr[size - 8:size]):
        size -= 8
    PERF_EVENT_ATTR.set(attr, "size", size)
    return _invoke(_number(1), address(attr), pid, cpu, group_fd, flags | PERF_FLAG_FD_CLOEXEC)


def perf_ioctl(fd, request, argument=0):
    import fcntl
    if request == PERF_IOC_PERIOD:
        argument = packed("=Q", "period", argument)
    return fcntl.ioctl(fd, request, argument)
