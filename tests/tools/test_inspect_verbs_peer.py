"""What the verbs do beside bpftool: batch files, what programs write (event_pipe, tracelog), pinned iterators, changes of maps,
runs of programs, attaching. In the guests too, as test_inspect_peer.py says."""

import errno
import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from rawbpf.asm import assemble
from rawbpf.loader import Map, Object, Program, kernel
from rawbpf.loader.program import run_statistics
from rawbpf.tools.inspect import profile
from rawbpf.tools.inspect.command import Session
from tests.bpfcc import compile_bpf_text
from tests.loader import code
from tests.tools.inspecting import OUTPUT, bpftool, bpftool_command, run

pytestmark = [pytest.mark.root, pytest.mark.peer]
ZERO_SEED = 1 << 6      # the elements of two hash tables are in the same order


@pytest.fixture
def table():
    with Map.create("hash", 4, 4, 8, name="t_verbs", flags=ZERO_SEED) as item:
        item.update(b"\1\0\0\0", b"abcd")
        yield item


BATCH = """\
# a comment, and an empty line

map show id {map}
map update id {map} key 2 0 0 0 \\
    value 0x10 020 3 4   # continued
\tmap  lookup id {map} key hex 02 00 00 00
m s id {map}
prog show id {prog}
prog dump xlated id {prog} linum
map dump id {map}
map getnext id {map} key "2" '0' 0 0
map delete id {map} key 2 0 0 0
"""


@pytest.mark.parametrize("more, status", [("", 0), ("map lookup id {map} key 9 9 9 9\nmap show id {map}\n", 254),
                                          ("map show id {map} id\nprog show\n", 255), ("map update id {map} key 1\n", 255)])
def test_batch(table, tmp_path, more, status):
    """The text, the JSON of each command; it ends at the first that fails, with its status where bpftool tells it."""
    with Program.load("socket_filter", code.map_fd(1, table) + code.RETURN_0, name="t_batch") as program:
        text = (BATCH + more).format(map=table.info().id, prog=program.info().id)
        (tmp_path / "batch").write_text(text)
        for flags in ([], ["-p"]) if status else ([], ["-j"]):
            mine, theirs = run(*flags, "batch", "file", tmp_path / "batch"), bpftool(*flags, "batch", "file", tmp_path / "batch")
            assert (mine[0] != 0) == (theirs.returncode != 0) == (status != 0)
            if flags and not status:
                assert mine[1] == theirs.stdout
            elif flags:
                mine, theirs = json.loads(mine[1]), json.loads(theirs.stdout)
                assert [one["command"] for one in mine] == [one["command"] for one in theirs]
                assert mine[:-1] == theirs[:-1]         # the last is the error, in words of its own
            else:
                assert mine[1] == theirs.stdout
        if not status:
            done = subprocess.run([sys.executable, "-m", "rawbpf.tools", "batch", "file", "-"], input=text, text=True, stdout=subprocess.PIPE)
            assert (done.returncode, re.sub(r"\tpids .*\n", "", done.stdout)) == (0, bpftool("batch", "file", "-", input=text).stdout)


def changes(number):
    """Command lines that change a map, or look at what was changed, and whether they can be done."""
    yield from ([("map", *words), fails] for words, fails in (
        (("update", "id", number, "key", 1, 0, 0, 0, "value", "hex", "a", "0b", "ff", "0"), False),
        (("update", "id", number, "key", 1, 0, 0, 0, "value", 0, 0, 0, 0, "noexist"), True),
        (("update", "id", number, "value", 5, 6, 7, 8, "key", 7, 0, 0, 0, "exist"), True),
        (("update", "id", number, "value", 5, 6, 7, 8, "key", 7, 0, 0, 0, "any"), False),
        (("lookup", "id", number, "key", 7, 0, 0, 0), False), (("lookup", "name", "t_verbs", "key", 8, 0, 0, 0), True),
        (("getnext", "id", number), False), (("getnext", "id", number, "key", 7, 0, 0, 0), None),
        (("delete", "id", number, "key", 7, 0, 0, 0), False), (("delete", "id", number, "key", 7, 0, 0, 0), True),
        (("update", "id", number, "key", 256, 0, 0, 0), True), (("peek", "id", number), True), (("dump", "id", number), False),
        (("freeze", "id", number), False), (("show", "id", number), False)))


