r"""Scripts from Python.

    from rawbpf.tools.trace import Script

    with Script(r'tracepoint:syscalls:sys_enter_openat { printf("%s\n", str(args.filename)); @[comm] = count(); }') as script:
        script.attach()
        for event in script:            # results.Printf, results.Value, results.MapResult, ...
            print(event.arguments)
            if enough:
                script.stop()
        print(script.maps["@"])         # {"bash": 12, ...}

Events are the objects of results.py: a Printf has `format`, `arguments` and the finished text in `value`; a
Value and a MapResult have `value`, a Python object.
"""

import warnings
from collections import deque
from contextlib import contextmanager
from threading import RLock

from .session import IDLE, Session


# What errors say of options, by what has the same meaning here.
_OPTIONS = (("the --unsafe flag", "unsafe=True"), ("--unsafe", "unsafe=True"), ("Use -p, -c, or --dwarf-pid", "Use pid= or command="),
            ("with -p to", "with pid= to"))


def _in_python(error):
    """Changes an error's advice from the command line's words to Python's."""
    for each in getattr(error, "diagnostics", ()):          # of a ScriptError
        each.message, each.hints[:] = _reworded(each.message), map(_reworded, each.hints)
    if hasattr(error, "reason"):                            # a SourceError
        error.reason = _reworded(error.reason)
    error.args = tuple(_reworded(each) if isinstance(each, str) else each for each in error.args)


def _reworded(text):
    for option, argument in _OPTIONS:
        text = text.replace(option, argument)
    return text


class _Collector:
    """A renderer that keeps the results."""

    def __init__(self):
        self.results = deque()

    def emit(self, result):
        self.results.append(result)

    def batch(self, batch):
        return None

    def settle(self):
        pass


