"""Unwinding tables: how to find a caller's registers at any instruction, from `.eh_frame`.

Implements the call frame information of DWARF 5, chapter 6.4, as the Linux Standard Base's "Exception
Frames" puts it into programs (`.eh_frame`, with `.eh_frame_hdr`'s sorted index). Registers are DWARF's
numbers: x86_64 psABI figure 3.36 (6 rbp, 7 rsp, 16 return address), aarch64's "DWARF for the Arm 64-bit
Architecture" (29 fp, 30 lr, 31 sp).
"""

import struct
from typing import NamedTuple

from .dwarf_info import checked, sleb, uleb
from .image import ElfError

STACK_POINTER = {"x86_64": 7, "aarch64": 31}
FRAME_POINTER = {"x86_64": 6, "aarch64": 29}


class Rule(NamedTuple):
    """Where a register's value in the caller is. By `kind`: "offset": in memory at CFA+`offset`;
    "val_offset": CFA+`offset` itself; "register": in `register`; "expression": in memory at what the
    expression gives, which starts with the CFA on its stack; "val_expression": that itself; "undefined":
    nowhere; "same": unchanged. For the CFA: "register": `register`+`offset`, or "expression"."""

    kind: str
    offset: int = 0
    register: int = 0
    expression: bytes = b""


class Row(NamedTuple):
    """What holds for the addresses `low` <= pc < `high`. `signal`: the frame of a signal handler's
    return, whose caller is at its own pc and not behind a call."""

    low: int
    high: int
    cfa: Rule
    registers: dict
    return_register: int
    signal: bool


class _Cie(NamedTuple):
    code_align: int
    data_align: int
    return_register: int
    encoding: int
    augmented: bool
    signal: bool
    instructions: tuple     # (start, end)


