"""What LLVM compiles: our disassembly says the same as llvm-objdump's, and its text assembles to its bytes.

Needs llvm (`opt`, `llc`, `llvm-objdump`, 14 or newer).
"""

import re
import struct
import subprocess

import pytest

from rawbpf.asm import decode, encode
from rawbpf.asm.disassembler import text
from rawbpf.asm.llvm import llvm_ir
from rawbpf.asm.text import assemble

from .generate import program

pytestmark = pytest.mark.peer


def objects(folder, seeds, cpu):
    for seed in seeds:
        source, made = folder / "p.ll", folder / "p.o"
        function = program(seed, size=20, atomics=False)
        if re.search(" s[/%] ", str(function)):
            continue  # LLVM before 18 has no signed division
        source.write_text(llvm_ir(function))
        subprocess.run(["opt", "-opaque-pointers", "-O2", "-S", str(source), "-o", str(source)], check=True)
        done = subprocess.run(["llc", "-opaque-pointers", "-O2", "-march=bpf", "-mcpu=" + cpu, "-filetype=obj",
                               str(source), "-o", str(made)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        yield made


def section(path):
    data = path.read_bytes()
    start, = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * i) for i in range(count)]
    for header in headers:
        at = headers[names][4] + header[0]
        if data[at:].startswith(b".text\0"):
            return data[header[4]:header[4] + header[5]]


def normal(line):
    """One spelling for both: numbers in decimal, no blanks in operands, `goto` by offset, helpers by number."""
    line = re.sub(r" <[^ >]*>$", "", line)
    line = re.sub(r"call (?:pc)?\+?([\w.]+#)?", "call ", line).replace("pc", "")
    line = re.sub(r"0x[0-9a-f]+", lambda n: str(int(n.group(), 16)), line)
    line = re.sub(r"\b[rw](\d+)", r"r\1", line) if "*(u" in line else line
    line = re.sub(r"([+-]) ?(\d+)", r"\1\2", line)
    if " goto " in line or line.endswith("ll"):
        # comparisons: the kernel's way is the unsigned pattern
        line = re.sub(r"(?<=[=<>&] )(-?\d+)", lambda n: str(int(n.group()) & (0xffffffff if "goto" in line else (1 << 64) - 1)), line)
    return re.sub(r"\s+", " ", line).strip()


@pytest.mark.parametrize("cpu", ["v1", "v2", "v3"])
def test_same_text_and_bytes(tmp_path, cpu):
    seen = 0
    for path in objects(tmp_path, range(60), cpu):
        data = section(path)
        made = decode(data, "little")
        listing = subprocess.run(["llvm-objdump", "-d", "--no-show-raw-insn", "--mcpu=" + cpu, str(path)],
                                 capture_output=True, text=True, check=True).stdout
        lines = [line.split(":", 1)[1].strip() for line in listing.splitlines() if re.match(r"\s+\d+:\s", line)]
        assert len(lines) == len(made)
        for line, instruction in zip(lines, made):
            if "<unknown>" in line:
                continue
            assert normal(text(instruction)) == normal(line)
            if not (instruction.code == 0x85 and instruction.src):   # it prints calls of functions as helpers
                read = assemble(line, strict=False).instructions()
                assert encode(read) == encode([instruction]), line
            seen += 1
        full = subprocess.run(["llvm-objdump", "-d", str(path)], capture_output=True, text=True, check=True).stdout
        assert encode(assemble(full, strict=False).instructions()) == data
    assert seen > 500
