"""Objects that clang made, loaded on this kernel: one of each CO-RE relocation and libbpf feature.

Values come from the sources in fixtures/bpf by arithmetic, and from the kernel's types as elf.types shows
them, which shares no code with the relocations.
"""

import ctypes
import gzip
import os
import re
import struct

import pytest

from rawbpf.elf import types
from rawbpf.elf.btf import Btf
from rawbpf.elf.btf_ext import CORE_KINDS
from rawbpf.loader import KernelError, Map, Object, ObjectError, VerifierError, kernel
from rawbpf.loader.detached import mount
from rawbpf.loader.kernel import possible_cpus
from tests.bpfcc import compile_bpf, compile_bpf_text

pytestmark = [pytest.mark.peer, pytest.mark.kernel]
PACKET = bytes(14)


@pytest.fixture(scope="module")
def vmlinux():
    return Btf.open()


@pytest.fixture(scope="module")
def answers():
    with Object.open(compile_bpf("core.c")) as obj:
        obj.load(only="kinds")
        obj.programs["kinds"].program.test_run(PACKET)
        return obj.data["answers"]


def test_field_relocations(answers, vmlinux):
    task = vmlinux.find("task_struct", "struct")

    def offset(name):
        return types.find_field(task, name).offset
    assert answers[0] == offset("pid")
    assert answers[1] == types.find_field(task, "comm").type.size == 16
    assert answers[2:5] == [1, 0, 1]
    assert answers[5] == 0      # of an unsigned bit field
    assert answers[20] == 0
    assert answers[21] == offset("tasks") + 8
    assert answers[22] == offset("comm") + 3


def test_a_bit_field_is_read_by_offset_size_and_shifts(answers, vmlinux):
    field = types.find_field(vmlinux.find("task_struct", "struct"), "in_execve")
    left, right, start, size = answers[6:10]
    assert field.bit_size == 1 and right == 63
    bit = field.offset * 8 + field.bit_offset
    assert start <= bit // 8 < start + size
    # only that bit survives the two shifts of the loaded word
    word = 1 << bit - start * 8
    assert (word << left & (1 << 64) - 1) >> right == 1
    assert (((1 << 8 * size) - 1 ^ word) << left & (1 << 64) - 1) >> right == 0


def test_type_relocations(answers, vmlinux):
    assert answers[10] == Btf.open(compile_bpf("core.c")).find_id("task_struct", "struct")
    assert answers[11] == vmlinux.find_id("task_struct", "struct")
    assert answers[12:14] == [1, 0]
    assert answers[14] == vmlinux.find("task_struct", "struct").size
    assert answers[15] == 0
    assert answers[23] == 4
    # the same members of the same types; a member of another
    assert answers[25:28] == [1, 1, 0]


def test_enumerator_relocations(answers, vmlinux):
    assert answers[16:18] == [1, 0]
    assert answers[18] == vmlinux.enumerator("PIDTYPE_SID")
    assert answers[19] == vmlinux.enumerator("PIDTYPE_PGID")


def test_an_access_that_is_not_reached_refuses_nothing(answers):
    assert answers[24] == 1234


def test_an_access_that_is_reached_is_named_with_the_reason():
    with Object.open(compile_bpf("core.c")) as obj:
        with pytest.raises(VerifierError) as caught:
            obj.load(only="unguarded")
    text = str(caught.value)
    assert "byte_off of struct task_struct___other.invented" in text
    assert "no member invented" in text and "struct task_struct [" in text


def test_every_kind_is_in_the_fixture():
    from rawbpf.elf.bpf_object import BpfObjectFile
    file = BpfObjectFile.open(compile_bpf("core.c"))
    found = {relocation.kind for table in file.btf_ext.relocations.values() for relocation in table}
    assert found == set(CORE_KINDS)


def kconfig():
    """The virtual machines have no file of their kernel's configuration."""
    known = os.path.exists("/proc/config.gz") or os.path.exists("/boot/config-" + os.uname().release)
    return None if known else {"CONFIG_BPF": "y", "CONFIG_HZ": "250"}


def features():
    return Object.open(compile_bpf("features.c"), kconfig=kconfig())


@pytest.fixture
def loaded():
    with features() as obj:
        obj.rodata["targ_uid"] = 1000
        left_out = ["optional", "no_type"]
        if kernel.release() < (5, 13):      # bpf_for_each_map_elem
            left_out.append("callback")
        obj.load([name for name in obj.programs if name not in left_out])
        yield obj


def run(obj, name):
    return obj.programs[name].program.test_run(PACKET).retval