def test_changes_of_maps():
    """The same command lines on two maps: what each says, and what is in them then."""
    for flags in ([], ["-j"]):
        with Map.create("hash", 4, 4, 8, name="t_verbs", flags=ZERO_SEED) as mine, \
                Map.create("hash", 4, 4, 8, name="t_other", flags=ZERO_SEED) as other:
            for item in (mine, other):
                item.update(b"\1\0\0\0", b"abcd")
            numbers = mine.info().id, other.info().id
            for (words, fails), (their_words, _) in zip(changes(numbers[0]), changes(numbers[1])):
                their_words = ["t_other" if word == "t_verbs" else word for word in their_words]
                ours, theirs = run(*flags, *words), bpftool(*flags, *their_words)
                text = theirs.stdout.replace("%d: hash  name t_other" % numbers[1], "%d: hash  name t_verbs" % numbers[0])
                text = text.replace('"id":%d,' % numbers[1], '"id":%d,' % numbers[0]).replace("t_other", "t_verbs")
                assert (ours[0] != 0) == (theirs.returncode != 0), (words, ours, theirs)
                assert fails is None or fails == (ours[0] != 0), (words, ours)
                if "error" not in text:
                    assert ours[1] == text, (words, ours, text)
                else:
                    assert "error" in json.loads(ours[1]) or ours[1] == text
            assert dict(mine.items()) == dict(other.items())


def test_queues_and_stacks():
    for kind in ("queue", "stack"):
        with Map.create(kind, 0, 4, 2, name="t_mine") as mine, Map.create(kind, 0, 4, 2, name="t_other") as other:
            for flags in ([], ["-j"]):
                for words in (["push", "value", "1", "2", "3", "4"], ["enqueue", "value", "hex", "5", "6", "7", "8"], ["peek"],
                              ["push", "value", "9", "9", "9", "9"], ["pop"], ["dequeue"], ["pop"], ["peek"]):
                    ours, theirs = (tool(*flags, "map", words[0], "id", item.info().id, *words[1:])
                                    for tool, item in ((run, mine), (bpftool, other)))
                    said = [ours[1], theirs.stdout]
                    if '"error"' in said[1]:    # each has words of its own for it
                        said = [list(json.loads(text)) for text in said]
                    assert (ours[0] != 0, said[0]) == (theirs.returncode != 0, said[1]), (words, flags)


def _until_it_writes(words, fire, wanted=b""):
    """What a command writes that reads on, interrupted when it has said something."""
    with subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as reader:
        found, until = b"", time.monotonic() + 60
        while not (wanted in found and b"}" in found if b"{" in found else wanted in found and (b"\n" in found or found.count(b'"') > 1)) and time.monotonic() < until:
            for _ in range(20):         # bpftool's JSON comes when its buffer is full
                fire()
            if select.select([reader.stdout], [], [], 0.1)[0]:
                found += os.read(reader.stdout.fileno(), 1 << 16)
        time.sleep(0.1)
        reader.send_signal(signal.SIGINT)
        return (found + reader.stdout.read()).decode(), reader.wait()


