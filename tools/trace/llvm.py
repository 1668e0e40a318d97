"""`rawbpf trace --codegen llvm`: the IR of a compiled script through LLVM instead of our own code generator.

Maps are external symbols of the LLVM module (`asm.llvm.llvm_ir`), and become MapRefs again here.
"""

import re

from rawbpf.asm import Code, KsymRef, MapRef
from .compiled import KernelMap

_SYMBOL = re.compile(r"(map|value)\.(.*?)(?:\.(\d+))?$")


def recompile(compiled, cpu=None, level=2):
    """Replaces the code of every program of a `compiled.Compiled`; `cpu`: the newest that the kernel has. ImportError
    without llvmlite, AsmError where LLVM cannot."""
    if cpu is None:
        from rawbpf.loader import features
        cpu = max("v3", features.cpu_level())
    programs = []
    for number, program in enumerate(compiled.programs):
        code, tables = code_of(program.function, cpu, level, "llvm%d" % number)
        programs.append(program._replace(code=code))
        for name, content in tables.items():
            compiled.kernel_maps[name] = KernelMap(name, "array", 4, len(content), 1, content=(content,))
    compiled.programs = programs


def code_of(function, cpu="v3", level=2, prefix="llvm", unroll=True, apart=True):
    """(asm Code of an IR function and of those that it refers to, {map: content} of the tables that LLVM made for it);
    their names begin with `prefix`."""
    from rawbpf.asm.llvm import llvm_ir, object_of
    from ..objects import read_object
    data = object_of(llvm_ir(function, cpu), cpu, level, unroll, apart)
    assembly = read_object(data, function.name)
    instructions, _, functions = assembly.link(".text")
    instructions = [_with_map(i) if isinstance(i.ref, KsymRef) else i for i in instructions]
    tables = {}
    for number, i in enumerate(instructions):
        if isinstance(i.ref, MapRef) and i.ref.name in assembly.data:
            name = prefix + i.ref.name
            tables[name] = bytes(assembly.data[i.ref.name].content)
            instructions[number] = i._replace(ref=MapRef(name, i.ref.offset))
    maps = list(dict.fromkeys(i.ref.name for i in instructions if isinstance(i.ref, MapRef)))
    return Code(instructions, [None] * len(instructions), maps, None, functions), tables


def _with_map(instruction):
    found = _SYMBOL.match(instruction.ref.name)
    if found is None:
        return instruction
    kind, name, offset = found.groups()
    if kind == "map":
        return instruction._replace(src=1, ref=MapRef(name))
    return instruction._replace(src=2, ref=MapRef(name, int(offset or 0)))
