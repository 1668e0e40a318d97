"""Where the semaphore of a probe may be: what the kernel counts up, and what it cannot, which is said."""

import re
import subprocess

import pytest

from rawbpf import sources
from rawbpf.sources import SourceError, Target
from tests.cc import compile_c
from tests.sources.harness import argument, tracing
from tests.sources.test_usdt import SDT, portable

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

FORMS = {
    "data": (".data\\n.balign 2", ""),
    "end of the data's page": (".bss\\n.balign 2", "is cleared when the program starts: .* that run already only"),
    "odd": (".data\\n.balign 2\\n.byte 0", "at an odd address"),
    "bss": (".bss\\n.balign 4096\\n.zero 4096", "is not mapped from the file"),
    "constant": (".section .rodata\\n.balign 2", "is in memory that cannot be written"),
}


def guarded(place):
    """A program that fires a probe three times if its semaphore is not 0."""
    return compile_c(portable(SDT + '__asm__("%s\\n.globl sem\\nsem: .zero 2\\n.text");\nextern volatile unsigned short sem;\n' % place +
                     'int main(void) { for (int n = 0; n < 3; n++) if (sem) SDT("demo", "gate", "sem", "4@%%edi", "D"(7)); }'),
                     "-O1", name="guarded")


@pytest.mark.parametrize("form", FORMS)
def test_place(form):
    program, says = guarded(FORMS[form][0]), FORMS[form][1]
    probe = "usdt:%s:demo:gate" % program
    if form == "odd":
        with pytest.raises(SourceError, match=says), tracing(probe):
            raise AssertionError("attached")
        return
    with tracing(probe, argument(0), 1) as seen:
        subprocess.run([program], check=True)
    (point,) = seen.points
    assert re.search(says, point.warning) and bool(says) == bool(point.warning)
    assert seen.rows == ([] if says else [(7,)] * 3)


def test_running():
    """What is cleared at the start (the end of the data's page) is counted up afterwards."""
    program = compile_c(portable(SDT + """#include <stdlib.h>
volatile unsigned short sem;
int main(void)
{
    char c;
    while (read(0, &c, 1) == 1) { if (sem) SDT("demo", "gate", "sem", "4@%%edi", "D"(7)); if (write(1, &c, 1) != 1) abort(); }
    return 0;
}"""), "-O1", name="running")
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def step():
        process.stdin.write(b"x")
        assert process.stdout.read(1) == b"x"
    step()
    with tracing("usdt:%s:demo:gate" % program, argument(0), 1) as seen:
        step()
        assert seen.rows == [(7,)]
    with process:
        process.stdin.close()


def test_unmapped():
    """No semaphore at all for the kernel; the program does not ask it here."""
    program = compile_c(portable(SDT + 'int main(void) { SDT("demo", "far", "0x7777776", "4@%%edi", "D"(7)); return 0; }'), "-O1", name="far")
    with tracing("usdt:%s:demo:far" % program, argument(0), 1) as seen:
        subprocess.run([program], check=True)
    assert "at 0x7777776 is not mapped from the file" in seen.points[0].warning and seen.rows == [(7,)]


def test_another_probe_at_its_place():
    program = guarded(FORMS["data"][0])
    usdt = "usdt:%s:demo:gate" % program
    uprobe = "uprobe:%s:0x%x" % (program, sources.expand(usdt, Target())[0].vaddr)
    for first, second, says in ((usdt, uprobe, "the USDT probe demo:gate is perhaps traced"), (uprobe, usdt, "a uprobe is perhaps")):
        with tracing(first), pytest.raises(SourceError, match=says), tracing(second):
            raise AssertionError("attached")
