"""rawbpf struct_ops beside bpftool: what was registered is shown, dumped and taken out."""

import json
import subprocess
import time

import pytest

from rawbpf.loader import Object
from tests import bpf, leaks
from tests.bpfcc import compile_bpf
from tests.peers import command
from tests.tools.inspecting import run, run_json

pytestmark = [pytest.mark.root, pytest.mark.peer]


def bpftool(*words):
    return subprocess.run(command("bpftool", *words), stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout


def test_as_bpftool_has_it():
    before = bpf.program_ids()
    status, out, error = run("struct_ops", "register", compile_bpf("struct_ops.c"))
    assert (status, out) == (0, "") and error.startswith("Registered tcp_congestion_ops plain id ")
    number = error.split()[-1]
    try:
        for options in (("-j",), ()):
            assert run("struct_ops", *options)[1] == bpftool(*options, "struct_ops")
            assert run("struct_ops", *options, "show", "name", "plain")[1] == bpftool(*options, "struct_ops", "show", "name", "plain")
        assert run_json("struct_ops", "show", "id", number) == [
            {"id": int(number), "name": "plain", "kernel_struct_ops": "tcp_congestion_ops"}]
        ours = run_json("struct_ops", "dump", "id", number)
        theirs = json.loads(bpftool("-j", "struct_ops", "dump", "id", number))
        assert ours == theirs
        # the same text, but for where lines break
        assert run("struct_ops", "dump", "id", number)[1].split() == bpftool("struct_ops", "dump", "id", number).split()
    finally:
        status, out, error = run("struct_ops", "unregister", "id", number)
    assert (status, out, error) == (0, "", "Unregistered tcp_congestion_ops plain id %s\n" % number)
    until = time.monotonic() + 20       # the kernel frees its programs some time later
    while leaks.orphaned_programs(before) and time.monotonic() < until:
        time.sleep(0.05)


def test_errors(tmp_path):
    with Object.open(compile_bpf("struct_ops.c")):
        assert run("struct_ops", "show", "name", "nobody")[::2] == (255, "Error: no struct_ops found for nobody\n")
    assert run("struct_ops", "unregister")[2] == "Error: STRUCT_OPS_MAP is missing\n"
    assert run("struct_ops", "register", tmp_path / "none.o")[0] == 255
