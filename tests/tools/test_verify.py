"""`rawbpf verify` and `rawbpf run`: what they say of programs whose fate is known."""

import io
import json
import os
import platform
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest

from rawbpf.asm import AsmError
from rawbpf.loader import ObjectError
from rawbpf.tools import cli, sections, units, verify, verify_text
from rawbpf.tools.failure import Failure
from rawbpf.tools.vm import machine, verify as guests
from rawbpf.tools.vm.debian import DebianError

GOOD = '.license "GPL"\n.section xdp\nr0 = 2\nexit\n'
LONGER = '.license "GPL"\n.section xdp\nr0 = 1\nr0 += 1\n*(u64 *)(r10 - 24) = 5\nexit\n'
BAD = """\
.license "GPL"
.map m hash key=4 value=16 max_entries=4
.section kprobe/do_nanosleep
    *(u32 *)(r10 - 4) = 0
    r2 = r10
    r2 += -4
    r1 = map[m] ll
    call bpf_map_lookup_elem
    r1 = *(u64 *)(r0 + 8)
    r0 = 0
    exit
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """run(argument, ...) in a folder of its own, with the programs as files: (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("good.s", GOOD), ("longer.s", LONGER), ("bad.s", BAD)):
        (tmp_path / name).write_text(text)

    def call(*arguments):
        status = cli.main(list(map(str, arguments)))
        sys.stdout.flush()
        return (status, *capfd.readouterr())
    return call


def records(result):
    return [json.loads(line) for line in result[1].splitlines()]


@pytest.mark.root
def test_accepted_and_refused(run):
    status, out, error = run("verify", "good.s", "bad.s")
    assert status == 1 and error == ""
    release = platform.release()
    assert "good.s: xdp (xdp) on %s: accepted\n  2 instructions, 2 processed, " % release in out
    assert "bad.s: do_nanosleep (kprobe) on %s: refused at 6: r1 = *(u64 *)(r0 +8)\n" % release in out
    assert "  source:    bad.s:9: r1 = *(u64 *)(r0 + 8)\n" in out
    assert "(null-check)" in out and "  path:      0-6\n" in out and "R0=map_value_or_null(" in out
    assert run("verify", "good.s")[0] == 0


@pytest.mark.root
def test_json(run):
    good, bad = records(run("verify", "--json", "good.s", "bad.s"))
    assert good["accepted"] and good["refusal"] is None and good["error"] == ""
    assert (good["instructions"], good["processed"], good["stack_depth"]) == (2, 2, [0]) and good["time_us"] >= 0
    assert (good["kernel"], good["release"], good["program"], good["type"]) == ("HOST", platform.release(), "xdp", "xdp")
    why = bad["refusal"]
    assert not bad["accepted"] and (why["slot"], why["kind"], why["file"], why["line"]) == (6, "null-check", "bad.s", 9)
    assert why["path"] == [0, 1, 2, 3, 5, 6] and why["wide"] == [3] and why["registers"]["R10"] == "fp0"


@pytest.mark.root
def test_an_object_costs_what_its_text_costs(run):
    assert run("asm", "longer.s", "-f", "elf", "-o", "longer.o")[0] == 0
    text, made = records(run("verify", "--json", "longer.s", "longer.o"))
    for name in ("accepted", "instructions", "processed", "states", "peak_states", "stack_depth"):
        assert text[name] == made[name]
    assert run("asm", "bad.s", "-f", "elf", "-o", "bad.o")[0] == 0
    why, = [record["refusal"] for record in records(run("verify", "--json", "bad.o"))]
    assert (why["slot"], why["file"], why["line"], why["text"]) == (6, "bad.s", 9, "r1 = *(u64 *)(r0 + 8)")


@pytest.mark.root
def test_a_script(run, tmp_path):
    (tmp_path / "t.bt").write_text("BEGIN { @a[1] = 2; }\ninterval:s:1 { exit(); }\n")
    found = records(run("verify", "--json", "t.bt"))
    assert len(found) == 2 and all(record["accepted"] for record in found)
    (tmp_path / "t.bt").write_text("BEGIN { nonsense(); }\n")
    status, out, error = run("verify", "t.bt")
    assert status == 1 and error.startswith("ERROR: ") and "t.bt:1:9" in error and error.count("ERROR") == 1


