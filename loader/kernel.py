"""What the running kernel and this process are: release, CPUs, configuration, lockdown,
capabilities, limits, BTF. All from /proc and /sys, read when asked; what cannot change is
remembered.
"""

import functools
import os
import re

CAPABILITIES = {  # include/uapi/linux/capability.h
    "CAP_DAC_READ_SEARCH": 2, "CAP_NET_ADMIN": 12, "CAP_IPC_LOCK": 14, "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21, "CAP_SYS_RESOURCE": 24, "CAP_SYSLOG": 34, "CAP_PERFMON": 38, "CAP_BPF": 39,
}


def _read(path):
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None


@functools.lru_cache(maxsize=None)
def release():
    """Version of the running kernel as a tuple of three: (6, 1, 90)."""
    text = os.uname().release
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    version = tuple(int(part or 0) for part in found.groups())
    # Debian's uname -r has only the ABI name (6.1.0-50); its version names the real one.
    if version[2] == 0:
        found = re.search(r"Debian (\d+)\.(\d+)\.(\d+)", os.uname().version)
        if found and tuple(map(int, found.groups()[:2])) == version[:2]:
            version = tuple(int(part) for part in found.groups())
    return version


def arch():
    """Machine name as uname gives it: "x86_64", "aarch64"."""
    return os.uname().machine


def parse_cpu_list(text):
    """"0-3,5" -> [0, 1, 2, 3, 5], the format of /sys/devices/system/cpu/*."""
    cpus = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


@functools.lru_cache(maxsize=None)
def _possible():
    path = "/sys/devices/system/cpu/possible"
    try:
        with open(path, "rb", buffering=0) as file:
            return tuple(parse_cpu_list(file.read().decode()))
    except FileNotFoundError:
        raise OSError("%s cannot be read: is sysfs mounted?" % path) from None


def possible_cpus():
    """Numbers of the CPUs that may ever come up: per-CPU map values have one entry for each."""
    return list(_possible())


def online_cpus():
    text = _read("/sys/devices/system/cpu/online")
    return possible_cpus() if text is None else parse_cpu_list(text)


@functools.lru_cache(maxsize=None)
def config():
    """{"CONFIG_BPF": "y", ...} from /proc/config.gz or /boot; {} when neither is there."""
    import gzip
    name = os.uname().release
    for path in ("/proc/config.gz", "/boot/config-" + name, "/lib/modules/%s/config" % name):
        try:
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
                lines = file.read().decode("utf-8", "replace").splitlines()
        except (OSError, EOFError):
            continue
        return dict(line.split("=", 1) for line in lines if line.startswith("CONFIG_") and "=" in line)
    return {}


def lockdown():
    """"none", "integrity" or "confidentiality"; None when it cannot be told (the kernel has no lockdown, or
    securityfs is not mounted and cannot be opened without a mount)."""
    from .tracefs import securityfs
    try:
        text = securityfs("lockdown").decode("ascii", "replace")
    except OSError:
        return None
    found = re.search(r"\[(\w+)\]", text)
    return found.group(1) if found else None


def vmlinux_btf():
    """Path of the kernel's BTF (5.4+ with CONFIG_DEBUG_INFO_BTF), or None."""
    path = "/sys/kernel/btf/vmlinux"
    return path if os.path.exists(path) else None


def sysctl(name):
    """Value of a sysctl such as "kernel.perf_event_paranoid" as text, or None."""
    text = _read("/proc/sys/" + name.replace(".", "/"))
    return None if text is None else text.strip()


def has_capability(name):
    """Is the capability in this process's effective set?"""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", _read("/proc/self/status") or "", re.M)
    if not found:
        return os.geteuid() == 0
    return bool(int(found.group(1), 16) >> CAPABILITIES[name] & 1)


def drop_capabilities():
    """Gives up every capability of this thread for good: capset(2)."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    head = (ctypes.c_uint32 * 2)(0x20080522, 0)     # _LINUX_CAPABILITY_VERSION_3
    if libc.capset(head, (ctypes.c_uint32 * 6)()):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def in_user_namespace():
    """Is this another user namespace than the initial one, whose capabilities do not count?"""
    return (_read("/proc/self/uid_map") or "").split() != ["0", "0", "4294967295"]


def seccomp():
    """Does a seccomp filter act on this process?"""
    found = re.search(r"^Seccomp:\s*(\d)", _read("/proc/self/status") or "", re.M)
    return bool(found) and found.group(1) == "2"


def memlock_limit():
    """Soft limit of locked memory in bytes, None when unlimited."""
    import resource
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_memlock():
    """Lifts RLIMIT_MEMLOCK, which bounds maps and programs before 5.11; False if not allowed."""
    import resource
    infinity = resource.RLIM_INFINITY
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    hard = before[1]
    for wanted in ((infinity, infinity), (hard, hard)):
        try:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, wanted)
        except (OSError, ValueError):
            continue
        return resource.getrlimit(resource.RLIMIT_MEMLOCK) != before
    return False


def charges_memlock():
    """Are BPF objects charged to RLIMIT_MEMLOCK (before 5.11; later to the memory cgroup)?"""
    return release() < (5, 11)
