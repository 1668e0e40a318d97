"""`rawbpf link`: what programs are attached to."""

from .command import run_object
from .objects import around_text, by_id, interface, one, pin_verb, show_verb, symbols
from .prog import _type, type_text
from .words import fail

USAGE = """usage: rawbpf link { show | list } [LINK]
       rawbpf link pin LINK FILE
       rawbpf link detach LINK

LINK := { id ID | pinned FILE }
"""

_PF = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}      # as bpftool shortens NFPROTO_*
_INET = ("prerouting", "input", "forward", "output", "postrouting")
_HOOKS = {1: _INET, 2: _INET, 3: ("input", "output"), 7: _INET, 10: _INET}
_OF_MAPS, _OF_TASKS = ("bpf_map_elem", "bpf_sk_storage_map"), ("task", "task_file", "task_vma")     # iterators
_ORDERS = ("order_unspec", "self_only", "descendants_pre", "descendants_post", "ancestors_up")
_PERF_TYPES = ("hardware", "software", "tracepoint", "hw-cache", "raw", "breakpoint")
_HARDWARE = ("cpu-cycles", "instructions", "cache-references", "cache-misses", "branch-instructions",
             "branch-misses", "bus-cycles", "stalled-cycles-frontend", "stalled-cycles-backend", "ref-cycles")
_SOFTWARE = ("cpu-clock", "task-clock", "page-faults", "context-switches", "cpu-migrations", "minor-faults",
             "major-faults", "alignment-faults", "emulation-faults", "dummy", "bpf-output", "cgroup-switches")
_CACHES = ("L1-dcache", "L1-icache", "LLC", "dTLB", "iTLB", "branch", "node")
_CACHE_OPS = ("load", "store", "prefetch")
_CACHE_RESULTS = ("refs", "misses")
_MULTI_RETURN = 1


def record(link, around=None):
    """What `show` says of a link, as -j has it."""
    info = link.info()
    fields = {"id": info.id, "type": _type(info.type), "prog_id": info.prog_id}
    more = _KINDS.get(info.type)
    if more:
        fields.update(more(info))
    if around is not None:
        fields.update(around.fields(info.id))
    return fields


def _attach(info):
    return {"attach_type": _type(info.attach_type)}


def _raw_tracepoint(info):
    return {"tp_name": info.tp_name, "cookie": getattr(info, "cookie", 0)}


def _tracing(info):
    with by_id("prog", info.prog_id) as program:
        fields = {"prog_type": _type(program.info().type), **_attach(info)}
    fields.update((name, getattr(info, name, 0)) for name in ("target_obj_id", "target_btf_id", "cookie"))
    return fields


def _cgroup(info):
    return {"cgroup_id": info.cgroup_id, **_attach(info)}


def _iter(info):
    fields = {"target_name": info.target_name}
    if info.target_name in _OF_MAPS:
        fields["map_id"] = getattr(info, "map_id", 0)
    tid, pid = getattr(info, "tid", 0), getattr(info, "pid", 0)
    if info.target_name in _OF_TASKS:
        fields.update({"tid": tid} if tid else {"pid": pid} if pid else {})
    if info.target_name == "cgroup":
        order = getattr(info, "order", 0)
        fields.update(cgroup_id=tid | pid << 32, order=_ORDERS[order] if order < len(_ORDERS) else "unknown")
    return fields


def _netns(info):
    return {"netns_ino": info.netns_ino, **_attach(info)}


def _interface(info):
    fields = {"devname": interface(info.ifindex) or ("(unknown)" if info.ifindex else "(detached)"),
              "ifindex": info.ifindex}
    if hasattr(info, "attach_type"):
        fields.update(_attach(info))
    return fields


def _struct_ops(info):
    return {"map_id": info.map_id}


def _netfilter(info):
    return {"pf": info.pf, "hook": info.hooknum, "prio": info.priority, "flags": info.flags}


def _kprobe_multi(info):
    fields = {"retprobe": bool(info.flags & _MULTI_RETURN), "func_cnt": info.count,
              "missed": getattr(info, "missed", 0), "funcs": []}
    cookies = getattr(info, "cookies", None) or [0] * len(info.addrs)
    for address, cookie in sorted(zip(info.addrs, cookies)):
        if not address:
            continue
        found = symbols().resolve(address)
        fields["funcs"].append({"addr": address, "func": found.name if found else "",
                                "module": (found.module if found else "") or None, "cookie": cookie})
    return fields


