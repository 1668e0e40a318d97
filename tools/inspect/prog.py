"""`rawbpf prog`: the programs that are loaded."""

import errno
import os
import sys
import time

from rawbpf.loader.errors import KernelError
from rawbpf.loader.uapi import PROG_TYPES, name_of

from .command import run_object
from .objects import around_text, details, full_name, interface, one, pin_verb, select, show_verb
from .words import fail, is_prefix

USAGE = """usage: rawbpf prog { show | list } [PROG]
       rawbpf prog dump xlated PROG [{ file FILE | [opcodes] [linum] [visual] }]
       rawbpf prog dump jited PROG [{ file FILE | [opcodes] [linum] }]
       rawbpf prog pin PROG FILE
       rawbpf prog { load | loadall } OBJ PATH [type TYPE] [{ offload_dev | xdpmeta_dev } NAME]
                            [map { idx IDX | name NAME } MAP] [pinmaps DIR] [autoattach] [kernel_btf FILE]
       rawbpf prog { attach | detach } PROG ATTACH_TYPE [MAP]
       rawbpf prog run PROG data_in FILE [data_out FILE [data_size_out L]]
                            [ctx_in FILE [ctx_out FILE [ctx_size_out M]]] [repeat N]
       rawbpf prog profile PROG [duration SECONDS] METRIC...
       rawbpf prog tracelog [{ stdout | stderr } PROG]

ATTACH_TYPE := { sk_msg_verdict | sk_skb_verdict | sk_skb_stream_verdict | sk_skb_stream_parser | flow_dissector }
METRIC := { cycles | instructions | l1d_loads | llc_misses | itlb_misses | dtlb_misses | cpu_clock }
PROG := { id ID | tag TAG | name NAME | pinned FILE };  MAP := { id ID | name NAME | pinned FILE }
"""


def record(program, around=None):
    """What `show` says of a program, as -j has it."""
    try:
        info = program.info()
    except KernelError as error:
        if error.errno != errno.ENODEV:
            raise
        return _orphan(program, around)
    fields = {"id": info.id, "type": _type(info.type)}
    name = full_name(info)
    if name:
        fields["name"] = name
    fields["tag"] = info.tag
    fields["gpl_compatible"] = bool(getattr(info, "gpl_compatible", 0))
    if getattr(info, "run_time_ns", 0):
        fields["run_time_ns"], fields["run_cnt"] = info.run_time_ns, info.run_cnt
    if getattr(info, "recursion_misses", 0):
        fields["recursion_misses"] = info.recursion_misses
    if getattr(info, "ifindex", 0):
        fields["dev"] = device(info)
    if info.load_time:
        fields["loaded_at"], fields["uid"] = wall_clock(info.load_time), info.created_by_uid
    fields["orphaned"] = False
    fields["bytes_xlated"] = info.xlated_prog_len
    fields["jited"] = bool(info.jited_prog_len)
    if info.jited_prog_len:
        fields["bytes_jited"] = info.jited_prog_len
    memlock = details(program).get("memlock", "")
    if memlock.isdigit():
        fields["bytes_memlock"] = int(memlock)
    if info.map_ids:
        fields["map_ids"] = info.map_ids
    if getattr(info, "btf_id", 0):
        fields["btf_id"] = info.btf_id
    if around is not None:
        fields.update(around.fields(info.id))
    if info.map_ids:
        from .metadata import Metadata, variables
        found = variables(info.map_ids)
        if found:
            fields["metadata"] = Metadata(found)
    return fields


def _orphan(program, around):
    """Of a program whose interface, which ran it, has gone the kernel tells nothing but what its descriptor says."""
    said = details(program)
    number = int(said.get("prog_id", 0))
    fields = {"id": number, "type": _type(name_of(PROG_TYPES, int(said.get("prog_type", 0)))), "tag": said.get("prog_tag", "0" * 16),
              "gpl_compatible": False, "orphaned": True, "bytes_xlated": 0, "jited": False}
    if said.get("memlock", "").isdigit():
        fields["bytes_memlock"] = int(said["memlock"])
    if around is not None:
        fields.update(around.fields(number))
    return fields


def _type(name):
    """A type that is newer than our table is a number in JSON."""
    return int(name[5:]) if name.startswith("type ") else name


def device(info):
    """The interface that an object is bound to."""
    fields = {"ifindex": info.ifindex, "ns_dev": info.netns_dev, "ns_inode": info.netns_ino}
    name = interface(info.ifindex)
    if name is not None:        # it may be of another network namespace
        fields["ifname"] = name
    return fields


def wall_clock(boot_ns):
    """Seconds since 1970 of a time since boot."""
    return (time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + boot_ns) // 10**9


