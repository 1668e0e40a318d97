"""Why the verifier refused a program: its message, the kind of mistake, and what usually mends it.

The verifier (kernel/bpf/verifier.c) says what it saw ("R2 unbounded memory access, use 'var &= const'");
people need to know what that means and what to write instead. `explain(log)` finds the line that
refused, its kind, the instruction, the register states the verifier had there and the path that led to
it. The messages were taken from kernels 5.10 to 7.2; a message that no pattern knows keeps its own
words under the kind "other".
"""

import re
from typing import NamedTuple, Optional

from .verifier import failing_slot, reason

# kind: (cause in plain words, what usually mends it)
KINDS = {
    "uninitialised-register": (
        "a register is read that nothing has set on this path (a call clears r1 to r5, a jump may skip the assignment)",
        "set the register on every path that leads here, after the last call if it is one of r1 to r5"),
    "uninitialised-stack": (
        "stack memory is read, or handed to a helper, that was not written on this path",
        "write every byte of the slot first, padding included (store 0 before filling in a struct)"),
    "null-check": (
        "the pointer may be NULL here, and was not compared with 0 on this path",
        "test it right after the call that returned it: if rN == 0 goto out"),
    "out-of-bounds-map-value": (
        "the access can lie outside the map's value",
        "compare the offset with the value's size before this access, or enlarge value_size"),
    "out-of-bounds-map-key": (
        "the access can lie outside the map's key",
        "hand over a pointer to at least key_size initialised bytes"),
    "out-of-bounds-packet": (
        "the packet may end before this access: it was not compared with data_end on this path",
        "compare first: rX = data; rX += offset + size; if rX > data_end goto out"),
    "out-of-bounds-stack": (
        "the access lies outside this function's stack, which is r10-512 to r10-1",
        "use an offset between -512 and -size, and bound a variable offset on both sides first"),
    "out-of-bounds-memory": (
        "the access can lie outside the memory that the pointer refers to",
        "keep offset plus size within the memory's size; bound a variable one on both sides first"),
    "context-access": (
        "this program type's context has no field that may be accessed at this offset with this size",
        "use an offset and a size of a field of the context, and write only to fields that allow it"),
    "context-pointer": (
        "the context pointer was changed before it was used",
        "keep the context in a register as it was passed, and put constants into the memory operand: *(u64 *)(r1 + 16)"),
    "unbounded-access": (
        "a size or offset comes from a register whose value has no sufficient bounds",
        "bound it on this path, in the register that is used: rN &= mask, or if rN > limit goto out; "
        "for signed values test the negative side too"),
    "not-a-pointer": (
        "memory is accessed through a register that holds a number, not a pointer the verifier knows",
        "get the pointer from the context, a map lookup or the stack; read other kernel or user memory "
        "with bpf_probe_read_kernel or bpf_probe_read_user"),
    "pointer-arithmetic": (
        "this arithmetic on a pointer is not allowed for its kind, operator or width",
        "add and subtract bounded numbers in 64 bits only, and only on pointers that allow it "
        "(stack, map value, packet, memory)"),
    "pointer-comparison": (
        "pointers of these kinds cannot be compared",
        "compare pointers with NULL, or packet pointers with data_end"),
    "pointer-leak": (
        "a kernel address would become visible to user space",
        "do not store or return pointers; unprivileged programs need CAP_PERFMON for this"),
    "wrong-argument": (
        "a register does not hold what the called function wants there",
        "compare the registers with the function's signature: map pointer, initialised stack memory, "
        "constant size, context"),
    "wrong-map-type": (
        "the helper does not work on this type of map",
        "use a map of the type that the helper is for"),
    "unbounded-loop": (
        "the verifier found a loop whose end it cannot see",
        "count with a register that is compared with a constant, unroll the loop, or use bpf_loop (5.17), "
        "may_goto (6.9) or an open-coded iterator (6.4)"),
    "too-complex": (
        "the verifier gave up: too many instructions, branches or states to walk",
        "make loops shorter or call them as functions (bpf_loop, global functions), reduce branches, "
        "or split the program with tail calls"),
    "helper-not-allowed": (
        "this program type cannot use this helper",
        "use another helper or program type; `rawbpf feature probe` lists what goes together"),
    "unknown-function": (
        "this kernel has no such helper or kernel function",
        "use one that this kernel has, or a newer kernel"),
    "gpl-only": (
        "the function may only be used by programs under a GPL-compatible licence",
        "declare the licence: .license \"GPL\""),
    "return-value": (
        "the program can return a value that its type does not allow",
        "set r0 to one of the allowed values on every path before exit"),
    "no-return-value": (
        "r0 was not set before exit",
        "set r0 on every path before exit"),
    "reference-leak": (
        "something acquired (a ring buffer record, a socket, a task, a lock) is not released on some path",
        "release it on every path: submit or discard the record, release the reference, before each exit"),
    "lock": (
        "spin lock, RCU, preemption or interrupt sections are not paired as they must be",
        "take one lock at a time, release it on every path, and call nothing that may sleep inside"),
    "misaligned": (
        "the address is not a multiple of the size of the access",
        "use an aligned offset, smaller accesses, or load with BPF_F_ANY_ALIGNMENT"),
    "unreachable": (
        "the program's control flow is broken: instructions no path reaches, or jumps to no instruction",
        "remove the dead instructions and mend the jump's target"),
    "fall-through": (
        "the last instruction of the program or a function is not exit or a jump",
        "end every function with exit"),
    "bad-instruction": (
        "the kernel does not know this instruction, or a field that must be zero is not",
        "look at the instruction's encoding; newer forms need a newer kernel"),
    "bad-register": (
        "the register does not exist or must not be written (r10 is read-only)",
        "use r0 to r9, and copy r10 before arithmetic"),
    "read-only": (
        "the memory may not be written by this program",
        "write to the stack, a map value or a record instead"),
    "write-forbidden": (
        "this program type may not write there",
        "copy the data, change the copy, and hand it over with the helper that is meant for it"),
    "stack-too-deep": (
        "the stacks of the functions called together exceed 512 bytes, or calls are nested too deep",
        "move large buffers to a per-CPU map, or call fewer functions within each other"),
    "tail-call": (
        "tail calls cannot be combined with this",
        "move the tail call to the main program"),
    "call": (
        "this call of a function of the program is not allowed",
        "check that the target is the start of a function and that its arguments match"),
    "sleepable": (
        "this may sleep, or needs to be sleepable, and the program is of the other kind",
        "load the program as sleepable where its type allows it, or use the variant that does not sleep"),
    "btf": (
        "the type information given with the program does not fit it",
        "rebuild BTF, func_info and line_info from the same program"),
    "attach-target": (
        "the kernel function or program to attach to is not suitable",
        "choose a function that has BTF and may be traced (not inlined, not notrace)"),
    "capability": (
        "an unprivileged program may not do this",
        "load it with CAP_BPF, and CAP_PERFMON for tracing and pointer arithmetic"),
    "not-supported": (
        "this kernel or its JIT does not support it here",
        "use a newer kernel or another way to do it"),
    "too-large": (
        "the program has more instructions than this kernel or user may load",
        "split it, or load it with CAP_BPF (one million instructions instead of 4096)"),
    "dynptr-iterator": (
        "a dynptr or iterator on the stack is not in the state that this call needs",
        "create it first, leave its stack bytes alone, and destroy or submit it once on every path"),
    "verifier-bug": (
        "the verifier itself failed",
        "report it to the kernel's developers with the program; try another kernel"),
    "other": ("the verifier's own words say it", "look at the instruction and the registers before it"),
}

