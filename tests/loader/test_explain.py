"""Logs of the verifier explained: logs of several kernels as they are printed, and what is known of them by reading."""

import re

import pytest

from rawbpf.loader import explain, refusals
from rawbpf.loader.verifier import failing_slot, messages, reason

# Linux 5.10, level 2: a branch is put aside at 2 and taken up again at 5; the second way fails.
BRANCHES = """\
func#0 @0
0: R1=ctx(id=0,off=0,imm=0) R10=fp0
0: (79) r2 = *(u64 *)(r1 +0)
1: R1=ctx(id=0,off=0,imm=0) R2_w=inv(id=0) R10=fp0
1: (b7) r0 = 0
2: R0_w=inv0 R1=ctx(id=0,off=0,imm=0) R2_w=inv(id=0) R10=fp0
2: (15) if r2 == 0x0 goto pc+2
 R0_w=inv0 R1=ctx(id=0,off=0,imm=0) R2_w=inv(id=0) R10=fp0
3: R0_w=inv0 R1=ctx(id=0,off=0,imm=0) R2_w=inv(id=0) R10=fp0
3: (b7) r3 = 1
4: R0_w=inv0 R1=ctx(id=0,off=0,imm=0) R2_w=inv(id=0) R3_w=inv1 R10=fp0
4: (95) exit

from 2 to 5: R0_w=inv0 R1=ctx(id=0,off=0,imm=0) R2_w=inv0 R10=fp0
5: R0_w=inv0 R1=ctx(id=0,off=0,imm=0) R2_w=inv0 R10=fp0
5: (bf) r4 = r3
R3 !read_ok
processed 6 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0
"""

# Linux 6.12, level 1: only what an instruction changed, behind it.
CHANGES = """\
0: R1=ctx() R10=fp0
; *key = 0 @ count.c:12
0: (62) *(u32 *)(r10 -4) = 0          ; R10=fp0 fp-8=0000????
1: (bf) r2 = r10                      ; R2_w=fp0 R10=fp0
2: (07) r2 += -4                      ; R2_w=fp-4
3: (18) r1 = 0xffff9a8f026f4000       ; R1_w=map_ptr(map=m,ks=4,vs=16)
5: (85) call bpf_map_lookup_elem#1    ; R0=map_value_or_null(id=1,map=m,ks=4,vs=16)
; x = *value @ count.c:14
6: (79) r1 = *(u64 *)(r0 +0)
R0 invalid mem access 'map_value_or_null'
verification time 87 usec
stack depth 8
processed 6 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0
"""


def test_a_branch_taken_up_again():
    found = explain.explain(BRANCHES)
    assert found.slot == 5 and found.kind == "uninitialised-register" and found.instruction == "r4 = r3"
    assert found.path == (0, 1, 2, 5)
    assert found.registers == {"R0": "inv0", "R1": "ctx(id=0,off=0,imm=0)", "R2": "inv0", "R10": "fp0"}


def test_what_changed_behind_each_instruction():
    found = explain.explain(CHANGES)
    assert (found.slot, found.kind, found.message) == (6, "null-check", "R0 invalid mem access 'map_value_or_null'")
    assert found.path == (0, 1, 2, 3, 5, 6)
    assert found.source == "x = *value @ count.c:14"
    # the call has cleared r1 and r2
    assert found.registers == {"R0": "map_value_or_null(id=1,map=m,ks=4,vs=16)", "R10": "fp0", "fp-8": "0000????"}


def test_states_with_parentheses_within_parentheses():
    """As Linux 6.18 and 5.10 print them; a state ends at the space that is outside of all of them."""
    assert explain.registers("R0=scalar(smin=0,smax=umax=0xffffffff,var_off=(0x0; 0xffffffff)) R1_w=ctx() fp-8_w=mmmmmmmm") == {
        "R0": "scalar(smin=0,smax=umax=0xffffffff,var_off=(0x0; 0xffffffff))", "R1": "ctx()", "fp-8": "mmmmmmmm"}
    assert explain.registers("R2=inv(id=0,umax_value=255,var_off=(0x0; 0xff)) R10=fp0") == {
        "R2": "inv(id=0,umax_value=255,var_off=(0x0; 0xff))", "R10": "fp0"}
    assert explain.registers("R3=a(b(c(d(1; 2); 3); 4); 5) R4=(") == {"R3": "a(b(c(d(1; 2); 3); 4); 5)", "R4": ""}


