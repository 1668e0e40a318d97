"""Programs that the verifier must refuse, by kind of refusal. Each is a `Refused`: the program type, the text, and
the mistake: the line that ends in `; !` is the instruction that is wrong (none: the program as a whole is).

What is wrong with each was decided when it was written; the verifier only has to agree. Older kernels, which do not
know a form or check it in another way, are listed: `older` has what they say instead.

    python -m tests.tools.refused [KIND...]      all of them on this kernel: what is not explained as it must be
"""

from collections import namedtuple

Refused = namedtuple("Refused", "kind type text license strict weak older newer")
Refused.__doc__ = """older: ((version, what kernels before it say), ...): a kind, "accepted", or "error": it does not come as far.
newer: the same for kernels from a version on."""

# What in a text: since when kernels say what they should, and what the older ones say.
OLDER = (
    ("addr_space_cast", (6, 9), "bad-instruction"), ("gotol", (6, 6), "bad-instruction"),
    ("dynptr", (5, 19), "unknown-function"), ("timer_", (5, 15), "unknown-function"),
    ("kptr_xchg", (5, 19), "unknown-function"), ("task_btf", (5, 11), "unknown-function"),
    (".kfunc bpf_task", (6, 2), "error"), (".kfunc bpf_rcu", (6, 2), "error"), (".kfunc bpf_preempt", (6, 9), "error"),
    (".kfunc bpf_throw", (6, 7), "error"), ("func[", (5, 13), "btf"), ("copy_from_user", (6, 2), "helper-not-allowed"),
)

