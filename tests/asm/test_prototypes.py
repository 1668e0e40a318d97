"""Declarations of kernel symbols, and the objects that expect them."""

import json
import subprocess

import pytest

from rawbpf.asm import AsmError, assemble, write_object
from rawbpf.asm.formats import json_text
from rawbpf.asm.prototypes import text
from rawbpf.elf.bpf_object import BpfObjectFile
from rawbpf.loader import Object
from rawbpf.loader.uapi import MAP_TYPES
from rawbpf.tools.kernel_symbols import kernel_type
from rawbpf.tools.objects import read_object
from tests import peers

INT = ("int", "int", 4, True)


@pytest.mark.parametrize("line, name, kind, again", [
    (".kfunc void f(void)", "f", ("function", ("void",), ()), None),
    (".kfunc int f()", "f", ("function", INT, ()), "int f(void)"),
    (".kfunc struct task_struct *f(struct task_struct *p, u64 flags)", "f",
     ("function", ("pointer", ("struct", "task_struct")), (("pointer", ("struct", "task_struct")), ("int", "u64", 8, False))),
     "struct task_struct *f(struct task_struct *, u64)"),
    (".kfunc const char *f(const void *const x, unsigned long long n, enum e e)", "f",
     ("function", ("pointer", ("int", "char", 1, True)),
      (("pointer", ("void",)), ("int", "unsigned long long", 8, False), ("enum", "e"))),
     "char *f(void *, unsigned long long, enum e)"),
    (".kfunc int f(int (*call)(void *, int), char name[16])", "f",
     ("function", INT, (("pointer", ("function", INT, (("pointer", ("void",)), INT))), ("pointer", ("int", "char", 1, True)))),
     "int f(int (*)(void *, int), char *)"),
    (".ksym int v", "v", INT, None),
    (".ksym struct rq v", "v", ("struct", "rq"), None),
    (".ksym unsigned long v[4][2]", "v", ("array", ("array", ("int", "unsigned long", 8, False), 2), 4), None),
    (".kfunc f", "f", None, None), (".ksym a, v, b", "v", None, None),
])
def test_declarations(line, name, kind, again):
    made = assemble(line)
    known = made.kfuncs if line.startswith(".kfunc") else made.ksyms
    assert known[name] == kind
    if kind:
        assert text(name, kind) == again or text(name, kind) == line.split(" ", 1)[1]
        written = assemble("%s %s" % (line.split()[0], text(name, kind)))
        assert (written.kfuncs or written.ksyms) == {name: kind}


@pytest.mark.parametrize("line, column, words", [
    (".kfunc foo f(void)", 8, "expected a C type (void, int, u64, struct NAME, ... and * behind it)"),
    (".kfunc int f(void", 18, "expected , or )"), (".kfunc int", 8, None), (".kfunc struct *f(void)", 15, "name of the struct"),
    (".kfunc int f(int x y)", 20, "expected , or )"), (".kfunc int v", 8, "declares no function"),
    (".ksym int f(void)", 7, "declares no variable"), (".ksym void v", 7, "declares no variable"),
    (".kfunc int f(void) x", 20, "nothing more"), (".kfunc", 7, "expected"), (".ksym int v[x]", 13, "expected a number"),
])
def test_declarations_that_are_wrong(line, column, words):
    if words is None:       # a kfunc whose name is int
        assert assemble(line).kfuncs == {"int": None}
        return
    with pytest.raises(AsmError) as caught:
        assemble(line)
    assert caught.value.column == column and words in caught.value.reason


PROGRAM = """
.license "GPL"
.map cells array key=4 value=8 max_entries=4
.map outer array_of_maps key=4 value=4 max_entries=2 inner=cells
.map byname hash_of_maps key=8 value=4 max_entries=2 inner=cells
.kfunc void bpf_rcu_read_lock(void)
.kfunc bpf_rcu_read_unlock
.kfunc int invented_by_nobody(struct task_struct *)
.weak invented_by_nobody
.section tc
prog:
    call bpf_rcu_read_lock
    r1 = map[outer] ll
    *(u32 *)(r10 - 4) = 0
    r2 = r10
    r2 += -4
    call bpf_map_lookup_elem
    r6 = r0
    call bpf_rcu_read_unlock
    r1 = map[byname] ll
    r0 = 7
    r1 = invented_by_nobody ll
    if r1 == 0 goto out
    call invented_by_nobody
out:
    exit
"""


def symbols(name, kind):
    return ("function", ("void",), ()) if (name, kind) == ("bpf_rcu_read_unlock", "func") else None


