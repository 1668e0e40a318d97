"""uprobe and uretprobe on real programs: what is attached, and the values read there."""

import os
import re
import shutil
import subprocess
import time

import pytest

from rawbpf import sources
from rawbpf.loader import features
from rawbpf.sources import SourceError, Target
from tests.cc import compile_c
from tests.sources.harness import argument, cookie, tracing

pytestmark = pytest.mark.kernel

CALLS = r"""
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) long many(long a, long b, long c, long d, long e, long f, long g, long h) {
    return a - h; }
__attribute__((noinline)) int give(int n) { return n & 1 ? -5 : 5; }
__attribute__((noinline)) int give_more(int n) { return n + 1; }
static __attribute__((noinline)) int hidden(int n) { return n * 2; }
int main(int argc, char **argv) {
    long r = 0;
    for (int i = 0; i < 4; i++)
        r += many(i, -2, 3, 4, 5, 6, 70 + i, 80 + i) + give(i) + give_more(i) + hidden(i);
    printf("%ld\n", r);
    return 0;
}
"""


@pytest.fixture(scope="module")
def calls():
    return compile_c(CALLS, "-O1", name="calls")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_arguments_in_registers_and_on_the_stack(calls):
    with tracing("uprobe:%s:many" % calls, argument(0, 1, 5, 6, 7), 5) as seen:
        run(calls)
    assert seen.rows == [(i, -2, 6, 70 + i, 80 + i) for i in range(4)]
    assert seen.points[0].name == "uprobe:%s:many" % calls


def test_return_values(calls):
    def value(f, ctx, point):
        return [f.extend(point.retval(f, ctx), 4, True)]

    with tracing("uretprobe:%s:give" % calls, value, 1) as seen:
        run(calls)
    assert seen.rows == [(5,), (-5,), (5,), (-5,)]


def symbol_address(path, name):
    from rawbpf.elf.image import Image
    from rawbpf.elf.symbols import Symbols

    return Symbols(Image.open(path)).find(name).value


def test_address_is_virtual_and_works_without_symbols(tmp_path):
    """A stripped, not position independent program: the address is what nm said before."""
    program = compile_c(CALLS, "-O1", "-no-pie", name="fixed")
    address = symbol_address(program, "give")
    assert address >= 0x400000
    stripped = compile_c(CALLS, "-O1", "-no-pie", "-s", name="fixed")
    with tracing("uprobe:%s:0x%x" % (stripped, address), argument(0), 1) as seen:
        run(stripped)
    assert [row[0] & 0xffffffff for row in seen.rows] == [0, 1, 2, 3]


def test_address_outside_of_code_names_the_ranges(calls):
    with pytest.raises(SourceError, match="0x[0-9a-f]+-0x[0-9a-f]+"):
        with tracing("uprobe:%s:0x99999999" % calls):
            pass


def test_offset(calls):
    """At the second instruction of give the first argument is still in its register."""
    address = symbol_address(calls, "give")
    with open(calls, "rb") as file:
        file.seek(address)  # a position independent program: offset == address in its text here
        code = file.read(3)
    length = {0x83: 3, 0x89: 2, 0x40: 4}.get(code[0]) if os.uname().machine == "x86_64" else 4
    assert length, code.hex()
    with tracing("uprobe:%s:give+%d" % (calls, length)) as seen:
        run(calls)
    assert seen.hits == 4
    assert seen.points[0].name.endswith(":give+%d" % length)
    with pytest.raises(SourceError, match=r"Offset outside the function bounds \('give' size is"):
        sources.expand("uprobe:%s:give+5000" % calls)


def test_wildcard_and_cookies(calls):
    points = sources.expand("uprobe:%s:give*" % calls)
    assert [point.func for point in points] == ["give", "give_more"]
    if not points[0].cookies:
        with tracing("uprobe:%s:give*" % calls) as seen:
            run(calls)
        assert seen.hits == 8
        return
    with tracing("uprobe:%s:give*" % calls, cookie, 1,
                 cookies=lambda point: 100 + len(point.func)) as seen:
        run(calls)
    assert sorted(seen.rows) == [(104,)] * 4 + [(109,)] * 4


