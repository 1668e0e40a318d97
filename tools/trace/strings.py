"""Code for values in memory: copying, comparing and clearing strings and other pieces of bytes.

A string is its bytes up to the first NUL, or the whole buffer when there is none (then it was cut). Two
strings are equal when they are as long and have the same bytes. In a map's key what follows the NUL
must be zero, since the kernel compares keys as bytes: `clean` asks for that.
"""
from . import ast, builtins
from .place import Place, words
from .types import String

UNROLLED = 64          # bytes copied or compared without a loop
_NOWHERE = -1          # an address that no process has: reading it fails and clears the buffer


def address(b, place):
    """The address of a place as an operand."""
    f = b.f
    if not hasattr(place.base, "size"):
        return f.alu("+", place.base, place.off) if place.off else place.base
    return f.address(place.base, place.off)


def zero(b, place, start, end):
    """Clear bytes start to end of a place."""
    f = b.f
    size = end - start
    if size <= 0:
        return
    if size > UNROLLED * 2 and b.script.machine.has_helper("bpf_probe_read_user", b.point.program_type):
        # one call that fails at once and clears its buffer, instead of a store a word
        whole = place.at(start, place.type)
        f.call("bpf_probe_read_user", address(b, whole), size, _NOWHERE)
        return
    offset = start
    while offset < end:
        width = 8
        while (place.off + offset) % width or offset + width > end:
            width >>= 1
        f.store(place.base, place.off + offset, 0, width)
        offset += width


