"""The code of dw_ustack(): goes up a user stack by unwinding tables, in the kernel.

Two maps hold the tables (unwinder.py fills them):

    unwind_processes  hash, process -> MAPPINGS start addresses (u64, sorted, the first 0, unused ones FAR), then as
                      many entries of 32 bytes: end (u64), bias (u64), number of its directory in unwind_rows (u32; 0:
                      there is no table)
    unwind_rows       array of elements of ELEMENT bytes. A table is a directory, ROOM u32s: the first address of each
                      part; and after it the parts: ROWS u32s (addresses), ROWS u64s (rules: elf/unwind_table.py).
                      Unused addresses are 0xffffffff.

Searches are branch-free halvings of a power of two, so that the verifier walks one path through them. A frame costs
two array lookups and about thirty loads. Where no table says more, the frame pointer is followed, as long as it leads
to mapped code.
"""

from rawbpf.elf import unwind_table as t

from .compiled import KernelMap

PROCESSES, TABLES = "unwind_processes", "unwind_rows"
MAPPINGS, ROOM, ROWS = 512, 2048, 1024
ELEMENT = ROWS * 12
FAR = (1 << 63) - 1
PROCESS_SIZE = MAPPINGS * 40
SLACK = 512             # elements for files that are mapped later: six megabytes
NO_ALLOC = 1            # BPF_F_NO_PREALLOC: programs only read these


def kernel_maps():
    """The maps. The session makes TABLES larger by what it knows to be needed."""
    return (KernelMap(PROCESSES, "hash", 4, PROCESS_SIZE, 256, NO_ALLOC),
            KernelMap(TABLES, "array", 4, ELEMENT, SLACK))


