"""What people ran into with files, symbols, stacks and attaching (rows 01-27, 37, 43 of the list that tests/README.md
explains), each from the command line to the output: the smallest input that shows it, and the outcome given there."""

import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from rawbpf.elf import stapsdt
from rawbpf.elf.image import Image
from tests.cc import compile_c
from tests.elf.files import debug_split, run

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

SDT = r"""
#include <unistd.h>
#define SDT(prov, name, sem, args, ...) __asm__ volatile( \
  "990: nop\n\t.pushsection .note.stapsdt,\"\",@note\n\t.balign 4\n\t" \
  ".4byte 992f-991f, 994f-993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n" \
  "993: .8byte 990b, 0, " sem "\n\t" \
  ".asciz \"" prov "\"\n\t.asciz \"" name "\"\n\t.asciz \"" args "\"\n" \
  "994: .balign 4\n\t.popsection" : : __VA_ARGS__)
"""
TARGET = r"""
#include <unistd.h>
__attribute__((noinline)) int work(int x) { return x + 1; }
int main(void) { int s = 0; for (int i = 0; i < 20; i++) { s = work(s); usleep(1000); } return s == 0; }
"""


@pytest.fixture
def home(tmp_path, rawbpf):
    """Puts programs into a folder and traces them there."""
    class Home:
        path = tmp_path

        def program(self, source, *flags, name="m"):
            target = tmp_path / name
            shutil.copy(compile_c(source, *flags, name=name), target)
            return target

        def probes(self, body, before="", name="dp", flags=("-O1",)):
            return self.program(SDT + before + "int main(void) { for (int n = 0; n < 3; n++) { %s usleep(1000); } return 0; }"
                                % body, *flags, name=name)

        def trace(self, script, command, *options, errors=""):
            done = rawbpf("trace", "-q", *options, "-c", command, "-e", script, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, errors)
            return done.stdout

        def listed(self, pattern, *options):
            done = rawbpf("list", *options, pattern, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, "")
            return done.stdout.splitlines()
    return Home()


def test_01_base_index_and_scale(home):
    home.probes('SDT("demo", "sib", "0", "8@(%%rdi,%%rsi,8) 8@-8(%%rdi,%%rsi,8)", "D"(tab), "S"(2L));',
                "static long tab[4] = {11, 22, 33, 44};")
    assert home.trace('usdt:./dp:demo:sib { @[arg0, arg1] = count(); }', "./dp") == "\n\n@[33, 22]: 3\n"


def test_01_an_operand_that_is_not_understood(home, rawbpf):
    home.probes('SDT("demo", "odd", "0", "8@%%cr3 4@%%edi", "D"(7));')
    assert home.trace("usdt:./dp:demo:odd { @[arg1] = count(); }", "./dp") == "\n\n@[7]: 3\n"
    done = rawbpf("trace", "-e", "usdt:./dp:demo:odd { print(arg0); }", cwd=home.path)
    assert done.returncode == 1 and "arg0 of usdt probe demo:odd (8@%cr3) cannot be read" in done.stderr


def test_03_floating_point(home, rawbpf):
    home.probes('SDT("demo", "f", "0", "8f@%%rax 4@%%edi", "a"(0x3ff8000000000000), "D"(7));')
    assert home.listed("usdt:./dp:*") == ["usdt:./dp:demo:f"]
    assert home.trace("usdt:./dp:demo:f { @[arg1] = count(); }", "./dp") == "\n\n@[7]: 3\n"
    done = rawbpf("trace", "-e", "usdt:./dp:demo:f { print(arg0); }", cwd=home.path)
    assert done.returncode == 1 and "arg0 of usdt probe demo:f (8f@%rax) cannot be read" in done.stderr


def test_05_width_and_sign(home):
    home.probes('SDT("demo", "w", "0", "-4@$-9 -1@%%dil 1@%%dil 2@%%di", "D"(0xfffffffffffffff0));')
    out = home.trace(r'usdt:./dp:demo:w { printf("%d %d %d %d\n", arg0, arg1, arg2, arg3); }', "./dp")
    assert out == "-9 -16 240 65520\n" * 3 + "\n\n"