def test_statistics():
    assert explain.statistics(CHANGES) == (6, 0, 0, 0, 87, (8,))
    assert explain.statistics("stack depth 16+0+32\nprocessed 9 insns (limit 1000000) max_states_per_insn 1 "
                              "total_states 2 peak_states 3 mark_read 4\n") == (9, 1, 2, 3, None, (16, 0, 32))
    assert explain.statistics("unreachable insn 3\n") is None


def _steps(*slots):
    """Steps of a walk; (from, to) begins the other side of a branch."""
    made = []
    for slot in slots:
        jumped, at = slot if isinstance(slot, tuple) else (None, slot)
        made.append(explain.Step(at, "", "", "", "", False, jumped, 0))
    return made


@pytest.mark.parametrize("slots, way", [
    ((0, 1, 2), (0, 1, 2)),
    ((0, 1, 2, 3, (1, 5), 6), (0, 1, 5, 6)),
    # branches at 1 and 3: the later is taken up first
    ((0, 1, 2, 3, 4, (3, 7), 8, (1, 9)), (0, 1, 9)),
    ((0, 1, 2, 3, 4, (3, 7), 8), (0, 1, 2, 3, 7, 8)),
    # the loop 1-2 is walked twice, with a branch at 1 each time: the second's first, then the first's
    ((0, 1, 2, 1, 2, (1, 3), 4), (0, 1, 2, 1, 3, 4)),
    ((0, 1, 2, 1, 2, (1, 3), 4, (1, 3), 4), (0, 1, 3, 4)),
])
def test_the_way_to_the_last_step(slots, way):
    assert explain.path(_steps(*slots)) == way


def test_a_called_function_has_registers_of_its_own():
    log = """\
0: R1=ctx() R10=fp0
0: (b7) r6 = 1                        ; R6_w=1
1: (85) call pc+2
caller:
 R6_w=1 R10=fp0
callee:
 frame1: R1=ctx() R10=fp0
4: (bf) r0 = r6
R6 !read_ok
processed 3 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0
"""
    found = explain.explain(log)
    assert found.registers == {"R1": "ctx()", "R10": "fp0"} and found.path == (0, 1, 4)


def test_two_lines_of_reasons_and_lines_without_an_end():
    log = "5: (79) r1 = *(u64 *)(r0 +16)\ninvalid access to map value, value_size=16 off=16 size=8\n" \
          "R0 min value is outside of the allowed memory range\nprocessed 5 insns (limit 1000000)\n"
    assert explain.explain(log).kind == "out-of-bounds-map-value"
    assert messages(log) == ["invalid access to map value, value_size=16 off=16 size=8",
                             "R0 min value is outside of the allowed memory range"]
    assert reason("3: (85) call bpf_tail_call#12\nexpected prog array map for tail callverification time 9 usec\n") \
        == "expected prog array map for tail call"
    log = "4: (05) goto pc-2\ninfinite loop detected at insn 3\ncur state: R0=1 R10=fp0\nold state: R0=1 R10=fp0\n"
    assert failing_slot(log) == 3 and explain.explain(log).kind == "unbounded-loop"


