import struct

import pytest

from rawbpf.elf import types
from rawbpf.elf.btf import Btf, DataSection, SectionVariable, Variable
from rawbpf.elf.image import ElfError
from rawbpf.elf.types import declaration, definition, find_field, strip, tags
from tests.elf.blob import Blob


def sample(order="<"):
    """One type of each kind, and where they are."""
    b, ids = Blob(order=order), {}
    ids["int"] = b.int("int", 4, 1)
    ids["char"] = b.int("char", 1, 3)
    ids["bool"] = b.int("_Bool", 1, 4)
    ids["u64"] = b.int("long long unsigned int", 8)
    ids["const char"] = b.add(10, "", ids["char"])
    ids["const char *"] = b.ptr(ids["const char"])
    ids["user"] = b.add(18, "user", ids["char"])
    ids["user *"] = b.ptr(ids["user"])
    ids["char[16]"] = b.array(ids["char"], 16)
    ids["int[2]"] = b.array(ids["int"], 2)
    ids["int[3][2]"] = b.array(ids["int[2]"], 3)
    ids["pid_t"] = b.add(8, "pid_t", ids["int"])
    ids["volatile pid_t"] = b.add(9, "", ids["pid_t"])
    ids["color"] = b.enum("color", [("RED", 0), ("BLUE", -1 & 0xffffffff)], signed=1)
    ids["big"] = b.enum64("big", [("HUGE_ONE", 1 << 40), ("TOP", (1 << 64) - 1)])
    ids["fwd"] = b.add(7, "elsewhere")
    ids["fwd union"] = b.add(7, "other", flag=1)
    ids["fwd *"] = b.ptr(ids["fwd"])
    ids["inner"] = b.struct("", 8, [("a", ids["int"], 0), ("b", ids["int"], 32)])
    ids["node"] = b.next
    b.struct("node", 40, [("next", ids["node"] + 1, 0), ("", ids["inner"], 64), ("name", ids["char[16]"], 128),
                          ("state", ids["volatile pid_t"], 256)])
    b.ptr(ids["node"])
    ids["flags"] = b.struct("flags", 8, [("low", ids["int"], 0, 3), ("mid", ids["int"], 3, 5), ("high", ids["int"], 8, 24),
                                         ("plain", ids["int"], 32, 0)])
    ids["either"] = b.struct("either", 8, [("n", ids["u64"], 0), ("s", ids["char[16]"], 0)], kind=5)
    ids["proto"] = b.proto(ids["int"], [("path", ids["const char *"]), ("", ids["u64"]), ("", 0)])
    ids["open"] = b.add(12, "open", ids["proto"])
    ids["proto *"] = b.ptr(ids["proto"])
    ids["float"] = b.add(16, "double", 8)
    ids["var"] = b.add(14, "counter", ids["u64"], [1])
    ids["sec"] = b.add(15, ".bss", 8, [ids["var"], 0, 8], 1)
    ids["tag"] = b.add(17, "kfunc", ids["open"], [-1])
    ids["arg tag"] = b.add(17, "nullable", ids["open"], [0])
    return b, ids


@pytest.fixture(params="<>", ids=("little", "big"))
def btf(request):
    b, ids = sample(request.param)
    parsed = Btf.parse(b.bytes())
    parsed.ids = ids
    return parsed


def test_declarations(btf):
    expected = {"int": "int x", "const char *": "const char *x", "char[16]": "char x[16]", "int[3][2]": "int x[3][2]",
                "pid_t": "pid_t x", "volatile pid_t": "volatile pid_t x", "color": "enum color x", "node": "struct node x",
                "either": "union either x", "proto *": "int (*x)(const char *path, long long unsigned int, ...)",
                "user *": "char *x", "fwd *": "struct elsewhere *x", "float": "double x", "inner": "struct {...} x"}
    assert {name: declaration(btf.type(btf.ids[name]), "x") for name in expected} == expected
    assert declaration(btf.type(btf.ids["open"])) == "int open(const char *path, long long unsigned int, ...)"


