"""BPF programs: load, ask, test-run, dump.

bpf(2) BPF_PROG_LOAD, BPF_PROG_TEST_RUN, BPF_OBJ_GET_INFO_BY_FD, BPF_ENABLE_STATS.
"""

import collections
import errno
import re
import struct
import sys
from types import SimpleNamespace

from . import introduced, kernel, syscalls, verifier
from .errors import KernelError, VerifierError, explain, refused
from .introduced import since
from .kobject import BpfObject, KernelObject, fd_of, text_buffer
from .syscalls import address
from .uapi import (ATTACH_TYPES, F_TOKEN_FD, PROG_TYPES, PSEUDO_FUNC, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, name_of, number)

_NET = {"sched_cls", "sched_act", "xdp", "cgroup_skb", "cgroup_sock", "lwt_in", "lwt_out", "lwt_xmit",
        "sock_ops", "sk_skb", "sk_msg", "cgroup_sock_addr", "lwt_seg6local", "sk_reuseport",
        "flow_dissector", "sk_lookup", "netfilter"}
_TRACE = {"kprobe", "tracepoint", "perf_event", "raw_tracepoint", "raw_tracepoint_writable",
          "tracing", "lsm", "struct_ops", "ext"}
_UNKNOWN_HELPER = re.compile(r"(?:invalid|unknown) func \S*#(\d+)")
STDOUT, STDERR = 1, 2       # enum bpf_stream_id
_LOG_FIRST, LOG_MAX = 1 << 18, (1 << 24) - 1     # the kernel took no more before 5.2

TestRun = collections.namedtuple("TestRun", "retval duration data ctx")
TestRun.__doc__ = """What BPF_PROG_TEST_RUN gave: retval (unsigned 32 bits, as the ABI has it),
duration (ns per run), data and ctx as the program left them (bytes)."""