def test_subprograms(loaded):
    assert run(loaded, "calls") == 2 * 1000 + 2 * 1 + 2 * 3
    assert loaded.bss["zeroed"] == 3
    assert loaded.data["private_data"] == 3


def test_a_tail_call_map_is_filled_from_the_object(loaded):
    assert run(loaded, "jump") == 4000


def test_data_is_seen_from_both_sides(loaded):
    assert run(loaded, "data") == 0
    assert loaded.data["counter"] == 5 + 20 + 99
    assert loaded.maps["pairs"][1] == {"left": 1000, "right": ord("e")}
    loaded.data["counter"] = 1
    loaded.data["aside"] = 0
    run(loaded, "data")
    assert loaded.data["counter"] == 1 + 20
    with pytest.raises(ObjectError, match="before load"):
        loaded.rodata["targ_uid"] = 1


def test_inner_maps(loaded):
    run(loaded, "data")
    assert loaded.maps["second"][0] == 42 and loaded.maps["first"][0] == 0
    ids = [loaded.maps[name].map.info().id for name in ("second", "first")]
    assert [loaded.maps["outer"].map.number(index) for index in (1, 3)] == ids


@pytest.mark.kernel(since="5.13")
def test_a_callback(loaded):
    run(loaded, "data")
    assert run(loaded, "callback") == 1000


def kernel_option(name):
    if kconfig() is not None:
        return kconfig()[name]
    release = os.uname().release
    for path, opener in (("/proc/config.gz", gzip.open), ("/boot/config-" + release, open)):
        if os.path.exists(path):
            with opener(path, "rt") as file:
                found = re.search("^%s=(.*)$" % name, file.read(), re.M)
                return found.group(1) if found else None
    pytest.fail("this kernel's configuration cannot be read")


def version_code():
    """The running kernel's LINUX_VERSION_CODE, from the note in its vDSO (of owner "Linux", type 0): `uname -r` of
    Debian's names no sublevel."""
    with open("/proc/self/maps") as file:
        start, end = next(re.match("([0-9a-f]+)-([0-9a-f]+) ", line).groups() for line in file if "[vdso]" in line)
    vdso = ctypes.string_at(int(start, 16), int(end, 16) - int(start, 16))
    found = re.search(re.escape(struct.pack("=III8s", 6, 4, 0, b"Linux")) + b"(.{4})", vdso, re.S)
    return struct.unpack("=I", found.group(1))[0]


def test_externs(loaded):
    run(loaded, "data")
    assert loaded.bss["version"] == version_code()
    assert loaded.bss["has_bpf"] == ord("y")
    assert loaded.bss["hz"] == int(kernel_option("CONFIG_HZ"))
    assert loaded.bss["invented"] == 0 and loaded.bss["weak_variable"] == 0
    with open("/proc/kallsyms") as file:
        addresses = {int(line.split()[0], 16) for line in file if line.split()[2] == "vfs_read"}
    assert loaded.bss["address"] in addresses


@pytest.mark.slow
@pytest.mark.kernel(since="6.1")        # Debian's 5.10 is built by a pahole that does not write down variables
def test_variables_of_the_kernel_by_type():
    """bpf_per_cpu_ptr() of a typed symbol: a CPU's run queue says which CPU it is of; there is none of a CPU that cannot
    be. A kernel that names no data (without CONFIG_KALLSYMS_ALL) knows no such place."""
    with open("/proc/kallsyms") as file:
        known = " runqueues\n" in file.read()
    last = max(possible_cpus())
    for cpu, answer in ((last, 100 + last), (last + 4096, 0xffffffff)):
        with Object.open(compile_bpf("typed_symbols.c")) as obj:
            obj.rodata["wanted"] = cpu
            if not known:
                with pytest.raises(VerifierError, match="failed to find the address for kernel symbol 'runqueues'"):
                    obj.load()
                break
            obj.load()
            assert obj.programs["typed"].program.test_run(ctx=bytes(16)).retval == answer
            assert obj.programs["absent"].program.test_run(ctx=bytes(16)).retval == 2


def test_records_are_decoded_by_btf(loaded):
    loaded.maps["events"].record_type = "struct event"
    assert loaded.maps["events"].map.max_entries == 4096        # 1000 rounded up to a page
    with loaded.attach() as links:
        assert len(links) == 1
        os.stat("/")
        for event in loaded.maps["events"]:
            assert event == {"number": 77, "name": "rawbpf"}
            break


