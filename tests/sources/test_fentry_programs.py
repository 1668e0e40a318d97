"""fentry and fexit on BPF programs, and what stacks call them."""

import os
import struct

import pytest

from rawbpf import sources
from rawbpf.asm import compile_function, ir
from rawbpf.asm.btfwriter import code_info
from rawbpf.elf.symbolizer import KernelSymbols
from rawbpf.loader.btf import BtfObject
from rawbpf.loader.maps import Map
from rawbpf.loader.program import Program
from rawbpf.sources import SourceError
from tests.sources.harness import tracing

pytestmark = pytest.mark.vm

NAME = "target_%d" % (os.getpid() % 10000)


def target(maps=None, body=lambda f: None):
    """A loaded raw tracepoint program with BTF that returns 0, run by test_run."""
    f = ir.Function(NAME)
    body(f)
    f.ret(0)
    code = compile_function(f)
    btf, functions, lines = code_info(code)
    return Program.load("raw_tracepoint", code.instructions, name=NAME, maps=maps or {}, btf=BtfObject.load(btf),
                        func_info=functions, line_info=lines)


@pytest.mark.vm(since="5.10")
def test_entry_and_exit_of_a_program():
    with target() as program:
        number = program.info().id
        for text in ("fentry:bpf:%s" % NAME, "fentry:bpf:%d:%s" % (number, NAME), "fexit:bpf:%d:*" % number,
                     "fexit:bpf:*:%s" % NAME):
            with tracing(text) as seen:
                assert [point.name for point in seen.points] == [
                    "%s:bpf:%d:%s" % (text.split(":")[0], number, NAME)]
                for _ in range(3):
                    program.test_run()
            assert seen.hits == 3
        listed = [each.text for each in sources.list_events("fentry:bpf:*")]
        assert "fentry:bpf:%d:%s" % (number, NAME) in listed
    with pytest.raises(SourceError, match="No matches"):
        sources.expand("fentry:bpf:%s" % NAME)


@pytest.mark.vm(since="5.10")
def test_script_on_a_program(rawbpf):
    with target() as program:
        tracer = rawbpf.start("trace", "-e", 'fexit:bpf:%s { printf("%%s\\n", probe); @ = count(); '
                                             "if (@ == 2) { exit(); } }" % NAME)
        while "Attached" not in tracer.stderr.readline():
            assert tracer.poll() is None
        program.test_run()
        program.test_run()
        out, _ = tracer.communicate(timeout=60)
        line = "fexit:bpf:%d:%s\n" % (program.info().id, NAME)
        assert out.count(line) == 2


def test_stack_names_a_program():
    """A program's own frame in a kernel stack is bpf_prog_TAG_NAME."""
    stack = Map.create("array", 4, 8 * 32, 1)

    def body(f):
        f.call("bpf_get_stack", f.params[0], f.map_value("stack"), 8 * 32, 0)

    with target({"stack": stack}, body) as program:
        program.test_run()
        tag = program.info().tag
        addresses = [each for each in struct.unpack("=32Q", stack.lookup(b"\0" * 4)) if each]
        found = [KernelSymbols().resolve(address) for address in addresses]
    tag = tag if isinstance(tag, str) else bytes(tag).hex()
    named = [each for each in found if each and each.name == "bpf_prog_%s_%s" % (tag, NAME)]
    assert named and named[0].module == "bpf", [each and each.name for each in found]


@pytest.mark.parametrize("text, says", [
    ("fentry:bpf:nosuchprogram", "No matches for fentry bpf:nosuchprogram"),
    ("fentry:bpf:x:name", "program id must be a number"), ("fentry:bpf:99999999:*", "No matches")])
def test_refused(text, says):
    with pytest.raises(SourceError, match=says):
        sources.expand(text)


def test_functions_that_cannot_be_attached_to():
    """A variadic function is in BTF, and the kernel attaches nothing there."""
    with pytest.raises(SourceError, match="variable number of arguments|cannot be traced"):
        sources.expand("fentry:_printk" if "_printk" in names() else "fentry:printk")


def names():
    from rawbpf.sources import kernel_btf

    return {name for name, _ in kernel_btf.vmlinux().functions()}


@pytest.mark.slow
@pytest.mark.vm(since="6.1")
def test_every_listed_function_is_one_that_the_kernel_takes():
    """A sample over the alphabet: each attaches."""
    listed = [each.text for each in sources.list_events("fentry:vmlinux:*")]
    tried = 0
    for text in listed[::max(1, len(listed) // 5)]:
        with tracing(text):
            tried += 1
    assert tried >= 5