def test_static_function_is_found(calls):
    with tracing("uprobe:%s:hidden" % calls, argument(0), 1) as seen:
        run(calls)
    assert [row[0] & 0xffffffff for row in seen.rows] == [0, 1, 2, 3]


def test_one_process(calls):
    other = subprocess.Popen([calls], stdout=subprocess.DEVNULL)
    other.wait()
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        with tracing("uprobe:%s:give*" % calls, target=Target(pid=sleeper.pid)) as seen:
            run(calls)
        assert seen.hits == 0
    finally:
        sleeper.kill()
        sleeper.wait()


LOOP = r"""
#include <stdio.h>
#include <unistd.h>
#include <pthread.h>
__attribute__((noinline)) int step(int n) { __asm__ volatile("" : "+r"(n)); return n; }
__attribute__((noinline)) int stop(int n) { __asm__ volatile("" : "+r"(n)); return n; }
static void *run(void *x) { step(2); stop(2); return x; }
int main(void) {
    char c; pthread_t t;
    if (read(0, &c, 1) != 1) return 1;
    step(1);
    pthread_create(&t, 0, run, 0); pthread_join(t, 0);
    return 0;
}
"""


def test_threads_of_a_process():
    """A filter on a process includes its other threads."""
    program = compile_c(LOOP, "-pthread", "-O1", name="loop")
    child = subprocess.Popen([program], stdin=subprocess.PIPE)
    try:
        with tracing("uprobe:%s:st[eo]p" % program, argument(0), 1, target=Target(pid=child.pid)) as seen:
            child.communicate(b"x")
        assert sorted(row[0] & 0xff for row in seen.rows) == [1, 2, 2]
        assert child.returncode == 0
    finally:
        child.kill()
        child.wait()


def test_without_path_the_traced_program_is_meant():
    program = compile_c(LOOP, "-pthread", "-O1", name="loop")
    child = subprocess.Popen([program], stdin=subprocess.PIPE)
    try:
        with tracing("uprobe:step", target=Target(pid=child.pid)) as seen:
            child.communicate(b"x")
        assert seen.hits == 2
    finally:
        child.kill()
        child.wait()


def test_library_by_name():
    points = [sources.expand("uprobe:%s:getpid" % name)[0] for name in ("libc", "libc.so.6")]
    assert {os.path.realpath(point.binary.path) for point in points} == {
        os.path.realpath(points[0].binary.path)}
    assert re.match(r"uprobe:/.*/libc\.so\.6:getpid\Z", points[0].name)


def test_symbol_offset_in_a_library_linked_high():
    """File offset = value - p_vaddr + p_offset of the segment, also beyond the file's size."""
    library = compile_c("int high(int x) { return x + 1; }", "-shared", "-fPIC",
                        "-Wl,-Ttext-segment=0x3400000000", name="libhigh.so")
    program = compile_c(r"""
#include <dlfcn.h>
int main(int c, char **v) { void *h = dlopen(v[1], RTLD_NOW); if (!h) return 1;
  int (*f)(int) = dlsym(h, "high"); return f(41) != 42; }""", name="opens")
    (point,) = sources.expand("uprobe:%s:high" % library)
    assert point.vaddr > 0x3400000000
    assert point.file_offset == point.vaddr - 0x3400000000  # the text segment's p_offset is p_vaddr - base
    with tracing("uprobe:%s:high" % library, argument(0), 1) as seen:
        run(program, library)
    assert [row[0] & 0xffffffff for row in seen.rows] == [41]


def test_many_functions_attach_and_count():
    """300 functions called once each: every one is hit, none twice."""
    count = 300
    text = "#define F(n) __attribute__((noinline)) int f##n(int x) { return x + n; }\n"
    text += "\n".join("F(%d)" % n for n in range(count))
    text += "\nint main(void) { int s = 0;" + "".join("s = f%d(s);" % n for n in range(count))
    program = compile_c(text + "return 0; }", "-O0", name="many")
    with tracing("uprobe:%s:f[0-9]*" % program) as seen:
        run(program)
    assert len(seen.points) == count == seen.hits
    assert not seen.refused
    assert seen.points[0].multi == features.has_link("uprobe_multi")


