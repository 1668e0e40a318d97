"""Scripts from Python: events as values, maps as dictionaries, everything detached however the loop ends."""

import asyncio
import gc
import os
import re
import signal
import threading

import pytest

from rawbpf.sources import SourceError
from rawbpf.tools.trace import Script, results
from rawbpf.tools.trace.diagnostics import ScriptError
from rawbpf.tools.trace.session import Session
from tests import bpf

pytestmark = pytest.mark.root


def test_events_are_values():
    with Script(r'BEGIN { printf("%d %s\n", $1, str($2)); print((1, "x")); print(2); @[1, "k"] = 3; print(@); exit(4); }'
                r' END { printf("end\n"); }', 7, "seven") as script:
        events = list(script)
    assert [type(event) for event in events] == [results.Printf, results.Value, results.Value, results.MapResult,
                                                 results.Printf]
    assert (events[0].value, events[0].format, tuple(events[0].arguments)) == ("7 seven\n", "%d %s\n", (7, "seven"))
    assert events[1].value == (1, "x") and events[2].value == 2
    assert (events[3].name, events[3].value) == ("@", {(1, "k"): 3})
    assert events[4].value == "end\n"
    assert script.exit_code == 4
    assert script.maps == {"@": {(1, "k"): 3}}


def test_maps_while_it_runs():
    script = Script("BEGIN { @a = 5; @h = hist(3); @s[1] = sum(9); @never[1] = 1; clear(@never); } interval:s:100 { @b = 1; }")
    with script:
        script.attach()
        assert script.running and script.attached == 2
        assert script.poll() == []      # carries out clear()
        maps = script.maps
        assert maps["@a"] == 5 and maps["@s"] == {1: 9} and maps["@never"] == {} and maps["@b"] is None
        assert sum(maps["@h"]) == 1
    assert not script.running


def test_a_traced_command_ends_the_iteration():
    with Script(r'tracepoint:syscalls:sys_enter_execve { @ = count(); printf("%d\n", pid); }', command="true") as script:
        pids = [int(event.value) for event in script]
    assert script.process.pid in pids


def test_stop_from_another_thread():
    with Script(r'interval:ms:5 { printf("%d\n", nsecs); }') as script:
        threading.Timer(0.1, script.stop).start()
        assert len(list(script)) > 3


@pytest.mark.parametrize("leave", ["exception", "break"])
def test_leaving_the_loop_early_detaches(leave):
    before = bpf.held_by(os.getpid())
    script = Script(r'interval:ms:5 { printf("%d\n", nsecs); @ = count(); }')
    script.attach()
    assert len(bpf.held_by(os.getpid()) - before) == 1
    seen = 0
    try:
        for event in script:
            seen += 1
            if seen == 3:
                if leave == "break":
                    break
                raise KeyError("third")
    except KeyError:
        assert leave == "exception"
    gc.collect()
    assert seen == 3 and not script.running
    assert script.maps["@"] >= 3
    assert bpf.held_by(os.getpid()) == before


def test_two_scripts_at_once_count_the_same():
    script = "tracepoint:syscalls:sys_enter_getppid /pid == $1/ { @ = count(); }"
    with Script(script, os.getpid()) as one, Script(script, os.getpid()) as two:
        one.attach()
        two.attach()
        for _ in range(5):
            os.getppid()
        assert one.maps["@"] == two.maps["@"] == 5


def test_asyncio():
    async def collect():
        seen = []
        with Script(r'interval:ms:5 { printf("%d\n", nsecs); }') as script:
            async for event in script:
                seen.append(event)
                if len(seen) == 3:
                    script.stop()
        return seen

    async def both():
        return await asyncio.gather(collect(), collect())
    assert [len(seen) >= 3 for seen in asyncio.run(both())] == [True, True]


def test_a_closed_script_is_over():
    """It neither starts again nor gives events; its maps keep what they were."""
    script = Script("interval:ms:50 { print(1); } BEGIN { @a = 5; @b[1] = 2; }")
    assert script.maps == {}
    script.attach()
    script.close()
    script.close()
    before = bpf.held_by(os.getpid())

    async def events():
        return [event async for event in script]
    for use in (lambda: list(script), script.attach, script.poll, lambda: asyncio.run(events())):
        with pytest.raises(RuntimeError, match="this Script is closed"):
            use()
    assert script.maps == {"@a": 5, "@b": {1: 2}} and not script.running and bpf.held_by(os.getpid()) == before
    with Script("BEGIN { @ = 1; exit(); }") as ended:
        assert list(ended) == [] and list(ended) == []
    assert ended.maps == {"@": 1}
    with pytest.raises(RuntimeError, match="closed"):
        list(ended)