@pytest.mark.slow
@pytest.mark.root
def test_damaged_objects(run, tmp_path):
    """Whatever is in an object: a record or one error."""
    assert run("asm", "bad.s", "-f", "elf", "-o", "bad.o")[0] == 0
    whole, random, seen = (tmp_path / "bad.o").read_bytes(), Random(7), set()
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(random.choice((1, 3, 10))):
            data[random.randrange(len(data))] = random.choice((0, 1, 0x80, 0xff, random.randrange(256)))
        try:
            for unit in units.of_bytes(bytes(data[:random.choice((len(data), random.randrange(60, len(data))))]), "bad.o"):
                with unit:
                    made = verify.verify(unit)
                    seen.add("error" if made["error"] else made["accepted"])
        except (Failure, AsmError) as error:
            seen.add("failure")
            assert "\n" not in str(error)
    assert {"error", "failure", False} <= seen


@pytest.mark.root
def test_several_programs_in_a_section(run, tmp_path):
    (tmp_path / "two.s").write_text(".section xdp\n.globl a, b\na: r0 = 1\nexit\nb: r0 = r5\nexit\n")
    a, b = records(run("verify", "--json", "two.s"))
    assert (a["program"], a["accepted"], a["instructions"]) == ("a", True, 2)
    assert (b["program"], b["refusal"]["kind"], b["refusal"]["line"]) == ("b", "uninitialised-register", 5)


@pytest.mark.root
def test_the_log(run):
    status, out, _ = run("verify", "--log-level", "2", "good.s")
    assert "0: (b7) r0 = 2" in out and "processed 2 insns" in out
    assert "processed 2 insns" in run("verify", "--log-level", "stats", "good.s")[1]


@pytest.mark.slow
@pytest.mark.root
def test_logs_that_fit_no_buffer(run, tmp_path):
    """200,000 rounds of a loop are more than 16 MiB of log; the kernel keeps its end from 6.4 on."""
    (tmp_path / "big.s").write_text(".section xdp\nr6 = 0\nagain: r6 += 1\nif r6 < 200000 goto again\nr0 = r7\nexit\n")
    found, = records(run("verify", "--json", "--log-level", "2", "big.s"))
    why = found["refusal"]
    assert (why["slot"], why["kind"], why["line"], found["processed"]) == (3, "uninitialised-register", 5, 400002)
    assert why["path"][-6:] == [2, 1, 2, 1, 2, 3] and found["log_cut"] and len(found["log"]) > 10 << 20
    assert "... (the log is larger than 16 MiB; this is its end)" in verify_text.report(found, with_log=True)
    (tmp_path / "endless.s").write_text(".section xdp\nr6 = 0\nagain: r6 += 1\nif r6 != 0 goto again\nexit\n")
    found, = records(run("verify", "--json", "endless.s"))
    assert found["processed"] == 1000001 and found["refusal"]["kind"] == "too-complex" and found["refusal"]["line"] in (3, 4)


@pytest.mark.root
def test_annotate(run):
    out = run("verify", "--annotate", "longer.s")[1]
    lines = [line for line in out.splitlines() if line.strip().startswith(("0:", "1:", "2:", "3:"))]
    assert [line.split(";")[0].strip() for line in lines] == [
        "0: r0 = 1", "1: r0 += 1", "2: *(u64 *)(r10 -24) = 5", "3: exit"]


@pytest.mark.root
def test_compare_with_another_version(run):
    status, out, _ = run("verify", "--compare", "good.s", "longer.s")
    assert status == 0
    assert out.startswith("xdp: good.s -> longer.s\n  accepted\n  instructions         2 -> 4 (+100%)\n"
                          "  processed            2 -> 4 (+100%)\n") and "stack_depth          0 -> 24\n" in out
    status, out, _ = run("verify", "--compare", "good.s", "bad.s")
    assert status == 1 and run("verify", "--compare", "bad.s", "good.s")[0] == 0
    assert "xdp -> do_nanosleep" in out
    assert "accepted -> refused at 6: R0 invalid mem access 'map_value_or_null' (null-check)" in out