GATED = SDT + r"""
volatile unsigned short sem_a __attribute__((section(".probes"), used, visibility("hidden")));
volatile unsigned short sem_b __attribute__((section(".probes"), used, visibility("hidden")));
int main(void) { for (;;) {
    if (sem_a) SDT("demo", "gate", "sem_a", "4@%%edi", "D"(1));
    if (sem_b) SDT("demo", "gate", "sem_b", "4@%%edi", "D"(2));
    usleep(1000); } }
"""


def counters(path, pid):
    """Both semaphores of recipe B, from the process's memory."""
    with open("/proc/%d/maps" % pid) as maps:
        base = min(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(str(path)))
    with open("/proc/%d/mem" % pid, "rb") as memory:
        found = []
        for note in stapsdt.notes(Image.open(path)):
            memory.seek(base + note.semaphore)
            found.append(int.from_bytes(memory.read(2), "little"))
    return found


@pytest.mark.parametrize("order", ("tracer first", "program first", "killed"))
def test_07_semaphores(home, rawbpf, order):
    path = home.program(GATED, "-O1", "-pie", "-fPIE", name="gated")
    script = "usdt:./gated:demo:gate { @[arg0] = count(); }"
    target = None
    try:
        if order != "tracer first":
            target = subprocess.Popen([str(path)])
        trace = rawbpf.start("trace", *(["-p", str(target.pid)] if target else []), "-e", script, cwd=home.path)
        assert trace.stderr.readline() == "Attached 1 probe\n"
        target = target or subprocess.Popen([str(path)])
        time.sleep(0.3)
        assert counters(path, target.pid) == [1, 1]
        if order == "killed":
            trace.kill()
            trace.wait()
        else:
            trace.send_signal(signal.SIGINT)
            assert re.fullmatch(r"\n\n@\[\d\]: \d+\n@\[\d\]: \d+\n", trace.communicate(timeout=20)[0])
        deadline = time.monotonic() + 10
        while counters(path, target.pid) != [0, 0] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert counters(path, target.pid) == [0, 0]
    finally:
        target.kill()
        target.wait()


def test_09_dashes_quotes_and_plus_signs(home):
    path = home.probes('SDT("web-shop", "cart__add", "0", "4@%%edi", "D"(n));')
    shutil.copy(path, home.path / "lib++x")
    for probe in ("usdt:./dp:web-shop:cart__add", 'usdt:./dp:"web-shop":cart__add', "usdt:./dp:cart__add"):
        assert home.listed(probe) == ["usdt:./dp:web-shop:cart__add"]
        assert home.trace(probe + " { @ = count(); }", "./dp") == "\n\n@: 3\n"
    for probe in ('usdt:"./lib++x":web-shop:cart__add', 'usdt:"./lib++x":"web-shop":cart__add', 'usdt:"./lib++x":cart__add'):
        (line,) = home.listed(probe)
        assert home.trace(line + " { @ = count(); }", "./lib++x") == "\n\n@: 3\n"
        assert home.trace(probe + " { @ = count(); }", "./lib++x") == "\n\n@: 3\n"


def test_11_a_library_that_is_linked_high(home):
    home.program("int high(int x) { return x + 1; }", "-shared", "-fPIC", "-Wl,-Ttext-segment=0x3400000000", name="libhigh.so")
    home.program("#include <dlfcn.h>\nint main(void) { void *h = dlopen(\"./libhigh.so\", RTLD_NOW); "
                 "int (*f)(int) = dlsym(h, \"high\"); return f(41) != 42; }", name="opens")
    out = home.trace('uprobe:./libhigh.so:high { @[arg0, usym(reg("ip"))] = count(); }', "./opens")
    assert out == "\n\n@[41, high]: 1\n"


def test_13_an_address_in_a_stripped_program(home, rawbpf):
    path = home.program(TARGET, "-O1", "-no-pie")
    address = next(line.split()[0] for line in run("nm", path).splitlines() if line.endswith(" T work"))
    run("strip", "-s", path)
    assert home.trace("uprobe:./m:0x%s { @ = count(); }" % address, "./m") == "\n\n@: 20\n"
    done = rawbpf("trace", "-e", "uprobe:./m:0x10 { }", cwd=home.path)
    assert done.returncode != 0 and "./m:0x10" in done.stderr
    first, end = Image.open(path).executable_ranges()[0]
    assert "code of this file is at 0x%x-0x%x (virtual addresses)" % (first, end) in done.stderr


