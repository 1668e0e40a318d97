"""Functions, tracepoints and symbols of kernel modules: Debian's `loop` and `nbd`, loaded in the guest."""

import contextlib
import ctypes
import fcntl
import os
import subprocess

import pytest

from rawbpf import sources
from rawbpf.elf.symbolizer import KernelSymbols
from rawbpf.loader import kernel
from rawbpf.loader.maps import Map
from rawbpf.sources import SourceError, kallsyms, kernel_btf
from tests.sources.harness import argument, field, tracing

pytestmark = pytest.mark.vm

LOOP_GET_STATUS = 0x4C03  # uapi linux/loop.h
ENXIO = 6  # what it answers for a device without a file


@pytest.fixture(autouse=True, scope="module")
def loaded():
    for name in ("loop", "nbd"):
        if not os.path.isdir("/sys/module/%s/sections" % name):
            subprocess.run(["insmod", "/modules/%s.ko" % name], check=True)
    for cached in (kallsyms._text, kallsyms.traceable, kallsyms.traceable_counts, kallsyms._traced,
                   kallsyms._traced_places,
                   kernel_btf.of):
        cached.cache_clear()


def mine(values=lambda f, c, p: []):
    return lambda f, ctx, point: [f.alu(">>", f.call("bpf_get_current_pid_tgid"), 32)] + values(f, ctx, point)


def own(seen):
    return [row[1:] for row in seen.rows if row[0] == os.getpid()]


def ask(times=1):
    """ioctl of a loop device without a file, which fails with ENXIO."""
    fd = os.open("/dev/loop0", os.O_RDONLY)
    try:
        for _ in range(times):
            with contextlib.suppress(OSError):
                fcntl.ioctl(fd, LOOP_GET_STATUS, bytearray(256))
    finally:
        os.close(fd)


@pytest.mark.parametrize("text, name", [
    ("kprobe:lo_ioctl", "kprobe:lo_ioctl"), ("kprobe:loop:lo_ioctl", "kprobe:loop:lo_ioctl"),
    ("kprobe:loop:lo_ioct*", "kprobe:loop:lo_ioctl"), ("kprobe:lo_ioct*", "kprobe:lo_ioctl")])
def test_function_of_a_module(text, name):
    """lo_ioctl(bdev, mode, cmd, arg): the third argument is what ioctl(2) was given."""
    with tracing(text, mine(argument(2)), 2) as seen:
        ask(2)
    assert [point.name for point in seen.points] == [name]
    assert own(seen) == [(LOOP_GET_STATUS,)] * 2


def test_return_of_a_function_of_a_module():
    with tracing("kretprobe:loop:lo_ioctl", mine(lambda f, c, p: [f.extend(p.retval(f, c), 4, True)]), 2) as seen:
        ask()
    assert own(seen) == [(-ENXIO,)]


@pytest.mark.slow
def test_offset_in_a_function_of_a_module():
    """The kernel judges it: some offsets are instructions, the others are refused with the reason."""
    hits, reasons = [], []
    for offset in range(1, 16):
        try:
            with tracing("kprobe:lo_ioctl+%d" % offset, mine(), 1) as seen:
                ask()
            hits.append(len(own(seen)))
        except SourceError as error:
            reasons.append(error.reason)
    assert 1 in hits and reasons
    assert all("offset" in reason and "start of an instruction" in reason for reason in reasons)


@pytest.mark.slow
def test_module_that_has_no_such_function():
    with pytest.raises(SourceError) as caught:
        sources.expand("kprobe:nbd:lo_ioctl")
    assert "kprobe:loop:lo_ioctl" in caught.value.hints
    with pytest.raises(SourceError, match="No matches"):
        sources.expand("kprobe:nosuch:*")


@pytest.mark.slow
def test_wildcard_of_a_module_stays_in_it():
    points = sources.expand("kprobe:nbd:*")
    names = {point.function for point in points}
    assert "nbd_ioctl" in names and len(names) >= 10
    text = {name for name, module in kallsyms.names() if module == "nbd"}
    assert names <= text
    with tracing("kprobe:nbd:*", args=False) as seen:
        assert not seen.refused


