"""What an object expects from outside: kernel configuration, kernel symbols and kfuncs.

`.kconfig` variables become a small read-only map, filled from /proc/config.gz or /boot and from what the
kernel is (LINUX_KERNEL_VERSION, LINUX_HAS_BPF_COOKIE, LINUX_HAS_SYSCALL_WRAPPER). `.ksyms` variables become
addresses (typed: BTF ids), functions calls of kfuncs. Weak ones may be absent: they are then 0, and a call
one that the verifier refuses if it is ever reached.
"""

from rawbpf.asm import Instruction, KsymRef, MapRef
from rawbpf.elf import btf_raw as raw

from . import kernel, ksyms
from .errors import ObjectError

_CALL, _LDDW = 0x85, 0x18
KCONFIG = ".kconfig"


class Externs:
    """The externs of one object file. `offsets`: name -> place in the `.kconfig` map; `size` of it."""

    def __init__(self, file):
        self.file, self.btf = file, file.btf
        self.offsets, self.sizes, self.size = {}, {}, 0
        wanted = [extern for extern in file.externs.values() if extern.kind == "kconfig"]
        sized = sorted(((raw.size(self.btf, extern.type), extern) for extern in wanted),
                       key=lambda pair: (-_align(self.btf, pair[1].type), pair[1].name))
        for size, extern in sized:
            if size > 4096:
                raise ObjectError("extern %s of %d bytes is no kernel configuration" % (extern.name, size))
            align = _align(self.btf, extern.type)
            self.size = self.size + align - 1 & -align
            self.offsets[extern.name], self.sizes[extern.name] = self.size, size
            self.size += size

    def kconfig(self, options=None, given=()):
        """The bytes of the `.kconfig` map. options: {"CONFIG_X": "y"} (or a number, a bool) instead of the running
        kernel's; given: {name: bytes} that go before all."""
        content = bytearray(self.size)
        for name, offset in self.offsets.items():
            extern, size = self.file.externs[name], self.sizes[name]
            if name in given:
                content[offset:offset + size] = given[name]
                continue
            value = _virtual(name)
            if value is not None:
                content[offset:offset + size] = _number(self.btf, extern, value, size)
                continue
            if not name.startswith("CONFIG_"):
                if extern.weak and name.startswith("LINUX_"):
                    continue            # libbpf's own, of a later version
                raise ObjectError("extern %s is no kernel configuration: those begin with CONFIG_" % name)
            text = _text(name, (kernel.config() if options is None else options).get(name))
            if text is None:
                if not extern.weak:
                    raise ObjectError("the kernel's configuration has no %s%s" % (
                        name, "" if kernel.config() or options else
                        " (neither /proc/config.gz nor a file in /boot can be read)"))
                continue
            content[offset:offset + size] = _encode(self.btf, extern, text, size)
        return bytes(content)

    def resolve(self, name, instruction):
        """For relocate.Linker: (instruction, why it must not be reached or "", name of a map or "")."""
        extern = self.file.externs.get(name)
        if extern is None:
            raise ObjectError("%s is defined nowhere: neither in the object nor as __ksym or __kconfig" % name)
        if extern.kind == "kconfig":
            if instruction.code != _LDDW:
                raise ObjectError("%s is called, but a variable" % name)
            return Instruction(_LDDW, instruction.dst, ref=MapRef(KCONFIG, self.offsets[name])), "", KCONFIG
        if extern.kind == "kfunc":
            return self._kfunc(extern, instruction)
        if instruction.code != _LDDW:
            raise ObjectError("%s is called, but a variable" % name)
        plain = Instruction(_LDDW, instruction.dst)
        if raw.skip(self.btf, extern.type).kind == "void":
            address = ksyms._kallsyms(name)
            if not address and not extern.weak:
                raise ObjectError("the kernel has no symbol %s, or hides its address (kernel.kptr_restrict)" % name)
            return plain._replace(imm=address), "", ""
        if ksyms.find(name, "var") is None:
            if not extern.weak:
                raise ObjectError("the kernel's BTF has no variable %s" % name)
            return plain, "", ""
        return plain._replace(ref=KsymRef(name)), "", ""

    def _kfunc(self, extern, instruction):
        name = raw.essential(extern.name)
        found = ksyms.find(name, "func")
        if instruction.code == _LDDW:       # is it there? (bpf_ksym_exists)
            if found is None and not extern.weak:
                raise ObjectError("the kernel has no function %s" % name)
            # any value that is not 0 says yes; the address is not for programs
            return Instruction(_LDDW, instruction.dst, imm=0 if found is None else 1), "", ""
        if found is None:
            if not extern.weak:
                raise ObjectError("the kernel has no kfunc %s" % name)
            return instruction, "call of %s, which this kernel does not have" % name, ""
        return instruction._replace(src=2, off=0, imm=0, ref=KsymRef(name)), "", ""


