"""Debian packages as files: kernels to boot, and what the tests compare with (reference tools, an old Python).

Nothing is installed on the host: a private apt set-up per suite downloads packages and
`dpkg -x` unpacks them below the cache (`RAWBPF_CACHE`, or `~/.cache/rawbpf`).  Packages come
from the Debian mirror that this host's apt is set up with, or from `RAWBPF_DEBIAN_MIRROR`.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

CACHE = Path(os.environ.get("RAWBPF_CACHE") or Path.home() / ".cache" / "rawbpf")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


class DebianError(Exception):
    """A package cannot be had; the text says which and what apt said."""


@contextlib.contextmanager
def locked(name):
    """Hold the cache's lock `name`, so that two runs do not fill the same folder."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _tools():
    missing = [name for name in ("apt-get", "apt-cache", "dpkg") if not shutil.which(name)]
    if missing:
        raise DebianError("packages are fetched with Debian's %s, which this host does not have" % " and ".join(missing))


def mirror():
    """URI of the Debian mirror of this host's apt, with no slash at its end; RAWBPF_DEBIAN_MIRROR names another.
    DebianError where there is neither."""
    named = os.environ.get("RAWBPF_DEBIAN_MIRROR")
    if named:
        return named.rstrip("/")
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"],
                            capture_output=True, text=True).stdout.split()
    for uri in listed:
        if uri.rstrip("/").endswith("/debian"):
            return uri.rstrip("/")
    raise DebianError("apt of this host names no Debian mirror: RAWBPF_DEBIAN_MIRROR=URI says which to take")


class Suite:
    """One Debian suite, read through a private apt set-up that believes nothing is installed."""

    def __init__(self, name, architecture="amd64"):
        self.name = name
        _tools()
        home = CACHE / "apt" / (name if architecture == "amd64" else "%s-%s" % (name, architecture))
        for sub in ("lists/partial", "cache/archives/partial"):
            (home / sub).mkdir(parents=True, exist_ok=True)
        (home / "status").touch()
        if not KEYRING.exists():
            raise DebianError(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
        (home / "sources.list").write_text(
            f"deb [arch={architecture} signed-by={KEYRING}] {mirror()} {name} main\n")
        settings = {
            "Dir::Etc::sourcelist": home / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::Etc::preferencesparts": "-",
            "Dir::State::status": home / "status",
            "Dir::State::Lists": home / "lists",
            "Dir::Cache": home / "cache",
            "APT::Sandbox::User": "root",
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Install-Recommends": "false",
            "Acquire::Check-Valid-Until": "false",  # an archived suite is never signed again
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
            "APT::Update::Error-Mode": "any",       # else what cannot be reached is only a warning
        }
        self._options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
        self._updated = False

    def _apt(self, tool, *arguments, cwd=None, tries=1):
        for left in reversed(range(tries)):
            done = subprocess.run([tool, *self._options, *arguments], cwd=cwd, text=True,
                                  capture_output=True, stdin=subprocess.DEVNULL)
            if done.returncode == 0:
                return done.stdout
            if left:
                time.sleep(5)
        said = re.findall(r"^E: (.*?)\s*$", done.stderr, re.M) or [done.stderr.strip()[-800:]]
        raise DebianError(f"{tool} {' '.join(arguments)} ({self.name}): {'; '.join(said)} "
                          f"(RAWBPF_DEBIAN_MIRROR names another mirror than {mirror()})")

    def update(self):
        """Fetch the suite's package list, once."""
        if not self._updated:
            self._apt("apt-get", "-qq", "update", tries=3)
            self._updated = True

    def depends(self, package):
        """Names of the packages that `package` depends on."""
        self.update()
        return re.findall(r"^ +Depends: (\S+)", self._apt("apt-cache", "depends", package), re.M)

    def closure(self, packages):
        """`name=version` of `packages` and of everything that they depend on."""
        self.update()
        planned = self._apt("apt-get", "-s", "install", *packages)
        return [f"{name}={version}" for name, version in
                re.findall(r"^Inst (\S+) \((\S+)", planned, re.M)]

    def unpack(self, packages, root):
        """Download `packages` and unpack them into the folder `root`."""
        self.update()
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            self._apt("apt-get", "-qq", "download", *packages, cwd=folder, tries=3)
            for deb in sorted(Path(folder).glob("*.deb")):
                subprocess.run(["dpkg", "-x", str(deb), str(root)], check=True)

    def root(self, name, packages, refresh=False):
        """Folder `name` of the cache with `packages` and what they depend on, made once.

        It is a file system root as `dpkg -x` leaves it: no package script has run.  `refresh`
        makes it again when the suite has moved on.
        """
        target = CACHE / name
        stamp = target / ".packages"
        with locked(name.replace("/", "-")):
            made = stamp.read_text().splitlines() if stamp.exists() else [None]
            wanted = [" ".join(packages)]
            if made[0] == wanted[0] and not refresh:
                return target
            closure = self.closure(packages)
            wanted += closure
            if made == wanted:
                return target
            fresh = target.with_name(target.name + ".new")
            shutil.rmtree(fresh, ignore_errors=True)
            for folder in MERGED:
                (fresh / "usr" / folder).mkdir(parents=True, exist_ok=True)
                (fresh / folder).symlink_to(f"usr/{folder}")
            self.unpack(closure, fresh)
            (fresh / ".packages").write_text("\n".join(wanted))
            shutil.rmtree(target, ignore_errors=True)
            fresh.rename(target)
        return target
