"""What the name of a section says of its program: the program type, the attach type, the target.

The names are libbpf's (its documentation, "Program types and ELF sections"), so that objects mean the same here.
"""

from collections import namedtuple

Kind = namedtuple("Kind", "type attach btf", defaults=(None, ""))
Kind.__doc__ = """`type`, `attach`: names of loader.uapi's PROG_TYPES and ATTACH_TYPES (None: none is needed). `btf`: what the
rest of the section's name is looked up as in the kernel's BTF: the prefix of a function ("func:bpf_lsm_") or of a
typedef ("typedef:btf_trace_"); "" for programs that are not checked against their target."""

_EXACT_OR_TARGET = {
    "socket": Kind("socket_filter"), "kprobe": Kind("kprobe"), "kretprobe": Kind("kprobe"),
    "uprobe": Kind("kprobe"), "uretprobe": Kind("kprobe"), "ksyscall": Kind("kprobe"), "kretsyscall": Kind("kprobe"),
    "usdt": Kind("kprobe"), "kprobe.multi": Kind("kprobe", "trace_kprobe_multi"),
    "kretprobe.multi": Kind("kprobe", "trace_kprobe_multi"), "uprobe.multi": Kind("kprobe", "trace_uprobe_multi"),
    "uretprobe.multi": Kind("kprobe", "trace_uprobe_multi"), "kprobe.session": Kind("kprobe", "trace_kprobe_session"),
    "tracepoint": Kind("tracepoint"), "tp": Kind("tracepoint"), "raw_tracepoint": Kind("raw_tracepoint"),
    "raw_tp": Kind("raw_tracepoint"), "raw_tracepoint.w": Kind("raw_tracepoint_writable"),
    "raw_tp.w": Kind("raw_tracepoint_writable"), "perf_event": Kind("perf_event"),
    "tp_btf": Kind("tracing", "trace_raw_tp", "typedef:btf_trace_"), "fentry": Kind("tracing", "trace_fentry", "func:"),
    "fexit": Kind("tracing", "trace_fexit", "func:"), "fmod_ret": Kind("tracing", "modify_return", "func:"),
    "iter": Kind("tracing", "trace_iter", "func:bpf_iter_"), "lsm": Kind("lsm", "lsm_mac", "func:bpf_lsm_"),
    "lsm_cgroup": Kind("lsm", "lsm_cgroup", "func:bpf_lsm_"),
    "xdp": Kind("xdp"), "xdp/devmap": Kind("xdp", "xdp_devmap"), "xdp/cpumap": Kind("xdp", "xdp_cpumap"),
    "tc": Kind("sched_cls"), "tcx": Kind("sched_cls"), "classifier": Kind("sched_cls"), "netkit": Kind("sched_cls"),
    "action": Kind("sched_act"), "lwt_in": Kind("lwt_in"), "lwt_out": Kind("lwt_out"), "lwt_xmit": Kind("lwt_xmit"),
    "lwt_seg6local": Kind("lwt_seg6local"), "sockops": Kind("sock_ops"), "sk_skb": Kind("sk_skb"),
    "sk_skb/stream_parser": Kind("sk_skb", "sk_skb_stream_parser"),
    "sk_skb/stream_verdict": Kind("sk_skb", "sk_skb_stream_verdict"), "sk_msg": Kind("sk_msg", "sk_msg_verdict"),
    "sk_lookup": Kind("sk_lookup", "sk_lookup"), "sk_reuseport": Kind("sk_reuseport", "sk_reuseport_select"),
    "sk_reuseport/migrate": Kind("sk_reuseport", "sk_reuseport_select_or_migrate"),
    "flow_dissector": Kind("flow_dissector", "flow_dissector"), "lirc_mode2": Kind("lirc_mode2", "lirc_mode2"),
    "netfilter": Kind("netfilter", "netfilter"), "syscall": Kind("syscall"),
    "cgroup_skb/ingress": Kind("cgroup_skb", "cgroup_inet_ingress"),
    "cgroup_skb/egress": Kind("cgroup_skb", "cgroup_inet_egress"), "cgroup/skb": Kind("cgroup_skb"),
    "cgroup/sock": Kind("cgroup_sock", "cgroup_inet_sock_create"),
    "cgroup/sock_create": Kind("cgroup_sock", "cgroup_inet_sock_create"),
    "cgroup/sock_release": Kind("cgroup_sock", "cgroup_inet_sock_release"),
    "cgroup/post_bind4": Kind("cgroup_sock", "cgroup_inet4_post_bind"),
    "cgroup/post_bind6": Kind("cgroup_sock", "cgroup_inet6_post_bind"),
    "cgroup/dev": Kind("cgroup_device", "cgroup_device"), "cgroup/sysctl": Kind("cgroup_sysctl", "cgroup_sysctl"),
    "cgroup/getsockopt": Kind("cgroup_sockopt", "cgroup_getsockopt"),
    "cgroup/setsockopt": Kind("cgroup_sockopt", "cgroup_setsockopt"),
}
for _what in ("bind", "connect", "getpeername", "getsockname"):
    for _family in ("4", "6"):
        _EXACT_OR_TARGET["cgroup/%s%s" % (_what, _family)] = Kind(
            "cgroup_sock_addr", "cgroup_inet%s_%s" % (_family, _what))