def _align(btf, type_id):
    found = raw.skip(btf, type_id)
    for _ in range(8):
        if found.kind != "array":
            break
        found = raw.skip(btf, found.words[0])
    size = raw.size(btf, found.id)
    return size if size in (1, 2, 4, 8) else 8


def syscall_wrapper():
    """Are system calls functions of one pt_regs (__x64_sys_*, 4.17+)?"""
    return bool(ksyms._kallsyms("__%s_sys_bpf" % {"x86_64": "x64", "aarch64": "arm64"}.get(
        kernel.arch(), kernel.arch())))


def _virtual(name):
    if name == "LINUX_KERNEL_VERSION":
        major, minor, patch = kernel.release()
        return major << 16 | minor << 8 | min(patch, 255)
    if name == "LINUX_HAS_BPF_COOKIE":
        from . import features
        return int(features.has_helper("bpf_get_attach_cookie", "kprobe"))
    if name == "LINUX_HAS_SYSCALL_WRAPPER":
        return int(syscall_wrapper())
    return None


def _encode(btf, extern, text, size):
    """A configuration value as the bytes of the variable's type."""
    kind = raw.skip(btf, extern.type)
    order = "little" if btf.order == "<" else "big"

    def wrong():
        return ObjectError("extern %s: its type does not take the value %s" % (extern.name, text))
    if kind.kind == "array":
        if not text.startswith('"'):
            raise wrong()
        data = text[1:-1].encode("utf-8", "surrogateescape")
        return data[:size - 1].ljust(size, b"\0") if size else b""
    if text in ("y", "m", "n"):
        if kind.kind in ("enum", "enum64"):         # enum libbpf_tristate
            value = {"n": 0, "y": 1, "m": 2}[text]
        elif kind.kind == "int" and kind.words[0] >> 24 & 4:
            if text == "m":
                raise wrong()
            value = int(text == "y")
        elif kind.kind == "int" and size == 1:
            value = ord(text)
        else:
            raise wrong()
        return value.to_bytes(size, order)
    try:
        return _number(btf, extern, int(text.strip('"'), 0), size)
    except ValueError:
        raise wrong() from None


def _text(name, value):
    """A value as the configuration's file has it; None when it has none."""
    if isinstance(value, bool):
        return "y" if value else "n"
    if isinstance(value, int):
        return str(value)
    if value is not None and not isinstance(value, str):
        raise ObjectError("the value of %s is text, as in the kernel's configuration, or a number, not %r" % (name, value))
    return value


def _number(btf, extern, value, size):
    """A number as the bytes of the variable's type, in which it must fit: 64 bits hold any, as unsigned."""
    kind = raw.skip(btf, extern.type)
    encoding = kind.words[0] >> 24 if kind.kind == "int" else 0
    signed, is_bool = encoding & 1, encoding & 4
    if size == 8 and -1 << 63 <= value < 1 << 64:
        value &= (1 << 64) - 1
        signed = False
    bits = 8 * size
    low, high = (-1 << bits - 1, 1 << bits - 1) if signed else (0, 2 if is_bool else 1 << bits)
    if kind.kind != "int" or not low <= value < high:
        raise ObjectError("extern %s: its type does not take the value %s" % (extern.name, value))
    return value.to_bytes(size, "little" if btf.order == "<" else "big", signed=bool(signed))