def _uprobe_multi(info):
    counts = getattr(info, "ref_ctr_offsets", None) or [0] * len(info.offsets)
    cookies = getattr(info, "cookies", None) or [0] * len(info.offsets)
    return {"retprobe": bool(info.flags & _MULTI_RETURN), "path": info.path, "func_cnt": info.count,
            "pid": info.pid, "funcs": [{"offset": offset, "ref_ctr_offset": count, "cookie": cookie}
                                       for offset, count, cookie in zip(info.offsets, counts, cookies)]}


def _perf_event(info):
    kind = getattr(info, "perf_type", "")
    if kind in ("kprobe", "kretprobe"):
        fields = {"retprobe": kind == "kretprobe", "addr": info.addr, "func": info.name, "offset": info.offset,
                  "missed": getattr(info, "missed", 0)}
    elif kind in ("uprobe", "uretprobe"):
        fields = {"retprobe": kind == "uretprobe", "file": info.name, "offset": info.offset}
    elif kind == "tracepoint":
        fields = {"tracepoint": info.name}
    elif kind == "event":
        fields = {"event_type": _PERF_TYPES[info.event_type] if info.event_type < len(_PERF_TYPES) else info.event_type,
                  "event_config": _event(info.event_type, info.config)}
    else:
        return {}
    fields["cookie"] = getattr(info, "cookie", 0)
    if "file" in fields:
        fields["ref_ctr_offset"] = getattr(info, "ref_ctr_offset", 0)
    return fields


def _event(kind, config):
    """The name of a perf event's configuration, or its number."""
    table = {0: _HARDWARE, 1: _SOFTWARE}.get(kind)
    if table is not None and config < len(table):
        return table[config]
    if kind == 3:
        return "-".join(names[value] if value < len(names) else str(value) for names, value in (
            (_CACHES, config & 255), (_CACHE_OPS, config >> 8 & 255), (_CACHE_RESULTS, config >> 16)))
    return config


_KINDS = {"raw_tracepoint": _raw_tracepoint, "tracing": _tracing, "cgroup": _cgroup, "iter": _iter, "netns": _netns,
          "netfilter": _netfilter, "tcx": _interface, "netkit": _interface, "xdp": _interface,
          "sockmap": lambda info: {"map_id": info.map_id, **_attach(info)}, "struct_ops": _struct_ops,
          "kprobe_multi": _kprobe_multi, "uprobe_multi": _uprobe_multi, "perf_event": _perf_event}


def text(fields):
    out = "%d: %s  " % (fields["id"], type_text(fields["type"]))
    out += "map %d  " % fields["map_id"] if fields["type"] == "struct_ops" else "prog %d  " % fields["prog_id"]
    more = _TEXTS.get(fields["type"])
    if more:
        out += more(fields)
    return out + around_text(fields) + "\n"


def _attach_text(fields):
    return "attach_type %s  " % fields["attach_type"] if "attach_type" in fields else ""


def _cookie_text(fields):
    return "cookie %d  " % fields["cookie"] if fields.get("cookie") else ""


def _perf_text(fields):
    if "func" in fields:
        if not fields["func"] and not fields["addr"]:
            return ""
        out = "\n\tkretprobe " if fields["retprobe"] else "\n\tkprobe "
        out += "%x " % fields["addr"] if fields["addr"] else ""
        out += fields["func"]
        if fields["offset"]:
            out += "+0x%x" % fields["offset"]
        out += "  "
        out += "missed %d  " % fields["missed"] if fields["missed"] else ""
    elif fields.get("file"):
        out = "\n\t%s %s+0x%x  " % ("uretprobe" if fields["retprobe"] else "uprobe", fields["file"], fields["offset"])
    elif fields.get("tracepoint"):
        out = "\n\ttracepoint %s  " % fields["tracepoint"]
    elif "event_type" in fields:
        known = isinstance(fields["event_type"], str)
        out = "\n\tevent %s%s:%s  " % (fields["event_type"], "" if known else " ", fields["event_config"])
    else:
        return ""
    out += _cookie_text(fields)
    return out + ("ref_ctr_offset 0x%x  " % fields["ref_ctr_offset"] if fields.get("ref_ctr_offset") else "")