def test_scalars(btf):
    t = lambda name: btf.type(btf.ids[name])
    assert (t("int").size, t("int").signed, t("int").encoding) == (4, True, "")
    assert (t("char").encoding, t("char").signed, t("bool").encoding) == ("char", True, "bool")
    assert (t("u64").size, t("u64").signed) == (8, False)
    assert t("color").values == {"RED": 0, "BLUE": -1}
    assert t("big").values == {"HUGE_ONE": 1 << 40, "TOP": (1 << 64) - 1} and t("big").size == 8
    assert strip(t("volatile pid_t")) == t("int")
    assert tags(t("user *")) == {"user"} and tags(t("const char *")) == set()
    assert t("int[3][2]").size == 24
    assert (t("float").name, t("float").size) == ("double", 8)


def test_signed_char_is_signed_where_btf_does_not_say_so():
    b = Blob()
    ids = [b.int("signed char", 1, 0), b.int("signed char", 1, 1), b.int("unsigned char", 1, 0)]
    btf = Btf.parse(b.bytes())
    assert [btf.type(number).signed for number in ids] == [True, True, False]


def test_struct(btf):
    node = btf.find("node", "struct")
    assert (node.size, [(f.name, f.offset) for f in node.fields]) == (40, [("next", 0), ("", 8), ("name", 16), ("state", 32)])
    assert find_field(node, "b").offset == 12 and find_field(node, "nothing") is None
    assert node.fields[0].type.target is node
    assert btf.find("either").kind == "union"
    forward = btf.type(btf.ids["fwd union"])
    assert (forward.kind, forward.forward, forward.fields) == ("union", True, ())


def test_bit_fields(btf):
    low, mid, high, plain = btf.find("flags", "struct").fields
    assert [(f.offset, f.bit_offset, f.bit_size) for f in (low, mid, high)] == [(0, 0, 3), (0, 3, 5), (0, 8, 24)]
    assert (plain.offset, plain.bit_size) == (4, None)


def test_old_bit_fields():
    # before the kind flag an int type carried the number of bits
    b = Blob()
    three, whole = b.int("unsigned int", 4, bits=3), b.int("unsigned int", 4)
    b.struct("old", 8, [("a", three, 0), ("b", three, 35), ("c", whole, 32)])
    a, odd, c = Btf.parse(b.bytes()).find("old").fields
    assert [(f.offset, f.bit_offset, f.bit_size) for f in (a, odd, c)] == [(0, 0, 3), (4, 3, 3), (4, 0, None)]


def test_a_bit_field_that_crosses_its_unit():
    b = Blob()
    unit = b.int("unsigned int", 4)
    b.struct("packed", 8, [("a", unit, 0, 20), ("b", unit, 20, 20)])
    field = Btf.parse(b.bytes()).find("packed").fields[1]
    assert field.offset * 8 + field.bit_offset == 20 and field.bit_size == 20


def test_functions_variables_sections_tags(btf):
    function = btf.find("open", "func")
    assert [p.name for p in function.parameters] == ["path", ""] and function.variadic
    assert function.returns == btf.type(btf.ids["int"])
    assert list(btf.functions()) == [("open", btf.ids["open"])]
    assert btf.find("counter", "var") == Variable("counter", btf.type(btf.ids["u64"]), "global")
    assert btf.find(".bss", "datasec") == DataSection(".bss", 8, [SectionVariable(btf.ids["var"], 0, 8)])
    assert btf.tags(btf.ids["open"]) == [(-1, "kfunc"), (0, "nullable")]


def test_lookups(btf):
    assert btf.find_id("node") == btf.ids["node"] and btf.find_id("node", "union") == 0
    assert btf.find("HUGE_ONE") is None and btf.enumerator("HUGE_ONE") == 1 << 40
    assert btf.enumerator("BLUE") == -1 and btf.enumerator("node") is None and btf.enumerator("") is None
    value, enum = btf.enumeration("BLUE")
    assert value == -1 and enum.values["BLUE"] == -1 and btf.enumeration("node") is None
    assert btf.find("big", "enum").size == 8
    assert btf.find("") is None and btf.find("nod") is None and btf.find("ode") is None
    assert btf.kind(btf.ids["fwd"]) == "fwd" and btf.name(btf.ids["fwd"]) == "elsewhere"
    assert btf.kind(0) == "void" and btf.name(0) == "" and isinstance(btf.type(0), types.Void)
    assert btf.count == btf.ids["arg tag"] + 1


