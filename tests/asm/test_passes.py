"""Each pass alone, on the smallest function that shows what it is for; and the code that comes out."""

import sys

import pytest

from rawbpf.asm import AsmError, Instruction, MapRef, code_info, compile_function, disassemble, ir
from rawbpf.asm.flow import clone, reachable
from rawbpf.asm.passes import drop_dead_code, hold_constants, join_blocks, optimise
from rawbpf.asm.slots import drop_dead_stores
from rawbpf.asm.ssa import construct, destruct
from rawbpf.asm.stores import merge_stores
from rawbpf.asm.threading import thread_constants

from .machine import CONTEXT, Machine, World


def start(params=1):
    return ir.Function("main", params)


def prepared(f):
    f = clone(f)
    reachable(f)
    return f


def ops(f):
    return [str(op) for block in f.blocks for op in block.ops]


def kinds(f):
    return [op.kind for block in f.blocks for op in block.ops]


def code(f, cpu="v3"):
    return [line.split(") ", 1)[1] for line in disassemble(compile_function(f, cpu).instructions).splitlines()]


def test_ssa_gives_every_value_one_definition_and_a_phi_where_ways_meet():
    f = start()
    then, end = f.block("then"), f.block("end")
    v = f.variable()
    f.set(v, 1)
    f.branch("==", f.params[0], 0, then, end)
    f.position(then)
    f.set(v, 2)
    f.jump(end)
    f.position(end)
    f.ret(v)
    f = prepared(f)
    construct(f)
    defined = [op.dst.n for block in f.blocks for op in block.ops if op.dst is not None]
    assert len(defined) == len(set(defined))
    phi = next(op for block in f.blocks for op in block.ops if op.kind == "phi")
    assert len(phi.args) == 2
    destruct(f)
    assert "phi" not in kinds(f)


def test_a_value_read_before_it_is_set_is_zero():
    f = start()
    v = f.variable()
    f.ret(v)
    assert code(f) == ["r0 = 0", "exit"]


def test_threading_skips_a_test_whose_outcome_is_set_just_before():
    f = start()
    yes, test, then, otherwise = (f.block(n) for n in ("yes", "test", "then", "otherwise"))
    v = f.variable()
    f.set(v, 0)
    f.branch("==", f.params[0], 5, yes, test)
    f.position(yes)
    f.set(v, 1)
    f.jump(test)
    f.position(test)
    f.branch("!=", v, 0, then, otherwise)
    f.position(then)
    f.ret(1)
    f.position(otherwise)
    f.ret(2)
    f = prepared(f)
    thread_constants(f)
    target = next(b for b in f.blocks if b.hint == "yes").ops[-1].info[0]
    assert target.hint == "then"


def test_dead_code_goes_but_calls_that_act_stay():
    f = start()
    f.load(f.params[0], 0, 8)
    f.call("bpf_ktime_get_ns")
    f.call("bpf_trace_printk", 0, 0)
    f.ret(0)
    f = prepared(f)
    drop_dead_code(f)
    assert kinds(f) == ["call", "ret"]


def test_a_store_that_is_overwritten_unread_goes():
    f = start()
    slot = f.slot(8)
    f.store(slot, 0, 1, 8)
    f.store(slot, 0, 2, 8)
    f.call("bpf_map_delete_elem", f.map("m"), f.address(slot))
    f.store(slot, 0, 3, 8)
    f.ret(0)
    assert [line for line in code(f) if line.startswith("*")] == ["*(u64 *)(r10 -8) = 2"]
    f = prepared(f)
    optimise(f, 3)
    drop_dead_stores(f)
    assert kinds(f).count("store") == 1


def test_neighbouring_stores_of_numbers_become_one():
    f = start()
    slot = f.slot(8)
    for i, n in enumerate((1, 2, 3, 4)):
        f.store(slot, i, n, 1)
    f.call("bpf_map_delete_elem", f.map("m"), f.address(slot))
    f.store(slot, 0, f.params[0], 4)
    f.ret(0)
    f = prepared(f)
    merge_stores(f)
    assert [(op.args[1], op.info) for b in f.blocks for op in b.ops if op.kind == "store"][0] == (0x04030201, (0, 4))


def test_an_address_used_often_is_kept():
    f = start()
    slot = f.slot(8)
    f.store(slot, 0, 0, 8)
    for _ in range(4):
        f.call("bpf_map_delete_elem", f.map("m"), f.address(slot))
    f.ret(0)
    made = compile_function(f).instructions
    assert sum(i.ref == MapRef("m") for i in made) == 1
    f = prepared(f)
    hold_constants(f)
    join_blocks(f)