def test_missing_symbol_suggests(calls):
    with pytest.raises(SourceError) as caught:
        sources.expand("uprobe:%s:giv" % calls)
    assert caught.value.missing
    assert "uprobe:%s:give" % calls in caught.value.hints


def test_missing_file():
    with pytest.raises(SourceError, match="does not exist or is not executable"):
        sources.expand("uprobe:/nonexistent:f")
    with pytest.raises(SourceError, match="target file '/etc/passwd' is no ELF file"):
        sources.expand("uprobe:/etc/passwd:f")


def test_dollar_names_round_trip():
    """What a listing prints is what a probe accepts (Rust's mangled names hold dollar signs)."""
    name = "_ZN3app8$LT$impl$GT$3run17h00112233445566eeE"
    program = compile_c(
        'int run(int) __asm__("%s"); __attribute__((noinline)) int run(int x) { return x; }\n'
        "int main(void) { return run(0); }" % name, "-O0", name="rusty")
    (listed,) = sources.list_events("uprobe:%s:*impl*" % program)
    assert listed.text == 'uprobe:%s:"%s"' % (program, name)
    with tracing(listed.text) as seen:
        run(program)
    assert seen.hits == 1


def test_listing_keeps_the_path_as_written(calls):
    folder, base = os.path.split(calls)
    before = os.getcwd()
    os.chdir(folder)
    try:
        listed = [each.text for each in sources.list_events("uprobe:./%s:give*" % base)]
    finally:
        os.chdir(before)
    assert listed == ["uprobe:./calls:give", "uprobe:./calls:give_more"]




IFUNC = r"""
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) static int fast(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
static int (*pick(void))(int) { return fast; }
int calc(int) __attribute__((ifunc("pick")));
int main(int argc, char **argv) {
    char c; int s = calc(0);
    if (read(0, &c, 1) != 1) return 1;
    for (int i = 0; i < 100; i++) s += calc(i);
    printf("%d\n", s);
    return 0;
}
"""


def until_it_waits(pid):
    """Until the process sleeps in a system call that it made itself: it has been loaded."""
    deadline = time.monotonic() + 20
    number = {"x86_64": "0", "aarch64": "63"}[os.uname().machine]  # read
    while time.monotonic() < deadline:
        with open("/proc/%d/syscall" % pid) as file:
            if file.read().split()[0] == number:
                return
        time.sleep(0.01)
    raise AssertionError("process %d does not come to its read()" % pid)


@pytest.mark.parametrize("flags", [("-pie", "-fPIE"), ("-no-pie",), ("-pie", "-fPIE", "-Wl,-z,now")])
def test_indirect_function(flags):
    """The chosen code is probed in a process; without one the indirection is named."""
    program = compile_c(IFUNC, "-O1", *flags, name="indirect")
    child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        until_it_waits(child.pid)
        with tracing("uprobe:%s:calc" % program, argument(0), 1, target=Target(pid=child.pid)) as seen:
            child.communicate(b"x")
        assert [row[0] & 0xffffffff for row in seen.rows] == list(range(100))
        assert not seen.points[0].warning
    finally:
        child.kill()
        child.wait()
    (point,) = sources.expand("uprobe:%s:calc" % program)
    assert "indirect function" in point.warning and "calc" in point.warning


def test_indirect_function_of_libc_without_a_process():
    """libc's choice for this machine is known: this process uses the same libc."""
    program = compile_c(r"""
#include <string.h>
#include <unistd.h>
int main(int c, char **v) {
    volatile size_t n = 0; char x;
    if (read(0, &x, 1) != 1) return 1;
    for (int i = 0; i < 50; i++) n += strlen(v[0]);
    return n == 0;
}""", "-O0", "-fno-builtin", "-Wl,-z,now", name="measures")
    (general,) = sources.expand("uprobe:libc:strlen")
    assert not general.warning
    child = subprocess.Popen([program], stdin=subprocess.PIPE)
    try:
        until_it_waits(child.pid)
        with tracing("uprobe:libc:strlen", target=Target(pid=child.pid)) as seen:
            child.communicate(b"x")
        assert seen.hits == 50
        assert seen.points[0].vaddr == general.vaddr
    finally:
        child.kill()
        child.wait()


