"""A machine full of BPF objects: one at least of every map, program and link type that the kernel takes.

`with Population(cgroup) as host:` makes them in a network of their own; `.maps`, `.programs`, `.links` by name, and
in `.refused` {what: error} what this kernel would not have.
"""

import contextlib
import ctypes
import os
import struct

from rawbpf.loader import BtfObject, KernelError, Map, Object, PerfEvent, Program, features, kernel, ksyms, link, link_net, perf
from rawbpf.loader.btf import function_types
from rawbpf.loader.detached import mount
from rawbpf.loader.errors import ObjectError
from tests.bpfcc import compile_bpf
from tests.loader import code
from tests.loader.interfaces import pair

CLONE_NEWNET = 0x40000000
LO = 1          # of every network namespace
STRINGS = b"\0int\0a\0b\0s\0char\0RED\0color\0unsigned int\0_Bool\0.data\0v\0long\0"


def at(name):
    return STRINGS.index(b"\0" + name + b"\0") + 1


def info(kind, count=0, flag=0):
    return flag << 31 | kind << 24 | count


def types():
    """1 int; 2 char; 3 char[8]; 4 enum; 5 unsigned; 6 bool; 7 pointer to 8; 8 struct s of all; 9 int[2][2] by 10."""
    pack = struct.pack
    out = pack("<IIII", at(b"int"), info(1), 4, 1 << 24 | 32)
    out += pack("<IIII", at(b"char"), info(1), 1, 1 << 24 | 8)
    out += pack("<IIIIII", 0, info(3), 0, 2, 1, 8)
    out += pack("<IIIII", at(b"color"), info(6, 1), 4, at(b"RED"), 3)
    out += pack("<IIII", at(b"unsigned int"), info(1), 4, 32)
    out += pack("<IIII", at(b"_Bool"), info(1), 1, 4 << 24 | 8)
    out += pack("<III", 0, info(2), 8)
    members = [("a", 1, 0, 0), ("b", 3, 32, 0), ("v", 4, 96, 0), ("a", 5, 128, 3), ("b", 5, 131, 29), ("v", 6, 160, 0),
               ("s", 7, 192, 0), ("a", 9, 256, 0), ("b", 2, 384, 0)]
    out += pack("<III", at(b"s"), info(4, len(members), 1), 56)
    for name, kind, bit, size in members:
        out += pack("<III", at(name.encode()), kind, size << 24 | bit)
    out += pack("<IIIIII", 0, info(3), 0, 10, 1, 2)
    out += pack("<IIIIII", 0, info(3), 0, 1, 1, 2)
    return pack("<HBBIIIII", 0xeb9f, 1, 0, 24, 0, len(out), len(out), len(STRINGS)) + out + STRINGS


VALUES = (struct.pack("=i8siIBxxxQ4iB7x", -7, b"text\0xyz", 3, 5 | 9 << 3, 1, 0x1234, 1, -2, 3, 4, 65),
          struct.pack("=i8siIBxxxQ4iB7x", 0, b"\xff" * 8, 4, 0, 0, 0, 0, 0, 0, 0, 1))

MAPS = {    # name: type, key size, value size, elements, flags
    "hash": ("hash", 4, 8, 10, 0), "array": ("array", 4, 24, 2, 0), "percpu_array": ("percpu_array", 4, 8, 1, 0),
    "percpu_hash": ("percpu_hash", 20, 20, 3, 0), "lru_hash": ("lru_hash", 4, 4, 4, 0),
    "lru_percpu_hash": ("lru_percpu_hash", 4, 8, 4, 0), "lpm_trie": ("lpm_trie", 8, 4, 4, 1),
    "queue": ("queue", 0, 4, 2, 0), "stack": ("stack", 0, 4, 2, 0), "ringbuf": ("ringbuf", 0, 0, 4096, 0),
    "stack_trace": ("stack_trace", 4, 64, 2, 0), "bloom_filter": ("bloom_filter", 0, 4, 8, 0),
    "perf_event_array": ("perf_event_array", 4, 4, 2, 0), "prog_array": ("prog_array", 4, 4, 4, 0),
    "cgroup_array": ("cgroup_array", 4, 4, 2, 0), "devmap": ("devmap", 4, 4, 2, 0), "devmap_hash": ("devmap_hash", 4, 8, 2, 0),
    "cpumap": ("cpumap", 4, 4, 2, 0), "xskmap": ("xskmap", 4, 4, 2, 0), "sockmap": ("sockmap", 4, 4, 2, 0),
    "sockhash": ("sockhash", 8, 8, 2, 0), "reuseport_sockarray": ("reuseport_sockarray", 4, 8, 2, 0),
    "cgroup_storage": ("cgroup_storage", 16, 8, 0, 0), "percpu_cgroup_storage": ("percpu_cgroup_storage", 16, 8, 0, 0),
    "sk_storage": ("sk_storage", 4, 8, 0, 0), "inode_storage": ("inode_storage", 4, 8, 0, 0),
    "task_storage": ("task_storage", 4, 8, 0, 0), "cgrp_storage": ("cgrp_storage", 4, 8, 0, 0),
    "user_ringbuf": ("user_ringbuf", 0, 0, 4096, 0), "arena": ("arena", 0, 0, 2, 1 << 10),
    "insn_array": ("insn_array", 4, 16, 1, 0), "rhash": ("rhash", 4, 8, 4, 1),
    "mmapable": ("array", 4, 8, 1, 1 << 10),
}

