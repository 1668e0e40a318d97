"""fentry and fexit: kernel functions and BPF programs, through the kernel's trampolines (Linux 5.5+).

    fentry:[MODULE:]FUNCTION   fexit:vmlinux:vfs_*   fentry:bpf:[ID:]PROGRAM

Arguments and return value have the types that BTF gives them. A program is bound to one function
when it is loaded: many functions are many programs.
"""

import errno
import functools
import os
from typing import NamedTuple

from . import kallsyms, kernel_btf
from .abi import host
from .attach import attach_each
from .base import Listed, Source, SourceError, has_wildcard, matcher, nearest, quote, try_number
from .btf_args import BtfArgsPoint, slots


class Spec(NamedTuple):
    module: str  #: "" when not given, "bpf" for programs
    function: str
    number: int  #: a BPF program's id, 0 for any


class Fentry(Source):
    names = ("fentry", "f", "kfunc")
    listed = "kernel"
    usage = "fentry:[MODULE:]FUNCTION or fentry:bpf:[ID:]PROGRAM"
    at_exit = False

    def require(self):
        require_trampolines()
        require_programs()

    def parse(self, parts, target):
        if len(parts) not in (1, 2, 3) or not parts[-1]:
            raise self.count_error(1, 2, 3)
        if parts[0] == "bpf":
            if len(parts) == 1:
                raise SourceError("the 'bpf' variant of this probe requires a bpf program name and "
                                  "optional bpf program id")
            number = 0
            if len(parts) == 3 and parts[1] != "*":
                number = try_number(parts[1])
                if not number:
                    raise SourceError("bpf program id must be a number or '*'")
            return Spec("bpf", parts[-1], number)
        if len(parts) == 3:
            raise SourceError("Only the 'bpf' variant of this probe supports 4 arguments")
        if try_number(parts[-1]) is not None or "+" in parts[-1]:
            raise SourceError("%s probes are attached to functions, not to addresses or offsets"
                              % self.shown)
        return Spec(parts[0] if len(parts) == 2 else "", parts[-1], 0)

    def expand(self, spec, target):
        require_trampolines()
        points = self._expand(spec)
        try:
            require_programs()
        except SourceError as error:
            pattern = has_wildcard(spec.function) or has_wildcard(spec.module)
            raise SourceError(error.reason if pattern else "Unable to attach probe: %s: %s" % (points[0].name, error.reason),
                              missing=pattern, pattern=pattern) from None
        return points

    def _expand(self, spec):
        if spec.module == "bpf":
            return self._programs(spec)
        if has_wildcard(spec.function) or has_wildcard(spec.module):
            points = [FentryPoint(self, module, name, number)
                      for module, name, number in traceable(spec.module or "*", spec.function)]
            if not points:
                raise self._missing(spec)
            return points
        found = kernel_btf.functions(spec.function, spec.module)
        if not found:
            raise self._missing(spec)
        if len({module for module, _ in found}) > 1:
            raise SourceError("ambiguous attach point, please specify module containing the function "
                              "'%s'" % spec.function,
                              ["%s:%s:%s" % (self.shown, m, spec.function) for m, _ in found])
        # The kernel looks the name up again: BTF may have one function twice, and say nothing of two.
        module, number = found[0]
        known, count = kallsyms.traceable(), 1
        if known is not None:
            count = sum(1 for name, where in known if name == spec.function and (where or "vmlinux") == module)
        if not count:
            raise SourceError("%s cannot be traced (it is inlined, or marked notrace)" % spec.function,
                              missing=True)
        point = FentryPoint(self, module, spec.function, number)
        if count > 1:
            point.warning = ("%d functions are called %s: the kernel attaches %s to one of them only; kprobe:%s means "
                             "all" % (count, spec.function, self.shown, spec.function))
        if point.type.variadic:
            raise SourceError("%s takes a variable number of arguments: the kernel attaches no %s there; kprobe:%s "
                              "works" % (spec.function, self.shown, spec.function))
        return [point]

    def _programs(self, spec):
        points = [ProgramPoint(self, number, name, type_id) for number, name, type_id in
                  bpf_programs(spec.function, spec.number)]
        if not points:
            raise SourceError("No matches for %s bpf:%s." % (self.shown, spec.function), missing=True)
        return points

    def _missing(self, spec):
        name = (spec.module + ":" if spec.module else "") + spec.function
        hints = []
        if not has_wildcard(name):
            names = {n for m in ([spec.module] if spec.module else ["vmlinux"])
                     for n, _ in (kernel_btf.of(m).functions() if kernel_btf.of(m) else ())}
            hints = ["%s:%s" % (self.shown, n) for n in nearest(spec.function, names)]
        return SourceError("No matches for %s %s." % (self.shown, name), hints, missing=True)

    def list(self, pattern, target):
        module, _, function = pattern.rpartition(":")
        if module == "bpf":
            for number, name, _ in bpf_programs(function or "*"):
                yield Listed("%s:bpf:%d:%s" % (self.shown, number, quote(name)))
            return
        try:
            found = traceable(module or "*", function or "*", known_only=True)
        except SourceError:
            return
        for where, name, number in found:
            point = FentryPoint(self, where, name, number)
            yield Listed("%s:%s:%s" % (self.shown, quote(where), quote(name)), point.declarations)