def test_programs_that_are_not_asked_for():
    with features() as obj:
        assert "optional" not in obj.select()
        if kernel.release() < (5, 13):
            with pytest.raises(VerifierError, match="a function's address, as callbacks are given, needs Linux 5.13"):
                obj.load()
            assert all(program.program is None for program in obj.programs.values())
            obj.programs["callback"].autoload = False
        with pytest.raises(ObjectError, match="'unknown/section' says no program type"):
            obj.load()
        assert all(program.program is None for program in obj.programs.values())
        obj.load(only="optional")
        assert [name for name, each in obj.maps.items() if each.map is not None] == []
        assert run(obj, "optional") == 1
        with pytest.raises(ObjectError, match="did you mean jump"):
            obj.load(only="jumpp")


def test_a_map_may_be_changed_and_reused():
    with Map.create("hash", 4, 8, 16, name="mine") as mine, features() as obj:
        obj.maps["pairs"].reuse(mine)
        obj.maps["events"].max_entries = 8192
        obj.load(only=["data", "emit"])
        run(obj, "data")
        assert mine.lookup(b"\1\0\0\0") == b"\7\0\0\0e\0\0\0"
        assert obj.maps["events"].map.max_entries == 8192


PINNED = """
#include "bpf.h"
struct {
	__uint(type, 1);
	__uint(max_entries, %d);
	__type(key, u32);
	__type(value, u64);
	__uint(pinning, 1);
} shared SEC(".maps");
SEC("socket") int look(void *ctx) { u32 key = 1; u64 *found = lookup(&shared, &key); return found ? *found : 0; }
"""


def test_maps_that_are_pinned_by_name():
    fd = mount("bpf")
    root = "/proc/self/fd/%d" % fd
    try:
        with Object.open(compile_bpf_text(PINNED % 8), pin_root=root) as one:
            one.load()
            one.maps["shared"][1] = 77
        # it outlives the object, and the next one takes it
        with Object.open(compile_bpf_text(PINNED % 8), pin_root=root) as two:
            two.load()
            assert run(two, "look") == 77
        with Object.open(compile_bpf_text(PINNED % 9), pin_root=root) as other:
            with pytest.raises(ObjectError, match="map shared: the existing one has max_entries 8, this object wants 9"):
                other.load()
            assert all(each.map is None for each in other.maps.values())
        os.unlink(root + "/shared")
        with Object.open(compile_bpf_text(PINNED % 9), pin_root=root) as other:
            other.load()
            assert run(other, "look") == 0
        with Object.open(compile_bpf_text(PINNED % 8), pin_root="/dev/shm") as nowhere:
            with pytest.raises(KernelError, match="not in a BPF file system"):
                nowhere.prepare()
            assert nowhere.maps["shared"].map is None
    finally:
        os.close(fd)


FILLED = """
#include "bpf.h"
struct inner { __uint(type, 1); __uint(max_entries, 4); __type(key, u32); __type(value, u64); };
struct inner one SEC(".maps"), two SEC(".maps");
struct {
	__uint(type, 12);
	__uint(max_entries, 4);
	__type(key, u32);
	__uint(pinning, 1);
	__array(values, struct inner);
} outer SEC(".maps") = { .values = { [1] = (void *)&one, [%d] = (void *)&two } };
struct { __uint(type, %d); __uint(max_entries, 4); __uint(numa_node, 0); __uint(key_size, 4); __uint(value_size, 4);
	__uint(pinning, 1); } network SEC(".maps");
struct { __uint(type, 2); __uint(max_entries, 4); __uint(numa_node, 0); __uint(key_size, 4); __uint(value_size, 4);
	__uint(pinning, 1); } near SEC(".maps");
SEC("socket") int look(void *ctx) { return 1; }
SEC("?socket") int bad(void *ctx) { return *(int *)0; }
"""


