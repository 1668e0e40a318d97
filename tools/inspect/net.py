"""`rawbpf net`: programs on network interfaces (XDP, tc, tcx, netkit), the flow dissector, netfilter hooks."""

import errno

from rawbpf.loader.errors import KernelError

from .command import run_object
from .link import netfilter_text
from .objects import by_id, each, full_name, index_of, one, recorded
from .words import fail, is_prefix

USAGE = """usage: rawbpf net { show | list } [dev NAME]
       rawbpf net attach ATTACH_TYPE PROG dev NAME [{ overwrite | prepend }]
       rawbpf net detach ATTACH_TYPE dev NAME

ATTACH_TYPE := { xdp | xdpgeneric | xdpdrv | xdpoffload | tcx_ingress | tcx_egress }
PROG := { id ID | tag TAG | name NAME | pinned FILE }
"""
_XDP = ("xdp", "xdpgeneric", "xdpdrv", "xdpoffload")
_TCX = ("tcx_ingress", "tcx_egress")
_PLACES = {"tcx_ingress": "tcx/ingress", "tcx_egress": "tcx/egress", "netkit_primary": "netkit/primary",
           "netkit_peer": "netkit/peer"}


def _device(words):
    words.need("dev")
    return index_of(words.next("name of an interface"))


def records(only=None):
    """What is attached in this network namespace, as -j has it; only: the index of an interface."""
    from rawbpf.loader.netlink import Socket
    dissector = _flow_dissector()
    with Socket() as netlink:
        interfaces = [found for found in netlink.interfaces() if only is None or found.ifindex == only]
        shown = {"xdp": [_xdp(found) for found in interfaces if found.xdp],
                 "tc": [fields for found in interfaces for fields in _traffic(netlink, found)]}
    shown.update(flow_dissector=dissector, netfilter=_netfilter())
    return shown


def _xdp(found):
    fields = {"devname": found.name, "ifindex": found.ifindex}
    programs = [{"mode": mode, "id": number} for mode, number in found.xdp]
    if len(programs) > 1:
        fields["multi_attachments"] = programs
    else:
        fields.update(programs[0])
    return fields


def _traffic(netlink, interface):
    for kind, place in _PLACES.items():
        yield from _ordered(interface, kind, place)
    for found in netlink.filters(interface.ifindex):
        fields = {"devname": interface.name, "ifindex": interface.ifindex, "kind": found.kind}
        if found.name:
            fields["name"] = found.name
        if found.prog_id is not None:
            fields["id"] = found.prog_id
        if found.actions:
            fields["act"] = [{key: value for key, value in (("name", name), ("id", number)) if value not in ("", None)}
                             for name, number in found.actions]
        yield fields


def _ordered(interface, kind, place):
    """What runs by tcx or netkit, in its order."""
    from rawbpf.loader.link_net import prog_query
    try:
        found = prog_query(interface.ifindex, kind)
    except KernelError as error:
        if error.errno in (errno.EPERM, errno.EACCES) and kind.startswith("tcx"):
            raise
        return      # not a netkit device or the peer of one (EACCES), or a kernel without them
    for at, number in enumerate(found.prog_ids):
        fields = {"devname": interface.name, "ifindex": interface.ifindex, "kind": place}
        name = _name(number)
        if name:
            fields["name"] = name
        fields.update(prog_id=number, prog_flags=_bits(found.prog_flags, at),
                      link_id=found.link_ids[at] if at < len(found.link_ids) else 0,
                      link_flags=_bits(found.link_flags, at))
        yield fields


def _bits(flags, at):
    value = flags[at] if at < len(flags) else 0
    return [1 << bit for bit in range(32) if value >> bit & 1]


def _name(number):
    try:
        with by_id("prog", number) as program:
            return full_name(program.info())
    except Exception as error:
        from ..failure import Failure
        if isinstance(error, (Failure, KernelError)):
            return ""       # it has gone meanwhile
        raise


