"""Tracepoints: fields checked against what the traced calls were given."""

import ctypes
import os
import re
import subprocess

import pytest

from rawbpf import sources
from rawbpf.elf.types import find_field
from rawbpf.sources import SourceError
from rawbpf.sources.tracefs import tracefs
from tests.cc import compile_c
from tests.sources.harness import cookie, field, tracing

pytestmark = pytest.mark.kernel


def mine(rows):
    return [row[1:] for row in rows if row[0] == os.getpid()]


def with_pid(values):
    return lambda f, ctx, point: [f.alu(">>", f.call("bpf_get_current_pid_tgid"), 32)] + values(f, ctx, point)


def test_fields_of_a_system_call():
    with tracing("tracepoint:syscalls:sys_enter_kill", with_pid(field("pid", "sig")), 3) as seen:
        os.kill(os.getpid(), 0)
    assert mine(seen.rows) == [(os.getpid(), 0)]


def test_return_value_of_a_system_call():
    libc = ctypes.CDLL(None)
    with tracing("tracepoint:syscalls:sys_exit_close", with_pid(field("ret", "__syscall_nr")), 3) as seen:
        assert libc.close(-1) == -1
    number = {"x86_64": 3, "aarch64": 57}[os.uname().machine]
    assert (-9, number) in mine(seen.rows)  # EBADF


def test_array_in_the_record_needs_no_helper():
    """comm of sched_process_exit, by direct loads: works where kernel reads are locked down."""
    program = compile_c("int main(void) { return 0; }", name="exits-quickly")

    def values(f, ctx, point):
        comm = find_field(point.arguments(), "comm")
        return [point.field_load(f, ctx, comm, 0, 8), point.field_load(f, ctx, comm, 8, 4),
                point.field(f, ctx, find_field(point.arguments(), "pid"))]

    with tracing("tracepoint:sched:sched_process_exit", values, 3) as seen:
        child = subprocess.Popen([program])
        child.wait()
    names = {pid: a.to_bytes(8, "little") + b.to_bytes(4, "little") for a, b, pid in seen.rows}
    assert names[child.pid] == b"exits-quickl"


def test_several_events_one_program():
    with tracing("tracepoint:syscalls:sys_e*_getpriority", with_pid(lambda f, c, p: []), 1,
                 args=False) as seen:
        os.getpriority(os.PRIO_PROCESS, 0)
    assert len(seen.points) == 2
    assert len(mine(seen.rows)) == 2


def test_cookies_tell_the_events_apart():
    names = {"sys_enter_getpriority": 7, "sys_exit_getpriority": 9}
    points = sources.expand("tracepoint:syscalls:sys_e*_getpriority")
    if not points[0].cookies:
        assert os.uname().release < "5.15"
        return
    with tracing("tracepoint:syscalls:sys_e*_getpriority", with_pid(cookie), 2,
                 cookies=lambda point: names[point.event], args=False) as seen:
        os.getpriority(os.PRIO_PROCESS, 0)
    assert mine(seen.rows) == [(7,), (9,)]


def test_different_layouts_do_not_share_args():
    enter, = sources.expand("tracepoint:syscalls:sys_enter_kill")
    exit_, = sources.expand("tracepoint:syscalls:sys_exit_kill")
    other, = sources.expand("tracepoint:syscalls:sys_exit_close")
    assert not enter.groups_with(exit_)
    assert enter.groups_with(exit_, args=False)
    assert exit_.groups_with(other)


def test_formats_of_this_kernel_are_understood():
    """Every field's type is as large as the record says; fields do not overlap."""
    checked = 0
    for listed in sources.list_events("tracepoint:s*:*"):
        (point,) = sources.expand(listed.text)
        assert listed.text == point.name
        end = 0
        for raw, typed in zip(point.format.fields, point.arguments().fields):
            if not typed.loc:
                assert typed.type.size == raw.size, (point.name, raw)
            assert raw.offset >= end, (point.name, raw)
            end = raw.offset + raw.size
        checked += 1
    assert checked > 300


def test_unknown_names_suggest():
    with pytest.raises(SourceError) as caught:
        sources.expand("tracepoint:syscalls:sys_enter_reed")
    assert caught.value.missing
    assert "tracepoint:syscalls:sys_enter_read" in caught.value.hints
    with pytest.raises(SourceError) as caught:
        sources.expand("tracepoint:shed:sched_switch")
    assert caught.value.hints == ["tracepoint:sched:sched_switch"]


def test_verbose_listing():
    (listed,) = sources.list_events("tracepoint:syscalls:sys_enter_read")
    assert listed.arguments[0] == "int __syscall_nr"
    assert [a.split()[-1] for a in listed.arguments] == ["__syscall_nr", "fd", "buf", "count"]


def test_listing_opens_no_format(monkeypatch):
    fs = tracefs()
    opened = []
    read = type(fs).read
    monkeypatch.setattr(type(fs), "read", lambda self, path, *a: opened.append(path) or read(self, path, *a))
    assert len(list(sources.list_events("tracepoint:*"))) > 500
    assert len(opened) <= 1


def test_no_mount_appears():
    before = open("/proc/self/mounts").read()
    tracefs()
    assert open("/proc/self/mounts").read() == before


class FakeTraceFs:
    """A tracefs in a folder: for groups this kernel does not have."""

    def __new__(cls, folder):
        from rawbpf.loader.tracefs import TraceFs

        return TraceFs(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), "a test's folder")


def test_group_with_a_hyphen(tmp_path, monkeypatch):
    event = tmp_path / "events" / "xhci-hcd" / "xhci_urb_enqueue"
    event.mkdir(parents=True)
    (event / "id").write_text("4242\n")
    (event / "format").write_text(
        "name: xhci_urb_enqueue\nID: 4242\nformat:\n"
        "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n"
        "\tfield:int epnum;\toffset:8;\tsize:4;\tsigned:1;\n\nprint fmt: \"%d\", REC->epnum\n")
    (tmp_path / "available_events").write_text("xhci-hcd:xhci_urb_enqueue\n")
    fake = FakeTraceFs(str(tmp_path))
    monkeypatch.setattr("rawbpf.sources.tracepoint.tracefs", lambda: fake)
    for text in ("tracepoint:xhci-hcd:xhci_urb_enqueue", "tracepoint:xhci*:*", 'tracepoint:"xhci-hcd":*'):
        (point,) = sources.expand(text)
        assert point.name == "tracepoint:xhci-hcd:xhci_urb_enqueue"
        assert [f.name for f in point.arguments().fields] == ["epnum"]
    (listed,) = sources.list_events("tracepoint:*hci*:*")
    assert listed.text == "tracepoint:xhci-hcd:xhci_urb_enqueue"
    assert listed.arguments == ["int epnum"]
    from tests.tools.test_compiler import compiled

    (program,) = compiled("tracepoint:xhci-hcd:xhci_urb_enqueue { @[probe, args.epnum] = count(); }").programs
    assert re.match(r"[A-Za-z0-9_.]{1,15}\Z", program.name)  # what the kernel takes; the group keeps its hyphen
    assert program.points[0].name == "tracepoint:xhci-hcd:xhci_urb_enqueue"
    os.close(fake.dir_fd)
