"""kprobe and kretprobe, on kernels that have them; the refusal on one that has none."""

import ctypes
import os
import time

import pytest

from rawbpf import sources
from rawbpf.loader import features, kernel
from rawbpf.sources import SourceError, Target, kallsyms, kprobe
from tests.sources.harness import argument, cookie, tracing


def mine(values=lambda f, ctx, point: []):
    """Values preceded by the pid."""
    return lambda f, ctx, point: [f.alu(">>", f.call("bpf_get_current_pid_tgid"), 32)] + list(
        values(f, ctx, point))


def own(seen):
    return [row[1:] for row in seen.rows if row[0] == os.getpid()]


def sleep(count=3):
    for _ in range(count):
        time.sleep(0.002)


@pytest.mark.vm
def test_function():
    with tracing("kprobe:do_nanosleep", mine(), 1) as seen:
        sleep()
    assert len(own(seen)) == 3
    assert seen.points[0].name == "kprobe:do_nanosleep"
    assert seen.points[0].func == "do_nanosleep"


@pytest.mark.vm
def test_arguments():
    """vfs_read(file, buf, count, pos): the third argument is what read(2) was given."""
    with open("/proc/self/maps", "rb", buffering=0) as file:
        buffer = bytearray(1234)
        where = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        with tracing("kprobe:vfs_read", mine(argument(1, 2)), 3) as seen:
            file.readinto(buffer)
    assert (where, 1234) in own(seen)


@pytest.mark.vm
def test_return_value():
    with open("/proc/self/maps", "rb", buffering=0) as file:
        with tracing("kretprobe:vfs_read", mine(lambda f, c, p: [p.retval(f, c)]), 2) as seen:
            got = len(file.read(100))
    assert got == 100 and (100,) in own(seen)


@pytest.mark.vm
def test_offset_is_judged_by_the_kernel():
    text = "kprobe:do_nanosleep+%d"
    results = {}
    for offset in range(1, 12):
        try:
            with tracing(text % offset, mine(), 1) as seen:
                sleep()
            results[offset] = len(own(seen))
        except SourceError as error:
            assert "not the start of an instruction" in error.reason, error.reason
    assert 3 in results.values()  # at least one offset is an instruction's
    assert len(results) < 11  # and at least one is not
    assert sources.expand(text % 4)[0].name == "kprobe:do_nanosleep+4"


@pytest.mark.vm
def test_address():
    (address, _), = kallsyms.find("do_nanosleep")
    with pytest.raises(SourceError, match="--unsafe"):
        sources.expand("kprobe:0x%x" % address)
    with tracing("kprobe:0x%x" % address, mine(), 1, target=Target(unsafe=True)) as seen:
        sleep()
    assert len(own(seen)) == 3


@pytest.mark.vm
def test_wildcard():
    """vfs_* attaches to what can be traced, and tells the rest."""
    with tracing("kprobe:vfs_*", mine(), 1, args=False) as seen:
        os.read(os.open("/proc/self/maps", os.O_RDONLY), 10)
    assert len(seen.points) > 20
    assert all(point.func.startswith("vfs_") for point in seen.points)
    assert len(own(seen)) >= 2  # vfs_open, vfs_read
    assert seen.points[0].multi == features.has_link("kprobe_multi")


@pytest.mark.vm
def test_kretprobe_wildcard():
    with tracing("kretprobe:do_nanoslee*", mine(), 1, args=False) as seen:
        sleep()
    assert len(own(seen)) == 3


@pytest.mark.vm
def test_cookies():
    points = sources.expand("kprobe:vfs_rea*")
    if not points[0].cookies:
        assert kernel.release() < (5, 15)
        return
    with tracing("kprobe:vfs_rea*", mine(cookie), 2, cookies=lambda point: len(point.func),
                 args=False) as seen:
        with open("/proc/self/maps", "rb", buffering=0) as file:
            file.read(10)
    assert {row[0] for row in own(seen)} >= {len("vfs_read")}


@pytest.mark.vm
def test_func_ip_is_the_functions_address():
    (address, _), = kallsyms.find("do_nanosleep")

    def value(f, ctx, point):
        return [point.func_address(f, ctx)]

    (point,) = sources.expand("kprobe:do_nanosleep")
    with tracing("kprobe:do_nanosleep", mine(value), 2) as seen:
        sleep(1)
    ((seen_address,),) = own(seen)
    assert 0 <= (seen_address & (1 << 64) - 1) - address <= 8  # ENDBR and the breakpoint's size


@pytest.mark.vm
def test_name_that_occurs_several_times():
    """By address, every one of them: never one chosen silently."""
    counts = {}
    for name, module in kallsyms.names():
        if not module:
            counts[name] = counts.get(name, 0) + 1
    traceable = {name for name, _ in kallsyms.traceable() or ()}
    twice = sorted(n for n, c in counts.items() if c == 2 and n in traceable and "." not in n)
    name = twice[0]
    points = sources.expand("kprobe:%s" % name)
    assert len(points) == 2
    assert len({point.address for point in points}) == 2
    with tracing("kprobe:%s" % name) as seen:
        assert not seen.refused


@pytest.mark.vm
def test_module_vmlinux():
    with tracing("kprobe:vmlinux:do_nanosleep", mine(), 1) as seen:
        sleep()
    assert len(own(seen)) == 3
    assert seen.points[0].name == "kprobe:vmlinux:do_nanosleep"


@pytest.mark.vm
def test_unknown_function_suggests():
    with pytest.raises(SourceError) as caught:
        sources.expand("kprobe:do_nanoslep")
    assert caught.value.missing and "kprobe:do_nanosleep" in caught.value.hints


@pytest.mark.vm
def test_blacklisted_function_is_explained():
    name = next(name for name in sorted(kallsyms.blacklist()) if kallsyms.find(name))
    with pytest.raises(SourceError, match="blacklist"):
        sources.expand("kprobe:%s" % name)


@pytest.mark.vm
def test_one_event_each_without_kprobe_multi(monkeypatch):
    monkeypatch.setattr(kprobe, "has_multi", lambda: False)
    with tracing("kprobe:do_nanoslee*", mine(), 1) as seen:
        sleep()
    assert not seen.points[0].multi
    assert len(own(seen)) == 3


@pytest.mark.vm
def test_listing():
    listed = [each.text for each in sources.list_events("kprobe:do_nano*")]
    assert "kprobe:do_nanosleep" in listed and listed == sorted(listed)
    assert "kprobe:vmlinux:do_nanosleep" in [each.text for each in sources.list_events("kprobe:vmlinux:do_nano*")]
    assert len(list(sources.list_events("kprobe:*"))) > 10000


@pytest.mark.root
def test_refusal_without_kprobes():
    if kprobe.has_kprobes():
        (point,) = sources.expand("kprobe:do_nanosleep")
        assert point.name == "kprobe:do_nanosleep"
        return
    with pytest.raises(SourceError, match=r"this kernel has no kprobes \(CONFIG_KPROBE\w* is not set\)"):
        sources.expand("kprobe:do_nanosleep")
    assert list(sources.list_events("kprobe:*")) == []
