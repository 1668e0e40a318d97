"""Objects that clang made, attached by their sections to functions of the kernel."""

import os

import pytest

from rawbpf.loader import KernelError, Object, ObjectError, kernel
from tests.bpfcc import compile_bpf_text

pytestmark = pytest.mark.vm

MANY = """
#include "bpf.h"
u64 entries, exits;
%s
"""
MULTI = """
SEC("%s") int on(void *ctx) { __sync_fetch_and_add(&entries, 1); return 0; }
"""


@pytest.mark.parametrize("section, since, hits", [
    ("kprobe/__x64_sys_getpgid", (5, 10), 1), ("kretprobe/__x64_sys_getpgid", (5, 10), 1),
    ("ksyscall/getpgid", (5, 10), 1), ("kretsyscall/getpgid", (5, 10), 1),
    ("kprobe.multi/__x64_sys_getpgi*", (6, 1), 1), ("kretprobe.multi/__x64_sys_getpgid", (6, 1), 1),
    ("kprobe.session/__x64_sys_getpgid", (6, 10), 2),
    ("fentry/__x64_sys_getpgid", (5, 10), 1), ("fexit/__x64_sys_getpgid", (5, 10), 1),
    ("fentry.s/__x64_sys_getpgid", (5, 12), 1), ("fmod_ret/__x64_sys_getpgid", (5, 10), 1),
    ("tp_btf/sys_enter", (5, 10), 1), ("raw_tp/sys_enter", (5, 10), 1), ("lsm/task_getpgid", (5, 10), 1),
    ("fentry.multi/__x64_sys_getpgi*", (7, 2), 1), ("fexit.multi/__x64_sys_getpgid", (7, 2), 1),
    ("fsession.multi/__x64_sys_getpgid", (7, 2), 2), ("fsession/__x64_sys_getpgid", (7, 0), 2),
])
def test_attached_to_functions_of_the_kernel(section, since, hits):
    """getpgid(0) passes each of these places once (sessions: twice)."""
    with Object.open(compile_bpf_text(MANY % (MULTI % section))) as obj:
        if kernel.release() < since:
            with pytest.raises((KernelError, ObjectError)) as caught:
                obj.load()
                obj.attach()
            assert "Linux" in str(caught.value), str(caught.value)
            return
        obj.load()
        with obj.attach():
            before = obj.bss["entries"]
            for _ in range(10):
                os.getpgid(0)
            counted = obj.bss["entries"] - before
        exact = "sys_enter" not in section
        assert counted == 10 * hits if exact else counted >= 10 * hits, counted
        before = obj.bss["entries"]
        os.getpgid(0)
        assert obj.bss["entries"] == before
