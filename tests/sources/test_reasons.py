"""Why a file has no events, and what is wrong with what a Python program asks for: the reason itself, not its consequence."""

import lzma
import os
import re
import resource
import shutil
import subprocess

import pytest

from rawbpf import sources
from rawbpf.sources import SourceError, Target, paths
from rawbpf.tools.trace import listing
from tests.cc import compile_c

WORK = "int work(int n) { return n; } int main(void) { return work(0); }"


def packed(tmp_path, payload):
    program = tmp_path / "program"
    shutil.copy(compile_c(WORK, "-s", name="stripped"), program)
    (tmp_path / "payload").write_bytes(payload)
    subprocess.run(["objcopy", "--add-section", ".gnu_debugdata=%s" % (tmp_path / "payload"), program], check=True)
    return str(program)


@pytest.mark.root
@pytest.mark.parametrize("payload, says", [
    (lzma.compress(bytes(4 << 20)), "gnu_debugdata.*unpacks to more than 1 MB"),
    (lzma.compress(os.urandom(3000))[:-500], "gnu_debugdata.*is cut short"),
    (b"neither xz nor anything else", "gnu_debugdata.*cannot be unpacked"),
])
def test_broken_payloads(tmp_path, payload, says):
    program = packed(tmp_path, payload)
    with pytest.raises(SourceError, match=says):
        sources.expand("uprobe:%s:work" % program)
    assert list(sources.list_events("uprobe:%s:work" % program)) == []
    assert re.search(says, sources.find("uprobe").nothing("%s:work" % program, Target()))


@pytest.mark.root
@pytest.mark.slow
def test_listings_say_why(rawbpf, tmp_path):
    whole = compile_c(WORK, name="works")
    with open(whole, "rb") as file:
        data = file.read()
    cut = tmp_path / "cut"
    cut.write_bytes(data[:1000])
    for name, says in ((str(cut), "lies outside the file"), (str(tmp_path / "none"), "does not exist"), (whole, None)):
        done = rawbpf("list", "uprobe:%s:nosuch*,usdt:%s:nosuch" % (name, name))
        assert done.returncode == 0 and done.stdout == ""
        lines = done.stderr.splitlines()
        assert len(lines) == 2 and all("no event matches" in line for line in lines)
        assert all(says in line if says else line.endswith(":nosuch*") or line.endswith(":nosuch") for line in lines), lines


@pytest.mark.root
@pytest.mark.slow
def test_damaged_files_among_others(rawbpf, tmp_path):
    """What several files are listed or traced for goes on, and names those that are damaged."""
    (tmp_path / "broken").mkdir()
    packed(tmp_path / "broken", b"neither xz nor anything else")
    for name in ("broken/program", "broken/works"):
        shutil.copy(compile_c(WORK, name="works") if name.endswith("works") else str(tmp_path / name), tmp_path)
    with open(tmp_path / "works", "rb") as file:
        (tmp_path / "cut").write_bytes(file.read()[:1000])
    (tmp_path / "cut").chmod(0o755)
    says = ("WARNING: .*/cut at .*", "WARNING: .*/program.*gnu_debugdata.*cannot be unpacked")
    done = rawbpf("list", "uprobe:%s/[cpw]*:wor*" % tmp_path)
    assert (done.returncode, done.stdout) == (0, "uprobe:%s/works:work\n" % tmp_path)
    lines = sorted(done.stderr.splitlines())
    assert len(lines) == 2 and all(map(re.match, says, lines)), lines
    done = rawbpf("list", "usdt:%s/[cpw]*:*" % tmp_path)
    assert done.stdout == "" and re.search(says[0], done.stderr) and "no event matches" in done.stderr
    for kind, function in (("uprobe", "wor*"), ("uprobe", "work"), ("uretprobe", "work"), ("u*", "work")):
        done = rawbpf("trace", "-e", "%s:%s/[cpw]*:%s { } begin { exit(); }" % (kind, tmp_path, function))
        assert done.returncode == 0 and len(re.findall("WARNING", done.stderr)) == 2, done.stderr
        done = rawbpf("list", "-e", "%s:%s/[cpw]*:%s { }" % (kind, tmp_path, function))
        assert done.returncode == 0 and len(re.findall("WARNING", done.stderr)) == 2, done.stderr
    (tmp_path / "works").unlink()       # now all are damaged
    done = rawbpf("trace", "-e", "uprobe:%s/[cpw]*:work { }" % tmp_path)
    assert done.returncode == 1 and len(re.findall("WARNING", done.stderr)) == 2, done.stderr


