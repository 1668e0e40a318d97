"""Objects that other people wrote, beside libbpf: which of them load as they are, and attach.

    python -m tests.loader.tool_objects collect FOLDER      fetch them, and bpftool, as files into FOLDER
    python -m tests.loader.tool_objects compare FOLDER      load (and attach) each with bpftool and with rawbpf
    python -m tests.loader.tool_objects features FOLDER     `feature probe` of both

The first is for the host, the second for any kernel: python -m tests.vm --kernel 6.12 --add FOLDER=/objects
--shell 'python3 -m tests.loader.tool_objects compare /objects'. The objects are those in Debian's libbpf-tools (cut
out of its programs) and beside its xdp-tools.
"""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

EM_BPF = 247


def embedded(data):
    """The BPF objects inside a program that was built with a libbpf skeleton."""
    at = data.find(b"\x7fELF", 4)
    while at >= 0:
        head = data[at:at + 64]
        if len(head) == 64 and struct.unpack_from("<H", head, 18)[0] == EM_BPF:
            shoff, = struct.unpack_from("<Q", head, 40)
            entry, count = struct.unpack_from("<HH", head, 58)
            yield data[at:at + shoff + entry * count]
        at = data.find(b"\x7fELF", at + 4)


def libbpf_tools(folder):
    """Paths of the objects in libbpf-tools, put into a folder."""
    from tests.debian import Suite
    root, found = Suite("sid").root("libbpf-tools", ["libbpf-tools"]), []
    for path in sorted((root / "usr/sbin").iterdir()):
        if path.is_file():
            for number, data in enumerate(embedded(path.read_bytes())):
                target = Path(folder) / ("%s.%d.bpf.o" % (path.name, number))
                target.write_bytes(data)
                found.append(target)
    return found


def xdp_tools():
    """Paths of the objects of xdp-tools."""
    from tests.debian import Suite
    root = Suite("sid").root("xdp-tools", ["xdp-tools"])
    return sorted((root / "usr/lib/x86_64-linux-gnu/bpf").glob("*.o"))


def collect(folder):
    from tests import peers
    os.makedirs(folder, exist_ok=True)
    libbpf_tools(folder)
    for path in xdp_tools():
        shutil.copy(path, folder)
    home = peers.root()
    command = peers.command("bpftool")
    libraries = subprocess.run(command[:-1] + ["--list", command[-1]], capture_output=True, text=True).stdout
    if "=>" not in libraries:
        libraries = subprocess.run([command[0], "--library-path", command[command.index("--library-path") + 1], "--list",
                                    command[-1]], capture_output=True, text=True, check=True).stdout
    place = Path(folder) / "bpftool"
    place.mkdir(exist_ok=True)
    for line in libraries.splitlines():
        if "=> /" in line:
            path = line.split("=> ")[1].split()[0]
            shutil.copy(path, place / os.path.basename(line.split()[0]))
    shutil.copy(home / peers.LINKER, place / "ld.so")
    shutil.copy(command[-1], place / "bpftool")


def bpftool(folder):
    place = Path(folder) / "bpftool"
    return [str(place / "ld.so"), "--library-path", str(place), str(place / "bpftool")]


def enter(bpffs):
    from tests import peers
    peers.private_mounts()
    peers.mount("bpf", bpffs, "bpf")
    peers.mount(bpffs, "/sys/fs/bpf", bind=True)      # where libbpf pins maps by name
    if not os.path.isdir("/sys/kernel/tracing/events"):
        peers.mount("none", "/sys/kernel/tracing", "tracefs")


def theirs(command, path, *words):
    """(does bpftool load it, what it says)"""
    def prepare():
        enter(bpffs)
        os.mkdir(os.path.join(bpffs, "all"))        # where it pins what it cannot attach
    with tempfile.TemporaryDirectory() as bpffs:
        done = subprocess.run([*command, "prog", "loadall", str(path), os.path.join(bpffs, "all"), *words],
                              preexec_fn=prepare, capture_output=True, text=True, timeout=300)
    return done.returncode == 0, done.stderr


