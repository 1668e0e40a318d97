"""profile and interval: what the kernel is asked for each unit, and self:signal."""

import signal

import pytest

from rawbpf import sources
from rawbpf.loader import kernel, perf
from rawbpf.sources import Interval, Profile, SourceError

SECOND = 10 ** 9


@pytest.mark.parametrize("text, period, frequency", [
    ("hz:99", 0, 99), ("s:1", SECOND, 0), ("ms:100", SECOND // 10, 0), ("us:500", 500000, 0),
    ("10ms", SECOND // 100, 0), ("1s", SECOND, 0), ("2m", 120 * SECOND, 0), ("1h", 3600 * SECOND, 0),
    ("250us", 250000, 0), ("5000ns", 5000, 0), ("5000", 5000, 0), ("1d", 86400 * SECOND, 0), ("s:1e1", 10 * SECOND, 0),
    ("ms:0x10", 16 * 10 ** 6, 0), ("us:1_000", 10 ** 6, 0)])
@pytest.mark.parametrize("kind", ["profile", "interval"])
def test_what_the_kernel_is_asked(kind, text, period, frequency, monkeypatch):
    monkeypatch.setattr(kernel, "online_cpus", lambda: [0, 1, 5])
    (point,) = sources.expand("%s:%s" % (kind, text))
    packed, layout = point.attr().pack(), perf.PERF_EVENT_ATTR
    assert (layout.get(packed, "type"), layout.get(packed, "config")) == (1, 0)  # software, cpu-clock
    assert layout.get(packed, "sample_period") == (period or frequency)
    assert bool(layout.get(packed, "flags") >> 10 & 1) == bool(frequency)  # attr.freq
    assert point.places() == [(-1, 0), (-1, 1), (-1, 5)][:1 if kind == "interval" else 3]


@pytest.mark.parametrize("text, says", [
    ("profile:", "unit of time|Invalid rate"), ("profile:hz:0", "positive"), ("profile:hz:-1", "integer"),
    ("profile:minutes:1", "not an accepted unit"), ("interval:999ns", "Minimum is 1000"), ("interval:1y", "Invalid rate"),
    ("interval:s:99999999999999999999", "too large"), ("interval:s:x", "integer frequency"), ("profile:a:b:c", "requires"),
    ("self:signal:SIGHUP", "not a supported signal"), ("self:x:y", "not a supported trigger"), ("self:signal", "requires 2")])
def test_refused(text, says):
    with pytest.raises(SourceError, match=says):
        sources.expand(text)


def test_of_python():
    assert Profile("hz", 99).points[0].name == "profile:hz:99"
    assert Interval("ms", "10").points[0].name == "interval:ms:10"


def test_signal_point():
    (point,) = sources.expand("self:signal:SIGUSR1")
    assert (point.when, point.signal, point.name) == ("signal", int(signal.SIGUSR1), "self:signal:SIGUSR1")
