"""`map event_pipe`: what programs write into a perf event array, as it comes, until interrupted."""

import signal
import sys

from .output import hex_lines
from .words import fail


def pipe(session, words, item):
    from rawbpf.loader import PerfBuffer
    if item.type != "perf_event_array":
        fail("map is not a perf event array")
    found = {}
    while words:
        name = words.need("cpu", "index")
        found[name] = words.number(name)
    if len(found) == 1:
        fail("cpu and index must be specified together")
    places = {found["cpu"]: found["index"]} if found else None
    if places and found["index"] >= item.max_entries:
        fail("index %d: the map has %d entries" % (found["index"], item.max_entries))
    with PerfBuffer(item, 16, places=places, time=True) as reader:
        if session.json is not None:
            session.json.open("[")
        with Interrupt() as asked:      # a record is never cut in two
            while not asked:
                if reader.wait(0.2):
                    for cpu, time, what in reader.events():
                        _show(session, cpu, places[cpu] if places else cpu, time, what)
                    if session.write == sys.stdout.write:
                        sys.stdout.flush()
        if session.json is not None:
            session.json.close("]")


class Interrupt:
    """While open, SIGINT, SIGTERM and SIGHUP only make it true."""

    _SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self):
        self._asked = False

    def __bool__(self):
        return self._asked

    def _ask(self, *_):
        self._asked = True

    def __enter__(self):
        self._before = [(number, signal.signal(number, self._ask)) for number in self._SIGNALS]
        return self

    def __exit__(self, *_):
        for number, handler in self._before:
            signal.signal(number, handler)


def _show(session, cpu, index, time, what):
    if session.json is not None:
        fields = {"type": 2 if time is None else 9, "cpu": cpu, "index": index}
        if time is None:
            fields["lost"] = {"id": 0, "count": what}
        else:
            fields.update(timestamp=time, data=list(what))
        session.json.value(fields)
    elif time is None:
        session.write("lost %d events\n" % what)
    else:
        session.write("== @%d.%09d CPU: %d index: %d =====\n%s\n" % (time // 10**9, time % 10**9, cpu, index, hex_lines(what)))
