"""Names and numbers of the eBPF instruction set: RFC 9669, include/uapi/linux/bpf.h and bpf_common.h.

An opcode is class (3 bits), then source + operation (ALU, JMP) or size + mode (LD, LDX, ST, STX).
"""

# instruction classes
BPF_LD, BPF_LDX, BPF_ST, BPF_STX, BPF_ALU, BPF_JMP, BPF_JMP32, BPF_ALU64 = range(8)

# operand source of ALU and JMP
BPF_K, BPF_X = 0x00, 0x08

# sizes and modes of LD, LDX, ST, STX
BPF_W, BPF_H, BPF_B, BPF_DW = 0x00, 0x08, 0x10, 0x18
BPF_IMM, BPF_ABS, BPF_IND, BPF_MEM, BPF_MEMSX, BPF_ATOMIC = 0x00, 0x20, 0x40, 0x60, 0x80, 0xC0

# ALU operations
BPF_ADD, BPF_SUB, BPF_MUL, BPF_DIV, BPF_OR, BPF_AND, BPF_LSH, BPF_RSH = range(0x00, 0x80, 0x10)
BPF_NEG, BPF_MOD, BPF_XOR, BPF_MOV, BPF_ARSH, BPF_END = range(0x80, 0xE0, 0x10)

# JMP operations
BPF_JA, BPF_JEQ, BPF_JGT, BPF_JGE, BPF_JSET, BPF_JNE, BPF_JSGT, BPF_JSGE = range(0x00, 0x80, 0x10)
BPF_CALL, BPF_EXIT, BPF_JLT, BPF_JLE, BPF_JSLT, BPF_JSLE, BPF_JCOND = range(0x80, 0xF0, 0x10)

# atomic operations, in the immediate of STX | ATOMIC
BPF_FETCH = 0x01
BPF_XCHG = 0xE0 | BPF_FETCH
BPF_CMPXCHG = 0xF0 | BPF_FETCH
BPF_LOAD_ACQ = 0x100
BPF_STORE_REL = 0x110

# source register of lddw
BPF_PSEUDO_MAP_FD, BPF_PSEUDO_MAP_VALUE, BPF_PSEUDO_BTF_ID, BPF_PSEUDO_FUNC = 1, 2, 3, 4
BPF_PSEUDO_MAP_IDX, BPF_PSEUDO_MAP_IDX_VALUE = 5, 6
# source register of call
BPF_PSEUDO_CALL, BPF_PSEUDO_KFUNC_CALL = 1, 2

# offset of ALU64 | MOV | X that converts between address spaces
BPF_ADDR_SPACE_CAST = 1
BPF_ADDR_PERCPU = -1          # the kernel's own (6.10): what it makes of bpf_this_cpu_ptr and the like

LDDW = BPF_LD | BPF_DW | BPF_IMM
JA = BPF_JMP | BPF_JA
JA32 = BPF_JMP32 | BPF_JA
JAX = BPF_JMP | BPF_JA | BPF_X     # gotox (Linux 6.19): to an address out of a map of type insn_array
CALL = BPF_JMP | BPF_CALL
EXIT = BPF_JMP | BPF_EXIT

SIZE_CODE = {1: BPF_B, 2: BPF_H, 4: BPF_W, 8: BPF_DW}
CODE_SIZE = {code: size for size, code in SIZE_CODE.items()}

# operator of the text -> (operation, offset field); the offset tells signed from unsigned division
ALU_OPERATION = {
    "+": (BPF_ADD, 0), "-": (BPF_SUB, 0), "*": (BPF_MUL, 0), "/": (BPF_DIV, 0), "s/": (BPF_DIV, 1),
    "%": (BPF_MOD, 0), "s%": (BPF_MOD, 1), "|": (BPF_OR, 0), "&": (BPF_AND, 0), "^": (BPF_XOR, 0),
    "<<": (BPF_LSH, 0), ">>": (BPF_RSH, 0), "s>>": (BPF_ARSH, 0),
}
JUMP_OPERATION = {
    "==": BPF_JEQ, "!=": BPF_JNE, ">": BPF_JGT, ">=": BPF_JGE, "<": BPF_JLT, "<=": BPF_JLE,
    "s>": BPF_JSGT, "s>=": BPF_JSGE, "s<": BPF_JSLT, "s<=": BPF_JSLE, "&": BPF_JSET,
}
ATOMIC_OPERATION = {"+": BPF_ADD, "|": BPF_OR, "&": BPF_AND, "^": BPF_XOR,
                    "xchg": BPF_XCHG, "cmpxchg": BPF_CMPXCHG}

# jumps whose operands or outcome are exchanged
SWAPPED = {"==": "==", "!=": "!=", "&": "&", "<": ">", ">": "<", "<=": ">=", ">=": "<=",
           "s<": "s>", "s>": "s<", "s<=": "s>=", "s>=": "s<="}
INVERTED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">",
            "s<": "s>=", "s>=": "s<", "s>": "s<=", "s<=": "s>"}
