"""Probes by demangled C++ names: needs a C++ library on the machine, which the virtual ones lack."""

import subprocess

import pytest

from rawbpf import sources
from tests.cc import compile_c
from tests.sources.harness import tracing

pytestmark = pytest.mark.root

DEMANGLED = r"""
int mangled_one(int) __asm__("_ZN4shop4cart3addEi");
__attribute__((noinline)) int mangled_one(int n) { __asm__ volatile("" : "+r"(n)); return n; }
int mangled_two(long) __asm__("_ZN4shop4cart3addEl");
__attribute__((noinline)) int mangled_two(long n) { __asm__ volatile("" : "+r"(n)); return 0; }
int main(void) { return mangled_one(0) + mangled_two(0); }
"""


def test_demangled_names():
    program = compile_c(DEMANGLED, "-O1", name="demangled")
    with tracing('uprobe:%s:cpp:"shop::cart::add"' % program) as seen:
        subprocess.run([program], check=True)
    assert seen.hits == 2
    listed = [each.text for each in sources.list_events('uprobe:%s:cpp:"shop::*"' % program)]
    assert listed == ['uprobe:%s:cpp:"shop::cart::add(int)"' % program,
                      'uprobe:%s:cpp:"shop::cart::add(long)"' % program]
    with tracing(listed[0]) as seen:
        subprocess.run([program], check=True)
    assert seen.hits == 1
