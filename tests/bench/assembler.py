"""CPU seconds to assemble and disassemble 100,000 instructions: `python -m tests.bench.assembler`.

"written": what people and compilers write, with labels; "listing": our own listing of it; "every form": of the
instruction set, and a third that have reserved fields set. The budget is 2 s for each.
"""

import random
import sys
import time

from rawbpf.asm import assemble, decode, disassemble, encode
from rawbpf.asm.disassembler import text
from tests.asm.forms import random_program

BUDGET = 2


def written(count, seed=1):
    """The text of `count` instructions like those of programs, a label for every hundred."""
    rng = random.Random(seed)
    lines = []
    for i in range(count - 1):
        if not i % 100:
            lines.append("l%d:" % (i // 100))
        a, b, n = rng.randrange(10), rng.randrange(10), rng.randrange(1 << 16)
        lines.append(rng.choice((
            "r%d = r%d" % (a, b), "r%d = %d" % (a, n), "r%d += %d" % (a, -n), "w%d s>>= %d" % (a, n & 31),
            "r%d = *(u32 *)(r%d + %d)" % (a, b, n & 255), "*(u64 *)(r10 - %d) = r%d" % (8 * (n & 63), a),
            "*(u8 *)(r%d + 3) = 7" % a, "if r%d == %#x goto l%d" % (a, n, i // 100), "goto l%d" % (i // 100),
            "call bpf_map_lookup_elem", "r%d = map[hits] ll" % a, "r%d = %#x ll" % (a, n << 30),
            "lock *(u64 *)(r%d + 8) += r%d   ; counted" % (a, b), "r%d = be16 r%d" % (a, a))))
    return "\n".join([*lines, "exit"])


def timed(work, *arguments):
    began = time.process_time()
    result = work(*arguments)
    return result, time.process_time() - began


def figures(count=100000):
    """[(what, seconds)]"""
    source = written(count)
    made, out = timed(lambda: assemble(source).instructions())
    rows = [("assemble, written", out)]
    assert len(made) == count
    _, out = timed(lambda: assemble(source.replace("\n", "   ; R1=scalar()\n")).instructions())
    rows.append(("assemble, with comments", out))
    plain = [i._replace(ref=None) for i in made]
    data, out = timed(encode, plain)
    rows.append(("encode", out))
    back, out = timed(decode, data)
    rows.append(("decode", out))
    assert back == plain
    listing, out = timed(disassemble, back)
    rows.append(("disassemble, written", out))
    again, out = timed(lambda: assemble(listing, strict=False).instructions())
    rows.append(("assemble, listing", out))
    assert again == plain
    forms = decode(random_program(random.Random(1), count), "little")
    listing, out = timed(lambda: "\n".join(map(text, forms)))
    rows.append(("disassemble, every form", out))
    again, out = timed(lambda: assemble(listing, strict=False).instructions())
    rows.append(("assemble, every form", out))
    assert again == forms
    return rows


if __name__ == "__main__":
    measured = figures()
    for what, seconds in measured:
        print("%-26s %5.2f s" % (what, seconds))
    sys.exit(any(seconds > BUDGET for _, seconds in measured))
