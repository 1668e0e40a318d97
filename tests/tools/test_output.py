"""Results as text and as JSON. The expected strings are what bpftrace 0.27.1 printed for the script in
each test's comment; where bpftrace's JSON is not JSON or loses a key, the form is ours and says so."""

import json
import os
import threading

import pytest

from rawbpf.tools.trace import results, types
from rawbpf.tools.trace.compiled import Batch
from rawbpf.tools.trace.diagnostics import Source, Span
from rawbpf.tools.trace.writer import ClosedPipe, OutputError, Writer

INT = types.Integer(8)
STRING = types.String(64)


def hist(*numbers):
    """Buckets of hist() for numbers that are negative (bucket 0), zero or powers of two and above."""
    counts = [0] * types.Hist().buckets
    for number in numbers:
        counts[0 if number < 0 else 1 if number == 0 else number.bit_length() + 1] += 1
    return counts


def both(result):
    return result.text(), result.json()


# BEGIN { @a = 1; @b[1] = 2; @b[2] = 1; exit(); }
def test_maps_of_numbers():
    assert both(results.MapResult("@a", None, INT, [(None, 1)])) == (
        "@a: 1\n", '{"type": "map", "data": {"@a": 1}}\n')
    assert both(results.MapResult("@b", INT, INT, [(2, 1), (1, 2)])) == (
        "@b[2]: 1\n@b[1]: 2\n", '{"type": "map", "data": {"@b": {"2": 1, "1": 2}}}\n')


def test_a_map_without_rows_is_silent():
    assert both(results.MapResult("@a", None, INT, [])) == ("", "")
    assert both(results.MapResult("@a", INT, types.Hist(), [])) == ("", "")


# BEGIN { @["ab", "c"] = 2; } and the same with numbers
def test_keys_of_several_values():
    key = types.Tuple([STRING, INT])
    assert both(results.MapResult("@", key, INT, [(("a b", 3), 2)])) == (
        "@[a b, 3]: 2\n", '{"type": "map", "data": {"@": {"ab,3": 2}}}\n')


# BEGIN { @["a,b", "c"] = 1; @["a", "b,c"] = 2; }: bpftrace writes the key "a,b,c" twice
def test_keys_that_would_be_one_in_json_stay_two():
    key = types.Tuple([STRING, STRING])
    line = results.MapResult("@", key, INT, [(("a,b", "c"), 1), (("a", "b,c"), 2), (("x", "y"), 3)]).json()
    pairs = json.loads(line, object_pairs_hook=list)[1][1][0][1]
    assert [value for _, value in pairs] == [1, 2, 3]
    assert len({name for name, _ in pairs}) == 3
    assert pairs[2][0] == "x,y"


# BEGIN { @h[1] = hist(5); @h[1] = hist(500); @h[2] = hist(1); }
def test_histograms_of_a_keyed_map():
    result = results.MapResult("@h", INT, types.Hist(), [(2, hist(1)), (1, hist(5, 500))])
    full, none = "@" * 52, " " * 52
    assert result.text() == (
        "@h[2]:\n"
        "[1]                    1 |%s|\n"
        "\n"
        "@h[1]:\n"
        "[4, 8)                 1 |%s|\n"
        "[8, 16)                0 |%s|\n"
        "[16, 32)               0 |%s|\n"
        "[32, 64)               0 |%s|\n"
        "[64, 128)              0 |%s|\n"
        "[128, 256)             0 |%s|\n"
        "[256, 512)             1 |%s|\n"
        "\n" % (full, full, none, none, none, none, none, full))
    assert result.json() == (
        '{"type": "hist", "data": {"@h": {"2": [{"min": 1, "max": 1, "count": 1}], "1": ['
        '{"min": 4, "max": 7, "count": 1},{"min": 8, "max": 15, "count": 0},{"min": 16, "max": 31, "count": 0},'
        '{"min": 32, "max": 63, "count": 0},{"min": 64, "max": 127, "count": 0},'
        '{"min": 128, "max": 255, "count": 0},{"min": 256, "max": 511, "count": 1}]}}}\n')


