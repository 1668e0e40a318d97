"""`rawbpf compile`: LLVM IR to objects that load and do what they say; what LLVM refuses is one line. Needs llvmlite."""

import subprocess

import pytest

from rawbpf.loader import Object
from rawbpf.tools import cli

pytestmark = [pytest.mark.root, pytest.mark.slow]
PACKET = bytes(range(64))

C = """#include "bpf.h"
struct { __uint(type, 1); __uint(max_entries, 8); __type(key, u32); __type(value, u64); } counts SEC(".maps");
struct { __uint(type, 27); __uint(max_entries, 4096); } events SEC(".maps");
u64 total = 100;
u64 zero;
const volatile u64 step = 5;
static const u8 primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};

static noinline u64 prime(u32 index) { return *(const volatile u8 *)&primes[index & 7]; }

static long each(void *map, u32 *key, u64 *value, u64 *sum) { *sum += *value; return 0; }

SEC("tc") int count(void *skb) {
    u32 key = 3;
    u64 one = prime(2), sum = 0, *known = lookup(&counts, &key);
    if (known) __sync_fetch_and_add(known, step); else update(&counts, &key, &one, 0);
    for_each(&counts, each, &sum, 0);
    total += sum;
    zero++;
    output(&events, &total, 8, 0);
    return 7;
}
"""

# No debug information: no maps, but helpers, data, calls between functions.
BY_HAND = r"""
target triple = "bpf"
@seen = global i64 40
@text = private constant [5 x i8] c"abcd\00"
@_license = global [4 x i8] c"GPL\00", section "license"

define internal i32 @twice(i32 %x) noinline {
  %r = mul i32 %x, 2
  ret i32 %r
}

define i32 @main(ptr %skb) section "tc" {
  %now = call i64 inttoptr (i64 5 to ptr)()
  %late = icmp ne i64 %now, 0
  %one = zext i1 %late to i64
  %old = load i64, ptr @seen
  %new = add i64 %old, %one
  store i64 %new, ptr @seen
  %a = getelementptr [5 x i8], ptr @text, i64 0, i64 %one
  %c = load volatile i8, ptr %a
  %w = zext i8 %c to i32
  %r = call i32 @twice(i32 %w)
  ret i32 %r
}
"""

REFUSED = [  # IR, options, words of the only line
    ("this is no IR", (), "expected top-level entity"),
    ("define i64 @f() {\n  ret i64 %nothing\n}", (), "use of undefined value '%nothing'"),
    ("define i64 @f(i64 %a) {\n  %b = add i64 %b, 1\n  ret i64 %b\n}", (), "Only PHI nodes may reference their own value"),
    ("define i64 @f(i64 %a, i64 %b) {\n  %c = sdiv i64 %a, %b\n  ret i64 %c\n}", ("--mcpu", "v1"), "signed division"),
    ("define void @f() {\n  %a = alloca [600 x i8]\n  call void inttoptr (i64 4 to ptr)(ptr %a, i32 600)\n  ret void\n}", (),
     "stack"),
    ("define i64 @f(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f) {\n  ret i64 %f\n}", (), "stack arguments are not supported"),
    ("define double @f(double %a) {\n  %b = fadd double %a, %a\n  ret double %b\n}", (), ""),
    ('target triple = "x86_64-linux-gnu"\ndefine i64 @f() {\n  ret i64 0\n}', (), "x86_64"),
    ("define void @f(ptr %p, ptr %q, i64 %n) {\n  call void @llvm.memcpy.p0.p0.i64(ptr %p, ptr %q, i64 %n, i1 false)\n"
     "  ret void\n}\ndeclare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)", (), "memcpy"),
]


@pytest.fixture
def compile(tmp_path, monkeypatch, capfd):
    """compile(text, option...) -> (exit status, standard error, path of the object)."""
    monkeypatch.chdir(tmp_path)

    def call(text, *options):
        (tmp_path / "f.ll").write_text(text)
        status = cli.main(["compile", *options, "f.ll"])
        return status, capfd.readouterr().err, tmp_path / "f.o"
    return call


