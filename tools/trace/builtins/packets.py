"""skboutput: packets into pcap files."""
import struct

from .. import types
from ..types import UINT32, UINT64, Pointer
from ..written import base_text
from . import Argument, Builtin, register

LINKTYPE_RAW = 101      # packets begin with the IP header
SNAPLEN = 65535
MASK = 0xfffff          # BPF_F_CTXLEN_MASK >> 32


class _Packet(types.ValueType):
    """What follows the record's head: the packet and the perf buffer's padding."""
    align = 8
    size = SNAPLEN
    name = "packet"

    def decode(self, data, host=types.UNKNOWN):
        return bytes(data)


@register
class _Skboutput(Builtin):
    """skboutput(file, skb, length, offset): the packet's bytes from `offset` to `length` go to a pcap file (format of
    tcpdump: a head of 24 bytes, then 16 bytes and the packet each). Returns 0 or a negative error.

    The kernel copies packets to perf buffers only, so a script that has this writes all of its records to those."""
    names = ("skboutput",)
    follows = True
    arguments = (Argument("literal string", "file"), Argument("any", "skb"), Argument("integer", "length"),
                 Argument("literal integer", "offset"))
    returns = UINT32

    def resolve(self, r, call):
        if r.point.program_type != "tracing":
            r.error(call, 'skboutput can not be used with "%s" probes' % r.point.source.shown)
        r.arguments(self, call)
        if not isinstance(call.arguments[1].type, Pointer):
            r.error(call.arguments[1], "skboutput() only supports pointer arguments (%s provided)"
                    % base_text(call.arguments[1].type))
        r.script.need_perf_buffer()
        return UINT32

    def value(self, b, call):
        f = b.f
        path, skb, length, offset = call.arguments
        offset = b.constant(offset)
        name = b.constant(path)

        def action(session, values):
            nsecs, size, packet = values
            if size > offset:
                session.packet_file(name).write(session.host.wall_clock(nsecs, 0), packet[offset:size])
        event = b.event(call, "skboutput", [UINT64, UINT64, _Packet()], action)
        head = event.fields[2][0]
        boot = b.script.machine.has_helper("bpf_ktime_get_boot_ns", b.point.program_type)
        size = f.alu("&", b.value(length), MASK)
        size = f.copy(size)
        record = f.slot(head)
        f.store(record, 0, event.number, 8)
        f.store(record, 8, f.call("bpf_ktime_get_boot_ns" if boot else "bpf_ktime_get_ns"), 8)
        f.store(record, 16, size, 8)
        flags = f.alu("|", f.alu("<<", size, 32), 0xffffffff)
        lost, done = f.block("lost"), f.block()
        result = f.variable()
        f.set(result, -14)       # EFAULT
        f.set(result, f.call("bpf_skb_output", b.followed(skb, done), f.map("events"), flags, f.address(record), head))
        f.branch("==", result, -28, lost, done)      # ENOSPC: no room in the buffer
        f.position(lost)
        b.count_loss("output")
        f.jump(done)
        f.position(done)
        return f.extend(result, 4, False)

    def statement(self, b, call):
        self.value(b, call)


class PacketFile:
    """A pcap file that is being written."""

    def __init__(self, path):
        self._file = open(path, "wb")
        self._file.write(struct.pack("=IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, SNAPLEN, LINKTYPE_RAW))

    def write(self, nsecs, packet):
        """nsecs: since 1970."""
        seconds, rest = divmod(nsecs, 10 ** 9)
        self._file.write(struct.pack("=IIII", seconds & 0xffffffff, rest // 1000, len(packet), len(packet)) + packet)

    def close(self):
        self._file.close()
