"""The enumerations and flags of include/uapi/linux/bpf.h (7.x), under the kernel's names.

Names are in lower case without their prefix: MAP_TYPES["percpu_hash"] is BPF_MAP_TYPE_PERCPU_HASH.
The kernel only ever appends to these lists, so position is value.
"""


def _enumerate(text, start=0):
    return {name: number for number, name in enumerate(text.split(), start)}


COMMANDS = _enumerate("""
    map_create map_lookup_elem map_update_elem map_delete_elem map_get_next_key prog_load obj_pin
    obj_get prog_attach prog_detach prog_test_run prog_get_next_id map_get_next_id
    prog_get_fd_by_id map_get_fd_by_id obj_get_info_by_fd prog_query raw_tracepoint_open btf_load
    btf_get_fd_by_id task_fd_query map_lookup_and_delete_elem map_freeze btf_get_next_id
    map_lookup_batch map_lookup_and_delete_batch map_update_batch map_delete_batch link_create
    link_update link_get_fd_by_id link_get_next_id enable_stats iter_create link_detach
    prog_bind_map token_create prog_stream_read_by_fd prog_assoc_struct_ops""")

MAP_TYPES = _enumerate("""
    unspec hash array prog_array perf_event_array percpu_hash percpu_array stack_trace cgroup_array
    lru_hash lru_percpu_hash lpm_trie array_of_maps hash_of_maps devmap sockmap cpumap xskmap
    sockhash cgroup_storage reuseport_sockarray percpu_cgroup_storage queue stack sk_storage
    devmap_hash struct_ops ringbuf inode_storage task_storage bloom_filter user_ringbuf
    cgrp_storage arena insn_array rhash""")

PROG_TYPES = _enumerate("""
    unspec socket_filter kprobe sched_cls sched_act tracepoint xdp perf_event cgroup_skb
    cgroup_sock lwt_in lwt_out lwt_xmit sock_ops sk_skb cgroup_device sk_msg raw_tracepoint
    cgroup_sock_addr lwt_seg6local lirc_mode2 sk_reuseport flow_dissector cgroup_sysctl
    raw_tracepoint_writable cgroup_sockopt tracing struct_ops ext lsm sk_lookup syscall
    netfilter""")

ATTACH_TYPES = _enumerate("""
    cgroup_inet_ingress cgroup_inet_egress cgroup_inet_sock_create cgroup_sock_ops
    sk_skb_stream_parser sk_skb_stream_verdict cgroup_device sk_msg_verdict cgroup_inet4_bind
    cgroup_inet6_bind cgroup_inet4_connect cgroup_inet6_connect cgroup_inet4_post_bind
    cgroup_inet6_post_bind cgroup_udp4_sendmsg cgroup_udp6_sendmsg lirc_mode2 flow_dissector
    cgroup_sysctl cgroup_udp4_recvmsg cgroup_udp6_recvmsg cgroup_getsockopt cgroup_setsockopt
    trace_raw_tp trace_fentry trace_fexit modify_return lsm_mac trace_iter
    cgroup_inet4_getpeername cgroup_inet6_getpeername cgroup_inet4_getsockname
    cgroup_inet6_getsockname xdp_devmap cgroup_inet_sock_release xdp_cpumap sk_lookup xdp
    sk_skb_verdict sk_reuseport_select sk_reuseport_select_or_migrate perf_event
    trace_kprobe_multi lsm_cgroup struct_ops netfilter tcx_ingress tcx_egress trace_uprobe_multi
    cgroup_unix_connect cgroup_unix_sendmsg cgroup_unix_recvmsg cgroup_unix_getpeername
    cgroup_unix_getsockname netkit_primary netkit_peer trace_kprobe_session trace_uprobe_session
    trace_fsession trace_fentry_multi trace_fexit_multi trace_fsession_multi""")

LINK_TYPES = _enumerate("""
    unspec raw_tracepoint tracing cgroup iter netns xdp perf_event kprobe_multi struct_ops
    netfilter tcx uprobe_multi netkit sockmap tracing_multi""")

OBJ_NAME_LEN = 16

# bpf_map_update_elem() flags
ANY, NOEXIST, EXIST, F_LOCK, F_CPU, F_ALL_CPUS = 0, 1, 2, 4, 8, 16

# map_create flags
F_NO_PREALLOC = 1 << 0
F_NO_COMMON_LRU = 1 << 1
F_NUMA_NODE = 1 << 2
F_RDONLY = 1 << 3
F_WRONLY = 1 << 4
F_STACK_BUILD_ID = 1 << 5
F_ZERO_SEED = 1 << 6
F_RDONLY_PROG = 1 << 7
F_WRONLY_PROG = 1 << 8
F_CLONE = 1 << 9
F_MMAPABLE = 1 << 10
F_PRESERVE_ELEMS = 1 << 11
F_INNER_MAP = 1 << 12
F_LINK = 1 << 13
F_PATH_FD = 1 << 14
F_VTYPE_BTF_OBJ_FD = 1 << 15
F_TOKEN_FD = 1 << 16
F_SEGV_ON_FAULT = 1 << 17
F_NO_USER_CONV = 1 << 18
F_RB_OVERWRITE = 1 << 19

# prog_load flags
F_STRICT_ALIGNMENT = 1 << 0
F_ANY_ALIGNMENT = 1 << 1
F_TEST_RND_HI32 = 1 << 2
F_TEST_STATE_FREQ = 1 << 3
F_SLEEPABLE = 1 << 4
F_XDP_HAS_FRAGS = 1 << 5
F_XDP_DEV_BOUND_ONLY = 1 << 6
F_TEST_REG_INVARIANTS = 1 << 7

# prog_test_run flags
F_TEST_RUN_ON_CPU = 1 << 0
F_TEST_XDP_LIVE_FRAMES = 1 << 1

# link_create and prog_attach flags
F_ALLOW_OVERRIDE = 1 << 0
F_ALLOW_MULTI = 1 << 1
F_REPLACE = 1 << 2
F_BEFORE = 1 << 3
F_AFTER = 1 << 4
F_ID = 1 << 5
F_KPROBE_MULTI_RETURN = 1 << 0
F_UPROBE_MULTI_RETURN = 1 << 0
F_UPROBE_MULTI_PATH_FD = 1 << 1

# src_reg of BPF_LD | BPF_IMM | BPF_DW and of BPF_CALL
PSEUDO_MAP_FD = 1
PSEUDO_MAP_VALUE = 2
PSEUDO_BTF_ID = 3
PSEUDO_FUNC = 4
PSEUDO_MAP_IDX = 5
PSEUDO_MAP_IDX_VALUE = 6
PSEUDO_CALL = 1
PSEUDO_KFUNC_CALL = 2


def number(table, name, what):
    """Value of a name in one of the tables above (a number is itself: the kernel may know more than the table); a
    ValueError that suggests the nearest name."""
    if isinstance(name, int):
        return name
    try:
        return table[name]
    except KeyError:
        pass
    import difflib
    near = difflib.get_close_matches(str(name), [each for each in table if each != "unspec"], 3, 0.7)
    raise ValueError("no BPF %s is called %r%s" % (
        what, name, "; did you mean %s?" % " or ".join(near) if near else "")) from None


def name_of(table, value):
    """Name of a value; "type 99" for what is newer than this table."""
    for name, number_ in table.items():
        if number_ == value:
            return name
    return "type %d" % value
