"""The scripts of tests/tools/scripts: what each needs, and what it prints.

A script's first lines are comments: what it is about, and

    // args: WORD...         the script's arguments
    // program: NAME.c       a program of tests/fixtures that is built and run with -c ./NAME
    // differs: REASON       bpftrace is wrong here; the recorded output was written by hand
    // later: REASON         not supported yet: only parsed
    // slow                  run in CI only
    // live                  the output changes from day to day: only compared with bpftrace

What `rawbpf trace` has to print is recorded beside it, NAME.text and NAME.json. `python -m
tests.tools.corpus [PATTERN]` records what bpftrace prints for scripts that do not differ, and names
those where a record changes.
"""

import fnmatch
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"
FORMS = ("text", "json")


class Script:

    def __init__(self, path):
        self.path = path
        self.name = path.stem
        head = path.read_text(encoding="utf-8")
        values = dict(re.findall(r"^// (args|program|differs|later|row): (.*)$", head, re.M))
        self.args = values.get("args", "").split()
        self.program = values.get("program")
        self.differs = values.get("differs")
        self.later = values.get("later")
        self.live = re.search(r"^// live$", head, re.M) is not None
        self.slow = re.search(r"^// slow$", head, re.M) is not None

    def __repr__(self):
        return self.name

    def command(self, form):
        """The arguments of `rawbpf trace` and of bpftrace, in a folder made by `build`: some print their own path."""
        run = ["-c", "./" + self.program[:-2]] if self.program else []
        return ["-f", form, *run, "scripts/" + self.path.name, *self.args]

    def record(self, form):
        return self.path.with_suffix("." + form)

    def expected(self, form):
        return self.record(form).read_bytes()


def scripts(pattern="*"):
    return [Script(path) for path in sorted((HERE / "scripts").glob("*.bt")) if fnmatch.fnmatch(path.stem, pattern)]


def build(folder, compile_c):
    """Puts the scripts, and the programs that they need, into a folder."""
    (folder / "scripts").symlink_to(HERE / "scripts")
    for name in sorted({script.program for script in scripts() if script.program}):
        (folder / name[:-2]).symlink_to(compile_c((FIXTURES / name).read_text(), "-O1", name=name[:-2]))


def main(pattern="*"):
    import tempfile
    from tests.cc import compile_c
    from tests.peers import bpftrace
    changed = 0
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), compile_c)
        for script in scripts(pattern):
            if script.differs or script.live or script.later:
                continue
            for form in FORMS:
                done = bpftrace(*script.command(form), cwd=folder, text=False, timeout=300)
                if done.returncode and not done.stdout:
                    print("%s: %s" % (script, done.stderr.decode("utf-8", "replace")))
                    break
                record = script.record(form)
                if not record.exists() or record.read_bytes() != done.stdout:
                    changed += 1
                    print("%s: %s" % ("new" if not record.exists() else "changed", record.name), flush=True)
                    record.write_bytes(done.stdout)
    print("%d changed" % changed)


if __name__ == "__main__":
    main(*sys.argv[1:])
