"""`rawbpf verify` inside a guest: the same command on another kernel, whose records come back as JSON."""

import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from ..failure import Failure, report
from . import machine
from .debian import CACHE, DebianError
from .image import SITE, Image
from .kernels import kernel as fetched

ROOMS = ("asm", "elf", "loader", "sources", "tools")
HOST = "/host"      # where the guest has the host's files, each at its own path
_INCLUDE = re.compile(rb'^\s*\.include\s+"([^"]+)"', re.M)
_LEVELS = {1: "1", 2: "2", 4: "stats"}


def in_guest(series, paths, type=None, level=0):
    """Yields the records of every program of the files on a kernel of `tools.vm.SUITES`."""
    missing = [package for tool, package in machine.NEEDS.items() if not shutil.which(tool)]
    if missing:
        raise Failure("--kernel %s boots a virtual machine, which needs: apt-get install %s" % (series, " ".join(missing)))
    if platform.machine() != "x86_64":
        raise Failure("--kernel %s: the kernels and this machine's Python must be of one architecture, x86_64" % series)
    arguments = ["rawbpf", "verify", "--json", *(["--type", type] if type else []),
                 *(["--log-level", _LEVELS[level]] if level else []), "--"]
    said, records = [], []
    with tempfile.TemporaryDirectory(prefix="rawbpf-vm-") as folder:
        initrd = Path(folder) / "initrd"
        arguments += pack(initrd, paths)
        (CACHE / "vm").mkdir(parents=True, exist_ok=True)

        def line(text):
            try:
                records.append(json.loads(text))
            except ValueError:
                said.append(text.rstrip("\n"))

        try:
            with machine.slot():
                status = machine.run(fetched(series), initrd, shlex.join(arguments), CACHE / "vm" / ("verify-%s.log" % series),
                                     line, timeout=600, environment={"PYTHONPATH": SITE}, prepare=None,
                                     folder=HOST + os.getcwd())
        except (machine.GuestError, DebianError) as error:
            raise Failure("kernel %s: %s" % (series, error)) from None
    for record in records:
        record["kernel"] = series
        for part in (record, record["refusal"] or {}):
            if part.get("file", "").startswith(HOST + "/"):
                part["file"] = part["file"][len(HOST):]
        yield record
    if said and (status or not records):
        text = "\n".join(said).replace(HOST + "/", "/")
        if not records or text.startswith("ERROR: "):
            raise Failure("kernel %s: %s" % (series, text.replace("ERROR: ", "", 1)))
        report("kernel %s: %s" % (series, text))


def pack(path, files):
    """Write an initramfs with this Python, this package and the files; returns their names in the guest."""
    names = []
    with open(path, "wb") as out:
        image = Image(out)
        machine.system(image)
        image.python(())
        for room in ROOMS:
            image.add(next(iter(importlib.util.find_spec("rawbpf." + room).submodule_search_locations)),
                      "%s/rawbpf/%s" % (SITE, room))
        image.folder(HOST + os.getcwd())
        for name in files:
            if name == "-":
                name = "stdin"
                image.write(HOST + os.path.abspath(name), sys.stdin.buffer.read())
            elif not os.path.isfile(name):
                raise Failure("%s: there is no such file" % name)
            else:
                _add(image, name, set())
            names.append(HOST + name if os.path.isabs(name) else name)
        image.close()
    return names


def _add(image, name, seen):
    """A file, and those that it includes."""
    place = os.path.abspath(name)
    if place in seen or not os.path.isfile(name):
        return
    seen.add(place)
    image.add(name, HOST + place)
    with open(name, "rb") as file:
        for found in _INCLUDE.findall(file.read()):
            _add(image, os.path.join(os.path.dirname(name), os.fsdecode(found)), seen)
