"""`rawbpf asm`, `disasm` and `compile`: formats, what they read, and one error for whatever is wrong."""

import json
import os
import random
import struct
import subprocess
import sys

import pytest

from rawbpf.asm import AsmError, assemble, decode, encode
from rawbpf.tools import cli
from rawbpf.tools.disasm import of_assembly
from rawbpf.tools.failure import Failure, write_file
from rawbpf.tools.objects import read_object

RETURN_2 = bytes.fromhex("b700000002000000" "9500000000000000")     # r0 = 2; exit (RFC 9669)

PROGRAM = """\
.license "GPL"
.map hits percpu_array key=4 value=8 max_entries=1
.map rest hash key=8 value=16 max_entries=32 flags=1
.section tracepoint/syscalls/sys_enter_openat
count:
    *(u32 *)(r10 - 4) = 0
    r2 = r10
    r2 += -4
    r1 = map[hits] ll
    call bpf_map_lookup_elem
    if r0 == 0 goto out
    r1 = *(u64 *)(r0 + 0)
    r1 += 1
    *(u64 *)(r0 + 0) = r1
    call helper
    r1 = second ll
    r1 = map[rest] ll
out:
    r0 = 0
    exit
.text
helper:
    r0 = 1
    exit
.data
first: .quad 5
second: .string "hi"
.rodata
.byte 1, 2, 3
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capfdbinary):
    """run(argument, ...) in a folder of its own: (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, stdin=None):
        if stdin is not None:
            done = subprocess.run([sys.executable, "-m", "rawbpf.tools", *arguments], input=stdin, capture_output=True)
            return done.returncode, done.stdout, done.stderr
        status = cli.main(list(map(str, arguments)))
        sys.stdout.flush()
        out, error = capfdbinary.readouterr()
        return status, out, error
    return call


def one_error(result):
    """The error of a command that failed with one and printed nothing else."""
    status, out, error = result
    assert status == 1 and out == b""
    text = error.decode()
    assert text.startswith("ERROR: ") and text.count("ERROR") == 1 and "Traceback" not in text
    return text


def test_formats(run, tmp_path):
    (tmp_path / "p.s").write_text("r0 = 2\nexit\n")
    native = RETURN_2 if sys.byteorder == "little" else encode(decode(RETURN_2, "little"), "big")
    assert run("asm", "p.s", "-o", "p.bin") == (0, b"", b"")
    assert (tmp_path / "p.bin").read_bytes() == native
    status, out, _ = run("asm", "p.s", "--format", "c-array")
    assert status == 0 and b".code = 0xb7, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 2" in out
    status, out, _ = run("asm", "p.s", "-f", "json")
    assert [i["code"] for i in json.loads(out)["sections"][0]["instructions"]] == [0xb7, 0x95]
    assert run("asm", "p.s", "-f", "elf", "-o", "p.o")[0] == 0
    made = (tmp_path / "p.o").read_bytes()
    assert made[:4] == b"\x7fELF" and struct.unpack_from("=HH", made, 16) == (1, 247)     # ET_REL, EM_BPF


def test_raw_goes_to_the_standard_output(run):
    status, out, _ = run("asm", "-", stdin=b"r0 = 2\nexit\n")
    assert status == 0 and decode(out) == decode(RETURN_2, "little")
    assert run("disasm", "-", stdin=out)[1] == b"   0: (b7) r0 = 2\n   1: (95) exit\n"


def test_a_file_is_replaced_as_a_whole(tmp_path):
    """Two writers, one reader: never a mixture, never a part; what is no regular file is written into."""
    path, contents = tmp_path / "out", [bytes([n]) * 200_000 for n in (1, 2)]
    path.write_bytes(contents[0])
    path.chmod(0o640)
    writers = []
    for content in contents:
        writers.append(os.fork())
        if not writers[-1]:
            try:
                for _ in range(100):
                    write_file(str(path), content)
            finally:
                os._exit(0)
    while writers:
        assert path.read_bytes() in contents
        done, status = os.waitpid(-1, os.WNOHANG)
        if done:
            assert not status
            writers.remove(done)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"] and path.stat().st_mode & 0o777 == 0o640
    (tmp_path / "link").symlink_to(path)
    write_file(str(tmp_path / "link"), b"through")
    assert path.read_bytes() == b"through" and (tmp_path / "link").is_symlink()
    with pytest.raises(Failure, match="No such file"):
        write_file(str(tmp_path / "none" / "out"), b"")


