"""`rawbpf who FUNCTION`: the programs that touch a kernel function: attached to it, or calling it.

Attachments come from links and from perf events that hold programs; calls from the translated instructions, where
helpers and kfuncs are the kernel functions that they are compiled to.
"""

import fnmatch
import sys

from rawbpf.asm.instruction import decode
from rawbpf.elf.image import ElfError
from rawbpf.loader.errors import KernelError

from ..failure import Failure
from . import perf
from .command import run_object
from .link import record as link_record
from .objects import by_id, each, full_name, recorded, records, symbols, vmlinux
from .xlated import Names

USAGE = """usage: rawbpf who FUNCTION

FUNCTION: a function of the kernel; * and ? stand for any characters. Shown is what is attached to it (kprobes,
fentry and fexit, one or many at once) and which programs call it as a helper or kfunc. The exit status is 1
where there are none.
"""


def show(session, words):
    pattern = words.next("name of a kernel function")
    words.end()
    found = sorted(_found(pattern), key=lambda fields: (fields["function"], fields["how"], fields["prog_id"]))
    session.show(found, text)
    if not found:
        if session.json is None:
            sys.stderr.write("no program is attached to %s or calls it\n" % pattern)
        return 1
    return 0


def text(fields):
    out = "%s: %s by program %d  %s  name %s" % (fields["function"], fields["how"], fields["prog_id"], fields["type"],
                                                fields["name"])
    if "link_id" in fields:
        out += "  link %d" % fields["link_id"]
    if "pid" in fields:
        out += "  pid %d  fd %d" % (fields["pid"], fields["fd"])
    return out + "\n"


def _found(pattern):
    programs, linked = {}, set()
    for program in each("prog"):
        info = program.info()
        programs[info.id] = {"prog_id": info.id, "type": info.type, "name": full_name(info)}
        for name in sorted(_called(program)):
            if fnmatch.fnmatchcase(name, pattern):
                yield {"function": name, "how": "called", **programs[info.id]}
        name = _extended(info)
        if name and fnmatch.fnmatchcase(name, pattern):
            yield {"function": name, "how": _how(info), **programs[info.id]}
    for how, name, link in _links():
        linked.add((link["prog_id"], name))
        if fnmatch.fnmatchcase(name, pattern) and link["prog_id"] in programs:
            yield {"function": name, "how": how, **programs[link["prog_id"]], "link_id": link["id"]}
    found = recorded("perf")
    for event in perf.records() if found is None else found:
        name = event.get("func", "")
        if event["fd_type"] in ("kprobe", "kretprobe") and fnmatch.fnmatchcase(name, pattern) and \
                event["prog_id"] in programs and (event["prog_id"], name) not in linked:
            yield {"function": name, "how": event["fd_type"], **programs[event["prog_id"]], "pid": event["pid"],
                   "fd": event["fd"]}


def _called(program):
    """Names of the kernel functions that a program calls."""
    found = set()
    try:
        code = program.xlated()
    except KernelError:
        return found        # not told
    names = Names(program)
    for instruction in decode(code):
        if instruction.code == 0x85 and instruction.src in (0, 2):
            name = names.call(instruction).split("#")[0]
            if not name.startswith(("0x", "pc")):
                found.add(name)
    return found


def _extended(info):
    """The kernel function that a tracing or lsm program was loaded for, or ""."""
    number = getattr(info, "attach_btf_id", 0)
    if info.type not in ("tracing", "lsm") or not number:
        return ""
    try:
        with by_id("btf", info.attach_btf_obj_id) as blob:
            return blob.parse().name(number) if blob.info().name != "vmlinux" else vmlinux().name(number)
    except (KernelError, ElfError, Failure):
        return ""


def _how(info):
    return "%s target" % info.type


def _links():
    """(how, function, link's record) of everything that links attach to functions by name or address."""
    try:
        for record in records("link", link_record):
            if record["type"] == "perf_event" and record.get("func"):
                yield "kretprobe" if record["retprobe"] else "kprobe", record["func"], record
            elif record["type"] == "kprobe_multi":
                how = "kretprobe" if record["retprobe"] else "kprobe"
                for function in record["funcs"]:
                    yield how, function["func"], record
    except KernelError as error:
        if error.errno not in (22, 95):     # before 5.8 links cannot be listed
            raise


def run(argv):
    return run_object("who", {"show": show}, USAGE, ["show", *argv])
