"""What a link attaches: struct bpf_link_info by kind (bpf(2) BPF_OBJ_GET_INFO_BY_FD, 5.8+)."""

import struct
from types import SimpleNamespace

from . import syscalls
from .errors import refused
from .syscalls import LINK_INFO, LINK_INFO_HEAD, address
from .uapi import ATTACH_TYPES, LINK_TYPES, name_of

# enum bpf_perf_event_type
PERF_TYPES = ("", "uprobe", "uretprobe", "kprobe", "kretprobe", "tracepoint", "event")
_NAME_ROOM = 4096


def link_info(fd):
    """struct bpf_link_info as a namespace: type, id, prog_id and what its kind has, names and arrays
    read in full (tp_name, path, addrs, offsets, cookies, ...). What the kernel does not say is absent."""
    head = LINK_INFO_HEAD.unpack(_ask(fd, LINK_INFO_HEAD))
    kind = name_of(LINK_TYPES, head["type"])
    layout = LINK_INFO.get(kind)
    if layout is None:
        fields = head
    elif kind == "perf_event":
        fields = _perf_event(fd)
    elif kind in ("raw_tracepoint", "iter"):
        what = "tp_name" if kind == "raw_tracepoint" else "target_name"
        name = bytearray(128)
        fields = layout.unpack(_ask(fd, layout, **{what: address(name), what + "_len": len(name)}))
        fields[what] = _text(name)
        del fields[what + "_len"]
    elif kind.endswith("_multi"):
        fields = _multi(fd, kind, layout)
    else:
        fields = layout.unpack(_ask(fd, layout))
    fields["type"] = kind
    if "attach_type" in fields:
        fields["attach_type"] = name_of(ATTACH_TYPES, fields["attach_type"])
    return SimpleNamespace(**{name: value for name, value in fields.items() if name[-1:] != "_"})


def _ask(fd, layout, **fields):
    try:
        return syscalls.obj_info(fd, layout, **fields)
    except OSError as error:
        raise refused("info of link", error, "bpf") from None


def _text(buffer):
    return buffer.split(b"\0")[0].decode("utf-8", "surrogateescape")


def _perf_event(fd):
    """The kernel tells these since 6.6; before, only that it is a perf event."""
    layout = LINK_INFO["perf_event"]
    number = layout.unpack(_ask(fd, layout)).get("perf_type", 0)
    if not 0 < number < len(PERF_TYPES):
        return layout.unpack(_ask(fd, LINK_INFO_HEAD))
    kind = PERF_TYPES[number]
    layout = LINK_INFO["perf_event " + kind.replace("ret", "")]
    if kind == "event":
        fields = layout.unpack(_ask(fd, layout))
    else:
        name = bytearray(_NAME_ROOM)
        fields = layout.unpack(_ask(fd, layout, name_at=address(name), name_len=len(name)))
        fields["name"] = _text(name)
        del fields["name_at"], fields["name_len"]
    fields["perf_type"] = kind
    return fields


def _multi(fd, kind, layout):
    first = layout.unpack(_ask(fd, layout))
    count = first.get("count", 0)
    arrays = [name for name in ("addrs", "offsets", "ref_ctr_offsets", "cookies", "ids")
              if name in first]
    buffers = {name: bytearray(count * (4 if name == "ids" else 8)) for name in arrays}
    asked = {name: address(buffer) for name, buffer in buffers.items()}
    path = bytearray(_NAME_ROOM)
    if kind == "uprobe_multi":
        asked.update(path=address(path), path_size=len(path))
    fields = layout.unpack(_ask(fd, layout, count=count, **asked)) if count else first
    for name, buffer in buffers.items():
        fields[name] = [item[0] for item in struct.iter_unpack("=I" if name == "ids" else "=Q", buffer)]
    if kind == "uprobe_multi":
        fields["path"] = _text(path)
        del fields["path_size"]
    return fields
