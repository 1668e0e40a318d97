"""Every tracepoint format of the running kernel beside BTF's struct of the same record, which the compiler made
from the same macros; and a fixture of each odd form."""

import pytest

from rawbpf import sources
from rawbpf.elf import types
from rawbpf.sources import SourceError, kernel_btf, trace_format
from rawbpf.sources.tracepoint import TracepointPoint


def record_structs():
    """{event: Struct} of trace_event_raw_EVENT, in vmlinux and modules. A struct serves every event of its class;
    here those that have the class's own name."""
    found = {}
    for module in kernel_btf.modules():
        btf = kernel_btf.of(module)
        for name, number in btf.names("struct") if btf is not None else ():
            if name.startswith("trace_event_raw_"):
                found.setdefault(name[len("trace_event_raw_"):], btf.type(number))
    return found


def members(struct):
    """{name: (field, loc)} of a record's own members, with the markers of dynamic ones taken off."""
    found = {}
    for field in struct.fields:
        name, loc = field.name, ""
        for prefix in ("data_loc", "rel_loc"):
            if name.startswith("__%s_" % prefix):
                name, loc = name[len(prefix) + 3:], prefix
        found[name] = (field, loc)
    return found


@pytest.mark.kernel
def test_formats_agree_with_btf():
    structs = record_structs()
    events = fields = 0
    for listed in sources.list_events("tracepoint:*"):
        _, group, event = listed.text.split(":")
        struct = structs.get(event)
        if struct is None or group in ("syscalls", "ftrace"):
            continue
        (point,) = sources.expand(listed.text)
        theirs = members(struct)
        if not {f.name for f in point.format.fields} <= set(theirs):
            continue  # another event's class has this name
        events += 1
        for field in point.format.fields:
            member, loc = theirs[field.name]
            where = (listed.text, field)
            assert member.offset == field.offset, where
            assert loc == field.loc, where
            bare = types.strip(member.type)
            size = bare.size if not isinstance(bare, types.Array) else types.strip(bare.element).size * bare.count
            assert size == field.size, where
            if loc or not field.scalar:
                continue
            fields += 1
            if isinstance(bare, types.Int) and not bare.encoding and field.count < 0:
                assert bare.signed == field.signed, where
            if isinstance(types.strip(trace_format.field_type(field)), types.Pointer):  # a typedef hides one
                assert isinstance(bare, types.Pointer), where
    print("%d events, %d scalar fields agree" % (events, fields))
    assert events > 80 and fields > 250


HEAD = """name: odd
ID: 7
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

"""


def parse(*lines):
    text = HEAD + "".join("\tfield:%s;\toffset:%d;\tsize:%d;\tsigned:%d;\n" % line for line in lines)
    return trace_format.parse(text + '\nprint fmt: "%d", REC->x\n')


@pytest.mark.parametrize("declaration, offset, size, signed, name, count, loc, type_text", [
    ("u8 mac[6]", 9, 6, 0, "mac", 6, "", "u8"),                      # odd alignment
    ("char name[IFNAMSIZ]", 15, 16, 1, "name", 16, "", "char"),      # a length with a name
    ("__be32 addr[2][4]", 32, 32, 0, "addr", 8, "", "__be32"),
    ("__data_loc char[] msg", 64, 4, 1, "msg", 0, "data_loc", "char"),
    ("__data_loc u8[] data", 68, 4, 0, "data", 0, "data_loc", "u8"),
    ("__rel_loc char[] path", 72, 4, 1, "path", 0, "rel_loc", "char"),
    ("__rel_loc unsigned long[] ips", 76, 4, 0, "ips", 0, "rel_loc", "unsigned long"),
    ("__data_loc struct sockaddr_storage[] peer", 80, 4, 0, "peer", 0, "data_loc", "struct sockaddr_storage"),
    ("__data_loc cpumask_t * mask", 84, 4, 0, "mask", 0, "data_loc", "cpumask_t *"),
    ("enum kmem_cache_flag flag", 88, 1, 0, "flag", -1, "", "enum kmem_cache_flag"),
    ("unsigned long long int wide", 96, 8, 0, "wide", -1, "", "unsigned long long int"),
    ("const struct file_operations * const ops", 104, 8, 0, "ops", -1, "", "const struct file_operations * const"),
    ("const char *const *argv", 112, 8, 0, "argv", -1, "", "const char *const *"),
    ("struct in6_addr daddr", 120, 16, 0, "daddr", -1, "", "struct in6_addr"),
    ("unsigned char bits:4", 136, 1, 0, "bits", -1, "", "unsigned char"),
    ("sigset_t blocked", 144, 8, 0, "blocked", -1, "", "sigset_t"),
])
def test_a_field_of_each_form(declaration, offset, size, signed, name, count, loc, type_text):
    (field,) = parse((declaration, offset, size, signed)).fields
    assert (field.name, field.count, field.loc, field.type_text) == (name, count, loc, type_text)
    assert (field.offset, field.size, field.signed) == (offset, size, bool(signed))
    typed = trace_format.field_type(field)
    if loc:
        assert isinstance(typed, types.Array) and typed.count == 0
    else:
        assert typed.size == size


def test_a_bit_field_is_no_number_here():
    """A format says how wide it is, not which bits: refused by name instead of read wrong."""
    point = TracepointPoint(sources.find("tracepoint"), "odd", "odd")
    point._format = parse(("unsigned char a:4", 8, 1, 0), ("unsigned char b:4", 8, 1, 0), ("int c", 12, 4, 1))
    from rawbpf.asm import ir

    f = ir.Function("f")
    a, b, c = point.arguments().fields
    point.field(f, f.params[0], c)
    for field in (a, b):
        with pytest.raises(SourceError, match="does not say which bits"):
            point.field(f, f.params[0], field)


@pytest.mark.parametrize("text", [
    "\tfield:u32 x;\toffset:8;\tsize:4;\n",                          # before 2.6.3x there was no sign
    "\tfield:u32 x;\toffset:8;\tsize:4;\tsigned:0;\r\n",
    "\tfield:u32 x; offset:8; size:4; signed:0;\n"])
def test_spellings_of_a_line(text):
    (field,) = trace_format.parse(HEAD + text + "\nprint fmt: \"\"\n").fields
    assert (field.name, field.offset, field.size) == ("x", 8, 4)
