"""Parsing of tracefs format texts. Offsets, sizes and signs are those of the texts."""

import pytest

from rawbpf.asm import ir
from rawbpf.elf import types
from rawbpf.elf.image import ElfError
from rawbpf.sources import SourceError, trace_format
from rawbpf.sources.tracepoint import TracepointPoint

COMMON = """name: %s
ID: 314
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

%s
print fmt: "x: %%d", REC->x
"""


def line(declaration, offset, size, signed):
    return "\tfield:%s;\toffset:%d;\tsize:%d;\tsigned:%d;\n" % (declaration, offset, size, signed)


def parse(*fields, name="event"):
    return trace_format.parse(COMMON % (name, "".join(line(*f) for f in fields)), name)


def test_system_call_slots():
    """Four-byte types in eight-byte slots: the slot counts (reports: sys_enter_kill)."""
    form = parse(("int __syscall_nr", 8, 4, 1), ("pid_t pid", 16, 8, 0), ("int sig", 24, 8, 0))
    assert form.id == 314 and form.size == 32
    assert [(f.name, f.offset, f.size, f.signed) for f in form.fields] == [
        ("__syscall_nr", 8, 4, True), ("pid", 16, 8, False), ("sig", 24, 8, False)]
    assert [f.name for f in form.common] == ["common_type", "common_flags", "common_preempt_count",
                                             "common_pid"]
    pid = trace_format.field_type(form.fields[1])
    assert (pid.name, pid.size, pid.signed) == ("pid_t", 8, False)


def test_gap_of_a_real_time_kernel():
    """One-byte fields at 8 and 9, then char[16] at 12: the undocumented gap stays a gap."""
    form = parse(("unsigned char common_migrate_disable", 8, 1, 0),
                 ("unsigned char common_preempt_lazy_count", 9, 1, 0),
                 ("char comm[16]", 12, 16, 0), ("pid_t pid", 28, 4, 1))
    comm, pid = form.fields[2:]
    assert (comm.offset, comm.size, comm.count, comm.scalar) == (12, 16, 16, False)
    assert (pid.offset, pid.size, pid.signed) == (28, 4, True)


def test_dynamic_fields():
    form = parse(("__data_loc char[] filename", 8, 4, 0), ("__rel_loc u8[] blob", 12, 4, 0),
                 ("__data_loc cpumask_t mask", 16, 4, 0))
    assert [(f.name, f.loc, f.type_text, f.scalar) for f in form.fields] == [
        ("filename", "data_loc", "char", False), ("blob", "rel_loc", "u8", False),
        ("mask", "data_loc", "cpumask_t", False)]
    filename = trace_format.field_type(form.fields[0])
    assert isinstance(filename, types.Array) and filename.count == 0
    assert filename.element.encoding == "char"


def test_arrays():
    form = parse(("unsigned long args[6]", 16, 48, 0), ("char comm[TASK_COMM_LEN]", 64, 16, 1),
                 ("u32 grid[2][3]", 80, 24, 0), ("struct in6_addr addr", 104, 16, 0),
                 ("__u8 saddr[4]", 120, 4, 0))
    shapes = [(f.name, f.count, trace_format.field_type(f).size) for f in form.fields]
    assert shapes == [("args", 6, 48), ("comm", 16, 16), ("grid", 6, 24), ("addr", -1, 16),
                      ("saddr", 4, 4)]
    assert trace_format.field_type(form.fields[0]).element.size == 8
    assert not form.fields[3].scalar


def test_types():
    form = parse(("const char * name", 8, 8, 0), ("enum zone_type zone", 16, 4, 0),
                 ("struct sk_buff * skb", 24, 8, 0), ("bool on", 32, 1, 0),
                 ("const void * * pages", 40, 8, 0), ("unsigned int x:3", 48, 4, 0))
    name, zone, skb, on, pages, bits = map(trace_format.field_type, form.fields)
    assert types.declaration(name) == "const char *"
    assert isinstance(zone, types.Enum) and zone.name == "zone_type" and zone.size == 4
    assert types.strip(skb.target).name == "sk_buff"
    assert on.encoding == "bool"
    assert isinstance(pages.target, types.Pointer)
    assert form.fields[5].bits == 3


def test_pointers_of_another_machine():
    """A 32-bit target's pointer is one 4-byte load where the format says it is."""
    form = parse(("int __syscall_nr", 8, 4, 1), ("const char * filename", 12, 4, 0))
    assert trace_format.field_type(form.fields[1]).size == 4
    point = TracepointPoint(None, "syscalls", "sys_enter_open")
    point._format = form
    f = ir.Function("f")
    point.field(f, f.params[0], point.arguments().fields[1])
    loads = [op.info for op in f.current.ops if op.kind == "load"]
    assert loads == [(12, 4, False)]


def test_declarations_are_the_files_words():
    text = COMMON % ("e", line("int __syscall_nr", 8, 4, 1) + line("const char * filename", 16, 8, 0))
    assert trace_format.declarations(text) == ["int __syscall_nr", "const char * filename"]


def test_layouts_compare():
    one = parse(("int a", 8, 4, 1), name="one")
    same = parse(("int a", 8, 4, 1), name="two")
    moved = parse(("int a", 12, 4, 1), name="three")
    assert one.layout == same.layout != moved.layout


@pytest.mark.parametrize("text", ["", "name: x\n", COMMON % ("x", "\tfield:int;\toffset:8;\n"),
                                  (COMMON % ("x", "")).replace("ID: 314", "ID: none")])
def test_what_is_no_format(text):
    with pytest.raises(SourceError):
        trace_format.parse(text)


def test_unaligned_field_is_read_in_pieces():
    """The verifier wants loads from a tracepoint's record aligned to their size."""
    form = parse(("u64 odd", 12, 8, 0), ("int four", 22, 4, 1))
    point = TracepointPoint(None, "g", "e")
    point._format = form
    f = ir.Function("f")
    for each in point.arguments().fields:
        point.field(f, f.params[0], each)
    loads = [op.info[:2] for op in f.current.ops if op.kind == "load"]
    assert loads == [(12, 4), (16, 4), (22, 2), (24, 2)]


@pytest.mark.slow
def test_damaged_texts():
    """RAWBPF_FUZZ says how many, as in tests/elf/test_fuzz.py."""
    from tests.elf.test_fuzz import ROUNDS, campaign

    text = (COMMON % ("event", line("__data_loc char[] name", 8, 4, 0) + line("u8 raw[16]", 12, 16, 0) + line(
        "const struct sockaddr * addr", 32, 8, 0) + line("enum hrtimer_mode mode", 40, 4, 0))).encode()

    def use(broken):
        try:
            for field in trace_format.parse(broken.decode("utf-8", "replace")).fields:
                trace_format.field_type(field)
        except SourceError as error:
            assert error.reason
            raise ElfError("format", None, error.reason) from None

    assert campaign(text, [(0, len(text))], use) > ROUNDS / 10
