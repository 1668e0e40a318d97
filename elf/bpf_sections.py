"""Section names of BPF objects: what a program's section says about its type and where it attaches.

The conventions are libbpf's (documentation: libbpf "program types"). A name ending in "+" stands alone or
is followed by "/" and what it attaches to; others are exact. A "?" in front means: not loaded unless
asked for.
"""

from typing import NamedTuple


class SectionType(NamedTuple):
    """`program_type` and `attach_type` (None: none) by the kernel's names; `attach` says how libbpf
    attaches it by itself ("" when it needs a target that the object does not name); `options`: "sleepable",
    "frags" (XDP), "btf" (the target is a BTF id), "usdt"."""

    prefix: str
    program_type: str
    attach_type: object
    attach: str
    options: frozenset


_TABLE = """
socket                    socket_filter
sk_reuseport/migrate      sk_reuseport    sk_reuseport_select_or_migrate
sk_reuseport              sk_reuseport    sk_reuseport_select
kprobe+                   kprobe          -                       kprobe
uprobe+                   kprobe          -                       uprobe
uprobe.s+                 kprobe          -                       uprobe          sleepable
kretprobe+                kprobe          -                       kprobe
uretprobe+                kprobe          -                       uprobe
uretprobe.s+              kprobe          -                       uprobe          sleepable
kprobe.multi+             kprobe          trace_kprobe_multi      kprobe_multi
kretprobe.multi+          kprobe          trace_kprobe_multi      kprobe_multi
kprobe.session+           kprobe          trace_kprobe_session    kprobe_multi
uprobe.multi+             kprobe          trace_uprobe_multi      uprobe_multi
uretprobe.multi+          kprobe          trace_uprobe_multi      uprobe_multi
uprobe.session+           kprobe          trace_uprobe_session    uprobe_multi
uprobe.multi.s+           kprobe          trace_uprobe_multi      uprobe_multi    sleepable
uretprobe.multi.s+        kprobe          trace_uprobe_multi      uprobe_multi    sleepable
uprobe.session.s+         kprobe          trace_uprobe_session    uprobe_multi    sleepable
ksyscall+                 kprobe          -                       ksyscall
kretsyscall+              kprobe          -                       ksyscall
usdt+                     kprobe          -                       usdt            usdt
usdt.s+                   kprobe          -                       usdt            usdt,sleepable
tc/ingress                sched_cls       tcx_ingress
tc/egress                 sched_cls       tcx_egress
tcx/ingress               sched_cls       tcx_ingress
tcx/egress                sched_cls       tcx_egress
tc                        sched_cls
classifier                sched_cls
action                    sched_act
netkit/primary            sched_cls       netkit_primary
netkit/peer               sched_cls       netkit_peer
tracepoint+               tracepoint      -                       tracepoint
tp+                       tracepoint      -                       tracepoint
tracepoint.s+             tracepoint      -                       tracepoint      sleepable
tp.s+                     tracepoint      -                       tracepoint      sleepable
raw_tracepoint+           raw_tracepoint  -                       raw_tracepoint
raw_tp+                   raw_tracepoint  -                       raw_tracepoint
raw_tracepoint.s+         raw_tracepoint  -                       raw_tracepoint  sleepable
raw_tp.s+                 raw_tracepoint  -                       raw_tracepoint  sleepable
raw_tracepoint.w+         raw_tracepoint_writable -               raw_tracepoint
raw_tp.w+                 raw_tracepoint_writable -               raw_tracepoint
tp_btf+                   tracing         trace_raw_tp            tracing         btf
tp_btf.s+                 tracing         trace_raw_tp            tracing         btf,sleepable
fentry+                   tracing         trace_fentry            tracing         btf
fmod_ret+                 tracing         modify_return           tracing         btf
fexit+                    tracing         trace_fexit             tracing         btf
fentry.s+                 tracing         trace_fentry            tracing         btf,sleepable
fmod_ret.s+               tracing         modify_return           tracing         btf,sleepable
fexit.s+                  tracing         trace_fexit             tracing         btf,sleepable
fsession+                 tracing         trace_fsession          tracing         btf
fsession.s+               tracing         trace_fsession          tracing         btf,sleepable
fsession.multi+           tracing         trace_fsession_multi    tracing_multi
fsession.multi.s+         tracing         trace_fsession_multi    tracing_multi   sleepable
fentry.multi+             tracing         trace_fentry_multi      tracing_multi
fexit.multi+              tracing         trace_fexit_multi       tracing_multi
fentry.multi.s+           tracing         trace_fentry_multi      tracing_multi   sleepable
fexit.multi.s+            tracing         trace_fexit_multi       tracing_multi   sleepable
freplace+                 ext             -                       tracing         btf
lsm+                      lsm             lsm_mac                 tracing         btf
lsm.s+                    lsm             lsm_mac                 tracing         btf,sleepable
lsm_cgroup+               lsm             lsm_cgroup              -               btf
iter+                     tracing         trace_iter              iter            btf
iter.s+                   tracing         trace_iter              iter            btf,sleepable
syscall                   syscall         -                       -               sleepable
xdp.frags/devmap          xdp             xdp_devmap              -               frags
xdp/devmap                xdp             xdp_devmap
xdp.frags/cpumap          xdp             xdp_cpumap              -               frags
xdp/cpumap                xdp             xdp_cpumap
xdp.frags                 xdp             xdp                     -               frags
xdp                       xdp             xdp
perf_event                perf_event
lwt_in                    lwt_in
lwt_out                   lwt_out
lwt_xmit                  lwt_xmit
lwt_seg6local             lwt_seg6local
sockops                   sock_ops        cgroup_sock_ops
sk_skb/stream_parser      sk_skb          sk_skb_stream_parser
sk_skb/stream_verdict     sk_skb          sk_skb_stream_verdict
sk_skb/verdict            sk_skb          sk_skb_verdict
sk_skb                    sk_skb
sk_msg                    sk_msg          sk_msg_verdict
lirc_mode2                lirc_mode2      lirc_mode2
flow_dissector            flow_dissector  flow_dissector
cgroup_skb/ingress        cgroup_skb      cgroup_inet_ingress
cgroup_skb/egress         cgroup_skb      cgroup_inet_egress
cgroup/skb                cgroup_skb
cgroup/sock_create        cgroup_sock     cgroup_inet_sock_create
cgroup/sock_release       cgroup_sock     cgroup_inet_sock_release
cgroup/sock               cgroup_sock     cgroup_inet_sock_create
cgroup/post_bind4         cgroup_sock     cgroup_inet4_post_bind
cgroup/post_bind6         cgroup_sock     cgroup_inet6_post_bind
cgroup/bind4              cgroup_sock_addr cgroup_inet4_bind
cgroup/bind6              cgroup_sock_addr cgroup_inet6_bind
cgroup/connect4           cgroup_sock_addr cgroup_inet4_connect
cgroup/connect6           cgroup_sock_addr cgroup_inet6_connect
cgroup/connect_unix       cgroup_sock_addr cgroup_unix_connect
cgroup/sendmsg4           cgroup_sock_addr cgroup_udp4_sendmsg
cgroup/sendmsg6           cgroup_sock_addr cgroup_udp6_sendmsg
cgroup/sendmsg_unix       cgroup_sock_addr cgroup_unix_sendmsg
cgroup/recvmsg4           cgroup_sock_addr cgroup_udp4_recvmsg
cgroup/recvmsg6           cgroup_sock_addr cgroup_udp6_recvmsg
cgroup/recvmsg_unix       cgroup_sock_addr cgroup_unix_recvmsg
cgroup/getpeername4       cgroup_sock_addr cgroup_inet4_getpeername
cgroup/getpeername6       cgroup_sock_addr cgroup_inet6_getpeername
cgroup/getpeername_unix   cgroup_sock_addr cgroup_unix_getpeername
cgroup/getsockname4       cgroup_sock_addr cgroup_inet4_getsockname
cgroup/getsockname6       cgroup_sock_addr cgroup_inet6_getsockname
cgroup/getsockname_unix   cgroup_sock_addr cgroup_unix_getsockname
cgroup/sysctl             cgroup_sysctl   cgroup_sysctl
cgroup/getsockopt         cgroup_sockopt  cgroup_getsockopt
cgroup/setsockopt         cgroup_sockopt  cgroup_setsockopt
cgroup/dev                cgroup_device   cgroup_device
struct_ops+               struct_ops
struct_ops.s+             struct_ops      -                       -               sleepable
sk_lookup                 sk_lookup       sk_lookup
netfilter                 netfilter       netfilter
"""


def _read(text):
    table = []
    for line in text.split("\n"):
        words = (line.split() + ["-"] * 4)[:5]
        if line:
            words = [None if word == "-" else word for word in words]
            table.append(SectionType(words[0], words[1], words[2], words[3] or "",
                                     frozenset((words[4] or "").split(",")) - {""}))
    return tuple(table)


TABLE = _read(_TABLE)


def classify(section):
    """(SectionType, target) of a section name: "kprobe/do_exit" -> (..., "do_exit"). (None, "") when the
    name is not known. A leading "?" is passed over."""
    name = section.lstrip("?")
    for row in TABLE:
        if row.prefix.endswith("+"):
            prefix = row.prefix[:-1]
            if name == prefix:
                return row, ""
            if name.startswith(prefix + "/"):
                return row, name[len(prefix) + 1:]
        elif name == row.prefix:
            return row, ""
    return None, ""
