"""Where machine instructions begin: a probe inside of one would corrupt the program.

x86_64 lengths by the opcode maps of the Intel SDM, volume 2, appendix A, with VEX, EVEX and XOP;
aarch64 instructions all have four bytes.
"""

_PREFIXES = frozenset((0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf0, 0xf2, 0xf3))

# one-byte opcodes: what follows. m: ModRM; 1 2 4: immediate bytes; w: 4, or 2 with prefix 66
_ONE = {}
for _base in range(0, 0x40, 8):
    _ONE.update({_base + n: "m" for n in range(4)})
    _ONE.update({_base + 4: "1", _base + 5: "w"})
_ONE.update({n: "1" for n in (*range(0x70, 0x80), 0x6a, 0xa8, *range(0xb0, 0xb8), 0xcd,
                              *range(0xe0, 0xe8), 0xeb)})
_ONE.update({n: "m" for n in (0x63, *range(0x84, 0x90), *range(0xd0, 0xd4), *range(0xd8, 0xe0), 0xfe, 0xff)})
_ONE.update({n: "m1" for n in (0x6b, 0x80, 0x83, 0xc0, 0xc1, 0xc6)})
_ONE.update({n: "mw" for n in (0x69, 0x81, 0xc7)})
_ONE.update({0x68: "w", 0xa9: "w", 0xe8: "4", 0xe9: "4", 0xc2: "2", 0xca: "2", 0xc8: "21"})
_INVALID = frozenset((0x06, 0x07, 0x0e, 0x16, 0x17, 0x1e, 0x1f, 0x27, 0x2f, 0x37, 0x3f, 0x60, 0x61,
                      0x82, 0x9a, 0xce, 0xd4, 0xd5, 0xd6, 0xea))

# after 0f: without ModRM, and with an immediate byte
_TWO_BARE = frozenset((0x05, 0x06, 0x07, 0x08, 0x09, 0x0b, 0x0e, *range(0x30, 0x38), 0x77, 0xa0, 0xa1,
                       0xa2, 0xa8, 0xa9, 0xaa, *range(0xc8, 0xd0)))
_TWO_BYTE = frozenset((0x0f, 0x70, 0x71, 0x72, 0x73, 0xa4, 0xac, 0xba, 0xc2, 0xc4, 0xc5, 0xc6))


def x86_64(code, at):
    """Length of the instruction at `at` of `code`, 0 when it is none or cut off."""
    try:
        return _x86_64(code, at) - at
    except IndexError:
        return 0


def _x86_64(code, start):
    at, prefixes, rex = start, set(), 0
    while code[at] in _PREFIXES:
        prefixes.add(code[at])
        at += 1
    if code[at] & 0xf0 == 0x40:
        rex = code[at]
        at += 1
    opcode = code[at]
    at += 1
    wide = 2 if 0x66 in prefixes and not rex & 8 else 4
    if opcode == 0x0f:
        return _two(code, at, prefixes)
    if opcode in (0xc4, 0xc5, 0x62) or opcode == 0x8f and code[at] & 0x1f >= 8:
        return _extended(code, at, opcode)
    if opcode in _INVALID:
        return start
    if 0xa0 <= opcode <= 0xa3:
        return at + (4 if 0x67 in prefixes else 8)
    if 0xb8 <= opcode <= 0xbf:
        return at + (8 if rex & 8 else wide)
    if opcode in (0xf6, 0xf7):
        test = code[at] >> 3 & 7 < 2
        return _modrm(code, at) + ((1 if opcode == 0xf6 else wide) if test else 0)
    return _operands(code, at, _ONE.get(opcode, ""), wide)


def _two(code, at, prefixes):
    opcode = code[at]
    at += 1
    if opcode == 0x38:
        return _modrm(code, at + 1)
    if opcode == 0x3a:
        return _modrm(code, at + 1) + 1
    if 0x80 <= opcode <= 0x8f:
        return at + 4
    if opcode in _TWO_BARE:
        return at
    if opcode == 0x78 and prefixes & {0x66, 0xf2}:  # extrq, insertq
        return _modrm(code, at) + 2
    return _modrm(code, at) + (opcode in _TWO_BYTE)


def _extended(code, at, opcode):
    """VEX (c4, c5), XOP (8f), EVEX (62): the opcode map stands in the prefix."""
    if opcode == 0xc5:
        number, at = 1, at + 1
    elif opcode == 0x62:
        number, at = code[at] & 7, at + 3
    else:
        number, at = code[at] & 31, at + 2
    operation = code[at]
    at += 1
    if number == 1 and operation == 0x77 and opcode != 0x62:
        return at
    if number == 1:
        return _modrm(code, at) + (operation in _TWO_BYTE)
    return _modrm(code, at) + (1 if number in (3, 8) else 4 if number == 10 else 0)


def _operands(code, at, what, wide):
    for each in what:
        at = _modrm(code, at) if each == "m" else at + (wide if each == "w" else int(each))
    return at


def _modrm(code, at):
    """Past a ModRM byte, its SIB byte and displacement."""
    mode, memory = code[at] >> 6, code[at] & 7
    at += 1
    if mode == 3:
        return at
    if memory == 4:
        if mode == 0 and code[at] & 7 == 5:
            return at + 5
        at += 1
    elif mode == 0 and memory == 5:
        return at + 4
    return at + (0, 1, 4)[mode]


def is_boundary(machine, code, offset):
    """Does an instruction begin at `offset` of a function's `code`? None when that cannot be told:
    an unknown machine, or bytes that are no instruction before it."""
    if machine == "aarch64":
        return offset % 4 == 0
    if machine != "x86_64":
        return None
    at = 0
    while at < offset:
        length = x86_64(code, at)
        if not length:
            return None
        at += length
    return at == offset