OURS = """
import os, sys
from tests.loader.tool_objects import enter
bpffs, attach, *paths = sys.argv[1:]
enter(bpffs)
from rawbpf.loader import KernelError, Object, ObjectError
for path in paths:
    obj = None
    try:
        with Object.open(path, pin_root=bpffs) as obj:
            obj.load()
            apart = []
            for name, program in sorted(obj.programs.items()) if attach == "attach" else ():
                if program.program is None:
                    continue
                try:
                    program.attach().close()
                except (KernelError, ObjectError):
                    apart.append(name)
        print(":" + " ".join(apart) if apart else "")
    except (KernelError, ObjectError) as error:
        print(error)
    for each in obj.maps.values() if obj is not None else ():
        if each.pin_path and os.path.exists(each.pin_path):
            os.unlink(each.pin_path)
"""


def ours(paths, attach=False):
    """[why we do not load it, "" for those that we do], in one process. attach: ":" and the names of the programs that
    cannot be attached by what their sections say."""
    with tempfile.TemporaryDirectory() as bpffs:
        done = subprocess.run([sys.executable, "-c", OURS, bpffs, "attach" if attach else "", *map(str, paths)],
                              capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def compare(folder):
    """Prints a line for each that goes another way, then the counts -> how many went another way."""
    command, other = bpftool(folder), 0
    paths = sorted(Path(folder).glob("*.o"))
    counts, loaded = [0, 0, 0], []       # both, neither, one
    for path, why in zip(paths, ours(paths)):
        (they, said), we = theirs(command, path), not why
        counts[0 if they and we else 1 if not they and not we else 2] += 1
        if they and we:
            loaded.append(path)
        elif they != we:
            other += 1
            last = [line for line in said.strip().splitlines() if line][-2:]
            print("%s: libbpf %s, rawbpf %s: %s %s" % (path.name, they, we, why, " / ".join(last)), flush=True)
        elif "-v" in sys.argv:
            print("%s: neither: %s" % (path.name, why), flush=True)
    print("loaded: %d objects, with libbpf and with rawbpf; %d with neither, %d with one of them" % tuple(counts),
          flush=True)
    together = apart = stopped = 0
    for path, why in zip(loaded, ours(loaded, True)):
        whole, said = theirs(command, path, "autoattach")
        # bpftool says so of what has no target and of what could not be attached
        left = set(re.findall(r"Program (\S+) does not support autoattach", said))
        mine = set(why[1:].split())
        if not whole and left <= mine:
            stopped += 1        # it stops at the first program whose link it cannot pin (before 5.15)
        elif mine != left:
            other += 1
            print("%s: only libbpf attaches %s, only rawbpf %s" % (path.name, sorted(mine - left), sorted(left - mine)),
                  flush=True)
        else:
            together += 1
            apart += len(left)
    print("attached: the same programs of %d of %d objects (%d programs are not attached); of %d bpftool stopped" % (
        together, len(loaded), apart, stopped), flush=True)
    return other


def features(folder):
    """Prints where `feature probe` of bpftool and of rawbpf differ -> in how many answers."""
    answers = [json.loads(subprocess.run([*command, "-j", "feature", "probe"], capture_output=True, text=True).stdout)
               for command in (bpftool(folder), [sys.executable, "-m", "rawbpf.tools"])]
    count = other = 0
    for group in ("syscall_config", "program_types", "map_types", "helpers", "misc"):
        one, two = ({} if each.get(group) is None else each[group] for each in answers)
        for name in sorted(set(one) | set(two)):
            count += 1
            if one.get(name) != two.get(name):
                other += 1
                left, right = one.get(name), two.get(name)
                if isinstance(left, list) and isinstance(right, list):
                    left, right = sorted(set(left) - set(right)), sorted(set(right) - set(left))
                print("%s %s: bpftool %s, rawbpf %s" % (group, name, left, right))
    print("feature probe: %d answers, %d differ" % (count, other), flush=True)
    return other


if __name__ == "__main__":
    work = {"collect": collect, "compare": compare, "features": features}[sys.argv[1]]
    sys.exit(bool(work(sys.argv[2])))