@pytest.mark.parametrize("flags", [[], ["-j"]])
@pytest.mark.parametrize("place", [[], ["cpu", "0", "index", "1"]])
def test_event_pipe(flags, place):
    """Records as both print them: all but the time."""
    allowed = os.sched_getaffinity(0)
    with Map.create("perf_event_array", 4, 4, max(2, os.cpu_count()), name="t_events") as events:
        text = OUTPUT.replace("0xffffffff", "1") if place else OUTPUT
        with Program.load("sched_cls", assemble(text).instructions(), maps={"events": events}) as program:
            os.sched_setaffinity(0, {0})
            try:
                said = []
                for tool in ([sys.executable, "-m", "rawbpf.tools"], bpftool_command()):
                    out, status = _until_it_writes([*tool, *flags, "map", "event_pipe", "id", events.info().id, *place],
                                                   lambda: program.test_run(bytes(14)))
                    assert status == 0
                    if flags:
                        record = json.loads(out)[0]
                        assert record.pop("timestamp") > 0
                        said.append(json.dumps(record))
                    else:
                        said.append(re.sub(r"@\d+\.\d{9} ", "", "\n".join(out.split("\n")[:2])))
            finally:
                os.sched_setaffinity(0, allowed)
    assert said[0] == said[1] and ("88 77 66" in said[0] or "136, 119, 102" in said[0])


SAYING = """
r1 = r10
r1 += -16
r6 = 0x6425206f6c6c6568 ll
*(u64 *)(r10 - 16) = r6
*(u64 *)(r10 - 8) = 10
r2 = 10
r3 = 42
call bpf_trace_printk
r0 = 0
exit
"""      # "hello %d\n"


@pytest.mark.demand
@pytest.mark.parametrize("flags", [[], ["-j"]])
def test_tracelog(flags):
    """Lines of the trace pipe. In guests that have bpftool alone: it mounts what it reads."""
    if not os.path.exists("/sys/kernel/tracing/trace_pipe"):
        subprocess.run(["mount", "-t", "tracefs", "tracefs", "/sys/kernel/tracing"], check=True)
    with Program.load("socket_filter", assemble(SAYING).instructions(), name="t_saying") as program:
        said = []
        for tool in ([sys.executable, "-m", "rawbpf.tools"], bpftool_command()):
            out, status = _until_it_writes([*tool, *flags, "prog", "tracelog"], lambda: program.test_run(bytes(14)), b"hello 42")
            assert status == 0
            if said:        # a signal ends bpftool's list wherever it is, behind a comma too
                out = re.sub(r",\]\n$", "]\n", out)
            # others' lines, and that some were lost, may stand before it
            line = next(line for line in (json.loads(out) if flags else out.split("\n")) if "hello 42" in line)
            said.append(re.sub(r"\] \S+ +\d+\.\d{6}", "] FLAGS TIME", line))
    assert said[0] == said[1] and "bpf_trace_printk: hello 42" in said[0]


STREAMS = """
#include "bpf.h"
#ifdef BEFORE_7_0
extern int bpf_stream_vprintk_impl(int stream, const char *format, const void *arguments, u32 size, void *aux) ksym;
#define bpf_stream_vprintk(stream, format, arguments, size) bpf_stream_vprintk_impl(stream, format, arguments, size, 0)
#else
extern int bpf_stream_vprintk(int stream, const char *format, const void *arguments, u32 size) ksym;
#endif
static const char format[] = "number %d\\n";

SEC("syscall") int saying(void *ctx)
{
	u64 out[1] = {7}, error[1] = {9};

	return bpf_stream_vprintk(1, format, out, sizeof(out)) + bpf_stream_vprintk(2, format, error, sizeof(error));
}
"""


def test_streams():
    """What a program wrote into its streams (6.18+)."""
    if kernel.release() < (6, 18):
        return
    with Object.open(compile_bpf_text(STREAMS, *["-DBEFORE_7_0"] * (kernel.release() < (7, 0)), name="streams.bpf.o")) as loaded:
        loaded.load()
        program = loaded.programs["saying"].program
        number = program.info().id
        for stream, text in (("stdout", "number 7\n"), ("stderr", "number 9\n")):
            run("prog", "tracelog", stream, "id", number)       # what was written for the other
            status = program.test_run().retval
            if status:
                assert status == (-2 * errno.ENOMEM & 0xffffffff)       # the kernel's memory for it: nothing is to be seen
                assert run("prog", "tracelog", stream, "id", number) == (0, "", "")
                continue
            theirs = bpftool("prog", "tracelog", stream, "id", number)
            assert (theirs.stdout, theirs.stderr) == ((text, "") if stream == "stdout" else ("", text))
            program.test_run()
            mine = run("prog", "tracelog", stream, "id", number)
            assert mine == (0, theirs.stdout, theirs.stderr)
            assert run("-j", "prog", "tracelog", stream, "id", number)[1] == "[]\n"