class Unwinding:
    """Code at the current position of the lowering `b` that writes up to `limit` return addresses to Place `frames`;
    `count` is an ir variable with their number; control goes to block `missing` where the process has no tables."""

    def __init__(self, b, frames, limit, count, missing):
        self.b, self.f = b, b.f
        self.frames, self.limit, self.count, self.missing = frames, limit, count, missing
        from rawbpf.sources import abi
        self.abi = abi.host()
        self.arm = self.abi.machine == "aarch64"
        f = self.f
        self.ip, self.sp, self.fp, self.lr, self.back = (f.variable() for _ in range(5))

    def run(self, pid):
        f = self.f
        key = f.slot(8)
        f.store(key, 0, pid, 4)
        self.process = f.call("bpf_map_lookup_elem", f.map(PROCESSES), f.address(key))
        found = f.block("unwind")
        f.branch("==", self.process, 0, self.missing, found)
        f.position(found)
        self._registers()
        f.set(self.count, 0)
        f.set(self.back, 0)
        base = self.b.address(self.frames)
        self.head, self.done = f.block("frame"), f.block("unwound")
        f.jump(self.head)
        f.position(self.head)
        going = f.block()
        f.branch(">=", self.count, self.limit, self.done, going)
        f.position(going)
        entry = self._mapping(f.alu("-", self.ip, self.back))
        mapped, drop = f.block("mapped"), f.block("not_mapped")
        f.branch("<", self.ip, f.load(entry, MAPPINGS * 8, 8), mapped, drop)
        f.position(drop)        # nobody's code: the end, but for the innermost frame, which is what was hit
        first = f.block()
        f.branch("==", self.count, 0, first, self.done)
        f.position(first)
        f.store(base, 0, self.ip, 8)
        f.set(self.count, 1)
        f.jump(self.done)
        f.position(mapped)
        f.store(f.alu("+", base, f.alu("<<", f.alu("&", self.count, 127), 3)), 0, self.ip, 8)
        f.set(self.count, f.alu("+", self.count, 1))
        self.follow = f.block("frame_pointer")
        rule = self._rule(entry, key)
        self._up(rule)
        f.position(self.follow)
        self._by_frame_pointer()
        f.position(self.done)

    # -- where it starts

    def _registers(self):
        """The process's registers: the probe's, or what it entered the kernel with."""
        b, f = self.b, self.f
        names = [self.abi.pc, self.abi.sp] + (["r29", "r30"] if self.arm else ["bp"])
        variables = [self.ip, self.sp, self.fp, self.lr]
        point = b.point
        own = point.user_space and point.program_type == "kprobe"
        perf = point.program_type == "perf_event"
        ready = f.block("registers")
        if own or perf:
            for name, variable in zip(names, variables):
                f.set(variable, f.load(b.ctx, self.abi.registers[name], 8))
        if perf:
            kernel = f.block("in_kernel")
            f.branch("s<", self.ip, 0, kernel, ready)
            f.position(kernel)
        if not own:
            if b.script.machine.has_helper("bpf_task_pt_regs", point.program_type):
                registers = f.call("bpf_task_pt_regs", f.call("bpf_get_current_task_btf"))
                for name, variable in zip(names, variables):
                    f.set(variable, f.load(registers, self.abi.registers[name], 8))
                f.jump(ready)
            else:
                f.jump(self.missing)
        else:
            f.jump(ready)
        f.position(ready)

    # -- searching

    def _halve(self, base, size, width, wanted):
        """Index of the last of `size` sorted numbers at `base` that is not above `wanted`; 0 where all are."""
        f = self.f
        index, step = None, size // 2
        while step:
            place = f.alu("+", index, step) if index is not None else step
            address = f.alu("+", base, f.alu("<<", place, width.bit_length() - 1) if index is not None else place * width)
            there = f.load(address, 0, width)
            # all ones where wanted >= there
            mask = f.alu("^", f.alu("s>>", f.alu("-", wanted, there), 63), -1)
            chosen = f.alu("&", mask, step)
            index = f.alu("+", index, chosen) if index is not None else chosen
            step >>= 1
        return index

    def _mapping(self, pc):
        """Address of the mapping's entry less MAPPINGS * 8: see `unwind_processes`."""
        f = self.f
        index = self._halve(self.process, MAPPINGS, 8, pc)
        return f.alu("+", self.process, f.alu("<<", index, 5))

    def _rule(self, entry, key):
        """The rule for the instruction, or off to `follow` without one."""
        f = self.f
        directory = f.load(entry, MAPPINGS * 8 + 16, 4)
        relative = f.alu("-", f.alu("-", self.ip, self.back), f.load(entry, MAPPINGS * 8 + 8, 8))
        table, within = f.block("table"), f.block()
        f.branch("==", directory, 0, self.follow, table)
        f.position(table)
        f.branch(">", relative, 0xfffffffe, self.follow, within)
        f.position(within)
        part = self._element(key, directory)
        number = self._halve(part, ROOM, 4, relative)
        rows = self._element(key, f.alu("+", f.alu("+", directory, number), 1))
        number = self._halve(rows, ROWS, 4, relative)
        return f.load(f.alu("+", rows, f.alu("<<", number, 3)), ROWS * 4, 8)

    def _element(self, key, number):
        f = self.f
        f.store(key, 0, number, 4)
        found = f.call("bpf_map_lookup_elem", f.map(TABLES), f.address(key))
        there = f.block()
        f.branch("==", found, 0, self.done, there)
        f.position(there)
        return found

    # -- one frame up

    def _up(self, rule):
        f = self.f
        offset = f.alu("s>>", f.alu("<<", rule, 40), 40)
        kind = f.alu("&", f.alu(">>", rule, 24), 15)
        cfa = f.variable()
        known = f.block("cfa")
        kinds = [(t.BY_SP, lambda: f.set(cfa, f.alu("+", self.sp, offset))),
                 (t.BY_FP, lambda: f.set(cfa, f.alu("+", self.fp, offset)))]
        if not self.arm:
            kinds.append((t.PLT, lambda: self._plt(cfa, offset)))
        for number, code in kinds:
            this, other = f.block(), f.block()
            f.branch("==", kind, number, this, other)
            f.position(this)
            code()
            f.jump(known)
            f.position(other)
        if not self.arm:
            self._signal(kind)
        f.branch("==", kind, t.END, self.done, self.follow)
        f.position(known)
        upwards = f.block()
        f.branch(">", self.sp, cfa, self.done, upwards)
        f.position(upwards)
        f.set(self.sp, cfa)
        address = f.alu("s>>", rule, 48)
        frame = f.alu("s>>", f.alu("<<", rule, 16), 48)
        if self.arm:
            self._saved(self.lr, address, cfa)
            pc = f.alu("&", self.lr, (1 << 48) - 1)         # without the signature of pointer authentication
            f.set(self.ip, pc)
        else:
            f.set(self.ip, self._read(f.alu("+", cfa, address)))
        self._saved(self.fp, frame, cfa)
        self._next(1)

    def _plt(self, cfa, limit):
        f = self.f
        after = f.compare(">=", f.alu("&", self.ip, 15), limit)
        f.set(cfa, f.alu("+", f.alu("+", self.sp, 8), f.alu("<<", after, 3)))

    def _signal(self, kind):
        """The frame of a signal handler: what it interrupted is as it was, and no call."""
        f = self.f
        this, other = f.block("signal"), f.block()
        f.branch("==", kind, t.SIGNAL, this, other)
        f.position(this)
        ip, sp, fp = (self._read(f.alu("+", self.sp, offset)) for offset in (t.SIGNAL_IP, t.SIGNAL_SP, t.SIGNAL_FP))
        f.set(self.ip, ip), f.set(self.sp, sp), f.set(self.fp, fp)
        self._next(0)
        f.position(other)

    def _saved(self, variable, offset, cfa):
        """A register from where a rule says, unless it was kept."""
        f = self.f
        load, after = f.block(), f.block()
        f.branch("==", offset, t.KEPT, after, load)
        f.position(load)
        f.set(variable, self._read(f.alu("+", cfa, offset)))
        f.jump(after)
        f.position(after)

    def _by_frame_pointer(self):
        f = self.f
        sane = f.block()
        f.branch("<", self.fp, self.sp, self.done, sane)
        f.position(sane)
        ip = self._read(f.alu("+", self.fp, 8))
        fp = self._read(self.fp)
        f.set(self.ip, f.alu("&", ip, (1 << 48) - 1) if self.arm else ip)
        f.set(self.sp, f.alu("+", self.fp, 16))
        f.set(self.fp, fp)
        self._next(1)

    def _next(self, back):
        f = self.f
        f.set(self.back, back)
        f.branch("==", self.ip, 0, self.done, self.head)

    def _read(self, address):
        """A word of the process's stack; the end where there is none."""
        f = self.f
        word = f.slot(8)
        got = f.call("bpf_probe_read_user", f.address(word), 8, address)
        fine = f.block()
        f.branch("==", got, 0, fine, self.done)
        f.position(fine)
        return f.load(word, 0, 8)


__all__ = ["Unwinding", "kernel_maps"]