def test_the_object_says_what_it_expects_of_the_kernel():
    file = BpfObjectFile.parse(write_object(assemble(PROGRAM), MAP_TYPES, symbols))
    assert {name: (e.kind, e.weak) for name, e in file.externs.items()} == {
        "bpf_rcu_read_lock": ("kfunc", False), "bpf_rcu_read_unlock": ("kfunc", False), "invented_by_nobody": ("kfunc", True)}
    function = file.btf.find("invented_by_nobody", "func")
    assert [p.type.target.name for p in function.parameters] == ["task_struct"] and function.returns.name == "int"
    with pytest.raises(AsmError, match=r"<text>:19:5: .*bpf_rcu_read_unlock.*\.kfunc int bpf_rcu_read_unlock\(void\)"):
        write_object(assemble(PROGRAM), MAP_TYPES)


def test_the_object_read_back():
    made = assemble(PROGRAM)
    read = read_object(write_object(made, MAP_TYPES, symbols), "x.o")
    assert read.maps == made.maps and read.weak == made.weak
    assert read.kfuncs == {**made.kfuncs, "bpf_rcu_read_unlock": ("function", ("void",), ())}
    assert read.sections["tc"].instructions == made.sections["tc"].instructions
    fields = json.loads(json_text(read))
    assert fields["kfuncs"]["invented_by_nobody"] == "int invented_by_nobody(struct task_struct *)"


@pytest.mark.parametrize("text, words", [
    (".map o array_of_maps key=4 value=4 max_entries=1", "map o: inner=NAME says which"),
    (".map o array_of_maps key=4 value=4 max_entries=1 inner=x", "map o: its inner map x is not defined"),
    (".map o array key=4 value=4 max_entries=1 inner=o", "only array_of_maps and hash_of_maps"),
    (".map o array_of_maps key=4 value=4 max_entries=1 inner=o", "cannot have one"),
    (".map o arry key=4 value=4 max_entries=1", "no map type arry; did you mean array"),
])
def test_maps_that_cannot_be(text, words):
    with pytest.raises(AsmError, match=words):
        write_object(assemble(text + "\nr0 = 0\nexit"), MAP_TYPES)


@pytest.mark.kernel(since="6.6")
def test_this_loader_takes_it():
    with Object.parse(write_object(assemble(PROGRAM), MAP_TYPES, kernel_type)) as obj:
        obj.load()
        assert obj.programs["prog"].program.test_run(bytes(64)).retval == 7
        assert {name: each.type for name, each in obj.maps.items()} == {
            "cells": "array", "outer": "array_of_maps", "byname": "hash_of_maps"}


@pytest.mark.vm(since="6.12")
def test_variables_of_the_kernel():
    """How many BPF programs run on this CPU: while one does, at least it."""
    source = """
.license "GPL"
.section tc
    r1 = ksym[bpf_prog_active] ll
    call bpf_this_cpu_ptr
    r0 = *(u32 *)(r0 + 0)
    exit
"""
    for declared in ("", ".ksym int bpf_prog_active"):
        with Object.parse(write_object(assemble(declared + source), MAP_TYPES, kernel_type)) as obj:
            obj.load()
            program, = obj.programs.values()
            assert program.program.test_run(bytes(64)).retval < 100


@pytest.mark.root
@pytest.mark.peer
def test_libbpf_takes_it(tmp_path):
    (tmp_path / "x.o").write_bytes(write_object(assemble(PROGRAM), MAP_TYPES, kernel_type))
    folder = tmp_path / "bpf"
    folder.mkdir()

    def enter():
        peers.private_mounts()
        peers.mount("bpf", str(folder), "bpf")
    script = "%s && %s" % tuple(" ".join(peers.command("bpftool", *words)) for words in (
        ("prog", "load", tmp_path / "x.o", folder / "p"),
        ("-j", "prog", "run", "pinned", folder / "p", "data_in", tmp_path / "packet")))
    (tmp_path / "packet").write_bytes(bytes(64))
    done = subprocess.run(["sh", "-c", script], preexec_fn=enter, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["retval"] == 7


@pytest.mark.parametrize("text, line, words", [
    ("r1 = map[m] ll\nexit", 1, "no .map m"), (".map m array key=4 value=4\n  r1 = map[m][0]+4 ll\nexit", 2, "use a data section"),
    (".section x\na: call f\ngoto b\nexit\nf: r0 = 0\nb: exit\n", 3, "a jump out of the function"),
    ("call kfunc[k]\nexit", 1, "declare it, as in .kfunc int k(void)"), (".ksym int k\nr1 = k ll\nexit\n.section x\nk: exit", 2, "defined here"),
])
def test_what_an_object_cannot_say(text, line, words):
    with pytest.raises(AsmError) as caught:
        write_object(assemble(text, "f.s"), MAP_TYPES)
    first, _, caret = str(caught.value).split("\n")
    assert first.startswith("f.s:%d:" % line) and words in first and caret.strip().startswith("^")
