"""bpftrace's own runtime test suite, run against `rawbpf trace`.

    python -m tests.tools.suite --checkout DIR [--work DIR] [--command CMD | --reference] [--json FILE] [--log FILE] [--patience N]
        [REGEX...]
    python -m tests.vm --kernel 6.12 --add WORK=/suite --shell 'python3 -m tests.tools.suite --work /suite REGEX...'

DIR is a work tree of bpftrace at its newest release (its sources are on GitHub, and in Debian's source package
where the mirror carries sources). Each file of tests/runtime holds cases of lines `DIRECTIVE text` (its
tests/README.md describes them); a REGEX selects by "file.name". The cases' programs are compiled with gcc into
the work folder. One line a file is printed, and what failed with the reason; `--log` has everything.

LEFT_OUT names the cases that say nothing about the language or the kernel, one by one.
"""

import argparse
import collections
import json
import os
import platform
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ATTACH_TIMEOUT = 10
TIMEOUT = 5
ATTACHED = "__BPFTRACE_NOTIFY_PROBES_ATTACHED\n"
EXPECTATIONS = {"EXPECT": "text", "EXPECT_NONE": "text_none", "EXPECT_REGEX": "regex", "EXPECT_REGEX_NONE": "regex_none",
                "EXPECT_FILE": "file", "EXPECT_JSON": "json"}
FEATURES = {
    "loop": "loop: yes", "btf": "btf: yes", "dpath": "dpath: yes", "iter": "iter: yes",
    "dwarf": "libdw (DWARF support): yes", "kprobe_multi": "kprobe_multi: yes", "kprobe_session": "kprobe_session: yes",
    "uprobe_multi": "uprobe_multi: yes", "get_func_ip": "get_func_ip: yes", "get_tai_ns": "get_tai_ns: yes",
    "lookup_percpu_elem": "lookup_percpu_elem: yes", "dwunwind": "dwunwind (DWARF stack unwinding): yes",
    "blazesym": "blazesym (advanced symbolization): yes", "libpath_resolv": "libpath_resolv: yes",
    "skboutput": "skboutput: yes", "fentry": "fentry: yes", "signal": "send_signal: yes", "jiffies64": "jiffies64: yes",
    "probe_read_kernel": "probe_read_kernel: yes", "aot": "aot: yes"}

LEFT_OUT = {
    "basic.it shows version": "the version of a program that is called bpftrace",
    "basic.non existent library include fails": "clang's message, with the name of a file that bpftrace makes for it",
    "btf.redefine_btf_type_missing_def": "clang's message: here BTF has the struct that the script does not define",
    "call.ustack_with_inlined_funcs": "wants the frames of a libc with frame pointers and without names (\"_end+N\"): Debian's, "
                                      "on the host and in the guests, has neither",
    "interop.interop return types": "a C function of bpftrace's library that is there for this test",
    "probe.kprobe_wildcard probe builtin": "wants ten programs at least where one serves all",
    "probe.bpf_programs_limit": "a program for each function that `probe` tells apart: here one serves all, so the limit is not met",
    "other.named command line params aot": "bpftrace's ahead-of-time compiler, which links LLVM's output",
}
OURS = """#!%s
import sys
sys.path[1:1] = %r
from rawbpf.tools.cli import main
sys.exit(main(["trace"] + sys.argv[1:]))
"""