def test_pinned_maps_of_another_load():
    """The second load takes what the first one pinned as it is; one that fails takes its own pins back; two at once
    agree on one map."""
    fd = mount("bpf")
    root = "/proc/self/fd/%d" % fd
    pins = lambda: sorted(name for name in os.listdir(root) if not name.endswith(".debug"))     # noqa: E731
    path, wrong = (compile_bpf_text(FILLED % (index, 14), "-Wno-initializer-overrides") for index in (3, 9))
    try:
        with Object.open(path, pin_root=root) as one, Object.open(path, pin_root=root) as two:
            inner = [one.load().maps["outer"].map.number(index) for index in range(4)]
            two.load()
            assert [two.maps["outer"].map.number(index) for index in range(4)] == inner != [None] * 4
            assert two.maps["network"].map.info().id == one.maps["network"].map.info().id
            two.close()
            with pytest.raises(VerifierError):
                two.load(only="bad")
            two.load()
        assert pins() == ["near", "network", "outer"]
        for name in pins():
            os.unlink(os.path.join(root, name))
        with Object.open(wrong, pin_root=root) as failing, pytest.raises(KernelError):
            failing.load()
        assert pins() == []
        with Object.open(path, pin_root=root) as late, Object.open(path, pin_root=root) as early:
            make = late.maps["outer"]._make

            def slow(btf):
                early.load()
                return make(btf)
            late.maps["outer"]._make = slow
            late.load()
            assert late.maps["outer"].map.info().id == early.maps["outer"].map.info().id
            os.unlink(root + "/near")
            late.programs["look"].program.pin(root + "/near")
        with pytest.raises(ObjectError, match="map near: what is pinned at .*/near: that is a prog, not a map"):
            Object.open(path, pin_root=root).load()
        os.unlink(root + "/near")
        os.mkdir(root + "/near")
        with pytest.raises(ObjectError, match="near, which is a folder"):
            Object.open(path, pin_root=root).load()
    finally:
        os.close(fd)


def test_a_bloom_filter_that_hashes_otherwise():
    if kernel.release() < (5, 16):
        with pytest.raises(KernelError, match="bloom_filter needs Linux 5.16"):
            Map.create("bloom_filter", 0, 8, 4, map_extra=3)
        return
    with Map.create("bloom_filter", 0, 8, 4, map_extra=3) as three, features() as obj:
        pairs = obj.maps["pairs"]
        pairs.type, pairs.key_size, pairs.value_size, pairs.max_entries, pairs.map_extra = "bloom_filter", 0, 8, 4, 5
        with pytest.raises(ObjectError, match="the existing one has map_extra 3, this object wants 5"):
            pairs.reuse(three)


def test_a_file_that_is_written_anew(tmp_path):
    path = tmp_path / "some.o"
    path.write_bytes(open(compile_bpf_text(PINNED % 8), "rb").read())
    with Object.open(str(path)) as obj:
        path.write_bytes(b"")
        obj.maps["shared"].pin_path = None
        obj.load()


CONFIGURATION = """
#include "bpf.h"
enum libbpf_tristate { TRI_NO, TRI_YES, TRI_MODULE };
extern u8 CONFIG_ONE kconfig;
extern _Bool CONFIG_TWO kconfig;
extern enum libbpf_tristate CONFIG_THREE kconfig;
extern u64 CONFIG_FOUR kconfig;
extern const char CONFIG_FIVE[8] kconfig;
extern s32 CONFIG_SIX kconfig;
extern _Bool CONFIG_SEVEN kconfig weak;
u64 values[8];
SEC("socket") int look(void *ctx)
{
	values[0] = CONFIG_ONE;
	values[1] = CONFIG_TWO;
	values[2] = CONFIG_THREE;
	values[3] = CONFIG_FOUR;
	values[4] = CONFIG_FIVE[0] << 8 | CONFIG_FIVE[2];
	values[5] = CONFIG_SIX;
	values[6] = CONFIG_SEVEN;
	return 0;
}
"""
GIVEN = {"CONFIG_ONE": "m", "CONFIG_TWO": "y", "CONFIG_THREE": "m", "CONFIG_FOUR": "0xffffffff00000001",
         "CONFIG_FIVE": '"abc"', "CONFIG_SIX": "-5"}


def test_configuration_of_every_type():
    path = compile_bpf_text(CONFIGURATION)
    with Object.open(path, kconfig=GIVEN) as obj:
        obj.load()
        run(obj, "look")
        assert obj.bss["values"] == [ord("m"), 1, 2, 0xffffffff00000001, ord("a") << 8 | ord("c"), (1 << 64) - 5, 0, 0]
        assert obj.kconfig["CONFIG_FIVE"] == "abc" and obj.kconfig["CONFIG_SIX"] == -5
    for change, reason in (({"CONFIG_TWO": "m"}, "CONFIG_TWO: its type does not take the value m"),
                           ({"CONFIG_FOUR": "y"}, "CONFIG_FOUR: its type does not take the value y"),
                           ({"CONFIG_FIVE": "5"}, "CONFIG_FIVE: its type does not take the value 5"),
                           ({"CONFIG_SIX": "0x123456789"}, "CONFIG_SIX: its type does not take"),
                           ({"CONFIG_SIX": 1 << 31}, "CONFIG_SIX: its type does not take the value 2147483648"),
                           ({"CONFIG_ONE": 256}, "CONFIG_ONE: its type does not take the value 256"),
                           ({"CONFIG_TWO": 2}, "CONFIG_TWO: its type does not take the value 2"),
                           ({"CONFIG_SIX": b"1"}, "the value of CONFIG_SIX is text, as in .*, or a number, not b'1'"),
                           ({"CONFIG_ONE": None}, "the kernel's configuration has no CONFIG_ONE")):
        given = {name: value for name, value in dict(GIVEN, **change).items() if value is not None}
        with Object.open(path, kconfig=given) as obj, pytest.raises(ObjectError, match=reason):
            obj.load()


