"""The kinds of refusal that the verifier knows: what its messages mean, and what usually mends it.

The messages are those of kernels 5.10 to 7.2 (kernel/bpf/verifier.c and its neighbours). One that no pattern
knows keeps its own words under the kind "other".
"""

import re

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
    "struct-field": (
        "the kernel's structure has no field there that may be accessed with this size",
        "use the offset and size of one of its fields, as its BTF (or a CO-RE relocation) says"),
    "context-access": (
        "this program type's context has no field that may be accessed at this offset with this size",
        "use an offset and a size of a field of the context, and write only to fields that allow it"),
    "modified-pointer": (
        "the pointer (the context, a kernel structure) was changed before it was used",
        "keep it in a register as it was passed, and put constants into the memory operand: *(u64 *)(r1 + 16)"),
    "unbounded-access": (
        "a size or offset comes from a register whose value has no sufficient bounds",
        "bound it on this path, in the register that is used: rN &= mask, or if rN > limit goto out; "
        "for signed values test the negative side too, and a size for 0"),
    "not-constant": (
        "this argument must be a constant that the verifier knows",
        "load it with rN = NUMBER right before the call"),
    "not-a-pointer": (
        "memory is accessed through a register that holds a number, or a pointer that must not be followed",
        "get the pointer from the context, a map lookup or the stack; read other kernel or user memory "
        "with bpf_probe_read_kernel or bpf_probe_read_user"),
    "pointer-arithmetic": (
        "this arithmetic on a pointer is not allowed for its kind, operator or width",
        "add and subtract bounded numbers in 64 bits only, and only on pointers that allow it "
        "(stack, map value, packet, memory)"),
    "pointer-comparison": (
        "pointers of these kinds cannot be compared",
        "compare pointers with NULL, or packet pointers with data_end"),
    "partial-pointer": (
        "a part of a pointer is copied, or a pointer on the stack is overwritten in part",
        "copy pointers as a whole, with 8-byte loads and stores of 8-byte aligned slots"),
    "pointer-leak": (
        "a kernel address would become visible to user space",
        "do not store or return pointers there; unprivileged programs need CAP_PERFMON for this"),
    "different-pointers": (
        "the same instruction is reached with pointers of different kinds",
        "give each kind of pointer its own load or store"),
    "wrong-argument": (
        "a register does not hold what the called function wants there",
        "compare the registers with the function's signature: map pointer, initialised stack memory, size, context"),
    "wrong-map-type": (
        "the helper or the program does not work with this type of map",
        "use a map of the type that it is for"),
    "bad-map-reference": (
        "the program refers to a map, BTF object or kernel symbol that is not there, or to too many of them",
        "create the map first and pass its descriptor; name maps and symbols instead of numbers"),
    "unbounded-loop": (
        "the verifier found a loop whose end it cannot see",
        "count with a register that is compared with a constant, unroll the loop, or use bpf_loop (5.17), "
        "may_goto (6.9) or an open-coded iterator (6.4)"),
    "too-complex": (
        "the verifier gave up: too many instructions, branches or states to walk",
        "make loops shorter or call them as functions (bpf_loop, global functions), reduce branches, "
        "or split the program with tail calls"),
    "helper-not-allowed": (
        "this program type cannot use this function",
        "use another helper or program type"),
    "unknown-function": (
        "this kernel has no such helper or kernel function",
        "use one that this kernel has, or a newer kernel"),
    "gpl-only": (
        "this may only be used by programs under a GPL-compatible licence",
        "declare the licence: .license \"GPL\""),
    "return-value": (
        "the program can return a value that its type does not allow",
        "set r0 to one of the allowed values on every path before exit"),
    "no-return-value": (
        "r0 was not set before exit",
        "set r0 on every path before exit"),
    "reference-leak": (
        "something acquired (a ring buffer record, a socket, a task) is not released on some path, or is released "
        "without having been acquired",
        "release it exactly once on every path: submit or discard the record, release the reference, before each exit"),
    "lock": (
        "spin lock, RCU, preemption or interrupt sections are not paired as they must be",
        "take one lock at a time, release it on every path, and call nothing inside that may not be called there"),
    "misaligned": (
        "the address is not a multiple of the size of the access",
        "use an aligned offset, smaller accesses, or load with BPF_F_ANY_ALIGNMENT"),
    "unreachable": (
        "no path reaches this instruction",
        "remove it, or mend the jump that should lead to it"),
    "bad-jump": (
        "a jump leads outside the function, or into the middle of a 64-bit constant",
        "jump to a label: the assembler counts the slots"),
    "fall-through": (
        "the last instruction of the program or a function is not exit or a jump",
        "end every function with exit"),
    "bad-instruction": (
        "the kernel does not know this instruction, or a field of it has a value that it must not have",
        "look at the instruction's encoding; newer forms need a newer kernel"),
    "bad-register": (
        "the register does not exist or must not be written (r10 is read-only)",
        "use r0 to r9, and copy r10 before arithmetic"),
    "packet-load": (
        "the old packet loads (r0 = *(u8 *)skb[...]) cannot be used here",
        "use them only in socket filters and traffic classifiers, with the context in r6; else bpf_skb_load_bytes"),
    "missing-in-kernel": (
        "the object needs a type, field or function that this kernel does not have (its relocation has failed), and "
        "the program can get there",
        "ask first: bpf_core_field_exists(), bpf_core_type_exists(), bpf_ksym_exists(), and branch on the answer"),
    "write-only": (
        "the map may not be read by programs (BPF_F_WRONLY_PROG)",
        "create the map without that flag, or read it from user space"),
    "read-only": (
        "the memory may only be read",
        "write to the stack, a map value or a record instead"),
    "write-forbidden": (
        "this program may not write there, or not with this instruction",
        "copy the data, change the copy, and hand it over with the helper that is meant for it"),
    "stack-too-deep": (
        "the stacks of the functions called together exceed 512 bytes, or calls are nested too deep",
        "move large buffers to a per-CPU map, or call fewer functions within each other"),
    "tail-call": (
        "tail calls cannot be combined with this",
        "move the tail call to the main program, and keep the stack below 256 bytes"),
    "call": (
        "this call of a function of the program is not allowed",
        "check that the target is the start of a function, that its arguments match, and that it does not call itself"),
    "sleepable": (
        "this may sleep, or needs to be sleepable, and the program is of the other kind",
        "load the program as sleepable where its type allows it, or use the variant that does not sleep"),
    "kptr": (
        "a kernel pointer kept in a map value is not accessed as it must be",
        "load and store it with 8-byte accesses of its exact place; exchange referenced ones with bpf_kptr_xchg"),
    "special-field": (
        "a timer, work queue, list, tree or other special field of a map value is not declared, not where the call "
        "needs it, or is touched by a plain load or store",
        "declare it in the value's type (the map needs BTF), pass its exact address, and use its helpers only"),
    "untrusted-pointer": (
        "the called function wants a pointer that is known to be valid, and this one may be stale",
        "acquire the object, or use it in the program and section (RCU) that guarantees it"),
    "exception": (
        "bpf_throw or an exception callback cannot be used so",
        "throw outside of locks and callbacks; the callback is a global function of one integer"),
    "dynptr-iterator": (
        "a dynptr or iterator on the stack is not in the state that this call needs",
        "create it first, leave its stack bytes alone, and destroy or submit it once on every path"),
    "arena": (
        "the program uses an arena that it does not have",
        "refer to one arena map in the program before addresses are converted"),
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
        "the program, as the verifier rewrites it, is larger than its jumps reach",
        "split it into functions or tail calls, or use gotol (6.6) for jumps across most of it"),
    "verifier-bug": (
        "the verifier itself failed",
        "report it to the kernel's developers with the program; try another kernel"),
    "other": ("the verifier's own words say it", "look at the instruction and the registers before it"),
}

