"""The code for values in memory: where they lie, how they are read, made and copied. A mixin of lower.Lowering."""
from rawbpf.asm import ir

from . import ast, builtins, strings, types
from .diagnostics import ScriptError
from .place import Place
from .types import Pointer, String, Tuple

STACK_VALUE = 64        # temporaries up to this size are on the BPF stack


class MemoryCode:
    """`place`, `load`, `store` and `copy`."""

    def temporary(self, kind, size=None):
        """Room for a value until the program ends."""
        size = max(kind.size if size is None else size, 1)
        if size <= self.stack_value:
            return Place(self.f.slot(-(-size // 8) * 8), 0, kind)
        return self.scratch.place(kind, size)

    def address(self, place):
        return strings.address(self, place)

    def direct(self, place):
        """The place, or a copy of it that the program can load from."""
        if place.space is None and place.direct_load is None:
            return place
        copy = self.temporary(place.type)
        strings.copy_bytes(self, place, copy, place.type.size)
        return copy

    def load(self, place):
        """The operand at a place."""
        kind = place.type
        signed = getattr(kind, "signed", False)
        if place.direct_load is not None:
            return place.direct_load(0, kind.size, signed)
        if place.space is None:
            return self.f.load(place.base, place.off, kind.size, signed)
        slot = self.f.slot(8)
        self.probe_read(self.f.address(slot), kind.size, self.address(place), place.space)
        return self.f.load(slot, 0, kind.size, signed)

    def read_helper(self, space, string=False):
        """The name of the helper that reads `space`; an error where kernel reads are locked down."""
        from rawbpf.sources import memory
        if space == "kernel" and not self.script.machine.kernel_reads:
            raise ScriptError(self.f.span, "Reading kernel memory is not allowed here: %s"
                              % self.script.machine.kernel_reads_reason)
        return memory.helper(space == "user", string, self.script.machine.has_helper)

    def probe_read(self, dest, size, source, space):
        """Copy `size` bytes from address `source` to address `dest`; zeros when it cannot be read."""
        helper = self.read_helper(space)
        self.told(helper, self.f.call(helper, dest, size, source))

    def place(self, node):
        """The Place of an expression whose type does not fit a register (or that lies in memory anyway)."""
        method = getattr(self, "_place_" + type(node).__name__, None)
        outer, self.at = self.at, node
        place = method(node) if method is not None else None
        self.at = outer
        if place is None:
            place = self.temporary(node.type)
            self.store(node, place)
        return place

    def _place_Variable(self, node):
        return self._memory(self._variable(node, None))

    def _place_Map(self, node):
        place = self.read_map(node)
        return place if isinstance(place, Place) else None

    _place_MapAccess = _place_Map

    def _place_Unary(self, node):
        return self._dereferenced(node) if node.op == "*" else None

    def _place_TupleAccess(self, node):
        kind = node.operand.type
        return self.place(node.operand).at(kind.offsets[node.index], node.type)

    def _place_FieldAccess(self, node):
        kind, context = node.operand.type, self._context(node.operand)
        if context is not None:
            return context.place(self, node)
        if isinstance(kind, Pointer):
            field = self._c_field(node)
            return Place(self._in_register(node.operand), field.offset, node.type, self._pointer_space(kind))
        if kind.c_type is not None:
            return self.place(node.operand).at(self._c_field(node).offset, node.type)
        for field in kind.fields:
            if field.name == node.name:
                return self.place(node.operand).at(field.offset, node.type)
        return None

    def _place_ArrayAccess(self, node):
        kind = node.operand.type
        constant = self.constant(node.index)
        if isinstance(kind, Tuple):
            return self.place(node.operand).at(kind.offsets[constant], node.type)
        size = self.script.complete(kind.target).size if isinstance(kind, Pointer) else node.type.size
        if isinstance(kind, Pointer):
            base = Place(self._in_register(node.operand), 0, node.type, self._pointer_space(kind))
        else:
            base = self.place(node.operand)
        if constant is not None:
            return base.at(constant * size, node.type)
        if base.direct_load is not None:
            base = self.direct(base)
        index = self.value(node.index)
        if isinstance(kind, types.Array):
            index = self.f.copy(index)
            self._tell_outside(node, index, kind.count)
        if base.space is None:
            count = max(1, kind.size // max(size, 1))
            index = self._bounded(index, count)
        where = self.f.alu("+", self.address(base), self.f.alu("*", index, size) if size != 1 else index)
        return Place(where, 0, node.type, base.space)

    def _tell_outside(self, node, index, count):
        """A warning when an index is none of an array's."""
        f = self.f
        outside, inside = f.block("outside"), f.block()
        f.branch(">=", index, count, outside, inside)
        f.position(outside)
        self.warn_at_run_time(node, "Array access out of bounds. This can lead to unexpected results.")
        f.jump(inside)
        f.position(inside)

    def _bounded(self, index, count):
        """An index into our own memory, zero when it is outside."""
        f = self.f
        result = f.variable()
        inside, done = f.block(), f.block()
        f.set(result, 0)
        f.branch("<", index, count, inside, done)
        f.position(inside)
        f.set(result, index)
        f.jump(done)
        f.position(done)
        return result

    def _place_Cast(self, node):
        if not node.operand.type.scalar:
            return self.place(node.operand).typed(node.type)
        number = self.temporary(types.INT64)        # an array of a number's bytes
        value = self.value(node.operand)
        self.f.store(number.base, number.off, self.convert(value, node.operand.type, types.INT64), 8)
        return number.typed(node.type)

    # -- addresses that the verifier can follow

    def followed(self, node, missing):
        """The operand of a pointer, made by loads from what the event gave: the verifier knows what it points at, which
        some helpers ask for. Only in programs of type tracing. Goes to block `missing` when the pointer is 0."""
        if isinstance(node, ast.Cast):
            return self.followed(node.operand, missing)
        kind = node.operand.type if isinstance(node, ast.FieldAccess) else None
        if isinstance(node, ast.Unary) and node.op == "*" and isinstance(node.operand.type, Pointer):
            pointer = self.f.load(self.followed(node.operand, missing), 0, 8)
        elif kind is None or isinstance(kind, builtins.ContextRecord):
            pointer = self.value(node)
            if isinstance(pointer, int) or isinstance(node.type, Pointer) and node.type.context:
                return pointer
        else:
            pointer = self.f.load(self.followed_place(node, missing), 0, 8)
        there = self.f.block()
        pointer = self.f.copy(pointer)
        self.f.branch("==", pointer, 0, missing, there)
        self.f.position(there)
        return pointer

    def followed_place(self, node, missing):
        """The address of a member that is no pointer, in the same way."""
        if isinstance(node, ast.Unary) and node.op == "*":
            return self.followed(node.operand, missing)
        if not isinstance(node, ast.FieldAccess) or isinstance(node.operand.type, builtins.ContextRecord):
            return self.address(self.place(node))
        inner = node.operand
        base = (self.followed if isinstance(inner.type, Pointer) else self.followed_place)(inner, missing)
        offset = self._c_field(node).offset
        return self.f.alu("+", base, offset) if offset else base

    # -- writing values to memory

    def store(self, node, dest, clean=False):
        """Write an expression's value to a place, in the place's type. `clean`: every byte of it, for keys."""
        outer, self.at = self.at, node
        self._store(node, dest, clean)
        self.at = outer

    def _store(self, node, dest, clean):
        kind, source = dest.type, node.type
        if kind.scalar:
            self.f.store(dest.base, dest.off, self.convert(self.value(node), source, kind), kind.size)
            return
        clean = clean or self._on_stack(dest)
        constant = self.constant(node)
        if isinstance(constant, str):
            strings.store_literal(self, constant.encode("utf-8", "surrogateescape"), dest, clean)
            return
        method = getattr(self, "_store_" + type(node).__name__, None)
        if method is not None and method(node, dest, clean):
            return
        self.copy(self.place(node), dest, clean)

    def _on_stack(self, dest):
        """A string on the BPF stack is written to its end: it is copied as a whole later, and what was there before may be
        nothing that can be read."""
        return isinstance(dest.type, String) and isinstance(dest.base, ir.Slot)

    def _store_Identifier(self, node, dest, clean):
        entry = self.entry(node)
        place = entry.place(self, node) if hasattr(entry, "place") else None
        if place is not None:
            self.copy(place, dest, clean)
            return True
        if clean and isinstance(dest.type, String):
            written = getattr(entry, "fills", 0)        # bytes that the entry always writes
            strings.zero(self, dest, min(written, dest.type.size), dest.type.size)
        elif clean and isinstance(dest.type, types.Record):
            strings.zero(self, dest, 0, dest.type.size)
        entry.store(self, node, dest)
        return True

    _store_Call = _store_Identifier

    def _store_Tuple(self, node, dest, clean):
        for element, offset, part in zip(dest.type.elements, dest.type.offsets, node.elements):
            self.store(part, dest.at(offset, element), clean)
        return True

    def _store_Record(self, node, dest, clean):
        fields = {field.name: field for field in dest.type.fields}
        for element in node.elements:       # evaluated in the order in which they are written
            field = fields[element.name]
            self.store(element.value, dest.at(field.offset, field.type), clean)
        return True

    def _store_Typeinfo(self, node, dest, clean):
        return self._store_Record(self.unit.infos[id(node)], dest, clean)

    def _store_Ternary(self, node, dest, clean):
        f = self.f
        then, otherwise, done = f.block("then"), f.block("else"), f.block("endif")
        if node.then is None:
            return False
        live = self.r.live_branches(node) if isinstance(node, ast.If) else ()
        if len(live) == 1:
            self.store(live[0], dest, clean)
            return True
        self.condition(node.condition, then, otherwise)
        for block, part in ((then, node.then), (otherwise, node.otherwise)):
            f.position(block)
            self.store(part, dest, clean)
            f.jump(done)
        f.position(done)
        return True

    _store_If = _store_Ternary

    def _store_Block(self, node, dest, clean):
        self._in_block(node, lambda: self.store(node.value, dest, clean))
        return True

    def copy(self, source, dest, clean=False):
        """Copy a value between places, converted to the destination's type."""
        kind = dest.type
        if kind.scalar:
            self.f.store(dest.base, dest.off, self.convert(self.load(source), source.type, kind), kind.size)
        elif isinstance(kind, String):
            strings.copy_string(self, source, dest, clean or self._on_stack(dest))
        elif isinstance(kind, Tuple):
            for index, element in enumerate(kind.elements):
                part = source.at(source.type.offsets[index], source.type.elements[index])
                self.copy(part, dest.at(kind.offsets[index], element), clean)
        elif isinstance(kind, types.Record) and kind.c_type is None and kind != source.type:
            theirs = {field.name: field for field in source.type.fields}
            for field in kind.fields:
                part = theirs[field.name]
                self.copy(source.at(part.offset, part.type), dest.at(field.offset, field.type), clean)
        else:
            strings.copy_bytes(self, source, dest, min(kind.size, source.type.size))