for _what in ("sendmsg", "recvmsg"):
    for _family in ("4", "6"):
        _EXACT_OR_TARGET["cgroup/%s%s" % (_what, _family)] = Kind(
            "cgroup_sock_addr", "cgroup_udp%s_%s" % (_family, _what))
# The attach type that programs of a type have when nothing says another one.
_DEFAULT = {"sk_msg": "sk_msg_verdict", "sk_lookup": "sk_lookup", "flow_dissector": "flow_dissector",
            "lirc_mode2": "lirc_mode2", "netfilter": "netfilter", "cgroup_device": "cgroup_device",
            "cgroup_sysctl": "cgroup_sysctl", "cgroup_sock": "cgroup_inet_sock_create",
            "cgroup_sock_addr": "cgroup_inet4_connect", "cgroup_sockopt": "cgroup_getsockopt",
            "sk_reuseport": "sk_reuseport_select"}
_SLEEPABLE = 1 << 4      # BPF_F_SLEEPABLE


def of_section(name):
    """(Kind, target, load flags) that a section's name says, or None. "fentry.s/x" is a sleepable "fentry/x"."""
    name = name[1:] if name.startswith("?") else name    # "not loaded by default"
    if name in _EXACT_OR_TARGET:
        return _EXACT_OR_TARGET[name], "", _SLEEPABLE if name == "syscall" else 0
    head, _, target = name.partition("/")
    if head in _EXACT_OR_TARGET:
        return _EXACT_OR_TARGET[head], target, 0
    if head.endswith(".s") and head[:-2] in _EXACT_OR_TARGET:
        return _EXACT_OR_TARGET[head[:-2]], target, _SLEEPABLE
    first_two, _, target = name.rpartition("/")
    if first_two in _EXACT_OR_TARGET:
        return _EXACT_OR_TARGET[first_two], target, 0
    return None


def of_type(text):
    """The same for --type: a program type by the kernel's name, or anything that a section may be called."""
    from rawbpf.loader.uapi import PROG_TYPES
    if text in PROG_TYPES and text != "unspec":
        return Kind(text, _DEFAULT.get(text)), "", _SLEEPABLE if text == "syscall" else 0
    return of_section(text)


def load_options(kind, target, flags):
    """Keywords of Program.load. ValueError when the target cannot be had."""
    options = {"flags": flags}
    if kind.attach:
        options["expected_attach_type"] = kind.attach
    if kind.btf:
        from rawbpf.loader import ksyms
        what, _, prefix = kind.btf.partition(":")
        if not target:
            raise ValueError("a program of this kind is verified against what it is attached to: name it, as in "
                             ".section fentry/do_nanosleep")
        found = ksyms.find(prefix + target, what)
        if found is None:
            raise ValueError("the kernel's BTF has no %s" % target)
        options["attach_btf_id"] = found[0]
        if found[1]:
            from rawbpf.loader.btf import BtfObject
            options["attach_btf_obj"] = BtfObject.of_module(found[1])
    return options