@pytest.mark.root
def test_what_does_not_come_to_the_verifier(run, tmp_path):
    (tmp_path / "x.s").write_text(".map m nonsense key=4 value=4 max_entries=1\n.section xdp\nr1 = map[m] ll\nr0 = 0\nexit\n")
    record, = records(run("verify", "--json", "x.s"))
    assert not record["accepted"] and record["refusal"] is None and "nonsense" in record["error"]
    (tmp_path / "y.s").write_text(".section fentry/no_such_function_there\nr0 = 0\nexit\n")
    assert "no_such_function_there" in run("verify", "y.s")[1]


@pytest.mark.parametrize("arguments, said", [
    (["--kernel", "4.4", "good.s"], "--kernel takes HOST, 5.10, 6.1, 6.12, sid, all, or the path of a kernel's image, not '4.4'"),
    (["--timeout", "0", "good.s"], "--timeout takes a number of seconds from 1 to 2147483647, not '0'"),
    (["--timeout", "\u00b2", "good.s"], "--timeout takes a number of seconds from 1 to 2147483647, not '\u00b2'"),
    (["--compare", "5.4", "good.s"], "--compare takes another file, or a kernel (HOST, 5.10, 6.1, 6.12, sid), not '5.4'"),
    (["--compare", "good.s", "--annotate", "good.s"], "--compare shows numbers, not what --annotate shows"),
    (["--compare", "good.s", "good.s", "plain.s"], "--compare compares one file with another"),
    (["--log-level", "3", "good.s"], "--log-level takes 1, 2 or stats, not '3'"),
    (["--type", "xpd", "good.s"], "no program type 'xpd'; did you mean xdp?"),
    ([], "a file is needed"),
    (["missing.s"], "missing.s: No such file"),
    (["plain.s"], "of which type is the program in .text? Say --type TYPE"),
    (["wrong.s"], "wrong.s:1:"),
    (["--type", "xdp", "junk"], "lddw is cut off"),
    (["nothing.s"], "there are no instructions"),
])
def test_one_error(run, tmp_path, arguments, said):
    (tmp_path / "plain.s").write_text("r0 = 0\nexit\n")
    (tmp_path / "wrong.s").write_text("r0 = \nexit\n")
    (tmp_path / "junk").write_bytes(b"\x18" + bytes(7))
    (tmp_path / "nothing.s").write_text("; nothing\n")
    status, out, error = run("verify", *arguments)
    assert status == 1 and out == "" and error.startswith("ERROR: ") and error.count("ERROR") == 1
    assert said in error and "Traceback" not in error


def test_without_qemu(run, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    status, _, error = run("verify", "--kernel", "6.1", "good.s")
    assert (status, error) == (1, "ERROR: --kernel 6.1 boots a virtual machine, which needs: apt-get install "
                                  "qemu-system-x86 busybox-static\n")


@pytest.fixture
def boot(tmp_path, monkeypatch):
    """({kernel: lines or exceptions of its guest}, {kernel: what the guest was given})."""
    said, seen = {}, {}

    def run(kernel, initrd, command, log, on_line, **options):
        seen[str(kernel)] = dict(options, command=command, image=Path(initrd).read_bytes())
        for line in said[str(kernel)]:
            if isinstance(line, BaseException):
                raise line
            on_line(line + "\n")
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "run", run)
    monkeypatch.setattr(machine, "slot", nullcontext)
    monkeypatch.setattr(guests, "ready", lambda series: True)
    monkeypatch.setattr(guests, "fetched", lambda series: Path(series))
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/true")
    monkeypatch.setattr(machine, "system", lambda image: None)
    monkeypatch.setattr(guests, "CACHE", tmp_path)
    monkeypatch.setattr(guests, "ROOMS", ())
    monkeypatch.setattr(guests.Image, "python", lambda self, modules: None)
    return said, seen


def record(file, program="p", **more):
    return dict(verify.record_of(file, program, "xdp", 2), **more)


