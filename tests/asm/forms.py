"""Every form of an eBPF instruction, written down from the instruction set document and uapi/linux/bpf.h.

`FORMS`: name -> (code, dst, src, off, imm[, imm of the second slot]); a field is a number, or a letter for what
may stand there: "r" a register 0 to 10, "o" 16 bits, "i" 32 bits, "n" an index from 0 up. Nothing here comes from
rawbpf.asm.
"""

import struct

_ALU = {"add": 0x00, "sub": 0x10, "mul": 0x20, "div": 0x30, "or": 0x40, "and": 0x50, "lsh": 0x60, "rsh": 0x70,
        "mod": 0x90, "xor": 0xa0, "mov": 0xb0, "arsh": 0xc0}
_JMP = {"jeq": 0x10, "jgt": 0x20, "jge": 0x30, "jset": 0x40, "jne": 0x50, "jsgt": 0x60, "jsge": 0x70, "jlt": 0xa0,
        "jle": 0xb0, "jslt": 0xc0, "jsle": 0xd0}
_SIZES = {"w": 0x00, "h": 0x08, "b": 0x10, "dw": 0x18}
_ATOMIC = {"add": 0x00, "or": 0x40, "and": 0x50, "xor": 0xa0, "fetch_add": 0x01, "fetch_or": 0x41, "fetch_and": 0x51,
           "fetch_xor": 0xa1, "xchg": 0xe1, "cmpxchg": 0xf1}


def _forms():
    forms = {}
    for bits, cls in (("64", 7), ("32", 4)):
        for name, op in _ALU.items():
            forms[name + bits + " k"] = (cls | op, "r", 0, 0, "i")
            forms[name + bits + " x"] = (cls | op | 8, "r", "r", 0, 0)
        for name in ("div", "mod"):
            forms["s" + name + bits + " k"] = (cls | _ALU[name], "r", 0, 1, "i")
            forms["s" + name + bits + " x"] = (cls | _ALU[name] | 8, "r", "r", 1, 0)
        forms["neg" + bits] = (cls | 0x80, "r", 0, 0, 0)
        for low in (8, 16, 32) if cls == 7 else (8, 16):
            forms["movsx%s %d" % (bits, low)] = (cls | 0xb8, "r", "r", low, 0)
    for width in (16, 32, 64):
        forms["le%d" % width] = (0xd4, "r", 0, 0, width)
        forms["be%d" % width] = (0xdc, "r", 0, 0, width)
        forms["bswap%d" % width] = (0xd7, "r", 0, 0, width)
    forms["addr_space_cast"] = (0xbf, "r", "r", 1, "i")
    forms["percpu"] = (0xbf, "r", "r", -1, 0)
    for bits, cls in (("64", 5), ("32", 6)):
        for name, op in _JMP.items():
            forms[name + bits + " k"] = (cls | op, "r", 0, "o", "i")
            forms[name + bits + " x"] = (cls | op | 8, "r", "r", "o", 0)
    forms.update({"ja": (0x05, 0, 0, "o", 0), "gotol": (0x06, 0, 0, 0, "i"), "may_goto": (0xe5, 0, 0, "o", 0),
                  "exit": (0x95, 0, 0, 0, 0), "callx": (0x8d, "r", 0, 0, 0), "gotox": (0x0d, "r", 0, 0, 0), "call helper": (0x85, 0, 0, 0, "n"),
                  "call local": (0x85, 0, 1, 0, "i"), "call kfunc": (0x85, 0, 2, "o", "i")})
    for src, name in enumerate(("", " map fd", " map value", " btf id", " func", " map idx", " map idx value")):
        forms["lddw" + name] = (0x18, "r", src, 0, "i", "i" if src in (0, 2, 6) else 0)
    for size, code in _SIZES.items():
        if size != "dw":
            forms["abs " + size] = (0x20 | code, 0, 0, 0, "i")
            forms["ind " + size] = (0x40 | code, 0, "r", 0, "i")
            forms["ldxs " + size] = (0x81 | code, "r", "r", "o", 0)
        forms["ldx " + size] = (0x61 | code, "r", "r", "o", 0)
        forms["st " + size] = (0x62 | code, "r", 0, "o", "i")
        forms["stx " + size] = (0x63 | code, "r", "r", "o", 0)
        forms["load_acquire " + size] = (0xc3 | code, "r", "r", "o", 0x100)
        forms["store_release " + size] = (0xc3 | code, "r", "r", "o", 0x110)
        if size in ("w", "dw"):
            for name, imm in _ATOMIC.items():
                forms["atomic %s %s" % (name, size)] = (0xc3 | code, "r", "r", "o", imm)
    return forms


FORMS = _forms()
LLVMS = [form for form in FORMS if form not in ("percpu", "gotox")]      # the kernel's own; LLVM 22
_NAMES = list(FORMS)
_OFFSETS = (0, 0, 1, -1, 2, 8, 16, 32, -8, 0x7fff, -0x8000)
_NUMBERS = (0, 0, 1, -1, 2, 16, 32, 64, 0xe1, 0xf1, 0x100, 0x110, 0x7fffffff, -0x80000000)


def _field(rng, letter):
    if letter == "r":
        return rng.randrange(11)
    if letter == "o":
        return rng.choice(_OFFSETS) if rng.random() < 0.5 else rng.randrange(-0x8000, 0x8000)
    if letter == "i":
        return rng.choice(_NUMBERS) if rng.random() < 0.4 else rng.randrange(-1 << 31, 1 << 31)
    return rng.randrange(0, 230) if letter == "n" else letter


def slot(code, dst, src, off, imm):
    return struct.pack("<BBhi", code, src << 4 | dst, off, imm)


def encoded(rng, form, mistake=False):
    """The bytes of a form with random operands; with a mistake, one of its fields holds anything."""
    fields = [_field(rng, field) for field in FORMS[form]]
    if mistake:
        at = rng.randrange(len(fields))
        fields[at] = (rng.randrange(256), rng.randrange(16), rng.randrange(16), rng.randrange(-0x8000, 0x8000),
                      rng.choice(_NUMBERS), rng.randrange(-1 << 31, 1 << 31))[at]
    data = slot(*fields[:5])
    return data if len(fields) == 5 else data + slot(0, 0, 0, 0, fields[5])


def junk(rng):
    return bytes(rng.randrange(256) for _ in range(8))


def random_program(rng, length, used=None):
    """Bytes of `length` instructions: two thirds of the forms as they are, the rest with reserved fields set, codes
    that are none, bytes at random. `used`: a set that the names of what was made are added to."""
    out = []
    for _ in range(length):
        chance = rng.random()
        if chance > 0.93:
            out.append(junk(rng))
            continue
        form = rng.choice(_NAMES)
        if used is not None:
            used.add((form, chance > 0.66))
        out.append(encoded(rng, form, chance > 0.66))
    return b"".join(out) + bytes(8)     # behind a cut-off lddw there is something