def object_name(name):
    """A name as the kernel takes it: at most 15 characters of [A-Za-z0-9_.]."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", name)[:15].encode()


def resolve(instructions, maps):
    """(bytes, modules): the instructions with MapRefs replaced by the descriptors of `maps` and
    KsymRefs by the BTF ids of the kernel's functions and variables; `modules` are the BTF objects of
    kernel modules that kfunc calls refer to, by index from 1 on."""
    if isinstance(instructions, (bytes, bytearray)):
        return bytes(instructions), []
    from rawbpf.asm import KsymRef, MapRef, encode
    ready, modules = [], []
    for instruction in instructions:
        ref = instruction.ref
        if isinstance(ref, KsymRef):
            from .ksyms import resolve_instruction
            instruction = resolve_instruction(instruction, modules)
        if isinstance(ref, MapRef):
            try:
                fd = fd_of(maps[ref.name])
            except KeyError:
                raise ValueError("the program refers to the map %r, which was not given" %
                                 ref.name) from None
            if ref.offset is None:
                instruction = instruction._replace(src=PSEUDO_MAP_FD, imm=fd, ref=None)
            else:
                instruction = instruction._replace(src=PSEUDO_MAP_VALUE, ref=None,
                                                   imm=fd | (ref.offset & 0xffffffff) << 32)
        ready.append(instruction)
    return encode(ready), modules


def digest(instructions):
    """The SHA-256 by which the kernel knows a program: of its instructions, without the descriptors of maps."""
    import hashlib
    from rawbpf.asm import MapRef
    code, modules = resolve(instructions, {each.ref.name: 0 for each in instructions if isinstance(each.ref, MapRef)})
    for each in modules:
        each.close()
    out, second = bytearray(code), False
    for at in range(0, len(out), 8):
        of_map = not second and out[at] == 0x18 and out[at + 1] >> 4 in (PSEUDO_MAP_FD, PSEUDO_MAP_VALUE)
        if of_map or second:
            out[at + 4:at + 8] = bytes(4)
        second = of_map
    return hashlib.sha256(out).digest()


def _kern_version():
    """LINUX_VERSION_CODE, which kprobe programs must state before 5.0."""
    major, minor, patch = kernel.release()
    return major << 16 | minor << 8 | min(patch, 255)


class Program(BpfObject):
    """A loaded program. `log` is the verifier's log when one was asked for."""

    __slots__ = ("name", "type", "log")
    kind = "prog"

    def __init__(self, fd, type, name="", log=""):
        super().__init__(fd)
        self.type, self.name, self.log = type, name, log

    @classmethod
    def load(cls, type, instructions, *, name="", license="GPL", maps=None,
             expected_attach_type=None, attach_btf_id=0, attach_prog=None, attach_btf_obj=None,
             flags=0, ifindex=0, btf=None, func_info=(0, b""), line_info=(0, b""), fd_array=(),
             bind_fd_array=False, token=None, log_level=0, log_size=_LOG_FIRST, log_end=False, log_max=LOG_MAX):
        """Loads instructions (a list of asm.Instruction or encoded bytes).

        type, expected_attach_type: names of PROG_TYPES and ATTACH_TYPES. maps: name -> Map, for the
        MapRefs. attach_prog / attach_btf_obj: program or BTF object that attach_btf_id lies in
        (vmlinux when neither). func_info, line_info: (record size, bytes) with btf. fd_array: maps and
        BTF objects referred to by index (5.14+), bound to the program with bind_fd_array (6.14+).
        token: a kobject.Token that delegates the permission (6.9+).
        log_level: 1 or 2 keep the log of a program that loads in `.log`; +4 for statistics. log_size: bytes to begin
        with, log_max: the most; log_end: where the kernel (6.4+) keeps the end of a log that is longer, that is enough, and
        no larger buffer is tried. A log that is cut makes the kernel refuse any program: VerifierError with errno ENOSPC.

        VerifierError when the verifier refuses, KernelError when the kernel does otherwise.
        """
        code, modules = resolve(instructions, maps or {})
        if modules:
            if fd_array:
                raise ValueError("kfuncs of modules are put into fd_array: it cannot be given besides")
            # index 0 stands for vmlinux
            fd_array = [0] + modules
        if not code or len(code) % 8:
            raise ValueError("a program is a non-empty sequence of 8-byte instructions")
        buffers = [bytearray(code), text_buffer(license.encode(), "a license"), bytearray(func_info[1]),
                   bytearray(line_info[1]), bytearray(struct.pack("=%di" % len(fd_array),
                                                                  *map(fd_of, fd_array)))]
        insns, license_at, func_at, line_at, array_at = map(address, buffers)
        fields = dict(
            prog_type=number(PROG_TYPES, type, "program type"), insn_cnt=len(code) // 8, insns=insns,
            license=license_at, prog_flags=flags | (F_TOKEN_FD if token is not None else 0),
            prog_token_fd=fd_of(token) if token is not None else 0, prog_ifindex=ifindex,
            prog_name=object_name(name),
            kern_version=_kern_version() if type == "kprobe" else 0, attach_btf_id=attach_btf_id,
            prog_btf_fd=fd_of(btf) if btf is not None else 0,
            func_info=func_at, func_info_rec_size=func_info[0],
            func_info_cnt=len(func_info[1]) // (func_info[0] or 1),
            line_info=line_at, line_info_rec_size=line_info[0],
            line_info_cnt=len(line_info[1]) // (line_info[0] or 1),
            fd_array=array_at, fd_array_cnt=len(fd_array) if bind_fd_array else 0)
        if expected_attach_type is not None:
            fields["expected_attach_type"] = number(ATTACH_TYPES, expected_attach_type, "attach type")
        if attach_prog is not None or attach_btf_obj is not None:
            fields["attach_prog_fd"] = fd_of(attach_prog if attach_prog is not None else attach_btf_obj)
        call = "load of %s program%s" % (type, " " + name if name else "")
        log_size = min(log_size, log_max)
        fd, log, error = _load_with_memlock(fields, log_level, log_size, log_end, log_max)
        if error is None:
            return cls(fd, type, name, log)
        if not log and not log_level:  # again, to hear why
            fd, log, second = _load(fields, 1, log_size, log_end, log_max)
            if second is None:
                return cls(fd, type, name, "")
        raise _refusal(call, error, log, type, code, instructions, expected_attach_type)

    @classmethod
    def _from_info(cls, fd):
        try:
            fields = syscalls.PROG_INFO.unpack(syscalls.obj_info(fd, syscalls.PROG_INFO))
        except OSError as error:
            raise refused("info of program", error) from None
        return cls(fd, name_of(PROG_TYPES, fields["type"]), _text(fields["name"]))

    def info(self):
        """struct bpf_prog_info as a namespace: id, tag (hex), xlated_prog_len, run_time_ns, run_cnt,
        load_time, map_ids (list), ... What the running kernel does not know is absent."""
        layout = syscalls.PROG_INFO
        first = layout.unpack(self._info())
        map_ids = bytearray(4 * first["nr_map_ids"])
        if map_ids:
            first["nr_map_ids"] = layout.get(
                self._info(nr_map_ids=first["nr_map_ids"], map_ids=address(map_ids)), "nr_map_ids")
        first["map_ids"] = [item[0] for item in struct.iter_unpack("=I", map_ids)]
        first["tag"] = first["tag"].hex()
        first["name"] = _text(first["name"])
        first["type"] = name_of(PROG_TYPES, first["type"])
        if "gpl_compatible" in first:
            first["gpl_compatible"] &= 1
        return SimpleNamespace(**first)

    def func_info(self):
        """[(8-byte slot, BTF type id)] of the program's functions, the main one first; [] for a
        program that was loaded without BTF."""
        return [record[:2] for record in self._records("func_info", "=II")]

    def line_info(self):
        """[(8-byte slot, file, line text (string offsets of its BTF), line, column)]; [] without BTF."""
        return [(slot, file, text, number >> 10, number & 1023)
                for slot, file, text, number in self._records("line_info", "=IIII")]

    def _records(self, what, form):
        layout = syscalls.PROG_INFO
        first = layout.unpack(self._info())
        count, size = first.get("nr_" + what, 0), first.get(what + "_rec_size", 0)
        records = bytearray(count * size)
        if records:
            self._info(**{"nr_" + what: count, what + "_rec_size": size, what: address(records)})
        return [struct.unpack_from(form, records, at) for at in range(0, len(records), size or 1)]

    def jited_ksyms(self):
        """The kernel addresses of the program's functions, the main one first (4.18+); [] where
        kernel.kptr_restrict hides them."""
        layout = syscalls.PROG_INFO
        count = layout.unpack(self._info()).get("nr_jited_ksyms", 0)
        addresses = bytearray(8 * count)
        if addresses:
            self._info(nr_jited_ksyms=count, jited_ksyms=address(addresses))
        found = [item[0] for item in struct.iter_unpack("=Q", addresses)]
        return found if any(found) else []

    def jited_functions(self):
        """[(kernel address or 0, bytes of machine code)] of the program's functions in the order of
        jited(), the main one first (4.18+); [] for a program that was not compiled."""
        count = syscalls.PROG_INFO.unpack(self._info()).get("nr_jited_func_lens", 0)
        lengths = bytearray(4 * count)
        if lengths:
            self._info(nr_jited_func_lens=count, jited_func_lens=address(lengths))
        starts = self.jited_ksyms() or [0] * count
        return list(zip(starts, (item[0] for item in struct.iter_unpack("=I", lengths))))

    def jited_line_info(self):
        """The kernel addresses at which the machine code of each line_info() record starts; [] without
        BTF, or where kernel.kptr_restrict hides them (5.0+)."""
        layout = syscalls.PROG_INFO
        first = layout.unpack(self._info())
        count, size = first.get("nr_jited_line_info", 0), first.get("jited_line_info_rec_size", 0)
        records = bytearray(count * size)
        if not records:
            return []
        info = self._info(nr_jited_line_info=count, jited_line_info_rec_size=size, jited_line_info=address(records))
        if not layout.get(info, "jited_line_info"):
            return []
        return [struct.unpack_from("=Q", records, at)[0] for at in range(0, len(records), size)]

    def _info(self, **fields):
        try:
            return syscalls.obj_info(self.fileno(), syscalls.PROG_INFO, **fields)
        except OSError as error:
            raise refused("info of program %s" % self.name, error) from None

    def _dump(self, what):
        layout = syscalls.PROG_INFO
        size = layout.get(self._info(), what + "_prog_len")
        code = bytearray(size)
        if size:
            info = self._info(**{what + "_prog_len": size, what + "_prog_insns": address(code)})
            if not layout.get(info, what + "_prog_insns"):
                size = 0
        if not size:
            raise KernelError("dump of program %s" % self.name, errno.EPERM,
                              explain(errno.EPERM, "admin") if what == "xlated" else
                              "needs the JIT, CAP_SYS_ADMIN and kernel.kptr_restrict below 2")
        return bytes(code)

    def xlated(self):
        """The translated instructions (bytes), as the verifier rewrote them. Needs CAP_BPF and
        CAP_PERFMON, and net.core.bpf_jit_harden below 2."""
        return self._dump("xlated")

    def jited(self):
        """The machine code (bytes)."""
        return self._dump("jited")

    def read_stream(self, stream=STDERR, size=4096):
        """What the program wrote to its STDOUT or STDERR stream, or the kernel about it (faults,
        timeouts): up to size bytes, b"" when there is no more (6.18+)."""
        return _read_stream(self, stream, size)

    def assoc_struct_ops(self, map):
        """Says for which struct_ops map the program calls kernel functions, where that is not its own (7.0+)."""
        try:
            syscalls.bpf("prog_assoc_struct_ops", map_fd=fd_of(map), prog_fd=self.fileno())
        except OSError as error:
            raise refused("association of program %s" % self.name, error, "bpf",
                          invalid=introduced.needs("command", "prog_assoc_struct_ops", "this")) from None

    def test_run(self, data=None, ctx=None, *, repeat=1, data_size_out=None, ctx_size_out=None,
                 flags=0, cpu=0, batch_size=0):
        """Runs the program in the kernel with this packet and context -> TestRun.

        Packet programs want at least 14 bytes of data; tracing-type ones take ctx only (raw
        tracepoints: u64 arguments, 5.10+, on a CPU of choice with flags=F_TEST_RUN_ON_CPU; syscall
        programs 5.14+). kprobe, tracepoint and perf_event programs cannot be test-run.
        """
        data_in, ctx_in = bytearray(data or b""), bytearray(ctx or b"")
        if data_size_out is None:
            # head and tail room that a program may grow its packet into
            data_size_out = len(data_in) + 512 if data_in else 0
        if ctx_size_out is None:
            # the kernel writes its whole structure, also where less went in
            ctx_size_out = max(len(ctx_in), 512) if ctx_in and self.type not in ("raw_tracepoint", "syscall") else 0
        data_out, ctx_out = bytearray(data_size_out), bytearray(ctx_size_out)
        if self.type == "raw_tracepoint":
            repeat = 0
        try:
            _, answer = syscalls.bpf_out(
                "prog_test_run", prog_fd=self.fileno(), data_size_in=len(data_in),
                data_size_out=len(data_out), data_in=address(data_in), data_out=address(data_out),
                repeat=0 if self.type == "syscall" else repeat, ctx_size_in=len(ctx_in),
                ctx_size_out=len(ctx_out), ctx_in=address(ctx_in), ctx_out=address(ctx_out),
                flags=flags, cpu=cpu, batch_size=batch_size)
        except OSError as error:
            raise refused("test run of %s program %s" % (self.type, self.name), error,
                          _permissions(self.type), invalid=_test_run_text(self.type, error.errno, bool(data_in), bool(ctx_in))
                          ) from None
        ctx_left = ctx_in if self.type == "syscall" else ctx_out[:answer["ctx_size_out"]]
        return TestRun(answer["retval"], answer["duration"],
                       bytes(data_out[:answer["data_size_out"]]), bytes(ctx_left))