def test_definition(btf):
    assert definition(btf.find("node")) == """struct node {
	struct node *next;
	struct {
		int a;
		int b;
	};
	char name[16];
	volatile pid_t state;
}"""
    assert "\tint mid: 5;\n" in definition(btf.find("flags"))
    assert definition(btf.find("color")) == "enum color {\n\tRED = 0,\n\tBLUE = -1,\n}"
    assert definition(btf.find("pid_t")) == "typedef int pid_t"


def test_a_forward_declaration_finds_its_definition():
    b = Blob()
    pointer = b.ptr(b.add(7, "late"))
    number = b.int("int", 4, 1)
    b.struct("late", 4, [("x", number, 0)])
    assert Btf.parse(b.bytes()).type(pointer).target.size == 4


def test_split_btf():
    base, ids = sample()
    parent = Btf.parse(base.bytes())
    b = Blob(first_id=base.next, first_string=len(base.strings))
    own = b.struct("mine", 12, [("n", ids["int"], 0), ("m", ids["node"], 32)])
    proto = b.proto(ids["u64"], [("self", own)])
    b.add(12, "module_function", proto)
    b.types += b.words(base.known["node"], 4 << 24, 99)          # a struct of the module under a base's string
    split = Btf.parse(b.bytes(), parent)
    assert split.find("mine").fields[1].type is parent.find("node")
    assert split.find_id("module_function") == proto + 1
    assert list(split.functions()) == [("module_function", proto + 1)]
    assert [split.type(i).size for i in split.find_ids("node", "struct")] == [40, 99]
    assert split.find("pid_t").target.name == "int" and split.enumerator("RED") == 0
    assert parent.find("mine") is None


def test_pointer_size_follows_long():
    b = Blob()
    b.int("long unsigned int", 4)
    pointer = b.ptr(0)
    assert Btf.parse(b.bytes()).type(pointer).size == 4


@pytest.mark.parametrize("name, data, reason", [
    ("empty", b"", "too short"), ("magic", b"\x7fELF" + bytes(40), "not BTF"),
    ("version", struct.pack("<HBBIIIII", 0xeb9f, 9, 0, 24, 0, 0, 0, 1) + b"\0", "version 9"),
    ("types", struct.pack("<HBBIIIII", 0xeb9f, 1, 0, 24, 0, 1 << 20, 0, 1) + b"\0", "types lie outside"),
    ("strings", struct.pack("<HBBIIIII", 0xeb9f, 1, 0, 24, 0, 0, 0, 1 << 31) + b"\0", "strings lie outside"),
    ("odd", struct.pack("<HBBIIIII", 0xeb9f, 1, 0, 24, 2, 4, 0, 1) + bytes(8), "not aligned"),
])
def test_wrong_headers(name, data, reason):
    with pytest.raises(ElfError, match=reason):
        Btf.parse(data)


def test_wrong_types():
    for add, reason in ((lambda b: b.add(25, "new"), "kind 25 is not known"), (lambda b: b.add(4, "cut", 0, (), 100), "cut short")):
        b = Blob()
        add(b)
        with pytest.raises(ElfError, match=reason):
            Btf.parse(b.bytes()).count
    b = Blob()
    typedef = b.add(8, "loop", b.next)
    pointer, past = b.ptr(typedef), b.ptr(999)
    nameless = b.add(8, "", 0)
    b.types += b.words(1 << 20, 1 << 24, 4, 32)
    btf = Btf.parse(b.bytes())
    for type_id, reason in ((typedef, "without end"), (pointer, "without end"), (past, "no BTF type 999"),
                            (nameless + 1, "string 1048576"), (12345, "no BTF type 12345")):
        with pytest.raises(ElfError, match=reason):
            declaration(btf.type(type_id))


