"""Arguments of global functions that are the program's context, for kernels that do not know them by their tag.

A global function is verified by itself, by the types of its arguments. What is tagged `arg:ctx` (libbpf's
__arg_ctx) is taken as the context since 6.8, whatever its C type is; older kernels want a pointer to the struct
of the program's type. So the object's BTF gets a second prototype of each such function, for each kind of
program in it, and func_info refers to that one (libbpf does the same).
"""

import functools
import struct

from rawbpf.elf import btf_raw as raw

from . import kernel
from .errors import KernelError

TAG = "arg:ctx"

# the struct that the verifier compares names with, of the program types that have one
CONTEXTS = {
    "cgroup_device": "bpf_cgroup_dev_ctx", "cgroup_sock": "bpf_sock", "cgroup_sock_addr": "bpf_sock_addr",
    "cgroup_sockopt": "bpf_sockopt", "cgroup_sysctl": "bpf_sysctl", "kprobe": "bpf_user_pt_regs_t",
    "netfilter": "bpf_nf_ctx", "perf_event": "bpf_perf_event_data", "raw_tracepoint": "bpf_raw_tracepoint_args",
    "raw_tracepoint_writable": "bpf_raw_tracepoint_args", "sk_lookup": "bpf_sk_lookup", "sk_msg": "sk_msg_md",
    "sk_reuseport": "sk_reuseport_md", "sock_ops": "bpf_sock_ops", "xdp": "xdp_md",
    **dict.fromkeys(("cgroup_skb", "flow_dissector", "lwt_in", "lwt_out", "lwt_seg6local", "lwt_xmit", "sched_act",
                     "sched_cls", "sk_skb", "socket_filter"), "__sk_buff")}


@functools.lru_cache(maxsize=None)
def known():
    """Does the kernel know the tag? Asked with a function whose `void *` must be the context for what it calls."""
    from rawbpf.asm.opcodes import BPF_CALL, BPF_EXIT, BPF_JMP

    from .btf import BtfObject
    from .program import Program
    strings = b"\0a\0b\0" + TAG.encode() + b"\0"
    types = b"".join([
        struct.pack("=IIII", 1, 1 << 24, 4, 1 << 24 | 32),                              # 1: int
        struct.pack("=III", 0, 2 << 24, 0),                                             # 2: void *
        struct.pack("=IIIII", 0, 13 << 24 | 1, 1, 1, 2),                                # 3: int (void *a)
        struct.pack("=III", 1, 12 << 24 | 1, 3),                                        # 4: a
        struct.pack("=III", 3, 12 << 24 | 1, 3),                                        # 5: b
        struct.pack("=IIII", 5, 17 << 24, 5, 0)])                                       # 6: the tag
    code = b"".join(struct.pack("=BBhi", *each) for each in (
        (BPF_JMP | BPF_CALL, 0x10, 0, 1), (BPF_JMP | BPF_EXIT, 0, 0, 0),
        (BPF_JMP | BPF_CALL, 0, 0, 173),                                                # bpf_get_func_ip(ctx)
        (BPF_JMP | BPF_EXIT, 0, 0, 0)))
    try:
        with BtfObject.load(struct.pack("=HBBIIIII", 0xeb9f, 1, 0, 24, 0, len(types), len(types), len(strings)) +
                            types + strings) as btf:
            Program.load("kprobe", code, btf=btf, func_info=(8, struct.pack("=IIII", 0, 4, 2, 5))).close()
    except KernelError:
        return False
    return True


class Clones:
    """The second prototypes. `records` (as btf_raw.rewrite takes them) and `strings` go behind the object's own;
    `ids`: (BTF id of a function, name of the context's struct) -> id of the one to use."""

    def __init__(self, file, types):
        self.file, self.btf = file, file.btf
        self.records, self.strings, self.ids = [], b"", {}
        tagged = self._tagged()
        if tagged:
            for type in sorted(set(types) & set(CONTEXTS)):
                self._clone(tagged, type)

    def func_info(self, info, type):
        """func_info (record size, records) of a program of this type."""
        size, records = info
        if not self.ids:
            return info
        context, out = CONTEXTS.get(type), bytearray(records)
        for at in range(0, len(records), size):
            number = struct.unpack_from("=I", records, at + 4)[0]
            struct.pack_into("=I", out, at + 4, self.ids.get((number, context), number))
        return size, bytes(out)

    def _tagged(self):
        """BTF id of a global function -> its tagged arguments."""
        hidden = {function.name for function in self.file.functions if function.hidden and not function.program}
        result = {}
        for name, number in self.btf.names("decl_tag"):
            if name != TAG:
                continue
            tag = raw.record(self.btf, number)
            function = raw.record(self.btf, tag.rest)
            if function.kind != "func" or function.vlen != 1 or function.name in hidden:
                continue
            prototype = raw.record(self.btf, function.rest)
            if prototype.kind == "func_proto" and tag.words[0] < prototype.vlen:
                result.setdefault(function.id, set()).add(tag.words[0])
        return result

    def _clone(self, tagged, type):
        context, pointer = CONTEXTS[type], 0
        for number, arguments in tagged.items():
            if (number, context) in self.ids:
                continue
            function = raw.record(self.btf, number)
            prototype = raw.record(self.btf, function.rest)
            words, changed = list(prototype.words), False
            for argument in arguments:
                if self._other(words[2 * argument + 1], type, context):
                    pointer = pointer or self._add(0, "ptr", 0, self._add(self._string(context), "struct", 0, 0))
                    words[2 * argument + 1], changed = pointer, True
            if changed:
                copy = self._add(0, "func_proto", prototype.vlen, prototype.rest, tuple(words))
                self.ids[number, context] = self._add(self._string(function.name), "func", 1, copy)

    def _other(self, type_id, type, context):
        """Is the type of an argument one that stands for the context, but not the one that the verifier wants?"""
        pointer = raw.skip(self.btf, type_id)
        if pointer.kind != "ptr":
            return False
        target = raw.record(self.btf, pointer.rest)
        for _ in range(64):
            if target.kind == "typedef" and target.name == "bpf_user_pt_regs_t" and type in ("kprobe", "perf_event"):
                return False
            if target.kind not in raw.MODIFIERS:
                break
            target = raw.record(self.btf, target.rest)
        if target.kind == "void":
            return True
        if target.kind == "int":
            return type.startswith("raw_tracepoint") and target.rest == 8
        registers = {"aarch64": "user_pt_regs"}.get(kernel.arch(), "pt_regs") if type == "perf_event" else "pt_regs"
        return target.kind == "struct" and type in ("kprobe", "perf_event") and target.name == registers

    def _string(self, text):
        at = self.btf._string_stop - self.btf._string_start + len(self.strings)
        self.strings += text.encode("utf-8", "surrogateescape") + b"\0"
        return at

    def _add(self, name, kind, vlen, rest, words=()):
        self.records.append((name, kind, vlen, 0, rest, words))
        return self.btf.count + len(self.records) - 1
