"""Code that reads memory safely: the probe_read helpers by what the kernel has."""


def helper(user, string=False, has_helper=None):
    """Name of the helper that reads user or kernel memory. The two are told apart from 5.5 on;
    before, one helper reads both. `has_helper(name, program type)` speaks for another kernel than
    the running one."""
    if has_helper is None:
        from rawbpf.loader.features import has_helper

    name = "bpf_probe_read_%s%s" % ("user" if user else "kernel", "_str" if string else "")
    if has_helper(name, "kprobe"):
        return name
    if not user and has_helper("bpf_probe_read_user", "kprobe"):
        return name  # kernel reads are locked down: the verifier's refusal says so
    return "bpf_probe_read_str" if string else "bpf_probe_read"


def read(f, address, size, signed, user, offset=0):
    """Value of the `size` (1, 2, 4, 8) bytes at `address` + `offset`, extended; 0 if it cannot
    be read (the helpers fill with zeros then)."""
    slot = f.slot(8)
    where = f.alu("+", address, offset) if offset else address
    f.call(helper(user), f.address(slot), size, where)
    return f.load(slot, 0, size, signed)
