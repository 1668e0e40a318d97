"""CO-RE: instructions that depend on the kernel's types, fitted to the running kernel.

A relocation of .BTF.ext names a local type and an access into it ("0:1:2": indexes of array elements and
members); what the instruction wants (`kind`) is looked up in the kernel's type of the same name, flavours
(`name___x`) aside. Rules of what matches what: libbpf's documentation of BPF CO-RE, and
include/uapi/linux/bpf.h, enum bpf_core_relo_kind. Where no type matches, the instruction is replaced by one
that the verifier refuses if it is ever reached, because programs guard such accesses by a relocation of
kind field_exists.
"""

from typing import NamedTuple

from rawbpf.elf import btf_raw as raw
from rawbpf.elf.image import ElfError

from .errors import ObjectError

FIELD = frozenset(("byte_off", "byte_sz", "field_exists", "signed", "lshift_u64", "rshift_u64"))
TYPE = frozenset(("local_type_id", "target_type_id", "type_exists", "type_size", "type_matches"))
ENUM = frozenset(("enumval_exists", "enumval_value"))
_NEST = 64          # BPF_CORE_SPEC_MAX_LEN
_LEVELS = 32

POISON = 195896080  # 0xbad2310: no helper has this number


class Step(NamedTuple):
    """One step of an access: an array index (name "") or a member by name."""

    type: int
    index: int
    name: str


class Spec(NamedTuple):
    steps: list
    bit_offset: int
    type: int           # root


class Result(NamedTuple):
    """What becomes of the instruction. `poison`: why it must not be reached, or "". `original` is what the
    compiler put in, checked when `check`; sizes are of the memory accessed, 0 where that does not matter."""

    value: int = 0
    original: int = 0
    check: bool = True
    poison: str = ""
    original_size: int = 0
    size: int = 0
    resize: bool = True


class Value(NamedTuple):
    value: int
    check: bool = True
    size: int = 0
    type: int = 0


