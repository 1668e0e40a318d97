"""What a listing prints can be pasted: functions, files and probes with odd names."""

import json
import os
import shutil

import pytest

from rawbpf import sources
from rawbpf.sources import literal, split
from tests.cc import compile_c

NAMES = ["br[a]c", "brac", "h*", "hello", "st[a]r", "st*ar", "que?", "/*", "//x", "a+4", "a", "123", "0x55", "a b", 'dq"x', "b\\s",
         "co:lon", "com,ma", "cu{b}", "\u00fc", "$x", "#h", "x(int)", "~t", "-d", "new\nline", "esc\x1b[2Jape", "[", "]", "a]b["]
PLAIN = {"brac", "hello", "a"}


RAW = {"newXline": b"new\nline", "escX[2Jape": b"esc\x1b[2Jape", "dqXx": b'dq"x', "bXs": b"b\\s"}       # what the assembler escapes


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    plain = [name for name in NAMES if name.encode() not in RAW.values()]
    code = "".join(".globl {0}\\n.type {0},@function\\n{0}: nop\\nret\\n.size {0},2\\n".format('\\"%s\\"' % name)
                   for name in [*plain, *RAW])
    program = compile_c('__asm__(".text\\n%s");\nint main(void) { return 0; }\n' % code, name="odd")
    with open(program, "rb") as file:
        data = file.read()
    for name, raw in RAW.items():
        data = data.replace(b"\0%s\0" % name.encode(), b"\0%s\0" % raw)
    path = tmp_path_factory.mktemp("odd") / "odd"
    path.write_bytes(data)
    path.chmod(0o755)
    return str(path)


def listed(text):
    return [each.text for each in sources.list_events(text)]


@pytest.mark.root
def test_functions(odd, rawbpf):
    lines = listed("uprobe:%s:*" % odd)
    symbols = {s.name for s in sources.expand("uprobe:%s:main" % odd)[0].binary.symbols.functions()}
    assert {"br[a]c", "/*", "a+4", "0x55", "new\nline", "h*"} <= symbols
    found = {}
    for line in lines:
        assert line.isprintable()
        points = sources.expand(line)
        assert len(points) == 1, line
        assert points[0].listed == line
        found[points[0].symbol.name] = line
    assert set(found) == symbols and len(lines) == len(symbols)
    for name in PLAIN:
        assert found[name] == "uprobe:%s:%s" % (odd, name)
    assert found["br[a]c"] == 'uprobe:%s:br[[]a]c' % odd and found["123"] == 'uprobe:%s:"[1]23"' % odd
    done = rawbpf("list", "-e", " ".join(line + " { }" for line in lines))
    assert set(done.stdout.splitlines()) == set(lines), done
    # as it is written elsewhere
    assert [p.symbol.name for p in sources.expand('uprobe:%s:"br[a]c"' % odd)] == ["br[a]c"]


@pytest.mark.root
@pytest.mark.slow
def test_files(odd, rawbpf, tmp_path):
    names = ["br[a]c", "brac", "st*ar", "que?", "com,ma", "sp ace", 'dq"x', "b\\s", "co:lon", "new\nline", "at@x", "$d", "\u00fc"]
    for name in names:
        shutil.copy(odd, tmp_path / name)
    lines = listed('uprobe:"%s/*":hello' % tmp_path)
    assert len(lines) == len(names)
    assert {os.path.basename(p.binary.path) for line in lines for p in sources.expand(line)} == set(names)
    assert all(len(sources.expand(line)) == 1 for line in lines)
    point, = sources.expand('uprobe:"%s/br[a]c":hello' % tmp_path)
    assert point.binary.path == str(tmp_path / "br[a]c")
    done = rawbpf("list", 'uprobe:"%s/com,ma":hello,uprobe:"%s/sp ace":hello' % (tmp_path, tmp_path))
    assert done.stdout.splitlines() == ['uprobe:"%s/%s":hello' % (tmp_path, name) for name in ("com,ma", "sp ace")]
    done = rawbpf("list", "--json", "-e", 'uprobe:"%s/sp ace":hello { }' % tmp_path)
    assert json.loads(done.stdout)["probe"] == 'uprobe:"%s/sp ace":hello' % tmp_path


def test_literal_is_quoted_as_a_pattern():
    assert literal("plain.so.6") == "plain.so.6" and literal("a b") == '"a b"'
    assert literal("h*[x]?") == "h[*][[]x][?]" and split(literal("h* y")) == ["h[*] y"]
    assert sources.matcher("h[*]")("h*") and not sources.matcher("h[*]")("hello")
    assert sources.matcher("operator[](int)")("operator[](int)")
    assert literal("a\x9bb\x00") == "a?b?"