OK = code.mov(0, 1) + code.EXIT
PROGRAMS = {    # name: type, instructions, expected attach type, function that it is for
    "socket_filter": ("socket_filter",), "kprobe": ("kprobe",), "sched_cls": ("sched_cls",), "sched_act": ("sched_act",),
    "tracepoint": ("tracepoint",), "xdp": ("xdp", code.mov(0, 2) + code.EXIT), "perf_event": ("perf_event",),
    "cgroup_skb": ("cgroup_skb", OK, "cgroup_inet_egress"), "cgroup_sock": ("cgroup_sock", OK, "cgroup_inet_sock_create"),
    "lwt_in": ("lwt_in",), "lwt_out": ("lwt_out",), "lwt_xmit": ("lwt_xmit",), "sock_ops": ("sock_ops", OK, "cgroup_sock_ops"),
    "sk_skb": ("sk_skb", OK), "verdict": ("sk_skb", OK, "sk_skb_verdict"), "cgroup_device": ("cgroup_device", OK, "cgroup_device"),
    "sk_msg": ("sk_msg", OK, "sk_msg_verdict"), "raw_tracepoint": ("raw_tracepoint",),
    "cgroup_sock_addr": ("cgroup_sock_addr", OK, "cgroup_inet4_connect"), "lwt_seg6local": ("lwt_seg6local",),
    "lirc_mode2": ("lirc_mode2",), "sk_reuseport": ("sk_reuseport", OK), "flow_dissector": ("flow_dissector",),
    "cgroup_sysctl": ("cgroup_sysctl", OK, "cgroup_sysctl"), "raw_tracepoint_writable": ("raw_tracepoint_writable",),
    "cgroup_sockopt": ("cgroup_sockopt", OK, "cgroup_getsockopt"), "sk_lookup": ("sk_lookup", OK, "sk_lookup"),
    "syscall": ("syscall",), "netfilter": ("netfilter", OK, "netfilter"), "tcx": ("sched_cls", code.RETURN_0, "tcx_ingress"),
    "netkit": ("sched_cls", code.RETURN_0, "netkit_primary"),
    "iter": ("tracing", code.RETURN_0, "trace_iter", "bpf_iter_task"),
    "iter_map": ("tracing", code.RETURN_0, "trace_iter", "bpf_iter_bpf_map_elem"),
    "iter_cgroup": ("tracing", code.RETURN_0, "trace_iter", "bpf_iter_cgroup"),
    "fentry": ("tracing", code.RETURN_0, "trace_fentry", "ksys_read"),
    "fexit": ("tracing", code.RETURN_0, "trace_fexit", "ksys_read"),
    "fsession": ("tracing", code.RETURN_0, "trace_fsession", "ksys_read"),
    "modify_return": ("tracing", code.RETURN_0, "modify_return", "bpf_modify_return_test"),
    "tp_btf": ("tracing", code.RETURN_0, "trace_raw_tp", "btf_trace_sched_switch"),
    "lsm": ("lsm", code.RETURN_0, "lsm_mac", "bpf_lsm_file_open"),
    "lsm_cgroup": ("lsm", OK, "lsm_cgroup", "bpf_lsm_socket_bind"),
    "kprobe_multi": ("kprobe", code.RETURN_0, "trace_kprobe_multi"),
    "kprobe_session": ("kprobe", code.RETURN_0, "trace_kprobe_session"),
    "uprobe_multi": ("kprobe", code.RETURN_0, "trace_uprobe_multi"),
    "fentry_multi": ("tracing", code.RETURN_0, "trace_fentry_multi"),
}
TYPED = ("hash", "percpu_hash", "array", "lru_hash")
PLACES = __file__       # for uprobes: a file that nobody runs