@pytest.mark.parametrize("message, kind", [
    ("R1 type=scalar expected=map_ptr", "wrong-argument"),
    ("R1 type=map_value_or_null expected=fp, pkt, map_value", "null-check"),
    ("invalid indirect read from stack R2 off -8+0 size 8", "uninitialised-stack"),
    ("invalid read from stack off -8+0 size 8", "uninitialised-stack"),
    ("invalid read from stack R10 off=8 size=8", "out-of-bounds-stack"),
    ("invalid stack off=-520 size=8", "out-of-bounds-stack"),
    ("invalid variable-offset write to stack R1 var_off=(0x0; 0xff) off=-8 size=1", "out-of-bounds-stack"),
    ("invalid unbounded variable-offset write to stack R1", "unbounded-access"),
    ("BPF program is too large. Processed 1000001 insn", "too-complex"),
    ("The sequence of 8193 jumps is too complex.", "too-complex"),
    ("BPF_EXIT instruction in main prog would lead to reference leak", "reference-leak"),
    ("BPF_EXIT instruction in main prog cannot be used inside bpf_rcu_read_lock-ed region", "lock"),
    ("unknown func bpf_skb_load_bytes#26", "helper-not-allowed"),
    ("program of this type cannot use helper bpf_skb_load_bytes#26", "helper-not-allowed"),
    ("invalid func unknown#9999", "unknown-function"),
    ("cannot call GPL-restricted function from non-GPL compatible program", "gpl-only"),
    ("At program exit the register R0 has value (0x2; 0x0) should have been in (0x0; 0x1)", "return-value"),
    ("off=8 kptr isn't referenced kptr", "kptr"),
    ("insn 4 cannot call exception cb directly", "exception"),
    ("Expected an initialized dynptr as arg #2", "dynptr-iterator"),
    ("combined stack size of 2 calls is 576. Too large", "stack-too-deep"),
    ("dereference of modified ctx ptr R1 off=8 disallowed", "modified-pointer"),
    ("R1 must be referenced or trusted", "untrusted-pointer"),
    ("number of funcs in func_info doesn't match number of subprogs", "btf"),
    ("attach_btf_id 5 is not a function", "attach-target"),
    ("R2 pointer arithmetic prohibited", "pointer-arithmetic"),
    ("R1 stack pointer arithmetic goes out of range, prohibited for !root; off=8", "capability"),
    ("verifier bug: unexpected iterator state 3 (next)", "verifier-bug"),
    ("bpf verifier narrow ctx load misconfigured", "verifier-bug"),
    ("map 'm' has no valid bpf_timer", "special-field"),
    ("map 'm' has to have BTF in order to use bpf_kptr_xchg", "special-field"),
    ("map 'm' has to have BTF in order to use bpf_spin_lock", "lock"),
    ("can't spin_{lock,unlock} in rbtree cb", "lock"),
    ("store to uptr disallowed", "kptr"),
    ("leaking pointer from stack off -8", "pointer-leak"),
    ("read from map forbidden, value_size=8 off=0 size=8", "write-only"),
    ("access beyond struct task_struct at off 99999 size 8", "struct-field"),
    ("R1 is ptr_task_struct invalid negative access: off=-8", "struct-field"),
    ("R1 must be a rcu pointer", "untrusted-pointer"),
    ("In async callback the register R0 is not a known value (scalar())", "return-value"),
    ("BPF_ST stores into R1 ctx is not allowed", "write-forbidden"),
    ("do_exit() is not modifiable", "attach-target"),
    ("The function f has 13 arguments. Too many.", "attach-target"),
    ("The total number of maps per program has reached the limit of 64", "bad-map-reference"),
    ("insn 7 cannot be patched due to 16-bit range", "too-large"),
    ("recursive call from f() to f()", "call"),
    ("call to invalid destination", "call"),
    ("sleepable global function f() called in non-sleepable program", "sleepable"),
    ("JIT does not support calling kfunc bpf_x#7", "not-supported"),
    ("trace type programs with run-time allocated hash maps are unsafe. Switch to preallocated hash maps.", "wrong-map-type"),
    ("invalid func unknown#195896080", "missing-in-kernel"),
    ("something that no kernel says", "other"),
])
def test_kinds(message, kind):
    assert refusals.kind_of(message) == kind


def test_several_lines_tell_one_kind():
    assert refusals.kind_of_all(["R1 is not a scalar", "the call stack of 9 frames is too deep"]) == "stack-too-deep"
    assert refusals.kind_of_all(["invalid access to map value, value_size=8 off=8 size=8",
                                 "R0 min value is outside of the allowed memory range"]) == "out-of-bounds-map-value"
    assert refusals.kind_of_all(["what nobody says"]) == refusals.kind_of_all([]) == "other"


def test_every_kind_can_be_told_and_says_something():
    told = {kind for kind, _ in refusals._PATTERNS} | {"no-return-value", "other"}
    assert told == set(refusals.KINDS)
    for cause, fix in refusals.KINDS.values():
        assert cause and fix and not re.search(r"\.$", cause + fix)


def test_junk_is_no_trouble():
    for log in ("", "\0", "\n\n", "0: (", "from 5 to 6:\n", "5: R1=", "processed x insns"):
        explain.explain(log)
        explain.statistics(log)


def test_a_reason_on_the_line_of_its_instruction():
    """Linux 6.18 prints a loop without end so."""
    log = ("13: (0f) r2 += r1                     ; R1=scalar() R2=scalar()\n14: (a5) if r2 < 0x3 goto pc-9 infinite loop detected at "
           "insn 6\ncur state: R0=1 R10=fp0\nold state: R0=1 R10=fp0\nprocessed 76 insns (limit 1000000) max_states_per_insn 0\n")
    assert reason(log) == "infinite loop detected at insn 6" and failing_slot(log) == 6
    assert messages(log) == ["infinite loop detected at insn 6"]
