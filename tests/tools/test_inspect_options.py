"""bpftool's options, before and after the object: -V, -d, -m, those that are refused; devices of `prog load`; tokens."""

import errno
import json
import os
import re
import struct
import subprocess

import pytest

from rawbpf.elf.btf import Btf
from rawbpf.loader import KernelError, Map, Program, kernel
from rawbpf.loader.netlink import Socket
from rawbpf.tools.inspect import token
from tests.bpfcc import compile_bpf_text
from tests.loader import code
from tests.loader.interfaces import pair
from tests.loader.test_links import in_netns
from tests.peers import command
from tests.tools.inspecting import run

XDP = ".section xdp\n.global one\none:\n  r0 = 1\n  exit\n"


@pytest.fixture
def xdp_object(tmp_path):
    (tmp_path / "x.s").write_text(XDP)
    assert run("asm", "-f", "elf", "-o", tmp_path / "x.o", tmp_path / "x.s")[0] == 0
    return tmp_path / "x.o"


def test_version():
    text, as_json = run("version")[1], run("version", "-j")[1]
    assert text.startswith("rawbpf ") and json.loads(as_json)["version"] == text.split()[1]
    for words in (["-V"], ["prog", "-V"], ["-V", "prog", "show"], ["map", "--version"]):
        assert run(*words) == (0, text, "")
    for words in (["-jV"], ["-V", "-j"], ["-j", "-V"], ["-j", "prog", "-V"]):
        assert run(*words) == (0, as_json, "")


@pytest.mark.parametrize("words, why", [
    (["-l"], "-l, because bpftool has it no longer"), (["--legacy"], "-l, because bpftool has it no longer"),
    (["-L"], "-L, because programs are loaded by this process"), (["--use-loader"], "-L, because programs are loaded by this"),
    (["-S"], "-S, because programs are not signed"), (["-k", "key.pem"], "-k, because"), (["-i", "x509"], "-i, because"),
])
def test_what_is_refused_says_why(words, why):
    status, out, error = run("prog", "load", "x.o", "/x", *words)
    assert (status, out) == (255, "") and error.startswith("Error: not supported: " + why) and error.count("\n") == 1


@pytest.mark.root
def test_options_stand_before_or_behind():
    with Map.create("array", 4, 4, 1, name="t_place") as item:
        number = item.info().id
        wanted = run("map", "show", "id", number, "-j")
        assert wanted[0] == 0 and json.loads(wanted[1])["id"] == number
        for words in (["-j", "map", "show", "id", number], ["-jn", "map", "show", "id", number],
                      ["-d", "-m", "-j", "map", "show", "id", number], ["map", "-j", "show", "id", number],
                      ["--json", "-B", "/sys/kernel/btf/vmlinux", "map", "show", "id", number]):
            assert run(*words) == wanted, words
        assert run("m", "s", "i", number, "-j") == run("-j", "ma", "show", "id", number) == wanted     # words cut short
        assert run("l")[0] == run("t")[0] == 1      # load, list, trace are commands of our own
        assert run("-p", "map", "show", "id", number)[1] == json.dumps(json.loads(wanted[1]), indent=4) + "\n"


@pytest.mark.root
def test_debug_shows_the_verifiers_log(bpffs, xdp_object):
    assert run("prog", "load", xdp_object, bpffs + "/quiet") == (0, "", "")
    status, out, error = run("-d", "prog", "load", xdp_object, bpffs + "/loud")
    assert (status, out) == (0, "") and error.startswith("-- program one:\n")
    assert "r0 = 1" in error and "processed 2 insns" in error
    for name in ("quiet", "loud"):
        os.unlink("%s/%s" % (bpffs, name))


UNKNOWN = """
#include "bpf.h"
struct { int (*type)[2]; int (*max_entries)[1]; int *key; long *value; int (*newest)[3]; } table
    __attribute__((section(".maps"), used));
__attribute__((section("socket"), used)) int one(void *ctx) { return 0; }
"""


@pytest.mark.root
@pytest.mark.peer
def test_members_of_maps_that_are_not_known(bpffs):
    path = compile_bpf_text(UNKNOWN, name="unknown.bpf.o")
    said = run("prog", "load", path, bpffs + "/one")
    assert said[0] == 255 and "map table: member newest is not known" in said[2]
    assert run("-m", "prog", "load", path, bpffs + "/one") == (0, "", "")
    for flags, status in (([], 255), (["-m"], 0)):
        assert subprocess.run(command("bpftool", *flags, "prog", "load", path, bpffs + "/two"),
                              stderr=subprocess.PIPE).returncode == status
    for name in ("one", "two"):
        os.unlink("%s/%s" % (bpffs, name))


@pytest.mark.kernel
def test_programs_of_an_interface(bpffs, xdp_object):
    """xdpmeta_dev needs 6.3; no driver here runs programs itself."""
    def body():
        index = pair("veth", "px0", "px1")[0]
        path = bpffs + "/bound"
        status, out, error = run("prog", "load", xdp_object, path, "xdpmeta_dev", "px0")
        if status == 0:
            assert json.loads(run("-j", "prog", "show", "pinned", path)[1])["type"] == "xdp"
            # it is for that interface alone: the kernel says so
            refused = run("net", "attach", "xdp", "pinned", path, "dev", "px1")
            assert refused[0] == 255 and "Invalid argument" in refused[2]
            assert run("net", "attach", "xdp", "pinned", path, "dev", "px0") == (0, "", "")
            assert run("net", "detach", "xdp", "dev", "px0") == (0, "", "")
            os.unlink(path)
        else:
            assert tuple(map(int, os.uname().release.split(".")[:2])) < (6, 3), error
        for word in ("offload_dev", "dev"):
            assert run("prog", "load", xdp_object, path, word, "px0")[0] == 255
        assert run("prog", "load", xdp_object, path, "offload_dev", "none0")[2] == "Error: invalid devname none0\n"
        assert run("prog", "load", xdp_object, path, "xdpmeta_dev", "px0", "offload_dev", "px0")[2] == (
            "Error: an interface is already specified\n")
        with Socket() as netlink:
            list(netlink.ask("del link", 17, 0x5, struct.pack("=BxHiII", 0, 0, index, 0, 0)))       # RTM_DELLINK
    in_netns(body)