def test_common_subexpressions_constants_and_offsets():
    f = start()
    p = f.map_value("m")
    a = f.load(f.params[0], 8, 8)
    x = f.alu("+", f.alu("*", a, 8), f.const(3) if False else 3)
    y = f.alu("+", f.alu("<<", a, 3), 3)
    f.store(f.alu("+", p, 16), 8, f.alu("-", x, y), 8)
    f.ret(f.alu("+", f.alu("&", 6, 3), 5))
    assert code(f) == ["r1 = map[m][0]+0 ll", "*(u64 *)(r1 +24) = 0", "r0 = 7", "exit"]


def test_a_check_is_not_repeated():
    f = start()
    slot = f.slot(4, 4)
    f.store(slot, 0, 0, 4)
    p = f.call("bpf_map_lookup_elem", f.map("m"), f.address(slot))
    for i in range(3):
        use, skip = f.block("use"), f.block("skip")
        f.branch("!=", p, 0, use, skip)
        f.position(skip)
        f.ret(0)
        f.position(use)
        f.atomic("+", p, 8 * i, 1)
    f.ret(1)
    assert sum("if" in line for line in code(f)) == 1


def test_one_pid_is_asked_for_once():
    f = start()
    slot = f.slot(8)
    f.store(slot, 0, f.alu(">>", f.call("bpf_get_current_pid_tgid"), 32), 4)
    f.store(slot, 4, f.call("bpf_get_current_pid_tgid"), 4)
    f.call("bpf_map_delete_elem", f.map("m"), f.address(slot))
    f.ret(0)
    assert sum("pid_tgid" in line for line in code(f)) == 1


def test_arguments_are_made_where_they_are_passed():
    f = start()
    slot = f.slot(16)
    f.store(slot, 0, f.alu(">>", f.call("bpf_get_current_pid_tgid"), 32), 8)
    f.call("bpf_get_current_comm", f.address(slot, 8), 8)
    f.call("bpf_map_update_elem", f.map("m"), f.address(slot), f.address(slot, 8), 0)
    f.ret(0)
    assert code(f) == [
        "call bpf_get_current_pid_tgid#14", "r0 >>= 32", "*(u64 *)(r10 -16) = r0", "r1 = r10", "r1 += -8", "r2 = 8",
        "call bpf_get_current_comm#16", "r1 = map[m] ll", "r2 = r10", "r2 += -16", "r3 = r10", "r3 += -8", "r4 = 0",
        "call bpf_map_update_elem#2", "r0 = 0", "exit"]


def test_slots_that_are_never_in_use_together_share_space():
    f = start()
    for name in ("a", "b", "c"):
        slot = f.slot(200)
        for off in range(0, 200, 8):
            f.store(slot, off, 0, 8)
        f.call("bpf_map_delete_elem", f.map(name), f.address(slot))
    f.ret(0)
    assert compile_function(f).stack_depth == 200


def test_slots_share_space_though_their_addresses_are_kept():
    f = start()
    for i in range(20):
        slot = f.slot(64)
        for off in range(0, 64, 8):
            f.store(slot, off, i, 8)
        for _ in range(4):
            f.call("bpf_map_delete_elem", f.map("m%d" % i), f.address(slot))
    f.ret(0)
    assert compile_function(f).stack_depth == 64


def test_too_much_stack_says_how_much():
    f = start()
    slots = [f.slot(200) for _ in range(3)]
    for slot in slots:
        f.store(slot, 0, 0, 8)
    for slot in slots:
        f.call("bpf_map_delete_elem", f.map("m"), f.address(slot))
    f.ret(0)
    with pytest.raises(AsmError, match="needs 600 bytes of stack; BPF has 512"):
        compile_function(f)


def test_errors_of_the_builder():
    f = start()
    with pytest.raises(AsmError, match="no end"):
        compile_function(f)
    f.ret(0)
    with pytest.raises(AsmError, match="after the end"):
        f.ret(1)
    with pytest.raises(AsmError, match="outside"):
        f.load(f.slot(8), 4, 8)
    with pytest.raises(AsmError, match="instruction set"):
        compile_function(f, "v9")
    with pytest.raises(AsmError, match="bpf_map_lookup_elem"):
        f.position(f.block())
        f.call("bpf_map_lokup_elem")
    f = start()
    f.call_function(f, 1)
    f.ret(0)
    with pytest.raises(AsmError, match="recursion"):
        compile_function(f)