def _kprobes_text(fields):
    if not fields["func_cnt"]:
        return ""
    out = "\n\tkretprobe.multi  " if fields["retprobe"] else "\n\tkprobe.multi  "
    out += "func_cnt %d  " % fields["func_cnt"]
    out += "missed %d  " % fields["missed"] if fields["missed"] else ""
    out += "\n\t%-16s %-16s %s" % ("addr", "cookie", "func [module]")
    for one_ in fields["funcs"]:
        out += "\n\t%016x %-16x %s" % (one_["addr"], one_["cookie"], one_["func"])
        out += " [%s]  " % one_["module"] if one_["module"] else "  "
    return out


def _uprobes_text(fields):
    if not fields["func_cnt"]:
        return ""
    out = "\n\turetprobe.multi  " if fields["retprobe"] else "\n\tuprobe.multi  "
    out += "path %s  func_cnt %d  " % (fields["path"], fields["func_cnt"])
    out += "pid %d  " % fields["pid"] if fields["pid"] else ""
    out += "\n\t%-16s   %-16s   %-16s" % ("offset", "ref_ctr_offset", "cookies")
    for one_ in fields["funcs"]:
        out += "\n\t0x%-16x 0x%-16x 0x%-16x" % (one_["offset"], one_["ref_ctr_offset"], one_["cookie"])
    return out


def netfilter_text(fields):
    pf, hook = fields["pf"], fields["hook"]
    out = "\n\t%s" % (_PF.get(pf, "pf: %d" % pf))
    hooks = _HOOKS.get(pf, ())
    out += " %s" % hooks[hook] if hook < len(hooks) else ", hook %d," % hook
    out += " prio %d" % fields["prio"]
    return out + (" flags 0x%x" % fields["flags"] if fields["flags"] else "")


def _interface_text(fields):
    name = fields["devname"]
    if name not in ("(unknown)", "(detached)"):
        name += "(%d)" % fields["ifindex"]
    return "\n\tifindex %s  %s" % (name, _attach_text(fields))


def _iter_text(fields):
    out = "target_name %s  " % fields["target_name"]
    out += "map_id %d  " % fields["map_id"] if "map_id" in fields else ""
    out += "".join("%s %d " % (name, fields[name]) for name in ("tid", "pid") if name in fields)
    return out + ("cgroup_id %d  order %s  " % (fields["cgroup_id"], fields["order"]) if "order" in fields else "")


_TEXTS = {
    "raw_tracepoint": lambda fields: "\n\ttp '%s'  %s" % (fields["tp_name"], _cookie_text(fields)),
    "tracing": lambda fields: "\n\tprog_type %s  %s%s%s" % (
        fields["prog_type"], _attach_text(fields),
        "\n\ttarget_obj_id %d  target_btf_id %d  " % (fields["target_obj_id"], fields["target_btf_id"])
        if fields["target_obj_id"] or fields["target_btf_id"] else "",
        "\n\t" + _cookie_text(fields) if fields["cookie"] else ""),
    "cgroup": lambda fields: "\n\tcgroup_id %d  %s" % (fields["cgroup_id"], _attach_text(fields)),
    "iter": _iter_text,
    "netns": lambda fields: "\n\tnetns_ino %d  %s" % (fields["netns_ino"], _attach_text(fields)),
    "sockmap": lambda fields: "\n\tmap_id %d  %s" % (fields["map_id"], _attach_text(fields)),
    "netfilter": netfilter_text, "tcx": _interface_text, "netkit": _interface_text, "xdp": _interface_text,
    "perf_event": _perf_text, "kprobe_multi": _kprobes_text, "uprobe_multi": _uprobes_text,
}


show = show_verb("link", record, text)


def detach(session, words):
    if len(words) != 2:
        fail("link specifier is invalid or missing")
    with one("link", words) as link:
        link.detach()
    session.done()


VERBS = {"show": show, "list": show, "pin": pin_verb("link"), "detach": detach}


def run(argv):
    return run_object("link", VERBS, USAGE, argv)
