"""References of an assembly file, resolved when all of it is read: labels, functions, maps, data, kernel symbols.

Also what is only then known to be wrong: jumps out of the section or into the middle of a 64-bit constant.
"""

from bisect import bisect_right
from itertools import islice

from .assembly import relative
from .errors import AsmSyntaxError
from .helpers import NUMBER
from .instruction import FuncRef, KsymRef, Label, MapRef, slot_numbers
from .opcodes import BPF_PSEUDO_BTF_ID, BPF_PSEUDO_CALL, BPF_PSEUDO_FUNC, BPF_PSEUDO_KFUNC_CALL
from .opcodes import BPF_PSEUDO_MAP_FD, BPF_PSEUDO_MAP_VALUE, CALL, JA32, JAX, LDDW
from .statement import CallRef, SymbolRef

_COMPARED = 5000             # names that are looked at for a likely one


class Resolver:
    """`resolve()` changes the sections of an Assembly in place. strict: jumps land on instructions, maps are there."""

    def __init__(self, result, strict):
        self.result, self.strict = result, strict

    def resolve(self):
        sections = self.result.sections
        for section in sections.values():
            section.entries = {name for name, index in section.labels.items() if index == 0}
        for name in self.result.globals:
            for section in sections.values():
                if name in section.labels:
                    section.entries.add(name)
        for section in sections.values():
            slots = slot_numbers(section.instructions)
            starts = set(slots[:-1]) if self.strict else ()
            for index, instruction in enumerate(section.instructions):
                ref = instruction.ref
                cls = instruction.code & 7
                if ref is not None:
                    resolved = self._reference(section, index, instruction, slots)
                    if resolved is not instruction:
                        section.instructions[index] = resolved
                elif starts and (cls == 5 or cls == 6 or instruction.code == LDDW and instruction.src == BPF_PSEUDO_FUNC):
                    self._check_jump(section, index, instruction, slots, starts)

    def _fail(self, section, index, reason, name=None):
        filename, number, text = section.lines[index]
        found = text.rfind(name) if name else -1
        start, end = (found, found + len(name)) if found >= 0 else (len(text) - len(text.lstrip()), len(text))
        raise AsmSyntaxError(filename, number, start + 1, reason, text, end - start)

    def _check_jump(self, section, index, instruction, slots, starts):
        code = instruction.code
        if code == CALL and instruction.src == BPF_PSEUDO_CALL or code == JA32:
            off = instruction.imm
        elif code == LDDW:
            off = instruction.imm - (instruction.imm >> 31 << 32)
        elif code & 0xF0 in (0x80, 0x90) or code == JAX:
            return
        else:
            off = instruction.off
        target = slots[index] + 1 + off
        if target not in starts:
            reason = "outside the section's %d slots" % slots[-1] if not 0 <= target < slots[-1] else (
                "the second half of a 64-bit constant")
            self._fail(section, index, "this goes to slot %d, which is %s" % (target, reason))

    def _reference(self, section, index, instruction, slots):
        ref = instruction.ref
        if isinstance(ref, Label):
            return self._jump(section, index, instruction, slots)
        if isinstance(ref, CallRef):
            return self._call(section, index, instruction, slots)
        if isinstance(ref, (SymbolRef, FuncRef)):
            return self._symbol(section, index, instruction, slots)
        if isinstance(ref, MapRef) and self.strict and ref.name not in self.result.maps and (
                ref.name not in self.result.data) and self.result.maps:
            self._undefined(section, index, ref.name, "map", self.result.maps)
        return instruction

    def _undefined(self, section, index, name, what, known):
        from difflib import get_close_matches
        near = get_close_matches(name, list(islice(known, _COMPARED)), 3)
        self._fail(section, index, "no %s %s%s" % (what, name, near and "; did you mean %s?" % " or ".join(near) or ""),
                   name)

    def _jump(self, section, index, instruction, slots):
        name = instruction.ref.name
        target = section.labels.get(name)
        if target is None and name[:-1].isdigit():
            places = section.numbered.get(int(name[:-1]), ())
            # in the order of the lines, and so of the instructions
            at = bisect_right(places, index) - (name[-1] == "b")
            target = places[at] if 0 <= at < len(places) else None
        if target is None:
            self._undefined(section, index, name, "label", section.labels)
        if target >= len(section.instructions) and self.strict:
            self._fail(section, index, "the label %s stands at the end of the section, where nothing is" % name, name)
        off = slots[target] - slots[index] - 1
        if instruction.code == JA32:
            return instruction._replace(imm=off, ref=None)
        if not -0x8000 <= off < 0x8000:
            self._fail(section, index, "%s is %d slots away; a jump reaches 32767 (gotol reaches further)" % (name, off),
                       name)
        return instruction._replace(off=off, ref=None)

    def _starts(self, section, index, other, name):
        """A label is that of a function, since an instruction refers to it as one."""
        if other.labels[name] >= len(other.instructions):
            self._fail(section, index, "the function %s stands at the end of the section, where nothing is" % name, name)
        other.entries.add(name)

    def _call(self, section, index, instruction, slots):
        name, result = instruction.ref.name, self.result
        if name in section.labels:
            self._starts(section, index, section, name)
            return instruction._replace(src=BPF_PSEUDO_CALL, imm=slots[section.labels[name]] - slots[index] - 1, ref=None)
        for other in result.sections.values():
            if name in other.labels:
                self._starts(section, index, other, name)
                return instruction._replace(src=BPF_PSEUDO_CALL, ref=FuncRef(name))
        if name in result.kfuncs:
            return instruction._replace(src=BPF_PSEUDO_KFUNC_CALL, ref=KsymRef(name))
        number = NUMBER.get(name)
        if number is None:
            known = {n: 0 for s in result.sections.values() for n in s.labels}
            self._undefined(section, index, name, "function", {**NUMBER, **known, **dict.fromkeys(result.kfuncs)})
        return instruction._replace(imm=number, ref=None)

    def _symbol(self, section, index, instruction, slots):
        result, ref = self.result, instruction.ref
        name, offset = ref.name, ref.offset if isinstance(ref, SymbolRef) else 0
        if not isinstance(ref, FuncRef):
            for data in result.data.values():
                if name in data.symbols or name == data.name:
                    return instruction._replace(src=BPF_PSEUDO_MAP_VALUE, ref=MapRef(
                        data.name, data.symbols.get(name, 0) + offset))
            if name in result.maps:
                src = BPF_PSEUDO_MAP_VALUE if offset else BPF_PSEUDO_MAP_FD
                return instruction._replace(src=src, ref=MapRef(name, offset or None))
            if name in result.ksyms or name in result.kfuncs:
                return instruction._replace(src=BPF_PSEUDO_BTF_ID, ref=KsymRef(name))
        if name in section.labels:
            self._starts(section, index, section, name)
            return relative(instruction._replace(src=BPF_PSEUDO_FUNC), slots[section.labels[name]] - slots[index] - 1)
        for other in result.sections.values():
            if name in other.labels:
                self._starts(section, index, other, name)
                return instruction._replace(src=BPF_PSEUDO_FUNC, ref=FuncRef(name))
        known = [*result.maps, *result.ksyms, *result.kfuncs, *(n for d in result.data.values() for n in d.symbols),
                 *(n for s in result.sections.values() for n in s.labels)]
        self._undefined(section, index, name, "symbol", known)
