"""Every iterator that the kernel has: loaded, attached, read from beginning to end; what they see."""

import os
import socket
import struct

import pytest

from rawbpf import sources
from rawbpf.asm import ir
from rawbpf.elf import types
from rawbpf.loader import kernel
from rawbpf.loader.maps import Map
from rawbpf.sources import Iter, SourceError, Target, iterators
from tests.sources.harness import ROWS, Seen, program_for

pytestmark = pytest.mark.kernel(since="5.8")

# what walks one map, and a map of the kind it walks
MAPS = {"bpf_map_elem": lambda: Map.create("hash", 4, 8, 16),
        "bpf_sk_storage_map": lambda: Map.create("sk_storage", 4, 8, 0, flags=1, **int_btf()),
        "sockmap": lambda: Map.create("sockhash", 4, 8, 16)}


def int_btf():
    """BTF of an int as key and value, which a socket's storage must have."""
    from rawbpf.loader.btf import BtfObject

    text = b"\0int\0"
    record = struct.pack("=IIII", 1, 1 << 24, 4, 1 << 24 | 32)
    wide = struct.pack("=IIII", 1, 1 << 24, 8, 1 << 24 | 64)
    head = struct.pack("=HBBIIIII", 0xeb9f, 1, 0, 24, 0, len(record + wide), len(record + wide), len(text))
    return {"btf": BtfObject.load(head + record + wide + text), "btf_key_type_id": 1, "btf_value_type_id": 2}


def run(point, values=lambda f, c, p: [], width=0, target=None):
    """Rows of one run of the iterator: the program sees only what has an object."""
    def guarded(f, ctx, point):
        there, end = f.block("there"), f.block("none")
        f.branch("==", point.guard(f, ctx), 0, end, there)
        f.position(end)
        f.ret(0)
        f.position(there)
        return values(f, ctx, point)

    program, counters = program_for(point, guarded, width)
    with program, point.attach(program, [point]) as attachment:
        attachment.read()
    return Seen(counters, width, [point], attachment)


def member(point, name, path):
    """For `values`: a member of what the context's pointer `name` points to, by direct loads."""
    def values(f, ctx, point):
        field = types.find_field(point.arguments(), name)
        inner = types.find_field(types.strip(field.type).target, path)
        return [f.load(point.field(f, ctx, field), inner.offset, inner.type.size)]

    return values


def all_names():
    found = {listed.text[len("iter:"):] for listed in sources.list_events("iter:*")}
    assert {"task", "task_file", "bpf_map"} <= found
    return sorted(found)


def test_every_iterator_runs():
    """None is listed that cannot be attached. Of those that walk one map, with a map."""
    def sequence(f, ctx, point):
        """meta->seq_num, kept for the last event too (the last row of the harness)."""
        context = point.context()
        meta = types.find_field(context, "meta")
        number = types.find_field(types.strip(types.strip(meta.type).target), "seq_num")
        value = f.load(f.load(ctx, meta.offset, 8), number.offset, 8)
        f.store(f.map_value("seen"), 8 * ROWS, value, 8)
        return [value]

    ran = {}
    for name in all_names():
        (point,) = sources.expand("iter:" + name)
        point.map = MAPS[name]() if name in MAPS else None
        seen = run(point, sequence, 1)
        ran[name] = seen.hits
        # the kernel numbers the objects: none is missed, and the run at the end is no event
        assert seen.rows[:ROWS - 1] == [(n,) for n in range(min(seen.hits, ROWS - 1))], name
        if seen.hits >= ROWS:
            assert seen.last == seen.hits - 1, name
        assert point.context().name == "bpf_iter__" + name
        assert [field.name for field in point.context().fields][0] in ("meta", "")
        assert point.declarations() and all(point.declarations())
    print(ran)
    assert ran["task"] >= 1 and ran["task_file"] >= 3 and ran["bpf_map"] >= 1


def test_what_walks_a_map_asks_for_it():
    for name in sorted(set(MAPS) & set(all_names())):
        (point,) = sources.expand("iter:" + name)
        program, _ = program_for(point, lambda f, c, p: [], 0)
        with program, pytest.raises(SourceError, match="walks one map"):
            point.attach(program, [point])


def test_elements_of_a_map():
    """Each element once, by the map's id in the probe: keys 3, 5, 7 with ten times as much."""
    table = MAPS["bpf_map_elem"]()
    for key in (3, 5, 7):
        table.update(struct.pack("=I", key), struct.pack("=Q", 10 * key))
    (point,) = sources.expand("iter:bpf_map_elem:%d" % table.info().id)

    def pair(f, ctx, point):
        key, value = (f.load(ctx, types.find_field(point.arguments(), name).offset, 8) for name in ("key", "value"))
        both, end = f.block("both"), f.block("gone")
        f.branch("==", value, 0, end, both)
        f.position(end)
        f.ret(0)
        f.position(both)
        return [f.load(key, 0, 4), f.load(value, 0, 8)]

    assert sorted(run(point, pair, 2).rows) == [(3, 30), (5, 50), (7, 70)]
    with pytest.raises(SourceError, match="iter:bpf_map_elem:99999999"):
        (point,) = sources.expand("iter:bpf_map_elem:99999999")
        run(point)