TYPED = r"""
struct pair { long a, b; };
__attribute__((noinline)) int typed(char c, unsigned short h, int i, struct pair p, double d, long l, int seventh) {
    __asm__ volatile("" : "+r"(i)); return -(int)(c + h + i + p.a + l + seventh + d); }
int main(void) { struct pair p = {1000, 2}; return typed(-3, 65535, -70000, p, 1.5, 1L << 40, -7) == 0; }
"""


def test_arguments_by_debug_information():
    program = compile_c(TYPED, "-O1", name="typed")
    (point,) = sources.expand("uprobe:%s:typed" % program)
    assert [f.name for f in point.arguments().fields] == ["c", "h", "i", "p", "d", "l", "seventh"]
    from tests.sources.harness import field

    with tracing("uprobe:%s:typed" % program, field("c", "h", "i", "l", "seventh"), 5) as seen:
        run_any(program)
    char = -3 if os.uname().machine == "x86_64" else 256 - 3        # char has no sign on aarch64
    assert seen.rows == [(char, 65535, -70000, 1 << 40, -7)]
    with pytest.raises(SourceError, match="d of .* floating-point"):
        with tracing("uprobe:%s:typed" % program, field("d"), 1):
            pass
    (listed,) = sources.list_events("uprobe:%s:typed" % program)
    assert listed.arguments[:3] == ["char c", "short unsigned int h", "int i"]


def run_any(program):
    subprocess.run([program], check=False)


def test_return_type_by_debug_information(calls):
    (point,) = sources.expand("uretprobe:%s:give" % calls)
    known = point.retval_type()
    assert (known.size, known.signed) == (4, True)
    stripped = compile_c(CALLS, "-O1", "-s", "-rdynamic", name="bare")
    (point,) = sources.expand("uretprobe:%s:give" % stripped)
    assert point.retval_type() is None


def test_library_in_a_zip_archive(tmp_path):
    """Uncompressed and on a page boundary, as an archive that is mapped has it."""
    import zipfile

    library = compile_c("int zipped(int x) { return x + 1; }", "-shared", "-fPIC", "-O1", name="libzipped.so")
    data = open(library, "rb").read()
    archive = str(tmp_path / "app.zip")
    entry = zipfile.ZipInfo("lib/libzipped.so")
    entry.extra = b"\xff\xff" + (4096 - 30 - len(entry.filename) - 4).to_bytes(2, "little")
    entry.extra += b"\0" * (4096 - 30 - len(entry.filename) - 4)
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr(entry, data)
        packed.writestr("lib/small.so", data, compress_type=zipfile.ZIP_DEFLATED)
    program = compile_c(r"""
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int c, char **v) {
    int fd = open(v[1], O_RDONLY);
    char *m = mmap(0, 65536, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 4096);
    int (*f)(int) = (int (*)(int))(m + strtol(v[2], 0, 0));
    return f(41) != 42;
}""", name="maps-it")
    (point,) = sources.expand("uprobe:%s!/lib/libzipped.so:zipped" % archive)
    with tracing("uprobe:%s!/lib/libzipped.so:zipped" % archive, argument(0), 1) as seen:
        run(program, archive, str(point.file_offset - 4096))
    assert [row[0] & 0xffffffff for row in seen.rows] == [41]
    with pytest.raises(SourceError, match="compressed"):
        sources.expand("uprobe:%s!/lib/small.so:zipped" % archive)
    with pytest.raises(SourceError, match="no member"):
        sources.expand("uprobe:%s!/lib/none.so:zipped" % archive)