class CoreResolver:
    """Resolves the relocations of one object's BTF against `targets`: the kernel's Btf, then those of its
    modules (a function without arguments that gives them, called if vmlinux has no candidate)."""

    def __init__(self, local, vmlinux, modules=lambda: ()):
        self.local, self.vmlinux, self.modules = local, vmlinux, modules
        self._candidates, self._results = {}, {}

    def resolve(self, relocation):
        """The Result for a CoreRelocation; ObjectError when it makes no sense."""
        key = relocation[1:]
        found = self._results.get(key)
        if found is None:
            try:
                found = self._resolve(relocation)
            except (ElfError, RecursionError) as error:
                raise ObjectError("CO-RE %s: %s" % (self.describe(relocation), error)) from None
            self._results[key] = found
        return found

    def _resolve(self, relocation):
        kind, local = relocation.kind, self.local
        if kind not in FIELD and kind not in TYPE and kind not in ENUM:
            raise ObjectError("CO-RE relocation of %s is newer than this loader" % kind)
        spec = self.parse(relocation)
        if kind == "local_type_id":
            return Result(relocation.type_id, relocation.type_id, False)
        root = raw.record(local, relocation.type_id)
        if not root.name:
            raise ObjectError("CO-RE %s: the type has no name, so no candidate can be found" % kind)
        original = _value(local, kind, spec)
        candidates = self.candidates(relocation.type_id)
        chosen, reasons = None, []
        for btf, type_id in candidates:
            match, why = self.match(kind, spec, btf, type_id)
            if match is None:
                reasons.append("%s: %s" % (_label(btf, type_id), why))
                continue
            result = self._result(kind, spec, original, btf, match)
            if chosen is None:
                chosen = (result, match)
            elif (match.bit_offset, result.value, bool(result.poison)) != (
                    chosen[1].bit_offset, chosen[0].value, bool(chosen[0].poison)) and kind != "target_type_id":
                raise ObjectError("CO-RE %s: the kernel's types of that name disagree: %d and %d" % (
                    self.describe(relocation), chosen[0].value, result.value))
        if chosen is not None:
            return chosen[0]
        if kind in ("byte_off", "byte_sz", "signed", "lshift_u64", "rshift_u64", "enumval_value"):
            if self.vmlinux is None:
                why = "the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"
            elif not candidates:
                why = "the kernel has no %s %s" % (root.kind, raw.essential(root.name))
            else:
                why = "; ".join(reasons[:4])
            return Result(poison="%s: %s" % (self.describe(relocation), why))
        return Result(0, original.value, original.check)

    def _result(self, kind, spec, original, btf, match):
        value = _value(btf, kind, match)
        resize = True
        if original.size != value.size and original.size and value.size:
            old = raw.skip(self.local, original.type)
            new = raw.skip(btf, value.type)
            # zero-extension keeps pointers and unsigned integers right, and nothing else
            resize = old.kind == new.kind == "ptr" or (
                old.kind == new.kind == "int" and not _signed(old) and not _signed(new))
        return Result(value.value, original.value, original.check, "", original.size, value.size, resize)

    # -- the local side --------------------------------------------------------------------------------

    def parse(self, relocation):
        """The Spec of a CoreRelocation in the object's types."""
        local, kind, text = self.local, relocation.kind, relocation.access
        indexes = text.split(":")
        if not all(index.isdigit() for index in indexes) or len(indexes) > _NEST:
            raise ObjectError("CO-RE relocation with the access %r" % text)
        indexes = [int(index) for index in indexes]
        if kind in TYPE:
            if indexes != [0]:
                raise ObjectError("CO-RE %s with the access %r" % (kind, text))
            return Spec([], 0, relocation.type_id)
        current = raw.skip(local, relocation.type_id)
        if kind in ENUM:
            values = raw.enumerators(local, current) if current.kind in ("enum", "enum64") else []
            if len(indexes) != 1 or indexes[0] >= len(values):
                raise ObjectError("CO-RE %s: BTF type %d (%s %s) has no enumerator %s" % (
                    kind, current.id, current.kind, current.name, text))
            return Spec([Step(current.id, indexes[0], values[indexes[0]][0])], 0, relocation.type_id)
        steps = [Step(current.id, indexes[0], "")]
        bits = indexes[0] * raw.size(local, current.id) * 8
        previous = None
        for index in indexes[1:]:
            current = raw.skip(local, current.id)
            if current.kind in ("struct", "union"):
                found = raw.members(local, current)
                if index >= len(found):
                    raise ObjectError("CO-RE access %s: %s %s has %d members" % (
                        text, current.kind, current.name, len(found)))
                member = found[index]
                bits += member.bit_offset
                if member.name:
                    steps.append(Step(current.id, index, member.name))
                previous = index == len(found) - 1
                current = raw.skip(local, member.type)
            elif current.kind == "array":
                count = current.words[2]
                if index >= count and not (count == 0 and previous):
                    raise ObjectError("CO-RE access %s: index %d of an array of %d" % (text, index, count))
                current = raw.skip(local, current.words[0])
                steps.append(Step(current.id, index, ""))
                bits += index * raw.size(local, current.id) * 8
                previous = None
            else:
                raise ObjectError("CO-RE access %s leads into a %s" % (text, current.kind))
        return Spec(steps, bits, relocation.type_id)

    def describe(self, relocation):
        """The access as C writes it: "byte_off of task_struct.mm->..."."""
        try:
            root = raw.record(self.local, relocation.type_id)
            text = "%s %s" % (root.kind, root.name) if root.kind != "typedef" else root.name
            if relocation.kind not in TYPE:
                spec = self.parse(relocation)
                for number, step in enumerate(spec.steps):
                    if relocation.kind in ENUM:
                        text += "::" + step.name
                    elif step.name:
                        text += "." + step.name
                    elif number or step.index:
                        text += "[%d]" % step.index
        except (ElfError, ObjectError):
            text = "BTF type %d, access %r" % (relocation.type_id, relocation.access)
        return "%s of %s" % (relocation.kind, text)

    # -- candidates ------------------------------------------------------------------------------------

    def candidates(self, type_id):
        """[(Btf, id)] of the kernel's types that have the local type's name and kind."""
        found = self._candidates.get(type_id)
        if found is None:
            local = raw.record(self.local, type_id)
            name = raw.essential(local.name)
            found = self._named(self.vmlinux, name, local.kind) if self.vmlinux is not None else []
            if not found and self.vmlinux is not None:
                for module in self.modules():
                    found += [pair for pair in self._named(module, name, local.kind)
                              if pair[1] >= module.first_id]
            self._candidates[type_id] = found
        return found

    def _named(self, btf, name, kind):
        kind = "enum" if kind == "enum64" else kind
        # kept with the kernel's BTF: the next object asks for the same names
        known = btf.__dict__.setdefault("_named", {})
        found = known.get((name, kind))
        if found is None:
            found = known[name, kind] = [(btf, type_id) for text in raw.flavours(btf, name)
                                         for type_id in btf.find_ids(text, kind)]
        return list(found)

    # -- matching --------------------------------------------------------------------------------------

    def match(self, kind, spec, btf, type_id):
        """(Spec in the kernel's type, "") or (None, why not)."""
        if kind in TYPE:
            if kind == "type_matches":
                same = _types_match(self.local, spec.type, btf, type_id, False, _LEVELS)
            else:
                same = _types_compatible(self.local, spec.type, btf, type_id, _LEVELS)
            return (Spec([], 0, type_id), "") if same else (None, "it is of another make")
        target = raw.skip(btf, type_id)
        if kind in ENUM:
            wanted = raw.essential(spec.steps[0].name)
            values = raw.enumerators(btf, target) if target.kind in ("enum", "enum64") else []
            for index, (name, _) in enumerate(values):
                if raw.essential(name) == wanted:
                    return Spec([Step(target.id, index, name)], 0, type_id), ""
            return None, "no enumerator %s" % wanted
        steps, bits = [], 0
        flexible = False
        for number, step in enumerate(spec.steps):
            target = raw.skip(btf, target.id)
            if step.name:
                local = raw.members(self.local, raw.record(self.local, step.type))[step.index]
                found, why = self._member(btf, target, step.name, local.type, _LEVELS)
                if found is None:
                    return None, why
                owner, index, member, offset = found
                bits += offset
                steps.append(Step(owner.id, index, step.name))
                flexible = index == owner.vlen - 1
                target = raw.record(btf, member.type)
            else:
                if number:
                    if target.kind != "array":
                        return None, "%s is no array there" % (spec.steps[number - 1].name or "it")
                    count = target.words[2]
                    if step.index >= count and not (count == 0 and flexible):
                        return None, "the array %s has %d elements there" % (spec.steps[number - 1].name, count)
                    target = raw.skip(btf, target.words[0])
                steps.append(Step(target.id, step.index, ""))
                bits += step.index * raw.size(btf, target.id) * 8
                flexible = False
        return Spec(steps, bits, type_id), ""

    def _member(self, btf, target, name, local_type, level):
        """((owner, index, member, bit offset), "") of the member called `name`, anonymous ones looked through."""
        if target.kind not in ("struct", "union"):
            return None, "%s is a %s there" % (target.name or "it", target.kind)
        if level <= 0:
            raise ElfError(btf.path, target.id, "structs are nested without end")
        why = "no member %s" % name
        for index, member in enumerate(raw.members(btf, target)):
            if member.name == name:
                if not _fields_compatible(self.local, local_type, btf, member.type):
                    return None, "%s has another type there (%s)" % (name, raw.skip(btf, member.type).kind)
                return (target, index, member, member.bit_offset), ""
            if not member.name:
                inner = raw.skip(btf, member.type)
                if inner.kind in ("struct", "union"):
                    found, deeper = self._member(btf, inner, name, local_type, level - 1)
                    if found is not None:
                        return found[:3] + (found[3] + member.bit_offset,), ""
                    if not deeper.startswith("no member"):
                        why = deeper
        return None, why