def test_15_a_compressed_symbol_table(home, rawbpf):
    path = debug_split(home.path)       # recipe C: hidden() is static
    assert " hidden" not in run("nm", "-a", path) + run("nm", "-D", path)
    listed = home.listed("uprobe:./md:*")
    assert "uprobe:./md:hidden" in listed and "uprobe:./md:work" in listed
    out = home.trace("uprobe:./md:hidden /@n < 5/ { @[func, ustack(1)] = count(); if (++@n == 5) { exit(); } } ", "./md")
    assert out == "\n\n@[hidden, \n        hidden+0\n]: 5\n@n: 5\n"
    assert "\n        work+0\n" in home.trace("uprobe:./md:work { print(ustack(1)); exit(); }", "./md")
    # a payload that is broken, and one that unpacks to gigabytes
    whole = path.read_bytes()
    section = Image.open(path).section(".gnu_debugdata")
    path.write_bytes(whole[:section.offset + 40] + b"\xff" * 20 + whole[section.offset + 60:])
    for payload in (None, home.path / "bomb"):
        if payload is not None:
            packer = lzma.LZMACompressor(preset=0)
            payload.write_bytes(b"".join(packer.compress(bytes(1 << 20)) for _ in range(140)) + packer.flush())
            run("objcopy", "--remove-section", ".gnu_debugdata", path)
            run("objcopy", "--add-section", ".gnu_debugdata=%s" % payload, path)
        began = time.monotonic()
        done = rawbpf("trace", "-e", "uprobe:./md:hidden { }", cwd=home.path)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert "hidden" in done.stderr and time.monotonic() - began < 20
        done = rawbpf("list", "uprobe:./md:w*", cwd=home.path)      # what else there is, and what is wrong
        assert "uprobe:./md:work" in done.stdout.splitlines() and done.returncode == 0
        assert done.stderr.startswith("WARNING: ./md(.gnu_debugdata): ") and done.stderr.count("\n") == 1


IFUNC = r"""
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) static int fast(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
static int (*pick(void))(int) { return fast; }
int calc(int) __attribute__((ifunc("pick")));
int main(void) { char c; puts("up"); fflush(stdout); if (read(0, &c, 1) < 0) return 1; int s = 0;
    for (int i = 0; i < 100; i++) s = calc(s); return s != 100; }
"""


