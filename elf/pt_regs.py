"""Where registers are in the kernel's struct pt_regs: offsets in bytes by name, one table a machine.

x86: arch/x86/include/asm/ptrace.h; arm64: arch/arm64/include/uapi/asm/ptrace.h, struct user_pt_regs, which has
its registers under two names (r0, x0).
"""


def _slots(names):
    return {name: 8 * index for index, name in enumerate(names.split())}


_ARM64 = _slots(" ".join("r%d" % n for n in range(31)) + " sp pc pstate")
_ARM64.update({"x%d" % n: 8 * n for n in range(31)})

PT_REGS = {
    "x86_64": _slots("r15 r14 r13 r12 bp bx r11 r10 r9 r8 ax cx dx si di orig_ax ip cs flags sp ss"),
    "aarch64": _ARM64,
}
