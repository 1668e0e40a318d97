"""rawbpf cgroup, on a cgroup2 file system of this process alone."""

import contextlib
import json
import os
import subprocess

import pytest

from rawbpf.loader import Program, kernel
from rawbpf.loader.detached import mount
from tests.loader import code
from tests.tools.inspecting import run, run_json

pytestmark = pytest.mark.root


@pytest.fixture
def group():
    fd = mount("cgroup2")
    path = "/proc/%d/fd/%d/t_inspect_%d" % (os.getpid(), fd, os.getpid())
    os.mkdir(path)
    yield path
    for folder, _, _ in os.walk(path, topdown=False):       # what is attached there goes with it
        os.rmdir(folder)
    os.close(fd)


@contextlib.contextmanager
def attached(path, kind="cgroup_inet_egress", word="egress", flags="multi"):
    program_type = {"cgroup_inet_egress": "cgroup_skb", "cgroup_device": "cgroup_device", "cgroup_inet_sock_release": "cgroup_sock"}
    with Program.load(program_type.get(kind, "cgroup_sock_addr"), code.mov(0, 1) + code.EXIT, name="t_cgroup",
                      expected_attach_type=kind) as program:
        number = program.info().id
        assert run("cgroup", "attach", path, word, "id", number, *filter(None, [flags])) == (0, "", "")
        yield number
        assert run("cgroup", "detach", path, kind, "id", number) == (0, "", "")


def test_attach_show_detach(group):
    with attached(group) as number:
        record = {"id": number, "attach_type": "cgroup_inet_egress", "attach_flags": "multi", "name": "t_cgroup",
                  "attach_btf_name": "", "attach_btf_obj_id": 0, "attach_btf_id": 0}
        assert run_json("cgroup", "show", group) == [record]
        assert run_json("cgroup", "tree", group) == [{"cgroup": group, "programs": [record]}]
        assert run("cgroup", "show", group)[1] == (
            "ID       AttachType      AttachFlags     Name           \n"
            "%-8d cgroup_inet_egress multi           t_cgroup                       \n" % number)
    assert run_json("cgroup", "show", group) == []


@pytest.mark.peer
def test_as_bpftool(group):
    from tests.peers import command
    tool = command("bpftool")
    with attached(group):
        below = group + "/below"
        os.mkdir(below)
        with attached(below, "cgroup_inet4_connect", "connect4", "override"), attached(below, "cgroup_device", "dev", ""), \
                attached(below, "cgroup_udp6_sendmsg", "sendmsg6", "multi"), attached(below, "cgroup_inet_sock_release", "sock_r", ""):
            # before 6.0 bpftool asks for flags of each program, which those kernels have not, and shows nothing
            for words in (["show", group, "effective"],) if kernel.release() < (6, 0) else (["show", group], ["show", group, "effective"], ["tree", group], ["tree", group, "effective"],
                          ["show", below], ["show", below, "effective"], ["tree", below + "/"]):
                for form in ([], ["-j"]):
                    theirs = subprocess.run([*tool, "cgroup", *words, *form], text=True, capture_output=True)
                    mine = run("cgroup", *words, *form)[1]
                    assert (json.loads(mine) == json.loads(theirs.stdout)) if form else mine == theirs.stdout, "\n".join(
                        (mine, theirs.stdout, theirs.stderr))
        os.rmdir(below)


@pytest.mark.parametrize("words, said", [
    (["show"], "cgroup is missing"), (["show", "/nonexistent"], "/nonexistent: No such file or directory"),
    (["attach", "/", "egrss", "id", "1"], "invalid attach type 'egrss'"),
])
def test_errors(words, said):
    status, out, error = run("cgroup", *words)
    assert (status, out) == (255, "") and error.startswith("Error: " + said) and error.count("\n") == 1