def _read_stream(program, stream, size):
    buffer = bytearray(size)
    try:
        got = syscalls.bpf("prog_stream_read_by_fd", stream_buf=address(buffer), stream_buf_len=size,
                           stream_id=stream, prog_fd=program.fileno())
    except OSError as error:
        raise refused("read of a stream of program %s" % program.name, error, "admin",
                      invalid=introduced.needs("command", "prog_stream_read_by_fd", "a program's stream")
                      ) from None
    return bytes(buffer[:got])


def _text(data):
    return data.split(b"\0")[0].decode("ascii", "replace")


def _permissions(type):
    return "net" if type in _NET else "trace" if type in _TRACE else "bpf"


def _test_run_text(type, code, data, ctx):
    if code in (errno.ENOTSUP, 524) or code == errno.EINVAL and type in ("kprobe", "tracepoint", "perf_event"):
        since_when = {"raw_tracepoint": (5, 10), "sk_lookup": (5, 14), "syscall": (5, 14), "netfilter": (6, 4)}.get(type)
        if since_when and kernel.release() < since_when:
            return since(since_when, "a test run of %s programs" % type)
        return "the kernel cannot test-run %s programs" % type
    if code == errno.EINVAL and type in ("raw_tracepoint", "syscall"):
        return "it takes a context and no packet" if data else \
            "the context must hold all that the program reads of it"
    if type == "sk_lookup" and code in (errno.EINVAL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT):
        return "it takes no packet, and as context a struct bpf_sk_lookup whose family (u32 at byte 8) is 2 or 10 and " \
            "whose protocol (byte 12) is 6 or 17"
    if code == errno.EINVAL and type == "netfilter" and ctx:
        return "it takes a packet and no context"
    if code == errno.EINVAL and type in _NET:
        return "data must hold at least a 14-byte Ethernet header" + (
            ", and what the kernel sets of a context must be 0" if ctx else "")
    if code == errno.EFAULT and type == "tracing":
        return "the kernel runs it only where it is attached"
    if code == errno.ENOSPC:
        return "the output is larger than data_size_out or ctx_size_out"
    return ""