# First match wins: the specific before the general.
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in (
    ("verifier-bug", r"verifier (?:bug|internal error)|verifier\.c|kernel subsystem misconfigured"),
    ("too-complex", r"BPF program is too (?:large\. Processed|complex)|too many (?:jumps|states|branches)|"
                    r"sequence of \d+ jumps is too complex|The sequence of"),
    ("too-large", r"program (?:is )?too large|prog is too large"),
    ("unbounded-loop", r"infinite loop detected|back-edge from insn|loop detected|callback.* unbounded|"
                       r"bpf_loop.*infinite|not an iterator loop"),
    ("no-return-value", r"^R0 !read_ok"),
    ("uninitialised-register", r"R\d+ !read_ok|arg#\d+ !read_ok|caller frame .* !read_ok|unexpected __bpf_trap"),
    ("uninitialised-stack", r"invalid (?:indirect )?read from stack|invalid indirect access to stack.*uninit|"
                            r"unreadable stack|uninitialized stack|invalid read from stack arg"),
    ("gpl-only", r"GPL[- ](?:restricted|only|compatible)|non-GPL"),
    ("helper-not-allowed", r"program of this type cannot use helper|unknown func bpf_\w+#\d+|"
                           r"helper call is not allowed|helper call might sleep|"
                           r"calling kernel function \S+ is not allowed|helper access to the packet is not allowed"),
    ("unknown-function", r"invalid func (?:\S+#)?\d+|unknown func|invalid kernel function|"
                         r"kernel function btf_id|cannot find address for kernel function"),
    ("reference-leak", r"Unreleased reference|reference leak|would lead to reference|"
                       r"reference has not been acquired|Possibly NULL pointer passed to release|"
                       r"release (?:kernel )?func(?:tion)? .* expects|"
                       r"must be referenced|neither owning or non-owning"),
    ("lock", r"spin_?lock|_unlock|bpf_rcu_read|preempt_disable|local_irq|lock id|irq state|irq flag|"
             r"holding a lock|-ed region"),
    ("null-check", r"_or_null|null-check it first|Possibly NULL pointer|may be NULL|possibly_null|"
                   r"is expected to be non-NULL"),
    ("out-of-bounds-map-key", r"invalid access to map key"),
    ("unbounded-access", r"unbounded (?:memory access|variable-offset)|min value is negative|"
                         r"has unknown scalar|not a known (?:value|constant)|must be a known constant|"
                         r"unbounded min value|unbounded value|memory size \d+ is too large|"
                         r"invalid unbounded|invalid zero-sized read|is not a const|variable size"),
    ("out-of-bounds-map-value", r"invalid access to map value"),
    ("out-of-bounds-packet", r"invalid access to packet|offset is outside of the packet"),
    ("context-pointer", r"dereference of modified ctx ptr|variable ctx access"),
    ("context-access", r"invalid bpf_context access|invalid access to context|invalid (?:sock|xdp_sock) access"),
    ("out-of-bounds-stack", r"invalid (?:write|read|indirect access|variable-offset\w*.*|.*)\s*(?:to|from)? ?stack|"
                            r"invalid stack|stack R\d+ off|attempt to corrupt spilled"),
    ("read-only", r"write into map forbidden|cannot write into (?:rdonly|map)|into ptr_|read-only|"
                  r"only read is supported|rdonly"),
    ("out-of-bounds-memory", r"invalid access to (?:memory|flow keys|sock)|outside of the allowed memory|"
                             r"buffer offset|value is outside|beyond struct|access beyond"),
    ("write-forbidden", r"cannot write into|the prog does not allow writes|cannot be used to write"),
    ("pointer-leak", r"leaks addr|leak pointer"),
    ("not-a-pointer", r"invalid mem access|is not a pointer|cannot be accessed directly"),
    ("pointer-comparison", r"pointer comparison prohibited"),
    ("pointer-arithmetic", r"pointer arithmetic|on pointer prohibited|math between|pointer \S+ pointer prohibited|"
                           r"subtract pointer|subtraction from stack|beyond pointer bounds|"
                           r"partial copy of pointer|sign-extension part|bitwise operator|"
                           r"same insn cannot be used with different pointers|pointer offset .* not allowed|"
                           r"offset .* out of range|makes .* pointer be out of bounds|invalid size of register"),
    ("stack-too-deep", r"combined stack size|stack depth|too deep|the call stack of \d+ frames|stack off.*exceed"),
    ("tail-call", r"tail.call"),
    ("wrong-map-type", r"cannot pass map_type|map_type \d+|doesn't match with|type mismatch"),
    ("dynptr-iterator", r"dynptr|iterator|iter_"),
    ("wrong-argument", r"type=\S+ expected=|expected pointer|but expected|arg#\d+|has to be at|Expected|"
                       r"doesn't point to|is of type .* but|must point to|expects|invalid btf|"
                       r"doesn't have constant offset|not a valid|is not a pointer to|must have zero offset"),
    ("misaligned", r"misaligned"),
    ("return-value", r"At (?:program|callback|async callback|subprogram) exit|should have been in|return value|"
                     r"cannot return stack pointer|exit the register R0|returns? void"),
    ("fall-through", r"last insn is not an exit or jmp|jump out of range from insn|no exit"),
    ("unreachable", r"unreachable insn|jump out of range|jump into the middle|jump to reserved|"
                    r"invalid insn idx|R\d+ has no valid jump|jumps? to (?:nowhere|an invalid)"),
    ("bad-register", r"R1[1-5] is invalid|frame pointer is read only|is invalid$|R\d+ is invalid"),
    ("bad-instruction", r"unknown opcode|uses? reserved|reserved fields|invalid BPF_\w+|unrecognized|"
                        r"invalid bpf_ld_imm64|unknown insn|BPF_\w+ instructions? (?:not|in)|invalid shift|"
                        r"div(?:ision)? by zero|invalid size|invalid atomic|may_goto|addr_space_cast"),
    ("sleepable", r"[Ss]leepable|sleep"),
    ("attach-target", r"attach|attach_btf|trampoline"),
    ("btf", r"\bBTF\b|func_info|line_info|core_relo|type id|btf_id"),
    ("call", r"caller|callee|function calls|func#|call(?:ing|s)? (?:to|of|other)|recursi|callback|subprog"),
    ("capability", r"!root|CAP_\w+|unpriv|prohibited for"),
    ("not-supported", r"not supported|JIT|yet$|not allowed|not implemented"),
))

