"""Objects linked into one: values from the fixtures' sources, beside libbpf's linker (bpftool gen object)."""

import os
import re
import subprocess

import pytest

from rawbpf.elf import types
from rawbpf.elf.bpf_object import BpfObjectFile
from rawbpf.elf.btf import Btf
from rawbpf.elf.image import ElfError
from rawbpf.elf.object_linker import link
from rawbpf.elf.object_linker_types import differ, shared
from rawbpf.loader import Object, kernel
from tests import peers
from tests.bpfcc import compile_bpf, compile_bpf_text

pytestmark = [pytest.mark.peer, pytest.mark.kernel(since="5.13")]      # bpf_for_each_map_elem


def parts():
    return [compile_bpf("link_one.c"), compile_bpf("link_two.c")]


def values(obj):
    obj.load()
    assert obj.btf_error is None
    assert [obj.programs[name].program.test_run(bytes(14)).retval for name in ("one", "two")] == [1, 2]
    return obj.bss["results"], obj.bss["second"], obj.maps["shared_map"][1], obj.data["whole"]["field"]


def expected():
    task = Btf.open().find("task_struct", "struct")
    major, minor, patch = kernel.release()
    version = major << 16 | minor << 8 | min(patch, 255)
    return ([1 + 5, 2 * 7 + 1, 3 + 1000, 200, 11, types.find_field(task, "pid").offset, version, 30],
            [1 * 7, (2 + 5) * 2, 3 + 1000, 100, 21, types.find_field(task, "tgid").offset, version, 30],
            {"left": 30, "right": 0}, 3)


def test_two_objects_are_one():
    with Object.parse(link(parts())) as obj:
        assert sorted(obj.programs) == ["one", "two"]
        assert values(obj) == expected()


def test_each_type_is_there_once():
    file = BpfObjectFile.parse(link(parts()))
    named = [file.btf.name(number) for number in range(1, file.btf.count) if file.btf.kind(number) == "struct"]
    # struct task_struct has another member in each
    assert sorted(name for name in named if name) == ["forward", "pair", "task_struct", "task_struct"]
    kinds = [file.btf.kind(number) for number in range(1, file.btf.count)]
    assert "fwd" not in kinds
    assert kinds.count("datasec") == len({name for name in map(file.btf.name, range(1, file.btf.count))
                                          if name.startswith(".") or name == "license"})


