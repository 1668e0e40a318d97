"""Instructions of each test script: our code generator's over LLVM -O2's, from the same IR for the same instruction set.

    python -m tests.bench codegen [--json]

Instructions are counted as the kernel does: 8 bytes each. LLVM unrolls short loops, which makes its programs longer; the
last line is the mean with that turned off. Needs the package llvmlite.
"""

import math
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

AIM, LIMIT = 1.10, 1.30   # of the geometric mean, and of each


class Measured(NamedTuple):
    name: str
    ours: int
    llvm: int
    rolled: int       # LLVM's without loops unrolled

    @property
    def ratio(self):
        return self.ours / self.llvm


def count(code):
    from rawbpf.asm import slot_numbers
    return slot_numbers(code.instructions)[-1]


def measure(pattern="*", every=1):
    """A Measured for each of the scripts in tests/tools/scripts, or each third or so."""
    from rawbpf.loader import features
    from rawbpf.tools.trace.llvm import code_of
    from tests.cc import compile_c
    from tests.tools import corpus
    cpu = features.cpu_level()
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        corpus.build(Path(folder), compile_c)
        os.chdir(folder)
        try:
            for script in list(corpus.scripts(pattern))[::every]:
                if script.later:
                    continue
                programs = compiled(script)
                llvm, rolled = (sum(count(code_of(program.function, cpu, 2, unroll=unroll)[0]) for program in programs)
                                for unroll in (True, False))
                yield Measured(script.name, sum(count(program.code) for program in programs), llvm, rolled)
        finally:
            os.chdir(before)


def compiled(script):
    """The programs of a script; its program waits, and never runs."""
    from rawbpf.tools.trace.child import Child
    from rawbpf.tools.trace.engine import compile_script
    child = Child("./" + script.program[:-2]) if script.program else None
    pid = child.pid if child else None
    words = [word for word in script.args if not word.startswith("--")]
    named = [word[2:] for word in script.args if word.startswith("--") and word != "--"]
    try:
        return compile_script(script.path.read_text(encoding="utf-8"), script.name, words, named, pid=pid, cpid=pid,
                              unsafe=True).programs
    finally:
        if child:
            child.close()


def mean(ratios):
    """The geometric one."""
    ratios = list(ratios)
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
