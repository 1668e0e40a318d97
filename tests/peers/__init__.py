"""The newest bpftrace and bpftool, as references for the tests marked `peer`.

They are unpacked from Debian sid below the cache and run through their own dynamic linker, so
the host's files, its working directory and its commands (`-c`) are what they see; nothing is
installed.  tracefs, which bpftrace needs, is mounted in a private mount namespace of the one
process only.

    from tests.peers import bpftrace
    done = bpftrace("-e", "BEGIN { printf(\"hi\\n\"); exit() }")
    done.stdout

`python -m tests.peers` fetches them and prints their versions; `python -m tests.peers bpftrace
ARGS...` runs one.
"""

import ctypes
import functools
import os
import re
import subprocess

from tests.debian import Suite

PACKAGES = ("bpftrace", "bpftool")
LINKER = "lib64/ld-linux-x86-64.so.2"
GUEST = "/peers"        # where they are in a virtual machine (tests.vm --peers)
TRACEFS = "/sys/kernel/tracing"

CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000

# What bpftrace says about a kernel that is locked down, whatever the script.
_NOISE = re.compile(r"^WARNING: (?:Could not read functions from|Unknown error -1: couldn't set "
                    r"RLIMIT_MEMLOCK).*\n", re.M)


@functools.lru_cache(maxsize=None)
def root(refresh=False):
    """Folder with the reference tools; fetched at the first call, again if `refresh` finds newer.  Asked of apt
    once a process."""
    return Suite("sid").root("peers", PACKAGES, refresh)


def _libc(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}", str(arguments))


def mount(source, target, kind=None, bind=False):
    """mount(2): a file system of a kind, or a folder or file bound to another place."""
    _libc("mount", os.fsencode(source), os.fsencode(target), kind and kind.encode(),
          MS_BIND | MS_REC if bind else 0, None)


def private_mounts():
    """Move the calling process to a mount namespace of its own, which nobody else sees."""
    _libc("unshare", CLONE_NEWNS)
    _libc("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)


def enter_tracefs():
    """Move the calling process to a mount namespace of its own, with tracefs mounted in it."""
    private_mounts()
    mount("none", TRACEFS, "tracefs")


def command(tool, *arguments):
    """The command line that runs reference tool `tool` with `arguments`."""
    if os.path.exists(f"{GUEST}/{tool}"):
        return [tool, *map(str, arguments)]
    home = root()
    binary = next(path for path in (home / "usr/bin" / tool, home / "usr/sbin" / tool)
                  if path.exists())
    return [str(home / LINKER), "--argv0", tool,
            "--library-path", str(home / "usr/lib/x86_64-linux-gnu"), str(binary),
            *map(str, arguments)]


def popen(tool, *arguments, **options):
    """Start a reference tool: `subprocess.Popen` with tracefs in sight, text streams."""
    options.setdefault("text", True)
    return subprocess.Popen(command(tool, *arguments), preexec_fn=enter_tracefs, **options)


def bpftrace(*arguments, timeout=60, **options):
    """Run bpftrace to its end: `CompletedProcess` with text `stdout` and `stderr`.

    Its warnings about this kernel's lockdown are taken out of `stderr`.  Python's
    SIGINT and file descriptors are as `subprocess.run` leaves them.
    """
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("capture_output", True)
    options.setdefault("text", True)
    done = subprocess.run(command("bpftrace", *arguments), preexec_fn=enter_tracefs,
                          timeout=timeout, **options)
    if isinstance(done.stderr, str):
        done.stderr = _NOISE.sub("", done.stderr)
    return done


def bpftool(*arguments, timeout=60):
    """Run bpftool to its end: `CompletedProcess`."""
    return subprocess.run(command("bpftool", *arguments), timeout=timeout, text=True,
                          capture_output=True, stdin=subprocess.DEVNULL)


@functools.lru_cache(maxsize=None)
def bpftrace_version():
    """Version of the reference bpftrace as a tuple of ints, e.g. (0, 27, 1)."""
    text = bpftrace("--version").stdout
    return tuple(int(part) for part in re.search(r"v?(\d+)\.(\d+)\.(\d+)", text).groups())