def test_several_files_are_one(run, tmp_path):
    (tmp_path / "a.s").write_text("call f\nexit\n")
    (tmp_path / "b.s").write_text("f: r0 = 7\nexit\n")
    assert run("asm", "a.s", "b.s", "-o", "out")[0] == 0
    assert run("disasm", "--raw", "out")[1].decode().splitlines() == [
        "   0: (85) call pc+1", "   1: (95) exit", "   2: (b7) r0 = 7", "   3: (95) exit"]


@pytest.mark.parametrize("text", [RETURN_2.hex(), "b7 00 00 00 02 00 00 00\n95 00 00 00 00 00 00 00\n",
                                  "0xb7,0x00,0x00,0x00,0x02,0x00,0x00,0x00, 0x95,0,0".replace("0x95,0,0", "0x95" + ",0x00" * 7)])
def test_hexadecimal(run, tmp_path, text):
    expected = b"   0: (b7) r0 = 2\n   1: (95) exit\n"
    assert run("disasm", "--byte-order", "little", "--hex", text) == (0, expected, b"")
    (tmp_path / "digits").write_text(text)
    assert run("disasm", "--byte-order", "little", "digits") == (0, expected, b"")


def test_byte_order(run):
    assert run("disasm", "--byte-order=big", "--hex", encode(decode(RETURN_2, "little"), "big").hex())[1] == \
        b"   0: (b7) r0 = 2\n   1: (95) exit\n"


def test_verifier_log(run, tmp_path):
    (tmp_path / "log").write_text("func#0 @0\n0: R1=ctx() R10=fp0\n0: (b7) r0 = 2                 ; R0_w=2\n1: (05) goto pc+1\n"
                                  "3: (95) exit\nprocessed 3 insns (limit 1000000)\n")
    expected = b"   0: (b7) r0 = 2\n   1: (05) goto pc+1\n; the log does not show slots 2 to 2\n   3: (95) exit\n"
    assert run("disasm", "log") == (0, expected, b"")
    assert run("disasm", "--log", "log") == (0, expected, b"")


def same(a, b):
    """Two Assemblies that load as the same."""
    assert list(a.sections) and {n: s.instructions for n, s in a.sections.items()} == {n: s.instructions for n, s in b.sections.items()}
    assert a.maps == b.maps and a.license == b.license
    assert {n: bytes(d.content) for n, d in a.data.items()} == {n: bytes(d.content) for n, d in b.data.items()}


def test_an_object_says_what_the_text_said(run, tmp_path):
    (tmp_path / "p.s").write_text(PROGRAM)
    assert run("asm", "p.s", "-f", "elf", "-o", "p.o")[0] == 0
    read = read_object((tmp_path / "p.o").read_bytes(), "p.o")
    same(read, assemble(PROGRAM))
    section = read.sections["tracepoint/syscalls/sys_enter_openat"]
    assert section.lines[0] == ("p.s", 6, "*(u32 *)(r10 - 4) = 0") and read.globals == {"count"}
    # and its disassembly says it again
    status, out, _ = run("disasm", "p.o")
    same(assemble(out.decode()), read)
    assert of_assembly(assemble(out.decode())).split() == out.decode().split()


def renamed(path, names):
    """Changes names (to ones as long) in an object's table of symbols."""
    data = path.read_bytes()
    for old, new in names.items():
        assert data.count(b"\0%s\0" % old) >= 1 and len(old) == len(new)
        data = data.replace(b"\0%s\0" % old, b"\0%s\0" % new)
    path.write_bytes(data)


