"""Which Linux version introduced what: map types, program types, links, helpers, commands.

From the history of include/uapi/linux/bpf.h. `version` answers, `needs` makes the sentence that errors
end with when the running kernel is older.
"""

from . import kernel


def _table(text):
    """{name: (major, minor)} of lines "X.Y name name ..."."""
    table = {}
    for line in text.strip().splitlines():
        version, *names = line.split()
        pair = tuple(map(int, version.split(".")))
        table.update(dict.fromkeys(names, pair))
    return table


_MAPS = """
3.19 hash array
4.2 prog_array
4.3 perf_event_array
4.6 percpu_hash percpu_array stack_trace
4.8 cgroup_array
4.10 lru_hash lru_percpu_hash
4.11 lpm_trie
4.12 array_of_maps hash_of_maps
4.14 devmap sockmap
4.15 cpumap
4.18 xskmap sockhash
4.19 cgroup_storage reuseport_sockarray
4.20 percpu_cgroup_storage queue stack
5.2 sk_storage
5.4 devmap_hash
5.6 struct_ops
5.8 ringbuf
5.10 inode_storage
5.11 task_storage
5.16 bloom_filter
6.1 user_ringbuf
6.2 cgrp_storage
6.9 arena
6.19 insn_array
7.2 rhash
"""
_PROGRAMS = """
3.19 socket_filter
4.1 kprobe sched_cls sched_act
4.7 tracepoint
4.8 xdp
4.9 perf_event
4.10 cgroup_skb cgroup_sock lwt_in lwt_out lwt_xmit
4.13 sock_ops
4.14 sk_skb
4.15 cgroup_device
4.17 sk_msg raw_tracepoint cgroup_sock_addr
4.18 lwt_seg6local lirc_mode2
4.19 sk_reuseport
4.20 flow_dissector
5.2 cgroup_sysctl raw_tracepoint_writable
5.3 cgroup_sockopt
5.5 tracing
5.6 struct_ops ext
5.7 lsm
5.9 sk_lookup
5.14 syscall
6.4 netfilter
"""
_LINKS = """
5.5 tracing raw_tracepoint
5.7 cgroup
5.8 iter netns
5.9 xdp
5.15 perf_event
5.18 kprobe_multi
6.4 struct_ops netfilter
6.6 tcx uprobe_multi
6.7 netkit
6.10 sockmap kprobe_session
6.13 uprobe_session
7.2 tracing_multi
"""
_ATTACHES = """
4.10 cgroup_inet_ingress cgroup_inet_egress cgroup_inet_sock_create
4.13 cgroup_sock_ops
4.14 sk_skb_stream_parser sk_skb_stream_verdict
4.15 cgroup_device
4.17 sk_msg_verdict cgroup_inet4_bind cgroup_inet6_bind cgroup_inet4_connect cgroup_inet6_connect
4.17 cgroup_inet4_post_bind cgroup_inet6_post_bind
4.18 cgroup_udp4_sendmsg cgroup_udp6_sendmsg lirc_mode2
4.20 flow_dissector
5.2 cgroup_sysctl cgroup_udp4_recvmsg cgroup_udp6_recvmsg
5.3 cgroup_getsockopt cgroup_setsockopt
5.5 trace_raw_tp trace_fentry trace_fexit
5.7 modify_return lsm_mac
5.8 trace_iter cgroup_inet4_getpeername cgroup_inet6_getpeername cgroup_inet4_getsockname cgroup_inet6_getsockname
5.8 xdp_devmap
5.9 cgroup_inet_sock_release xdp_cpumap sk_lookup xdp
5.13 sk_skb_verdict
5.14 sk_reuseport_select sk_reuseport_select_or_migrate
5.15 perf_event
5.18 trace_kprobe_multi
6.0 lsm_cgroup
6.4 struct_ops netfilter
6.6 tcx_ingress tcx_egress trace_uprobe_multi
6.7 cgroup_unix_connect cgroup_unix_sendmsg cgroup_unix_recvmsg cgroup_unix_getpeername cgroup_unix_getsockname
6.7 netkit_primary netkit_peer
6.10 trace_kprobe_session
6.13 trace_uprobe_session
7.0 trace_fsession
7.2 trace_fentry_multi trace_fexit_multi trace_fsession_multi
"""
_COMMANDS = """
3.18 map_create map_lookup_elem map_update_elem map_delete_elem map_get_next_key prog_load
4.4 obj_pin obj_get
4.10 prog_attach prog_detach
4.12 prog_test_run
4.13 prog_get_next_id map_get_next_id prog_get_fd_by_id map_get_fd_by_id obj_get_info_by_fd
4.15 prog_query
4.17 raw_tracepoint_open
4.18 btf_load btf_get_fd_by_id task_fd_query
4.20 map_lookup_and_delete_elem
5.2 map_freeze
5.4 btf_get_next_id
5.6 map_lookup_batch map_lookup_and_delete_batch map_update_batch map_delete_batch
5.7 link_create link_update
5.8 link_get_fd_by_id link_get_next_id enable_stats iter_create
5.9 link_detach
5.10 prog_bind_map
6.9 token_create
6.18 prog_stream_read_by_fd
7.0 prog_assoc_struct_ops
"""
# (version, number of the last helper it had); helpers were only ever appended
_HELPERS = """
3.19 3
4.1 11
4.2 16
4.3 22
4.4 25
4.5 26
4.6 30
4.8 36
4.9 41
4.10 44
4.11 45
4.12 47
4.13 50
4.14 53
4.15 57
4.16 59
4.17 64
4.18 80
4.19 83
4.20 90
5.0 92
5.1 98
5.2 108
5.3 110
5.5 115
5.6 118
5.7 124
5.8 135
5.9 141
5.10 155
5.11 162
5.12 163
5.13 165
5.14 168
5.15 175
5.16 179
5.17 185
5.18 193
5.19 203
6.0 207
6.1 209
6.2 211
"""
# kernel functions that programs call, of those that are asked for
_KFUNCS = """
6.2 bpf_rcu_read_lock bpf_rcu_read_unlock bpf_cast_to_kern_ctx bpf_rdonly_cast bpf_obj_new_impl bpf_obj_drop_impl
6.2 bpf_list_push_front_impl bpf_list_push_back_impl bpf_list_pop_front bpf_list_pop_back
6.2 bpf_task_acquire bpf_task_release bpf_task_from_pid bpf_cgroup_acquire bpf_cgroup_release bpf_cgroup_ancestor
6.3 bpf_rbtree_add_impl bpf_rbtree_remove bpf_rbtree_first bpf_xdp_metadata_rx_timestamp bpf_xdp_metadata_rx_hash
6.3 bpf_cpumask_create bpf_cpumask_acquire bpf_cpumask_release bpf_cpumask_set_cpu bpf_cpumask_test_cpu
6.4 bpf_dynptr_from_skb bpf_dynptr_from_xdp bpf_dynptr_slice bpf_dynptr_slice_rdwr bpf_refcount_acquire_impl
6.4 bpf_iter_num_new bpf_iter_num_next bpf_iter_num_destroy bpf_cgroup_from_id
6.5 bpf_dynptr_adjust bpf_dynptr_is_null bpf_dynptr_is_rdonly bpf_dynptr_size bpf_dynptr_clone
6.7 bpf_throw bpf_iter_task_vma_new bpf_iter_task_vma_next bpf_iter_task_vma_destroy bpf_iter_css_task_new
6.7 bpf_iter_task_new bpf_iter_task_next bpf_iter_task_destroy bpf_iter_css_new bpf_iter_css_next
6.8 bpf_get_file_xattr bpf_get_fsverity_digest
6.1 bpf_verify_pkcs7_signature bpf_lookup_user_key bpf_key_put
6.9 bpf_arena_alloc_pages bpf_arena_free_pages bpf_sk_assign_tcp_reqsk
6.10 bpf_preempt_disable bpf_preempt_enable bpf_wq_init bpf_wq_set_callback_impl bpf_wq_start
6.11 bpf_iter_bits_new bpf_iter_bits_next bpf_iter_bits_destroy
6.12 bpf_copy_from_user_str
6.13 bpf_get_kmem_cache bpf_iter_kmem_cache_new bpf_iter_kmem_cache_next bpf_iter_kmem_cache_destroy
6.14 bpf_local_irq_save bpf_local_irq_restore
6.15 bpf_res_spin_lock bpf_res_spin_unlock
"""
_TEXTS = {"kfunc": _KFUNCS, "map": _MAPS, "program": _PROGRAMS, "attach": _ATTACHES, "link": _LINKS, "command": _COMMANDS}
_tables = {}