class Fexit(Fentry):
    names = ("fexit", "fr", "kretfunc")
    listed = ""
    usage = "fexit:[MODULE:]FUNCTION or fexit:bpf:[ID:]PROGRAM"
    at_exit = True


def require_trampolines():
    from rawbpf.loader import kernel

    kernel_btf.vmlinux()
    if os.uname().machine == "aarch64" and kernel.release() < (6, 4):
        raise SourceError("fentry and fexit on arm64 need Linux 6.4 or later, this is %s" % os.uname().release)
    if kernel.release() < (5, 5):
        raise SourceError("fentry and fexit need Linux 5.5 or later, this is %s" % os.uname().release)


def require_programs():
    """SourceError where the kernel takes no program at the entry of a function, whichever."""
    reason = refusal()
    if reason:
        raise SourceError("this kernel has no fentry and fexit: %s" % reason)


@functools.lru_cache(maxsize=1)
def refusal():
    """Why the kernel refuses a program at a function's entry, asked by loading one; "" where it does not, or the
    capabilities to ask it are missing."""
    from rawbpf.loader.errors import KernelError, missing_capabilities
    from rawbpf.loader.program import Program

    number = kernel_btf.vmlinux().find_id("vfs_read", "func")
    if not number or missing_capabilities("trace"):
        return ""
    try:
        Program.load("tracing", bytes.fromhex("b700000000000000" "9500000000000000"), expected_attach_type="trace_fentry",
                     attach_btf_id=number).close()
    except KernelError as error:
        return error.needs or os.strerror(error.errno)
    return ""


def traceable(module, function, known_only=False):
    """(module, name, BTF id) of the functions that match, can be traced (neither variadic nor harmful nor on the kprobe
    blacklist, where a tracer could end in itself) and have as many arguments as registers, sorted. With
    `known_only`, nothing where the kernel does not say what is traceable."""
    in_module, in_function = matcher(module), matcher(function)
    names = kallsyms.traceable()
    if names is None and known_only:
        return []
    can = None if names is None else {(n, m or "vmlinux") for n, m in names if in_function(n)}
    most, bad = len(host().arguments), kallsyms.blacklist()
    found = {}
    for where in kernel_btf.modules():
        btf = kernel_btf.of(where) if in_module(where) else None
        for name, number in btf.functions() if btf is not None else ():
            if in_function(name) and (can is None or (name, where) in can) and name not in bad and not kallsyms.harmful(name):
                count, variadic = btf.signature(number)
                if count <= most and not variadic:
                    found[(where, name)] = number
    return [(where, name, number) for (where, name), number in sorted(found.items())]