def test_17_an_indirect_function(home, rawbpf):
    path = home.program(IFUNC, "-O1", name="ifunc")
    done = rawbpf("trace", "--dry-run", "-e", "uprobe:./ifunc:calc { @ = count(); }", cwd=home.path)
    assert done.returncode == 0 and "calc is an indirect function (IFUNC)" in done.stderr
    target = subprocess.Popen([str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        target.stdout.readline()
        trace = rawbpf.start("trace", "-p", str(target.pid), "-e", "uprobe:./ifunc:calc { @ = count(); }", cwd=home.path)
        assert trace.stderr.readline() == "Attached 1 probe\n"
        target.communicate(b"x")
        assert trace.communicate(timeout=20)[0] == "\n\n@: 100\n"
    finally:
        target.kill()
        target.wait()


def test_19_dollar_signs(home):
    name = "_ZN3app8$LT$impl$GT$3run17h00112233445566eeE"
    home.program('int run(int) __asm__("%s"); __attribute__((noinline)) int run(int x) { return x; }\n'
                 "int main(void) { return run(0); }" % name, "-O0")
    (line,) = home.listed("uprobe:./m:*impl*")
    assert home.trace(line + " { @[func] = count(); }", "./m") == "\n\n@[%s]: 1\n" % name


def test_23_another_mount_namespace(home, rawbpf):
    home.program(TARGET.replace("i < 20", "i < 1000000"), "-O1", name="loop")
    (home.path / "empty").mkdir()
    inside = str(home.path / "empty" / "loop")
    target = subprocess.Popen(["unshare", "-m", "sh", "-c", 'mount --bind "$0" "$1" && exec "$1/loop"', str(home.path),
                               str(home.path / "empty")])
    try:
        deadline = time.monotonic() + 10
        while os.path.basename(os.readlink("/proc/%d/exe" % target.pid)) != "loop" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not os.path.exists(inside)
        assert home.listed("uprobe:%s:work" % inside, "-p", target.pid) == ["uprobe:%s:work" % inside]
        for path, option in ((inside, ["-p", str(target.pid)]), ("/proc/%d/root%s" % (target.pid, inside), [])):
            done = rawbpf("trace", "-q", *option, "-e",
                          "uprobe:%s:work { @[probe, ustack(1)] = count(); if (++@n == 3) { exit(); } }" % path, cwd=home.path)
            assert done.stderr == ""
            assert re.search(r"@\[uprobe:%s:work, \n        work\+0(@\S+)?\n\]: \d+\n" % path, done.stdout)
    finally:
        target.kill()
        target.wait()


def test_25_another_pid_namespace(home):
    home.program(TARGET.replace("i < 20", "i < 1000000"), "-O1", name="loop")
    command = ('./loop & target=$!; ps -o pid= -C loop; '
               '"$0" -m rawbpf.tools trace -q -e "uprobe:./loop:work { @[pid] = count(); if (++@n == 20) { exit(); } }"; '
               '"$0" -m rawbpf.tools trace -q -e "uprobe:./loop:work /pid == $target/ { @hit = count(); exit(); }"; '
               'kill $target; echo end')
    outside = subprocess.Popen([str(home.path / "loop")])
    try:
        done = subprocess.run(["unshare", "-pf", "--mount-proc", "--kill-child", "sh", "-c", command, sys.executable],
                              cwd=home.path, text=True, capture_output=True, timeout=60)
    finally:
        outside.kill()
        outside.wait()
    assert done.stderr == ""            # nothing is printed for each event
    inside = int(done.stdout.split()[0])
    assert inside < 10
    counts = dict((int(pid), int(n)) for pid, n in re.findall(r"^@\[(\d+)\]: (\d+)$", done.stdout, re.M))
    assert inside in counts and outside.pid not in counts
    assert set(counts) <= {0, inside}   # 0: it has no number in there
    assert re.search(r"^@hit: [1-9]\d*$", done.stdout, re.M) and done.stdout.endswith("end\n")


GIVE = r"""
__attribute__((noinline)) int give(int n) { return n & 1 ? -5 : 5; }
int main(void) { volatile int s = 0; for (int i = 0; i < 6; i++) s += give(i); return s != 0; }
"""


@pytest.mark.parametrize("debug", ("-g", "-g0"))
def test_37_the_sign_of_a_return_value(home, rawbpf, debug):
    home.program(GIVE, "-O1", debug)
    done = rawbpf("trace", "-q", "--no-warnings", "-c", "./m", "-e", "uretprobe:./m:give { @i[(int32)retval] = count(); }",
                  cwd=home.path)
    assert (done.stdout, done.stderr) == ("\n\n@i[-5]: 3\n@i[5]: 3\n", "")
    done = rawbpf("trace", "-q", "-c", "./m", "-e", "uretprobe:./m:give /retval < 0/ { @ = count(); }", cwd=home.path)
    if debug == "-g":
        assert (done.stdout, done.stderr) == ("\n\n@: 3\n", "")
    else:
        assert "WARNING" in done.stderr and "retval" in done.stderr


def test_43_the_stack_of_an_ended_process(home, rawbpf):
    path = home.program(TARGET, "-O1", "-g0")
    trace = rawbpf.start("trace", "-e", "uprobe:./m:work { @[ustack(3)] = count(); }", cwd=home.path)
    assert trace.stderr.readline() == "Attached 1 probe\n"
    subprocess.run([str(path)], check=True)
    time.sleep(2)
    trace.send_signal(signal.SIGINT)
    out = trace.communicate(timeout=20)[0]
    assert re.search(r"@\[\n        work\+0\n", out) and "0x" not in out
