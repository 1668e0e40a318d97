"""tseries(): a value for each of the last intervals of time, as a map keeps it and as it is printed.

A cell is one bucket of three words an interval: the value, what `agg` needs besides (when it was set, how many values an
average has, whether a minimum is one), and the interval's number since the epoch of TAI. Interval N goes to bucket
N % intervals; a bucket whose number is older is begun anew.
"""
import struct
import time
from typing import NamedTuple

from .aggregates import Aggregate
from .values import json_number

BUCKET = 24
WIDTH, PADDING = 53, 21
UNITS = ((10 ** 9, "s", 0), (10 ** 6, "ms", 3), (10 ** 3, "us", 6), (0, "ns", 9))


class Series(NamedTuple):
    """`points` are (start of the interval in nanoseconds, value or None), one for each interval from the first with a
    value to the last of the whole map."""
    points: list


class TimeSeries(Aggregate):
    name = "tseries_t"
    castable = False
    multiline = True
    zero_when_set = True
    json_kind = "tseries"

    def __init__(self, interval, count, agg, signed):
        self.interval, self.count, self.agg, self.signed = interval, count, agg, signed
        self.size = BUCKET * count

    def _identity(self):
        return self.interval, self.count, self.agg, self.signed

    def reduce(self, values):
        """{interval's number: value} of all CPUs' cells."""
        found = {}
        form = "=qQQ" if self.signed else "=QQQ"
        for cell in values:
            for value, more, epoch in struct.iter_unpack(form, cell[:self.size]):
                if epoch:
                    found.setdefault(epoch, []).append((value, more))
                elif value or more:
                    found[0] = [(0, 1)]     # the first interval of 1970, for tests only: bpftrace shows 0
        return {epoch: self._one(parts) for epoch, parts in sorted(found.items())}

    def _one(self, parts):
        if self.agg == "":
            return max(parts, key=lambda part: part[1])[0]
        values = [value for value, _ in parts]
        if self.agg == "avg":
            total, count = sum(values), sum(more for _, more in parts)
            return -(-total // count) if total < 0 else total // count
        return {"sum": sum, "min": min, "max": max}[self.agg](values)

    def together(self, values, host):
        """The values of all keys as Series that end with the same interval."""
        last = max((max(each) for each in values if each), default=0)
        first = last - self.count + 1
        series = []
        for each in values:
            known = [epoch for epoch in each if epoch >= first]
            start = min(known) if known else last + 1
            series.append(Series([(host.wall_clock(epoch * self.interval, 3), each.get(epoch))
                                  for epoch in range(start, last + 1)]))
        return series

    def order(self, value):
        return value.points[-1][0] if value.points else 0

    def scaled(self, value, div):
        return value

    def text(self, value):
        """A graph that time runs down in."""
        points = value.points
        if not points:
            return "<no data>"
        known = [number for _, number in points if number is not None]
        low, high = min(known), max(known)
        if low == high:
            least, most = (-1 << 63, (1 << 63) - 1) if self.signed else (0, (1 << 64) - 1)
            low, high = max(least, low - 1), min(most, high + 1)
        interval = (points[-1][0] - points[0][0]) // max(1, len(points) - 1)
        unit, digits = next((unit, digits) for least, unit, digits in UNITS if interval >= least)
        head = "hh:mm:ss" + ("." + unit if digits else "")
        width = 8 + (1 + digits if digits else 0)
        scale = str(low).ljust(PADDING) + str(high).rjust(WIDTH - PADDING)
        lines = [" " * (width + 1) + scale, head.ljust(width + 1) + "|" + "_" * (WIDTH - 2) + "|"]
        zero = int(_single(WIDTH * _single(-low)) / _single(high - low)) if low < 0 < high else 0
        for when, number in points:
            line = ["|"] + [" "] * (WIDTH - 2) + ["|"]
            if zero > 0:
                line[zero] = "."
            if number is not None:
                place = int(_single(_single((WIDTH - 1) * _single(number - low)) / _single(high - low)))
                line[max(0, min(WIDTH - 1, place))] = "*"
            lines.append("%s %s %s" % (_clock(when, digits), "".join(line), "-" if number is None else number))
        lines += [" " * width + " v" + "_" * (WIDTH - 2) + "v", " " * width + " " + scale]
        return "".join(line + "\n" for line in lines)

    def json(self, value):
        return "[" + ",".join('{"interval_start":"%s","value":%s}' % (
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(when // 10 ** 9)) + ".%09d" % (when % 10 ** 9), json_number(number))
            for when, number in value.points if number is not None) + "]"


def _single(value):
    """Rounded to a C float."""
    return struct.unpack("f", struct.pack("f", value))[0]


def _clock(when, digits):
    seconds, rest = divmod(when, 10 ** 9)
    text = time.strftime("%H:%M:%S", time.localtime(seconds))
    return text + (".%0*d" % (digits, rest // 10 ** (9 - digits)) if digits else "")
