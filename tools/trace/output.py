"""Records to user space: how programs send events.

A record is a u64, the number of its Event, and the event's fields. It is built in place in the ring buffer
and submitted without waking the reader (a wake-up costs the traced system 30 times the record; the
session looks by itself), or, where the kernel has no ring buffer or the perf buffer is asked for, in scratch
memory and copied by bpf_perf_event_output. A record that finds no room is counted ("output").
"""
from . import ast, results, types
from .compiled import Event
from .doubts import operation
from .place import Place

NO_WAKEUP, FORCE_WAKEUP = 1, 2
CURRENT_CPU = 0xffffffff
BUFFER = "events"


class OutputCode:
    """The part of lower.Lowering that sends records."""

    def event(self, node, name, kinds, action, batch=None):
        """The Event of a place in the script with fields of these types; the same one for every program made
        of that place. `action(session, values)`; `batch(size, fields)` makes a compiled.Batch or None."""
        script = self.script
        key = id(node), name, tuple(kinds)
        event = script.event_numbers.get(key)
        if event is None:
            layout = types.Tuple(kinds)
            fields = [(8 + offset, kind) for offset, kind in zip(layout.offsets, kinds)]
            size = 8 + -(-layout.size // 8) * 8
            event = Event(len(script.events), name, size, fields, action,
                          batch and batch(size, fields), node.span)
            script.events.append(event)
            script.event_numbers[key] = event
        return event

    def send(self, event, write, urgent=False, no_room=None):
        """Code that sends a record; `write(record)` fills its fields, `record` a Place. `urgent`: wake the
        reader at once. `no_room()`: code for a record that found no room and is not to be counted as lost."""
        f, script = self.f, self.script
        if script.output != "ringbuf":
            record = self.scratch.place(None, event.size)
            f.store(record.base, record.off, event.number, 8)
            write(record)
            sent = f.call("bpf_perf_event_output", self.ctx, f.map(BUFFER), CURRENT_CPU, self.address(record),
                          event.size)
            lost, done = f.block("lost"), f.block()
            f.branch("s<", sent, 0, lost, done)
        else:
            base = f.call("bpf_ringbuf_reserve", f.map(BUFFER), event.size, 0)
            got, lost, done = f.block("reserved"), f.block("lost"), f.block()
            f.branch("==", base, 0, lost, got)
            f.position(got)
            f.store(base, 0, event.number, 8)
            write(Place(base, 0, None))
            f.call("bpf_ringbuf_submit", base, FORCE_WAKEUP if urgent else NO_WAKEUP)
            f.jump(done)
        f.position(lost)
        if no_room is None:
            self.count_loss("output")
        else:
            no_room()
        f.jump(done)
        f.position(done)

    def send_values(self, node, event, values, urgent=False):
        """Send a record whose fields are these expressions (or ints)."""
        values = [self._ready(value, kind) if not isinstance(value, int) and self._may_send(value) else value
                  for value, (_, kind) in zip(values, event.fields)]

        def write(record):
            for (offset, kind), value in zip(event.fields, values):
                place = record.at(offset, kind)
                if isinstance(value, Place):
                    self.copy(value, place)
                elif not hasattr(value, "span"):
                    self.f.store(place.base, place.off, value, kind.size)
                else:
                    self.store(value, place)
        self.send(event, write, urgent)

    def _may_send(self, node):
        """Whether evaluating an expression may send a record of its own, which must come before."""
        if self.script.options.warnings > 1 and self.constant(node) is None:
            return True
        return any(isinstance(n, ast.Block) or isinstance(n, ast.ArrayAccess) and self.constant(n.index) is None
                   and isinstance(n.operand.type, types.Array) or isinstance(n, ast.Binary) and n.op in ("/", "%")
                   and self.constant(n.right) is None for n in node.walk())

    def _ready(self, node, kind):
        """The value of an expression before the record is there."""
        if kind.scalar:
            return self.f.copy(self.convert(self.value(node), node.type, kind))
        place = self.temporary(kind)
        self.store(node, place)
        return place

    def told(self, helper, result):
        """With -k: say when a helper that reads has failed (its result, below zero) at the expression at hand."""
        if self.script.options.warnings < 2:
            return
        f = self.f
        failed, fine = f.block("failed"), f.block()
        f.branch("s<", result, 0, failed, fine)
        f.position(failed)
        self.helper_error(helper, result)
        f.jump(fine)
        f.position(fine)

    def helper_error(self, helper, code):
        """A record that a helper has failed at the expression at hand; `code` an operand."""
        node = self.at

        def action(session, values):
            session.emit(results.HelperError(helper[4:] if helper.startswith("bpf_") else helper, values[0], node.span))

        event = self.event(node, helper, [types.INT32], action)
        self.send(event, lambda record: self.f.store(record.base, record.off + event.fields[0][0], code, 4))

    def warn_at_run_time(self, node, message):
        """A warning with node's place, told when it happens."""
        place = operation(node).span

        def action(session, values):
            session.emit(results.Trouble(message, place))
        self.send(self.event(node, "warning", [], action), lambda record: None)