def has_module_btf():
    return os.path.exists("/sys/kernel/btf/loop")


def test_fentry_and_fexit_of_a_module():
    if not has_module_btf():
        assert kernel.release() < (5, 11)
        with pytest.raises(SourceError, match="No matches"):
            sources.expand("fentry:loop:lo_ioctl")
        return
    with tracing("fentry:loop:lo_ioctl", mine(field("cmd")), 2) as seen:
        ask()
    assert own(seen) == [(LOOP_GET_STATUS,)]

    def both(f, ctx, point):
        return [point.retval(f, ctx)] + field("cmd")(f, ctx, point)

    with tracing("fexit:lo_ioctl", mine(both), 3) as seen:
        ask()
    assert seen.points[0].name == "fexit:loop:lo_ioctl"
    assert own(seen) == [(-ENXIO, LOOP_GET_STATUS)]


def test_tracepoints_of_a_module():
    """nbd has tracepoints; with no device connected they attach, and their fields are typed."""
    listed = {each.text: each for each in sources.list_events("tracepoint:nbd:*")}
    assert "tracepoint:nbd:nbd_send_request" in listed
    with tracing("tracepoint:nbd:*", args=False) as seen:
        assert len(seen.points) == len(listed) and not seen.refused
    (point,) = sources.expand("tracepoint:nbd:nbd_send_request")
    fields = [each.name for each in point.arguments().fields]
    assert any("index" in name for name in fields), fields
    with tracing("tracepoint:nbd:nbd_send_request", field(*fields), len(fields)):
        assert len(point.declarations()) == len(fields)
    if has_module_btf():
        (point,) = sources.expand("rawtracepoint:nbd_send_request")
        assert point.name == "rawtracepoint:nbd:nbd_send_request"
        with tracing("rawtracepoint:nbd:nbd_send_request", field("index"), 1):
            assert point.declarations()[1] == "int index"


def test_listing_of_a_module():
    names = {each.text for each in sources.list_events("kprobe:loop:lo_*")}
    assert "kprobe:loop:lo_ioctl" in names
    if has_module_btf():
        assert "fentry:loop:lo_ioctl" in {each.text for each in sources.list_events("fentry:loop:*")}


def test_stack_names_the_module():
    """The kernel's stack at lo_ioctl, by addresses from bpf_get_stack, is in vfs code above a module's."""
    stack = Map.create("array", 4, 8 * 64, 1)

    def values(f, ctx, point):
        ours, end = f.block("ours"), f.block("others")
        f.branch("==", f.alu(">>", f.call("bpf_get_current_pid_tgid"), 32), os.getpid(), ours, end)
        f.position(end)
        f.ret(0)
        f.position(ours)
        return [f.call("bpf_get_stack", ctx, f.map_value("stack"), 8 * 64, 0)]

    from rawbpf.asm import compile_function, ir
    from rawbpf.loader.program import Program

    (point,) = sources.expand("kprobe:loop:lo_ioctl")
    f = ir.Function("stack")
    values(f, f.params[0], point)
    f.ret(0)
    with Program.load("kprobe", compile_function(f).instructions, maps={"stack": stack}) as program:
        with point.attach(program, [point]):
            ask()
    data = stack.lookup(b"\0" * 4)
    addresses = [each for each in memoryview(data).cast("Q") if each]
    found = [KernelSymbols().resolve(address) for address in addresses]
    assert (found[0].name, found[0].module) == ("lo_ioctl", "loop")
    assert any("sys_ioctl" in each.name for each in found), found


@pytest.mark.slow
def test_script_prints_the_module(rawbpf):
    """As bpftrace prints kernel frames: of modules with the module's name where show is asked."""
    script = ("kprobe:loop:lo_ioctl { printf(\"%s %s\\n\", probe, func); print(kstack(2)); exit(); }")
    tracer = rawbpf.start("trace", "-e", script)
    while "Attached" not in tracer.stderr.readline():
        continue
    ask()
    out, _ = tracer.communicate(timeout=60)
    assert "kprobe:loop:lo_ioctl lo_ioctl\n" in out and "lo_ioctl+" in out
    assert ctypes.sizeof(ctypes.c_void_p) == 8