@pytest.mark.root
def test_a_program_whose_interface_has_gone(monkeypatch):
    with Program.load("socket_filter", code.RETURN_0, name="t_orphan") as program:
        info = program.info()

        def gone(self):
            raise KernelError("info of program", errno.ENODEV)
        monkeypatch.setattr(Program, "info", gone)
        fields = [one for one in json.loads(run("-j", "prog", "show")[1]) if one["id"] == info.id][0]
        assert (fields["orphaned"], fields["type"], fields["tag"]) == (True, "socket_filter", info.tag)
        text = run("prog", "show", "id", info.id)[1]
        assert text.startswith("%d: socket_filter  tag %s\n\txlated 0B  not jited  memlock " % (info.id, info.tag))
        assert text.rstrip("\n").endswith("  orphaned")


MOUNTS = """\
proc /proc proc rw,nosuid 0 0
bpf /sys/fs/bpf bpf rw,nosuid,relatime,mode=700 0 0
bpf /run/my\\040token bpf rw,relatime,delegate_cmds=map_create:prog_load:btf_load:link_create:obj_pin,delegate_maps=any 0 0
"""


def test_tokens(tmp_path):
    (tmp_path / "mounts").write_text(MOUNTS)
    found = list(token.records(tmp_path / "mounts"))
    assert found == [{"token_info": "/run/my token", "allowed_cmds": ["map_create", "prog_load", "btf_load", "link_create", "obj_pin"],
                      "allowed_maps": ["any"], "allowed_progs": [], "allowed_attachs": []}]
    assert token.text(found[0]) == (
        "token_info  /run/my token\n\tallowed_cmds:\n\t  map_create          prog_load           btf_load            "
        "link_create         \n\t  obj_pin             \n\tallowed_maps:\n\t  any                 \n\tallowed_progs:\n"
        "\tallowed_attachs:\n")
    assert run("token")[2] == "" and isinstance(json.loads(run("token", "-j")[1]), list)


@pytest.mark.peer
@pytest.mark.root
@pytest.mark.demand
def test_tokens_as_bpftool_has_them(tmp_path):
    """In guests that have bpftool alone. Needs 6.9 (older kernels take the options and say nothing of them)."""
    if kernel.release() < (6, 9):
        return
    place = tmp_path / "a token"
    place.mkdir()
    subprocess.run(["mount", "-t", "bpf", "-o", "delegate_cmds=prog_load:map_create:btf_load:link_create:obj_pin,delegate_progs=any",
                    "bpf", str(place)], check=True)
    try:
        for flags in ([], ["-j"]):
            theirs = subprocess.run(command("bpftool", *flags, "token", "list"), stdout=subprocess.PIPE, universal_newlines=True)
            assert str(place) in theirs.stdout and run(*flags, "token", "list")[1] == theirs.stdout
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.root
@pytest.mark.peer
def test_forms_of_a_dump_of_types(tmp_path):
    """Options in any order, a base, files of modules: as bpftool's."""
    with Program.load("socket_filter", code.RETURN_0):
        base = "/sys/kernel/btf/vmlinux"
        module = next((path for path in sorted(os.listdir("/sys/kernel/btf")) if path != "vmlinux"), None)
        one, two = (str(Btf.open().find_id(name, "struct")) for name in ("list_head", "path"))
        words = [["file", base, "root_id", one, "root_id", two, "format", "c"], ["file", base, "unsorted", "format", "c", "root_id", two],
                 ["file", base, "root_id", "7", "-j"]]
        if module:
            words += [["file", "/sys/kernel/btf/" + module], ["-B", base, "file", "/sys/kernel/btf/" + module]]
        for one in words:
            theirs = subprocess.run(command("bpftool", "btf", "dump", *one), stdout=subprocess.PIPE, universal_newlines=True)
            mine = run("btf", "dump", *one)[1]
            if "c" in one:
                # ours asks for clang where it has words for clang, and says at the beginning what structs there are
                mine, other = (sorted(line for line in text.split("\n") if line and line[0] != "#" and not re.match(
                    r"(struct|union|enum) \w+;", line)) for text in (mine, theirs.stdout))
                assert mine == other and len(mine) > 1
            else:
                assert theirs.returncode == 0 and mine == theirs.stdout, one
        for one in (["file", base, "root_id", "5", "root_id", "5"], ["file", base, "root_id", "99999999"], ["file", base, "format", "x"]):
            assert run("btf", "dump", *one)[0] == 255
            assert subprocess.run(command("bpftool", "btf", "dump", *one), stdout=subprocess.PIPE, stderr=subprocess.PIPE).returncode
        assert run("btf", "dump", "file", base, "file", base)[2].startswith("Error: not supported: several files in one dump")
