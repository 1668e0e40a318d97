"""A script function of 4,096 instructions compiles in under a second of CPU time, whatever it is made of."""

import time

import pytest

pytestmark = [pytest.mark.root, pytest.mark.slow]

SCRIPTS = {
    "maps and branches": " ".join("@a%d = @a%d + %d; if (@a%d > 5) { @b[%d] = count(); }" % (
        i % 40, (i + 1) % 40, i, i % 40, i) for i in range(140)),
    "many variables": " ".join("$v%d = nsecs + %d;" % (i, i) for i in range(60)) + " ".join(
        "$v%d = $v%d * $v%d + %d;" % (i % 60, (i + 7) % 60, (i + 13) % 60, i) for i in range(700)) + " ".join(
        "@[%d] = $v%d;" % (i, i) for i in range(60)),
    "unrolled": "$i = 0; unroll(100) { @[comm, $i, pid] = sum($i); $i++; if ($i % 3 == nsecs % 5) { @x = hist($i); } }",
    "strings": " ".join('if (comm == "abcdefgh%d") { @[%d] = %d; } @s["key%d"] = comm;' % (i, i, i, i) for i in range(100)),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_four_thousand_instructions(name):
    from rawbpf.asm import slot_numbers
    from rawbpf.tools.trace.engine import compile_script
    compile_script("BEGIN { @ = hist(nsecs); @a[comm] = count(); }")    # imports are not compiling
    best = None
    for _ in range(3):          # others use this machine too
        began = time.process_time()
        compiled = compile_script("BEGIN { %s }" % SCRIPTS[name])
        spent = time.process_time() - began
        best = spent if best is None else min(best, spent)
    size = slot_numbers(compiled.programs[0].code.instructions)[-1]
    assert size > 3800
    assert best * 4096 / size < 1