def test_programs_and_maps_are_the_kernels():
    """As many as the ids say."""
    held = [Map.create("array", 4, 8, 1) for _ in range(3)]
    (point,) = sources.expand("iter:bpf_map")
    seen = {row[0] for row in run(point, member(point, "map", "id"), 1).rows}
    assert {each.info().id for each in held} <= seen
    for each in held:
        each.close()
    if "bpf_prog" in all_names():
        (point,) = sources.expand("iter:bpf_prog")

        def number(f, ctx, point):
            prog = types.find_field(point.arguments(), "prog")
            aux = types.find_field(types.strip(prog.type).target, "aux")
            ident = types.find_field(types.strip(aux.type).target, "id")
            return [f.load(f.load(point.field(f, ctx, prog), aux.offset, 8), ident.offset, 4)]

        with program_for(point, lambda f, c, p: [], 0)[0] as other:
            assert (other.info().id,) in run(point, number, 1).rows


def test_kernel_symbols_once_each():
    """ksym: as many as /proc/kallsyms has lines, and no event for its end."""
    if "ksym" not in all_names():
        return
    (point,) = sources.expand("iter:ksym")
    hits = run(point).hits
    with open("/proc/kallsyms") as file:
        lines = sum(1 for _ in file)
    assert abs(hits - lines) <= 20, (hits, lines)  # programs come and go


@pytest.mark.kernel(since="6.1")
def test_tasks_of_one_process():
    (point,) = sources.expand("iter:task", Target(pid=os.getpid()))
    rows = run(point, member(point, "task", "tgid"), 1).rows
    assert rows and {row[0] for row in rows} == {os.getpid()}
    assert len(rows) == len(os.listdir("/proc/self/task"))
    with open("/proc/self/maps") as file:
        lines = [line for line in file if "vsyscall" not in line]
    (point,) = sources.expand("iter:task_vma", Target(pid=os.getpid()))
    assert abs(run(point).hits - len(lines)) <= 3  # reading changes a few


def test_files_of_this_process():
    """task_file has the file number: a socket that is held open is among them."""
    with socket.socket() as held:
        (point,) = sources.expand("iter:task_file")

        def values(f, ctx, point):
            fields = point.arguments()
            fd = point.field(f, ctx, types.find_field(fields, "fd"))
            task = types.find_field(fields, "task")
            tgid = types.find_field(types.strip(task.type).target, "tgid")
            return [f.load(point.field(f, ctx, task), tgid.offset, 4), fd]

        rows = run(point, values, 2).rows
        assert (os.getpid(), held.fileno()) in rows


@pytest.mark.kernel(since="6.1")
def test_cgroups_begin_at_the_root():
    if "cgroup" not in all_names():
        return
    (point,) = sources.expand("iter:cgroup")
    with open("/proc/self/mounts") as file:
        mounted = [line.split()[1] for line in file if " cgroup2 " in line]
    hits = run(point).hits
    assert hits >= 1
    if mounted:
        assert hits == sum(1 for _ in os.walk(mounted[0]))


def test_output_of_a_python_program():
    """What a program writes with bpf_seq_write is what read() gives."""
    probe = Iter("task", pid=os.getpid() if kernel.release() >= (6, 1) else None)
    (point,) = probe.points
    f = ir.Function("write")
    ctx = f.params[0]
    there, end = f.block("there"), f.block("end")
    f.branch("==", point.guard(f, ctx), 0, end, there)
    f.position(there)
    slot = f.slot(4)
    f.store(slot, 0, 0x0a67616d, 4)
    meta = f.load(ctx, point.context().fields[0].offset, 8)
    seq = f.load(meta, 0, 8)
    f.call("bpf_seq_write", seq, f.address(slot), 4)
    f.jump(end)
    f.position(end)
    f.ret(0)
    from rawbpf.asm import compile_function

    with probe.load(compile_function(f).instructions) as program, probe.attach(program) as attachment:
        text = attachment.read()
        assert text and text == b"mag\n" * (len(text) // 4)
        if kernel.release() >= (6, 1):
            assert len(text) // 4 == len(os.listdir("/proc/self/task"))
        assert attachment.read() == text or kernel.release() < (6, 1)


def test_unknown_iterator_suggests():
    with pytest.raises(SourceError) as caught:
        sources.expand("iter:taks")
    assert caught.value.missing and "iter:task" in caught.value.hints


def test_names_come_from_btf():
    names = iterators.iterators()
    assert names["task"] == "vmlinux"
    assert not any(name.endswith("safe_trusted") for name in names)
