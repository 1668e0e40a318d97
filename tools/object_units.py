"""Programs of BPF object files as units (units.Unit): loaded as rawbpf.loader.Object loads them, CO-RE and all.

Nothing is pinned, also where the object's maps ask for it, and programs of sections that are loaded only when asked
for ("?fentry/x") are units as well. Maps whose size the object leaves to who loads it get one entry.
"""

import struct

from .failure import Failure
from .units import Unit, kind_of


def of_object(data, path, type=None):
    """A Unit for each program of an object's bytes. Failure."""
    from rawbpf.elf.image import ElfError
    from rawbpf.loader import Object, ObjectError
    try:
        made = Object.parse(data, path)
        if made.programs:
            return [ObjectUnit(made, program, type) for program in made.programs.values()]
    except (ElfError, ObjectError) as error:
        text = str(error)
        raise Failure(text if path in text else "%s: %s" % (path, text)) from None
    # No section is named after what its code attaches to: it is all one program.
    from .objects import read_object
    from .units import of_assembly
    return of_assembly(read_object(data, path), path, type)


class ObjectUnit(Unit):
    """One program of an Object; `error`: why it cannot be linked, or None."""

    def __init__(self, made, program, type):
        from rawbpf.elf.image import ElfError
        from rawbpf.loader import ObjectError
        self._object, self._program, self.error, self._prepared = made, program, None, False
        if type is not None:
            kind, target = kind_of(type, None, made.file.path)
            program.become(kind, target or program.target)
        self._poisons, instructions, lines = {}, [], []
        try:
            linked = program.link()
            instructions, self._poisons = linked.instructions, linked.poisons
            lines = _lines(made.file.btf, linked)
        except (ElfError, ObjectError) as error:
            self.error = ObjectError(str(error))
        super().__init__(made.file.path, program.name, program.type or "", instructions, lines, license=made.license,
                         options=lambda: {"expected_attach_type": program.expected_attach_type})
        for each in made.maps.values():
            each.pin_path = None
            if not each.max_entries and each.type not in _SIZELESS:
                each.max_entries = 1
            if each.type == "stack_trace" and not each.value_size:
                each.value_size = 8 * 127      # kernel.perf_event_max_stack where nobody changed it

    def make_maps(self):
        if not self._prepared:
            self._object.prepare([self.name])
            self._prepared = True

    def load(self, log_level=0, **log):
        """The loaded Program. VerifierError, KernelError, ObjectError."""
        from rawbpf.elf.image import ElfError
        from rawbpf.loader import ObjectError
        if self.error is not None:
            raise self.error
        try:
            self.make_maps()
            self._program.load(log_level, **log)
        except ElfError as error:
            raise ObjectError(str(error)) from None
        return self._program.program

    def note_at(self, slot):
        return "this stands for %s" % self._poisons[slot] if slot in self._poisons else ""

    def close(self):
        self._object.close()
        self._prepared = False


_SIZELESS = ("perf_event_array", "sk_storage", "inode_storage", "task_storage", "cgrp_storage", "cgroup_storage",
             "percpu_cgroup_storage", "struct_ops")


def _lines(btf, linked):
    """(file, line, text) of each instruction, of the object's line_info: a line holds until the next begins."""
    from rawbpf.asm import slot_numbers
    size, records = linked.line_info
    places = {}
    for at in range(0, len(records), size or 1):
        slot, file, text, where = struct.unpack_from("=IIII", records, at)
        places[slot] = (btf.string(file), where >> 10, btf.string(text))
    lines, line = [], None
    for slot in slot_numbers(linked.instructions)[:-1]:
        line = places.get(slot, line)
        lines.append(line)
    return lines
