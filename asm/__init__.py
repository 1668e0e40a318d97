"""eBPF instructions: encode, decode, assemble, disassemble, and generate them from an IR.

Knows nothing of the kernel it runs on: maps, functions and kernel symbols stay symbolic (`MapRef`,
`FuncRef`, `KsymRef`) until whoever loads the program resolves them.
"""

from .errors import AsmError, AsmSyntaxError
from .instruction import FuncRef, Instruction, KsymRef, Label, MapRef, decode, encode, slot_numbers

# Modules that a program which only loads ready instructions does not need.
_LAZY = {"ir": ".ir", "compile_function": ".compile", "Code": ".compile", "disassemble": ".disassembler",
         "assemble": ".text", "assemble_files": ".text", "Builder": ".builder", "relocate": ".builder",
         "write_object": ".objectfile", "code_info": ".btfwriter"}

__all__ = ["AsmError", "AsmSyntaxError", "FuncRef", "Instruction", "KsymRef", "Label", "MapRef", "decode", "encode", "slot_numbers",
           *_LAZY]


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    from importlib import import_module
    module = import_module(_LAZY[name], __name__)
    value = module if name == "ir" else getattr(module, name)
    globals()[name] = value
    return value