def test_names_that_are_no_names_to_the_assembler(run, tmp_path):
    (tmp_path / "p.s").write_text(".section 2\ncall fa\ncall fb\ncall fc\ncall f$\nexit\n.text\nfa:\nr0 = 1\nexit\n"
                                  "fb:\nr0 = 2\nexit\nfc:\nr0 = 3\nexit\nf$:\nr0 = 4\nexit\n")
    assert run("asm", "p.s", "-f", "elf", "-o", "p.o")[0] == 0
    # callx r2; helper 44; and two static functions of one name, as linkers leave them
    renamed(tmp_path / "p.o", {b"fa": b"r2", b"fb": b"44", b"fc": b"f$"})
    status, out, _ = run("disasm", "p.o")
    assert status == 0
    again = assemble(out.decode())
    assert [i.ref.name for i in again.sections["2"].instructions[:4]] == ["_r2", "_44", "f$", "f$.2"]
    labels = again.sections[".text"].labels
    assert [labels[name] for name in ("_r2", "_44", "f$", "f$.2")] == [0, 2, 4, 6]


@pytest.mark.root
def test_names_that_the_kernel_does_not_take(run, tmp_path):
    (tmp_path / "p.s").write_text('.license "GPL"\n.section xdp\ncall $\u00e9\nexit\n.text\n$\u00e9:\nr0 = 1\nexit\n')
    assert run("asm", "p.s", "-f", "elf", "-o", "p.o")[0] == 0
    for file in ("p.s", "p.o"):
        assert run("run", file)[1].startswith(b"retval:    1\n")


@pytest.mark.root
def test_loaded_programs(run, tmp_path):
    from rawbpf.loader import Program
    from rawbpf.loader.detached import mount
    with Program.load("socket_filter", decode(RETURN_2, "little"), name="test_disasm") as program:
        info = program.info()
        bpffs = mount("bpf")
        pin = "/proc/self/fd/%d/test_disasm" % bpffs
        program.pin(pin)
        shown = ("; %d: socket_filter test_disasm  tag %s\n   0: (b7) r0 = 2\n   1: (95) exit\n" % (info.id, info.tag)).encode()
        for option, value in (("--id", info.id), ("--name", "test_disasm"), ("--pin", pin)):
            assert run("disasm", option, value) == (0, shown, b"")
        # others may have loaded the same
        for tag in (info.tag, info.tag.upper()):
            status, out, _ = run("disasm", "--tag", tag)
            assert status == 0 and shown in out
        os.unlink(pin)
        os.close(bpffs)
        assert assemble(shown.decode()).instructions() == decode(RETURN_2, "little")
    assert "no loaded program has the name test_disasm" in one_error(run("disasm", "--name", "test_disasm"))
    assert "no such prog" in one_error(run("disasm", "--id", info.id))
    assert "No such file" in one_error(run("disasm", "--pin", "/sys/fs/bpf/none/x"))
    assert "/proc/self/status" in one_error(run("disasm", "--pin", "/proc/self/status"))


@pytest.mark.root
def test_what_the_kernel_made_of_a_program_assembles_again(run, tmp_path):
    """Translated instructions have forms of the kernel's own: helpers by address, loads that may fault, map ids."""
    from rawbpf.loader import Map, Program
    source = assemble("""
        r6 = r1
        *(u64 *)(r10 -8) = 0
        r1 = map[m] ll
        r2 = r10
        r2 += -8
        call bpf_map_lookup_elem
        if r0 == 0 goto out
        r1 = *(u32 *)(r6 +0)
        lock *(u64 *)(r0 +0) += r1
        call bpf_ktime_get_ns
    out: r0 = 0
        exit
    """, strict=False).instructions()
    with Map.create("hash", 8, 8, 4, name="m") as m, Program.load("socket_filter", source, maps={"m": m}) as program:
        status, out, _ = run("disasm", "--id", program.info().id)
        assert status == 0
        assert encode(assemble(out.decode(), strict=False).instructions()) == program.xlated()


def test_ctrl_c_while_programs_are_pinned_leaves_no_pin(tmp_path):
    import signal
    from types import SimpleNamespace
    from rawbpf.tools.load import _pin

    def pin(path):
        open(path, "x").close()
        os.kill(os.getpid(), signal.SIGINT)
    obj = SimpleNamespace(programs=dict.fromkeys(("a", "b"), SimpleNamespace(program=SimpleNamespace(pin=pin))))
    with pytest.raises(KeyboardInterrupt):
        try:
            _pin(obj, [{"name": "a", "loaded": True}, {"name": "b", "loaded": True}], {}, str(tmp_path / "pins"))
        finally:
            assert not os.path.exists(tmp_path / "pins")


