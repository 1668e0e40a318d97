"""`btf dump format raw`: the records of BTF one by one, in bpftool's words."""

from rawbpf.elf import btf_raw

from .output import legible

_ENCODINGS = {0: "(none)", 1: "SIGNED", 2: "CHAR", 4: "BOOL"}
_LINKAGES = ("static", "global", "extern")
_NAMED_REFERENCES = ("typedef", "type_tag", "ptr", "const", "volatile", "restrict")


def _linkage(number):
    return _LINKAGES[number] if number < 3 else "(unknown)"


def fields(btf, number):
    """A record as -j has it."""
    if not number:
        return {"id": 0, "kind": "UNKNOWN", "name": "(anon)"}      # void, which bpftool calls so
    of = btf_raw.record(btf, number)
    found = {"id": number, "kind": of.kind.upper(), "name": of.name or "(anon)"}
    kind, words = of.kind, of.words
    if kind == "int":
        encoding = words[0] >> 24 & 15
        found.update(size=of.rest, bits_offset=words[0] >> 16 & 255, nr_bits=words[0] & 255,
                     encoding=_ENCODINGS.get(encoding, "UNKN"))
    elif kind in _NAMED_REFERENCES:
        found["type_id"] = of.rest
    elif kind == "array":
        found.update(type_id=words[0], index_type_id=words[1], nr_elems=words[2])
    elif kind in ("struct", "union"):
        found.update(size=of.rest, vlen=of.vlen, members=[_member(member) for member in btf_raw.members(btf, of)])
    elif kind in ("enum", "enum64"):
        found.update(encoding="SIGNED" if of.flag else "UNSIGNED", size=of.rest, vlen=of.vlen,
                     values=[{"name": name, "val": value} for name, value in btf_raw.enumerators(btf, of)])
    elif kind == "fwd":
        found["fwd_kind"] = "union" if of.flag else "struct"
    elif kind == "func":
        found.update(type_id=of.rest, linkage=_linkage(of.vlen))
    elif kind == "func_proto":
        found.update(ret_type_id=of.rest, vlen=of.vlen, params=[
            {"name": btf.string(words[at]) or "(anon)", "type_id": words[at + 1]} for at in range(0, 2 * of.vlen, 2)])
    elif kind == "var":
        found.update(type_id=of.rest, linkage=_linkage(words[0]))
    elif kind == "datasec":
        found.update(size=of.rest, vlen=of.vlen, vars=[
            {"type_id": words[at], "offset": words[at + 1], "size": words[at + 2]} for at in range(0, 3 * of.vlen, 3)])
    elif kind == "float":
        found["size"] = of.rest
    elif kind == "decl_tag":
        found.update(type_id=of.rest, component_idx=words[0] - (words[0] >> 31 << 32))
    return found


def _member(member):
    found = {"name": member.name or "(anon)", "type_id": member.type, "bits_offset": member.bit_offset}
    if member.bit_size:
        found["bitfield_size"] = member.bit_size
    return found


def line(btf, found):
    """A record as text."""
    glue = ", " if found["kind"] == "VAR" else " "
    parts = ["%s=%s" % (name, value) for name, value in found.items()
             if name not in ("id", "kind", "name") and not isinstance(value, list)]
    out = "[%d] %s '%s'" % (found["id"], found["kind"], legible(found["name"]))
    if parts:
        out += " " + glue.join(parts)
    for item in found.get("members", ()) or found.get("params", ()):
        out += "\n\t'%s' " % legible(item["name"]) + " ".join("%s=%d" % pair for pair in list(item.items())[1:])
    wide = {"SIGNED": "LL", "UNSIGNED": "ULL"}[found["encoding"]] if found["kind"] == "ENUM64" else ""
    for item in found.get("values", ()):
        out += "\n\t'%s' val=%d%s" % (legible(item["name"]), item["val"], wide)
    for item in found.get("vars", ()):
        out += "\n\ttype_id=%d offset=%d size=%d" % (item["type_id"], item["offset"], item["size"])
        of = btf_raw.record(btf, item["type_id"])
        out += " (%s '%s')" % (of.kind.upper(), legible(of.name))
    return out + "\n"


def dump_raw(session, btf, roots=None):
    """roots: only these, without what they refer to."""
    numbers = range(btf.first_id, btf.count) if roots is None else roots
    if session.json is not None:
        session.json.open("{")
        session.json.name("types")
        session.json.value(fields(btf, number) for number in numbers)
        session.json.close("}")
        return
    for number in numbers:
        session.write(line(btf, fields(btf, number)))
        btf.__dict__.pop("_records", None)      # what was shown is not needed again
