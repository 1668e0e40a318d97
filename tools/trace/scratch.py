"""Scratch memory for what is too large for the BPF stack: strings, large keys, records of perf buffers.

Every program has a fixed layout of scratch memory (`Scratch.place` hands out offsets), all of it in one
piece. Two kinds of programs get that piece differently:

- Programs that the kernel runs with preemption off and never one inside the other on one CPU (kprobes,
  tracepoints, perf events: `bpf_prog_active` guards them) share one element of a per-CPU array.
- Uprobe programs may be preempted (since 5.19) by another task's on the same CPU, and raw tracepoints and
  fentry programs may interrupt anything. They claim one of SLOTS pieces of their CPU with an atomic exchange
  and give it back when they leave; when all are taken the hit is counted as lost ("scratch").
"""
from .compiled import KernelMap
from .place import Place

SLOTS = 4
SHARED, CLAIMED, LARGE = "scratch", "scratch_slots", "scratch_large"
LARGEST = 32768         # bytes of a value in a per-CPU map; beyond it, an array has one for each CPU


class Scratch:
    """The scratch memory of one program, `b` its lower.Lowering."""

    def __init__(self, b, claimed):
        self.b, self.claimed = b, claimed
        self.size = 8 if claimed else 0         # the claim's flag comes first
        self.used = False
        self.base = b.f.variable()

    def place(self, type, size=None):
        """Room for a value; lives as long as the program runs."""
        size = type.size if size is None else size
        off, self.size = self.size, self.size + (-(-size // 8) * 8)
        self.used = True
        return Place(self.b.scratch_base(), off, type)

    def open(self, failed):
        """Code that sets `base`, at the current position; goes to `failed` where there is none."""
        b, f = self.b, self.b.f
        script = b.script
        if not self.claimed:
            where = SHARED if self.size <= LARGEST else LARGE
            script.scratch_size[where] = max(self.size, script.scratch_size.get(where, 0))
            key = f.slot(4, 4)
            f.store(key, 0, 0 if where == SHARED else f.call("bpf_get_smp_processor_id"), 4)
            f.set(self.base, f.call("bpf_map_lookup_elem", f.map(where), f.address(key)))
            found = f.block("scratch")
            f.branch("==", self.base, 0, failed, found)
            f.position(found)
            return
        script.scratch_size[CLAIMED] = max(self.size, script.scratch_size.get(CLAIMED, 0))
        key = f.slot(4, 4)
        first = f.alu("*", f.call("bpf_get_smp_processor_id"), SLOTS)
        done, lost = f.block("scratch"), f.block("no_scratch")
        for index in range(SLOTS):
            f.store(key, 0, f.alu("+", first, index) if index else first, 4)
            f.set(self.base, f.call("bpf_map_lookup_elem", f.map(CLAIMED), f.address(key)))
            claim, following = f.block(), f.block()
            f.branch("==", self.base, 0, failed, claim)
            f.position(claim)
            f.branch("==", f.atomic("xchg", self.base, 0, 1), 0, done, following)
            f.position(following)
        f.jump(lost)
        f.position(lost)
        b.count_loss("scratch")
        f.jump(failed)
        f.position(done)

    def close(self):
        """Code that gives a claimed piece back."""
        if self.claimed and self.used:
            self.b.f.store(self.base, 0, 0, 8)


def kernel_maps(script):
    """The maps that the programs' scratch memory needs."""
    size = script.scratch_size
    if SHARED in size:
        yield KernelMap(SHARED, "percpu_array", 4, size[SHARED], 1)
    if LARGE in size:
        yield KernelMap(LARGE, "array", 4, size[LARGE], script.machine.cpus)
    if CLAIMED in size:
        yield KernelMap(CLAIMED, "array", 4, size[CLAIMED], SLOTS * script.machine.cpus)
