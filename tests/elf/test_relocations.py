import os
import re
import struct
import subprocess

import pytest

from rawbpf.elf.image import Image
from rawbpf.elf.relocations import relocations, slots
from rawbpf.elf.symbolizer import ProcessSymbols
from rawbpf.elf.symbols import Symbols
from tests.cc import compile_c
from tests.elf.files import run

CALLER = r"""
#include <stdio.h>
#include <string.h>
static int fast(int x) { return x + 1; }
static int (*pick(void))(int) { return fast; }
int calc(int) __attribute__((ifunc("pick")));
int main(int argc, char **argv) {
    char room[64];
    memcpy(room, argv[0], strlen(argv[0]) % 64);
    printf("%d %c\n", calc(argc), room[0]);
    fflush(stdout);
    getchar();
    return 0;
}
"""


@pytest.mark.parametrize("flags", [(), ("-no-pie",), ("-static",), ("-static-pie",)])
def test_the_chosen_code_of_an_ifunc(flags):
    path = compile_c(CALLER, "-O0", *flags, name="caller")
    image = Image.open(path)
    symbols = Symbols(image)
    calc, fast = symbols.find("calc"), symbols.find("fast")
    process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("2 ")
        with open("/proc/%d/maps" % process.pid) as file:
            first = next(line for line in file if path in line or os.path.realpath(path) in line)
        bias = int(first.split("-")[0], 16) - min(s.vaddr for s in image.segments if s.type == 1) if image.type == "DYN" else 0
        with open("/proc/%d/mem" % process.pid, "rb", buffering=0) as memory, ProcessSymbols.of(process.pid) as names:
            def read(slot):
                memory.seek(slot + bias)
                return struct.unpack("<Q", memory.read(8))[0]

            assert {read(s) for s in slots(image, {"calc"}, {calc.value})} == {fast.value + bias}
            if "-static" not in "".join(flags):
                chosen = [names.resolve(read(s)) for s in slots(image, {"memcpy"})]
                assert len(chosen) == 1 and (chosen[0].name.startswith("__memcpy") or chosen[0].name.startswith("__memmove"))
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