class Script:
    """A script, compiled; attach() or iteration runs it, once. `arguments` are $1, $2, ...; `pid` limits
    what sources.Target says to one process, whose end is the script's; `command` is run and traced from its first instruction on, and its end is
    the script's; `unsafe` allows system(), signal() and the like; `name` is what errors call the text.

    ScriptError when the text is wrong; ChildError when there is no such process or command; KernelError, SourceError
    when the kernel refuses; RuntimeError for one that is attached twice, is closed, or is iterated by two loops at once (each
    event is given once). Other threads may call stop() and close(); the loop then ends. One that is dropped without close()
    detaches, with a ResourceWarning."""
    _closed = True               # until there is something to close
    _session = process = None

    def __init__(self, text, *arguments, pid=None, command=None, unsafe=False, name="script"):
        from .engine import compile_script
        if not isinstance(text, str):
            raise TypeError("a script is a str, not %s" % type(text).__name__)
        self._session = None
        self._collector = _Collector()
        self._maps = None            # their last values, once it has ended
        self._closed = False
        self._stopped = False        # stop() was called, perhaps before attach()
        self._looping = False        # somebody iterates
        self._busy = False           # the thread that has the lock is in the session, which a signal handler of its must not close
        self._lock = RLock()         # of the session, while it starts, is read or closed
        self._reading = RLock()      # of the maps, which are read while another thread waits for events with the lock
        self.exit_code = 0
        self.process = None
        if command is not None or pid is not None:
            from .child import Child, Process
            self.process = Child(command) if command is not None else Process(pid)
        try:
            pid = self.process.pid if self.process is not None else None
            self.compiled = compile_script(text, name, [str(each) for each in arguments], pid=pid, unsafe=unsafe,
                                           cpid=pid if command is not None else None)
        except BaseException as error:
            self._close_process()
            _in_python(error)
            raise

    def attach(self):
        """Load and attach; BEGIN runs. From here on events gather."""
        with self._lock:
            self._must_be_open()
            if self._session is not None or self._maps is not None:
                raise RuntimeError("a Script is attached once")
            try:
                with self._in_session():
                    self._session = session = Session(self.compiled, self._collector, self.process)
                    if self._stopped or self._closed:
                        session.stop()
                    session.start()
                    session.release()
            except BaseException as error:
                self._let_go()
                _in_python(error)
                raise
        return self

    @contextmanager
    def _in_session(self):
        """What follows is not closed meanwhile: not by another thread (the caller has the lock), and what a signal handler
        closes is let go of behind it."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            if self._closed:
                self._release()

    @property
    def attached(self):
        """The number of events that the script is attached to."""
        return self._session.attached if self._session is not None else 0

    @property
    def running(self):
        """Until exit(), stop() or the end of the traced process."""
        session = self._session
        return session is not None and session.running

    @property
    def lost_events(self):
        """Events that found no room in the buffer, so far."""
        session = self._session
        return session.lost_events if session is not None else 0

    def poll(self, timeout=0.0):
        """The events of now, waiting up to `timeout` seconds for the first: a list."""
        self._must_be_open()
        return self._gathered(timeout)

    def _gathered(self, timeout=0.0):
        with self._lock:
            with self._in_session():
                if self.running and not self._collector.results:
                    self._session.poll(timeout)
        events = list(self._collector.results)
        self._collector.results.clear()
        return events

    def __iter__(self):
        """Events until the script ends; END's are the last. Attaches first unless attach() has. Leaving the loop early
        (or by an exception) detaches."""
        self._begin()
        self._looping = True
        try:
            while self.running:
                yield from self._gathered(1.0)
            self._finish()
            yield from self._gathered()
        finally:
            self._looping = False
            self._finish()

    async def __aiter__(self):
        """The same for asyncio. A task that is cancelled in the loop leaves it, which detaches."""
        import asyncio
        self._begin()
        self._looping = True
        try:
            delay = 0.001
            while self.running:
                events = self._gathered()
                for event in events:
                    yield event
                delay = 0.001 if events else min(delay * 2, IDLE)
                await asyncio.sleep(delay)
            self._finish()
            for event in self._gathered():
                yield event
        finally:
            self._looping = False
            self._finish()

    def _begin(self):
        self._must_be_open()
        if self._looping:
            raise RuntimeError("this Script is iterated already")
        if self._session is None and self._maps is None:
            self.attach()

    def _must_be_open(self):
        if self._closed:
            raise RuntimeError("this Script is closed")

    def stop(self):
        """End the script: iteration goes on with the events that have gathered (and those of END), then ends. May be
        called from another thread or a signal handler; before attach(), it ends a script that is attached later at once."""
        self._stopped = True
        session = self._session
        if session is not None:
            session.stop()

    @property
    def maps(self):
        """The script's maps by name ("@", "@name"): a dict for keyed ones, else the value (None when it was
        never set). Tuples as keys and values are tuples, histograms lists of counts. {} before attach(); once the
        script has ended or is closed, their last values."""
        if self._maps is not None:
            return dict(self._maps)
        with self._reading:
            session = self._session
            if session is None:
                return dict(self._maps or {})
            try:
                return {info.name: info.value(session.maps, session.host) for info in self.compiled.maps.values()}
            except (OSError, LookupError, ValueError):
                if self._session is session:
                    raise
                return dict(self._maps or {})           # a signal handler has closed it meanwhile

    def _finish(self):
        with self._lock:
            if self._busy:
                return
            with self._in_session():
                session = self._session
                if session is None:
                    return
                try:
                    session.finish(print_maps=False)
                    self._maps = self.maps
                    self.exit_code = session.exit_code
                finally:
                    self._drop_session()

    def _close_process(self):
        if self.process is not None:
            self.process.close()

    def close(self):
        """Detach and let everything go; END does not run. `maps` keeps the last values. A loop in another thread ends."""
        self._closed = True
        session = self._session
        if session is not None:
            session.stop()
        with self._lock:
            if not self._busy:
                self._release()

    def _release(self):
        try:
            if self._session is not None:
                self._session.detach()
                self._maps = self.maps
        finally:
            self._let_go()

    def __del__(self):
        if self._session is not None or self.process is not None and self._maps is None and not self._closed:
            try:
                warnings.warn("a Script was dropped without close()", ResourceWarning, source=self)
            finally:
                self.close()

    def _let_go(self):
        self._closed = True
        self._drop_session()
        self._close_process()

    def _drop_session(self):
        with self._reading:
            session, self._session = self._session, None
            if session is not None:
                session.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