# BEGIN { @l = lhist(5, 0, 10, 2); @l = lhist(50, 0, 10, 2); @l = lhist(-50, 0, 10, 2); }
def test_linear_histogram():
    result = results.MapResult("@l", None, types.LinearHist(0, 10, 2), [(None, [1, 0, 0, 1, 0, 0, 1])])
    full, none = "@" * 52, " " * 52
    assert result.text() == (
        "@l:\n"
        "(..., 0)               1 |%s|\n"
        "[0, 2)                 0 |%s|\n"
        "[2, 4)                 0 |%s|\n"
        "[4, 6)                 1 |%s|\n"
        "[6, 8)                 0 |%s|\n"
        "[8, 10)                0 |%s|\n"
        "[10, ...)              1 |%s|\n"
        "\n" % (full, none, none, full, none, none, full))
    assert result.json() == (
        '{"type": "hist", "data": {"@l": [{"max": -1, "count": 1},{"min": 0, "max": 1, "count": 0},'
        '{"min": 2, "max": 3, "count": 0},{"min": 4, "max": 5, "count": 1},{"min": 6, "max": 7, "count": 0},'
        '{"min": 8, "max": 9, "count": 0},{"min": 10, "count": 1}]}}\n')


# BEGIN { @a = avg(5); @a = avg(8); @st = stats(3); @st = stats(-9); @ks[1] = stats(3); @ma[3] = max(-3); }
def test_statistics():
    assert both(results.MapResult("@a", None, types.Average(), [(None, 6)])) == (
        "@a: 6\n", '{"type": "stats", "data": {"@a": 6}}\n')
    assert both(results.MapResult("@st", None, types.Statistics(), [(None, types.Stats(2, -3, -6))])) == (
        "@st: { .count = 2, .average = -3, .total = -6 }\n",
        '{"type": "stats", "data": {"@st": {"count": 2, "average": -3, "total": -6}}}\n')
    assert both(results.MapResult("@ks", INT, types.Statistics(), [(1, types.Stats(1, 3, 3))])) == (
        "@ks[1]: { .count = 1, .average = 3, .total = 3 }\n",
        '{"type": "stats", "data": {"@ks": {"1": {"count": 1, "average": 3, "total": 3}}}}\n')
    assert both(results.MapResult("@ma", INT, types.Maximum(), [(3, -3)])) == (
        "@ma[3]: -3\n", '{"type": "map", "data": {"@ma": {"3": -3}}}\n')


# interval:s:9 { @a = avg(3); } that never fired
def test_statistics_that_never_were_are_an_empty_object_in_json():
    assert both(results.MapResult("@a", None, types.Average(), [])) == (
        "", '{"type": "stats", "data": {"@a": {}}}\n')


# BEGIN { print(1); print("a"); print((1, 2, "c")); print(true); time("%H\n"); printf("hi\n"); }
def test_values():
    assert both(results.Value(INT, 1)) == ("1\n", '{"type": "value", "data": 1}\n')
    assert both(results.Value(STRING, "a")) == ("a\n", '{"type": "value", "data": "a"}\n')
    assert both(results.Value(types.Tuple([INT, INT, STRING]), (1, 2, "c"))) == (
        "(1, 2, c)\n", '{"type": "value", "data": [1,2,"c"]}\n')
    assert both(results.Value(types.Boolean(), True)) == ("true\n", '{"type": "value", "data": true}\n')
    assert both(results.Time("13\n")) == ("13\n", '{"type": "time", "data": "13\\n"}\n')
    assert both(results.Printf("hi\n")) == ("hi\n", '{"type": "printf", "data": "hi\\n"}\n')
    assert both(results.Join("")) == ("\n", '{"type": "join", "data": ""}\n')


def test_numbers_that_no_double_holds_are_strings_in_json():
    assert results.Value(INT, (1 << 53) + 1).json() == '{"type": "value", "data": "9007199254740993"}\n'
    assert results.Value(INT, 1 << 62).json() == '{"type": "value", "data": 4611686018427387904}\n'


# bpftrace turns the last byte into \uffffffff, which is no JSON
def test_bytes_that_are_no_utf8_can_be_turned_back():
    text = b"q\"\\\n\x01\xff\xc3\xa9".decode("utf-8", "surrogateescape")
    line = results.Printf(text).json()
    assert line == '{"type": "printf", "data": "q\\"\\\\\\n\\u0001\\udcffé"}\n'
    assert json.loads(line)["data"].encode("utf-8", "surrogateescape") == b"q\"\\\n\x01\xff\xc3\xa9"
    assert line.encode()      # no lone surrogate is left in the line


