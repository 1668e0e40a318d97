"""`rawbpf diff OLD [NEW]`: which programs, maps, links and BTF came, went or changed between two snapshots."""

from rawbpf.loader.errors import KernelError

from . import btf, link, map as maps, objects, prog
from .command import run_object

USAGE = """usage: rawbpf diff OLD [NEW]

OLD and NEW are files of `rawbpf snapshot`; without NEW, OLD is compared with the running kernel. Each object that
came, went or changed is a line; of what changed, the fields. Run time and counts are told apart with their difference.
"""
# A number that is given again is another object when one of these differs.
_SAME = {"prog": ("tag", "type", "loaded_at"), "map": ("type", "bytes_key", "bytes_value", "max_entries", "name"),
         "link": ("type", "prog_id"), "btf": ("size", "name")}
_MAKE = {"prog": prog.record, "map": maps.record, "link": link.record,
         "btf": lambda item: btf.record(item, {"prog": {}, "map": {}}, {})}


def state(path):
    """{kind: {id: record}} of a snapshot, or of the kernel (None)."""
    from .snapshot import Recording
    objects.use(Recording(path) if path is not None else None)
    try:
        return {kind: _records(kind) for kind in _SAME}
    finally:
        objects.use(None)


def _records(kind):
    found = {}
    held, pinned = objects.holders(kind), objects.pins(kind) if kind != "btf" else {}
    try:
        for record in objects.records(kind, _MAKE[kind]):
            record["pids"] = [one["pid"] for one in held.get(record["id"], ())]
            record["pinned"] = pinned.get(record["id"], [])
            found[record["id"]] = record
    except KernelError as error:
        if kind != "link" or error.errno not in (22, 95):
            raise
    return found


def differences(old, new):
    """Records {"change", "kind", "id", "type", "name", and of what changed "fields": {name: [old, new]}}."""
    for kind, same in _SAME.items():
        before, after = old[kind], new[kind]
        for number in sorted(before.keys() | after.keys()):
            first, second = before.get(number), after.get(number)
            if first and second and any(first.get(name) != second.get(name) for name in same):
                yield _change("removed", kind, first)
                yield _change("added", kind, second)
            elif second is None:
                yield _change("removed", kind, first)
            elif first is None:
                yield _change("added", kind, second)
            else:
                fields = {name: [first.get(name), second.get(name)] for name in {**first, **second}
                          if first.get(name) != second.get(name)}
                if fields:
                    yield {**_change("changed", kind, second), "fields": fields}


def _change(change, kind, record):
    fields = {"change": change, "kind": kind, "id": record["id"]}
    fields.update((name, record[name]) for name in ("type", "name") if record.get(name))
    return fields


_MARKS = {"added": "+", "removed": "-", "changed": "~"}


def text(fields):
    out = "%s %s %d" % (_MARKS[fields["change"]], fields["kind"], fields["id"])
    out += "".join("  %s" % fields[name] for name in ("type", "name") if name in fields) + "\n"
    for name, (old, new) in fields.get("fields", {}).items():
        more = "  (%+d)" % (new - old) if type(old) is int and type(new) is int and name in ("run_cnt", "run_time_ns") else ""
        out += "    %s: %s -> %s%s\n" % (name, _shown(old), _shown(new), more)
    return out


def _shown(value):
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def show(session, words):
    old = state(words.next("file of the older snapshot"))
    newer = words.next("file name") if words else None
    words.end()
    session.show(differences(old, state(newer)), text)


def run(argv):
    return run_object("diff", {"show": show}, USAGE, ["show", *argv])