@pytest.mark.slow
@pytest.mark.root
def test_pipes_and_the_standard_input(run, tmp_path):
    (tmp_path / "p.s").write_text('.license "GPL"\n.section xdp\ncall f\nexit\n')
    (tmp_path / "f.s").write_text(".text\nf: r0 = 2\nexit\n")
    assert run("asm", "p.s", "f.s", "-f", "elf", "-o", "p.o")[0] == 0
    whole = run("asm", "p.s", "f.s")[1]
    assert run("asm", "p.s", "-", stdin=(tmp_path / "f.s").read_bytes()) == (0, whole, b"")
    for data in (tmp_path / "p.o", tmp_path / "p.s"):
        text = data.read_bytes() + (b"" if data.suffix == ".o" else (tmp_path / "f.s").read_bytes())
        assert run("load", "-", stdin=text) == run("load", "/dev/stdin", stdin=text) == (
            0, b"loaded    xdp  (xdp, section xdp)\n", b"")


@pytest.mark.peer
def test_objects_that_clang_made(run, tmp_path):
    """Their disassembly assembles to the same instructions, maps and data, CO-RE relocations and all."""
    from tests.bpfcc import FIXTURES, compile_bpf
    for name in ("core.c", "features.c", "symbols.c", "arena.c", "struct_ops.c", "usdt.c"):
        path = compile_bpf(name)
        status, out, error = run("disasm", path)
        assert (status, error) == (0, b""), (FIXTURES / name, error)
        with open(path, "rb") as file:
            read = read_object(file.read(), path, show=True)
        made = assemble(out.decode(), strict=False)
        for section, code in read.sections.items():
            assert made.sections[section].instructions == code.instructions
            assert set(code.labels) <= set(made.sections[section].labels)
        assert made.maps == read.maps and made.kfuncs == read.kfuncs and made.ksyms == read.ksyms
        assert {n: bytes(d.content) for n, d in made.data.items()} == {n: bytes(d.content) for n, d in read.data.items()}


@pytest.mark.root
def test_load_takes_assembly_text(run, tmp_path):
    (tmp_path / "p.s").write_text('.license "GPL"\n.map m array key=4 value=8 max_entries=2\n.section socket\n'
                                  "prog: r1 = map[m] ll\nr0 = 0\nexit\n")
    assert run("load", "p.s") == (0, b"loaded    prog  (socket_filter, section socket)\n"
                                  b"map       m  (array, key 4, value 8, 2 entries)\n", b"")
    (tmp_path / "p.s").write_text("r0 = 0\nexit\n")
    assert "p.s: there is no program in it" in one_error(run("load", "p.s"))
    (tmp_path / "p.s").write_text(".section xdp\nr0 = q\n")
    assert "p.s:2:6: " in one_error(run("load", "p.s"))
    (tmp_path / "junk").write_bytes(bytes(range(256)))
    assert "junk: neither an ELF object nor assembly text" in one_error(run("load", "junk"))
    assert "nothere: No such file" in one_error(run("load", "nothere"))


# what is wrong

def test_what_is_read_is_not_overwritten(run, tmp_path):
    (tmp_path / "p.s").write_text("r0 = 0\nexit\n")
    (tmp_path / "p.ll").write_text("define i64 @f() {\n  ret i64 0\n}\n")
    (tmp_path / "other").symlink_to("p.s")
    for words in (("asm", "p.s", "-o", "p.s"), ("asm", "-f", "elf", "p.s", "-o", "./other"), ("compile", "p.ll", "-o", "p.ll")):
        assert "is what is read" in one_error(run(*words))
    assert (tmp_path / "p.s").read_text().startswith("r0") and (tmp_path / "p.ll").read_text().startswith("define")
    assert "the name of a file" in one_error(run("asm", "p.s", "-o", ""))
    assert "the name of a file" in one_error(run("compile", "p.ll", "-o", ""))


def test_nothing_makes_no_file(run, tmp_path):
    (tmp_path / "p.s").write_text("; nothing\n")
    for form in ("raw", "c-array", "elf", "json"):
        assert "there are no instructions" in one_error(run("asm", "p.s", "-f", form, "-o", "out"))
    assert not (tmp_path / "out").exists()


