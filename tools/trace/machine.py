"""What the compiler must know of the machine that the script will run on; everything is asked at first use.

A plain object of this class describes the running kernel. Tests set the attributes to what they want.
"""
import functools


class Machine:
    """The running kernel."""

    def has_helper(self, name, program_type):
        from rawbpf.loader import features
        return features.has_helper(name, "kprobe" if program_type == "raw_tracepoint" else program_type)

    def has_kfunc(self, name, program_type):
        from rawbpf.loader import features
        return features.has_kfunc(name, program_type)

    @functools.cached_property
    def cpus(self):
        """The number of possible CPUs: values per CPU have one cell for each number up to the largest."""
        from rawbpf.loader import kernel
        return max(kernel.possible_cpus()) + 1

    @functools.cached_property
    def release(self):
        from rawbpf.loader import kernel
        return tuple(kernel.release())[:2]

    @functools.cached_property
    def cpu_level(self):
        """The instruction set to compile for."""
        return "v4" if self.release >= (6, 6) else "v3" if self.release >= (5, 1) else "v2"

    @functools.cached_property
    def fetch(self):
        """Whether atomic operations besides addition without result exist (5.12)."""
        return self.release >= (5, 12)

    @functools.cached_property
    def preemptible_uprobes(self):
        """Uprobe programs run with preemption on since they may be sleepable (5.19 and later)."""
        return self.release >= (5, 17)

    @functools.cached_property
    def max_key(self):
        """The longest key of a hash map: before 5.18 what fits the BPF stack."""
        return 512 if self.release < (5, 18) else 1 << 16

    @functools.cached_property
    def no_prealloc(self):
        """Flag for hash maps that take memory as they grow; tracing programs may use those since 6.1."""
        return 1 if self.release >= (6, 1) else 0

    @functools.cached_property
    def mmapable(self):
        """Flag for arrays whose values can be mapped (5.5)."""
        return 1 << 10 if self.release >= (5, 5) else 0

    def joined(self, entries, returns):
        """The points of one session for those of a kprobe and of a kretprobe, or None."""
        from rawbpf.sources.kprobe import joined
        return joined(entries, returns)

    @functools.cached_property
    def ringbuf(self):
        from rawbpf.loader import features
        return features.has_map("ringbuf")

    @functools.cached_property
    def kernel_reads(self):
        """Whether programs may read kernel memory: lockdown can forbid it."""
        return self.has_helper("bpf_probe_read_kernel", "kprobe") or self.has_helper("bpf_probe_read", "kprobe")

    @property
    def kernel_reads_reason(self):
        from rawbpf.loader import kernel
        mode = kernel.lockdown()
        return "the kernel is locked down%s; only the context of events, user memory and the stacks can be read" % (
            " (%s)" % mode if mode not in (None, "none") else "")

    @functools.cached_property
    def pid_namespace(self):
        """(device, inode) of this process's pid namespace, None for the first one."""
        import os
        try:
            found = os.stat("/proc/self/ns/pid")
        except OSError:
            return None
        return None if found.st_ino == 0xeffffffc else (found.st_dev, found.st_ino)

    @functools.cached_property
    def tai_offset(self):
        """Nanoseconds from the boot clock to TAI, now."""
        import time
        best = None
        for _ in range(5):
            before = time.clock_gettime_ns(time.CLOCK_TAI)
            boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            after = time.clock_gettime_ns(time.CLOCK_TAI)
            if best is None or after - before < best[0]:
                best = after - before, (before + after) // 2 - boot
        return best[1]

    @functools.cached_property
    def btf(self):
        """The kernel's types, or None; those of the file that BPFTRACE_BTF names instead."""
        import os
        from rawbpf.elf.btf import Btf
        from rawbpf.elf.image import ElfError
        from rawbpf.loader import kernel
        named = os.environ.get("BPFTRACE_BTF")
        if not named:
            path = kernel.vmlinux_btf()
            return Btf.open(path) if path else None
        from .diagnostics import ScriptError
        try:
            return Btf.open(named)
        except (OSError, ElfError) as error:
            raise ScriptError(None, "BPFTRACE_BTF: %s" % error) from None

    def kernel_address(self, name):
        """The address of a kernel symbol, None when there is none (or addresses are hidden)."""
        if name not in self._addresses:
            with open("/proc/kallsyms", "rb") as file:
                data = file.read()
            at = max(data.find(b" %s%s" % (name.encode(), end)) for end in (b"\n", b"\t"))
            line = data[data.rfind(b"\n", 0, at) + 1:at] if at >= 0 else b"0 "
            self._addresses[name] = int(line.split(b" ", 1)[0], 16) or None
        return self._addresses[name]

    @functools.cached_property
    def _addresses(self):
        return {}
