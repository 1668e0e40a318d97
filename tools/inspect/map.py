"""`rawbpf map`: the maps there are, and what is in them."""

import errno
import os
import re

from rawbpf.loader.errors import KernelError

from .command import run_object
from .objects import around_text, details, one, pin_verb, select, show_verb
from .prog import _type, device, device_text, type_text
from .words import fail

USAGE = """usage: rawbpf map { show | list } [MAP]
       rawbpf map create FILE type TYPE key KEY_SIZE value VALUE_SIZE entries MAX_ENTRIES name NAME
                         [flags FLAGS] [inner_map MAP] [offload_dev NAME]
       rawbpf map dump MAP
       rawbpf map update MAP [key DATA] [value VALUE] [{ any | exist | noexist }]
       rawbpf map { lookup | getnext } MAP [key DATA]
       rawbpf map delete MAP key DATA
       rawbpf map pin MAP FILE
       rawbpf map { peek | pop | dequeue | freeze } MAP
       rawbpf map { push | enqueue } MAP value VALUE
       rawbpf map event_pipe MAP [cpu N index M]

MAP := { id ID | name NAME | pinned FILE };  DATA := { [hex] BYTES };  VALUE := { DATA | MAP | PROG }
PROG := { id ID | tag TAG | name NAME | pinned FILE }
"""


def record(item, around=None):
    """What `show` says of a map, as -j has it."""
    info, extra = item.info(), details(item)
    fields = {"id": info.id, "type": _type(info.type)}
    if info.name:
        fields["name"] = info.name
    fields["flags"] = info.map_flags
    if getattr(info, "ifindex", 0):
        fields["dev"] = device(info)
    fields.update(bytes_key=info.key_size, bytes_value=info.value_size, max_entries=info.max_entries)
    if "memlock" in extra:
        fields["bytes_memlock"] = int(extra["memlock"])
    if info.type == "prog_array":
        if "owner_prog_type" in extra:
            from rawbpf.loader.uapi import PROG_TYPES, name_of
            fields["owner_prog_type"] = _type(name_of(PROG_TYPES, int(extra["owner_prog_type"])))
        if "owner_jited" in extra:
            fields["owner_jited"] = extra["owner_jited"] != "0"
    fields["frozen"] = int(extra.get("frozen", 0))
    if getattr(info, "btf_id", 0):
        fields["btf_id"] = info.btf_id
    if around is not None:
        fields.update(around.fields(info.id))
    return fields


def text(fields):
    out = "%d: %s  " % (fields["id"], type_text(fields["type"]))
    if "name" in fields:
        out += "name %s  " % fields["name"]
    out += "flags 0x%x%s\n\tkey %dB  value %dB  max_entries %d" % (
        fields["flags"], device_text(fields), fields["bytes_key"], fields["bytes_value"], fields["max_entries"])
    if "bytes_memlock" in fields:
        out += "  memlock %dB" % fields["bytes_memlock"]
    if "owner_prog_type" in fields or "owner_jited" in fields:
        out += "\n\t"
        if "owner_prog_type" in fields:
            out += "owner_prog_type %s  " % type_text(fields["owner_prog_type"])
        if "owner_jited" in fields:
            out += "owner jited" if fields["owner_jited"] else "owner not jited"
    out += around_text({"pinned": fields.get("pinned", ())})
    marks = ["btf_id %d" % fields["btf_id"]] if "btf_id" in fields else []
    marks += ["frozen"] if fields["frozen"] else []
    if marks:
        out += "\n\t" + "  ".join(marks)
    return out + around_text({"pids": fields.get("pids")}) + "\n"


show = show_verb("map", record, text)


def dump(session, words):
    from .entries import dump_map
    found, status = select("map", words), 0
    words.end()
    try:
        if len(found) > 1 and session.json is not None:
            session.json.open("[")
        for item in found:
            if len(found) > 1:
                if session.json is not None:
                    session.json.open("{")
                    for name, value in list(record(item).items())[:4]:
                        if name in ("id", "type", "name", "flags"):
                            session.json.name(name)
                            session.json.value(value)
                    session.json.name("elements")
                else:
                    session.write(text(record(item)).split("\n")[0] + "\n")
            status = dump_map(session, item) or status
            if len(found) > 1 and session.json is not None:
                session.json.close("}")
            elif item is not found[-1]:
                session.write("\n")
        if len(found) > 1 and session.json is not None:
            session.json.close("]")
    finally:
        for item in found:
            item.close()
    return status


