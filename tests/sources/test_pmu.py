"""PMU events by sysfs names: a folder that looks as sysfs does for a Skylake core and an uncore PMU.

The texts are those of the kernel's arch/x86/events/intel for format and events; values are worked out by hand.
"""

import os

import pytest

from rawbpf import sources
from rawbpf.loader import kernel, perf
from rawbpf.loader.errors import KernelError
from rawbpf.sources import Cache, Pmu, SourceError, perf_event
from tests.sources.harness import tracing

FILES = {
    "cpu/type": "4\n",
    "cpu/format/event": "config:0-7\n", "cpu/format/umask": "config:8-15\n", "cpu/format/edge": "config:18\n",
    "cpu/format/cmask": "config:24-31\n", "cpu/format/ldlat": "config1:0-15\n", "cpu/format/in_tx": "config:32\n",
    "cpu/format/split": "config:0-3,60-63\n", "cpu/format/late": "config3:0-63\n",
    "cpu/format/later": "config4:8-15\n", "cpu/format/odd": "config9:0-7\n",
    "cpu/events/mem-loads": "event=0xcd,umask=0x1,ldlat=3\n",
    "cpu/events/cpu-cycles": "event=0x3c\n", "cpu/events/el-abort": "event=0xc9,umask=0x4,in_tx\n",
    "cpu/events/asks": "event=0xb7,umask=?\n",
    "uncore_imc_0/type": "17\n", "uncore_imc_0/cpumask": "0\n",
    "uncore_imc_0/format/event": "config:0-7\n", "uncore_imc_0/format/umask": "config:8-15\n",
    "uncore_imc_0/events/cas_count_read": "event=0x04,umask=0x03\n",
    "uncore_imc_0/events/cas_count_read.scale": "6.103515625e-5\n",
    "uncore_imc_0/events/cas_count_read.unit": "MiB\n",
}


@pytest.fixture
def sysfs(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(perf_event, "DEVICES", str(tmp_path))
    monkeypatch.setattr(perf_event, "_EVENTS", str(tmp_path) + "/%s/events")
    return tmp_path


@pytest.mark.parametrize("text, fields", [
    ("cpu/mem-loads/", (4, 0x1cd, 3, 0, 0, 0)),
    ("cpu/cpu-cycles/", (4, 0x3c, 0, 0, 0, 0)),
    ("cpu/el-abort/", (4, 0x4c9 | 1 << 32, 0, 0, 0, 0)),
    ("cpu/mem-loads,ldlat=0x20/", (4, 0x1cd, 0x20, 0, 0, 0)),          # what follows changes what went before
    ("cpu/event=0x3c,umask=0,cmask=2,edge/", (4, 0x3c | 2 << 24 | 1 << 18, 0, 0, 0, 0)),
    ("cpu/asks,umask=1/", (4, 0x1b7, 0, 0, 0, 0)),
    ("cpu/split=0xff/", (4, 0xf00000000000000f, 0, 0, 0, 0)),
    ("cpu/config=0x1234,config1=5,config2=6/", (4, 0x1234, 5, 6, 0, 0)),
    ("cpu/event=1,late=0xffffffffffffffff,later=2/", (4, 1, 0, 0, (1 << 64) - 1, 0x200)),
    ("cpu/config3=7,config4=9/", (4, 0, 0, 0, 7, 9)),
    ("uncore_imc_0/cas_count_read/", (17, 0x304, 0, 0, 0, 0)),
])
def test_what_the_kernel_is_asked(sysfs, text, fields):
    (point,) = sources.expand('pmu:"%s":500' % text)
    attr = perf.PERF_EVENT_ATTR
    packed = point.attr().pack()
    got = tuple(attr.get(packed, name) for name in ("type", "config", "config1", "config2", "config3", "config4"))
    assert got == fields
    assert attr.get(packed, "sample_period") == 500


@pytest.mark.parametrize("text, says", [
    ("cpu", "written as DEVICE/EVENT/"), ("cpu/", "written as"), ("cpu//", "written as"),
    ("gpu/x/", "no PMU gpu"), ("cpu/mem-load/", "neither an event nor a term called mem-load"),
    ("cpu/asks/", "needs a value for umask"), ("cpu/event=x/", "no number"), ("cpu/event=0x100/", "more than the 8 bits"),
    ("cpu/odd=1/", "config9"), ("cpu/../../x/", "neither an event nor a term"),
])
def test_what_is_refused(sysfs, text, says):
    with pytest.raises(SourceError, match=says) as caught:
        sources.expand('pmu:"%s"' % text)
    if "mem-load" in text:
        assert "mem-loads" in caught.value.hints


def test_listing_and_cpus(sysfs):
    assert [each.text for each in sources.list_events("pmu:*")] == [
        "pmu:cpu/asks/:", "pmu:cpu/cpu-cycles/:", "pmu:cpu/el-abort/:", "pmu:cpu/mem-loads/:",
        "pmu:uncore_imc_0/cas_count_read/:"]
    assert [each.text for each in sources.list_events("pmu:cpu/mem*")] == ["pmu:cpu/mem-loads/:"]
    (point,) = sources.expand("pmu:uncore_imc_0/cas_count_read/:1000")
    assert point.places() == [(-1, 0)]  # where its cpumask says, not on every CPU
    assert Pmu("cpu/mem-loads/", 1000).points[0].name == "pmu:cpu/mem-loads/:1000"


@pytest.mark.kernel
@pytest.mark.parametrize("text", ["hardware:cpu-cycles:100000", "cache:L1-dcache-load-misses:1000", "cache:node-stores:5"])
def test_counters_count_or_are_explained(text):
    """A machine without the counter (most virtual ones) says so."""
    try:
        with tracing(text) as seen:
            sum(range(3000000))
        assert seen.hits > 0 or text.startswith("cache:node")
    except SourceError as error:
        assert "this machine has no such hardware counter" in error.reason
        assert not os.path.exists("/sys/bus/event_source/devices/cpu") or text.startswith("cache")


@pytest.mark.kernel
def test_config3_and_config4_reach_the_kernel():
    """A software event that means nothing by it: taken since 6.3, and refused in words before."""
    attr = perf.software("dummy", period=1)
    attr.fields["config3"] = 1
    try:
        perf.PerfEvent.open(attr).close()
        assert kernel.release() >= (6, 3)
    except KernelError as error:
        assert kernel.release() < (6, 3) and "config3 needs Linux 6.3" in str(error)
    attr = perf.software("dummy", period=1)
    attr.fields["config4"] = 1
    try:
        perf.PerfEvent.open(attr).close()
        assert kernel.release() >= (6, 19)
    except KernelError as error:
        assert kernel.release() < (6, 19) and "config4 needs Linux 6.19" in str(error)


@pytest.mark.kernel
def test_a_pmu_that_only_counts_is_explained():
    if not os.path.exists("/sys/bus/event_source/devices/msr/events/tsc"):
        return
    with pytest.raises(SourceError, match="only counts it"):
        with tracing("pmu:msr/tsc/:1000"):
            pass


def test_cache_names():
    assert Cache("LLC-load-misses", 10).points[0].count == 10
    with pytest.raises(SourceError) as caught:
        Cache("LLC-load-mises").points
    assert "cache:LLC-load-misses:" in caught.value.hints