@pytest.mark.root
def test_damaged_files_among_others_in_python(tmp_path):
    """Whichever way functions are named."""
    shutil.copy(compile_c(WORK, name="works"), tmp_path)
    with open(tmp_path / "works", "rb") as file:
        (tmp_path / "cut").write_bytes(file.read()[:1000])
    (tmp_path / "cut").chmod(0o755)
    for text in ("uprobe:%s/*:work", "uprobe:%s/*:wor*", "uprobe:%s/*:cpp:work", "uretprobe:%s/*:work", "usdt:%s/*:shop:cart"):
        told = []
        if text.startswith("usdt"):
            with pytest.raises(SourceError, match="No matches"):
                sources.expand(text % tmp_path, Target(tell=told.append))
        else:
            (point,) = sources.expand(text % tmp_path, Target(tell=told.append))
            assert point.binary.shown == str(tmp_path / "works")
        assert len(told) == 1 and re.search("/cut at .* lies outside the file", told[0]), (text, told)


@pytest.mark.root
def test_a_script_is_listed_from_its_own_files(monkeypatch, capfdbinary):
    """Not from those of all programs, which takes seconds."""
    asked, resolve, program = set(), paths.resolve, compile_c(WORK, name="works")
    monkeypatch.setattr(paths, "resolve", lambda name, *rest: asked.add(name) or resolve(name, *rest))
    text = "uretprobe:%s:wor* { } uprobe:%s:cpp:work { }" % (program, program)
    assert listing.list_script("stdin", text, [], None, False) == 0
    assert capfdbinary.readouterr().out.decode() == "uretprobe:%s:work\nuprobe:%s:work\n" % (program, program)
    assert asked == {str(program)}


def test_what_is_no_program(tmp_path, monkeypatch):
    """What a path leads to is said; nothing is waited for."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("dir")
    os.mkfifo("fifo")
    os.symlink("nowhere", "dangling")
    os.symlink("loop", "loop")
    header = b"\x7fELF\2\1\1" + bytes(9)
    for name, content in (("empty", b""), ("four", header[:4]), ("text", b"words\n"), ("script", b"#!/bin/sh\n"),
                          ("object", header + b"\1\0"), ("core", header + b"\4\0"), ("other", header + b"\x77\0"),
                          ("data", header + b"\2\0")):
        with open(name, "wb") as file:
            file.write(content)
        os.chmod(name, 0o755 if name != "data" else 0o644)
    for name, says in (("dir", "is a directory, no program or library"), ("fifo", "is a FIFO, no program or library"),
                       ("/dev/null", "is a device, no program or library"),
                       ("dangling", "is a symbolic link to what does not exist"),
                       ("loop", "cannot be read: Too many levels of symbolic links"), ("empty", "is empty"),
                       ("four", "is no ELF file: it ends in the header"), ("text", "is no ELF file"),
                       ("script", "is a script, no ELF file: probes go on the program that runs it"),
                       ("object", "is an object file, which no process runs before it is linked"),
                       ("core", "is a core dump, which no process runs"), ("other", "is an ELF file of type 119"),
                       ("data", "is not executable"), ("none", "does not exist or is not executable")):
        path = os.path.join(".", name)
        with pytest.raises(SourceError) as error:
            paths.resolve(path)
        assert error.value.reason == "target file '%s' %s" % (path, says)
    for name, says in (("dir", "not a regular file"), ("fifo", "not a regular file"), ("none", "No such file or directory"),
                       ("empty", "not a zip file")):
        with pytest.raises(SourceError, match="./%s: .*%s" % (name, says)):
            paths.resolve("./%s!/lib/x.so" % name)


@pytest.mark.root
def test_places_are_not_listed(tmp_path):
    """What a pattern that names a place is told: whether that can be probed."""
    program = compile_c("int work(int n)\n{\n    return n;\n}\nint main(void) { return work(0); }", "-g", "-O0",
                        *(["-fcf-protection=none"] if os.uname().machine == "x86_64" else []), name="works")
    source = sources.find("uprobe")
    can = "listings have the names of functions, not all places in them; this one can be probed"
    (point,) = sources.expand("uprobe:%s:work" % program)
    for text, says in (("%s@works.c:3", can), ("%s@works.c:99", "has no code of line 99 of works.c"), ("%s:work+1", can),
                       ("%%s:0x%x" % point.vaddr, can), ("%s:0x7ffffff", "Could not resolve address"), ("%s*:0x10", "Cannot use wildcards"),
                       ("%s:work+2", "middle of instruction"), ("%s:none+1", "No matches for uprobe"), ("%s:none", None), ("%s:none*", None)):
        if "+" in text and os.uname().machine != "x86_64":
            continue
        assert list(source.list(text % program, Target())) == []
        why = source.nothing(text % program, Target())
        assert says in why if says else why == "", (text, why)


def test_listing_of_what_is_no_file(tmp_path, monkeypatch, capsys):
    from rawbpf.tools import list as command

    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    for path, says in (("./fifo", "'./fifo' is a FIFO, no program or library"), ("/etc", "'/etc' is a directory, no program or library")):
        assert command.run([path]) == 1
        assert capsys.readouterr() == ("", "ERROR: %s\n" % says)


@pytest.mark.root
@pytest.mark.slow
def test_types_that_are_not_there(capsys):
    """The reasons of functions are none of a type's."""
    for pattern, why in (("struct iovecx", r"the kernel's BTF has no struct of that name \(struct iovec\b.*\)"),
                         ("struct pid_type", r"the kernel's BTF has no struct of that name \(enum pid_type\?\)"),
                         ("enum  no_such_of_all", "the kernel's BTF has no enum of that name"), ("union no_such*", "")):
        assert listing.list_pattern(pattern, None, False) == 0
        out, told = capsys.readouterr()
        assert out == "" and re.match("WARNING: no type matches %s%s\n$" % (re.escape(pattern), why and ": " + why), told), told