def test_records_of_a_guest(tmp_path, boot):
    """The guest gets the files at their own places, includes too; its records come back as the host's would."""
    said, seen = boot
    (tmp_path / "a.s").write_text('.include "part/b.inc"\n')
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "b.inc").write_text('.include "c.inc"\n')
    (tmp_path / "part" / "c.inc").write_text("r0 = 0\nexit\n")
    absolute = str(tmp_path / "part" / "c.inc")
    said["5.10"] = [json.dumps(record(name, refusal={"file": name}, release="5.10.1")) for name in ("a.s", "/host" + absolute)]
    with guests.Guests(["5.10"], ["a.s", absolute], "xdp", 2) as asked:
        asked.start()
        found = list(asked.records("5.10"))
    assert [(r["kernel"], r["release"], r["file"], r["refusal"]["file"]) for r in found] == [
        ("5.10", "5.10.1", "a.s", "a.s"), ("5.10", "5.10.1", absolute, absolute)]
    given = seen["5.10"]
    assert given["command"] == "rawbpf verify --json --type xdp --log-level 2 -- a.s /host%s" % absolute
    assert given["folder"] == "/host%s" % os.getcwd() and given["timeout"] == 600
    for name in ("a.s", "part/b.inc", "part/c.inc"):
        assert ("host%s/%s\0" % (tmp_path, name)).encode() in given["image"]


def test_a_kernel_that_fails_is_told_and_the_others_go_on(tmp_path, boot, capfd):
    said, _ = boot
    for name in ("a.s", "b.s"):
        (tmp_path / name).write_text(GOOD)
    done = [json.dumps(record("a.s", accepted=True)), json.dumps(record("b.s", accepted=True))]
    said.update({"6.1": [done[0], machine.GuestError("no end within 3 s")], "6.12": done, "sid": [done[0], '{"kernel": [ 7.1] BUG'],
                 "5.10": [DebianError("apt-get update: no network")]})
    status = cli.main(["verify", "--json", "--timeout", "3", *"-k 5.10 -k 6.1 -k 6.12 -k sid a.s b.s".split()])
    assert status == 1
    found = records((status, *capfd.readouterr()))
    assert [(r["kernel"], r["file"], r["accepted"], r["error"]) for r in found] == [
        ("5.10", "a.s", False, "apt-get update: no network"), ("5.10", "b.s", False, "apt-get update: no network"),
        ("6.1", "a.s", True, ""), ("6.1", "b.s", False, "no end within 3 s"),
        ("6.12", "a.s", True, ""), ("6.12", "b.s", True, ""), ("sid", "a.s", True, ""), ("sid", "b.s", False, '{"kernel": [ 7.1] BUG')]


def test_two_kernels_compared(tmp_path, boot, capfd):
    said, seen = boot
    (tmp_path / "a.s").write_text(GOOD)
    for series, processed in (("6.1", 10), ("6.12", 15)):
        said[series] = [json.dumps(record("a.s", accepted=True, processed=processed, release=series + ".7"))]
    assert cli.main(["verify", "-k", "6.12", "--compare", "6.1", "a.s"]) == 0
    assert capfd.readouterr()[0] == ("p: 6.1.7 -> 6.12.7\n  accepted\n  processed            10 -> 15 (+50%)\n")
    assert cli.main(["verify", "-k", "6.12", "--compare", "6.1", "--json", "a.s"]) == 0
    pair, = records((0, *capfd.readouterr()))
    assert (pair["program"], pair["before"]["processed"], pair["after"]["processed"]) == ("p", 10, 15)
    said["6.1"] = [machine.GuestError("the guest died")]
    assert cli.main(["verify", "-k", "6.12", "--compare", "6.1", "a.s"]) == 0
    assert "only a.s on 6.1: not loaded: the guest died\n" in capfd.readouterr()[0]


def test_what_is_wrong_with_a_file_is_said_before_a_machine_boots(tmp_path, boot, capfd):
    (tmp_path / "a.s").write_text("r0 = \nexit\n")
    assert cli.main(["verify", "-k", "6.1", "a.s"]) == 1 and "ERROR: a.s:1:" in capfd.readouterr()[1]
    assert cli.main(["verify", "-k", "6.1", "none.bt"]) == 1 and "none.bt: No such file" in capfd.readouterr()[1]
    assert not boot[1]


def test_the_standard_input_goes_to_every_kernel(tmp_path, boot, monkeypatch, capfd):
    said, seen = boot
    said.update({"6.1": [json.dumps(record("stdin"))], "6.12": [json.dumps(record("stdin"))]})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    assert cli.main(["verify", "-k", "6.1", "-k", "6.12", "--json", "-"]) == 1
    assert [r["kernel"] for r in records((1, *capfd.readouterr()))] == ["6.1", "6.12"]
    assert all(GOOD.encode() in given["image"] and given["command"].endswith(" stdin") for given in seen.values())