def _label(btf, type_id):
    found = raw.record(btf, type_id)
    return "%s %s [%d] of %s" % (found.kind, found.name, type_id, btf.path.rpartition("/")[2])


def _signed(int_record):
    return int_record.words[0] >> 24 & 1


def _value(btf, kind, spec):
    """The Value that a kind of relocation takes from a Spec."""
    if kind in ("field_exists", "type_exists", "type_matches", "enumval_exists"):
        return Value(1)
    if kind == "target_type_id":
        return Value(spec.type, False)
    if kind == "local_type_id":
        return Value(spec.type, False)
    if kind == "type_size":
        return Value(raw.size(btf, spec.type))
    if kind == "enumval_value":
        step = spec.steps[0]
        return Value(raw.enumerators(btf, raw.record(btf, step.type))[step.index][1])
    return _field_value(btf, kind, spec)


def _element_size(btf, type_id):
    """Size of a type, of an array's innermost elements."""
    found = raw.skip(btf, type_id)
    for _ in range(_NEST):
        if found.kind != "array":
            break
        found = raw.skip(btf, found.words[0])
    return raw.size(btf, found.id)


def _field_value(btf, kind, spec):
    step = spec.steps[-1]
    if not step.name:
        if kind == "byte_off":
            return Value(spec.bit_offset // 8, True, _element_size(btf, step.type), step.type)
        if kind == "byte_sz":
            return Value(raw.size(btf, step.type))
        raise ObjectError("CO-RE %s cannot be asked of an array's element" % kind)
    member = raw.members(btf, raw.record(btf, step.type))[step.index]
    target = raw.skip(btf, member.type)
    bit_offset, bits = spec.bit_offset, member.bit_size
    if bits:
        width = target.rest
        if not width or width > 16:
            raise ElfError(btf.path, None, "bit field %s of a type of %d bytes" % (step.name, width))
        start = bit_offset // 8 // width * width
        while bit_offset + bits - start * 8 > width * 8:
            if width >= 8:
                raise ObjectError("the bit field %s needs more than one 8-byte load" % step.name)
            width *= 2
            start = bit_offset // 8 // width * width
    else:
        width = raw.size(btf, target.id)
        start = bit_offset // 8
        # BTF of before the kind flag: the integer itself is of fewer bits
        bits = width * 8
    check = not member.bit_size
    if kind == "byte_off":
        if member.bit_size:
            return Value(start, False)
        return Value(start, True, _element_size(btf, target.id), target.id)
    if kind == "byte_sz":
        return Value(width, check)
    if kind == "signed":
        return Value(int(bool(target.kind in ("enum", "enum64") and target.flag or
                              target.kind == "int" and _signed(target))))
    if kind == "lshift_u64":
        if btf.order == "<":
            return Value(64 - (bit_offset + bits - start * 8), check)
        return Value((8 - width) * 8 + (bit_offset - start * 8), check)
    return Value(64 - bits)     # rshift_u64


# -- compatibility of types --------------------------------------------------------------------------------

_ENUMS = ("enum", "enum64")


def _kinds_compatible(a, b):
    return a.kind == b.kind or a.kind in _ENUMS and b.kind in _ENUMS


def _plain_int(record):
    return not record.words[0] >> 16 & 0xff


def _fields_compatible(local, local_id, btf, type_id):
    for _ in range(_LEVELS):
        a, b = raw.skip(local, local_id), raw.skip(btf, type_id)
        if a.kind in ("struct", "union") and b.kind in ("struct", "union"):
            return True
        if not _kinds_compatible(a, b):
            return False
        if a.kind in ("ptr", "float"):
            return True
        if a.kind in ("fwd",) + _ENUMS:
            names = raw.essential(a.name), raw.essential(b.name)
            return not all(names) or names[0] == names[1]
        if a.kind == "int":
            return _plain_int(a) and _plain_int(b)
        if a.kind != "array":
            return False
        local_id, type_id = a.words[0], b.words[0]
    return False


def _types_compatible(local, local_id, btf, type_id, level):
    if level <= 0:
        raise ElfError(btf.path, None, "types are nested without end")
    for _ in range(_LEVELS):
        a, b = raw.skip(local, local_id), raw.skip(btf, type_id)
        if not _kinds_compatible(a, b):
            return False
        if a.kind in ("void", "struct", "union", "fwd") + _ENUMS:
            return True
        if a.kind == "int":
            return _plain_int(a) and _plain_int(b)
        if a.kind == "ptr":
            local_id, type_id = a.rest, b.rest
        elif a.kind == "array":
            local_id, type_id = a.words[0], b.words[0]
        elif a.kind == "func_proto":
            if a.vlen != b.vlen or not all(
                    _types_compatible(local, x, btf, y, level - 1)
                    for x, y in zip(raw.parameters(a), raw.parameters(b))):
                return False
            local_id, type_id = a.rest, b.rest
        else:
            return False
    raise ElfError(btf.path, None, "types are nested without end")


def _names_match(a, b):
    return raw.essential(a) == raw.essential(b)


def _types_match(local, local_id, btf, type_id, behind_pointer, level):
    if level <= 0:
        raise ElfError(btf.path, None, "types are nested without end")
    for _ in range(_LEVELS):
        a, b = raw.skip(local, local_id), raw.skip(btf, type_id)
        if not _names_match(a.name, b.name):
            return False
        if a.kind in _ENUMS:
            names = {raw.essential(name) for name, _ in raw.enumerators(btf, b)} if b.kind in _ENUMS else None
            return (names is not None and a.rest == b.rest and
                    all(raw.essential(name) in names for name, _ in raw.enumerators(local, a)))
        if behind_pointer and a.kind in ("struct", "union", "fwd") and b.kind in ("struct", "union", "fwd"):
            return _aggregate(a) == _aggregate(b)
        if a.kind != b.kind:
            return False
        if a.kind == "ptr":
            behind_pointer, local_id, type_id = True, a.rest, b.rest
        elif a.kind == "array":
            if a.words[2] != b.words[2]:
                return False
            local_id, type_id = a.words[0], b.words[0]
        elif a.kind == "func_proto":
            if a.vlen != b.vlen or not all(
                    _types_match(local, x, btf, y, behind_pointer, level - 1)
                    for x, y in zip(raw.parameters(a), raw.parameters(b))):
                return False
            local_id, type_id = a.rest, b.rest
        else:
            return _leaf_match(local, a, btf, b, behind_pointer, level)
    raise ElfError(btf.path, None, "types are nested without end")


def _aggregate(record):
    return record.kind if record.kind != "fwd" else "union" if record.flag else "struct"


def _leaf_match(local, a, btf, b, behind_pointer, level):
    if a.kind == "void":
        return True
    if a.kind == "fwd":
        return a.flag == b.flag
    if a.kind == "int":
        return a.rest == b.rest and _signed(a) == _signed(b)
    if a.kind in ("struct", "union"):
        theirs = raw.members(btf, b)
        return a.vlen <= b.vlen and all(
            any(_names_match(member.name, other.name) and
                _types_match(local, member.type, btf, other.type, behind_pointer, level - 1)
                for other in theirs) for member in raw.members(local, a))
    return False


# -- instructions ------------------------------------------------------------------------------------------

_SIZE_BITS = {4: 0x00, 2: 0x08, 1: 0x10, 8: 0x18}


def patch(instruction, result, what):
    """The instruction with a Result put in; ObjectError when it is none that can take it."""
    code = instruction.code
    kind = code & 7
    if result.poison:
        return poisoned(instruction)
    if kind in (4, 7):      # ALU, ALU64
        if code & 8:
            raise ObjectError("CO-RE %s: at an operation without an immediate" % what)
        _check(result, instruction.imm, what)
        return instruction._replace(imm=_s32(result.value))
    if kind in (1, 2, 3):   # LDX, ST, STX
        _check(result, instruction.off, what)
        if not -32768 <= result.value <= 32767:
            raise ObjectError("CO-RE %s: the offset %d does not fit an instruction" % (what, result.value))
        if not result.resize:
            return poisoned(instruction)
        if result.size != result.original_size:
            if result.size not in _SIZE_BITS or _SIZE_BITS.get(result.original_size) != code & 0x18:
                raise ObjectError("CO-RE %s: an access of %d bytes cannot become one of %d" % (
                    what, result.original_size, result.size))
            code = code & ~0x18 | _SIZE_BITS[result.size]
        return instruction._replace(code=code, off=result.value)
    if code == 0x18 and instruction.ref is None and not instruction.src and not instruction.off:
        _check(result, instruction.imm, what, 64)
        return instruction._replace(imm=result.value & 0xffffffffffffffff)
    raise ObjectError("CO-RE %s: at an instruction that cannot be relocated (code 0x%02x)" % (what, code))


def _s32(value):
    value &= 0xffffffff
    return value - (value >> 31 << 32)


def _check(result, found, what, bits=32):
    if result.check and (found - result.original) & (1 << bits) - 1:
        raise ObjectError("CO-RE %s: the instruction has %d where its types say %d" % (
            what, found, result.original))


def poisoned(instruction):
    """What takes the place of an instruction that must not be reached: a call of no helper. For a lddw the
    caller puts in two, so that nothing moves."""
    return instruction._replace(code=0x85, dst=0, src=0, off=0, imm=POISON, ref=None)