def test_mount_namespace(tmp_path):
    """The inside path with -p, and the path through /proc/PID/root; what is shown is the inside path."""
    program = compile_c(LOOP, "-pthread", "-O1", name="loop")
    empty = tmp_path / "empty"
    empty.mkdir()
    inside = "%s/loop" % empty
    child = subprocess.Popen(["unshare", "-m", "sh", "-c", 'mount --bind "$0" "$1" && exec "$1/loop"',
                              os.path.dirname(program), str(empty)], stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 10
        while os.path.basename(os.readlink("/proc/%d/exe" % child.pid)) != "loop" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not os.path.exists(inside)
        target = Target(pid=child.pid)
        assert [e.text for e in sources.list_events("uprobe:%s:st?p" % inside, target)] == [
            "uprobe:%s:step" % inside, "uprobe:%s:stop" % inside]
        with tracing("uprobe:%s:step" % inside, target=target) as seen:
            with tracing("uprobe:/proc/%d/root%s:stop" % (child.pid, inside)) as other:
                child.communicate(b"x")
        assert (seen.hits, other.hits) == (2, 1)
        assert seen.points[0].name == "uprobe:%s:step" % inside
    finally:
        child.kill()
        child.wait()


def test_deleted_file(tmp_path):
    """The program of a process whose file is gone."""
    gone = str(tmp_path / "gone")
    shutil.copy(compile_c(LOOP, "-pthread", "-O1", name="loop"), gone)
    child = subprocess.Popen([gone], stdin=subprocess.PIPE)
    try:
        os.unlink(gone)
        with tracing("uprobe:step", target=Target(pid=child.pid)) as seen:
            child.communicate(b"x")
        assert seen.hits == 2
    finally:
        child.kill()
        child.wait()


def test_python_objects(calls):
    from rawbpf.loader.maps import Map
    from rawbpf.sources import Uprobe
    from tests.sources.harness import program_for

    probe = Uprobe(calls, "give*")
    assert len(probe.points) == 2 and probe.program_type == "kprobe"
    program, counters = program_for(probe.points[0], lambda f, c, p: [], 0)
    assert isinstance(counters, Map)
    with program, probe.attach(program) as link:
        run(calls)
        assert not link.refused
    assert int.from_bytes(counters.lookup(b"\0" * 4)[:8], "little") == 8
    with pytest.raises(SourceError):
        Uprobe(calls)


def test_middle_of_an_instruction_is_refused(calls):
    """lea or mov with an immediate: the byte after its first one is no instruction."""
    length = 4
    if os.uname().machine == "x86_64":
        length = 3
        with open(calls, "rb") as file:
            file.seek(symbol_address(calls, "give_more"))
            assert file.read(3) == bytes.fromhex("8d4701")  # lea eax, [rdi + 1]
    with pytest.raises(SourceError, match="middle of instruction"):
        sources.expand("uprobe:%s:give_more+1" % calls)
    (point,) = sources.expand("uprobe:%s:give_more+%d" % (calls, length))
    assert point.name.endswith("give_more+%d" % length)
    (point,) = sources.expand("uprobe:%s:give_more+1" % calls, Target(unsafe=True))
    with pytest.raises(SourceError, match="middle of instruction"):
        sources.expand("uprobe:%s:0x%x" % (calls, point.vaddr))


def test_source_line(calls):
    line = 1 + CALLS.split("\n").index("__attribute__((noinline)) int give(int n) { return n & 1 ? -5 : 5; }")
    points = sources.expand("uprobe:%s@calls.c:%d" % (calls, line))
    assert symbol_address(calls, "give") in [point.vaddr for point in points]
    with tracing("uprobe:%s@calls.c:%d" % (calls, line)) as seen:
        run(calls)
    assert seen.hits >= 4
    with pytest.raises(SourceError, match="no code of line 9999"):
        sources.expand("uprobe:%s@calls.c:9999" % calls)
    with pytest.raises(SourceError) as caught:
        sources.expand("uprobe:%s:calls.c:%d" % (calls, line))
    assert caught.value.hints == ["uprobe:%s@calls.c:%d" % (calls, line)]


def test_why_there_are_no_args(calls):
    """The hint of "args ... can only be used with" says which of the reasons it is."""
    bare = compile_c(CALLS, "-O1", "-g0", name="bare")
    for probe, says in (("uprobe:%s:give" % bare, "has no debug information"), ("uretprobe:%s:give" % calls, "the arguments are gone"),
                        ("uprobe:%s:_start" % calls, "does not describe this function")):
        (point,) = sources.expand(probe)
        assert point.arguments() is None and says in point.no_arguments


COLUMNS = """
volatile int sink;
__attribute__((noinline)) void both(int n)
{
    sink += n; sink *= 2; sink -= n;
}
int main(void) { for (int i = 1; i < 4; i++) both(i); return 0; }
"""


def test_source_column():
    """Three statements on a line: gcc gives each the column of its operator."""
    program = compile_c(COLUMNS, "-O0", name="columns")
    line = COLUMNS.split("\n").index("    sink += n; sink *= 2; sink -= n;") + 1
    columns = [COLUMNS.split("\n")[line - 1].index(text) for text in ("+=", "*=", "-=")]
    (wrong,) = [pytest.raises(SourceError, sources.expand, "uprobe:%s@columns.c:%d:999" % (program, line))]
    offered = [int(hint.rsplit(":", 1)[1]) for hint in wrong.value.hints]
    assert offered == [c + 1 for c in columns]
    places = []
    for column in offered:
        (point,) = sources.expand("uprobe:%s@columns.c:%d:%d" % (program, line, column))
        assert point.name == "uprobe:%s@columns.c:%d:%d" % (program, line, column)
        places.append(point.vaddr)
    assert places == sorted(set(places))
    for column in offered:
        with tracing("uprobe:%s@columns.c:%d:%d" % (program, line, column)) as seen:
            run(program)
        assert seen.hits == 3


@pytest.mark.root
def test_a_file_of_nothing_but_code(tmp_path):
    flat = tmp_path / "code.bin"
    flat.write_bytes(b"\xc3" * 64)
    flat.chmod(0o755)
    source = sources.find("uprobe")
    spec = source.parse([str(flat), "0x10"], sources.Target(unsafe=True))
    point, = source.expand(spec, sources.Target(unsafe=True))
    assert point.file_offset == 16
    with pytest.raises(SourceError, match="code.bin' is no ELF file"):
        source.expand(spec, sources.Target())
    point.vaddr = 64
    with pytest.raises(SourceError, match="has only 64 bytes"):
        point.file_offset


@pytest.mark.parametrize("replaced", [False, True])
def test_the_file_that_the_process_runs(tmp_path, replaced):
    """A path that the process has mapped means the file that it runs, though that is deleted or another one has its name."""
    path = tmp_path / "gone (deleted)" if replaced else tmp_path / "gone"     # a name like the kernel's remark
    shutil.copy(compile_c(LOOP, "-pthread", "-O1", name="loop"), path)
    child = subprocess.Popen([path], stdin=subprocess.PIPE)
    try:
        until_it_waits(child.pid)
        target = Target(pid=child.pid)
        line, = [each.text for each in sources.list_events("uprobe:*:stop", target)]
        assert line == "uprobe:%s:stop" % sources.literal(str(path))
        path.unlink()
        if replaced:
            shutil.copy(compile_c(LOOP, "-pthread", "-O1", "-fno-inline", "-DOTHER", name="loop"), path)
        assert [each.text for each in sources.list_events("uprobe:*:stop", target)] == [line]
        with tracing(line, target=target) as seen:
            child.communicate(b"x")
        assert seen.hits == 1 and seen.points[0].listed == line
    finally:
        child.kill()
        child.wait()


@pytest.mark.slow
def test_changed_root(tmp_path):
    """chroot(2) in the same mount namespace, of which /proc/PID/maps has our paths: with -p they are the process's own."""
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(compile_c(LOOP, "-pthread", "-O1", "-static", name="loop"), root / "prog")
    child = subprocess.Popen(["/prog"], stdin=subprocess.PIPE, preexec_fn=lambda: os.chroot(root))
    try:
        until_it_waits(child.pid)
        target = Target(pid=child.pid)
        assert [e.text for e in sources.list_events("uprobe:*:st?p", target)] == ["uprobe:/prog:step", "uprobe:/prog:stop"]
        with tracing("uprobe:/prog:step", target=target) as seen, tracing("uprobe:stop", target=target) as named, \
                tracing("uprobe:prog:stop", target=target) as short:
            child.communicate(b"x")
        assert (seen.hits, named.hits, short.hits) == (2, 1, 1)
    finally:
        child.kill()
        child.wait()
