import os
import re
import struct
import subprocess

import pytest

from rawbpf.elf.image import Image
from rawbpf.elf.relocations import relocations, slots
from rawbpf.elf.symbols import Symbols
from tests.cc import compile_c
from tests.elf.files import run

CALLER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
static int fast(int x) { return x + 1; }
static int (*pick(void))(int) { return fast; }
int calc(int) __attribute__((ifunc("pick")));
int main(int argc, char **argv) {
    char room[64];
    memcpy(room, argv[0], strlen(argv[0]) % 64);
    void *chosen = 0;
#ifdef DYNAMIC
    chosen = dlsym(RTLD_DEFAULT, "memcpy");
#endif
    printf("%d %c %lx\n", calc(argc), room[0], (long)chosen);
    fflush(stdout);
    getchar();
    return 0;
}
"""


@pytest.mark.parametrize("flags", [(), ("-no-pie",), ("-static",), ("-static-pie",)])
def test_the_chosen_code_of_an_ifunc(flags):
    dynamic = "-static" not in "".join(flags)
    path = compile_c(CALLER, "-O0", *flags, *(("-DDYNAMIC", "-ldl") if dynamic else ()), name="caller")
    image = Image.open(path)
    symbols = Symbols(image)
    calc, fast = symbols.find("calc"), symbols.find("fast")
    process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        answer, _, memcpy = process.stdout.readline().split()
        assert answer == "2"
        with open("/proc/%d/maps" % process.pid) as file:
            first = next(line for line in file if path in line or os.path.realpath(path) in line)
        bias = int(first.split("-")[0], 16) - min(s.vaddr for s in image.segments if s.type == 1) if image.type == "DYN" else 0
        with open("/proc/%d/mem" % process.pid, "rb", buffering=0) as memory:
            def read(slot):
                memory.seek(slot + bias)
                return struct.unpack("<Q", memory.read(8))[0]

            assert {read(s) for s in slots(image, {"calc"}, {calc.value})} == {fast.value + bias}
            if dynamic:      # as the dynamic linker says
                assert [read(s) for s in slots(image, {"memcpy"})] == [int(memcpy, 16)]
    finally:
        process.communicate("\n")


@pytest.mark.parametrize("flags", [(), ("-static",), ("-static-pie",)])
def test_relocations_are_readelfs(flags):
    path = compile_c(CALLER, "-O0", *flags, name="caller")
    text = run("readelf", "-rW", path)
    printed = {(int(offset, 16), name.split("@")[0]) for offset, name in
               re.findall(r"^([0-9a-f]{16}) .* R_\w+(?:_JUMP_SLO\w*|_GLOB_DAT|_64|_ABS64) +[0-9a-f]{16} (\S+) \+ 0$", text, re.M)}
    printed |= {(int(offset, 16), "") for offset in re.findall(r"^([0-9a-f]{16}) .* R_\w+_I?RELATIV\w*", text, re.M)}
    assert {(r.offset, r.symbol) for r in relocations(Image.open(path))} == printed and printed
