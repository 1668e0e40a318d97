"""The command line: subcommands, options, help, and what a wrong one says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rawbpf.tools import cli, options
from rawbpf.tools.options import Option, UsageError

TOP = Path(__file__).resolve().parent.parent.parent

TABLE = (
    Option("all", "a", "all", "", "everything"),
    Option("alone", "", "alone", "", "just one"),
    Option("name", "n", "name", "NAME", "a name"),
    Option("dirs", "I", "", "DIR", "folders", True),
)


def test_short_options_cluster_and_take_values_attached_or_apart():
    parsed = options.parse(TABLE, ["-anbob", "-I", "x", "-Iy"])
    assert parsed.values == {"all": True, "name": "bob", "dirs": ["x", "y"]}


def test_long_options_shorten_and_take_values_both_ways():
    assert options.parse(TABLE, ["--na=bob", "--all"]).values == {"name": "bob", "all": True}
    assert options.parse(TABLE, ["--name", "bob"]).values == {"name": "bob"}
    assert options.parse(TABLE, ["--name="]).values == {"name": ""}


def test_options_may_follow_operands_and_end_at_two_dashes():
    parsed = options.parse(TABLE, ["x", "-a", "-", "--", "-n", "--y=1"])
    assert parsed.operands == ["x", "-"]
    assert parsed.values == {"all": True}
    assert parsed.rest == ["-n", "--y=1"]


@pytest.mark.parametrize("argv, said", [
    (["-x"], "unknown option '-x'"),
    (["--nmae=1"], "unknown option '--nmae'; did you mean '--name'?"),
    (["--al"], "option '--al' is ambiguous: --all, --alone"),
    (["-n"], "option '-n' needs a value: NAME"),
    (["--name"], "option '--name' needs a value: NAME"),
    (["--all=1"], "option '--all' takes no value"),
])
def test_wrong_options(argv, said):
    with pytest.raises(UsageError) as caught:
        options.parse(TABLE, argv)
    assert str(caught.value) == said


def test_version_is_the_packages():
    text = (TOP / "pyproject.toml").read_text()
    assert cli.VERSION == re.search(r'^version = "(.*)"', text, re.M).group(1)


def test_help_and_version(rawbpf):
    done = rawbpf("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, "rawbpf %s\n" % cli.VERSION, "")
    done = rawbpf("--help")
    assert done.returncode == 0 and "trace" in done.stdout and "list" in done.stdout
    done = rawbpf("trace", "--help")
    assert done.returncode == 0 and "-e PROGRAM" in done.stdout
    done = rawbpf()
    assert done.returncode == 1 and done.stdout == "" and "usage" in done.stderr


def test_help_of_a_command(rawbpf):
    for name in ("trace", "asm", "prog"):
        done = rawbpf("help", name)
        assert (done.returncode, done.stdout, done.stderr) == (0, rawbpf(name, "--help").stdout, "")


def test_the_help_of_list_offers_what_goes_with_a_listing(rawbpf):
    done = rawbpf("list", "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: rawbpf list [-v]")
    offered = re.findall(r"^  (-\w)", done.stdout, re.M)
    assert offered == ["-e", "-v", "-p", "-f", "-h"]


@pytest.mark.root
def test_load_says_what_it_did_not_attach(rawbpf, tmp_path):
    (tmp_path / "pass.s").write_text(".section xdp\npass:\n    r0 = 2\n    exit\n")
    assert rawbpf("asm", "-f", "elf", "-o", tmp_path / "pass.o", tmp_path / "pass.s").returncode == 0
    done = rawbpf("load", "--attach", tmp_path / "pass.o")
    assert (done.returncode, done.stderr) == (1, "ERROR: nothing was attached\n")
    assert done.stdout == ("loaded    pass  (xdp, section xdp)\n"
                           "          not attached: its section does not say to what; in Python, attach_to() does\n")
    done = rawbpf("load", "--attach", "--json", tmp_path / "pass.o")
    assert (done.returncode, done.stderr, json.loads(done.stdout)["programs"][0]["attached"]) == (
        1, "ERROR: nothing was attached\n", False)


@pytest.mark.root
def test_a_btf_that_cannot_be_read_is_one_error(rawbpf, tmp_path):
    (tmp_path / "pass.s").write_text(".section xdp\npass:\n    r0 = 2\n    exit\n")
    (tmp_path / "junk").write_text("junk")
    for path, why in (("nofile", "No such file or directory"), ("junk", "too short for its header")):
        done = rawbpf("load", "--btf", path, "pass.s", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert done.stderr.startswith("ERROR: " + path) and why in done.stderr


@pytest.mark.parametrize("argv, said", [
    (["trcae"], "ERROR: unknown command 'trcae': did you mean 'trace'?\n"),
    (["-e", "BEGIN {}"], "ERROR: unknown option '-e': did you mean 'rawbpf trace -e'?\n"),
    (["--verbose"], "ERROR: unknown option '--verbose': the commands are %s\n" % ", ".join(cli.COMMANDS)),
    (["trace"], "ERROR: a script is needed: a file, - or -e PROGRAM\n"),
    (["trace", "-e", ""], "ERROR: a script is needed: a file, - or -e PROGRAM\n"),
    (["trace", "-e"], "ERROR: option '-e' needs a value: PROGRAM\n"),
    (["trace", "-f", "xml", "-e", "BEGIN {}"], "ERROR: Invalid output format \"xml\"\n"),
    (["trace", "-B", "some", "-e", "BEGIN {}"], "ERROR: -B takes line, full or none, not 'some'\n"),
    (["trace", "-d", "soup", "-e", "BEGIN {}"],
     "ERROR: -d knows the stages ast, types, ir, asm, verifier and all, not 'soup'\n"),
    (["trace", "-c", "true", "-p", "1", "-e", "BEGIN {}"], "ERROR: -c and -p exclude each other\n"),
    (["trace", "-p", "one", "-e", "BEGIN {}"], "ERROR: Failed to parse pid: invalid integer: one\n"),
    (["trace", "-p", "1one", "-e", "BEGIN {}"], "ERROR: Failed to parse pid: invalid trailing bytes: 1one\n"),
    (["trace", "-p", "4194304", "-e", "BEGIN {}"], "ERROR: there is no process 4194304\n"),
    (["trace", "-p", "4194305", "-e", "BEGIN {}"], "ERROR: Pid out of range: 4194305\n"),
    (["trace", "/nonexistent.bt"], "ERROR: failed to open file '/nonexistent.bt': No such file or directory\n"),
    (["trace", "-c", "/nonexistent/prog", "-e", "BEGIN {}"],
     "ERROR: cannot run '/nonexistent/prog': no such file\n"),
    (["trace", "-c", "no-such-command-here", "-e", "BEGIN {}"],
     "ERROR: cannot run 'no-such-command-here': not found in PATH\n"),
    (["trace", "-c", "/etc/passwd", "-e", "BEGIN {}"], "ERROR: cannot run '/etc/passwd': it is not executable\n"),
    (["trace", "-c", "'unfinished", "-e", "BEGIN {}"],
     "ERROR: cannot run ''unfinished': not found in PATH\n"),
    (["trace", "-c", "", "-e", "BEGIN {}"], "ERROR: the command is empty\n"),
    (["trace", "-l", "-q"], "ERROR: -l does not go with '--quiet'\n"),
    (["trace", "-l", "a:*", "b:*"], "ERROR: -l takes one pattern, got a:* b:*\n"),
])
def test_wrong_command_lines(rawbpf, argv, said):
    done = rawbpf(*argv)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_heavy_modules_stay_out_of_the_way_of_the_version():
    code = ("import sys; from rawbpf.tools.cli import main; main(['--version']); "
            "print(sorted(m for m in sys.modules if m.startswith('rawbpf')))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "['rawbpf', 'rawbpf.tools', 'rawbpf.tools.cli']"


def test_list_is_trace_l(rawbpf, compile_c, scratch):
    program = compile_c((TOP / "tests/fixtures/fun.c").read_text(), "-O1", name="fun")
    os.symlink(program, os.path.join(scratch, "fun"))
    lines = rawbpf("list", "uprobe:./fun:*", cwd=scratch).stdout.splitlines()
    assert lines == rawbpf("trace", "-l", "uprobe:./fun:*", cwd=scratch).stdout.splitlines()
    assert lines == sorted(lines)
    assert {"uprobe:./fun:" + name for name in ("bar", "foo", "fun", "main")} <= set(lines)


def test_list_usdt(rawbpf, compile_c, scratch):
    header = (TOP / "tests/fixtures/sdt.h").read_text()
    source = (TOP / "tests/fixtures/usdt_hello.c").read_text().replace('#include "sdt.h"', header)
    os.symlink(compile_c(source, name="usdt_hello"), os.path.join(scratch, "usdt_hello"))
    done = rawbpf("trace", "-l", "usdt:./usdt_hello:*", cwd=scratch)
    assert (done.stdout, done.stderr) == ("usdt:./usdt_hello:yeet-Im-a-USDT-probe:USDT-test-probe\n", "")


@pytest.mark.root
def test_list_with_arguments(rawbpf):
    done = rawbpf("trace", "-lv", "tracepoint:syscalls:sys_enter_read")
    assert done.stdout == ("tracepoint:syscalls:sys_enter_read\n    int __syscall_nr\n    unsigned int fd\n"
                           "    char * buf\n    size_t count\n")


@pytest.mark.root
def test_a_listing_into_a_closed_pipe_ends_quietly(rawbpf):
    process = rawbpf.start("trace", "-l", "tracepoint:*")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(10) == 0
    assert process.stderr.read() == ""


@pytest.mark.root
def test_list_of_a_script_and_of_a_program(rawbpf, compile_c, tmp_path):
    program = compile_c((TOP / "tests/fixtures/fun.c").read_text(), "-O1", name="fun")
    (tmp_path / "fun").symlink_to(program)
    script = "tracepoint:syscalls:sys_enter_read, uprobe:./fun:f* { } BEGIN { }"
    done = rawbpf("trace", "-lv", "-e", script, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert lines[:5] == ["tracepoint:syscalls:sys_enter_read", "    int __syscall_nr", "    unsigned int fd",
                         "    char * buf", "    size_t count"]
    assert {"uprobe:./fun:foo", "uprobe:./fun:fun"} <= set(lines) and "uprobe:./fun:bar" not in lines
    (tmp_path / "script.bt").write_text(script)
    assert rawbpf("trace", "-lv", "script.bt", cwd=tmp_path).stdout == done.stdout
    assert "uprobe:./fun:bar\n" in rawbpf("trace", "-l", "./fun", cwd=tmp_path).stdout
    wrong = rawbpf("trace", "-l", "-e", "uprobe:./fun:nothing { }", cwd=tmp_path)
    assert wrong.returncode == 1 and wrong.stderr.startswith("stdin:1:1-21: ERROR: ")


@pytest.mark.root
def test_a_program_is_no_script(rawbpf, compile_c):
    program = compile_c((TOP / "tests/fixtures/fun.c").read_text(), "-O1", name="fun")
    done = rawbpf("trace", program)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "ERROR: '%s' is no script: it holds binary data\n" % program


def test_separate_debug_information_in_a_folder_of_ones_choice(rawbpf, compile_c, tmp_path):
    (tmp_path / "info").mkdir()
    program = compile_c("int add(int left, long right) { return left + right; }\nint main(void) { return add(1, 2); }\n", "-g",
                        name="adder")
    subprocess.run(["objcopy", "--only-keep-debug", program, tmp_path / "info/bare.debug"], check=True)
    subprocess.run(["objcopy", "--strip-debug", program, tmp_path / "bare"], check=True)
    listed = "uprobe:%s:add" % (tmp_path / "bare")
    assert rawbpf("trace", "-lv", listed).stdout == listed + "\n"
    for folder in ("info", tmp_path / "info", "nowhere:info"):      # relative ones: from the program's folder on
        done = rawbpf("trace", "-lv", listed, "--debuginfo", folder)
        assert done.stdout == listed + "\n    int left\n    long int right\n"


@pytest.mark.slow
@pytest.mark.vm
def test_a_list_of_traceable_functions(rawbpf, tmp_path):
    script = "begin { exit(); } kprobe:vfs_read { }"
    done = rawbpf("trace", "--traceable-functions", "/dev/null", "-e", script)
    assert done.stderr.startswith("stdin:1:19-34: ERROR: No matches for kprobe vfs_read.\n")
    done = rawbpf("trace", "--unsafe", "--traceable-functions", "/dev/null", "-e", script)
    assert ("WARNING: vfs_read is not traceable (either non-existing, inlined, or marked as \"notrace\"); attaching to it will "
            "likely fail\n") in done.stderr and done.stderr.endswith("Attached 2 probes\n")
    (tmp_path / "list").write_text("vfs_read\n")
    assert rawbpf("trace", "--traceable-functions", tmp_path / "list", "-e", script).stderr == "Attached 2 probes\n"
