"""Lengths of x86_64 instructions against what objdump prints."""

import re
import subprocess

import pytest

from rawbpf.sources.instruction_length import is_boundary, x86_64
from tests.cc import compile_c

KNOWN = [  # from the Intel SDM's encodings
    ("90", 1), ("c3", 1), ("55", 1), ("4889e5", 3), ("f30f1efa", 4), ("488d0500000000", 7),
    ("48b80102030405060708", 10), ("66b80102", 4), ("b801020304", 5), ("e800000000", 5), ("0f8400000000", 6),
    ("f6c101", 3), ("f6d1", 2), ("f7c101020304", 6), ("66f7c10102", 5), ("f7d9", 2),
    ("c8000100", 4), ("c20800", 3), ("480fbae007", 5), ("660f3a0fc108", 6), ("0f38f0c1", 4),
    ("c5f877", 3), ("c5f9efc0", 4), ("c4e3fd00c04e", 6), ("62f17c48280424", 7), ("62f17c4828442401", 8),
    ("8f0424", 3), ("f0480fb10a", 5), ("a10102030405060708", 9), ("67a101020304", 6), ("666690", 3),
    ("8b04250000 0000".replace(" ", ""), 7), ("48c7c001000000", 7), ("66c7000100", 5),
]


@pytest.mark.parametrize("code, length", KNOWN)
def test_known(code, length):
    assert len(bytes.fromhex(code)) == length
    assert x86_64(bytes.fromhex(code) + bytes(16), 0) == length


def test_no_instruction():
    assert x86_64(b"\x06", 0) == 0
    assert x86_64(b"\x48", 0) == 0
    assert x86_64(b"", 0) == 0


def test_boundaries():
    code = bytes.fromhex("554889e5c3")  # push rbp; mov rbp, rsp; ret
    assert [is_boundary("x86_64", code, n) for n in range(5)] == [True, True, False, False, True]
    assert is_boundary("aarch64", b"", 8) and is_boundary("aarch64", b"", 6) is False
    assert is_boundary("riscv", b"", 2) is None


VECTORS = r"""
#include <math.h>
#include <string.h>
float a[1000], b[1000]; double d[1000]; long l[1000]; unsigned char u[1000];
void f1(int n) { for (int i = 0; i < n; i++) a[i] = a[i] * b[i] + sqrtf(b[i]); }
void f2(int n) { for (int i = 0; i < n; i++) l[i] = d[i] > 3 ? l[i] << 3 : (long)d[i]; }
unsigned f3(int n) { unsigned s = 0; for (int i = 0; i < n; i++) s += __builtin_popcount(u[i]) ^ u[n - i]; return s; }
void f4(void) { memset(u, 7, sizeof u); memcpy(a, b, sizeof a); }
int main(void) { f1(9); f2(9); f4(); return f3(9); }
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-O0",), ("-O3", "-mavx2", "-mfma"), ("-O2", "-fcf-protection", "-mbmi2"),
                                   ("-O3", "-mavx512f", "-mavx512bw", "-static")])
def test_compiled_code_against_objdump(flags):
    """The static one has the C library's hand-written vector code."""
    program = compile_c(VECTORS, *flags, "-lm", name="vectors")
    out = subprocess.run(["objdump", "-d", "-w", "--section=.text", program], capture_output=True, text=True,
                         check=True).stdout
    compared = 0
    for line in out.splitlines():
        match = re.match(r"\s*[0-9a-f]+:\t((?:[0-9a-f]{2} )+)\s*\t(.*)", line)
        if match and not match.group(1).startswith("9b ") and "(bad)" not in line:  # fwait is shown as a prefix
            code = bytes.fromhex(match.group(1))
            assert x86_64(code + bytes(16), 0) == len(code), line
            compared += 1
    assert compared > (50000 if "-static" in flags else 150)