@pytest.mark.parametrize("text, said", [
    ('BEGIN { system("ls"); }', "use unsafe=True to allow it"), ("kprobe:0x1234 { }", "Probing by address requires unsafe=True"),
    ("interval:s:9 { print(dw_ustack()); }", "Use pid= or command= to specify one"),
    ("watchpoint:here:4:w { }", "or with pid= to a symbol of that process")])
def test_advice_is_pythons(text, said):
    """Not the command line's options."""
    with pytest.raises((ScriptError, SourceError)) as caught:
        Script(text).attach()
    assert said in str(caught.value) and not re.search(r"(^|\s)--?[a-z]", str(caught.value))


def test_stop_before_attach_ends_it_at_once():
    with Script("BEGIN { print(1); } interval:ms:5 { print(2); } END { print(3); }") as script:
        script.stop()
        assert [event.value for event in script if event.value != 2] == [1, 3]


def test_close_from_another_thread_ends_the_loop():
    before = bpf.held_by(os.getpid())
    script = Script("interval:ms:5 { @ = count(); print(1); }")
    seen = []
    for event in script:
        if not seen:
            threading.Thread(target=script.close).start()
        seen.append(event)
    assert seen and script.maps["@"] >= len(seen) - 1 and not script.running
    assert bpf.held_by(os.getpid()) == before


@pytest.mark.parametrize("method", ("load", "attach", "poll", "finish"))
@pytest.mark.parametrize("elsewhere", (True, False), ids=("thread", "handler"))
def test_close_in_the_midst_of_anything(monkeypatch, method, elsewhere):
    """Nothing is let go of under the feet of who uses it: not while it attaches, nor at the end."""
    before = bpf.held_by(os.getpid())
    script = Script("BEGIN { @ = 5; print(1); } interval:ms:5 { print(2); exit(); }")
    original, closing = getattr(Session, method), threading.Thread(target=script.close)

    def meanwhile(session, *arguments, **options):
        if script._closed:
            return original(session, *arguments, **options)
        if elsewhere:
            closing.start()
            closing.join(0.05)
        else:
            script.close()
        return original(session, *arguments, **options)
    monkeypatch.setattr(Session, method, meanwhile)
    events = [event.value for event in script]
    if elsewhere:
        closing.join()
    assert events == [1, 2][:len(events)] and not script.running and script.maps == {"@": 5}
    assert bpf.held_by(os.getpid()) == before


def test_maps_of_a_script_that_is_closed_meanwhile(monkeypatch):
    """Their last values."""
    script = Script("BEGIN { @a = 5; @b = 6; } interval:s:100 { }")
    script.attach()
    kind = type(script.compiled.maps["@a"])
    original = kind.value

    def meanwhile(info, *arguments):
        if not script._closed:
            script.close()
        return original(info, *arguments)
    monkeypatch.setattr(kind, "value", meanwhile)
    assert script.maps == {"@a": 5, "@b": 6}


def test_close_from_a_signal_handler_ends_the_loop():
    before = bpf.held_by(os.getpid())
    script = Script("interval:s:100 { }")
    kept = signal.signal(signal.SIGALRM, lambda number, frame: script.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert list(script) == []
    finally:
        signal.signal(signal.SIGALRM, kept)
    assert bpf.held_by(os.getpid()) == before


def test_a_script_that_is_dropped_lets_go_with_a_warning():
    before = bpf.held_by(os.getpid())
    script = Script("interval:s:100 { }")
    script.attach()
    with pytest.warns(ResourceWarning, match="without close"):
        del script
        gc.collect()
    assert bpf.held_by(os.getpid()) == before


def test_events_are_for_one_loop():
    """Two tasks would get some each."""
    async def both():
        with Script("interval:ms:5 { print(1); }") as script:
            async def collect():
                async for event in script:
                    script.stop()
            return await asyncio.gather(collect(), collect(), return_exceptions=True)
    one, two = asyncio.run(both())
    assert one is None and isinstance(two, RuntimeError) and str(two) == "this Script is iterated already"


@pytest.mark.parametrize("text", [b"BEGIN { }", None, 5])
def test_a_script_is_text(text):
    with pytest.raises(TypeError, match="a script is a str, not " + type(text).__name__):
        Script(text)


def test_a_script_is_attached_once():
    with Script("BEGIN { exit(); }") as script:
        list(script)
        with pytest.raises(RuntimeError):
            script.attach()