# Maps that any program here may name.
MAPS = """
.map m hash key=4 value=16 max_entries=4
.map ring ringbuf max_entries=4096
.map fixed array key=4 value=16 max_entries=1 flags=128
.map stacks stack_trace key=4 value=8 max_entries=4
.map jumps prog_array key=4 value=4 max_entries=4
.map events perf_event_array key=4 value=4 max_entries=1
.map written array key=4 value=16 max_entries=1 flags=256
"""
LOOKUP = "*(u32 *)(r10 - 4) = 0\nr2 = r10\nr2 += -4\nr1 = map[m] ll\ncall bpf_map_lookup_elem\n"
FOUND = LOOKUP + "if r0 == 0 goto out\n"
OUT = "\nout: r0 = 0\nexit\n"
RANDOM = "call bpf_get_prandom_u32\n"
RESERVE = "r1 = map[ring] ll\nr2 = 16\nr3 = 0\ncall bpf_ringbuf_reserve\n"
PACKET = {"xdp": "r2 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 4)\n", "sched_cls": "r2 = *(u32 *)(r1 + 76)\nr3 = *(u32 *)(r1 + 80)\n"}
SIZES = (("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8))

ALL = []


def add(kind, type, text, license="GPL", strict=True, weak=False, older=(), newer=()):
    """weak: loaded with CAP_BPF alone. older: [(version, what kernels before it say), ...]; newer: from it on."""
    known = [(since, told) for part, since, told in OLDER if part in text and told != kind]
    if type == "netfilter":
        known.append(((6, 4), "error"))
    # what does not come as far as the verifier hears nothing of it
    ordered = sorted([*known, *older], key=lambda each: (each[1] != "error", each[0]))
    ALL.append(Refused(kind, type, text, license, strict, weak, tuple(ordered), tuple(newer)))


def expected(case, release):
    """What a kernel says of a case: its kind, or what the list has for so old a one."""
    newer = [told for since, told in case.newer if release >= since]
    return newer[-1] if newer else next((told for since, told in case.older if release < since), case.kind)


def registers():
    kind = "uninitialised-register"
    for n in range(2, 10):
        add(kind, "socket_filter", "r0 = r%d ; !\nexit" % n)
    for n in range(1, 6):
        add(kind, "kprobe", RANDOM + "r0 = r%d ; !\nexit" % n)
    add(kind, "xdp", "r6 = r0 ; !\nr0 = 2\nexit")
    add(kind, "xdp", RANDOM + "if r0 == 0 goto skip\nr7 = 1\nskip: r7 += 1 ; !\nr0 = 2\nexit")
    add(kind, "tracepoint", RANDOM + "if r0 > 7 goto skip\nr7 = 1\nskip: *(u64 *)(r10 - 8) = r7 ; !\nr0 = 0\nexit")
    add(kind, "sched_cls", RANDOM + "if r0 == r8 goto out ; !" + OUT)
    add(kind, "socket_filter", "r6 = 1\ncall f\nexit\nf: r0 = r6 ; !\nexit")
    add(kind, "kprobe", "r1 = 0\nr2 = r10\ncall bpf_map_lookup_elem_r3\nexit".replace("call bpf_map_lookup_elem_r3", "r0 = *(u8 *)(r5 + 0) ; !"))
    for type in ("xdp", "socket_filter", "kprobe", "tracepoint"):
        add("no-return-value", type, "exit ; !")
    add("no-return-value", "perf_event", "r6 = 1\ngoto end\nend: exit ; !")
    add("no-return-value", "raw_tracepoint", "r6 = *(u64 *)(r1 + 0)\nif r6 == 0 goto end\nr0 = 0\nend: exit ; !")


def null_checks():
    kind = "null-check"
    for name, _ in SIZES:
        add(kind, "kprobe", LOOKUP + "r1 = *(%s *)(r0 + 0) ; !" % name + OUT)
        add(kind, "xdp", LOOKUP + "*(%s *)(r0 + 8) = 1 ; !" % name + OUT)
    add(kind, "socket_filter", LOOKUP + "r0 += 8 ; !" + OUT)
    add(kind, "tracepoint", LOOKUP + "r1 = 1\nlock *(u64 *)(r0 + 0) += r1 ; !" + OUT)
    add(kind, "sched_cls", LOOKUP + "r6 = r0\nr1 = *(u32 *)(r6 + 4) ; !" + OUT)
    add(kind, "kprobe", RESERVE + "*(u64 *)(r0 + 0) = 1 ; !" + OUT)
    add(kind, "kprobe", LOOKUP + "r1 = map[m] ll\nr2 = r10\nr2 += -4\nr3 = r0\nr4 = 0\ncall bpf_map_update_elem ; !" + OUT)
    add(kind, "perf_event", RESERVE + "r1 = r0\nr2 = 0\ncall bpf_ringbuf_submit ; !" + OUT)


def map_values():
    kind = "out-of-bounds-map-value"
    for name, size in SIZES:
        add(kind, "kprobe", FOUND + "r1 = *(%s *)(r0 + %d) ; !" % (name, 17 - size) + OUT)
        add(kind, "xdp", FOUND + "*(%s *)(r0 - %d) = 0 ; !" % (name, size) + OUT)
    add(kind, "tracepoint", FOUND + "r6 = r0\n" + RANDOM + "r0 &= 31\nr6 += r0\nr1 = *(u8 *)(r6 + 0) ; !" + OUT)
    add(kind, "tracepoint", FOUND + "r6 = r0\n" + RANDOM + "if r0 > 16 goto out\nr6 += r0\n*(u8 *)(r6 + 0) = 1 ; !" + OUT)
    add(kind, "kprobe", FOUND + "r1 = r0\nr2 = 17\ncall bpf_get_current_comm ; !" + OUT)
    add(kind, "kprobe", FOUND + "r1 = 1\nlock *(u64 *)(r0 + 16) += r1 ; !" + OUT)
    callback = "r1 = map[m] ll\nr2 = func[each] ll\nr3 = 0\nr4 = 0\ncall bpf_for_each_map_elem\nr0 = 0\nexit\neach: r0 = *(%s *)(r%d + %d) ; !\nr0 = 0\nexit"
    add("out-of-bounds-map-key", "kprobe", callback % ("u64", 2, 0))
    add("out-of-bounds-map-key", "xdp", callback % ("u32", 2, 4))
    add(kind, "kprobe", callback % ("u64", 3, 16))


def packets():
    kind = "out-of-bounds-packet"
    for type, start in PACKET.items():
        for name, size in SIZES:
            add(kind, type, start + "r0 = *(%s *)(r2 + 0) ; !" % name + OUT)
            if size > 1:
                add(kind, type, start + "r4 = r2\nr4 += %d\nif r4 > r3 goto out\nr0 = *(%s *)(r2 + 0) ; !" % (size - 1, name) + OUT)
        add(kind, type, start + "r4 = r2\nr4 += 8\nif r4 > r3 goto use\ngoto out\nuse: r0 = *(u64 *)(r2 + 0) ; !" + OUT)
        add(kind, type, start + "r4 = r2\nr4 += 8\nif r4 > r3 goto out\nr0 = *(u8 *)(r2 - 1) ; !" + OUT)
    add(kind, "xdp", PACKET["xdp"] + "r4 = r2\nr4 += 14\nif r4 > r3 goto out\n*(u32 *)(r2 + 12) = 0 ; !" + OUT)


def stacks():
    kind = "out-of-bounds-stack"
    for name, size in SIZES:
        add(kind, "socket_filter", "*(%s *)(r10 + 0) = 1 ; !" % name + OUT)
        add(kind, "kprobe", "r6 = 1\n*(%s *)(r10 - %d) = r6 ; !" % (name, 512 + size) + OUT)
        add(kind, "xdp", "r0 = *(%s *)(r10 - %d) ; !" % (name, 512 + size) + OUT)
    add(kind, "kprobe", "r1 = r10\nr1 += -8\nr2 = 16\ncall bpf_get_current_comm ; !" + OUT)
    add(kind, "kprobe", "r1 = r10\nr1 += -516\nr2 = 16\ncall bpf_get_current_comm ; !" + OUT)
    add(kind, "tracepoint", RANDOM + "r0 &= 15\nr1 = r10\nr1 += r0\n*(u8 *)(r1 - 8) = 1 ; !" + OUT)
    for name, size in SIZES[1:]:
        add("misaligned", "kprobe", "*(%s *)(r10 - %d) = 1 ; !" % (name, 16 + size // 2) + OUT)
        add("misaligned", "xdp", "r0 = *(%s *)(r10 - %d) ; !" % (name, 17 + size) + OUT)


def memory():
    kind, reserved = "out-of-bounds-memory", RESERVE + "if r0 == 0 goto out\n"
    for name, size in SIZES:
        add(kind, "kprobe", reserved + "*(%s *)(r0 + %d) = 1 ; !\nr1 = r0\nr2 = 0\ncall bpf_ringbuf_submit" % (name, 17 - size) + OUT)
    add(kind, "xdp", reserved + "r6 = *(u8 *)(r0 - 1) ; !\nr1 = r0\nr2 = 0\ncall bpf_ringbuf_submit" + OUT)


def contexts():
    kind = "context-access"
    for type, access in (("xdp", "r0 = *(u32 *)(r1 + 24)"), ("xdp", "r0 = *(u32 *)(r1 + 2)"), ("xdp", "r0 = *(u64 *)(r1 + 0)"),
                         ("xdp", "*(u32 *)(r1 + 0) = 1"), ("socket_filter", "r0 = *(u32 *)(r1 + 76)"),
                         ("socket_filter", "*(u32 *)(r1 + 0) = 1"), ("sched_cls", "r0 = *(u32 *)(r1 + 2000)"),
                         ("sched_cls", "*(u32 *)(r1 + 80) = 1"), ("kprobe", "r0 = *(u64 *)(r1 + 4096)"),
                         ("kprobe", "*(u64 *)(r1 + 0) = 1"), ("tracepoint", "r0 = *(u64 *)(r1 + 0)"),
                         ("tracepoint", "r0 = *(u64 *)(r1 + 9000)"), ("raw_tracepoint", "r0 = *(u64 *)(r1 + 96)"),
                         ("perf_event", "r0 = *(u64 *)(r1 + 4096)"), ("cgroup_skb", "*(u32 *)(r1 + 0) = 1")):
        add(kind, type, access + " ; !" + OUT, older=[((6, 3), "write-forbidden")] if access.endswith("= 1") else (),
            newer=[((7, 0), "accepted")] if type == "kprobe" and access.endswith("= 1") else ())
    for type, size in (("xdp", "u32"), ("sched_cls", "u32"), ("kprobe", "u64"), ("raw_tracepoint", "u64")):
        add("modified-pointer", type, "r1 += 8\nr0 = *(%s *)(r1 + 0) ; !" % size + OUT,
            newer=[((7, 0), "accepted")] if size == "u64" else ())
    add("modified-pointer", "xdp", "r1 += -4\nr0 = *(u32 *)(r1 + 4) ; !" + OUT)
    add("modified-pointer", "socket_filter", "r6 = r1\n" + RANDOM + "r0 &= 4\nr6 += r0\nr0 = *(u32 *)(r6 + 0) ; !" + OUT)


def bounds():
    kind = "unbounded-access"
    unknown = FOUND + "r6 = r0\ncall bpf_ktime_get_ns\n"
    add(kind, "kprobe", unknown + "r6 += r0 ; !\nr1 = *(u8 *)(r6 + 0)" + OUT)
    add(kind, "kprobe", FOUND + "r6 = r0\n" + RANDOM + "w0 = w0\nr6 += r0\nr1 = *(u8 *)(r6 + 0) ; !" + OUT)
    add(kind, "xdp", FOUND + "r6 = r0\n" + RANDOM + "w0 = w0\nr6 += r0\n*(u8 *)(r6 + 0) = 1 ; !" + OUT)
    add(kind, "xdp", FOUND + "r6 = r0\n" + RANDOM + "r0 &= 7\nr0 -= 3\nr6 += r0\nr1 = *(u8 *)(r6 + 0) ; !" + OUT)
    add(kind, "kprobe", "call bpf_ktime_get_ns\nr1 = r10\nr1 += r0 ; !\n*(u8 *)(r1 - 8) = 1" + OUT)
    size = "r1 = r10\nr1 += -16\nr2 = r0\ncall bpf_get_current_comm ; !"
    add(kind, "kprobe", RANDOM + size + OUT)
    add(kind, "tracepoint", "call bpf_ktime_get_ns\n" + size + OUT)
    add(kind, "perf_event", RANDOM + "r0 &= 7\nr0 -= 3\n" + size + OUT)
    add(kind, "kprobe", "*(u64 *)(r10 - 8) = 0\n" + RANDOM + "r0 &= 7\nr1 = r10\nr1 += -8\nr2 = r0\ncall bpf_trace_printk ; !" + OUT)
    add("not-constant", "kprobe", RANDOM + "r1 = map[ring] ll\nr2 = r0\nr3 = 0\ncall bpf_ringbuf_reserve ; !" + OUT, older=[((5, 13), "unbounded-access")])
    add("not-constant", "xdp", RANDOM + "r0 &= 7\nr1 = map[ring] ll\nr2 = r0\nr3 = 0\ncall bpf_ringbuf_reserve ; !" + OUT,
        older=[((5, 13), "unbounded-access")])


def pointers():
    kind = "not-a-pointer"
    for name, _ in SIZES:
        add(kind, "kprobe", "r1 = *(u64 *)(r1 + 0)\nr0 = *(%s *)(r1 + 0) ; !" % name + OUT)
        add(kind, "xdp", "r6 = 4096\n*(%s *)(r6 + 0) = 1 ; !" % name + OUT)
    add(kind, "socket_filter", RANDOM + "r0 = *(u8 *)(r0 + 0) ; !" + OUT)
    add(kind, "xdp", PACKET["xdp"] + "r0 = *(u8 *)(r3 + 0) ; !" + OUT)
    add(kind, "sched_cls", PACKET["sched_cls"] + "*(u8 *)(r3 - 1) = 0 ; !" + OUT)
    kind = "pointer-arithmetic"
    for operator in ("*=", "/=", "%=", "<<=", ">>=", "s>>=", "|=", "&=", "^="):
        add(kind, "kprobe", "r6 = r10\nr6 %s 3 ; !" % operator + OUT)
    for operator in ("*=", "|=", "&="):
        add(kind, "xdp", FOUND + "r0 %s 4 ; !" % operator + OUT)
    add(kind, "xdp", "w1 += 4 ; !" + OUT)
    add(kind, "xdp", "r1 += r10 ; !" + OUT)
    add(kind, "kprobe", "r6 = 5\nr6 -= r10 ; !" + OUT)
    add(kind, "kprobe", "r6 = r10\nr6 -= 8 ; !" + OUT)
    add(kind, "xdp", PACKET["xdp"] + "r3 += 1 ; !" + OUT)
    add(kind, "sched_cls", "r6 = map[m] ll\nr6 += 8 ; !" + OUT)
    add(kind, "kprobe", FOUND + "r0 += 0x7fffffff ; !" + OUT)
    mixed = RANDOM + "r6 = r7\nif r0 == 0 goto use\nr6 = r10\nr6 += -8\nuse: r0 = *(u32 *)(r6 + 0) ; !" + OUT
    add("different-pointers", "xdp", "*(u64 *)(r10 - 8) = 0\nr7 = r1\n" + mixed)
    add("different-pointers", "sched_cls", "*(u64 *)(r10 - 8) = 0\nr7 = r1\n" + mixed)


def arguments():
    kind = "wrong-argument"
    key = "*(u32 *)(r10 - 4) = 0\nr2 = r10\nr2 += -4\n"
    add(kind, "kprobe", key + "r1 = 7\ncall bpf_map_lookup_elem ; !" + OUT)
    add(kind, "xdp", key + "call bpf_map_lookup_elem ; !" + OUT)
    add(kind, "xdp", key + "r1 = r10\ncall bpf_map_delete_elem ; !" + OUT)
    add(kind, "kprobe", "r2 = 0\nr1 = map[m] ll\ncall bpf_map_lookup_elem ; !" + OUT)
    add(kind, "kprobe", "r2 = r1\nr1 = map[m] ll\ncall bpf_map_lookup_elem ; !" + OUT)
    add(kind, "kprobe", "r2 = map[m] ll\nr1 = map[m] ll\ncall bpf_map_lookup_elem ; !" + OUT)
    add(kind, "kprobe", key + "r1 = map[m] ll\nr3 = 5\nr4 = 0\ncall bpf_map_update_elem ; !" + OUT)
    add(kind, "kprobe", "r1 = 0\nr2 = 16\ncall bpf_get_current_comm ; !" + OUT)
    add(kind, "kprobe", "*(u64 *)(r10 - 8) = 0\nr1 = 0\nr2 = map[events] ll\nr3 = 0\nr4 = r10\nr4 += -8\nr5 = 8\ncall bpf_perf_event_output ; !" + OUT)
    add(kind, "perf_event", "r1 = r10\nr2 = map[stacks] ll\nr3 = 0\ncall bpf_get_stackid ; !" + OUT)
    add(kind, "kprobe", RESERVE + "r1 = 0\nr2 = 0\ncall bpf_ringbuf_submit ; !" + OUT)
    add(kind, "kprobe", "r2 = map[jumps] ll\nr1 = r10\nr3 = 0\ncall bpf_tail_call ; !" + OUT)
    kind = "wrong-map-type"
    for type, text in (
            ("kprobe", "r2 = map[m] ll\nr3 = 0\ncall bpf_tail_call"),
            ("kprobe", "r2 = map[m] ll\nr3 = 0\ncall bpf_get_stackid"),
            ("kprobe", "r1 = map[m] ll\nr2 = 8\nr3 = 0\ncall bpf_ringbuf_reserve"),
            ("xdp", "r1 = map[m] ll\nr2 = 0\nr3 = 0\ncall bpf_redirect_map"),
            ("kprobe", key + "r1 = map[events] ll\ncall bpf_map_lookup_elem"),
            ("xdp", key + "r1 = map[jumps] ll\ncall bpf_map_lookup_elem"),
            ("kprobe", "*(u64 *)(r10 - 16) = 0\n*(u64 *)(r10 - 8) = 0\nr1 = map[m] ll\nr2 = r10\nr2 += -16\nr3 = 0\ncall bpf_map_push_elem"),
            ("kprobe", "*(u64 *)(r10 - 8) = 0\nr2 = map[m] ll\nr3 = 0\nr4 = r10\nr4 += -8\nr5 = 8\ncall bpf_perf_event_output")):
        add(kind, type, text + " ; !" + OUT)
    for fd in (9999, 8888):
        add("bad-map-reference", "xdp", "r1 = map_fd[%d] ll ; !" % fd + OUT)


def loops():
    kind = "unbounded-loop"
    add(kind, "xdp", "r0 = 2\nagain: goto again ; !")
    add(kind, "kprobe", "r6 = 0\nagain: r6 = 1 ; !\nif r6 != 0 goto again\nr0 = 0\nexit")
    add(kind, "socket_filter", "r0 = 0\nagain: r1 = 1 ; !\nr2 = 2\ngoto again")
    add("too-complex", "xdp", "r6 = 0\nagain: r6 += 1\nif r6 != 0 goto again\nr0 = 0\nexit")
    jumps = "".join("if r0 == %d goto out%s\n" % (n, " ; !" if n == 8192 else "") for n in range(8300))
    add("too-complex", "socket_filter", RANDOM + jumps + OUT)


def functions():
    for type, name in (("xdp", "skb_load_bytes"), ("xdp", "override_return"), ("xdp", "get_stackid"), ("kprobe", "redirect"),
                       ("kprobe", "skb_store_bytes"), ("socket_filter", "skb_store_bytes"), ("socket_filter", "redirect"),
                       ("tracepoint", "xdp_adjust_head"), ("perf_event", "redirect_map"), ("sched_cls", "xdp_adjust_meta"),
                       ("cgroup_skb", "xdp_adjust_tail"), ("raw_tracepoint", "clone_redirect")):
        add("helper-not-allowed", type, "call bpf_%s ; !" % name + OUT)
    for number in (9999, 300, 1 << 30):
        add("unknown-function", "xdp", "call %d ; !" % number + OUT)
    for name in ("trace_printk", "probe_read_user", "perf_event_output", "get_stackid", "get_current_task", "probe_read_user_str"):
        add("gpl-only", "kprobe", "call bpf_%s ; !" % name + OUT, license="Proprietary")
    add("gpl-only", "tracepoint", "call bpf_get_stack ; !" + OUT, license="")
    add("sleepable", "kprobe", "r1 = r10\nr1 += -8\nr2 = 8\nr3 = 0\ncall bpf_copy_from_user ; !" + OUT)
    for type in ("kprobe", "xdp"):
        nothing = "*(u64 *)(r10 - 16) = 0\n*(u64 *)(r10 - 8) = 0\n"
        add("dynptr-iterator", type, nothing + "r1 = r10\nr1 += -8\nr2 = 8\nr3 = r10\nr3 += -16\nr4 = 0\nr5 = 0\ncall bpf_dynptr_read ; !" + OUT)
        add("reference-leak", type, nothing + "r1 = r10\nr1 += -16\nr2 = 0\ncall bpf_ringbuf_submit_dynptr ; !" + OUT,
            newer=[((7, 0), "dynptr-iterator")])


def returns():
    kind = "return-value"
    for type, value in (("cgroup_sock", 2), ("cgroup_sock", -1), ("cgroup_device", 2), ("cgroup_sysctl", 5), ("sk_lookup", 2),
                        ("cgroup_skb/ingress", 2), ("cgroup_skb/egress", 4), ("netfilter", 2), ("cgroup/bind4", 4)):
        add(kind, type, "r0 = %d\nexit ; !" % value)
    add(kind, "cgroup_sock", RANDOM + "exit ; !")
    add(kind, "sk_lookup", RANDOM + "r0 &= 3\nexit ; !")


def references():
    kind = "reference-leak"
    add(kind, "kprobe", RESERVE + "if r0 == 0 goto out\nr0 = 0\nout: exit ; !")
    add(kind, "xdp", RESERVE + "if r0 == 0 goto out\n*(u64 *)(r0 + 0) = 1\nout: r0 = 0\nexit ; !")
    add(kind, "tracepoint", RESERVE + "if r0 == 0 goto out\nr6 = r0\n" + RANDOM + "if r0 == 0 goto out\nr1 = r6\nr2 = 0\ncall bpf_ringbuf_discard\nout: r0 = 0\nexit ; !")
    for type in ("xdp", "sched_cls"):
        lookup = "r2 = r10\nr2 += -16\n*(u64 *)(r10 - 16) = 0\n*(u64 *)(r10 - 8) = 0\nr3 = 12\nr4 = -1\nr5 = 0\ncall bpf_sk_lookup_tcp\n"
        add(kind, type, lookup + "r0 = 0\nexit ; !")
    add(kind, "kprobe", "r7 = r1\n" + RESERVE + "if r0 == 0 goto out\nr1 = r7\nr2 = map[jumps] ll\nr3 = 0\ncall bpf_tail_call ; !" + OUT)
    kind = "lock"
    for name in ("rcu_read_lock", "preempt_disable"):
        add(kind, "kprobe", ".kfunc bpf_%s\ncall bpf_%s\nr0 = 0\nexit ; !" % (name, name))
    for name in ("rcu_read_unlock", "preempt_enable"):
        add(kind, "xdp", ".kfunc bpf_%s\ncall bpf_%s ; !\nr0 = 0\nexit" % (name, name))


def flow():
    for text in ("r0 = 0\nexit\nr0 = 1 ; !\nexit", "goto end\nr0 = 1 ; !\nend: r0 = 0\nexit",
                 "r0 = 0\nexit\nexit ; !", "r0 = 0\ngoto end\nback: goto end ; !\nend: exit"):
        add("unreachable", "socket_filter", text)
    for text in ("r0 = 0\ngoto pc+10 ; !\nexit", "r0 = 0\nif r1 == 0 goto pc+100 ; !\nexit", "goto pc-5 ; !\nexit",
                 "r0 = 0\nif r0 > 3 goto pc-9 ; !\nexit", "gotol pc+77 ; !\nexit",
                 "r0 = 0\nif r0 == 1 goto pc+1\nr6 = 7 ll ; !\nexit"):
        # 6.1 knows where gotol goes to before it says that it does not know it
        older = [((6, 0), "accepted")] if " ll" in text else [((6, 0), "bad-instruction"), ((6, 2), "bad-jump")] if "gotol" in text else ()
        add("bad-jump", "socket_filter", text, strict=False, older=older)
    for text in ("r0 = 0 ; !", "r0 = 0\nif r0 == 0 goto pc-2 ; !", "r0 = 0\ncall f\nexit\nf: r0 = 1 ; !"):
        add("fall-through", "xdp", text, strict=False)
    for main, sub in ((304, 304), (512, 8), (256, 400)):
        add("stack-too-deep", "xdp", "r0 = 0\n*(u64 *)(r10 - %d) = 0\ncall f\nexit\nf: r0 = 0\n*(u64 *)(r10 - %d) = 0\nexit" % (main, sub))
    chain = "call f1\nexit\n" + "".join("f%d: call f%d%s\nexit\n" % (n, n + 1, " ; !" if n == 7 else "") for n in range(1, 9))
    add("stack-too-deep", "xdp", chain + "f9: r0 = 0\nexit\n", newer=[((7, 0), "accepted")])
    longer = "".join("f%d: call f%d\nexit\n" % (n, n + 1) for n in range(1, 40))
    add("stack-too-deep", "xdp", "call f1\nexit\n" + longer + "f40: r0 = 0\nexit\n")


def encodings():
    kind = "bad-instruction"
    for insn in (".insn 0xff, 0, 0, 0, 0", ".insn 0x8d, 1, 0, 0, 0", ".insn 0x07, 1, 2, 0, 5", ".insn 0xb7, 6, 0, 4, 0",
                 ".insn 0x67, 0, 0, 0, 64", ".insn 0x64, 0, 0, 0, 32", ".insn 0x37, 0, 0, 0, 0", ".insn 0x97, 0, 0, 0, 0",
                 ".insn 0x05, 0, 0, 0, 1", ".insn 0xd4, 0, 0, 0, 12", ".insn 0xdb, 10, 0, -8, 0x22",
                 ".insn 0x15, 0, 1, 0, 0", ".insn 0x85, 1, 0, 0, 7", ".insn 0xbf, 6, 0, 3, 0"):
        add(kind, "socket_filter", "r0 = 0\n*(u64 *)(r10 - 8) = 0\n%s ; !" % insn + "\nexit")
    add(kind, "socket_filter", "r0 = 0\n.insn 0x95, 0, 0, 0, 1 ; !")
    kind = "bad-register"
    for text in ("r10 = 0", "r10 += 8", "r10 = r1", ".insn 0xb7, 11, 0, 0, 0", ".insn 0xb7, 15, 0, 0, 0", ".insn 0xbf, 0, 12, 0, 0",
                 ".insn 0x79, 0, 11, 0, 0", ".insn 0x79, 10, 1, 0, 0"):
        add(kind, "kprobe", text + " ; !" + OUT)
    for type, text in (("xdp", "r6 = r1\nr0 = *(u8 *)skb[0] ; !"), ("kprobe", "r6 = r1\nr0 = *(u32 *)skb[12] ; !"),
                       ("socket_filter", "r6 = 0\nr0 = *(u16 *)skb[12] ; !"), ("sched_cls", "r6 = r10\nr2 = 0\nr0 = *(u8 *)skb[r2 + 0] ; !")):
        add("packet-load", type, text + OUT)


def writes():
    rodata = ".rodata\nx: .quad 1, 2\n.text\n"
    for name, _ in SIZES:
        add("read-only", "kprobe", rodata + "r1 = x ll\n*(%s *)(r1 + 0) = 1 ; !" % name + OUT)
    fixed = "*(u32 *)(r10 - 4) = 0\nr2 = r10\nr2 += -4\nr1 = map[fixed] ll\ncall bpf_map_lookup_elem\nif r0 == 0 goto out\n"
    add("read-only", "xdp", fixed + "*(u64 *)(r0 + 0) = 1 ; !" + OUT)
    add("read-only", "kprobe", fixed + "r1 = r0\nr2 = 16\ncall bpf_get_current_comm ; !" + OUT)
    checked = "r4 = r2\nr4 += 8\nif r4 > r3 goto out\n"
    add("write-forbidden", "cgroup_skb", PACKET["sched_cls"] + checked + "*(u8 *)(r2 + 0) = 1 ; !" + OUT)
    add("write-forbidden", "xdp", PACKET["xdp"] + checked + "r5 = 1\nlock *(u64 *)(r2 + 0) += r5 ; !" + OUT)
    add("write-forbidden", "sched_cls", "r5 = 1\nlock *(u32 *)(r1 + 8) += r5 ; !" + OUT)


def without_perfmon():
    """What a process that has only CAP_BPF may not do."""
    kind = "uninitialised-stack"
    for name, size in SIZES:
        add(kind, "socket_filter", "r0 = *(%s *)(r10 - %d) ; !" % (name, 8 + size) + OUT, weak=True)
    add(kind, "socket_filter", "r2 = r10\nr2 += -4\nr1 = map[m] ll\ncall bpf_map_lookup_elem ; !" + OUT, weak=True)
    add(kind, "socket_filter", "*(u16 *)(r10 - 8) = 0\nr0 = *(u32 *)(r10 - 8) ; !" + OUT, weak=True)
    kind = "pointer-leak"
    add(kind, "socket_filter", "r0 = r10\nexit ; !", weak=True)
    add(kind, "socket_filter", "r0 = r1\nexit ; !", weak=True)
    add(kind, "socket_filter", FOUND + "*(u64 *)(r0 + 0) = r10 ; !" + OUT, weak=True)
    add(kind, "cgroup_skb", FOUND + "*(u64 *)(r0 + 8) = r0 ; !" + OUT, weak=True)
    add("pointer-comparison", "socket_filter", "if r1 > 5 goto out ; !" + OUT, weak=True)
    add("pointer-comparison", "socket_filter", "r6 = r10\nif r1 == r6 goto out ; !" + OUT, weak=True)
    kind = "partial-pointer"
    add(kind, "socket_filter", "*(u64 *)(r10 - 8) = r1\nr0 = *(u32 *)(r10 - 8) ; !" + OUT, weak=True)
    add(kind, "socket_filter", "*(u64 *)(r10 - 8) = r1\n*(u32 *)(r10 - 8) = 1 ; !" + OUT, weak=True)
    add(kind, "socket_filter", "*(u32 *)(r10 - 8) = r1 ; !" + OUT, weak=True)


def tail_calls():
    jump = "r2 = map[jumps] ll\nr3 = 0\ncall bpf_tail_call"
    deep = "*(u64 *)(r10 - 304) = 0\ncall f\nr0 = 0\nexit\nf: " + jump + "\nr0 = 0\nexit"
    for type in ("xdp", "socket_filter", "sched_cls"):
        add("tail-call", type, deep)
    each = "r6 = r1\nr1 = map[fixed] ll\nr2 = func[each] ll\nr3 = 0\nr4 = 0\ncall bpf_for_each_map_elem\nr0 = 0\nexit\neach: r1 = 0\n"
    add("wrong-argument", "xdp", each + jump + " ; !\nr0 = 0\nexit")


def calls():
    kind = "call"
    recursion = [((6, 2), "unbounded-loop"), ((7, 0), "stack-too-deep")]
    add(kind, "xdp", "r0 = 0\n.insn 0x85, 0, 1, 0, 100 ; !\nexit", strict=False)
    add(kind, "kprobe", "call f\nr0 = 0\nexit\nf: call g\nr0 = 0\nexit\ng: call f\nr0 = 0\nexit", older=recursion)
    add(kind, "socket_filter", "r1 = 1\ncall f\nexit\nf: if r1 == 0 goto end\nr1 += -1\ncall f\nend: r0 = 0\nexit", older=recursion)
    add(kind, "xdp", "r1 = r10\nr1 += -8\ncall f\nr0 = 0\nexit\nf: *(u64 *)(r1 + 0) = r10 ; !\nr0 = 0\nexit")


def trusted():
    """What may be done with kernel structures. %(x)d: the offset of a task_struct's field."""
    task = "call bpf_get_current_task_btf\n"
    for type in ("kprobe", "raw_tracepoint", "perf_event"):
        add("struct-field", type, task + "r1 = *(u64 *)(r0 + 32000) ; !" + OUT)
    add("struct-field", "kprobe", task + "r1 = *(u64 *)(r0 + %(end)d) ; !" + OUT)
    add("struct-field", "kprobe", task + "r0 += -8\nr1 = *(u64 *)(r0 + 0) ; !" + OUT)
    add("read-only", "kprobe", task + "*(u64 *)(r0 + %(real_parent)d) = 0 ; !" + OUT)
    cpus = "call bpf_get_current_task_btf\nr1 = *(u64 *)(r0 + %(last_wakee)d)\n"
    add("untrusted-pointer", "sched_cls", ".kfunc bpf_task_acquire\n" + cpus + "call bpf_task_acquire ; !\nr0 = 0\nexit")
    add("null-check", "sched_cls", ".kfunc bpf_task_release\n.kfunc bpf_task_acquire\n" + task +
        "r1 = r0\ncall bpf_task_acquire\nr1 = r0\ncall bpf_task_release ; !\nr0 = 0\nexit")
    add("reference-leak", "sched_cls", ".kfunc bpf_task_acquire\n" + task + "r1 = r0\ncall bpf_task_acquire\nr0 = 0\nexit ; !")
    add("wrong-argument", "sched_cls", ".kfunc bpf_task_acquire\ncall bpf_task_acquire ; !\nr0 = 0\nexit")


def special():
    kind = "special-field"
    add(kind, "sched_cls", FOUND + "r1 = r0\nr2 = map[m] ll\nr3 = 1\ncall bpf_timer_init ; !" + OUT)
    add(kind, "xdp", FOUND + "r1 = r0\nr2 = 0\nr3 = 0\ncall bpf_timer_start ; !" + OUT)
    add(kind, "xdp", FOUND + "r1 = r0\nr2 = 0\ncall bpf_kptr_xchg ; !" + OUT)
    add("lock", "sched_cls", FOUND + "r1 = r0\ncall bpf_spin_lock ; !" + OUT)
    add("lock", "sched_cls", FOUND + "r1 = r0\ncall bpf_spin_unlock ; !" + OUT)
    add("arena", "xdp", "r1 = 0\nr1 = addr_space_cast(r1, 0, 1) ; !\nr0 = 2\nexit")
    add("arena", "socket_filter", "r6 = 8\nr6 = addr_space_cast(r6, 1, 0) ; !\nr0 = 0\nexit")
    kind = "exception"
    for lock in ("rcu_read_lock", "preempt_disable"):
        add(kind, "sched_cls", ".kfunc bpf_%s\n.kfunc bpf_throw\ncall bpf_%s\nr1 = 0\ncall bpf_throw ; !\nr0 = 0\nexit" % (lock, lock))
    add("missing-in-kernel", "xdp", "r0 = 0\ncall 195896080 ; !\nexit")
    add("missing-in-kernel", "kprobe", "r0 = 0\ncall 2002000000 ; !\nexit")
    written = "*(u32 *)(r10 - 4) = 0\nr2 = r10\nr2 += -4\nr1 = map[written] ll\ncall bpf_map_lookup_elem\nif r0 == 0 goto out\n"
    for name, _ in SIZES:
        add("write-only", "xdp", written + "r0 = *(%s *)(r0 + 8) ; !" % name + OUT)
    many = "*(u32 *)(r10 - 4) = 0\n" + "r2 = r10\nr2 += -4\nr1 = map[fixed] ll\ncall bpf_map_lookup_elem\n" * 6000
    add("too-large", "xdp", RANDOM + "r6 = 0\nif r0 == 7 goto far\n" + many + "far: r0 = 0\nexit")


def without_perfmon_too():
    kind = "capability"
    add(kind, "socket_filter", "*(u64 *)(r10 - 8) = 0\n*(u64 *)(r10 - 16) = 0\nr0 = *(u32 *)(r1 + 0)\nr0 &= 7\nr2 = r10\nr2 += -16\nr2 += r0 ; !\nr0 = *(u8 *)(r2 + 0)" + OUT, weak=True)
    add(kind, "cgroup_skb", FOUND + "r0 += -8 ; !\nr1 = 0" + OUT, weak=True)


for _make in (tail_calls, calls, trusted, special, without_perfmon_too, registers, null_checks, map_values, packets, stacks, memory, contexts, bounds, pointers, arguments, loops,
              functions, returns, references, flow, encodings, writes, without_perfmon):
    _make()


if __name__ == "__main__":
    import sys
    from .test_verify_refusals import wrong_with
    _cases = [case for case in ALL if not sys.argv[1:] or case.kind in sys.argv[1:]]
    _wrong = [(case, wrong_with(case)) for case in _cases]
    for _case, _what in _wrong:
        if _what:
            print("%s %r: %s" % (_case.kind, _case.text[-200:], _what))
    print("%d programs, %d not as they should be" % (len(_cases), sum(1 for _, what in _wrong if what)))