def test_anonymous_members_in_a_circle_end():
    b = Blob()
    b.struct("a", 8, [("", 2, 0)])
    b.struct("", 8, [("", 1, 0), ("x", 3, 0)])
    b.int("int", 4)
    btf = Btf.parse(b.bytes())
    assert find_field(btf.find("a"), "nothing") is None
    assert find_field(btf.find("a"), "x").offset == 0
    b = Blob()
    b.proto(0, [("f", 2)])
    b.ptr(1)
    assert "..." in declaration(Btf.parse(b.bytes()).type(2), "f")
    b = Blob()
    b.struct("", 8, [("", 1, 0)])
    assert len(definition(Btf.parse(b.bytes()).type(1))) < 10000


@pytest.mark.kernel
def test_the_kernels_own_types():
    # sizes and offsets that the kernel's ABI and its own arithmetic fix, on every kernel
    btf = Btf.open()
    assert btf.find("list_head", "struct").size == 16
    assert [(f.name, f.offset) for f in btf.find("list_head", "struct").fields] == [("next", 0), ("prev", 8)]
    assert btf.find("bpf_insn", "struct").size == 8
    code, dst, src, off, imm = btf.find("bpf_insn", "struct").fields
    assert [(f.offset * 8 + f.bit_offset, f.bit_size) for f in (code, dst, src, off, imm)] == [
        (0, None), (8, 4), (12, 4), (16, None), (32, None)]
    pid = find_field(btf.find("task_struct", "struct"), "pid")
    assert strip(pid.type) == types.Int("int", 4, True)
    assert find_field(btf.find("task_struct", "struct"), "comm").type.size == 16
    assert find_field(btf.find("sock", "struct"), "__sk_common").offset == 0
    assert [p.name for p in btf.find("vfs_read", "func").parameters] == ["file", "buf", "count", "pos"]
    assert declaration(btf.find("vfs_read", "func").returns) == "ssize_t"
    assert btf.enumerator("TCP_ESTABLISHED") == 1 and btf.enumerator("BPF_PROG_TYPE_KPROBE") == 2


@pytest.mark.kernel
def test_every_type_of_the_kernel_can_be_decoded():
    btf = Btf.open()
    assert btf.count > 50000
    for type_id in range(1, btf.count, 31):
        if btf.kind(type_id) not in ("decl_tag", "var", "datasec"):
            t = btf.type(type_id)
            assert declaration(t)
            if isinstance(t, types.Struct) and not t.forward:
                assert all(f.offset + (0 if f.bit_size is not None else f.type.size) <= t.size for f in t.fields
                           if t.name != "")


@pytest.mark.root
def test_lookups_take_milliseconds():
    import time
    best = 1.0
    for _ in range(3):
        btf = Btf.open()
        start = time.process_time()
        assert btf.find_id("task_struct", "struct")
        best = min(best, time.process_time() - start)
    btf.count
    start = time.process_time()
    for name in ("vfs_read", "file", "no_such_thing", "sock", "inode"):
        btf.find_id(name)
    assert best < 0.1 and (time.process_time() - start) / 5 < 0.05


def test_a_member_that_is_only_declared_and_has_no_name():
    """(a damaged file's) is not written out without end."""
    member = types.Field("m", types.Pointer(lambda: types.Struct("struct", "", 0, (), True), 8), 0)
    assert types.definition(types.Struct("struct", "s", 8, [member])) == "struct s {\n\tstruct {...} *m;\n}"


def test_a_gap_without_measure_is_one_line():
    """(a damaged file's struct of a terabyte)"""
    huge = types.Struct("struct", "s", 1 << 40, [types.Field("n", types.Int("int", 4, True, ""), 0)])
    assert len(types.definition(huge).splitlines()) == 4


@pytest.mark.root
@pytest.mark.slow
def test_signatures_agree_with_the_types():
    btf, variadic = Btf.open(), 0
    for _, number in btf.functions():
        function = btf.type(number)
        assert btf.signature(number) == (len(function.parameters), function.variadic)
        variadic += function.variadic
    assert variadic > 20        # printk's kind