def _load(fields, log_level, log_size, log_end, log_max):
    """(fd, log, error): one of fd and error. The log buffer grows until the log fits, or its end (log_end)."""
    if not log_level:
        try:
            return syscalls.bpf("prog_load", **fields), "", None
        except OSError as error:
            return -1, "", error
    while True:
        log = bytearray(log_size)
        attr = syscalls.ATTR["prog_load"].pack(log_level=log_level, log_size=log_size,
                                               log_buf=address(log), **fields)
        try:
            fd, error = syscalls.bpf_raw("prog_load", attr), None
        except OSError as caught:
            fd, error = -1, caught
        # 6.4+ keeps the end of a log that is too long, says its true size and still ENOSPC.
        wanted = syscalls.ATTR["prog_load"].get(attr, "log_true_size")
        if error is not None and error.errno == errno.ENOSPC and log_size < log_max and not (log_end and wanted):
            log_size = min(max(log_size * 4, wanted), log_max)
            continue
        end = log.find(b"\0")
        return fd, log[:end if end >= 0 else len(log)].decode("utf-8", "replace"), error


def _load_with_memlock(fields, log_level, log_size, log_end, log_max):
    fd, log, error = _load(fields, log_level, log_size, log_end, log_max)
    if error is not None and error.errno == errno.EPERM and kernel.charges_memlock():
        if kernel.raise_memlock():
            fd, log, error = _load(fields, log_level, log_size, log_end, log_max)
    return fd, log, error