def test_spans_follow_the_instructions():
    f = start()
    f.span = "one"
    x = f.load(f.params[0], 0, 8)
    f.span = "two"
    f.store(f.map_value("m"), 0, x, 8)
    f.span = "three"
    f.ret(0)
    made = compile_function(f)
    assert len(made.spans) == len(made.instructions)
    by_code = {i.code: span for i, span in zip(made.instructions, made.spans)}
    assert by_code[0x79] == "one" and by_code[0x7b] == "two" and by_code[0x95] == "three"


@pytest.mark.parametrize("cpu,absent", [("v1", {0xa5, 0xad, 0xb5, 0xc5, 0xd5, 0x16, 0xa6}), ("v2", {0x16, 0xa6, 0x2e})])
def test_old_instruction_sets(cpu, absent):
    f = start()
    x, y = f.load(f.params[0], 0, 8), f.load(f.params[0], 8, 8)
    for op in ("<", "<=", "s<", "s<="):
        for a, b in ((x, 5), (x, y)):
            for width in (32, 64):
                then, end = f.block(), f.block()
                f.branch(op, a, b, then, end, width)
                f.position(then)
                f.atomic("+", f.map_value("m"), 0, 1)
                f.jump(end)
                f.position(end)
    f.ret(0)
    assert not absent & {i.code for i in compile_function(f, cpu).instructions}
    jmp32 = {i.code & 7 for i in compile_function(f, cpu).instructions}
    assert 6 not in jmp32


def test_signed_division_and_sign_extension_by_level():
    f = start()
    x = f.load(f.params[0], 0, 4, signed=True)
    f.ret(f.alu("s/", x, f.load(f.params[0], 8, 8)))
    old, new = (compile_function(f, cpu).instructions for cpu in ("v3", "v4"))
    assert Instruction(0x3f, 0, 1, 1)[0::3] in {i[0::3] for i in new} or any(i.code == 0x3f and i.off == 1 for i in new)
    assert any(i.code & 0xe7 == 0x81 for i in new)
    assert not any(i.code in (0x3f, 0x37) and i.off for i in old) and not any(i.code & 0xe7 == 0x81 for i in old)


@pytest.mark.kernel
def test_the_log_shows_lines_of_the_source():
    from rawbpf.loader.btf import BtfObject
    from rawbpf.loader.errors import VerifierError
    from rawbpf.loader.program import Program
    f = start()
    f.span = 4
    x = f.load(f.params[0], 0, 4)
    f.span = 5
    f.ret(f.load(x, 0, 8))
    made = compile_function(f)
    btf, func_info, line_info = code_info(made, lambda span: ("script.bt", span, 1, "line number %d" % span))
    with BtfObject.load(btf) as types:
        with pytest.raises(VerifierError) as caught:
            Program.load("sched_cls", made.instructions, btf=types, func_info=func_info, line_info=line_info)
    assert "; line number 5" in caught.value.log


def test_a_test_of_what_was_chosen_by_a_branch_is_gone_past():
    """strncmp("a", ..) == 0: one of two numbers, compared, decides."""
    f = start()
    yes, no, join, then, otherwise = (f.block(n) for n in ("yes", "no", "join", "then", "otherwise"))
    v = f.variable()
    f.branch("==", f.load(f.params[0], 0, 4), 5, yes, no)
    f.position(yes)
    f.set(v, 0)
    f.jump(join)
    f.position(no)
    f.set(v, 1)
    f.jump(join)
    f.position(join)
    f.branch("!=", f.compare("==", v, 0), 0, then, otherwise)
    f.position(then)
    f.ret(7)
    f.position(otherwise)
    f.ret(8)
    assert [line for line in code(f) if line.startswith("if")] == ["if r0 != 0x5 goto pc+2"] or (
        len([line for line in code(f) if line.startswith("if")]) == 1)
    assert len(code(f)) == 6      # load, test, and two times: a number, exit


def test_the_same_end_of_several_blocks_is_there_once():
    f = start()
    x = f.load(f.params[0], 0, 4)
    end = f.block("end")
    for i in range(4):
        then, after = f.block("then"), f.block("after")
        f.branch("==", x, i, then, after)
        f.position(then)
        f.store(f.map_value("m"), 8, i, 8)
        f.atomic("+", f.map_value("lost"), 0, 1)
        f.jump(end)
        f.position(after)
    f.jump(end)
    f.position(end)
    f.ret(0)
    assert sum("lock" in line for line in code(f)) == 1


