"""An object that clang made, attached by its sections to a function of the kernel by every way there is."""

import os
import subprocess

import pytest

from rawbpf.loader import KernelError, Object, ObjectError, kernel
from rawbpf.loader.detached import mount
from tests.bpfcc import compile_bpf, compile_bpf_text

pytestmark = pytest.mark.vm


def bpf_lsm():
    """Is the BPF LSM among those that the kernel asks?"""
    root = mount("securityfs")
    try:
        with open("lsm", opener=lambda path, flags: os.open(path, flags, dir_fd=root)) as file:
            return "bpf" in file.read().split(",")
    finally:
        os.close(root)


@pytest.mark.parametrize("name, since, hits", [
    ("kprobe", (5, 10), 1), ("kretprobe", (5, 10), 1), ("ksyscall", (5, 10), 1), ("kretsyscall", (5, 10), 1),
    ("kprobe_multi", (5, 18), 1), ("kretprobe_multi", (5, 18), 1), ("kprobe_session", (6, 10), 2),
    ("fentry", (5, 10), 1), ("fexit", (5, 10), 1), ("fmod_ret", (5, 10), 1), ("tp_btf", (5, 10), None),
    ("raw_tp", (5, 10), None), ("tp", (5, 10), 1), ("lsm", (5, 10), 1), ("lsm_s", (5, 10), None),
    ("fsession", (7, 0), 2), ("fentry_multi", (7, 2), 1), ("fexit_multi", (7, 2), 1), ("fsession_multi", (7, 2), 2),
])
def test_attached_to_a_function_of_the_kernel(name, since, hits):
    """getpgid(0) passes each of these places once (sessions: twice; None: others are met there as well)."""
    me = os.getpid()        # of 0 the security hook is not asked
    with Object.open(compile_bpf("functions.c")) as obj:
        if kernel.release() < since:
            with pytest.raises((KernelError, ObjectError), match=r"needs Linux %d\.%d or later" % since):
                obj.load(only=name)
                obj.attach()        # the load of a kprobe with an attach type that it does not know passes
            return
        obj.load(only=name)
        if "multi" in name and kernel.release() < (6, 12):
            # Debian's 6.1 is built without it
            with pytest.raises(KernelError, match="CONFIG_FPROBE"):
                obj.attach()
            return
        with obj.attach() as links:
            assert len(links) == 1
            before = obj.bss["hits"]
            for _ in range(10):
                os.getpgid(me)
            subprocess.run(["/bin/true"], check=True)
            counted = obj.bss["hits"] - before
        if "lsm" in name and not bpf_lsm():
            hits = 0
        if hits is None:
            assert counted > 0
        else:
            assert counted == 10 * hits
        before = obj.bss["hits"]
        os.getpgid(me)
        assert obj.bss["hits"] == before


def test_a_function_of_a_program_is_replaced():
    text = '#include "bpf.h"\nSEC("freplace/global_sum") int replaced(int a, int b) { return a * 100; }\n'
    with Object.open(compile_bpf("features.c")) as one, Object.open(compile_bpf_text(text)) as two:
        one.rodata["targ_uid"] = 1000
        one.load(only="calls")
        program = one.programs["calls"].program
        with pytest.raises(ObjectError, match="set its attach_prog"):
            two.load()
        two.programs["replaced"].attach_prog = program
        two.load()
        # global_sum(targ_uid, 1) + twice(3)
        assert program.test_run(bytes(14)).retval == 2 * 1000 + 2 + 6
        with two.attach():
            assert program.test_run(bytes(14)).retval == 100 * 1000 + 6
        assert program.test_run(bytes(14)).retval == 2 * 1000 + 2 + 6


@pytest.mark.slow
def test_functions_of_a_program_are_traced():
    text = """#include "bpf.h"
u64 arguments, results;
SEC("fentry/global_sum") int enter(u64 *ctx) { arguments = (u32)ctx[0] * 1000 + (u32)ctx[1]; return 0; }
SEC("fexit/global_sum") int leave(u64 *ctx) { results += (u32)ctx[2]; return 0; }
"""
    with Object.open(compile_bpf("features.c")) as one, Object.open(compile_bpf_text(text)) as two:
        one.rodata["targ_uid"] = 500
        one.load(only="calls")
        program = one.programs["calls"].program
        for each in two.programs.values():
            each.attach_prog = program
        two.load()
        with two.attach():
            assert program.test_run(bytes(14)).retval == 2 * 500 + 2 + 6
        assert program.test_run(bytes(14)).retval == 2 * 500 + 2 + 6
        assert (two.bss["arguments"], two.bss["results"]) == (500 * 1000 + 1, 2 * 500 + 2)
