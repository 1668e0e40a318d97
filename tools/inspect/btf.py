"""`rawbpf btf`: type information, of the kernel, of what is loaded, and of files."""

import os

from rawbpf.elf.btf import VMLINUX, Btf

from .command import run_object
from .objects import around_text, by_id, each, holders, one, records
from .words import fail

USAGE = """usage: rawbpf btf { show | list } [id ID]
       rawbpf btf dump SOURCE [format { raw | c [unsorted] }] [root_id ID]...

SOURCE := { id ID | prog PROG | map MAP [{ key | value | kv | all }] | file FILE }
MAP := { id ID | name NAME | pinned FILE };  PROG := { id ID | tag TAG | name NAME | pinned FILE }
"""


def record(blob, users, held):
    info = blob.info()
    fields = {"id": info.id, "size": info.btf_size, "prog_ids": users["prog"].get(info.id, []),
              "map_ids": users["map"].get(info.id, [])}
    if info.id in held:
        fields["pids"] = held[info.id]
    fields["kernel"] = bool(getattr(info, "kernel_btf", False))        # told since 5.11
    if getattr(info, "name", ""):
        fields["name"] = info.name
    return fields


def text(fields):
    out = "%d: " % fields["id"]
    if fields.get("kernel"):
        out += "name [%s]  " % fields.get("name", "")
    elif fields.get("name"):
        out += "name %s  " % fields["name"]
    else:
        out += "name <anon>  "
    out += "size %dB" % fields["size"]
    for kind in ("prog_ids", "map_ids"):
        if fields[kind]:
            out += "  %s %s" % (kind, ",".join(map(str, fields[kind])))
    return out + around_text({"pids": fields.get("pids")}) + "\n"


def _users():
    """{kind: {BTF id: [ids of programs or maps]}}."""
    users = {"prog": {}, "map": {}}
    for kind, of in users.items():
        for item in each(kind):
            info = item.info()
            if getattr(info, "btf_id", 0):
                of.setdefault(info.btf_id, []).append(info.id)
    return users


def show(session, words):
    found = None
    if words:
        words.need("id")
        found = by_id("btf", words.number("ID"))
    words.end()
    users, held = _users(), holders("btf")
    if found is None:
        session.show(records("btf", lambda blob: record(blob, users, held)), text)
        return
    with found:
        session.show([record(found, users, held)], text, True)


def source(session, words):
    """(Btf, ids to show or None for all) of the SOURCE that the words name."""
    base = session.options.get("base_btf")
    kind = words.need("id", "map", "prog", "file")
    if kind == "file":
        path = words.next("file name")
        if words.take("file"):
            fail("not supported: several files in one dump, because their types are not merged: dump one after the other")
        if base is None and os.path.dirname(os.path.abspath(path)) == os.path.dirname(VMLINUX) \
                and os.path.basename(path) != "vmlinux":
            base = Btf.open()
        return Btf.open(path, base), None
    roots = None
    if kind == "id":
        number = words.number("ID")
    else:
        with one(kind, words) as item:
            info = item.info()
        number = getattr(info, "btf_id", 0)
        if not number:
            fail("no BTF is associated with this %s" % {"prog": "program"}.get(kind, kind))
        if kind == "map":
            which = words.take("key", "value", "kv", "all") or "kv"
            pair = {"key": [info.btf_key_type_id], "value": [info.btf_value_type_id],
                    "kv": [info.btf_key_type_id, info.btf_value_type_id], "all": None}[which]
            roots = pair
    with by_id("btf", number) as blob:
        return blob.parse(base), roots


def dump(session, words):
    btf, roots = source(session, words)
    form, ordered, chosen = "raw", True, []
    while words:
        option = words.need("format", "root_id", "unsorted")
        if option == "root_id":
            chosen.append(words.number("root_id"))
            if chosen[-1] in chosen[:-1]:
                fail("duplicate root_id %d supplied" % chosen[-1])
        elif option == "format":
            form = words.need("c", "raw")
        else:
            ordered = False
    if chosen:
        if roots is not None:
            fail("root_id cannot be used with other type filtering")
        roots = chosen
        for root in roots:
            if root >= btf.count:
                fail("invalid root_id: %d, there are %d types" % (root, btf.count - 1))
    if form == "c":
        if session.json is not None:
            fail("JSON output for C-syntax dump is not supported")
        from .btf_c import definitions
        for part in definitions(btf, roots and [root for root in roots if root], ordered):
            session.write(part)
    else:
        from .btf_text import dump_raw
        dump_raw(session, btf, roots)


VERBS = {"show": show, "list": show, "dump": dump}


def run(argv):
    return run_object("btf", VERBS, USAGE, argv)