def test_a_loop_tests_at_its_end():
    f = start()
    head, body, end = f.block("head"), f.block("body"), f.block("end")
    i = f.variable()
    f.set(i, 0)
    f.jump(head)
    f.position(head)
    f.branch("<", i, 10, body, end)
    f.position(body)
    f.atomic("+", f.map_value("m"), 0, i)
    f.set(i, f.alu("+", i, 1))
    f.jump(head)
    f.position(end)
    f.ret(0)
    made = code(f)
    # neither a test before the first time round nor a jump back to one
    assert sum(line.startswith("if") for line in made) == 1 and not any(line.startswith("goto") for line in made)


def test_a_number_with_a_sign_that_nobody_looks_at():
    f = start()
    x = f.load(f.params[0], 0, 4, signed=True)
    f.store(f.map_value("m"), 0, x, 4)
    f.ret(0)
    assert not any("<<" in line or "s32" in line for line in code(f))
    f = start()
    x = f.load(f.params[0], 0, 4, signed=True)
    f.store(f.map_value("m"), 0, x, 8)
    f.ret(0)
    assert any("s>>" in line for line in code(f))


def test_stores_through_pointers():
    """What is stored to again is not stored; neighbours are one; what is there is not stored again."""
    f = start()
    p = f.map_value("m")
    f.store(p, 0, 1, 8)
    f.store(p, 0, 2, 8)
    f.store(p, 8, 1, 1)
    f.store(p, 9, 2, 1)
    q = f.load(p, 16, 8)
    f.store(p, 16, q, 8)
    f.ret(q)
    assert [line for line in code(f) if line.startswith("*")] == ["*(u64 *)(r1 +0) = 2", "*(u16 *)(r1 +8) = 513"]
    # a call, another pointer or an atomic operation may read what is stored
    for between in (lambda f, p: f.call("bpf_trace_printk", 0, 0), lambda f, p: f.load(f.map_value("n"), 0, 8),
                    lambda f, p: f.atomic("+", p, 0, 1)):
        f = start()
        p = f.map_value("m")
        f.store(p, 0, 1, 8)
        value = between(f, p)
        f.store(p, 0, 2, 8)
        f.ret(0 if value is None else value)
        assert sum(line.startswith("*") for line in code(f)) == 2


def test_what_calls_clobber():
    """Only what is needed after a call avoids r0 to r5, and nothing is saved that is not."""
    f = start()
    kept = f.load(f.params[0], 0, 8)
    gone = f.load(f.params[0], 8, 8)
    slot = f.slot(8)
    f.store(slot, 0, gone, 8)
    f.call("bpf_map_delete_elem", f.map("m"), f.address(slot))
    f.ret(kept)
    assert code(f) == ["r6 = *(u64 *)(r1 +0)", "r1 = *(u64 *)(r1 +8)", "*(u64 *)(r10 -8) = r1", "r1 = map[m] ll",
                       "r2 = r10", "r2 += -8", "call bpf_map_delete_elem#3", "r0 = r6", "exit"]


def test_straight_line_code_moves_nothing():
    """A value that is used twice, once by what overwrites its register: one copy, not two."""
    f = start()
    x = f.call("bpf_get_current_pid_tgid")
    tgid = f.alu(">>", x, 32)
    f.store(f.map_value("m"), 0, tgid, 8)
    f.store(f.map_value("m"), 8, f.extend(x, 4, False), 8)
    f.ret(0)
    moves = [line for line in code(f) if line[0] == "r" and line.split(" = ")[-1][:1] == "r" and " = " in line
             and "map" not in line]
    assert len(moves) == 1


def test_operands_and_offsets_are_folded():
    f = start()
    p = f.alu("+", f.map_value("m"), 16)
    f.store(p, 8, f.alu("+", f.load(p, 4, 4), 5), 4)
    f.ret(f.alu("&", f.load(f.alu("+", p, 8), 0, 4), f.const(0xff), 32))
    assert code(f) == ["r1 = map[m][0]+0 ll", "r0 = *(u32 *)(r1 +20)", "r0 += 5", "*(u32 *)(r1 +24) = r0",
                       "w0 &= 255", "exit"]