def _has_callbacks(code):
    """Does encoded code load the address of a function of its own?"""
    at = 0
    while at < len(code):
        if code[at] == 0x18:        # the only instruction of two slots
            if (code[at + 1] >> 4 if sys.byteorder == "little" else code[at + 1] & 15) == PSEUDO_FUNC:
                return True
            at += 8
        at += 8
    return False


def _refusal(call, error, log, type, code, instructions, attach_type):
    message = verifier.reason(log)
    if log and error.errno == errno.ENOSPC and not message:
        message = "the log is larger than its buffer"
    newer = introduced.needs("attach", attach_type) if error.errno in (errno.EINVAL, errno.ENOENT) else ""
    if newer:
        # the verifier's own words are of what it took the program for
        return refused(call, error, _permissions(type), True, newer)
    if message and error.errno != errno.EPERM:
        slot = verifier.failing_slot(log)
        index = slot
        if slot is not None and not isinstance(instructions, (bytes, bytearray)):
            index = verifier.slot_to_index(instructions, slot)
        unknown = _UNKNOWN_HELPER.search(message)
        newer = unknown and introduced.needs("helper", int(unknown.group(1)), "that helper")
        if not newer and _has_callbacks(code):
            # before, the verifier took the function for dead code and the address for a constant
            newer = since((5, 13), "a function's address, as callbacks are given,")
        if newer:
            message += " (%s)" % newer
        return VerifierError(call, error.errno, log, message, slot, index)
    if error.errno == errno.E2BIG:
        text = "it has %d instructions, more than the kernel takes (4096, or 1 million since 5.2 " \
               "with CAP_BPF)" % (len(code) // 8)
    else:
        text = introduced.needs("program", type)
    return refused(call, error, _permissions(type), True, text or message, _locked_down(attach_type))


_AT_FUNCTIONS = ("trace_fentry", "trace_fexit", "modify_return", "lsm_mac")


def _locked_down(attach_type):
    """What EPERM means of a program that changes the kernel's code where it is attached."""
    mode = kernel.lockdown() if attach_type in _AT_FUNCTIONS else None
    return "" if mode in (None, "none") else \
        "the kernel is locked down (%s) and lets no program be attached to its functions" % mode


class run_statistics:
    """While open, the kernel counts run_time_ns and run_cnt of every program (BPF_ENABLE_STATS,
    5.8+; before, the sysctl kernel.bpf_stats_enabled, 5.1+, which is put back)."""

    _SYSCTL = "/proc/sys/kernel/bpf_stats_enabled"

    def __init__(self):
        self._object = self._before = None
        try:
            self._object = KernelObject(syscalls.bpf("enable_stats"))
        except OSError as error:
            if kernel.release() >= (5, 8):
                raise refused("run statistics", error, "admin") from None
            self._before = kernel.sysctl("kernel.bpf_stats_enabled")
            if self._before is None:
                raise refused("run statistics", error, "admin",
                              invalid=since((5, 1), "counting run time")) from None
            self._write("1")

    def _write(self, value):
        try:
            with open(self._SYSCTL, "w") as file:
                file.write(value)
        except OSError as error:
            raise refused("run statistics", error, "admin") from None

    def close(self):
        if self._object is not None:
            self._object.close()
        if self._before is not None:
            self._write(self._before)
            self._before = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
