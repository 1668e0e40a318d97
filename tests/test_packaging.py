"""The package, its description and its README say the same."""

import ast
import re
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
ROOMS = ("asm", "elf", "loader", "sources", "tools")
PROJECT = (TOP / "pyproject.toml").read_text()


def value(key):
    """A value of pyproject.toml (3.9 has no tomllib; what is read here is Python's syntax too)."""
    return ast.literal_eval(re.search(rf"^{key} = (\[.*?\]|\".*?\")$", PROJECT, re.M | re.S)[1])


def folders_with_code():
    for room in ROOMS:
        for path in [TOP / room, *(TOP / room).rglob("*")]:
            if path.is_dir() and any(path.glob("*.py")):
                yield path.relative_to(TOP)


def test_every_folder_with_code_is_installed():
    packages = {"rawbpf." + ".".join(path.parts) for path in folders_with_code()}
    assert set(value("packages")) == packages


def test_every_data_file_is_installed():
    found = {(path.parent.relative_to(TOP), path.name) for room in ROOMS for path in (TOP / room).rglob("*")
             if path.is_file() and path.suffix not in (".py", ".pyc")}
    section = re.search(r"^\[tool.setuptools.package-data\]\n((?:.+\n)+)", PROJECT, re.M)
    told = {name: ast.literal_eval(globs)
            for name, globs in re.findall(r'^"(\S+)" = (\[.*\])$', section[1] if section else "", re.M)}
    for folder, name in found:
        owner = folder
        while not any((TOP / owner).glob("*.py")):
            owner = owner.parent
        place = str((folder / name).relative_to(owner))
        assert any(Path(place).match(glob) for glob in told.get("rawbpf." + ".".join(owner.parts), ())), \
            f"{folder / name} is not in pyproject.toml's package-data"


def test_version(rawbpf):
    assert rawbpf("--version").stdout == f"rawbpf {value('version')}\n"


def test_no_room_hides_behind_an_outer_package():
    """`rawbpf` is a namespace: no `__init__` at the top, one in every folder with code."""
    assert not (TOP / "__init__.py").exists()
    assert [path for path in folders_with_code() if not (TOP / path / "__init__.py").exists()] == []


def test_readme_has_its_two_commands():
    commands = re.findall(r"^    (apt-get update && .*)$", (TOP / "README.md").read_text(), re.M)
    assert len(commands) == 2
    run, test = commands
    assert re.search(r"pip install \. && \.venv/bin/rawbpf trace ", run)
    assert test.endswith(".venv/bin/pip install -e '.[test]' && .venv/bin/pytest")