def test_the_byte_order_of_an_object_is_its_own(run, tmp_path):
    (tmp_path / "p.s").write_text(".section xdp\nr0 = 0\nexit\n")
    assert run("asm", "p.s", "-f", "elf", "-o", "p.o")[0] == 0
    other = "big" if sys.byteorder == "little" else "little"
    assert "what its byte order is" in one_error(run("disasm", "p.o", "--byte-order", other))
    assert run("disasm", "p.o", "--byte-order", sys.byteorder)[0] == 0
    assert "raw and hexadecimal" in one_error(run("disasm", "--id", "1", "--byte-order", other))


@pytest.mark.root
def test_no_empty_file_for_what_the_kernel_does_not_give_back(run, tmp_path):
    (tmp_path / "p.s").write_text('.license "GPL"\n.section raw_tp\nr0 = 0\nexit\n')
    assert "gives no context back" in one_error(run("run", "p.s", "--ctx-in", "00" * 8, "--ctx-out", "left"))
    (tmp_path / "p.s").write_text(".section tc\nr0 = 0\nexit\n")
    assert "--ctx-in" in one_error(run("run", "p.s", "--ctx-out", "left"))
    assert not (tmp_path / "left").exists()
    assert "the same file" in one_error(run("run", "p.s", "--ctx-out", "left", "--data-out", "left"))

@pytest.mark.parametrize("text, line, said", [
    ("r0 = 2\nexti\n", 2, "exit"),
    ("goto nowhere\nexit\n", 1, "no label nowhere"),
    ("a: r0 = 1\na: exit\n", 2, "a is already defined at p.s:1"),
    ("call nothing_like_it\nexit\n", 1, "no function nothing_like_it"),
    ("goto pc+1\nr0 = 5 ll\nexit\n", 1, "the second half of a 64-bit constant"),
    ("if r1 == 0 goto pc+9\nexit\n", 1, "outside the section's 2 slots"),
    ("/* never closed\nexit\n", 2, "never closed"),
    (".map m nothing\n", 1, None),
    ("r0 = map[m] ll\n.map n hash key=4 value=4 max_entries=1\nexit\n", 1, "no map m"),
    ("r11 = 0\n", 1, "r11"),
    ('.section a"b\nexit\n', 1, "end of the line"),
    (".section xdp extra words\nexit\n", 1, "end of the line"),
    ("r0 = 99999999999\nexit\n", 1, "99999999999"),
    # a regular file, and its reader waits for what is not there yet
    pytest.param('.include "/proc/kmsg"\nexit\n', 1, "no file that has an end", marks=pytest.mark.root),
])
def test_text_that_is_wrong(run, tmp_path, text, line, said):
    (tmp_path / "p.s").write_text(text)
    error = None
    for form in ("raw", "elf", "c-array", "json"):
        result = run("asm", "p.s", "-f", form)
        if result[0]:
            error = one_error(result)
    if said is None:
        return
    assert "p.s:%d:" % line in error and said in error
    assert "^" in error


def test_an_included_pipe_is_not_waited_for(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "p.s").write_text('.include "pipe"\nexit\n')
    error = one_error(run("asm", "p.s"))
    assert "p.s:1:10: pipe is no file" in error and "^" in error


def test_includes_in_a_circle(run, tmp_path):
    (tmp_path / "a.s").write_text('.include "b.s"\nexit\n')
    (tmp_path / "b.s").write_text('r0 = 0\n.include "a.s"\n')
    assert "includes itself" in one_error(run("asm", "a.s"))
    (tmp_path / "c.s").write_text('.include "missing.s"\n')
    assert "c.s:1:10: " in one_error(run("asm", "c.s"))


@pytest.mark.parametrize("data, said", [
    (b"\x18\x01" + bytes(6), "lddw is cut off"),
    (b"\xb7\0\0\0\2\0\0\0\x95\0\0", "11 bytes are no whole number"),
    (b"", "empty"),
])
def test_raw_bytes_that_are_wrong(run, tmp_path, data, said):
    (tmp_path / "junk").write_bytes(data)
    assert said in one_error(run("disasm", "--raw", "junk"))


