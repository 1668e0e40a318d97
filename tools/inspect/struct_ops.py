"""`rawbpf struct_ops`: structs of the kernel's whose functions are BPF programs: show, dump, register, unregister."""

import errno
import sys

from rawbpf.loader.errors import KernelError, ObjectError, VerifierError

from ..failure import Failure
from .command import run_object
from .objects import by_id, each, full_name, vmlinux
from .output import JsonWriter
from .words import fail

USAGE = """usage: rawbpf struct_ops { show | list } [STRUCT_OPS_MAP]
       rawbpf struct_ops dump [STRUCT_OPS_MAP]
       rawbpf struct_ops register OBJ [LINK_DIR]
       rawbpf struct_ops unregister STRUCT_OPS_MAP

STRUCT_OPS_MAP := { id ID | name NAME }
"""
_PREFIX = "bpf_struct_ops_"


def _chosen(words):
    """The struct_ops maps that the words name (all without any); the caller closes none: one at a time is open."""
    if not words:
        for item in each("map"):
            if item.type == "struct_ops":
                yield item
        return
    how = words.need("id", "name")
    if how == "id":
        with by_id("map", words.number("ID")) as item:
            words.end()
            if item.type != "struct_ops":
                fail("%s id %d is not a struct_ops map" % (item.name, item.info().id))
            yield item
        return
    name, found = words.next("name"), False
    words.end()
    for item in each("map"):
        if item.type == "struct_ops" and item.info().name == name:
            found = True
            yield item
    if not found:
        fail("no struct_ops found for %s" % name)


def _struct(info):
    """The kernel's struct that a map stands for."""
    name = vmlinux().name(info.btf_vmlinux_value_type_id)
    return name[len(_PREFIX):] if name.startswith(_PREFIX) else name


def _record(item):
    info = item.info()
    return {"id": info.id, "name": info.name, "kernel_struct_ops": _struct(info)}


def show(session, words):
    session.show(map(_record, _chosen(words)),
                 lambda fields: "%d: %-15s %-32s\n" % tuple(fields.values()))


def dump(session, words):
    from .typed_json import render
    plain = session.json is None
    writer = session.json if not plain else JsonWriter(session.write, True)
    btf = vmlinux()

    def parts():
        for item in _chosen(words):
            info = item.info()
            value = item.lookup((0).to_bytes(4, sys.byteorder))
            yield {"bpf_map_info": _map_info(btf, info)}
            kind = btf.type(info.btf_vmlinux_value_type_id)
            yield {kind.name: render(kind, value, plain, btf, function=_program)}
    writer.value(parts())
    if plain:
        writer.end()


def _map_info(btf, info):
    """The fields of the kernel's struct bpf_map_info."""
    from rawbpf.loader.uapi import MAP_TYPES, number
    known = dict(vars(info), type=number(MAP_TYPES, info.type, "map type"))
    return {field.name: known.get(field.name, 0) for field in btf.find("bpf_map_info", "struct").fields if field.name}


def _program(prototype, number):
    """What a function of the struct is: the kernel keeps the id of the program there."""
    from .signature import prototype as text
    if not number:
        return text(prototype) + " 0"
    try:
        with by_id("prog", number) as program:
            name = full_name(program.info())
    except (KernelError, Failure):
        name = ""
    return "%s %s/prog_id:%d" % (text(prototype), name or "<unknown_prog_name>", number)


def register(session, words):
    from rawbpf.loader import Object
    from .load import load_object
    path = words.next("object file")
    folder = words.next("directory") if words else None
    words.end()
    said = []
    try:
        with Object.open(path) as loaded:
            load_object(session, loaded)
            made = [each_ for each_ in loaded.struct_ops if each_.map is not None]
            if not made:
                fail("no struct_ops found in %s" % path)
            for each_ in made:
                registered = each_.attach()
                info = each_.map.info()
                text = "Registered %s %s " % (_struct(info), info.name)
                if not hasattr(registered, "leave"):
                    with registered:
                        said.append(text + "map id %d link id %d" % (info.id, registered.info().id))
                        if folder:
                            registered.pin("%s/%s" % (folder, info.name))
                else:           # it stays until it is unregistered
                    said.append(text + "id %d" % info.id)
                    registered.leave()
    except VerifierError as error:
        sys.stderr.write(error.log)
        fail("failed to load object file: %s" % error)
    except (KernelError, ObjectError) as error:
        fail("failed to register %s: %s" % (path, error))
    _say(session, said)


def unregister(session, words):
    if not words:
        fail("STRUCT_OPS_MAP is missing")
    said = []
    for item in _chosen(words):
        info = item.info()
        try:
            item.delete((0).to_bytes(4, sys.byteorder))
        except KernelError as error:
            why = "it is registered by a link: detach that" if error.errno == errno.EOPNOTSUPP else str(error)
            fail("can't unload %s %s id %d: %s" % (_struct(info), info.name, info.id, why))
        said.append("Unregistered %s %s id %d" % (_struct(info), info.name, info.id))
    _say(session, said)


def _say(session, lines):
    if session.json is None:
        sys.stderr.write("".join(line + "\n" for line in lines))
    session.done()


VERBS = {"show": show, "list": show, "dump": dump, "register": register, "unregister": unregister}


def run(argv):
    return run_object("struct_ops", VERBS, USAGE, argv)
