"""Types of script values: what bytes mean, how values are written, how types mix.

Expected texts are what bpftrace 0.27.1 prints for the same values.
"""

import json
import struct

import pytest

from rawbpf.tools.trace import types
from rawbpf.tools.trace.types import INT64, UINT32, UINT64, Integer, String, Tuple, literal, promote


def buckets(kind, *numbers):
    counts = [0] * kind.buckets
    for number in numbers:
        counts[kind.bucket(number)] += 1
    return counts


def line(head, count, width):
    return "%-16s%8d |%-52s|\n" % (head, count, "@" * width)


def test_histogram_has_buckets_of_their_own_for_negative_zero_and_one():
    kind = types.Hist()
    assert kind.text(buckets(kind, -3, 0, 1, 9)) == (
        line("(..., 0)", 1, 52) + line("[0]", 1, 52) + line("[1]", 1, 52) + line("[2, 4)", 0, 0)
        + line("[4, 8)", 0, 0) + line("[8, 16)", 1, 52))


def test_histogram_bounds_above_a_thousand_have_binary_suffixes():
    kind = types.Hist()
    assert kind.text(buckets(kind, 2000)) == line("[1K, 2K)", 1, 52)
    assert kind.text(buckets(kind, 1 << 20)) == line("[1M, 2M)", 1, 52)
    assert kind.text(buckets(kind, (1 << 62) + 1)) == line("[4E, 8E)", 1, 52)


def test_histogram_in_json_has_closed_bounds_as_numbers():
    kind = types.Hist()
    assert json.loads(kind.json(buckets(kind, -1, 2000))) == (
        [{"max": -1, "count": 1}, {"min": 0, "max": 0, "count": 0}, {"min": 1, "max": 1, "count": 0}]
        + [{"min": 1 << n, "max": (2 << n) - 1, "count": 0} for n in range(1, 10)]
        + [{"min": 1024, "max": 2047, "count": 1}])


def test_histogram_with_two_bits_divides_each_power_into_four():
    kind = types.Hist(2)
    assert kind.text(buckets(kind, 100)) == line("[96, 112)", 1, 52)
    assert kind.text(buckets(kind, 7)) == line("[7]", 1, 52)
    assert kind.text(buckets(kind, 1000000)) == line("[896K, 1024K)", 1, 52)


@pytest.mark.parametrize("bits", range(6))
def test_every_number_is_within_its_bucket(bits):
    kind = types.Hist(bits)
    for number in [0, 1, 2, 3, 7, 8, 63, 64, 65, 1000, 4096, 123456789, (1 << 40) - 1, 1 << 40, (1 << 63) - 1]:
        low, high = kind.bounds(kind.bucket(number))
        assert low <= number < high
        assert kind.bucket(number) < kind.buckets


def test_linear_histogram_keeps_the_sign_of_its_minimum():
    kind = types.LinearHist(-10, 10, 5)
    assert kind.text(buckets(kind, -7)) == line("[-10, -5)", 1, 52)
    assert kind.text(buckets(kind, -11, 10)) == (
        line("(..., -10)", 1, 52) + line("[-10, -5)", 0, 0) + line("[-5, 0)", 0, 0) + line("[0, 5)", 0, 0)
        + line("[5, 10)", 0, 0) + line("[10, ...)", 1, 52))


def test_bars_are_as_wide_as_their_share_of_the_largest():
    kind = types.LinearHist(0, 3, 1)
    assert kind.text([0, 3, 1, 0, 0]) == line("[0]", 3, 52) + line("[1]", 1, 17)


def test_stats_text_and_json():
    cells = [struct.pack("=qQ", 11, 2), struct.pack("=qQ", -2, 1)]
    value = types.Statistics().reduce(cells)
    assert value == (3, 3, 9)
    assert types.Statistics().text(value) == "{ .count = 3, .average = 3, .total = 9 }"
    assert types.Statistics().json(value) == '{"count": 3, "average": 3, "total": 9}'


def test_averages_round_towards_zero():
    assert types.Average().reduce([struct.pack("=qQ", -13, 2)]) == -6


@pytest.mark.parametrize("kind,number", [(types.Minimum(True), -8), (types.Maximum(True), 3),
                                         (types.Minimum(False), 0), (types.Maximum(False), (1 << 64) - 1)])
def test_extremes_are_kept_so_that_larger_is_better(kind, number):
    numbers = {types.Minimum: min, types.Maximum: max}[type(kind)]
    values = [n for n in (-8, 3, 0, (1 << 64) - 1) if kind.signed == (n < 4) or n in (0, 3)]
    best = max((v & (1 << 64) - 1) ^ kind.mask for v in values)
    cells = [struct.pack("=QQ", best, 1), struct.pack("=QQ", 0, 0)]
    assert kind.reduce(cells) == numbers(values) == number


def test_counts_are_summed_over_cpus_and_wrap_like_64_bits():
    assert types.Count().reduce([struct.pack("=Q", 5), struct.pack("=Q", 7)]) == 12
    assert types.Sum(True).reduce([struct.pack("=q", -5), struct.pack("=q", 3)]) == -2


