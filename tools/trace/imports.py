"""`import "name";`: what other files add to a script.

A `.bt` file adds its probes (which come before those of the script), macros, maps and C definitions, and what it
imports itself; a `.h` file its C text; a folder all of its files. Names are looked for beside the file that has the
`import`, then beside the script. Nothing is taken from where everybody may write. `stdlib/...` names parts of
bpftrace's own library, which is built in here.
"""
import os
import stat

from . import ast
from .diagnostics import ScriptError, Source

LIBRARY = "stdlib"


class Imports:
    """The imports of one script. `texts`: of all files that were read."""

    def __init__(self, script, diagnostics):
        self.script, self.diagnostics = script, diagnostics
        self.root = _folder(script.source)
        self.seen = set()
        self.texts = [script.source.text]

    def follow(self):
        """Put what is imported into the script; errors are added to the diagnostics."""
        items = self._items(self.script, self.root)
        first = next((index for index, item in enumerate(self.script.items) if not isinstance(item, ast.CDefinition)),
                     len(self.script.items))
        own = [item for item in self.script.items if not isinstance(item, ast.Import)]
        self.script.items[:] = own[:first] + items + own[first:]

    def _items(self, script, folder):
        items = []
        for node in script.imports:
            items += self._import(node, folder)
        return items

    def _import(self, node, folder):
        name = node.name
        checked = []
        for place in dict.fromkeys((folder, self.root)):
            path = os.path.join(place, name)
            checked.append(os.path.normpath(path) if place else name)
            if not os.path.exists(path):
                continue
            if _writable_by_all(path):
                self.diagnostics.warning(node.span, 'skipping due to global write permissions: "%s"' % path)
                continue
            return self._any(node, path, os.path.isdir(path))
        if name == LIBRARY or name.startswith(LIBRARY + "/"):
            return []
        self.diagnostics.error(node.span, "Unable to find suitable path for import", ["checked: " + ",".join(checked)])
        return []

    def _any(self, node, path, folder):
        """The items of a file, or of the files of a folder."""
        real = os.path.realpath(path)
        if real in self.seen:
            return []
        self.seen.add(real)
        if folder:
            items = []
            for name in sorted(os.listdir(path)):
                inner = os.path.join(path, name)
                if os.path.isfile(inner) and name.endswith((".bt", ".h", ".bpf.c", ".bpf.o")):
                    items += self._any(node, inner, False)
            return items
        if path.endswith((".bpf.c", ".bpf.o")):
            self.diagnostics.error(node.span, "importing \"%s\" is not supported: functions in C need a compiler, which rawbpf has "
                                   "not; .bt and .h files can be imported" % os.path.basename(path))
            return []
        if path.endswith(".h"):
            return [ast.CDefinition(node.span, '#include "%s"' % os.path.abspath(path))]
        if not path.endswith(".bt"):
            self.diagnostics.error(node.span, 'unknown import type: "%s"' % os.path.basename(path))
            return []
        return self._script(node, path)

    def _script(self, node, path):
        from .parser import parse
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                text = file.read()
        except OSError as error:
            self.diagnostics.error(node.span, "error reading import '\"%s\"': %s" % (path, error.strerror))
            return []
        try:
            script = parse(Source(path, text))
        except ScriptError as error:
            self.diagnostics.add(error)
            return []
        self.texts.append(text)
        if script.config is not None:
            self.diagnostics.error(script.config.span, "invalid `config` within import")
        items = self._items(script, _folder(script.source))
        return items + [item for item in script.items if not isinstance(item, (ast.Import, ast.Config))]


def _folder(source):
    """The folder of a script's file; the one at hand for a script that is in none."""
    return "" if source.name == "stdin" else os.path.dirname(source.name)


def _writable_by_all(path):
    return any(os.stat(each).st_mode & stat.S_IWOTH for each in (path, os.path.dirname(path) or "."))


def follow(script, diagnostics):
    """Carry out the imports of a Script in place. Returns the text of all its files."""
    imports = Imports(script, diagnostics)
    imports.follow()
    diagnostics.check()
    return "\n".join(imports.texts)
