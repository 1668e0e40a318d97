"""What the kernel has, against the versions that introduced it."""

import gc
import os

import pytest

from rawbpf.asm.helpers import NUMBER
from rawbpf.loader import KernelError, Program, features, introduced, kernel
from rawbpf.loader.uapi import ATTACH_TYPES, COMMANDS, LINK_TYPES, MAP_TYPES, PROG_TYPES
from tests.loader.code import RETURN_0, call


def test_tables_name_what_exists():
    for kind, names in (("map", MAP_TYPES), ("program", PROG_TYPES), ("command", COMMANDS), ("attach", ATTACH_TYPES),
                        ("link", dict(LINK_TYPES, kprobe_session=0, uprobe_session=0))):
        assert set(introduced.table(kind)) <= set(names)
        if kind == "attach":
            assert set(introduced.table(kind)) == set(names)
        # the kernel appends to its lists, so versions rise with the numbers (with the exceptions of
        # types that were numbered in another tree before)
        versions = [introduced.version(kind, name) for name in names
                    if kind in ("map", "program") and introduced.version(kind, name)]
        late = [pair for pair, following in zip(versions, versions[1:]) if pair > following]
        assert len(late) <= 2, late


@pytest.mark.parametrize("name, version", [
    ("bpf_map_lookup_elem", (3, 19)), ("bpf_probe_read", (4, 1)), ("bpf_get_current_comm", (4, 2)),
    ("bpf_get_stackid", (4, 6)), ("bpf_probe_read_str", (4, 11)), ("bpf_get_stack", (4, 18)),
    ("bpf_probe_read_user_str", (5, 5)), ("bpf_ringbuf_output", (5, 8)), ("bpf_copy_from_user", (5, 10)),
    ("bpf_for_each_map_elem", (5, 13)), ("bpf_get_attach_cookie", (5, 15)), ("bpf_loop", (5, 17)),
    ("bpf_strncmp", (5, 17)), ("bpf_ktime_get_tai_ns", (6, 1)), ("bpf_cgrp_storage_delete", (6, 2))])
def test_helper_versions(name, version):
    assert introduced.version("helper", name) == version
    assert introduced.version("helper", NUMBER[name]) == version


def test_sentence(monkeypatch):
    monkeypatch.setattr(kernel, "release", lambda: (5, 4, 0))
    assert introduced.needs("map", "ringbuf") == \
        "the map type ringbuf needs Linux 5.8 or later, this is 5.4"
    assert introduced.needs("map", "hash") == ""
    assert introduced.needs("map", "no such") == ""


@pytest.mark.kernel
def test_helpers_by_version():
    """A socket filter may call every helper of its kind that its kernel is new enough for, and none
    that is newer."""
    running = kernel.release()[:2]
    for name in ("bpf_ktime_get_ns", "bpf_ktime_get_boot_ns", "bpf_ringbuf_output", "bpf_per_cpu_ptr",
                 "bpf_for_each_map_elem", "bpf_timer_init", "bpf_loop", "bpf_strncmp", "bpf_kptr_xchg",
                 "bpf_dynptr_data", "bpf_ktime_get_tai_ns", "bpf_user_ringbuf_drain"):
        # bpf_get_current_pid_tgid and others came to socket filters later than they came to be
        assert features.has_helper(name, "socket_filter") == (
            running >= introduced.version("helper", name)), name
    assert features.has_helper("bpf_get_stackid", "kprobe")
    assert not features.has_helper("bpf_get_stackid", "socket_filter")
    assert not features.has_helper("bpf_override_return", "socket_filter")


@pytest.mark.kernel
def test_newest_helper_that_is_missing_is_named():
    last = max(NUMBER.values())
    if kernel.release()[:2] >= introduced.version("helper", last):
        return
    with pytest.raises(KernelError, match=r"that helper needs Linux 6\.2 or later"):
        Program.load("socket_filter", call(last) + RETURN_0)


@pytest.mark.kernel
def test_map_and_program_types_by_version():
    """All that the versions promise are there but for what Debian's cloud kernels are built without."""
    running, before = kernel.release()[:2], _descriptors()
    for name, first in introduced.table("map").items():
        if running < first:
            assert not features.has_map(name), name
        elif name not in ("insn_array", "rhash"):      # too new to be sure of
            assert features.has_map(name), name
    optional = {"lirc_mode2", "lsm", "netfilter", "struct_ops", "ext", "tracing"}
    for name, first in introduced.table("program").items():
        if running < first:
            assert not features.has_program(name), name
        elif name not in optional:
            assert features.has_program(name), name
    assert _descriptors() == before


