"""`-d STAGE`: what the compiler made of a script, stage by stage.

"ast" the parsed script, "types" the script's maps and their types, "ir" the code generator's input,
"asm" the instructions; "verifier" (the kernel's log) is printed when the programs are loaded.
"""


def show(compiled, stages, stream):
    """Print the asked-for stages of a Compiled to a text stream."""
    for stage in ("ast", "types", "ir", "asm"):
        if stage in stages:
            stream.write("# %s\n" % stage)
            _SHOWN[stage](compiled, stream)
            stream.write("\n")


def _ast(compiled, stream):
    from .printer import text
    stream.write(text(compiled.script).rstrip("\n") + "\n")


def _types(compiled, stream):
    for info in compiled.maps.values():
        key = "" if info.key_type is None else "[%s]" % info.key_type
        stream.write("%s%s: %s (%s, %s)\n" % (info.name, key, info.value_type, info.storage, info.kernel_map))
    for info in compiled.kernel_maps.values():
        stream.write("map %s: %s, key %d, value %d, %d entries\n" % (
            info.name, info.map_type, info.key_size, info.value_size, info.max_entries))


def _heading(program):
    names = [point.name for point in program.points]
    more = "" if len(names) <= 3 else ", and %d more" % (len(names) - 3)
    return "; %s (%s): %s%s\n" % (program.name, program.program_type, ", ".join(names[:3]), more)


def _ir(compiled, stream):
    for program in compiled.programs:
        if program.function is not None:
            stream.write(_heading(program) + str(program.function).rstrip("\n") + "\n")


def _asm(compiled, stream):
    from rawbpf.asm import disassemble
    for program in compiled.programs:
        stream.write(_heading(program) + disassemble(program.code.instructions).rstrip("\n") + "\n")


_SHOWN = {"ast": _ast, "types": _types, "ir": _ir, "asm": _asm}


def verifier_log(program, log, stream):
    """Print the verifier's log of a loaded program."""
    stream.write("# verifier\n" + _heading(program) + log.rstrip("\n") + "\n\n")