def store_literal(b, data, dest, clean):
    """Write constant bytes and a NUL (when there is room) to a place of a String type."""
    f = b.f
    size = dest.type.size
    data = data[:size]
    if len(data) < size:
        data += b"\0"
    length = size if clean and size <= UNROLLED * 2 else min(size, -(-len(data) // 8) * 8)
    data = data.ljust(length, b"\0")
    offset = 0
    while offset < length:
        width = 8
        while (dest.off + offset) % width or offset + width > length:
            width >>= 1
        f.store(dest.base, dest.off + offset, int.from_bytes(data[offset:offset + width], "little"), width)
        offset += width
    if clean:
        zero(b, dest, length, size)


def copy_bytes(b, source, dest, size):
    """Copy `size` bytes between places; the source may be user or kernel memory."""
    f = b.f
    if source.direct_load is not None and size <= 4 * UNROLLED:
        for offset, width in words(size, dest.off & -dest.off & 7 or 8):
            f.store(dest.base, dest.off + offset, source.direct_load(offset, width), width)
        return
    if source.space is not None:
        b.probe_read(address(b, dest), size, address(b, source), source.space)
        return
    align = 8
    while source.off % align or dest.off % align:
        align >>= 1
    if size <= UNROLLED * 4:
        for offset, width in words(size, align):
            f.store(dest.base, dest.off + offset, f.load(source.base, source.off + offset, width), width)
        return
    if b.script.machine.kernel_reads:
        f.call(b.read_helper("kernel"), address(b, dest), size, address(b, source))
        return
    _copy_loop(b, source, dest, size, align)


def _copy_loop(b, source, dest, size, width):
    f = b.f
    step = width * 4
    turns = size // step
    offset = f.variable()
    f.set(offset, 0)
    frm, to = address(b, source), address(b, dest)
    loop, done = f.block("copy"), f.block("copied")
    f.jump(loop)
    f.position(loop)
    s, d = f.alu("+", frm, offset), f.alu("+", to, offset)
    for k in range(0, step, width):
        f.store(d, k, f.load(s, k, width), width)
    f.set(offset, f.alu("+", offset, step))
    f.branch("<", offset, turns * step, loop, done)
    f.position(done)
    for at in range(turns * step, size, width):
        f.store(dest.base, dest.off + at, f.load(source.base, source.off + at, width), width)
    for at, small in words(size % width):
        at += size - size % width
        f.store(dest.base, dest.off + at, f.load(source.base, source.off + at, small), small)


def copy_string(b, source, dest, clean):
    """Copy between two String places: cut or filled to the destination's size."""
    size, room = source.type.size, dest.type.size
    if source.space is not None and source.direct_load is None:
        if clean:
            zero(b, dest, 0, room)
        read_string(b, address(b, source), dest, min(size, room), source.space, whole=True)
        if room > size:
            b.f.store(dest.base, dest.off + size, 0, 1)
        return
    copy_bytes(b, source, dest, min(size, room))
    if room > size:
        if clean:
            zero(b, dest, size, room)
        else:
            b.f.store(dest.base, dest.off + size, 0, 1)


def read_string(b, where, dest, size, space, whole):
    """Read a NUL-ended string of at most `size` bytes at address `where`. `whole`: when it has no NUL within
    them, keep the last byte too (the string then counts as cut); else it ends with a NUL."""
    f = b.f
    where = f.copy(where) if not isinstance(where, int) else where
    helper = b.read_helper(space, string=True)
    got = f.call(helper, address(b, dest), size, where)
    b.told(helper, got)
    if not whole or size < 2:
        return
    more, done = f.block("cut"), f.block()
    f.branch("==", got, size, more, done)
    f.position(more)
    f.call(b.read_helper(space), address(b, dest.at(size - 1, dest.type)), 1, f.alu("+", where, size - 1))
    f.jump(done)
    f.position(done)


# --- comparing ------------------------------------------------------------------------------------------

def equal(b, left, right, then, otherwise):
    """Branch on whether two string expressions are equal."""
    for one, other in ((left, right), (right, left)):
        constant = b.constant(other)
        if isinstance(constant, str):
            data = constant.encode("utf-8", "surrogateescape").split(b"\0")[0]
            _equal_literal(b, one, data, then, otherwise)
            return
    _equal_places(b, b.place(left), b.place(right), then, otherwise)


def _equal_literal(b, node, data, then, otherwise):
    f = b.f
    size = node.type.size
    if len(data) + 1 > size:
        b.discard(node)
        f.jump(otherwise)
        return
    entry = builtins.lookup(node.name) if isinstance(node, (ast.Call, ast.Identifier)) else None
    if entry is not None and getattr(entry, "prefix", False) and len(data) + 2 < size:
        # a longer string differs in the byte after the literal: no more need be read
        kind = String(-(-(len(data) + 2) // 8) * 8)
        place = b.temporary(kind)
        entry.store(b, node, place)
    else:
        place = b.place(node)
    place = b.direct(place)
    data += b"\0"
    offset = 0
    while offset < len(data):
        width = 8
        while (place.off + offset) % width or offset + width > len(data):
            width >>= 1
        following = f.block()
        value = f.load(place.base, place.off + offset, width)
        wanted = int.from_bytes(data[offset:offset + width], "little")
        offset += width
        f.branch("==", value, wanted, then if offset == len(data) else following, otherwise)
        f.position(following)
    if not f.terminated:
        f.jump(otherwise)       # not reached: the last branch went to `then`


ONES, HIGHS = 0x0101010101010101, 0x8080808080808080


def first_nul(f, word):
    """An operand that is 0 when none of a word's bytes is, else has its lowest set bit in the first one that is (as little
    endian machines load it)."""
    return f.alu("&", f.alu("&", f.alu("-", word, f.const(ONES)), f.alu("^", word, -1)), f.const(HIGHS))


def _word_loop(b, places, size, each):
    """Code of each(index, the places' words at index) for every whole word of `size` bytes; the number of bytes that it
    covers. Small or unaligned pieces are left to the caller: 0."""
    f = b.f
    if size < 16 or any(place.off % 8 for place in places):
        return 0
    whole = size & -8
    bases = [address(b, place) for place in places]
    index = f.variable()
    f.set(index, 0)
    loop, done = f.block("words"), f.block()
    f.jump(loop)
    f.position(loop)
    each(index, [f.copy(f.load(f.alu("+", base, index), 0, 8)) for base in bases])
    f.set(index, f.alu("+", index, 8))
    f.branch("<", index, whole, loop, done)
    f.position(done)
    return whole


def _equal_places(b, left, right, then, otherwise):
    """Word by word, then byte by byte, up to the NUL of both."""
    f = b.f
    left, right = b.direct(left), b.direct(right)
    size = min(left.type.size, right.type.size)

    def compare(index, words):
        one, two = words
        differ, same, following, ends = f.block("differ"), f.block(), f.block(), f.block()
        f.branch("==", one, two, same, differ)
        f.position(differ)          # equal if the first NUL comes before the first difference
        nul = f.copy(first_nul(f, one))
        f.branch("==", nul, 0, otherwise, ends)
        f.position(ends)
        change = f.alu("^", one, two)
        f.branch(">", f.alu("&", change, f.neg(change)), f.alu("&", nul, f.neg(nul)), then, otherwise)
        f.position(same)
        f.branch("!=", first_nul(f, one), 0, then, following)
        f.position(following)
    done = _word_loop(b, (left, right), size, compare)
    for at in range(done, size) if size - done < 8 else ():
        byte = f.copy(f.load(left.base, left.off + at, 1))
        same, following = f.block(), f.block()
        f.branch("==", byte, f.load(right.base, right.off + at, 1), same, otherwise)
        f.position(same)
        f.branch("==", byte, 0, then, following)
        f.position(following)
    if size - done >= 8:
        _equal_bytewise(b, left, right, size, then, otherwise)
    if left.type.size == right.type.size:
        f.jump(then)
        return
    longer = left if left.type.size > right.type.size else right
    f.branch("==", f.load(longer.base, longer.off + size, 1), 0, then, otherwise)


def _equal_bytewise(b, left, right, size, then, otherwise):
    f = b.f
    a, c = address(b, left), address(b, right)
    index = f.variable()
    f.set(index, 0)
    loop, same, following, end = f.block("compare"), f.block(), f.block(), f.block()
    f.jump(loop)
    f.position(loop)
    byte = f.load(f.alu("+", a, index), 0, 1)
    f.branch("==", byte, f.load(f.alu("+", c, index), 0, 1), same, otherwise)
    f.position(same)
    f.branch("==", byte, 0, then, following)
    f.position(following)
    f.set(index, f.alu("+", index, 1))
    f.branch("<", index, size, loop, end)
    f.position(end)


def length(b, place):
    """The bytes before the NUL of a string at a place, an operand."""
    f, size = b.f, place.type.size
    result, found = f.variable(), f.block("length")
    f.set(result, 0)

    def look(index, words):
        here, following = f.block(), f.block()
        f.branch("!=", first_nul(f, words[0]), 0, here, following)
        f.position(here)
        base = f.alu("+", address(b, place), index)
        for at in range(8):
            more = f.block()
            f.set(result, f.alu("+", index, at) if at else index)
            if at == 7:
                f.jump(found)
                break
            f.branch("==", f.load(base, at, 1), 0, found, more)
            f.position(more)
        f.position(following)
    done = _word_loop(b, (place,), size, look)
    base = address(b, place)
    if size - done < 8:
        for at in range(done, size):
            more = f.block()
            f.set(result, at)
            f.branch("==", f.load(base, at, 1), 0, found, more)
            f.position(more)
        f.set(result, size)
    else:
        loop, more = f.block("strlen"), f.block()
        f.set(result, 0)
        f.jump(loop)
        f.position(loop)
        f.branch("==", f.load(f.alu("+", base, result), 0, 1), 0, found, more)
        f.position(more)
        f.set(result, f.alu("+", result, 1))
        end = f.block()
        f.branch("<", result, size, loop, end)
        f.position(end)
    f.jump(found)
    f.position(found)
    return result


def equal_bytes(b, left, right, size, then, otherwise):
    """Branch on whether two places have the same `size` bytes."""
    f = b.f
    left, right = b.direct(left), b.direct(right)
    align = 8
    while left.off % align or right.off % align:
        align >>= 1
    for offset, width in words(size, align):
        following = f.block()
        f.branch("==", f.load(left.base, left.off + offset, width), f.load(right.base, right.off + offset, width),
                 following, otherwise)
        f.position(following)
    f.jump(then)
