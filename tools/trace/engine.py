"""From script text to something that can run: parser and compiler in one call."""


def compile_script(text, name="script", positional=(), named=(), pid=None, unsafe=False, command=None):
    """The `compiled.Compiled` of a script. ScriptError (with places in the text) when it is wrong.

    positional: $1, $2, ...; named: --NAME=VALUE options of the script, without the dashes; pid: the
    process that -p and -c limit the trace to; command: that of -c, for $cpid and paths.
    """
    from .compiler import Compiler
    from .diagnostics import Source
    from .parser import parse
    from rawbpf.sources import Target
    source = Source(name, text)
    script = parse(source, positional=list(positional))
    return Compiler(script, target=Target(pid=pid, unsafe=unsafe)).compile()