def test_a_string_that_fills_its_buffer_was_cut():
    assert String(8).decode(b"abcdefgh") == "abcdefgh.."
    assert String(8).decode(b"abcdefg\0") == "abcdefg"
    assert String(8).decode(b"ab\xff\0efgh") == "ab\udcff"


def test_json_strings_can_be_turned_back():
    text = String(8).decode(b"a\"\\\n\x01\xff\0\0")
    assert types.json_string(text) == '"a\\"\\\\\\n\\u0001\\udcff"'
    assert json.loads(types.json_string(text)).encode("utf-8", "surrogateescape") == b"a\"\\\n\x01\xff"


@pytest.mark.parametrize("number,text", [(1 << 53, "9007199254740992"), ((1 << 53) + 1, '"9007199254740993"'),
                                         (1 << 63, "9223372036854775808"), (-5, "-5"),
                                         ((1 << 64) - 1, '"18446744073709551615"')])
def test_numbers_that_a_double_cannot_hold_are_quoted(number, text):
    assert types.json_number(number) == text


def test_tuples_have_spaces_and_arrays_have_none():
    kind = Tuple([INT64, String(4), Tuple([UINT32, UINT32])])
    value = (1, "a", (2, 3))
    assert kind.text(value) == "(1, a, (2, 3))" and kind.json(value) == '[1,"a",[2,3]]'
    assert types.Array(UINT32, 3).text([1, 2, 3]) == "[1,2,3]"


def test_tuples_are_laid_out_like_c_structs():
    kind = Tuple([Integer(1), Integer(8), Integer(2), Integer(4)])
    assert (kind.offsets, kind.size) == ([0, 8, 16, 20], 24)


def test_keys_in_text_and_json():
    kind = Tuple([String(4), INT64])
    assert types.key_text(kind, ("a b", 1)) == "a b, 1"
    assert types.json_keys(kind, [("a b", 1)]) == ['"ab,1"']


def test_different_keys_never_get_one_name_in_json():
    kind = Tuple([String(4), String(4)])
    names = types.json_keys(kind, [("a,b", "c"), ("a", "b,c"), ("x", "y")])
    assert names[2] == '"x,y"' and names[0] != names[1]
    assert [json.loads(json.loads(name)) for name in names[:2]] == [["a,b", "c"], ["a", "b,c"]]


def test_bytes_as_buffers_print_them():
    data = bytes([0, 65, 126, 127, 255])
    assert types.hex_buffer(data) == "\\x00A~\\x7f\\xff"
    assert types.hex_buffer(data, keep_ascii=False) == "\\x00\\x41\\x7e\\x7f\\xff"
    assert types.hex_buffer(data, escape=False) == "00 41 7e 7f ff"
    assert types.Buffer(8).json(data) == "[0,65,126,127,-1]"


@pytest.mark.parametrize("value,name", [(0, "int8"), (127, "int8"), (128, "int16"), (-129, "int16"), (70000, "int32"),
                                        (1 << 31, "int64"), (1 << 63, "uint64")])
def test_literals_have_the_smallest_signed_type(value, name):
    assert literal(value).name == name


@pytest.mark.parametrize("left,right,result", [
    (Integer(1), Integer(8), "int64"), (UINT32, Integer(4), "int64"), (Integer(2, False), Integer(1), "int32"),
    (UINT64, Integer(1), "int64"), (UINT64, literal(5), "uint64"), (literal(5), UINT32, "uint32"),
    (literal(300), Integer(1), "int16")])
def test_integers_of_different_types_meet_in_one_that_holds_both(left, right, result):
    assert promote(left, right).name == result


def test_types_that_do_not_mix():
    assert promote(INT64, String(4)) is None
    assert promote(Tuple([INT64]), Tuple([INT64, INT64])) is None
    assert promote(String(4), String(9)).size == 9


def test_a_time_series_is_drawn_as_bpftrace_draws_it():
    """A zigzag of bpftrace's documentation, and an interval without a value."""
    from rawbpf.tools.trace.timeseries import Series, TimeSeries
    kind = TimeSeries(10 ** 8, 20, "", True)
    points = [(1700000000 * 10 ** 9 + i * 10 ** 8, value) for i, value in enumerate([-5, -4, 0, 1, 5, None])]
    lines = kind.text(Series(points)).split("\n")
    assert lines[0] == "             -5                                                  5"
    assert lines[1] == "hh:mm:ss.ms  |___________________________________________________|"
    drawn = [line[12:] for line in lines[2:8]]
    assert drawn == [" *                         .                         | -5", " |    *                    .                         | -4",
                     " |                         *                         | 0", " |                         .    *                    | 1",
                     " |                         .                         * 5", " |                         .                         | -"]
    assert lines[2][8:12] == ".000" and lines[5][8:12] == ".300"
    assert lines[8:] == ["             v___________________________________________________v",
                         "             -5                                                  5", ""]
    assert kind.text(Series([])) == "<no data>"