class Case:
    """One test: `directives` {name: text or list of texts}, `expects` [(mode, text)]."""

    MANY = ("BEFORE", "REQUIRES", "REQUIRES_FEATURE")

    def __init__(self, suite, lines):
        self.suite, self.directives, self.expects = suite, {}, []
        last = ""
        for line in lines:
            if last and line[:len(last) + 1].isspace() and last in ("PROG", "EXPECT", "EXPECT_REGEX"):
                more = "\n" + line[len(last) + 1:].rstrip("\n")
                if last == "PROG":
                    self.directives[last] += more
                else:
                    self.expects[-1] = self.expects[-1][0], self.expects[-1][1] + more
                continue
            last, _, text = line.strip().partition(" ")
            text = text.strip()
            if last in EXPECTATIONS:
                self.expects.append((EXPECTATIONS[last], text))
            elif last in self.MANY:
                self.directives.setdefault(last, []).append(text)
            else:
                self.directives[last] = text

    @property
    def name(self):
        return "%s.%s" % (self.suite, self.directives["NAME"])

    def get(self, directive, default=None):
        return self.directives.get(directive, default)

    @property
    def exact(self):
        return any(mode in ("file", "json") for mode, _ in self.expects)


def cases(folder):
    """Every Case below a tests/runtime folder."""
    for path in sorted(Path(folder).iterdir()):
        if not path.is_file() or path.name.startswith("."):
            continue
        lines = []
        for line in [*path.read_text().splitlines(True), "\n"]:
            if line.startswith("#"):
                continue
            if line != "\n":
                lines.append(line)
            elif lines:
                yield Case(path.name, lines)
                lines = []


# -- the suite's programs

