"""What an assembly file, or an object, says: sections of instructions, maps, data, a license.

`Assembly` is what `text.assemble` makes and what objects are read into; `link` puts a program together with the
functions that it calls.
"""

from collections import namedtuple

from .errors import AsmError, AsmSyntaxError
from .instruction import FuncRef, slot_numbers
from .opcodes import LDDW

MapDefinition = namedtuple("MapDefinition", "name type key_size value_size max_entries flags options")
MapDefinition.__doc__ = "A map that the program wants; `options`: dict of what else .map said (numbers)."


class Section:
    """A program section: `instructions`; `lines`, for each (file, number from 1, text); `labels`: dict name ->
    instruction index; `entries`: the names of labels where functions start."""

    def __init__(self, name):
        self.name = name
        self.instructions, self.lines, self.labels, self.entries = [], [], {}, set()
        self.numbered = {}   # "1:" may be defined again and again
        self.first_slot = None
        self.slot = 0

    def functions(self):
        """dict name -> index of the functions: the start, what is called or referred to, what is global."""
        return {name: index for name, index in self.labels.items() if name in self.entries}


class Data:
    """A data section: `content`, `symbols`: dict name -> offset."""

    def __init__(self, name):
        self.name = name
        self.content, self.symbols, self.align = bytearray(), {}, 1


class Assembly:
    """`sections`, `data`: dicts by name; `maps`: dict name -> MapDefinition; `license`: None where none is said;
    `kfuncs`, `ksyms`: name -> its type as prototypes.py has it, or None; `globals`, `weak`: sets of names."""

    def __init__(self):
        self.sections, self.data, self.maps = {}, {}, {}
        self.license = None
        self.kfuncs, self.ksyms, self.globals, self.weak = {}, {}, set(), set()

    def section(self, name=None):
        """A program section by name; without one, the only one there is (.text, of functions, aside)."""
        if name is not None:
            if name not in self.sections:
                raise AsmError("no section %r; there are %s" % (name, ", ".join(self.sections) or "none"))
            return self.sections[name]
        programs = [s for s in self.sections.values() if s.name != ".text"] or list(self.sections.values())
        if len(programs) != 1:
            raise AsmError("which section? There are %s" % ", ".join(s.name for s in programs) if programs
                           else "there are no instructions")
        return programs[0]

    def instructions(self, name=None):
        """The instructions of a section, with the functions of .text that it calls behind them.

        Only MapRef and KsymRef are left to resolve.
        """
        return self.link(name)[0]

    def link(self, name=None):
        """(instructions, lines, dict function -> index of its first instruction)."""
        main = self.section(name)
        code, lines = list(main.instructions), list(main.lines)
        functions = dict(main.functions())
        text = self.sections.get(".text")
        if text is not None and text is not main and any(isinstance(i.ref, FuncRef) for i in code):
            functions.update((n, i + len(code)) for n, i in text.functions().items())
            code += text.instructions
            lines += text.lines
        slots = slot_numbers(code)
        for index, instruction in enumerate(code):
            if isinstance(instruction.ref, FuncRef):
                target = functions.get(instruction.ref.name)
                if target is None:
                    raise error_at(lines[index], "%s is in a section that is not part of this program; functions that "
                                   "several call are in .text" % instruction.ref.name)
                code[index] = relative(instruction, slots[target] - slots[index] - 1)
        return code, lines, functions


def error_at(line, reason):
    """The error about an instruction that was written at `line`; in an object only the file is known."""
    filename, number, text = line
    if not text:
        return AsmError("%s: %s" % (filename, reason))
    start = len(text) - len(text.lstrip())
    return AsmSyntaxError(filename, number, start + 1, reason, text, len(text.strip()))


def relative(instruction, off):
    """A reference to a function, resolved to `off` slots behind the instruction."""
    return instruction._replace(imm=off & 0xFFFFFFFF if instruction.code == LDDW else off, ref=None)