@pytest.mark.parametrize("name, kind", [
    ("xdp", ("xdp", "xdp", "", False)), ("kprobe/do_nanosleep", ("kprobe", None, "do_nanosleep", False)),
    ("tp/sched/sched_switch", ("tracepoint", None, "sched/sched_switch", False)),
    ("fentry.s/vfs_read", ("tracing", "trace_fentry", "vfs_read", True)),
    ("cgroup/connect6", ("cgroup_sock_addr", "cgroup_inet6_connect", "", False)),
    ("cgroup_skb/egress", ("cgroup_skb", "cgroup_inet_egress", "", False)),
    ("?tc", ("sched_cls", None, "", False)), ("uprobe.multi//bin/sh:main", ("kprobe", "trace_uprobe_multi", "/bin/sh:main", False)),
    # libbpf takes these names alone
    ("xdp/one/two", ("xdp", "xdp", "one/two", False)), ("xdp/devmap/one", ("xdp", "xdp_devmap", "one", False)),
])
def test_sections(name, kind):
    found, target = sections.of_section(name)
    assert (found.program_type, found.attach_type, target, "sleepable" in found.options) == kind


def test_types():
    assert sections.of_section(".text") is None and sections.of_section("nothing/such") is None
    assert sections.of_type("sk_lookup")[0].attach_type == "sk_lookup" and sections.of_type("unspec") is None
    assert sections.of_type("fentry/do_exit")[1] == "do_exit"
    with pytest.raises(ObjectError, match="names no target"):
        sections.load_options(*sections.of_type("tracing"))
    with pytest.raises(ObjectError, match="a program that is loaded"):
        sections.load_options(*sections.of_section("freplace/f"))


def test_ranges():
    assert verify_text.ranges([0, 1, 2, 3, 5, 6], [3]) == "0-6"
    assert verify_text.ranges([0, 1, 3, 4, 1], []) == "0-1, 3-4, 1"
    assert verify_text.ranges([7], []) == "7"
    assert verify_text.ranges([0, 1, 2, 1, 2, 1, 2, 3, 9, 9, 9], []) == "0-2, 1-2, 1-3, 9 (3 times)"
    assert verify_text.ranges([n for _ in range(40) for n in (1, 5)]).startswith("... (56 jumps), 1, 5")


# run

@pytest.mark.root
def test_run_a_packet(run, tmp_path):
    (tmp_path / "p.s").write_text("""\
.section xdp
    r2 = *(u32 *)(r1 + 0)
    r3 = *(u32 *)(r1 + 4)
    r4 = r2
    r4 += 14
    r0 = -1
    if r4 > r3 goto out
    r0 = *(u8 *)(r2 + 1)
    *(u8 *)(r2 + 0) = 0x41
out: exit
""")
    data = "00 2a" + " 00" * 12
    status, out, _ = run("run", "p.s", "--data-in", data, "--json", "--repeat", 10)
    found = json.loads(out)
    assert status == 0 and found["retval"] == 0x2a and found["data"] == "412a" + "00" * 12
    assert found["repeat"] == 10 and found["duration_ns"] >= 0
    out = run("run", "p.s", "--data-in", data)[1]
    assert out.startswith("retval:    42\nduration:  ") and "  0000  41 2a 00 " in out and "  A*......" in out
    (tmp_path / "packet").write_bytes(bytes(14))
    assert run("run", "p.s", "--data-in", "packet", "--data-out", "left")[0] == 0
    assert (tmp_path / "left").read_bytes() == b"A" + bytes(13)


@pytest.mark.root
def test_run_a_context(run, tmp_path):
    (tmp_path / "p.s").write_text(".section syscall\nr0 = *(u32 *)(r1 + 4)\n*(u32 *)(r1 + 0) = 7\nexit\n")
    found = json.loads(run("run", "p.s", "--ctx-in", "0100000009000000", "--json")[1])
    assert found["retval"] == 9 and found["ctx"] == "0700000009000000"
    assert run("run", "p.s", "--ctx-in", "0100000009000000", "--ctx-out", "left")[0] == 0
    assert (tmp_path / "left").read_bytes() == bytes.fromhex("0700000009000000")


