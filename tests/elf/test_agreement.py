"""Every program and library of this machine, against readelf: function symbols with their file
offsets, build ids, USDT probes. `pytest -m peer -s tests/elf/test_agreement.py` prints the counts."""

import os
import re
import subprocess

import pytest

from rawbpf.elf.image import ElfError, Image
from rawbpf.elf.stapsdt import notes
from rawbpf.elf.symbols import FUNCTIONS, SymbolTable
from tests.elf.test_unwind import compare as compare_unwinding

FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/lib/x86_64-linux-gnu")

_SYMBOL = re.compile(r"^ *\d+: ([0-9a-f]+) +(\d+|0x[0-9a-f]+) (FUNC|IFUNC) +(\w+) +\w+ +(?:\[.*?\] +)?(\w+) (\S+)", re.M)
_LOAD = re.compile(r"^  LOAD +(0x\w+) (0x\w+) 0x\w+ (0x\w+) ", re.M)
_PROBE = re.compile(r"Provider: (\S*)\n +Name: (\S*)\n +Location: (0x\w+), Base: (0x\w+), Semaphore: (0x\w+)\n +Arguments: ?(.*)")


def files(folders=FOLDERS):
    """Every regular ELF file in the folders and below, each once."""
    seen = set()
    for folder in folders:
        for home, _, names in os.walk(folder):
            for name in sorted(names):
                path = os.path.join(home, name)
                try:
                    status = os.stat(path)
                    with open(path, "rb") as file:
                        if file.read(4) != b"\x7fELF":
                            continue
                except OSError:
                    continue
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    yield path


def by_readelf(path):
    text = subprocess.run(["readelf", "-W", "-l", "-s", "-n", path], capture_output=True).stdout.decode("utf-8", "surrogateescape")
    loads = [tuple(int(n, 16) for n in row) for row in _LOAD.findall(text)]

    def offset(vaddr):
        return next((vaddr - start + at for at, start, size in loads if start <= vaddr < start + size), None)

    functions = sorted((name, int(value, 16), int(size, 0), kind, bind, offset(int(value, 16)))
                       for value, size, kind, bind, section, name in _SYMBOL.findall(text) if section != "UND")
    build_id = re.search(r"Build ID: ([0-9a-f]+)", text)
    probes = [(provider, name, int(location, 16), int(semaphore, 16), arguments.strip())
              for provider, name, location, _, semaphore, arguments in _PROBE.findall(text)]
    return functions, build_id.group(1) if build_id else "", probes


def by_us(path):
    image = Image.open(path)
    functions = []
    for section in image.sections:
        if section.type in (2, 11) and section.size:
            for s in SymbolTable(image, section).each(FUNCTIONS):
                version = ("@@" if s.default else "@") + s.version if s.version else ""
                functions.append((s.name + version, s.value, s.size, s.type, s.bind, image.file_offset(s.value)))
    probes = [(n.provider, n.name, n.location, n.semaphore, n.text.strip()) for n in notes(image)]
    return sorted(functions), image.build_id, probes


def compare(paths):
    counts = dict(files=0, functions=0, build_ids=0, probes=0)
    differences = []
    for path in paths:
        functions, build_id, probes = by_readelf(path)
        try:
            our_functions, our_build_id, our_probes = by_us(path)
        except ElfError as error:
            differences.append((path, str(error)))
            continue
        counts["files"] += 1
        counts["functions"] += len(functions)
        counts["build_ids"] += bool(build_id)
        counts["probes"] += len(probes)
        if functions != our_functions:
            differences.append((path, sorted(set(functions) ^ set(our_functions))[:4]))
        if (build_id, probes) != (our_build_id, our_probes):
            differences.append((path, build_id, our_build_id, len(probes), len(our_probes)))
    print(counts)
    return counts, differences


@pytest.mark.peer
def test_the_whole_machine():
    counts, differences = compare(files())
    assert differences == []
    assert counts["files"] > 500 and counts["functions"] > 50000


@pytest.mark.peer
def test_aarch64_programs_of_debian():
    from tests.debian import CACHE, Suite, locked
    packages = ["bash", "libc6", "libpython3.11", "libstdc++6", "postgresql-15"]
    root = CACHE / "arm64"
    with locked("arm64"):
        if not (root / ".complete").exists():
            Suite("bookworm", "arm64").unpack(packages, root)
            (root / ".complete").touch()
    counts, differences = compare(files([str(root)]))
    assert differences == []
    assert counts["functions"] > 10000 and counts["probes"] > 10
    found = [o for path in files([str(root)]) for n in notes(Image.open(path)) for o in n.arguments]
    assert [o.text for o in found if o.kind == "unknown"] == []
    assert {o.kind for o in found} >= {"register", "memory"}
    rows = sum(compare_unwinding(path) for path in (str(root / "bin/bash"), str(root / "lib/aarch64-linux-gnu/libc.so.6")))
    print("%d operands, %d rows of unwinding tables" % (len(found), rows))
