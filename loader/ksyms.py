"""What a program names of the kernel: kfuncs it calls and variables it takes the address of.

A kfunc call is BPF_CALL with src 2: imm is the BTF id of the function, off the index into fd_array of
the BTF object it lies in (0: vmlinux). A variable is lddw with src 3 and its BTF id when BTF has it
(per-CPU ones), else lddw with the address that /proc/kallsyms shows.
"""

import functools

from . import kernel
from .btf import BtfObject
from .uapi import PSEUDO_BTF_ID, PSEUDO_KFUNC_CALL

_CALL, _LDDW = 0x85, 0x18


@functools.lru_cache(maxsize=None)
def vmlinux():
    """The kernel's own types (elf.btf.Btf), or None."""
    path = kernel.vmlinux_btf()
    if path is None:
        return None
    from rawbpf.elf.btf import Btf
    return Btf.open(path)


def types_of(module):
    """The types of a module, an elf Btf that continues vmlinux's; None: vmlinux's own."""
    if module is None:
        return vmlinux()
    from rawbpf.elf.btf import Btf
    return Btf.open("/sys/kernel/btf/" + module, vmlinux())


@functools.lru_cache(maxsize=None)
def find(name, kind):
    """(id, module) of a symbol or type in the kernel's BTF or its modules': kind "func", "var", "struct", ...;
    module None for vmlinux. None when none has it."""
    base = vmlinux()
    if base is None:
        return None
    found = base.find_id(name, kind)
    if found:
        return found, None
    import os
    from rawbpf.elf.btf import Btf
    folder = os.path.dirname(kernel.vmlinux_btf())
    for module in sorted(os.listdir(folder)):
        if module != "vmlinux":
            found = Btf.open(os.path.join(folder, module), base).find_id(name, kind)
            if found:
                return found, module
    return None


def resolve_instruction(instruction, modules):
    """The instruction with its KsymRef replaced. `modules` grows by the BtfObjects it needs."""
    name = instruction.ref.name
    if instruction.code == _CALL:
        found = find(name, "func")
        if found is None:
            raise ValueError("the kernel has no kfunc %s" % name if vmlinux() is not None else
                             "calling %s needs the kernel's BTF (CONFIG_DEBUG_INFO_BTF)" % name)
        return instruction._replace(src=PSEUDO_KFUNC_CALL, imm=found[0], ref=None,
                                    off=_module_index(found[1], modules))
    found = find(name, "var")
    if found is not None and found[1] is None:
        return instruction._replace(src=PSEUDO_BTF_ID, imm=found[0], ref=None)
    address = _kallsyms(name)
    if not address:
        raise ValueError("the kernel has no symbol %s, or hides its address (kernel.kptr_restrict)" %
                         name)
    return instruction._replace(src=0, imm=address, ref=None)


def _module_index(module, modules):
    if module is None:
        return 0
    for index, known in enumerate(modules, 1):
        if known.name == module:
            return index
    modules.append(BtfObject.of_module(module))
    return len(modules)


_addresses = {}     # of symbols of vmlinux, which stay where they are


def _kallsyms(name):
    """The address of a symbol by /proc/kallsyms; 0 when it has none of that name or hides the addresses."""
    found = _addresses.get(name)
    if found is not None:
        return found
    with open("/proc/kallsyms", "rb") as file:
        text = file.read()
    wanted = b" " + name.encode("utf-8", "surrogateescape")
    at = text.find(wanted + b"\n")
    own = at >= 0
    if not own:
        at = text.find(wanted + b"\t")      # [module]
    if at < 0:
        return 0
    address = int(text[text.rfind(b"\n", 0, at) + 1:at].split()[0], 16)
    if own:
        _addresses[name] = address
    return address