# First match wins: the specific before the general. R%d is "arg#%d" or a stack argument in newer kernels.
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in (
    ("verifier-bug", r"verifier (?:bug|BUG|internal error|backtracking bug|insn history bug)|verifier is misconfigured|"
                     r"kernel subsystem misconfigured|^BUG\b|internal bug|bpf verifier .*misconfigured|BPF_PTR_POISON|"
                     r"(?:invalid|unknown) return type|invalid map_ptr to access|unhandled dynamic return|"
                     r"Unhandled enum type|inconsistent KF_|acquire kernel function does not|failed to mark s32|"
                     r"unknown stack slot|allocated_stack too small"),
    ("missing-in-kernel", r"#(?:195896080|2002000000)\b"),
    ("too-complex", r"BPF program is too (?:large\. Processed|complex)|jumps is too complex|analysis exceeded complexity|"
                    r"could not be pushed|failed to push state for failed lock|too many iterations"),
    ("too-large", r"cannot be patched due to 16-bit range"),
    ("unbounded-loop", r"infinite loop detected|back-edge from insn|loop detected|iteration limit reached"),
    ("capability", r"!root|CAP_\w+|unpriv"),
    ("uninitialised-register", r"!read_ok|unexpected __bpf_trap|stack arg\d* is not initialized|"
                               r"invalid read from stack arg"),
    ("uninitialised-stack", r"invalid (?:indirect )?read from stack(?: \S+)? (?:off -?\d+\+|var_off )|"
                            r"reading from stack .*poisoned"),
    ("gpl-only", r"GPL[- ](?:restricted|only|compatible)|non-GPL"),
    ("exception", r"exception|bpf_throw"),
    ("return-value", r"(?:At \w+(?: \w+)? exit|In async callback) the register"),
    ("special-field", r"has no valid bpf_(?!\w*lock)|'struct bpf_(?:timer|wq|list\w*|rb_\w+|refcount|task_work)'|"
                      r"bpf_(?:timer|wq|list_head|rb_root|refcount|task_work)\b.* cannot be accessed|"
                      r"has to have BTF in order to use bpf_(?!\w*lock)|bpf_timer is mangled|must be at the constant offset"),
    ("kptr", r"\bkptr\b|BPF_ST imm must be 0|store to uptr|accessed indirectly by helper|direct access to \S+ is disallowed|"
             r"access size must be BPF_DW"),
    ("lock", r"-ed region|spin_?lock|_unlock|_lock\b|same lock|bpf_rcu_read|rcu read (?:un)?lock|RCU (?:CS|critical)|"
             r"preempt_(?:dis|en)able|enable preemption|preemption disabled|local_irq|irq (?:state|flag)|holding a lock|"
             r"active lock|held lock|must be held for|can't (?:res_)?spin_|"
             r"acquire lock state"),
    ("sleepable", r"sleep"),
    ("helper-not-allowed", r"program of this type cannot use helper|^unknown func bpf_\w+#\d+|"
                           r"helper call is not allowed|calling kernel function \S+ is not allowed|"
                           r"func \S+ (?:not )?supported (?:only )?for|is only allowed in bpf_lsm|"
                           r"cannot be used in tracing programs on"),
    ("unknown-function", r"^invalid func \S*\d+|^unknown func|invalid kernel function|kernel (?:function )?btf_id|"
                         r"cannot find address for kernel function|failed to find BTF for kernel function|"
                         r"address of kernel func\S* \S+ is out of range|too many different module BTFs|"
                         r"negative offset disallowed for kernel module"),
    ("reference-leak", r"[Uu]nreleased reference|[Ll]eaking reference|reference leak|reference has not been acquired|"
                       r"release (?:kernel )?(?:helper|kfunc|function) .*expects|unacquired reference|"
                       r"must be referenced when|Reference may already be released"),
    ("partial-pointer", r"invalid size of register|attempt to corrupt spilled|partial copy of pointer|"
                        r"sign-extension part|spilled ptr in range"),
    ("null-check", r"_or_null|null-check it first|Possibly NULL pointer|is expected to be non-NULL"),
    ("out-of-bounds-map-key", r"invalid access to map key"),
    ("not-constant", r"not a known (?:value|constant)|must be a known constant|is not a const(?:ant)?\b|"
                     r"doesn't have constant|must be in range|must be a constant|not a constant address"),
    ("struct-field", r"beyond struct|is ptr_\S+ invalid (?:negative access|variable offset)|access beyond the end of member|cannot access ptr member|doesn't have field at offset|"
                     r"max struct nesting"),
    ("unbounded-access", r"unbounded (?:memory access|variable-offset|min value|value)|min value is negative|"
                         r"memory size \d+ is too large|invalid zero-sized read|"
                         r"invalid variable (?:buffer )?offset|access cannot have variable offset|unbounded size|"
                         r"variable offset stack pointer|the sum of R\d+ um|rdwr_buf_size exceeds"),
    ("out-of-bounds-map-value", r"invalid access to map value|bytes from insn_array"),
    ("out-of-bounds-packet", r"invalid access to packet|offset is outside of the packet"),
    ("modified-pointer", r"dereference of modified|negative offset \S+ ptr|variable \S+ access var_off|"
                         r"must have zero offset|in-kernel struct with non-zero offset"),
    ("context-access", r"invalid bpf_context access|invalid access to context|invalid (?:\w*sock\w*|tp) access"),
    ("pointer-leak", r"leaking pointer from stack"),
    ("out-of-bounds-stack", r"invalid (?:[\w-]+ )*stack\b|stack off="),
    ("write-only", r"read from map forbidden"),
    ("read-only", r"write into map forbidden|cannot write into (?:rdonly|map|ptr_)|only read (?:from|is)|"
                  r"write to change key"),
    ("out-of-bounds-memory", r"invalid access to (?:memory|flow keys|mem)|outside of the allowed memory|"
                             r"invalid (?:negative|\w+ buffer) access|access beyond|len pair leads|"
                             r"invalid negative|buffer (?:offset|access)"),
    ("packet-load", r"BPF_LD_\[ABS\|IND\] (?:instructions not allowed|cannot)|R6 != pointer to skb|LD_ABS"),
    ("write-forbidden", r"cannot write into|does not allow writes|BPF_(?:ATOMIC|XADD|ST) (?:stores|loads)|may write into"),
    ("pointer-leak", r"leaks addr"),
    ("pointer-comparison", r"pointer comparison prohibited"),
    ("pointer-arithmetic", r"pointer arithmetic|on pointer prohibited|math between|pointer \S+ pointer prohibited|"
                           r"subtract pointer|subtraction from stack|beyond pointer bounds|be out of bounds|"
                           r"pointer offset \S+ is not allowed|mixed signed bounds|different maps, paths|unsupported alu operation"),
    ("different-pointers", r"same insn cannot be used with different pointers"),
    ("not-a-pointer", r"invalid mem access|cannot be accessed directly|access (?:user|percpu) memory"),
    ("stack-too-deep", r"combined stack size|stack size |stack depth|call stack of \d+ frames is too deep"),
    ("wrong-map-type", r"cannot pass map_type|prog array map|invalid arg_type for sockmap|programs can only use|"
                       r"progs cannot use|no direct value access|map_ptr access not supported|cgroup storage|"
                       r"callback function not allowed for map|isn't map pointer|map_uid|update sockmap|excl_prog_hash|"
                       r"offload device mismatch|struct_ops map cannot|run-time allocat"),
    ("tail-call", r"tail[_ ]call"),
    ("arena", r"\barena\b"),
    ("bad-map-reference", r"is not pointing to valid|fd_array is invalid|ldimm64 (?:insn specifies|failed|unable)|"
                          r"pseudo btf_id|direct value offset|has reached the limit|fd_array_cnt|map value address"),
    ("dynptr-iterator", r"[Dd]ynptr|DYNPTR|\biter(?:ator)?[ _]"),
    ("untrusted-pointer", r"must be referenced or trusted|must be a rcu pointer|neither owning|non-owning|allocated object must be referenced"),
    ("wrong-argument", r"type=\S* expected=|expected pointer|is expected$|expected for bpf_|has to be at|"
                       r"doesn't point to|does not point|pointer type|must point to|cannot pass|"
                       r"helper access to the packet|expects |Unsupported reg type|type ID argument|Type ID|type ID|"
                       r"size cannot be determined|^arg#?\d|is not a scalar$|[Ii]nvalid format string|Unrecognized \S+ type|"
                       r"not found at offset|or socket|const string|on string failed|not zero-terminated|"
                       r"non-zero flags|prog->aux|type size|kfunc \S+ type ID"),
    ("misaligned", r"misaligned"),
    ("return-value", r"should have been in|R0 not a scalar|cannot return stack pointer|the register R0|"
                     r"modify return"),
    ("fall-through", r"last insn is not an exit or jmp"),
    ("unreachable", r"unreachable insn"),
    ("bad-jump", r"jump out of range|jump into the middle|jump to reserved|invalid insn idx|jump table|"
                 r"expected PTR_TO_INSN|doesn't point to any offset|insn array"),
    ("bad-register", r"R\d+ is invalid|frame pointer is read only"),
    ("bad-instruction", r"unknown opcode|uses? reserved|reserved fields|invalid BPF_\w+|unrecognized|invalid atomic|"
                        r"invalid bpf_ld_imm64|unknown insn|invalid shift|div(?:ision)? by zero|invalid may_goto|"
                        r"invalid \w+ opcode|addr_space_cast|Unknown conditional jump"),
    ("attach-target", r"[Aa]ttach|[Ee]xtension program|Cannot (?:replace|extend|nest)|Target program|tracepoint template|"
                      r"not modifiable|Subprog \S+ doesn't exist|not a global function|The (?:address of )?function \S+ |"
                      r"\d+ args while|Return type|struct_ops module|is too long"),
    ("btf", r"\bBTF\b|func.info|line.info|core_relo|type id|btf_id|btf_fd|multiple type tags"),
    ("call", r"caller|callee|func#\d+|recursive call|callback|subprog|[Ff]unction calls|invalid destination|rbtree cb|"
             r"Function \S+ has|stack arg|r11"),
    ("not-supported", r"not supported|JIT|yet$|not allowed|not implemented|prohibited|callchain buffer"),
))


_STACK_READ = re.compile(r"invalid (?:read from|indirect access to) stack R\d+ off=(-\d+) size=(\d+)")


# Lines of these kinds count where they come last; else the first line says what the matter is, and the others more of it.
_FINAL = ("capability", "stack-too-deep", "too-complex")


def kind_of_all(messages):
    """The kind of refusal that the lines of the verifier's together tell."""
    kinds = [kind for kind in map(kind_of, messages) if kind != "other"] or ["other"]
    return kinds[-1] if kinds[-1] in _FINAL else kinds[0]


def kind_of(message):
    """The kind of refusal that one line of the verifier's tells, a key of KINDS."""
    found = _STACK_READ.match(message)
    if found:
        # A read below all that was ever written is told as one outside the stack.
        off, size = map(int, found.groups())
        return "uninitialised-stack" if off >= -512 and off + size <= 0 else "out-of-bounds-stack"
    for kind, pattern in _PATTERNS:
        if pattern.search(message):
            return kind
    return "other"
