"""From functions of an object file to the instructions of one program.

Each function is decoded, its CO-RE relocations and ELF relocations are applied, and what it calls is put
behind it. References to maps and data become `MapRef`s by the map's name (a data section's name stands for
its map), kernel symbols what `externs` makes of them. func_info and line_info move along.
"""

import struct
from typing import NamedTuple

from rawbpf.asm import AsmError, Instruction, MapRef, decode, slot_numbers
from rawbpf.elf.bpf_object import ARENA, JUMP_TABLES, R_BPF_64_32, R_BPF_64_64, STT_SECTION, is_data
from rawbpf.elf.image import TABLE_LIMIT

from . import core_relo
from .errors import ObjectError
from .uapi import PSEUDO_CALL, PSEUDO_FUNC

_CALL, _LDDW = 0x85, 0x18
_MAX_INSTRUCTIONS = 1 << 20     # of one program: what the kernel takes at most

# Calls that must not be reached, told apart by their helper number (a poisoned CO-RE access: 195896080).
MISSING_KFUNC, MISSING_MAP = 2002000000, 2001000000


class Linked(NamedTuple):
    """`maps`: names referred to; `poisons`: what a poisoned instruction stands for, by its slot; `tables`: jump
    tables, lists of slots by the name that instructions refer to them by."""

    instructions: list
    func_info: tuple
    line_info: tuple
    maps: set
    poisons: dict
    tables: dict


class _Code(NamedTuple):
    function: object
    instructions: list
    calls: list         # (index, Function, is it an address)
    maps: set
    poisons: dict       # index -> why
    tables: dict        # name -> slots of the function