@pytest.mark.root
@pytest.mark.parametrize("type, code, arguments, retval, data, ctx", [
    # struct __sk_buff: mark at 8, cb at 48
    ("sched_cls", "r0 = *(u32 *)(r1 + 8)\n*(u32 *)(r1 + 8) = 9\n*(u32 *)(r1 + 48) = 5", {"ctx-in": "00" * 8 + "07000000"}, 7, "00" * 64,
     {8: 9, 48: 5}),
    ("sched_act", "r0 = *(u32 *)(r1 + 0)", {"data-in": "11" * 70}, 70, "11" * 70, {}),
    ("socket_filter", "r6 = r1\nr0 = *(u16 *)skb[2]", {"data-in": "00" * 14 + "aabbccddee"}, 0xccdd, "00" * 14 + "aabbccddee", {}),
    ("cgroup_skb/egress", "r0 = 3", {}, 3, "00" * 64, {}),
    ("lwt_xmit", "r0 = *(u32 *)(r1 + 48)", {"ctx-in": "00" * 48 + "21000000"}, 33, "00" * 64, {48: 33}),
    # struct bpf_flow_keys: nhoff and thoff begin behind the Ethernet header
    ("flow_dissector", "r0 = 0", {"data-in": "00" * 14 + "45"}, 0, "0e000e00" + "00" * 52, {}),
    # struct bpf_sk_lookup: family at 8, protocol at 12, local_port at 60
    ("sk_lookup", "r0 = *(u32 *)(r1 + 60)\nif r0 == 8080 goto yes\nr0 = 0\nexit\nyes: r0 = 1",
     {"ctx-in": "00" * 8 + "0200000006000000" + "00" * 44 + "901f0000" + "00" * 8}, 1, "", {}),
    ("raw_tp/sys_enter", "r0 = *(u64 *)(r1 + 8)", {"ctx-in": "00" * 8 + "2a" + "00" * 7, "repeat": 50}, 42, "", {}),
    ("syscall", "r0 = *(u32 *)(r1 + 4)\n*(u32 *)(r1 + 0) = 7", {"ctx-in": "0100000009000000"}, 9, "", {0: 7, 4: 9}),
])
def test_run_each_type(run, tmp_path, type, code, arguments, retval, data, ctx):
    (tmp_path / "p.s").write_text('.license "GPL"\n%s\nexit\n' % code)
    found = json.loads(run("run", "p.s", "--json", "--type", type, *(word for name, value in arguments.items() for word in ("--" + name, value)))[1])
    assert (found["retval"], found["data"]) == (retval, data) and found["duration_ns"] > 0
    left = bytes.fromhex(found["ctx"])
    assert {at: int.from_bytes(left[at:at + 4], "little") for at in ctx} == ctx


@pytest.mark.root
@pytest.mark.parametrize("type, arguments, said", [
    ("kprobe/do_exit", [], "cannot test-run kprobe programs"), ("lwt_seg6local", [], "cannot test-run lwt_seg6local programs"),
    ("cgroup/sock", [], "cannot test-run cgroup_sock programs"), ("xdp/devmap", [], "only where it is attached"),
    ("tp_btf/sched_switch", [], "only where it is attached"), ("xdp", ["--data-in", "00"], "at least a 14-byte Ethernet header"),
    ("sk_lookup", [], "as context a struct bpf_sk_lookup"), ("raw_tp/sys_enter", ["--data-in", "00"], "it takes a context and no packet"),
])
def test_run_what_the_kernel_does_not_run(run, tmp_path, type, arguments, said):
    (tmp_path / "p.s").write_text('.license "GPL"\n.section %s\nr0 = 1\nexit\n' % type)
    status, out, error = run("run", "p.s", *arguments)
    assert status == 1 and out == "" and error.startswith("ERROR: ") and error.count("\n") == 1 and said in error


@pytest.mark.root
def test_run_what_cannot_run(run):
    status, out, error = run("run", "bad.s")
    assert status == 1 and out == "" and error.startswith("ERROR: the verifier refused it\n") and "(null-check)" in error
    assert "neither a file nor" in run("run", "good.s", "--data-in", "xyz")[2]
    for wrong in ("0", "\u00b2", "4294967296", "9" * 5000):
        assert "--repeat takes a number from 1 to 4294967295" in run("run", "good.s", "--repeat", wrong)[2]
    assert "/dev/full: No space left" in run("run", "good.s", "--data-out", "/dev/full")[2]
    assert "no program nope; there are xdp" in run("run", "good.s", "--program", "nope")[2]
