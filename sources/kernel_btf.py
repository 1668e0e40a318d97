"""The kernel's own types: vmlinux and its modules, as /sys/kernel/btf has them.

Modules are split BTF, which continues vmlinux'. All are parsed when first asked for, once.
"""

import functools
import os

from .base import SourceError

FOLDER = "/sys/kernel/btf"


@functools.lru_cache(maxsize=1)
def vmlinux():
    """The kernel's Btf; SourceError where it has none."""
    from rawbpf.elf.btf import Btf
    from rawbpf.elf.image import ElfError

    try:
        return Btf.open(FOLDER + "/vmlinux")
    except ElfError as error:
        if not os.path.exists(FOLDER + "/vmlinux"):
            raise SourceError("this kernel has no BTF (CONFIG_DEBUG_INFO_BTF, Linux 5.4)") from None
        raise SourceError(str(error)) from None


@functools.lru_cache(maxsize=None)
def of(module):
    """The Btf of a module ("vmlinux" or "": the kernel itself), or None."""
    if module in ("", "vmlinux"):
        return vmlinux()
    from rawbpf.elf.btf import Btf
    from rawbpf.elf.image import ElfError

    try:
        return Btf.open("%s/%s" % (FOLDER, module), vmlinux())
    except ElfError:
        return None


def modules():
    """Names of everything that has BTF, "vmlinux" first."""
    try:
        names = sorted(os.listdir(FOLDER))
    except OSError:
        names = []
    return ["vmlinux"] + [name for name in names if name != "vmlinux"]


def functions(name, module=None):
    """[(module, type id)] of the functions called `name`."""
    found = []
    for each in [module] if module else modules():
        btf = of(each)
        if btf is not None:
            found += [(each, number) for number in btf.find_ids(name, "func")
                      if each == "vmlinux" or number >= vmlinux().count]
    return found


def prototype(name, module=None):
    """The elf.types.Function of the kernel function `name`, or None where BTF does not know it or
    knows several that differ."""
    try:
        found = functions(name, module or None)
    except SourceError:
        return None
    types = [of(where).type(number) for where, number in found]
    if not types or any(str(each) != str(types[0]) for each in types[1:]):
        return None
    return types[0]


def declaration(type, name):
    """A parameter as listings print it: "struct file * file", "const char * const name"."""
    from rawbpf.elf import types

    return "%s %s" % (types.declaration(type), name)
