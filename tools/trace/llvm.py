"""`rawbpf trace --codegen llvm`: the IR of a compiled script through LLVM instead of our own code generator.

Maps are external symbols of the LLVM module (`asm.llvm.llvm_ir`), and become MapRefs again here.
"""

import re

from rawbpf.asm import Code, KsymRef, MapRef

_SYMBOL = re.compile(r"(map|value)\.(.*?)(?:\.(\d+))?$")


def recompile(compiled, cpu=None, level=2):
    """Replaces the code of every program of a `compiled.Compiled`; `cpu`: the newest that the kernel has. ImportError
    without llvmlite, AsmError where LLVM cannot."""
    if cpu is None:
        from rawbpf.loader import features
        cpu = max("v3", features.cpu_level())
    compiled.programs = [program._replace(code=code_of(program.function, cpu, level)) for program in compiled.programs]


def code_of(function, cpu="v3", level=2):
    """The asm Code of an IR function, and of those that it refers to."""
    from rawbpf.asm.llvm import compile_llvm, llvm_ir
    from ..objects import read_object
    data, _ = compile_llvm(llvm_ir(function, cpu), cpu, level)
    instructions, _, functions = read_object(data, function.name).link(".text")
    instructions = [_with_map(i) if isinstance(i.ref, KsymRef) else i for i in instructions]
    maps = list(dict.fromkeys(i.ref.name for i in instructions if isinstance(i.ref, MapRef)))
    return Code(instructions, [None] * len(instructions), maps, None, functions)


def _with_map(instruction):
    found = _SYMBOL.match(instruction.ref.name)
    if found is None:
        return instruction
    kind, name, offset = found.groups()
    if kind == "map":
        return instruction._replace(src=1, ref=MapRef(name))
    return instruction._replace(src=2, ref=MapRef(name, int(offset or 0)))
