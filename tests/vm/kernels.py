"""The kernels of the matrix: those that `rawbpf verify --kernel` boots, with a few of their modules; and
Debian's for arm64, a second matrix of one, on demand."""

import gzip
import lzma
import shutil
import tempfile
from pathlib import Path

from rawbpf.tools.vm import SUITES
from rawbpf.tools.vm.debian import CACHE, DebianError, Suite, locked
from rawbpf.tools.vm.kernels import META, kernel

__all__ = ["ARM64", "MODULES", "SUITES", "arm64", "kernel", "modules"]

ARM64 = "arm64"  # its name among the series
# They need no others. nbd has tracepoints; sch_ingress, cls_bpf and act_bpf are what programs of traffic control stand on.
MODULES = ("loop", "nbd", "sch_ingress", "cls_bpf", "act_bpf", "veth")


def _package(release):
    """Name and packages of a kernel: newer ones keep the modules apart from linux-image-*."""
    return "linux-image-" + release, ("linux-binary-", "linux-modules-")


def _unpacked(suite, release, folder):
    image, parts = _package(release)
    suite.unpack([image] + [name for name in suite.depends(image) if name.startswith(parts)], folder)


def _keep_modules(folder, home):
    """MODULES of an unpacked package, as plain .ko files."""
    home.mkdir(parents=True, exist_ok=True)
    for name in MODULES:
        found = next(iter(Path(folder).rglob(name + ".ko*")), None)
        if found is None:
            raise DebianError(f"no module {name} in {folder}")
        opener = {".xz": lzma.open, ".gz": gzip.open}.get(found.suffix, open)
        with opener(found, "rb") as file:
            (home / (name + ".ko")).write_bytes(file.read())


def modules(image):
    """Paths of MODULES for the kernel that `kernel` (or `arm64`) has the path `image` of."""
    release = image.name[len("vmlinuz-"):]
    series = image.parent.name
    home = CACHE / "modules" / release
    paths = [home / (name + ".ko") for name in MODULES]
    with locked("modules-" + release):
        if not all(path.exists() for path in paths):
            suite = Suite("trixie", "arm64") if series == ARM64 else Suite(SUITES[series])
            with tempfile.TemporaryDirectory(dir=CACHE) as folder:
                _unpacked(suite, release, Path(folder))
                _keep_modules(folder, home)
    return paths


def arm64():
    """Path of Debian's vmlinuz for arm64 of the series 6.12, fetched with its modules once."""
    home = CACHE / "kernels" / ARM64
    with locked("kernel-" + ARM64):
        ready = sorted(home.glob("vmlinuz-*"))
        if ready:
            return ready[0]
        suite = Suite("trixie", "arm64")
        meta = META.replace("amd64", "arm64")
        release = next(name for name in suite.depends(meta) if name.startswith("linux-image-"))[len("linux-image-"):]
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            _unpacked(suite, release, Path(folder))
            _keep_modules(folder, CACHE / "modules" / release)
            target = home / ("vmlinuz-" + release)
            shutil.move(next(Path(folder).rglob("vmlinuz*")), target)
    return target