def build(source, work):
    """Compile the programs that the cases trace, into work/testprogs and work/testlibs."""
    progs, libs = work / "testprogs", work / "testlibs"
    debug = progs / "external_debug"
    for folder in (libs, progs / ".debug", debug / "dwo", debug / "dwp"):
        folder.mkdir(parents=True, exist_ok=True)
    include = "-I%s/tests/include" % source

    def call(*words):
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        if done.returncode:
            print("not built: %s\n    %s" % (shlex.join(map(str, words))[-120:], done.stderr.strip()[-200:]))

    for file in sorted((source / "tests/testlibs").glob("*.c")):
        lib = libs / ("lib%s.so" % file.stem)
        call("gcc", "-shared", "-fPIC", "-g", "-O0", include, file, "-o", lib)
        lib.chmod(0o644)
    for file in sorted((source / "tests/testprogs").glob("*.c*")):
        if file.suffix not in (".c", ".cpp"):
            continue
        flags = ["-g", "-O0", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"]
        if file.stem == "uprobe_nofp":
            flags = ["-g", "-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]
        more = []
        if file.stem == "usdt_lib":
            more = ["-fPIC", "-I%s/tests/testlibs" % source, "-L%s" % libs, "-lusdt_tp", "-Wl,-rpath,%s" % libs]
        for name, pie in ((file.stem, ["-no-pie"]), (file.stem + "-pie", ["-fpie", "-pie"])):
            call("g++" if file.suffix == ".cpp" else "gcc", *flags, *pie, include, file, *more, "-o", progs / name,
                 "-pthread", "-ldl")
    main, other = progs / "uprobe_test", progs / "uprobe_separate_debug"
    kept = progs / ".debug/uprobe_separate_debug-stripped.debug"
    call("objcopy", "--only-keep-debug", main, debug / "uprobe_test-stripped.debug")
    call("objcopy", "--strip-debug", main, progs / "uprobe_test-stripped")
    call("objcopy", "--only-keep-debug", other, kept)
    call("objcopy", "--strip-debug", other, progs / "uprobe_separate_debug-stripped")
    call("objcopy", "--add-gnu-debuglink=%s" % kept, progs / "uprobe_separate_debug-stripped")
    for folder in (debug / "dwo", debug / "dwp"):
        call("gcc", "-g", "-O0", "-gsplit-dwarf", source / "tests/testprogs/uprobe_test.c",
             "-o", folder / "uprobe_test-split")
    call("dwp", "-e", debug / "dwp/uprobe_test-split", "-o", debug / "dwp/uprobe_test-split.dwp")
    call("gcc", "-c", source / "tests/testprogs/false.c", "-o", progs / "false.o")
    call("objcopy", "-S", "--only-section=.text", "-O", "binary", progs / "false.o", progs / "false.bin")
    call("zip", "-q", "-0", "-j", progs / "archive.zip", progs / "true")


def prepare(source, work):
    """Make the work folder: the suite's files and its programs."""
    work.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source / "tests/runtime", work / "runtime", dirs_exist_ok=True)
    for name in ("data", "self"):
        shutil.copytree(source / "tests" / name, work / name, dirs_exist_ok=True)
    if not (work / "testprogs/archive.zip").exists():
        build(source, work)


def stand_in(work, command):
    """Put `command` (None: this checkout's) there under the name bpftrace, by which cases look for its process."""
    path = work / "bpftrace"
    path.write_text(OURS % (sys.executable, sys.path[1:]) if command is None else "#!/bin/bash\nexec %s \"$@\"\n" % command)
    path.chmod(0o755)


# -- running a case

class Runner:
    """Runs cases in a work folder; `features` are the names of FEATURES that the command has. Every time limit is
    multiplied by `patience`."""

    def __init__(self, work, patience=1):
        self.work, self.patience = work, patience
        self.program = str(work / "bpftrace")
        told = self.shell(self.program + " --info").stdout
        self.features = {name for name, text in FEATURES.items() if text in told}

    def shell(self, command):
        return subprocess.run(["/bin/bash", "-c", command], cwd=self.work, text=True, errors="backslashreplace",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def unmet(self, case):
        """Why the case is not for this machine or this command; "" when it is."""
        release = [int(n) for n in re.findall(r"\d+", platform.release())[:3]]
        for directive, sign in (("MIN_KERNEL", 1), ("MAX_KERNEL", -1)):
            if case.get(directive):
                limit = [int(n) for n in case.get(directive).split(".")]
                if (limit > release) if sign > 0 else (release > limit):
                    return "%s %s" % (directive, case.get(directive))
        arches = [word.strip() for word in case.get("ARCH", "").split("|") if word.strip()]
        here = (platform.machine(), sys.byteorder[0] + "e")
        if any(arch[1:] in here for arch in arches if arch[0] == "!") or (
                any(arch[0] != "!" for arch in arches) and not any(arch in here for arch in arches)):
            return "ARCH"
        for words in case.get("REQUIRES_FEATURE", ()):
            for word in words.split():
                if (word.lstrip("!") in self.features) == word.startswith("!"):
                    return "feature " + word
        skip = case.get("SKIP_IF_ENV_HAS", "").partition("=")
        if skip[1] and os.environ.get(skip[0]) == skip[2]:
            return "environment"
        for command in case.get("REQUIRES", ()):
            if self.shell(command).returncode:
                return command
        return ""

    def run(self, case):
        """(status, details): status "pass", "fail", "timeout" or "skip"."""
        reason = self.unmet(case)
        if reason:
            return "skip", reason
        if case.get("SETUP"):
            done = self.shell(case.get("SETUP"))
            if done.returncode:
                return "fail", "SETUP: " + done.stdout
        started = []
        try:
            return self._run(case, started)
        except TimeoutError as error:
            return "timeout", str(error)
        finally:
            for process in started:
                _end(process)
            if case.get("CLEANUP"):
                self.shell(case.get("CLEANUP"))

    def _start(self, words, **options):
        return subprocess.Popen(words, cwd=self.work, start_new_session=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, **options)

    def _run(self, case, started):
        inside = []                 # how a command gets into the case's pid namespace
        befores = case.get("BEFORE", [])
        if "NEW_PIDNS" in case.directives:
            words = ["unshare", "--fork", "--pid", "--mount-proc", "-r", "--kill-child", "--", *befores[0].split()]
            started.append(self._start(words))
            first = self.wait(lambda: _children(started[0].pid))
            inside = ["nsenter", "-p", "-m", "-t", str(first[0])]
            for text in befores[1:]:
                started.append(self._start(inside + [self._absolute(word) for word in text.split()]))
                self.wait(lambda: [pid for pid in _children(started[-1].pid) if _comm(pid) == _name(text.split()[0])])
        else:
            for text in befores:
                started.append(self._start(text.split()))
                self.wait(lambda: [pid for pid in _family(started[-1].pid) if _comm(pid) == _name(text.split()[-1])])
        command = " ".join(inside) + " " + self.command(case)
        if "{{BEFORE_PID}}" in command:
            wanted = _name(befores[0].split()[-1])
            found = [pid for pid in _family(started[0].pid) if _comm(pid) == wanted]
            command = command.replace("{{BEFORE_PID}}", str(found[0]))
        env = {"test": case.get("NAME"), "__BPFTRACE_NOTIFY_PROBES_ATTACHED": "1", "PATH": os.environ["PATH"],
               "__BPFTRACE_NOTIFY_AOT_PORTABILITY_DISABLED": "1"}
        env.update(word.split("=", 1) for word in case.get("ENV", "").split())
        process = subprocess.Popen(["/bin/bash", "-c", command], cwd=self.work, start_new_session=True, env=env,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        started.append(process)
        output, late = self._follow(case, process, inside, started)
        wrong = [expect for expect in case.expects if not self.meets(case, expect, output)]
        details = "command: %s\noutput:\n%s" % (command.strip(), output)
        if wrong:
            return ("timeout" if late else "fail"), "\n".join("expected %s: %s" % pair for pair in wrong) + "\n" + details
        if not late:
            if "WILL_FAIL" in case.directives:
                if process.returncode == 0:
                    return "fail", "should fail\n" + details
            elif process.returncode != int(case.get("RETURN_CODE", 0)):
                return "fail", "exit status %d\n%s" % (process.returncode, details)
        return "pass", details

    def wait(self, ask):
        """What ask() returns as soon as it is something."""
        end = time.monotonic() + TIMEOUT * self.patience
        while time.monotonic() < end:
            found = ask()
            if found:
                return found
            time.sleep(0.02)
        raise TimeoutError("a BEFORE program did not start")

    def command(self, case):
        if case.get("RUN"):
            return case.get("RUN").replace("{{BPFTRACE}}", self.program)
        options = "-q -f json " if case.expects and case.expects[0][0] == "json" else ""
        return "%s %s-e %s" % (self.program, options, shlex.quote(case.get("PROG")))

    def _absolute(self, word):
        return os.path.normpath(self.work / word)

    def _follow(self, case, process, inside, started):
        """(output, whether it had to be ended) of a process; starts AFTER when it says that it has attached."""
        deadline, data, attached = time.monotonic() + self.patience * ATTACH_TIMEOUT, b"", False
        fd, late = process.stdout.fileno(), False
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                if late:
                    break
                late = True
                os.killpg(process.pid, signal.SIGTERM)
                deadline = time.monotonic() + 1
                continue
            if select.select([fd], [], [], left)[0]:
                more = os.read(fd, 65536)
                if not more:
                    break
                data += more
            if not attached and ATTACHED.encode() in data:
                attached = True
                if case.exact:
                    data = data.partition(ATTACHED.encode())[2]
                deadline = time.monotonic() + self.patience * int(case.get("TIMEOUT", TIMEOUT))
                if case.get("AFTER"):
                    words = ["/bin/bash", "-c", case.get("AFTER").replace("(pidof ", "(pidof -x ")]      # a script's too
                    if inside:
                        words = inside + [self._absolute(word) for word in case.get("AFTER").split()]
                    started.append(self._start(words))
        _end(process, 0 if late else 5 * self.patience)
        return data.decode("utf-8", "backslashreplace").replace("\r\n", "\n"), late

    def meets(self, case, expect, output):
        mode, text = expect
        if mode.startswith("text"):
            found = re.search(r"^\s*%s\s*$" % re.escape(text), output, re.M)
            return bool(found) != mode.endswith("none")
        if mode.startswith("regex"):
            return bool(re.search(text, output, re.M)) != mode.endswith("none")
        wanted = (self.work / text).read_text().strip()
        if mode == "file":
            if "LOCALIZE_TIMESTAMPS" in case.directives:
                wanted = time.strftime(wanted, time.localtime(int(case.get("LOCALIZE_TIMESTAMPS"))))
            return output.strip() == wanted
        try:
            if text.endswith(".ndjson"):
                return [json.loads(line) for line in output.strip().splitlines()] == [
                    json.loads(line) for line in wanted.splitlines()]
            return json.loads(output) == json.loads(wanted)
        except ValueError:
            return False


def _end(process, patience=0):
    """End a process and its session; wait for it."""
    try:
        process.wait(patience or 0.001)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    if process.stdout:
        process.stdout.close()


def _name(path):
    return os.path.basename(path)[:15]


def _comm(pid):
    try:
        return Path("/proc/%d/comm" % pid).read_text().rstrip("\n")
    except OSError:
        return ""


def _children(pid):
    try:
        return [int(word) for word in Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()]
    except OSError:
        return []


def _family(pid):
    """A process, its children and theirs."""
    return [pid] + [one for child in _children(pid) for one in _family(child)]


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.tools.suite", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, help="without: the work folder was made before, by --prepare or a run")
    parser.add_argument("--prepare", action="store_true", help="make the work folder, and stop")
    parser.add_argument("--work", type=Path, default=Path("/tmp/rawbpf-suite"))
    parser.add_argument("--command", help="run this in place of rawbpf trace")
    parser.add_argument("--reference", action="store_true", help="run Debian's newest bpftrace instead")
    parser.add_argument("--json", type=Path, help="write {name: status} there; what it holds already is kept")
    parser.add_argument("--log", type=Path, help="write commands and outputs there")
    parser.add_argument("--quiet", action="store_true", help="names of failures without their reasons")
    parser.add_argument("--patience", type=float, default=1, help="multiply every time limit (emulated guests)")
    parser.add_argument("names", nargs="*", help="regular expressions of \"file.name\"")
    options = parser.parse_args(argv)
    top = Path(__file__).resolve().parents[2]
    command = "env PYTHONPATH=%s %s -m tests.peers bpftrace" % (top, sys.executable) if options.reference else options.command
    if options.checkout:
        prepare(options.checkout.resolve(), options.work.resolve())
    if options.prepare:
        return 0
    stand_in(options.work.resolve(), command)
    chosen = [case for case in cases(options.work / "runtime")
              if not options.names or any(re.search(name, case.name) for name in options.names)]
    runner = Runner(options.work.resolve(), options.patience)
    statuses = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    table, log = collections.defaultdict(collections.Counter), open(options.log or os.devnull, "w")
    for case in chosen:
        reason = None if options.command or options.reference else LEFT_OUT.get(case.name)
        status, details = ("left out", reason) if reason else runner.run(case)
        if status != "skip" or case.name not in statuses:       # some have one name for several machines
            statuses[case.name] = status
        table[case.suite][status] += 1
        log.write("==== %s: %s\n%s\n" % (case.name, status, details))
        log.flush()
        if status in ("fail", "timeout"):
            print("%s: %s%s" % (case.name, status, "" if options.quiet else "\n    " + details.replace("\n", "\n    ")))
            sys.stdout.flush()
        if options.json:
            options.json.write_text(json.dumps(statuses, indent=1, sort_keys=True))
    table["total"] = sum(table.values(), collections.Counter())
    for suite, row in table.items():
        print("%-16s %s" % (suite, "  ".join("%s %4d" % (key, row[key]) for key in (
            "pass", "fail", "timeout", "skip", "left out"))))
    return 1 if table["total"]["fail"] + table["total"]["timeout"] else 0


if __name__ == "__main__":
    sys.exit(main())