def text(fields):
    head = "%d: %s" % (fields["id"], type_text(fields["type"]))
    if "name" in fields:
        head += "  name " + fields["name"]
    head += "  tag " + fields["tag"] + device_text(fields) + ("  gpl" if fields["gpl_compatible"] else "")
    for name in ("run_time_ns", "run_cnt", "recursion_misses"):
        if name in fields:
            head += " %s %d" % (name, fields[name])
    head += "\n"
    if "loaded_at" in fields:
        head += "\tloaded_at %s  uid %d\n" % (
            time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(fields["loaded_at"])), fields["uid"])
    head += "\txlated %dB" % fields["bytes_xlated"]
    head += "  jited %dB" % fields["bytes_jited"] if fields["jited"] else "  not jited"
    if "bytes_memlock" in fields:
        head += "  memlock %dB" % fields["bytes_memlock"]
    head += "  orphaned" if fields["orphaned"] else ""
    if "map_ids" in fields:
        head += "  map_ids " + ",".join(map(str, fields["map_ids"]))
    pinned = {"pinned": fields.get("pinned", ())}
    head += around_text(pinned)
    if "btf_id" in fields:
        head += "\n\tbtf_id %d" % fields["btf_id"]
    head += around_text({"pids": fields.get("pids")}) + "\n"
    return head + fields["metadata"].text() if "metadata" in fields else head


def type_text(kind):
    return kind if isinstance(kind, str) else "type %d" % kind


def device_text(fields):
    dev = fields.get("dev")
    if not dev:
        return ""
    if "ifname" in dev:
        return "  offloaded_to " + dev["ifname"]
    return "  offloaded_to ifindex %d ns_dev %d ns_ino %d" % (dev["ifindex"], dev["ns_dev"], dev["ns_inode"])


show = show_verb("prog", record, text)


def dump(session, words):
    what = words.need("xlated", "jited")
    found = select("prog", words)
    try:
        if what == "xlated":
            from .xlated import dump_programs
        else:
            from .jited import dump_programs
        dump_programs(session, words, found)
    finally:
        for program in found:
            program.close()


def dumped_to_file(session, words, programs, read):
    """`file FILE` after a dump: read(program), as it is -> whether that was asked for."""
    if not words.take("file"):
        return False
    path = words.next("file name")
    words.end()
    if len(programs) > 1:
        fail("several programs match this handle")
    write_file(path, read(programs[0]))
    session.done()
    return True


def of_several(programs, instructions):
    """The records of a dump that several programs match: which each is, and its instructions(program)."""
    for program in programs:
        fields = record(program)
        yield {**{name: fields[name] for name in ("id", "type", "name", "tag", "gpl_compatible") if name in fields},
               "insns": instructions(program)}


def write_file(path, data):
    """Bytes to a new private file; "-": to standard output."""
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
    except OSError as error:
        fail("%s: %s" % (path, error.strerror))      # write(2) does not name it


def load(session, words):
    from .load import load as work
    work(session, words, False)


def loadall(session, words):
    from .load import load as work
    work(session, words, True)


def run_program(session, words):
    from .testrun import run as work
    with one("prog", words) as program:
        work(session, words, program)


# To what a program is attached without a link, in the order in which bpftool asks for them, each with the word that it
# took before, which may be cut short.
_ATTACH = {"sk_skb_stream_parser": "stream_parser", "sk_skb_stream_verdict": "stream_verdict", "sk_msg_verdict": "msg_verdict",
           "flow_dissector": "flow_dissector", "sk_skb_verdict": "skb_verdict"}


def _place(session, words, work):
    with one("prog", words) as program:
        word = words.next("attach type")
        kind = next((known for known, old in _ATTACH.items() if word == known or is_prefix(word, old)), None)
        if kind is None:
            fail("invalid attach/detach type: %s" % word)
        if kind == "flow_dissector":
            words.end()
            work(program, 0, kind)      # of this network namespace
        else:
            with one("map", words) as item:
                words.end()
                work(program, item, kind)
    session.done()


def attach(session, words):
    from rawbpf.loader.link_net import prog_attach
    _place(session, words, prog_attach)


def detach(session, words):
    from rawbpf.loader.link_net import prog_detach
    _place(session, words, prog_detach)


def profile(session, words):
    from .profile import run as work
    with one("prog", words) as program:
        work(session, words, program)


def tracelog(session, words):
    from .tracelog import streams, trace_pipe
    if words:
        name = words.need("stdout", "stderr")
        with one("prog", words) as program:
            words.end()
            streams(session, program, name)
    else:
        trace_pipe(session)


VERBS = {"show": show, "list": show, "dump": dump, "pin": pin_verb("prog"), "load": load, "loadall": loadall, "run": run_program,
         "tracelog": tracelog, "attach": attach, "detach": detach, "profile": profile}


def run(argv):
    return run_object("prog", VERBS, USAGE, argv)
