"""USDT operands of aarch64, traced for real in its guest (`python -m tests.vm --kernel arm64`); elsewhere they are parsed
only, see tests/elf/test_stapsdt.py."""

import os
import subprocess

import pytest

from rawbpf.sources import SourceError
from tests.cc import compile_c
from tests.sources.harness import argument, tracing
from tests.sources.test_usdt import SDT

pytestmark = pytest.mark.kernel

PROGRAM = SDT + r"""
__attribute__((noinline)) int traced(void)
{
    long place[2] __attribute__((aligned(16))) = {77, -78};
    register long x0 __asm__("x0") = 0x11223344ffeeddcc;
    register long *x1 __asm__("x1") = tab;
    register long x2 __asm__("x2") = 2, x3 __asm__("x3") = 0xffffffff00000003;
    register long *x19 __asm__("x19") = place;
    SDT("arm", "registers", "0", "8@x0 4@w0 -4@w0 -2@w0 1@w0 -1@w0 8@xzr 8@sp", "r"(x0));
    SDT("arm", "memory", "0", "8@[x1] 8@[x1, 8] -8@[x1,16] 8@[x1, x2, lsl 3] 8@[x1, w3, uxtw 3] 8@[x1, w3, sxtw #3] 4@[x1, 24]",
        "r"(x1), "r"(x2), "r"(x3), "m"(tab));
    SDT("arm", "stack", "0", "8@[x19] -8@[x19, 8] -4@[x19, 8]", "r"(x19), "m"(place));
    SDT("arm", "constants", "0", "4@7 -4@-9 -8@#-1 8@4660 1@300");
    SDT("arm", "symbols", "0", "4@visible 8@tab+16 8@#tab", "m"(tab), "m"(visible));
    SDT("arm", "vector", "0", "8f@d0 4@w2", "r"(x2));
    return (int)x0;
}
int main(void) { printf("%lx %lx\n", (long)tab, (long)&visible); for (int n = 0; n < 3; n++) traced(); return 0; }
"""

EXPECTED = {
    "registers": (0x11223344ffeeddcc, 0xffeeddcc, -0x112234, -0x2234, 0xcc, -0x34, 0),
    "memory": (11, 22, 33, 33, 44, 44, 44),
    "stack": (77, -78, -78),
    "constants": (7, -9, -1, 4660, 300 & 255),
    "symbols": (4242, 33),
}


@pytest.mark.parametrize("flags", [("-pie", "-fPIE"), ("-no-pie",)], ids=str)
def test_operands(flags):
    if os.uname().machine != "aarch64":
        return
    program = compile_c(PROGRAM, "-O1", *flags, name="operands")
    for name, expected in EXPECTED.items():
        with tracing("usdt:%s:arm:%s" % (program, name), argument(*range(len(expected))), len(expected)) as seen:
            subprocess.run([program], check=True, stdout=subprocess.DEVNULL)
        assert seen.rows == [expected] * 3, name
    # the address of a symbol, as the program has it
    with tracing("usdt:%s:arm:symbols" % program, argument(2), 1) as seen:
        printed = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert seen.rows == [(int(printed[0], 16),)] * 3
    with tracing("usdt:%s:arm:vector" % program, argument(1), 1) as seen:
        subprocess.run([program], check=True, stdout=subprocess.DEVNULL)
    assert seen.rows == [(2,)] * 3
    with pytest.raises(SourceError, match=r"arg0 of usdt probe arm:vector \(8f@d0\) cannot be read"):
        with tracing("usdt:%s:arm:vector" % program, argument(0), 1):
            raise AssertionError("attached")
