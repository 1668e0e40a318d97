"""`prog run`: BPF_PROG_TEST_RUN with data and context from files."""

from rawbpf.loader.errors import KernelError

from ..failure import read_bytes
from .prog import write_file
from .words import fail

_ROOM = 32 << 10        # of output, unless the command line says otherwise


def run(session, words, program):
    files, sizes, repeat = {}, {}, 1
    while words:
        name = words.need("data_in", "data_out", "data_size_out", "ctx_in", "ctx_out", "ctx_size_out", "repeat")
        if name == "repeat":
            repeat = words.number("repeat")
        elif name.endswith("size_out"):
            sizes[name] = words.number(name)
        else:
            files[name] = words.next("file name")
    if files.get("data_in") == files.get("ctx_in") == "-":
        fail("data_in and ctx_in cannot both be read from standard input")
    data, ctx = (read_bytes(files[name]) if name in files else None for name in ("data_in", "ctx_in"))
    try:
        result = program.test_run(
            data, ctx, repeat=repeat, ctx_size_out=sizes.get("ctx_size_out", _ROOM if "ctx_out" in files else None),
            data_size_out=sizes.get("data_size_out", _ROOM if "data_out" in files else None))
    except KernelError as error:
        fail("failed to run program: %s" % error)
    _show(session, files, result, repeat)


def _show(session, files, result, repeat):
    fields = {}
    for name, data in (("data_out", result.data), ("ctx_out", result.ctx)):
        if name not in files or not data:
            continue
        if files[name] != "-":
            write_file(files[name], data)
        elif session.json is not None:
            fields[name] = list(data)
        else:
            session.write(hex_dump(data))
    if session.json is not None:
        session.json.value({**fields, "retval": result.retval, "duration": result.duration})
        return
    session.write("Return value: %d, duration%s: %dns\n" % (result.retval, " (average)" if repeat > 1 else "",
                                                            result.duration))


def hex_dump(data):
    lines = []
    for at in range(0, len(data), 16):
        part = data[at:at + 16]
        pairs = " ".join(part[i:i + 2].hex() for i in range(0, len(part), 2))
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append("%07x\t%-39s | %s\n" % (at, pairs, " ".join(filter(None, (shown[:8], shown[8:])))))
    return "".join(lines)