def test_configuration_that_is_set():
    """What is assigned goes before the configuration, which may then lack it; numbers and truths are values, too."""
    text = CONFIGURATION.replace("u64 values[8];", "extern int LINUX_HAS_LATER kconfig weak; u64 values[8];").replace(
        "values[6] = CONFIG_SEVEN", "values[7] = LINUX_HAS_LATER + 3; values[6] = CONFIG_SEVEN")
    with Object.open(compile_bpf_text(text), kconfig={
            "CONFIG_ONE": 255, "CONFIG_TWO": True, "CONFIG_THREE": False, "CONFIG_FOUR": -1, "CONFIG_FIVE": '"x"'}) as obj:
        obj.kconfig["CONFIG_SIX"] = 99
        obj.kconfig["CONFIG_FIVE"] = "y z"
        obj.load()
        run(obj, "look")
        assert obj.bss["values"] == [255, 1, 0, (1 << 64) - 1, ord("y") << 8 | ord("z"), 99, 0, 3]
    for kind, name, refused in (("unsigned short", "LINUX_KERNEL_VERSION", True), ("int", "LINUX_HAS_LATER", True),
                                ("unsigned", "LINUX_KERNEL_VERSION", False)):
        path = compile_bpf_text('#include "bpf.h"\nextern %s %s kconfig;\n'
                                'SEC("socket") int look(void *ctx) { return %s != 0; }\n' % (kind, name, name))
        with Object.open(path) as obj:
            if not refused:
                assert run(obj.load(), "look") == 1
                continue
            with pytest.raises(ObjectError, match="its type does not take the value|is no kernel configuration"):
                obj.load()


def test_functions_and_lines_arrive_in_the_kernel(loaded):
    program = loaded.programs["calls"].program
    kernel = Btf.parse(loaded.btf.data())
    assert [kernel.name(type_id) for _, type_id in program.func_info()] == ["calls", "global_sum", "twice"]
    assert program.info().nr_line_info > 3


def test_the_command(rawbpf):
    import json
    if kconfig() is not None:
        return          # it reads the kernel's own
    done = rawbpf("load", compile_bpf("features.c"), "--json")
    answer = json.loads(done.stdout)
    by_name = {row["name"]: row for row in answer["programs"]}
    assert done.returncode == 1 and "optional" not in by_name
    assert by_name["calls"]["loaded"] and by_name["calls"]["section"] == "socket"
    assert by_name["calls"]["type"] == "socket_filter"
    assert not by_name["no_type"]["loaded"]
    assert {each["name"] for each in answer["maps"]} >= {"pairs", "outer", ".rodata"}
    done = rawbpf("load", compile_bpf("core.c"), "--only", "unguarded", "--json")
    row, = json.loads(done.stdout)["programs"]
    assert not row["loaded"] and row["errno"] == 22 and "195896080" in row["log"]


def test_maps_of_before_btf_and_kernel_symbols():
    with Object.open(compile_bpf("symbols.c")) as obj:
        assert {name: (each.type, each.key_size, each.value_size, each.max_entries)
                for name, each in obj.maps.items() if not name.startswith(".")} == {
                    "one": ("hash", 4, 8, 10), "two": ("array", 4, 4, 3)}
        obj.load(only=["legacy", "kfuncs"] if kernel.release() >= (6, 2) else "legacy")      # bpf_rcu_read_lock
        assert run(obj, "legacy") == 5
        assert obj.maps["two"].map.lookup(b"\1\0\0\0") == b"\t\0\0\0"
        assert obj.maps["one"].map.lookup(b"\1\0\0\0") == b"\1" + bytes(7)
        with pytest.raises(VerifierError, match="it reaches call of bpf_iter_num_invented, which this kernel does not"):
            obj.programs["missing_kfunc"].load()
        with pytest.raises(ObjectError, match="nowhere is defined nowhere"):
            obj.programs["undefined"].load()
