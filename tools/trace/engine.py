"""From script text to something that can run: the front end and the compiler in one call."""


def compile_script(text, name="script", positional=(), named=(), pid=None, cpid=None, unsafe=False,
                   include_paths=(), includes=(), warnings=1,
                   probe_filter=None):
    """The `compiled.Compiled` of a script. ScriptError (with places in the text) when it is wrong.

    positional: $1, $2, ...; named: --NAME=VALUE options of the script, without the dashes; pid: the
    process that the trace is limited to; cpid: the one that -c has started; include_paths, includes: folders
    to look for the files of `#include` lines in, and files that are included before the script; warnings, probe_filter: see
    compiler.Options.
    """
    from rawbpf.sources import Target
    from . import frontend
    from .compiler import Compiler
    from .diagnostics import Diagnostics, Source
    from .parser import parse
    diagnostics = Diagnostics()
    script = parse(Source(name, text), positional, diagnostics)
    compiler = Compiler(script, Target(pid=pid, unsafe=unsafe), positional, cpid, diagnostics=diagnostics,
                        warnings=warnings, probe_filter=probe_filter)
    compiler.names = frontend.run(script, compiler._find_type, positional, named, include_paths, includes, diagnostics)
    return compiler.compile()