def test_an_offset_that_no_instruction_holds():
    f = start()
    f.store(f.map_value("m"), 40000, 1, 8)
    f.ret(f.load(f.map_value("m"), 40000, 8))
    assert [line for line in code(f) if "u64" in line] == ["*(u64 *)(r1 +0) = 1"] and "r1 += 40000" in code(f)


def test_a_number_put_together_from_several_stores_is_known():
    """The bytes of a wider load may come from narrower stores, or be what one left of a wider."""
    f = start()
    text, wide = f.slot(4, 4), f.slot(8)
    for i, byte in enumerate(b"abc\0"):
        f.store(text, i, byte, 1)
    f.store(wide, 0, 0x0101010101010101, 8)
    f.store(wide, 7, 0, 1)
    expected = int.from_bytes(b"abc\0", sys.byteorder) + int.from_bytes(b"\1" * 7 + b"\0", sys.byteorder)
    f.ret(f.alu("+", f.load(text, 0, 4), f.load(wide, 0, 8)))
    assert code(f) == ["r0 = %#x ll" % expected, "exit"]


def compared(second, rounds=3):
    """A loop over the bytes of two texts: the difference of the first that differ."""
    f = start()
    a, b = f.slot(8), f.slot(8)
    f.store(a, 0, int.from_bytes(b"abcdefgh", sys.byteorder), 8)
    f.store(b, 0, second(f), 8)
    head, differ, same, end = (f.block(name) for name in ("head", "differ", "same", "end"))
    i, result = f.variable(), f.variable()
    f.set(i, 0)
    f.set(result, 0)
    f.jump(head)
    f.position(head)
    x, y = (f.load(f.alu("+", f.address(slot), i), 0, 1) for slot in (a, b))
    f.branch("==", x, y, same, differ)
    f.position(differ)
    f.set(result, f.alu("-", x, y))
    f.jump(end)
    f.position(same)
    f.set(i, f.alu("+", i, 1))
    f.branch("<", i, rounds, head, end)
    f.position(end)
    f.ret(result)
    return f


@pytest.mark.parametrize("text, rounds, result", [
    (b"abcdefgh", 3, 0), (b"abxdefgh", 2, 0), (b"abxdefgh", 3, ord("c") - ord("x")), (b"abcdefga", 8, ord("h") - ord("a"))])
def test_a_short_loop_over_what_is_known_is_gone(text, rounds, result):
    made = code(compared(lambda f: int.from_bytes(text, sys.byteorder), rounds))
    assert made == ["r0 = %d" % result, "exit"]


def test_a_loop_that_is_not_decided_stays():
    """Of a long one, or one over what nobody knows, no round is written out."""
    for unknown in (compared(lambda f: f.call("bpf_ktime_get_ns")), compared(lambda f: 0, 1000)):
        made = code(unknown)
        assert len(made) < 25 and sum(line.startswith("if") for line in made) == 2


def answer(f):
    """What the code says that comes out: by the machine model, with a map `data` of one value, its first byte 8."""
    maps = {"data": bytearray([8] + [0] * 63)}
    return Machine(compile_function(f).instructions, World(maps, 64)).run([CONTEXT])


def decided(f):
    """A branch that is decided: the passes go round once more."""
    then, otherwise, end = (f.block() for _ in range(3))
    f.branch("==", f.const(1), 1, then, otherwise)
    for block in (then, otherwise):
        f.position(block)
        f.jump(end)
    f.position(end)


def outside(f, slot, away, off):
    f.store(f.alu("+", f.address(slot), away), off, 42, 8)


def outside_and_back(f, slot):
    f.store(f.alu("+", f.alu("+", f.address(slot), -8), 8), 0, 42, 8)


def computed(f, slot):
    x = f.alu("&", f.load(f.map_value("data"), 0, 8), 8)
    decided(f)
    f.store(f.alu("+", f.address(slot), x), -8, 42, 8)


def spilled(f, slot):
    decided(f)
    other = f.slot(8)
    f.store(other, 0, f.address(slot), 8)
    f.store(f.load(other, 0, 8), 0, 42, 8)


@pytest.mark.parametrize("write", [lambda f, slot: outside(f, slot, 24, -24), lambda f, slot: outside(f, slot, -16, 16),
                                   outside_and_back, computed, spilled])
def test_a_slot_written_through_an_address_that_is_not_followed(write):
    f = start()
    slot = f.slot(16)
    f.store(slot, 0, 7, 8)
    f.store(slot, 8, 9, 8)
    write(f, slot)
    f.ret(f.alu("+", f.load(slot, 0, 8), f.load(slot, 8, 8)))
    assert answer(f) == 42 + 9