def lookup(session, words):
    from .entries import Element, Shower
    with one("map", words) as item:
        element = Element(item, words, value=False)
        value = _ask("lookup failed", item.lookup, element.key or b"")
        shower = Shower(session, item)
        if value is None:
            if session.json is not None:
                session.json.value(None)
            else:
                from .output import hex_lines
                session.write("key:\n%s\n\nNot found\n" % hex_lines(element.key or b""))
            return -errno.ENOENT & 255
        shower.lookup(element.key or b"", value)
    return 0


def _ask(what, call, *arguments):
    try:
        return call(*arguments)
    except KernelError as error:
        fail("%s: %s" % (what, error))


def getnext(session, words):
    from .entries import Element
    from .output import hex_lines, hex_list
    with one("map", words) as item:
        element = Element(item, words, value=False, optional=True)
        following = _ask("can't get next key", item.next_key, element.key)
        if following is None:
            fail("can't get next key: No such file or directory", -errno.ENOENT & 255)
    if session.json is not None:
        session.json.value({"key": None if element.key is None else hex_list(element.key),
                            "next_key": hex_list(following)})
        return
    if element.key is not None:
        session.write("key:\n%s\n" % hex_lines(element.key))
    else:
        session.write("key: None\n")
    session.write("next key:\n%s\n" % hex_lines(following))


def update(session, words):
    from .entries import Element
    with one("map", words) as item:
        with Element(item, words, value=True) as element:
            if not _ask("update failed", element.write):
                code = errno.EEXIST if element.flags == 1 else errno.ENOENT
                fail("update failed: %s" % os.strerror(code), -code & 255)
    session.done()


def delete(session, words):
    from .entries import Element
    with one("map", words) as item:
        element = Element(item, words, value=False)
        if not _ask("delete failed", item.delete, element.key):
            fail("delete failed: No such file or directory", -errno.ENOENT & 255)
    session.done()


def push(session, words):
    from .entries import Element
    with one("map", words) as item:
        with Element(item, words, value=True) as element:
            _ask("update failed", element.write)
    session.done()


def _taken(session, words, method, empty):
    """empty: what is said when there is nothing."""
    from .entries import Shower
    with one("map", words) as item:
        words.end()
        if not hasattr(item, method):
            fail("a %s map is no queue or stack" % item.type)
        value = _ask("lookup failed", getattr(item, method))
        if value is not None:
            Shower(session, item).lookup(b"", value)
            return 0
    if session.json is not None:
        session.json.value(None)
    else:
        session.write(empty)
    return -errno.ENOENT & 255


def peek(session, words):
    return _taken(session, words, "peek", "key:\n\n\nNot found\n")


def pop(session, words):
    return _taken(session, words, "pop", "Error: empty map\n")


def freeze(session, words):
    with one("map", words) as item:
        words.end()
        _ask("failed to freeze map", item.freeze)
    session.done()


def create(session, words):
    from rawbpf.loader import Map
    path = words.next("path")
    found, inner = {}, None
    while words:
        name = words.need("type", "name", "key", "value", "entries", "flags", "offload_dev", "inner_map")
        if name in found:
            fail("%s was given twice" % name)
        if name in ("type", "name", "offload_dev"):
            found[name] = words.next(name)
        elif name == "inner_map":
            inner = one("map", words)
        else:
            found[name] = words.number(name)
    if "type" not in found:
        fail("map type not specified")
    if "name" not in found:
        fail("map name not specified")
    if re.search("[^A-Za-z0-9_.]", found["name"][:15]):
        fail("map create failed: a name has letters, digits, _ and . alone, not '%s'" % found["name"])
    options = {"inner_map": inner} if inner is not None else {}
    if "offload_dev" in found:
        import socket
        options["ifindex"] = socket.if_nametoindex(found["offload_dev"])
    try:
        with Map.create(found["type"], found.get("key", 0), found.get("value", 0), found.get("entries", 0),
                        name=found["name"], flags=found.get("flags", 0), **options) as item:
            item.pin(path)
    finally:
        if inner is not None:
            inner.close()
    session.done()


def event_pipe(session, words):
    from .event_pipe import pipe
    with one("map", words) as item:
        pipe(session, words, item)


VERBS = {"show": show, "list": show, "dump": dump, "update": update, "lookup": lookup, "getnext": getnext,
         "delete": delete, "pin": pin_verb("map"), "create": create, "peek": peek, "push": push, "pop": pop, "enqueue": push,
         "dequeue": pop, "freeze": freeze, "event_pipe": event_pipe}


def run(argv):
    return run_object("map", VERBS, USAGE, argv)