def _tracepoint(group, name):
    from rawbpf.sources.tracefs import tracefs
    fd = os.open("events/%s/%s/id" % (group, name), os.O_RDONLY, dir_fd=tracefs().dir_fd)
    with open(fd) as file:
        return int(file.read())



class Population:
    """cgroup: a directory of a cgroup2 file system."""

    def __init__(self, cgroup):
        self.cgroup = cgroup
        self.maps, self.programs, self.links, self.events, self.refused = {}, {}, {}, [], {}

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.keep, self._undo = stack.enter_context, stack.callback
            self._network()
            self._make_maps()
            self._make_programs()
            self._make_links()
            self._make_struct_ops()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _network(self):
        own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        self._undo(os.close, own)
        self._undo(libc.setns, own, CLONE_NEWNET)

    def _try(self, group, name, make):
        """Keeps what make() makes in a group, or what the kernel says against it."""
        try:
            made = self.keep(make())
        except (KernelError, ObjectError, ValueError) as error:
            self.refused[name] = error
            return None
        group[name] = made
        return made

    def _make_maps(self):
        for name, (kind, key, value, entries, flags) in MAPS.items():
            self._try(self.maps, name, lambda: Map.create(kind, key, value, entries, name=name[:15], flags=flags))
        maps = self.maps
        for kind in ("array_of_maps", "hash_of_maps"):
            outer = self._try(maps, kind, lambda: Map.create(kind, 4, 4, 3, inner_map=maps["hash"], name=kind[:5]))
            outer.update(1, maps["hash"])
        maps["hash"].update(b"\1\2\3\4", bytes(8))
        maps["percpu_hash"].update(bytes(range(20)), bytes(range(20)))
        maps["lpm_trie"].update(b"\x18\0\0\0\x0a\0\0\0", b"\1\1\1\1")
        for kind in ("queue", "stack"):
            maps[kind].push(b"abcd")
        typed = self.keep(BtfObject.load(types()))
        for kind in TYPED:
            item = self._try(maps, "t_" + kind, lambda: Map.create(
                kind, 4, 56, 4, name="t_" + kind, btf=typed, btf_key_type_id=1, btf_value_type_id=8))
            for number, value in enumerate(VALUES):
                item.update(struct.pack("=i", number), value)

    def _make_programs(self):
        maps = self.maps
        main = code.map_fd(1, maps["hash"]) + code.mov_reg(2, 10) + code.store_imm(10, -4, 0, 4) + code.alu(0, 2, -4) \
            + code.call(code.LOOKUP) + code.mov(1, 0) + code.insn(0x85, 0, 1, 0, 1) + code.EXIT + code.mov(0, 1) \
            + code.store_imm(10, -4, 0, 4) + code.insn(0xc3, 10, 0, -4, int(kernel.release() >= (5, 12))) + code.RETURN_0
        blob, functions = function_types([("main", 0), ("second", 9)])
        name = struct.pack("<I", blob.index(b"\0second\0") + 1 - 24 - struct.unpack_from("<I", blob, 16)[0])
        # of global linkage, without which it could not be replaced
        blob = blob.replace(name + struct.pack("<I", info(12)), name + struct.pack("<I", info(12, 1)))
        strings = len(blob) - blob.index(b"\0long\0")
        lines = struct.pack("=IIII", 0, strings - 5, strings - 5, 7 << 10 | 3) + struct.pack("=IIII", 9, 0, 1, 9 << 10 | 1)
        described = self.keep(BtfObject.load(blob))
        self._try(self.programs, "two", lambda: Program.load(
            "socket_filter", main, name="t_two", btf=described, func_info=functions, line_info=(16, lines)))
        inline = b"".join(code.lookup(maps[name], 6) for name in ("array", "percpu_array", "lru_hash")) + code.RETURN_0
        self._try(self.programs, "inlined", lambda: Program.load("socket_filter", inline, name="t_inlined"))
        for name, (kind, *more) in PROGRAMS.items():
            text, attach, function = (more + [None] * 3)[:3]
            self._try(self.programs, name, lambda: self._program(name, kind, text or code.RETURN_0, attach, function))
        described_too = self._try(self.programs, "described", self._described)
        if described_too is not None:
            self.maps["rodata"] = self._object.maps[".rodata"].map
        self._try(self.programs, "ext", lambda: Program.load(
            "ext", code.RETURN_0, name="t_ext", attach_btf_id=self.programs["two"].func_info()[1][1],
            attach_prog=self.programs["two"], btf=described,
            func_info=(8, struct.pack("=I", 0) + functions[1][12:16]), license="GPL"))
        maps["prog_array"].update(0, self.programs["inlined"])      # not one that is extended, which cannot be called so

    def _described(self):
        """A program that says something of itself."""
        self._object = self.keep(Object.open(compile_bpf("metadata.c")).load())
        return self._object.programs["described"].program

    @staticmethod
    def _program(name, kind, text, attach, function):
        options = {}
        if function:
            found = ksyms.find(function, "typedef" if function.startswith("btf_trace_") else "func")
            if not found:
                raise ValueError("the kernel has no %s" % function)
            options["attach_btf_id"] = found[0]
        if kind == "syscall":
            options["flags"] = 1 << 4       # sleepable
        return Program.load(kind, text, name="t_" + name[:13], expected_attach_type=attach,
                            license="MIT" if name == "kprobe" else "GPL", **options)

    def _make_links(self):
        group = self.keep(link_net.open_path(self.cgroup))
        programs, lo, namespace = self.programs, LO, self.keep(link_net.open_path("/proc/self/ns/net"))

        def event(config):
            opened = PerfEvent.open(config, -1, 0)
            self.events.append(opened)
            return opened
        makes = {
            "raw_tracepoint": lambda p: link.attach_raw_tracepoint(p, "sched_switch"),
            "tp_btf": link.attach_tracing, "fentry": link.attach_tracing, "fexit": link.attach_tracing,
            "fsession": link.attach_tracing, "modify_return": link.attach_tracing, "lsm": link.attach_tracing,
            "kprobe_multi": lambda p: link.attach_kprobe_multi(p, ["ksys_read", "ksys_write"], cookies=[9, 8]),
            "kprobe_session": lambda p: link.attach_kprobe_multi(p, ["ksys_read"], session=True),
            "uprobe_multi": lambda p: link.attach_uprobe_multi(p, PLACES, [0x20, 0x30], cookies=[5, 6]),
            "xdp": lambda p: link_net.attach_xdp(p, lo), "sk_lookup": lambda p: link_net.attach_netns(p, namespace, "sk_lookup"),
            "flow_dissector": lambda p: link_net.attach_netns(p, namespace, "flow_dissector"),
            "perf_event": lambda p: link.attach_perf_event(p, event(perf.software("cpu_clock", 10**9)), cookie=7),
            "tcx": lambda p: link_net.attach_tcx(p, lo, "tcx_ingress"),
            "netkit": lambda p: link_net.attach_netkit(p, pair("netkit", "pnk0", "pnk1")[0], "netkit_primary"),
            "netfilter": lambda p: link_net.attach_netfilter(p, priority=5),
            "cgroup_skb": lambda p: link_net.attach_cgroup(p, group, "cgroup_inet_egress"),
            "cgroup_sock_addr": lambda p: link_net.attach_cgroup(p, group, "cgroup_inet4_connect"),
            "lsm_cgroup": lambda p: link_net.attach_cgroup(p, group, "lsm_cgroup"),
            "sk_msg": lambda p: link_net.attach_sockmap(p, self.maps["sockmap"], "sk_msg_verdict"),
            "verdict": lambda p: link_net.attach_sockmap(p, self.maps["sockhash"], "sk_skb_verdict"),
            "ext": link.attach_tracing, "iter": link.attach_iter,
            "iter_map": lambda p: link.attach_iter(p, link.iter_info(map=self.maps["hash"])),
            "iter_cgroup": lambda p: link.attach_iter(p, link.iter_info(cgroup=group, order=3)),
            "fentry_multi": lambda p: link.attach_tracing_multi(p, "trace_fentry_multi", [
                ksyms.find(name, "func")[0] for name in ("ksys_read", "ksys_write")]),
        }
        for name, make in makes.items():
            if name in programs:
                self._try(self.links, name, lambda: make(programs[name]))
        more = {
            "raw_tracepoint": lambda p: link.attach_raw_tracepoint(p, "sched_switch", cookie=11),
            "tp_btf": lambda p: link.attach_raw_tracepoint(p, cookie=12), "fentry": lambda p: link.attach_tracing(p, cookie=13),
            "iter": lambda p: link.attach_iter(p, link.iter_info(pid=os.getpid())),
            "iter_cgroup": lambda p: link.attach_iter(p, link.iter_info(cgroup=group, order=1)),
            "netfilter": lambda p: link_net.attach_netfilter(p, "ipv6", "forward", -7, defragment=True),
            "kprobe_multi": lambda p: link.attach_kprobe_multi(p, ["ksys_write"], retprobe=True),
            "uprobe_multi": lambda p: link.attach_uprobe_multi(p, PLACES, [0x28], pid=os.getpid(), retprobe=True),
        }
        for name, make in more.items():
            if name in programs:
                self._try(self.links, name + " 2", lambda: make(programs[name]))
        if "iter" in programs:
            self._try(self.links, "iter 3", lambda: link.attach_iter(programs["iter"], link.iter_info(tid=os.getpid())))
        self._try(self.links, "tracepoint", lambda: link.attach_perf_event(
            programs["tracepoint"], event(perf.tracepoint(_tracepoint("sched", "sched_switch"))), cookie=14))
        for number, (kind, config) in enumerate(((perf.TYPE_SOFTWARE, 2), (perf.TYPE_SOFTWARE, 99), (perf.TYPE_HARDWARE, 0),
                                                 (perf.TYPE_HW_CACHE, 1 << 16 | 3))):
            self._try(self.links, "perf_event %d" % number, lambda: link.attach_perf_event(
                programs["perf_event"], event(perf.counter("of the test", kind, config))))
        self._detached()
        for name, config in (("uprobe", perf.uprobe(PLACES, 0x10)), ("uprobe 2", perf.uprobe(PLACES, 0x18, ref_ctr_offset=0x40)),
                             ("uretprobe", perf.uprobe(PLACES, 0x10, retprobe=True))):
            self._try(self.links, name, lambda: link.attach_perf_event(programs["kprobe"], event(config)))
        for name, retprobe in (("kprobe", False), ("kretprobe", True)):
            self._try(self.links, name, lambda: link.attach_perf_event(
                programs["kprobe"], event(perf.kprobe("ksys_read", retprobe=retprobe)), cookie=None if retprobe else 3))
        # without a link
        link_net.prog_attach(programs["cgroup_device"], group, "cgroup_device")
        self._undo(link_net.prog_detach, programs["cgroup_device"], group, "cgroup_device")

    def _detached(self):
        """Links whose interface has gone."""
        from rawbpf.loader.netlink import Socket
        try:
            index = pair("veth", "pv0", "pv1")[0]
        except KernelError as error:
            self.refused["veth"] = error
            return
        for name in ("xdp", "tcx"):
            if name in self.programs:
                self._try(self.links, name + " detached", lambda: link_net.attach_xdp(self.programs[name], index)
                          if name == "xdp" else link_net.attach_tcx(self.programs[name], index, "tcx_ingress"))
        with Socket() as netlink:
            list(netlink.ask("del link", 17, 0x5, struct.pack("=BxHiII", 0, 0, index, 0, 0)))       # RTM_DELLINK, ack

    def _make_struct_ops(self):
        """By a link where the kernel has those: then it does not outlive this process, whatever becomes of it."""
        wanted = "linked" if features.has_link("struct_ops") else "plain"
        try:
            loaded = self.keep(Object.open(compile_bpf("struct_ops.c")))
            for each in loaded.struct_ops:
                each.autocreate = each.name == wanted
            loaded.load()
            chosen = next(each for each in loaded.struct_ops if each.name == wanted)
            attached = self.keep(chosen.attach())
        except (KernelError, ObjectError) as error:
            self.refused["struct_ops"] = error
            return
        self.maps["struct_ops"] = chosen.map
        if wanted == "linked":
            self.links["struct_ops"] = attached
        self.programs.update((name, one.program) for name, one in loaded.programs.items() if one.program is not None)


@contextlib.contextmanager
def populated():
    """A Population with a control group of its own."""
    fd = mount("cgroup2")
    path = "/proc/%d/fd/%d/t_populated_%d" % (os.getpid(), fd, os.getpid())
    os.mkdir(path)
    try:
        with Population(path) as made:
            yield made
    finally:
        os.rmdir(path)
        os.close(fd)
