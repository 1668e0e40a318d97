"""`rawbpf compile FILE.ll`: LLVM IR to a BPF object, by the optional package llvmlite."""

import os
import sys

from .failure import Failure, command, output_path, read_bytes, write_file
from .options import Option, UsageError

OPTIONS = (
    Option("level", "O", "", "LEVEL", "how much to optimise: 0, 1, 2 or 3 (default: 2)"),
    Option("mcpu", "m", "mcpu", "CPU", "the instruction set: v1, v2, v3 or v4 (default: v3)"),
    Option("assembly", "S", "", "", "write LLVM's assembly text instead of an object"),
    Option("output", "o", "output", "FILE", "write there instead of to FILE.o (FILE.s)"),
    Option("help", "h", "help", "", "this text"),
)
USAGE = """usage: rawbpf compile [OPTION...] FILE.ll      (- is the standard input)

Compiles LLVM IR to a BPF object. Needs the package llvmlite: pip install llvmlite.

options:
"""


def run(argv):
    return command(OPTIONS, USAGE, work, argv)


def work(parsed):
    level, cpu = parsed.get("level", "2"), parsed.get("mcpu", "v3")
    if level not in ("0", "1", "2", "3"):
        raise UsageError("-O takes 0, 1, 2 or 3, not '%s'" % level)
    if cpu not in ("v1", "v2", "v3", "v4"):
        raise UsageError("--mcpu takes v1, v2, v3 or v4, not '%s'" % cpu)
    if len(parsed.operands) != 1:
        raise UsageError("one file is needed; - is the standard input")
    path = parsed.operands[0]
    data = read_bytes(path)
    if b"\0" in data:
        raise Failure("%s: this is no LLVM IR text" % path)
    assembly = bool(parsed.get("assembly"))
    output = parsed.get("output", "-" if path == "-" else os.path.splitext(path)[0] + (".s" if assembly else ".o"))
    output_path(output, path)
    content = compiled(data.decode("utf-8", "replace"), path, cpu, int(level), assembly)
    if output == "-":
        sys.stdout.buffer.write(content)
        return 0
    write_file(output, content)
    return 0


def compiled(text, path, cpu="v3", level=2, assembly=False):
    """The object of IR text, or assembly text; one error where there is no llvmlite, or where LLVM does not take it."""
    from rawbpf.asm import AsmError
    from rawbpf.asm.llvm import assembly_of, object_of
    try:
        return assembly_of(text, cpu, level).encode() if assembly else object_of(text, cpu, level)
    except ImportError:
        raise Failure("this needs the package llvmlite: pip install llvmlite") from None
    except AsmError as error:
        raise Failure("%s: %s" % (path, error)) from None