def test_what_is_said_about_the_trace():
    assert both(results.AttachedProbes(1)) == (
        "Attached 1 probe\n", '{"type": "attached_probes", "count": 1, "data": {"probes": 1}}\n')
    assert results.AttachedProbes(2).text() == "Attached 2 probes\n"
    assert both(results.LostEvents(7)) == (
        "Lost 7 events\n", '{"type": "lost_events", "count": 7, "data": {"events": 7}}\n')
    assert both(results.End()) == ("\n\n", "")


# BEGIN { errorf("bad %d\n", 1); }
def test_messages_have_a_place():
    span = Span(Source("stdin", 'BEGIN { errorf("bad %d\n", 1); }'), 8, 22)
    result = results.Message("bad 1\n", "ERROR", span)
    assert result.text().endswith(": ERROR: bad 1\n")
    assert result.json() == '{"type": "errorf", "msg": "bad 1\\n", "filename": "stdin", "line": 1, "col": 9}\n'


def test_a_full_map_says_how_much_and_what_to_do():
    result = results.Failures("map", "@", 4, 8)
    assert "@" in result.text() and "4 updates" in result.text() and "max_map_keys" in result.text()
    data = json.loads(result.json())
    assert data["type"] == "map_full" and data["data"] == {"count": 4, "map": "@", "max_entries": 8}


class Sink:
    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data

    def settle(self):
        pass


def test_the_text_form_goes_to_two_streams_and_json_to_one():
    out, err = Sink(), Sink()
    for renderer in (results.TextRenderer(out, err), results.JsonRenderer(out, err)):
        renderer.emit(results.AttachedProbes(1))
        renderer.emit(results.Printf("\udcff\n"))
    assert err.data == b"Attached 1 probe\n"
    assert out.data == (b'\xff\n{"type": "attached_probes", "count": 1, "data": {"probes": 1}}\n'
                        b'{"type": "printf", "data": "\\udcff\\n"}\n')


def test_json_of_a_batch_is_the_json_of_each():
    template = results.JsonRenderer(Sink(), Sink()).batch(Batch("8xqq", 'say "%d" 100%% %-4d\n'))
    assert template % (1, -2) == results.Printf('say "1" 100% -2  \n').json()
    # text may need escapes that the template would count as characters
    assert results.JsonRenderer(Sink(), Sink()).batch(Batch("8x16s", "%s\n", {0: bytes})) is None


@pytest.fixture
def pipe():
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    for fd in (read, write):
        try:
            os.close(fd)
        except OSError:
            continue


def pending(fd):
    try:
        return os.read(fd, 100000)
    except BlockingIOError:
        return b""


def test_line_buffering_waits_for_a_line_and_the_end_of_a_batch(pipe):
    writer = Writer(pipe[1], "line")
    writer.write(b"a")
    writer.settle()
    assert pending(pipe[0]) == b""
    writer.write(b"b\nc")
    assert pending(pipe[0]) == b""
    writer.settle()
    assert pending(pipe[0]) == b"ab\nc"


def test_no_buffering_writes_at_once_and_full_buffering_at_the_end(pipe):
    Writer(pipe[1], "none").write(b"a")
    assert pending(pipe[0]) == b"a"
    writer = Writer(pipe[1], "full")
    writer.write(b"a\n")
    writer.settle()
    assert pending(pipe[0]) == b""
    writer.flush()
    assert pending(pipe[0]) == b"a\n"


def test_the_error_stream_comes_after_what_was_written_before_it(pipe):
    out = Writer(pipe[1], "line")
    out.write(b"first ")
    Writer(pipe[1], "none", before=out).write(b"second")
    assert pending(pipe[0]) == b"first second"


def test_a_closed_pipe_is_an_exception_of_its_own(pipe):
    os.close(pipe[0])
    with pytest.raises(ClosedPipe):
        Writer(pipe[1], "none").write(b"a")


def test_a_full_disk_is_an_error_and_a_full_pipe_is_waited_for(pipe):
    with open("/dev/full", "wb") as full, pytest.raises(OutputError, match="No space left on device"):
        Writer(full.fileno(), "none").write(b"a")
    os.set_blocking(pipe[1], False)
    os.set_blocking(pipe[0], True)
    data = os.urandom(300000)
    thread = threading.Thread(target=Writer(pipe[1], "none").write, args=(data,))
    thread.start()
    got = b""
    while len(got) < len(data):
        got += os.read(pipe[0], 65536)
    thread.join()
    assert got == data
