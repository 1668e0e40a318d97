"""The kernels that can be booted, downloaded from Debian once."""

import shutil
import tempfile
from pathlib import Path

from . import SUITES
from .debian import CACHE, DebianError, Suite, locked

META = "linux-image-cloud-amd64"


def ready(series):
    """Paths of the series' vmlinuz that the cache has; one or none, but while one is replaced."""
    return sorted((CACHE / "kernels" / series).glob("vmlinuz-*"))


def kernel(series, refresh=False):
    """Path of the series' vmlinuz; `refresh` looks for a newer one than the cache has."""
    home = CACHE / "kernels" / series
    with locked("kernel-" + series):
        before = ready(series)
        if before and not refresh:
            return before[0]
        suite = Suite(SUITES[series])
        image = next((name for name in suite.depends(META) if name.startswith("linux-image-")), None)
        if image is None:
            raise DebianError(f"{META} of {suite.name} depends on no kernel")
        target = home / ("vmlinuz-" + image[len("linux-image-"):])
        if target.exists():
            return target
        # newer packages keep the kernel itself apart from linux-image-*
        names = [image] + [name for name in suite.depends(image) if name.startswith("linux-binary-")]
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            suite.unpack(names, Path(folder))
            found = [path for path in Path(folder).rglob("vmlinuz*") if path.is_file()]
            if not found:
                raise DebianError(f"no vmlinuz in {', '.join(names)}")
            shutil.move(str(found[0]), str(target))
        for old in before:
            old.unlink()
    return target