@pytest.mark.parametrize("order", [1, -1])
def test_beside_libbpf(order, tmp_path):
    if os.environ.get("RAWBPF_CC"):
        return          # a virtual machine has no bpftool
    theirs, ours = tmp_path / "theirs.o", tmp_path / "ours.o"
    chosen = parts()[::order]
    done = subprocess.run([*peers.command("bpftool"), "gen", "object", str(theirs), *chosen], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    ours.write_bytes(link(chosen))
    found = []
    for path in (theirs, ours):
        with Object.open(str(path)) as obj:
            assert values(obj) == expected()
            found.append([(function.name, function.section, function.size, function.program)
                          for function in obj.file.functions if function.name != "either"])
            found.append({name: section.size for name, section in obj.file.data.items()})
    assert found[0] == found[2] and found[1] == found[3]
    # and libbpf loads what we linked
    folder = tmp_path / "bpffs"
    folder.mkdir()

    def enter():
        peers.private_mounts()
        peers.mount("bpf", str(folder), "bpf")
    done = subprocess.run([*peers.command("bpftool"), "prog", "loadall", str(ours), str(folder / "all")],
                          preexec_fn=enter, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_one_of_a_linked_one():
    once = BpfObjectFile.parse(link(parts()), "once")
    again = link([once])
    with Object.parse(again) as obj:
        assert values(obj) == expected()
    assert BpfObjectFile.parse(again).btf.count == once.btf.count


@pytest.mark.parametrize("one, two, reason", [
    ("int twice(int x) { return x; }", "int twice(int x) { return 1; }", "twice is defined in .* as well"),
    ("int thing = 1;", "weak int thing(int x) { return 1; }", "thing is a function here or in .*, and not in the other"),
])
def test_what_cannot_be_one(one, two, reason):
    objects = [compile_bpf_text('#include "bpf.h"\n' + text + "\n") for text in (one, two)]
    with pytest.raises(ElfError, match=reason) as caught:
        link(objects)
    assert "\n" not in str(caught.value)


MAP = "struct { __uint(type, 1); %s __type(key, u32); __type(value, u32); } %s SEC(\".maps\");"
# what one object and another say, and why it is not the same
NAMES = [
    ("int a = 1;", "extern long a;", "int of 4 bytes and long of 8"),
    ("int b = 1;", "extern int *b;", "int and a pointer"),
    ("int c = 1;", "weak long c = 3;", "int of 4 bytes and long of 8"),
    ("int d(int x) { return x; }", "int d(int x, int y);", "1 and 2 parameters"),
    ("int e(int x) { return x; }", "int e(long x);", "int of 4 bytes and long of 8"),
    ("int f(int x) { return x; }", "extern int f;", "a function f and a variable f"),
    ("struct s { int a, b; } g;", "struct s { int a, c; }; extern struct s g;", "two struct s with other members"),
    (MAP % ("__uint(max_entries, 4);", "h"), "extern " + MAP % ("__uint(max_entries, 9);", "h"),
     "max_entries 4 and 9 of a map"),
    (MAP % ("__uint(max_entries, 4);", "i"), "extern struct { __uint(type, 1); } i SEC(\".maps\");",
     "key_size 4 and 0 of a map"),
    ("int n = 1;", "extern _Bool n;", "int of 4 bytes and _Bool of 1"),
    # what may differ
    ("int j = 1;", "extern const volatile unsigned j;", ""),
    ("struct t { int a; }; struct t *k;", "struct t; extern struct t *k;", ""),
    ("int l[4];", "extern int l[];", ""),
    (MAP % ("__uint(max_entries, 4);", "m"), "extern " + MAP % ("__uint(max_entries, 4);", "m"), ""),
]


def test_names_that_mean_something_else():
    names = "abcdefghinjklm"
    use = 'SEC("socket") int user(void *ctx) { void *volatile p; %s return !p; }\n' % " ".join(
        "p = (void *)&%s;" % name if name not in "de" else "p = (void *)(long)%s(%s);" % (name, "1, 2" if name == "d" else "1")
        for name in names)
    one, two = [BpfObjectFile.open(compile_bpf_text('#include "bpf.h"\n' + text, "-Wno-everything")) for text in (
        "\n".join(each[0] for each in NAMES) + "\n", "\n".join(each[1] for each in NAMES) + "\n" + use)]
    ours, theirs = shared(one.btf), shared(two.btf)
    assert [differ(one, ours[name], two, theirs[name], name in "him") for name in names] == [each[2] for each in NAMES]
    with pytest.raises(ElfError, match="is something else in .*: "):
        link([one, two])


def test_an_object_without_types():
    with pytest.raises(ElfError, match="has no BTF, which says what its names are: compile it with -g"):
        link([parts()[0], compile_bpf_text('#include "bpf.h"\nint there;\n', "-g0")])


def test_licenses_that_differ():
    other = compile_bpf_text('#define _license _unused_license\n#include "bpf.h"\n#undef _license\n').replace("\n", "")
    mine = compile_bpf_text('char _license[] __attribute__((section("license"), used)) = "MIT";\n')
    with pytest.raises(ElfError, match="its license is 'MIT', that of .* is 'GPL'"):
        link([other, mine])


def test_what_no_object_defines_stays_extern():
    one = compile_bpf_text('#include "bpf.h"\nextern int nowhere(int x);\nSEC("socket") int p(void *c) '
                           '{ return nowhere(1); }\n')
    two = compile_bpf_text('#include "bpf.h"\nextern int bpf_nothing(void) ksym weak;\nSEC("socket") int q(void *c) '
                           '{ return bpf_nothing ? bpf_nothing() : 4; }\n')
    with Object.parse(link([one, two])) as obj:
        assert obj.file.externs["bpf_nothing"].weak
        with pytest.raises(Exception, match=re.escape("nowhere is defined nowhere")):
            obj.load(only="p")
        obj.load(only="q")
        assert obj.programs["q"].program.test_run(bytes(14)).retval == 4