_STEP = re.compile(r"^\s*(\d+): \(([0-9a-f]{2})\) (.*?)(?:\s*; (.*))?$")
_STATE = re.compile(r"^(?:(\d+): )?((?:frame\d+: ?)?(?:R\d+(?:_\w+)?=).*)$")
_FROM = re.compile(r"^from (\d+) to (\d+)(?: \(speculative execution\))?:\s*(.*)$")
_LINE = re.compile(r"^; (.*)$")
_REGISTER = re.compile(r"\bR(\d+)(?:_\w+)?=((?:[^\s()]|\([^)]*\))+)")
_STATS = re.compile(r"processed (\d+) insns.*?max_states_per_insn (\d+) total_states (\d+) peak_states (\d+)")
_TIME = re.compile(r"verification time (\d+) usec")
_DEPTH = re.compile(r"^stack depth (.*)$", re.M)


class Step(NamedTuple):
    """One instruction as the verifier walked it. `before` is the last full or partial state printed before
    it, `after` what stands behind it; `source` the line of source above it; `jumped_from` the slot of the
    jump that this walk came from, where the log says so."""
    slot: int
    text: str
    before: str
    after: str
    source: str
    jumped_from: Optional[int]


class Statistics(NamedTuple):
    """What the verifier counted: instructions processed, states in all and at the peak, microseconds
    (log level "stats" or with one of the others), stack depth of each function in bytes."""
    insns: int
    max_states_per_insn: int
    total_states: int
    peak_states: int
    time_us: Optional[int]
    stack_depth: tuple


