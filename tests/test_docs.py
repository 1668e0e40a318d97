"""docs/ and the READMEs name files that are there, and docs/design.md all of the rooms' files."""

import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent
ROOMS = ("asm", "elf", "loader", "sources", "tools", "tests")
FILES = {path.relative_to(TOP).as_posix() for room in ROOMS for path in (TOP / room).rglob("*.py")}
TEXTS = [*sorted((TOP / "docs").glob("*.md")), TOP / "README.md", TOP / "tests" / "README.md"]


def layout():
    """{room: names of files} of the drawing in docs/design.md."""
    text = (TOP / "docs" / "design.md").read_text()
    drawing = text[text.index("```\nasm/ ") + 4:]
    found, room = {}, None
    for line in drawing[:drawing.index("```")].splitlines():
        start = re.match(r"(\w+)/", line)
        room = start.group(1) if start else room
        # what is in parentheses is said, not listed
        found.setdefault(room, []).extend(re.findall(r"\b\w+\.py\b", re.sub(r"\([^)]*\)", "", line)))
    return found


@pytest.mark.parametrize("room", ["asm", "elf", "loader", "sources"])
def test_the_drawing_has_every_file_of_a_room_once(room):
    there = sorted(path.name for path in (TOP / room).glob("*.py") if path.name != "__init__.py")
    drawn = layout()[room]
    assert sorted(drawn + (["assembly.py"] if room == "asm" else [])) == there


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(TOP).as_posix())
def test_files_that_are_named_are_there(path):
    names = {name.rpartition("/")[2] for name in FILES}
    for name in set(re.findall(r"[\w/]*\b\w+\.py\b", path.read_text())):
        assert name in names or any(("/" + each).endswith("/" + name) for each in FILES), name


def test_the_calls_of_the_assembler():
    """The shapes that docs/interfaces.md states."""
    from rawbpf import asm
    made = asm.assemble(".section xdp\nr0 = 0\ncall f\nexit\n.text\nf:\nr0 = 1\nexit\n", "a.s")
    instructions, lines, functions = made.link("xdp")
    assert instructions == made.instructions("xdp") == made.instructions() and functions == {"f": 3}
    assert lines[0] == ("a.s", 2, "r0 = 0") and len(lines) == len(instructions) == 5
    assert asm.disassemble(instructions[:1]) == "   0: (b7) r0 = 0"
    assert asm.write_object(made, {})[:4] == b"\x7fELF"