def table(kind):
    """{name: (major, minor)} of a kind: "map", "program", "attach" (attach types), "link", "command"."""
    if kind not in _tables:
        _tables[kind] = _table(_TEXTS[kind])
    return _tables[kind]


def version(kind, name):
    """(major, minor) of the first Linux with it, None when that is not known. kind: that of `table`
    or "helper", whose name may be its number."""
    if kind == "helper":
        if not isinstance(name, int):
            from rawbpf.asm.helpers import NUMBER
            name = NUMBER.get(name)
        for line in _HELPERS.strip().splitlines() if name else ():
            release, last = line.split()
            if name <= int(last):
                return tuple(map(int, release.split(".")))
        return None
    return table(kind).get(name)


def needs(kind, name, what=None):
    """ "WHAT needs Linux X.Y or later, this is A.B", or "" when this kernel is new enough or it is
    not known."""
    first = version(kind, name)
    return "" if first is None else since(first, what or "the %s %s" % (
        {"map": "map type", "program": "program type", "link": "link type", "attach": "attach type"}.get(kind, kind), name))


def since(first, what):
    """The sentence of `needs` for a version that is not in the tables."""
    running = kernel.release()
    if running[:len(first)] >= tuple(first):
        return ""
    return "%s needs Linux %d.%d or later, this is %d.%d" % ((what,) + tuple(first)[:2] + running[:2])
