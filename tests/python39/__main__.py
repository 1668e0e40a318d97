"""Run the tests that need no privilege under Debian 11's Python 3.9, as an ordinary user.

    python -m tests.python39 [PYTEST ARGUMENT...]
    python -m tests.python39 --fetch               make the root, and stop

debootstrap makes the root, below the cache.  Its pip downloads pytest and pyelftools: on this
host's file system, so with the host's pip settings.  The tests then run inside the root.  Needs
root (chroot) and debootstrap.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.debian import CACHE, KEYRING, DebianError, locked, mirror
from tests.peers import mount, private_mounts

PROJECT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("asm", "elf", "loader", "sources", "tools")
PACKAGES = ("python3", "python3-pip", "g++", "busybox-static", "procps")
WHEELS = ("pytest", "pyelftools>=0.31")
NOBODY = 65534
UNMARKED = "not root and not kernel and not vm and not peer and not slow and not demand"
DEVICES = ("null", "zero", "full", "random", "urandom")


def debian11():
    """Folder with a Debian 11 that has `PACKAGES`, made once."""
    target = CACHE / "python39"
    if not shutil.which("debootstrap"):
        raise DebianError("missing: apt-get install debootstrap debian-archive-keyring")
    with locked("python39"):
        stamp = target / ".packages"
        if not stamp.exists() or stamp.read_text() != " ".join(PACKAGES):
            fresh = target.with_name(target.name + ".new")
            for tries_left in (2, 1, 0):
                shutil.rmtree(fresh, ignore_errors=True)
                shutil.rmtree(target, ignore_errors=True)
                done = subprocess.run(
                    ["debootstrap", "--variant=minbase", f"--keyring={KEYRING}", "--arch=amd64",
                     f"--include={','.join(PACKAGES)}", "bullseye", str(fresh), mirror()],
                    stdin=subprocess.DEVNULL, capture_output=True, text=True)
                if done.returncode == 0:
                    break
                if not tries_left:
                    raise DebianError(f"debootstrap: {(done.stdout + done.stderr)[-800:]}")
            shutil.rmtree(fresh / "var/cache/apt", ignore_errors=True)
            (fresh / ".packages").write_text(" ".join(PACKAGES))
            fresh.rename(target)
    return target


def wheels(root):
    """Folder with the Python packages that the tests need, for Python 3.9."""
    target = CACHE / "python39-site"
    with locked("python39-site"):
        if not target.exists():
            fresh = target.with_name(target.name + ".new")
            shutil.rmtree(fresh, ignore_errors=True)
            libraries = root / "usr/lib/x86_64-linux-gnu"
            linker = next(root.glob("lib/x86_64-linux-gnu/ld-2.*.so"))
            subprocess.run([str(linker), "--library-path", f"{root}/lib/x86_64-linux-gnu:{libraries}",
                            str(root / "usr/bin/python3.9"), "-m", "pip", "install", "-qq", "--no-cache-dir",
                            "--target", str(fresh), "--only-binary=:all:", "--retries", "5", *WHEELS],
                           check=True, stdin=subprocess.DEVNULL,
                           env={**os.environ, "PYTHONHOME": str(root / "usr"), "PYTHONDONTWRITEBYTECODE": "1"})
            fresh.rename(target)
    return target


def enter(root, site, project):
    """In the child: make `root` the file system, in mounts of its own, and become nobody."""
    private_mounts()
    for source, place in ((site, "opt/site"), (project, "opt/project")):
        mount(source, root / place, bind=True)
    for name in DEVICES:
        mount(f"/dev/{name}", root / "dev" / name, bind=True)
    mount("none", root / "tmp", "tmpfs")
    mount("none", root / "proc", "proc")
    os.chmod(root / "tmp", 0o1777)
    os.chroot(root)
    os.chdir("/opt/project")
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def main(arguments):
    if os.geteuid() != 0:
        sys.exit("tests.python39 needs root, to enter the Debian 11 root and become nobody there")
    root = debian11()
    site = wheels(root)
    if arguments == ["--fetch"]:
        return 0
    with tempfile.TemporaryDirectory(prefix="rawbpf-python39-") as folder:
        os.chmod(folder, 0o755)
        project = Path(folder) / "project"  # a copy that `nobody` may read, wherever the checkout is
        shutil.copytree(PROJECT, project, symlinks=True,
                        ignore=shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", "*.egg-info"))
        subprocess.run(["chmod", "-R", "a+rX", str(project)], check=True)
        (project / ".site/rawbpf").mkdir(parents=True)
        for room in ROOMS:
            (project / ".site/rawbpf" / room).symlink_to(f"../../{room}")
        for place in ("opt/site", "opt/project", "dev", "proc", "tmp"):
            (root / place).mkdir(parents=True, exist_ok=True)
        for name in DEVICES:
            (root / "dev" / name).touch()
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
                       "PYTHONPATH": "/opt/project/.site:/opt/site"}
        environment.update({name: os.environ[name] for name in ("CI",) if name in os.environ})
        done = subprocess.run(["/usr/bin/python3", "-m", "pytest", "-m", UNMARKED, *arguments],
                              stdin=subprocess.DEVNULL, env=environment,
                              preexec_fn=lambda: enter(root, site, project))
    return done.returncode


try:
    sys.exit(main(sys.argv[1:]))
except (DebianError, subprocess.CalledProcessError) as error:
    sys.exit(f"tests.python39: {error}")
