"""uprobes on every form of executable and symbol that linkers make; the values are what the program prints."""

import os
import re
import shutil
import subprocess

import pytest

from rawbpf import sources
from rawbpf.sources import SourceError, Target
from tests.cc import compile_c
from tests.elf.files import run as output_of
from tests.sources.harness import argument, tracing

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

SOURCE = r"""
#include <stdio.h>
__attribute__((noinline)) static int local(int n) { __asm__ volatile("" : "+r"(n)); return n * 2; }
__attribute__((noinline)) int global(int n) { return local(n) + 1; }
extern __typeof__(global) other_name __attribute__((alias("global")));
__attribute__((noinline, weak)) int weak(int n) { __asm__ volatile("" : "+r"(n)); return n - 1; }
int main(int argc, char **argv)
{
    (void)argv;
    for (int i = 0; i < 4; i++)
        printf("%d %d %d %d\n", i, local(i), global(i + argc), weak(i));
    return 0;
}
"""
FORMS = [("-pie", "-fPIE"), ("-no-pie",), ("-static",), ("-static-pie", "-fPIE"), ("-no-pie", "-Wl,-Ttext-segment=0x60000000"),
         ("-pie", "-fPIE", "-Wl,-z,noseparate-code"), ("-pie", "-fPIE", "-Wl,-z,separate-code"),
         ("-pie", "-fPIE", "-Wl,-z,max-page-size=0x200000"), ("-no-pie", "-Wl,--section-start=.text=0x12340000")]


def retval(f, ctx, point):
    return [f.extend(point.retval(f, ctx), 4, True)]


@pytest.mark.parametrize("flags", FORMS, ids=" ".join)
def test_forms(flags):
    program = compile_c(SOURCE, "-O1", *flags, name="forms")
    # (its arguments are evaluated from the last to the first: global() calls local() before local() is called)
    printed = [tuple(map(int, line.split())) for line in output_of(program).splitlines()]
    assert len(printed) == 4
    with tracing("uretprobe:%s:local" % program, retval, 1) as seen:
        printed_again = output_of(program)
    assert seen.hits == 8 and printed_again.splitlines() == [" ".join(map(str, row)) for row in printed]
    assert [row[0] for row in seen.rows][1::2] == [row[1] for row in printed]
    with tracing("uprobe:%s:local" % program, argument(0), 1) as seen:
        output_of(program)
    assert [row[0] & 0xffffffff for row in seen.rows][1::2] == [row[0] for row in printed]
    # by an alias, by address, by a wildcard
    (point,) = sources.expand("uprobe:%s:global" % program)
    (alias,) = sources.expand("uprobe:%s:other_name" % program)
    assert alias.vaddr == point.vaddr and alias.name.endswith(":other_name")
    for probe in ("other_name", "0x%x" % point.vaddr, "glob*", "weak"):
        with tracing("uprobe:%s:%s" % (program, probe)) as seen:
            output_of(program)
        assert seen.hits == 4, probe


def test_stripped_library_by_its_dynamic_symbols(tmp_path):
    library = tmp_path / "libx.so"
    shutil.copy(compile_c("int exported(int n) { return n; }", "-shared", "-fPIC", "-O1", name="libx.so"), library)
    output_of("strip", library)
    program = compile_c("#include <dlfcn.h>\nint main(int c, char **v) { int (*f)(int) = dlsym(dlopen(v[c - 1], 1), \"exported\");"
                        " return f(1) + f(2) != 3; }", name="opens-it")
    with tracing("uprobe:%s:exported" % library, argument(0), 1) as seen:
        output_of(program, library)
    assert [row[0] & 0xffffffff for row in seen.rows] == [1, 2]


VERSIONS = r"""
__attribute__((noinline)) int old(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
__attribute__((noinline)) int new(int n) { __asm__ volatile("" : "+r"(n)); return n + 2; }
__asm__(".symver old, step@V_1");
__asm__(".symver new, step@@V_2");
"""


def test_versions(tmp_path):
    """`step@V_1` and `step@@V_2` are two functions; without a version the default is meant."""
    (tmp_path / "map").write_text("V_1 { global: step; local: *; };\nV_2 { global: step; } V_1;\n")
    library = compile_c(VERSIONS, "-shared", "-fPIC", "-O1", "-Wl,--version-script=%s" % (tmp_path / "map"), name="libver.so")
    program = compile_c('#define _GNU_SOURCE\n#include <dlfcn.h>\nint main(int c, char **v) { void *h = dlopen(v[c - 1], 1); int s = 0;'
                        ' for (int i = 0; i < 3; i++) s += ((int (*)(int))dlvsym(h, "step", "V_1"))(i);'
                        ' for (int i = 0; i < 5; i++) s += ((int (*)(int))dlvsym(h, "step", "V_2"))(i); return s != 26; }',
                        name="versions")
    hits = {}
    for probe in ("step@V_1", "step@V_2", "step"):
        with tracing("uprobe:%s:%s" % (library, probe)) as seen:
            subprocess.run([program, library], check=True)
        hits[probe] = seen.hits
    assert hits == {"step@V_1": 3, "step@V_2": 5, "step": 5}
    with pytest.raises(SourceError, match="No matches"):
        sources.expand("uprobe:%s:step@V_3" % library)


WAITS = SOURCE.replace("(void)argv;", "char c; if (argc > 1 && scanf(\"%c\", &c) != 1) return 1; argc = 1;")


def test_a_replaced_file(tmp_path):
    """The process runs what the path was; another program is there now."""
    path = tmp_path / "waits"
    shutil.copy(compile_c(WAITS, "-O1", name="waits"), path)
    child = subprocess.Popen([str(path), "x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        while os.readlink("/proc/%d/exe" % child.pid) != str(path):
            pass
        shutil.copy(compile_c("int local(int n) { return n; } int main(void) { return local(0); }", "-O1", name="another"),
                    tmp_path / "new")
        os.rename(tmp_path / "new", path)
        with tracing("uprobe:local", target=Target(pid=child.pid)) as seen:
            child.communicate(b"x")
        assert seen.hits == 8
    finally:
        child.kill()
        child.wait()


def test_build_id_debug_file(tmp_path, monkeypatch):
    """The symbols of a stripped program are in the global debug folder."""
    from rawbpf.elf import symbols as module
    from rawbpf.elf.image import Image
    path = tmp_path / "stripped"
    shutil.copy(compile_c(SOURCE, "-O1", "-Wl,--build-id", name="forms"), path)
    build_id = Image.open(path).build_id
    folder = tmp_path / "debug" / ".build-id" / build_id[:2]
    folder.mkdir(parents=True)
    output_of("objcopy", "--only-keep-debug", path, folder / (build_id[2:] + ".debug"))
    output_of("strip", "-s", path)
    monkeypatch.setattr(module, "DEBUG_FOLDER", str(tmp_path / "debug"))
    with tracing("uprobe:%s:local" % path) as seen:
        output_of(path)
    assert seen.hits == 8


def test_library_by_soname():
    """Through /etc/ld.so.cache: what ldd says the program maps."""
    program = compile_c("#include <stdlib.h>\nint main(void) { for (int i = 0; i < 5; i++) labs(random()); return atoi(\"0\"); }",
                        "-O0", name="uses-libc")
    path = re.search(r"libc\.so\.6 => (\S+)", output_of("ldd", program)).group(1)
    for name in ("libc", "libc.so.6", path):
        with tracing("uprobe:%s:random" % name) as seen:
            subprocess.run([program], check=True)
        assert os.path.samefile(seen.points[0].binary.path, path)
        assert seen.hits >= 5
