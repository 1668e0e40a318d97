"""`import`: what it adds, where it looks, what it refuses."""

import os

import pytest

from rawbpf.tools.trace import ast
from rawbpf.tools.trace.diagnostics import Diagnostics, ScriptError, Source
from rawbpf.tools.trace.frontend import run
from rawbpf.tools.trace.parser import parse


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "lib").mkdir()
    files = {
        "helpers.bt": "#define TWO 2\nmacro greet() { print(TWO); }\nlet @m = hash(3);\nbegin { print(1); }\nend { print(3); }\n",
        "types.h": "struct foo { int a; char b; };\n", "lib/one.bt": "macro one() { 1 }\n",
        "lib/two.bt": 'import "one.bt"; macro two() { one() + 1 }\n', "lib/notes.txt": "nothing",
        "set.bt": "config = { max_strlen = 20 } macro x() { 1 }\n", "code.bpf.c": "int f(void) { return 1; }\n",
        "round.bt": 'import "round.bt"; macro again() { 7 }\n', "broken.bt": "macro ( {\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def read(folder, text):
    """A Script after the steps before the compiler, and its Names."""
    source = Source(str(folder / "main.bt"), text)
    diagnostics = Diagnostics()
    script = parse(source, (), diagnostics)
    names = run(script, lambda kind, name: None, diagnostics=diagnostics)
    return script, names, diagnostics


def test_a_script_adds_probes_macros_and_maps(folder):
    script, _, _ = read(folder, 'import "helpers.bt"; begin { greet(); }')
    assert [probe.attach_points[0].kind for probe in script.probes] == ["begin", "end", "begin"]
    assert [declaration.name for declaration in script.map_declarations] == ["@m"] and not script.imports
    assert [node.value for node in script.probes[2].block.walk() if isinstance(node, ast.Integer)] == [2]


def test_headers_folders_and_what_they_import(folder):
    _, names, _ = read(folder, 'import "types.h"; begin { print(1); }')
    assert names.type("struct", "foo").size == 8
    script, _, _ = read(folder, 'import "lib"; import "lib/one.bt"; begin { print(two()); }')
    numbers = [node.value for node in script.probes[0].block.walk() if isinstance(node, ast.Integer)]
    assert numbers == [1, 1]
    read(folder, 'import "round.bt"; begin { print(again()); }')
    read(folder, 'import "stdlib"; import "stdlib/strings"; begin { }')


@pytest.mark.parametrize("name, message", [
    ("nothing.bt", "Unable to find suitable path for import"), ("set.bt", "invalid `config` within import"),
    ("lib/notes.txt", 'unknown import type: "notes.txt"'), ("broken.bt", "syntax: expected macro name"),
    ("code.bpf.c", 'importing "code.bpf.c" is not supported: functions in C need a compiler, which rawbpf has not; '
     ".bt and .h files can be imported"),
])
def test_what_cannot_be_imported(folder, name, message):
    with pytest.raises(ScriptError) as error:
        read(folder, 'import "%s"; begin { }' % name)
    assert error.value.message == message
    if name == "nothing.bt":
        assert error.value.hints == ["checked: %s" % (folder / name)]


def test_nothing_from_where_everybody_may_write(folder):
    os.chmod(folder / "helpers.bt", 0o666)
    with pytest.raises(ScriptError) as error:
        read(folder, 'import "helpers.bt"; begin { }')
    assert error.value.message == "Unable to find suitable path for import"
    assert "skipping due to global write permissions" not in error.value.message


@pytest.mark.root
def test_beside_the_script_and_beside_the_shell(rawbpf, folder):
    (folder / "main.bt").write_text('import "helpers.bt"; begin { greet(); exit() }')
    assert rawbpf("trace", "-q", folder / "main.bt", cwd="/").stdout == "1\n2\n3\n\n\n"
    assert rawbpf("trace", "-q", "-e", 'import "lib"; begin { print(two()); exit() }', cwd=folder).stdout == "2\n\n\n"
    done = rawbpf("trace", "-e", 'begin { import "helpers.bt"; }', cwd=folder)
    assert done.returncode == 1 and "stdin:1:9-28: ERROR: Import statements that are not at the top level" in done.stderr