@pytest.mark.peer
@pytest.mark.parametrize("level, cpu", [("1", "v2"), ("2", "v4"), ("3", "v3")])
def test_what_clang_writes(compile, tmp_path, level, cpu):
    """Maps of BTF, data of all kinds, a callback, a function of its own, a ring buffer. (Without optimisation
    helpers are called through variables, which BPF does not have.)"""
    from tests.bpfcc import FIXTURES, clang
    (tmp_path / "t.c").write_text(C)
    subprocess.run([*clang(), "-target", "bpf", "-g", "-O2", "-Xclang", "-disable-llvm-passes", "-nostdinc", "-I",
                    str(FIXTURES), "-emit-llvm", "-S", "t.c", "-o", "t.ll"], cwd=tmp_path, check=True)
    status, error, path = compile((tmp_path / "t.ll").read_text(), "-O" + level, "--mcpu", cpu)
    assert (status, error) == (0, "")
    with Object.open(str(path)) as obj:
        assert {name: (map.type, map.key_size, map.value_size, map.max_entries) for name, map in obj.maps.items()
                if name in ("counts", "events")} == {"counts": ("hash", 4, 8, 8), "events": ("ringbuf", 0, 0, 4096)}
        obj.rodata["step"] = 6
        obj.load()
        run = obj.programs["count"].program.test_run
        assert [run(PACKET).retval for _ in range(3)] == [7, 7, 7]
        # 5 the first time, then 6 more each time
        assert dict(obj.maps["counts"].items()) == {3: 17}
        assert obj.data["total"] == 100 + 5 + 11 + 17 and obj.bss["zero"] == 3


@pytest.mark.parametrize("level", ["0", "2"])
def test_by_hand(compile, level):
    status, error, path = compile(BY_HAND, "-O" + level)
    assert (status, error) == (0, "")
    with Object.open(str(path)) as obj:
        obj.load()
        assert obj.programs["main"].program.test_run(PACKET).retval == 2 * ord("b")


def test_assembly(compile, tmp_path):
    assert compile(BY_HAND, "-S")[0] == 0
    assert "call 5" in (tmp_path / "f.s").read_text()


def test_no_folder_for_temporary_files_is_needed(monkeypatch):
    import tempfile
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [])
    monkeypatch.setattr(tempfile, "tempdir", None)
    from rawbpf.asm.llvm import object_of
    assert object_of('define i32 @f(ptr %0) section "xdp" { ret i32 2 }').startswith(b"\x7fELF")


def test_a_module_made_in_python():
    from llvmlite import ir
    from rawbpf.asm.llvm import assembly_of, object_of
    module = ir.Module("m")
    module.triple = "bpf"
    word = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(word, [ir.PointerType()]), "main")
    function.section = "tc"
    builder = ir.IRBuilder(function.append_basic_block())
    mark = builder.gep(function.args[0], [ir.Constant(word, 8)], source_etype=ir.IntType(8))
    builder.store(ir.Constant(ir.IntType(32), 5), mark)
    read = builder.zext(builder.load(mark, typ=ir.IntType(32)), word)
    builder.ret(builder.mul(read, ir.Constant(word, 9)))
    with Object.parse(object_of(module)) as obj:
        obj.load()
        assert obj.programs["main"].program.test_run(PACKET).retval == 45
    assert "exit" in assembly_of(module)


@pytest.mark.parametrize("text, options, words", REFUSED)
def test_what_llvm_refuses(compile, text, options, words):
    status, error, path = compile(text, *options)
    assert status == 1 and not path.exists()
    assert error.startswith("ERROR: f.ll: ") and error.count("\n") == 1 and words in error, error
    assert len(error) > len("ERROR: f.ll: x\n")


def test_division_and_tables_for_every_instruction_set():
    """What LLVM has no instruction for, or wants data for, is made another way."""
    from rawbpf.asm import ir
    from rawbpf.loader.program import Program
    from rawbpf.tools.trace.llvm import code_of
    edges = (0, 1, -1, 7, -7, 1 << 31, -(1 << 63), (1 << 63) - 1)
    for cpu in ("v1", "v2", "v3"):
        f = ir.Function("main")
        total = f.variable()
        f.set(total, 0)
        values = [f.load(f.params[0], 8, 4) for _ in edges]      # the mark: 0, but LLVM does not know
        wanted = 0
        for a, x in zip(values, edges):
            for y in edges:
                for operator in ("s/", "s%"):
                    f.set(total, f.alu("+", f.alu("*", total, 3), f.alu(operator, f.alu("+", a, x), y)))
                    quotient = 0 if not y else abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1)
                    wanted = wanted * 3 + (quotient if operator == "s/" else x - quotient * y)
        f.ret(f.alu("^", total, f.alu(">>", total, 32)))
        wanted &= (1 << 64) - 1
        code, tables = code_of(f, cpu)
        assert not tables
        with Program.load("sched_cls", code.instructions) as program:
            assert program.test_run(PACKET).retval == (wanted ^ wanted >> 32) & 0xffffffff