def test_an_address_that_a_later_round_of_a_loop_brings():
    f = start()
    a, b = f.slot(8), f.slot(8)
    f.store(a, 0, 1, 8)
    p, i, total = (f.variable() for _ in range(3))
    for variable, first in ((p, f.address(a)), (i, 0), (total, 0)):
        f.set(variable, first)
    head, body, end = (f.block() for _ in range(3))
    f.jump(head)
    f.position(head)
    f.branch("<", i, 30, body, end)
    f.position(body)
    f.store(b, 0, 5, 8)
    f.store(p, 0, 77, 8)
    f.set(total, f.alu("+", total, f.load(b, 0, 8)))
    f.set(p, f.address(b))
    f.set(i, f.alu("+", i, 1))
    f.jump(head)
    f.position(end)
    f.ret(total)
    assert answer(f) == 5 + 29 * 77


def test_a_store_that_a_load_of_the_slot_reads_stays():
    f = start()
    slot = f.slot(16)
    f.store(slot, 0, 1, 8)
    f.store(slot, 8, 2, 8)
    p = f.alu("+", f.address(slot), f.alu("&", f.load(f.map_value("data"), 0, 8), 8))
    f.store(p, 0, 10, 8)
    before = f.load(slot, 8, 8)
    f.store(p, 0, 20, 8)
    f.ret(f.alu("+", before, f.load(slot, 8, 8)))
    assert answer(f) == 10 + 20


def test_tests_that_lead_to_each_other():
    f = start()
    x = f.variable()
    a, b, c = (f.block() for _ in range(3))
    f.set(x, 0)
    f.jump(a)
    for block, target in ((a, b), (b, a)):
        f.position(block)
        f.branch("==", x, 0, target, c)
    f.position(c)
    f.ret(x)
    assert any("goto" in line for line in code(f))      # for ever, as it says: the verifier refuses that


def test_a_shift_count_is_taken_modulo_the_width():
    """What the verifier knows of x >> 38 it does not know of x >> 102: a mask behind it may go only with the first."""
    f = start()
    x = f.load(f.map_value("data"), 0, 1)
    count = f.variable()
    f.set(count, 102)
    f.ret(f.alu("&", f.alu(">>", x, count), 8))
    assert not any("102" in line for line in code(f)) and answer(f) == 0


def test_many_stores_are_looked_up_not_compared_with_all():
    """What is asked of a block with thousands of stores gives the same as looking at each of them."""
    import random

    from rawbpf.asm.numbering import _overlapping
    from rawbpf.asm.stores import _covered
    random.seed(5)
    for count in (10, 400):
        places = {(8 * random.randrange(count) + random.randrange(8), random.choice((1, 2, 4, 8))): 0 for _ in range(count)}
        for _ in range(300):
            at, size = random.randrange(8 * count), random.choice((1, 2, 4, 8))
            assert _covered(set(places), at, size) == any(a <= at and at + size <= a + n for a, n in places)
            assert sorted(_overlapping(places, at, size)) == sorted(
                (a, n) for a, n in places if a < at + size and at < a + n)

    class Counting(dict):
        def __iter__(self):
            raise AssertionError("all were looked at")
    assert _overlapping(Counting(dict.fromkeys(((8 * i, 8) for i in range(1000)), 0)), 801, 2) == [(800, 8)]


def test_functions_that_are_long_keep_their_blocks_in_order(monkeypatch):
    """What hardly runs goes to the end of a short function only: the way there and back is within reach of a jump."""
    from rawbpf.asm import compile_function, ir, layout

    def lengths(tests):
        f = ir.Function("main")
        for _ in range(tests):
            got, none, done = f.block(), f.block(), f.block()
            place = f.call("bpf_get_current_task")
            f.branch("==", f.call("bpf_map_lookup_elem", f.map("m"), place), 0, none, got)
            f.position(got)
            f.call("bpf_trace_printk", 0, 0)
            f.jump(done)
            f.position(none)
            f.call("bpf_trace_printk", 0, 0)
            f.call("bpf_trace_printk", 0, 0)
            f.jump(done)
            f.position(done)
        f.ret(0)
        return [abs(x.off) for x in compile_function(f).instructions if x.code & 7 == 5 and x.code not in (0x85, 0x95)]
    assert max(lengths(40)) > 100
    monkeypatch.setattr(layout, "_NEAR", 100)
    assert max(lengths(40)) < 20