ITERATOR = """
#include "bpf.h"
struct seq_file;
struct meta { struct seq_file *seq; u64 session, number; };
struct context { struct meta *meta; void *map; u32 *key; u32 *value; };
static long (*seq_write)(struct seq_file *seq, const void *data, u32 size) = (void *)127;

SEC("iter/bpf_map_elem") int walk(struct context *ctx)
{
	u32 *key = ctx->key, *value = ctx->value;

	if (key && value)
		seq_write(ctx->meta->seq, value, 4);
	return 0;
}
"""


def test_iter_pin(table, bpffs):
    """The same object and map pinned by both: reading each pin runs it."""
    path = compile_bpf_text(ITERATOR, name="iterator.bpf.o")
    number = table.info().id
    assert run("iter", "pin", path, bpffs + "/mine", "map", "id", number) == (0, "", "")
    theirs = bpftool("iter", "pin", path, bpffs + "/theirs", "map", "id", number)
    assert theirs.returncode == 0, theirs.stderr
    for name in ("mine", "theirs"):
        with open("%s/%s" % (bpffs, name), "rb") as pin:
            assert pin.read() == b"abcd"
    for words in (["show", "pinned", bpffs + "/mine"], ["-j", "show", "pinned", bpffs + "/mine"]):
        assert run(*words[:-3], "link", *words[-3:])[1] == bpftool(*words[:-3], "link", *words[-3:]).stdout
    for name in ("mine", "theirs"):
        os.unlink("%s/%s" % (bpffs, name))
    for words in ([path, bpffs + "/x"], ["/dev/null", bpffs + "/x"], [path, "/nowhere/x", "map", "id", number]):
        assert run("iter", "pin", *words)[0] != 0 and bpftool("-n", "iter", "pin", *words).returncode != 0


def test_run(tmp_path):
    (tmp_path / "packet").write_bytes(bytes(range(50)))
    with Program.load("xdp", code.mov(0, 2) + code.EXIT, name="t_run") as program:
        words = ["prog", "run", "id", program.info().id, "data_in", tmp_path / "packet", "repeat", 3]
        for more in ([], ["data_out", "-"], ["data_out", tmp_path / "out", "data_size_out", 64]):
            for flags in ([], ["-j"]):
                mine, theirs = (re.sub(r'(duration(?: \(average\))?"?: ?)\d+', r"\1N", text) for text in (
                    run(*flags, *words, *more)[1], bpftool(*flags, *words, *more).stdout))
                assert mine == theirs and "etur" in mine or "retval" in mine
        assert (tmp_path / "out").read_bytes() == bytes(range(50))
    with Program.load("raw_tracepoint", code.mov(0, 3) + code.EXIT) as program:      # neither data nor context
        assert json.loads(run("-j", "prog", "run", "id", program.info().id, "repeat", 1)[1])["retval"] == 3


def test_statistics_of_runs():
    with Program.load("socket_filter", code.mov(0, 1) + code.EXIT, name="t_ran") as program, run_statistics():
        for _ in range(3):
            program.test_run(bytes(14))
        number = program.info().id
        for flags in ([], ["-j"]):
            mine = re.sub(r',"pids":\[.*?\]|\tpids .*\n', "", run(*flags, "prog", "show", "id", number)[1])
            assert mine == bpftool(*flags, "prog", "show", "id", number).stdout
        assert '"run_cnt":3' in mine


