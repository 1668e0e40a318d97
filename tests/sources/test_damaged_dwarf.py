"""Programs with damaged debug information: they are probed without it, and the reason is said where it is wanted."""

import os
import random
import re
import shutil
import subprocess

import pytest

from rawbpf import sources
from rawbpf.sources import SourceError
from rawbpf.tools.trace.engine import compile_script
from rawbpf.tools.trace.diagnostics import ScriptError
from rawbpf.elf.image import ElfError
from tests.cc import compile_c

CODE = """struct inner { int b; };
struct p { int a; struct inner in; struct p *next; };
typedef struct p named;
int work(named *p, int n)
{
    return p->a + n;
}
int main(void) { named p = {3}; return work(&p, 4) != 7; }
"""


def program(name="described"):
    return compile_c(CODE, "-g", "-O0", "-gdwarf-5", name=name)


def damaged(tmp_path, section):
    """The program with 20 times the byte 0x7f as that section."""
    path, content = str(tmp_path / ("without" + section)), tmp_path / "content"
    content.write_bytes(b"\x7f" * 20)
    shutil.copy(program(), path)
    subprocess.run(["objcopy", "--update-section", "%s=%s" % (section, content), path], check=True)
    return path


@pytest.mark.root
@pytest.mark.parametrize("section, line, arguments", [
    (".debug_line", False, ["named *p", "int n"]), (".debug_info", False, None), (".debug_abbrev", False, None), (".debug_str", True, None)])
def test_sections(tmp_path, section, line, arguments):
    path = damaged(tmp_path, section)
    for column in ("", ":5"):
        text = "uprobe:%s@%s:6%s" % (path, "described.c", column)
        if not line:
            with pytest.raises(SourceError, match="No DWARF debug info found for '%s', .*source code location. %s.*" % (path, path)):
                sources.expand(text)
    (point,) = sources.expand("uprobe:%s:work" % path)
    (listed,) = sources.list_events("uprobe:%s:work" % path)
    if arguments:
        assert [field.name for field in point.arguments().fields] == ["p", "n"] and len(listed.verbose()) == 3
    else:
        assert point.arguments() is None and re.match(re.escape(path) + ": .*(DWARF|outside)", point.no_arguments)
        assert listed.verbose() == [listed.text]
    (point,) = sources.expand("uretprobe:%s:work" % path)
    assert (point.retval_type() is not None) == bool(arguments)


@pytest.mark.root
@pytest.mark.slow
def test_arguments_that_are_not_in_one_register(rawbpf):
    """By value: the program prints nothing, and returns what its last arguments are."""
    path = compile_c("""struct s { long a, b, c; }; struct t { int a; };
        __int128 wide(void) { return 7; }
        int work(__int128 x, struct s s, struct t t, long double l, float _Complex c, _Bool b, int n) { return n + b; }
        int main(void) { struct s s = {1, 2, 3}; struct t t = {4}; return work(5, s, t, 1, 2, 1, 9) != 10 + (wide() != 7); }""", "-g", "-O0", name="wide")
    done = rawbpf("trace", "-q", "-c", path, "-e", "uprobe:%s:work { print((args.b, args.n)); } uretprobe:%s:wide { print(retval); }" % (path, path))
    assert done.stdout.split("\n")[:2] == ["(true, 9)", "7"] and done.returncode == 0, done
    for used, says in (("args.x", "x of .* cannot be read: it has 16 bytes"), ("args", "x of .* cannot be read"), ("args.s", "it is a struct passed by value"),
                       ("args.s.b", "it is a struct passed by value"), ("args.t.a", "struct passed by value"),
                       ("args.c", "not printable")):
        done = rawbpf("trace", "-c", path, "-e", "uprobe:%s:work { print(%s); }" % (path, used))
        assert done.returncode == 1 and re.search("ERROR: .*" + says, done.stderr) and "Traceback" not in done.stderr, done


@pytest.mark.root
def test_no_arguments_are_no_key():
    for key in ("args", "(args)", "args.e"):
        path = compile_c("struct none { }; int work(struct none *e) { return !e; } int main(void) { struct none e; return work(&e); }", "-g")
        with pytest.raises(ScriptError, match="cannot be used as a map key: it has no bytes|cannot be read"):
            compile_script("uprobe:%s:main { @[%s] = 1; }" % (path, key) if "." not in key else "uprobe:%s:work { @[*%s] = 1 }" % (path, key))
    assert compile_script('uprobe:%s:main { @[""] = 1; @a[1, args] = 2; }' % path)


SCRIPTS = ("uprobe:%s:work { print(args.n); print(args.p->in.b); print(args.p->next->a) }", "uprobe:%s:work { print(*(struct p *)arg0) }",
           "uretprobe:%s:work { print(retval) }", "uprobe:%s:work { @[args] = count() }")


@pytest.mark.root
@pytest.mark.slow
def test_flipped_bits(tmp_path):
    """Nothing but what a script is told of: ScriptError, or ElfError, which the command says as one error."""
    with open(program(), "rb") as file:
        data = file.read()
    table = subprocess.run(["readelf", "-SW", program()], stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout
    ranges = [(int(at, 16), int(size, 16)) for at, size in re.findall(r"\.debug_\w+ +\S+ +\S+ (\w+) (\w+)", table)]
    assert len(ranges) >= 4
    source, path, refused = random.Random(4), str(tmp_path / "flipped"), 0
    for number in range(int(os.environ.get("RAWBPF_DAMAGED_DWARF", 60))):
        flipped = bytearray(data)
        for _ in range(source.choice((1, 4, 30))):
            at, size = source.choice(ranges)
            flipped[at + source.randrange(size)] ^= 1 << source.randrange(8)
        with open(path, "wb") as file:
            file.write(flipped)
        os.chmod(path, 0o755)
        for text in ("uprobe:%s@described.c:6", "uprobe:%s@described.c:6:5"):
            try:
                sources.expand(text % path)
            except SourceError:
                refused += 1
        (listed,) = sources.list_events("uprobe:%s:work" % path)
        assert listed.verbose()[0] == listed.text
        for script in SCRIPTS:
            try:
                compile_script(script % path)
            except (ScriptError, ElfError):
                refused += 1
    assert refused
