"""What a section's name, or --type, says of a program: an elf.bpf_sections.SectionType and a target.

The names are libbpf's. Where libbpf wants a section's whole name to be known, more may follow here:
`.section xdp/first` is an xdp program.
"""

# The attach type that programs of a type have when nothing says another one.
_DEFAULT = {"sk_msg": "sk_msg_verdict", "sk_lookup": "sk_lookup", "flow_dissector": "flow_dissector",
            "lirc_mode2": "lirc_mode2", "netfilter": "netfilter", "cgroup_device": "cgroup_device",
            "cgroup_sysctl": "cgroup_sysctl", "cgroup_sock": "cgroup_inet_sock_create",
            "cgroup_sock_addr": "cgroup_inet4_connect", "cgroup_sockopt": "cgroup_getsockopt",
            "sk_reuseport": "sk_reuseport_select"}
_TARGETED = ("tracing", "lsm", "ext")


def of_section(name):
    """(SectionType, target) that a section's name says, or None. "fentry.s/x" is a sleepable "fentry/x"."""
    from rawbpf.elf.bpf_sections import classify
    row, target = classify(name)
    whole = head = name.lstrip("?")
    while row is None and "/" in head:
        head = head.rpartition("/")[0]
        row, target = classify(head)[0], whole[len(head) + 1:]
    return None if row is None else (row, target)


def of_type(text):
    """The same for --type: a program type by the kernel's name, or anything that a section may be called."""
    from rawbpf.elf.bpf_sections import SectionType
    from rawbpf.loader.uapi import PROG_TYPES
    if text in PROG_TYPES and text != "unspec":
        options = {"sleepable"} if text == "syscall" else {"btf"} if text in _TARGETED else ()
        return SectionType(text, text, _DEFAULT.get(text), "", frozenset(options)), ""
    return of_section(text)


def load_options(kind, target):
    """Keywords of Program.load. ObjectError when the target cannot be had."""
    from rawbpf.loader.collection import btf_target, load_flags
    from rawbpf.loader.errors import ObjectError
    options = {"flags": load_flags(kind)}
    if kind.attach_type:
        options["expected_attach_type"] = kind.attach_type
    if kind.program_type == "ext":
        raise ObjectError("it replaces a function of a program that is loaded, and a file does not say of which")
    if "btf" in kind.options:
        options["attach_btf_id"], module = btf_target(kind.attach_type, target)
        if module:
            from rawbpf.loader.btf import BtfObject
            options["attach_btf_obj"] = BtfObject.of_module(module)
    return options