def _descriptors():
    gc.collect()
    return sorted(os.listdir("/proc/self/fd"))


@pytest.mark.kernel
def test_instructions_by_version():
    running = kernel.release()[:2]
    for name, first in (("jmp_lt", (4, 14)), ("jmp32", (5, 1)), ("atomic_fetch", (5, 12)),
                        ("may_goto", (6, 9)), ("load_acquire", (6, 15))):
        assert features.has_instruction(name) == (running >= first), name
    assert features.has_large_programs() and features.has_loops()
    assert features.cpu_level() == ("v4" if features.has_instruction("sign_extend") else "v3")
    assert features.has_instruction("gotol") >= features.has_instruction("sign_extend")


@pytest.mark.kernel(since="6.3")
def test_kfuncs():
    assert features.has_kfunc("bpf_rcu_read_lock", "syscall")
    assert not features.has_kfunc("bpf_no_such_kfunc", "syscall")
    assert not features.has_kfunc("bpf_task_acquire", "socket_filter")


@pytest.mark.kernel
def test_unknown_names():
    with pytest.raises(ValueError, match="did you mean ringbuf"):
        features.has_map("ringbuff")
    for name in ("nope", "unspecc"):            # nothing near, and no name of anything
        with pytest.raises(ValueError, match="no BPF map type is called '%s'$" % name):
            features.has_map(name)
    with pytest.raises(ValueError, match="did you mean tracepoint"):
        features.has_program("tracepoints")
    with pytest.raises(ValueError, match="no probe for links"):
        features.has_link("nonsense")


# what a kernel may be built without, and Debian's are: the BPF LSM (asked of lsm programs), netkit, FPROBE in 6.1
_OPTIONAL_LINKS = {"netkit", "kprobe_multi", "kprobe_session", "tracing_multi"}
_OPTIONAL_ATTACHES = {"netkit_primary", "netkit_peer", "trace_kprobe_multi", "trace_kprobe_session", "trace_fentry",
                      "trace_fexit", "modify_return", "lsm_mac", "lsm_cgroup", "trace_fsession", "lirc_mode2",
                      "trace_fentry_multi", "trace_fexit_multi", "trace_fsession_multi"}


@pytest.mark.slow
@pytest.mark.kernel
def test_links_and_attach_types_by_version():
    running, before = kernel.release()[:2], _descriptors()
    for kind, optional in (("link", _OPTIONAL_LINKS), ("attach", _OPTIONAL_ATTACHES)):
        for name, first in introduced.table(kind).items():
            found = features.feature(kind, name)
            assert found.since == first
            if running < first:
                assert not found.there, (kind, name)
                assert found.needs.endswith("needs Linux %d.%d or later, this is %d.%d" % (first + running)), found
            elif name not in optional:
                assert found.there and not found.needs, (kind, name)
    assert _descriptors() == before
    with pytest.raises(ValueError, match="no BPF attach type is called"):
        features.has_attach("tcx_ingres")


@pytest.mark.vm
def test_fentry_is_known_where_the_kernel_traces_functions():
    assert features.has_attach("trace_fentry") and features.has_attach("modify_return")
    assert features.has_link("kprobe_multi") == (kernel.release() >= (6, 12))       # Debian's 6.1 has no FPROBE


@pytest.mark.slow
@pytest.mark.kernel(since="6.12")
def test_kernel_functions_by_version():
    """BTF tags all of them; those of the table are there from their version on."""
    names = set(features.kfunc_names())
    assert {"bpf_rcu_read_lock", "bpf_iter_num_new", "bpf_task_from_pid", "bpf_arena_alloc_pages"} <= names
    built_without = {"bpf_verify_pkcs7_signature", "bpf_get_fsverity_digest"}
    for name, first in introduced.table("kfunc").items():
        if name not in built_without:
            # some have lost the ending since (7.x)
            there = name in names or name.endswith("_impl") and name[:-5] in names and kernel.release() >= (7, 0)
            assert there == (kernel.release()[:2] >= first), name
    assert features.feature("kfunc", "bpf_rcu_read_lock", "syscall").there


@pytest.mark.kernel
def test_limits():
    found = features.limits()
    assert found["instructions"] == 1000000 and found["stack"] == 512 and found["tail_calls"] == 33
    with open("/proc/sys/kernel/perf_event_max_stack") as file:
        assert found["stack_frames"] == int(file.read())
    assert (found["memlock"] is None) or kernel.release() < (5, 11)
