"""The second matrix, on demand: `python -m tests.vm --kernel arm64`, Debian's arm64 kernel 6.12 emulated.

Everything comes from Debian packages in the cache: the emulator, Python for arm64, and a cross compiler
that makes the tests' programs. Nothing is installed on the host.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from rawbpf.tools.vm import machine
from tests import cc
from tests.debian import Suite

CONSOLE = "ttyAMA0"
CC = "/dev/hvc0"  # the machine has one serial port: the compiler is at a virtio console
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def emulator():
    """QEMU's program and options for the machine."""
    root = Suite("bookworm").root("qemu-arm", ["qemu-system-arm"])
    return [str(root / "lib64/ld-linux-x86-64.so.2"), "--library-path", str(root / LIBRARIES),
            str(root / "usr/bin/qemu-system-aarch64"), "-L", str(root / "usr/share/qemu"),
            "-M", "virt", "-cpu", "neoverse-n1", "-accel", "tcg,thread=single", "-smp", "1"]


def devices(socket):
    """QEMU's options for the compiler's end."""
    return ("-chardev", f"socket,id=cc,path={socket}", "-device", "virtio-serial-pci",
            "-device", "virtconsole,chardev=cc")


def system(image, modules):
    """Write what a guest has before the project: Debian's Python for arm64, and modules of the host's Python."""
    root = Suite("trixie", "arm64").root("arm64-guest", ["python3", "busybox-static"])
    machine.system(image, root / "usr/bin/busybox")
    for name in ("usr/lib/aarch64-linux-gnu", "usr/lib/python3.13"):
        image.add(root / name, "/" + name)
    image.link("/lib/ld-linux-aarch64.so.1", "/usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1")
    image.add(root / "usr/bin/python3.13", "/usr/bin/python3.13")
    image.link("/usr/bin/python3", "python3.13")
    image.link("/usr/bin/python", "python3.13")
    image.modules(modules)


def build(source, flags, name):
    """As cc.build, for arm64."""
    root = Suite("bookworm").root("arm64-gcc", ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(root / LIBRARIES), "PATH": "%s:%s" % (root / "usr/bin", os.environ["PATH"])}
    with tempfile.TemporaryDirectory() as folder:
        suffix = ".S" if "-xassembler-with-cpp" in flags else ".c"
        stem = name.split(".")[0] or "a"
        (Path(folder) / (stem + suffix)).write_text(source)
        done = subprocess.run(["aarch64-linux-gnu-gcc", "--sysroot=" + str(root), "-g", "-o", name, stem + suffix, *flags],
                              cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)
        if done.returncode != 0:
            raise cc.CompileError(f"gcc {' '.join(flags)}:\n{done.stderr}")
        return (Path(folder) / name).read_bytes()
