"""Stacks as text: source lines, inlined calls, names of C++ and Rust."""

import re
import subprocess

import pytest

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

INLINED = r"""
#include <unistd.h>
volatile int sink;
__attribute__((noinline)) void leaf(int x)
{
    usleep(1);
    __asm__ volatile("leave_here: nop\n.size leave_here, 1" : : : "memory");
    sink = x;
}
static inline __attribute__((always_inline)) void inner(int x)
{
    leaf(x + 1);
    sink++;
}
__attribute__((noinline)) void outer(int x)
{
    inner(x * 2);
    sink++;
}
int main(void) { for (volatile int i = 0; i < 3; i++) { outer(i); } return 0; }
"""


def line_of(source, text):
    return next(n for n, line in enumerate(source.splitlines(), 1) if text in line)


@pytest.fixture
def inlined(tmp_path, compile_c):
    # the stack is the kernel's: it needs frame pointers
    (tmp_path / "inl").symlink_to(compile_c(INLINED, "-O1", "-fno-omit-frame-pointer", name="inl"))
    return tmp_path


def stack(rawbpf, folder, script, program="./inl"):
    done = rawbpf("trace", "-q", "-c", program, "-e", script, cwd=folder)
    assert done.returncode == 0 and done.stderr == ""
    return done.stdout


def test_lines_and_inlined_calls(rawbpf, inlined):
    out = stack(rawbpf, inlined, "uprobe:./inl:leave_here { @[ustack(3)] = count(); }")
    leaf, call, calls = (line_of(INLINED, text) for text in ("leave_here", "leaf(x + 1)", "inner(x * 2)"))
    # behind the call of leaf() is the next line, and the stack says the call's
    assert re.search(r"@\[\n        (leave_here|leaf)\+\d+@\S*/inl\.c:%d\n        \[inlined\] inner@\S*/inl\.c:%d\n"
                     r"        outer\+\d+@\S*/inl\.c:%d\n        main\+\d+@\S*/inl\.c:%d\n\]: 3\n"
                     % (leaf, call, calls, line_of(INLINED, "int main")), out)


def test_perf_mode_has_no_lines(rawbpf, inlined):
    out = stack(rawbpf, inlined, "uprobe:./inl:leave_here { @[ustack(perf, 2)] = count(); }")
    assert re.search(r"@\[\n\t[0-9a-f]+ (leave_here|leaf)\+\d+ \(\S*/inl\)\n\t([0-9a-f]+) inner \(inlined\)\n"
                     r"\t\2 outer\+\d+ \(\S*/inl\)\n\]: 3\n", out)


@pytest.mark.parametrize("how", ("config = { show_debug_info=0 } ", "config = { show_debug_info=false } "))
def test_names_only(rawbpf, inlined, how):
    out = stack(rawbpf, inlined, how + "uprobe:./inl:leave_here { @[ustack(2)] = count(); }")
    assert re.search(r"@\[\n        (leave_here|leaf)\+\d+\n        outer\+\d+\n\]: 3\n", out)


MANGLED = r"""
__attribute__((noinline)) int one(int) __asm__("_ZN2ns1S3runEiPKc");
__attribute__((noinline)) int two(int) __asm__("_ZN3app12$LT$impl$GT$3run17h00112233445566eeE");
volatile int sink;
int one(int x) { sink = x; return x + 1; }
int two(int x) { sink = x; return x + 2; }
int main(void) { for (int i = 0; i < 3; i++) { one(i); two(i); } return 0; }
"""


def test_names_of_cplusplus_and_rust(rawbpf, tmp_path, compile_c):
    (tmp_path / "m").symlink_to(compile_c(MANGLED, "-O1", "-g0", name="m"))
    script = ('uprobe:./m:_ZN2ns1S3runEiPKc, uprobe:./m:"_ZN3app12$LT$impl$GT$3run17h00112233445566eeE" '
              '{ @f[func] = count(); @u[usym(reg("ip"))] = count(); @s[ustack(1)] = count(); @p[probe] = count(); }')
    out = stack(rawbpf, tmp_path, script, "./m")
    cplusplus, rust = "ns::S::run(int, char const*)", "app::<impl>::run"
    for name in (cplusplus, rust):
        assert "@f[%s]: 3\n" % name in out
        assert "@u[%s]: 3\n" % name in out
        assert "@s[\n        %s+0\n]: 3\n" % name in out
    assert "@p[uprobe:./m:_ZN2ns1S3runEiPKc]: 3\n" in out
    raw = stack(rawbpf, tmp_path, "config = { cpp_demangle=0 } " + script, "./m")
    for name in ("_ZN2ns1S3runEiPKc", "_ZN3app12$LT$impl$GT$3run17h00112233445566eeE"):
        assert "@f[%s]: 3\n" % name in raw
        assert "@u[%s]: 3\n" % name in raw
        assert "@s[\n        %s+0\n]: 3\n" % name in raw
    assert subprocess.run(["c++filt", "_ZN2ns1S3runEiPKc"], text=True, capture_output=True).stdout.strip() == cplusplus


def test_build_ids(rawbpf, inlined):
    out = stack(rawbpf, inlined, "uprobe:./inl:leave_here { @[ustack(build_id, 2)] = count(); }")
    build_id = re.search(r"Build ID: (\w+)", subprocess.run(["readelf", "-n", "./inl"], cwd=inlined, text=True,
                                                              capture_output=True).stdout).group(1)
    # the first segments of this program have equal addresses and file offsets
    place = next(line.split()[0] for line in subprocess.run(["nm", "./inl"], cwd=inlined, text=True, capture_output=True)
                 .stdout.splitlines() if line.endswith(" leave_here"))
    assert re.search(r"@\[\n%s 0x%x\n%s 0x[0-9a-f]+\n\]: 3\n" % (build_id, int(place, 16), build_id), out)


JIT = r"""
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
volatile int sink;
__attribute__((noinline)) void leaf(void) { usleep(1); __asm__ volatile("leave_here: nop\n.size leave_here, 1" : : : "memory"); sink = 1; }
int main(void)
{
    /* push %rbp; mov %rsp,%rbp; call *%rdi; pop %rbp; ret */
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
    unsigned char *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char name[64];
    memcpy(page + 64, code, sizeof code);
    snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(name, "w");
    fprintf(map, "%lx %x Foo::made at run time\n", (unsigned long)page + 64, (unsigned)sizeof code);
    fclose(map);
    usleep(300000);     /* the reader gets to know the page */
    for (volatile int i = 0; i < 3; i++) ((void (*)(void (*)(void)))(page + 64))(leaf);
    usleep(300000);
    unlink(name);
    return 0;
}
"""


@pytest.mark.parametrize("function", ("ustack", "dw_ustack"))
def test_code_that_was_made_at_run_time(rawbpf, tmp_path, compile_c, function):
    """perf's map file names it; where no unwinding table knows it, its frame pointer leads on."""
    (tmp_path / "jit").symlink_to(compile_c(JIT, "-O1", "-g0", "-fno-omit-frame-pointer", name="jit"))
    out = stack(rawbpf, tmp_path, "config = { unstable_dw_ustack=enable } uprobe:./jit:leave_here { @[%s(3)] = count(); } "
                "interval:ms:50 { print(@); }" % function, "./jit")
    assert re.search(r"@\[\n        (leave_here|leaf)\+\d+\n        Foo::made at run time\+6\n        main\+\d+\n\]: 3\n", out)
