"""`rawbpf run FILE`: a program run by BPF_PROG_TEST_RUN on a packet or a context that is given."""

import re
import sys

from .failure import Failure, command, number, output_path, read_bytes, write_file
from .options import Option, UsageError

OPTIONS = (
    Option("type", "t", "type", "TYPE", "the program type, as for rawbpf verify"),
    Option("program", "p", "program", "NAME", "which program of the file"),
    Option("data", "d", "data-in", "DATA", "the packet: hexadecimal digits, or a file"),
    Option("ctx", "x", "ctx-in", "DATA", "the context: hexadecimal digits, or a file"),
    Option("data_out", "", "data-out", "FILE", "write the packet there as the program left it"),
    Option("ctx_out", "", "ctx-out", "FILE", "write the context there as the program left it"),
    Option("repeat", "r", "repeat", "N", "run it N times (default: 1)"),
    Option("json", "j", "json", "", "the result as a JSON object"),
    Option("help", "h", "help", "", "this text"),
)
USAGE = """usage: rawbpf run [OPTION...] FILE      (- is the standard input)

Loads the program and runs it in the kernel. Packet programs run on 64 zero bytes unless --data-in
says otherwise; raw_tracepoint, syscall and sk_lookup programs take a context. The kernel cannot
test-run kprobe, tracepoint and perf_event programs, and tracing ones only where they are attached.

options:
"""
_PACKETS = ("socket_filter", "sched_cls", "sched_act", "xdp", "cgroup_skb", "lwt_in", "lwt_out", "lwt_xmit",
            "lwt_seg6local", "flow_dissector", "netfilter", "sk_skb")
_UNTIMED = ("raw_tracepoint", "syscall")
_MOST = (1 << 32) - 1


def run(argv):
    return command(OPTIONS, USAGE, work, argv)


def work(parsed):
    if len(parsed.operands) != 1:
        raise UsageError("one file is needed; - is the standard input")
    repeat = number(parsed.get("repeat", "1"), _MOST, "--repeat")
    outputs = [output_path(parsed.get(name), parsed.operands[0]) for name in ("data_out", "ctx_out") if parsed.get(name) is not None]
    if len(outputs) == 2 and outputs[0] == outputs[1] and outputs[0] != "/dev/null":
        raise UsageError("--data-out and --ctx-out name the same file")
    data, ctx = (_bytes(parsed.get(name), option) for name, option in (("data", "--data-in"), ("ctx", "--ctx-in")))
    with chosen(parsed.operands[0], parsed.get("type"), parsed.get("program")) as unit:
        if data is None and unit.type in _PACKETS:
            data = bytes(64)
        result = run_unit(unit, data, ctx, repeat)
    for option, left in (("data_out", result.data), ("ctx_out", result.ctx)):
        if parsed.get(option) is not None:
            if not left:
                raise Failure("%s: the kernel gives no %s back of a %s program%s" % (
                    parsed.operands[0], "packet" if option == "data_out" else "context", unit.type,
                    "" if unit.type not in _PACKETS or option == "data_out" else " where none went in (--ctx-in)"))
            write_file(parsed.get(option), left)
    _show(unit, result, data, repeat, bool(parsed.get("json")))
    return 0


def _bytes(text, option):
    """The bytes of --data-in and --ctx-in: of a file if there is one of that name."""
    import os
    if text is None:
        return None
    if os.path.exists(text) or text == "-":
        return read_bytes(text)
    digits = re.sub(r"^0x|[\s:,]", "", text)
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise UsageError("%s: '%s' is neither a file nor an even number of hexadecimal digits" % (option, text)) from None


def chosen(path, type=None, name=None):
    """The Unit of that name; without one, the only one that the file has."""
    from .units import read
    found = read(path, type)
    names = ", ".join(unit.name for unit in found)
    if name is not None:
        found = [unit for unit in found if unit.name == name]
        if not found:
            raise Failure("%s: no program %s; there are %s" % (path, name, names))
    if len(found) > 1:
        raise Failure("%s: which program? --program takes one of %s" % (path, names))
    return found[0]


def run_unit(unit, data, ctx, repeat=1):
    """The loader's TestRun of a Unit. A refusal of the verifier is explained."""
    from rawbpf.loader.errors import ObjectError, VerifierError
    try:
        program = unit.load()
    except ObjectError as error:
        raise Failure("%s: %s" % (unit.file, error)) from None
    except VerifierError:
        from .verify import verify
        from .verify_text import report
        raise Failure("the verifier refused it\n" + report(verify(unit)).rstrip("\n")) from None
    with program:
        if unit.type in ("tracing", "lsm", "ext", "struct_ops") or \
                unit.type == "xdp" and unit.options().get("expected_attach_type", "xdp") != "xdp":
            raise Failure("%s: the kernel runs a program of this kind only where it is attached" % unit.file)
        if unit.type in _UNTIMED:
            return _timed(program, ctx, data, repeat)
        return program.test_run(data, ctx, repeat=repeat)


def _timed(program, ctx, data, repeat):
    """The last of `repeat` test runs of a program that the kernel neither repeats nor times itself."""
    from rawbpf.loader.errors import KernelError
    from rawbpf.loader.program import run_statistics
    try:
        counting = run_statistics()
    except KernelError:
        counting = None     # it takes CAP_SYS_ADMIN
    try:
        for _ in range(repeat):
            result = program.test_run(data, ctx)
        counted = program.info()
    finally:
        if counting is not None:
            counting.close()
    return result._replace(duration=counted.run_time_ns // counted.run_cnt if counting and counted.run_cnt else None)


def _show(unit, result, data, repeat, as_json):
    if as_json:
        import json
        print(json.dumps({"file": unit.file, "program": unit.name, "type": unit.type, "retval": result.retval,
                          "duration_ns": result.duration, "repeat": repeat, "data": result.data.hex(),
                          "ctx": result.ctx.hex()}))
        return
    signed = result.retval - (result.retval >> 31 << 32)
    print("retval:    %d%s" % (result.retval, " (%d)" % signed if signed < 0 else ""))
    mean = " (mean of %d runs)" % repeat if repeat > 1 else ""
    print("duration:  " + ("not measured" if result.duration is None else "%d ns%s" % (result.duration, mean)))
    for name, out, before in (("data", result.data, data), ("ctx", result.ctx, None)):
        if out:
            print("%s:%s%d bytes%s" % (name, " " * (10 - len(name)), len(out), ", as it went in" if out == before else ""))
            if out != before:
                sys.stdout.write(dump(out))


def dump(data):
    """Bytes as lines of 16 with offset and text."""
    lines = []
    for at in range(0, len(data), 16):
        part = data[at:at + 16]
        shown = "".join(chr(b) if 32 <= b < 127 else "." for b in part)
        lines.append("  %04x  %-47s  %s\n" % (at, part.hex(" "), shown))
    return "".join(lines)
