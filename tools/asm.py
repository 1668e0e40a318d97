"""`rawbpf asm FILE...`: assembly text to instructions."""

import sys

from .failure import Failure, command, output_path, read_bytes, write_file
from .options import Option

OPTIONS = (
    Option("output", "o", "output", "FILE", "write there instead of to the standard output"),
    Option("format", "f", "format", "FORMAT", "raw (8 bytes an instruction, this machine's byte order),\n"
                                              "elf (an object), c-array or json; default: raw"),
    Option("section", "s", "section", "NAME", "the section to write (raw and c-array, where there are more)"),
    Option("help", "h", "help", "", "this text"),
)
USAGE = """usage: rawbpf asm [OPTION...] FILE...      (- is the standard input)

Assembles the files as if they were one. An instruction is written as the verifier's log, bpftool and
llvm-objdump print it; one that has no text is .insn CODE, DST, SRC, OFF, IMM. Beside instructions there are

  NAME:                                  a label (1: may come again; 1b and 1f are the nearest)
  .section NAME, .text                   a program, by what it attaches to; functions that programs call
  .map NAME TYPE key=N value=N max_entries=N [flags=N] [pinning=N] [numa_node=N] [map_extra=N] [inner=MAP]
  .license "GPL"   .globl NAME           a program of its own, where a section holds several
  .equ NAME, EXPRESSION                  a constant; NAME = EXPRESSION is the same
  .include "FILE"
  .data, .rodata, .bss                   then .byte .short .long .quad .string .ascii .zero .align
  .kfunc DECLARATION   .ksym DECLARATION the kernel's functions and variables, in C or by name; .weak NAME
  ; // # /* */                           comments

and references: call NAME; r1 = map[NAME] ll, map[NAME][0]+8 ll, NAME ll, func[NAME] ll, ksym[NAME] ll,
map_fd[N] ll, map_idx[N] ll, btf_id[N] ll.

options:
"""
FORMATS = ("raw", "elf", "c-array", "json")


def run(argv):
    return command(OPTIONS, USAGE, work, argv)


def assemble(paths):
    """The Assembly of the files; "-" is the standard input."""
    return assembled([(path, read_bytes(path)) for path in paths])


def assembled(files):
    """The Assembly of (path, content) pairs."""
    from rawbpf.asm.text import assemble_sources
    sources = []
    for path, data in files:
        shown = "stdin" if path == "-" else path
        try:
            sources.append((shown, data.decode("utf-8")))
        except UnicodeDecodeError as error:
            raise Failure("%s: byte %d is no UTF-8 text" % (shown, error.start)) from None
    return assemble_sources(sources)


def work(parsed):
    form = parsed.get("format", "raw")
    if form not in FORMATS:
        raise Failure("--format takes %s, not '%s'" % (", ".join(FORMATS), form))
    if not parsed.operands:
        raise Failure("a file is needed; - is the standard input")
    output = parsed.get("output")
    if output is not None:
        output_path(output, *parsed.operands)
    assembly = assemble(parsed.operands)
    data = made(assembly, form, parsed.get("section"))
    if output is None:
        if form in ("raw", "elf") and sys.stdout.isatty():
            raise Failure("instructions are no text for a terminal: name a file with -o, or use --format c-array")
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return 0
    write_file(output, data)
    return 0


def made(assembly, form, section=None):
    """The bytes of one format."""
    from rawbpf.asm import formats
    if form in ("elf", "json") and not (assembly.maps or assembly.data or any(
            section.instructions for section in assembly.sections.values())):
        raise Failure("there are no instructions, maps or data")
    if form == "elf":
        from rawbpf.asm import write_object
        from rawbpf.loader.uapi import MAP_TYPES
        from .kernel_symbols import kernel_type
        return write_object(assembly, MAP_TYPES, kernel_type)
    if form == "json":
        return formats.json_text(assembly).encode() + b"\n"
    instructions, lines, _ = assembly.link(section)
    if form == "raw":
        return formats.raw(instructions, lines=lines)
    return formats.c_array(instructions).encode()
