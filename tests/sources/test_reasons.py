"""Why a file has no events, and what is wrong with what a Python program asks for: the reason itself, not its consequence."""

import lzma
import os
import re
import resource
import shutil
import subprocess

import pytest

from rawbpf import sources
from rawbpf.sources import SourceError, Target
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
    done = rawbpf("trace", "-e", "uprobe:%s/[cpw]*:wor* { } begin { exit(); }" % tmp_path)
    assert done.returncode == 0 and len(re.findall("WARNING", done.stderr)) == 2, done.stderr


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
