"""The rooms look one way: asm <- elf <- loader <- sources <- tools (docs/design.md)."""

import ast
import importlib.util
import sysconfig
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent
ROOMS = ("asm", "elf", "loader", "sources", "tools")

# Third parties: module -> files that may import it, and whether only inside functions.
THIRD_PARTY = {"llvmlite": ("asm/llvm.py", True)}

# Knowledge that one room keeps to itself: module -> where it may be imported.
KEPT = {
    # the C world; tools only control a process (prctl in the fork of -c)
    "ctypes": ("elf/", "loader/", "sources/", "tools/trace/child.py"),
    "rawbpf.loader.syscalls": ("loader/",),           # bpf_attr, perf_event_attr
    "rawbpf.asm.opcodes": ("asm/", "loader/"),        # encodings
}


class Import:
    """One import of a module: absolute name, where, and whether a function does it."""

    def __init__(self, path, line, name, inside):
        self.path, self.line, self.name, self.inside = path, line, name, inside

    def __str__(self):
        return f"{self.path}:{self.line}: {self.name}"


def imports(path, tree):
    """Every import of the module `tree`, relative ones made absolute."""
    package = ("rawbpf", *path.parts[:-1])

    def walk(node, inside):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(path, child.lineno, alias.name, inside)
            elif isinstance(child, ast.ImportFrom):
                base = package[:len(package) - child.level + 1] if child.level else ()
                name = ".".join((*base, *filter(None, [child.module])))
                if name != "rawbpf":
                    yield Import(path, child.lineno, name, inside)
                for alias in child.names:
                    yield Import(path, child.lineno, f"{name}.{alias.name}", inside)
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from walk(child, inside or function)

    yield from walk(tree, False)


def check(path, source):
    """What is wrong with the imports of the file `path` (relative to the top)."""
    room = path.parts[0]
    for found in imports(path, ast.parse(source, str(path))):
        parts = found.name.split(".")
        if parts[0] == "rawbpf":
            target = parts[1] if len(parts) > 1 else ""
            if target not in ROOMS:
                yield f"{found} leaves its room by a relative import, or names no room"
            elif ROOMS.index(target) > ROOMS.index(room):
                yield f"{found}: {room} must not look at {target}"
        elif parts[0] in THIRD_PARTY:
            where, only_inside = THIRD_PARTY[parts[0]]
            if not str(path).startswith(where):
                yield f"{found}: only {where} may import {parts[0]}"
            elif only_inside and not found.inside:
                yield f"{found}: {parts[0]} is optional: import it inside a function"
        elif not standard(parts[0]):
            yield f"{found}: neither the standard library nor a dependency"
        for kept, places in KEPT.items():
            if found.name == kept and not str(path).startswith(places):
                yield f"{found}: {kept} belongs to {', '.join(places)}"


def relative_across(path, source):
    """Relative imports that reach into another room: absolute ones are the rule there."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level >= len(path.parts):
            yield f"{path}:{node.lineno}: relative import across rooms"


def standard(name):
    """Whether a top-level module is of the standard library of the running Python."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return False
    if spec.origin in ("built-in", "frozen"):
        return True
    origin = Path(spec.origin or "/")
    return ("site-packages" not in origin.parts and "dist-packages" not in origin.parts
            and Path(sysconfig.get_paths()["stdlib"]).resolve() in origin.resolve().parents)


FILES = sorted(path.relative_to(TOP) for room in ROOMS for path in (TOP / room).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports(path):
    source = (TOP / path).read_text()
    assert not [*check(path, source), *relative_across(path, source)]


def test_only_the_loader_makes_system_calls():
    found = []
    for path in FILES:
        if path.parts[0] != "loader":
            found += [f"{path}:{node.lineno}" for node in ast.walk(ast.parse((TOP / path).read_text()))
                      if isinstance(node, ast.Attribute) and node.attr == "syscall"]
    assert not found


@pytest.mark.parametrize("path, source", [
    ("asm/x.py", "from rawbpf.elf import Image"),
    ("asm/x.py", "def f():\n    import rawbpf.loader"),
    ("loader/x.py", "from rawbpf import sources"),
    ("sources/x.py", "from rawbpf.tools.trace import ast"),
    ("loader/x.py", "from ..sources import base"),
    ("tools/trace/x.py", "from ...loader import Map"),
    ("tools/x.py", "from rawbpf.loader import syscalls"),
    ("tools/x.py", "from rawbpf.asm.opcodes import BPF_LD"),
    ("tools/trace/x.py", "import ctypes"),
    ("elf/x.py", "import requests_is_not_installed"),
    ("elf/x.py", "import pytest"),
    ("elf/x.py", "import llvmlite"),
    ("asm/llvm.py", "import llvmlite.binding"),
])
def test_a_wrong_arrow_is_seen(path, source):
    assert [*check(Path(path), source), *relative_across(Path(path), source)]


@pytest.mark.parametrize("path, source", [
    ("tools/trace/x.py", "from rawbpf.asm import ir\nfrom . import ast\nfrom ..cli import main"),
    ("sources/x.py", "from rawbpf.loader import attach_perf_event\nfrom .base import Source"),
    ("tools/trace/x.py", "def f():\n    from rawbpf import sources"),
    ("elf/x.py", "import mmap, os.path, collections.abc"),
    ("asm/llvm.py", "def f():\n    from llvmlite import binding"),
])
def test_a_right_arrow_passes(path, source):
    assert not [*check(Path(path), source), *relative_across(Path(path), source)]
