"""What programs are attached to by its number in BTF: functions, tracepoints, hooks and iterators of the kernel, and functions
of loaded programs."""

from . import ksyms
from .errors import ObjectError

_BTF_TARGETS = {"trace_raw_tp": ("btf_trace_", "typedef"), "lsm_mac": ("bpf_lsm_", "func"),
                "lsm_cgroup": ("bpf_lsm_", "func"), "trace_iter": ("bpf_iter_", "func")}


def btf_target(attach_type, target):
    """(BTF id, module or None) of what a program of an attach type is attached to: "do_exit", "module:function".
    ObjectError."""
    module, colon, name = target.rpartition(":")
    if not name:
        raise ObjectError("its section names no target, as in fentry/do_exit")
    prefix, kind = _BTF_TARGETS.get(attach_type, ("", "func"))
    if ksyms.vmlinux() is None:
        raise ObjectError("needs the kernel's BTF (CONFIG_DEBUG_INFO_BTF)")
    if colon and module != "vmlinux":
        found = _in_module(module, prefix + name, kind)
    else:
        found = ksyms.find(prefix + name, kind)
    if found is None:
        raise ObjectError("the kernel has no %s to attach to" % ({
            "trace_raw_tp": "tracepoint ", "lsm_mac": "LSM hook ", "lsm_cgroup": "LSM hook ",
            "trace_iter": "iterator "}.get(attach_type, "function ") + name))
    return found


def _in_module(module, name, kind):
    from rawbpf.elf.btf import Btf
    from rawbpf.elf.image import ElfError
    try:
        found = Btf.open("/sys/kernel/btf/" + module, ksyms.vmlinux()).find_ids(name, kind)
    except (ElfError, ValueError):
        return None
    own = [number for number in found if number >= ksyms.vmlinux().count]
    return (own[-1], module) if own else None


def function_of(program, function):
    """BTF id of a function of a loaded program."""
    from .btf import BtfObject
    from rawbpf.elf.btf import Btf
    with BtfObject.from_id(program.info().btf_id) as btf:
        found = Btf.parse(btf.data()).find_id(function, "func")
    if not found:
        raise ObjectError("the program %s has no function %s" % (program.name, function))
    return found
