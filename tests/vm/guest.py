"""Boots a guest, runs one command in it, and compiles for it.

The guest's first serial port is its console: what the command prints, between two marks.  At the
other end of the second one is `compile_for`, because the guest has no compiler (see tests/cc.py).
"""

import base64
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

from rawbpf.tools.vm import machine
from rawbpf.tools.vm.image import SITE, Image
from rawbpf.tools.vm.machine import GuestError, slot, stop_all, system
from tests import cc, peers
from tests.vm import arm64
from tests.vm.kernels import ARM64

__all__ = ["GuestError", "compile_for", "pack", "reference", "run", "slot", "stop_all"]

PROJECT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("asm", "elf", "loader", "sources", "tools")
# pytest and what its versions import, and the project's dependency
MODULES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli",
           "typing_extensions", "py", "elftools")
PR_SET_PDEATHSIG = 1


def pack(path, extra=(), series=""):
    """Write an initramfs with Python, pytest and the checkout (as /project) to `path`, for this host's
    architecture or that of the `series` "arm64".

    `extra` are `(file or folder, place in the guest)`.
    """
    with open(path, "wb") as out:
        image = Image(out)
        if series == ARM64:
            arm64.system(image, MODULES)
        else:
            system(image)
            image.python(MODULES)
        image.add(PROJECT, "/project")
        for room in ROOMS:
            image.link(f"{SITE}/rawbpf/{room}", f"/project/{room}")
        for source, place in extra:
            image.add(Path(source).resolve(), place)
        image.close()


def reference(tools):
    """`(file, place)` of reference tools and what they load: in the guest they are commands (bpftrace, bpftool)."""
    files = []
    for tool in tools:
        linker, *rest = peers.command(tool)
        path, binary = rest[rest.index("--library-path") + 1:][:2]
        listed = subprocess.run([linker, "--library-path", path, "--list", binary], capture_output=True, text=True, check=True)
        files += [(linker, f"{peers.GUEST}/ld.so"), (binary, f"{peers.GUEST}/{tool}"),
                  *((file, f"{peers.GUEST}/lib/{name}") for name, file in re.findall(r"(\S+) => (\S+)", listed.stdout)),
                  (Path(__file__).parent / "peer.sh", f"/usr/bin/{tool}")]
    return list(dict.fromkeys(files))


def bpftrace_tools():
    """`(file, place)` of the scripts that come with bpftrace."""
    return [(path, "/usr/share/bpftrace/tools/" + path.name) for path in sorted((peers.root() / "usr/sbin").glob("*.bt"))]


def with_files(initrd, files, path):
    """Write to `path` the initramfs `initrd` and behind it another of `(file, place)`."""
    with open(path, "wb") as out:
        out.write(Path(initrd).read_bytes())
        image = Image(out)
        for source, place in files:
            image.add(source, place)
        image.close()


def compile_for(connection, build=cc.build):
    """Serve a guest's requests to compile, one JSON line each, until it is gone."""
    with connection, connection.makefile("rwb") as stream:
        for line in stream:
            try:
                request = json.loads(line)
                answer = {"binary": base64.b64encode(build(**request)).decode()}
            except (ValueError, TypeError, cc.CompileError) as error:
                answer = {"error": str(error)}
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()


def _serve(listener, build):
    try:
        connection = listener.accept()[0]
        compile_for(connection, build)
    except OSError:
        return  # the listener or the machine is closed


def _die_with_parent():
    """In a child before exec: however the tests end, no machine outlives them."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def run(kernel, initrd, command, log, on_line=None, memory="1500M", timeout=900, series=""):
    """Boot `kernel` with `initrd` and run the shell `command` in /project: its exit status.

    As `machine.run`, with the compiler at the second serial port (arm64: at a virtio console).
    """
    environment = {"PYTHONPATH": SITE, "RAWBPF_CC": "/dev/ttyS1", "PYTHONDONTWRITEBYTECODE": ""}
    environment.update({name: os.environ[name] for name in ("CI",) if os.environ.get(name)})
    with tempfile.TemporaryDirectory(prefix="rawbpf-vm-") as folder:
        options = {"devices": ("-chardev", f"socket,id=cc,path={folder}/cc", "-serial", "chardev:cc")}
        build = cc.build
        if series == ARM64:
            environment["RAWBPF_CC"] = arm64.CC
            options = {"devices": arm64.devices(f"{folder}/cc"), "emulator": arm64.emulator(), "console": arm64.CONSOLE}
            build = arm64.build
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/cc")
            listener.listen()
            threading.Thread(target=_serve, args=(listener, build), daemon=True).start()
            return machine.run(kernel, initrd, command, log, on_line, memory, timeout, environment, "/project",
                               prepare=_die_with_parent, **options)