def bpf_programs(pattern, only=0):
    """(program id, function, BTF id) of the functions of loaded BPF programs whose names match;
    programs that were loaded without BTF have none that could be attached to."""
    from rawbpf.elf.btf import Btf
    from rawbpf.loader import ids
    from rawbpf.loader.btf import BtfObject
    from rawbpf.loader.program import Program

    matches = matcher(pattern)
    found = []
    for number in [only] if only else ids.walk("prog"):
        try:
            with Program.from_id(number) as program:
                functions = program.func_info()
                btf_id = program.info().btf_id if functions else 0
            if functions:
                with BtfObject.from_id(btf_id) as btf_object:
                    btf = Btf.parse(btf_object.data())
                found += [(number, btf.name(type_id), type_id) for _, type_id in functions]
        except OSError as error:
            if error.errno != errno.ENOENT:  # else it ended meanwhile
                raise SourceError(str(error)) from None
    return sorted(entry for entry in found if matches(entry[1]))


class FentryPoint(BtfArgsPoint):
    program_type = "tracing"
    compares_pid = True
    user_space = False
    cookies = False  # one program a function: its name is known when it is made
    last_first = True

    def __init__(self, source, module, function, type_id):
        self.source = source
        self.module = module
        self.function = function
        self.type_id = type_id
        self._type = None

    @property
    def expected_attach_type(self):
        return "trace_fexit" if self.source.at_exit else "trace_fentry"

    @property
    def load_options(self):
        options = {"attach_btf_id": self.type_id}
        if self.module != "vmlinux":
            from rawbpf.loader.btf import BtfObject

            options["attach_btf_obj"] = BtfObject.of_module(self.module)
        return options

    @property
    def type(self):
        if self._type is None:
            self._type = kernel_btf.of(self.module).type(self.type_id)
        return self._type

    @property
    def parameters(self):
        return self.type.parameters

    @property
    def name(self):
        return "%s:%s:%s" % (self.source.shown, self.module, self.function)

    @property
    def func(self):
        return self.function

    @property
    def has_retval(self):
        from rawbpf.elf import types

        return self.source.at_exit and not isinstance(types.strip(self.type.returns), types.Void)

    def retval_type(self):
        return self.type.returns if self.has_retval else None

    def retval(self, f, ctx):
        if not self.has_retval:
            return super().retval(f, ctx)
        from rawbpf.elf import types

        value = f.load(ctx, 8 * slots(self.parameters)[1], 8)
        bare = types.strip(self.type.returns)
        if isinstance(bare, (types.Int, types.Enum)) and bare.size in (1, 2, 4):
            return f.extend(value, bare.size, bare.signed)
        return value

    def declarations(self):
        lines = super().declarations()
        if self.has_retval:
            lines.append(kernel_btf.declaration(self.type.returns, "retval"))
        return lines

    def group_key(self, args=True):
        return ("tracing", self.expected_attach_type, self.module, self.type_id)

    def attach(self, program, points, cookies=None):
        from rawbpf.loader.link import attach_tracing

        return attach_each(points, lambda point, cookie: attach_tracing(program))


class ProgramPoint(FentryPoint):
    """A function of a loaded BPF program. Its arguments are not described."""

    def __init__(self, source, number, function, type_id):
        super().__init__(source, "bpf", function, type_id)
        self.number = number

    parameters = ()
    has_retval = False

    @property
    def name(self):
        return "%s:bpf:%d:%s" % (self.source.shown, self.number, self.function)

    @property
    def load_options(self):
        from rawbpf.loader.program import Program

        return {"attach_btf_id": self.type_id, "attach_prog": Program.from_id(self.number)}

    def group_key(self, args=True):
        return ("tracing", self.expected_attach_type, self.number, self.type_id)

    def arguments(self):
        return None

    def declarations(self):
        return []
