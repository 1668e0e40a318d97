"""BTF as it is written, and several as one."""

import pytest

from rawbpf.asm.btfwriter import CONST, VOLATILE, BtfWriter
from rawbpf.elf.btf import Btf
from rawbpf.elf.btf_merge import merge
from rawbpf.elf.image import ElfError


def every_kind():
    """A BtfWriter with a type of every kind but sections and type tags."""
    w = BtfWriter()
    integer, char, long = w.integer(), w.integer("char", 1, True, "char"), w.integer("long", 8)
    text = w.array(char, 8)
    pointer = w.pointer(w.count + 1)        # to the struct that follows
    w.struct("node", 32, [("next", pointer, 0), ("name", text, 8), ("a", integer, 16, 0, 3), ("b", integer, 16, 3, 29),
                          ("value", long, 24)])
    w.struct("either", 8, [("whole", long, 0), ("text", w.array(char, 4), 0)], union=True)
    w.enum("colour", [("RED", 0), ("BLUE", -1)], signed=True)
    w.enum("wide", [("SMALL", 1), ("LARGE", 1 << 40)], size=8)
    w.typedef("number_t", w.qualified(CONST, w.qualified(VOLATILE, long)))
    w.forward("elsewhere")
    w.floating("double", 8)
    proto = w.prototype(integer, [("left", long), ("right", w.pointer(0))])
    w.function("work", prototype=proto, linkage=1)
    w.decl_tag("tagged", w.variable("thing", integer))
    return w


def test_what_is_written_is_read():
    w = every_kind()
    btf = Btf.parse(w.bytes())
    assert btf.count == w.count
    node = btf.find("node", "struct")
    assert [(f.name, f.offset * 8 + (f.bit_offset or 0), f.bit_size) for f in node.fields] == [
        ("next", 0, None), ("name", 64, None), ("a", 128, 3), ("b", 131, 29), ("value", 192, None)]
    assert node.size == 32 and str(node.fields[1].type) == "char [8]"
    assert btf.find("either", "union").size == 8
    assert btf.enumerator("BLUE") == -1 and btf.enumerator("LARGE") == 1 << 40
    assert [p.name for p in btf.find("work", "func").parameters] == ["left", "right"]
    assert str(btf.find("node", "struct").fields[0].type.target) == "struct node"
    assert str(btf.find("number_t", "typedef").target).replace("volatile const", "const volatile") == \
        "const volatile long"
    assert btf.find("double", "float").size == 8


def test_what_says_nothing_of_its_own_is_written_once():
    w = BtfWriter()
    assert w.integer() == w.integer() != w.integer("int", 4, False)
    assert w.pointer(w.integer()) == w.pointer(w.integer()) != w.pointer(0)
    assert w.array(1, 4) == w.array(1, 4) != w.array(1, 5)
    assert w.prototype(1, [("a", 1)]) == w.prototype(1, [("a", 1)]) != w.prototype(1, [("b", 1)])
    assert w.struct("s", 4, [("a", 1, 0)]) != w.struct("s", 4, [("a", 1, 0)])


def tree(size, first="int", forward=False):
    """struct tree { struct tree *left, *right; struct leaf *leaf; int value; }, its types in another order."""
    w = BtfWriter()
    if first == "int":
        w.integer()
    tree_id, leaf_id = w.count + 2, w.count + 3
    pointer, leaf = w.pointer(tree_id), w.pointer(leaf_id)
    w.struct("tree", size, [("left", pointer, 0), ("right", pointer, 8), ("leaf", leaf, 16), ("value", 0, 24)][:3])
    if forward:
        w.forward("leaf")
    else:
        w.struct("leaf", 8, [("tree", pointer, 0)])
    w.integer()
    return Btf.parse(w.bytes())


def kinds(btf, kind):
    return sorted(btf.name(number) for number in range(1, btf.count) if btf.kind(number) == kind)


def test_structs_that_refer_to_each_other_are_one():
    data, (one, two) = merge(tree(24), tree(24, "struct"))
    btf = Btf.parse(data)
    assert kinds(btf, "struct") == ["leaf", "tree"] and len(kinds(btf, "ptr")) == 2
    assert one[tree(24).find_id("tree")] == two[tree(24, "struct").find_id("tree")] == btf.find_id("tree")


def test_structs_that_differ_stay_two():
    data, (one, two) = merge(tree(24), tree(32))
    btf = Btf.parse(data)
    # leaf points to the one or the other tree
    assert kinds(btf, "struct") == ["leaf", "leaf", "tree", "tree"]
    assert one[tree(24).find_id("tree")] != two[tree(32).find_id("tree")]


def test_a_declaration_becomes_the_struct():
    for order in ((True, False), (False, True)):
        parts = [tree(24, forward=forward) for forward in order]
        data, maps = merge(*parts)
        btf = Btf.parse(data)
        assert kinds(btf, "struct") == ["leaf", "tree"] and kinds(btf, "fwd") == []
        for part, table in zip(parts, maps):
            assert table[part.find_id("leaf")] == btf.find_id("leaf", "struct")
    # unless there are two of that name
    data, _ = merge(tree(24), tree(32), tree(24, forward=True))
    assert kinds(Btf.parse(data), "fwd") == ["leaf"]


def test_variables_stay_apart():
    def one():
        w = BtfWriter()
        w.variable("same", w.integer(), 0)
        return Btf.parse(w.bytes())
    data, maps = merge(one(), one())
    assert kinds(Btf.parse(data), "var") == ["same", "same"] and maps[0][1] == maps[1][1] and maps[0][2] != maps[1][2]


def test_merged_again_nothing_changes():
    btf = Btf.parse(every_kind().bytes())
    data, (table,) = merge(btf)
    again, _ = merge(Btf.parse(data), btf)
    assert Btf.parse(again).count == Btf.parse(data).count + 2      # the variable and its tag
    for number in range(1, btf.count):
        assert (btf.kind(number), btf.name(number)) == (Btf.parse(data).kind(table[number]),
                                                        Btf.parse(data).name(table[number]))


def test_references_to_what_is_not_there():
    w = BtfWriter()
    w.pointer(7)
    with pytest.raises(ElfError, match="refers to what is no type"):
        merge(Btf.parse(w.bytes()))


@pytest.mark.kernel
def test_the_kernel_takes_what_is_written():
    from rawbpf.loader.btf import BtfObject
    from rawbpf.loader.object_btf import has_kind
    w = BtfWriter()
    integer = w.integer()
    thing = w.struct("thing", 16, [("bits", integer, 0, 5, 3), ("next", w.pointer(w.count + 1), 8)])
    assert thing
    w.typedef("thing_t", w.qualified(CONST, thing))
    w.enum("colour", [("RED", 0), ("BLUE", 5)])
    w.function("work", prototype=w.prototype(integer, [("left", integer)]), linkage=0)
    w.section(".data", 4, [(w.variable("variable", integer), 0, 4)])
    w.forward("elsewhere", union=True)
    if has_kind("float"):
        w.floating("double", 8)
    if has_kind("decl_tag"):
        w.decl_tag("tag", thing, 1)
    if has_kind("type_tag"):
        w.pointer(w.type_tag("user", integer))
    if has_kind("enum64"):
        w.enum("wide", [("LARGE", 1 << 40)], size=8)
    with BtfObject.load(w.bytes()) as loaded:
        assert loaded.data() == w.bytes()