class Linker:
    """`core` resolves CO-RE relocations; externs(name, instruction) gives (the instruction, why it must not
    be reached or "", name of a map or "")."""

    def __init__(self, file, core, externs):
        self.file, self.core, self.externs = file, core, externs
        self._codes = {}
        self._maps_at = {(definition.section, definition.offset): name
                         for name, definition in file.maps.items()}

    def link(self, function):
        """The Linked program that starts with this Function; ObjectError when it cannot be."""
        placed, order = {}, []
        waiting = [function]
        total = 0
        while waiting:
            current = waiting.pop(0)
            if current in placed:
                continue
            code = self._code(current)
            placed[current] = total
            order.append(code)
            total += slot_numbers(code.instructions)[-1]
            if total > _MAX_INSTRUCTIONS:
                raise ObjectError("%s: more than %d instructions with what it calls" % (
                    function.name, _MAX_INSTRUCTIONS))
            waiting += [target for _, target, _ in code.calls]
        instructions, maps, poisons, tables = [], set(), {}, {}
        for code in order:
            base, slots = placed[code.function], slot_numbers(code.instructions)
            own = list(code.instructions)
            for index, target, address in code.calls:
                distance = placed[target] - (base + slots[index]) - 1
                own[index] = own[index]._replace(src=PSEUDO_FUNC if address else PSEUDO_CALL,
                                                 imm=distance & 0xffffffff if address else distance)
            instructions += own
            maps |= code.maps
            poisons.update((base + slots[index], why) for index, why in code.poisons.items())
            tables.update((name, [base + slot for slot in table]) for name, table in code.tables.items())
        return Linked(instructions, self._info(order, placed, "functions", True),
                      self._info(order, placed, "lines", False), maps, poisons, tables)

    # -- one function ----------------------------------------------------------------------------------

    def _code(self, function):
        found = self._codes.get(function)
        if found is None:
            found = self._codes[function] = self._relocated(function)
        return found

    def _relocated(self, function):
        try:
            instructions = decode(self.file.code(function))
        except AsmError as error:
            raise ObjectError("%s: %s" % (function.name, error)) from None
        at_slot = {slot: index for index, slot in enumerate(slot_numbers(instructions)[:-1])}
        poisons = {}
        self._relocate_core(function, instructions, at_slot, poisons)
        calls, maps, tables = [], set(), {}
        relocations = self.file.relocations.get(function.section_index, {})
        own = {offset: relocations[offset] for offset in relocations
               if function.offset <= offset < function.offset + function.size} if relocations else {}
        for offset, relocation in own.items():
            index = at_slot.get((offset - function.offset) // 8) if offset % 8 == 0 else None
            where = "%s: relocation at instruction %d" % (function.name, (offset - function.offset) // 8)
            if index is None:
                raise ObjectError(where + ": no instruction starts there")
            if index in poisons:
                continue
            if self._is_table(relocation.symbol):
                name, slots = self._jump_table(function, relocation.symbol, at_slot, where)
                instructions[index] = self._table_address(instructions[index], name, where)
                tables[name] = slots
                continue
            self._relocate(instructions, index, relocation, where, calls, maps, poisons)
        related = {index for index, _, _ in calls}
        for slot, index in at_slot.items():
            instruction = instructions[index]
            if instruction.code == _CALL and instruction.src == PSEUDO_CALL and index not in related and \
                    function.offset + slot * 8 not in own:
                target = self._target(function.section_index, function.offset + (slot + instruction.imm + 1) * 8,
                                      "%s: call at instruction %d" % (function.name, slot))
                calls.append((index, target, False))
        if poisons:
            instructions, calls, poisons = _spread(instructions, calls, poisons)
        return _Code(function, instructions, sorted(calls, key=lambda call: call[0]), maps, poisons, tables)

    # -- jump tables: places of a function that it goes to by `gotox` ----------------------------------

    def _is_table(self, symbol):
        return 0 < symbol.section < len(self.file.sections) and \
            self.file.sections[symbol.section].name == JUMP_TABLES

    def _jump_table(self, function, symbol, at_slot, where):
        """(name, slots of the function) of the table that a symbol is. In the file its elements are 64-bit offsets
        in the function's section."""
        section = self.file.sections[symbol.section]
        if symbol.value % 8 or symbol.size % 8 or not symbol.size or symbol.value + symbol.size > section.size:
            raise ObjectError("%s: bytes %d to %d of %s are no jump table" % (
                where, symbol.value, symbol.value + symbol.size, JUMP_TABLES))
        data = bytes(self.file.image.data(section, TABLE_LIMIT)[symbol.value:symbol.value + symbol.size])
        slots = []
        for offset, in struct.iter_unpack("=Q", data):
            slot = (offset - function.offset) // 8
            if offset % 8 or slot not in at_slot:
                raise ObjectError("%s: a jump table leads to byte %d of section %s, where no instruction of it starts" % (
                    where, offset, function.section))
            slots.append(slot)
        return "%s %s+%d" % (JUMP_TABLES, function.name, symbol.value), slots

    @staticmethod
    def _table_address(instruction, name, where):
        if instruction.code != _LDDW or instruction.ref is not None:
            raise ObjectError("%s: a jump table is no operand of code 0x%02x" % (where, instruction.code))
        return Instruction(_LDDW, instruction.dst, ref=MapRef(name, instruction.imm >> 32))

    def _relocate_core(self, function, instructions, at_slot, poisons):
        if self.file.btf_ext is None:
            return
        for relocation in self.file.btf_ext.relocations.get(function.section, ()):
            offset = relocation.offset - function.offset
            if not 0 <= offset < function.size:
                continue
            index = at_slot.get(offset // 8) if offset % 8 == 0 else None
            if index is None:
                raise ObjectError("%s: CO-RE relocation at byte %d, where no instruction starts" % (
                    function.name, offset))
            if index in poisons:
                continue
            try:
                result = self.core.resolve(relocation)
                what = self.core.describe(relocation)
                new = core_relo.patch(instructions[index], result, what)
            except ObjectError as error:
                raise ObjectError("%s, instruction %d: %s" % (function.name, offset // 8, error)) from None
            if new.code == _CALL and new.imm == core_relo.POISON:
                poisons[index] = result.poison or "%s: a load of %d bytes that cannot become one of %d" % (
                    what, result.original_size, result.size)
            instructions[index] = new if index not in poisons else instructions[index]

    def _relocate(self, instructions, index, relocation, where, calls, maps, poisons):
        instruction, symbol = instructions[index], relocation.symbol
        if relocation.type not in (R_BPF_64_64, R_BPF_64_32):
            raise ObjectError("%s: type %d is not for instructions" % (where, relocation.type))
        if instruction.code == _CALL and instruction.src in (PSEUDO_CALL, 0, 2):
            if not symbol.section:
                self._extern(instructions, index, symbol, where, maps, poisons)
            else:
                offset = symbol.value + (instruction.imm + 1) * 8
                calls.append((index, self._target(symbol.section, offset, where), False))
            return
        if instruction.code != _LDDW or instruction.ref is not None:
            raise ObjectError("%s: it is neither a call nor a 64-bit load (code 0x%02x)" % (where, instruction.code))
        if not symbol.section:
            self._extern(instructions, index, symbol, where, maps, poisons)
            return
        if symbol.section >= len(self.file.sections):
            raise ObjectError("%s: symbol %s lies in no section" % (where, symbol.name))
        section = self.file.sections[symbol.section]
        low = instruction.imm & 0xffffffff
        low -= low >> 31 << 32
        if section.flags & 4:       # SHF_EXECINSTR
            calls.append((index, self._target(symbol.section, symbol.value + low, where), True))
        elif section.name in (".maps", "maps"):
            at = symbol.value + (low if symbol.type == STT_SECTION else 0)
            name = self._maps_at.get((symbol.section, at))
            if name is None:
                raise ObjectError("%s: no map starts at byte %d of %s" % (where, at, section.name))
            instructions[index] = Instruction(_LDDW, instruction.dst, ref=MapRef(name))
            maps.add(name)
        elif is_data(section.name) and section.name in self.file.data or section.name == ARENA and self.file.arena:
            at = symbol.value + low
            if not 0 <= at <= section.size:
                raise ObjectError("%s: byte %d lies outside %s" % (where, at, section.name))
            instructions[index] = Instruction(_LDDW, instruction.dst, ref=MapRef(section.name, at))
            maps.add(section.name)
        else:
            raise ObjectError("%s: %s lies in the section %s, of which no map is made" % (
                where, symbol.name or "a symbol", section.name))

    def _extern(self, instructions, index, symbol, where, maps, poisons):
        if not symbol.name:
            raise ObjectError("%s: it refers to no symbol" % where)
        try:
            new, why, used = self.externs(symbol.name, instructions[index])
        except ObjectError as error:
            raise ObjectError("%s: %s" % (where.partition(":")[0], error)) from None
        instructions[index] = new
        if why:
            poisons[index] = why
        if used:
            maps.add(used)

    def _target(self, section, offset, where):
        if section >= len(self.file.sections):
            raise ObjectError("%s: it refers to something in no section" % where)
        target = self.file.function_at(section, offset)
        if target is None:
            raise ObjectError("%s: no function starts at byte %d of section %s" % (
                where, offset, self.file.sections[section].name))
        return target

    # -- BTF's func_info and line_info -----------------------------------------------------------------

    def _info(self, order, placed, what, one):
        """(record size, records) with offsets of the linked program; (0, b"") when a function has none."""
        ext = self.file.btf_ext
        size = 0 if ext is None else ext.function_size if one else ext.line_size
        if not size:
            return (0, b"")
        records = []
        for code in order:
            function = code.function
            table = getattr(ext, what).get(function.section, ())
            own = [(offset, rest) for offset, rest in table
                   if function.offset <= offset < function.offset + function.size]
            if not own or own[0][0] != function.offset or any(offset % 8 for offset, _ in own):
                return (0, b"")
            own = own[:1] if one else _distinct(own)
            base = placed[function]
            records += [struct.pack("=I", base + (offset - function.offset) // 8) + rest for offset, rest in own]
        return (size, b"".join(records))


def _distinct(records):
    return [record for i, record in enumerate(records) if not i or record[0] != records[i - 1][0]]


def _spread(instructions, calls, poisons):
    """Puts calls of no helper for poisoned instructions, two for a lddw, so that no slot moves."""
    out, moved, places = [], {}, {}
    for index, instruction in enumerate(instructions):
        moved[index] = len(out)
        if index not in poisons:
            out.append(instruction)
            continue
        if instruction.code == _CALL:
            bad = instruction._replace(src=0, off=0, ref=None, imm=MISSING_KFUNC)
        else:
            bad = core_relo.poisoned(instruction)
        for _ in range(instruction.slots):
            places[len(out)] = poisons[index]
            out.append(bad)
    return out, [(moved[index], target, address) for index, target, address in calls if index not in poisons], places