def _flow_dissector():
    from rawbpf.loader.link_net import open_path, prog_query
    with open_path("/proc/self/ns/net") as namespace:
        try:
            return prog_query(namespace, "flow_dissector").prog_ids[:1]
        except KernelError as error:
            if error.errno != errno.EINVAL:
                raise
            return []       # before 5.3


def _netfilter():
    found = []
    for link in each("link"):
        info = link.info()
        if info.type == "netfilter":
            found.append((info.pf, info.hooknum, info.priority, info.flags, info.prog_id))
    return [dict(zip(("pf", "hook", "prio", "flags", "id"), values)) for values in sorted(found)]


def text(shown):
    out = "xdp:\n"
    for fields in shown["xdp"]:
        out += "%s(%d)" % (fields["devname"], fields["ifindex"])
        for program in fields.get("multi_attachments", (fields,)):
            out += " %s id %d" % (program["mode"], program["id"])
        out += "\n"
    out += "\ntc:\n" + "".join(map(_traffic_text, shown["tc"]))
    out += "\nflow_dissector:\n" + "".join("id %d" % number for number in shown["flow_dissector"])
    out += "\nnetfilter:\n"
    for fields in shown["netfilter"]:
        out += netfilter_text(fields) + " prog_id %d" % fields["id"]
    return out + "\n"


def _traffic_text(fields):
    out = "%s(%d) %s" % (fields["devname"], fields["ifindex"], fields["kind"])
    if "name" in fields:
        out += " " + fields["name"]
    if "id" in fields:
        out += " id %d" % fields["id"]
    if "act" in fields:
        out += " act [" + "".join("{%s%s}" % (one_.get("name", ""), " id %d" % one_["id"] if "id" in one_ else "")
                                  for one_ in fields["act"]) + "] "
    if "prog_id" in fields:
        out += " prog_id %d " % fields["prog_id"]
        if fields["prog_flags"]:
            out += "prog_flags " + "".join("%d " % flag for flag in fields["prog_flags"])
        if fields["link_id"]:
            out += "link_id %d " % fields["link_id"]
            if fields["link_flags"]:
                out += "link_flags " + "".join("%d " % flag for flag in fields["link_flags"])
    return out + "\n"


def show(session, words):
    found = recorded("net")
    if found is not None:
        name = words.next("name of an interface") if words.take("dev") else None
        words.end()
        shown = {key: [one_ for one_ in value if name is None or key not in ("xdp", "tc") or one_["devname"] == name]
                 for key, value in found[0].items()}
    else:
        only = _device(words) if words else None
        words.end()
        shown = records(only)
    session.show([shown], text)


def _kind(words):
    word = words.next("attach type")
    for kind in _XDP + _TCX:
        if is_prefix(word, kind):
            return kind
    return fail("invalid net attach/detach type: %s" % word)


def attach(session, words):
    from rawbpf.loader.link_net import prog_attach
    from rawbpf.loader.netlink import Socket
    from rawbpf.loader.uapi import F_BEFORE
    kind = _kind(words)
    with one("prog", words) as program:
        ifindex = _device(words)
        option = words.take("overwrite", "prepend")
        words.end()
        if option == ("prepend" if kind in _XDP else "overwrite"):
            fail("'overwrite' is only supported for xdp types" if option == "overwrite" else
                 "'prepend' is only supported for tcx_ingress/tcx_egress")
        if kind in _XDP:
            with Socket() as netlink:
                netlink.set_xdp(ifindex, program.fileno(), kind, option == "overwrite")
        else:
            prog_attach(program, ifindex, kind, F_BEFORE if option else 0)
    session.done()


def detach(session, words):
    from rawbpf.loader.link_net import prog_detach
    from rawbpf.loader.netlink import Socket
    kind = _kind(words)
    ifindex = _device(words)
    words.end()
    if kind in _XDP:
        with Socket() as netlink:
            netlink.set_xdp(ifindex, -1, kind)
    else:
        prog_detach(0, ifindex, kind)
    session.done()


VERBS = {"show": show, "list": show, "attach": attach, "detach": detach}


def run(argv):
    return run_object("net", VERBS, USAGE, argv)