@pytest.mark.root
def test_unreadable(scratch):
    """As another user: a file that may be executed and not read, and what the kernel does not show."""
    program = os.path.join(scratch, "unread")
    shutil.copy(compile_c(WORK, name="works"), program)
    os.chmod(program, 0o711)
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                sources.find("uprobe").binaries(sources.find("uprobe").parse([program, "work"], Target()), Target())
            except SourceError as error:
                status = 0 if "cannot be read: Permission denied" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_what_cannot_be_listed_does_not_hide_the_rest(monkeypatch):
    from rawbpf.sources.tracepoint import Tracepoint

    def refused(self, pattern, target):
        raise SourceError("tracefs cannot be opened")

    monkeypatch.setattr(Tracepoint, "list", refused)
    seen = []
    with pytest.raises(SourceError, match="tracepoint: tracefs"):
        for each in sources.list_events("*:*"):
            seen.append(each.text)
    assert "software:page-faults:" in seen and "hardware:cpu-cycles:" in seen
    assert seen.index("software:page-faults:") > seen.index("hardware:cpu-cycles:")


def test_python_objects(tmp_path):
    assert sources.Uprobe(b"/bin/sh", "main").spec.binary == "/bin/sh"
    assert sources.Uprobe(tmp_path / "x", b"main").spec[:2] == (str(tmp_path / "x"), "main")
    for wrong in (None, 5, "x"):
        with pytest.raises(SourceError, match="is no loaded program"):
            sources.Profile("hz", 99).attach(wrong)
    with pytest.raises(SourceError, match="too large"):
        sources.Profile("s", 99999999999)
    with pytest.raises(SourceError, match="positive integer"):
        sources.Profile("s", 0)


@pytest.mark.root
@pytest.mark.slow
def test_too_many_files(rawbpf):
    """What is told is the limit that ends the attaching, not what could not be done because of it."""
    done = rawbpf("trace", "-e", "tracepoint:syscalls:sys_enter_* { @ = count(); } interval:s:9 { exit(); }",
                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
    assert done.returncode == 255 and "threading" not in done.stderr, done
    assert re.search("tracepoint:syscalls:sys_enter_.*Too many open files", done.stderr), done