@pytest.mark.parametrize("flags", [[], ["-j"]])
def test_pins_and_loading(bpffs, tmp_path, flags):
    (tmp_path / "x.s").write_text(".section xdp\n.global one\none:\n  r0 = 1\n  exit\n.section socket\n.global two\ntwo:\n  r0 = 1\n  exit\n")
    assert run("asm", "-f", "elf", "-o", tmp_path / "x.o", tmp_path / "x.s")[0] == 0
    for tool, place in ((run, "mine"), (bpftool, "theirs")):
        for words in (["load", tmp_path / "x.o", "%s/%s_one" % (bpffs, place)], ["loadall", tmp_path / "x.o", "%s/%s" % (bpffs, place)],
                      ["load", tmp_path / "x.o", "%s/%s_typed" % (bpffs, place), "type", "classifier"],
                      ["load", tmp_path / "x.o", "%s/%s_one" % (bpffs, place)]):
            done = tool(*flags, "prog", *words)
            status, out = done[:2] if tool is run else (done.returncode, done.stdout)
            assert (status, out) == ((0, "null\n" if flags else "") if words[-1] != "%s/%s_one" % (bpffs, place) or not os.path.exists(
                "%s/%s_done" % (bpffs, place)) and words[0] == "load" and status == 0 else (status, out)), done
        assert sorted(os.listdir("%s/%s" % (bpffs, place))) == ["one", "two"]
    types = [[json.loads(run("-j", "prog", "show", "pinned", "%s/%s%s" % (bpffs, place, name))[1])["type"] for name in (
        "_one", "_typed", "/one", "/two")] for place in ("mine", "theirs")]
    assert types[0] == types[1] == ["xdp", "sched_cls", "xdp", "socket_filter"]
    for place in ("mine", "theirs"):
        for name in ("_one", "_typed", "/one", "/two"):
            os.unlink("%s/%s%s" % (bpffs, place, name))


def test_profile_is_laid_out_as_bpftools():
    """Debian's is built without it: by its format strings, "%18llu %-20s", "# %8.2f %-30s", "%-41s", "(%4.2f%%)"."""
    parts = []
    session = Session({}, parts.append)
    profile._show(session, ["cycles", "instructions", "llc_misses"], (100, [(2000, 50, 50), (3000, 50, 25), (6, 50, 50)]))
    assert "".join(parts) == (
        "\n               100 run_cnt             \n"
        "              2000 cycles                                                       \n"
        "              3000 instructions        #     1.50 insns per cycle               (50.00%)\n"
        "                 6 llc_misses          #  2000.00 LLC misses per million insns  \n")
    session = Session({"json": True}, parts.append)
    del parts[:]
    profile._show(session, ["cycles"], (100, [(2000, 50, 40)]))
    assert json.loads("".join(parts)) == [{"metric": "cycles", "run_cnt": 100, "value": 2000, "enabled": 50, "running": 40}]


def test_values_of_other_kinds(table):
    """One value for every processor; maps and programs as values."""
    with Map.create("percpu_array", 4, 8, 1, name="t_percpu") as percpu, Program.load("socket_filter", code.RETURN_0) as program, \
            Map.create("array_of_maps", 4, 4, 2, inner_map=table, name="t_outer") as outer, \
            Map.create("prog_array", 4, 4, 2, name="t_progs") as progs:
        for item, value in ((percpu, ["hex", *"01 02 03 04 05 06 07 08".split()]), (outer, ["id", table.info().id]),
                            (progs, ["id", program.info().id])):
            words, found = ["map", "update", "id", item.info().id, "key", 0, 0, 0, 0, "value", *value], []
            for tool in (run, bpftool):
                done = tool(*words)
                assert (done[0] if tool is run else done.returncode) == 0, done
                found.append(run("-j", "map", "dump", "id", item.info().id)[1])
                if item is not percpu:
                    assert tool("map", "delete", "id", item.info().id, "key", 0, 0, 0, 0)
            assert found[0] == found[1] and ("0x08" in found[0] or item is not percpu)