def test_other_files(run, tmp_path):
    assert "no such file" in one_error(run("asm", "missing.s")).lower()
    assert "no such file" in one_error(run("disasm", "missing.o")).lower()
    (tmp_path / "junk").write_bytes(bytes(range(256)))
    assert "no UTF-8 text" in one_error(run("asm", "junk"))
    (tmp_path / "elf").write_bytes(b"\x7fELF" + bytes(3))
    one_error(run("disasm", "elf"))
    assert "not of BPF code" in one_error(run("disasm", "/bin/true"))
    assert "even number" in one_error(run("disasm", "--hex", "xyz"))
    assert "even number" in one_error(run("disasm", "--hex", "\udcff"))
    (tmp_path / "p.s").write_text("exit\n")
    assert one_error(run("asm", "p.s", "-o", "/dev/full")) == "ERROR: /dev/full: No space left on device\n"
    assert "no line of this text" in one_error(run("disasm", "--log", "/dev/null"))


@pytest.mark.slow
def test_files_without_an_end(run):
    assert "/dev/zero: more than 268435456 bytes" in one_error(run("disasm", "/dev/zero"))
    assert "/dev/zero: more than 268435456 bytes" in one_error(run("asm", "/dev/zero"))


@pytest.mark.slow
def test_files_are_read_without_room_for_the_largest(tmp_path):
    (tmp_path / "p.s").write_text("r0 = 1\nexit\n")
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (150_000_000,) * 2); " \
              "from rawbpf.tools.cli import main; sys.exit(main(sys.argv[1:]))"
    for arguments in (("asm", "p.s", "-o", "p.raw"), ("disasm", "p.raw"), ("asm", "-", "-f", "json")):
        done = subprocess.run([sys.executable, "-c", limited, *arguments], cwd=tmp_path, capture_output=True,
                              input=b"exit\n")
        assert done.returncode == 0 and not done.stderr


def test_options(run):
    assert "--format takes raw, elf, c-array, json" in one_error(run("asm", "-f", "exe", "x"))
    assert "a file is needed" in one_error(run("asm"))
    assert "what to disassemble" in one_error(run("disasm"))
    for wrong in ("x", "-1", "", "\u00b2", "4294967296", "9" * 5000):
        assert "--id takes a number" in one_error(run("disasm", "--id", wrong))
    assert "raw bytes cannot say" in one_error(run("asm", "-", stdin=b"r1 = map[m] ll\nexit\n"))
    for command in ("asm", "disasm", "compile", "verify", "run"):
        status, out, _ = run(command, "--help")
        assert status == 0 and out.startswith(b"usage: rawbpf " + command.encode())


def test_compile_without_llvmlite(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    (tmp_path / "f.ll").write_text('define i32 @f(ptr %0) section "xdp" { ret i32 2 }')
    assert one_error(run("compile", "f.ll")) == "ERROR: this needs the package llvmlite: pip install llvmlite\n"
    assert "-O takes" in one_error(run("compile", "-O9", "f.ll"))


@pytest.mark.root
def test_trace_without_llvmlite(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    assert one_error(run("trace", "--codegen", "llvm", "-e", "BEGIN { exit(); }")) == \
        "ERROR: --codegen llvm needs the package llvmlite: pip install llvmlite\n"
    assert "--codegen takes rawbpf or llvm" in one_error(run("trace", "--codegen", "gcc", "-e", "BEGIN { exit(); }"))


def test_damaged_objects(tmp_path):
    """Any damage is one AsmError, or is not seen."""
    from rawbpf.asm import write_object
    from rawbpf.loader.uapi import MAP_TYPES
    good = write_object(assemble(PROGRAM), MAP_TYPES)
    chance = random.Random(7)
    refused = 0
    for _ in range(600):
        data = bytearray(good)
        for _ in range(chance.choice((1, 1, 2, 8))):
            data[chance.randrange(4, len(data))] = chance.choice((0, 1, 0x7f, 0x80, 0xff, chance.randrange(256)))
        if chance.random() < 0.1:
            del data[chance.randrange(16, len(data)):]
        try:
            of_assembly(read_object(bytes(data), "damaged.o"))
        except AsmError:
            refused += 1
    assert refused > 100
