"""Text and JSON output beside bpftrace's, byte for byte, for scripts whose output is determined.

Keyed maps have values that differ: bpftrace leaves equal ones in the kernel's order."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.peers import bpftrace

pytestmark = [pytest.mark.root, pytest.mark.peer]

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"

SCRIPTS = {
    "scalars": r"""BEGIN { @a = 1; @neg = -5; @s = "text"; @big = (uint64)18446744073709551615; @half = (int64)9007199254740993;
                   @b = true; @p = (uint8 *)0x1234; exit(); }""",
    "keys": r"""BEGIN { @k["x"] = (int64)3; @k["y"] = (int64)-1; @k["z"] = (int64)2; @m[1, "a"] = (int64)20; @m[2, "b c"] = (int64)10;
                @t[(1, 2), "q"] = (int64)1; @e[""] = (int64)7; exit(); }""",
    "printing": r"""BEGIN { @x[1] = (int64)30; @x[2] = (int64)10; @x[3] = (int64)20; print(@x); print(@x, 2); print(@x, 1, 3); print(@x[1]);
                    clear(@x); print(@x); @y = (int64)9; print(@y); print(@y, 0, 2); zero(@y); print(@y); @y = (int64)4; exit(); }""",
    "values": r"""BEGIN { print(1); print(-1); print("a\"b"); print((1, 2, "c")); print((uint8)200); print(true); print((1, (2, "x")));
                  exit(); }""",
    "printf": r"""BEGIN { printf("%d %5d|%-5d|%05d %x %X %#x %o %c %s %10s|%-10s|%% %u %lld %p\n", 1, 2, 3, 4, 255, 255, 255, 8, 65,
                  "s", "right", "left", 7, -1, 4096); printf("no newline"); printf("\ttab\n"); exit(); }""",
    "hist": r"""BEGIN { $i = 0; while ($i < 100) { @h = hist($i * $i); @k[$i / 70] = hist($i); $i++; } @k[7] = hist(-3); @k[7] = hist(0);
                @k[7] = hist(1); @big = hist(1048576); @big = hist(3000000000); exit(); }""",
    "lhist": r"""BEGIN { $i = 0; while ($i < 60) { @l = lhist($i, 10, 50, 5); @k[$i / 40] = lhist($i, 0, 100, 20); $i++; }
                 @kilo = lhist(3000, 0, 8192, 1024); @kilo = lhist(9000, 0, 8192, 1024); exit(); }""",
    "stats": r"""BEGIN { $i = 1; while ($i <= 10) { @c = count(); @s = sum($i); @a = avg($i); @mi = min($i); @ma = max($i); @st = stats($i);
                 @kc[$i % 3] = sum($i * $i); @ka[$i % 2] = avg($i * 7); @ks[$i % 2] = stats($i * 3); $i++; }
                 @neg = sum(-5); @navg = avg(-7); @nmin = min(-7); @nstats = stats(-7); exit(); }""",
    "time": r"""BEGIN { time("%Y-%m-%d\n"); printf("%s\n", strftime("%Y-%m-%d", nsecs)); print(strftime("%Y", nsecs)); exit(); }""",
    "order": r"""BEGIN { @ = 1; @z = 2; @a = 3; @A = 4; @a_1 = 5; printf("begin\n"); } END { printf("end\n"); @late = 6; }""",
    "exit": r"""BEGIN { printf("a\n"); exit(3); printf("b\n"); } interval:ms:1 { printf("late\n"); }""",
    "ends": r"""BEGIN { @x = 1; @y[1] = 1; clear(@x); delete(@y, 1); exit(); } END { @z = (int64)5; print(@z); clear(@z); }""",
    "ntop": r"""BEGIN { printf("%s %s\n", ntop(2, 0x0100007f), ntop(0x0100007f)); exit(); }""",
}

PROGRAMS = {
    "fun": r"""uprobe:./fun:bar { @[probe] = count(); @a = hist(arg0); printf("%s %d\n", probe, arg0); }
               uretprobe:./fun:fun { @sum = sum(retval); @r[retval] = sum(retval); }""",
    "twice": r"""uprobe:./fun:foo { printf("first %d\n", arg0); } uprobe:./fun:foo { printf("second %d\n", arg0); }
                 uretprobe:./fun:foo { printf("third\n"); } uretprobe:./fun:foo { printf("fourth\n"); }""",
}


def same(rawbpf, form, script, *options, cwd=None):
    ours = rawbpf("trace", "-f", form, *options, "-e", script, cwd=cwd)
    theirs = bpftrace("-f", form, *options, "-e", script, cwd=cwd)
    assert ours.stdout == theirs.stdout
    assert ours.returncode == theirs.returncode
    if form == "text":
        assert ours.stderr.splitlines()[-1:] == theirs.stderr.splitlines()[-1:]
    return ours


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_output_is_bpftraces(rawbpf, form, name):
    assert same(rawbpf, form, SCRIPTS[name]).stdout


@pytest.fixture
def here(tmp_path, compile_c):
    # silent: its output and the tracer's would come in any order
    source = (FIXTURES / "fun.c").read_text().replace("printf(", "(void)(")
    (tmp_path / "fun").symlink_to(compile_c(source, "-O1", name="fun"))
    return tmp_path


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_output_of_a_traced_program_is_bpftraces(rawbpf, here, form, name):
    assert same(rawbpf, form, PROGRAMS[name], "-c", "./fun", cwd=here).stdout


@pytest.mark.parametrize("form", ["text", "json"])
def test_stacks_are_bpftraces(rawbpf, tmp_path, compile_c, form):
    """The target stays alive, so that bpftrace can name its addresses too."""
    program = compile_c("#include <unistd.h>\n__attribute__((noinline)) int work(int x) { __asm__ volatile(\"\" : \"+r\"(x));"
                        " return x + 1; }\nint main(void) { for (int s = 0;; s = work(s)) usleep(1000); }",
                        "-O1", "-fno-omit-frame-pointer", name="still")
    (tmp_path / "still").symlink_to(program)
    target = subprocess.Popen(["./still"], cwd=tmp_path)
    # with -p bpftrace looks a relative path up under the root of the process
    # (Debian's bpftrace is built without what shows source lines)
    script = "config = { show_debug_info=0 } uprobe:" + str(tmp_path / "still") + (
        r':work { @[ustack(2)] = 1; @s[usym(reg("ip"))] = 1; printf("%s|", ustack(2)); print(ustack(1));'
        r' print((1, ustack(1))); print(ustack(raw, 1)); exit(); }')
    try:
        ours = rawbpf("trace", "-f", form, "-p", target.pid, "-e", script, cwd=tmp_path).stdout
        theirs = bpftrace("-f", form, "-p", str(target.pid), "-e", script, cwd=tmp_path).stdout
    finally:
        target.kill()
        target.wait()
    assert ours == theirs
    assert "work+0" in ours


@pytest.mark.parametrize("script", [
    "BEGIN { foo( }", "tracepoint:nope:nope { }", "uprobe:./fun:nope { }", "BEGIN { foo(); }", "BEGIN { $x = $y; }",
])
def test_wrong_scripts_have_the_same_place_and_status(rawbpf, here, script):
    ours = rawbpf("trace", "-e", script, cwd=here)
    theirs = bpftrace("-e", script, cwd=here)
    assert ours.returncode == theirs.returncode
    place = re.compile(r"^(stdin:\d+:\d+-\d+: ERROR: )", re.M)
    assert place.findall(ours.stderr)[:1] == place.findall(theirs.stderr)[:1]
    assert script in ours.stderr and "~" in ours.stderr