class Explanation(NamedTuple):
    """Why a program was refused. `slot` counts 8-byte slots; `registers` is {number: state} as known there;
    `path` the slots walked since the last branch of the log that was restarted."""
    message: str
    kind: str
    cause: str
    fix: str
    slot: Optional[int]
    instruction: str
    registers: dict
    source: str
    path: tuple


def kind_of(message):
    """The kind of refusal that a line of the verifier's tells, a key of KINDS."""
    for kind, pattern in _PATTERNS:
        if pattern.search(message):
            return kind
    return "other"


def steps(log):
    """The walk that a log of level 1 or 2 shows, as a list of Step."""
    walked, before, source, jumped = [], "", "", None
    for line in log.split("\n"):
        found = _STEP.match(line)
        if found:
            slot, _, text, after = found.groups()
            walked.append(Step(int(slot), text.strip(), before, after or "", source, jumped))
            before, jumped = after or "", None
            continue
        found = _FROM.match(line)
        if found:
            jumped, before = int(found.group(1)), found.group(3)
            continue
        found = _STATE.match(line)
        if found:
            before = found.group(2)
            continue
        found = _LINE.match(line)
        if found:
            source = found.group(1)
    return walked


def registers(text):
    """{register number: state} in one printed state."""
    return {int(number): state for number, state in _REGISTER.findall(text)}


def statistics(log):
    """The Statistics at the log's end; None where there are none (a check before the walk refused)."""
    found = _STATS.search(log)
    if not found:
        return None
    time, depth = _TIME.search(log), _DEPTH.search(log)
    depths = tuple(int(d) for d in re.findall(r"\d+", depth.group(1))) if depth else ()
    return Statistics(*map(int, found.groups()), int(time.group(1)) if time else None, depths)


def _path(walked):
    """Slots of the last walk, following its jumps back through the branches it was pushed from."""
    path, index, want = [], len(walked) - 1, None
    while index >= 0:
        step = walked[index]
        if want is None or step.slot == want:
            path.append(step.slot)
            want = step.jumped_from
            if want is None and index and walked[index - 1].slot > step.slot + 2:
                want = None
        index -= 1
    return tuple(reversed(path))


def explain(log):
    """An Explanation of the verifier's `log` (level 1 or 2 tells most)."""
    message = reason(log)
    kind = kind_of(message)
    cause, fix = KINDS[kind]
    slot = failing_slot(log)
    walked = steps(log)
    known, instruction, source = {}, "", ""
    if walked:
        last = walked[-1]
        if slot is None or last.slot == slot:
            slot, instruction, source = last.slot, last.text, last.source
            for step in walked:
                known.update(registers(step.before))
            known.update(registers(last.before))
        else:
            for step in walked:
                if step.slot == slot:
                    instruction, source = step.text, step.source
    return Explanation(message, kind, cause, fix, slot, instruction, known, source, _path(walked))