class Unwind:
    """The unwinding tables of one image."""

    def __init__(self, image):
        self.image = image
        self.path = image.path
        self.order = "little" if image.order == "<" else "big"
        section = image.section(".eh_frame")
        self.base = section.addr if section is not None else 0
        self.data = bytes(image.data(section)) if section is not None else b""
        self._cies = {}
        self._index = None

    # -- entries ---------------------------------------------------------------------------------

    @checked
    def fdes(self):
        """[(first address, end, place in the section)] of all functions that have a table, sorted."""
        if self._index is None:
            found, at = [], 0
            while at + 4 <= len(self.data):
                size, body, end = self._entry(at)
                if not size:
                    break
                if self._number(body, 4):
                    cie, low, high, _ = self._fde(at)
                    if low < high:
                        found.append((low, high, at))
                at = end
            found.sort()
            self._index = found
        return self._index

    def _entry(self, at):
        """(size, place of the id field, end) of the entry at a place."""
        size, body = self._number(at, 4), at + 4
        if size == 0xffffffff:
            size, body = self._number(at + 4, 8), at + 12
        if body + size > len(self.data) or 0 < size < 4:
            raise ElfError(self.path, None, "the entry at 0x%x lies outside .eh_frame" % at)
        return size, body, body + size

    def _number(self, at, size, signed=False):
        if at < 0 or at + size > len(self.data):
            raise ElfError(self.path, None, "a value lies outside .eh_frame")
        return int.from_bytes(self.data[at:at + size], self.order, signed=signed)

    def _pointer(self, at, encoding):
        """(value, next place) of an encoded pointer."""
        form = encoding & 15
        if form == 1:
            value, end = uleb(self.data, at)
        elif form == 9:
            value, end = sleb(self.data, at)
        else:
            sizes = {0: self.image.bits // 8, 2: 2, 3: 4, 4: 8, 10: 2, 11: 4, 12: 8}
            if form not in sizes:
                raise ElfError(self.path, None, "pointer encoding 0x%x in .eh_frame is not known" % encoding)
            value, end = self._number(at, sizes[form], form >= 8), at + sizes[form]
        application = encoding & 0x70
        if application == 0x10:
            value += self.base + at
        elif application:
            raise ElfError(self.path, None, "pointer encoding 0x%x in .eh_frame is not known" % encoding)
        return value & (1 << self.image.bits) - 1, end

    def _cie(self, at):
        if at not in self._cies:
            size, body, end = self._entry(at)
            if self._number(body, 4):
                raise ElfError(self.path, None, "the entry at 0x%x in .eh_frame is no CIE" % at)
            version, body = self.data[body + 4], body + 5
            if version not in (1, 3, 4):
                raise ElfError(self.path, None, "version %d of .eh_frame is not known" % version)
            stop = self.data.index(b"\0", body)
            augmentation, body = self.data[body:stop].decode("latin-1"), stop + 1
            if version == 4:
                body += 2
            code_align, body = uleb(self.data, body)
            data_align, body = sleb(self.data, body)
            if version == 1:
                register, body = self.data[body], body + 1
            else:
                register, body = uleb(self.data, body)
            encoding, augmented = 0, augmentation.startswith("z")
            if augmented:
                size, body = uleb(self.data, body)
                inside, body = body, body + size
                for letter in augmentation[1:]:
                    if letter == "R":
                        encoding, inside = self.data[inside], inside + 1
                    elif letter == "L":
                        inside += 1
                    elif letter == "P":
                        # the place of the personality routine is of no interest, its size is
                        _, inside = self._pointer(inside + 1, self.data[inside] & 15)
            elif augmentation:
                raise ElfError(self.path, None, "augmentation %r of .eh_frame is not known" % augmentation)
            self._cies[at] = _Cie(code_align, data_align, register, encoding, augmented, "S" in augmentation, (body, end))
        return self._cies[at]

    def _fde(self, at):
        """(CIE, first address, end, (start, end) of the instructions)."""
        _, body, end = self._entry(at)
        cie = self._cie(body - self._number(body, 4))
        low, body = self._pointer(body + 4, cie.encoding)
        size, body = self._pointer(body, cie.encoding & 15)
        if cie.augmented:
            skip, body = uleb(self.data, body)
            body += skip
        return cie, low, low + size, (body, end)

    def _find(self, pc):
        """The place of the entry for an address, from `.eh_frame_hdr` where it can be used."""
        header = self.image.section(".eh_frame_hdr")
        data = self.image.data(header) if header is not None else b""
        # version 1, pcrel sdata4 pointer, udata4 count, table of datarel sdata4: what all linkers write
        if bytes(data[:4]) == b"\x01\x1b\x03\x3b" and len(data) >= 12:
            count = struct.unpack_from(self.image.order + "I", data, 8)[0]
            form = struct.Struct(self.image.order + "ii")
            if 12 + count * 8 <= len(data):
                low, high = 0, count
                while low < high:
                    middle = (low + high) // 2
                    if pc < header.addr + form.unpack_from(data, 12 + 8 * middle)[0]:
                        high = middle
                    else:
                        low = middle + 1
                if low:
                    place = header.addr + form.unpack_from(data, 4 + 8 * low)[1] - self.base
                    if 0 <= place < len(self.data):
                        return place
                return None
        entries = self.fdes()
        low, high = 0, len(entries)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if pc < entries[middle][0] else (middle + 1, high)
        return entries[low - 1][2] if low else None

    # -- rows ------------------------------------------------------------------------------------------

    @checked
    def row(self, pc):
        """The Row for a virtual address, None when no table covers it."""
        place = self._find(pc)
        if place is None:
            return None
        for row in self._rows(place):
            if row.low <= pc < row.high:
                return row
        return None

    @checked
    def rows(self, place):
        """All Rows of the function whose entry is at a place (see `fdes`)."""
        return list(self._rows(place))

    def _rows(self, place):
        cie, low, high, (start, end) = self._fde(place)
        state = _State(self, cie, low)
        for _ in state.run(*cie.instructions):
            pass
        state.initial = dict(state.registers)
        for before, after in state.run(start, end):
            if before < after:
                yield Row(before, min(after, high), state.cfa, dict(state.registers), cie.return_register, cie.signal)
            if after >= high:
                return
        if state.pc < high:
            yield Row(state.pc, high, state.cfa, dict(state.registers), cie.return_register, cie.signal)


class _State:
    """Runs call frame instructions. `run` yields (pc, new pc) before each advance."""

    def __init__(self, unwind, cie, pc):
        self.unwind = unwind
        self.cie = cie
        self.pc = pc
        self.cfa = Rule("undefined")
        self.registers = {}
        self.initial = {}
        self.stack = []

    def run(self, at, end):
        data, cie = self.unwind.data, self.cie
        while at < end:
            code = data[at]
            at += 1
            low = code & 63
            if code >= 0xc0:
                self._restore(low)
            elif code >= 0x80:
                value, at = uleb(data, at)
                self.registers[low] = Rule("offset", value * cie.data_align)
            elif code >= 0x40:
                following = self.pc + low * cie.code_align
                yield self.pc, following
                self.pc = following
            elif code in (1, 2, 3, 4):
                if code == 1:
                    following, at = self.unwind._pointer(at, cie.encoding)
                else:
                    size = 1 << code - 2
                    following = self.pc + self.unwind._number(at, size) * cie.code_align
                    at += size
                yield self.pc, following
                self.pc = following
            else:
                at = self._other(code, data, at)
        if at > end:
            raise ElfError(self.unwind.path, None, "call frame instructions are cut short")

    def _restore(self, register):
        if register in self.initial:
            self.registers[register] = self.initial[register]
        else:
            self.registers.pop(register, None)

    def _other(self, code, data, at):
        align, registers = self.cie.data_align, self.registers
        if code == 0x00:                            # nop
            return at
        if code == 0x0a:                            # remember_state
            if len(self.stack) > 1000:
                raise ElfError(self.unwind.path, None, "call frame instructions remember too much")
            self.stack.append((self.cfa, dict(registers)))
            return at
        if code == 0x0b:                            # restore_state
            self.cfa, self.registers = self.stack.pop()
            return at
        if code == 0x2d:                            # AARCH64_negate_ra_state: signed return addresses
            return at
        if code == 0x0f:                            # def_cfa_expression
            size, at = uleb(data, at)
            self.cfa = Rule("expression", expression=data[at:at + size])
            return at + size
        first, at = uleb(data, at)
        if code in (0x05, 0x2f):                    # offset_extended, GNU_negative_offset_extended
            value, at = uleb(data, at)
            registers[first] = Rule("offset", value * align * (-1 if code == 0x2f else 1))
        elif code == 0x06:                          # restore_extended
            self._restore(first)
        elif code == 0x07:
            registers[first] = Rule("undefined")
        elif code == 0x08:
            registers[first] = Rule("same")
        elif code == 0x09:
            value, at = uleb(data, at)
            registers[first] = Rule("register", register=value)
        elif code == 0x0c:                          # def_cfa
            value, at = uleb(data, at)
            self.cfa = Rule("register", value, first)
        elif code == 0x0d:                          # def_cfa_register
            self.cfa = Rule("register", self.cfa.offset, first)
        elif code == 0x0e:                          # def_cfa_offset
            self.cfa = Rule("register", first, self.cfa.register)
        elif code in (0x10, 0x16):                  # expression, val_expression
            size, at = uleb(data, at)
            registers[first] = Rule("expression" if code == 0x10 else "val_expression", expression=data[at:at + size])
            at += size
        elif code == 0x11:                          # offset_extended_sf
            value, at = sleb(data, at)
            registers[first] = Rule("offset", value * align)
        elif code == 0x12:                          # def_cfa_sf
            value, at = sleb(data, at)
            self.cfa = Rule("register", value * align, first)
        elif code == 0x13:                          # def_cfa_offset_sf: the operand is a signed one
            signed = first if first < 1 << 62 else first - (1 << 63)
            self.cfa = Rule("register", signed * align, self.cfa.register)
        elif code in (0x14, 0x15):                  # val_offset, val_offset_sf
            value, at = (uleb if code == 0x14 else sleb)(data, at)
            registers[first] = Rule("val_offset", value * align)
        elif code != 0x2e:                          # GNU_args_size says nothing that we need
            raise ElfError(self.unwind.path, None, "call frame instruction 0x%x is not known" % code)
        return at


def step(row, registers, read, machine="x86_64"):
    """One frame up: the caller's registers ({DWARF number: value}, the return address under
    `row.return_register`), None at the outermost frame. `read(address)` gives the word there or
    raises OSError."""
    if row.cfa.kind == "register":
        cfa = registers[row.cfa.register] + row.cfa.offset
    elif row.cfa.kind == "expression":
        cfa = evaluate(row.cfa.expression, registers, read, [])
    else:
        return None
    cfa &= (1 << 64) - 1
    caller = dict(registers)
    for number, rule in row.registers.items():
        if rule.kind == "offset":
            caller[number] = read(cfa + rule.offset)
        elif rule.kind == "val_offset":
            caller[number] = cfa + rule.offset
        elif rule.kind == "register":
            caller[number] = registers[rule.register]
        elif rule.kind == "expression":
            caller[number] = read(evaluate(rule.expression, registers, read, [cfa]))
        elif rule.kind == "val_expression":
            caller[number] = evaluate(rule.expression, registers, read, [cfa])
        elif rule.kind == "undefined":
            caller.pop(number, None)
    caller[STACK_POINTER[machine]] = cfa if STACK_POINTER[machine] not in row.registers else caller[STACK_POINTER[machine]]
    return caller if caller.get(row.return_register) else None


_MASK = (1 << 64) - 1


def _signed(value):
    return value - (1 << 64) if value >> 63 else value


_BINARY = {
    0x1a: lambda a, b: a & b, 0x1c: lambda a, b: a - b, 0x1e: lambda a, b: a * b, 0x21: lambda a, b: a | b,
    0x22: lambda a, b: a + b, 0x24: lambda a, b: a << b if b < 64 else 0, 0x25: lambda a, b: a >> b if b < 64 else 0,
    0x26: lambda a, b: _signed(a) >> min(b, 63), 0x27: lambda a, b: a ^ b,
    0x29: lambda a, b: a == b, 0x2a: lambda a, b: _signed(a) >= _signed(b), 0x2b: lambda a, b: _signed(a) > _signed(b),
    0x2c: lambda a, b: _signed(a) <= _signed(b), 0x2d: lambda a, b: _signed(a) < _signed(b), 0x2e: lambda a, b: a != b,
}


def evaluate(expression, registers, read, stack):
    """The value of a DWARF expression (chapter 2.5) over registers and memory; ValueError for an
    operation that unwinding tables have no use for."""
    at = 0
    while at < len(expression):
        code = expression[at]
        at += 1
        if 0x30 <= code <= 0x4f:                    # lit0..31
            stack.append(code - 0x30)
        elif 0x70 <= code <= 0x8f:                  # breg0..31
            value, at = sleb(expression, at)
            stack.append(registers[code - 0x70] + value & _MASK)
        elif code == 0x92:                          # bregx
            register, at = uleb(expression, at)
            value, at = sleb(expression, at)
            stack.append(registers[register] + value & _MASK)
        elif 0x08 <= code <= 0x0f:                  # const1u .. const8s
            size = 1 << (code - 8) // 2
            stack.append(int.from_bytes(expression[at:at + size], "little", signed=bool(code & 1)) & _MASK)
            at += size
        elif code in (0x10, 0x11):                  # constu, consts
            value, at = (uleb if code == 0x10 else sleb)(expression, at)
            stack.append(value & _MASK)
        elif code == 0x23:                          # plus_uconst
            value, at = uleb(expression, at)
            stack.append(stack.pop() + value & _MASK)
        elif code == 0x06:                          # deref
            stack.append(read(stack.pop()))
        elif code == 0x12:                          # dup
            stack.append(stack[-1])
        elif code == 0x13:                          # drop
            stack.pop()
        elif code == 0x14:                          # over
            stack.append(stack[-2])
        elif code == 0x16:                          # swap
            stack[-1], stack[-2] = stack[-2], stack[-1]
        elif code == 0x1f:                          # neg
            stack.append(-stack.pop() & _MASK)
        elif code in _BINARY:
            second = stack.pop()
            stack.append(int(_BINARY[code](stack.pop(), second)) & _MASK)
        else:
            raise ValueError("DWARF operation 0x%x is not known" % code)
    return stack[-1]
