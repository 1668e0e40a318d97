"""profile, interval, begin, end."""

import os
import time

import pytest

from rawbpf import sources
from rawbpf.loader import kernel
from rawbpf.sources import SourceError, special
from tests.sources.harness import program_for, tracing

pytestmark = pytest.mark.kernel


def cpu(f, ctx, point):
    return [f.call("bpf_get_smp_processor_id")]


def most(since, per_second=50):
    """The most often that a timer can have fired on a CPU: a busy or emulated machine is late, never early."""
    return int((time.monotonic() - since) * per_second) + 1


def test_profile_fires_on_every_online_cpu():
    start = time.monotonic()
    with tracing("profile:hz:50", cpu, 1) as seen:
        time.sleep(0.5)
    online = kernel.online_cpus()
    assert {row[0] for row in seen.rows} <= set(online)
    assert len(online) <= seen.hits <= most(start) * len(online)


def test_interval_fires_on_one_cpu():
    start = time.monotonic()
    with tracing("interval:ms:20", cpu, 1) as seen:
        time.sleep(0.5)
    assert len({row[0] for row in seen.rows}) == 1
    assert 5 <= seen.hits <= most(start)


@pytest.mark.parametrize("text", ["interval:us:20000", "profile:us:20000", "interval:hz:50", "interval:20ms"])
def test_units(text):
    start = time.monotonic()
    with tracing(text) as seen:
        time.sleep(0.4)
    each = len(kernel.online_cpus()) if text.startswith("profile") else 1
    assert 4 <= seen.hits <= most(start) * each


def test_too_many_hertz_is_explained():
    limit = int(open("/proc/sys/kernel/perf_event_max_sample_rate").read())
    with pytest.raises(SourceError, match="perf_event_max_sample_rate"):
        with tracing("profile:hz:%d" % (limit * 2)):
            pass


def test_begin_runs_once():
    (point,) = sources.expand("BEGIN")
    assert point.when == "begin"
    program, counters = program_for(point, lambda f, c, p: [f.alu(">>", f.call("bpf_get_current_pid_tgid"), 32)], 1)
    with program:
        point.fire(program)
    data = counters.lookup(b"\0" * 4)
    assert int.from_bytes(data[:8], "little") == 1
    assert int.from_bytes(data[8:16], "little") == os.getpid()


def test_end_without_test_runs(monkeypatch):
    """What kernels before 5.10 use: a probed function of our own."""
    monkeypatch.setattr(special, "can_test_run", lambda: False)
    (point,) = sources.expand("END")
    assert point.program_type == "kprobe" and point.when == "end"
    program, counters = program_for(point, lambda f, c, p: [], 0)
    with program:
        point.fire(program)
        point.fire(program)
    assert int.from_bytes(counters.lookup(b"\0" * 4)[:8], "little") == 2
